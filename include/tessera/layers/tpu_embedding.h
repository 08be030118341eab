// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/checkpoint_options.h>
#include <tessera/engine/strategy.h>
#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>
#include <tessera/layers/layer.h>
#include <tessera/tables/embedding_tables.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

class EmbeddingStrategy;
class NoTableUpdateGuard;
class PendingGradients;
class TPUEmbedding;
struct EmbeddingState;

/// A forward pass whose lookup may still run: TPUEmbedding::begin_forward()
/// makes it, finish_forward() takes it.
class PendingForward {
 public:
  PendingForward(PendingForward&&) noexcept = default;
  PendingForward& operator=(PendingForward&&) noexcept = default;

 private:
  friend class TPUEmbeddingImpl;
  PendingForward() = default;

  std::shared_ptr<EmbeddingStrategy> strategy_;
  std::function<std::vector<at::Tensor>()> finish_;
  /// The indices of the requested features, in their nest. Unset: all features.
  std::optional<Nest<size_t>> part_;
};

/// The config of a TPUEmbedding layer.
struct TPUEmbeddingOptions {
  /// One config per input; the nest of features, weights and activations.
  Nest<FeatureConfig> features = {};
  /// For tables without their own. Unset: such tables have no slots and can't
  /// be trained on the engine (serving, evaluation).
  std::optional<optim::OptimizerSpec> optimizer = {};
  Strategy strategy = Strategy::engine();
  Apply apply = Apply::kInBackward;
  /// The seed of the tables' random initial values and of stochastic rounding.
  /// torch::manual_seed has no effect on them. A load that restores the step counter
  /// also restores the seed of rounding, so that training continues bit for bit. It
  /// does not change this option, which still seeds initial values, such as those of
  /// a table that has grown.
  uint64_t seed = 0;
  /// Decides whether a load takes tables that were saved without slots. It holds for
  /// torch::load of a whole model, too. With kKeep, the engine can continue from what
  /// Strategy::host() has saved. Slots that were saved are loaded in any case.
  MissingSlots missing_slots = MissingSlots::kError;

  bool operator==(const TPUEmbeddingOptions&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("features", self.features);
    visit("optimizer", self.optimizer);
    visit("strategy", self.strategy);
    visit("apply", self.apply);
    visit("seed", self.seed);
    visit("missing_slots", self.missing_slots);
  }
};
static_assert(std::is_aggregate_v<TPUEmbeddingOptions>);

/// Embedding tables as a layer: features in, activations out, and a fused
/// optimizer per table that runs inside backward().
///
///   TPUEmbedding embedding(TPUEmbeddingOptions{
///       .features = {{"user", FeatureConfig{.table = users}}},
///       .optimizer = optim::Adagrad{.learning_rate = 0.05}});
///   auto activations = embedding->forward({{"user", user_ids}});
///   loss(activations["user"]).backward();  // updates the tables
///
/// On Strategy::engine() the layer has one parameter, `virtual_variable`
/// (shape [1], always 0): give it to any torch::optim. Its gradient is a
/// defined zero. One backward() is one update, however many forwards it
/// covers; gradients of all duplicates of a row are summed first. There is no
/// update under NoGradGuard or while `virtual_variable` is frozen by
/// requires_grad_(false). A second backward() over one forward is an error.
/// A feature whose activation is not in the loss has a gradient of zeros: its
/// rows count as touched, which Adam and weight decay show. eval() changes
/// nothing. With Apply::kOnStep gradients pile up instead, and the step() of a
/// Combined optimizer is the update. A pass that fails changes no table of the
/// layer that failed; other layers in the same pass may have been updated.
///
/// Every backward() that reaches an activation updates the tables, even if no
/// optimizer holds the virtual variable. Examples are an auxiliary loss, or a
/// generator's loss that passes through a discriminator. To prevent the update, run
/// backward() under a NoTableUpdateGuard, or use Apply::kOnStep.
///
/// On distributed::sharded_strategy() the tables are spread over processes, which call the
/// layer together: see there for what is collective.
///
/// On Strategy::host() each table is a parameter, `table_0`, `table_1`, ...,
/// for any torch::optim; make_optimizer(layer) uses the tables' own optimizers.
///
/// to(), also that of the whole model, converts activations. Tables keep their dtype
/// and device, and receive float32 gradients.
///
/// Shapes of activations, which are float32 unless to() has set another dtype:
///
///   dense [B] or [B, 1]         [B, dim]
///   dense [B, ..., K]           [B, ..., K, dim]
///   sparse [B, n]               [B, dim]
///   sparse [d0, ..., dr, n]     [d0, ..., dr, dim]
///   ragged of B rows            [B, dim]
///   sparse or ragged sequence   [B, max_sequence_length, dim]
///   sparse sequence
///     [d0, ..., dr, n]          [d0, ..., max_sequence_length, dim]
///   ragged with output_shape    output_shape + [dim]
///
/// Only one thread at a time may train the layer, build it, load into it or copy it.
/// Any number of threads may call forward() under NoGradGuard, or embedding_lookup(),
/// at the same time; on Strategy::engine() also while another thread trains. On
/// distributed::sharded_strategy(), forward() is collective, so only one thread at a time may call
/// it.
/// Source:  tfrs.layers.embedding.TPUEmbedding.
class TPUEmbeddingImpl : public torch::nn::Module, public Layer {
 public:
  static constexpr const char* kClassName = "TPUEmbedding";
  using Options = TPUEmbeddingOptions;

