// SPDX-License-Identifier: Apache-2.0
// How a RequestHandler answers /recommend.

#include "packages/serving/src/reader/version.h"
#include "packages/serving/src/server/input_reader.h"
#include "packages/serving/src/server/request_handler.h"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::serving {

namespace {

struct DiversityFields {
  std::string column = {};
  int64_t max_per_value = RecommendRequest().max_per_value;

  TESSERA_FIELDS(column, max_per_value)
};

// Reads a key, if the request has it.
template <class Field>
void read_key(const Json& json, const char* key, Field& field) {
  if (json.contains(key)) {
    field = JsonValue<Field>::read(json.at(key), key);
  }
}

// A request that has been read.
struct RecommendBody {
  RecommendRequest request = {};
  std::vector<ScoreInput> inputs = {};  // of the user
  RawColumns columns = {};  // of the user
  std::vector<const AttributeColumn*> shown = {};
};

// The values of an attribute for some items.
RawColumns::Column column_of(
    const AttributeColumn& attribute,
    const std::vector<int64_t>& ids,
    const BaseItems& items) {
  RawColumns::Column column;
  const auto add_all = [&]<class T>(T missing, auto to_value) {
    auto& values = column.values.emplace<std::vector<T>>();
    if (attribute.has_lists()) {
      column.row_splits.emplace(1, 0);
    }
    for (const int64_t id : ids) {
      const int64_t row = items.attributes.row_of(id);
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
      return std::string(attribute.texts[number]);
    });
  } else if (attribute.type == data::ColumnType::kFloat32) {
    add_all(std::nanf(""), data::float_of);
  } else {
    add_all(kMissing, std::identity());
  }
  return column;
}

// Appends "key":[...] to an object.
void append_column(
    std::string& text,
    std::string_view key,
    const RawColumns::Column& column) {
  text += text.ends_with('{') ? "" : ",";
  text += text_of(std::string(key)) + ":";
  const auto append = [&]<class T>(std::span<const T> values) {
    if constexpr (std::is_same_v<T, float>) {
      append_numbers(text, values);
    } else {
      text += '[';
      for (size_t i = 0; i < values.size(); ++i) {
        text += i == 0 ? "" : ",";
        text += data::is_missing(values[i]) ? "null" : text_of(values[i]);
      }
      text += ']';
    }
  };
  std::visit(
      [&]<class T>(const std::vector<T>& values) {
        const std::span<const T> all = values;
        if (!column.row_splits) {
          append(all);
          return;
        }
        const std::vector<int64_t>& splits = *column.row_splits;
        text += '[';
        for (size_t i = 0; i + 1 < splits.size(); ++i) {
          text += i == 0 ? "" : ",";
          append(all.subspan(splits[i], splits[i + 1] - splits[i]));
        }
        text += ']';
      },
      column.values);
}

// The inputs that a function lists. All if it lists none.
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

// Reads requests of /recommend and writes their answers, for a version that has items.
struct RecommendContext {
  // `scores` is the context of /score.
  RecommendContext(const RequestContext& scores, bool has_scores)
      : search(*scores.version.impl().items),
        items(*search.items()),
        scores(scores),
        user(scores),
        candidates(scores) {
    const ItemsFile& file = items.file;
    num_candidates = has_scores ? file.num_candidates : 0;
    has_query = scores.options.query && !scores.version.query_program().empty();
    candidates.inputs.clear();
    user.inputs = {
        {.name = file.user, .is_of_user = true},
        {.name = file.user_items, .is_of_user = true}};
    const auto add = [&](const ScoreInputInfo& input) {
      if (input.is_of_user && !find_named(user.inputs, input.name)) {
        user.inputs.push_back(input);
      }
    };
    if (has_query) {
      query_inputs = scores.options.query_inputs();
      std::ranges::for_each(query_inputs, add);
    }
    if (num_candidates > 0) {
      std::ranges::for_each(scores.inputs, add);
    }
    if (scores.pipeline == nullptr) {
      return;
    }
    if (const auto* output =
            find_named(scores.pipeline->outputs(), file.item)) {
      item_columns = output->columns;
    }
    if (item_columns.size() == 1) {
      const auto* values =
          find_named(items.attributes.columns(), item_columns.front());
      item_values =
          values != nullptr && !values->has_lists() ? values : nullptr;
    }

    const auto is_item_column =
        std::bind_front(&RecommendContext::is_of_items, this);
    std::vector<std::string> columns;  // of candidates, but given by the user
    if (num_candidates > 0) {
      for (const auto& made : scores.made()) {
        ScoreInputInfo input{.name = made.name, .width = made.num_numbers};
        const ScoreInputInfo* listed = find_named(scores.inputs, made.name);
        input.is_of_user = listed != nullptr
            ? listed->is_of_user
            : find_named(user.inputs, made.name) != nullptr ||
                std::ranges::none_of(made.columns, is_item_column);
        add(input);
        if (!input.is_of_user && made.name != file.item) {
          candidates.inputs.push_back(input);
          std::ranges::copy_if(
              made.columns,
              std::back_inserter(columns),
              std::not_fn(is_item_column));
        }
      }
    }
    const auto add_column = [&](const std::string& column) {
      if (std::ranges::count(user_columns, column) == 0) {
        user_columns.push_back(column);
      }
    };
    for (const auto& made : user.made()) {
      std::ranges::for_each(made.columns, add_column);
    }
    std::ranges::for_each(columns, add_column);
  }

