// SPDX-License-Identifier: Apache-2.0
#include <tessera/search/top_k_index.h>

#include <tessera/formats/safetensors.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "packages/search/src/given_items.h"
#include "packages/search/src/index_file.h"
#include "packages/search/src/scan/row_scan.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/tensor_text.h"

namespace tessera {

namespace {

// The maximum number of queries per block: enough for fast scans.
constexpr int64_t kQueries = 256;
// The maximum number of results per block, of about 100 bytes each.
constexpr int64_t kMaxFound = 1 << 18;
// The number of elements that are converted to float64 at a time: 8 MB.
constexpr int64_t kElements = 1 << 20;

bool is_integer(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt;
}

// Returns vectors or queries as a float32 matrix.
at::Tensor matrix_of(
    const at::Tensor& matrix,
    const std::string& where,
    const char* name) {
  TESSERA_CHECK_VALUE(
      matrix.defined() && matrix.dim() == 2 && matrix.size(1) > 0,
      "{} {} must be a matrix of one row per vector, but got {}. For a single vector v, pass v.unsqueeze(0).",
      where,
      name,
      matrix.defined() ? c10::str("shape ", matrix.sizes())
                       : "an undefined tensor");
  TESSERA_CHECK_TYPE(
      at::isFloatingType(matrix.scalar_type()),
      "{} {} must be floats, but got {}. Convert them with to(torch::kFloat).",
      where,
      name,
      matrix.scalar_type());
  TESSERA_CHECK_VALUE(
      matrix.device().is_cpu() && matrix.layout() == at::kStrided,
      "{} {} must be dense and on the CPU, but got {} on {}. Convert them with to_dense() and to(torch::kCPU).",
      where,
      name,
      matrix.layout(),
      matrix.device());
  return matrix.detach().to(at::kFloat).contiguous();
}

// The length of the longest row: 0 without rows, and not finite if an element is not.
double max_row_norm(const at::Tensor& matrix) {
  double max_norm = 0.0;
  const int64_t step = std::max<int64_t>(1, kElements / matrix.size(1));
  for (int64_t begin = 0; begin < matrix.size(0); begin += step) {
    const at::Tensor rows =
        matrix.narrow(0, begin, std::min(step, matrix.size(0) - begin));
    const auto length =
        at::linalg_vector_norm(rows.to(at::kDouble), 2, at::IntArrayRef{1})
            .max()
            .item<double>();
    if (!std::isfinite(length)) {
      return length;
    }
    max_norm = std::max(max_norm, length);
  }
  return max_norm;
}

at::Tensor checked_ids(const at::Tensor& ids, std::optional<int64_t> size) {
  if (!ids.defined() && size) {
    return at::arange(*size, at::kLong);
  }
  TESSERA_CHECK_VALUE(
      ids.defined() && ids.dim() == 1 && ids.size(0) > 0 &&
          ids.size(0) == size.value_or(ids.size(0)) && ids.device().is_cpu(),
      "[TopKIndex] ids must be a one-dimensional tensor on the CPU with one id per vector{}, but got {}. Leave the ids out to number the vectors from 0.",
      size ? c10::str(", [", *size, "]") : "",
      ids.defined() ? c10::str(ids.sizes(), " on ", ids.device())
                    : "an undefined tensor");
  TESSERA_CHECK_TYPE(
      is_integer(ids),
      "[TopKIndex] ids must be int32 or int64, but got {}. Convert them with to(torch::kLong).",
      ids.scalar_type());
  // Copied, so that nobody else can write to the ids.
  const at::Tensor own =
      ids.to(at::kLong, /*non_blocking=*/false, /*copy=*/true).contiguous();
  const at::Tensor sorted = std::get<0>(own.sort());
  const int64_t* id = sorted.const_data_ptr<int64_t>();
  const int64_t* duplicate = std::adjacent_find(id, id + sorted.size(0));
  TESSERA_CHECK_VALUE(
      id[0] >= 0,
      "[TopKIndex] ids must be >= 0, but got {}. Use other ids, because -1 stands for no result.",
      id[0]);
  TESSERA_CHECK_VALUE(
      duplicate == id + sorted.size(0),
      "[TopKIndex] ids must be unique, but {} occurs more than once. Give each vector its own id.",
      *duplicate);
  return own;
}

// The ids to leave out for each query, sorted within each bag.
ItemBags sorted_exclusions(const RaggedFeature& bags, int64_t queries) {
  if (!bags.values.defined() && !bags.row_splits.defined()) {
    return {.splits = std::vector<int64_t>(static_cast<size_t>(queries) + 1)};
  }
  const auto is_vector = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() == 1 && is_integer(tensor) &&
        tensor.device().is_cpu() && tensor.layout() == at::kStrided;
  };
  TESSERA_CHECK_VALUE(
      is_vector(bags.values) && is_vector(bags.row_splits) &&
          bags.row_splits.size(0) == queries + 1,
      "[TopKIndex] excluded must have int32 or int64 values and row_splits of shape [{}], one bag per query, dense and on the CPU, but got values: {} and row_splits: {}. Make it with RaggedFeature::from_lengths().",
      queries + 1,
      describe(bags.values),
      describe(bags.row_splits));
  constexpr const char* kWhat = "[TopKIndex] excluded";
  ItemBags excluded{
      .ids = integers_of(bags.values, kWhat),
      .splits = integers_of(bags.row_splits, kWhat)};
  TESSERA_CHECK_VALUE(
      excluded.splits.front() == 0 &&
          excluded.splits.back() == std::ssize(excluded.ids) &&
          std::ranges::is_sorted(excluded.splits),
      "[TopKIndex] the row_splits of excluded must begin with 0, must not decrease, and must end with the number of its values, {}. Make it with RaggedFeature::from_lengths().",
      excluded.ids.size());
  for (int64_t query = 0; query < queries; ++query) {
    std::sort(
        excluded.ids.begin() + excluded.splits[query],
        excluded.ids.begin() + excluded.splits[query + 1]);
  }
  return excluded;
}

// The end of the block of queries that begins at `begin`. Each query of a block fetches the
// largest needed[query] of the block, so one large number makes the block short.
int64_t block_end(int64_t begin, const std::vector<int64_t>& needed) {
  const auto last = std::min(begin + kQueries, std::ssize(needed));
  int64_t max_needed = needed[begin];
  int64_t end = begin + 1;
  while (end < last) {
    max_needed = std::max(max_needed, needed[end]);
    if (max_needed > kMaxFound / (end + 1 - begin)) {
      break;
    }
    ++end;
  }
  return end;
}

constexpr const char* kExactFormat = "tessera exact index";
class ExactIndex : public TopKIndex {
 public:
  ExactIndex(detail::IndexVectors vectors, const at::Tensor& ids)
      : TopKIndex(vectors, ids), vectors_(std::move(vectors.rows)) {}

