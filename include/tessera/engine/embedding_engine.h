// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/engine/strategy.h>
#include <tessera/engine/table_module.h>
#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>
#include <tessera/optim/optimizer.h>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

namespace tessera {

struct EmbeddingState;

/// When the lookup of a training batch runs.
enum class Pipelining {
  /// The lookup runs in dequeue(), so it sees all earlier updates.
  kOff,
  /// The lookup runs in the background. While the caller computes on batch n, batch n + 1
  /// is looked up, without the update of batch n. The lookup starts when all earlier
  /// training batches but one have been applied or dropped. Batches with training = false
  /// are looked up in dequeue().
  kOn
};

/// The options of an EmbeddingEngine.
struct EmbeddingEngineOptions {
  /// One config per feature. Features, weights and activations have the same nest.
  Nest<FeatureConfig> features = {};
  /// The optimizer of tables that have none of their own. If unset, such tables can't be
  /// trained.
  std::optional<optim::OptimizerSpec> optimizer = {};
  Pipelining pipelining = Pipelining::kOff;
  /// The number of intra-op threads of background lookups. 0 means as many as LibTorch
  /// has. Lookups and dense layers slow each other down if both use all cores, so give
  /// each of them half.
  int64_t lookup_threads = 0;
  /// The number of replicas that each enqueue a slice of a batch, in [1, 65536].
  int64_t replicas = 1;
  /// The number of batches that may wait to be dequeued, >= 1. While so many wait,
  /// enqueue() blocks.
  int64_t queue_depth = 4;
  /// How long a call waits for calls of other threads before it raises an error.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  /// Whether each batch must agree with the output shapes. If false, call build() with
  /// shapes or a batch size before the first enqueue().
  bool verify_output_shapes = true;
  /// Whether all features of all batches must have the same batch size. build() or the
  /// first batch fixes it.
  bool fixed_batch_size = false;
  /// The seed of the tables' random initial values and of stochastic rounding.
  /// load_checkpoint() replaces the seed of rounding by the saved one.
  uint64_t seed = 0;
  /// Decides whether a load takes tables that were saved without slots.
  MissingSlots missing_slots = MissingSlots::kError;
  /// With kRefuse, apply_gradients() raises an error for gradients that are not finite.
  NonFiniteGradients non_finite_gradients = NonFiniteGradients::kApply;
  /// If true, an engine whose tables exceed MemoryPlan::limit is refused before they take
  /// any memory.
  bool check_memory = true;

  bool operator==(const EmbeddingEngineOptions&) const = default;
};
static_assert(std::is_aggregate_v<EmbeddingEngineOptions>);

// snippet: tests/docs/reference_engine_test.cpp EnqueueOptions
/// Describes the batch of an enqueue().
///
///   engine.enqueue(
///       {{"user", ids}}, {}, {.training = false, .name = "validation"});
///   const auto activations = engine.dequeue("validation");
struct EnqueueOptions {
  /// Whether apply_gradients() will be called for the batch.
  bool training = true;
  /// The name by which dequeue() and apply_gradients() find the batch. It can be used
  /// again after the last of these calls. If the name is empty, dequeue() returns the
  /// oldest batch without a name, and apply_gradients() takes the only such batch that
  /// was dequeued.
  std::string name = {};
  /// The replica that enqueues its slice, in [0, replicas).
  int64_t replica = 0;
};

// snippet: tests/docs/reference_engine_test.cpp EmbeddingEngine
/// Embedding tables for a training loop that you write yourself. You enqueue batches,
/// dequeue their activations, and pass the gradients of the activations back.
///
///   EmbeddingEngine engine(
///       {.features = {{"user", FeatureConfig{.table = users}}},
///        .optimizer = optim::Adagrad{.learning_rate = 0.05}});
///   engine.enqueue({{"user", ids}});
///   const auto activations = engine.dequeue();
///   loss_of(activations).backward();
///   engine.apply_gradients();  // the grad() of the activations
///
/// With several replicas, each of them enqueues its slice under the batch's name,
/// dequeues its activations and passes their gradients. When the last replica has
/// passed its gradients, the gradients of all replicas are summed in the order of the
/// replicas, and the sum makes one update.
///
/// The engine is thread safe. A call that depends on a call of another thread waits for
/// it, up to the timeout. All calls wait for a running update, so the function of a
/// learning rate or a custom rule must not wait for the engine. A backward pass ends at
/// the activations, so weights get no gradient. Use TPUEmbedding if they need one.
/// Shapes:  as in TPUEmbedding, but the first batch fixes rank and all dimensions
///          except the first.
/// Source:  TensorFlow's mid-level TPUEmbedding.
class EmbeddingEngine : public TableModule {
 public:
  /// Errors:  c10::ValueError for unusable options, naming table or feature.
  explicit EmbeddingEngine(EmbeddingEngineOptions options);
  /// Calls shutdown() and waits until the calls of other threads have returned.
  ~EmbeddingEngine() override;

