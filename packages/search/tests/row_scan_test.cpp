// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/row_scan.h"
#include "tests/test_util.h"

#include <bit>
#include <map>
#include <numeric>
#include <random>
#include <thread>

namespace tessera::row_scan_test {

using kernels::OverlaidWord;
using kernels::QuantizedRow;
using kernels::Storage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Format {
  const char* name;
  Storage storage;
  int bits;
};
constexpr Format kFloat32{"float32", Storage::kFloat32, 0};
constexpr Format kInt8{"int8", Storage::kFloat32, 8};
constexpr std::array<Format, 5> kFormats{{
    kFloat32,
    {"bfloat16", Storage::kBFloat16, 0},
    {"float16", Storage::kFloat16, 0},
    kInt8,
    {"int4", Storage::kFloat32, 4},
}};

std::mt19937& random_bits() {
  static std::mt19937 random(7);
  return random;
}

int64_t any_of(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_bits());
}

std::vector<float> normals(int64_t count, float scale = 1.0F) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = scale * normal(random_bits());
  }
  return values;
}

// Rows in one of the formats. Floats end where their memory ends, so that the address
// sanitizer notices each access behind them.
class Rows {
 public:
  Rows(const Format& format, int64_t dim, const std::vector<float>& values)
      : format_(format), dim_(dim), count_(values.size() / dim) {
    row_bytes_ = format.bits != 0 ? QuantizedRow::bytes(dim, format.bits)
                                  : bytes_of_row(format.storage, dim);
    bytes_.resize(
        count_ * row_bytes_ + (format.bits != 0 ? kernels::kReadAfterRow : 0));
    for (int64_t row = 0; row < count_; ++row) {
      set(row, values.data() + row * dim);
    }
  }

  void set(int64_t row, const float* values) {
    if (format_.bits != 0) {
      EXPECT_TRUE(kernels::quantize_row(
          values, dim_, format_.bits, bytes_.data() + row * row_bytes_));
      return;
    }
    kernels::available_kernels().front().assign_row(
        {.data = bytes_.data(), .dim = dim_, .storage = format_.storage},
        row,
        values);
  }

  RowMemory memory() const {
    return {
        .storage = format_.storage,
        .quantized_bits = format_.bits,
        .first = bytes_.data()};
  }
  const void* place(int64_t row) const {
    return bytes_.data() + row * row_bytes_;
  }
  int64_t count() const {
    return count_;
  }

  // The numbers of a row, as a lookup returns them.
  std::vector<float> numbers(int64_t row) const {
    std::vector<float> out(dim_);
    const void* at = place(row);
    if (format_.bits == 0) {
      kernels::available_kernels().front().combine(
          {.table = {.dim = dim_, .storage = format_.storage},
           .rows = &at,
           .nnz = 1,
           .out = out.data(),
           .end_bag = 1});
      return out;
    }
    QuantizedRow parts;
    std::memcpy(&parts, at, sizeof(parts));
    const auto* codes = static_cast<const uint8_t*>(at) + sizeof(parts);
    for (int64_t i = 0; i < dim_; ++i) {
      const int code = format_.bits == 8 ? codes[i]
          : i % 2 == 0                   ? codes[i / 2] & 0xF
                                         : codes[i / 2] >> 4;
      const float product = parts.scale * static_cast<float>(code);
      out[i] = product + parts.offset;
    }
    return out;
  }

 private:
  Format format_;
  int64_t dim_;
  int64_t count_;
  int64_t row_bytes_;
  std::vector<char> bytes_;
};

// Scores in float64, in a plain loop, of the rows that a request allows.
std::vector<std::pair<double, int64_t>> all_scores(
    const ScanRows& scanned,
    const std::vector<std::pair<int64_t, std::vector<float>>>& rows,
    const ScanRequest& request) {
  std::vector<std::pair<double, int64_t>> scores;
  for (const auto& [number, values] : rows) {
    const auto& excluded = request.excluded;
    if (std::find(excluded.begin(), excluded.end(), number) != excluded.end() ||
        (request.allowed != nullptr &&
         (number >= request.allowed->size() ||
          !request.allowed->contains(number)))) {
      continue;
    }
    double score = 0.0;
    for (int64_t i = 0; i < scanned.dim; ++i) {
      score += static_cast<double>(request.vector[i]) *
          static_cast<double>(values[i]);
    }
    if (!std::isnan(score)) {
      scores.emplace_back(score, number);
    }
  }
  return scores;
}

float to_float(double value) {
  return std::abs(value) > std::numeric_limits<float>::max()
      ? static_cast<float>(std::copysign(kInfinity, value))
      : static_cast<float>(value);
}