  // Whether the attributes of items, or their raw values, give the values of a column.
  bool is_of_items(const std::string& column) const {
    const auto is_known = [&](const std::string& name) {
      return std::ranges::count(item_columns, name) > 0 ||
          find_named(items.attributes.columns(), name);
    };
    const auto made = scores.options.functions.find(column);
    return is_known(column) ||
        (made != scores.options.functions.end() &&
         std::ranges::all_of(
             made->second.columns, is_known, &PipelineColumn::name));
  }

  // Whether an input is made from a column of the user.
  bool is_of_user(const std::string& column) const {
    return std::ranges::any_of(user_columns, [&](const std::string& name) {
      const auto made = scores.options.functions.find(name);
      return name == column ||
          (made != scores.options.functions.end() &&
           find_named(made->second.columns, column));
    });
  }

  // Reads a list of raw values or ids of items.
  std::vector<int64_t> read_items(
      const Json& json,
      const std::string& key,
      RequestValues& values) const {
    const bool has_ids = json.is_object();
    if (has_ids) {
      check_known_keys(json, {"ids"}, key);
    }
    const std::string place = has_ids ? key + ".ids" : key;
    const auto listed =
        values.list_of(has_ids ? field_of(json, "ids", key) : json, place);
    if (listed.empty()) {
      return {};
    }
    if (are_lists(listed)) {
      values.refuse(listed.front(), place, "a list of items");
    }
    const std::vector<int64_t> ids = has_ids || item_values == nullptr
        ? values.read_id_rows(listed, place).ids
        : read_raw_ids(place, json, items.file.item, user).ids;
    for (size_t i = 0; key == "choose_from" && i < ids.size(); ++i) {
      TESSERA_CHECK_VALUE(
          ids.size() != listed.size() || items.catalogue.row_of(ids[i]) >= 0,
          "{}: this version has no item {}. Leave it out.",
          place,
          shorten(text_of(listed[i])));
    }
    return ids;
  }

  // Reads the inputs of the user.
  void read_user(const Json& json, InputReader& reader, RecommendBody& read)
      const {
    check_kind(
        json.is_object(),
        json,
        "an object with the inputs of the user",
        "user");
    reader.read(json, "user", /*is_of_user=*/true);
    read.columns = reader.user_columns();
    for (const auto& entry : read.columns.entries()) {
      TESSERA_CHECK_VALUE(
          is_of_user(entry.first),
          "user: no input of a user is made from the column '{}'. The columns are {}. Correct the name, or leave it out.",
          shorten(entry.first),
          shorten_all(user_columns));
    }
    read.inputs = reader.finish().user;
    const ItemsFile& file = items.file;
    for (const ScoreInput& input : read.inputs) {
      TESSERA_CHECK_VALUE(
          find_named(user.inputs, input.name),
          "user: there is no input '{}' of a user. The inputs are {}. Correct the name, or leave it out.",
          shorten(input.name),
          join_names(user.inputs, shortened_name));
      const auto* ids = std::get_if<IdLists>(&input.values);
      if (ids != nullptr && input.name == file.user_items) {
        read.request.items = ids->ids;
      } else if (ids != nullptr && input.name == file.user) {
        TESSERA_CHECK_VALUE(
            ids->ids.size() <= 1,
            "user: expected one id as '{}', but got {}. Send one user in each request.",
            shorten(input.name),
            ids->ids.size());
        if (!ids->ids.empty()) {
          read.request.user = ids->ids.front();
        }
      }
    }
  }

