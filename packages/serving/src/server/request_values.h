// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_text.h>
#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>
#include <tessera/serving/pipeline.h>
#include <tessera/serving/server.h>

#include "packages/serving/src/server/http_message.h"
#include "packages/serving/src/server/published_pipeline.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::serving {

/// The place in messages about a whole request. Clients do not see it.
inline constexpr const char* kRequest = "Server";

/// What a request is read with.
struct RequestContext {
  const Version& version;
  const ServerOptions& options;
  /// The pipeline of the version, or nullptr if it has none that can be read.
  std::shared_ptr<const PublishedPipeline> pipeline = {};
  /// Why the pipeline can't be read.
  std::string problem = {};
  /// Whether the pipeline is still being read.
  bool is_reading = false;
  /// The inputs that the score function lists.
  std::vector<ScoreInputInfo> inputs = {};

  /// The listed inputs that the pipeline makes.
  std::vector<PublishedPipeline::Input> made() const {
    return pipeline == nullptr ? std::vector<PublishedPipeline::Input>()
                               : pipeline->inputs(inputs);
  }
};

/// Whether the rows are lists, as the first row that is not null shows.
inline bool are_lists(std::span<const Json> rows) {
  const auto first = std::ranges::find_if(
      rows, [](const Json& row) { return !row.is_null(); });
  return first != rows.end() && first->is_array();
}

/// A request with raw values, for a version whose pipeline can't be read.
struct PipelineProblem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A version that can't answer the request.
struct NotServed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the lists of a request in JSON, and counts their values.
/// Errors:  std::invalid_argument that says where in the JSON the wrong value is.
class RequestValues {
 public:
  explicit RequestValues(const RequestContext& context)
      : context_(context), left_(context.options.max_ids) {}

  /// The object in the text. It must not have other keys than `known`.
  Json parse(std::string_view text, const std::vector<std::string>& known) {
    // No request needs deeper JSON.
    constexpr size_t kDepth = 8;
    Json json = parse_json(
        text,
        "[Server]",
        {.bytes = static_cast<size_t>(context_.options.max_body_bytes),
         .depth = kDepth,
         .list_size = static_cast<size_t>(context_.options.max_ids)});
    check_known_keys(json, known, kRequest);
    return json;
  }

  /// Reads rows of one id or of a list of ids. The first row decides which. `name` is the
  /// place in the JSON, such as "candidates.movie".
  IdLists read_id_rows(std::span<const Json> rows, const std::string& name) {
    IdLists read;
    for (const Json* id : flatten(rows, name, read.row_splits)) {
      if (!is_int64(*id)) {
        refuse(*id, name, "an id, which is an integer from -2^63 to 2^63 - 1");
      }
      read.ids.push_back(id->get<int64_t>());
    }
    return read;
  }

  /// Reads rows of one value of a column or of a list of values. null is a missing value, and
  /// an empty list beside lists. If the column takes all numbers, the values decide.
  RawColumns::Column read_column(
      std::span<const Json> rows,
      const std::string& name,
      const PipelineColumn& column) {
    using Type = PipelineColumn::Type;
    TESSERA_CHECK_VALUE(
        column.type != Type::kUnknown,
        "{}: the pipeline does not say whether this column has text or integers, so the server takes no raw values for it. Publish a pipeline that save_pipeline() has written.",
        shorten(name));
    if (are_lists(rows) && !column.takes_lists) {
      refuse(Json::array(), name, "one value, as the pipeline takes");
    }
    std::vector<int64_t> row_splits;
    const std::vector<const Json*> values =
        flatten(rows, name, row_splits, /*takes_null=*/true);
    RawColumns::Column read;
    if (!row_splits.empty()) {
      read.row_splits = std::move(row_splits);
    }
    const auto read_all = [&]<class T>(T missing, auto read_value) {
      auto& all = read.values.emplace<std::vector<T>>();
      for (const Json* value : values) {
        all.push_back(
            value->is_null() ? missing
                             : std::invoke(read_value, *this, *value, name));
      }
    };
    const bool are_integers = column.type == Type::kNumbers &&
        std::ranges::all_of(values, [](const Json* value) {
                                return value->is_null() || is_int64(*value);
                              });
    if (column.type == Type::kText) {
      read_all(std::string(), &RequestValues::read_text);
    } else if (column.type == Type::kUInt64Bits) {
      read_all(kMissing, &RequestValues::read_uint64_bits);
    } else if (column.type == Type::kInt64 || are_integers) {
      read_all(kMissing, &RequestValues::read_integer);
    } else {
      read_all(std::nanf(""), &RequestValues::read_number);
    }
    return read;
  }

