// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/item_attributes.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/names.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <type_traits>

namespace tessera {

using data::ColumnType;
using data::ColumnView;

namespace {

// The bytes are arrays: the number of elements as uint64, then the elements, filled up to a
// multiple of 8 bytes. First come kFormat, the ids of the items and the types of the columns.
// Then each column has its name, values, row_splits, characters of all texts and their splits.
constexpr std::string_view kFormat = "tessera item attributes 1";
constexpr size_t kAlignment = 8;

size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

class ArrayReader {
 public:
  ArrayReader(std::string_view bytes, const std::string& where)
      : bytes_(bytes), where_(where) {
    check(reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment == 0);
    check(bytes.size() % kAlignment == 0);
  }

  void check(bool condition) const {
    TESSERA_CHECK_VALUE(
        condition,
        "{} the attributes of items are damaged, or not at a multiple of {} in memory. Write them again.",
        where_,
        kAlignment);
  }
  template <class Element = int64_t>
  std::span<const Element> take() {
    check(!bytes_.empty());
    const auto* count = reinterpret_cast<const uint64_t*>(bytes_.data());
    bytes_.remove_prefix(sizeof(*count));
    check(*count <= bytes_.size() / sizeof(Element));
    const auto* elements = reinterpret_cast<const Element*>(bytes_.data());
    bytes_.remove_prefix(aligned(*count * sizeof(Element)));
    return {elements, *count};
  }
  std::string_view take_text() {
    const auto characters = take<char>();
    return {characters.data(), characters.size()};
  }
  void check_end() const {
    check(bytes_.empty());
  }

 private:
  std::string_view bytes_;
  const std::string& where_;
};

bool are_splits(std::span<const int64_t> splits, size_t num_values) {
  return !splits.empty() && splits.front() == 0 &&
      static_cast<size_t>(splits.back()) == num_values &&
      std::ranges::is_sorted(splits);
}

template <class Values>
bool ascends(const Values& values) {
  return std::ranges::adjacent_find(values, std::greater_equal()) ==
      std::ranges::end(values);
}

AttributeColumn read_column(
    ArrayReader& reader,
    int64_t type,
    size_t num_rows) {
  reader.check(type >= 0 && type <= 2);
  AttributeColumn column{
      .name = reader.take_text(), .type = static_cast<ColumnType>(type)};
  column.values = reader.take();
  column.row_splits = reader.take();
  reader.check(
      column.has_lists() ? column.row_splits.size() == num_rows + 1 &&
              are_splits(column.row_splits, column.values.size())
                         : column.values.size() == num_rows);
  const auto characters = reader.take_text();
  const auto splits = reader.take();
  if (column.type == ColumnType::kText) {
    reader.check(are_splits(splits, characters.size()));
    for (size_t i = 0; i + 1 < splits.size(); ++i) {
      column.texts.push_back(
          characters.substr(splits[i], splits[i + 1] - splits[i]));
    }
    reader.check(ascends(column.texts));
    reader.check(std::ranges::all_of(column.values, [&](int64_t number) {
      return data::is_missing(number) ||
          (number >= 0 && number < std::ssize(column.texts));
    }));
  }
  return column;
}

template <class Array>
void append(std::string& bytes, const Array& array) {
  const uint64_t count = array.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof(count));
  bytes.append(
      reinterpret_cast<const char*>(array.data()),
      count * sizeof(*array.data()));
  bytes.resize(aligned(bytes.size()));
}

// Appends the examples of a column in this order, and the last row.
void append_column(
    std::string& bytes,
    const ColumnView& column,
    const std::vector<size_t>& order) {
  std::map<std::string_view, int64_t> numbers;
  if (const auto* texts =
          std::get_if<std::span<const std::string>>(&column.values)) {
    for (const std::string_view text : *texts) {
      numbers.emplace(text, 0);
    }
  }
  std::string characters;
  std::vector<int64_t> text_splits{0};
  for (auto& [text, number] : numbers) {
    number = std::ssize(text_splits) - 1;
    characters += text;
    text_splits.push_back(std::ssize(characters));
  }
  const auto append_value = [&](std::vector<int64_t>& to, size_t i) {
    std::visit(
        [&]<class T>(std::span<const T> values) {
          if (data::is_missing(values[i])) {
            to.push_back(data::kMissing);
          } else if constexpr (std::is_arithmetic_v<T>) {
            to.push_back(data::ordered(values[i]));
          } else {
            to.push_back(numbers.at(values[i]));
          }
        },
        column.values);
  };
  std::vector<int64_t> values;
  std::vector<int64_t> row_splits;
  for (const size_t example : order) {
    if (!column.row_splits) {
      append_value(values, example);
      continue;
    }
    row_splits.push_back(std::ssize(values));
    const auto splits = column.row_splits->subspan(example, 2);
    for (int64_t i = splits[0]; i < splits[1]; ++i) {
      append_value(values, static_cast<size_t>(i));
    }
  }
  if (column.row_splits) {
    row_splits.insert(row_splits.end(), 2, std::ssize(values));
  } else {
    values.push_back(data::kMissing);
  }
  append(bytes, values);
  append(bytes, row_splits);
  append(bytes, characters);
  append(bytes, text_splits);
}

}  // namespace

