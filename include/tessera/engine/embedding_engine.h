// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/engine/checkpoint_options.h>
#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>
#include <tessera/optim/optimizer.h>
#include <tessera/tables/embedding_tables.h>

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
  /// In dequeue(), so that it sees every update applied before.
  kOff,
  /// In the background, from the moment that all training batches before it but
  /// one have been updated or dropped: while the caller computes on batch n,
  /// batch n + 1 is looked up, and does not see the update of n. Batches with
  /// training = false are looked up in dequeue().
  kOn
};

/// The config of an EmbeddingEngine.
struct EmbeddingEngineOptions {
  /// One config per input; the nest of features, weights and activations.
  Nest<FeatureConfig> features = {};
  /// For tables without their own. Unset: such tables can't be trained.
  std::optional<optim::OptimizerSpec> optimizer = {};
  Pipelining pipelining = Pipelining::kOff;
  /// Intra-op threads of background lookups; 0: as many as LibTorch has. Two
  /// sides that both want all cores wait for each other: give each half.
  int64_t lookup_threads = 0;
  /// How many replicas enqueue a slice of each batch, in [1, 65536].
  int64_t replicas = 1;
  /// Batches that may wait to be dequeued, >= 1; enqueue() blocks at more.
  int64_t queue_depth = 4;
  /// How long a call waits for another thread's before it raises.
  std::chrono::milliseconds timeout = std::chrono::minutes(1);
  /// Whether a batch must agree with the output shapes. No: build() with shapes
  /// first.
  bool verify_output_shapes = true;
  /// Whether all features of all batches have one batch size, which build() or
  /// the first batch fixes.
  bool fixed_batch_size = false;
  /// The seed of the tables' random initial values and of stochastic rounding.
  /// load_checkpoint() replaces the seed of rounding by the saved one.
  uint64_t seed = 0;
  /// Decides whether a load takes tables that were saved without slots.
  MissingSlots missing_slots = MissingSlots::kError;

  bool operator==(const EmbeddingEngineOptions&) const = default;
};
static_assert(std::is_aggregate_v<EmbeddingEngineOptions>);

/// Which batch an enqueue() is.
struct EnqueueOptions {
  /// Whether gradients will come, in apply_gradients().
  bool training = true;
  /// Ties enqueue(), dequeue() and apply_gradients() together; free again after
  /// the last of them. Empty: batches without a name, first in, first out.
  std::string name = {};
  /// In [0, replicas).
  int64_t replica = 0;
};

/// Embedding tables for those who write their own training loop: batches go in,
/// activations come out, gradients go back.
///
///   EmbeddingEngine engine({
///       .features = {{"user", FeatureConfig{.table = users}}},
///       .optimizer = optim::Adagrad{.learning_rate = 0.05}});
///   engine.enqueue({{"user", ids}});
///   auto activations = engine.dequeue();
///   loss_of(model->forward(activations)).backward();
///   engine.apply_gradients();  // the grad() of the activations
///
/// With replicas, each enqueues its slice under the batch's name, dequeues its
/// activations and gives their gradients. The sum of all replicas' gradients,
/// in the order of the replicas, makes one update, when the last has come.
///
/// Thread safe. A call that needs another's waits for it, up to the timeout; all
/// wait for a running update, so a learning rate or a custom rule must not wait
/// for the engine. A backward pass ends at the activations, and weights get no
/// gradient: use TPUEmbedding for these.
/// Shapes:  as in TPUEmbedding, but the first batch fixes rank and all dimensions
///          except the first.
/// Source:  TensorFlow's mid-level TPUEmbedding.
class EmbeddingEngine {
 public:
  /// Errors:  c10::ValueError for unusable options, naming table or feature.
  explicit EmbeddingEngine(EmbeddingEngineOptions options);
  /// shutdown(), after which it waits for calls in other threads to leave.
  ~EmbeddingEngine();

  EmbeddingEngine(const EmbeddingEngine&) = delete;
  EmbeddingEngine& operator=(const EmbeddingEngine&) = delete;

  /// Lets dequeue() wait for the first batch, which fixes output shapes where
  /// FeatureConfig leaves them open. Optional; the first enqueue() does it, too.
  void build();
  /// Each replica's batches have `batch_size` bags or sequences per feature. For
  /// a dense [B, K] use the shapes: build({{"ids", PartialShape{B, K, 1}}}).
  void build(int64_t batch_size);
  /// By the shapes of a replica's sparse or ragged inputs, of which the last
  /// dimension is combined: [B, n] gives [B]; a dense input [B, K] counts as
  /// [B, K, 1]. The first dimension may be unknown; others only where
  /// FeatureConfig::output_shape says them.
  /// Errors:  c10::ValueError naming the feature, for shapes that contradict
  ///          what is known; nothing is changed.
  void build(const Nest<PartialShape>& input_shapes);

  /// Checks and copies one batch, or a replica's slice of it.
  /// Waits while queue_depth batches wait to be dequeued, and while other
  /// replicas have not finished a batch of the same name.
  /// Errors:  c10::ValueError, TypeError, IndexError naming the feature's path,
  ///          or for a name in use; c10::Error after the timeout.
  void enqueue(
      const Features& features,
      const Weights& weights = {},
      const EnqueueOptions& options = {});

