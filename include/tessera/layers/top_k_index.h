// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera {

/// What TopKIndex::search() finds for each query, best first. Where there are
/// fewer than k, the scores end with -infinity and the ids with -1.
struct TopK {
  at::Tensor scores = {};  // [queries, k] float32
  at::Tensor ids = {};  // [queries, k] int64
};

/// What an index is made of.
struct IndexVectors {
  at::Tensor rows = {};  // [size, dim] float32, contiguous, without gradient
  double longest = 0.0;  // finite; no row is longer
};

/// Errors:  c10::ValueError or TypeError unless `vectors` are a CPU matrix of one
///          finite vector or more of a floating dtype; `where` begins the message.
IndexVectors index_vectors(const at::Tensor& vectors, const std::string& where);

/// Vectors, such as a candidate tower's, of which those with the highest dot
/// products with a query are looked for.
///
///   const auto index = make_exact_index(load_npy("movies.npy"));
///   const TopK found = index->search(user_tower(features), 10, {seen_movies});
///
/// make_exact_index() compares with all; make_faiss_index() (faiss_index.h) is
/// for millions of vectors. An index does not change, so threads may share one.
class TopKIndex {
 public:
  virtual ~TopKIndex() = default;
  TopKIndex(const TopKIndex&) = delete;
  TopKIndex& operator=(const TopKIndex&) = delete;

  /// The k best for each of `queries` [queries, dim], without the ids that
  /// `excluded` has for it: what a user has seen, one bag per query. An empty
  /// `excluded` excludes nothing; ids in it that the index lacks are fine.
  /// Errors:  c10::ValueError or TypeError for shapes, dtypes, NaN and infinity,
  ///          k outside [1, size], and vectors so long that scores may overflow.
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
  /// [size] int64, by position.
  const at::Tensor& ids() const {
    return ids_;
  }

  /// Writes one safetensors file, which appears whole or not at all.
  /// Errors:  as save_safetensors().
  virtual void save(const std::string& path) const = 0;

 protected:
  /// Errors:  c10::ValueError or TypeError unless `ids` is undefined, which counts
  ///          from 0, or [size] int32 or int64, >= 0 and different.
  TopKIndex(const IndexVectors& vectors, const at::Tensor& ids);
  /// An index whose vectors are elsewhere. None is longer than `longest`.
  TopKIndex(int64_t dim, double longest, const at::Tensor& ids);

  double longest() const {
    return longest_;
  }

 private:
  /// The k best for each of some queries (float32, contiguous, finite), with
  /// positions in place of ids.
  virtual TopK nearest(const at::Tensor& queries, int64_t k) const = 0;

  int64_t dim_ = 0;
  double longest_ = 0.0;  // no vector is longer
  at::Tensor ids_;
};

/// An index that compares each query with all vectors, by blocks. Beside these
/// it needs 8 bytes per vector for the ids; and to search, beside what it returns,
/// a copy of the excluded ids and some 20 MB, or 30 bytes for each id that one
/// query asks for or excludes where that is more. Equal scores are ordered by
/// position, the first first. Vectors that are float32 and contiguous are not
/// copied, so they must not be written to.
/// Shapes:  vectors [size, dim], ids [size] int32 or int64, >= 0 and different;
///          undefined ids count from 0.
/// Errors:  c10::ValueError or TypeError naming what is wrong with them.
std::unique_ptr<TopKIndex> make_exact_index(
    const at::Tensor& vectors,
    const at::Tensor& ids = {});

/// What its save() wrote. The vectors are read once, to check them, and stay views
/// of the file's pages, which processes share.
/// Errors:  c10::ValueError naming the file and what is wrong with it.
std::unique_ptr<TopKIndex> load_exact_index(const std::string& path);

}  // namespace tessera
