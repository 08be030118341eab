// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/transforms.h>
#include <tessera/search/recommender.h>

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "packages/search/src/given_items.h"
#include "tests/test_util.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <random>
#include <thread>

namespace tessera::recommender_test {

using data::Columns;
using Texts = std::vector<std::string>;
using Ids = std::vector<int64_t>;

// A model without tables. The vectors of users and items are given, so that a test knows
// all scores.
torch::nn::Linear some_model() {
  return torch::nn::Linear(1, 1);
}

Ids ids_of(const at::Tensor& tensor) {
  Ids ids;
  for (int64_t i = 0; i < tensor.numel() && tensor[i].item<int64_t>() >= 0;
       ++i) {
    ids.push_back(tensor[i].item<int64_t>());
  }
  return ids;
}

// Ten users and 50 items with random vectors, and attributes of the items.
struct Catalogue {
  at::Tensor users = at::randn({10, 6});
  at::Tensor vectors = at::randn({50, 6});
  at::Tensor ids = at::randperm(1000).narrow(0, 0, 50);
  at::Tensor years = at::randint(1980, 2010, {50}, at::kLong);
  Texts genres = {};

  Catalogue() {
    for (int64_t i = 0; i < 50; ++i) {
      genres.emplace_back(i % 7 == 0 ? "" : i % 3 == 0 ? "drama" : "comedy");
    }
  }

  Columns attributes() const {
    Columns columns;
    columns.add("item", {.values = ids});
    columns.add("genre", {.values = genres});
    columns.add("year", {.values = years});
    return columns;
  }

  RecommenderOptions options() const {
    return {
        .items =
            [this] {
              return RecommenderItems{
                  .vectors = vectors, .ids = ids, .popularity = at::arange(50)};
            },
        .query =
            [this](const data::PipelineBatch& batch) {
              return users.index_select(
                  0, std::get<at::Tensor>(batch.features["user"]));
            },
        .attributes = attributes()};
  }

