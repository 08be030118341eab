// SPDX-License-Identifier: Apache-2.0
#include "src/tables/table_state.h"

#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/tensor_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <numeric>

namespace tessera {

namespace {

// The size of the parts in which a table of 16 or 8 bits is initialised: 16 MiB.
constexpr int64_t kPartFloats = int64_t{1} << 22;

void fill_with_initializer(TableState& table, uint64_t seed) {
  const TableConfig& config = *table.config;
  const int64_t rows = table.rows.count;
  const kernels::RowNumbers numbers = table.rows.numbers;
  const Initializer initializer = initializer_of(config);
  if (config.dtype == at::kFloat) {
    initialize_rows(
        initializer,
        seed,
        table.name,
        numbers.first,
        table.parameters,
        numbers.step);
    return;
  }
  // Rows of fewer bits are initialised as float32, part by part, and rounded to the nearest.
  const int64_t part_rows = std::max<int64_t>(kPartFloats / config.dim, 1);
  for (int64_t begin = 0; begin < rows; begin += part_rows) {
    const int64_t end = std::min(rows, begin + part_rows);
    const at::Tensor part = at::empty({end - begin, config.dim}, at::kFloat);
    initialize_rows(
        initializer, seed, table.name, numbers[begin], part, numbers.step);
    const at::Tensor rounded = rows_of_dtype(part, config.dtype);
    check_initial_values(float_rows(rounded), config, table.name);
    table.parameters.slice(0, begin, end).copy_(rounded);
  }
}

kernels::Storage storage_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return kernels::Storage::kBFloat16;
    case at::kHalf:
      return kernels::Storage::kFloat16;
    case at::kChar:
      return kernels::Storage::kInt8;
    default:
      TORCH_INTERNAL_ASSERT(dtype == at::kFloat);
      return kernels::Storage::kFloat32;
  }
}

kernels::StoredRows rows_at(void* data, const at::Tensor& rows) {
  const int64_t header =
      rows.scalar_type() == at::kChar ? kernels::kInt8HeaderBytes : 0;
  return {
      .data = data,
      .dim = rows.size(1) - header,
      .vocab = rows.size(0),
      .storage = storage_of(rows.scalar_type())};
}

constexpr int64_t kRowsPerTask = 1024;

}  // namespace

int64_t stored_columns(int64_t dim, at::ScalarType dtype) {
  return dim + (dtype == at::kChar ? kernels::kInt8HeaderBytes : 0);
}

kernels::StoredRows stored_rows(const at::Tensor& rows) {
  return rows_at(const_cast<void*>(rows.const_data_ptr()), rows);
}

kernels::StoredRows mutable_rows(at::Tensor& rows) {
  return rows_at(rows.mutable_data_ptr(), rows);
}

at::Tensor numbers_of(const at::Tensor& rows) {
  return rows.scalar_type() == at::kChar ? float_rows(rows) : rows;
}

at::Tensor float_rows(const at::Tensor& rows) {
  if (rows.scalar_type() != at::kChar) {
    return rows.to(at::kFloat);
  }
  const at::Tensor contiguous = rows.contiguous();
  const kernels::StoredRows stored = stored_rows(contiguous);
  const at::Tensor values = at::empty({stored.vocab, stored.dim}, at::kFloat);
  auto* out = values.mutable_data_ptr<float>();
  const auto bytes = static_cast<int64_t>(rows.nbytes());
  run_ranges(
      stored.vocab, kRowsPerTask, bytes, [&](int64_t begin, int64_t end) {
        std::vector<uint32_t> ids(static_cast<size_t>(end - begin));
        std::iota(ids.begin(), ids.end(), static_cast<uint32_t>(begin));
        active_kernels().combine(
            {.table = stored,
             .ids = ids.data(),
             .nnz = end - begin,
             .out = out + begin * stored.dim,
             .end_bag = end - begin});
      });
  return values;
}

void assign_rows(at::Tensor rows, const at::Tensor& values) {
  if (rows.scalar_type() != at::kChar) {
    rows.copy_(values);
    return;
  }
  TORCH_INTERNAL_ASSERT(rows.is_contiguous());
  const at::Tensor from = at::empty(values.sizes(), at::kFloat).copy_(values);
  const auto* numbers = from.const_data_ptr<float>();
  const kernels::StoredRows stored = mutable_rows(rows);
  const auto bytes = static_cast<int64_t>(rows.nbytes());
  run_ranges(
      stored.vocab, kRowsPerTask, bytes, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          active_kernels().assign_row(stored, row, numbers + row * stored.dim);
        }
      });
  note_write(rows);
}

