// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/row_scan.h"

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/kernels/prefetch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

// The scan estimates all scores in float32, from the quantized rows if there are any. Rows
// whose estimate plus its error reaches the k-th best estimate minus its error are
// candidates, and only they are scored exactly. So the result is that of exact scores.
//
// The error of an estimate: let u = 2^-24, n = dim, |q| = the sum of |vector[i]|, and
// `size` >= |row[i]| for all i.
// - Sums of n products in any order differ by at most 2 n u |q| size, for n < 2^23.
// - At most 32 further roundings are relative to |q| size: those of a decoded row, of sums
//   and products with a scale and a step, of the bounds, and of the score itself.
// - If the vector is rounded to integers, the sum of |vector[i] - step * integer[i]| counts
//   once more times the size.
// - quantize_row() rounds to the nearest of numbers that are `scale` apart, so an exact row
//   differs by at most scale / 2, and by less than 3 u size because scale, difference and
//   product are rounded, plus 2^-141 for scales below float32's smallest normal number.
// - Numbers below the smallest normal number, 2^-126, may count as 0, which is in `slack`.

namespace tessera {

namespace {

using kernels::OverlaidWord;
using kernels::QuantizedRow;
using kernels::ScanArgs;
using kernels::Storage;

constexpr int64_t kWord = RowSet::kWordRows;
static_assert(kWord == ScanArgs::kRows && kWord == OverlaidWord::kRows);
constexpr int64_t kRequests = 32;  // of one pass
// If a filter passes more of 64 rows, all are scanned, which takes less time than to choose.
constexpr int64_t kFewRows = 16;
constexpr int64_t kRowsPerThread = 1024;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// More than what the roundings of a few float32 products take away.
constexpr double kRoundUp = 1.0 + 0x1p-20;
// Vectors of more dimensions would be rounded to few integers.
constexpr int64_t kMaxIntegerDim = 16'384;
constexpr double kLargestInteger = 32767.0;

int64_t row_bytes_of(const RowMemory& rows, int64_t dim) {
  return rows.quantized_bits != 0
      ? QuantizedRow::bytes(dim, rows.quantized_bits)
      : kernels::bytes_of_row(rows.storage, dim);
}

bool is_float32(const RowMemory& rows) {
  return rows.quantized_bits == 0 && rows.storage == Storage::kFloat32;
}

// Sets places[j] to the row first + j for each bit j of `mask`. `first` is a multiple of 64.
void locate_word(
    const RowMemory& rows,
    int64_t dim,
    int64_t first,
    uint64_t mask,
    const void** places) {
  const int64_t row_bytes = row_bytes_of(rows, dim);
  const char* base = static_cast<const char*>(rows.first) + first * row_bytes;
  OverlaidWord word;
  if (rows.overlaid != nullptr) {
    constexpr int64_t kChunkRows = kernels::LocateArgs::kChunkRows;
    word = rows.overlaid[first / kChunkRows][first % kChunkRows / kWord];
  }
  if (mask == ~uint64_t{0} && word.replaced == 0) {  // so are most words
    for (int64_t row = 0; row < kWord; ++row) {
      places[row] = base + row * row_bytes;
    }
    return;
  }
  for (; mask != 0; mask &= mask - 1) {
    const int row = std::countr_zero(mask);
    const uint64_t before = (uint64_t{1} << row) - 1;
    *places++ = (word.replaced >> row & 1) != 0
        ? word.rows[std::popcount(word.replaced & before)]
        : base + row * row_bytes;
  }
}

// Looks up the rows at `places` as out [places, dim].
void decode(
    const kernels::KernelTable& kernels,
    const RowMemory& rows,
    std::span<const void* const> places,
    int64_t dim,
    float* out) {
  const auto count = std::ssize(places);
  if (rows.quantized_bits != 0) {
    kernels.combine_quantized(
        {.dim = dim,
         .bits = rows.quantized_bits,
         .rows = places.data(),
         .nnz = count,
         .out = out,
         .end_bag = count});
  } else {
    kernels.combine(
        {.table = {.dim = dim, .storage = rows.storage},
         .rows = places.data(),
         .nnz = count,
         .out = out,
         .end_bag = count});
  }
}

// The memory whose rows give the scores.
const RowMemory& scored_rows(const ScanRows& rows) {
  return rows.exact_rows.first == nullptr ? rows.rows : rows.exact_rows;
}

// The numbers [dim] that give the score of a row, in its own memory or in `buffer`.
const float* numbers_of(
    const kernels::KernelTable& kernels,
    const ScanRows& rows,
    int64_t row,
    std::vector<float>& buffer) {
  const RowMemory& memory = scored_rows(rows);
  const void* place = nullptr;
  const uint64_t bit = uint64_t{1} << (row % kWord);
  locate_word(memory, rows.dim, row / kWord * kWord, bit, &place);
  if (is_float32(memory)) {
    return static_cast<const float*>(place);
  }
  buffer.resize(rows.dim);
  decode(kernels, memory, {&place, 1}, rows.dim, buffer.data());
  return buffer.data();
}

// Products of two float32 numbers are exact in float64, and the order of the sum is fixed.
double dot_of(const float* a, const float* b, int64_t dim) {
  std::array<double, 4> sums = {};
  for (int64_t i = 0; i < dim; ++i) {
    sums[i % 4] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

float to_float(double value) {
  return std::abs(value) > std::numeric_limits<float>::max()
      ? static_cast<float>(std::copysign(kInfinity, value))
      : static_cast<float>(value);
}

// A row whose score is in [lower, upper].
struct Candidate {
  float lower = 0.0F;
  float upper = 0.0F;
  int64_t row = 0;
};

// The rows that may be among the k best of one request.
class Candidates {
 public:
  explicit Candidates(int64_t k) : k_(static_cast<size_t>(k)) {}

  // No row whose score is below it is among the best.
  float threshold() const {
    return threshold_;
  }
  const std::vector<Candidate>& rows() const {
    return rows_;
  }

  void add(const Candidate& row) {
    rows_.push_back(row);
    if (rows_.size() >= limit_) {
      prune();
    }
  }

  void prune() {
    if (rows_.size() > k_) {
      const auto kth = rows_.begin() + static_cast<int64_t>(k_) - 1;
      std::nth_element(
          rows_.begin(), kth, rows_.end(), [](const auto& a, const auto& b) {
            return a.lower > b.lower;
          });
      threshold_ = std::max(threshold_, kth->lower);
      std::erase_if(
          rows_, [&](const Candidate& row) { return row.upper < threshold_; });
    }
    limit_ = 2 * std::max(k_, rows_.size()) + kLeastRoom;
  }

 private:
  static constexpr size_t kLeastRoom = 64;

  size_t k_;
  size_t limit_ = 2 * k_ + kLeastRoom;
  float threshold_ = -kInfinity;
  std::vector<Candidate> rows_;
};

// One pass over a part of the rows, for up to kRequests requests.
class Pass {
 public:
  Pass(
      const ScanRows& rows,
      std::span<const ScanRequest> requests,
      const kernels::KernelTable& kernels)
      : rows_(rows),
        requests_(requests),
        kernels_(kernels),
        stride_(ScanArgs::padded(rows.dim)),
        vectors_(requests.size() * stride_),
        has_integers_(rows.dim <= kMaxIntegerDim),
        integers_(has_integers_ ? vectors_.size() : 0),
        numbers_((kWord + 1) * stride_),
        scratch_(kWord * stride_),
        allows_all_(
            std::ranges::any_of(requests, [](const ScanRequest& request) {
              return request.allowed == nullptr;
            })) {
    for (size_t i = 0; i < requests.size(); ++i) {
      candidates_.emplace_back(requests[i].k);
      prepare(i);
    }
  }

  // Scans the given part of the rows.
  void run(int64_t part, int64_t num_parts) {
    const int64_t words = (rows_.num_rows + kWord - 1) / kWord;
    const int64_t end = words * (part + 1) / num_parts;
    for (int64_t word = words * part / num_parts; word < end; ++word) {
      const int64_t first = word * kWord;
      const int64_t count = std::min(kWord, rows_.num_rows - first);
      const uint64_t all = ~uint64_t{0} >> (kWord - count);
      const uint64_t allowed = all & allowed_in(static_cast<size_t>(word));
      add(first, std::popcount(allowed) > kFewRows ? all : allowed);
    }
    estimate();
  }

  const Candidates& candidates(size_t request) const {
    return candidates_[request];
  }

 private:
  // Pads and rounds the vector of a request, and computes what its bounds need.
  void prepare(size_t request) {
    const float* vector = requests_[request].vector;
    kernels::ScanQuery& query = queries_[request];
    std::copy_n(vector, rows_.dim, vectors_.begin() + request * stride_);
    double sum = 0.0;
    double weight = 0.0;
    double largest = 0.0;
    for (int64_t i = 0; i < rows_.dim; ++i) {
      const auto number = static_cast<double>(vector[i]);
      sum += number;
      weight += std::abs(number);
      largest = std::max(largest, std::abs(number));
    }
    query.sum = to_float(sum);
    query.weight = to_float(weight * kRoundUp);
    query.slack = to_float(
        static_cast<double>(rows_.dim + 8) * 0x1p-125 + weight * 0x1p-120);
    const double step =
        std::max(largest / kLargestInteger, weight * 255.0 / 0x1p30);
    has_integers_ = has_integers_ && (step == 0.0 || step >= 0x1p-126);
    if (!has_integers_ || step == 0.0) {
      return;
    }
    query.step = to_float(step);
    double lost = 0.0;
    for (int64_t i = 0; i < rows_.dim; ++i) {
      const auto number = static_cast<double>(vector[i]);
      const auto unit = static_cast<double>(query.step);
      const double integer = std::clamp(
          std::nearbyint(number / unit), -kLargestInteger, kLargestInteger);
      integers_[request * stride_ + i] = static_cast<int16_t>(integer);
      lost += std::abs(number - unit * integer);
    }
    lost_ = std::max(lost_, lost / weight);
  }

  // The rows of a word that at least one request allows.
  uint64_t allowed_in(size_t word) const {
    uint64_t allowed = allows_all_ ? ~uint64_t{0} : 0;
    for (size_t i = 0; i < requests_.size() && !allows_all_; ++i) {
      const auto words = requests_[i].allowed->words();
      allowed |= word < words.size() ? words[word] : 0;
    }
    return allowed;
  }

  // Adds rows to those that are estimated next.
  void add(int64_t first, uint64_t mask) {
    const int64_t count = std::popcount(mask);
    if (num_rows_ + count > kWord) {
      estimate();
    }
    const void** places = places_.data() + num_rows_;
    locate_word(rows_.rows, rows_.dim, first, mask, places);
    // The processor prefetches rows that lie close together.
    for (int64_t i = 0; count <= kFewRows && i < count; ++i) {
      kernels::prefetch_row(places[i], row_bytes_of(rows_.rows, rows_.dim), 0);
    }
    if (count == kWord) {
      std::iota(indices_.begin(), indices_.end(), first);
      num_rows_ = kWord;
      return;
    }
    for (; mask != 0; mask &= mask - 1) {
      indices_[num_rows_++] = first + std::countr_zero(mask);
    }
  }

  void estimate() {
    if (num_rows_ == 0) {
      return;
    }
    const bool has_integers = rows_.rows.quantized_bits == 8 && has_integers_;
    measure_rows(has_integers, has_integers ? 0.0F : load_rows());
    const ScanArgs args{
        .dim = rows_.dim,
        .rows = places_.data(),
        .num_rows = std::exchange(num_rows_, 0),
        .scales = scales_.data(),
        .offsets = offsets_.data(),
        .widths = widths_.data(),
        .queries = queries_.data(),
        .vectors = vectors_.data(),
        .integers = has_integers ? integers_.data() : nullptr,
        .num_queries = std::ssize(requests_),
        .scratch = scratch_.data(),
        .scores = scores_.data(),
        .hits = hits_.data()};
    for (size_t i = 0; i < requests_.size(); ++i) {
      queries_[i].threshold = candidates_[i].threshold();
    }
    kernels_.scan(args);
    for (size_t i = 0; i < requests_.size(); ++i) {
      for (uint64_t hits = hits_[i]; hits != 0; hits &= hits - 1) {
        add_candidate(i, std::countr_zero(hits));
      }
    }
  }

  // Makes the rows floats. Returns the largest absolute value.
  float load_rows() {
    const RowMemory& memory = rows_.rows;
    const auto count = static_cast<size_t>(num_rows_);
    for (size_t i = 0; memory.quantized_bits != 0 && i < count; ++i) {
      QuantizedRow parts;
      std::memcpy(&parts, places_[i], sizeof(parts));
      steps_[i] = parts.scale;
    }
    scales_.fill(1.0F);
    offsets_.fill(0.0F);
    // The kernel reads 16 floats at a time, but must not read behind the last row.
    const int64_t last = indices_[count - 1] * rows_.dim;
    const bool is_inside = memory.overlaid == nullptr &&
        last + stride_ <= rows_.num_rows * rows_.dim;
    if (!is_float32(memory) || (rows_.dim % 16 != 0 && !is_inside)) {
      decode(
          kernels_,
          memory,
          {places_.data(), count},
          rows_.dim,
          numbers_.data());
      for (size_t i = 0; i < count; ++i) {
        places_[i] = numbers_.data() + static_cast<int64_t>(i) * rows_.dim;
      }
    }
    float size = 0.0F;
    for (size_t i = 0; i < count; ++i) {
      const auto* row = static_cast<const float*>(places_[i]);
      // A row with NaN is a candidate in any case.
      size = std::max(
          size, kernels_.largest_magnitude({.first = row}, 1, rows_.dim));
    }
    return size;
  }

  // Sets what the kernel needs of each row.
  void measure_rows(bool has_integers, float size) {
    const bool is_exact = &scored_rows(rows_) == &rows_.rows;
    const float half_step = is_exact ? 0.0F : 0.5F;
    const float rounding = to_float(
        (static_cast<double>(rows_.dim + 16) * 0x1p-23 +
         (has_integers ? lost_ : 0.0)) *
        kRoundUp);
    for (int64_t i = 0; has_integers && i < num_rows_; ++i) {
      QuantizedRow parts;
      std::memcpy(&parts, places_[i], sizeof(parts));
      scales_[i] = parts.scale;
      offsets_[i] = parts.offset;
    }
    for (int64_t i = 0; i < kWord; ++i) {
      widths_[i] = has_integers
          ? rounding * (255.0F * scales_[i] + std::abs(offsets_[i])) +
              half_step * scales_[i]
          : rounding * size + half_step * steps_[i];
    }
    for (int64_t i = num_rows_; i % 4 != 0; ++i) {
      places_[i] = places_[num_rows_ - 1];
    }
  }

  void add_candidate(size_t request, int64_t row) {
    const int64_t number = indices_[row];
    const auto& [vector, k, allowed, excluded] = requests_[request];
    if ((allowed != nullptr &&
         (number >= allowed->size() || !allowed->contains(number))) ||
        std::ranges::binary_search(excluded, number)) {
      return;
    }
    const kernels::ScanQuery& query = queries_[request];
    const float score = scores_[static_cast<int64_t>(request) * kWord + row];
    const float error = query.weight * widths_[row] + query.slack;
    const bool is_bounded =
        std::abs(score) <= ScanArgs::kLargest && error < kInfinity;
    candidates_[request].add(
        {.lower = is_bounded ? score - error : -kInfinity,
         .upper = is_bounded ? score + error : kInfinity,
         .row = number});
  }

  const ScanRows& rows_;
  std::span<const ScanRequest> requests_;
  const kernels::KernelTable& kernels_;
  int64_t stride_;  // from one vector to the next
  std::vector<float> vectors_;
  bool has_integers_;  // not for many dimensions or tiny numbers
  std::vector<int16_t> integers_;
  std::vector<float> numbers_;  // decoded rows
  std::vector<float> scratch_;
  bool allows_all_;
  double lost_ = 0.0;  // the largest share of |q| that integers do not have
  std::vector<Candidates> candidates_;
  // The rows that are estimated next.
  int64_t num_rows_ = 0;
  std::array<int64_t, kWord> indices_ = {};
  std::array<const void*, kWord> places_ = {};
  std::array<float, kWord> steps_ = {};  // of rows of 4 bits
  std::array<float, kWord> scales_ = {};
  std::array<float, kWord> offsets_ = {};
  std::array<float, kWord> widths_ = {};
  std::array<kernels::ScanQuery, kRequests> queries_ = {};
  std::array<uint64_t, kRequests> hits_ = {};
  std::array<float, kRequests* kWord> scores_ = {};
};

// Scores candidates exactly, and keeps the k best.
std::vector<ScoredRow> best_of(
    const std::vector<Candidate>& candidates,
    const ScanRows& rows,
    const ScanRequest& request,
    const kernels::KernelTable& kernels) {
  std::vector<float> buffer;
  std::vector<ScoredRow> scored;
  for (const auto& [lower, upper, row] : candidates) {
    const double score = dot_of(
        request.vector, numbers_of(kernels, rows, row, buffer), rows.dim);
    if (!std::isnan(score)) {
      scored.push_back({.number = row, .score = to_float(score)});
    }
  }
  const auto kept = std::min(request.k, std::ssize(scored));
  std::partial_sort(
      scored.begin(),
      scored.begin() + kept,
      scored.end(),
      [](const ScoredRow& a, const ScoredRow& b) {
        return a.score != b.score ? a.score > b.score : a.number < b.number;
      });
  scored.resize(kept);
  return scored;
}

}  // namespace

std::vector<std::vector<ScoredRow>> scan(
    const ScanRows& rows,
    std::span<const ScanRequest> requests,
    const ScanOptions& options) {
  std::vector<ScanRequest> checked(requests.begin(), requests.end());
  for (ScanRequest& request : checked) {
    TESSERA_CHECK_VALUE(
        request.k >= 1,
        "[scan] k must be >= 1, but got {}. Set it to the number of results.",
        request.k);
    TESSERA_CHECK_VALUE(
        std::all_of(
            request.vector,
            request.vector + rows.dim,
            [](float value) { return std::isfinite(value); }),
        "[scan] the vector of a request must be finite, but has NaN or infinity. Look for a division by 0 in the model.");
    request.k = std::min(request.k, std::max<int64_t>(rows.num_rows, 1));
  }
  const kernels::KernelTable& kernels =
      options.kernels == nullptr ? active_kernels() : *options.kernels;
  const auto count = std::ssize(checked);
  const int64_t blocks = (count + kRequests - 1) / kRequests;
  // Blocks run beside each other. Few rows are not worth another thread.
  const int64_t parts = std::min(
      (options.num_threads + blocks - 1) / std::max<int64_t>(blocks, 1),
      1 + rows.num_rows / kRowsPerThread);
  std::vector<std::unique_ptr<Pass>> passes(
      static_cast<size_t>(blocks * parts));
  options.run_tasks(blocks * parts, [&](int64_t i) {
    const int64_t first = i / parts * kRequests;
    passes[i] = std::make_unique<Pass>(
        rows,
        std::span(checked).subspan(first, std::min(kRequests, count - first)),
        kernels);
    passes[i]->run(i % parts, parts);
  });
  std::vector<std::vector<ScoredRow>> results(checked.size());
  options.run_tasks(count, [&](int64_t i) {
    Candidates candidates(checked[i].k);
    for (int64_t part = 0; part < parts; ++part) {
      const Pass& pass = *passes[i / kRequests * parts + part];
      for (const Candidate& row : pass.candidates(i % kRequests).rows()) {
        candidates.add(row);
      }
    }
    candidates.prune();
    results[i] = best_of(candidates.rows(), rows, checked[i], kernels);
  });
  return results;
}

}  // namespace tessera
