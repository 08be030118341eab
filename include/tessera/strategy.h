// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
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
///   Strategy::dense()   like host, but bags are padded to the longest one:
///                       [batch, ids] of rows at once, fit for short bags
class Strategy {
 public:
  struct Engine {
    /// Intra-op threads of lookups that run in the background, between
    /// begin_forward() and finish_forward(); 0: as many as LibTorch has. With
    /// half the cores each, lookup and dense work go on side by side.
    int64_t lookup_threads = 0;
    bool operator==(const Engine&) const = default;
  };
  struct Host {
    /// Sparse gradients, for torch::optim::SGD and Adagrad.
    bool sparse_gradients = false;
    bool operator==(const Host&) const = default;
  };
  struct Dense {
    bool operator==(const Dense&) const = default;
  };

  static Strategy engine() {
    return Strategy(Engine{});
  }
  static Strategy engine(Engine options) {
    return Strategy(options);
  }
  static Strategy host() {
    return Strategy(Host{});
  }
  static Strategy host(Host options) {
    return Strategy(options);
  }
  /// Source:  TensorFlow's TPUEmbeddingV0.
  static Strategy dense() {
    return Strategy(Dense{});
  }

  const std::variant<Engine, Host, Dense>& options() const {
    return options_;
  }
  /// Whether tables live in the engine, not among the layer's parameters.
  bool is_engine() const {
    return std::holds_alternative<Engine>(options_);
  }
  /// "engine", "host" or "dense".
  std::string name() const {
    constexpr const char* kNames[] = {"engine", "host", "dense"};
    return kNames[options_.index()];
  }

  bool operator==(const Strategy&) const = default;

 private:
  explicit Strategy(std::variant<Engine, Host, Dense> options)
      : options_(options) {}

  std::variant<Engine, Host, Dense> options_;
};

/// When the engine updates its tables. On the others it is always in the step
/// of an optimizer.
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
