// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/columns.h>

#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/tensor_text.h"
#include "src/common/text.h"

#include <ATen/ops/arange.h>
#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <optional>
#include <ostream>

namespace tessera::data {

namespace {

template <class T>
std::span<const T> span_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), static_cast<size_t>(tensor.numel())};
}

int64_t count_values(const Column& column) {
  if (const auto* text =
          std::get_if<std::vector<std::string>>(&column.values)) {
    return static_cast<int64_t>(text->size());
  }
  return std::get<at::Tensor>(column.values).numel();
}

std::string where_of(std::string_view name) {
  return c10::str("[Columns '", shorten(name), "']");
}

// Checks that the tensor is dense, on the CPU and of shape [n].
void check_vector(
    const at::Tensor& tensor,
    std::string_view name,
    const char* what) {
  TESSERA_CHECK_VALUE(
      tensor.defined() && tensor.layout() == at::kStrided &&
          tensor.device().is_cpu() && tensor.dim() == 1,
      "{} {} must be a dense tensor [n] on the CPU, but got {}.",
      where_of(name),
      what,
      tensor.defined() ? c10::str(tensor.toString(), " ", tensor.sizes())
                       : std::string("an undefined one"));
}

void check_split_tensor(
    const at::Tensor& row_splits,
    int64_t num_values,
    std::string_view name) {
  check_vector(row_splits, name, "row_splits");
  TESSERA_CHECK_TYPE(
      row_splits.scalar_type() == at::kLong,
      "{} row_splits must be int64, but got {}. Call to(at::kLong) on them.",
      where_of(name),
      row_splits.scalar_type());
  const at::Tensor contiguous = row_splits.contiguous();
  check_row_splits(
      {contiguous.const_data_ptr<int64_t>(),
       static_cast<size_t>(contiguous.numel())},
      num_values,
      name);
}

}  // namespace

void validate(const Column& column, std::string_view name) {
  if (const auto* tensor = std::get_if<at::Tensor>(&column.values)) {
    check_vector(*tensor, name, "values");
    TESSERA_CHECK_TYPE(
        tensor->scalar_type() == at::kLong ||
            tensor->scalar_type() == at::kFloat,
        "{} values must be int64 or float32, but got {}. Call to(at::kLong) on ids, and to(at::kFloat) on numbers.",
        where_of(name),
        tensor->scalar_type());
  }
  if (column.row_splits.defined()) {
    check_split_tensor(column.row_splits, count_values(column), name);
  }
}

int64_t batch_size(const Column& column) {
  return column.row_splits.defined() ? column.row_splits.numel() - 1
                                     : count_values(column);
}

void Columns::add(std::string name, Column column) {
  validate(column, name);
  check_added_column(
      name,
      contains(name),
      entries_.empty() ? std::nullopt : std::optional(batch_size()),
      data::batch_size(column));
  entries_.emplace_back(std::move(name), std::move(column));
}

bool Columns::contains(std::string_view name) const {
  return std::ranges::find(entries_, name, &Entry::first) != entries_.end();
}

ColumnView view_of(const Column& column, std::vector<at::Tensor>& kept) {
  ColumnView view;
  if (const auto* text =
          std::get_if<std::vector<std::string>>(&column.values)) {
    view.values = std::span<const std::string>(*text);
  } else {
    const at::Tensor& values =
        kept.emplace_back(std::get<at::Tensor>(column.values).contiguous());
    if (values.scalar_type() == at::kLong) {
      view.values = span_of<int64_t>(values);
    } else {
      view.values = span_of<float>(values);
    }
  }
  if (column.row_splits.defined()) {
    view.row_splits =
        span_of<int64_t>(kept.emplace_back(column.row_splits.contiguous()));
  }
  return view;
}

const Column& find_column(
    const Columns& columns,
    std::string_view name,
    const std::string& where) {
  for (const auto& [other, column] : columns.entries()) {
    if (other == name) {
      return column;
    }
  }
  const std::string known = join_names(
      columns.entries(),
      [](const auto& entry) { return shorten(entry.first); });
  TESSERA_CHECK_VALUE(
      false,
      "{} there is no column '{}'. Known: {}.",
      where,
      shorten(name),
      known.empty() ? "(none)" : known);
}

const Column& find_value_column(
    const Columns& columns,
    std::string_view name,
    const std::string& where) {
  const Column& column = find_column(columns, name, where);
  TESSERA_CHECK_VALUE(
      !column.row_splits.defined(),
      "{} column '{}' must have one value per example, but it has lists.",
      where,
      shorten(name));
  return column;
}