  /// Activations of the batch, in the nest of the feature configs, once.
  ///
  /// If the batch was not enqueued yet, dequeue() waits for another thread to enqueue
  /// it, up to EmbeddingEngineOptions::timeout. This also holds in a program with one
  /// thread: the engine can't know whether another thread comes.
  ///
  /// The activations of a training batch are leaves that require a gradient, unless
  /// their table is not trainable. The engine holds them until the batch has its
  /// gradients or is dropped.
  /// Errors:  c10::Error before the first enqueue() or build(), and when the
  ///          batch, or gradients that it waits for, do not come in time,
  ///          naming them; c10::ValueError when it has been dequeued already;
  ///          c10::IndexError for the replica.
  Nest<at::Tensor> dequeue(const std::string& name = {}, int64_t replica = 0);
  Nest<at::Tensor> dequeue(int64_t replica) = delete;  // dequeue("", replica)

  /// Updates the tables, when all replicas have given their gradients.
  ///
  /// If `gradients` is empty, the engine reads the grad() of the activations that
  /// dequeue() returned for this batch and replica.
  /// An undefined tensor is a gradient of zeros: its feature's rows count as
  /// touched. Gradients are summed over replicas, not averaged.
  /// Errors:  c10::ValueError for another nest, shape or dtype, or a batch that
  ///          has not been dequeued or was not enqueued for training;
  ///          c10::IndexError for the replica; c10::Error before the first
  ///          enqueue() or build(); what a learning rate or a custom rule
  ///          throws. Nothing is changed.
  void apply_gradients(
      const Nest<at::Tensor>& gradients = {},
      const std::string& name = {},
      int64_t replica = 0);

  /// Forgets a batch: gradients that have come are not applied, and what waits
  /// for its update goes on. Empty: the oldest in flight without a name, trained
  /// or not, so name the batches that you may skip. A replica's slice that comes
  /// after the drop begins a new batch.
  /// Errors:  c10::ValueError for a name that is not in flight, and for a batch
  ///          without a name that some replicas have not enqueued yet.
  void drop(const std::string& name = {});

  /// Activations of some or all features, outside of any batch, for serving:
  /// rows are not rounded to TableConfig::quantization.
  Nest<at::Tensor> embedding_lookup(
      const Features& features,
      const Weights& weights = {}) const;
  /// The same by other feature configs over the engine's tables.
  /// Errors:  c10::ValueError for a table that is not the engine's.
  Nest<at::Tensor> embedding_lookup(
      const Features& features,
      const Weights& weights,
      const Nest<FeatureConfig>& serving_config) const;

  /// The tables as live tensors, after background lookups have ended. Write to
  /// them only while no batch is in flight; update_embedding_table() may be
  /// called at any time.
  EmbeddingTables embedding_tables() const;
  /// Replaces all rows of a table by `values` [vocabulary_size, dim]; its slots
  /// stay.
  /// Errors:  c10::TypeError or ValueError naming the table.
  void update_embedding_table(
      const std::string& name,
      const at::Tensor& values);
  /// A float32 copy of rows [begin, end).
  /// Errors:  c10::ValueError or IndexError naming the table.
  at::Tensor read_rows(const std::string& name, int64_t begin, int64_t end)
      const;

  /// Writes a checkpoint into `directory`: tables, slots, step counter, seed, and the
  /// gradients that gradient_accumulation_steps has collected. TPUEmbedding and
  /// EmbeddingEngine load each other's checkpoints. Batches in flight are not saved:
  /// their gradients count for the next checkpoint. Other calls wait meanwhile, and
  /// those with a timeout count the time.
  /// Errors:  c10::ValueError for options; c10::Error naming path and reason.
  void save_checkpoint(
      const std::string& directory,
      const CheckpointOptions& options = {});
  /// Batches in flight keep the activations that have been looked up; their
  /// gradients go to the loaded tables. The load also replaces the gradients that
  /// gradient_accumulation_steps has collected for these tables.
  /// Errors:  c10::ValueError naming a damaged file and its bytes, or listing
  ///          every difference; nothing is changed.
  void load_checkpoint(
      const std::string& directory,
      const LoadOptions& options = {});

  /// Writes the same contents into an archive. TPUEmbedding and EmbeddingEngine load
  /// each other's archives. Batches and other calls are treated as in
  /// save_checkpoint().
  void save(torch::serialize::OutputArchive& archive) const;
  /// Loads an archive, as load_checkpoint() loads a checkpoint.
  /// Errors:  c10::ValueError listing damaged entries, or every difference in
  ///          tables, shapes, optimizers and slots; nothing is changed.
  void load(
      torch::serialize::InputArchive& archive,
      const LoadOptions& options = {});

  /// The number of updates applied so far. With gradient_accumulation_steps = n, n
  /// batches make one update. If tables differ in n, the smallest n counts.
  int64_t iterations() const;

  /// Ids that OutOfRange::kZero has answered with zeros, over all batches.
  int64_t out_of_range_count() const;

  /// What the engine runs: tables with optimizers, slots and learning-rate
  /// tags, features with output shapes, batch sizes.
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

  const EmbeddingEngineOptions& options() const;

  /// Ends the engine: calls that wait, and later ones that need the tables or
  /// the queue, raise c10::Error.
  void shutdown();

 protected:
  struct Copy {};

  /// Copies tables, slots and output shapes of `source`, but no batches.
  EmbeddingEngine(const EmbeddingEngine& source, Copy);
  /// Does the same for an engine that no other thread uses yet.
  void copy_from(const EmbeddingEngine& source);

 private:
  friend struct EngineAccess;
  class Impl;

  void visit_state(c10::function_ref<void(const EmbeddingState&)> visit) const;
  // Calls `read` while neither lookups nor updates run.
  void read_state(c10::function_ref<void(const EmbeddingState&)> read) const;
  // While neither lookups nor updates run.
  void change_state(c10::function_ref<void(EmbeddingState&)> change);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
