// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/write_parquet.h>

#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <arrow/array/builder_binary.h>
#include <arrow/array/builder_nested.h>
#include <arrow/array/builder_primitive.h>
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/table.h>
#include <arrow/type.h>
#include <arrow/util/compression.h>
#include <parquet/arrow/writer.h>
#include <parquet/properties.h>

#include <concepts>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace tessera::data {

namespace {

constexpr int64_t kRowGroupRows = 65'536;

void check_written(const arrow::Status& status, const std::string& path) {
  TESSERA_CHECK(
      status.ok(),
      "[write_parquet] can't write '{}': {}. Check the folder and the free space.",
      shorten(path),
      status.message());
}

template <class T>
using BuilderOf = std::conditional_t<
    std::same_as<T, int64_t>,
    arrow::Int64Builder,
    std::conditional_t<
        std::same_as<T, float>,
        arrow::FloatBuilder,
        arrow::LargeStringBuilder>>;

template <class T>
arrow::Status append(BuilderOf<T>& builder, std::span<const T> values) {
  for (const T& value : values) {
    ARROW_RETURN_NOT_OK(
        is_missing(value) ? builder.AppendNull() : builder.Append(value));
  }
  return arrow::Status::OK();
}

template <class T>
arrow::Status build(
    const Column& column,
    std::span<const T> values,
    std::shared_ptr<arrow::Array>& array) {
  const auto builder = std::make_shared<BuilderOf<T>>();
  if (!column.row_splits.defined()) {
    ARROW_RETURN_NOT_OK(append<T>(*builder, values));
    return builder->Finish(&array);
  }
  arrow::LargeListBuilder lists(arrow::default_memory_pool(), builder);
  const at::Tensor splits = column.row_splits.contiguous();
  const auto* begin = splits.const_data_ptr<int64_t>();
  for (int64_t i = 0; i + 1 < splits.numel(); ++i) {
    ARROW_RETURN_NOT_OK(lists.Append());
    ARROW_RETURN_NOT_OK(
        append<T>(*builder, values.subspan(begin[i], begin[i + 1] - begin[i])));
  }
  return lists.Finish(&array);
}

arrow::Status write_table(const arrow::Table& table, const std::string& path) {
  ARROW_ASSIGN_OR_RAISE(
      const auto file, arrow::io::FileOutputStream::Open(path));
  const auto properties = parquet::WriterProperties::Builder()
                              .compression(arrow::Compression::ZSTD)
                              ->enable_page_checksum()
                              ->build();
  ARROW_RETURN_NOT_OK(parquet::arrow::WriteTable(
      table, arrow::default_memory_pool(), file, kRowGroupRows, properties));
  return file->Close();
}

}  // namespace

void write_parquet(const Columns& columns, const std::string& path) {
  TESSERA_CHECK_VALUE(
      !columns.entries().empty(),
      "[write_parquet] '{}': expected at least one column, but got none. Add columns with Columns::add().",
      shorten(path));
  std::vector<std::shared_ptr<arrow::Field>> fields;
  std::vector<std::shared_ptr<arrow::Array>> arrays;
  for (const auto& entry : columns.entries()) {
    const auto& name = entry.first;  // Clang 14 captures no structured bindings
    const auto& column = entry.second;
    std::shared_ptr<arrow::Array> array;
    visit_values(column, [&]<class T>(std::span<const T> values) {
      check_written(build<T>(column, values, array), path);
    });
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(std::move(array));
  }
  AtomicFile file(path, "[write_parquet]");
  const auto table = arrow::Table::Make(
      arrow::schema(std::move(fields)), arrays, columns.batch_size());
  check_written(write_table(*table, file.written_path()), path);
  file.commit();
}

}  // namespace tessera::data
