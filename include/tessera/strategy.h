// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <variant>

namespace tessera {

/// Where the tables live and what updates them.
///
///   Strategy::engine()  tables in the embedding engine, updated by each
///                       table's own fused optimizer in backward(); the layer
///                       shows one parameter, `virtual_variable`
///   Strategy::host()    tables as ordinary parameters for any torch::optim,
///                       stock LibTorch operators only
class Strategy {
 public:
  struct Engine {
    bool operator==(const Engine&) const = default;
  };
  struct Host {
    /// Sparse gradients, for torch::optim::SGD and Adagrad.
    bool sparse_gradients = false;
    bool operator==(const Host&) const = default;
  };

  static Strategy engine() {
    return Strategy(Engine{});
  }
  static Strategy host() {
    return Strategy(Host{});
  }
  static Strategy host(Host options) {
    return Strategy(options);
  }

  const std::variant<Engine, Host>& options() const {
    return options_;
  }
  /// "engine" or "host".
  std::string name() const {
    return std::holds_alternative<Engine>(options_) ? "engine" : "host";
  }

  bool operator==(const Strategy&) const = default;

 private:
  explicit Strategy(std::variant<Engine, Host> options) : options_(options) {}

  std::variant<Engine, Host> options_;
};

/// When the engine updates its tables. On the host it is always in the step of
/// an optimizer.
enum class Apply {
  /// At the end of each backward(), once, whatever it covers.
  kInBackward,
  /// Gradients of all backward() calls pile up, one sum per touched row, until
  /// the step() of a Combined optimizer: micro-batches, several losses,
  /// clipping
  /// by the norm of all gradients.
  kOnStep
};

}  // namespace tessera