ItemAttributes::ItemAttributes(
    std::string_view bytes,
    const std::string& where) {
  ArrayReader reader(bytes, where);
  reader.check(reader.take_text() == kFormat);
  ids_ = reader.take();
  reader.check(ascends(ids_));
  for (const int64_t type : reader.take()) {
    columns_.push_back(read_column(reader, type, ids_.size() + 1));
  }
  reader.check_end();
}

const AttributeColumn& ItemAttributes::at(
    std::string_view name,
    const std::string& where) const& {
  const auto found = std::ranges::find(columns_, name, &AttributeColumn::name);
  TESSERA_CHECK_VALUE(
      found != columns_.end(),
      "{} there is no column '{}'. The columns are {}.",
      where,
      shorten(name),
      join_names(columns_, shortened_name));
  return *found;
}

int64_t ItemAttributes::row_of(int64_t id) const {
  if (id >= 0 && id < std::ssize(ids_) && ids_[id] == id) {
    return id;
  }
  const auto found = std::ranges::lower_bound(ids_, id);
  return found != ids_.end() && *found == id ? found - ids_.begin()
                                             : std::ssize(ids_);
}

std::string write_item_attributes(
    const std::vector<std::pair<std::string, ColumnView>>& columns,
    std::span<const int64_t> ids) {
  TESSERA_CHECK_VALUE(
      !columns.empty(), "[write_item_attributes] expected a column or more.");
  const int64_t num_items = columns.front().second.batch_size();
  std::set<std::string_view> names;
  std::vector<int64_t> types;
  for (const auto& [name, column] : columns) {
    data::check_added_column(
        name, !names.insert(name).second, num_items, column.batch_size());
    if (column.row_splits) {
      data::check_row_splits(*column.row_splits, std::ssize(column), name);
    }
    types.push_back(static_cast<int64_t>(column.type()));
  }
  TESSERA_CHECK_VALUE(
      ids.empty() || std::ssize(ids) == num_items,
      "[write_item_attributes] expected an id for each of the {} examples, but got {}.",
      num_items,
      ids.size());
  const auto id_of = [&](size_t example) {
    return ids.empty() ? static_cast<int64_t>(example) : ids[example];
  };
  std::vector<size_t> order(static_cast<size_t>(num_items));
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, id_of);
  std::vector<int64_t> sorted;
  std::ranges::transform(order, std::back_inserter(sorted), id_of);
  const auto same = std::ranges::adjacent_find(sorted);
  TESSERA_CHECK_VALUE(
      same == sorted.end(),
      "[write_item_attributes] two examples have the id {}. Keep one of them.",
      *same);
  std::string bytes;
  append(bytes, kFormat);
  append(bytes, sorted);
  append(bytes, types);
  for (const auto& [name, column] : columns) {
    append(bytes, name);
    append_column(bytes, column, order);
  }
  return bytes;
}

}  // namespace tessera
