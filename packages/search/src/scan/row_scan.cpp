// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/row_scan.h"

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/kernels/prefetch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

// The scan estimates all scores in float32, from the quantized rows if there are any. Rows
// whose estimate plus its error reaches the k-th best estimate minus its error are
// candidates, and only they are scored exactly. So the result is that of exact scores.
//
// Bound of the error of a dot product. Let u = 2^-24, n = dim, |q| = the sum of |q[i]|, and
// `size` >= |row[i]| for all i.
// - Sums of n products in any order differ by at most 2 n u |q| size, for n < 2^23.
// - At most 16 further roundings are relative to |q| size: those of a decoded row (2), of
//   the query's sum, of scale * sum + offset * sum (3), of the bounds (2), of a cosine's
//   query (2), and of the score itself. So `rounding` is 2 (n + 8) u.
// - quantize_row() rounds to the nearest of numbers that are `scale` apart, so an exact row
//   differs by at most scale / 2, and by less than 3 u size because scale, difference and
//   product are rounded, plus 2^-141 for scales below float32's smallest normal number.
// - Numbers below the smallest normal number, 2^-126, may count as 0: `slack`, 2^-120.
// So the error is at most |q| (rounding * size + scale / 2 + 2^-120) + slack, and 2^-20
// times the bias, which is rounded three times.
//
// Bound for cosines: if x and y differ by at most w in each element, then x / |x| and
// y / |y| differ by at most 2 sqrt(n) w / |y|. So `weight` is 2 sqrt(n) in place of |q|,
// and the rounding of a length is relative to a cosine, at most 1.

