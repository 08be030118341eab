// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>

#include "packages/serving/src/reader/published_items.h"
#include "packages/serving/src/reader/published_table.h"
#include "packages/serving/src/reader/version_data.h"
#include "src/features/id_rule.h"

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

struct Version::Impl {
  // What lookups need to know about a feature.
  struct Feature {
    size_t table = 0;
    IdRule rule = {};
  };

  VersionFile version_json = {};
  std::string xxh3 = {};  // of version_json
  std::map<std::string, double> metrics = {};
  std::vector<PublishedTable> tables = {};
  std::vector<Feature> features = {};
  std::vector<FeatureInfo> feature_infos = {};
  std::vector<TableInfo> table_infos = {};
  std::vector<DenseWeight> dense = {};
  std::map<std::string, std::string_view, std::less<>> files = {};
  // nullptr: the version has no items to recommend.
  std::unique_ptr<const ItemSearch> items = {};
  // The owners of the bytes that the members above point to. The first one is the base.
  std::vector<std::shared_ptr<const void>> owners = {};
  std::shared_ptr<const void> dense_owner = {};

  VersionLink link() const {
    return {.version = version_json.version, .xxh3 = xxh3};
  }
  /// The bytes of an attached file, or nothing.
  std::string_view file(std::string_view name) const {
    const auto found = files.find(name);
    return found == files.end() ? std::string_view() : found->second;
  }
};

/// Makes a version from a base.
/// Errors:  ValueError beginning with `where`.
std::shared_ptr<const Version> make_version(
    const VersionData& base,
    const std::string& where);

/// Makes the version after `version`.
std::shared_ptr<const Version> make_next_version(
    const Version& version,
    const VersionData& next,
    const std::string& where);

}  // namespace tessera::serving
