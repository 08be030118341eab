// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/layer_json.h>
#include <tessera/models/register_models.h>
#include <tessera/models/simplex.h>
#include <tessera/optim/optimizers/adam.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/search/top_k_index.h>

#include "tests/features/feature_builders.h"

namespace tessera::test::simplex_test {

constexpr int64_t kUsers = 5;
constexpr int64_t kItems = 9;

SimpleXOptions small_options() {
  return {
      .num_users = kUsers,
      .num_items = kItems,
      .dim = 4,
      .user_share = 0.3,
      .optimizer = optim::SGD{.learning_rate = 1.0}};
}

at::Tensor ids_of(const std::vector<int64_t>& ids) {
  return at::tensor(ids, at::kLong);
}

// The formula of the docstring in doubles, for one user.
at::Tensor plain_user_vector(
    const SimpleX& model,
    const at::Tensor& users,
    const at::Tensor& items,
    const at::Tensor& projection,
    int64_t user,
    const std::vector<int64_t>& history) {
  std::vector<at::Tensor> rows;
  for (const int64_t item : history) {
    rows.push_back(items[item]);
  }
  const at::Tensor mean =
      rows.empty() ? at::zeros({4}, at::kDouble) : at::stack(rows).mean(0);
  const double share = model->options().user_share;
  return share * users[user] + (1.0 - share) * projection.matmul(mean);
}

TEST(SimpleXTest, ScoresAndUpdatesMatchPlainFormulas) {
  // Users with repeated items, positive items that are not in the history, no item besides
  // the positive one, no item at all, and no positive item.
  const std::vector<int64_t> users{4, 0, 2, 1, 3};
  const Rows histories{{7, 8, 7, 1}, {2, 3}, {5}, {}, {6, 4}};
  const Rows positives{{7, 1, 8}, {2, 6}, {5}, {0}, {}};
  const std::vector<int64_t> negatives{1, 3, 3, 5, 0};

  SimpleX model(small_options());
  const auto read = [&](const char* table, int64_t rows) {
    return model->tables->read_rows(table, 0, rows).to(at::kDouble);
  };
  const at::Tensor user_table = read("users", kUsers).requires_grad_();
  const at::Tensor item_table = read("items", kItems).requires_grad_();
  const at::Tensor weight = model->named_parameters()["projection.weight"];
  const at::Tensor projection =
      weight.detach().to(at::kDouble).requires_grad_();

  std::vector<at::Tensor> positive, negative;
  std::vector<int64_t> ids;
  for (size_t i = 0; i < users.size(); ++i) {
    for (const int64_t item : positives[i]) {
      const at::Tensor vector = plain_user_vector(
          model, user_table, item_table, projection, users[i], histories[i]);
      const auto cosine = [&](int64_t other) {
        return at::cosine_similarity(vector, item_table[other], 0);
      };
      ids.push_back(item);
      positive.push_back(cosine(item));
      std::vector<at::Tensor> row;
      for (const int64_t other : negatives) {
        row.push_back(cosine(other));
      }
      negative.push_back(at::stack(row));
    }
  }
  const SampledScores scores = model->scores(
      ids_of(users), ragged(histories), ragged(positives), ids_of(negatives));
  expect_close(
      scores.positive.to(at::kDouble), at::stack(positive), 1e-4, 1e-5);
  expect_close(
      scores.negative.to(at::kDouble), at::stack(negative), 1e-4, 1e-5);
  EXPECT_TRUE(at::equal(scores.positive_ids, ids_of(ids)));
  EXPECT_TRUE(at::equal(scores.negative_ids, ids_of(negatives)));

  SampledScores plain{
      .positive = at::stack(positive),
      .negative = at::stack(negative),
      .positive_ids = scores.positive_ids,
      .negative_ids = scores.negative_ids};
  const at::Tensor expected = sampled_softmax_loss(plain, {.temperature = 0.5});
  expect_close(
      sampled_softmax_loss(scores, {.temperature = 0.5}).to(at::kDouble),
      expected,
      1e-4,
      1e-5);
  const at::Tensor loss = model->sampled_softmax_loss(
      ids_of(users),
      ragged(histories),
      ragged(positives),
      ids_of(negatives),
      0.5);
  expect_close(loss.to(at::kDouble), expected, 1e-4, 1e-5);
  const auto gradients =
      torch::autograd::grad({expected}, {user_table, item_table, projection});
  loss.backward();
  const auto change = [&](const at::Tensor& before, const char* table) {
    return before.detach() - read(table, before.size(0));
  };
  // The rows are short, so that gradients of cosines are long.
  expect_close(change(user_table, "users"), gradients[0], 1e-3, 1e-3);
  expect_close(change(item_table, "items"), gradients[1], 1e-3, 1e-3);
  expect_close(weight.grad().to(at::kDouble), gradients[2], 1e-3, 1e-3);
}

// A user vector of zeros has the score 0 with all items, and gives no gradient.
TEST(SimpleXTest, UserWithoutItemsGivesNoGradient) {
  SimpleXOptions options = small_options();
  options.user_share = 0.0;
  SimpleX model(options);
  const at::Tensor before = model->tables->read_rows("items", 0, kItems);
  const SampledScores scores = model->scores(
      int64s({0, 1}), ragged({{}, {}}), ragged({{5}, {7}}), int64s({1, 2}));
  EXPECT_TRUE(at::equal(scores.positive, at::zeros({2})));
  EXPECT_TRUE(at::equal(scores.negative, at::zeros({2, 2})));
  sampled_softmax_loss(scores).backward();
  EXPECT_TRUE(at::equal(model->tables->read_rows("items", 0, kItems), before));
}

TEST(SimpleXTest, QueriesUseTheWholeHistory) {
  SimpleX model(small_options());
  const std::vector<int64_t> users{3, 1};
  const Rows histories{{2, 2, 8}, {}};
  const at::Tensor queries = model->queries(ids_of(users), ragged(histories));
  EXPECT_FALSE(queries.requires_grad());
  const auto table = [&](const char* name, int64_t rows) {
    return model->tables->read_rows(name, 0, rows).to(at::kDouble);
  };
  const at::Tensor items = table("items", kItems);
  for (size_t i = 0; i < users.size(); ++i) {
    const at::Tensor expected = plain_user_vector(
        model,
        table("users", kUsers),
        items,
        model->named_parameters()["projection.weight"].detach().to(at::kDouble),
        users[i],
        histories[i]);
    expect_close(
        queries[static_cast<int64_t>(i)].to(at::kDouble),
        expected / expected.norm(),
        1e-4,
        1e-5);
  }
  expect_close(
      model->item_vectors().to(at::kDouble),
      items / items.norm(2, 1, true),
      1e-4,
      1e-5);
}

// A share of 1 is a matrix factorization, which does not depend on histories.
TEST(SimpleXTest, ShareOfOneUsesNoItems) {
  SimpleXOptions options = small_options();
  options.user_share = 1.0;
  // The decay changes every row that a batch looks up.
  options.optimizer =
      optim::SGD{.learning_rate = 1.0, .weight_decay_factor = 0.1};
  SimpleX model(options);
  const at::Tensor users = at::arange(2);
  EXPECT_TRUE(at::equal(
      model->forward(users, ragged({{1, 2}, {3}})),
      model->forward(users, ragged({{}, {}}))));

  const auto items = [&] { return model->tables->read_rows("items", 0, 4); };
  const at::Tensor before = items();
  model
      ->sampled_softmax_loss(
          users, ragged({{1, 2}, {3}}), ragged({{4}, {5}}), int64s({6}))
      .backward();
  EXPECT_TRUE(at::equal(items(), before));
}

// Users and items have a color. A user has half of the items of one color.
TEST(SimpleXTest, FindsItemsOfTheSameColor) {
  constexpr int64_t kCount = 200;  // of users
  constexpr int64_t kColors = 4;
  constexpr int64_t kPerColor = 10;
  torch::manual_seed(1);
  SimpleX model(SimpleXOptions{
      .num_users = kCount,
      .num_items = kColors * kPerColor,
      .dim = 8,
      .user_share = 0.2,
      .optimizer =
          optim::Adam{.learning_rate = 0.01, .bias_correction = true}});
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  Rows histories(kCount);
  for (int64_t user = 0; user < kCount; ++user) {
    const at::Tensor order = at::randperm(kPerColor);
    for (int64_t i = 0; i < kPerColor / 2; ++i) {
      histories[user].push_back(
          order[i].item<int64_t>() * kColors + user % kColors);
    }
  }
  const at::Tensor users = at::arange(kCount);
  const RaggedFeature items = ragged(histories);
  for (int64_t step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    model
        ->sampled_softmax_loss(
            users,
            items,
            items,
            at::randint(kColors * kPerColor, {30}, at::kLong),
            0.2)
        .backward();
    optimizer.step();
  }
  const TopK found = make_exact_index(model->item_vectors())
                         ->search(model->queries(users, items), 5, items);
  const at::Tensor is_same =
      found.ids.remainder(kColors).eq(users.remainder(kColors).unsqueeze(1));
  EXPECT_GT(is_same.to(at::kDouble).mean().item<double>(), 0.95);
}

TEST(SimpleXTest, TakesEmptyBatches) {
  SimpleX model(small_options());
  const at::Tensor none = int64s({});
  EXPECT_EQ(model->forward(none, ragged({})).sizes(), at::IntArrayRef({0, 4}));
  const SampledScores scores =
      model->scores(none, ragged({}), ragged({}), none);
  EXPECT_EQ(scores.positive.sizes(), at::IntArrayRef({0}));
  EXPECT_EQ(scores.negative.sizes(), at::IntArrayRef({0, 0}));
}

TEST(SimpleXTest, RefusesWrongInputsAndChangesNothing) {
  SimpleX model(small_options());
  const at::Tensor before = model->item_vectors();
  const at::Tensor users = int64s({0, 1});
  const RaggedFeature two = ragged({{1}, {2, 3}});
  const at::Tensor negatives = int64s({4});
  const auto refuse = [&](const at::Tensor& some,
                          const RaggedFeature& histories,
                          const RaggedFeature& positives,
                          const at::Tensor& others,
                          const std::string& text) {
    EXPECT_VALUE_ERROR(model->scores(some, histories, positives, others), text);
    EXPECT_VALUE_ERROR(
        model->sampled_softmax_loss(some, histories, positives, others), text);
  };
  refuse({}, two, two, negatives, "users must have one dimension");
  refuse(users.view({2, 1}), two, two, negatives, "users must have one");
  refuse(users, {}, two, negatives, "histories must have one dimension");
  refuse(users, two, {}, negatives, "positives must have one dimension");
  refuse(users, two, two, {}, "negatives must have one dimension");
  refuse(
      users,
      ragged({{1}}),
      two,
      negatives,
      "histories must have one bag for each of the 2 users, but got 1 bags");
  refuse(
      users,
      two,
      ragged({{1}, {2}, {3}}),
      negatives,
      "positives must have one bag for each of the 2 users, but got 3 bags");
  EXPECT_TYPE_ERROR(
      model->scores(users.to(at::kFloat), two, two, negatives),
      "users must be int32 or int64");
  EXPECT_TYPE_ERROR(
      model->scores(users, two, two, at::randn({3})),
      "negatives must be int32 or int64");
  EXPECT_INDEX_ERROR(
      model->scores(int64s({0, kUsers}), two, two, negatives), "5");
  EXPECT_INDEX_ERROR(
      model->scores(users, two, ragged({{kItems}, {}}), negatives), "9");
  EXPECT_INDEX_ERROR(model->scores(users, two, two, int64s({-1})), "-1");
  EXPECT_VALUE_ERROR(
      model->forward(users, ragged({{1}})), "one bag for each of the 2 users");
  for (const double temperature : {0.0, -1.0}) {
    EXPECT_VALUE_ERROR(
        model->sampled_softmax_loss(users, two, two, negatives, temperature),
        "[SimpleX] temperature");
  }
  EXPECT_VALUE_ERROR(
      model->sampled_softmax_loss(users, two, ragged({{}, {}}), negatives),
      "positives must have one item or more in all, but got none");
  EXPECT_VALUE_ERROR(
      model->sampled_softmax_loss(users, two, two, int64s({})),
      "negatives must have one item or more in all, but got none");
  EXPECT_TRUE(at::equal(model->item_vectors(), before));
}

TEST(SimpleXTest, RefusesWrongOptions) {
  std::vector<Refusal<SimpleXOptions>> rows{
      {{}, "[SimpleX] num_users must be >= 1, but got 0"},
      {{.num_users = 1, .num_items = -3}, "num_items must be >= 1"},
      {{.num_users = 1, .num_items = 1, .dim = 0}, "dim must be >= 1"}};
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    rows.push_back(
        {{.num_users = 1, .num_items = 1, .user_share = share},
         "user_share must be in [0, 1]"});
  }
  expect_refusals(
      rows, [](const SimpleXOptions& options) { SimpleX model(options); });
}

TEST(SimpleXTest, IsSavedClonedAndBuiltFromJson) {
  SimpleX model(small_options());
  const at::Tensor users = at::arange(2);
  const RaggedFeature items = ragged({{1, 2}, {3}});
  const auto step = [&](SimpleXImpl& some) {
    sampled_softmax_loss(some.scores(users, items, items, int64s({4, 5})))
        .backward();
  };
  step(*model);
  const at::Tensor expected = model->queries(users, items);
  register_models();
  auto same = from_json<SimpleX>(to_json(model));
  EXPECT_EQ(same->options(), model->options());
  copy_by_archive(model, same);
  EXPECT_TRUE(at::equal(same->queries(users, items), expected));

  const auto copy = std::dynamic_pointer_cast<SimpleXImpl>(model->clone());
  EXPECT_TRUE(at::equal(copy->queries(users, items), expected));
  step(*copy);
  EXPECT_FALSE(at::equal(copy->queries(users, items), expected));
  EXPECT_TRUE(at::equal(model->queries(users, items), expected));
}

}  // namespace tessera::test::simplex_test