const Column& Columns::at(std::string_view name) const& {
  return find_column(*this, name, "[Columns]");
}

Column Columns::at(std::string_view name) && {
  return std::as_const(*this).at(name);
}

at::Tensor Columns::tensor(std::string_view name) const {
  const Column& column = at(name);
  const auto* values = std::get_if<at::Tensor>(&column.values);
  TESSERA_CHECK_TYPE(
      values != nullptr && !column.row_splits.defined(),
      "[Columns] column '{}' must have one number per example, but it has {}. Call at(), which returns all kinds of columns.",
      shorten(name),
      values == nullptr ? "text" : "lists");
  return *values;
}

int64_t Columns::batch_size() const {
  return entries_.empty() ? 0 : data::batch_size(entries_.front().second);
}

Column vector_column(const at::Tensor& rows) {
  TESSERA_CHECK_VALUE(
      rows.defined() && rows.layout() == at::kStrided &&
          rows.device().is_cpu() && rows.dim() == 2,
      "[vector_column] expected a dense tensor [n, dim] on the CPU, but got {}.",
      describe(rows));
  TESSERA_CHECK_TYPE(
      at::isFloatingType(rows.scalar_type()),
      "[vector_column] expected floats, but got {}. Convert the rows.",
      describe(rows));
  return {
      .values = rows.detach().to(at::kFloat).reshape({-1}),
      .row_splits = at::arange(rows.size(0) + 1, at::kLong).mul_(rows.size(1))};
}

namespace {

// Longer text and lists are cut.
constexpr size_t kMaxCellBytes = 40;
constexpr int64_t kMaxListValues = 10;

// The text without line breaks and other control characters, and not too long.
std::string cell_of(std::string text) {
  std::ranges::replace_if(
      text,
      [](char byte) {
        return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f;
      },
      ' ');
  if (text.size() > kMaxCellBytes) {
    size_t end = kMaxCellBytes;
    while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
      --end;  // cuts no UTF-8 character in two
    }
    text.resize(end);
    text += "...";
  }
  return text;
}

template <class T>
std::string show_value(const T& value) {
  if (is_missing(value)) {
    return "(missing)";
  }
  if constexpr (std::same_as<T, std::string>) {
    return cell_of(value);
  } else {
    return fmt::format("{}", value);
  }
}

// The type and the first values of a column.
std::vector<std::string> cells_of(const Column& column, int64_t examples) {
  std::vector<std::string> cells;
  visit_values(column, [&]<class T>(std::span<const T> values) {
    const char* type = std::same_as<T, int64_t> ? "int64"
        : std::same_as<T, float>                ? "float32"
                                                : "text";
    if (!column.row_splits.defined()) {
      cells.emplace_back(type);
      for (int64_t i = 0; i < examples; ++i) {
        cells.push_back(show_value(values[i]));
      }
      return;
    }
    cells.push_back(fmt::format("[{}]", type));
    const at::Tensor splits = column.row_splits.contiguous();
    const auto* begin = splits.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < examples; ++i) {
      std::string list;
      for (int64_t k = begin[i]; k < begin[i + 1]; ++k) {
        list += list.empty() ? "" : ",";
        if (k == begin[i] + kMaxListValues) {
          list += fmt::format("... {} values", begin[i + 1] - begin[i]);
          break;
        }
        list += show_value(values[k]);
      }
      cells.push_back("[" + list + "]");
    }
  });
  return cells;
}

}  // namespace

std::string to_string(const Columns& columns, int64_t max_examples) {
  const int64_t size = columns.batch_size();
  const int64_t shown = std::clamp<int64_t>(max_examples, 0, size);
  std::vector<std::vector<std::string>> lines(static_cast<size_t>(shown + 2));
  for (const auto& [name, column] : columns.entries()) {
    lines[0].push_back(cell_of(name));
    const std::vector<std::string> cells = cells_of(column, shown);
    for (size_t i = 0; i < cells.size(); ++i) {
      lines[i + 1].push_back(cells[i]);
    }
  }
  std::string text = align(lines);
  if (columns.entries().empty()) {
    return "no columns\n";
  }
  if (shown < size) {
    text += fmt::format("{} more examples\n", size - shown);
  }
  return text;
}

std::ostream& operator<<(std::ostream& stream, const Columns& columns) {
  return stream << to_string(columns);
}

}  // namespace tessera::data
