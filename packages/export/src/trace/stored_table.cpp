// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/trace/stored_table.h"

#include <tessera/common/shorten.h>
#include <tessera/tables/table_config.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <sys/mman.h>

#include <algorithm>
#include <limits>

#include "src/common/check.h"
#include "src/tables/key_table_rows.h"

namespace tessera::exporting {

namespace {

// The number of floats that are converted at a time: 1 MiB, which fits into the
// second-level cache.
constexpr int64_t kPartFloats = int64_t{1} << 18;

void check_finite(
    const at::Tensor& scales,
    const std::string& name,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      at::isfinite(scales).all().item<bool>(),
      "{} table '{}' can't be stored as int8: its rows and their range must be finite, but some have infinity or NaN. Correct the rows, or export as kFloat.",
      where,
      shorten(name));
}

void store_as_int8(
    const at::Tensor& rows,
    StoredTable& stored,
    int64_t begin,
    const std::string& name,
    const std::string& where) {
  const at::Tensor lowest = rows.amin(1);
  const at::Tensor step = (rows.amax(1) - lowest) / 255.0;
  check_finite(step, name, where);
  // A row whose values are all equal has the step 0, and its value as the offset.
  const at::Tensor divisor = at::where(step == 0, at::ones_like(step), step);
  const at::Tensor bytes =
      ((rows - lowest.unsqueeze(1)) / divisor.unsqueeze(1)).round() - 128.0;
  const int64_t end = begin + rows.size(0);
  stored.rows.slice(0, begin, end).copy_(bytes.clamp(-128, 127));
  stored.scales.slice(0, begin, end).copy_(step);
  stored.offsets.slice(0, begin, end).copy_(lowest + step * 128.0);
}

// Rows of kChar are split into scales and codes.
bool is_stored_as_it_is(const TableState& table, at::ScalarType dtype) {
  return table.key_rows == nullptr && table.parameters.scalar_type() == dtype &&
      dtype != at::kChar;
}

// The scale and the codes of rows in kernels::Storage::kInt8, without another rounding.
// Errors:  c10::ValueError for a row that is not finite.
void store_codes(
    const at::Tensor& rows,
    StoredTable& stored,
    int64_t begin,
    const std::string& name,
    const std::string& where) {
  const int64_t header = kernels::kInt8HeaderBytes;
  const int64_t end = begin + rows.size(0);
  stored.rows.slice(0, begin, end).copy_(rows.slice(1, header));
  stored.scales.slice(0, begin, end)
      .copy_(rows.slice(1, 0, header)
                 .clone(at::MemoryFormat::Contiguous)
                 .view(at::kBFloat16)
                 .squeeze(1));
  stored.offsets.slice(0, begin, end).zero_();
  check_finite(stored.scales.slice(0, begin, end), name, where);
}

// The row number of each key, and then the row number for unknown keys.
at::Tensor row_numbers(const KeyTableRows& table) {
  return at::constant_pad_nd(
      table.sorted_keys().rows, {0, 1}, int64_t{table.row_of_unknown_keys()});
}

int64_t stored_rows(const TableState& table) {
  return table.key_rows == nullptr ? table.parameters.size(0)
                                   : table.key_rows->index().size() + 1;
}

// Returns zeros that can only be read. All their pages are the system's page of zeros, so
// they take address space but no memory.
at::Tensor zeros_without_memory(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) *
      c10::elementSize(dtype);
  void* memory = bytes == 0 ? nullptr
                            : ::mmap(
                                  nullptr,
                                  bytes,
                                  PROT_READ,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                  /*fd=*/-1,
                                  /*offset=*/0);
  if (memory == nullptr || memory == MAP_FAILED) {
    return at::zeros(sizes, dtype);
  }
  return at::from_blob(
      memory, sizes, [bytes](void* data) { ::munmap(data, bytes); }, dtype);
}

}  // namespace

StoredTable placeholder_of(const TableState& table, at::ScalarType dtype) {
  if (is_stored_as_it_is(table, dtype)) {
    return {.rows = table.parameters};
  }
  const int64_t count = stored_rows(table);
  StoredTable stored{
      .rows = zeros_without_memory({count, table.config->dim}, dtype),
      .is_placeholder = true};
  if (dtype == at::kChar) {
    stored.scales = zeros_without_memory({count}, at::kFloat);
    stored.offsets = zeros_without_memory({count}, at::kFloat);
  }
  return stored;
}

