// SPDX-License-Identifier: Apache-2.0
#include "src/engine/serving_lookup.h"

#include <tessera/engine/serving_lookup.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/tensor_text.h"
#include "src/engine/lookup.h"
#include "src/engine/operator_lookup.h"
#include "src/features/batch.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera {

namespace {

size_t index_of(const FeatureState& feature, const EmbeddingTables& tables) {
  const TablePtr& config = feature.config.table;
  const auto found =
      std::find_if(tables.begin(), tables.end(), [&](const auto& entry) {
        return entry.config == config;
      });
  TESSERA_CHECK_VALUE(
      found != tables.end(),
      "[feature '{}'] its table '{}' must be one of the given tables, but none of them has its TablePtr. Two equal configs are two tables, so use the TablePtr of the layer or engine that has the tables.",
      shorten(feature.path),
      shorten(config->name));
  return static_cast<size_t>(found - tables.begin());
}

void check_rows(const FeatureState& feature, const at::Tensor& rows) {
  const TableConfig& config = *feature.config.table;
  const std::vector<int64_t> shape{config.vocabulary_size, config.dim};
  TESSERA_CHECK_VALUE(
      rows.defined() && rows.layout() == at::kStrided && rows.is_cpu() &&
          rows.scalar_type() == config.dtype &&
          rows.sizes() == c10::IntArrayRef(shape) && rows.is_contiguous() &&
          !rows.is_neg() && !rows._is_zerotensor(),
      "[feature '{}'] the tensor of its table '{}' must be a contiguous cpu tensor of {} {}, but got {}. Convert it, or pass tensor.clone(at::MemoryFormat::Contiguous) of a view.",
      shorten(feature.path),
      shorten(config.name),
      to_string(config.dtype),
      c10::IntArrayRef(shape),
      describe(rows));
}

bool needs_gradient(
    const Batch& batch,
    const std::vector<LookupTable>& tables) {
  const auto requires_grad = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  return at::GradMode::is_enabled() &&
      (std::any_of(batch.weights.begin(), batch.weights.end(), requires_grad) ||
       std::any_of(tables.begin(), tables.end(), [&](const LookupTable& table) {
         return requires_grad(table.rows);
       }));
}

// `prepare` may change the state of each feature before its batch is read.
Nest<at::Tensor> lookup_by(
    const Nest<FeatureConfig>& feature_config,
    const EmbeddingTables& tables,
    const Features& features,
    const Weights& weights,
    c10::function_ref<void(FeatureState&)> prepare) {
  const Nest<FeatureConfig> configs =
      part_like(feature_config, features, "features");
  std::vector<FeatureState> states = feature_states(
      configs,
      [&](const FeatureState& feature) { return index_of(feature, tables); });
  std::vector<LookupTable> rows;
  for (FeatureState& feature : states) {
    prepare(feature);
    rows.push_back({(tables.begin() + feature.table)->parameters});
    check_rows(feature, rows.back().rows);
  }
  Batch batch;
  {
    const ProfileScope scope("tessera::read_batch");
    batch = read_batch(configs, states, features, weights);
  }
  const ProfileScope scope("tessera::lookup");
  if (!needs_gradient(batch, rows)) {
    for (IdBags& bags : batch.bags) {
      drop_zero_rows(bags);
    }
    return configs.pack(lookup(batch.bags, rows));
  }
  std::vector<at::Tensor> activations;
  for (size_t i = 0; i < states.size(); ++i) {
    activations.push_back(lookup_by_operators(
                              rows[i],
                              batch.bags[i],
                              batch.weights[i],
                              /*sparse_gradients=*/false)
                              .view(batch.bags[i].activation_shape()));
  }
  return configs.pack(std::move(activations));
}

}  // namespace

Nest<at::Tensor> serving_embedding_lookup(
    const Features& features,
    const Weights& weights,
    const EmbeddingTables& tables,
    const Nest<FeatureConfig>& feature_config) {
  return lookup_by(
      feature_config, tables, features, weights, [](FeatureState&) {});
}

Nest<at::Tensor> lookup_for_serving(
    const EmbeddingState& state,
    const Features& features,
    const Weights& weights,
    const Nest<FeatureConfig>& feature_config) {
  const at::NoGradGuard no_grad;
  return lookup_by(
      feature_config,
      embedding_tables_of(state),
      features,
      weights,
      [&](FeatureState& feature) {
        for (const FeatureState& known : state.features) {
          if (known.path == feature.path && known.config == feature.config) {
            feature.ragged_rows = known.ragged_rows;
          }
        }
      });
}

}  // namespace tessera