  void save(const std::string& path) const override {
    save_safetensors(
        {.tensors = {{"vectors", vectors_}, {"ids", ids()}},
         .metadata = {{"format", kExactFormat}}},
        path);
  }

 private:
  TopK nearest(const at::Tensor& queries, int64_t k) const override {
    std::vector<ScanRequest> requests;
    for (int64_t query = 0; query < queries.size(0); ++query) {
      requests.push_back(
          {.vector = queries.const_data_ptr<float>() + query * dim(), .k = k});
    }
    const auto results = scan(
        {.dim = dim(),
         .rows = {.first = vectors_.const_data_ptr<float>()},
         .num_rows = size()},
        requests,
        {.num_threads = thread_count(),
         .run_tasks = [&](int64_t count, const auto& task) {
           run_tasks(count, vectors_.numel() * int64_t{sizeof(float)}, task);
         }});
    TopK found{
        .scores = at::empty({queries.size(0), k}, at::kFloat),
        .ids = at::empty({queries.size(0), k}, at::kLong)};
    float* score = found.scores.mutable_data_ptr<float>();
    int64_t* position = found.ids.mutable_data_ptr<int64_t>();
    for (const std::vector<ScoredRow>& rows : results) {
      for (const ScoredRow& row : rows) {
        *score++ = row.score;
        *position++ = row.number;
      }
    }
    return found;
  }

  at::Tensor vectors_;  // [size, dim]
};

}  // namespace

detail::IndexVectors detail::index_vectors(
    const at::Tensor& vectors,
    const std::string& where) {
  at::Tensor rows = matrix_of(vectors, where, "vectors");
  TESSERA_CHECK_VALUE(
      rows.size(0) > 0,
      "{} expected one vector or more, but got none. Pass the vectors to search.",
      where);
  const double max_norm = max_row_norm(rows);
  TESSERA_CHECK_VALUE(
      std::isfinite(max_norm),
      "{} vectors must be finite, but some have NaN or infinity as float32. Look for a division by 0 in the tower, or scale the vectors down.",
      where);
  return {.rows = std::move(rows), .max_norm = max_norm};
}

