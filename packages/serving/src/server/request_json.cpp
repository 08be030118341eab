// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_json.h"

#include "packages/serving/src/server/http_message.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::serving {

namespace {

constexpr const char* kLookupWhere = "/lookup";

// An answer has at most so many numbers, because each takes about ten bytes of text.
constexpr size_t kMaxNumbers = size_t{1} << 22;

// Reads the weights, which must have the shape of the ids.
std::vector<float> read_weights(
    const Json& json,
    std::span<const Json> ids,
    RequestValues& values) {
  constexpr const char* kName = "weights";
  const std::span<const Json> weights = values.list_of(json, kName);
  TESSERA_CHECK_VALUE(
      weights.empty() || are_lists(ids),
      "[{}] weights: expected none, because only lists of ids are combined with weights. Leave the weights out, or send a list of ids for each example.",
      kLookupWhere);
  TESSERA_CHECK_VALUE(
      weights.size() == ids.size(),
      "[{}] weights: expected one list per list of ids, but got {} for {}.",
      kLookupWhere,
      weights.size(),
      ids.size());
  std::vector<float> numbers;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto row = values.list_of(weights[i], kName);
    TESSERA_CHECK_VALUE(
        row.size() == ids[i].size(),
        "[{}] weights: expected one weight per id, but got {} weights for {} ids.",
        kLookupWhere,
        row.size(),
        ids[i].size());
    values.append_numbers(row, kName, numbers);
  }
  return numbers;
}

// Appends the numbers as a list of vectors of `dim` numbers.
void append_vectors(
    std::string& text,
    std::span<const float> numbers,
    size_t dim) {
  text += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i % dim == 0) {
      text += i == 0 ? "[" : "],[";
    } else {
      text += ',';
    }
    append_number(text, numbers[i]);
  }
  text += numbers.empty() ? "]" : "]]";
}

constexpr const char* kScoreWhere = "/score";

// What the pipeline makes, and text that is repeated, count as one value per so many bytes.
constexpr size_t kBytesOfValue = 64;

// Reads the inputs of a request: ids and numbers, and columns from which the pipeline makes
// them.
class InputReader {
 public:
  // What the names of an object may be. kAny: of columns and inputs.
  enum class Form { kAny, kColumns, kInputs };

  // `where` is the path of the request.
  InputReader(const char* where, const RequestContext& context)
      : where_(where), context_(context), values_(where, context) {}

  RequestValues& values() {
    return values_;
  }

  // Reads an object of inputs. `place` is its name in the request.
  void read(
      const Json& entries,
      const std::string& place,
      bool is_of_user,
      Form form = Form::kAny) {
    for (const auto& [name, value] : entries.items()) {
      const std::string here = place + "." + name;
      const bool has_columns = name == "columns";
      if (form == Form::kAny && (has_columns || name == "inputs") &&
          (value.is_object() || context_.pipeline != nullptr)) {
        if (!value.is_object()) {
          values_.refuse(value, here, "an object");
        }
        read(
            value,
            here,
            is_of_user,
            has_columns ? Form::kColumns : Form::kInputs);
        continue;
      }
      const PipelineColumn* column = find_column(name, here, value, form);
      const std::span<const Json> rows =
          is_of_user ? std::span(&value, 1) : candidates_of(value, name, here);
      values_.count(!is_of_user && are_lists(rows) ? rows.size() : 0);
      if (column != nullptr) {
        (is_of_user ? user_ : candidates_)
            .add(name, values_.read_column(rows, here, *column));
      } else {
        (is_of_user ? request_.user : request_.candidates)
            .push_back(read_input(name, here, rows));
      }
    }
  }

  // The inputs, with those that the pipeline makes.
  bool has_columns() const {
    return !user_.entries().empty() || !candidates_.entries().empty();
  }

  ScoreRequest finish() {
    if (has_columns()) {
      const auto inputs = context_.pipeline->inputs(context_.inputs);
      for (const auto& input : inputs) {
        used_.insert(input.columns.begin(), input.columns.end());
      }
      compute_columns();
      check_used(inputs);
      make_inputs(inputs);
    }
    return std::move(request_);
  }

 private:
  using Inputs = std::vector<PublishedPipeline::Input>;