  /// The entries of `json`. Refuses a value that is not a list.
  std::span<const Json> list_of(
      const Json& json,
      const std::string& name,
      std::string_view expected = "a list") const {
    if (!json.is_array()) {
      refuse(json, name, expected);
    }
    return json.get_ref<const Json::array_t&>();
  }
  /// The entries of one of several rows.
  std::span<const Json> row_of(const Json& row, const std::string& name) const {
    return list_of(row, name, "a list, as the first entry is");
  }

  /// Appends the numbers of a list that has no lists in it.
  void append_numbers(
      std::span<const Json> list,
      const std::string& name,
      std::vector<float>& numbers) {
    count(list.size());
    for (const Json& number : list) {
      numbers.push_back(read_number(number, name));
    }
  }

  /// Counts values against the limit.
  void count(size_t values) {
    left_ -= static_cast<int64_t>(values);
    TESSERA_CHECK_VALUE(
        left_ >= 0,
        "expected at most {} ids, numbers and rows, but got more. Send fewer in one request.",
        context_.options.max_ids);
  }

  /// Refuses the value of `name`, which should be what `expected` says.
  [[noreturn]] void refuse(
      const Json& json,
      const std::string& name,
      std::string_view expected) const {
    if (json.is_string() || json.is_object() || json.is_null()) {
      check_pipeline();
    }
    const std::string advice = !json.is_string() ? ""
        : context_.pipeline == nullptr
        ? " This version has no pipeline, so the server takes no text. Send the ids and numbers with which the model was trained."
        : fmt::format(
              " The pipeline has the columns {}.",
              join_names(context_.pipeline->columns, shortened_name));
    const std::string got = json.is_array() ? "a list"
        : json.is_object()                  ? "an object"
                                            : shorten(text_of(json));
    checks::fail<checks::ValueError>(
        {__func__, __FILE__, __LINE__},
        "{}: expected {}, but got {}.{}",
        shorten(name),
        expected,
        got,
        advice);
  }

  /// Refuses raw values if the pipeline can't be read.
  void check_pipeline() const {
    if (!context_.problem.empty()) {
      throw PipelineProblem(
          "The pipeline of this version can't be read, so the server takes no raw values: " +
          context_.problem);
    }
  }

 protected:
  const RequestContext& context_;

 private:
  // The values of all rows. If they are lists, adds row_splits. With takes_null, a row that
  // is null is then an empty list.
  std::vector<const Json*> flatten(
      std::span<const Json> rows,
      const std::string& name,
      std::vector<int64_t>& row_splits,
      bool takes_null = false) {
    std::vector<const Json*> values;
    const auto append = [&](std::span<const Json> row) {
      count(row.size());
      for (const Json& value : row) {
        values.push_back(&value);
      }
    };
    if (!are_lists(rows)) {
      append(rows);
      return values;
    }
    row_splits.push_back(0);
    for (const Json& row : rows) {
      if (!takes_null || !row.is_null()) {
        append(row_of(row, name));
      }
      row_splits.push_back(std::ssize(values));
    }
    return values;
  }

  static bool is_int64(const Json& json) {
    // nlohmann reads an integer beyond 64 bits as a floating point number.
    return json.is_number_integer() &&
        !(json.is_number_unsigned() &&
          json.get<uint64_t>() >
              static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  }

  int64_t read_integer(const Json& json, const std::string& name) const {
    if (!is_int64(json) || json.get<int64_t>() == kMissing) {
      refuse(json, name, "an integer from -2^63 + 1 to 2^63 - 1");
    }
    return json.get<int64_t>();
  }

  int64_t read_uint64_bits(const Json& json, const std::string& name) const {
    if (!json.is_number_unsigned() ||
        static_cast<int64_t>(json.get<uint64_t>()) == kMissing) {
      refuse(json, name, "an integer from 0 to 2^64 - 1 that is not 2^63");
    }
    return static_cast<int64_t>(json.get<uint64_t>());
  }

  std::string read_text(const Json& json, const std::string& name) const {
    if (!json.is_string()) {
      refuse(json, name, "text, as the pipeline takes");
    }
    return json.get<std::string>();
  }

  float read_number(const Json& json, const std::string& name) const {
    const double number = json.is_number() ? json.get<double>() : INFINITY;
    // Doubles from kEnd on round to infinity. The shortest text of the largest float,
    // 3.4028235e+38, is a little larger than that float as a double, but below kEnd.
    constexpr double kEnd = 0x1.ffffffp127;
    if (!(std::abs(number) < kEnd)) {
      refuse(json, name, "a number in the range of float32");
    }
    constexpr double kMax = std::numeric_limits<float>::max();
    return static_cast<float>(std::clamp(number, -kMax, kMax));
  }

  int64_t left_;
};

}  // namespace tessera::serving
