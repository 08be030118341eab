// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/row_scan.h"
#include "tests/test_util.h"

#include <bit>
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
                                  : dim * bytes_per_element(format.storage);
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
    if (scanned.factors != nullptr) {
      score *= static_cast<double>(scanned.factors[number]);
    }
    if (scanned.biases != nullptr) {
      score += static_cast<double>(scanned.biases[number]);
    }
    if (!std::isnan(score)) {
      scores.emplace_back(score, number);
    }
  }
  return scores;
}

// The results have the scores of a plain loop, up to the last bit, and are the best ones.
void expect_best(
    const std::vector<ScoredRow>& found,
    std::vector<std::pair<double, int64_t>> scores,
    int64_t k) {
  ASSERT_EQ(
      found.size(), std::min<size_t>(scores.size(), static_cast<size_t>(k)));
  std::sort(scores.begin(), scores.end(), [](const auto& a, const auto& b) {
    return a.second < b.second;
  });
  std::vector<bool> is_found(
      scores.empty() ? 0 : static_cast<size_t>(scores.back().second) + 1);
  for (size_t i = 0; i < found.size(); ++i) {
    const auto at = std::lower_bound(
        scores.begin(),
        scores.end(),
        found[i].number,
        [](const auto& score, int64_t number) {
          return score.second < number;
        });
    ASSERT_TRUE(at != scores.end() && at->second == found[i].number)
        << "row " << found[i].number;
    const auto expected = static_cast<float>(at->first);
    EXPECT_TRUE(
        expected == found[i].score ||
        std::nextafter(expected, found[i].score) == found[i].score)
        << expected << " " << found[i].score;
    is_found[found[i].number] = true;
    if (i > 0) {
      EXPECT_TRUE(
          found[i - 1].score > found[i].score ||
          (found[i - 1].score == found[i].score &&
           found[i - 1].number < found[i].number))
          << i;
    }
  }
  for (const auto& [score, number] : scores) {
    if (is_found[number] || found.empty()) {
      continue;
    }
    // Rounding in float64 may make the reference larger by the last bit.
    const auto rounded = static_cast<float>(score);
    EXPECT_LE(
        std::min(rounded, std::nextafter(rounded, -kInfinity)),
        found.back().score)
        << "row " << number << " is missing";
    if (rounded > found.back().score) {
      EXPECT_LE(score - 1e-9 * std::abs(score), double{found.back().score});
    }
  }
}

// Runs tasks on two threads.
const ScanOptions kTwoThreads{
    .num_parts = 3,
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

// A table with replaced rows, a second table, and everything else that a scan can have, all
// of random size.
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
  std::vector<RowSegment> segments(2);
  segments[0].rows = base.memory();
  segments[0].rows.overlaid = chunks.data();
  segments[0].num_rows = count;
  // The second segment has the changes once more, at places of their own.
  std::vector<const void*> own_places;
  std::vector<const void*> own_exact_places;
  for (int64_t row = count - 1; row >= 0; --row) {
    own_places.push_back(changes.place(row));
    own_exact_places.push_back(exact_changes.place(row));
  }
  segments[1].rows = changes.memory();
  segments[1].rows.places = own_places.data();
  segments[1].num_rows = count;
  segments[1].first_number = count;
  if (has_exact) {
    segments[0].exact_rows = exact_base.memory();
    segments[0].exact_rows.overlaid = exact_chunks.data();
    segments[1].exact_rows = exact_changes.memory();
    segments[1].exact_rows.places = own_exact_places.data();
  }
  const Rows& scored = has_exact ? exact_base : base;
  const Rows& scored_changes = has_exact ? exact_changes : changes;
  std::vector<std::pair<int64_t, std::vector<float>>> numbers;
  for (int64_t row = 0; row < 2 * count; ++row) {
    numbers.emplace_back(
        row,
        row >= count           ? scored_changes.numbers(2 * count - 1 - row)
            : is_replaced[row] ? scored_changes.numbers(row)
                               : scored.numbers(row));
  }
  const std::vector<float> biases = normals(2 * count);
  ScanRows rows{
      .dim = dim,
      .segments = segments,
      .biases = any_of(0, 1) == 0 ? biases.data() : nullptr};
  const std::vector<float> factors = inverse_lengths(rows);
  rows.factors = any_of(0, 1) == 0 ? factors.data() : nullptr;

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

}  // namespace tessera::row_scan_test
