// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/feature.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <tessera/tables/initializer.h>
#include <tessera/tables/table_config.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>

#include <cstdint>
#include <optional>

namespace tessera {

/// The config of an EmbedReduce layer.
struct EmbedReduceOptions {
  /// The number of rows of the table. Ids are in [0, input_dim).
  int64_t input_dim = 0;
  /// The width of a row.
  int64_t output_dim = 0;
  Combiner combiner = Combiner::kMean;
  Initializer embeddings_initializer = initializers::Uniform{};

  bool operator==(const EmbedReduceOptions&) const = default;

  TESSERA_FIELDS(input_dim, output_dim, combiner, embeddings_initializer)
};

// snippet: tests/docs/reference_layers_test.cpp EmbedReduceImpl
/// Looks up the ids of each example and combines their rows into one. The table is an
/// ordinary parameter for any torch::optim. Use TPUEmbedding for large tables.
///
///   EmbedReduce tags(EmbedReduceOptions{
///       .input_dim = 1000, .output_dim = 16, .combiner = Combiner::kSqrtn});
///   const auto plain = tags->forward(ids);  // [batch, 16] from [batch, n]
///   const auto weighted = tags->forward(ids, weights);  // weights [batch, n]
///
/// Ids [batch] are looked up without combining. Their weights [batch] have an effect only
/// under Combiner::kSum. The formulas are in Combiner. A zero denominator or an example
/// without ids gives zeros. No id is dropped, not even an id of 0 or one whose weight
/// is <= 0.
///
/// Sparse and ragged ids need a float32 layer on the CPU. Their weights are of the same
/// kind, or a flat tensor. In an exported model, ids must be dense. In a torch::nn::Sequential,
/// pass `Feature(ids)`.
///
/// Parameters:  `embeddings` [input_dim, output_dim]. The constructor creates it.
///          torch::manual_seed() sets the seed of random values.
/// Shapes:  ids [batch] or [batch, n], int32 or int64, a sparse [batch, n] feature, or a
///          ragged feature of `batch` rows. The result is [batch, output_dim].
/// Errors:  c10::ValueError for options out of range, and for ids or weights of other
///          shapes; c10::TypeError for other dtypes; c10::IndexError for ids out of
///          range.
/// Source:  keras_rs.layers.EmbedReduce.
/// Differs: Keras counts negative ids from the end and broadcasts weights of other
///          shapes. There are no masks, regularizers and constraints here.
class EmbedReduceImpl : public LayerImpl<EmbedReduceImpl, EmbedReduceOptions> {
 public:
  static constexpr const char* kClassName = "EmbedReduce";

  explicit EmbedReduceImpl(EmbedReduceOptions options);

  at::Tensor forward(
      const Feature& ids,
      const std::optional<Feature>& weights = {});

  /// [batch, output_dim], for an input [batch] or [batch, n].
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

  void reset() override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(std::optional<Feature>())})

 private:
  at::Tensor lookup_dense(const at::Tensor& ids, const at::Tensor& weights);

  TablePtr table_;
  at::Tensor embeddings_;  // [input_dim, output_dim]
};

using EmbedReduce = LayerHolder<EmbedReduceImpl>;

}  // namespace tessera
