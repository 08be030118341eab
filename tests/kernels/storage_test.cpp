// SPDX-License-Identifier: Apache-2.0
// Tests tables of 16-bit numbers. LibTorch's conversions are the reference.
#include "src/kernels/kernels.h"
#include "tests/kernels/random_bits_reference.h"
#include "tests/test_util.h"

#include <bit>

namespace tessera::kernels::storage_test {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct BFloat16 {
  static constexpr Storage kStorage = Storage::kBFloat16;
  using Type = c10::BFloat16;
};
struct Float16 {
  static constexpr Storage kStorage = Storage::kFloat16;
  using Type = c10::Half;
};

template <class Format>
float widened(uint16_t bits) {
  return static_cast<float>(std::bit_cast<typename Format::Type>(bits));
}

template <class Format>
uint16_t nearest(float value) {
  return std::bit_cast<uint16_t>(typename Format::Type(value));
}

template <class Format>
class StorageTest : public testing::Test {
 public:
  using Rows = std::vector<uint16_t>;

  static StoredRows stored(Rows& rows, int64_t dim, Rounding rounding = {}) {
    return {
        .data = rows.data(),
        .dim = dim,
        .storage = Format::kStorage,
        .rounding = rounding};
  }

  // Assigns `values` to a row of a new table, and returns the bits of that row.
  static Rows assigned(
      const KernelTable& kernels,
      const std::vector<float>& values,
      Rounding rounding,
      int64_t row = 0) {
    const auto dim = static_cast<int64_t>(values.size());
    Rows rows((row + 1) * dim);
    kernels.assign_row(stored(rows, dim, rounding), row, values.data());
    return {rows.begin() + row * dim, rows.end()};
  }

  // The two 16-bit numbers around `value`, ascending. If 16 bits can represent
  // `value`, both are equal.
  static std::pair<float, float> neighbours(float value) {
    const uint16_t bits = nearest<Format>(value);
    const float near = widened<Format>(bits);
    if (near == value) {
      return {value, value};
    }
    // The other neighbour is the next number away from zero, or towards it.
    const bool is_away_from_zero = std::abs(near) < std::abs(value);
    const float other = widened<Format>(
        static_cast<uint16_t>(is_away_from_zero ? bits + 1 : bits - 1));
    return {std::min(near, other), std::max(near, other)};
  }
};

using Formats = testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(StorageTest, Formats);

// Floats of every magnitude that 16 bits can represent, and of some beyond.
std::vector<float> many_floats() {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values{0.0F, -0.0F, kInfinity, -kInfinity};
  for (int exponent = -30; exponent <= 17; ++exponent) {
    for (int i = 0; i < 60; ++i) {
      values.push_back(std::ldexp(normal(random), exponent));
    }
    // Halfway between two float16s, and between two bfloat16s.
    values.push_back(std::ldexp(1.0F + 0x1p-11F, exponent));
    values.push_back(std::ldexp(1.0F + 3 * 0x1p-11F, exponent));
    values.push_back(std::ldexp(-1.0F - 0x1p-8F, exponent));
    values.push_back(std::ldexp(1.0F + 3 * 0x1p-8F, exponent));
  }
  return values;
}

TYPED_TEST(StorageTest, ReadsEveryNumberExactly) {
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const int64_t dim : {1, 2, 3, 7, 8, 16, 21, 32, 64, 128}) {
      const int64_t vocab = 65536 / dim;
      std::vector<uint16_t> rows(vocab * dim);
      std::iota(rows.begin(), rows.end(), uint16_t{0});
      std::vector<uint32_t> ids(vocab);
      std::iota(ids.begin(), ids.end(), 0U);
      std::vector<float> out(vocab * dim, 7.0F);
      kernels.combine(
          {.table = TestFixture::stored(rows, dim),
           .ids = ids.data(),
           .nnz = vocab,
           .out = out.data(),
           .end_bag = vocab});
      for (size_t i = 0; i < out.size(); ++i) {
        const auto expected = widened<TypeParam>(rows[i]);
        ASSERT_TRUE(
            out[i] == expected || (std::isnan(out[i]) && std::isnan(expected)))
            << "bits " << rows[i] << ", dim " << dim << ": " << out[i];
      }
    }
  }
}

