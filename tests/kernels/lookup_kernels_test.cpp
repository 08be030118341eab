// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/kernels.h"
#include "tests/test_util.h"

namespace tessera::kernels::lookup_kernels_test {

// Dims near multiples of the vector widths, and dims of real tables.
std::vector<int64_t> dims() {
  std::vector<int64_t> dims(40);
  std::iota(dims.begin(), dims.end(), 1);
  dims.insert(dims.end(), {64, 100, 127, 128, 129, 256, 300});
  return dims;
}

template <class Check>
void for_each_isa(Check check) {
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    check(kernels);
  }
}

std::vector<float> random_floats(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  return values;
}

// Bags of very different lengths. Some are empty, and the others contain the
// table's last row. Each vector has exactly the needed size, so the address
// sanitizer notices any access past its end.
struct Example {
  static constexpr int64_t kVocab = 13;
  static constexpr int64_t kBags = 9;

  explicit Example(int64_t dim)
      : dim(dim),
        table(random_floats(kVocab * dim, 1)),
        offsets{0, 0, 1, 3, 3, 20, 21, 60, 61, 61},
        ids(offsets.back()),
        weights(random_floats(offsets.back(), 2)),
        scales(random_floats(kBags, 3)),
        out(kBags * dim, 7.0F) {
    std::mt19937 random(4);
    for (uint32_t& id : ids) {
      id = random() % kVocab;
    }
    for (int64_t bag = 0; bag < kBags; ++bag) {
      if (offsets[bag] < offsets[bag + 1]) {
        ids[offsets[bag]] = kVocab - 1;
      }
    }
  }

  CombineArgs args() {
    return {
        .table = {.data = table.data(), .dim = dim},
        .ids = ids.data(),
        .nnz = static_cast<int64_t>(ids.size()),
        .offsets = offsets.data(),
        .weights = weights.data(),
        .scales = scales.data(),
        .out = out.data(),
        .begin_bag = 0,
        .end_bag = kBags};
  }

  int64_t dim;
  std::vector<float> table;
  std::vector<int64_t> offsets;
  std::vector<uint32_t> ids;
  std::vector<float> weights;
  std::vector<float> scales;
  std::vector<float> out;
};

const float* row_of(const CombineArgs& args, uint32_t id) {
  return static_cast<const float*>(args.table.data) + id * args.table.dim;
}

// Compares `args.out` with the pseudocode of CombineArgs in double precision.
void expect_combined(const CombineArgs& args) {
  for (int64_t bag = args.begin_bag; bag < args.end_bag; ++bag) {
    const int64_t begin = args.offsets == nullptr ? bag : args.offsets[bag];
    const int64_t end =
        args.offsets == nullptr ? bag + 1 : args.offsets[bag + 1];
    for (int64_t column = 0; column < args.table.dim; ++column) {
      double sum = 0.0;
      double magnitude = 0.0;
      for (int64_t i = begin; i < end; ++i) {
        const double weight = args.weights == nullptr ? 1.0 : args.weights[i];
        const double term = weight * row_of(args, args.ids[i])[column];
        sum += term;
        magnitude += std::abs(term);
      }
      const double scale = args.scales == nullptr ? 1.0 : args.scales[bag];
      ASSERT_NEAR(
          args.out[bag * args.table.dim + column],
          scale * sum,
          1e-6 * std::abs(scale) * magnitude)
          << "dim " << args.table.dim << ", bag " << bag << ", column "
          << column;
    }
  }
}

TEST(LookupKernelsTest, SumsTheWeightedRowsOfEachBagAndScalesThem) {
  for_each_isa([](const KernelTable& kernels) {
    for (const int64_t dim : dims()) {
      for (const bool is_weighted : {false, true}) {
        for (const bool is_scaled : {false, true}) {
          Example example(dim);
          CombineArgs args = example.args();
          args.weights = is_weighted ? args.weights : nullptr;
          args.scales = is_scaled ? args.scales : nullptr;
          kernels.combine(args);
          expect_combined(args);
        }
      }
    }
  });
}