  bool is_feature(const std::string& name) const {
    return find_named(context_.version.features(), name) != nullptr;
  }
  // Whether the model may have an input of this name.
  bool is_input(const std::string& name) const {
    return is_feature(name) || find_named(context_.inputs, name) ||
        (context_.inputs.empty() && context_.pipeline != nullptr &&
         find_named(context_.pipeline->outputs(), name));
  }
  bool has_column(const std::string& name) const {
    return user_.find(name) != nullptr || candidates_.find(name) != nullptr;
  }
  static bool takes_numbers(const PipelineColumn& column) {
    using Type = PipelineColumn::Type;
    return column.type != Type::kText && column.type != Type::kUnknown;
  }
  static ptrdiff_t count_sent(
      const RawColumns& side,
      const std::vector<std::string>& names) {
    return std::count_if(
        names.begin(), names.end(), [&](const std::string& name) {
          return side.find(name) != nullptr;
        });
  }

  // The column of an entry, or nullptr for ids and numbers.
  const PipelineColumn* find_column(
      const std::string& name,
      const std::string& place,
      const Json& value,
      Form form) {
    const PipelineColumn* column =
        context_.pipeline == nullptr || form == Form::kInputs
        ? nullptr
        : find_named(context_.pipeline->columns, name);
    if (form == Form::kColumns && column == nullptr) {
      values_.check_pipeline();
      values_.refuse(
          value,
          place,
          context_.pipeline == nullptr
              ? "no columns, because this version has no pipeline"
              : "a column, which are " +
                  join_names(context_.pipeline->columns, shortened_name));
    }
    // Clients that apply the pipeline themselves may send made ids and numbers by this name.
    TESSERA_CHECK_VALUE(
        column == nullptr || form == Form::kColumns ||
            !takes_numbers(*column) || !is_input(name),
        "[{}] {}: this is a column of the pipeline and an input of the model, so its numbers could be of either. Put raw values into \"columns\", as in {{\"columns\":{{\"age\":45}}}}, and what the pipeline has made of them into \"inputs\".",
        where_,
        shorten(place));
    TESSERA_CHECK_VALUE(
        column != nullptr ? !has_column(name) : inputs_.insert(name).second,
        "[{}] the request has '{}' twice. Name each input once.",
        where_,
        shorten(name));
    return column;
  }

  // Adds the columns that functions make for inputs.
  // An exception of a function is no mistake of the client.
  static RawColumns::Column call(
      const ColumnFunction& of,
      const RawColumns& columns) {
    try {
      return of.function(columns);
    } catch (const std::exception& error) {
      throw std::runtime_error(error.what());
    }
  }

  void compute_columns() {
    for (const auto& [name, of] : context_.options.functions) {
      std::vector<std::string> arguments;
      for (const PipelineColumn& column : of.columns) {
        arguments.push_back(column.name);
      }
      const auto of_user = count_sent(user_, arguments);
      const auto of_candidates = count_sent(candidates_, arguments);
      if (!used_.contains(name) || has_column(name) ||
          of_user + of_candidates == 0) {
        continue;
      }
      TESSERA_CHECK_VALUE(
          std::max(of_user, of_candidates) == std::ssize(arguments),
          "[{}] a function makes the column '{}' from the columns {}. Send all of them, on one side.",
          where_,
          shorten(name),
          shorten_all(arguments));
      used_.insert(arguments.begin(), arguments.end());
      RawColumns& side = of_user > 0 ? user_ : candidates_;
      RawColumns::Column made = call(of, side);
      const auto* column = find_named(context_.pipeline->columns, name);
      std::string problem = fits(made, *column) ? "" : "values of a wrong type";
      try {
        side.add(name, std::move(made));
      } catch (const std::invalid_argument& error) {
        problem = error.what();
      }
      TESSERA_CHECK(
          problem.empty(),
          "[ServerOptions] functions: the function of '{}' returned a wrong column: {}",
          shorten(name),
          problem);
    }
  }

  // Whether values are of the type of the column.
  static bool fits(
      const RawColumns::Column& values,
      const PipelineColumn& column) {
    using Type = PipelineColumn::Type;
    const size_t kind = values.values.index();
    return (column.takes_lists || !values.row_splits) &&
        (column.type == Type::kText          ? kind == 2
             : column.type == Type::kFloat32 ? kind == 1
             : column.type == Type::kNumbers ? kind < 2
                                             : kind == 0);
  }