TYPED_TEST(StorageTest, RoundsToTheNearestLikeLibTorch) {
  const std::vector<float> values = many_floats();
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    const auto actual = TestFixture::assigned(kernels, values, {});
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(actual[i], nearest<TypeParam>(values[i])) << values[i];
    }
  }
}

TYPED_TEST(StorageTest, RandomRoundingPicksNeighboursByTheirDistance) {
  constexpr int kKeys = 400;
  const std::vector<float> values = many_floats();
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    std::vector<double> ups(values.size());
    for (int key = 0; key < kKeys; ++key) {
      const auto actual = TestFixture::assigned(
          kernels,
          values,
          {.is_stochastic = true, .key = static_cast<uint64_t>(key)});
      for (size_t i = 0; i < values.size(); ++i) {
        const auto [below, above] = TestFixture::neighbours(values[i]);
        const float rounded = widened<TypeParam>(actual[i]);
        ASSERT_TRUE(rounded == below || rounded == above)
            << values[i] << " became " << rounded;
        ups[i] += rounded == above ? 1.0 / kKeys : 0.0;
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const auto [below, above] = TestFixture::neighbours(values[i]);
      if (below == above || std::isinf(above) || std::isinf(below)) {
        continue;
      }
      const double expected = (double{values[i]} - below) / (above - below);
      // The tolerance is five standard deviations of the mean of kKeys coins.
      ASSERT_NEAR(ups[i], expected, 0.125) << values[i];
    }
  }
}

TYPED_TEST(StorageTest, RandomRoundingKeepsRepresentableNumbers) {
  std::vector<uint16_t> smallest(2048);
  std::iota(smallest.begin(), smallest.end(), uint16_t{0});
  std::vector<float> values(smallest.size());
  std::transform(
      smallest.begin(), smallest.end(), values.begin(), widened<TypeParam>);
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (uint64_t key = 0; key < 300; ++key) {
      ASSERT_EQ(
          TestFixture::assigned(
              kernels, values, {.is_stochastic = true, .key = key}),
          smallest);
    }
  }
}

// Ten duplicates of 0.3 units each move a weight by about three units. If they
// were rounded alike, they would move it by ten units or by none.
TYPED_TEST(StorageTest, DuplicatesRoundIndependentlyWithoutAccumulation) {
  constexpr int64_t kDim = 2000;
  const float unit = widened<TypeParam>(nearest<TypeParam>(1.0F) + 1) - 1.0F;
  const std::vector<float> gradient(kDim, -0.3F * unit);
  const std::vector<GradientSource> sources{{gradient.data(), 1.0F}};
  const std::vector<Contribution> contributions(10, Contribution{0, 0});
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    std::vector<uint16_t> row(kDim, nearest<TypeParam>(1.0F));
    std::vector<float> scratch(kDim);
    kernels.update(
        {.table =
             TestFixture::stored(row, kDim, {.is_stochastic = true, .key = 5}),
         .contributions = contributions.data(),
         .count = 10,
         .sources = sources.data(),
         .weights = scratch.data(),
         .accumulate = false},
        SgdRule{.learning_rate = 1.0F});
    double mean = 0.0;
    double square = 0.0;
    for (const uint16_t bits : row) {
      const double units = (widened<TypeParam>(bits) - 1.0) / unit;
      mean += units / kDim;
      square += units * units / kDim;
    }
    EXPECT_NEAR(mean, 3.0, 0.2);
    // Ten independent roundings have a variance of 2.1. If all ten were alike,
    // it would be 21.
    EXPECT_NEAR(square - mean * mean, 2.1, 0.4);
  }
}

