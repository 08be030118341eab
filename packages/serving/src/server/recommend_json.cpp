// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/recommend_json.h"

#include "packages/serving/src/reader/version.h"
#include "packages/serving/src/server/input_reader.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <variant>

namespace tessera::serving {

namespace {

// Reads the value of a key that the request may have. `place` is where the key is.
template <class T>
void read_value(
    const Json& json,
    const char* key,
    T& value,
    const std::string& place = "") {
  if (json.contains(key)) {
    value = JsonValue<T>::read(json[key], "'" + place + key + "'");
  }
}

void read_diversity(const Json& json, RecommendRequest& request) {
  const std::string where = "'diversity'";
  check_known_keys(json, {"column", "max_per_value"}, where);
  field_of(json, "column", where);
  read_value(json, "column", request.diverse_column, "diversity.");
  read_value(json, "max_per_value", request.max_per_value, "diversity.");
}

// Reads a list of raw values or ids of items.
std::vector<int64_t> read_items(
    const Json& json,
    const std::string& key,
    RequestValues& values,
    const RecommendContext& context) {
  const bool has_ids = json.is_object();
  const std::string where = "'" + key + "'";
  if (has_ids) {
    check_known_keys(json, {"ids"}, where);
  }
  const std::string place = has_ids ? key + ".ids" : key;
  const auto items =
      values.list_of(has_ids ? field_of(json, "ids", where) : json, place);
  if (items.empty()) {
    return {};
  }
  if (are_lists(items)) {
    values.refuse(items.front(), place, "a list of items");
  }
  const ItemSearch& search = context.search;
  const IdLists read = has_ids || context.item_values == nullptr
      ? values.read_id_rows(items, place)
      : read_raw_ids(
            kRecommendWhere,
            place,
            json,
            search.items().file().item,
            context.user);
  const bool must_exist =
      key == "choose_from" && read.ids.size() == items.size();
  for (size_t i = 0; must_exist && i < items.size(); ++i) {
    TESSERA_CHECK_VALUE(
        search.items().catalogue().row_of(read.ids[i]) >= 0,
        "[{}] {}: this version has no item {}. Leave it out.",
        kRecommendWhere,
        place,
        shorten(text_of(items[i])));
  }
  return read.ids;
}

// Reads the inputs of the user.
void read_user(
    const Json& json,
    InputReader& reader,
    const RecommendContext& context,
    RecommendBody& read) {
  check_kind(
      json.is_object(),
      json,
      "an object with the inputs of the user",
      "'user'");
  read.user = json;
  reader.read(json, "user", /*is_of_user=*/true);
  read.inputs = reader.finish().user;
  const ItemsFile& file = context.search.items().file();
  for (const ScoreInput& input : read.inputs) {
    TESSERA_CHECK_VALUE(
        find_named(context.user.inputs, input.name),
        "[{}] user: there is no input '{}' of a user. The inputs are {}. Correct the name, or leave it out.",
        kRecommendWhere,
        shorten(input.name),
        join_names(context.user.inputs, shortened_name));
    const auto* ids = std::get_if<IdLists>(&input.values);
    if (ids != nullptr && input.name == file.item) {
      read.request.items = ids->ids;
    } else if (ids != nullptr && input.name == file.user) {
      TESSERA_CHECK_VALUE(
          ids->ids.size() <= 1,
          "[{}] user: expected one id as '{}', but got {}. Send one user in each request.",
          kRecommendWhere,
          shorten(input.name),
          ids->ids.size());
      if (!ids->ids.empty()) {
        read.request.user = ids->ids.front();
      }
    }
  }
}

// The values of an attribute for some rows.
RawColumns::Column column_of(
    const AttributeColumn& attribute,
    const std::vector<int64_t>& rows) {
  RawColumns::Column column;
  const auto add_all = [&]<class T>(T missing, auto to_value) {
    auto& values = column.values.emplace<std::vector<T>>();
    if (attribute.has_lists()) {
      column.row_splits.emplace(1, 0);
    }
    for (const int64_t row : rows) {
      for (const int64_t value : attribute.values_of(row)) {
        values.push_back(data::is_missing(value) ? missing : to_value(value));
      }
      if (attribute.has_lists()) {
        column.row_splits->push_back(std::ssize(values));
      }
    }
  };
  if (attribute.type == data::ColumnType::kText) {
    add_all(std::string(), [&](int64_t number) {
      return std::string(attribute.texts[static_cast<size_t>(number)]);
    });
  } else if (attribute.type == data::ColumnType::kFloat32) {
    add_all(std::nanf(""), data::float_of);
  } else {
    add_all(kMissing, std::identity());
  }
  return column;
}

// Appends {"key": [...]} to an object, with what `append` appends for each entry.
template <class Entries, class Append>
void append_list(
    std::string& text,
    std::string_view key,
    const Entries& entries,
    Append append) {
  text += text.ends_with('{') ? "" : ",";
  text += text_of(std::string(key)) + ":[";
  for (const auto& entry : entries) {
    text += text.ends_with('[') ? "" : ",";
    append(entry);
  }
  text += ']';
}

void append_value(
    std::string& text,
    const AttributeColumn& attribute,
    int64_t value) {
  if (data::is_missing(value)) {
    text += "null";
  } else if (attribute.type == data::ColumnType::kText) {
    text += text_of(std::string(attribute.texts[static_cast<size_t>(value)]));
  } else if (attribute.type == data::ColumnType::kFloat32) {
    append_number(text, data::float_of(value));
  } else {
    text += std::to_string(value);
  }
}

}  // namespace

RecommendContext::RecommendContext(
    const RequestContext& scores,
    bool has_scores)
    : search(*scores.version.impl().items), scores(scores), user(scores) {
  const ItemsFile& file = search.items().file();
  is_ranked = has_scores && file.num_candidates > 0;
  has_query = scores.options.query && !scores.version.query_program().empty();
  user.inputs = {
      {.name = file.user, .is_of_user = true},
      {.name = file.item, .is_of_user = true}};
  const auto add = [&](const std::vector<ScoreInputInfo>& inputs) {
    for (const ScoreInputInfo& input : inputs) {
      if (input.is_of_user && !find_named(user.inputs, input.name)) {
        user.inputs.push_back(input);
      }
    }
  };
  if (has_query) {
    query_inputs = scores.options.query_inputs();
    add(query_inputs);
  }
  if (is_ranked) {
    add(scores.inputs);
  }
  const auto* output = scores.pipeline == nullptr
      ? nullptr
      : find_named(scores.pipeline->outputs(), file.item);
  if (output == nullptr) {
    return;
  }
  item_columns = output->columns;
  if (search.items().attributes() != nullptr && item_columns.size() == 1) {
    const auto* values = find_named(
        search.items().attributes()->columns(), item_columns.front());
    item_values = values != nullptr && !values->has_lists() ? values : nullptr;
  }
}

RecommendBody read_recommend_request(
    std::string_view body,
    const RecommendContext& context) {
  InputReader reader(kRecommendWhere, context.user);
  RequestValues& values = reader.values();
  const Json json = values.parse(
      body,
      {"user",
       "k",
       "where",
       "exclude",
       "choose_from",
       "exclude_seen",
       "diversity",
       "show"});
  RecommendBody read;
  RecommendRequest& request = read.request;
  if (json.contains("user")) {
    read_user(json["user"], reader, context, read);
  }
  read_value(json, "k", request.k);
  read_value(json, "where", request.where);
  read_value(json, "exclude_seen", request.exclude_seen);
  if (json.contains("exclude")) {
    request.exclude = read_items(json["exclude"], "exclude", values, context);
  }
  if (json.contains("choose_from")) {
    request.choose_from =
        read_items(json["choose_from"], "choose_from", values, context);
  }
  if (json.contains("diversity")) {
    read_diversity(json["diversity"], request);
  }
  std::vector<std::string> shown;
  read_value(json, "show", shown);
  const ItemAttributes* attributes = context.search.items().attributes();
  TESSERA_CHECK_VALUE(
      shown.empty() || attributes != nullptr,
      "[{}] show: this version has no attributes of items. Leave it out.",
      kRecommendWhere);
  for (const std::string& name : shown) {
    read.shown.push_back(&attributes->at(name, "[/recommend] show:"));
  }
  const int64_t max_k = context.user.options.max_ids + 1;
  values.count(
      static_cast<size_t>(std::clamp<int64_t>(request.k, 0, max_k)) *
      (1 + shown.size()));
  return read;
}

std::vector<ScoreInput> select_inputs(
    const std::vector<ScoreInput>& inputs,
    const std::vector<ScoreInputInfo>& listed) {
  std::vector<ScoreInput> selected;
  for (const ScoreInput& input : inputs) {
    const ScoreInputInfo* info = find_named(listed, input.name);
    if (listed.empty() || (info != nullptr && info->is_of_user)) {
      selected.push_back(input);
    }
  }
  return selected;
}

ScoreRequest make_score_request(
    const RecommendBody& body,
    std::span<const ScoredRow> items,
    const RecommendContext& context) {
  const BaseItems& published = context.search.items();
  const ItemCatalogue& catalogue = published.catalogue();
  const std::string& item = published.file().item;
  const ItemAttributes* attributes = published.attributes();
  IdLists ids;
  std::vector<int64_t> rows;
  for (const ScoredRow& row : items) {
    ids.ids.push_back(catalogue.id_of(row.number));
    if (attributes != nullptr) {
      rows.push_back(catalogue.attribute_row(row.number));
    }
  }
  // The user's own items are not those that are scored.
  Json user = body.user;
  for (const std::string& name : context.item_columns) {
    user.erase(name);
    if (user.contains("columns") && user["columns"].is_object()) {
      user["columns"].erase(name);
    }
  }
  RequestContext of = context.scores;
  std::erase_if(of.inputs, [&](const ScoreInputInfo& input) {
    return input.name == item;
  });
  of.inputs.push_back({.name = item, .is_of_user = true});
  RawColumns columns;
  const auto add = [&](const std::string& name) {
    const AttributeColumn* attribute = attributes == nullptr
        ? nullptr
        : find_named(attributes->columns(), name);
    if (attribute != nullptr && columns.find(name) == nullptr) {
      columns.add(name, column_of(*attribute, rows));
    }
  };
  if (of.pipeline != nullptr) {
    for (const auto& input : of.pipeline->inputs(of.inputs)) {
      const ScoreInputInfo* info = find_named(of.inputs, input.name);
      for (const std::string& name : input.columns) {
        if (info->is_of_user) {
          continue;
        }
        add(name);
        const auto made = of.options.functions.find(name);
        if (made != of.options.functions.end() && !columns.find(name)) {
          for (const PipelineColumn& column : made->second.columns) {
            add(column.name);
          }
        }
      }
    }
  }
  InputReader reader(kRecommendWhere, of);
  reader.read(user, "user", /*is_of_user=*/true);
  reader.add_candidates(columns, std::ssize(items));
  ScoreRequest request = reader.finish();
  request.user = select_inputs(request.user, context.scores.inputs);
  request.candidates.push_back(
      {.name = item, .values = std::move(ids), .rows = std::ssize(items)});
  return request;
}

std::string write_recommend_result(
    const RecommendBody& body,
    const RecommendResult& result,
    const RecommendContext& context) {
  constexpr std::array kFrom{"query", "fold_in", "popularity"};
  const ItemCatalogue& catalogue = context.search.items().catalogue();
  std::string text = "{";
  const auto append_id = [&](int64_t id) { text += std::to_string(id); };
  append_list(text, "ids", result.ids, append_id);
  append_list(text, "items", result.ids, [&](int64_t id) {
    if (context.item_values == nullptr) {
      append_id(id);
    } else {
      const auto row = catalogue.attribute_row(catalogue.row_of(id));
      append_value(
          text,
          *context.item_values,
          context.item_values->values_of(row).front());
    }
  });
  append_list(text, "scores", result.scores, [&](float score) {
    append_number(text, score);
  });
  text += ",\"version\":" + std::to_string(context.user.version.number());
  text += ",\"passed\":" + std::to_string(result.passed);
  text += ",\"from\":\"";
  text += kFrom.at(static_cast<size_t>(result.from));
  text += '"';
  if (body.request.exclude_seen) {
    text += ",\"history\":";
    text += result.has_history ? "true" : "false";
  }
  if (!body.shown.empty()) {
    text += ",\"shown\":{";
    for (const AttributeColumn* attribute : body.shown) {
      append_list(text, attribute->name, result.ids, [&](int64_t id) {
        const auto row = catalogue.attribute_row(catalogue.row_of(id));
        text += attribute->has_lists() ? "[" : "";
        for (size_t i = 0; const int64_t value : attribute->values_of(row)) {
          text += i++ == 0 ? "" : ",";
          append_value(text, *attribute, value);
        }
        text += attribute->has_lists() ? "]" : "";
      });
    }
    text += '}';
  }
  text += '}';
  return text;
}

Json describe_recommend(const RecommendContext& context) {
  constexpr std::array kTypes{"int64", "float32", "text"};
  constexpr size_t kMaxExamples = 20;
  const BaseItems& items = context.search.items();
  const auto made = context.user.pipeline == nullptr
      ? std::vector<PublishedPipeline::Input>()
      : context.user.pipeline->inputs(context.user.inputs);
  std::vector<std::string> user;
  for (const ScoreInputInfo& input : context.user.inputs) {
    const auto* of = find_named(made, input.name);
    for (const std::string& name :
         of == nullptr ? std::vector{input.name} : of->columns) {
      if (std::ranges::find(user, name) == user.end()) {
        user.push_back(name);
      }
    }
  }
  Json attributes = Json::array();
  if (items.attributes() != nullptr) {
    for (const AttributeColumn& column : items.attributes()->columns()) {
      Json examples = Json::array();
      for (const std::string_view text : column.texts) {
        if (!text.empty() && examples.size() < kMaxExamples) {
          examples.push_back(std::string(text));
        }
      }
      attributes.push_back(
          {{"name", std::string(column.name)},
           {"type", kTypes.at(static_cast<size_t>(column.type))},
           {"lists", column.has_lists()},
           {"values", std::move(examples)}});
    }
  }
  return {
      {"user", user},
      {"item", items.file().item},
      {"item_column",
       context.item_values == nullptr ? Json()
                                      : Json(context.item_columns.front())},
      {"attributes", std::move(attributes)},
      {"history", items.has_history()},
      {"items", items.catalogue().size()},
      {"ranked", context.is_ranked}};
}

}  // namespace tessera::serving
