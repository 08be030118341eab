// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace tessera::optim {

/// A user's function, with the name that stands for it in JSON.
///
/// Equal when it is the same object copied. JSON holds only the name, and what
/// is read from it has no function until it is replaced by one that has.
template <class Signature>
class NamedFunction {
 public:
  using Function = std::function<Signature>;

  NamedFunction() = default;
  NamedFunction(std::string name, Function function)
      : name_(std::move(name)),
        function_(std::make_shared<const Function>(std::move(function))) {}

  const std::string& name() const {
    return name_;
  }
  /// False when default-constructed.
  bool is_set() const {
    return !name_.empty() || function_ != nullptr;
  }
  /// nullptr for a placeholder, which has a name only.
  const Function* function() const {
    return function_ != nullptr && *function_ ? function_.get() : nullptr;
  }

  bool operator==(const NamedFunction&) const = default;

 protected:
  std::string name_;
  std::shared_ptr<const Function> function_;
};

}  // namespace tessera::optim