  // The best k items of a user by plain doubles.
  template <class Allows>
  Ids best(int64_t user, int64_t k, bool is_cosine, Allows allows) const {
    struct Scored {
      double score;
      int64_t id;
    };
    const at::Tensor query = users[user].to(at::kDouble);
    std::vector<Scored> all;
    for (int64_t i = 0; i < 50; ++i) {
      if (!allows(i)) {
        continue;
      }
      const at::Tensor row = vectors[i].to(at::kDouble);
      double score = query.dot(row).item<double>();
      if (is_cosine) {
        score /= query.norm().item<double>() * row.norm().item<double>();
      }
      all.push_back({score, ids[i].item<int64_t>()});
    }
    std::ranges::sort(all, [](const Scored& left, const Scored& right) {
      return left.score > right.score;
    });
    Ids found;
    for (size_t i = 0; i < std::min(all.size(), static_cast<size_t>(k)); ++i) {
      found.push_back(all[i].id);
    }
    return found;
  }
};

Features users_of(const Ids& ids) {
  return {{"user", Feature(at::tensor(ids, at::kLong))}};
}

TEST(RecommenderTest, FindsWhatAPlainLoopFinds) {
  const Catalogue catalogue;
  std::mt19937 random(7);
  for (const ItemScore score : {ItemScore::kDot, ItemScore::kCosine}) {
    RecommenderOptions options = catalogue.options();
    options.score = score;
    const Recommender recommender(some_model(), options);
    for (int64_t round = 0; round < 50; ++round) {
      const auto year = static_cast<int64_t>(1980 + random() % 30);
      const auto left_out =
          catalogue.ids[static_cast<int64_t>(random() % 50)].item<int64_t>();
      const auto k = static_cast<int64_t>(1 + random() % 50);
      Ids chosen;
      for (int64_t i = 0; i < 50; i += 1 + round % 2) {
        chosen.push_back(catalogue.ids[i].item<int64_t>());
      }
      const Recommendations found = recommender.recommend(
          users_of({0, 3, 9}),
          {.k = k,
           .where = "genre = 'drama' or year >= " + std::to_string(year),
           .exclude = {left_out, 2000},
           .choose_from = chosen});
      const auto passes = [&](int64_t i) {
        return i % (1 + round % 2) == 0 &&
            (catalogue.genres[static_cast<size_t>(i)] == "drama" ||
             catalogue.years[i].item<int64_t>() >= year);
      };
      int64_t passed = 0;
      for (int64_t i = 0; i < 50; ++i) {
        passed += passes(i) ? 1 : 0;
      }
      EXPECT_EQ(found.passed, passed);
      EXPECT_TRUE(found.texts.empty());
      int64_t row = 0;
      for (const int64_t user : {0, 3, 9}) {
        EXPECT_EQ(
            ids_of(found.ids[row]),
            catalogue.best(
                user, k, score == ItemScore::kCosine, [&](int64_t i) {
                  return passes(i) &&
                      catalogue.ids[i].item<int64_t>() != left_out;
                }));
        EXPECT_EQ(
            found.from[static_cast<size_t>(row)], RecommendedFrom::kQuery);
        ++row;
      }
    }
  }
}

TEST(RecommenderTest, ScoresAreThoseOfTheVectors) {
  const Catalogue catalogue;
  const Recommender recommender(some_model(), catalogue.options());
  const Recommendations found = recommender.recommend(users_of({4}), {.k = 50});
  const auto scores = at::matmul(catalogue.users[4], catalogue.vectors.t());
  expect_close(found.scores[0], std::get<0>(scores.sort(0, true)));
}

TEST(RecommenderTest, LeavesOutWhatUsersHaveSeen) {
  const Catalogue catalogue;
  RecommenderOptions options = catalogue.options();
  // User u has seen the items of the rows u and u + 1.
  options.seen = [&](const at::Tensor& users) {
    return RaggedFeature::from_lengths(
        catalogue.ids.index_select(
            0, at::stack({users, users + 1}, 1).flatten()),
        at::full({users.size(0)}, 2, at::kLong));
  };
  const Recommender recommender(some_model(), options);
  const Recommendations found =
      recommender.recommend(users_of({2, 5}), {.k = 50, .exclude_seen = true});
  for (int64_t row = 0; row < 2; ++row) {
    const int64_t user = row == 0 ? 2 : 5;
    EXPECT_EQ(
        ids_of(found.ids[row]), catalogue.best(user, 50, false, [&](int64_t i) {
          return i != user && i != user + 1;
        }));
  }
  EXPECT_EQ(
      ids_of(recommender.recommend(users_of({2}), {.k = 50}).ids[0]).size(),
      50U);
}

TEST(RecommenderTest, UnknownUsersComeByItemsOrGetPopularOnes) {
  Columns items;
  items.add("item", {.values = Texts{"a", "b", "c"}});
  items.add("kind", {.values = Texts{"x", "y", "x"}});
  const data::FeaturePipeline pipeline(
      {{.name = "user",
        .columns = {"user"},
        .transform =
            data::transforms::Vocabulary{.values = Texts{"ann", "bob"}}},
       {.name = "item",
        .columns = {"item"},
        .transform =
            data::transforms::Vocabulary{.values = Texts{"a", "b", "c"}}}});
  const int64_t first = pipeline.num_reserved_ids("item");
  // Items a, b, c. User ann likes a, bob likes c.
  const at::Tensor vectors = floats({3, 0, 2, 1, 0, 4}).view({3, 2});
  const at::Tensor user_vectors = floats({1, 0, 0, 1}).view({2, 2});
  std::vector<int64_t> batches;
  RecommenderOptions options{
      .items =
          [&] {
            return RecommenderItems{
                .vectors = vectors,
                .ids = at::arange(first, first + 3),
                .popularity = floats({1, 5, 2})};
          },
      .query =
          [&](const data::PipelineBatch& users) {
            const at::Tensor ids = std::get<at::Tensor>(users.features["user"]);
            batches.push_back(ids.size(0));
            return user_vectors.index_select(
                0, ids - pipeline.num_reserved_ids("user"));
          },
      .pipeline = pipeline,
      .fold_in =
          [&](const RaggedFeature& bags) {
            // The mean of the vectors of the items.
            const at::Tensor rows = vectors.index_select(0, bags.values);
            at::Tensor sums = at::zeros({bags.row_splits.size(0) - 1, 2});
            for (int64_t i = 0; i < sums.size(0); ++i) {
              const auto begin = bags.row_splits[i].item<int64_t>();
              const auto end = bags.row_splits[i + 1].item<int64_t>();
              sums[i] = rows.narrow(0, begin, end - begin).mean(0);
            }
            return sums;
          },
      .attributes = items};
  const Recommender recommender(some_model(), options);
  Columns users;
  users.add("user", {.values = Texts{"bob", "eve", "dan", "ann"}});
  users.add(
      "item",
      {.values = Texts{"c", "c", "zzz"},
       .row_splits = int64s({0, 1, 2, 2, 3})});
  const Recommendations found =
      recommender.recommend(users, {.k = 2, .exclude_seen = true});
  EXPECT_EQ(
      found.from,
      (std::vector{
          RecommendedFrom::kQuery,
          RecommendedFrom::kFoldIn,
          RecommendedFrom::kPopularity,
          RecommendedFrom::kQuery}));
  EXPECT_EQ(batches, (Ids{2}));
  // bob has seen c; eve, who likes c, too; dan gets b and c; ann gets a, b.
  EXPECT_EQ(
      found.texts,
      (std::vector<Texts>{{"b", "a"}, {"b", "a"}, {"b", "c"}, {"a", "b"}}));
  expect_close(found.scores[1], floats({4, 0}));
  expect_close(found.scores[2], floats({5, 2}));
  EXPECT_EQ(found.passed, 3);

  const Recommendations filtered =
      recommender.recommend(users, {.k = 3, .where = "kind = 'x'"});
  EXPECT_EQ(filtered.passed, 2);
  EXPECT_EQ(filtered.texts[2], (Texts{"c", "a"}));
  EXPECT_EQ(filtered.ids[2][2].item<int64_t>(), -1);

  // Without a user, the items alone decide.
  Columns sequences;
  sequences.add(
      "item", {.values = Texts{"a", "c"}, .row_splits = int64s({0, 1, 1, 2})});
  EXPECT_EQ(
      recommender.recommend(sequences, {.k = 1}).texts,
      (std::vector<Texts>{{"a"}, {"b"}, {"c"}}));
}

// A pipeline of users, items and an age, whose reserved ids are 0 and 1.
data::FeaturePipeline film_pipeline() {
  using data::transforms::Vocabulary;
  return data::FeaturePipeline(
      {{.name = "user",
        .columns = {"user"},
        .transform = Vocabulary{.values = Texts{"ann", "bob"}}},
       {.name = "item",
        .columns = {"item"},
        .transform = Vocabulary{.values = Texts{"a", "b", "c"}}},
       {.name = "age",
        .columns = {"age"},
        .transform = data::transforms::Log1p{}}});
}

RecommenderOptions film_options() {
  return {
      .items =
          [] {
            return RecommenderItems{
                .vectors = floats({0, 0, 0, 0, 3, 0, 2, 1, 0, 4}).view({5, 2}),
                .popularity = int64s({0, 0, 20'000'000, 20'000'001, 1})};
          },
      .query =
          [](const data::PipelineBatch& users) {
            return at::ones({num_users(users, "[test]"), 2});
          },
      .pipeline = film_pipeline()};
}

TEST(RecommenderTest, ReservedIdsAreNoItemsAndNoKnownUsers) {
  const Recommender recommender(some_model(), film_options());
  Columns users;
  users.add("user", {.values = Texts{"ann", "", "eve"}});
  users.add(
      "item",
      {.values = Texts{"b", "zzz", ""}, .row_splits = int64s({0, 1, 3, 3})});
  const Recommendations found =
      recommender.recommend(users, {.k = 3, .exclude_seen = true});
  EXPECT_EQ(
      found.texts,
      (std::vector<Texts>{{"c", "a"}, {"b", "a", "c"}, {"b", "a", "c"}}));
  EXPECT_EQ(found.from[1], RecommendedFrom::kPopularity);
  EXPECT_EQ(found.passed, 3);
  EXPECT_VALUE_ERROR(
      recommender.recommend(users, {.k = 4}), "k must be in [1, 3]");
}

TEST(RecommenderTest, TheQueryGetsTheNumbersOfThePipeline) {
  RecommenderOptions options = film_options();
  options.query = [](const data::PipelineBatch& users) {
    // Who is old likes c, and who is young a.
    const at::Tensor is_old = (users.dense.select(1, 0) > 3).to(at::kFloat);
    return at::stack({1 - is_old, is_old}, 1);
  };
  const Recommender recommender(some_model(), options);
  Columns users;
  users.add("age", {.values = floats({70, 5})});
  EXPECT_EQ(
      recommender.recommend(users, {.k = 1}).texts,
      (std::vector<Texts>{{"c"}, {"a"}}));
  Columns other;
  other.add("ages", {.values = floats({70})});
  EXPECT_VALUE_ERROR(
      recommender.recommend(other), "the pipeline has no column 'ages'");
}

TEST(RecommenderTest, AttributesFitTheItems) {
  const auto refuses = [](Columns attributes, const char* text) {
    RecommenderOptions options = film_options();
    options.attributes = std::move(attributes);
    EXPECT_VALUE_ERROR(Recommender(some_model(), options), text);
  };
  Columns lists;
  lists.add("item", {.values = Texts{"a"}, .row_splits = int64s({0, 1})});
  refuses(lists, "with one value per row");
  Columns twice;
  twice.add("item", {.values = Texts{"a", "a"}});
  refuses(twice, "two rows about the item with the id 2, a. Keep one.");
  Columns unknown;
  unknown.add("item", {.values = Texts{"x", "y"}});
  refuses(unknown, "have no row about an item of the model");
  Columns other;
  other.add("film", {.values = Texts{"a"}});
  refuses(other, "must have the columns of the pipeline's output 'item'");
}

TEST(RecommenderTest, IdsFitThePipeline) {
  const auto refuses = [](auto change, const char* text) {
    RecommenderOptions options = film_options();
    change(options);
    EXPECT_VALUE_ERROR(
        Recommender(some_model(), options)
            .recommend({{"user", Feature(int64s({-5}))}}, {.k = 1}),
        text);
  };
  refuses(
      [](RecommenderOptions& options) {
        options.items = [] {
          return RecommenderItems{.vectors = at::ones({3, 2})};
        };
      },
      "there are 3 vectors without items.ids, but the pipeline gives items ids in [0, 5)");
  refuses(
      [](RecommenderOptions& options) {
        options.items = [] {
          return RecommenderItems{
              .vectors = at::ones({2, 2}), .ids = int64s({4, 5})};
        };
      },
      "items.ids has 5, but the pipeline gives items ids in [0, 5)");
  refuses(
      [](RecommenderOptions& options) {
        options.items = [] {
          return RecommenderItems{
              .vectors = at::ones({2, 2}), .ids = int64s({0, 1})};
        };
      },
      "all items.ids are below 2");
  refuses(
      [](RecommenderOptions& options) { options.user = "usr"; },
      "the pipeline has no output 'usr'");
  refuses([](RecommenderOptions&) {}, "the feature 'user' has the id -5");
}

TEST(RecommenderTest, UsersWhoseItemsHaveNoVectorGetPopularOnes) {
  RecommenderOptions options = film_options();
  options.items = [] {
    return RecommenderItems{
        .vectors = at::ones({2, 2}),
        .ids = int64s({2, 3}),
        .popularity = floats({1, 2})};
  };
  options.fold_in = [](const RaggedFeature&) -> at::Tensor {
    ADD_FAILURE() << "there is nothing to fold in";
    return {};
  };
  options.seen = [](const at::Tensor&) -> RaggedFeature {
    ADD_FAILURE() << "there is no known user";
    return {};
  };
  Columns users;
  users.add("user", {.values = Texts{"eve"}});
  users.add("item", {.values = Texts{"c"}, .row_splits = int64s({0, 1})});
  const Recommendations found =
      Recommender(some_model(), options)
          .recommend(users, {.k = 2, .exclude_seen = true});
  EXPECT_EQ(found.from[0], RecommendedFrom::kPopularity);
  EXPECT_EQ(found.texts, (std::vector<Texts>{{"b", "a"}}));
}

TEST(RecommenderTest, ItemsWithoutTextHaveIds) {
  RecommenderOptions options = film_options();
  options.pipeline = data::FeaturePipeline(
      {{.name = "item",
        .columns = {"item"},
        .transform = data::transforms::Hash{.num_bins = 5}}});
  const Recommendations found =
      Recommender(some_model(), options)
          .recommend(Features{{"user", Feature(int64s({7}))}}, {.k = 1});
  EXPECT_TRUE(found.texts.empty());
  EXPECT_EQ(found.ids.item<int64_t>(), 4);
  options.item = "film";
  EXPECT_VALUE_ERROR(Recommender(some_model(), options), "'film'");
}

TEST(RecommenderTest, CosinesOfLongVectorsAreFinite) {
  RecommenderOptions options = film_options();
  options.pipeline.reset();
  options.score = ItemScore::kCosine;
  options.items = [] {
    return RecommenderItems{
        .vectors = floats({1e25F, 0, 1e25F, 1e25F}).view({2, 2})};
  };
  const Recommendations found =
      Recommender(some_model(), options).recommend(users_of({0}), {.k = 2});
  expect_close(found.scores[0], floats({1, 0.70710678F}));
}

TEST(RecommenderTest, ThreadsShareTheModesOfTheModel) {
  const Catalogue catalogue;
  torch::nn::Sequential model;
  for (int64_t i = 0; i < 20; ++i) {
    model->push_back(torch::nn::Dropout());
  }
  model->children()[3]->eval();
  std::atomic<int64_t> num_training = 0;
  RecommenderOptions options = catalogue.options();
  options.query = [&](const data::PipelineBatch& users) {
    for (const auto& module : model->modules()) {
      num_training += module->is_training() ? 1 : 0;
    }
    return catalogue.users.index_select(
        0, std::get<at::Tensor>(users.features["user"]));
  };
  Recommender recommender(model, options);
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int64_t round = 0; round < 100; ++round) {
        if (i == 0 && round % 10 == 0) {
          recommender.refresh();
        }
        recommender.recommend(users_of({i}), {.k = 3, .where = "year > 1990"});
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(num_training, 0);
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(model->children()[3]->is_training());
  EXPECT_TRUE(model->children()[4]->is_training());
}

TEST(RecommenderTest, DiversityLimitsTheItemsOfAValue) {
  const Catalogue catalogue;
  const Recommender recommender(some_model(), catalogue.options());
  const Recommendations found = recommender.recommend(
      users_of({0, 1}),
      {.k = 12, .diversity = Diversity{.column = "genre", .max_per_value = 2}});
  for (int64_t user = 0; user < 2; ++user) {
    // Takes the best in turn, as a reader of the whole list would.
    std::map<std::string, int64_t> chosen;
    Ids expected;
    for (const int64_t id :
         catalogue.best(user, 50, false, [](int64_t) { return true; })) {
      const auto row = (catalogue.ids == id).nonzero().item<int64_t>();
      const std::string& genre = catalogue.genres[static_cast<size_t>(row)];
      if (expected.size() < 12 && (genre.empty() || ++chosen[genre] <= 2)) {
        expected.push_back(id);
      }
    }
    EXPECT_EQ(ids_of(found.ids[user]), expected);
  }
}

TEST(RecommenderTest, ARankerOrdersTheCandidates) {
  const Catalogue catalogue;
  RecommenderOptions options = catalogue.options();
  options.num_candidates = 7;
  options.ranker = [](const data::PipelineBatch& user,
                      const at::Tensor& items) {
    EXPECT_EQ(std::get<at::Tensor>(user.features["user"]).size(0), 1);
    return -items.to(at::kFloat);  // prefers small ids
  };
  const Recommender recommender(some_model(), options);
  const Recommendations found =
      recommender.recommend(users_of({3, 8}), {.k = 4});
  for (int64_t row = 0; row < 2; ++row) {
    Ids expected = catalogue.best(
        row == 0 ? 3 : 8, 7, false, [](int64_t) { return true; });
    std::ranges::sort(expected);
    expected.resize(4);
    EXPECT_EQ(ids_of(found.ids[row]), expected);
    EXPECT_EQ(
        found.scores[row][0].item<float>(), -static_cast<float>(expected[0]));
  }
}

// Items without vectors, which score each other. A later item of a history counts double.
struct ScoredCatalogue : Catalogue {
  at::Tensor weights = at::randn({50, 50});

