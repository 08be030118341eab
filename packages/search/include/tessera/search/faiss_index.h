// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/search/top_k_index.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera {

/// The kind of index that make_faiss_index() makes, and how it is searched.
struct FaissIndexOptions {
  /// The description for faiss::index_factory(). "HNSW32" is a graph of neighbours,
  /// "IVF1024,Flat" has 1024 clusters, and "IVF1024,PQ16" also compresses the vectors.
  std::string factory = "HNSW32";
  /// For IVF: the number of clusters to search. More clusters find more of the best
  /// vectors. Unset: faiss's default, 1.
  std::optional<int64_t> nprobe = {};
  /// For HNSW: the number of candidates kept during a search of the graph. Unset: faiss's
  /// default, 16.
  std::optional<int64_t> ef_search = {};

  bool operator==(const FaissIndexOptions&) const = default;

  TESSERA_FIELDS(factory, nprobe, ef_search)
};

/// Whether this Tessera was built with faiss.
bool has_faiss();

// snippet: tests/docs/reference_layers_test.cpp make_faiss_index
/// An approximate index for millions of vectors. It may miss some of the best vectors,
/// and the scores of compressed vectors are approximate. Excluded ids are removed from
/// the results of faiss. faiss copies the vectors and trains on them, always with the same
/// seed. Its k-means takes a sample if there are more than 256 vectors per cluster. faiss
/// uses as many threads as LibTorch.
///
///   const auto index = make_faiss_index(
///       vectors, ids, {.factory = "IVF1024,Flat", .nprobe = 32});
///
/// Shapes:  as for make_exact_index().
/// Errors:  as for make_exact_index(); c10::ValueError with faiss's reason for options
///          that it refuses, and for a number in `factory` that is 0 or more than
///          max(size, dim, 65536); c10::NotImplementedError without faiss.
/// Source:  https://github.com/facebookresearch/faiss/wiki/The-index-factory
std::unique_ptr<TopKIndex> make_faiss_index(
    const at::Tensor& vectors,
    const at::Tensor& ids = {},
    const FaissIndexOptions& options = {});

/// Loads a faiss index that save() wrote, with its nprobe and ef_search. In Python,
/// faiss.deserialize_index(load_file(path)["index"]) reads the same index. A checksum
/// detects accidental damage. Load only files that you trust, because faiss does not
/// protect itself against manipulated files.
/// Errors:  c10::ValueError naming the file and the problem;
///          c10::NotImplementedError without faiss.
std::unique_ptr<TopKIndex> load_faiss_index(const std::string& path);

}  // namespace tessera
