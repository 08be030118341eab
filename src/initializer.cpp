// SPDX-License-Identifier: Apache-2.0
#include <tessera/initializer.h>

#include "src/parallel.h"
#include "src/random_key.h"

#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {

namespace {

namespace init = initializers;

constexpr double kTwoTo32 = 4294967296.0;
// P(N < -2) of the standard normal: the mass that truncation cuts off each
// side.
constexpr double kCutTail = 0.022750131948179195;

double polynomial(std::initializer_list<double> coefficients, double x) {
  double value = 0.0;
  for (const double coefficient : coefficients) {
    value = value * x + coefficient;
  }
  return value;
}

// Inverse of the standard normal's distribution function for p in (0, 1), to 7
// digits: algorithm AS 241 (PPND7), Wichura 1988. One uniform per value keeps
// each value a pure function of its row and column.
double normal_quantile(double p) {
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q *
        polynomial(
               {59.109374720, 159.29113202, 50.434271938, 3.3871327179}, r) /
        polynomial({67.187563600, 78.757757664, 17.895169469, 1.0}, r);
  }
  const double tail = std::sqrt(-std::log(q < 0 ? p : 1.0 - p));
  double value = 0.0;
  if (tail <= 5.0) {
    const double r = tail - 1.6;
    value = polynomial(
                {0.17023821103, 1.3067284816, 2.7568153900, 1.4234372777}, r) /
        polynomial({0.12021132975, 0.73700164250, 1.0}, r);
  } else {
    const double r = tail - 5.0;
    value =
        polynomial(
            {0.017337203997, 0.42868294337, 3.0812263860, 6.6579051150}, r) /
        polynomial({0.012258202635, 0.24197894225, 1.0}, r);
  }
  return q < 0 ? -value : value;
}

// Fills [n, dim] with transform(u), u uniform in (0, 1).
template <class Transform>
void fill_random(
    uint64_t key,
    int64_t first_row,
    at::Tensor& rows,
    Transform transform) {
  constexpr int64_t kRowsPerTask = 1024;
  const int64_t count = rows.size(0);
  const int64_t dim = rows.size(1);
  float* data = rows.data_ptr<float>();
  // Twenty nanoseconds per value weigh as much as 64 bytes of traffic.
  run_tasks(
      (count + kRowsPerTask - 1) / kRowsPerTask,
      count * dim * 64,
      [&](int64_t task) {
        const int64_t end = std::min(count, (task + 1) * kRowsPerTask);
        for (int64_t row = task * kRowsPerTask; row < end; ++row) {
          at::philox_engine random(key, static_cast<uint64_t>(first_row + row));
          for (int64_t column = 0; column < dim; ++column) {
            const double uniform = (random() + 0.5) / kTwoTo32;
            data[row * dim + column] = static_cast<float>(transform(uniform));
          }
        }
      });
}

struct Fill {
  uint64_t key;
  int64_t first_row;
  at::Tensor rows;
  std::string where;

