// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/kernels/dense_kernels.h"
#include "tests/test_util.h"

namespace tessera::kernels::sequence_kernels_test {

constexpr float kUntouched = -77.0F;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct Shape {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t length = 0;
  int64_t length_step = 0;

  int64_t stride() const {
    return (columns + 15) / 16 * 16 + 16;
  }
  int64_t length_of(int64_t row) const {
    return std::min(columns, length + row * length_step);
  }
};

constexpr Shape kShapes[] = {
    {1, 1, 1, 0},
    {3, 5, 5, 0},
    {4, 16, 16, 0},
    {33, 33, 1, 1},
    {7, 40, 34, 1},
    {2, 100, 100, 0}};

// Matrices of a softmax. What the kernel must not use is NaN.
struct Rows {
  explicit Rows(const Shape& of)
      : shape(of),
        values(static_cast<size_t>(of.rows * of.stride()), kNaN),
        gradients(values),
        log_sums(static_cast<size_t>(of.rows), kUntouched) {
    for (int64_t r = 0; r < of.rows; ++r) {
      for (int64_t c = 0; c < of.length_of(r); ++c) {
        const auto at = static_cast<double>(r * of.columns + c);
        values[r * of.stride() + c] = static_cast<float>(9 * std::sin(at));
        gradients[r * of.stride() + c] = static_cast<float>(std::cos(3 * at));
      }
    }
    args = {
        .rows = of.rows,
        .columns = of.columns,
        .stride = of.stride(),
        .length = of.length,
        .length_step = of.length_step,
        .scale = 0.7F,
        .values = values.data(),
        .log_sums = log_sums.data(),
        .gradients = gradients.data()};
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  Shape shape;
  std::vector<float> values;
  std::vector<float> gradients;
  std::vector<float> log_sums;
  SoftmaxArgs args;
};

TEST(SequenceKernelsTest, SoftmaxMatchesItsFormula) {
  for (const DenseKernelTable& kernels : available_dense_kernels()) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(kernels.isa);
      const Rows before(shape);
      const Rows rows(shape);
      kernels.softmax(rows.args);
      for (int64_t r = 0; r < shape.rows; ++r) {
        const int64_t begin = r * shape.stride();
        double sum = 0.0;
        for (int64_t c = 0; c < shape.length_of(r); ++c) {
          sum += std::exp(0.7 * before.values[begin + c]);
        }
        EXPECT_NEAR(rows.log_sums[r], std::log(sum), 1e-5);
        for (int64_t c = 0; c < shape.columns; ++c) {
          const double expected = c < shape.length_of(r)
              ? std::exp(0.7 * before.values[begin + c]) / sum
              : 0.0;
          EXPECT_NEAR(rows.values[begin + c], expected, 1e-6);
        }
        EXPECT_TRUE(std::isnan(rows.values[begin + shape.stride() - 1]));
      }
    }
  }
}

TEST(SequenceKernelsTest, SoftmaxGradientMatchesItsFormula) {
  for (const DenseKernelTable& kernels : available_dense_kernels()) {
    for (const Shape& shape : kShapes) {
      SCOPED_TRACE(kernels.isa);
      const Rows before(shape);
      const Rows rows(shape);
      kernels.softmax(rows.args);
      kernels.softmax_gradient(rows.args);
      for (int64_t r = 0; r < shape.rows; ++r) {
        const int64_t begin = r * shape.stride();
        double mean = 0.0;
        for (int64_t c = 0; c < shape.length_of(r); ++c) {
          mean += static_cast<double>(rows.values[begin + c]) *
              before.gradients[begin + c];
        }
        for (int64_t c = 0; c < shape.columns; ++c) {
          const double expected = c < shape.length_of(r) ? 0.7 *
                  rows.values[begin + c] * (before.gradients[begin + c] - mean)
                                                         : 0.0;
          EXPECT_NEAR(rows.gradients[begin + c], expected, 1e-6);
        }
      }
    }
  }
}