namespace tessera {

namespace {

using kernels::OverlaidWord;
using kernels::ScanArgs;

constexpr int64_t kWord = RowSet::kWordRows;
static_assert(kWord == ScanArgs::kRows && kWord == OverlaidWord::kRows);
constexpr int64_t kRequests = 32;  // of one pass
constexpr double kLeastLength = 1e-12;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// More than the relative rounding of a double to float32.
constexpr double kRoundUp = 1.0 + 0x1p-20;

// Memory that begins at a cache line.
struct alignas(64) Line {
  std::array<float, ScanArgs::kPadding> values = {};
};

int64_t bytes_per_row(const RowMemory& rows, int64_t dim) {
  return rows.quantized_bits != 0
      ? kernels::QuantizedRow::bytes(dim, rows.quantized_bits)
      : dim * bytes_per_element(rows.storage);
}

// Sets places[j] to the row first + j for each bit j of `mask`. `first` is a multiple of 64.
void locate_word(
    const RowMemory& rows,
    int64_t row_bytes,
    int64_t first,
    uint64_t mask,
    const void** places) {
  if (rows.places != nullptr) {
    for (; mask != 0; mask &= mask - 1) {
      *places++ = rows.places[first + std::countr_zero(mask)];
    }
    return;
  }
  const char* base = static_cast<const char*>(rows.first) + first * row_bytes;
  OverlaidWord word;
  if (rows.overlaid != nullptr) {
    constexpr int64_t kChunkRows = kernels::LocateArgs::kChunkRows;
    word = rows.overlaid[first / kChunkRows][first % kChunkRows / kWord];
  }
  for (; mask != 0; mask &= mask - 1) {
    const int row = std::countr_zero(mask);
    const uint64_t bit = uint64_t{1} << row;
    *places++ = (word.replaced & bit) != 0
        ? word.rows[std::popcount(word.replaced & (bit - 1))]
        : base + row * row_bytes;
  }
}

// The 64 bits from `first` on.
uint64_t bits_from(std::span<const uint64_t> words, int64_t first) {
  const auto at = [&](size_t i) { return i < words.size() ? words[i] : 0; };
  const auto i = static_cast<size_t>(first / kWord);
  const int64_t shift = first % kWord;
  return shift == 0 ? at(i) : at(i) >> shift | at(i + 1) << (kWord - shift);
}

int64_t number_of(const RowSegment& segment, int64_t row) {
  return segment.first_number + row;
}

bool has_exact_rows(const RowSegment& segment) {
  return segment.exact_rows.first != nullptr ||
      segment.exact_rows.places != nullptr;
}

// Float32 numbers have products that are exact in float64. The order is fixed.
double dot_of(const float* a, const float* b, int64_t dim) {
  std::array<double, 4> sums = {};
  for (int64_t i = 0; i < dim; ++i) {
    sums[i % 4] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

double length_of(const float* values, int64_t dim) {
  return std::max(std::sqrt(dot_of(values, values, dim)), kLeastLength);
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
  const RowSegment* segment = nullptr;
  int64_t row = 0;  // of the segment
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
          rows_.begin(),
          kth,
          rows_.end(),
          [](const Candidate& a, const Candidate& b) {
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
        lines_(ScanArgs::padded(rows.dim) / ScanArgs::kPadding),
        vectors_(requests.size() * lines_),
        scratch_(4 * lines_),
        scores_(requests.size() * kWord / ScanArgs::kPadding),
        queries_(requests.size()),
        hits_(requests.size()) {
    for (size_t i = 0; i < requests.size(); ++i) {
      candidates_.emplace_back(requests[i].k);
      prepare(i);
      chooses_all_ = chooses_all_ || requests[i].allowed == nullptr;
    }
  }

  // Scans the given part of each segment.
  void run(int64_t part, int64_t num_parts) {
    for (const RowSegment& segment : rows_.segments) {
      begin(segment);
      const int64_t words = (segment.num_rows + kWord - 1) / kWord;
      const int64_t end = words * (part + 1) / num_parts;
      for (int64_t word = words * part / num_parts; word < end; ++word) {
        const int64_t first = word * kWord;
        const int64_t count = std::min(kWord, segment.num_rows - first);
        add(first, (~uint64_t{0} >> (kWord - count)) & allowed_from(first));
      }
      flush();
    }
  }

  const Candidates& candidates(size_t request) const {
    return candidates_[request];
  }

 private:
  // Pads the vector of a request, and computes what its bounds need.
  void prepare(size_t request) {
    const float* vector = requests_[request].vector;
    float* padded = vectors_[request * lines_].values.data();
    const auto dim = static_cast<double>(rows_.dim);
    const bool is_cosine = rows_.score == ScoreKind::kCosine;
    const double length = is_cosine ? length_of(vector, rows_.dim) : 1.0;
    double sum = 0.0;
    double magnitude = 0.0;
    for (int64_t i = 0; i < rows_.dim; ++i) {
      padded[i] = static_cast<float>(static_cast<double>(vector[i]) / length);
      sum += static_cast<double>(padded[i]);
      magnitude += std::abs(static_cast<double>(padded[i]));
    }
    const double weight = is_cosine ? 2.0 * std::sqrt(dim) : magnitude;
    queries_[request] = {
        .sum = to_float(sum),
        .weight = to_float(weight * kRoundUp),
        .slack = to_float((dim + 8.0) * (is_cosine ? 0x1p-20 : 0x1p-125))};
  }

  void begin(const RowSegment& segment) {
    segment_ = &segment;
    row_bytes_ = bytes_per_row(segment.rows, rows_.dim);
    args_ = {
        .storage = segment.rows.storage,
        .bits = segment.rows.quantized_bits,
        .dim = rows_.dim,
        .divide_by_length = rows_.score == ScoreKind::kCosine,
        .rounding = static_cast<float>(rows_.dim + 8) * 0x1p-23F,
        .half_step = has_exact_rows(segment) ? 0.5F : 0.0F,
        .rows = places_.data(),
        .biases = rows_.biases == nullptr ? nullptr : biases_.data(),
        .queries = queries_.data(),
        .vectors = vectors_.data()->values.data(),
        .num_queries = static_cast<int64_t>(requests_.size()),
        .scratch = scratch_.data()->values.data(),
        .scales = scales_.data(),
        .offsets = offsets_.data(),
        .widths = widths_.data(),
        .scores = scores_.data()->values.data(),
        .hits = hits_.data()};
  }

  // The rows of the word at `first` that at least one request allows.
  uint64_t allowed_from(int64_t first) const {
    if (chooses_all_) {
      return ~uint64_t{0};
    }
    uint64_t allowed = 0;
    for (const ScanRequest& request : requests_) {
      allowed |= bits_from(
          request.allowed->words(), segment_->first_number + first);
    }
    return allowed;
  }

  static bool allows(const ScanRequest& request, int64_t number) {
    return request.allowed == nullptr ||
        (number < request.allowed->size() && request.allowed->contains(number));
  }

  // Adds rows to the next call of the kernel.
  void add(int64_t first, uint64_t mask) {
    const int64_t count = std::popcount(mask);
    if (num_rows_ + count > kWord) {
      flush();
    }
    const void** places = places_.data() + num_rows_;
    locate_word(segment_->rows, row_bytes_, first, mask, places);
    // The processor prefetches rows that lie close together.
    constexpr int64_t kFewRows = 16;
    for (int64_t i = 0; count <= kFewRows && i < count; ++i) {
      kernels::prefetch_row(places[i], row_bytes_, 0);
    }
    for (; mask != 0; mask &= mask - 1) {
      indices_[num_rows_++] = first + std::countr_zero(mask);
    }
  }

  // Estimates the scores of the added rows.
  void flush() {
    if (num_rows_ == 0) {
      return;
    }
    for (int64_t i = num_rows_; i % 4 != 0; ++i) {
      places_[i] = places_[num_rows_ - 1];
    }
    for (int64_t i = 0; args_.biases != nullptr && i < num_rows_; ++i) {
      biases_[i] = rows_.biases[number_of(*segment_, indices_[i])];
    }
    args_.num_rows = std::exchange(num_rows_, 0);
    for (size_t i = 0; i < queries_.size(); ++i) {
      queries_[i].threshold = candidates_[i].threshold();
    }
    kernels_.scan(args_);
    for (size_t i = 0; i < queries_.size(); ++i) {
      for (uint64_t hits = hits_[i]; hits != 0; hits &= hits - 1) {
        add_candidate(i, std::countr_zero(hits));
      }
    }
  }

  void add_candidate(size_t request, int64_t row) {
    const int64_t number = number_of(*segment_, indices_[row]);
    const auto& excluded = requests_[request].excluded;
    if (!allows(requests_[request], number) ||
        std::binary_search(excluded.begin(), excluded.end(), number)) {
      return;
    }
    const kernels::ScanQuery& query = queries_[request];
    const float score =
        args_.scores[static_cast<int64_t>(request) * kWord + row];
    const float error = query.weight * widths_[row] + query.slack +
        0x1p-20F * std::abs(biases_[row]);
    const bool is_bounded =
        std::abs(score) <= ScanArgs::kLargest && error < kInfinity;
    candidates_[request].add(
        {.lower = is_bounded ? score - error : -kInfinity,
         .upper = is_bounded ? score + error : kInfinity,
         .segment = segment_,
         .row = indices_[row]});
  }

  const ScanRows& rows_;
  std::span<const ScanRequest> requests_;
  const kernels::KernelTable& kernels_;
  size_t lines_;  // of a vector
  std::vector<Line> vectors_;
  std::vector<Line> scratch_;
  std::vector<Line> scores_;
  std::vector<kernels::ScanQuery> queries_;
  std::vector<uint64_t> hits_;
  std::vector<Candidates> candidates_;
  bool chooses_all_ = false;
  const RowSegment* segment_ = nullptr;
  int64_t row_bytes_ = 0;
  ScanArgs args_ = {};
  // The rows of the next call.
  int64_t num_rows_ = 0;
  std::array<int64_t, kWord> indices_ = {};
  std::array<const void*, kWord> places_ = {};
  std::array<float, kWord> biases_ = {};
  std::array<float, kWord> scales_ = {};
  std::array<float, kWord> offsets_ = {};
  std::array<float, kWord> widths_ = {};
};

// Looks up rows [count, dim] at `places`.
void decode(
    const kernels::KernelTable& kernels,
    const RowMemory& rows,
    std::span<const void* const> places,
    int64_t dim,
    float* out) {
  const auto count = static_cast<int64_t>(places.size());
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

// Scores candidates exactly, and keeps the k best.
std::vector<ScoredRow> best_of(
    std::vector<Candidate> candidates,
    const ScanRows& rows,
    const ScanRequest& request,
    const kernels::KernelTable& kernels) {
  std::sort(
      candidates.begin(),
      candidates.end(),
      [](const Candidate& a, const Candidate& b) {
        return std::tie(a.segment, a.row) < std::tie(b.segment, b.row);
      });
  const bool is_cosine = rows.score == ScoreKind::kCosine;
  const double length = is_cosine ? length_of(request.vector, rows.dim) : 1.0;
  std::vector<float> numbers(static_cast<size_t>(kWord * rows.dim));
  std::array<const void*, kWord> places = {};
  std::vector<ScoredRow> scored;
  for (size_t begin = 0; begin < candidates.size();) {
    const RowSegment& segment = *candidates[begin].segment;
    const RowMemory& memory =
        has_exact_rows(segment) ? segment.exact_rows : segment.rows;
    const int64_t row_bytes = bytes_per_row(memory, rows.dim);
    size_t count = 0;
    for (; count < kWord && begin + count < candidates.size() &&
         candidates[begin + count].segment == &segment;
         ++count) {
      const int64_t row = candidates[begin + count].row;
      const uint64_t bit = uint64_t{1} << (row % kWord);
      locate_word(
          memory, row_bytes, row - row % kWord, bit, places.data() + count);
    }
    decode(kernels, memory, {places.data(), count}, rows.dim, numbers.data());
    for (size_t i = 0; i < count; ++i) {
      const float* values = numbers.data() + static_cast<int64_t>(i) * rows.dim;
      double score = dot_of(request.vector, values, rows.dim);
      if (is_cosine) {
        score /= length * length_of(values, rows.dim);
      }
      const int64_t number = number_of(segment, candidates[begin + i].row);
      if (rows.biases != nullptr) {
        score += static_cast<double>(rows.biases[number]);
      }
      if (!std::isnan(score)) {
        scored.push_back({.number = number, .score = to_float(score)});
      }
    }
    begin += count;
  }
  const auto kept = std::min(request.k, static_cast<int64_t>(scored.size()));
  std::partial_sort(
      scored.begin(),
      scored.begin() + kept,
      scored.end(),
      [](const ScoredRow& a, const ScoredRow& b) {
        return a.score != b.score ? a.score > b.score : a.number < b.number;
      });
  scored.resize(static_cast<size_t>(kept));
  return scored;
}

}  // namespace

std::vector<std::vector<ScoredRow>> scan(
    const ScanRows& rows,
    std::span<const ScanRequest> requests,
    const ScanOptions& options) {
  int64_t num_rows = 0;
  for (const RowSegment& segment : rows.segments) {
    num_rows += segment.num_rows;
  }
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
    request.k = std::clamp<int64_t>(num_rows, 1, request.k);
  }
  const kernels::KernelTable& kernels =
      options.kernels == nullptr ? active_kernels() : *options.kernels;
  const auto run = [&](int64_t count,
                       const std::function<void(int64_t)>& task) {
    if (options.run_tasks != nullptr) {
      options.run_tasks(count, task);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      task(i);
    }
  };
  const auto count = static_cast<int64_t>(checked.size());
  const int64_t parts = options.num_parts;
  const int64_t blocks = (count + kRequests - 1) / kRequests;
  std::vector<std::unique_ptr<Pass>> passes(
      static_cast<size_t>(blocks * parts));
  run(blocks * parts, [&](int64_t i) {
    const int64_t first = i / parts * kRequests;
    passes[i] = std::make_unique<Pass>(
        rows,
        std::span(checked).subspan(first, std::min(kRequests, count - first)),
        kernels);
    passes[i]->run(i % parts, parts);
  });
  std::vector<std::vector<ScoredRow>> results(checked.size());
  run(count, [&](int64_t i) {
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