  void operator()(const init::Zeros&) {
    rows.zero_();
  }
  void operator()(const init::Constant& constant) {
    rows.fill_(constant.value);
  }
  void operator()(const init::Uniform& uniform) {
    // Rounding to float32 must not reach `high`, which is excluded.
    const double last = std::nextafter(
        static_cast<float>(uniform.high), static_cast<float>(uniform.low));
    fill_random(key, first_row, rows, [&](double u) {
      return std::min(last, uniform.low + u * (uniform.high - uniform.low));
    });
  }
  void operator()(const init::Normal& normal) {
    fill_random(key, first_row, rows, [&](double u) {
      return normal.mean + normal.stddev * normal_quantile(u);
    });
  }
  void operator()(const init::TruncatedNormal& normal) {
    fill_random(key, first_row, rows, [&](double u) {
      return normal.mean +
          normal.stddev *
          normal_quantile(kCutTail + u * (1.0 - 2.0 * kCutTail));
    });
  }
  void operator()(const init::RowId& row_id) {
    const int64_t first = first_row + row_id.offset;
    rows.copy_(
        at::arange(first, first + rows.size(0), at::kFloat).unsqueeze(1));
  }
  void operator()(const init::Callable& callable) {
    TORCH_CHECK_VALUE(
        callable.function() != nullptr,
        where,
        " initializer is the placeholder of the callable '",
        callable.name(),
        "'. Replace it by Callable(\"",
        callable.name(),
        "\", function).");
    const at::Tensor ids =
        at::arange(first_row, first_row + rows.size(0), at::kLong);
    const at::Tensor values = (*callable.function())(ids, rows.size(1));
    TORCH_CHECK_VALUE(
        values.defined() && values.sizes() == rows.sizes() &&
            values.scalar_type() == at::kFloat,
        where,
        " initializer must return float32 of shape ",
        rows.sizes(),
        ", but got ",
        values.defined() ? c10::toString(values.scalar_type()) : "nothing",
        " of shape ",
        values.defined() ? values.sizes() : c10::IntArrayRef{},
        ".");
    TORCH_CHECK_VALUE(
        at::isfinite(values).all().item<bool>(),
        where,
        " initializer returned values that are not finite.");
    // Detached: rows of a trained tensor must not tie the table to its graph.
    rows.copy_(values.detach());
  }
};

}  // namespace

void initialize_rows(
    const Initializer& initializer,
    uint64_t seed,
    std::string_view table_name,
    int64_t first_row,
    at::Tensor rows) {
  TORCH_CHECK_VALUE(
      rows.defined() && rows.dim() == 2 && rows.is_contiguous() &&
          rows.scalar_type() == at::kFloat && rows.is_cpu() && first_row >= 0,
      "[initialize_rows] rows must be a contiguous float32 cpu tensor of rank 2 "
      "and first_row >= 0, but got ",
      rows.defined() ? c10::toString(rows.scalar_type()) : "no tensor",
      " of shape ",
      rows.defined() ? rows.sizes() : c10::IntArrayRef{},
      " and ",
      first_row,
      ".");
  Fill fill{
      .key = random_key(seed, table_name),
      .first_row = first_row,
      .rows = std::move(rows),
      .where = "[TableConfig '" + std::string(table_name) + "']"};
  std::visit(fill, initializer);
}

void validate(const Initializer& initializer, const std::string& where) {
  constexpr double kLargest = 7.0;  // normal_quantile() of 2^-33 is -6.3
  const auto fits_float = [](double value) {
    return std::abs(value) <= std::numeric_limits<float>::max();
  };
  const auto check = [&](bool is_right, const char* expected, double value) {
    TORCH_CHECK_VALUE(
        is_right, where, " initializer: ", expected, ", but got ", value, ".");
  };
  if (const auto* constant = std::get_if<init::Constant>(&initializer)) {
    check(
        fits_float(constant->value),
        "value must be finite in float32",
        constant->value);
  } else if (const auto* uniform = std::get_if<init::Uniform>(&initializer)) {
    check(
        fits_float(uniform->low),
        "low must be finite in float32",
        uniform->low);
    check(
        fits_float(uniform->high) && uniform->high >= uniform->low,
        "high must be finite in float32 and >= low",
        uniform->high);
  }
  const auto check_normal = [&](const auto* normal) {
    if (normal != nullptr) {
      check(
          fits_float(normal->mean),
          "mean must be finite in float32",
          normal->mean);
      check(
          normal->stddev >= 0.0 &&
              fits_float(std::abs(normal->mean) + kLargest * normal->stddev),
          "stddev must be >= 0 and mean +- 7 stddev finite in float32",
          normal->stddev);
    }
  };
  check_normal(std::get_if<init::Normal>(&initializer));
  check_normal(std::get_if<init::TruncatedNormal>(&initializer));
  if (const auto* row_id = std::get_if<init::RowId>(&initializer)) {
    constexpr int64_t kLimit = int64_t{1} << 62;
    check(
        row_id->offset >= -kLimit && row_id->offset <= kLimit,
        "offset must be within +- 2^62",
        static_cast<double>(row_id->offset));
  }
}

}  // namespace tessera
