// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/saved_features.h>

#include "serialization/checkpoint_reader.h"
#include "src/common/check.h"
#include "src/common/checked_archive.h"

#include <tessera/common/json_text.h>
#include <tessera/serialization/config_json.h>

#include <nlohmann/json.hpp>
#include <torch/serialize/archive.h>

namespace tessera {

namespace {

Nest<FeatureConfig> features_from(
    const std::string& text,
    const Callables& callables) {
  Nest<FeatureConfig> features =
      features_from_json(parse_json(text, "[saved_features]"));
  detail::CallableBinder binder(callables);
  binder.bind(features, "");
  binder.finish("[saved_features]");
  return features;
}

}  // namespace

Nest<FeatureConfig> saved_features(
    torch::serialize::InputArchive& archive,
    const Callables& callables) {
  c10::IValue config;
  TESSERA_CHECK_VALUE(
      archive.try_read("config", config) && config.isString(),
      "[saved_features] expected an archive that a TPUEmbedding saved, but the archive has no config. If it is the archive of a whole model, read the layer's own archive by its name.");
  check_checksums(archive, "[saved_features]", "config");
  return features_from(config.toStringRef(), callables);
}

Nest<FeatureConfig> saved_features(
    const std::string& directory,
    const Callables& callables) {
  constexpr const char* kWhere = "[saved_features]";
  return features_from(
      read_link(directory, choose_checkpoint(directory, "", kWhere), kWhere)
          .manifest.config,
      callables);
}

}  // namespace tessera