// The results have the scores of a plain loop, and are the best ones. The sums in float64
// may differ by `tolerance`.
void expect_best(
    const std::vector<ScoredRow>& found,
    const std::vector<std::pair<double, int64_t>>& scores,
    int64_t k,
    double tolerance = 1e-12) {
  ASSERT_EQ(
      found.size(), std::min<size_t>(scores.size(), static_cast<size_t>(k)));
  std::map<int64_t, double> missing;
  for (const auto& [score, number] : scores) {
    missing.emplace(number, score);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    const auto at = missing.find(found[i].number);
    ASSERT_NE(at, missing.end()) << "row " << found[i].number;
    EXPECT_LE(to_float(at->second - tolerance), found[i].score);
    EXPECT_GE(to_float(at->second + tolerance), found[i].score);
    missing.erase(at);
    EXPECT_TRUE(
        i == 0 || found[i - 1].score > found[i].score ||
        (found[i - 1].score == found[i].score &&
         found[i - 1].number < found[i].number))
        << i;
  }
  for (const auto& [number, score] : missing) {
    const float least = to_float(score - tolerance);
    EXPECT_TRUE(
        least < found.back().score ||
        (least == found.back().score &&
         (tolerance > 0.0 || number > found.back().number)))
        << "row " << number << " is missing";
  }
}

// Runs tasks on two threads.
const ScanOptions kTwoThreads{
    .num_threads = 3,
    .run_tasks = [](int64_t count, const std::function<void(int64_t)>& task) {
      std::thread other([&] {
        for (int64_t i = 1; i < count; i += 2) {
          task(i);
        }
      });
      for (int64_t i = 0; i < count; i += 2) {
        task(i);
      }
      other.join();
    }};

// The results of a scan, which are the same for single requests, two threads and each
// instruction set.
std::vector<std::vector<ScoredRow>> scan_in_all_ways(
    const ScanRows& rows,
    const std::vector<ScanRequest>& requests) {
  const auto results = scan(rows, requests);
  EXPECT_EQ(scan(rows, requests, kTwoThreads), results);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(scan(rows, {&requests[i], 1}).at(0), results[i]);
  }
  for (const kernels::KernelTable& kernels : kernels::available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    EXPECT_EQ(scan(rows, requests, {.kernels = &kernels}), results);
  }
  return results;
}

// A table with replaced rows, and everything else that a scan can have, all of random size.
void check_random_scan(const Format& format, int64_t dim, bool has_exact) {
  const int64_t count = any_of(1, 40) * (any_of(0, 3) == 0 ? 64 : 17);
  const std::vector<float> values = normals(count * dim);
  const std::vector<float> changed = normals(count * dim);
  const Rows base(format, dim, values);
  const Rows exact_base(kFloat32, dim, values);
  const Rows changes(format, dim, changed);
  const Rows exact_changes(kFloat32, dim, changed);
  // Row i is replaced by row i of `changes`.
  const int64_t num_chunks = (count + 1023) / 1024;
  std::vector<OverlaidWord> words(num_chunks * 16);
  std::vector<const void*> places;
  std::vector<const void*> exact_places;
  std::vector<bool> is_replaced(count);
  places.reserve(count);
  exact_places.reserve(count);
  std::vector<OverlaidWord> exact_words = words;
  for (int64_t row = 0; row < count; ++row) {
    OverlaidWord& word = words[row / 64];
    if (row % 64 == 0) {
      word.rows = places.data() + places.size();
      exact_words[row / 64].rows = exact_places.data() + exact_places.size();
    }
    if (any_of(0, 9) == 0) {
      is_replaced[row] = true;
      word.replaced |= uint64_t{1} << (row % 64);
      places.push_back(changes.place(row));
      exact_places.push_back(exact_changes.place(row));
    }
    exact_words[row / 64].replaced = word.replaced;
  }
  std::vector<const OverlaidWord*> chunks;
  std::vector<const OverlaidWord*> exact_chunks;
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
    chunks.push_back(words.data() + chunk * 16);
    exact_chunks.push_back(exact_words.data() + chunk * 16);
  }
  ScanRows rows{.dim = dim, .rows = base.memory(), .num_rows = count};
  rows.rows.overlaid = chunks.data();
  if (has_exact) {
    rows.exact_rows = exact_base.memory();
    rows.exact_rows.overlaid = exact_chunks.data();
  }
  const Rows& scored = has_exact ? exact_base : base;
  const Rows& scored_changes = has_exact ? exact_changes : changes;
  std::vector<std::pair<int64_t, std::vector<float>>> numbers;
  for (int64_t row = 0; row < count; ++row) {
    numbers.emplace_back(
        row,
        is_replaced[row] ? scored_changes.numbers(row) : scored.numbers(row));
  }

  const int64_t num_requests = any_of(1, 33);
  const std::vector<float> queries = normals(num_requests * dim);
  std::vector<RowSet> sets;
  std::vector<std::vector<int64_t>> excluded(num_requests);
  sets.reserve(num_requests);
  const bool are_filtered = any_of(0, 1) == 0;
  std::vector<ScanRequest> requests;
  for (int64_t i = 0; i < num_requests; ++i) {
    ScanRequest& request = requests.emplace_back();
    request.vector = queries.data() + i * dim;
    request.k = any_of(0, 3) == 0 ? any_of(1, 3 * count) : any_of(1, 20);
    if (are_filtered || any_of(0, 3) == 0) {
      const int64_t share = any_of(1, 100);
      request.allowed = &sets.emplace_back(any_of(1, 2 * count));
      for (int64_t row = 0; row < request.allowed->size(); ++row) {
        if (any_of(0, 99) < share) {
          sets.back().add(row);
        }
      }
    }
    for (int64_t j = any_of(0, 5); j > 0; --j) {
      excluded[i].push_back(any_of(0, 2 * count + 5));
    }
    std::sort(excluded[i].begin(), excluded[i].end());
    request.excluded = excluded[i];
  }
  const auto results = scan_in_all_ways(rows, requests);
  for (int64_t i = 0; i < num_requests; ++i) {
    expect_best(
        results[i], all_scores(rows, numbers, requests[i]), requests[i].k);
  }
}