  // A /lookup is of one feature, and takes no other columns.
  void check_used(const Inputs& inputs) const {
    for (const auto& [name, column] : candidates_.entries()) {
      TESSERA_CHECK_VALUE(
          is_score_ || used_.contains(name),
          "[{}] values.{}: the pipeline makes '{}' from the columns {}. Leave this one out.",
          where_,
          shorten(name),
          shorten(inputs.front().name),
          shorten_all(inputs.front().columns));
    }
  }

  // Adds the inputs that the pipeline makes. An input has a row per candidate if it needs a
  // column of the candidates, or if the model wants it. Columns of the user are then repeated.
  void make_inputs(const Inputs& inputs) {
    Inputs of_user;
    Inputs of_candidates;
    std::set<std::string> repeated;
    for (const auto& input : inputs) {
      const auto sent_of_candidates = count_sent(candidates_, input.columns);
      const auto sent = count_sent(user_, input.columns) + sent_of_candidates;
      if (sent == 0) {
        continue;
      }
      TESSERA_CHECK_VALUE(
          sent == std::ssize(input.columns) && !inputs_.contains(input.name),
          "[{}] the pipeline makes the input '{}' from the columns {}. Send all of these columns, or none of them and the input in \"inputs\".",
          where_,
          shorten(input.name),
          shorten_all(input.columns));
      const ScoreInputInfo* info = find_named(context_.inputs, input.name);
      if (sent_of_candidates > 0 || (info != nullptr && !info->is_of_user)) {
        repeated.insert(input.columns.begin(), input.columns.end());
        of_candidates.push_back(input);
      } else {
        of_user.push_back(input);
      }
    }
    for (const auto& [name, column] : user_.entries()) {
      if (repeated.contains(name)) {
        candidates_.add(name, repeat(column));
      }
    }
    convert(user_, of_user, request_.user);
    convert(candidates_, of_candidates, request_.candidates);
  }

  // The column of a user for each candidate. Its text counts, too.
  RawColumns::Column repeat(RawColumns::Column column) {
    std::visit(
        [&]<class T>(std::vector<T>& values) {
          size_t size = values.size();
          if constexpr (std::is_same_v<T, std::string>) {
            for (const std::string& text : values) {
              size += text.size() / kBytesOfValue;
            }
          }
          values_.count(size * static_cast<size_t>(request_.num_candidates));
          const std::vector<T> row = values;
          for (int64_t i = 1; i < request_.num_candidates; ++i) {
            values.insert(values.end(), row.begin(), row.end());
            if (column.row_splits) {
              column.row_splits->push_back(std::ssize(values));
            }
          }
        },
        column.values);
    return column;
  }

  // Makes inputs from the columns of one side.
  void convert(
      const RawColumns& columns,
      const Inputs& inputs,
      std::vector<ScoreInput>& made) {
    if (inputs.empty()) {
      return;
    }
    const Pipeline& pipeline = context_.pipeline->pipeline;
    values_.count(
        static_cast<size_t>(columns.batch_size() * pipeline.num_dense()) *
        sizeof(float) / kBytesOfValue);
    for (const data::PipelineOutput& output : context_.pipeline->outputs()) {
      count_ids(output, columns);
    }
    PipelineResult result = pipeline.apply_present(columns);
    if (!result.warning.empty()) {
      log_error(result.warning);
    }
    for (const auto& [name, needed, transform, first, width] : inputs) {
      ScoreInput& input = made.emplace_back();
      input.name = name;
      input.rows = result.batch_size;
      if (width == 0) {
        input.values = std::move(result.features.find(name)->second);
        continue;
      }
      auto& numbers = input.values.emplace<std::vector<float>>();
      for (int64_t row = 0; row < input.rows; ++row) {
        const auto begin =
            result.dense.begin() + row * result.num_dense + first;
        numbers.insert(numbers.end(), begin, begin + width);
      }
    }
  }

