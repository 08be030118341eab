// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/tables/embedding_tables.h>

#include <ATen/core/Tensor.h>

namespace tessera {

// snippet: tests/docs/reference_engine_test.cpp serving_embedding_lookup
/// Looks up activations in tables that the caller keeps, without a layer or an engine.
///
///   const EmbeddingTables tables({{.config = users, .parameters = rows}});
///   const auto activations = serving_embedding_lookup(
///       {{"user", ids}}, {}, tables, {{"user", FeatureConfig{.table = users}}});
///
/// `features` may have only some of the features in `feature_config`; the result has the
/// nest of `features`. `weights` is empty, or has the same nest. The activations are
/// differentiable with respect to float32 tables and weights that require a gradient.
/// Rows are not rounded to TableConfig::quantization. Shapes are as in TPUEmbedding, but
/// the number of ragged rows under a FeatureConfig::output_shape may differ from call to
/// call. Any number of threads may call it at the same time.
/// Errors:  c10::ValueError, TypeError, IndexError naming the feature's path;
///          c10::ValueError for a feature whose table is not in `tables`, or
///          whose tensor is not a contiguous CPU tensor [vocabulary_size, dim] of
///          the table's dtype.
/// Source:  tf.tpu.experimental.embedding.serving_embedding_lookup.
Nest<at::Tensor> serving_embedding_lookup(
    const Features& features,
    const Weights& weights,
    const EmbeddingTables& tables,
    const Nest<FeatureConfig>& feature_config);

}  // namespace tessera