TEST(RowScanTest, FindsTheBestInEachFormatAndDim) {
  for (const Format& format : kFormats) {
    for (int64_t dim = 1; dim <= 130; dim += dim < 34 ? 1 : 7) {
      SCOPED_TRACE(std::string(format.name) + " " + std::to_string(dim));
      check_random_scan(format, dim, /*has_exact=*/false);
    }
  }
}

TEST(RowScanTest, QuantizedRowsFindTheBestOfTheExactOnes) {
  for (const int bits : {8, 4}) {
    for (int64_t dim = 1; dim <= 130; dim += dim < 34 ? 1 : 7) {
      SCOPED_TRACE(std::to_string(bits) + " " + std::to_string(dim));
      check_random_scan({"", Storage::kFloat32, bits}, dim, /*has_exact=*/true);
    }
  }
}

// Rows that are hard to estimate: huge ranges, single large numbers, constants, numbers below
// the smallest normal one, and many equal rows.
std::vector<float> hard_row(int64_t dim) {
  static const std::array<float, 7> kScales{
      1.0F, 1e-3F, 1e4F, 1e18F, 1e-18F, 1e-38F, 3e-44F};
  std::vector<float> row = normals(dim, kScales[any_of(0, 6)]);
  switch (any_of(0, 5)) {
    case 0:
      std::fill(row.begin(), row.end(), row[0]);
      break;
    case 1:
      row[any_of(0, dim - 1)] *= 1e6F;
      break;
    case 2:
      for (float& value : row) {
        value += 1e3F * row[0];
      }
      break;
    case 3:
      std::fill(row.begin(), row.end(), 1.0F);
      break;
    default:
      break;
  }
  return row;
}

TEST(RowScanTest, BoundsHoldForHardRows) {
  for (int round = 0; round < 300; ++round) {
    const int64_t dim = any_of(1, 70);
    const int64_t count = any_of(1, 300);
    const bool is_mixed = any_of(0, 1) == 0;
    const std::vector<float> kind = hard_row(dim);
    std::vector<float> values;
    for (int64_t row = 0; row < count; ++row) {
      std::vector<float> numbers = is_mixed ? hard_row(dim) : kind;
      for (float& number : numbers) {
        number *= 1.0F + 1e-3F * static_cast<float>(any_of(-2, 2));
      }
      values.insert(values.end(), numbers.begin(), numbers.end());
    }
    const Rows exact(kFloat32, dim, values);
    const std::vector<float> query = hard_row(dim);
    double tolerance = 0.0;
    for (const float number : values) {
      for (const float other : query) {
        tolerance = std::max(
            tolerance,
            1e-14 * static_cast<double>(dim) *
                std::abs(static_cast<double>(number) * other));
      }
    }
    for (const int bits : {0, 8, 4}) {
      SCOPED_TRACE(std::to_string(round) + " " + std::to_string(bits));
      const Rows rows({"", Storage::kFloat32, bits}, dim, values);
      const ScanRows scanned{
          .dim = dim,
          .rows = rows.memory(),
          .exact_rows = bits == 0 ? RowMemory() : exact.memory(),
          .num_rows = count};
      const ScanRequest request{.vector = query.data(), .k = any_of(1, 30)};
      std::vector<std::pair<int64_t, std::vector<float>>> numbers;
      for (int64_t row = 0; row < count; ++row) {
        numbers.emplace_back(row, exact.numbers(row));
      }
      expect_best(
          scan_in_all_ways(scanned, {request})[0],
          all_scores(scanned, numbers, request),
          request.k,
          tolerance);
    }
  }
}

