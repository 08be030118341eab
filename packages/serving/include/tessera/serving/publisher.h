// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/features/feature.h>
#include <tessera/search/recommender.h>
#include <tessera/serving/recommend.h>
#include <tessera/training/pointers.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>

namespace tessera::serving {

/// How a Publisher stores the rows of a table.
enum class RowFormat {
  /// In the dtype of the table. Lookups then give the same bits as the layer.
  kTable,
  kFloat32,
  kBFloat16,
  kFloat16,
  /// Codes of 8 or 4 bits, with a scale and an offset for each row. A number differs by
  /// at most half a step from the trained one. With R = largest - smallest number of the
  /// row, half a step is R / 510 for kInt8 and R / 30 for kInt4.
  kInt8,
  kInt4
};

// snippet: packages/serving/tests/recommend_test.cpp PublishedItems
/// The items that servers recommend, and how they find the vectors of users. At least one
/// of `users`, `query` and `fold_in` is needed.
///
///   Publisher publisher(
///       model,
///       directory,
///       {.items = PublishedItems{
///            .items = [&] { return RecommenderItems{.vectors = model->films()}; },
///            .users =
///                [&] {
///                  return model->forward({{"user", user_ids}});
///                },
///            .item = "film",
///            .fold_in = PublishedFoldIn{.regularization = 1.0},
///            .attributes = films,
///            .format = RowFormat::kInt8}});
///   publisher.publish();
///
/// publish() calls `items` and `users`, while the model is in eval() and without gradients,
/// for each version or for every n-th one. A version has the rows that differ from those of
/// the version before. If the ids or the number of rows differ, it is a base. With sharded
/// tables, all ranks call the two functions, and rank 0 publishes its results.
struct PublishedItems {
  /// The items, with vectors of the model as it is now. Required.
  std::function<RecommenderItems()> items = {};
  /// The vectors of users. Row i is about the user with the id i.
  std::function<at::Tensor()> users = {};  // [users, dim] floats
  /// The path of a file of export_dense_pt2() with an example of one user alone, whose first
  /// output is the vector of the user. A server runs it for users without a row in `users`.
  std::string query = {};
  ItemScore score = ItemScore::kDot;
  /// The features with ids of users and of items. If PublishOptions::pipeline has outputs of
  /// these names, their reserved ids stand for unknown users and are no items.
  std::string user = "user";
  std::string item = "item";
  /// The feature with ids of the items of a user, if requests have them by another name
  /// than `item`, such as "liked". Empty: `item`.
  std::string user_items = {};
  /// Unset: users without a vector get popular items.
  std::optional<PublishedFoldIn> fold_in = {};
  /// The items that users have seen, such as UserItems::of(). Each base asks rank 0 for all
  /// users of `users`. It must not use the model.
  std::function<RaggedFeature(const at::Tensor& users)> seen = {};
  /// As RecommenderOptions::attributes. Each base has them.
  data::Columns attributes = {};
  /// The number of items that a server scores again by PublishOptions::program. 0: none.
  int64_t num_candidates = 0;
  /// The format of the vectors of items, but not kTable. With 8 or 4 bits, a search reads a
  /// fraction of the bytes.
  RowFormat format = RowFormat::kFloat32;
  /// If true, vectors of 8 or 4 bits are published as float32, too. A search then finds the
  /// same items as with float32 alone.
  bool exact_scores = true;
  /// With n, publish() calls `items` and `users` for every n-th version. Versions between,
  /// also bases, keep the ids, vectors and popularity of the last call. All other weights,
  /// also those of PublishOptions::program, are of each version. Versions that can't be
  /// written do not count. Must be >= 1, and 1 with `query`.
  int64_t every = 1;
};

/// Options of a Publisher: what it writes, and how long it keeps old versions.
struct PublishOptions {
  RowFormat format = RowFormat::kTable;
  /// The formats of some tables, by their names.
  std::map<std::string, RowFormat> formats = {};
  /// Every n-th version is a base, which has all rows. With 1, every version is a base.
  int64_t full_every = 1000;
  /// A version is also a base if the versions since the last base would otherwise take more
  /// than this share of the bytes of a base. Must be > 0.
  double full_share = 0.5;
  /// The number of newest versions to keep. Versions that are not older than keep_seconds
  /// are kept, too, and so are the versions that the kept ones build on.
  int64_t keep_last = 3;
  double keep_seconds = 60.0;
  /// If true, publish() returns when the rows are copied, and a thread writes them. A base
  /// then takes the memory of all rows until it is written.
  bool background = false;
  /// The path of a file of save_pipeline(), which is published with each base. Empty: none.
  std::string pipeline = {};
  /// The path of a file of export_dense_pt2(), which is published with each base. A server
  /// runs it with the dense weights of each version. Empty: none.
  std::string program = {};
  /// The path of a package that AOTInductor has compiled from `program` with the option
  /// always_keep_tensor_constants. It runs only on machines with the instruction set of the
  /// machine that compiled it. Empty: none.
  std::string compiled_program = {};
  /// The items that a server may recommend. Unset: none.
  std::optional<PublishedItems> items = {};
};
static_assert(std::is_aggregate_v<PublishOptions>);

namespace detail {

/// Facts about the training that are published together with the weights.
struct PublishInfo {
  /// Makes the version a base, for example because an older version is damaged.
  bool base = false;
  int64_t step = 0;
  /// Metrics that are NaN are left out.
  std::map<std::string, double> metrics = {};
};
static_assert(std::is_aggregate_v<PublishInfo>);

}  // namespace detail

/// A report of what the last publish() has done.
struct PublishReport {
  int64_t version = 0;
  bool is_base = false;
  /// The number of rows in the version, also of PublishOptions::items, and of keys that have
  /// lost their rows.
  int64_t rows = 0;
  int64_t removed_keys = 0;
  int64_t bytes = 0;
  /// How long the training stood still.
  double copy_seconds = 0.0;
  /// From the beginning of publish() until readers can see the version.
  double seconds = 0.0;
};

// snippet: packages/serving/tests/serving_docs_test.cpp Publisher
/// Writes versions of a model that is being trained, for processes that serve it by a
/// Reader. The first version has all rows. A later one has the rows that updates have
/// written since the version before, new and removed keys, and all dense weights.
///
///   Publisher publisher(model, "published", {.format = RowFormat::kInt8});
///   for (int64_t step = 1; step <= 20; ++step) {
///     train_step(step);
///     if (step % 5 == 0) {
///       publisher.publish({.step = step});
///     }
///   }
///   const PublishReport report = publisher.report();
///   std::cout << "version " << report.version << ": " << report.rows << " rows\n";
///
/// Readers take a version when all of it is on the disk. If this process dies before
/// that, they keep the previous version. Only one Publisher at a time may write to a
/// directory, and only one may follow a model.
///
/// With Strategy::fused(), updates mark the rows that they write, so publish() takes only
/// the time to copy the version. If you write to embedding_tables() by LibTorch's operators,
/// the next version is a base. Other writes, such as by data_ptr(), are not noticed: call
/// update_embedding_table() instead. With Strategy::host() and padded(), publish() compares
/// all rows with their checksums, and notices every write. Checkpoints do so, too.
///
/// If a version can't be written, its rows are in the next one, and publish() raises the
/// error. With `background`, the next publish() or wait() raises it.
/// With sharded tables, all ranks make a Publisher and call its functions. They send their
/// rows to rank 0, which writes the version.
/// Errors:  c10::ValueError for options and formats that do not fit the model;
///          c10::NotImplementedError for features with an output_shape; c10::Error for
///          files that can't be read or written, naming the path, and for a directory or a
///          model that has another Publisher.
class Publisher {
 public:
  Publisher(
      training::ModelPointer model,
      std::string directory,
      PublishOptions options = {});
  /// Waits for a version that is being written, and warns if it can't be written.
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  /// Publishes the model as it is now, and returns the number of the version. Call it
  /// between steps. It first waits until the previous version is written.
  /// Errors:  c10::ValueError for a number that the format can't store, naming the row: one
  ///          that is too large or, with 8 or 4 bits, not finite; c10::Error for files,
  ///          naming the path.
  int64_t publish(const detail::PublishInfo& info = {});

  /// Waits until the last version is written.
  void wait();

  /// The last version that was written. All zeros if there is none yet.
  PublishReport report() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::serving
