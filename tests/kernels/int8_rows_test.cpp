// SPDX-License-Identifier: Apache-2.0
// Rows of 8-bit codes with a scale. The reference computes in doubles.
#include "src/kernels/kernels.h"
#include "tests/kernels/random_bits_reference.h"
#include "tests/test_util.h"

#include <bit>

namespace tessera::kernels::int8_rows_test {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::array kDims{1, 2, 3, 5, 8, 16, 21, 33, 64, 130};

/// A table in kInt8.
struct Table {
  Table(int64_t rows, int64_t dim)
      : dim(dim), bytes(rows * bytes_of_row(Storage::kInt8, dim)) {}

  StoredRows stored(Rounding rounding = {}) {
    return {
        .data = bytes.data(),
        .dim = dim,
        .storage = Storage::kInt8,
        .rounding = rounding};
  }
  int8_t* row(int64_t index) {
    return bytes.data() + index * bytes_of_row(Storage::kInt8, dim);
  }
  float scale(int64_t index) {
    uint16_t upper;
    std::memcpy(&upper, row(index), sizeof(upper));
    return std::bit_cast<float>(uint32_t{upper} << 16);
  }
  int code(int64_t index, int64_t column) {
    return row(index)[kInt8HeaderBytes + column];
  }
  float number(int64_t index, int64_t column) {
    return scale(index) * static_cast<float>(code(index, column));
  }
  std::vector<float> numbers(int64_t index) {
    std::vector<float> result(dim);
    for (int64_t i = 0; i < dim; ++i) {
      result[i] = number(index, i);
    }
    return result;
  }
  void set(int64_t index, float scale, const std::vector<int8_t>& codes) {
    const auto upper =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(scale) >> 16);
    std::memcpy(row(index), &upper, sizeof(upper));
    std::copy(codes.begin(), codes.end(), row(index) + kInt8HeaderBytes);
  }

  int64_t dim;
  std::vector<int8_t> bytes;
};

std::vector<int8_t> random_codes(int64_t dim, std::mt19937& random) {
  std::vector<int8_t> codes(dim);
  for (int8_t& code : codes) {
    code = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
  }
  return codes;
}

Table random_table(int64_t rows, int64_t dim) {
  std::mt19937 random(5);
  Table table(rows, dim);
  for (int64_t i = 0; i < rows; ++i) {
    table.set(
        i,
        std::ldexp(1.0F + 0x1p-7F * (random() % 128), -(i % 20)),
        random_codes(dim, random));
  }
  return table;
}

// The smallest bfloat16 that is not below `value`.
float rounded_up(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0xFFFFU) & 0xFFFF0000U);
}

TEST(Int8RowsTest, SumsEqualThoseOfDoubles) {
  constexpr int64_t kRows = 300;
  std::mt19937 random(1);
  std::vector<uint32_t> ids(700);
  std::vector<float> weights(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = random() % kRows;
    weights[i] = static_cast<float>(random() % 1000) / 500.0F - 1.0F;
  }
  const std::vector<int64_t> offsets{0, 0, 1, 3, 10, 200, 700};
  const std::vector<float> scales{1.0F, 2.0F, 0.5F, 1.0F, -1.0F, 0.1F};
  for (const KernelTable& kernels : available_kernels()) {
    for (const int64_t dim : kDims) {
      Table table = random_table(kRows, dim);
      std::vector<const void*> rows;
      for (const uint32_t id : ids) {
        rows.push_back(table.row(id));
      }
      for (const bool weighted : {false, true}) {
        for (const bool pointers : {false, true}) {
          SCOPED_TRACE(kernels.isa + " dim " + std::to_string(dim));
          std::vector<float> out(6 * dim, 7.0F);
          kernels.combine(
              {.table = table.stored(),
               .ids = pointers ? nullptr : ids.data(),
               .rows = pointers ? rows.data() : nullptr,
               .nnz = 700,
               .offsets = offsets.data(),
               .weights = weighted ? weights.data() : nullptr,
               .scales = scales.data(),
               .out = out.data(),
               .end_bag = 6});
          for (int64_t bag = 0; bag < 6; ++bag) {
            for (int64_t column = 0; column < dim; ++column) {
              double sum = 0.0;
              double magnitude = 0.0;
              for (int64_t i = offsets[bag]; i < offsets[bag + 1]; ++i) {
                const double term = double{table.number(ids[i], column)} *
                    (weighted ? double{weights[i]} : 1.0);
                sum += term;
                magnitude += std::abs(term);
              }
              ASSERT_NEAR(
                  out[bag * dim + column],
                  sum * scales[bag],
                  1e-5 * (magnitude + 1e-6))
                  << bag << " " << column;
            }
          }
        }
      }
    }
  }
}

TEST(Int8RowsTest, ALookupOfOneRowIsExact) {
  constexpr int64_t kRows = 40;
  std::vector<uint32_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), 0U);
  for (const KernelTable& kernels : available_kernels()) {
    for (const int64_t dim : kDims) {
      Table table = random_table(kRows, dim);
      std::vector<float> out(kRows * dim);
      kernels.combine(
          {.table = table.stored(),
           .ids = ids.data(),
           .nnz = kRows,
           .out = out.data(),
           .end_bag = kRows});
      for (int64_t i = 0; i < kRows * dim; ++i) {
        ASSERT_EQ(out[i], table.number(i / dim, i % dim)) << kernels.isa;
      }
    }
  }
}

