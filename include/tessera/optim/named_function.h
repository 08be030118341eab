// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace tessera::optim::detail {

/// A user's function, and the name that stands for it in JSON.
///
/// Only copies of one object are equal. JSON holds only the name, so reading JSON gives a
/// placeholder without a function. It must be replaced by a NamedFunction that has one.
template <class Signature>
class NamedFunction {
 public:
  using Function = std::function<Signature>;

  NamedFunction() = default;
  NamedFunction(std::string name, Function function)
      : name_(std::move(name)),
        function_(std::make_shared<const Function>(std::move(function))) {}

  std::string name() const {
    return name_;
  }
  /// Returns false only for a default-constructed object.
  bool is_set() const {
    return !name_.empty() || function_ != nullptr;
  }
  /// The function, or nullptr for a placeholder.
  const Function* function() const& {
    return function_ != nullptr && *function_ ? function_.get() : nullptr;
  }
  const Function* function() const&& = delete;

  bool operator==(const NamedFunction&) const = default;

 protected:
  std::string name_;
  std::shared_ptr<const Function> function_;
};

}  // namespace tessera::optim::detail
