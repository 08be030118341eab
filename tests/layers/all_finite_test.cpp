// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/input_checks.h>
#include "tests/test_util.h"

namespace tessera::test::all_finite_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotFinite[] = {
    std::numeric_limits<float>::quiet_NaN(),
    kInfinity,
    -kInfinity};

TEST(AllFiniteTest, FindsOneValueInAnyPlace) {
  // A kernel checks small tensors, and operators check large ones.
  for (const int64_t size : {1, 7, 64, 1000, 65536, 65537, 200'000}) {
    at::Tensor values = at::full({size}, -3e38F);
    EXPECT_TRUE(all_finite(values)) << size;
    for (const float value : kNotFinite) {
      for (const int64_t place : {int64_t{0}, size / 2, size - 1}) {
        values = at::ones({size});
        values[place] = value;
        EXPECT_FALSE(all_finite(values)) << value << " at " << place;
      }
    }
  }
}

TEST(AllFiniteTest, TakesAnyKindOfTensor) {
  EXPECT_TRUE(all_finite(at::zeros({0})));
  EXPECT_TRUE(all_finite(at::ones({}, at::kLong)));
  EXPECT_TRUE(all_finite(at::_efficientzerotensor({4, 6})));  // has no memory
  EXPECT_TRUE(all_finite(at::_neg_view(at::ones({3}))));
  for (const float value : kNotFinite) {
    EXPECT_FALSE(all_finite(at::full({}, value)));
    EXPECT_FALSE(all_finite(at::full({3, 2}, value, at::kDouble)));
    EXPECT_FALSE(all_finite(at::full({3, 2}, value).requires_grad_()));
    EXPECT_FALSE(all_finite(at::sparse_coo_tensor(
        at::zeros({1, 1}, at::kLong), at::full({1}, value), {4})));
    // The only such value is outside the view, and then inside.
    at::Tensor matrix = at::ones({4, 5});
    matrix[2][3] = value;
    EXPECT_TRUE(all_finite(matrix.narrow(1, 0, 3)));
    EXPECT_FALSE(all_finite(matrix.narrow(1, 2, 2)));
    EXPECT_FALSE(all_finite(matrix.t()));
  }
}

}  // namespace tessera::test::all_finite_test
