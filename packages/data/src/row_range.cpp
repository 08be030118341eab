// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/row_range.h"

#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "src/common/check.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <concepts>
#include <utility>

namespace tessera::data {

namespace {

using RangeText = std::vector<std::string>;

bool is_plain(const Column& column) {
  const auto is_plain_tensor = [](const at::Tensor& tensor) {
    return tensor.is_contiguous() && !tensor.requires_grad();
  };
  const auto* values = std::get_if<at::Tensor>(&column.values);
  return (values == nullptr || is_plain_tensor(*values)) &&
      (!column.row_splits.defined() || is_plain_tensor(column.row_splits));
}

std::string kind_text(const Columns::Entry& entry) {
  return fmt::format(
      "'{}' ({}{})",
      shorten(entry.first),
      entry.second.row_splits.defined() ? "lists of " : "",
      kind_of(entry.second));
}

// Makes `size` values of the kind of `model`. `write` fills in their memory.
template <class Write>
std::variant<at::Tensor, RangeText> make_values(
    const Column& model,
    int64_t size,
    Write&& write) {
  if (std::holds_alternative<RangeText>(model.values)) {
    RangeText values(static_cast<size_t>(size));
    write(values.data());
    return values;
  }
  const at::ScalarType type = std::get<at::Tensor>(model.values).scalar_type();
  at::Tensor values = at::empty({size}, type);
  if (type == at::kLong) {
    write(values.mutable_data_ptr<int64_t>());
  } else {
    write(values.mutable_data_ptr<float>());
  }
  return values;
}

// The values of a column, which are of the type T.
template <class T>
const T* values_in(const Column& column) {
  if constexpr (std::same_as<T, std::string>) {
    return std::get<RangeText>(column.values).data();
  } else {
    return std::get<at::Tensor>(column.values).const_data_ptr<T>();
  }
}

// Consecutive values of a column.
struct ValueSpan {
  const Column* column;
  int64_t first;
  int64_t count;
};

// Copies the values of the spans, one after the other.
std::variant<at::Tensor, RangeText> copy_values(
    const std::vector<ValueSpan>& spans) {
  int64_t total = 0;
  for (const ValueSpan& span : spans) {
    total += span.count;
  }
  return make_values(*spans.front().column, total, [&]<class T>(T* to) {
    for (const ValueSpan& span : spans) {
      to = std::copy_n(values_in<T>(*span.column) + span.first, span.count, to);
    }
  });
}

Column copy_column(std::span<const RowRange> ranges, size_t index) {
  std::vector<ValueSpan> spans;
  spans.reserve(ranges.size());
  int64_t rows = 0;
  bool is_ragged = false;
  for (const RowRange& range : ranges) {
    const Column& column = range.columns->entries()[index].second;
    ValueSpan span{&column, range.first, range.count};
    is_ragged = column.row_splits.defined();
    if (is_ragged) {
      const auto* splits =
          column.row_splits.const_data_ptr<int64_t>() + range.first;
      span.first = splits[0];
      span.count = splits[range.count] - splits[0];
    }
    rows += range.count;
    spans.push_back(span);
  }
  Column result{.values = copy_values(spans)};
  if (is_ragged) {
    result.row_splits = at::empty({rows + 1}, at::kLong);
    auto* to = result.row_splits.mutable_data_ptr<int64_t>();
    *to++ = 0;
    int64_t end = 0;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto* splits =
          spans[i].column->row_splits.const_data_ptr<int64_t>() +
          ranges[i].first;
      for (int64_t row = 1; row <= ranges[i].count; ++row) {
        *to++ = end + splits[row] - splits[0];
      }
      end += spans[i].count;
    }
  }
  return result;
}

Column gather_column(
    const Column& column,
    int64_t first,
    std::span<const int64_t> rows) {
  Column result;
  auto total = std::ssize(rows);
  const int64_t* splits = nullptr;
  if (column.row_splits.defined()) {
    splits = column.row_splits.const_data_ptr<int64_t>() + first;
    result.row_splits = at::empty({total + 1}, at::kLong);
    auto* to = result.row_splits.mutable_data_ptr<int64_t>();
    total = 0;
    *to++ = total;
    for (const int64_t row : rows) {
      total += splits[row + 1] - splits[row];
      *to++ = total;
    }
  }
  result.values = make_values(column, total, [&]<class T>(T* to) {
    const T* from = values_in<T>(column);
    if (splits == nullptr) {
      for (const int64_t row : rows) {
        *to++ = from[first + row];
      }
      return;
    }
    for (const int64_t row : rows) {
      to = std::copy_n(from + splits[row], splits[row + 1] - splits[row], to);
    }
  });
  return result;
}

}  // namespace