  /// Errors:  c10::ValueError for unusable options, naming table or feature.
  explicit TPUEmbeddingImpl(TPUEmbeddingOptions options);
  /// All other options have their default values.
  TPUEmbeddingImpl(Nest<FeatureConfig> features, optim::OptimizerSpec optimizer)
      : TPUEmbeddingImpl(TPUEmbeddingOptions{
            .features = std::move(features),
            .optimizer = std::move(optimizer)}) {}
  ~TPUEmbeddingImpl() override;

  TPUEmbeddingImpl(const TPUEmbeddingImpl&) = delete;
  TPUEmbeddingImpl& operator=(const TPUEmbeddingImpl&) = delete;

  /// Activations, in the nest of the feature configs.
  ///
  /// `weights` is a nest like the features, whose maps need entries only for features
  /// with weights. Weights that require a gradient receive one.
  ///
  /// Under NoGradGuard, `features` may hold only some of the features, for example in
  /// a server. The result has the same nest. On shards, each rank may pass other
  /// features.
  ///
  ///   torch::NoGradGuard no_grad;
  ///   auto query = embedding->forward({{"user", user_ids}})["user"];
  ///
  /// Errors:  c10::ValueError, TypeError, IndexError naming the feature's path;
  ///          nothing is changed.
  Nest<at::Tensor> forward(
      const Features& features,
      const Weights& weights = {});

  /// forward() in two parts, to look up one batch while the model computes on
  /// another: see prefetch(). On the engine, in training, the lookup runs in the
  /// background and sees the tables as they are now; an update waits for it.
  /// Otherwise it runs in finish_forward().
  /// Errors:  as forward().
  PendingForward begin_forward(
      const Features& features,
      const Weights& weights = {});
  /// Activations, once.
  /// Errors:  c10::Error when `pending` was taken already, or is another
  ///          layer's or from before a clone() into this one.
  Nest<at::Tensor> finish_forward(PendingForward&& pending);

  /// Activations of some or all features for serving. Unlike forward(), it does
  /// not round rows to TableConfig::quantization, keeps no autograd graph and
  /// leaves out_of_range_count() as it is.
  /// Errors:  as forward(); c10::Error on shards, where no process has all rows.
  /// Source:  serving_config of tfrs.layers.embedding.TPUEmbedding.
  Nest<at::Tensor> embedding_lookup(
      const Features& features,
      const Weights& weights = {}) const;
  /// The same lookup with other feature configs, which use the layer's tables.
  /// Errors:  c10::ValueError for a table that is not the layer's.
  Nest<at::Tensor> embedding_lookup(
      const Features& features,
      const Weights& weights,
      const Nest<FeatureConfig>& serving_config) const;

