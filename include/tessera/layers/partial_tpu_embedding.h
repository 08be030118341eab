// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/engine/strategy.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <tessera/layers/tpu_embedding.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

/// The config of a PartialTPUEmbedding layer.
struct PartialTPUEmbeddingOptions {
  Nest<FeatureConfig> features = {};
  /// See TPUEmbeddingOptions::optimizer.
  std::optional<optim::OptimizerSpec> optimizer = {};
  /// Tables with more rows than this are in the TPUEmbedding, the others are parameters.
  /// 0: all tables are in the TPUEmbedding. Unset: all tables are parameters. Key tables
  /// are in the TPUEmbedding in any case.
  std::optional<int64_t> size_threshold = 10'000;
  /// `strategy` and `apply` hold for the TPUEmbedding. Later options hold for all tables.
  Strategy strategy = Strategy::fused();
  Apply apply = Apply::kInBackward;
  uint64_t seed = 0;
  MissingSlots missing_slots = MissingSlots::kError;
  NonFiniteGradients non_finite_gradients = NonFiniteGradients::kApply;
  /// See TPUEmbeddingOptions::check_memory.
  bool check_memory = true;

  bool operator==(const PartialTPUEmbeddingOptions&) const = default;

  TESSERA_FIELDS(
      features,
      optimizer,
      size_threshold,
      strategy,
      apply,
      seed,
      missing_slots,
      non_finite_gradients)
};

// snippet: tests/docs/reference_layers_test.cpp PartialTPUEmbeddingImpl
/// Holds large tables in a TPUEmbedding, with fused optimizers. Small tables are ordinary
/// parameters, and any torch::optim trains all of their rows. The inputs and outputs are
/// those of one TPUEmbedding with all tables.
///
///   PartialTPUEmbedding embedding(PartialTPUEmbeddingOptions{
///       .features =
///           {{"user", FeatureConfig{.table = users}},  // 20,000 rows
///            {"weekday", FeatureConfig{.table = weekdays}}},
///       .optimizer = optim::Adagrad{.learning_rate = 0.1}});
///   // Trains the table of weekdays.
///   torch::optim::Adam optimizer(embedding->parameters(), 1e-3);
///
/// dense_parameters() contains the small tables. Only an optimizer made by
/// make_optimizer(embedding->small_embedding()) follows their optimizer specs.
/// tpu_embedding()->save_checkpoint() writes a checkpoint of the large tables. Save the
/// small tables with the other dense weights, in CheckpointOptions::extra. torch::save
/// saves everything.
///
/// Shapes:  as for TPUEmbedding.
/// Source:  tfrs.experimental.layers.embedding.PartialTPUEmbedding.
/// Differs: Small tables accept every kind of feature, weights and combiners. A dense
///          feature [batch, 1] gives [batch, dim], as in TPUEmbedding.
class PartialTPUEmbeddingImpl
    : public LayerImpl<PartialTPUEmbeddingImpl, PartialTPUEmbeddingOptions> {
 public:
  static constexpr const char* kClassName = "PartialTPUEmbedding";

  /// Errors:  c10::ValueError for unusable options, naming the table or the feature.
  explicit PartialTPUEmbeddingImpl(PartialTPUEmbeddingOptions options);

  /// See TPUEmbedding::forward().
  Nest<at::Tensor> forward(
      const Features& features,
      const Weights& weights = {});

  /// See TPUEmbedding::forward_partial().
  Nest<at::Tensor> forward_partial(
      const Features& features,
      const Weights& weights = {});

  /// A forward pass whose lookups may still run.
  class Pending {
    friend class PartialTPUEmbeddingImpl;

    std::optional<PendingForward> tpu_;
    std::optional<PendingForward> small_;
    /// The indices of the requested features, in their nest. Unset: all features.
    std::optional<Nest<size_t>> part_;
  };
  /// For prefetch(). See TPUEmbedding::begin_forward() and finish_forward().
  Pending begin_forward(const Features& features, const Weights& weights = {});
  Nest<at::Tensor> finish_forward(Pending&& pending);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

  /// The large tables. Empty if there are none.
  TPUEmbedding tpu_embedding() const {
    return tpu_;
  }
  /// The small tables, on Strategy::host(). Empty if there are none.
  TPUEmbedding small_embedding() const {
    return small_;
  }

  /// Like TPUEmbedding::build(), this may be called again. Sizes that a later call leaves
  /// unknown keep their earlier values.
  void build(const Nest<PartialShape>& input_shapes) override;
  std::optional<Nest<PartialShape>> input_shapes() const override;

  void reset() override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(Weights{})})

 private:
  template <class T>
  struct Halves {
    Nest<T> tpu;
    Nest<T> small;
  };
  using Part = std::optional<Nest<size_t>>;
  struct FeatureHalves {
    Halves<Feature> features = {};
    Halves<std::optional<Feature>> weights = {};
    Part part = {};
  };
  // Either part_of() or some_part_of().
  using FindPart = Part (*)(const Nest<FeatureConfig>&, const Features&);
  FeatureHalves split_batch(
      const Features& features,
      const Weights& weights,
      FindPart find_part) const;
  using Forward =
      Nest<at::Tensor> (TPUEmbeddingImpl::*)(const Features&, const Weights&);
  Nest<at::Tensor> forward_halves(
      const Features& features,
      const Weights& weights,
      FindPart find_part,
      Forward forward);
  template <class Work>
  auto run_or_abort(Work work);
  template <class T>
  Halves<T> split(const Nest<T>& nest, const char* what, const Part& part = {})
      const;
  std::vector<size_t> indices_of(const Part& part) const;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;
  template <class T>
  Nest<T> merge(const Nest<T>& tpu, const Nest<T>& small, const Part& part = {})
      const;

  // For each feature in order: whether its table is in the TPUEmbedding.
  std::vector<bool> is_tpu_;
  TPUEmbedding tpu_{nullptr};
  TPUEmbedding small_{nullptr};
};

using PartialTPUEmbedding = LayerHolder<PartialTPUEmbeddingImpl>;

}  // namespace tessera
