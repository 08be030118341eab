// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/example_source.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera::test {

/// The name, type and values of a column. "_" is a missing value, and lists are in
/// brackets: "age int64: 31 _ 18", "tags text: [new red] []".
class ShownColumn {
 public:
  explicit ShownColumn(const std::string& name) : name_(name) {}

  void add(const data::Column& column) {
    std::vector<std::string> values;
    if (const auto* texts =
            std::get_if<std::vector<std::string>>(&column.values)) {
      type_ = "text";
      for (const std::string& text : *texts) {
        values.push_back(text.empty() ? "_" : text);
      }
    } else {
      const at::Tensor tensor =
          std::get<at::Tensor>(column.values).contiguous();
      const bool is_integer = tensor.scalar_type() == at::kLong;
      type_ = is_integer ? "int64" : "float32";
      for (int64_t i = 0; i < tensor.numel(); ++i) {
        if (is_integer) {
          const int64_t value = tensor.const_data_ptr<int64_t>()[i];
          values.push_back(
              value == data::kMissing ? "_" : std::to_string(value));
        } else {
          const float value = tensor.const_data_ptr<float>()[i];
          values.push_back(std::isnan(value) ? "_" : c10::str(value));
        }
      }
    }
    if (!column.row_splits.defined()) {
      for (const std::string& value : values) {
        text_ += " " + value;
      }
      return;
    }
    const auto* splits = column.row_splits.const_data_ptr<int64_t>();
    for (int64_t i = 0; i + 1 < column.row_splits.numel(); ++i) {
      std::string list;
      for (int64_t k = splits[i]; k < splits[i + 1]; ++k) {
        list += (list.empty() ? "" : " ") + values[k];
      }
      text_ += " [" + list + "]";
    }
  }

  std::string text() const {
    return name_ + " " + type_ + ":" + text_;
  }

 private:
  std::string name_;
  std::string type_;
  std::string text_;
};

/// Adds all examples that the reader still has to `columns`.
inline void add_rest(
    data::ExampleReader& reader,
    std::vector<ShownColumn>& columns) {
  while (const auto examples = reader.next()) {
    TORCH_CHECK(examples->batch_size() > 0, "next() gave no example");
    const auto& entries = examples->entries();
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i == columns.size()) {
        columns.emplace_back(entries[i].first);
      }
      columns[i].add(entries[i].second);
    }
  }
}

/// The columns of all examples that the reader still has, each as a ShownColumn.
inline std::vector<std::string> show_rest(data::ExampleReader& reader) {
  std::vector<ShownColumn> columns;
  add_rest(reader, columns);
  std::vector<std::string> texts;
  for (const ShownColumn& column : columns) {
    texts.push_back(column.text());
  }
  return texts;
}

inline std::vector<std::string> show_all(
    const data::ExampleSource& source,
    int64_t first = 0) {
  return show_rest(*source.open(first));
}

/// Reads all examples and returns their number.
inline int64_t count_rest(data::ExampleReader& reader) {
  int64_t count = 0;
  while (const auto examples = reader.next()) {
    count += examples->batch_size();
  }
  return count;
}

}  // namespace tessera::test