  /// Fixes the activations' shapes, which without it may change from batch to
  /// batch: `batch_size` bags or sequences in each feature without an
  /// output_shape. An output_shape with an unknown first dimension gets `batch_size`
  /// there.
  /// Errors:  c10::ValueError for batch_size < 1, and as the other build().
  void build(int64_t batch_size);
  /// Fixes the activations' shapes by those of sparse or ragged inputs, whose last
  /// dimension is combined: [B, n] gives [B]; a dense input [B, K] counts as
  /// [B, K, 1]. The first dimension may be unknown; others only where
  /// FeatureConfig::output_shape says them.
  /// Errors:  c10::ValueError naming the feature, for shapes that contradict
  ///          what is known or was built before; nothing is changed.
  void build(const Nest<PartialShape>& input_shapes) override;
  /// The shapes of the activations, with dim. Nothing is fixed by it.
  /// Errors:  as build().
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;
  /// What the builds were given: the last one, with what it left unknown from
  /// those before. The tables are there without.
  std::optional<Nest<PartialShape>> input_shapes() const override {
    return input_shapes_;
  }

  const TPUEmbeddingOptions& options() const {
    return options_;
  }
  std::string class_name() const override {
    return kClassName;
  }
  /// A sharded strategy is null in it.
  Json get_config() const override;

  /// The engine's stand-in for all tables, [1].
  /// Errors:  c10::Error on a strategy that has none.
  at::Tensor& virtual_variable();

  /// The tables as live tensors: what is written into them counts. Not between
  /// begin_forward() and finish_forward(), nor in a prefetch() loop: there,
  /// update_embedding_table() waits for the lookup.
  /// Errors:  c10::Error on shards, where no process has all rows.
  EmbeddingTables embedding_tables() const;

  /// Replaces all rows of a table by `values` [vocabulary_size, dim], such as
  /// pretrained ones; its slots stay. On shards each rank takes its own rows of
  /// them, without a word to the others: pass the same values on all.
  /// Errors:  c10::TypeError or ValueError naming the table.
  void update_embedding_table(
      const std::string& name,
      const at::Tensor& values);
  /// A float32 copy of rows [begin, end). On shards, from all ranks: with the
  /// same arguments on each.
  /// Errors:  c10::ValueError or IndexError naming the table.
  at::Tensor read_rows(const std::string& name, int64_t begin, int64_t end)
      const;

  /// The number of updates applied so far. On Strategy::host() and dense(), these are
  /// the updates of make_optimizer(layer). With gradient_accumulation_steps = n, n
  /// passes make one update. If tables differ in n, the smallest n counts.
  int64_t iterations() const;
  /// The step at which the next update reads its schedules: the number of passes so
  /// far. With gradient_accumulation_steps = n, n passes make one update.
  int64_t schedule_step() const;

  /// Ids that OutOfRange::kZero has answered with zeros, over all forwards; on
  /// shards, this rank's.
  int64_t out_of_range_count() const;

  /// A readable table: name, rows, dim, optimizer, slots, memory.
  std::string summary() const override;
  void pretty_print(std::ostream& stream) const override;

  /// A deep copy of tables, slots, step counter, the gradients that
  /// gradient_accumulation_steps has collected, and the settings of to(). Gradients
  /// that wait for a step under Apply::kOnStep are not copied. Tables stay on the CPU;
  /// if `device` is given, the copy's activations go there.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// Sets the dtype and the device of all further activations. Tables, slots and the
  /// virtual variable stay as they are on every strategy: TableConfig::dtype says how
  /// tables are stored. Features stay on the CPU. On torch::kMeta, activations have
  /// shapes but no data, and no backward() reaches the layer from there.
  /// Range:   dtype float32, float64, bfloat16 or float16.
  /// Errors:  c10::ValueError for another dtype, or a device that LibTorch can't
  ///          use here; the layer is not changed. A model's to() converts one module
  ///          after the other, so modules before the layer may be converted already.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false)
      override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  torch::Dtype activation_dtype() const {
    return activation_dtype_;
  }
  torch::Device activation_device() const {
    return activation_device_;
  }