TEST(RowScanTest, BoundsHoldIfAllCodesAreOffByHalfAStep) {
  // The codes are whole numbers, so they have steps of 1. With 100 rows that are estimated
  // too high by almost half a step in each column, the row at the end has the best score,
  // but the lowest estimate.
  constexpr int64_t kDim = 34;
  constexpr int64_t kCount = 101;
  constexpr float kOff = 0.499F;
  for (const int bits : {8, 4}) {
    std::vector<float> values;
    for (int64_t row = 0; row < kCount; ++row) {
      const bool is_last = row == kCount - 1;
      values.push_back(0.0F);
      values.push_back(bits == 8 ? 255.0F : 15.0F);
      for (int64_t i = 2; i < kDim; ++i) {
        const float whole = is_last && i < 18 ? 9.0F : 7.0F;
        values.push_back(is_last ? whole + kOff : whole + 1.0F - kOff);
      }
      // Half of the last row's columns are higher by 2, and the others lower by 2, but one
      // of them only by 1.
      for (int64_t i = 18; is_last && i < kDim; ++i) {
        values[row * kDim + i] -= i == 18 ? 1.0F : 2.0F;
      }
    }
    const Rows exact(kFloat32, kDim, values);
    const Rows rows({"", Storage::kFloat32, bits}, kDim, values);
    std::vector<float> query(kDim, 1.0F);
    query[0] = 0.0F;
    query[1] = 0.0F;
    const auto found = scan_in_all_ways(
        {.dim = kDim,
         .rows = rows.memory(),
         .exact_rows = exact.memory(),
         .num_rows = kCount},
        {{.vector = query.data(), .k = 1}})[0];
    EXPECT_EQ(found[0].number, kCount - 1);
  }
}

TEST(RowScanTest, BoundsHoldForProductsBelowTheSmallestNumber) {
  constexpr int64_t kDim = 16;
  constexpr int64_t kCount = 500;
  const std::vector<float> values = normals(kCount * kDim, 1e-25F);
  const std::vector<float> query = normals(kDim, 1e-20F);
  const Rows rows(kFloat32, kDim, values);
  const ScanRows scanned{
      .dim = kDim, .rows = rows.memory(), .num_rows = kCount};
  std::vector<std::pair<int64_t, std::vector<float>>> numbers;
  for (int64_t row = 0; row < kCount; ++row) {
    numbers.emplace_back(row, rows.numbers(row));
  }
  const ScanRequest request{.vector = query.data(), .k = 3};
  expect_best(
      scan_in_all_ways(scanned, {request})[0],
      all_scores(scanned, numbers, request),
      request.k,
      /*tolerance=*/0.0);
}

TEST(RowScanTest, SumsThatOverflowFloat32AreScoredExactly) {
  constexpr int64_t kDim = 64;
  constexpr int64_t kCount = 200;
  std::vector<float> values(kCount * kDim, -1.0F);
  for (int64_t i = 0; i < kDim; ++i) {
    values[(kCount - 1) * kDim + i] = i < kDim / 2 ? -3e38F : 3e38F;
  }
  const Rows rows(kFloat32, kDim, values);
  const std::vector<float> query(kDim, 1.0F);
  const auto found = scan_in_all_ways(
      {.dim = kDim, .rows = rows.memory(), .num_rows = kCount},
      {{.vector = query.data(), .k = 1}})[0];
  EXPECT_EQ(found[0], (ScoredRow{.number = kCount - 1, .score = 0.0F}));
}

