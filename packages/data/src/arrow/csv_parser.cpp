// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/csv_parser.h"

#include <tessera/common/shorten.h>

#include "packages/data/src/reader_checks.h"
#include "packages/data/src/row_range.h"
#include "src/common/text.h"

#include <ATen/ops/tensor.h>
#include <arrow/csv/parser.h>
#include <arrow/memory_pool.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace tessera::data {

namespace {

// Where a row begins.
struct RowBegin {
  size_t position = 0;
  int64_t line = 0;  // counted from 0
};

// Finds the rows as Arrow does: empty lines are not rows, and a field that begins with a
// quote may have newlines.
std::vector<RowBegin> find_rows(
    std::string_view text,
    char delimiter,
    char quote) {
  std::vector<RowBegin> rows;
  int64_t line = 0;
  size_t i = 0;
  while (i < text.size()) {
    if (is_newline(text[i])) {
      line += text[i++] == '\n' ? 1 : 0;
      continue;
    }
    rows.push_back({.position = i, .line = line});
    const size_t end = i + scan_row(text.substr(i), delimiter, quote).end;
    line += std::count(text.begin() + i, text.begin() + end, '\n');
    i = end;
  }
  return rows;
}

// The rows of a block, split into fields by Arrow.
struct FieldRows {
  std::vector<std::unique_ptr<arrow::csv::BlockParser>> parts = {};
  // Rows with the wrong number of fields, counted from 0 among all rows of the block.
  std::vector<std::pair<int64_t, RowProblem>> ragged = {};
  int64_t rows = 0;  // without the ragged ones
};

FieldRows split_rows(
    const CsvOptions& options,
    const CsvFile& file,
    const CsvBlock& block) {
  FieldRows result;
  arrow::csv::ParseOptions parse = parse_options_of(options);
  int64_t rows_before = 0;  // the rows of earlier parts
  parse.invalid_row_handler = [&](const arrow::csv::InvalidRow& row) {
    result.ragged.emplace_back(
        rows_before + row.number,
        RowProblem{
            .text = fmt::format(
                "expected {} {}, but got {}",
                row.expected_columns,
                row.expected_columns == 1 ? "field" : "fields",
                row.actual_columns),
            .advice =
                "set CsvOptions::delimiter or names if they do not fit the file"});
    return arrow::csv::InvalidRowResult::Skip;
  };
  std::string_view text = std::string_view(block.text).substr(block.begin);
  while (text.find_first_not_of("\r\n") != text.npos) {
    auto parser = std::make_unique<arrow::csv::BlockParser>(
        arrow::default_memory_pool(),
        parse,
        static_cast<int32_t>(file.names.size()),
        /*first_row=*/0);
    uint32_t parsed = 0;
    check_status(
        parser->ParseFinal(text, &parsed),
        where_of_file(kCsvReader, file.path));
    TORCH_INTERNAL_ASSERT(parsed > 0);
    rows_before += parser->total_num_rows();
    result.rows += parser->num_rows();
    text.remove_prefix(parsed);
    result.parts.push_back(std::move(parser));
  }
  return result;
}

// Calls visit(row, field) for a column. Ragged rows do not count.
template <class Visit>
void visit_fields_of(const FieldRows& rows, int column, Visit&& visit) {
  int64_t row = 0;
  for (const auto& part : rows.parts) {
    const arrow::Status ignored = part->VisitColumn(
        column, [&](const uint8_t* data, uint32_t size, bool, bool) {
          visit(
              row++,
              std::string_view(reinterpret_cast<const char*>(data), size));
          return arrow::Status::OK();
        });
    static_cast<void>(ignored);  // the visitor does not fail
  }
}

// Calls visit(value) for each value of a field.
template <class Visit>
void visit_values_of(std::string_view field, char delimiter, Visit&& visit) {
  if (delimiter == '\0') {
    visit(field);
    return;
  }
  if (field.empty()) {
    return;
  }
  while (true) {
    const size_t end = field.find(delimiter);
    visit(field.substr(0, end));
    if (end == std::string_view::npos) {
      return;
    }
    field.remove_prefix(end + 1);
  }
}

// The problems by row. A row with several problems keeps that of its first column.
using Problems = std::map<int64_t, RowProblem>;

// Converts the fields of a column. Rows whose values are of another type are added to
// `problems`.
class ColumnParser {
 public:
  ColumnParser(
      const CsvOptions& options,
      const ColumnRequest& request,
      Problems& problems,
      int64_t rows)
      : options_(options),
        request_(request),
        problems_(problems),
        is_list_(request.list_delimiter != '\0'),
        has_missing_numbers_(has_number(options.missing_values)) {
    if (is_list_) {
      splits_.reserve(rows + 1);
      splits_.push_back(0);
    }
    if (request.type == ColumnType::kText) {
      values_.emplace<std::vector<std::string>>();
    } else if (request.type == ColumnType::kFloat32) {
      values_.emplace<std::vector<float>>();
    }
    std::visit([&](auto& values) { values.reserve(rows); }, values_);
  }

