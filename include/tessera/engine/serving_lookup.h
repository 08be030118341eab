// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/tables/embedding_tables.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Activations from tables that the caller keeps, without a layer or an engine.
///
///   EmbeddingTables tables({{.config = users, .parameters = rows}});
///   auto activations = serving_embedding_lookup(
///       {{"user", ids}}, {}, tables, {{"user", FeatureConfig{.table = users}}});
///
/// `features` may be some of the configs' only; the result has their nest.
/// `weights` is empty, or a nest like the features. Differentiable in float32
/// tables and in weights that require a gradient. Rows are not rounded to
/// TableConfig::quantization. Shapes are as in TPUEmbedding, but the number of ragged
/// rows under a FeatureConfig::output_shape may differ from call to call. Any number of
/// threads may call it at the same time.
/// Errors:  c10::ValueError, TypeError, IndexError naming the feature's path;
///          c10::ValueError for a feature whose table is not in `tables`, or
///          whose tensor is not a contiguous cpu one [vocabulary_size, dim] of
///          the table's dtype.
/// Source:  tf.tpu.experimental.embedding.serving_embedding_lookup.
Nest<at::Tensor> serving_embedding_lookup(
    const Features& features,
    const Weights& weights,
    const EmbeddingTables& tables,
    const Nest<FeatureConfig>& feature_config);

}  // namespace tessera
