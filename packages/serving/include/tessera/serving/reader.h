// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/export.h>
#include <tessera/serving/recommend.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

/// The ids of one feature for some examples. The caller keeps the memory.
struct FeatureBatch {
  /// Row numbers, or the keys of a table with keys.
  std::span<const int64_t> ids = {};
  /// Example b has the ids [row_splits[b], row_splits[b + 1]). Empty: each id is an example,
  /// as in a dense feature.
  std::span<const int64_t> row_splits = {};
  /// One weight per id, if the ids are combined. Empty: all weights are 1.
  std::span<const float> weights = {};
};

/// The ids of one feature for some examples, with their memory.
struct IdLists {
  std::vector<int64_t> ids = {};
  /// See FeatureBatch::row_splits.
  std::vector<int64_t> row_splits = {};

  FeatureBatch batch(std::span<const float> weights = {}) const {
    return {.ids = ids, .row_splits = row_splits, .weights = weights};
  }
  bool operator==(const IdLists&) const = default;
};

// snippet: packages/serving/tests/serving_docs_test.cpp Version
/// One version of a published model. It never changes, so a request that keeps the pointer
/// reads only this version.
///
///   const std::shared_ptr<const Version> version = reader.version();
///   const size_t movie = version->feature("movie");
///   const std::vector<int64_t> ids{3, 1, 4};
///   std::vector<float> out(version->output_size(movie, {.ids = ids}));
///   version->lookup(movie, {.ids = ids}, out);  // [3, dim]
///
/// Any number of threads may call its functions at the same time.
class TESSERA_SERVING_API Version {
 public:
  /// The name, the table and the combiner of a published feature.
  struct FeatureInfo {
    std::string name = {};
    std::string table = {};
    int64_t dim = 0;
    /// "sum", "mean" or "sqrtn".
    std::string combiner = {};
    /// > 0: an example gives [sequence_length, dim] and not [dim].
    int64_t sequence_length = 0;
  };

  /// The name, the format and the number of rows of a published table.
  struct TableInfo {
    std::string name = {};
    int64_t dim = 0;
    /// "float32", "bfloat16", "float16", "int8" or "int4".
    std::string format = {};
    /// 0 for a table with keys.
    int64_t vocabulary_size = 0;
    bool has_keys = false;
    /// The number of rows, or of keys that have a row.
    int64_t rows = 0;
    /// The number of rows that have changed since the base.
    int64_t overlaid_rows = 0;
  };

  /// A dense weight or buffer of the model.
  struct DenseWeight {
    std::string name = {};
    /// "float32", "int64", ...
    std::string dtype = {};
    std::vector<int64_t> shape = {};
    /// The numbers in order, without gaps. The bytes live as long as the Version.
    std::span<const std::byte> bytes = {};
  };

  ~Version();
  Version(const Version&) = delete;
  Version& operator=(const Version&) = delete;

  int64_t number() const;
  /// The version with all rows that this one builds on.
  int64_t base() const;
  /// The step of the training, as the publisher gave it.
  int64_t step() const;
  /// When the version was published, in seconds since 1970.
  double time() const;
  const std::map<std::string, double>& metrics() const;

  const std::vector<FeatureInfo>& features() const;
  const std::vector<TableInfo>& tables() const;
  const std::vector<DenseWeight>& dense() const;
  /// The text of the pipeline.json that was published with the model. Empty: none.
  std::string_view pipeline() const;
  /// The bytes of PublishOptions::program, for Program. Empty: none.
  std::string_view program() const;
  /// The bytes of PublishOptions::compiled_program. Empty: none.
  std::string_view compiled_program() const;
  /// The bytes of PublishedItems::query, for Program. Empty: none.
  std::string_view query_program() const;
  /// Keeps the bytes of pipeline() and of the programs alive. All versions of a base share
  /// this memory.
  std::shared_ptr<const void> base_memory() const;

  /// The number of a feature in features(). It is the same in all versions of a training.
  /// Errors:  std::invalid_argument listing the features.
  size_t feature(std::string_view name) const;
  /// The number of a table in tables().
  /// Errors:  std::invalid_argument listing the tables.
  size_t table(std::string_view name) const;

  /// The number of floats that lookup() writes: examples * dim, or
  /// examples * sequence_length * dim.
  /// Errors:  std::out_of_range if there is no such feature; std::invalid_argument for a
  ///          batch that is too large.
  size_t output_size(size_t feature, const FeatureBatch& batch) const;

