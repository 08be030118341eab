// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/initializer.h>

#include <tessera/common/shorten.h>

#include "optim/range_checks.h"
#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"
#include "src/common/tensor_text.h"
#include "src/kernels/kernels.h"
#include "src/tables/table_state.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace tessera {

namespace {

namespace init = initializers;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Values are truncated at 2 standard deviations, which keeps the mass P(-2 < N < 2).
constexpr float kTruncation = 2.0F;
constexpr float kTruncatedMass = 0.95449973610364158F;

// `keys` are the numbers of the rows, or nullptr if args.rows has the numbers.
void fill_random(
    kernels::RandomArgs args,
    const int64_t* keys,
    const at::Tensor& rows) {
  // 2 MiB are a huge page of most systems. If two threads touched a new one at the same
  // time, the system would clear it twice.
  constexpr int64_t kMaxFloatsPerTask = int64_t{1} << 19;
  constexpr int64_t kMinFloatsPerTask = int64_t{1} << 16;
  const int64_t count = rows.size(0);
  args.dim = rows.size(1);
  args.out = rows.mutable_data_ptr<float>();
  if (keys != nullptr) {
    constexpr int64_t kKeysPerTask = 256;
    run_ranges(
        count,
        kKeysPerTask,
        count * args.dim * 8,
        [&](int64_t begin, int64_t end) {
          kernels::RandomArgs row = args;
          row.end_row = 1;
          for (int64_t i = begin; i < end; ++i) {
            row.rows = {.first = keys[i]};
            row.out = args.out + i * args.dim;
            active_kernels().fill_random(row);
          }
        });
    return;
  }
  // Computing a value takes about as long as moving 8 bytes.
  const int64_t bytes = count * args.dim * 8;
  const int64_t floats_per_task =
      task_size(count * args.dim, bytes, kMinFloatsPerTask, kMaxFloatsPerTask);
  const int64_t rows_per_task =
      std::max<int64_t>(floats_per_task / args.dim, 1);
  run_ranges(count, rows_per_task, bytes, [&](int64_t begin, int64_t end) {
    kernels::RandomArgs part = args;
    part.begin_row = begin;
    part.end_row = end;
    active_kernels().fill_random(part);
  });
}

struct Fill {
  uint64_t key;
  kernels::RowNumbers numbers;
  const int64_t* keys;  // [rows], used instead of the numbers; or nullptr
  at::Tensor rows;
  std::string where;

  void operator()(const init::Zeros&) {
    rows.zero_();
  }
  void operator()(const init::Constant& constant) {
    rows.fill_(constant.value);
  }
  void operator()(const init::Uniform& uniform) {
    const auto low = static_cast<float>(uniform.low);
    // `high` is excluded.
    const float last = std::nextafter(static_cast<float>(uniform.high), low);
    fill_random(
        {.is_uniform = true,
         .uniform_low = low,
         .uniform_last = last,
         .key = key,
         .rows = numbers},
        keys,
        rows);
  }
  void operator()(const init::Normal& normal) {
    fill_normal(normal.mean, normal.stddev, 1.0F, kInfinity);
  }
  void operator()(const init::TruncatedNormal& normal) {
    fill_normal(normal.mean, normal.stddev, kTruncatedMass, kTruncation);
  }
  void fill_normal(double mean, double stddev, float mass, float limit) {
    fill_random(
        {.mean = static_cast<float>(mean),
         .stddev = static_cast<float>(stddev),
         .mass = mass,
         .limit = limit,
         .key = key,
         .rows = numbers},
        keys,
        rows);
  }
  void operator()(const init::RowId& row_id) {
    rows.copy_(ids().add_(row_id.offset).unsqueeze(1));
  }
  void operator()(const init::Callable& callable) {
    TESSERA_CHECK_VALUE(
        callable.function() != nullptr,
        "{} initializer must have a function, but is only the name '{}' of a callable, as it was read from JSON. Replace it by Callable(\"{}\", function).",
        where,
        shorten(callable.name()),
        shorten(callable.name()));
    const at::Tensor values = (*callable.function())(ids(), rows.size(1));
    TESSERA_CHECK_VALUE(
        values.defined() && values.sizes() == rows.sizes() &&
            values.scalar_type() == at::kFloat,
        "{} initializer must return a float32 tensor of shape {}, but got {}. Correct the function.",
        where,
        rows.sizes(),
        describe(values));
    TESSERA_CHECK_VALUE(
        at::isfinite(values).all().item<bool>(),
        "{} initializer must return finite values, but returned values that are not finite. Correct the function.",
        where);
    // The function may return a part of a trained tensor. detach() keeps the table out of
    // its autograd graph.
    rows.copy_(values.detach());
  }

