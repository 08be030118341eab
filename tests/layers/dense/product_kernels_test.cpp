// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/kernels/dense_kernels.h"
#include "tests/test_util.h"

#include <sys/mman.h>

namespace tessera::kernels::product_kernels_test {

constexpr float kUntouched = -77.0F;
constexpr int64_t kPadding = 3;  // floats between two rows of a matrix

std::vector<float> sample_values(int64_t count, double step) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>(std::sin(step * static_cast<double>(i + 1)));
  }
  return values;
}

// Ones, behind which there is memory that nobody may touch.
class GuardedOnes {
 public:
  explicit GuardedOnes(int64_t count)
      : pages_((count * kFloat + kPage - 1) / kPage * kPage), count_(count) {
    memory_ = static_cast<char*>(mmap(
        nullptr,
        pages_ + kPage,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0));
    EXPECT_NE(memory_, MAP_FAILED);
    EXPECT_EQ(mprotect(memory_ + pages_, kPage, PROT_NONE), 0);
    std::fill_n(data(), count, 1.0F);
  }
  ~GuardedOnes() {
    munmap(memory_, pages_ + kPage);
  }
  GuardedOnes(const GuardedOnes&) = delete;
  GuardedOnes& operator=(const GuardedOnes&) = delete;

  float* data() const {
    return reinterpret_cast<float*>(memory_ + pages_ - count_ * kFloat);
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  static constexpr int64_t kPage = int64_t{64} * 1024;  // the largest usual one

  int64_t pages_;
  int64_t count_;
  char* memory_ = nullptr;
};

// The matrices of a product [rows, depth] x [depth, columns].
struct Matrices {
  Matrices(int64_t rows, int64_t columns, int64_t depth, bool is_transposed)
      : a(sample_values(
            is_transposed ? depth * (rows + kPadding)
                          : rows * (depth + kPadding),
            0.7)),
        b(sample_values(depth * (columns + kPadding), 1.3)),
        bias(sample_values(columns, 2.1)),
        relu_output(sample_values(rows * (columns + 2 * kPadding), 0.9)),
        x0(sample_values(rows * (columns + kPadding), 1.7)),
        x(sample_values(rows * (columns + kPadding), 2.9)),
        out(x0.size(), kUntouched),
        crossed(x0.size(), kUntouched),
        args{
            .rows = rows,
            .columns = columns,
            .depth = depth,
            .a = a.data(),
            .a_row_stride = is_transposed ? 1 : depth + kPadding,
            .a_column_stride = is_transposed ? rows + kPadding : 1,
            .b = b.data(),
            .b_stride = columns + kPadding,
            .out = out.data(),
            .out_stride = columns + kPadding} {}
  Matrices(const Matrices&) = delete;
  Matrices& operator=(const Matrices&) = delete;

  double sum_of(int64_t row, int64_t column, double start) const {
    double sum = start;
    for (int64_t k = 0; k < args.depth; ++k) {
      sum += static_cast<double>(
                 a[row * args.a_row_stride + k * args.a_column_stride]) *
          b[k * args.b_stride + column];
    }
    return sum;
  }

  // Leaves the numbers between two rows as they are.
  void copy_x_to(std::vector<float>& matrix) const {
    for (int64_t row = 0; row < args.rows; ++row) {
      const int64_t first = row * args.out_stride;
      std::copy_n(&x[first], args.columns, &matrix[first]);
    }
  }