TopKIndex::TopKIndex(const detail::IndexVectors& vectors, const at::Tensor& ids)
    : dim_(vectors.rows.size(1)),
      max_norm_(vectors.max_norm),
      ids_(checked_ids(ids, vectors.rows.size(0))) {}

TopKIndex::TopKIndex(int64_t dim, double max_norm, const at::Tensor& ids)
    : dim_(dim), max_norm_(max_norm), ids_(checked_ids(ids, std::nullopt)) {}

TopK TopKIndex::search(
    const at::Tensor& queries,
    int64_t k,
    const RaggedFeature& excluded) const {
  const at::Tensor matrix = matrix_of(queries, "[TopKIndex]", "queries");
  TESSERA_CHECK_VALUE(
      matrix.size(1) == dim_,
      "[TopKIndex] queries must have the vectors' dim, {}, but got {}. Compute queries and vectors with the same model.",
      dim_,
      matrix.size(1));
  TESSERA_CHECK_VALUE(
      k >= 1 && k <= size(),
      "[TopKIndex] k must be in [1, {}], the number of vectors, but got {}. {}",
      size(),
      k,
      k < 1 ? "Set it to the number of results per query." : "Lower k.");
  const double length = max_row_norm(matrix);
  TESSERA_CHECK_VALUE(
      std::isfinite(length),
      "[TopKIndex] queries must be finite, but some have NaN or infinity as float32. Look for a division by 0 in the tower, or scale the queries down.");
  // No partial sum of a dot product is larger than the product of the lengths.
  TESSERA_CHECK_VALUE(
      length * max_norm_ < std::numeric_limits<float>::max(),
      "[TopKIndex] scores may overflow float32, because queries have lengths up to {}, and vectors up to {}. Scale them down.",
      length,
      max_norm_);
  const int64_t count = matrix.size(0);
  const ItemBags exclusions = sorted_exclusions(excluded, count);

  TopK found{
      .scores = at::full(
          {count, k}, -std::numeric_limits<float>::infinity(), at::kFloat),
      .ids = at::full({count, k}, -1, at::kLong)};
  float* scores = found.scores.mutable_data_ptr<float>();
  int64_t* ids = found.ids.mutable_data_ptr<int64_t>();
  const int64_t* id_at = ids_.const_data_ptr<int64_t>();
  std::vector<int64_t> needed;  // how many to fetch, so that k are left
  for (int64_t query = 0; query < count; ++query) {
    needed.push_back(std::min(k + std::ssize(exclusions.of(query)), size()));
  }
  int64_t end = 0;
  for (int64_t begin = 0; begin < count; begin = end) {
    end = block_end(begin, needed);
    const int64_t fetched =
        *std::max_element(needed.begin() + begin, needed.begin() + end);
    const TopK block = nearest(matrix.narrow(0, begin, end - begin), fetched);
    const float* score = block.scores.const_data_ptr<float>();
    const int64_t* position = block.ids.const_data_ptr<int64_t>();
    for (int64_t query = begin; query < end; ++query) {
      int64_t kept = 0;
      for (int64_t i = 0; i < fetched && kept < k; ++i) {
        const int64_t at = (query - begin) * fetched + i;
        if (position[at] < 0 ||
            std::ranges::binary_search(
                exclusions.of(query), id_at[position[at]])) {
          continue;
        }
        scores[query * k + kept] = score[at];
        ids[query * k + kept] = id_at[position[at]];
        ++kept;
      }
    }
  }
  return found;
}

std::unique_ptr<TopKIndex> make_exact_index(
    const at::Tensor& vectors,
    const at::Tensor& ids) {
  return std::make_unique<ExactIndex>(
      detail::index_vectors(vectors, "[make_exact_index]"), ids);
}

std::unique_ptr<TopKIndex> load_exact_index(const std::string& path) {
  return load_index_file(
      "load_exact_index", path, kExactFormat, [](const NamedTensors& file) {
        return make_exact_index(file["vectors"], file["ids"]);
      });
}

}  // namespace tessera