// Rows at scattered addresses give the same bits as the table that they are copies of.
TEST(LookupKernelsTest, RowsAtPointersGiveTheBitsOfTheTable) {
  for_each_isa([](const KernelTable& kernels) {
    for (const int64_t dim : dims()) {
      for (const bool has_options : {true, false}) {
        Example example(dim);
        CombineArgs args = example.args();
        if (!has_options) {
          args.weights = args.scales = nullptr;
        }
        kernels.combine(args);
        std::vector<std::vector<float>> copies;
        for (uint32_t id = 0; id < Example::kVocab; ++id) {
          copies.emplace_back(row_of(args, id), row_of(args, id) + dim);
        }
        std::vector<const void*> rows;
        for (const uint32_t id : example.ids) {
          rows.push_back(copies[id].data());
        }
        std::vector<float> out(example.out.size(), 7.0F);
        args.table.data = nullptr;
        args.ids = nullptr;
        args.rows = rows.data();
        args.out = out.data();
        kernels.combine(args);
        ASSERT_EQ(out, example.out) << dim;
        // One row per bag, as copies.
        args.offsets = nullptr;
        args.weights = args.scales = nullptr;
        args.nnz = Example::kBags;
        kernels.combine(args);
        for (int64_t bag = 0; bag < Example::kBags; ++bag) {
          ASSERT_TRUE(std::equal(
              copies[example.ids[bag]].begin(),
              copies[example.ids[bag]].end(),
              out.begin() + bag * dim));
        }
      }
    }
  });
}

// Each number of a quantized row is within half a step of the original, and sums are those
// of the pseudocode.
TEST(QuantizedKernelsTest, SumsTheDequantizedRowsOfEachBag) {
  for_each_isa([](const KernelTable& kernels) {
    for (const int bits : {8, 4}) {
      for (const int64_t dim : dims()) {
        Example example(dim);
        const int64_t bytes = QuantizedRow::bytes(dim, bits);
        std::vector<uint8_t> stored(
            Example::kVocab * bytes + kReadAfterRow, 0xAB);
        std::vector<const void*> rows;
        double largest_step = 0.0;
        for (int64_t row = 0; row < Example::kVocab; ++row) {
          const float* values = example.table.data() + row * dim;
          uint8_t* to = stored.data() + row * bytes;
          ASSERT_TRUE(quantize_row(values, dim, bits, to));
          const auto [low, high] = std::minmax_element(values, values + dim);
          largest_step = std::max(
              largest_step,
              (double{*high} - double{*low}) / double((1 << bits) - 1));
        }
        for (const uint32_t id : example.ids) {
          rows.push_back(stored.data() + id * bytes);
        }
        CombineQuantizedArgs args{
            .dim = dim,
            .bits = bits,
            .rows = rows.data(),
            .nnz = static_cast<int64_t>(rows.size()),
            .offsets = example.offsets.data(),
            .weights = example.weights.data(),
            .scales = example.scales.data(),
            .out = example.out.data(),
            .end_bag = Example::kBags};
        kernels.combine_quantized(args);
        std::vector<float> by_ids(example.out.size());
        args.table = stored.data();
        args.ids = example.ids.data();
        args.rows = nullptr;
        args.out = by_ids.data();
        kernels.combine_quantized(args);
        ASSERT_EQ(by_ids, example.out);
        for (int64_t bag = 0; bag < Example::kBags; ++bag) {
          for (int64_t column = 0; column < dim; ++column) {
            double sum = 0.0;
            double error = 0.0;
            for (int64_t i = example.offsets[bag]; i < example.offsets[bag + 1];
                 ++i) {
              const double weight = example.weights[i];
              const double value = example.table[example.ids[i] * dim + column];
              sum += weight * value;
              error += std::abs(weight) *
                  (0.5001 * largest_step + 1e-6 * std::abs(value));
            }
            ASSERT_NEAR(
                example.out[bag * dim + column],
                example.scales[bag] * sum,
                std::abs(example.scales[bag]) * error + 1e-6)
                << bits << " bits, dim " << dim << ", column " << column;
          }
        }
      }
    }
  });
}

TEST(QuantizedKernelsTest, EqualValuesAreExactAndRowsMustBeFinite) {
  const std::vector<float> values{0.1F, 0.1F, 0.1F};
  std::vector<uint8_t> row(QuantizedRow::bytes(3, 4) + kReadAfterRow);
  ASSERT_TRUE(quantize_row(values.data(), 3, 4, row.data()));
  const void* rows[] = {row.data()};
  std::vector<float> out(3);
  available_kernels().front().combine_quantized(
      {.dim = 3,
       .bits = 4,
       .rows = rows,
       .nnz = 1,
       .out = out.data(),
       .end_bag = 1});
  EXPECT_EQ(out, values);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float largest = std::numeric_limits<float>::max();
  EXPECT_FALSE(quantize_row(std::vector{1.0F, nan}.data(), 2, 8, row.data()));
  EXPECT_FALSE(
      quantize_row(std::vector{-largest, largest}.data(), 2, 8, row.data()));
}