  // Counts the ids of an output before they are made. A cross makes an id of each
  // combination of the values of a row.
  void count_ids(
      const data::PipelineOutput& output,
      const RawColumns& columns) {
    if (data::gives_numbers(output.transform) ||
        count_sent(columns, output.columns) < std::ssize(output.columns)) {
      return;
    }
    std::vector<size_t> ids(static_cast<size_t>(columns.batch_size()), 1);
    for (const std::string& name : output.columns) {
      const auto& row_splits = columns.find(name)->row_splits;
      for (size_t i = 0; row_splits && i < ids.size(); ++i) {
        ids[i] *= static_cast<size_t>((*row_splits)[i + 1] - (*row_splits)[i]);
        values_.count(output.columns.size() > 1 ? ids[i] : 0);
      }
    }
    const size_t all = std::accumulate(ids.begin(), ids.end(), size_t{0});
    values_.count(all * sizeof(int64_t) / kBytesOfValue);
  }

  // A row, of the user or of a candidate, is a value or a list of values. The input has ids
  // if a feature has its name.
  ScoreInput read_input(
      const std::string& name,
      const std::string& place,
      std::span<const Json> rows) {
    ScoreInput input{.name = name, .rows = std::ssize(rows)};
    if (is_feature(name)) {
      input.values = values_.read_id_rows(rows, place);
      return input;
    }
    auto& numbers = input.values.emplace<std::vector<float>>();
    if (!are_lists(rows)) {
      values_.append_numbers(rows, place, numbers);
      return input;
    }
    for (const Json& row : rows) {
      const auto values = values_.row_of(row, place);
      TESSERA_CHECK_VALUE(
          !values.empty() && values.size() == rows.front().size(),
          "[{}] {}: expected at least one number, and as many in each list, but got {} and {}. Its values are numbers, because '{}' is not a feature; the features are {}.",
          where_,
          shorten(place),
          rows.front().size(),
          values.size(),
          shorten(name),
          join_names(context_.version.features(), shortened_name));
      values_.append_numbers(values, place, numbers);
    }
    return input;
  }

  std::span<const Json> candidates_of(
      const Json& json,
      const std::string& name,
      const std::string& place) {
    const char* entry = is_score_ ? "candidate" : "example";
    const auto list = values_.list_of(
        json, place, fmt::format("a list with one entry per {}", entry));
    TESSERA_CHECK_VALUE(
        !list.empty(),
        "[{}] {}: expected at least one {}, but the list is empty.",
        where_,
        shorten(place),
        entry);
    if (request_.num_candidates == 0) {
      first_list_ = name;
      request_.num_candidates = static_cast<int64_t>(list.size());
    }
    TESSERA_CHECK_VALUE(
        static_cast<int64_t>(list.size()) == request_.num_candidates,
        "[{}] {}: expected one entry per {} in each list, but '{}' has {} and '{}' has {}.",
        where_,
        shorten(place),
        entry,
        shorten(first_list_),
        request_.num_candidates,
        shorten(name),
        list.size());
    return list;
  }

  const std::string where_;
  const bool is_score_ = where_ == kScoreWhere;
  const RequestContext& context_;
  RequestValues values_;
  ScoreRequest request_ = {};
  std::set<std::string> inputs_ = {};  // the names in request_
  std::string first_list_ = {};  // the name of the first list of candidates
  RawColumns user_ = {};
  RawColumns candidates_ = {};
  std::set<std::string> used_ = {};  // the columns from which inputs are made
};

// The ids that the pipeline makes of a list of values, or of an object of columns.
IdLists read_raw_ids(
    const Json& values,
    const std::string& feature,
    RequestContext context) {
  RequestValues(kLookupWhere, context).check_pipeline();
  context.inputs = {{.name = feature}};
  const auto made = context.pipeline == nullptr
      ? std::vector<PublishedPipeline::Input>()
      : context.pipeline->inputs(context.inputs);
  TESSERA_CHECK_VALUE(
      !made.empty(),
      "[{}] values: this version has no pipeline that makes '{}'. Send ids.",
      kLookupWhere,
      shorten(feature));
  const std::vector<std::string>& columns = made.front().columns;
  const Json entries = values.is_object() || columns.size() > 1
      ? values
      : Json::object({{columns.front(), values}});
  InputReader reader(kLookupWhere, context);
  if (entries.is_object()) {
    reader.read(
        entries, "values", /*is_of_user=*/false, InputReader::Form::kColumns);
  }
  std::vector<ScoreInput> inputs = reader.finish().candidates;
  TESSERA_CHECK_VALUE(
      !inputs.empty(),
      "[{}] values: expected an object with lists for the columns {}, from which the pipeline makes '{}'.",
      kLookupWhere,
      shorten_all(columns),
      shorten(feature));
  return std::get<IdLists>(std::move(inputs.front().values));
}

