// SPDX-License-Identifier: Apache-2.0
#include <tessera/formats/safetensors.h>
#include <tessera/search/top_k_index.h>

#include "packages/search/src/index_file.h"
#include "src/common/parallel.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <algorithm>
#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr const char* kExactFormat = "tessera exact index";
// The number of vectors per block. The scores of a block of queries take 8 MB.
constexpr int64_t kVectors = 8192;

struct Neighbor {
  float score = 0.0F;
  int64_t position = 0;

  // Equal scores are ordered by position, so the result is unique.
  bool operator<(const Neighbor& other) const {
    return score != other.score ? score > other.score
                                : position < other.position;
  }
};

// Updates `best`, a heap of at most k entries with the worst one in front.
void keep_best(
    std::vector<Neighbor>& best,
    size_t k,
    const float* scores,
    int64_t begin,
    int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    // Positions ascend, so an entry with an equal score never replaces another.
    if (best.size() < k) {
      best.push_back({scores[i], begin + i});
      std::push_heap(best.begin(), best.end());
    } else if (scores[i] > best.front().score) {
      std::pop_heap(best.begin(), best.end());
      best.back() = {scores[i], begin + i};
      std::push_heap(best.begin(), best.end());
    }
  }
}

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
    const int64_t count = queries.size(0);
    std::vector<std::vector<Neighbor>> best(static_cast<size_t>(count));
    for (std::vector<Neighbor>& row : best) {
      row.reserve(static_cast<size_t>(k));
    }
    for (int64_t begin = 0; begin < size(); begin += kVectors) {
      const int64_t block = std::min(kVectors, size() - begin);
      const at::Tensor product =
          at::matmul(queries, vectors_.narrow(0, begin, block).t())
              .contiguous();
      const float* scores = product.const_data_ptr<float>();
      const int64_t bytes = product.numel() * int64_t{sizeof(float)};
      run_tasks(count, bytes, [&](int64_t query) {
        keep_best(
            best[query],
            static_cast<size_t>(k),
            scores + query * block,
            begin,
            block);
      });
    }
    TopK found{
        .scores = at::empty({count, k}, at::kFloat),
        .ids = at::empty({count, k}, at::kLong)};
    float* score = found.scores.mutable_data_ptr<float>();
    int64_t* position = found.ids.mutable_data_ptr<int64_t>();
    for (std::vector<Neighbor>& row : best) {
      std::sort_heap(row.begin(), row.end());
      for (const Neighbor& entry : row) {
        *score++ = entry.score;
        *position++ = entry.position;
      }
    }
    return found;
  }

  at::Tensor vectors_;  // [size, dim]
};

}  // namespace

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