  /// Looks up the ids and combines those of an example, as the layer does in evaluation. If
  /// the rows are stored in the table's dtype, the result has the same bits as the layer's.
  /// As in the layer, a lookup with row_splits drops ids < 0 of a table without keys. Unless
  /// the combiner is "sum", it also drops ids whose weight is not > 0. Features trained with
  /// validate_weights_and_indices = false do neither.
  /// Shapes:  out [examples, dim], or [examples, sequence_length, dim].
  /// Errors:  std::invalid_argument for row_splits, weights or an `out` that do not fit;
  ///          std::out_of_range for an id that the layer refuses, too. `out` is not changed.
  void lookup(size_t feature, const FeatureBatch& batch, std::span<float> out)
      const;

  /// Copies the row of each id or key, as float32, rounded if the table has a quantization.
  /// An unknown key gets the row of the default key, or zeros if there is none. The padding
  /// key gets zeros.
  /// Shapes:  ids [n], out [n, dim].
  /// Errors:  as lookup().
  void lookup_rows(
      size_t table,
      std::span<const int64_t> ids,
      std::span<float> out) const;

  /// The best items for each request. Scores are the dot products of the vectors of user and
  /// item, or cosines. The published items are compared one by one, so the result is exact.
  /// Equal scores are ordered by id.
  /// Errors:  std::invalid_argument for a version without items, and for a request that does
  ///          not fit it.
  std::vector<RecommendResult> recommend(
      std::span<const RecommendRequest> requests) const;

  struct Impl;
  explicit Version(std::unique_ptr<const Impl> impl);
  const Impl& impl() const {
    return *impl_;
  }

 private:
  std::unique_ptr<const Impl> impl_;
};

/// A version that a Reader has taken, or a problem that it has met.
struct ReaderEvent {
  /// The version that serves from now on, or whose files have the problem.
  int64_t version = 0;
  /// Empty: `version` serves from now on.
  std::string problem = {};
};

// snippet: packages/serving/tests/serving_docs_test.cpp ReaderOptions
/// How a Reader opens a directory.
///
///   const Reader careful(
///       "published", ReaderOptions{.on_event = [](const ReaderEvent& event) {
///         std::cerr << "version " << event.version << " " << event.problem
///                   << "\n";
///       }});
///   const ReaderStatus status = careful.status();
///   std::cout << "serves " << status.version << " of " << status.newest << "\n";
struct ReaderOptions {
  /// Whether a thread of the reader takes new versions. If not, call refresh().
  bool follow = true;
  /// How often the reader looks for new versions where the system does not report changes
  /// of the directory, in seconds. While each look finds the same problem, the time
  /// between looks grows to five seconds.
  double poll_seconds = 1.0;
  /// Whether a base is copied into memory with huge pages. Lookups are faster then, but
  /// processes on the same machine no longer share the pages.
  bool copy_to_memory = false;
  /// Called with each new version, by the thread that takes the version, and with each new
  /// problem that the reader's own thread or unpin() meets. refresh() and rollback() throw
  /// instead. If you call one of these three functions, two threads may call on_event at
  /// the same time. on_event must not call the reader, and must not throw.
  std::function<void(const ReaderEvent&)> on_event = {};
};

/// The state of a Reader and of its directory.
struct ReaderStatus {
  /// The version that serves.
  int64_t version = 0;
  /// The newest version that the directory names, or 0 if this can't be read.
  int64_t newest = 0;
  /// Set by rollback().
  bool is_pinned = false;
  /// The number of versions that were taken since the reader was opened.
  int64_t taken = 0;
  /// Why the newest version does not serve. Empty if it serves, if is_pinned is set, or if
  /// nobody has looked.
  std::string problem = {};
};

// snippet: packages/serving/tests/serving_docs_test.cpp Reader
/// Reads the versions that a Publisher writes, and follows them. It needs no LibTorch.
///
///   Reader reader("published");
///   const auto current = reader.version();  // once per request
///
/// A new version is taken whole: version() gives the old one, and from one moment on the
/// new one. No lookup waits for it. A version that is damaged or not complete does not
/// serve. The old one then goes on serving, and status() names the problem. If the files of
/// the damaged version change, the reader reads them again. All functions may be called
/// from several threads.
///
/// A child of fork() may use the reader. From the child's first call on, a thread of its
/// own follows new versions.
/// Errors:  std::runtime_error naming the path for a directory without a version, and for
///          files that can't be read or are missing; std::invalid_argument for damaged
///          files, naming the file.
class TESSERA_SERVING_API Reader {
 public:
  explicit Reader(std::string directory, ReaderOptions options = {});
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// The version that serves now.
  std::shared_ptr<const Version> version() const;

  /// Takes the newest version now. Returns whether it is another one than before. Takes
  /// none after rollback().
  /// Errors:  as the constructor; the old version stays.
  bool refresh();

  /// Serves this version until unpin(). It must still be in the directory. The call waits
  /// while another version is being taken.
  /// Errors:  as the constructor, and std::invalid_argument for a version that is not there.
  void rollback(int64_t version);
  /// Follows the newest version again.
  void unpin();

  ReaderStatus status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::serving
