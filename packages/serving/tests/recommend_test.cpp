// SPDX-License-Identifier: Apache-2.0
// Items that a Publisher writes, and that a Reader recommends.
#include <tessera/common/json_value.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/export/export_pt2.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers.h>
#include <tessera/serving/publisher.h>

#include "packages/search/src/scan/item_attributes.h"
#include "packages/serving/src/format/items_file.h"
#include "packages/serving/src/format/version_file.h"
#include "packages/serving/src/reader/version.h"
#include "src/common/check.h"
#include "tests/small_files.h"
#include "tests/temporary_folder.h"
#include "tests/test_util.h"

namespace tessera::serving::recommend_test {

constexpr int64_t kUsers = 50;
constexpr int64_t kFilms = 40;
constexpr int64_t kDim = 4;

struct TowersImpl : torch::nn::Module {
  TowersImpl() {
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"user",
                  FeatureConfig{
                      .table = make_table(
                          {.name = "users",
                           .vocabulary_size = kUsers,
                           .dim = kDim})}},
                 {"film",
                  FeatureConfig{
                      .table = make_table(
                          {.name = "films",
                           .vocabulary_size = kFilms,
                           .dim = kDim})}}},
            .optimizer = optim::Adagrad{.learning_rate = 0.1}}));
    tower = register_module("tower", torch::nn::Linear(kDim, kDim));
  }

  // The vectors of users.
  at::Tensor forward(const Features& features) {
    return tower->forward(embedding->forward_partial(features)["user"]);
  }
  at::Tensor films() {
    return embedding->forward_partial(
        {{"film", at::arange(kFilms, at::kLong)}})["film"];
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(Towers);

// All rows of a published table, [rows, dim].
at::Tensor rows_of(const Version& version, const char* table) {
  const size_t number = version.table(table);
  const Version::TableInfo& info = version.tables()[number];
  std::vector<int64_t> ids(static_cast<size_t>(info.rows));
  std::iota(ids.begin(), ids.end(), 0);
  at::Tensor rows = at::empty({info.rows, info.dim});
  version.lookup_rows(
      number,
      ids,
      {rows.mutable_data_ptr<float>(), static_cast<size_t>(rows.numel())});
  return rows;
}

bool has_table(const Version& version, const std::string& name) {
  return std::ranges::count(version.tables(), name, &Version::TableInfo::name) >
      0;
}

int64_t overlaid(const Version& version, const char* table) {
  return version.tables()[version.table(table)].overlaid_rows;
}

std::vector<int64_t> integers_in(const Version& version, const char* file) {
  const std::string_view bytes = version.impl().file(file);
  std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

ItemsFile items_file(const Version& version) {
  return read_fields<ItemsFile>(
      parse_json(version.impl().file(kItems)), "items");
}

// Each user has seen the items with the user's id and the next one.
RaggedFeature seen_by(const at::Tensor& users) {
  return RaggedFeature::from_lengths(
      at::stack({users, users + 1}, 1).view({-1}), at::full_like(users, 2));
}

// The functions of the options give the members.
class RecommendPublisherTest : public ::testing::Test {
 protected:
  RecommendPublisherTest() {
    items_.vectors = at::randn({kFilms, kDim});
    items_.ids = at::randperm(kFilms, at::kLong) * 3;
    items_.popularity = at::randint(1000, {kFilms}, at::kLong);
  }

  PublishedItems given() {
    return {
        .items = [this] { return items_; },
        .users = [this] { return users_; },
        .item = "film"};
  }
  static PublishOptions options_of(PublishedItems items) {
    return {.full_share = 10.0, .items = std::move(items)};
  }
  // The rows of items in the order of their ids.
  at::Tensor in_order(const at::Tensor& rows) const {
    return rows.index_select(0, items_.ids.argsort());
  }
  void expect_published(const Version& version) const {
    EXPECT_TENSOR_EQ(rows_of(version, kItemVectors), in_order(items_.vectors));
    EXPECT_TENSOR_EQ(rows_of(version, kUserVectors), users_);
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "published";
  Towers model_;
  RecommenderItems items_;
  at::Tensor users_ = at::randn({kUsers, kDim});
};

TEST_F(RecommendPublisherTest, ABaseHasTablesAndFiles) {
  PublishedItems items = given();
  items.fold_in = PublishedFoldIn{
      .regularization = 2.0,
      .regularization_per_item = 0.5,
      .catalogue_confidence = 0.25};
  items.seen = seen_by;
  items.attributes.add("film", {.values = at::arange(6, at::kLong)});
  items.attributes.add(
      "genre", {.values = Texts{"drama", "a", "b", "crime", "c", "d"}});
  Publisher publisher(model_, path_, options_of(items));
  publisher.publish();
  const Reader reader(path_, {.follow = false});
  const Version& version = *reader.version();
  expect_published(version);
  EXPECT_FALSE(has_table(version, kExactVectors));
  EXPECT_TENSOR_EQ(
      rows_of(version, kPopularity),
      in_order(items_.popularity).to(at::kFloat).unsqueeze(1));
  const at::Tensor doubles = items_.vectors.to(at::kDouble);
  const at::Tensor products =
      rows_of(version, kItemProducts).to(at::kDouble).view({kDim, 2, kDim});
  EXPECT_TRUE(
      at::allclose(products.sum(1), doubles.t().matmul(doubles), 1e-13, 1e-13));
  EXPECT_EQ(
      publisher.report().rows,
      2 * kUsers + 3 * kFilms + kDim);  // and the tables of the model

  const ItemsFile file = items_file(version);
  EXPECT_EQ(file.user, "user");
  EXPECT_EQ(file.item, "film");
  EXPECT_EQ(file.num_reserved_users, 0);
  EXPECT_EQ(file.num_reserved_items, 0);
  EXPECT_FALSE(file.is_cosine);
  ASSERT_TRUE(file.fold_in.has_value());
  EXPECT_EQ(file.fold_in->regularization, 2.0);
  EXPECT_EQ(file.fold_in->regularization_per_item, 0.5);
  EXPECT_EQ(file.fold_in->catalogue_confidence, 0.25);
  EXPECT_EQ(file.num_candidates, 0);

  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kFilms; ++i) {
    ids.push_back(3 * i);
  }
  EXPECT_EQ(integers_in(version, kItemIds), ids);
  // Every third id is an item.
  std::vector<int64_t> splits{kUsers, 0};
  std::vector<int64_t> seen;
  for (int64_t user = 0; user < kUsers; ++user) {
    for (const int64_t id : {user, user + 1}) {
      if (id % 3 == 0) {
        seen.push_back(id);
      }
    }
    splits.push_back(std::ssize(seen));
  }
  splits.insert(splits.end(), seen.begin(), seen.end());
  EXPECT_EQ(integers_in(version, kSeenItems), splits);
  const ItemAttributes attributes(
      version.impl().file(kItemAttributes), "[test]");
  const AttributeColumn& genre = attributes.at("genre", "[test]");
  EXPECT_EQ(genre.texts[genre.values[attributes.row_of(3)]], "crime");
  EXPECT_EQ(version.impl().file(kQueryProgram), "");
}

TEST_F(RecommendPublisherTest, FunctionsUseTheModelInEvaluation) {
  const auto check = [&] {
    EXPECT_FALSE(model_->is_training());
    EXPECT_FALSE(at::GradMode::is_enabled());
  };
  PublishedItems items{
      .items =
          [&] {
            check();
            return RecommenderItems{.vectors = model_->films()};
          },
      .users =
          [&] {
            check();
            return model_->forward({{"user", at::arange(kUsers, at::kLong)}});
          }};
  Publisher publisher(model_, path_, options_of(items));
  for (int64_t version = 1; version <= 3; ++version) {
    model_->train();
    publisher.publish();
    EXPECT_TRUE(model_->is_training());
    EXPECT_EQ(publisher.report().is_base, version == 1);
    const Reader reader(path_, {.follow = false});
    const at::NoGradGuard no_grad;
    model_->eval();
    EXPECT_TENSOR_EQ(rows_of(*reader.version(), kItemVectors), model_->films());
    EXPECT_TENSOR_EQ(
        rows_of(*reader.version(), kUserVectors),
        model_->forward({{"user", at::arange(kUsers, at::kLong)}}));
    model_->tower->weight.add_(0.5);
  }
}

TEST_F(RecommendPublisherTest, AVersionHasOnlyTheChangedRows) {
  Publisher publisher(model_, path_, options_of(given()));
  publisher.publish();
  Reader reader(path_, {.follow = false});
  publisher.publish();
  EXPECT_EQ(publisher.report().rows, 0);
  items_.vectors[7][1] += 1.0;
  items_.vectors[9][0] = 0.0;
  items_.vectors[11][0] *= 1.0;
  users_[5] *= 2.0;  // the memory that the last version was made of
  publisher.publish();
  EXPECT_FALSE(publisher.report().is_base);
  EXPECT_EQ(publisher.report().rows, 3);
  items_.vectors[9][0] = -0.0;  // other bits
  publisher.publish();
  EXPECT_EQ(publisher.report().rows, 1);
  reader.refresh();
  const Version& version = *reader.version();
  EXPECT_EQ(version.base(), 1);
  EXPECT_EQ(overlaid(version, kItemVectors), 2);
  EXPECT_EQ(overlaid(version, kUserVectors), 1);
  EXPECT_EQ(overlaid(version, kPopularity), 0);
  expect_published(version);
  EXPECT_EQ(integers_in(version, kItemIds).size(), size_t{kFilms});
}

TEST_F(RecommendPublisherTest, ChangesOfAFailedVersionAreInTheNextOne) {
  for (const bool background : {false, true}) {
    const std::string path = path_ + (background ? "_later" : "");
    PublishOptions options = options_of(given());
    options.background = background;
    Publisher publisher(model_, path, options);
    publisher.publish();
    publisher.wait();
    Reader reader(path, {.follow = false});
    items_.vectors[3] += 1.0;
    {
      const SmallFiles full(100);
      EXPECT_RAISES(
          c10::Error,
          (publisher.publish(), publisher.wait()),
          "[Publisher::publish] can't write to");
    }
    users_[4] += 1.0;
    publisher.publish();
    publisher.wait();
    EXPECT_FALSE(publisher.report().is_base);
    EXPECT_EQ(publisher.report().rows, 2);
    EXPECT_TRUE(reader.refresh());
    expect_published(*reader.version());
    // Refused items change nothing.
    const at::Tensor before = items_.vectors.clone();
    items_.vectors[8] += 1.0;
    users_[2][2] = std::nan("");
    EXPECT_VALUE_ERROR(publisher.publish(), "items.users gave NaN or infinity");
    users_[2][2] = background ? 0.25 : 0.5;
    publisher.publish();
    publisher.wait();
    EXPECT_EQ(publisher.report().rows, 2);
    reader.refresh();
    expect_published(*reader.version());
  }
}

TEST_F(RecommendPublisherTest, InTheBackgroundAVersionHasTheVectorsOfItsCall) {
  PublishOptions options = options_of(given());
  options.background = true;
  Publisher publisher(model_, path_, options);
  for (int round = 0; round < 4; ++round) {
    const at::Tensor items = in_order(items_.vectors).clone();
    const at::Tensor users = users_.clone();
    publisher.publish();
    items_.vectors.add_(1.0);
    users_[round].mul_(3.0);
    publisher.wait();
    EXPECT_EQ(publisher.report().is_base, round == 0);
    const Reader reader(path_, {.follow = false});
    EXPECT_TENSOR_EQ(rows_of(*reader.version(), kItemVectors), items);
    EXPECT_TENSOR_EQ(rows_of(*reader.version(), kUserVectors), users);
  }
}

TEST_F(RecommendPublisherTest, OtherIdsAndSizesMakeABase) {
  Publisher publisher(model_, path_, options_of(given()));
  publisher.publish();
  Reader reader(path_, {.follow = false});
  const auto expect_base = [&] {
    publisher.publish();
    EXPECT_TRUE(publisher.report().is_base);
    EXPECT_TRUE(reader.refresh());
    expect_published(*reader.version());
    publisher.publish();
    EXPECT_FALSE(publisher.report().is_base);
  };
  items_.ids[3] = 1'000'000;
  expect_base();
  EXPECT_EQ(integers_in(*reader.version(), kItemIds).back(), 1'000'000);
  // The same number of rows in another order of ids.
  items_.ids = items_.ids.flip(0);
  publisher.publish();
  EXPECT_FALSE(publisher.report().is_base);
  items_.vectors = at::randn({kFilms + 1, kDim});
  items_.ids = at::arange(kFilms + 1, at::kLong);
  items_.popularity = at::ones({kFilms + 1});
  expect_base();
  users_ = at::randn({kUsers + 9, kDim});
  expect_base();
  items_.popularity = at::Tensor();
  expect_base();
  EXPECT_FALSE(has_table(*reader.version(), kPopularity));
  items_.vectors = at::randn({kFilms + 1, 7});
  users_ = at::randn({kUsers + 9, 7});
  expect_base();
}

TEST_F(RecommendPublisherTest, ManyChangedRowsMakeABase) {
  PublishOptions options = options_of(given());
  options.full_share = 0.5;
  Publisher publisher(model_, path_, options);
  publisher.publish();
  users_[1] += 1.0;
  publisher.publish();
  EXPECT_FALSE(publisher.report().is_base);
  items_.vectors += 1.0;
  users_ += 1.0;
  publisher.publish();
  EXPECT_TRUE(publisher.report().is_base);
}

TEST_F(RecommendPublisherTest, VectorsOfFewBitsComeWithExactOnes) {
  for (const bool exact : {true, false}) {
    for (const auto& [format, name, codes] :
         {std::tuple{RowFormat::kInt8, "int8", 255.0},
          std::tuple{RowFormat::kInt4, "int4", 15.0}}) {
      PublishedItems items = given();
      items.format = format;
      items.exact_scores = exact;
      const TemporaryFolder folder;
      Publisher publisher(model_, folder / "published", options_of(items));
      publisher.publish();
      Reader reader(folder / "published", {.follow = false});
      items_.vectors[2] += 1.0;
      publisher.publish();
      EXPECT_EQ(publisher.report().rows, exact ? 2 : 1);
      reader.refresh();
      const Version& version = *reader.version();
      EXPECT_EQ(version.tables()[version.table(kItemVectors)].format, name);
      ASSERT_EQ(has_table(version, kExactVectors), exact);
      const at::Tensor vectors = in_order(items_.vectors);
      if (exact) {
        EXPECT_TENSOR_EQ(rows_of(version, kExactVectors), vectors);
      }
      const at::Tensor error =
          (rows_of(version, kItemVectors) - vectors).abs().amax(1);
      const at::Tensor step = (vectors.amax(1) - vectors.amin(1)) / codes;
      EXPECT_TRUE(error.le(0.5 * step + 1e-6).all().item<bool>());
    }
  }
}

// The tables of the model follow each version, also while the vectors stay.
TEST_F(RecommendPublisherTest, EveryNthVersionHasNewVectors) {
  constexpr int64_t kEvery = 3;
  std::vector<int64_t> calls;
  int64_t number = 0;
  PublishedItems items = given();
  items.items = [&] {
    calls.push_back(number);
    return items_;
  };
  items.users = [&] {
    calls.push_back(-number);
    return users_;
  };
  items.every = kEvery;
  Publisher publisher(model_, path_, options_of(items));
  at::Tensor vectors;
  at::Tensor users;
  const at::Tensor all_users = at::arange(kUsers, at::kLong);
  for (number = 1; number <= 2 * kEvery + 1; ++number) {
    items_.vectors[number] *= 2.0;
    users_[number] += 1.0;
    const bool is_new = number % kEvery == 1;
    if (is_new) {
      vectors = in_order(items_.vectors).clone();
      users = users_.clone();
    }
    model_->train();
    model_->forward({{"user", at::tensor({number}, at::kLong)}})
        .sum()
        .backward();
    EXPECT_EQ(publisher.publish(), number);
    EXPECT_EQ(publisher.report().is_base, number == 1);
    if (number > 1) {  // one row of the model
      EXPECT_EQ(publisher.report().rows, is_new ? 1 + 2 * kEvery : 1);
    }

    const auto version = Reader(path_, {.follow = false}).version();
    EXPECT_TENSOR_EQ(rows_of(*version, kItemVectors), vectors);
    EXPECT_TENSOR_EQ(rows_of(*version, kUserVectors), users);
    const at::NoGradGuard no_grad;
    model_->eval();
    EXPECT_TENSOR_EQ(
        rows_of(*version, "users"),
        model_->embedding->forward_partial({{"user", all_users}})["user"]);
    const RecommendRequest request{.user = number, .k = kFilms};
    const RecommendResult found = version->recommend({&request, 1}).front();
    const auto [scores, rows] =
        vectors.to(at::kDouble).mv(users[number].to(at::kDouble)).topk(kFilms);
    EXPECT_TENSOR_EQ(at::tensor(found.ids, at::kLong), rows * 3);
    test::expect_close(at::tensor(found.scores), scores);
  }
  EXPECT_EQ(calls, (std::vector<int64_t>{1, -1, 4, -4, 7, -7}));
}

TEST_F(RecommendPublisherTest, ABaseBetweenHasTheKeptVectors) {
  for (const bool background : {false, true}) {
    const TemporaryFolder folder;
    int64_t asked = 0;
    PublishedItems items = given();
    items.every = 4;
    items.seen = [&](const at::Tensor& ids) {
      ++asked;
      return seen_by(ids);
    };
    PublishOptions options = options_of(items);
    options.full_every = 2;
    options.background = background;
    Publisher publisher(model_, folder / "published", options);
    const at::Tensor vectors = in_order(items_.vectors).clone();
    const at::Tensor users = users_.clone();
    const auto first_id = items_.ids.min().item<int64_t>();
    for (int64_t number = 1; number <= 4; ++number) {
      publisher.publish({.base = number == 4});
      publisher.wait();
      EXPECT_EQ(publisher.report().is_base, number != 2);
      items_.vectors += 1.0;
      items_.ids += 3;
      users_ += 1.0;
      const Reader reader(folder / "published", {.follow = false});
      EXPECT_TENSOR_EQ(rows_of(*reader.version(), kItemVectors), vectors);
      EXPECT_TENSOR_EQ(rows_of(*reader.version(), kUserVectors), users);
      EXPECT_EQ(integers_in(*reader.version(), kItemIds).front(), first_id);
    }
    EXPECT_EQ(asked, 3);
    publisher.publish();
    publisher.wait();
    EXPECT_TRUE(publisher.report().is_base);  // because of the ids
    const Reader reader(folder / "published", {.follow = false});
    expect_published(*reader.version());
    EXPECT_EQ(
        integers_in(*reader.version(), kItemIds).front(), first_id + 4 * 3);
  }
}

TEST_F(RecommendPublisherTest, VersionsThatFailAreNotCounted) {
  for (const bool background : {false, true}) {
    const TemporaryFolder folder;
    int64_t calls = 0;
    bool is_refused = false;
    PublishedItems items = given();
    items.every = 2;
    items.items = [&] {
      ++calls;
      TESSERA_CHECK_VALUE(!is_refused, "no vectors");
      return items_;
    };
    PublishOptions options = options_of(items);
    options.background = background;
    Publisher publisher(model_, folder / "published", options);
    const auto publish = [&] {
      publisher.publish();
      publisher.wait();
    };
    const auto fail = [&] {
      const SmallFiles full(100);
      EXPECT_RAISES(
          c10::Error, publish(), "[Publisher::publish] can't write to");
    };
    fail();
    EXPECT_EQ(calls, 1);
    publish();
    EXPECT_EQ(calls, 2);
    Reader reader(folder / "published", {.follow = false});
    const at::Tensor kept = in_order(items_.vectors).clone();
    items_.vectors[3] += 1.0;
    fail();
    publish();
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(publisher.report().rows, 0);
    reader.refresh();
    EXPECT_TENSOR_EQ(rows_of(*reader.version(), kItemVectors), kept);
    is_refused = true;
    EXPECT_VALUE_ERROR(publish(), "no vectors");
    is_refused = false;
    fail();
    EXPECT_EQ(calls, 4);
    publish();
    EXPECT_EQ(calls, 5);
    EXPECT_EQ(publisher.report().rows, 1);
    reader.refresh();
    expect_published(*reader.version());
    publish();
    EXPECT_EQ(calls, 5);
  }
}

// The best items are those of the products of the last version's vectors.
TEST_F(RecommendPublisherTest, AReaderRecommendsFromTheNewestVectors) {
  for (const RowFormat format : {RowFormat::kFloat32, RowFormat::kInt8}) {
    PublishedItems items = given();
    items.format = format;
    const TemporaryFolder folder;
    Publisher publisher(model_, folder / "published", options_of(items));
    publisher.publish();
    Reader reader(folder / "published", {.follow = false});
    for (int round = 0; round < 3; ++round) {
      std::vector<RecommendRequest> requests;
      for (int64_t user = 0; user < kUsers; ++user) {
        requests.push_back({.user = user, .k = 5});
      }
      const auto results = reader.version()->recommend(requests);
      const at::Tensor products =
          users_.to(at::kDouble).matmul(items_.vectors.to(at::kDouble).t());
      const auto [scores, rows] = products.topk(5, 1);
      for (int64_t user = 0; user < kUsers; ++user) {
        const RecommendResult& result = results[user];
        EXPECT_TENSOR_EQ(
            at::tensor(result.ids, at::kLong),
            items_.ids.index_select(0, rows[user]));
        test::expect_close(at::tensor(result.scores), scores[user]);
        EXPECT_EQ(result.passed, kFilms);
      }
      items_.vectors[round] *= 2.0;
      users_[round] += 1.0;
      publisher.publish();
      EXPECT_FALSE(publisher.report().is_base);
      EXPECT_TRUE(reader.refresh());
    }
  }
}

// Without a table of users, an id says nothing about a user. The vectors of the items are
// nearly parallel, so the equations need the precision of doubles.
TEST_F(RecommendPublisherTest, ItemsGiveTheVectorOfAUser) {
  items_.vectors = at::randn({kFilms, 1}).matmul(at::randn({1, kDim})) * 100 +
      at::randn({kFilms, kDim}) * 1e-3;
  PublishedItems items = given();
  items.users = nullptr;
  items.fold_in = PublishedFoldIn{
      .regularization = 0.01,
      .regularization_per_item = 0.001,
      .catalogue_confidence = 0.5};
  Publisher publisher(model_, path_, options_of(items));
  publisher.publish();
  const Reader reader(path_, {.follow = false});
  // An item twice, and ids that are no items.
  const std::vector<int64_t> history{30, 9, 30, 1, 1 << 20};
  const at::Tensor rows = at::tensor({10, 3, 10}, at::kLong);

  const at::Tensor vectors = in_order(items_.vectors).to(at::kDouble);
  const at::Tensor own = vectors.index_select(0, rows);
  at::Tensor is_other = at::ones({kFilms}, at::kBool);
  is_other.index_fill_(0, rows, false);
  const at::Tensor others =
      vectors.index_select(0, is_other.nonzero().squeeze(1));
  const at::Tensor matrix = own.t().matmul(own) +
      0.5 * others.t().matmul(others) +
      (0.01 + 3 * 0.001) * at::eye(kDim, at::kDouble);
  const at::Tensor scores =
      vectors.matmul(at::linalg_solve(matrix, own.sum(0)));
  const auto [best, best_rows] = scores.topk(kFilms);
  for (const std::optional<int64_t> user :
       {std::optional<int64_t>(), std::optional<int64_t>(7)}) {
    const RecommendRequest request{.user = user, .items = history, .k = kFilms};
    const RecommendResult found =
        reader.version()->recommend({&request, 1}).front();
    EXPECT_EQ(found.from, RecommendedFrom::kFoldIn);
    EXPECT_TRUE(at::allclose(
        at::tensor(found.scores).to(at::kDouble), best, 1e-4, 1e-6));
    EXPECT_TENSOR_EQ(at::tensor(found.ids, at::kLong), best_rows * 3);
  }
  const RecommendRequest nobody{.user = 7, .items = std::vector<int64_t>{1}};
  EXPECT_EQ(
      reader.version()->recommend({&nobody, 1}).front().from,
      RecommendedFrom::kPopularity);
}

TEST_F(RecommendPublisherTest, CosinesHaveVectorsOfLengthOne) {
  PublishedItems items = given();
  items.score = ItemScore::kCosine;
  Publisher publisher(model_, path_, options_of(items));
  publisher.publish();
  const Reader reader(path_, {.follow = false});
  const Version& version = *reader.version();
  EXPECT_TRUE(items_file(version).is_cosine);
  for (const auto& [table, given] :
       {std::pair{kItemVectors, in_order(items_.vectors)},
        std::pair{kUserVectors, users_}}) {
    const at::Tensor doubles = given.to(at::kDouble);
    test::expect_close(
        rows_of(version, table), doubles / doubles.norm(2, 1, true));
  }
}

TEST_F(RecommendPublisherTest, ReservedIdsAreNoItemsAndNoUsers) {
  const auto vocabulary = [](int64_t size) {
    Texts values;
    for (int64_t i = 0; i < size; ++i) {
      values.push_back("v" + std::to_string(i));
    }
    return data::transforms::Vocabulary{.values = values};
  };
  const std::string pipeline = folder_ / "pipeline.json";
  save_pipeline(
      data::FeaturePipeline(
          {{.name = "user", .columns = {"user"}, .transform = vocabulary(48)},
           {.name = "film",
            .columns = {"title"},
            .transform = vocabulary(38)}}),
      pipeline);
  items_.ids = at::Tensor();
  PublishedItems items = given();
  items.seen = [](const at::Tensor& users) {
    EXPECT_EQ(users.min().item<int64_t>(), 2);
    return seen_by(users);
  };
  items.attributes.add("title", {.values = Texts{"v7", "no film"}});
  items.attributes.add("year", {.values = at::tensor({1985, 1990}, at::kLong)});
  PublishOptions options = options_of(items);
  options.pipeline = pipeline;
  Publisher publisher(model_, path_, options);
  publisher.publish();
  const Reader reader(path_, {.follow = false});
  const Version& version = *reader.version();
  EXPECT_EQ(items_file(version).num_reserved_users, 2);
  EXPECT_EQ(items_file(version).num_reserved_items, 2);
  EXPECT_EQ(integers_in(version, kItemIds).front(), 2);
  EXPECT_TENSOR_EQ(rows_of(version, kItemVectors), items_.vectors.slice(0, 2));
  EXPECT_TENSOR_EQ(rows_of(version, kUserVectors), users_);
  const std::vector<int64_t> seen = integers_in(version, kSeenItems);
  EXPECT_EQ(
      std::vector<int64_t>(seen.begin(), seen.begin() + 5),
      (std::vector<int64_t>{kUsers, 0, 0, 0, 2}));
  const ItemAttributes attributes(
      version.impl().file(kItemAttributes), "[test]");
  const AttributeColumn& year = attributes.at("year", "[test]");
  EXPECT_EQ(year.values[attributes.row_of(9)], 1985);
  EXPECT_EQ(attributes.row_of(1), attributes.num_rows() - 1);
}

TEST_F(RecommendPublisherTest, AQueryIsCheckedAndPublished) {
  const auto example_of = [](int64_t rows) {
    return ExportExample{.features = {{"user", at::arange(rows, at::kLong)}}};
  };
  PublishedItems items = given();
  items.users = nullptr;
  items.query = folder_ / "query";
  export_dense_pt2(model_, items.query, example_of(1));
  {
    Publisher publisher(model_, path_, options_of(items));
    publisher.publish();
    const Reader reader(path_, {.follow = false});
    EXPECT_EQ(
        reader.version()->impl().file(kQueryProgram),
        test::read_text(items.query));
    EXPECT_FALSE(has_table(*reader.version(), kUserVectors));
    items_.vectors = at::randn({kFilms, 7});
    EXPECT_VALUE_ERROR(
        publisher.publish(),
        "the first output of items.query must have 7 numbers per user");
  }
  Towers other;
  other->replace_module("tower", torch::nn::Linear(kDim, 2));
  EXPECT_VALUE_ERROR(
      Publisher(other, path_, options_of(items)), "the weight 'tower.weight'");
  PublishOptions options = options_of(items);
  options.program = items.query;
  EXPECT_VALUE_ERROR(
      Publisher(model_, path_, options),
      "options.program must take one user and 2 or more candidates");
  export_dense_pt2(model_, items.query, example_of(2));
  EXPECT_VALUE_ERROR(
      Publisher(model_, path_, options_of(items)),
      "items.query must take one user alone");
  items.every = 2;
  EXPECT_VALUE_ERROR(
      Publisher(model_, path_, options_of(items)),
      "items.every must be 1 with items.query, but is 2. The program of items.query");
  items.query = folder_ / "none";
  EXPECT_TORCH_ERROR(
      Publisher(model_, path_, options_of(items)), "can't be read");
}

TEST_F(RecommendPublisherTest, MistakesAreNamed) {
  using Change = std::function<void(PublishedItems&)>;
  const auto fold_in = [](PublishedFoldIn fold_in) {
    return [=](PublishedItems& items) { items.fold_in = fold_in; };
  };
  test::expect_refusals<Change>(
      {{[](PublishedItems& items) { items.items = nullptr; },
        "items.items is empty"},
       {[](PublishedItems& items) { items.users = nullptr; },
        "expected items.users, items.query or items.fold_in, but all are empty"},
       {[](PublishedItems& items) {
          items.users = nullptr;
          items.fold_in = PublishedFoldIn{};
          items.seen = seen_by;
        },
        "items.seen needs items.users"},
       {[](PublishedItems& items) { items.score = static_cast<ItemScore>(5); },
        "items.score must be an enumerator of ItemScore, and items.format one of "
        "RowFormat but kTable"},
       {[](PublishedItems& items) { items.format = RowFormat::kTable; },
        "items.format one of RowFormat but kTable"},
       {[](PublishedItems& items) { items.format = static_cast<RowFormat>(9); },
        "items.format one of RowFormat"},
       {[](PublishedItems& items) { items.num_candidates = -1; },
        "items.num_candidates must be >= 0"},
       {[](PublishedItems& items) { items.num_candidates = 5; },
        "but is 5 without a program"},
       {[](PublishedItems& items) { items.every = 0; },
        "items.every must be >= 1, but is 0. Set it to 1"},
       {fold_in({.regularization = 0.0}),
        "items.fold_in must have a regularization > 0 and other numbers >= 0, "
        "but has 0, 0 and 0"},
       {fold_in({.regularization_per_item = -1.0}), "but has 1, -1 and 0"},
       {fold_in({.catalogue_confidence = std::nan("")}),
        "but has 1, 0 and nan"},
       {[](PublishedItems& items) {
          items.attributes.add("year", {.values = at::arange(3, at::kLong)});
        },
        "attributes must have the column 'film'"}},
      [&](const Change& change) {
        PublishedItems items = given();
        change(items);
        Publisher(model_, path_, options_of(items));
      });
  struct Results {
    RecommenderItems items = {};
    at::Tensor users = {};
    RaggedFeature seen = {};
  };
  using ChangeResults = std::function<void(Results&)>;
  test::expect_refusals<ChangeResults>(
      {{[](Results& results) { results.items = {}; },
        "items.vectors must give floats"},
       {[](Results& results) { results.items.vectors[1][1] = INFINITY; },
        "items.vectors gave NaN or infinity"},
       {[](Results& results) { results.items.vectors.fill_(1e30); },
        "the products of items gave NaN or infinity"},
       {[](Results& results) { results.items.ids[1] = -4; },
        "items.ids must be >= 0 and different, but has -4"},
       {[](Results& results) { results.items.ids = at::arange(3); },
        "items.ids must have one id per vector"},
       {[](Results& results) { results.items.ids += 100; },
        "attributes have no row about an item"},
       {[](Results& results) { results.users = at::Tensor(); },
        "items.users must give floats [1 or more, 4]"},
       {[](Results& results) {
          results.users = at::rand({3, 5});
        },
        "items.users must give floats [1 or more, 4]"},
       {[](Results& results) { results.seen = seen_by(at::arange(3)); },
        "items.seen must have 51 row_splits"},
       {[](Results& results) { results.seen = {}; },
        "items.seen must be int32"}},
      [&](const ChangeResults& change) {
        Results results{
            .items =
                {.vectors = items_.vectors.clone(), .ids = at::arange(kFilms)},
            .users = users_,
            .seen = seen_by(at::arange(kUsers))};
        change(results);
        PublishedItems items = given();
        items.items = [&] { return results.items; };
        items.users = [&] { return results.users; };
        items.seen = [&](const at::Tensor&) { return results.seen; };
        // snippet: PublishedFoldIn
        items.fold_in = PublishedFoldIn{.catalogue_confidence = 1.0};
        // end snippet
        items.attributes.add("film", {.values = at::arange(3, at::kLong)});
        Publisher(model_, path_, options_of(items)).publish();
      });
  struct ClashImpl : torch::nn::Module {
    ClashImpl() {
      register_module(
          "embedding",
          TPUEmbedding(TPUEmbeddingOptions{
              .features = {
                  {"a",
                   FeatureConfig{
                       .table = make_table(
                           {.name = kUserVectors,
                            .vocabulary_size = 9,
                            .dim = 2})}}}}));
    }
  };
  EXPECT_VALUE_ERROR(
      Publisher(std::make_shared<ClashImpl>(), path_, options_of(given())),
      "the table 'recommend/users' has a name that begins with 'recommend/'");
}

// The code of the docstring.
TEST_F(RecommendPublisherTest, TheCodeOfTheDocsRuns) {
  const std::string directory = path_;
  Towers model = model_;
  const auto user_ids = torch::arange(kUsers);
  data::Columns films;
  films.add("film", {.values = torch::arange(3)});
  films.add("genre", {.values = Texts{"drama", "crime", "drama"}});
  // snippet: PublishedItems
  Publisher publisher(
      model,
      directory,
      {.items = PublishedItems{
           .items = [&] { return RecommenderItems{.vectors = model->films()}; },
           .users =
               [&] {
                 return model->forward({{"user", user_ids}});
               },
           .item = "film",
           .fold_in = PublishedFoldIn{.regularization = 1.0},
           .attributes = films,
           .format = RowFormat::kInt8}});
  publisher.publish();
  // end snippet
  EXPECT_TRUE(publisher.report().is_base);
  const auto version = Reader(directory).version();
  // snippet: RecommendRequest
  const RecommendRequest request{.user = 7, .k = 2, .where = "genre = 'drama'"};
  const RecommendResult found = version->recommend({&request, 1}).front();
  for (const int64_t film : found.ids) {
    std::cout << film << "\n";  // best first
  }
  // end snippet
  EXPECT_EQ(
      std::set(found.ids.begin(), found.ids.end()), std::set<int64_t>({0, 2}));
}

}  // namespace tessera::serving::recommend_test
