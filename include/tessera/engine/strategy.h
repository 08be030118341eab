// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/sharding_options.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace tessera {

class RankGroup;
class TableStore;
struct EmbeddingState;
struct LocalRows;
struct TableConfig;

// snippet: tests/docs/reference_engine_test.cpp Strategy
/// Where the tables live and what updates them.
///
///   Strategy::fused()   tables that are no parameters, updated by each table's own
///                       fused optimizer in backward(); the layer has one parameter,
///                       `virtual_variable`
///   Strategy::host()    tables as ordinary parameters for any torch::optim, or
///                       for make_optimizer(layer), which follows the tables'
///                       own specs; uses only stock LibTorch operators
///   Strategy::padded()  like host(), but all bags are padded to the longest one
///                       and looked up as [batch, ids]; suits short bags
///   distributed::sharded_strategy()
///                       like fused(), with the rows spread over processes
///
///   TPUEmbedding embedding(TPUEmbeddingOptions{
///       .features = features,
///       .strategy = Strategy::host({.sparse_gradients = true})});
///   torch::optim::Adagrad optimizer(embedding->parameters(), 0.1);
class Strategy {
 public:
  struct Fused {
    /// The number of intra-op threads of lookups that run in the background, between
    /// begin_forward() and finish_forward(). 0 means as many as LibTorch has. Lookups
    /// and dense layers run side by side if each of them has half the cores.
    int64_t lookup_threads = 0;
    bool operator==(const Fused&) const = default;
  };
  struct Host {
    /// Whether tables get sparse gradients, which suit large tables.
    /// torch::optim::SGD and Adagrad accept them.
    /// make_optimizer(layer) accepts sparse and dense gradients.
    bool sparse_gradients = false;
    bool operator==(const Host&) const = default;
  };
  struct Padded {
    bool operator==(const Padded&) const = default;
  };
  struct Sharded {
    std::shared_ptr<RankGroup> ranks = {};
    ShardingOptions options = {};
    /// Returns the rows of a table that this process holds.
    LocalRows (*rows_of)(
        const Sharded& strategy,
        const std::string& name,
        const TableConfig& table) = nullptr;
    /// Makes the store that holds these rows.
    std::shared_ptr<TableStore> (*make_store)(
        const Sharded& strategy,
        std::shared_ptr<EmbeddingState> state) = nullptr;
    bool operator==(const Sharded&) const = default;
  };

  static Strategy fused() {
    return Strategy(Fused{});
  }
  static Strategy fused(Fused options) {
    return Strategy(options);
  }
  static Strategy host() {
    return Strategy(Host{});
  }
  static Strategy host(Host options) {
    return Strategy(options);
  }
  /// Source:  TensorFlow's TPUEmbeddingV0.
  static Strategy padded() {
    return Strategy(Padded{});
  }

  /// distributed::sharded_strategy() calls this with the ranks of a backend.
  /// Errors:  c10::ValueError if `ranks` or a function is empty.
  static Strategy sharded(Sharded options) {
    TORCH_CHECK_VALUE(
        options.ranks != nullptr && options.rows_of != nullptr &&
            options.make_store != nullptr,
        "[Strategy::sharded] ranks, rows_of and make_store must be set, "
        "but one of them is empty. Call distributed::sharded_strategy(backend) instead.");
    return Strategy(std::move(options));
  }

  const std::variant<Fused, Host, Padded, Sharded>& options() const& {
    return options_;
  }
  std::variant<Fused, Host, Padded, Sharded> options() && {
    return std::move(options_);
  }
  /// Returns whether the tables have fused optimizers, as with fused() and with sharded
  /// strategies. Such tables are not parameters of the layer.
  bool is_fused() const {
    return std::holds_alternative<Fused>(options_) || is_sharded();
  }
  bool is_sharded() const {
    return std::holds_alternative<Sharded>(options_);
  }
  /// "fused", "host", "padded" or "sharded".
  std::string name() const {
    constexpr const char* kNames[] = {"fused", "host", "padded", "sharded"};
    return kNames[options_.index()];
  }

  bool operator==(const Strategy&) const = default;

 private:
  explicit Strategy(std::variant<Fused, Host, Padded, Sharded> options)
      : options_(std::move(options)) {}

  std::variant<Fused, Host, Padded, Sharded> options_;
};

/// When the tables of a fused or sharded strategy are updated. Under Strategy::host() and
/// padded(), tables are always updated by the step() of an optimizer.
enum class Apply {
  /// Once, at the end of each backward(), with all gradients of that pass.
  kInBackward,
  /// In the step() of a Combined optimizer. Until then, the gradients of all backward()
  /// calls are summed per touched row. Use it for micro-batches, several losses, or
  /// clipping by the norm of all gradients.
  kOnStep
};

/// Selects what an update does if the gradient of a row is NaN or infinite.
enum class NonFiniteGradients {
  /// Applies the gradient unchecked. A NaN stays in the row for good.
  kApply,
  /// Raises an error that names the table and the feature, before any table is changed.
  /// The error comes from backward(), or under Apply::kOnStep from the step() of the
  /// Combined optimizer. With NonFinite::kSkip, this step() is skipped instead. After an
  /// error of backward() on Strategy::host() or padded(), call zero_grad().
  kRefuse
};

}  // namespace tessera