TEST(RowScanTest, EqualScoresAreOrderedByNumber) {
  constexpr int64_t kDim = 5;
  std::vector<float> values(200 * kDim, 1.0F);
  std::fill(values.begin() + 150 * kDim, values.begin() + 160 * kDim, 2.0F);
  const Rows exact(kFloat32, kDim, values);
  const Rows rows(kInt8, kDim, values);
  const std::vector<float> query(kDim, 1.0F);
  const std::vector<int64_t> excluded{1, 151};
  std::vector<ScoredRow> expected;
  for (const int64_t row : {150, 152, 153, 154, 155, 156, 157, 158, 159}) {
    expected.push_back({.number = row, .score = 10.0F});
  }
  for (const int64_t row : {0, 2, 3}) {
    expected.push_back({.number = row, .score = 5.0F});
  }
  const std::array<ScanRows, 2> scans{{
      {.dim = kDim,
       .rows = rows.memory(),
       .exact_rows = exact.memory(),
       .num_rows = 200},
      {.dim = kDim, .rows = exact.memory(), .num_rows = 200},
  }};
  for (const ScanRows& scanned : scans) {
    const auto found = scan_in_all_ways(
        scanned, {{.vector = query.data(), .k = 12, .excluded = excluded}})[0];
    EXPECT_EQ(found, expected);
  }
}

TEST(RowScanTest, NanIsNeverAResult) {
  constexpr float kHuge = 3e38F;
  // The scores are NaN, infinity, 1, NaN, and -infinity.
  const std::vector<float> values{
      kNan,
      0.0F,
      kHuge,
      kHuge,
      1.0F,
      0.0F,
      kInfinity,
      -kInfinity,
      -kHuge,
      -kHuge};
  for (const int copies : {1, 40}) {
    std::vector<float> many;
    for (int i = 0; i < copies; ++i) {
      many.insert(many.end(), values.begin(), values.end());
    }
    const Rows rows(kFloat32, 2, many);
    const std::vector<float> query{1.0F, 1.0F};
    const auto found = scan_in_all_ways(
        {.dim = 2, .rows = rows.memory(), .num_rows = 5 * copies},
        {{.vector = query.data(), .k = int64_t{1} << 60}})[0];
    ASSERT_EQ(found.size(), 3 * copies);
    EXPECT_EQ(found[0], (ScoredRow{.number = 1, .score = kInfinity}));
    EXPECT_EQ(found[copies], (ScoredRow{.number = 2, .score = 1.0F}));
    EXPECT_EQ(found[2 * copies], (ScoredRow{.number = 4, .score = -kInfinity}));
  }
}

TEST(RowScanTest, ReadsOnlyAllowedRows) {
  // The other rows have no memory, because all rows are replaced, most of them by nullptr.
  constexpr int64_t kRows = 1'000'000;
  const std::vector<float> row{1.0F, 2.0F};
  std::vector<const void*> places(kRows);
  std::vector<OverlaidWord> words;
  for (int64_t first = 0; first < kRows; first += OverlaidWord::kRows) {
    words.push_back({.replaced = ~uint64_t{0}, .rows = places.data() + first});
  }
  std::vector<const OverlaidWord*> chunks;
  for (size_t word = 0; word < words.size();
       word += kernels::LocateArgs::kChunkRows / OverlaidWord::kRows) {
    chunks.push_back(words.data() + word);
  }
  RowSet allowed(kRows);
  for (const int64_t number : {0, 63, 64, 999'999}) {
    places[number] = row.data();
    allowed.add(number);
  }
  const auto found = scan_in_all_ways(
      {.dim = 2,
       .rows = {.first = row.data(), .overlaid = chunks.data()},
       .num_rows = kRows},
      {{.vector = row.data(), .k = 9, .allowed = &allowed}})[0];
  ASSERT_EQ(found.size(), 4);
  EXPECT_EQ(found[3], (ScoredRow{.number = 999'999, .score = 5.0F}));
}

TEST(RowScanTest, NothingToScanGivesNothing) {
  const std::vector<float> query{1.0F};
  const ScanRequest request{.vector = query.data(), .k = 3};
  EXPECT_TRUE(scan({.dim = 1}, {&request, 1})[0].empty());
  EXPECT_TRUE(scan({.dim = 1}, {}).empty());
}

TEST(RowScanTest, RefusesWrongRequests) {
  const auto run = [](float number, int64_t k) {
    const ScanRequest request{.vector = &number, .k = k};
    scan({.dim = 1}, {&request, 1});
  };
  EXPECT_VALUE_ERROR(run(1.0F, 0), "[scan] k must be >= 1, but got 0.");
  EXPECT_VALUE_ERROR(run(kNan, 1), "must be finite, but has NaN or infinity");
  EXPECT_VALUE_ERROR(run(kInfinity, 1), "must be finite");
}

}  // namespace tessera::row_scan_test