TYPED_TEST(StorageTest, ANaNStaysANaN) {
  const std::vector<float> values{
      std::numeric_limits<float>::quiet_NaN(),
      -std::numeric_limits<float>::quiet_NaN(),
      std::bit_cast<float>(0x7F800001U),  // its payload is in the lower half
      std::bit_cast<float>(0xFFBFFFFFU)};
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const bool is_stochastic : {false, true}) {
      const auto actual = TestFixture::assigned(
          kernels, values, {.is_stochastic = is_stochastic});
      for (const uint16_t bits : actual) {
        EXPECT_TRUE(std::isnan(widened<TypeParam>(bits))) << bits;
      }
    }
  }
}

// Assigns `value` to all columns of some rows, and checks each with
// expected(random bits of row and column).
template <class Expected>
void check_random_rounding(Storage storage, float value, Expected expected) {
  constexpr Rounding kRounding{.is_stochastic = true, .key = 12345};
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    for (const int64_t dim : {1, 3, 16, 37}) {
      for (const int64_t row : {0, 1, 77}) {
        std::vector<uint16_t> rows((row + 1) * dim);
        const std::vector<float> values(dim, value);
        kernels.assign_row(
            {.data = rows.data(),
             .dim = dim,
             .storage = storage,
             .rounding = kRounding},
            row,
            values.data());
        for (int64_t column = 0; column < dim; ++column) {
          const uint32_t random =
              rounding_bits(kRounding.key, row, static_cast<uint32_t>(column));
          ASSERT_EQ(rows[row * dim + column], expected(random)) << column;
        }
      }
    }
  }
}

TEST(RandomRoundingTest, BFloat16AddsTheBitsToTheLowerHalf) {
  static constexpr float kValue = 1.001F;
  check_random_rounding(Storage::kBFloat16, kValue, [](uint32_t random) {
    return (std::bit_cast<uint32_t>(kValue) + random) >> 16;
  });
}

TEST(RandomRoundingTest, Float16AddsTheBitsToTheMantissa) {
  static constexpr float kValue = 1.0003F;
  check_random_rounding(Storage::kFloat16, kValue, [](uint32_t random) {
    const uint32_t sum = std::bit_cast<uint32_t>(kValue) + (random >> 3);
    return (sum >> 13) - (112U << 10);
  });
}

TEST(RandomRoundingTest, SubnormalFloat16ComparesTheBitsWithTheFraction) {
  constexpr float kUnit = 0x1p-24F;
  check_random_rounding(
      Storage::kFloat16, 3.7F * kUnit, [](uint32_t random) -> uint32_t {
        return (random + 0.5) / 65536 < 3.7F - 3 ? 4 : 3;
      });
}

