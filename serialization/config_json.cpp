// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/config_json.h>

#include "optim/json_name.h"

#include <tessera/optim/shorten.h>
#include <tessera/serialization/config_values.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace tessera {

namespace {

std::string name_of(const Initializer& initializer) {
  constexpr const char* kNames[] = {
      "Zeros",
      "Constant",
      "Uniform",
      "Normal",
      "TruncatedNormal",
      "RowId",
      "Callable"};
  static_assert(std::size(kNames) == std::variant_size_v<Initializer>);
  return kNames[initializer.index()];
}

constexpr const char* kInBackward = "in_backward";
constexpr const char* kOnStep = "on_step";

std::string place_of(const Json& path) {
  return "features" +
      shorten(path.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

Json JsonValue<Combiner>::write(Combiner value) {
  return to_string(value);
}

Combiner JsonValue<Combiner>::read(const Json& json, const std::string& where) {
  return read_name(json, combiner_from_string, where);
}

Json JsonValue<at::ScalarType>::write(at::ScalarType value) {
  return to_string(value);
}

at::ScalarType JsonValue<at::ScalarType>::read(
    const Json& json,
    const std::string& where) {
  return read_name(json, dtype_from_string, where);
}

Json JsonValue<OutOfRange>::write(OutOfRange value) {
  return to_string(value);
}

OutOfRange JsonValue<OutOfRange>::read(
    const Json& json,
    const std::string& where) {
  return read_name(json, out_of_range_from_string, where);
}

Json JsonValue<Apply>::write(Apply value) {
  return value == Apply::kOnStep ? kOnStep : kInBackward;
}

Apply JsonValue<Apply>::read(const Json& json, const std::string& where) {
  const std::string name = JsonValue<std::string>::read(json, where);
  TORCH_CHECK_VALUE(
      name == kOnStep || name == kInBackward,
      "[",
      where,
      "] expected ",
      kInBackward,
      " or ",
      kOnStep,
      ", but got '",
      shorten(name),
      "'.");
  return name == kOnStep ? Apply::kOnStep : Apply::kInBackward;
}

Json JsonValue<MissingSlots>::write(MissingSlots value) {
  return value == MissingSlots::kKeep ? "keep" : "error";
}

MissingSlots JsonValue<MissingSlots>::read(
    const Json& json,
    const std::string& where) {
  const std::string name = JsonValue<std::string>::read(json, where);
  TORCH_CHECK_VALUE(
      name == "error" || name == "keep",
      "[",
      where,
      "] expected error or keep, but got '",
      shorten(name),
      "'.");
  return name == "keep" ? MissingSlots::kKeep : MissingSlots::kError;
}

Json JsonValue<Strategy>::write(const Strategy& value) {
  const auto write_as = [&](Json config) {
    return Json{{"class_name", value.name()}, {"config", std::move(config)}};
  };
  if (const auto* engine = std::get_if<Strategy::Engine>(&value.options())) {
    return write_as({{"lookup_threads", engine->lookup_threads}});
  }
  if (const auto* host = std::get_if<Strategy::Host>(&value.options())) {
    return write_as({{"sparse_gradients", host->sparse_gradients}});
  }
  return value.is_sharded() ? Json(nullptr) : write_as(Json::object());
}

Strategy JsonValue<Strategy>::read(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return Strategy::engine();
  }
  require_known_keys(json, {"class_name", "config"}, where);
  const std::string name = JsonValue<std::string>::read(
      require_key(json, "class_name", where), where + ".class_name");
  const Json config = json.value("config", Json::object());
  const std::string inner = where + "." + shorten(name);
  // The one field that it may have, or its default.
  const auto read_field = [&]<class Field>(const char* key, Field otherwise) {
    require_known_keys(config, {key}, inner);
    return config.contains(key)
        ? JsonValue<Field>::read(config.at(key), inner + "." + key)
        : otherwise;
  };
  if (name == "engine") {
    return Strategy::engine(
        {.lookup_threads = read_field("lookup_threads", int64_t{0})});
  }
  if (name == "host") {
    return Strategy::host(
        {.sparse_gradients = read_field("sparse_gradients", false)});
  }
  TORCH_CHECK_VALUE(
      name == "dense",
      "[",
      where,
      "] class_name must be one of engine, host, dense, but got '",
      shorten(name),
      "'.");
  require_known_keys(config, {}, inner);
  return Strategy::dense();
}

Json JsonValue<Initializer>::write(const Initializer& value) {
  return write_class(value, name_of);
}

Initializer JsonValue<Initializer>::read(
    const Json& json,
    const std::string& where) {
  return read_class<Initializer>(json, name_of, where);
}

namespace {

// A feature in a JSON list: where it stands, which table it reads.
struct FeatureEntry {
  Json path = Json::array();
  int64_t table = 0;
  FeatureConfig config = {};
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

// Entries [begin, end) share the first `depth` steps of their paths.
Nest<FeatureConfig> build_nest(
    const std::vector<FeatureEntry>& entries,
    size_t begin,
    size_t end,
    size_t depth) {
  const std::string where = place_of(entries[begin].path);
  if (entries[begin].path.size() == depth) {
    TORCH_CHECK_VALUE(
        end == begin + 1 || entries[begin + 1].path.size() > depth,
        "[",
        where,
        "] two features have one path.");
    TORCH_CHECK_VALUE(
        end == begin + 1,
        "[",
        where,
        "] a feature's path must not be the beginning of another's.");
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
    TORCH_CHECK_VALUE(
        has_same_step(begin),
        "[",
        where,
        "] a feature's path must not be the beginning of another's.");
    while (next < end && has_same_step(next)) {
      ++next;
    }
    const Json& step = entries[begin].path[depth];
    Nest<FeatureConfig> child = build_nest(entries, begin, next, depth + 1);
    if (is_list) {
      require_kind(
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

// Every field of FeatureConfig but the table, once.
template <class Self, class Visit>
void visit_feature_fields(Self& self, Visit&& visit) {
  visit("max_sequence_length", self.max_sequence_length);
  visit("output_shape", self.output_shape);
  visit("validate_weights_and_indices", self.validate_weights_and_indices);
  visit("out_of_range", self.out_of_range);
  visit("name", self.name);
}

}  // namespace

template <>
struct JsonValue<FeatureEntry> {
  static Json write(const FeatureEntry& entry) {
    Json json = {{"path", entry.path}, {"table", entry.table}};
    visit_feature_fields(
        entry.config, [&](const char* name, const auto& field) {
          using Field = std::remove_cvref_t<decltype(field)>;
          json[name] = JsonValue<Field>::write(field);
        });
    return json;
  }
  static FeatureEntry read(const Json& json, const std::string& where) {
    FeatureEntry entry;
    std::vector<std::string> known{"path", "table"};
    visit_feature_fields(entry.config, [&](const char* name, const auto&) {
      known.emplace_back(name);
    });
    require_known_keys(json, known, where);
    entry.path = require_key(json, "path", where);
    require_kind(
        entry.path.is_array() && entry.path.size() <= kMaxJsonDepth,
        entry.path,
        "a list of at most 64 steps",
        where + ".path");
    entry.table = JsonValue<int64_t>::read(
        require_key(json, "table", where), where + ".table");
    visit_feature_fields(entry.config, [&](const char* name, auto& field) {
      using Field = std::remove_cvref_t<decltype(field)>;
      if (json.contains(name)) {
        field = JsonValue<Field>::read(json.at(name), where + "." + name);
      }
    });
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

Json to_json(const TableConfig& table) {
  return write_fields(table);
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
    TORCH_CHECK_VALUE(
        table != nullptr,
        "[",
        place_of(entry.path),
        "] table must be set. Make one with make_table().");
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
  require_known_keys(json, {"tables", "features"}, "features");
  const Json& table_list = require_key(json, "tables", "features");
  require_kind(table_list.is_array(), table_list, "a list", "tables");
  std::vector<TablePtr> tables;
  for (const Json& table : table_list) {
    tables.push_back(make_table(read_fields<TableConfig>(
        table, "tables[" + std::to_string(tables.size()) + "]")));
  }
  auto entries = JsonValue<std::vector<FeatureEntry>>::read(
      require_key(json, "features", "features"), "features");
  for (FeatureEntry& entry : entries) {
    TORCH_CHECK_VALUE(
        entry.table >= 0 && entry.table < static_cast<int64_t>(tables.size()),
        "[",
        place_of(entry.path),
        "] table must be an index in [0, ",
        tables.size(),
        "), but got ",
        entry.table,
        ".");
    entry.config.table = tables[entry.table];
  }
  if (entries.empty()) {
    return {};
  }
  return build_nest(entries, 0, entries.size(), 0);
}

Json JsonValue<Nest<FeatureConfig>>::write(const Nest<FeatureConfig>& value) {
  return to_json(value);
}

Nest<FeatureConfig> JsonValue<Nest<FeatureConfig>>::read(
    const Json& json,
    const std::string& where) {
  try {
    return features_from_json(json);
  } catch (const c10::ValueError& error) {
    C10_THROW_ERROR(
        ValueError, c10::str("[", where, "] ", error.what_without_backtrace()));
  }
}

Json JsonValue<PartialShape>::write(const PartialShape& value) {
  return JsonValue<PartialShape::Sizes>::write(value);
}

PartialShape JsonValue<PartialShape>::read(
    const Json& json,
    const std::string& where) {
  return JsonValue<PartialShape::Sizes>::read(json, where);
}

Json JsonValue<Nest<PartialShape>>::write(const Nest<PartialShape>& value) {
  if (value.is_leaf()) {
    return JsonValue<PartialShape>::write(value.leaf());
  }
  Json json = value.is_list() ? Json::array() : Json::object();
  if (value.is_list()) {
    for (const Nest<PartialShape>& item : value.items()) {
      json.push_back(write(item));
    }
  } else {
    for (const auto& [key, child] : value.entries()) {
      json[key] = write(child);
    }
  }
  return json;
}

Nest<PartialShape> JsonValue<Nest<PartialShape>>::read(
    const Json& json,
    const std::string& where) {
  require_kind(json.is_structured(), json, "a shape, or shapes", where);
  if (json.is_object()) {
    Nest<PartialShape>::Map entries;
    for (const auto& [key, child] : json.items()) {
      entries.emplace_back(key, read(child, where + "." + shorten(key)));
    }
    return Nest<PartialShape>::map(std::move(entries));
  }
  if (std::none_of(json.begin(), json.end(), [](const Json& item) {
        return item.is_structured();
      })) {
    return JsonValue<PartialShape>::read(json, where);
  }
  Nest<PartialShape>::List items;
  for (const Json& item : json) {
    items.push_back(read(item, c10::str(where, "[", items.size(), "]")));
  }
  return Nest<PartialShape>::list(std::move(items));
}

}  // namespace tessera
