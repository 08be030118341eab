// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/features/feature.h>
#include <tessera/training/pointers.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The items that a Recommender ranks.
struct RecommenderItems {
  at::Tensor vectors =
      {};  // [items, dim] floats, finite; with `scores` undefined
  /// Different ids >= 0. Undefined: 0, 1, 2, ... Ids that are reserved in the pipeline, which
  /// stand for missing and unknown values, are left out.
  at::Tensor ids = {};  // [items] int32 or int64
  /// How popular each item is, such as its number of clicks. Users of whom nothing is known
  /// get the most popular items. Undefined: such a user is an error.
  at::Tensor popularity = {};  // [items] floats or integers
};

/// The score of a user and an item: the dot product of their vectors, or this divided by
/// both lengths. For biases, give both vectors two more numbers: users [1, bias_user + mean],
/// and items [bias_item, 1].
enum class ItemScore { kDot, kCosine };

/// The options of a Recommender. While `items`, `query`, `scores`, `fold_in` and `ranker` run,
/// the model is in eval() and without gradients.
struct RecommenderOptions {
  /// The items, with vectors of the model as it is now. The constructor and refresh() call
  /// it. Required.
  std::function<RecommenderItems()> items = {};
  /// The vectors of users, [batch, dim] floats, from their features, and from the numbers of
  /// the pipeline. Required without `scores`.
  std::function<at::Tensor(const data::PipelineBatch& users)> query = {};
  /// In place of vectors: the scores of all items, [batch, items] finite floats, for users
  /// with these items, such as ItemScorer::scores(). The ids are rows of RecommenderItems,
  /// in the order of the request, or of `seen` for a known user without items.
  /// A user of whom no item is known gets popular ones. The model may be nullptr.
  std::function<at::Tensor(const RaggedFeature& rows)> scores = {};
  ItemScore score = ItemScore::kDot;
  /// Converts raw values to ids, and ids of items to text. It has an output `item`.
  std::optional<data::FeaturePipeline> pipeline = {};
  /// The feature with the id of each user. Reserved ids of the pipeline are unknown users.
  /// Hash and Hash64 have none for them, so all users are known.
  std::string user = "user";
  /// The feature with ids of items. As a feature of users, it is ragged, and has the items
  /// of each user.
  std::string item = "item";
  /// The items that users have seen, such as UserItems::of(). Not asked about unknown users.
  std::function<RaggedFeature(const at::Tensor& users)> seen = {};
  /// The vectors of unknown users from their items, such as FoldIn::solve(). The ids are
  /// the rows of the items in RecommenderItems::vectors at the last refresh(). Unset: they
  /// get popular items.
  std::function<at::Tensor(const RaggedFeature& rows)> fold_in = {};
  /// The attributes of items for filters, with the columns of the pipeline's output `item`,
  /// or without a pipeline with ids in the column `item`.
  data::Columns attributes = {};
  /// Scores the best `num_candidates` of the vectors again, and orders by these scores: [n]
  /// floats for one user and the ids of n items.
  std::function<
      at::Tensor(const data::PipelineBatch& user, const at::Tensor& items)>
      ranker = {};
  int64_t num_candidates = 200;  // if it is below k, k are scored
};

/// How many items may have the same value of an attribute.
struct Diversity {
  std::string column = {};
  int64_t max_per_value = 0;  // >= 1
};

/// The options of one call.
struct RecommendOptions {
  /// The number of items for each user, in [1, number of items].
  int64_t k = 10;
  /// Leaves out what RecommenderOptions::seen gives, and the items in the request.
  bool exclude_seen = false;
  /// An expression over attributes, such as "genre = 'drama' and year >= 1990". Empty: all
  /// items. docs/recommend.md has the language.
  std::string where = {};
  /// Ids of items to leave out. Ids that are no items are ignored.
  std::vector<int64_t> exclude = {};
  /// Ids of items to choose from. An id that is no item is an error. Unset: all.
  std::optional<std::vector<int64_t>> choose_from = {};
  /// Items without a value are not limited. With a ranker, only its candidates are
  /// considered, so lists may be short.
  std::optional<Diversity> diversity = {};
};