TEST(Int8RowsTest, BucketsRoundTheNumbers) {
  const uint32_t id = 1;
  for (const KernelTable& kernels : available_kernels()) {
    Table table(2, 3);
    table.set(1, 0.5F, {-127, 3, 1});
    std::vector<float> out(3);
    kernels.combine(
        {.table = table.stored(),
         .ids = &id,
         .nnz = 1,
         .buckets = {.lower = -1.0F, .upper = 1.0F, .step = 1.0F},
         .out = out.data(),
         .end_bag = 1});
    EXPECT_EQ(out, (std::vector<float>{-1.0F, 1.0F, 1.0F})) << kernels.isa;
  }
}

TEST(Int8RowsTest, AnAssignmentRoundsToTheNearest) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const KernelTable& kernels : available_kernels()) {
    for (const int64_t dim : kDims) {
      std::vector<float> values(dim);
      float largest = 0.0F;
      for (float& value : values) {
        value = normal(random);
        largest = std::max(largest, std::abs(value));
      }
      Table table(3, dim);
      table.set(1, 64.0F, std::vector<int8_t>(dim, 5));  // is not kept
      kernels.assign_row(table.stored(), 1, values.data());
      EXPECT_EQ(table.scale(1), rounded_up(largest / 127.0F * 1.125F));
      for (int64_t i = 0; i < dim; ++i) {
        ASSERT_EQ(
            table.code(1, i),
            std::nearbyint(double{values[i]} / double{table.scale(1)}))
            << kernels.isa;
      }
      for (const int64_t other : {0, 2}) {
        EXPECT_EQ(table.numbers(other), std::vector<float>(dim, 0.0F));
      }
    }
  }
}

TEST(Int8RowsTest, ARowOfZerosHasTheScaleZero) {
  for (const KernelTable& kernels : available_kernels()) {
    Table table(1, 5);
    table.set(0, 1.0F, {1, 2, 3, 4, 5});
    const std::vector<float> zeros{0.0F, -0.0F, 0.0F, 0.0F, 0.0F};
    kernels.assign_row(table.stored({.is_stochastic = true}), 0, zeros.data());
    EXPECT_EQ(table.scale(0), 0.0F);
    EXPECT_EQ(table.numbers(0), std::vector<float>(5, 0.0F));
  }
}

// The expectation of the rounded number is the number itself.
TEST(Int8RowsTest, RandomRoundingPicksNeighboursByTheirDistance) {
  constexpr int kKeys = 2000;
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> values(37);
  for (float& value : values) {
    value = normal(random);
  }
  const auto dim = static_cast<int64_t>(values.size());
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    std::vector<double> means(values.size());
    Table table(1, dim);
    for (int key = 0; key < kKeys; ++key) {
      kernels.assign_row(
          table.stored(
              {.is_stochastic = true, .key = static_cast<uint64_t>(key)}),
          0,
          values.data());
      const double scale = table.scale(0);
      for (int64_t i = 0; i < dim; ++i) {
        ASSERT_LT(std::abs(table.number(0, i) - values[i]), scale);
        means[i] += double{table.number(0, i)} / kKeys;
      }
    }
    // Five standard deviations of the mean of kKeys coins.
    const double tolerance = 5 * 0.5 * table.scale(0) / std::sqrt(kKeys);
    for (int64_t i = 0; i < dim; ++i) {
      EXPECT_NEAR(means[i], values[i], tolerance);
    }
  }
}

TEST(Int8RowsTest, RandomRoundingAddsTheBitsBeforeItRounds) {
  constexpr Rounding kRounding{.is_stochastic = true, .key = 12345};
  for (const KernelTable& kernels : available_kernels()) {
    for (const int64_t dim : kDims) {
      for (const int64_t row : {0, 7}) {
        std::vector<float> values(dim, 3.7F);
        values[0] = 112.8F;  // with room, the scale becomes 1
        Table table(row + 1, dim);
        kernels.assign_row(table.stored(kRounding), row, values.data());
        ASSERT_EQ(table.scale(row), 1.0F);
        for (int64_t column = 1; column < dim; ++column) {
          const uint32_t random =
              rounding_bits(kRounding.key, row, static_cast<uint32_t>(column));
          const double shift = (random - 32767.5) / 65536 * (1 - 0x1p-14);
          ASSERT_EQ(
              table.code(row, column),
              std::nearbyint(double{values[column]} + shift))
              << kernels.isa;
        }
      }
    }
  }
}

TEST(Int8RowsTest, NumbersThatAreCodesStay) {
  for (const KernelTable& kernels : available_kernels()) {
    for (const int64_t dim : kDims) {
      Table table = random_table(40, dim);
      for (int64_t row = 0; row < 40; ++row) {
        table.row(row)[kInt8HeaderBytes] = 127;
        const std::vector<int8_t> before = table.bytes;
        const std::vector<float> values = table.numbers(row);
        for (uint64_t key = 0; key < 20; ++key) {
          kernels.assign_row(
              table.stored(
                  {.is_stochastic = true, .key = key, .keeps_scale = true}),
              row,
              values.data());
          ASSERT_EQ(table.bytes, before) << kernels.isa;
        }
      }
    }
  }
}