  // Errors:  as read_score_request().
  RecommendBody read(std::string_view body) const {
    InputReader reader(user);
    const Json json = reader.parse(
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
      read_user(json["user"], reader, read);
    }
    if (json.contains("exclude")) {
      request.exclude = read_items(json["exclude"], "exclude", reader);
    }
    if (json.contains("choose_from")) {
      request.choose_from =
          read_items(json["choose_from"], "choose_from", reader);
    }
    std::optional<DiversityFields> diversity;
    std::vector<std::string> show;
    read_key(json, "k", request.k);
    read_key(json, "where", request.where);
    read_key(json, "exclude_seen", request.exclude_seen);
    read_key(json, "diversity", diversity);
    read_key(json, "show", show);
    if (diversity) {
      field_of(json["diversity"], "column", "diversity");
      request.diverse_column = diversity->column;
      request.max_per_value = diversity->max_per_value;
      // An empty name would mean that there is none.
      items.catalogue.diverse_column(
          request.diverse_column, request.max_per_value, "[Server]");
    }
    for (const std::string& name : show) {
      TESSERA_CHECK_VALUE(
          !items.attributes.columns().empty(),
          "show: this version has no attributes of items. Leave it out.");
      read.shown.push_back(&items.attributes.at(name, "[show]"));
      TESSERA_CHECK_VALUE(
          std::ranges::count(read.shown, read.shown.back()) == 1,
          "[show] expected each column once, but '{}' is there twice. Leave one out.",
          shorten(name));
    }
    const int64_t max_k = user.options.max_ids + 1;
    reader.count(
        static_cast<size_t>(std::clamp<int64_t>(request.k, 0, max_k)) *
        (1 + read.shown.size()));
    return read;
  }

  // The request that scores these rows of the catalogue for a user. Their inputs are the
  // ids, and what the pipeline makes of the attributes and of other columns of the user.
  ScoreRequest score_request(
      const RecommendBody& body,
      std::span<const ScoredRow> rows) const {
    const std::string& item = items.file.item;
    IdLists ids;
    for (const ScoredRow& row : rows) {
      ids.ids.push_back(items.catalogue.id_of(row.number));
    }
    ScoreRequest request;
    if (!candidates.inputs.empty()) {
      // What the user has in a column of items is not about the candidates.
      RawColumns of_user;
      for (const auto& [name, column] : body.columns.entries()) {
        if (!is_of_items(name)) {
          of_user.add(name, column);
        }
      }
      RawColumns of_candidates;
      for (const AttributeColumn& column : items.attributes.columns()) {
        if (find_named(scores.pipeline->columns, column.name)) {
          of_candidates.add(
              std::string(column.name), column_of(column, ids.ids, items));
        }
      }
      InputReader reader(candidates);
      reader.set_columns(
          std::move(of_user), std::move(of_candidates), std::ssize(rows));
      request = reader.finish();
    }
    request.num_candidates = std::ssize(rows);
    request.user = select_inputs(body.inputs, scores.inputs);
    std::erase_if(request.user, [&](const ScoreInput& input) {
      return input.name == item;
    });
    request.candidates.push_back(
        {.name = item, .values = std::move(ids), .rows = std::ssize(rows)});
    return request;
  }

  // The body of the answer.
  std::string write(const RecommendBody& body, const RecommendResult& result)
      const {
    constexpr std::array kFrom{"query", "fold_in", "popularity"};
    std::string text = fmt::format(
        R"({{"version":{},"passed":{},"from":"{}")",
        user.version.number(),
        result.passed,
        kFrom.at(static_cast<size_t>(result.from)));
    if (body.request.exclude_seen) {
      text += fmt::format(R"(,"history":{})", result.has_history);
    }
    append_column(text, "ids", {.values = result.ids});
    append_column(
        text,
        "items",
        item_values == nullptr ? RawColumns::Column{.values = result.ids}
                               : column_of(*item_values, result.ids, items));
    append_column(text, "scores", {.values = result.scores});
    text += body.shown.empty() ? "" : R"(,"shown":{)";
    for (const AttributeColumn* attribute : body.shown) {
      append_column(
          text, attribute->name, column_of(*attribute, result.ids, items));
    }
    text += body.shown.empty() ? "}" : "}}";
    return text;
  }