  at::Tensor scores_of(std::span<const int64_t> rows) const {
    at::Tensor scores = at::zeros({50});
    for (const int64_t row : rows) {
      scores = 0.5 * scores + weights[row];
    }
    return scores;
  }

  RecommenderOptions options() const {
    return {
        .items =
            [this] {
              return RecommenderItems{.ids = ids, .popularity = at::arange(50)};
            },
        .scores =
            [this](const RaggedFeature& rows) {
              const ItemBags bags =
                  bags_of(rows, rows.row_splits.size(0) - 1, "[test]");
              std::vector<at::Tensor> scores;
              for (int64_t user = 0; user < std::ssize(bags.splits) - 1;
                   ++user) {
                scores.push_back(scores_of(bags.of(user)));
              }
              return at::stack(scores);
            },
        // User u has seen the items of the rows 3 u + 1 and 3 u, in this order.
        .seen =
            [this](const at::Tensor& users) {
              return RaggedFeature::from_lengths(
                  ids.index_select(
                      0, at::stack({3 * users + 1, 3 * users}, 1).flatten()),
                  at::full({users.size(0)}, 2, at::kLong));
            },
        .attributes = attributes()};
  }

  // The best items for a history, by plain sorting.
  Ids best_for(const Ids& rows, const std::function<bool(int64_t)>& allows)
      const {
    const at::Tensor scores = scores_of(rows);
    std::vector<std::pair<float, int64_t>> all;
    for (int64_t i = 0; i < 50; ++i) {
      if (allows(i)) {
        all.emplace_back(-scores[i].item<float>(), ids[i].item<int64_t>());
      }
    }
    std::ranges::sort(all);
    Ids found;
    for (const auto& [score, id] : all) {
      found.push_back(id);
    }
    return found;
  }
};

TEST(RecommenderTest, ScoresStandInPlaceOfVectors) {
  const ScoredCatalogue catalogue;
  const Recommender recommender(nullptr, catalogue.options());
  const auto id = [&](int64_t row) {
    return catalogue.ids[row].item<int64_t>();
  };
  // The first user has an id that is no item, and the second user has no items.
  const RaggedFeature items{
      .values = int64s({id(40), 5000, id(7), id(40), id(3)}),
      .row_splits = int64s({0, 4, 4, 5})};
  const Ids first{40, 7, 40};
  const auto all = [](int64_t) { return true; };
  const Recommendations found =
      recommender.recommend({{"item", items}}, {.k = 50});
  EXPECT_EQ(
      found.from,
      (std::vector{
          RecommendedFrom::kFoldIn,
          RecommendedFrom::kPopularity,
          RecommendedFrom::kFoldIn}));
  EXPECT_EQ(ids_of(found.ids[0]), catalogue.best_for(first, all));
  EXPECT_EQ(ids_of(found.ids[1])[0], id(49));
  EXPECT_EQ(ids_of(found.ids[2]), catalogue.best_for({3}, all));
  expect_close(
      found.scores[0],
      std::get<0>(catalogue.scores_of(first).sort(0, /*descending=*/true)));

  const Recommendations filtered = recommender.recommend(
      {{"item", items}},
      {.k = 50,
       .exclude_seen = true,
       .where = "genre = 'drama'",
       .exclude = {id(3)}});
  EXPECT_EQ(ids_of(filtered.ids[0]), catalogue.best_for(first, [&](int64_t i) {
    return catalogue.genres[static_cast<size_t>(i)] == "drama" && i != 40 &&
        i != 7 && i != 3;
  }));

  const Recommendations diverse = recommender.recommend(
      {{"item", items}},
      {.k = 6, .diversity = Diversity{.column = "genre", .max_per_value = 1}});
  Ids expected;
  std::map<std::string, int64_t> chosen;
  for (const int64_t best : catalogue.best_for(first, all)) {
    const auto row = (catalogue.ids == best).nonzero().item<int64_t>();
    const std::string& genre = catalogue.genres[static_cast<size_t>(row)];
    if (expected.size() < 6 && (genre.empty() || ++chosen[genre] <= 1)) {
      expected.push_back(best);
    }
  }
  EXPECT_EQ(ids_of(diverse.ids[0]), expected);
}

TEST(RecommenderTest, ScoresTakeTheSeenItemsOfKnownUsers) {
  const ScoredCatalogue catalogue;
  const Recommender recommender(some_model(), catalogue.options());
  const Recommendations found =
      recommender.recommend(users_of({2, 5}), {.k = 50, .exclude_seen = true});
  for (int64_t row = 0; row < 2; ++row) {
    const int64_t first = row == 0 ? 6 : 15;
    EXPECT_EQ(
        ids_of(found.ids[row]),
        catalogue.best_for({first + 1, first}, [&](int64_t i) {
          return i != first && i != first + 1;
        }));
    EXPECT_EQ(found.from[static_cast<size_t>(row)], RecommendedFrom::kFoldIn);
  }
  // The items of the request come first. What the user has seen is left out, too.
  const RaggedFeature items{
      .values = catalogue.ids.narrow(0, 30, 1), .row_splits = int64s({0, 1})};
  EXPECT_EQ(
      ids_of(recommender
                 .recommend(
                     {{"user", Feature(int64s({2}))}, {"item", items}},
                     {.k = 50, .exclude_seen = true})
                 .ids[0]),
      catalogue.best_for(
          {30}, [](int64_t i) { return i != 30 && i != 6 && i != 7; }));
}

// With a pipeline, items with reserved ids are left out of the lists, but have scores.
TEST(RecommenderTest, ScoresAreThoseOfTheGivenRows) {
  RecommenderOptions options = film_options();
  options.items = [] {
    return RecommenderItems{.popularity = int64s({9, 9, 1, 3, 2})};
  };
  options.query = nullptr;
  options.scores = [](const RaggedFeature& rows) {
    EXPECT_TENSOR_EQ(rows.values, int64s({4, 2}));
    return floats({99, 98, 1, 3, 2}).view({1, 5});
  };
  const Recommender recommender(some_model(), options);
  Columns users;
  users.add(
      "item", {.values = Texts{"c", "zzz", "a"}, .row_splits = int64s({0, 3})});
  EXPECT_EQ(
      recommender.recommend(users, {.k = 3}).texts,
      (std::vector<Texts>{{"b", "c", "a"}}));
}

TEST(RecommenderTest, RefusesScoresThatDoNotFit) {
  const ScoredCatalogue catalogue;
  const auto refuses = [&](auto change, const char* text) {
    RecommenderOptions options = catalogue.options();
    change(options);
    EXPECT_RAISES(
        c10::ValueError,
        Recommender(some_model(), options).recommend(users_of({1})),
        text);
  };
  refuses(
      [&](auto& options) {
        options.query = catalogue.Catalogue::options().query;
      },
      "options.scores stands in place of query, fold_in and ItemScore::kCosine");
  refuses(
      [](auto& options) {
        options.fold_in = [](const RaggedFeature&) { return at::Tensor(); };
      },
      "options.scores stands in place of query");
  refuses(
      [](auto& options) { options.score = ItemScore::kCosine; },
      "options.scores stands in place of query");
  refuses(
      [](auto& options) { options.items = [] { return RecommenderItems(); }; },
      "options.items must give ids or popularity, and no vectors");
  refuses(
      [&](auto& options) {
        options.items = catalogue.Catalogue::options().items;
      },
      "options.items must give ids or popularity, and no vectors");
  const auto gives = [](at::Tensor scores) {
    return [scores](auto& options) {
      options.scores = [scores](const RaggedFeature&) { return scores; };
    };
  };
  refuses(
      gives(at::zeros({1, 49})),
      "options.scores must give floats [1, 50], dense and on the CPU");
  refuses(gives(at::zeros({2, 50})), "options.scores must give floats [1, 50]");
  refuses(gives(at::full({1, 50}, NAN)), "options.scores gave NaN or infinity");
}

TEST(RecommenderTest, RefreshTakesNewItemsOrKeepsTheOldOnes) {
  Catalogue catalogue;
  Recommender recommender(some_model(), catalogue.options());
  const RecommendOptions filtered{.k = 1, .where = "year >= 1980"};
  const at::Tensor before = recommender.recommend(users_of({0}), filtered).ids;
  const at::Tensor old = catalogue.vectors;
  catalogue.vectors = at::full({50, 6}, NAN);
  EXPECT_RAISES(
      c10::ValueError,
      recommender.refresh(),
      "items.vectors gave NaN or infinity");
  EXPECT_TRUE(
      at::equal(recommender.recommend(users_of({0}), filtered).ids, before));
  catalogue.vectors = -old;
  recommender.refresh();
  EXPECT_EQ(
      ids_of(recommender.recommend(users_of({0}), filtered).ids[0]),
      catalogue.best(0, 1, false, [](int64_t) { return true; }));
}

TEST(RecommenderTest, TheModelIsInEvalDuringTheQuery) {
  const Catalogue catalogue;
  const auto model = some_model();
  RecommenderOptions options = catalogue.options();
  options.query = [&](const data::PipelineBatch& users) {
    EXPECT_FALSE(model->is_training());
    EXPECT_FALSE(at::GradMode::is_enabled());
    return catalogue.users.index_select(
        0, std::get<at::Tensor>(users.features["user"]));
  };
  const Recommender recommender(model, options);
  recommender.recommend(users_of({1}));
  EXPECT_TRUE(model->is_training());
}

TEST(RecommenderTest, RefusesWhatItCannotAnswer) {
  const Catalogue catalogue;
  const Recommender recommender(some_model(), catalogue.options());
  expect_refusals<RecommendOptions>(
      {{{.k = 0}, "k must be in [1, 50]"},
       {{.k = 51}, "k must be in [1, 50]"},
       {{.exclude_seen = true}, "exclude_seen needs the items of users"},
       {{.where = "color = 'red'"}, "'color'"},
       {{.where = "year = 'red'"}, "'year'"},
       {{.where = "year >"}, "position"},
       {{.choose_from = Ids{int64_t{1} << 60}},
        "choose_from has the id 1152921504606846976"},
       {{.diversity = Diversity{.column = "color", .max_per_value = 1}},
        "'color'"},
       {{.diversity = Diversity{.column = "genre"}},
        "needs max_per_value >= 1, but it is 0"}},
      [&](const RecommendOptions& options) {
        recommender.recommend(users_of({0}), options);
      });
  expect_refusals<Features>(
      {{Features(), "expected one or more users, but got none"},
       {users_of({}), "expected one or more users, but got none"},
       {{{"user", Feature(int64s({1}))}, {"item", Feature(int64s({1}))}},
        "the feature 'item' must be ragged"},
       {{{"user", Feature(int64s({1, 2}))},
         {"item",
          Feature(RaggedFeature{
              .values = int64s({1}), .row_splits = int64s({0, 1})})}},
        "the feature 'item' has 1 rows, but others have 2"},
       {{{"item",
          Feature(RaggedFeature{
              .values = int64s({1}), .row_splits = int64s({0, 2})})}},
        "the feature 'item' must have 2 row_splits that ascend from 0 to 1"},
       {{{"user", Feature(floats({1}))}},
        "the feature 'user' must be int32 or int64"}},
      [&](const Features& users) { recommender.recommend(users); });
  RecommenderOptions options = catalogue.options();
  options.seen = [](const at::Tensor&) { return RaggedFeature(); };
  EXPECT_VALUE_ERROR(
      Recommender(some_model(), options)
          .recommend({{"uid", Feature(int64s({1}))}}, {.exclude_seen = true}),
      "exclude_seen needs");
  Columns raw;
  raw.add("user", {.values = Texts{"ann"}});
  EXPECT_RAISES(
      c10::ValueError,
      recommender.recommend(raw),
      "raw values need RecommenderOptions::pipeline");
}

TEST(RecommenderTest, RefusesOptionsThatDoNotFit) {
  const Catalogue catalogue;
  const auto refuses = [&](auto change, const char* text) {
    RecommenderOptions options = catalogue.options();
    change(options);
    EXPECT_RAISES(c10::ValueError, Recommender(some_model(), options), text);
  };
  const auto with_items = [&](RecommenderItems items) {
    return [items](RecommenderOptions& options) {
      options.items = [items] { return items; };
    };
  };
  refuses(
      [](auto& options) { options.query = nullptr; },
      "but options.query is empty");
  refuses(
      [](auto& options) { options.num_candidates = 0; },
      "num_candidates must be >= 1, but is 0");
  refuses(
      [](auto& options) { options.item = "film"; },
      "attributes must have the column 'film'");
  refuses(with_items({}), "must give floats [1 or more, dim]");
  refuses(
      with_items({.vectors = at::ones({0, 4})}),
      "must give floats [1 or more, dim]");
  refuses(
      with_items({.vectors = at::ones({2, 4}), .ids = int64s({1, 2, 3})}),
      "one id per vector, 2, but has 3");
  refuses(
      with_items({.vectors = at::ones({2, 4}), .ids = int64s({5, 5})}),
      "has 5 twice");
  refuses(
      with_items({.vectors = at::ones({2, 4}), .ids = int64s({-5, 5})}),
      "must be >= 0 and different, but has -5");
  refuses(
      with_items({.vectors = at::ones({2, 4}), .popularity = at::ones({3})}),
      "items.popularity");
  EXPECT_RAISES(
      c10::ValueError,
      Recommender(training::ModelPointer(), catalogue.options()),
      "but the model is empty");

  RecommenderOptions options = catalogue.options();
  options.query = [](const data::PipelineBatch&) { return at::ones({1, 5}); };
  EXPECT_RAISES(
      c10::ValueError,
      Recommender(some_model(), options).recommend(users_of({0})),
      "options.query must give floats [1, 6]");
}

}  // namespace tessera::recommender_test
