// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// The results of TopKIndex::search() for each query, best first. If a query has fewer
/// than k results, its scores end with -infinity and its ids with -1.
struct TopK {
  at::Tensor scores = {};  // [queries, k] float32
  at::Tensor ids = {};  // [queries, k] int64
};

namespace detail {

/// The vectors of an index.
struct IndexVectors {
  at::Tensor rows = {};  // [size, dim] float32, contiguous, without gradient
  double max_norm = 0.0;  // the length of the longest row, finite
};

/// Checks and converts the vectors of an index.
/// Errors:  c10::ValueError or TypeError unless `vectors` is a CPU matrix of a floating
///          dtype with at least one row and finite values. `where` begins the message.
IndexVectors index_vectors(const at::Tensor& vectors, const std::string& where);

}  // namespace detail

// snippet: tests/docs/reference_layers_test.cpp TopKIndex
/// Holds vectors, such as a candidate tower's outputs, and finds those with the highest dot
/// products with a query.
///
///   const auto index = make_exact_index(movie_vectors, movie_ids);
///   const TopK found = index->search(user_vectors, 10, seen_movies);
///   // found.ids: [users, 10], without the movies that a user has seen
///
/// make_exact_index() compares a query with all vectors. make_faiss_index() in
/// faiss_index.h is for millions of vectors. An index does not change, so several threads
/// may share it.
class TopKIndex {
 public:
  virtual ~TopKIndex() = default;
  TopKIndex(const TopKIndex&) = delete;
  TopKIndex& operator=(const TopKIndex&) = delete;

  /// The k best vectors for each row of `queries` [queries, dim]. `excluded` has one bag
  /// per query with the ids to leave out, such as the items that a user has seen. An
  /// empty `excluded` excludes nothing. Ids that the index does not have are ignored.
  /// Errors:  c10::ValueError or TypeError for wrong shapes or dtypes, NaN and infinity, k
  ///          outside [1, size], and vectors so long that scores may overflow.
  TopK search(
      const at::Tensor& queries,
      int64_t k,
      const RaggedFeature& excluded = {}) const;

  /// The number of vectors.
  int64_t size() const {
    return ids_.size(0);
  }
  int64_t dim() const {
    return dim_;
  }
  /// The id of each vector, [size] int64.
  at::Tensor ids() const {
    return ids_;
  }

  /// Writes one safetensors file. The file appears completely or not at all.
  /// Errors:  as for save_safetensors().
  virtual void save(const std::string& path) const = 0;

 protected:
  /// If `ids` is undefined, the vectors get the ids 0, 1, 2, ...
  /// Errors:  c10::ValueError or TypeError unless `ids` is undefined, or [size] int32 or
  ///          int64 with different values >= 0.
  TopKIndex(const detail::IndexVectors& vectors, const at::Tensor& ids);
  /// For an index that stores its vectors itself. No vector is longer than `max_norm`.
  TopKIndex(int64_t dim, double max_norm, const at::Tensor& ids);

  double max_norm() const {
    return max_norm_;
  }

 private:
  /// The k best vectors for each query, with positions in place of ids. A position of -1
  /// means no result. `queries` is float32, contiguous and finite.
  virtual TopK nearest(const at::Tensor& queries, int64_t k) const = 0;

  int64_t dim_ = 0;
  double max_norm_ = 0.0;  // no vector is longer
  at::Tensor ids_;
};

/// Makes an index that compares each query with all vectors. Scores are sums in float64,
/// rounded to float32, so they do not depend on the other queries or the number of threads.
/// Vectors with equal scores are ordered by position. Vectors that are float32 and
/// contiguous are not copied, so don't write to them.
///
/// Memory: 8 bytes per vector for the ids. A search needs a copy of the excluded ids and
/// about 30 MB, or 100 bytes for each id that one query requests or excludes, if that is
/// more.
/// Shapes:  vectors [size, dim], ids [size] int32 or int64 with different values >= 0.
///          If `ids` is undefined, the ids are 0, 1, 2, ...
/// Errors:  c10::ValueError or TypeError naming the problem.
std::unique_ptr<TopKIndex> make_exact_index(
    const at::Tensor& vectors,
    const at::Tensor& ids = {});

/// Loads an exact index that save() wrote. The vectors are read once, to check them. They
/// are views of the file's pages, which processes share.
/// Errors:  c10::ValueError naming the file and the problem.
std::unique_ptr<TopKIndex> load_exact_index(const std::string& path);

}  // namespace tessera
