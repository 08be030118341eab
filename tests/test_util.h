// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <typeinfo>
#include <vector>

// Expects that the statement throws exactly this type, and that
// what_without_backtrace() contains the text. If the statement has commas inside
// braces, write parentheses around it.
#define EXPECT_RAISES(error, statement, text) \
  ::tessera::test::expect_raises<error>(      \
      __FILE__, __LINE__, text, [&]() { statement; })
#define EXPECT_VALUE_ERROR(statement, text) \
  EXPECT_RAISES(c10::ValueError, statement, text)
#define EXPECT_TYPE_ERROR(statement, text) \
  EXPECT_RAISES(c10::TypeError, statement, text)
#define EXPECT_INDEX_ERROR(statement, text) \
  EXPECT_RAISES(c10::IndexError, statement, text)
#define EXPECT_TORCH_ERROR(statement, text) \
  EXPECT_RAISES(c10::Error, statement, text)

namespace tessera::test {

template <class Error, class Statement>
void expect_raises(
    const char* file,
    int line,
    const std::string& text,
    Statement statement) {
  const std::string expected = std::string(typeid(Error).name()) +
      " with the text:\n  " + text + "\nbut got ";
  try {
    statement();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    if (typeid(error) != typeid(Error) ||
        message.find(text) == std::string::npos) {
      ADD_FAILURE_AT(file, line) << "expected " << expected
                                 << typeid(error).name() << ":\n  " << message;
    }
    return;
  } catch (const std::exception& error) {
    ADD_FAILURE_AT(file, line)
        << "expected " << expected << typeid(error).name() << ":\n  "
        << error.what();
    return;
  }
  ADD_FAILURE_AT(file, line) << "expected " << expected << "no error";
}

/// An input that is refused, and the text of the error.
template <class Input>
struct Refusal {
  Input input = {};
  std::string text = {};
};

/// Expects that `action` raises a ValueError with the text of the row for each input.
template <class Input, class Action>
void expect_refusals(
    const std::vector<Refusal<Input>>& rows,
    const Action& action) {
  for (const Refusal<Input>& row : rows) {
    SCOPED_TRACE(row.text);
    EXPECT_VALUE_ERROR(action(row.input), row.text);
  }
}

/// Expects equal shapes, and |actual - expected| <= atol + rtol * |expected| for
/// every element. NaN equals NaN. Prints the worst element.
inline void expect_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    double rtol = 1e-5,
    double atol = 1e-6) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  const at::Tensor actual_flat =
      actual.detach().to(at::kDouble).contiguous().view({-1});
  const at::Tensor expected_flat =
      expected.detach().to(at::kDouble).contiguous().view({-1});
  const double* actual_data = actual_flat.const_data_ptr<double>();
  const double* expected_data = expected_flat.const_data_ptr<double>();
  int64_t worst = -1;
  double worst_excess = 0.0;
  for (int64_t i = 0; i < actual_flat.numel(); ++i) {
    if (actual_data[i] == expected_data[i] ||
        (std::isnan(actual_data[i]) && std::isnan(expected_data[i]))) {
      continue;
    }
    double excess = std::abs(actual_data[i] - expected_data[i]) -
        (atol + rtol * std::abs(expected_data[i]));
    if (std::isnan(excess)) {
      excess = std::numeric_limits<double>::infinity();
    }
    if (excess > worst_excess) {
      worst = i;
      worst_excess = excess;
    }
  }
  EXPECT_EQ(worst, -1) << "element " << worst << " of shape " << actual.sizes()
                       << " is " << actual_data[worst] << " instead of "
                       << expected_data[worst] << " (rtol " << rtol << ", atol "
                       << atol << ")";
}

inline at::Tensor int64s(std::initializer_list<int64_t> values) {
  return at::tensor(at::ArrayRef<int64_t>(values), at::kLong);
}

inline at::Tensor int32s(std::initializer_list<int32_t> values) {
  return at::tensor(at::ArrayRef<int32_t>(values), at::kInt);
}

inline at::Tensor floats(std::initializer_list<float> values) {
  return at::tensor(at::ArrayRef<float>(values), at::kFloat);
}

}  // namespace tessera::test