  void add(int64_t row, std::string_view field) {
    std::visit(
        [&](auto& values) {
          visit_values_of(
              field, request_.list_delimiter, [&](std::string_view value) {
                add_value(row, value, values);
              });
          if (is_list_) {
            splits_.push_back(std::ssize(values));
          }
        },
        values_);
  }

  Column finish() {
    Column column;
    std::visit(
        [&]<class T>(std::vector<T>& values) {
          if constexpr (std::is_same_v<T, std::string>) {
            column.values = std::move(values);
          } else {
            column.values =
                at::tensor(values, c10::CppTypeToScalarType<T>::value);
          }
        },
        values_);
    if (is_list_) {
      column.row_splits = at::tensor(splits_, at::kLong);
    }
    return column;
  }

 private:
  // Returns whether one of the missing values is a number, such as -999.
  static bool has_number(const std::vector<std::string>& missing_values) {
    return std::ranges::any_of(missing_values, [](const std::string& value) {
      return is_any_number(value);
    });
  }

  void add_value(
      int64_t row,
      std::string_view value,
      std::vector<std::string>& texts) {
    if (!is_utf8(value)) {
      refuse(row, value, "UTF-8", "convert the file to UTF-8");
    }
    texts.emplace_back(value);
  }

  template <class Number>
  void add_value(
      int64_t row,
      std::string_view value,
      std::vector<Number>& numbers) {
    Number number = 0;
    if (!parse(value, number)) {
      number = std::is_same_v<Number, float>
          ? std::numeric_limits<Number>::quiet_NaN()
          : static_cast<Number>(kMissing);
      check_missing(row, value);
    }
    numbers.push_back(number);
  }

  // Returns false for a missing value and for a value of another type.
  template <class Number>
  bool parse(std::string_view value, Number& number) const {
    if (has_missing_numbers_ &&
        is_missing_number(value, options_.missing_values)) {
      return false;
    }
    if (request_.style.kind != NumberStyle::Kind::kAny) {
      return parse_in_style(value, request_.style, number);
    }
    if constexpr (std::is_same_v<Number, int64_t>) {
      if (request_.type == ColumnType::kUInt64Bits) {
        return parse_csv_bits(value, number);
      }
      return parse_csv_integer(value, number);
    } else {
      return parse_csv_float(value, number);
    }
  }

  const char* expected() const {
    return request_.type == ColumnType::kFloat32
        ? "a number in the range of float32"
        : request_.type == ColumnType::kInt64
        ? "an integer above -2^63 and below 2^63"
        : "an integer from 0 to 2^64 - 1, but not 2^63";
  }

  void check_missing(int64_t row, std::string_view value) {
    if (is_missing_number(value, options_.missing_values)) {
      return;
    }
    if (request_.style.kind == NumberStyle::Kind::kAny) {
      refuse(row, value, expected(), "set another type in `types`");
      return;
    }
    // A number in another style shows that the inferred type is wrong, so kSkip must not
    // skip it.
    refuse(
        row,
        value,
        describe(request_.style) + ", as inferred from other rows",
        "set the column's type in `types`, where text keeps each value as it is written",
        !is_any_number(value));
  }

  void refuse(
      int64_t row,
      std::string_view value,
      const std::string& expected,
      const char* advice,
      bool can_be_skipped = true) {
    problems_.emplace(
        row,
        RowProblem{
            .text = fmt::format(
                "column '{}' must be {}, but got {}",
                shorten(request_.name),
                expected,
                quote_text(value)),
            .advice = advice,
            .can_be_skipped = can_be_skipped});
  }