  std::vector<float> a;
  std::vector<float> b;
  std::vector<float> bias;
  std::vector<float> relu_output;
  std::vector<float> x0;
  std::vector<float> x;
  std::vector<float> out;
  std::vector<float> crossed;
  ProductArgs args;
};

// Calls check(kernels, matrices) for sizes below, at and above those of a tile, on every
// instruction set of this machine. A depth of 300 has two blocks. With 31 columns and more, 53
// rows share a copy of b: from a depth of 33 on, and with 61 columns, whose rows are aligned,
// from a depth of 100 on.
template <class Check>
void for_each_case(Check check) {
  for (const DenseKernelTable& kernels : available_dense_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const bool is_transposed : {false, true}) {
      for (const int64_t rows : {1, 2, 5, 6, 8, 15, 19, 53}) {
        for (const int64_t columns : {1, 3, 4, 16, 24, 31, 32, 55, 61}) {
          for (const int64_t depth : {1, 2, 33, 100, 300}) {
            SCOPED_TRACE(
                testing::Message() << rows << " x " << depth << " x " << columns
                                   << ", transposed " << is_transposed);
            Matrices matrices(rows, columns, depth, is_transposed);
            check(kernels, matrices);
            if (testing::Test::HasFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

// Compares results [rows, columns] with expected(row, column), and checks that the
// numbers between two rows are untouched.
template <class Expected>
void expect_values(
    const std::vector<float>& results,
    const ProductArgs& args,
    Expected expected) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t column = 0; column < args.out_stride; ++column) {
      const float value = results[row * args.out_stride + column];
      if (column < args.columns) {
        ASSERT_NEAR(value, expected(row, column), 2e-5 + 1e-6 * args.depth)
            << row << ", " << column;
      } else {
        ASSERT_EQ(value, kUntouched) << row << ", " << column;
      }
    }
  }
}

TEST(ProductKernelsTest, ComputesTheProduct) {
  for_each_case([](const DenseKernelTable& kernels, Matrices& m) {
    kernels.product(m.args);
    expect_values(m.out, m.args, [&](int64_t row, int64_t column) {
      return m.sum_of(row, column, 0.0);
    });
  });
}

TEST(ProductKernelsTest, AddsABiasAndTakesTheRelu) {
  for_each_case([](const DenseKernelTable& kernels, Matrices& m) {
    m.args.bias = m.bias.data();
    m.args.has_relu = true;
    kernels.product(m.args);
    expect_values(m.out, m.args, [&](int64_t row, int64_t column) {
      return std::max(0.0, m.sum_of(row, column, m.bias[column]));
    });
  });
}

TEST(ProductKernelsTest, AddsToTheResult) {
  for_each_case([](const DenseKernelTable& kernels, Matrices& m) {
    kernels.product(m.args);
    m.args.adds = true;
    m.args.bias = m.bias.data();  // the result has it already
    kernels.product(m.args);
    expect_values(m.out, m.args, [&](int64_t row, int64_t column) {
      return 2.0 * m.sum_of(row, column, 0.0);
    });
  });
}

TEST(ProductKernelsTest, AddsAnotherMatrix) {
  for_each_case([](const DenseKernelTable& kernels, Matrices& m) {
    m.args.added = m.x.data();
    kernels.product(m.args);
    const auto x = [&](int64_t row, int64_t column) {
      return double{m.x[row * m.args.out_stride + column]};
    };
    expect_values(m.out, m.args, [&](int64_t row, int64_t column) {
      return m.sum_of(row, column, x(row, column));
    });
    m.args.adds = true;
    kernels.product(m.args);
    expect_values(m.out, m.args, [&](int64_t row, int64_t column) {
      return 2.0 * m.sum_of(row, column, x(row, column));
    });
  });
}

TEST(ProductKernelsTest, TheAddedMatrixMayBeTheResult) {
  for_each_case([](const DenseKernelTable& kernels, Matrices& m) {
    m.copy_x_to(m.out);
    m.args.added = m.out.data();
    m.args.bias = m.bias.data();
    kernels.product(m.args);
    expect_values(m.out, m.args, [&](int64_t row, int64_t column) {
      const double x = m.x[row * m.args.out_stride + column];
      return m.sum_of(row, column, m.bias[column] + x);
    });
  });
}

TEST(ProductKernelsTest, TouchesNothingBehindTheMatrices) {
  for (const DenseKernelTable& kernels : available_dense_kernels()) {
    SCOPED_TRACE(kernels.isa);
    constexpr int64_t kRows = 25;  // rows and depth make the kernel copy b
    constexpr int64_t kDepth = 65;
    for (int64_t columns = 1; columns < 70; ++columns) {
      SCOPED_TRACE(columns);
      const GuardedOnes a(kRows * kDepth);
      const GuardedOnes b(kDepth * columns);
      const GuardedOnes bias(columns);
      const GuardedOnes x(kRows * columns);
      const GuardedOnes out(kRows * columns);
      const GuardedOnes crossed(kRows * columns);
      kernels.product(
          {.rows = kRows,
           .columns = columns,
           .depth = kDepth,
           .a = a.data(),
           .a_row_stride = kDepth,
           .b = b.data(),
           .b_stride = columns,
           .out = out.data(),
           .out_stride = columns,
           .bias = bias.data(),
           .added = x.data(),
           .relu_output = x.data(),
           .relu_output_stride = columns,
           .x0 = x.data(),
           .crossed = crossed.data()});
      for (int64_t i = 0; i < kRows * columns; ++i) {
        ASSERT_EQ(out.data()[i], kDepth + 2.0F) << i;
        ASSERT_EQ(crossed.data()[i], kDepth + 3.0F) << i;
      }
    }
  }
}

TEST(ProductKernelsTest, ComputesTheGradientOfARelu) {
  for_each_case([](const DenseKernelTable& kernels, Matrices& m) {
    m.args.relu_output = m.relu_output.data();
    m.args.relu_output_stride = m.args.columns + 2 * kPadding;
    m.relu_output[0] = 0.0F;
    kernels.product(m.args);
    expect_values(m.out, m.args, [&](int64_t row, int64_t column) {
      const float output =
          m.relu_output[row * m.args.relu_output_stride + column];
      return output <= 0.0F ? 0.0 : m.sum_of(row, column, 0.0);
    });
  });
}

TEST(ProductKernelsTest, CrossesEachSum) {
  for (const bool needs_sums : {false, true}) {
    for_each_case([&](const DenseKernelTable& kernels, Matrices& m) {
      m.args.bias = m.bias.data();
      m.args.added = m.x.data();
      m.args.x0 = m.x0.data();
      m.args.crossed = m.crossed.data();
      m.args.out = needs_sums ? m.out.data() : nullptr;
      kernels.product(m.args);
      const auto sum = [&](int64_t row, int64_t column) {
        const double x = m.x[row * m.args.out_stride + column];
        return m.sum_of(row, column, m.bias[column] + x);
      };
      expect_values(m.crossed, m.args, [&](int64_t row, int64_t column) {
        const double x0 = m.x0[row * m.args.out_stride + column];
        return x0 * sum(row, column) + x0;
      });
      if (needs_sums) {
        expect_values(m.out, m.args, sum);
      } else {
        EXPECT_EQ(m.out, std::vector<float>(m.out.size(), kUntouched));
      }
    });
  }
}

TEST(ProductKernelsTest, ReluKeepsNaN) {
  for_each_case([](const DenseKernelTable& kernels, Matrices& m) {
    m.a[0] = std::numeric_limits<float>::quiet_NaN();
    m.args.has_relu = true;
    m.relu_output[0] = 1.0F;
    m.args.relu_output = m.relu_output.data();
    m.args.relu_output_stride = m.args.columns;
    kernels.product(m.args);
    EXPECT_TRUE(std::isnan(m.out[0]));
  });
}

}  // namespace tessera::kernels::product_kernels_test
