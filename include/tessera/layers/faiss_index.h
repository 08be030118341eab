// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/top_k_index.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

namespace tessera {

/// Which index make_faiss_index() makes, and how it is searched.
struct FaissIndexOptions {
  /// What faiss::index_factory() makes: "HNSW32" is a graph of neighbours,
  /// "IVF1024,Flat" 1024 clusters, "IVF1024,PQ16" the same with compressed
  /// vectors.
  std::string factory = "HNSW32";
  /// Clusters that are searched, for IVF; unset: faiss's 1. More find more.
  std::optional<int64_t> nprobe = {};
  /// Candidates on the way through the graph, for HNSW; unset: faiss's 16.
  std::optional<int64_t> ef_search = {};

  bool operator==(const FaissIndexOptions&) const = default;

  static void visit_fields(auto& self, auto visit) {
    visit("factory", self.factory);
    visit("nprobe", self.nprobe);
    visit("ef_search", self.ef_search);
  }
};
static_assert(std::is_aggregate_v<FaissIndexOptions>);

/// Whether this Tessera was built with faiss.
bool has_faiss();

/// An approximate index for millions of vectors: it may miss some of the best,
/// and score compressed ones roughly. Excluded ids are taken out of what it
/// finds. faiss copies the vectors; it trains on all of them, always with the
/// same seed, and runs on LibTorch's number of threads.
///
///   const auto index = make_faiss_index(
///       vectors, ids, {.factory = "IVF1024,Flat", .nprobe = 32});
///
/// Shapes:  as make_exact_index().
/// Errors:  as make_exact_index(), and c10::ValueError with faiss's reason for
///          options that it refuses, or for a number in `factory` that is 0 or
///          above the number of vectors, dim and 65536;
///          c10::NotImplementedError without faiss.
/// Source:  https://github.com/facebookresearch/faiss/wiki/The-index-factory
std::unique_ptr<TopKIndex> make_faiss_index(
    const at::Tensor& vectors,
    const at::Tensor& ids = {},
    const FaissIndexOptions& options = {});

/// What its save() wrote, with the same nprobe and ef_search. Python reads the
/// index by faiss.deserialize_index(load_file(path)["index"]). A checksum finds
/// damage by accident; faiss trusts what a stranger has made.
/// Errors:  c10::ValueError naming the file and what is wrong with it;
///          c10::NotImplementedError without faiss.
std::unique_ptr<TopKIndex> load_faiss_index(const std::string& path);

}  // namespace tessera
