// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizer_json.h>
#include <tessera/serialization/config_json.h>

#include "src/common/check.h"

#include <tessera/common/shorten.h>
#include <tessera/serialization/config_values.h>

#include <map>
#include <utility>

namespace tessera {

template <>
struct JsonValue<Json> {
  static Json write(const Json& json) {
    return json;
  }
  static Json read(const Json& json, const std::string& /*where*/) {
    return json;
  }
};

namespace {

std::string where_of(const Json& path) {
  return "features" +
      shorten(path.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// A feature in the JSON list: its path in the nest and the index of its table.
struct FeatureEntry {
  Json path = Json::array();
  int64_t table = 0;
  FeatureConfig config = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("path", self.path);
    visit("table", self.table);
    visit("max_sequence_length", self.config.max_sequence_length);
    visit("output_shape", self.config.output_shape);
    visit(
        "validate_weights_and_indices",
        self.config.validate_weights_and_indices);
    visit("out_of_range", self.config.out_of_range);
    visit("name", self.config.name);
  }
};

void collect_entries(
    const Nest<FeatureConfig>& features,
    const Json& path,
    std::vector<FeatureEntry>& entries) {
  const auto extended = [&](const Json& step) {
    Json longer = path;
    longer.push_back(step);
    return longer;
  };
  if (features.is_leaf()) {
    entries.push_back({.path = path, .config = features.leaf()});
  } else if (features.is_list()) {
    for (size_t i = 0; i < features.size(); ++i) {
      collect_entries(features.items()[i], extended(i), entries);
    }
  } else {
    for (const auto& [key, child] : features.entries()) {
      collect_entries(child, extended(key), entries);
    }
  }
}

// Builds the nest of entries [begin, end), which share the first `depth` steps of their
// paths.
Nest<FeatureConfig> build_nest(
    const std::vector<FeatureEntry>& entries,
    size_t begin,
    size_t end,
    size_t depth) {
  const std::string where = where_of(entries[begin].path);
  if (entries[begin].path.size() == depth) {
    TESSERA_CHECK_VALUE(
        end == begin + 1 || entries[begin + 1].path.size() > depth,
        "[{}] two features have the same path. Give each feature its own path.",
        where);
    TESSERA_CHECK_VALUE(
        end == begin + 1,
        "[{}] the path of a feature must not be the beginning of another feature's path. Change one of them.",
        where);
    return entries[begin].config;
  }
  const bool is_list = entries[begin].path[depth].is_number_unsigned();
  Nest<FeatureConfig>::Map map;
  Nest<FeatureConfig>::List list;
  while (begin < end) {
    size_t next = begin;
    const auto has_same_step = [&](size_t i) {
      return entries[i].path.size() > depth &&
          entries[i].path[depth] == entries[begin].path[depth];
    };
    TESSERA_CHECK_VALUE(
        has_same_step(begin),
        "[{}] the path of a feature must not be the beginning of another feature's path. Change one of them.",
        where);
    while (next < end && has_same_step(next)) {
      ++next;
    }
    const Json& step = entries[begin].path[depth];
    Nest<FeatureConfig> child = build_nest(entries, begin, next, depth + 1);
    if (is_list) {
      check_kind(
          step == list.size(), step, "the indices 0, 1, ... in order", where);
      list.push_back(std::move(child));
    } else {
      map.emplace_back(
          JsonValue<std::string>::read(step, where), std::move(child));
    }
    begin = next;
  }
  return is_list ? Nest<FeatureConfig>::list(std::move(list))
                 : Nest<FeatureConfig>::map(std::move(map));
}

}  // namespace

template <>
struct JsonValue<FeatureEntry> {
  static Json write(const FeatureEntry& entry) {
    return write_fields(entry);
  }
  static FeatureEntry read(const Json& json, const std::string& where) {
    auto entry = read_fields<FeatureEntry>(json, where);
    field_of(json, "path", where);
    field_of(json, "table", where);
    check_kind(
        entry.path.is_array() && entry.path.size() <= kMaxJsonDepth,
        entry.path,
        "a list of at most 64 steps",
        where + ".path");
    return entry;
  }
};

Json to_json(const Initializer& initializer) {
  return JsonValue<Initializer>::write(initializer);
}

Initializer initializer_from_json(const Json& json) {
  check_depth(json, "initializer");
  return JsonValue<Initializer>::read(json, "initializer");
}

Json to_json(const optim::OptimizerSpec& optimizer) {
  return JsonValue<optim::OptimizerSpec>::write(optimizer);
}

optim::OptimizerSpec optimizer_from_json(const Json& json) {
  check_depth(json, "optimizer");
  return JsonValue<optim::OptimizerSpec>::read(json, "optimizer");
}

// The fields of keys, zero_rows and slot_dtype are left out if they are not set, so that
// older versions of Tessera can read the config.
Json to_json(const TableConfig& table) {
  Json json = write_fields(table);
  if (!table.keys) {
    json.erase("keys");
  }
  if (table.zero_rows == 0) {
    json.erase("zero_rows");
  }
  if (table.slot_dtype == at::kFloat) {
    json.erase("slot_dtype");
  }
  return json;
}

TableConfig table_from_json(const Json& json) {
  check_depth(json, "table");
  return read_fields<TableConfig>(json, "table");
}

Json to_json(const Nest<FeatureConfig>& features) {
  std::vector<FeatureEntry> entries;
  collect_entries(features, Json::array(), entries);
  Json tables = Json::array();
  std::map<TablePtr, int64_t> index_of;
  for (FeatureEntry& entry : entries) {
    const TablePtr& table = entry.config.table;
    TESSERA_CHECK_VALUE(
        table != nullptr,
        "[{}] table must be set. Make one with make_table().",
        where_of(entry.path));
    const auto [found, is_new] =
        index_of.try_emplace(table, static_cast<int64_t>(index_of.size()));
    if (is_new) {
      tables.push_back(to_json(*table));
    }
    entry.table = found->second;
  }
  return {
      {"tables", std::move(tables)},
      {"features", JsonValue<std::vector<FeatureEntry>>::write(entries)}};
}

Nest<FeatureConfig> features_from_json(const Json& json) {
  check_depth(json, "features");
  check_known_keys(json, {"tables", "features"}, "features");
  const Json& table_list = field_of(json, "tables", "features");
  check_kind(table_list.is_array(), table_list, "a list", "tables");
  std::vector<TablePtr> tables;
  for (const Json& table : table_list) {
    tables.push_back(make_table(read_fields<TableConfig>(
        table, "tables[" + std::to_string(tables.size()) + "]")));
  }
  auto entries = JsonValue<std::vector<FeatureEntry>>::read(
      field_of(json, "features", "features"), "features");
  for (FeatureEntry& entry : entries) {
    TESSERA_CHECK_VALUE(
        entry.table >= 0 && entry.table < static_cast<int64_t>(tables.size()),
        "[{}] table must be an index in [0, {}), but got {}.",
        where_of(entry.path),
        tables.size(),
        entry.table);
    entry.config.table = tables[entry.table];
  }
  if (entries.empty()) {
    return {};
  }
  return build_nest(entries, 0, entries.size(), 0);
}

}  // namespace tessera
