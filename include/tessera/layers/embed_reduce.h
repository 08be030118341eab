// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/layers/layer.h>
#include <tessera/tables/initializer.h>
#include <tessera/tables/table_config.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <type_traits>

namespace tessera {

/// The config of an EmbedReduce layer.
struct EmbedReduceOptions {
  /// Rows of the table: ids are in [0, input_dim).
  int64_t input_dim = 0;
  /// Width of a row.
  int64_t output_dim = 0;
  Combiner combiner = Combiner::kMean;
  Initializer embeddings_initializer = initializers::Uniform{};

  bool operator==(const EmbedReduceOptions&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("input_dim", self.input_dim);
    visit("output_dim", self.output_dim);
    visit("combiner", self.combiner);
    visit("embeddings_initializer", self.embeddings_initializer);
  }
};
static_assert(std::is_aggregate_v<EmbedReduceOptions>);

/// An embedding whose rows are combined to one per example, for tables that
/// ordinary dense training can bear: the table is a parameter for any
/// torch::optim. TPUEmbedding is for large ones.
///
///   EmbedReduce tags(EmbedReduceOptions{
///       .input_dim = 1000, .output_dim = 16, .combiner = Combiner::kSqrtn});
///   tags->forward(ids);           // [batch, 16] from [batch, n]
///   tags->forward(ids, weights);  // weights [batch, n]
///
/// Single ids [batch] are looked up and not combined; weights [batch] then count
/// under Combiner::kSum only. Combiner has the formulas: a zero denominator and
/// an example without ids give zeros. Nothing is dropped: not an id of 0, nor
/// weights <= 0.
///
/// Sparse and ragged ids need float32 on the CPU; their weights are of the same
/// kind, or flat. In an exported model ids are dense. In a torch::nn::Sequential
/// pass `Feature(ids)`.
///
/// Parameters:  `embeddings` [input_dim, output_dim], from construction, random
///          values by torch::manual_seed().
/// Shapes:  ids [batch], [batch, n] int32 or int64, a sparse [batch, n] or ragged
///          feature of `batch` rows; the result is [batch, output_dim].
/// Errors:  c10::ValueError for options, and for ids or weights of other shapes;
///          c10::TypeError for other dtypes; c10::IndexError for ids out of range.
/// Source:  keras_rs.layers.EmbedReduce.
/// Differs: Keras counts negative ids from the end and combines weights of
///          other shapes by broadcasting. Masks, regularizers and constraints do
///          not exist here.
class EmbedReduceImpl : public LayerImpl<EmbedReduceImpl, EmbedReduceOptions> {
 public:
  static constexpr const char* kClassName = "EmbedReduce";

  explicit EmbedReduceImpl(EmbedReduceOptions options);

  at::Tensor forward(
      const Feature& ids,
      const std::optional<Feature>& weights = {});

  /// [batch] or [batch, n] gives [batch, output_dim].
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

  void reset() override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<Feature>())})

 private:
  at::Tensor look_up_dense(const at::Tensor& ids, const at::Tensor& weights);

  TablePtr table_;
  at::Tensor embeddings_;  // [input_dim, output_dim]
};

TORCH_MODULE(EmbedReduce);

}  // namespace tessera
