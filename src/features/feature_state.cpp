// SPDX-License-Identifier: Apache-2.0
#include "src/features/feature_state.h"

#include <tessera/common/shorten.h>

#include <utility>

namespace tessera {

std::string where_of(const FeatureState& feature) {
  return "[feature '" + shorten(feature.path) + "'] ";
}

std::vector<FeatureState> feature_states(
    const Nest<FeatureConfig>& features,
    c10::function_ref<size_t(const FeatureState&)> table_of) {
  std::vector<FeatureState> states;
  features.for_each([&](const std::string& path, const FeatureConfig& config) {
    FeatureState feature{
        .path = config.name.empty() ? path : config.name, .config = config};
    validate(config, feature.path);
    feature.table = table_of(feature);
    feature.output_shape = config.output_shape;
    states.push_back(std::move(feature));
  });
  return states;
}

}  // namespace tessera