  // What /version says about /recommend.
  Json describe() const {
    constexpr std::array kTypes{"int64", "float32", "text"};
    constexpr size_t kMaxExamples = 20;
    const auto made = user.made();
    std::vector<std::string> names = user_columns;
    for (const ScoreInputInfo& input : user.inputs) {
      if (!find_named(made, input.name)) {
        names.push_back(input.name);
      }
    }
    Json attributes = Json::array();
    for (const AttributeColumn& column : items.attributes.columns()) {
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
    const auto* own = find_named(made, items.file.user_items);
    return {
        {"user", names},
        {"user_items",
         own == nullptr ? items.file.user_items : own->columns.front()},
        {"item", items.file.item},
        {"item_column",
         item_values == nullptr ? Json() : Json(item_columns.front())},
        {"attributes", std::move(attributes)},
        {"history", items.has_history()},
        {"items", items.catalogue.size()},
        {"ranked", num_candidates > 0}};
  }

  const ItemSearch& search;
  const BaseItems& items;
  RequestContext scores;
  // Lists the inputs that a user may have.
  RequestContext user;
  std::vector<ScoreInputInfo> query_inputs = {};
  // Whether the query function gives the vectors of users.
  bool has_query = false;
  // Lists the inputs that the pipeline makes for each candidate, but not the ids of items.
  RequestContext candidates;
  // The columns that a user may have. Those that functions read are not among them.
  std::vector<std::string> user_columns = {};
  // The number of items that the score function scores again. 0: none.
  int64_t num_candidates = 0;
  // The columns from which the pipeline makes ids of items.
  std::vector<std::string> item_columns = {};
  // The raw values of items, or nullptr if they have none.
  const AttributeColumn* item_values = nullptr;
};

// A function has used another version than the rest of the request.
struct VersionChanged : std::exception {};

// The `count` numbers that a function gives for a request that has read this version.
std::vector<float> call(
    const ScoreFunction& function,
    const ScoreRequest& request,
    int64_t count,
    const Version& version) {
  std::vector<ScoreResult> results = function({&request, 1});
  TESSERA_CHECK(
      results.size() == 1,
      "a function gave {} results for 1 request",
      results.size());
  ScoreResult& result = results[0];
  // A newer version may refuse what is right for this one. An error may have no version.
  if (result.version != 0 && result.version != version.number()) {
    throw VersionChanged();
  }
  if (!result.error.empty()) {
    throw std::invalid_argument(result.error);
  }
  TESSERA_CHECK(
      result.version != 0,
      "a function gave results of version 0. Set ScoreResult::version to the number of the version that it uses.");
  check_numbers(result.scores, count);
  return std::move(result.scores);
}

}  // namespace

Json RequestHandler::describe_recommend(const RequestContext& context) const {
  return context.version.impl().items == nullptr
      ? Json()
      : RecommendContext(context, score_ != nullptr).describe();
}

std::vector<JobPtr> RequestHandler::recommend(std::vector<JobPtr> jobs) {
  std::vector<JobPtr> interrupted;
  // Answers the job if the step fails, and returns whether it has failed.
  const auto fails = [&](const JobPtr& job, auto step) {
    try {
      step();
      return false;
    } catch (const VersionChanged&) {
      interrupted.push_back(job);
    } catch (...) {
      job->reply(response_of_exception());
    }
    return true;
  };

  std::shared_ptr<const Version> version;
  std::optional<RecommendContext> context;
  std::vector<RecommendBody> bodies;
  std::vector<ItemSearch::Query> queries;
  const auto read = [&](const JobPtr& job) {
    if (!context) {
      version = version_of_functions();
      if (version->impl().items == nullptr) {
        throw NotServed(fmt::format(
            "Version {} has no items to recommend. Publish it with PublishOptions::items.",
            version->number()));
      }
      if (!version->query_program().empty() && !options_.query) {
        throw NotServed(
            "This server can't run the program that gives the vectors of users. Make it with a ProgramScorer.");
      }
      context.emplace(context_of(*version), score_ != nullptr);
    }
    RecommendBody body = context->read(job->body);
    const std::function<std::vector<float>()> query = [&] {
      const ScoreRequest user{
          .user = select_inputs(body.inputs, context->query_inputs)};
      return call(options_.query, user, context->search.dim(), *version);
    };
    const bool has_query = context->has_query && !body.inputs.empty();
    queries.push_back(
        context->search.prepare(body.request, has_query ? query : nullptr));
    bodies.push_back(std::move(body));
  };
  std::erase_if(
      jobs, [&](const JobPtr& job) { return fails(job, [&] { read(job); }); });

  std::vector<std::vector<ScoredRow>> found;
  const auto answer = [&](size_t i) {
    const int64_t num_candidates = context->num_candidates;
    if (found.empty()) {
      metrics_.count_batch(queries.size());
      found = context->search.search(queries, num_candidates);
    }
    const ItemSearch::Query& query = queries[i];
    std::vector<ScoredRow>& rows = found[i];
    const bool are_ranked = num_candidates > 0 && !rows.empty() &&
        query.from != RecommendedFrom::kPopularity;
    if (are_ranked) {
      const auto size = std::max(query.request.k, num_candidates);
      rows.resize(std::min(rows.size(), static_cast<size_t>(size)));
      const std::vector<float> scores = call(
          score_,
          context->score_request(bodies[i], rows),
          std::ssize(rows),
          *version);
      sort_by(scores, rows);
      metrics_.add(Counter::kCandidates, std::ssize(rows));
    }
    const RecommendResult result =
        context->search.result(query, std::move(rows), are_ranked);
    std::string body = context->write(bodies[i], result);
    metrics_.add(Counter::kItems, std::ssize(result.ids));
    jobs[i]->reply({.body = std::move(body)});
  };
  for (size_t i = 0; i < jobs.size(); ++i) {
    fails(jobs[i], [&] { answer(i); });
  }
  return interrupted;
}

}  // namespace tessera::serving
