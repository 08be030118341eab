// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>
#include <tessera/common/fields.h>
#include <tessera/engine/memory_plan.h>
#include <tessera/engine/strategy.h>
#include <tessera/engine/table_module.h>
#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/serialize/archive.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

class EmbeddingStrategy;
class PlannedReader;
class TPUEmbedding;
struct EmbeddingState;

// snippet: tests/docs/reference_layers_test.cpp PendingForward
/// A forward pass whose lookup may still run. TPUEmbedding::begin_forward() makes it, and
/// finish_forward() takes it.
///
///   PendingForward pending = embedding->begin_forward(next_batch);
///   loss_of(activations).backward();  // meanwhile, the next batch is looked up
///   activations = embedding->finish_forward(std::move(pending));
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
  /// One config per feature. Batches, weights and activations have the same nest.
  Nest<FeatureConfig> features = {};
  /// The optimizer of tables without their own. If unset, such tables have no slots and
  /// can't be trained on Strategy::fused(). That is enough for serving and evaluation.
  std::optional<optim::OptimizerSpec> optimizer = {};
  Strategy strategy = Strategy::fused();
  Apply apply = Apply::kInBackward;
  /// The seed of the tables' random initial values and of stochastic rounding.
  /// torch::manual_seed has no effect on them. A load that restores the step counter
  /// also restores the seed of rounding, so that training continues bit for bit. It
  /// does not change this option, which still seeds initial values, such as those of
  /// a table that has grown.
  uint64_t seed = 0;
  /// Decides whether a load takes tables that were saved without slots. It holds for
  /// torch::load of a whole model, too. With kKeep, Strategy::fused() can continue from
  /// what Strategy::host() has saved. Slots that were saved are loaded in any case.
  MissingSlots missing_slots = MissingSlots::kError;
  /// With kRefuse, an update raises an error for gradients that are not finite. fit()
  /// refuses them by default, whatever this option is.
  NonFiniteGradients non_finite_gradients = NonFiniteGradients::kApply;
  /// If true, a layer whose tables exceed MemoryPlan::limit is refused before they take any
  /// memory. JSON does not have this option.
  bool check_memory = true;

  bool operator==(const TPUEmbeddingOptions&) const = default;

  TESSERA_FIELDS(
      features,
      optimizer,
      strategy,
      apply,
      seed,
      missing_slots,
      non_finite_gradients)
};

// snippet: tests/docs/reference_layers_test.cpp memory_plan
/// Returns what the tables of a layer with these options would need. It allocates none of
/// them.
///
///   const MemoryPlan plan = memory_plan(options, /*batch_size=*/4096);
///   std::cout << to_string(plan);
///
/// `batch_size` sets MemoryPlan::step. On distributed::sharded_strategy() the plan is that
/// of this process.
/// Errors:  c10::ValueError for features, tables and optimizers that a layer refuses, and a
///          batch size below 0.
MemoryPlan memory_plan(
    const TPUEmbeddingOptions& options,
    int64_t batch_size = 0);