TEST(Int8RowsTest, TheScaleGrowsWithRoomAndIsHalved) {
  const Rounding rounding{.is_stochastic = true, .keeps_scale = true};
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    Table table(1, 3);
    table.set(0, 1.0F, {127, 3, -7});
    const std::vector<float> larger{128.0F, 3.0F, -7.0F};
    kernels.assign_row(table.stored(rounding), 0, larger.data());
    EXPECT_EQ(table.scale(0), rounded_up(128.0F / 127.0F * 1.125F));
    // Halves change no number.
    table.set(0, 1.0F, {31, 3, -7});
    const std::vector<float> small{31.0F, 3.0F, -7.0F};
    kernels.assign_row(table.stored(rounding), 0, small.data());
    EXPECT_EQ(table.scale(0), 0.5F);
    EXPECT_EQ(table.numbers(0), small);
    table.set(0, 1.0F, {32, 3, -7});
    const std::vector<float> enough{32.0F, 3.0F, -7.0F};
    kernels.assign_row(table.stored(rounding), 0, enough.data());
    EXPECT_EQ(table.scale(0), 1.0F);
    EXPECT_EQ(table.numbers(0), enough);
  }
}

TEST(Int8RowsTest, ARowWithANumberThatIsNotFiniteIsNaN) {
  for (const KernelTable& kernels : available_kernels()) {
    for (const float value :
         {kNaN,
          std::bit_cast<float>(0x7FFFFFFFU),
          std::bit_cast<float>(0x7F800001U),
          kInfinity,
          -kInfinity}) {
      for (const bool is_stochastic : {false, true}) {
        Table table(1, 3);
        const std::vector<float> values{1.0F, value, 2.0F};
        kernels.assign_row(
            table.stored({.is_stochastic = is_stochastic}), 0, values.data());
        EXPECT_FALSE(std::isfinite(table.scale(0))) << kernels.isa;
      }
    }
  }
}

// Each rule of the update computes what it computes on a float32 table, and rounds once.
TEST(Int8RowsTest, AnUpdateRoundsTheResultOfFloat32) {
  constexpr int64_t kVocab = 5;
  const std::vector<RowRule> rules{
      SgdRule{.learning_rate = 0.3F},
      AdagradRule{.learning_rate = 0.3F},
      RowWiseAdagradRule{.learning_rate = 0.3F},
      FtrlRule{.learning_rate = 0.3F},
      MomentumRule{.learning_rate = 0.3F, .momentum = 0.9F},
      LionRule{.learning_rate = 0.3F, .beta_1 = 0.9, .beta_2 = 0.99},
      AdamRule{.learning_rate = 0.3F, .beta_1 = 0.9, .beta_2 = 0.99}};
  for (const KernelTable& kernels : available_kernels()) {
    for (const RowRule& rule : rules) {
      for (const int64_t dim : kDims) {
        SCOPED_TRACE(kernels.isa + " dim " + std::to_string(dim));
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        std::vector<float> gradients(3 * dim);
        for (float& value : gradients) {
          value = normal(random);
        }
        gradients[0] = 0.0F;
        gradients[dim] = 0.0F;
        Table table = random_table(kVocab, dim);
        Table expected = table;
        std::vector<float> floats;
        for (int64_t row = 0; row < kVocab; ++row) {
          const std::vector<float> numbers = table.numbers(row);
          floats.insert(floats.end(), numbers.begin(), numbers.end());
        }
        const auto update = [&](StoredRows stored) {
          std::vector<float> slots(2 * kVocab * dim, 0.1F);
          std::vector<float> scratch(3 * dim, 0.0F);
          const std::vector<Contribution> contributions{{1, 0}, {1, 1}, {4, 2}};
          const std::vector<GradientSource> sources{
              {gradients.data(), 1.0F},
              {gradients.data() + dim, 0.5F},
              {gradients.data() + 2 * dim, 1.0F}};
          kernels.update(
              {.table = stored,
               .slots = {slots.data(), slots.data() + kVocab * dim},
               .contributions = contributions.data(),
               .count = 3,
               .sources = sources.data(),
               .gradient = scratch.data(),
               .direction = scratch.data() + dim,
               .weights = scratch.data() + 2 * dim},
              rule);
          return slots;
        };
        const Rounding rounding{
            .is_stochastic = true, .key = 99, .keeps_scale = true};
        const auto slots = update(table.stored(rounding));
        EXPECT_EQ(slots, update({.data = floats.data(), .dim = dim}));
        for (const int64_t row : {1, 4}) {
          kernels.assign_row(
              expected.stored(rounding), row, floats.data() + row * dim);
        }
        ASSERT_EQ(table.bytes, expected.bytes);
      }
    }
  }
}

}  // namespace tessera::kernels::int8_rows_test