TEST(LookupKernelsTest, ReplacedRowsAreFound) {
  constexpr int64_t kRows = 3 * LocateArgs::kChunkRows;
  constexpr int64_t kRowBytes = 12;
  constexpr int64_t kWords = LocateArgs::kChunkRows / 64;
  std::mt19937 random(3);
  const std::vector<char> table(kRows * kRowBytes);
  const std::vector<char> others(kRows);
  // Of the three chunks, one has no replacement, and one has only few.
  std::vector<const void*> expected;
  std::vector<std::vector<OverlaidWord>> words(
      3, std::vector<OverlaidWord>(kWords));
  std::vector<std::vector<const void*>> replacements(kRows / 64);
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t chunk = row / LocateArgs::kChunkRows;
    const bool is_replaced =
        chunk == 1 ? random() % 2 == 0 : chunk == 2 && random() % 100 == 0;
    expected.push_back(
        is_replaced ? others.data() + row : table.data() + row * kRowBytes);
    if (is_replaced) {
      words[chunk][row / 64 % words[chunk].size()].replaced |= uint64_t{1}
          << (row % 64);
      replacements[row / 64].push_back(expected.back());
    }
  }
  for (int64_t i = 0; i < kRows / 64; ++i) {
    words[i / kWords][i % kWords].rows = replacements[i].data();
  }
  const OverlaidWord* chunks[] = {
      words[0].data(), words[1].data(), words[2].data()};
  for_each_isa([&](const KernelTable& kernels) {
    for (const int64_t count : {0, 1, 31, 32, 33, 64, 65, 5000}) {
      std::vector<uint32_t> ids(count);
      for (uint32_t& id : ids) {
        id = static_cast<uint32_t>(random() % kRows);
      }
      std::vector<const void*> found(count);
      kernels.locate(
          {.table = table.data(),
           .row_bytes = kRowBytes,
           .chunks = chunks,
           .ids = ids.data(),
           .nnz = count,
           .out = found.data()});
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(found[i], expected[ids[i]]) << count << " ids, id " << ids[i];
      }
    }
  });
}

TEST(LookupKernelsTest, WithoutOffsetsEachBagHoldsOneId) {
  for_each_isa([](const KernelTable& kernels) {
    for (const int64_t dim : dims()) {
      Example example(dim);
      CombineArgs args = example.args();
      args.offsets = nullptr;
      kernels.combine(args);
      expect_combined(args);
      args.weights = nullptr;
      args.scales = nullptr;
      kernels.combine(args);
      for (int64_t bag = 0; bag < Example::kBags; ++bag) {
        const float* row = row_of(args, args.ids[bag]);
        ASSERT_TRUE(std::equal(row, row + dim, args.out + bag * dim))
            << "a single row is copied bit for bit";
      }
    }
  });
}

TEST(LookupKernelsTest, AnEmptyBagGivesZeros) {
  for_each_isa([](const KernelTable& kernels) {
    for (const int64_t dim : dims()) {
      Example example(dim);
      example.scales.assign(Example::kBags, 0.0F);
      kernels.combine(example.args());
      for (const int64_t bag : {0, 3, 8}) {
        for (int64_t column = 0; column < dim; ++column) {
          ASSERT_EQ(example.out[bag * dim + column], 0.0F);
        }
      }
    }
  });
}

TEST(LookupKernelsTest, WritesOnlyTheBagsOfItsRangeAndTheSameBits) {
  for_each_isa([](const KernelTable& kernels) {
    for (const int64_t dim : {1, 5, 16, 33, 129}) {
      Example whole(dim);
      kernels.combine(whole.args());
      Example part(dim);
      CombineArgs args = part.args();
      args.begin_bag = 2;
      args.end_bag = 7;
      kernels.combine(args);
      for (int64_t i = 0; i < Example::kBags * dim; ++i) {
        const bool is_inside = i >= 2 * dim && i < 7 * dim;
        ASSERT_EQ(part.out[i], is_inside ? whole.out[i] : 7.0F);
      }
      args.begin_bag = args.end_bag;
      kernels.combine(args);
    }
  });
}

