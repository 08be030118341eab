// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/json/from_string.h>
#include <arrow/util/compression.h>
#include <c10/util/Exception.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::test {

inline void check_arrow(const arrow::Status& status) {
  TORCH_CHECK(status.ok(), status.ToString());
}

template <class Value>
Value value_of(arrow::Result<Value> result) {
  check_arrow(result.status());
  return result.MoveValueUnsafe();
}

/// An array of values that are written as JSON.
inline std::shared_ptr<arrow::Array> array_of(
    const std::shared_ptr<arrow::DataType>& type,
    const std::string& json) {
  return value_of(arrow::json::ArrayFromJSONString(type, json));
}

using NamedArray = std::pair<std::string, std::shared_ptr<arrow::Array>>;

inline std::shared_ptr<arrow::Table> table_of(
    const std::vector<NamedArray>& columns) {
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  return arrow::Table::Make(arrow::schema(fields), arrays);
}

inline void write_parquet(
    const std::string& path,
    const std::shared_ptr<arrow::Table>& table,
    int64_t row_group = 1 << 20,
    arrow::Compression::type compression = arrow::Compression::ZSTD,
    bool has_checksums = false) {
  parquet::WriterProperties::Builder builder;
  builder.compression(compression);
  if (has_checksums) {
    builder.enable_page_checksum();
  }
  const auto properties = builder.build();
  const auto arrow_properties =
      parquet::ArrowWriterProperties::Builder().store_schema()->build();
  const auto file = value_of(arrow::io::FileOutputStream::Open(path));
  check_arrow(parquet::arrow::WriteTable(
      *table,
      arrow::default_memory_pool(),
      file,
      row_group,
      properties,
      arrow_properties));
  check_arrow(file->Close());
}

/// `rows` examples. Row i has the id i, a score of i / 4 or null, a name of i % 7, and
/// i % 4 tags.
inline std::shared_ptr<arrow::Table> numbered_table(int64_t rows) {
  arrow::Int64Builder ids;
  arrow::DoubleBuilder scores;
  arrow::StringBuilder names;
  const auto tags = std::make_shared<arrow::StringBuilder>();
  arrow::ListBuilder lists(arrow::default_memory_pool(), tags);
  for (int64_t i = 0; i < rows; ++i) {
    check_arrow(ids.Append(i));
    check_arrow(
        i % 5 == 0 ? scores.AppendNull()
                   : scores.Append(static_cast<double>(i) / 4));
    check_arrow(names.Append("name " + std::to_string(i % 7)));
    check_arrow(lists.Append());
    for (int64_t k = 0; k < i % 4; ++k) {
      check_arrow(tags->Append("tag" + std::to_string(k)));
    }
  }
  return table_of(
      {{"id", value_of(ids.Finish())},
       {"score", value_of(scores.Finish())},
       {"name", value_of(names.Finish())},
       {"tags", value_of(lists.Finish())}});
}

}  // namespace tessera::test