// The id or number of a missing value, or null if it has none of its own.
Json default_of(const data::Transform& transform) {
  return std::visit(
      [](const auto& of) -> Json {
        if constexpr (requires { of.missing_value; }) {
          return of.missing_value;
        } else {
          return of.missing == data::Missing::kOwnId ? Json(0) : Json();
        }
      },
      transform);
}

}  // namespace

LookupAnswer answer_lookup(
    std::string_view body,
    const RequestContext& context) {
  const Version& version = context.version;
  RequestValues values(kLookupWhere, context);
  const Json json = values.parse(body, {"feature", "ids", "weights", "values"});
  const Json& name = field_of(json, "feature", kLookupWhere);
  if (!name.is_string()) {
    values.refuse(name, "feature", "the name of a feature");
  }
  const size_t number = version.feature(name.get<std::string>());
  const Version::FeatureInfo& feature = version.features()[number];
  IdLists ids;
  std::vector<float> weights;
  if (json.contains("values")) {
    TESSERA_CHECK_VALUE(
        !json.contains("ids") && !json.contains("weights"),
        "[{}] expected either values, or ids with or without weights, but got both. Leave one of them out.",
        kLookupWhere);
    ids = read_raw_ids(json["values"], feature.name, context);
  } else {
    const auto rows =
        values.list_of(field_of(json, "ids", kLookupWhere), "ids");
    values.count(are_lists(rows) ? rows.size() : 0);
    ids = values.read_id_rows(rows, "ids");
    if (json.contains("weights")) {
      weights = read_weights(json["weights"], rows, values);
    }
  }
  TESSERA_CHECK_VALUE(
      feature.sequence_length == 0 || !ids.row_splits.empty(),
      "[{}] ids: expected a list of ids for each example, such as [[3,1],[4]], because the feature '{}' is a sequence.",
      kLookupWhere,
      shorten(feature.name));
  const FeatureBatch batch = ids.batch(weights);
  const size_t size = version.output_size(number, batch);
  TESSERA_CHECK_VALUE(
      size <= kMaxNumbers,
      "[{}] expected at most {} numbers in the answer, but it would have {}. Send fewer ids in one request.",
      kLookupWhere,
      kMaxNumbers,
      size);
  std::vector<float> out(size);
  version.lookup(number, batch, out);

  constexpr size_t kBytesOfNumber = 12;
  const auto dim = static_cast<size_t>(feature.dim);
  std::string text;
  text.reserve(size * kBytesOfNumber + 100);
  text += "{\"version\":" + std::to_string(version.number());
  text += ",\"feature\":" + Json(feature.name).dump();
  text += ",\"dim\":" + std::to_string(dim);
  text += ",\"vectors\":";
  if (feature.sequence_length == 0) {
    append_vectors(text, out, dim);
  } else {
    const size_t example = static_cast<size_t>(feature.sequence_length) * dim;
    text += '[';
    for (size_t i = 0; i < size; i += example) {
      text += i == 0 ? "" : ",";
      append_vectors(text, std::span(out).subspan(i, example), dim);
    }
    text += ']';
  }
  text += '}';
  return {.body = std::move(text), .ids = ids.ids.size()};
}

ScoreRequest read_score_request(
    std::string_view body,
    const RequestContext& context,
    bool& has_columns) {
  InputReader reader(kScoreWhere, context);
  const Json json = reader.values().parse(body, {"user", "candidates"});
  if (json.contains("user")) {
    check_kind(
        json["user"].is_object(),
        json["user"],
        "an object with the inputs of the user",
        kScoreWhere);
    reader.read(json["user"], "user", /*is_of_user=*/true);
  }
  const Json& candidates = field_of(json, "candidates", kScoreWhere);
  if (candidates.is_object()) {
    reader.read(candidates, "candidates", /*is_of_user=*/false);
  }
  has_columns = reader.has_columns();
  ScoreRequest request = reader.finish();
  TESSERA_CHECK_VALUE(
      request.num_candidates > 0,
      "[{}] candidates: expected an object with one list per input, such as {{\"movie\":[3,1,4]}}.",
      kScoreWhere);
  return request;
}