TEST(SequenceKernelsTest, SoftmaxKeepsNaNAndLargeScores) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const DenseKernelTable& kernels : available_dense_kernels()) {
    for (const int64_t columns : {3, 20}) {
      const auto softmax = [&](float value) {
        std::vector<float> row(32, 0.0F);
        row[1] = value;
        kernels.softmax(
            {.rows = 1,
             .columns = columns,
             .stride = 32,
             .length = columns,
             .values = row.data()});
        return row;
      };
      EXPECT_TRUE(std::isnan(softmax(kNaN)[1]));
      EXPECT_TRUE(std::isnan(softmax(kNaN)[0]));
      EXPECT_TRUE(std::isnan(softmax(kInfinity)[1]));
      EXPECT_EQ(softmax(-kInfinity)[1], 0.0F);
      EXPECT_EQ(softmax(3e38F)[1], 1.0F);
      EXPECT_EQ(softmax(-3e38F)[1], 0.0F);
    }
  }
}

TEST(SequenceKernelsTest, DropoutIsTheSameForEveryInstructionSet) {
  constexpr int64_t kRows = 50;
  for (const int64_t dim : {1, 3, 16, 37}) {
    std::vector<float> expected;
    for (const DenseKernelTable& kernels : available_dense_kernels()) {
      std::vector<float> x(static_cast<size_t>(kRows * dim));
      std::vector<float> addend(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        x[i] = 1.0F + static_cast<float>(i);
        addend[i] = -static_cast<float>(i);
      }
      std::vector<float> out(x.size(), kUntouched);
      DropoutArgs args{
          .begin_row = 1,
          .end_row = kRows,
          .dim = dim,
          .key = 5,
          .threshold = uint32_t{1} << 30,
          .scale = 2.0F,
          .x = x.data(),
          .addend = addend.data(),
          .out = out.data()};
      kernels.dropout(args);
      EXPECT_EQ(out[0], kUntouched);
      for (size_t i = static_cast<size_t>(dim); i < x.size(); ++i) {
        EXPECT_TRUE(out[i] == addend[i] || out[i] == 2.0F * x[i] + addend[i]);
      }
      if (expected.empty()) {
        expected = out;
      }
      EXPECT_EQ(out, expected) << kernels.isa;
      args.key = 6;
      kernels.dropout(args);
      EXPECT_NE(out, expected);
    }
  }
}

TEST(SequenceKernelsTest, DropoutDropsTheRequestedShare) {
  constexpr int64_t kRows = 1000;
  constexpr int64_t kDim = 64;
  const std::vector<float> x(kRows * kDim, 1.0F);
  for (const DenseKernelTable& kernels : available_dense_kernels()) {
    for (const double share : {0.0, 0.1, 0.5, 0.9}) {
      std::vector<float> out(x.size(), kUntouched);
      kernels.dropout(
          {.end_row = kRows,
           .dim = kDim,
           .key = 1,
           .threshold = static_cast<uint32_t>(share * 0x1p32),
           .x = x.data(),
           .out = out.data()});
      const auto dropped =
          static_cast<double>(std::count(out.begin(), out.end(), 0.0F));
      const double size = kRows * kDim;
      // Five standard deviations.
      EXPECT_NEAR(
          dropped / size, share, 5 * std::sqrt(share * (1 - share) / size));
      for (const int64_t c : {0, 17, 63}) {  // no column is special
        int64_t in_column = 0;
        for (int64_t r = 0; r < kRows; ++r) {
          in_column += out[r * kDim + c] == 0.0F ? 1 : 0;
        }
        EXPECT_NEAR(
            static_cast<double>(in_column) / kRows,
            share,
            5 * std::sqrt(share * (1 - share) / kRows));
      }
    }
  }
}

}  // namespace tessera::kernels::sequence_kernels_test