  EmbeddingEngine(const EmbeddingEngine&) = delete;
  EmbeddingEngine& operator=(const EmbeddingEngine&) = delete;

  /// Allows dequeue() before the first enqueue(). The first batch then fixes the output
  /// shapes that FeatureConfig leaves open. You need not call build() if you enqueue
  /// first.
  void build();
  /// Fixes the output shapes by the number of bags or sequences that each feature has
  /// in a replica's batches. If an input is dense [B, K], pass shapes instead:
  /// build({{"ids", PartialShape{B, K, 1}}}).
  void build(int64_t batch_size);
  /// Fixes the output shapes by the shapes of a replica's sparse or ragged inputs. The
  /// last dimension is combined, so [B, n] gives [B]. A dense input [B, K] counts as
  /// [B, K, 1]. The first dimension may be unknown. Other dimensions may be unknown only
  /// if FeatureConfig::output_shape has them.
  /// Errors:  c10::ValueError naming the feature, for shapes that contradict
  ///          what is known; nothing is changed.
  void build(const Nest<PartialShape>& input_shapes);

  /// Checks and copies one batch, or a replica's slice of it.
  ///
  /// A call that begins a batch waits while queue_depth batches wait to be dequeued. Each
  /// call waits while other replicas have not finished an earlier batch of the same name.
  /// Errors:  c10::ValueError, TypeError or IndexError naming the feature's path;
  ///          c10::ValueError for a name in use; c10::IndexError for the replica;
  ///          c10::Error after the timeout.
  void enqueue(
      const Features& features,
      const Weights& weights = {},
      const EnqueueOptions& options = {});

  /// Returns the activations of the batch, in the nest of the feature configs. Each
  /// replica can dequeue a batch once.
  ///
  /// If the batch was not enqueued yet, dequeue() waits for another thread to enqueue
  /// it, up to EmbeddingEngineOptions::timeout. This also holds in a program with one
  /// thread: the engine can't know whether another thread comes.
  ///
  /// The activations of a training batch are leaves that require a gradient, unless their
  /// table is not trainable. The engine holds the activations until the batch has its
  /// gradients or is dropped. It warns once if a replica has more than 32 such batches.
  /// Errors:  c10::Error before the first enqueue() or build(); c10::Error after the
  ///          timeout, naming the batch that was not enqueued, or the earlier batch
  ///          whose gradients are missing;
  ///          c10::ValueError for a name that the replica has dequeued already;
  ///          c10::IndexError for the replica.
  Nest<at::Tensor> dequeue(const std::string& name = {}, int64_t replica = 0);
  Nest<at::Tensor> dequeue(int64_t replica) = delete;  // dequeue("", replica)