TEST(LookupKernelsTest, ANaNInARowReachesOnlyItsBags) {
  for_each_isa([](const KernelTable& kernels) {
    for (const int64_t dim : {1, 3, 8, 17, 128}) {
      Example example(dim);
      std::fill(example.ids.begin(), example.ids.end(), 0U);
      example.ids[example.offsets[6]] = Example::kVocab - 1;
      std::fill(
          example.table.end() - dim,
          example.table.end(),
          std::numeric_limits<float>::quiet_NaN());
      kernels.combine(example.args());
      for (int64_t i = 0; i < Example::kBags * dim; ++i) {
        ASSERT_EQ(std::isnan(example.out[i]), i / dim == 6);
      }
    }
  });
}

// Narrows the ids into a buffer of exactly the needed size. Returns true if all
// of them are in range.
template <class Id, class Kernel>
bool narrows(
    Kernel kernel,
    const std::vector<Id>& ids,
    int64_t vocab,
    std::vector<uint32_t>* result = nullptr) {
  std::vector<uint32_t> out(ids.size());
  const bool is_valid =
      kernel(ids.data(), static_cast<int64_t>(ids.size()), vocab, out.data());
  if (result != nullptr) {
    *result = out;
  }
  return is_valid;
}

TEST(NarrowKernelsTest, CopiesIdsInRange) {
  for_each_isa([](const KernelTable& kernels) {
    for (int64_t count = 0; count < 70; ++count) {
      std::vector<int64_t> wide(count);
      std::iota(wide.begin(), wide.end(), int64_t{4294967294} - count);
      std::vector<uint32_t> out;
      EXPECT_TRUE(narrows(kernels.narrow_int64, wide, 4294967294, &out));
      EXPECT_TRUE(std::equal(wide.begin(), wide.end(), out.begin()));
      std::vector<int32_t> narrow(count);
      std::iota(narrow.begin(), narrow.end(), 0);
      EXPECT_TRUE(narrows(
          kernels.narrow_int32, narrow, std::max<int64_t>(count, 1), &out));
      EXPECT_TRUE(std::equal(narrow.begin(), narrow.end(), out.begin()));
    }
  });
}

TEST(NarrowKernelsTest, FindsABadIdAtAnyPosition) {
  const std::vector<int64_t> bad_ids{
      10,
      -1,
      (int64_t{1} << 32) + 3,
      std::numeric_limits<int64_t>::min(),
      std::numeric_limits<int64_t>::max()};
  for_each_isa([&](const KernelTable& kernels) {
    for (const size_t count : {1, 7, 16, 33, 67}) {
      for (size_t position = 0; position < count; ++position) {
        for (const int64_t bad : bad_ids) {
          std::vector<int64_t> ids(count, 9);
          EXPECT_TRUE(narrows(kernels.narrow_int64, ids, 10));
          ids[position] = bad;
          EXPECT_FALSE(narrows(kernels.narrow_int64, ids, 10));
        }
        for (const int32_t bad :
             {10, -1, std::numeric_limits<int32_t>::min()}) {
          std::vector<int32_t> ids(count, 9);
          EXPECT_TRUE(narrows(kernels.narrow_int32, ids, 10));
          ids[position] = bad;
          EXPECT_FALSE(narrows(kernels.narrow_int32, ids, 10));
        }
      }
    }
  });
}

TEST(NarrowKernelsTest, RefusesNegativeIdsInTheLargestTable) {
  for_each_isa([](const KernelTable& kernels) {
    EXPECT_FALSE(
        narrows(kernels.narrow_int32, std::vector<int32_t>{-3}, 4294967294));
    EXPECT_FALSE(
        narrows(kernels.narrow_int64, std::vector<int64_t>{-3}, 4294967294));
  });
}

TEST(AvailableKernelsTest, AreFoundByTheirDistinctNames) {
  ASSERT_FALSE(available_kernels().empty());
  std::set<std::string> names;
  for (const KernelTable& kernels : available_kernels()) {
    EXPECT_TRUE(names.insert(kernels.isa).second) << kernels.isa;
    EXPECT_EQ(find_kernels(kernels.isa), &kernels);
  }
  EXPECT_EQ(find_kernels("avx1024"), nullptr);
  EXPECT_EQ(find_kernels(""), nullptr);
}

}  // namespace tessera::kernels::lookup_kernels_test