  at::Tensor ids() const {
    if (keys != nullptr) {
      const at::Tensor ids = at::empty({rows.size(0)}, at::kLong);
      std::copy_n(keys, rows.size(0), ids.mutable_data_ptr<int64_t>());
      return ids;
    }
    return at::arange(
        numbers.first, numbers[rows.size(0)], numbers.step, at::kLong);
  }
};

// `keys` are used instead of the numbers, unless they are nullptr.
void fill(
    const Initializer& initializer,
    uint64_t seed,
    std::string_view table_name,
    kernels::RowNumbers numbers,
    const int64_t* keys,
    at::Tensor rows) {
  if (rows.numel() == 0) {
    return;  // the user's function need not handle zero rows
  }
  Fill fill{
      .key = random_key(seed, table_name),
      .numbers = numbers,
      .keys = keys,
      .rows = std::move(rows),
      .where = "[TableConfig '" + shorten(table_name) + "']"};
  std::visit(fill, initializer);
}

}  // namespace

void initialize_rows(
    const Initializer& initializer,
    uint64_t seed,
    std::string_view table_name,
    int64_t first_row,
    at::Tensor rows,
    int64_t row_step) {
  TESSERA_CHECK_VALUE(
      rows.defined() && rows.dim() == 2 && rows.is_contiguous() &&
          rows.scalar_type() == at::kFloat && rows.is_cpu() && first_row >= 0 &&
          row_step >= 1,
      "[initialize_rows] rows must be a contiguous float32 cpu tensor of rank 2, first_row >= 0 and row_step >= 1, but got {}, {} and {}.",
      describe(rows),
      first_row,
      row_step);
  fill(
      initializer,
      seed,
      table_name,
      {.first = first_row, .step = row_step},
      nullptr,
      std::move(rows));
}

void initialize_keys(
    const Initializer& initializer,
    uint64_t seed,
    std::string_view table_name,
    const int64_t* keys,
    at::Tensor rows) {
  fill(initializer, seed, table_name, {}, keys, std::move(rows));
}

void validate(const Initializer& initializer, const std::string& where) {
  const optim::RangeChecks checks(where + " initializer:");
  if (const auto* constant = std::get_if<init::Constant>(&initializer)) {
    checks.finite("value", constant->value);
  } else if (const auto* uniform = std::get_if<init::Uniform>(&initializer)) {
    checks.finite("low", uniform->low);
    checks.check(
        optim::is_finite_float(uniform->high) && uniform->high >= uniform->low,
        "high",
        "finite in float32 and >= low",
        uniform->high);
  }
  const auto check_normal = [&](const auto* normal) {
    if (normal != nullptr) {
      // Larger than the deviation of any value: the quantile of 2^-25 is -5.4.
      constexpr double kMaxDeviations = 7.0;
      checks.finite("mean", normal->mean);
      checks.check(
          normal->stddev >= 0.0 &&
              optim::is_finite_float(
                  std::abs(normal->mean) + kMaxDeviations * normal->stddev),
          "stddev",
          ">= 0, and mean +- 7 stddev must be finite in float32",
          normal->stddev);
    }
  };
  check_normal(std::get_if<init::Normal>(&initializer));
  check_normal(std::get_if<init::TruncatedNormal>(&initializer));
  if (const auto* row_id = std::get_if<init::RowId>(&initializer)) {
    constexpr int64_t kLimit = int64_t{1} << 62;
    checks.check(
        row_id->offset >= -kLimit && row_id->offset <= kLimit,
        "offset",
        "within +- 2^62",
        static_cast<double>(row_id->offset));
  }
}

}  // namespace tessera
