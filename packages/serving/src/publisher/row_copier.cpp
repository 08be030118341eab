// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/row_copier.h"

#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

namespace tessera::serving {

namespace {

template <class From>
void widen(const std::byte* from, int64_t dim, float* to) {
  const auto* values = reinterpret_cast<const From*>(from);
  for (int64_t i = 0; i < dim; ++i) {
    to[i] = static_cast<float>(values[i]);
  }
}

// Returns false if a finite number becomes infinite.
template <class To>
bool narrow(const float* from, int64_t dim, std::byte* to) {
  bool fits = true;
  for (int64_t i = 0; i < dim; ++i) {
    const To value(from[i]);
    std::memcpy(to + i * sizeof(To), &value, sizeof(To));
    fits = fits &&
        (std::isfinite(static_cast<float>(value)) || !std::isfinite(from[i]));
  }
  return fits;
}

}  // namespace

StoredFormat stored_format(RowFormat format, at::ScalarType dtype) {
  // The other formats are those of StoredFormat, in the same order.
  static_assert(
      static_cast<int>(RowFormat::kInt4) ==
      static_cast<int>(StoredFormat::kInt4) + 1);
  return format != RowFormat::kTable
      ? static_cast<StoredFormat>(static_cast<int>(format) - 1)
      : dtype == at::kBFloat16 ? StoredFormat::kBFloat16
      : dtype == at::kHalf     ? StoredFormat::kFloat16
                               : StoredFormat::kFloat32;
}

RowCopier::RowCopier(
    std::string table_name,
    at::Tensor values,
    StoredFormat format,
    std::optional<std::vector<uint32_t>> chosen)
    : table_name_(std::move(table_name)),
      values_(std::move(values)),
      data_(static_cast<const std::byte*>(values_.const_data_ptr())),
      dtype_(values_.scalar_type()),
      dim_(values_.size(1)),
      format_(format),
      chosen_(std::move(chosen)),
      table_row_bytes_(dim_ * static_cast<int64_t>(values_.element_size())),
      row_bytes_(serving::row_bytes(format, dim_)),
      is_copy_(format == stored_format(RowFormat::kTable, dtype_)) {}

bool RowCopier::copy_row(int64_t row, std::byte* out, float* scratch) const {
  const std::byte* from = data_ + row * table_row_bytes_;
  if (is_copy_) {
    std::memcpy(out, from, static_cast<size_t>(row_bytes_));
    return true;
  }
  const auto* values = reinterpret_cast<const float*>(from);
  if (dtype_ == at::kBFloat16) {
    widen<c10::BFloat16>(from, dim_, scratch);
    values = scratch;
  } else if (dtype_ == at::kHalf) {
    widen<c10::Half>(from, dim_, scratch);
    values = scratch;
  }
  switch (format_) {
    case StoredFormat::kFloat32:
      std::memcpy(out, values, static_cast<size_t>(row_bytes_));
      return true;
    case StoredFormat::kBFloat16:
      return narrow<c10::BFloat16>(values, dim_, out);
    case StoredFormat::kFloat16:
      return narrow<c10::Half>(values, dim_, out);
    case StoredFormat::kInt8:
    case StoredFormat::kInt4:
      break;
  }
  return kernels::quantize_row(values, dim_, bits_of(format_), out);
}

void RowCopier::operator()(int64_t begin, int64_t end, std::byte* out) const {
  constexpr int64_t kRowsPerTask = 1024;
  const int64_t count = end - begin;
  std::atomic<int64_t> refused = -1;
  run_tasks(
      (count + kRowsPerTask - 1) / kRowsPerTask,
      count * (table_row_bytes_ + row_bytes_),
      [&](int64_t task) {
        std::vector<float> scratch(static_cast<size_t>(dim_));
        const int64_t last = std::min(count, (task + 1) * kRowsPerTask);
        for (int64_t i = task * kRowsPerTask; i < last; ++i) {
          const int64_t row = chosen_
              ? int64_t{(*chosen_)[static_cast<size_t>(begin + i)]}
              : begin + i;
          if (!copy_row(row, out + i * row_bytes_, scratch.data())) {
            refused = row;
          }
        }
      });
  TESSERA_CHECK_VALUE(
      refused < 0,
      "[Publisher] table '{}': row {} has a number that is not finite or too large, which {} can't store. Choose another format, or find out why training gives such numbers, for example with NonFiniteGradients::kRefuse.",
      shorten(table_name_),
      refused.load(),
      to_string(format_));
}

}  // namespace tessera::serving