  /// Saves tables, slots, step counter, seed, the gradients that
  /// gradient_accumulation_steps has collected, feature configs and format version,
  /// under the same keys on every strategy. On the host, slots exist after
  /// make_optimizer() or with a slot_creation. Like `.grad`, gradients that wait for a
  /// step under Apply::kOnStep are not saved: save after step(). The settings of to()
  /// are not saved, and a load does not change them.
  /// Errors:  c10::Error on shards: an archive has whole tables.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// The layer drops gradients that wait for a step, and the collected gradients of
  /// the loaded tables. The collected gradients of the archive replace them. It warns
  /// if the archive was saved within an accumulation, but has none.
  /// Errors:  c10::ValueError listing every difference in tables, shapes,
  ///          optimizers and slots; nothing is changed.
  void load(torch::serialize::InputArchive& archive) override;
  /// Some of it, or into larger tables.
  void load(
      torch::serialize::InputArchive& archive,
      const LoadOptions& options);

  /// Writes a checkpoint into `directory`, for tables too large for one
  /// archive: files by rows, in parallel, from the tables' memory. It counts
  /// when all of it is on the disk; a crash at any moment leaves the ones before
  /// it whole.
  ///
  ///   embedding->save_checkpoint("run/checkpoints", {.full_every = 10});
  ///   embedding->load_checkpoint("run/checkpoints");  // the newest
  ///
  /// On shards all ranks write, and read, their own rows in a directory that all
  /// of them see; what any number of ranks has saved, any other number loads.
  /// Errors:  c10::ValueError for options; c10::Error naming path and reason
  ///          when the disk fails or another process saves there.
  void save_checkpoint(
      const std::string& directory,
      const CheckpointOptions& options = {});
  /// Waiting and collected gradients are treated as in load().
  /// Errors:  c10::ValueError naming a damaged file and its bytes, or listing
  ///          every difference; nothing is changed.
  void load_checkpoint(
      const std::string& directory,
      const LoadOptions& options = {});

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Weights{})})

 private:
  friend class Combined;
  friend class NoTableUpdateGuard;
  friend class PartialTPUEmbeddingImpl;
  friend struct TableModule;
  friend std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const TPUEmbedding& layer);
  struct Copy {};
  struct Request;

  TPUEmbeddingImpl(const TPUEmbeddingImpl& source, Copy);

  /// nullptr unless the strategy is an engine under Apply::kOnStep.
  std::shared_ptr<PendingGradients> pending() const;
  void adopt(std::shared_ptr<EmbeddingState> state);
  Request read(const Features& features, const Weights& weights);
  /// Packs `activations`, one per feature, into the nest of the requested features.
  Nest<at::Tensor> pack(
      std::vector<at::Tensor> activations,
      const std::optional<Nest<size_t>>& part) const;
  /// On shards, tells the ranks that wait that this one has failed.
  void give_up(std::exception_ptr error);
  void copy_from(const TPUEmbeddingImpl& source);
  /// Converts activations to the dtype and device that to() has set.
  Nest<at::Tensor> converted(Nest<at::Tensor> activations) const;
  void convert_to(
      const std::optional<torch::Device>& device,
      const std::optional<torch::Dtype>& dtype);
  void clone_(
      torch::nn::Module& other,
      const std::optional<torch::Device>& device) override;
  static void check_target(
      const std::optional<torch::Device>& device,
      const std::optional<torch::Dtype>& dtype);

  TPUEmbeddingOptions options_;
  torch::Device activation_device_ = torch::kCPU;
  torch::Dtype activation_dtype_ = torch::kFloat;
  std::optional<Nest<PartialShape>> input_shapes_;
  std::shared_ptr<EmbeddingState> state_;
  std::shared_ptr<EmbeddingStrategy> strategy_;
};

/// Holds a TPUEmbeddingImpl by reference, as every torch::nn module holder does.
class TPUEmbedding : public torch::nn::ModuleHolder<TPUEmbeddingImpl> {
 public:
  using torch::nn::ModuleHolder<TPUEmbeddingImpl>::ModuleHolder;
  using Impl = TPUEmbeddingImpl;

  /// The short form. Features may be given in braces:
  ///
  ///   TPUEmbedding embedding(
  ///       {{"user", FeatureConfig{.table = users}}}, optim::Adagrad{});
  TPUEmbedding(Nest<FeatureConfig> features, optim::OptimizerSpec optimizer)
      : ModuleHolder(std::make_shared<TPUEmbeddingImpl>(
            std::move(features),
            std::move(optimizer))) {}
};

}  // namespace tessera