std::string write_score_result(
    const ScoreResult& result,
    const ScoreRequest& request) {
  TESSERA_CHECK(
      static_cast<int64_t>(result.scores.size()) == request.num_candidates,
      "the score function gave {} scores for {} candidates",
      result.scores.size(),
      request.num_candidates);
  std::string text = "{\"version\":" + std::to_string(result.version);
  text += ",\"scores\":[";
  for (size_t i = 0; i < result.scores.size(); ++i) {
    TESSERA_CHECK(
        std::isfinite(result.scores[i]),
        "the score function gave {} for candidate {}",
        result.scores[i],
        i);
    text += i == 0 ? "" : ",";
    append_number(text, result.scores[i]);
  }
  text += "]}";
  return text;
}

std::string version_text(
    const RequestContext& context,
    const ReaderStatus& status) {
  const Version& version = context.version;
  Json metrics = Json::object();
  for (const auto& [name, value] : version.metrics()) {
    metrics[name] = value;
  }
  Json features = Json::array();
  for (const Version::FeatureInfo& feature : version.features()) {
    features.push_back(
        {{"name", feature.name},
         {"table", feature.table},
         {"dim", feature.dim},
         {"combiner", feature.combiner},
         {"sequence_length", feature.sequence_length}});
  }
  Json tables = Json::array();
  for (const Version::TableInfo& table : version.tables()) {
    tables.push_back(
        {{"name", table.name},
         {"dim", table.dim},
         {"format", table.format},
         {"rows", table.rows},
         {"overlaid_rows", table.overlaid_rows},
         {"has_keys", table.has_keys},
         {"vocabulary_size", table.vocabulary_size}});
  }
  const auto made = context.pipeline == nullptr
      ? std::vector<PublishedPipeline::Input>()
      : context.pipeline->inputs(context.inputs);
  Json inputs = Json::array();
  // The sides of columns. One is of the user if an input of the user needs it.
  Json sides = Json::object();
  for (const ScoreInputInfo& input : context.inputs) {
    const char* side = input.is_of_user ? "user" : "candidates";
    Json& shown = inputs.emplace_back(Json{
        {"name", input.name},
        {"side", side},
        {"values", input.width == 0 ? "ids" : "numbers"},
        {"width", input.width}});
    if (const auto* feature = find_named(version.features(), input.name)) {
      shown["vocabulary_size"] =
          version.tables()[version.table(feature->table)].vocabulary_size;
    }
    if (const auto* of = find_named(made, input.name)) {
      shown["default"] =
          of->transform == nullptr ? Json() : default_of(*of->transform);
      shown["columns"] = of->columns;
      for (const std::string& column : of->columns) {
        if (input.is_of_user || !sides.contains(column)) {
          sides[column] = side;
        }
      }
    }
  }
  constexpr std::array kTypes{
      "int64", "float32", "text", "uint64_bits", "numbers", "unknown"};
  Json columns = context.is_reading ? Json() : Json::array();
  if (context.pipeline != nullptr) {
    for (const PipelineColumn& column : context.pipeline->columns) {
      columns.push_back(
          {{"name", column.name},
           {"type", kTypes.at(static_cast<size_t>(column.type))},
           {"lists", column.takes_lists},
           {"side", sides.value(column.name, Json())}});
    }
  }
  return text_of(
      {{"version", version.number()},
       {"base", version.base()},
       {"step", version.step()},
       {"time", version.time()},
       {"age_seconds", age_of(version)},
       {"metrics", std::move(metrics)},
       {"newest", status.newest},
       {"pinned", status.is_pinned},
       {"taken", status.taken},
       {"problem", status.problem},
       {"inputs", std::move(inputs)},
       {"columns", std::move(columns)},
       {"features", std::move(features)},
       {"tables", std::move(tables)}});
}

std::string health_text(const Version& version, const ReaderStatus& status) {
  Json health{{"status", "ok"}, {"version", version.number()}};
  if (!status.problem.empty()) {
    health["problem"] = status.problem;
  }
  return text_of(health);
}

double age_of(const Version& version) {
  const std::chrono::duration<double> now =
      std::chrono::system_clock::now().time_since_epoch();
  return now.count() - version.time();
}

}  // namespace tessera::serving