at::Tensor rows_of_dtype(const at::Tensor& values, at::ScalarType dtype) {
  if (dtype != at::kChar) {
    return values.to(dtype);
  }
  at::Tensor rows =
      at::empty({values.size(0), stored_columns(values.size(1), dtype)}, dtype);
  assign_rows(rows, values);
  return rows;
}

void note_write(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    tensor.unsafeGetTensorImpl()->bump_version();
  }
}

Initializer initializer_of(const TableConfig& config) {
  const double stddev = 1.0 / std::sqrt(static_cast<double>(config.dim));
  return config.initializer.value_or(
      initializers::TruncatedNormal{.mean = 0.0, .stddev = stddev});
}

void check_initial_values(
    const at::Tensor& rounded,
    const TableConfig& config,
    const std::string& name) {
  TESSERA_CHECK_VALUE(
      at::isfinite(rounded).all().item<bool>(),
      "[table '{}'] the initializer must return values in the range of dtype {}, but returned values beyond it. Use smaller values, or dtype = kFloat.",
      shorten(name),
      to_string(config.dtype));
}

void fill_rows(TableState& table, uint64_t seed) {
  fill_with_initializer(table, seed);
  const at::NoGradGuard no_grad;
  const int64_t zero_rows = table.config->zero_rows;
  table.parameters.slice(0, 0, table.rows.count_before(zero_rows)).zero_();
}

kernels::Buckets buckets_of(const TableConfig& table) {
  if (!table.quantization) {
    return {};
  }
  const QuantizationConfig& config = *table.quantization;
  const double step = (config.upper - config.lower) /
      static_cast<double>(config.num_buckets - 1);
  return {
      .lower = static_cast<float>(config.lower),
      .upper = static_cast<float>(config.upper),
      .step = static_cast<float>(step)};
}

void assign_table(TableState& table, const at::Tensor& values) {
  TESSERA_CHECK_VALUE(
      table.key_rows == nullptr,
      "[update_embedding_table] table '{}' has keys, so it needs the key of each row. Pass keys and values.",
      shorten(table.name));
  TESSERA_CHECK_TYPE(
      values.defined() && at::isFloatingType(values.scalar_type()) &&
          values.layout() == at::kStrided && !values.is_meta(),
      "[update_embedding_table] table '{}': expected a dense tensor of a floating-point type, but got {}. Convert the values.",
      shorten(table.name),
      describe(values));
  TESSERA_CHECK_VALUE(
      values.dim() == 2 && values.size(0) == table.config->vocabulary_size &&
          values.size(1) == table.config->dim,
      "[update_embedding_table] table '{}': expected shape [{}, {}], but got {}. Pass values for all rows of the table.",
      shorten(table.name),
      table.config->vocabulary_size,
      table.config->dim,
      values.sizes());
  const at::NoGradGuard no_grad;
  const kernels::RowNumbers rows = table.rows.numbers;
  if (table.rows.count > 0) {
    assign_rows(
        table.parameters,
        values.slice(0, rows.first, rows[table.rows.count - 1] + 1, rows.step));
  }
}

at::Tensor read_local_rows(
    const TableState& table,
    int64_t begin,
    int64_t end) {
  TESSERA_CHECK_VALUE(
      table.key_rows == nullptr,
      "[read_rows] table '{}' has keys, and its rows have no fixed numbers. Use embedding_tables(), which gives keys and rows, on Strategy::fused().",
      shorten(table.name));
  TESSERA_CHECK_INDEX(
      begin >= 0 && begin <= end && end <= table.config->vocabulary_size,
      "[read_rows] table '{}' has rows [0, {}), but got the range [{}, {}). Pass a range of these rows.",
      shorten(table.name),
      table.config->vocabulary_size,
      begin,
      end);
  at::Tensor values = at::zeros({end - begin, table.config->dim}, at::kFloat);
  const kernels::RowNumbers rows = table.rows.numbers;
  const int64_t first = table.rows.count_before(begin);
  const int64_t last = table.rows.count_before(end);
  if (first < last && !table.rows.is_copy) {
    values.slice(0, rows[first] - begin, rows[last - 1] - begin + 1, rows.step)
        .copy_(numbers_of(table.parameters.slice(0, first, last)));
  }
  return values;
}

}  // namespace tessera