  const CsvOptions& options_;
  const ColumnRequest& request_;
  Problems& problems_;
  bool is_list_;
  bool has_missing_numbers_;
  std::variant<
      std::vector<int64_t>,
      std::vector<float>,
      std::vector<std::string>>
      values_;
  std::vector<int64_t> splits_;
};

// Returns the rows without problems.
Columns parse_columns(
    const CsvOptions& options,
    const CsvFile& file,
    const std::vector<ColumnRequest>& requests,
    const FieldRows& rows,
    Problems& problems) {
  Columns columns;
  for (size_t i = 0; i < requests.size(); ++i) {
    ColumnParser parser(options, requests[i], problems, rows.rows);
    visit_fields_of(
        rows, file.positions[i], [&](int64_t row, std::string_view field) {
          parser.add(row, field);
        });
    columns.add(requests[i].name, parser.finish());
  }
  if (problems.empty()) {
    return columns;
  }
  std::vector<int64_t> kept;
  for (int64_t row = 0; row < rows.rows; ++row) {
    if (!problems.contains(row)) {
      kept.push_back(row);
    }
  }
  return gather_rows(owned_range(std::move(columns)), kept);
}

// Joins ragged rows, rows with other problems and broken rows, in the order of the file.
std::vector<MalformedRow> malformed_rows(
    const CsvOptions& options,
    const CsvBlock& block,
    const FieldRows& rows,
    const Problems& problems) {
  if (rows.ragged.empty() && problems.empty() && block.broken.empty()) {
    return {};
  }
  const std::string_view text =
      std::string_view(block.text).substr(block.begin);
  const std::vector<RowBegin> begins =
      find_rows(text, options.delimiter, options.quote);
  struct Found {
    RowBegin begin = {};
    bool is_broken = false;  // not one of Arrow's rows
    MalformedRow malformed = {};
  };
  std::vector<Found> found;
  for (const auto& [row, problem] : rows.ragged) {
    found.push_back(
        {.begin = begins.at(row),
         .malformed = {.example = row, .problem = problem}});
  }
  int64_t ragged_before = 0;
  for (const auto& [row, problem] : problems) {
    // Row numbers of problems do not count ragged rows.
    while (ragged_before < std::ssize(rows.ragged) &&
           rows.ragged[ragged_before].first <= row + ragged_before) {
      ++ragged_before;
    }
    found.push_back(
        {.begin = begins.at(row + ragged_before),
         .malformed = {.example = row + ragged_before, .problem = problem}});
  }
  size_t position = 0;
  int64_t line = 0;
  for (const BrokenRow& row : block.broken) {
    const size_t begin = row.begin - block.begin;
    line += std::count(text.begin() + position, text.begin() + begin, '\n');
    position = begin;
    const auto next = std::ranges::partition_point(
        begins, [&](const RowBegin& other) { return other.position < begin; });
    found.push_back(
        {.begin = {.position = begin, .line = line},
         .is_broken = true,
         .malformed = {
             .example = next - begins.begin(), .problem = row.problem}});
  }
  std::ranges::sort(found, [](const Found& left, const Found& right) {
    return left.begin.position < right.begin.position;
  });
  std::vector<MalformedRow> malformed;
  int64_t rows_before = 0;  // malformed rows that Arrow has counted
  for (Found& row : found) {
    malformed.push_back(std::move(row.malformed));
    malformed.back().line = row.begin.line;
    malformed.back().example -= rows_before;
    rows_before += row.is_broken ? 0 : 1;
  }
  return malformed;
}

}  // namespace

ParsedBlock parse_csv_block(
    const CsvOptions& options,
    const CsvFile& file,
    const std::vector<ColumnRequest>& requests,
    const CsvBlock& block) {
  const FieldRows rows = split_rows(options, file, block);
  Problems problems;
  Columns columns = parse_columns(options, file, requests, rows, problems);
  return {
      .columns = std::move(columns),
      .malformed = malformed_rows(options, block, rows, problems),
      .bytes = block.left_out +
          static_cast<int64_t>(block.text.size() - block.begin),
      .lines = static_cast<int64_t>(std::count(
          block.text.begin() + static_cast<int64_t>(block.begin),
          block.text.end(),
          '\n'))};
}

void infer_types(
    const CsvOptions& options,
    const CsvFile& file,
    const std::vector<ColumnRequest>& requests,
    const std::vector<size_t>& columns,
    const CsvBlock& block,
    std::vector<TypeInference>& inferences) {
  const FieldRows rows = split_rows(options, file, block);
  for (const size_t i : columns) {
    const auto add = [&](std::string_view value) {
      if (!is_missing_number(value, options.missing_values)) {
        inferences[i].add(value);
      }
    };
    visit_fields_of(
        rows, file.positions[i], [&](int64_t, std::string_view field) {
          visit_values_of(field, requests[i].list_delimiter, add);
        });
  }
}

}  // namespace tessera::data