template <class Format>
void check_updates(const RowStages& stages) {
  using Fixture = StorageTest<Format>;
  constexpr int64_t kVocab = 5;
  const std::vector<RowRule> rules{
      SgdRule{.learning_rate = 0.3F},
      AdagradRule{.learning_rate = 0.3F},
      RowWiseAdagradRule{.learning_rate = 0.3F},
      AdamRule{.learning_rate = 0.3F, .beta_1 = 0.9, .beta_2 = 0.99},
      LambRule{
          .learning_rate = 0.3F,
          .beta_1 = 0.9,
          .beta_2 = 0.99,
          .epsilon = 1e-6F,
          .weight_decay = 0.1F}};
  for (const KernelTable& kernels : available_kernels()) {
    for (const RowRule& rule : rules) {
      for (const int64_t dim : {1, 5, 16, 33}) {
        SCOPED_TRACE(kernels.isa + " dim " + std::to_string(dim));
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        std::vector<float> gradients(3 * dim);
        for (float& value : gradients) {
          value = normal(random);
        }
        std::vector<uint16_t> halves(kVocab * dim);
        std::vector<float> floats(kVocab * dim);
        for (size_t i = 0; i < halves.size(); ++i) {
          halves[i] = nearest<Format>(normal(random));
          floats[i] = widened<Format>(halves[i]);
        }
        const auto update = [&](StoredRows table) {
          std::vector<float> slots(2 * kVocab * dim, 0.1F);
          std::vector<float> scratch(4 * dim, 0.0F);
          const std::vector<Contribution> contributions{{1, 0}, {1, 1}, {4, 2}};
          const std::vector<GradientSource> sources{
              {gradients.data(), 1.0F},
              {gradients.data() + dim, 0.5F},
              {gradients.data() + 2 * dim, 1.0F}};
          UpdateArgs args{
              .table = table,
              .slots = {slots.data(), slots.data() + kVocab * dim},
              .contributions = contributions.data(),
              .count = 3,
              .sources = sources.data(),
              .gradient = scratch.data(),
              .direction = scratch.data() + dim,
              .weights = scratch.data() + 2 * dim,
              .sweep = true,  // also updates rows without a gradient
              .end_row = kVocab,
              .zeros = scratch.data() + 3 * dim};
          args.stages = stages;
          kernels.update(args, rule);
          return slots;
        };
        const Rounding rounding{.is_stochastic = true, .key = 99};
        const auto slots = update(Fixture::stored(halves, dim, rounding));
        EXPECT_EQ(slots, update({.data = floats.data(), .dim = dim}));
        std::vector<uint16_t> expected(kVocab * dim);
        for (int64_t row = 0; row < kVocab; ++row) {
          kernels.assign_row(
              Fixture::stored(expected, dim, rounding),
              row,
              floats.data() + row * dim);
        }
        ASSERT_EQ(halves, expected);
      }
    }
  }
}

TYPED_TEST(StorageTest, AnUpdateRoundsTheResultOfFloat32) {
  check_updates<TypeParam>({});
}

TYPED_TEST(StorageTest, AnUpdateWithStagesRoundsTheResultOfFloat32) {
  check_updates<TypeParam>(
      {.weight_decay = 0.01F,
       .clip_weight = true,
       .clip_weight_min = -1.0F,
       .clip_weight_max = 1.0F});
}

// Stages make a copy of the row. Limits that are infinite change nothing.
TYPED_TEST(StorageTest, StepsWithoutACopyOfTheRowEqualStepsWithOne) {
  const std::vector<RowRule> rules{
      SgdRule{.learning_rate = 0.3F},
      AdagradRule{.learning_rate = 0.3F},
      RowWiseAdagradRule{.learning_rate = 0.3F},
      AdamRule{.learning_rate = 0.3F, .beta_1 = 0.9, .beta_2 = 0.99}};
  constexpr int64_t kVocab = 5;
  const std::vector<Contribution> contributions{{1, 0}, {1, 1}, {1, 2}, {4, 0}};
  for (const KernelTable& kernels : available_kernels()) {
    for (const RowRule& rule : rules) {
      for (const int64_t dim : {1, 5, 16, 33}) {
        SCOPED_TRACE(kernels.isa + " dim " + std::to_string(dim));
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        std::vector<float> gradients(3 * dim);
        for (float& value : gradients) {
          value = normal(random);
        }
        const std::vector<GradientSource> sources{
            {gradients.data(), 1.0F},
            {gradients.data() + dim, 0.5F},
            {gradients.data() + 2 * dim, 1.0F}};
        const auto update = [&](bool accumulate, const RowStages& stages) {
          std::vector<uint16_t> rows(kVocab * dim, nearest<TypeParam>(0.7F));
          std::vector<float> slots(2 * kVocab * dim, 0.1F);
          std::vector<float> scratch(3 * dim);
          kernels.update(
              {.table = TestFixture::stored(
                   rows, dim, {.is_stochastic = true, .key = 99}),
               .slots = {slots.data(), slots.data() + kVocab * dim},
               .contributions = contributions.data(),
               .count = 4,
               .sources = sources.data(),
               .gradient = scratch.data(),
               .direction = scratch.data() + dim,
               .weights = scratch.data() + 2 * dim,
               .accumulate = accumulate,
               .stages = stages},
              rule);
          return std::pair(rows, slots);
        };
        for (const bool accumulate : {true, false}) {
          ASSERT_EQ(
              update(accumulate, {}),
              update(
                  accumulate,
                  {.clip_weight = true,
                   .clip_weight_min = -kInfinity,
                   .clip_weight_max = kInfinity}));
        }
      }
    }
  }
}