RowRange owned_range(Columns columns) {
  const int64_t count = columns.batch_size();
  return {
      .columns = std::make_shared<Columns>(std::move(columns)),
      .count = count,
      .is_owned = true};
}

RowRange part_of(const RowRange& range, int64_t first, int64_t count) {
  RowRange part = range;
  part.first += first;
  part.count = count;
  part.is_owned = range.is_owned && count == range.count;
  return part;
}

Columns contiguous(Columns columns) {
  const auto& entries = columns.entries();
  if (std::ranges::all_of(
          entries, [](const auto& entry) { return is_plain(entry.second); })) {
    return columns;
  }
  Columns result;
  for (const auto& [name, column] : entries) {
    Column plain = column;
    if (auto* values = std::get_if<at::Tensor>(&plain.values)) {
      *values = values->detach().contiguous();
    }
    if (plain.row_splits.defined()) {
      plain.row_splits = plain.row_splits.contiguous();
    }
    result.add(name, std::move(plain));
  }
  return result;
}

Columns copy_rows(std::span<const RowRange> ranges) {
  const Columns& model = *ranges.front().columns;
  Columns result;
  for (size_t i = 0; i < model.entries().size(); ++i) {
    result.add(model.entries()[i].first, copy_column(ranges, i));
  }
  return result;
}

Columns take_rows(RowRange range) {
  if (range.is_owned && range.is_whole()) {
    return std::move(*range.columns);
  }
  return copy_rows({&range, 1});
}

Columns gather_rows(const RowRange& range, std::span<const int64_t> rows) {
  Columns result;
  for (const auto& [name, column] : range.columns->entries()) {
    result.add(name, gather_column(column, range.first, rows));
  }
  return result;
}

int64_t bytes_of(const RowRange& range) {
  int64_t bytes = 0;
  for (const auto& [name, column] : range.columns->entries()) {
    int64_t first = range.first;
    int64_t count = range.count;
    if (column.row_splits.defined()) {
      const auto* splits = column.row_splits.const_data_ptr<int64_t>() + first;
      bytes += (count + 1) * static_cast<int64_t>(sizeof(int64_t));
      first = splits[0];
      count = splits[range.count] - first;
    }
    if (const auto* text = std::get_if<RangeText>(&column.values)) {
      for (int64_t i = first; i < first + count; ++i) {
        const size_t size = (*text)[i].size();
        constexpr size_t kInPlace = 15;  // in the std::string itself
        bytes += static_cast<int64_t>(
            sizeof(std::string) + (size > kInPlace ? size + 1 : 0));
      }
    } else {
      bytes += count *
          static_cast<int64_t>(
                   std::get<at::Tensor>(column.values).element_size());
    }
  }
  return bytes;
}

ColumnKinds::ColumnKinds(const Columns& columns) {
  for (const auto& entry : columns.entries()) {
    kinds_.push_back(kind_text(entry));
  }
}

void ColumnKinds::check(const Columns& columns, const std::string& where) {
  TESSERA_CHECK_VALUE(
      !columns.entries().empty(),
      "{} expected columns, but got none. Return at least one column.",
      where);
  if (kinds_.empty()) {
    *this = ColumnKinds(columns);
    return;
  }
  const auto& entries = columns.entries();
  TESSERA_CHECK_VALUE(
      entries.size() == kinds_.size(),
      "{} expected {} columns as before, but got {}. Return the same columns in the same order each time.",
      where,
      kinds_.size(),
      entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string kind = kind_text(entries[i]);
    TESSERA_CHECK_VALUE(
        kind == kinds_[i],
        "{} expected the column {} as before, but got {}. Return the same columns in the same order each time.",
        where,
        kinds_[i],
        kind);
  }
}

}  // namespace tessera::data
