// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving_lookup.h>

#include <tessera/optim/shorten.h>

#include "optim/tensor_text.h"
#include "src/batch.h"
#include "src/lookup.h"
#include "src/operator_lookup.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

// The configs of what `features` has, in its nest.
Nest<FeatureConfig> configs_of(
    const Features& features,
    const Nest<FeatureConfig>& configs,
    const std::string& path) {
  TORCH_CHECK_VALUE(
      features.is_leaf() == configs.is_leaf() &&
          features.is_map() == configs.is_map() &&
          (!features.is_list() || features.size() == configs.size()),
      "[features",
      path.empty() ? "" : " '" + shorten(path) + "'",
      "] expected ",
      configs.is_list() ? "a list of " + std::to_string(configs.size())
                        : std::string(configs.kind()),
      " here, as in the feature configs, but got ",
      features.kind(),
      " of ",
      features.size(),
      ".");
  if (features.is_leaf()) {
    return configs;
  }
  const std::string prefix = path.empty() ? "" : path + "/";
  if (features.is_list()) {
    Nest<FeatureConfig>::List items;
    for (size_t i = 0; i < features.size(); ++i) {
      items.push_back(configs_of(
          features.items()[i], configs.items()[i], prefix + std::to_string(i)));
    }
    return Nest<FeatureConfig>::list(std::move(items));
  }
  Nest<FeatureConfig>::Map entries;
  for (const auto& [key, child] : features.entries()) {
    TORCH_CHECK_VALUE(
        configs.contains(key),
        "[features] '",
        shorten(prefix + key),
        "' is none of the feature configs. Known: ",
        configs.known_keys(),
        ".");
    entries.emplace_back(key, configs_of(child, configs.at(key), prefix + key));
  }
  return Nest<FeatureConfig>::map(std::move(entries));
}

size_t index_of(const FeatureState& feature, const EmbeddingTables& tables) {
  const TablePtr& config = feature.config.table;
  const auto found =
      std::find_if(tables.begin(), tables.end(), [&](const auto& entry) {
        return entry.config == config;
      });
  TORCH_CHECK_VALUE(
      found != tables.end(),
      "[feature '",
      shorten(feature.path),
      "'] its table '",
      shorten(config->name),
      "' is none of the tables given (they are told apart by object). Use the "
      "TablePtr that the tables were made with.");
  return static_cast<size_t>(found - tables.begin());
}

void check_rows(const FeatureState& feature, const at::Tensor& rows) {
  const TableConfig& config = *feature.config.table;
  const std::vector<int64_t> shape{config.vocabulary_size, config.dim};
  TORCH_CHECK_VALUE(
      rows.defined() && rows.layout() == at::kStrided && rows.is_cpu() &&
          rows.scalar_type() == config.dtype &&
          rows.sizes() == c10::IntArrayRef(shape) && rows.is_contiguous() &&
          !rows.is_neg() && !rows._is_zerotensor(),
      "[feature '",
      shorten(feature.path),
      "'] the tensor of its table '",
      shorten(config.name),
      "' must be a contiguous cpu one of ",
      to_string(config.dtype),
      " ",
      c10::IntArrayRef(shape),
      ", but got ",
      describe(rows),
      ". A clone() of a view is contiguous.");
}

bool needs_gradient(
    const Batch& batch,
    const std::vector<LookupTable>& tables) {
  const auto asks = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  return at::GradMode::is_enabled() &&
      (std::any_of(batch.weights.begin(), batch.weights.end(), asks) ||
       std::any_of(tables.begin(), tables.end(), [&](const LookupTable& table) {
         return asks(table.rows);
       }));
}

}  // namespace

Nest<at::Tensor> serving_embedding_lookup(
    const Features& features,
    const Weights& weights,
    const EmbeddingTables& tables,
    const Nest<FeatureConfig>& feature_config) {
  const Nest<FeatureConfig> configs = configs_of(features, feature_config, "");
  const std::vector<FeatureState> states = feature_states(
      configs,
      [&](const FeatureState& feature) { return index_of(feature, tables); });
  std::vector<LookupTable> rows;
  for (const FeatureState& feature : states) {
    rows.push_back({(tables.begin() + feature.table)->parameters});
    check_rows(feature, rows.back().rows);
  }
  Batch batch = read_batch(configs, states, features, weights);
  if (!needs_gradient(batch, rows)) {
    for (IdBags& bags : batch.bags) {
      drop_zero_rows(bags);
    }
    return configs.pack(look_up(batch.bags, rows));
  }
  std::vector<at::Tensor> activations;
  for (size_t i = 0; i < states.size(); ++i) {
    activations.push_back(look_up_by_operators(
                              rows[i],
                              batch.bags[i],
                              batch.weights[i],
                              /*sparse_gradients=*/false)
                              .view(batch.bags[i].activation_shape()));
  }
  return configs.pack(std::move(activations));
}

}  // namespace tessera