// The rule works on copies of the slots, which are rounded like rows.
TYPED_TEST(StorageTest, NarrowSlotsRoundTheResultOfFloat32) {
  constexpr int64_t kVocab = 5;
  const std::vector<RowRule> rules{
      SgdRule{.learning_rate = 0.3F},
      AdagradRule{.learning_rate = 0.3F},
      AdamRule{.learning_rate = 0.3F, .beta_1 = 0.9, .beta_2 = 0.99},
      LambRule{.learning_rate = 0.3F, .beta_1 = 0.9, .beta_2 = 0.99}};
  for (const KernelTable& kernels : available_kernels()) {
    for (const RowRule& rule : rules) {
      for (const int64_t dim : {1, 5, 16, 33}) {
        SCOPED_TRACE(kernels.isa + " dim " + std::to_string(dim));
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        std::vector<float> gradients(2 * dim);
        for (float& value : gradients) {
          value = normal(random);
        }
        using Slots = std::array<std::vector<uint16_t>, 2>;
        Slots narrow;
        std::array<std::vector<float>, 2> wide;
        for (size_t slot = 0; slot < 2; ++slot) {
          for (int64_t i = 0; i < kVocab * dim; ++i) {
            narrow[slot].push_back(
                nearest<TypeParam>(std::abs(normal(random))));
            wide[slot].push_back(widened<TypeParam>(narrow[slot].back()));
          }
        }
        std::array<StoredRows, kMaxSlots> stored;
        for (size_t slot = 0; slot < 2; ++slot) {
          stored[slot] = TestFixture::stored(
              narrow[slot], dim, {.is_stochastic = true, .key = 5 + slot});
        }
        const auto update = [&](const StoredRows* narrow_slots) {
          std::vector<float> rows(kVocab * dim, 0.5F);
          std::vector<float> copies(2 * dim);
          std::vector<float> scratch(4 * dim, 0.0F);
          const std::vector<Contribution> contributions{{1, 0}, {4, 1}};
          const std::vector<GradientSource> sources{
              {gradients.data(), 1.0F}, {gradients.data() + dim, 1.0F}};
          const bool is_narrow = narrow_slots != nullptr;
          kernels.update(
              {.table = {.data = rows.data(), .dim = dim},
               .slots =
                   {is_narrow ? copies.data() : wide[0].data(),
                    is_narrow ? copies.data() + dim : wide[1].data()},
               .narrow_slots = narrow_slots,
               .contributions = contributions.data(),
               .count = 2,
               .sources = sources.data(),
               .gradient = scratch.data(),
               .direction = scratch.data() + dim,
               .weights = scratch.data() + 2 * dim,
               .sweep = true,  // also updates rows without a gradient
               .end_row = kVocab,
               .zeros = scratch.data() + 3 * dim},
              rule);
          return rows;
        };
        const Slots before = narrow;
        EXPECT_EQ(update(stored.data()), update(nullptr));
        if (std::holds_alternative<SgdRule>(rule)) {
          EXPECT_EQ(narrow, before);
          continue;
        }
        Slots expected = before;
        for (size_t slot = 0; slot < 2; ++slot) {
          StoredRows to = stored[slot];
          to.data = expected[slot].data();
          for (int64_t row = 0; row < kVocab; ++row) {
            kernels.assign_row(to, row, wide[slot].data() + row * dim);
          }
        }
        ASSERT_EQ(narrow, expected);
      }
    }
  }
}

}  // namespace tessera::kernels::storage_test