/// How the items of a user were found. Those of RecommenderOptions::scores have kFoldIn.
enum class RecommendedFrom { kQuery, kFoldIn, kPopularity };

/// The items for each user, best first.
struct Recommendations {
  /// -1 after the last item of a user.
  at::Tensor ids = {};  // [batch, k] int64
  /// -infinity after the last item. With RecommendedFrom::kPopularity, the popularity.
  at::Tensor scores = {};  // [batch, k] float32
  /// The items as they are in the raw data. Empty without a pipeline, and if its output
  /// can't be reversed, such as Hash.
  std::vector<std::vector<std::string>> texts = {};  // [batch][number of items]
  std::vector<RecommendedFrom> from = {};  // [batch]
  /// The number of items that `where` and `choose_from` let through.
  int64_t passed = 0;
};

// snippet: tests/docs/reference_layers_test.cpp Recommender
/// Finds the best items of users in a trained model.
///
///   const auto vectors = [&] {
///     return model->forward_partial({{"film", film_ids}})["film"];
///   };
///   const Recommender recommender(
///       model,
///       {.items =
///            [&] {
///              return RecommenderItems{
///                  .vectors = vectors(), .ids = film_ids, .popularity = clicks};
///            },
///        .query =
///            [&](const data::PipelineBatch& batch) {
///              return model->forward_partial(
///                  {{"user", batch.features["user"]}})["user"];
///            },
///        .pipeline = pipeline,
///        .item = "film",
///        .seen = seen,
///        .fold_in =
///            [&](const RaggedFeature& rows) {
///              return FoldIn(vectors(), {.regularization = 1.0}).solve(rows);
///            },
///        .attributes = films});
///
///   // A known user, a new user who likes two films, and one of whom nothing is known.
///   data::Columns users;
///   users.add("user", {.values = Texts{"ann", "", ""}});
///   users.add(
///       "film",
///       {.values = Texts{"Ran", "Heat"},
///        .row_splits = torch::tensor({0, 0, 2, 2})});
///   const Recommendations found = recommender.recommend(
///       users,
///       {.k = 2,
///        .exclude_seen = true,
///        .where = "genre = 'drama' or year < 1980",
///        .diversity = Diversity{.column = "genre", .max_per_value = 1}});
///   for (const std::string& film : found.texts[0]) {
///     std::cout << film << "\n";  // the films for the first user, best first
///   }
///
/// Without `scores`, the features `user` and `item` of the request decide which list a user
/// gets:
///
///   id that is not reserved             what `query` finds
///   reserved id, with items             what `fold_in` finds
///   reserved id, no items or fold_in    popular items
///   no feature `user`, with items       what `fold_in` finds, or without it `query`
///   no feature `user`, an empty list    popular items
///   neither of the features             what `query` finds
///
/// All items are compared, so that the result is exact. Equal scores are ordered by id.
/// Several threads may use a Recommender at the same time, also refresh() and recommend(),
/// if the functions of its options allow it.
/// Errors:  c10::ValueError for options, shapes and values, and those of the functions.
class Recommender {
 public:
  Recommender(training::ModelPointer model, RecommenderOptions options);
  ~Recommender();
  Recommender(const Recommender&) = delete;
  Recommender& operator=(const Recommender&) = delete;

  /// Takes the items of the model as it is now. If it fails, the old items stay.
  void refresh();

  /// The items for each of the users, whose features or raw values have one row per user.
  /// From raw values, the outputs of the pipeline are computed whose columns are there.
  Recommendations recommend(
      const Features& users,
      const RecommendOptions& options = {}) const;
  Recommendations recommend(
      const data::Columns& users,
      const RecommendOptions& options = {}) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