StoredTable store(
    const TableState& table,
    at::ScalarType dtype,
    const std::string& where) {
  if (is_stored_as_it_is(table, dtype)) {
    // Not detached, because the tracer needs the object that the model itself may read.
    return {.rows = table.parameters};
  }
  const bool has_keys = table.key_rows != nullptr;
  return store(
      table,
      has_keys ? row_numbers(*table.key_rows) : at::Tensor(),
      dtype,
      where);
}

StoredTable store(
    const TableState& table,
    const at::Tensor& numbers,
    at::ScalarType dtype,
    const std::string& where) {
  const at::Tensor source = table.key_rows != nullptr
      ? table.key_rows->all_rows()
      : table.parameters.detach();
  const auto slice = [&](int64_t begin, int64_t end) {
    return numbers.defined()
        ? source.index_select(0, numbers.slice(0, begin, end))
        : source.slice(0, begin, end);
  };
  const int64_t count = numbers.defined() ? numbers.size(0) : source.size(0);
  if (source.scalar_type() == dtype && dtype != at::kChar) {
    return {.rows = slice(0, count)};
  }
  const int64_t dim = table.config->dim;
  StoredTable stored{.rows = at::empty({count, dim}, dtype)};
  if (dtype == at::kChar) {
    stored.scales = at::empty({count}, at::kFloat);
    stored.offsets = at::empty({count}, at::kFloat);
  }
  const int64_t part_rows = std::max<int64_t>(kPartFloats / dim, 1);
  for (int64_t begin = 0; begin < count; begin += part_rows) {
    const int64_t end = std::min(count, begin + part_rows);
    if (source.scalar_type() == dtype) {
      store_codes(slice(begin, end), stored, begin, table.name, where);
      continue;
    }
    const at::Tensor rows = float_rows(slice(begin, end));
    if (dtype == at::kChar) {
      store_as_int8(rows, stored, begin, table.name, where);
      continue;
    }
    const at::Tensor part = rows.to(dtype);
    TESSERA_CHECK_VALUE(
        (at::isfinite(part) == at::isfinite(rows)).all().item<bool>(),
        "{} table '{}' can't be stored as {}: some values are beyond the range of that dtype. Export as kFloat.",
        where,
        shorten(table.name),
        to_string(dtype));
    stored.rows.slice(0, begin, end).copy_(part);
  }
  return stored;
}

void add_keys(const TableState& table, StoredTable& stored) {
  if (table.key_rows == nullptr) {
    return;
  }
  stored.keys = at::constant_pad_nd(
      table.key_rows->sorted_keys().keys,
      {0, 1},
      std::numeric_limits<int64_t>::max());
  if (const auto padding = table.config->keys->padding_key) {
    stored.padding_key = at::full({}, *padding, at::kLong);
  }
}

at::Tensor find_stored(const StoredTable& table, const at::Tensor& keys) {
  const at::Tensor found = at::searchsorted(table.keys, keys);
  const at::Tensor rows = at::where(
      table.keys.index_select(0, found) == keys, found, table.keys.size(0) - 1);
  return table.padding_key.defined()
      ? at::where(keys == table.padding_key, -1, rows)
      : rows;
}

IdRules id_rules_of(const FeatureConfig& feature, const StoredTable& table) {
  const bool has_keys = table.keys.defined();
  return {
      .rows = table.rows.size(0),
      .zeros_out_of_range =
          has_keys || feature.out_of_range == OutOfRange::kZero,
      .drops_negative = has_keys || feature.validate_weights_and_indices};
}

at::Tensor read_stored(const StoredTable& table, const at::Tensor& ids) {
  at::Tensor rows = table.rows.index_select(0, ids).to(at::kFloat);
  if (!table.scales.defined()) {
    return rows;
  }
  return rows * table.scales.index_select(0, ids).unsqueeze(1) +
      table.offsets.index_select(0, ids).unsqueeze(1);
}

}  // namespace tessera::exporting
