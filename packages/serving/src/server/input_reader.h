// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/server/request_values.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::serving {

/// What the pipeline makes, and text that is repeated, count as one value per so many bytes.
inline constexpr size_t kBytesOfValue = 64;

/// Reads the inputs of a request: ids and numbers, and columns from which the pipeline makes
/// them.
class InputReader : public RequestValues {
 public:
  /// What the names of an object may be. kAny: of columns and inputs.
  enum class Form { kAny, kColumns, kInputs };

  /// Whether the rows are the candidates of a /score, or the examples of one feature, which
  /// have only the columns of this feature.
  enum class Rows { kCandidates, kExamples };

  explicit InputReader(
      const RequestContext& context,
      Rows rows = Rows::kCandidates)
      : RequestValues(context), rows_(rows) {}

  /// Reads an object of inputs. `place` is its name in the request.
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
          refuse(value, here, "an object");
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
      count(!is_of_user && are_lists(rows) ? rows.size() : 0);
      if (column != nullptr) {
        (is_of_user ? user_ : candidates_)
            .add(name, read_column(rows, here, *column));
      } else {
        (is_of_user ? request_.user : request_.candidates)
            .push_back(read_input(name, here, rows));
      }
    }
  }

  /// Takes columns in place of an object. The user and the candidates have different ones.
  void set_columns(
      RawColumns user,
      RawColumns candidates,
      int64_t num_candidates) {
    user_ = std::move(user);
    candidates_ = std::move(candidates);
    request_.num_candidates = num_candidates;
  }

  const RawColumns& user_columns() const {
    return user_;
  }
  bool has_columns() const {
    return !user_.entries().empty() || !candidates_.entries().empty();
  }

  /// The inputs, with those that the pipeline makes.
  ScoreRequest finish() {
    if (has_columns()) {
      const auto inputs = context_.made();
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

  // Whether an input has ids.
  bool is_feature(const std::string& name) const {
    const ScoreInputInfo* listed = find_named(context_.inputs, name);
    return find_named(context_.version.features(), name) != nullptr ||
        (listed != nullptr && listed->width == 0);
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
  static ptrdiff_t count_sent(
      const RawColumns& side,
      const std::vector<std::string>& names) {
    return std::ranges::count_if(names, [&](const std::string& name) {
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
      check_pipeline();
      refuse(
          value,
          place,
          context_.pipeline == nullptr
              ? "no columns, because this version has no pipeline"
              : "a column, which are " +
                  join_names(context_.pipeline->columns, shortened_name));
    }
    // Clients that apply the pipeline themselves may send made ids and numbers by this name.
    using Type = PipelineColumn::Type;
    TESSERA_CHECK_VALUE(
        column == nullptr || form == Form::kColumns ||
            column->type == Type::kText || column->type == Type::kUnknown ||
            !is_input(name),
        "{}: this is a column of the pipeline and an input of the model, so its numbers could be of either. Put raw values into \"columns\", as in {{\"columns\":{{\"age\":45}}}}, and what the pipeline has made of them into \"inputs\".",
        shorten(place));
    TESSERA_CHECK_VALUE(
        column != nullptr ? !has_column(name) : inputs_.insert(name).second,
        "the request has '{}' twice. Name each input once.",
        shorten(name));
    return column;
  }

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

  // Adds the columns that functions make for inputs.
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
          "a function makes the column '{}' from the columns {}. Send all of them, on one side.",
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

  // Refuses columns of examples that their feature does not need.
  void check_used(const Inputs& inputs) const {
    for (const auto& [name, column] : candidates_.entries()) {
      TESSERA_CHECK_VALUE(
          rows_ == Rows::kCandidates || used_.contains(name),
          "values.{}: the pipeline makes '{}' from the columns {}. Leave this one out.",
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
          "the pipeline makes the input '{}' from the columns {}. Send all of these columns, or none of them and the input in \"inputs\".",
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
          count(size * static_cast<size_t>(request_.num_candidates));
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
    count(
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
        count(output.columns.size() > 1 ? ids[i] : 0);
      }
    }
    const size_t all = std::accumulate(ids.begin(), ids.end(), size_t{0});
    count(all * sizeof(int64_t) / kBytesOfValue);
  }

  // A row, of the user or of a candidate, is a value or a list of values. The input has ids
  // if a feature has its name.
  ScoreInput read_input(
      const std::string& name,
      const std::string& place,
      std::span<const Json> rows) {
    ScoreInput input{.name = name, .rows = std::ssize(rows)};
    if (is_feature(name)) {
      input.values = read_id_rows(rows, place);
      return input;
    }
    auto& numbers = input.values.emplace<std::vector<float>>();
    if (!are_lists(rows)) {
      append_numbers(rows, place, numbers);
      return input;
    }
    for (const Json& row : rows) {
      const auto values = row_of(row, place);
      TESSERA_CHECK_VALUE(
          !values.empty() && values.size() == rows.front().size(),
          "{}: expected at least one number, and as many in each list, but got {} and {}. Its values are numbers, because '{}' is not a feature; the features are {}.",
          shorten(place),
          rows.front().size(),
          values.size(),
          shorten(name),
          join_names(context_.version.features(), shortened_name));
      append_numbers(values, place, numbers);
    }
    return input;
  }

  std::span<const Json> candidates_of(
      const Json& json,
      const std::string& name,
      const std::string& place) {
    const char* entry = rows_ == Rows::kCandidates ? "candidate" : "example";
    const auto list = list_of(
        json, place, fmt::format("a list with one entry per {}", entry));
    TESSERA_CHECK_VALUE(
        !list.empty(),
        "{}: expected at least one {}, but the list is empty.",
        shorten(place),
        entry);
    if (request_.num_candidates == 0) {
      first_list_ = name;
      request_.num_candidates = std::ssize(list);
    }
    TESSERA_CHECK_VALUE(
        std::ssize(list) == request_.num_candidates,
        "{}: expected one entry per {} in each list, but '{}' has {} and '{}' has {}.",
        shorten(place),
        entry,
        shorten(first_list_),
        request_.num_candidates,
        shorten(name),
        list.size());
    return list;
  }

  const Rows rows_;
  ScoreRequest request_ = {};
  std::set<std::string> inputs_ = {};  // the names in request_
  std::string first_list_ = {};  // the name of the first list of candidates
  RawColumns user_ = {};
  RawColumns candidates_ = {};
  std::set<std::string> used_ = {};  // the columns from which inputs are made
};

/// The ids that the pipeline makes of a list of values, or of an object of columns.
inline IdLists read_raw_ids(
    const std::string& place,
    const Json& values,
    const std::string& feature,
    RequestContext context) {
  RequestValues(context).check_pipeline();
  context.inputs = {{.name = feature}};
  const auto made = context.made();
  TESSERA_CHECK_VALUE(
      !made.empty(),
      "{}: this version has no pipeline that makes '{}'. Send ids.",
      place,
      shorten(feature));
  const std::vector<std::string>& columns = made.front().columns;
  const Json entries = values.is_object() || columns.size() > 1
      ? values
      : Json::object({{columns.front(), values}});
  InputReader reader(context, InputReader::Rows::kExamples);
  if (entries.is_object()) {
    reader.read(
        entries, place, /*is_of_user=*/false, InputReader::Form::kColumns);
  }
  std::vector<ScoreInput> inputs = reader.finish().candidates;
  TESSERA_CHECK_VALUE(
      !inputs.empty(),
      "{}: expected an object with lists for the columns {}, from which the pipeline makes '{}'.",
      place,
      shorten_all(columns),
      shorten(feature));
  return std::get<IdLists>(std::move(inputs.front().values));
}

}  // namespace tessera::serving
