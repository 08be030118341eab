// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/row_range.h"

#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "src/common/check.h"

#include <ATen/ops/empty.h>

#include <algorithm>
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
  return c10::str(
      "'",
      shorten(entry.first),
      "' (",
      entry.second.row_splits.defined() ? "lists of " : "",
      kind_of(entry.second),
      ")");
}

// Some values of a column, and where they are.
struct ValueSpan {
  const Column* column;
  int64_t first;
  int64_t count;
};

// Copies the values of the spans, one after the other.
std::variant<at::Tensor, RangeText> copy_values(
    const std::vector<ValueSpan>& spans) {
  const Column& model = *spans.front().column;
  int64_t total = 0;
  for (const ValueSpan& span : spans) {
    total += span.count;
  }
  if (std::holds_alternative<RangeText>(model.values)) {
    RangeText result;
    result.reserve(static_cast<size_t>(total));
    for (const ValueSpan& span : spans) {
      const auto begin =
          std::get<RangeText>(span.column->values).begin() + span.first;
      result.insert(result.end(), begin, begin + span.count);
    }
    return result;
  }
  const at::ScalarType type = std::get<at::Tensor>(model.values).scalar_type();
  at::Tensor result = at::empty({total}, type);
  const auto copy = [&]<class T>(T* to) {
    for (const ValueSpan& span : spans) {
      to = std::copy_n(
          std::get<at::Tensor>(span.column->values).const_data_ptr<T>() +
              span.first,
          span.count,
          to);
    }
  };
  if (type == at::kLong) {
    copy(result.mutable_data_ptr<int64_t>());
  } else {
    copy(result.mutable_data_ptr<float>());
  }
  return result;
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

// Copies the values of some rows. `splits` is nullptr if each row has one value.
struct RowGather {
  const int64_t* splits;
  int64_t first;
  std::span<const int64_t> rows;
  int64_t total;  // values

  template <class T>
  void run(const T* from, T* to) const {
    if (splits == nullptr) {
      from += first;
      for (size_t i = 0; i < rows.size(); ++i) {
        to[i] = from[rows[i]];
      }
      return;
    }
    for (const int64_t row : rows) {
      const int64_t begin = splits[row];
      to = std::copy_n(from + begin, splits[row + 1] - begin, to);
    }
  }
};

Column gather_column(
    const Column& column,
    int64_t first,
    std::span<const int64_t> rows) {
  Column result;
  RowGather gather{nullptr, first, rows, static_cast<int64_t>(rows.size())};
  if (column.row_splits.defined()) {
    gather.splits = column.row_splits.const_data_ptr<int64_t>() + first;
    result.row_splits = at::empty({gather.total + 1}, at::kLong);
    auto* splits = result.row_splits.mutable_data_ptr<int64_t>();
    int64_t end = 0;
    *splits++ = end;
    for (const int64_t row : rows) {
      end += gather.splits[row + 1] - gather.splits[row];
      *splits++ = end;
    }
    gather.total = end;
  }
  if (const auto* text = std::get_if<RangeText>(&column.values)) {
    RangeText values(static_cast<size_t>(gather.total));
    gather.run(text->data(), values.data());
    result.values = std::move(values);
    return result;
  }
  const auto& from = std::get<at::Tensor>(column.values);
  at::Tensor values = at::empty({gather.total}, from.scalar_type());
  if (from.scalar_type() == at::kLong) {
    gather.run(
        from.const_data_ptr<int64_t>(), values.mutable_data_ptr<int64_t>());
  } else {
    gather.run(from.const_data_ptr<float>(), values.mutable_data_ptr<float>());
  }
  result.values = std::move(values);
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
  if (std::all_of(entries.begin(), entries.end(), [](const auto& entry) {
        return is_plain(entry.second);
      })) {
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
        const size_t size = (*text)[static_cast<size_t>(i)].size();
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
