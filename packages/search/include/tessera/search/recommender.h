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
  at::Tensor vectors = {};  // [items, dim] floats, finite
  /// Different ids >= 0. Undefined: 0, 1, 2, ...
  at::Tensor ids = {};  // [items] int32 or int64
  /// How popular each item is, such as its number of clicks. Users of whom nothing is known
  /// get the most popular items. Undefined: such a user is an error.
  at::Tensor popularity = {};  // [items] floats or integers
};

/// The score of a user and an item: the dot product of their vectors, or this divided by
/// both lengths. For biases, give both vectors two more numbers: users [1, bias_user + mean],
/// and items [bias_item, 1].
enum class ItemScore { kDot, kCosine };

/// What a Recommender needs.
struct RecommenderOptions {
  /// The items, with vectors of the model as it is now. The constructor and refresh() call
  /// it, under NoGradGuard and with the model in eval(). Required.
  std::function<RecommenderItems()> items = {};
  /// The vectors of users, [batch, dim] floats, from the features that recommend() gets.
  /// Required.
  std::function<at::Tensor(const Features& users)> query = {};
  ItemScore score = ItemScore::kDot;
  /// Converts raw values of users, and the texts of items. Only the outputs whose columns
  /// recommend() gets are computed.
  std::optional<data::FeaturePipeline> pipeline = {};
  /// The feature with the ids of users. Reserved ids of the pipeline, which stand for
  /// unknown users, do not count as known.
  std::string user = "user";
  /// The feature with the ids of items. As a feature of users, it is ragged, and has the
  /// items of each user.
  std::string item = "item";
  /// The items that known users have seen, such as UserItems::of().
  std::function<RaggedFeature(const at::Tensor& users)> seen = {};
  /// The vectors of unknown users from their items, such as FoldIn::solve(). Unset: `query`
  /// gets them, too.
  std::function<at::Tensor(const RaggedFeature& items)> fold_in = {};
  /// The attributes of items for filters. One column has the name `item`: raw values of the
  /// pipeline, or ids without a pipeline.
  data::Columns attributes = {};
  /// Scores the best `num_candidates` of `query` again, and orders by these scores: [n]
  /// floats for the features of one user and the ids of n items.
  std::function<at::Tensor(const Features& user, const at::Tensor& items)>
      ranker = {};
  int64_t num_candidates = 200;
};

/// How many items may have the same value of an attribute.
struct Diversity {
  std::string column = {};
  int64_t max_per_value = 0;  // >= 1
};

/// What recommend() looks for.
struct RecommendOptions {
  /// The number of items for each user, at most.
  int64_t k = 10;
  /// Leaves out what RecommenderOptions::seen says, and the items that a user comes with.
  bool exclude_seen = false;
  /// An expression over attributes, such as "genre = 'drama' and year >= 1990". Empty: all
  /// items. docs/recommend.md has the language.
  std::string where = {};
  /// Ids of items to leave out. Ids that are no items are ignored.
  std::vector<int64_t> exclude = {};
  /// Ids of items to choose from. Unset: all.
  std::optional<std::vector<int64_t>> choose_from = {};
  std::optional<Diversity> diversity = {};
};

/// From what the items of a user were found.
enum class RecommendedFrom { kQuery, kFoldIn, kPopularity };

/// The items for each user, best first.
struct Recommendations {
  /// -1 after the last item of a user.
  at::Tensor ids = {};  // [batch, k] int64
  /// -infinity after the last item. With RecommendedFrom::kPopularity, the popularity.
  at::Tensor scores = {};  // [batch, k] float32
  /// The items as they are in the raw data. Empty without a pipeline.
  std::vector<std::vector<std::string>> texts = {};  // [batch][number of items]
  std::vector<RecommendedFrom> from = {};  // [batch]
  /// The number of items that `where` and `choose_from` let through.
  int64_t passed = 0;
};

// snippet: tests/docs/reference_layers_test.cpp Recommender
/// Finds the best items of users in a trained model.
///
///   const Recommender recommender(
///       model,
///       {.items =
///            [&] {
///              return RecommenderItems{
///                  .vectors =
///                      model->forward_partial({{"film", film_ids}})["film"],
///                  .ids = film_ids,
///                  .popularity = clicks};
///            },
///        .query =
///            [&](const Features& features) {
///              return model->forward_partial(features)["user"];
///            },
///        .pipeline = pipeline,
///        .item = "film",
///        .seen = seen,
///        .attributes = films});
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
/// A user is known if there is a feature `user` with an id that is not reserved, or no such
/// feature. Known users, and without `fold_in` those with items, get what `query` finds.
/// Unknown users with items get what `fold_in` finds. All others get popular items.
///
/// All items are compared, so that the result is exact. Equal scores are ordered by id.
/// Several threads may call recommend() at the same time if `query`, `fold_in` and `ranker`
/// allow it.
/// Errors:  c10::ValueError or c10::TypeError for options, shapes and values, and those of
///          the functions. Messages name the option.
class Recommender {
 public:
  Recommender(training::ModelPointer model, RecommenderOptions options);
  ~Recommender();
  Recommender(const Recommender&) = delete;
  Recommender& operator=(const Recommender&) = delete;

  /// Takes the items of the model as it is now. If it fails, the old items stay.
  void refresh();

  /// The items for each of the users, whose features or raw values have one row per user.
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