// snippet: tests/docs/reference_layers_test.cpp TPUEmbeddingImpl
/// A layer of embedding tables. It takes features and returns activations. Each table has
/// a fused optimizer, which runs inside backward().
///
///   TPUEmbedding embedding(TPUEmbeddingOptions{
///       .features = {{"user", FeatureConfig{.table = users}}},
///       .optimizer = optim::Adagrad{.learning_rate = 0.05}});
///   const auto activations = embedding->forward({{"user", user_ids}});
///   loss_of(activations["user"]).backward();  // updates the tables
///
/// On Strategy::fused() the layer has one parameter, `virtual_variable`, of shape [1]
/// and value 0. Give it to any torch::optim. Its gradient is defined and always 0. If
/// other code writes another value, the next forward() in training sets it to 0 again.
///
/// One backward() is one update, even if it covers several forwards. The gradients of all
/// duplicates of a row are summed first. There is no update under NoGradGuard or while
/// `virtual_variable` is frozen by requires_grad_(false). eval() has no effect. A second
/// backward() over one forward is an error. With Apply::kOnStep, it is not: gradients
/// accumulate until the step() of a Combined optimizer, which is the update. A backward
/// pass that fails changes no table of the layer that failed, but other layers in the same
/// pass may have been updated.
///
/// If the loss has the activation of one feature of a forward, but not that of another,
/// the other feature has a gradient of zeros, on every strategy. Its rows count as
/// touched, so Adam and weight decay change them.
///
/// Every backward() that reaches an activation updates the tables, even if no
/// optimizer holds the virtual variable. Examples are an auxiliary loss, or a
/// generator's loss that passes through a discriminator. To prevent the update, run
/// backward() under a NoTableUpdateGuard, or use Apply::kOnStep.
///
/// On distributed::sharded_strategy() the tables are spread over processes, which call
/// the layer together. The documentation of that function says which calls are
/// collective.
///
/// On Strategy::host() each table is a parameter, `table_0`, `table_1`, ..., for any
/// torch::optim. make_optimizer(layer) uses the tables' own optimizers.
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
/// After the forward passes, several threads may call backward() of different losses at
/// the same time. Any number of threads may call forward() under NoGradGuard, or
/// embedding_lookup(), at the same time. On Strategy::fused(), they may do so while another
/// thread trains. On distributed::sharded_strategy(), forward() and backward() are
/// collective, so only one thread at a time may call them.
/// Source:  tfrs.layers.embedding.TPUEmbedding.
class TPUEmbeddingImpl : public torch::nn::Module,
                         public Layer,
                         public TableModule {
 public:
  static constexpr const char* kClassName = "TPUEmbedding";
  using Options = TPUEmbeddingOptions;

  /// Errors:  c10::ValueError for unusable options, naming the table or the feature.
  explicit TPUEmbeddingImpl(TPUEmbeddingOptions options);
  /// All other options have their default values.
  TPUEmbeddingImpl(Nest<FeatureConfig> features, optim::OptimizerSpec optimizer)
      : TPUEmbeddingImpl(TPUEmbeddingOptions{
            .features = std::move(features),
            .optimizer = std::move(optimizer)}) {}
  ~TPUEmbeddingImpl() override;

  TPUEmbeddingImpl(const TPUEmbeddingImpl&) = delete;
  TPUEmbeddingImpl& operator=(const TPUEmbeddingImpl&) = delete;

  /// The activations of a batch, in the nest of the feature configs.
  ///
  /// `weights` is a nest like the features, whose maps need entries only for features
  /// with weights. Weights that require a gradient receive one.
  ///
  /// Under NoGradGuard, `features` may hold only some of the features, for example in a
  /// server. The result has the nest of `features`. On a sharded strategy, ranks may pass
  /// different features. forward_partial() takes some of the features in training, too.
  ///
  ///   torch::NoGradGuard no_grad;
  ///   auto query = embedding->forward({{"user", user_ids}})["user"];
  ///
  /// Errors:  c10::ValueError, TypeError or IndexError naming the feature's path; nothing
  ///          is changed.
  Nest<at::Tensor> forward(
      const Features& features,
      const Weights& weights = {});

  /// Like forward(), but `features` may hold only some of the features, also in training.
  /// Two towers can share one layer this way: each of them looks up only its own
  /// features, and an index of all items needs none of the users' features.
  ///
  ///   const auto queries = embedding->forward_partial({{"user", user_ids}});
  ///   const auto movies = embedding->forward_partial({{"movie", movie_ids}});
  ///   loss_of(queries["user"], movies["movie"]).backward();  // one update
  ///
  /// forward() refuses such a batch in training, because a forgotten feature would not be
  /// trained. On a sharded strategy, ranks may pass different features. An exported model
  /// must pass all features.
  /// Errors:  as for forward(). For an unknown feature, the error lists the known ones.
  Nest<at::Tensor> forward_partial(
      const Features& features,
      const Weights& weights = {});

  /// The first part of forward(). With it, one batch is looked up while the model computes
  /// on another batch, as in prefetch(). In training on a fused strategy, the lookup runs
  /// in the background. It reads the tables as they are at this call, and an update waits
  /// for it. Otherwise, the lookup runs in finish_forward().
  /// Errors:  as for forward().
  PendingForward begin_forward(
      const Features& features,
      const Weights& weights = {});
  /// The second part of forward(): the activations.
  /// Errors:  c10::Error if `pending` is finished already, belongs to another layer, or
  ///          was begun before another layer was copied into this one.
  Nest<at::Tensor> finish_forward(PendingForward&& pending);

  /// Activations of some or all features for serving. Unlike forward(), it does
  /// not round rows to TableConfig::quantization, keeps no autograd graph and
  /// leaves out_of_range_count() as it is.
  /// Errors:  as for forward(); c10::Error on a sharded strategy, where no process has
  ///          all rows.
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

  /// Fixes the activations' shapes. Without build(), they may change from batch to batch.
  /// Each feature without an output_shape gets `batch_size` bags or sequences. In an
  /// output_shape with an unknown first dimension, that dimension becomes `batch_size`.
  /// Errors:  c10::ValueError for batch_size < 1; otherwise as for the other build().
  void build(int64_t batch_size);
  /// Fixes the activations' shapes from the shapes of sparse or ragged inputs. The last
  /// dimension of an input is combined: [B, n] gives [B]. A dense input [B, K] counts as
  /// [B, K, 1]. The first dimension may be unknown. Other dimensions may be unknown only
  /// if FeatureConfig::output_shape has them.
  /// Errors:  c10::ValueError naming the feature, for shapes that contradict known ones
  ///          or an earlier build(); nothing is changed.
  void build(const Nest<PartialShape>& input_shapes) override;
  /// The shapes of the activations for these input shapes, with the table's dim as the
  /// last dimension. This call fixes no shapes.
  /// Errors:  as for build().
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;
  /// The shapes of the last build(). Sizes that it left unknown come from earlier calls.
  /// The tables exist without build().
  std::optional<Nest<PartialShape>> input_shapes() const override {
    return input_shapes_;
  }

  const TPUEmbeddingOptions& options() const& {
    return options_;
  }
  const TPUEmbeddingOptions& options() const&& = delete;
  const Nest<FeatureConfig>& feature_configs() const override {
    return options_.features;
  }
  Strategy strategy() const override {
    return options_.strategy;
  }
  std::string class_name() const override {
    return kClassName;
  }
  /// The options as JSON. A sharded strategy is null in it.
  Json get_config() const override;

  /// On a fused strategy, the parameter [1] that stands for all tables.
  /// Errors:  c10::Error on a strategy without it.
  at::Tensor& virtual_variable() &;

  at::Tensor read_rows(const std::string& name, int64_t begin, int64_t end)
      const override;

  int64_t iterations() const override;
  /// The step at which the next update reads its schedules: the number of passes so
  /// far. With gradient_accumulation_steps = n, n passes make one update.
  int64_t schedule_step() const;

  /// The number of ids, over all forwards, for which OutOfRange::kZero returned zeros. On
  /// a sharded strategy, it counts the ids of this rank.
  int64_t out_of_range_count() const;

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
  /// Errors:  c10::ValueError for another dtype, or a device that LibTorch can't use
  ///          here; the layer is not changed. A model's to() converts one module after
  ///          the other, so modules before the layer may be converted already.
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false)
      override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;
  torch::Dtype activation_dtype() const override {
    return activation_dtype_;
  }
  torch::Device activation_device() const {
    return activation_device_;
  }

  using TableModule::load;
  void load(torch::serialize::InputArchive& archive) override {
    TableModule::load(archive);
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    TableModule::save(archive);
  }

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Weights{})})

 private:
  friend class Combined;
  friend class PartialTPUEmbeddingImpl;
  friend std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      const TPUEmbedding& layer);
  struct Copy {};
  struct Request;
  enum class Absent { kRefusedInTraining, kAllowed };

  TPUEmbeddingImpl(const TPUEmbeddingImpl& source, Copy);

  const EmbeddingState& state() const override;
  void read_state(
      c10::function_ref<void(const EmbeddingState&)> read) const override;
  void change_state(c10::function_ref<void(EmbeddingState&)> change) override;
  void wait_for_lookups() const override;
  std::shared_ptr<EmbeddingStrategy> backward_strategy() const override {
    return strategy_;
  }
  void adopt(std::shared_ptr<EmbeddingState> state);
  Request read(
      const Features& features,
      const Weights& weights,
      Absent absent = Absent::kRefusedInTraining);
  Nest<at::Tensor> forward_part(
      const Features& features,
      const Weights& weights,
      Absent absent);
  /// Packs `activations`, one per feature, into the nest of the requested features.
  Nest<at::Tensor> pack(
      std::vector<at::Tensor> activations,
      const std::optional<Nest<size_t>>& part) const;
  /// On a sharded strategy, tells the waiting ranks that this rank has failed.
  void abort(std::exception_ptr error);
  void copy_from(const TPUEmbeddingImpl& source);
  /// Converts activations to the dtype and device that to() has set.
  Nest<at::Tensor> converted(Nest<at::Tensor> activations) const;
  void convert_to(
      const std::optional<torch::Device>& device,
      const std::optional<torch::Dtype>& dtype);
  void clone_(
      torch::nn::Module& other,
      const std::optional<torch::Device>& device) override;

  TPUEmbeddingOptions options_;
  torch::Device activation_device_ = torch::kCPU;
  torch::Dtype activation_dtype_ = torch::kFloat;
  std::optional<Nest<PartialShape>> input_shapes_;
  std::shared_ptr<EmbeddingState> state_;
  std::unique_ptr<PlannedReader> reader_;
  std::shared_ptr<EmbeddingStrategy> strategy_;
};

// snippet: tests/docs/reference_layers_test.cpp TPUEmbedding
/// Holds a TPUEmbeddingImpl by reference, like every module holder of torch::nn.
///
///   TPUEmbedding embedding(
///       {{"user", FeatureConfig{.table = users}}}, optim::Adagrad{});
class TPUEmbedding : public LayerHolder<TPUEmbeddingImpl> {
 public:
  using LayerHolder::LayerHolder;

  /// The short form, with default values for all other options. Features may be given in
  /// braces:
  ///
  ///   TPUEmbedding embedding(
  ///       {{"user", FeatureConfig{.table = users}}}, optim::Adagrad{});
  TPUEmbedding(Nest<FeatureConfig> features, optim::OptimizerSpec optimizer)
      : LayerHolder(std::make_shared<TPUEmbeddingImpl>(
            std::move(features),
            std::move(optimizer))) {}
};

}  // namespace tessera