  /// Updates the tables once all replicas have passed their gradients.
  ///
  /// A training batch is open from the replica's dequeue() until the replica passes the
  /// gradients. If `name` is empty, exactly one batch without a name may be open. If you
  /// skip the update of a batch, such as one whose loss is not finite, call drop() before
  /// the next batch is dequeued. Enqueue batches that are never trained with
  /// EnqueueOptions::training = false.
  ///
  /// If `gradients` is empty, the engine reads the grad() of the activations that
  /// dequeue() returned for this batch and replica.
  /// An undefined tensor stands for a gradient of zeros, and the rows of its feature
  /// count as touched. Gradients are summed over replicas, not averaged.
  /// Errors:  c10::ValueError for another nest, shape or dtype, for a batch that
  ///          has not been dequeued or was not enqueued for training, or for several
  ///          open batches if `name` is empty; c10::IndexError for the replica;
  ///          c10::Error before the first enqueue() or build(); what a learning rate or a
  ///          custom rule throws. Nothing is changed.
  void apply_gradients(
      const Nest<at::Tensor>& gradients = {},
      const std::string& name = {},
      int64_t replica = 0);

  /// Removes a batch. Gradients that some replicas have already passed are not applied,
  /// and calls that wait for the batch's update continue. An empty name drops the oldest
  /// batch without a name, whether it is for training or not, so name the batches that
  /// you may want to drop. A replica's slice that is enqueued after the drop begins a
  /// new batch.
  /// Errors:  c10::ValueError for a name that is not in flight, and for a batch
  ///          without a name that some replicas have not enqueued yet.
  void drop(const std::string& name = {});

  /// Activations of some or all features for serving, independent of the queue of
  /// batches. Rows are not rounded to TableConfig::quantization.
  Nest<at::Tensor> embedding_lookup(
      const Features& features,
      const Weights& weights = {}) const;
  /// Looks up with other feature configs that use the engine's tables.
  /// Errors:  c10::ValueError for a table that is not the engine's.
  Nest<at::Tensor> embedding_lookup(
      const Features& features,
      const Weights& weights,
      const Nest<FeatureConfig>& serving_config) const;

  std::string class_name() const override {
    return "EmbeddingEngine";
  }
  const Nest<FeatureConfig>& feature_configs() const override {
    return options().features;
  }
  Strategy strategy() const override {
    return Strategy::fused();
  }
  std::string summary() const override;
  int64_t iterations() const override;
  at::Tensor read_rows(const std::string& name, int64_t begin, int64_t end)
      const override;

  /// The number of ids in all batches so far that were out of range and gave zeros,
  /// because of OutOfRange::kZero.
  int64_t out_of_range_count() const;

  /// The engine's configuration: tables with optimizers, slots and learning-rate tags,
  /// features with output shapes, and batch sizes.
  ///
  ///   {"batch_size": gcd of the features' numbers of bags, or null before all
  ///                  of them are known,
  ///    "replicas": ..., "pipelining": ..., "learning_rate_tags": how many,
  ///    "tables": [{"name", ..., "num_features": sum over its features of bags /
  ///                batch_size, "learning_rate_tag": ..., "slots": [...]}],
  ///    "features": [{"path", "table": index, "output_shape": ...}]}
  ///
  /// Source:  TensorFlow's TPUEmbeddingConfiguration message.
  Json config() const;

  const EmbeddingEngineOptions& options() const&;
  const EmbeddingEngineOptions& options() const&& = delete;

  /// Ends the engine. Calls that wait, and later calls that need the tables or the
  /// queue, raise c10::Error.
  void shutdown();
  bool is_shut_down() const;

  /// Returns true if this thread has dequeued a batch for training, and has neither passed
  /// its gradients to apply_gradients() nor dropped it.
  bool has_batch_without_gradients() const;

 protected:
  struct Copy {};

  /// Copies tables, slots and output shapes of `source`, but no batches.
  EmbeddingEngine(const EmbeddingEngine& source, Copy);
  /// Replaces this engine by such a copy. No other thread may use the engine yet.
  void copy_from(const EmbeddingEngine& source);

 private:
  class Impl;

  void visit_state(c10::function_ref<void(const EmbeddingState&)> visit) const;
  const EmbeddingState& state() const override;
  void read_state(
      c10::function_ref<void(const EmbeddingState&)> read) const override;
  void change_state(c10::function_ref<void(EmbeddingState&)> change) override;
  void wait_for_lookups() const override;

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
