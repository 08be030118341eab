// SPDX-License-Identifier: Apache-2.0
// What a Publisher writes, and that a Reader gives what the layer gives.
#include <tessera/layers/combined.h>
#include <tessera/serving/publish_callback.h>
#include <tessera/serving/publisher.h>

#include "packages/serving/src/format/version_file.h"
#include "packages/serving/tests/published_model.h"
#include "tests/optim/all_specs.h"
#include "tests/small_files.h"

namespace tessera::serving::publisher_test {

const ReaderOptions kByHand{.follow = false};

struct PublisherTest : ::testing::Test {
  const TemporaryFolder folder;
  const std::string path = folder / "published";
  const std::shared_ptr<PublishedModel> model =
      std::make_shared<PublishedModel>();
};

void train(PublishedModel& model, uint64_t seed, int steps = 1) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < steps; ++i) {
    model.learn(model.random_batch(random));
  }
}

// Whatever is between the versions, each gives the bits of the layer.
TEST_F(PublisherTest, EachVersionLooksUpTheBitsOfTheLayer) {
  for (const at::ScalarType dtype :
       {at::kFloat, at::kBFloat16, at::kHalf, at::kChar}) {
    SCOPED_TRACE(c10::toString(dtype));
    const auto model =
        std::make_shared<PublishedModel>(PublishedModelOptions{.dtype = dtype});
    const TemporaryFolder folder;
    Publisher publisher(model, folder / "published", {.full_share = 10.0});
    EXPECT_EQ(publisher.publish(), 1);
    EXPECT_TRUE(publisher.report().is_base);
    Reader reader(folder / "published", kByHand);
    expect_same_lookups(*reader.version(), *model, 1);
    for (int64_t version = 2; version < 8; ++version) {
      train(*model, static_cast<uint64_t>(version), 3);
      EXPECT_EQ(publisher.publish({.step = version}), version);
      EXPECT_TRUE(reader.refresh());
      EXPECT_EQ(reader.version()->number(), version);
      EXPECT_EQ(reader.version()->step(), version);
      expect_same_lookups(*reader.version(), *model, 2);
    }
    EXPECT_EQ(reader.version()->base(), 1);
    EXPECT_FALSE(reader.refresh());
  }
}

TEST_F(PublisherTest, AVersionHasOnlyTheTouchedRows) {
  Publisher publisher(model, path);
  publisher.publish();
  publisher.publish();
  EXPECT_EQ(publisher.report().rows, 0);
  EXPECT_FALSE(publisher.report().is_base);

  std::mt19937_64 random(3);
  const auto batch = model->random_batch(random);
  std::set<int64_t> movies, words, users;
  for (const char* feature : {"movie", "watched", "session"}) {
    const PublishedBatch& one = batch.at(feature);
    for (size_t i = 0; i < one.ids.size(); ++i) {
      if (one.weights.empty() || one.weights[i] > 0.0F) {
        movies.insert(one.ids[i]);
      }
    }
  }
  const PublishedBatch& word = batch.at("word");
  for (size_t i = 0; i < word.ids.size(); ++i) {
    if (word.weights[i] > 0.0F && word.ids[i] >= 0 && word.ids[i] < 500) {
      words.insert(word.ids[i]);
    }
  }
  for (const char* feature : {"user", "friends"}) {
    for (const int64_t key : batch.at(feature).ids) {
      if (key != -1) {
        users.insert(key);
      }
    }
  }
  model->learn(batch);
  publisher.publish();
  // A sequence of more than 3 ids has ids that count for nothing.
  const int64_t expected =
      static_cast<int64_t>(movies.size() + words.size() + users.size());
  EXPECT_LE(publisher.report().rows, expected);
  EXPECT_GE(publisher.report().rows, expected - 60);
  EXPECT_FALSE(publisher.report().is_base);
}

TEST_F(PublisherTest, KeysComeAndGo) {
  const auto model = std::make_shared<PublishedModel>(
      PublishedModelOptions{.user_capacity = 256});
  Publisher publisher(model, path, {.full_every = 1000, .full_share = 10.0});
  publisher.publish();
  Reader reader(path, kByHand);
  int64_t removed = 0;
  int64_t patches = 0;
  for (uint64_t round = 0; round < 20; ++round) {
    train(*model, round);
    if (round == 10) {
      EXPECT_GT(model->embedding->evict("users", 2), 0);
    }
    publisher.publish();
    removed += publisher.report().removed_keys;
    patches += publisher.report().is_base ? 0 : 1;
    reader.refresh();
    expect_same_lookups(*reader.version(), *model, round);
    const Version& version = *reader.version();
    EXPECT_LE(version.tables()[version.table("users")].rows, 256);
  }
  EXPECT_GT(removed, 100);  // 256 rows have no room for 3,000 users
  EXPECT_GT(patches, 5);
}

TEST_F(PublisherTest, FormatsOfFewBitsAreWithinTheirBound) {
  for (const auto& [format, codes] :
       {std::pair{RowFormat::kInt8, 255.0},
        std::pair{RowFormat::kInt4, 15.0}}) {
    const auto model = std::make_shared<PublishedModel>();
    train(*model, 1, 3);
    const TemporaryFolder folder;
    Publisher publisher(model, folder / "published", {.format = format});
    publisher.publish();
    Reader reader(folder / "published", kByHand);
    for (uint64_t round = 0; round < 3; ++round) {
      const at::Tensor rows =
          model->embedding->read_rows("movies", 0, 3000).contiguous();
      const at::Tensor range = rows.amax(1) - rows.amin(1);
      std::vector<int64_t> ids(3000);
      std::iota(ids.begin(), ids.end(), 0);
      const std::vector<float> got =
          look_up(*reader.version(), "movie", {.ids = ids});
      for (int64_t i = 0; i < rows.numel(); ++i) {
        const double step = range[i / 16].item<double>() / codes;
        ASSERT_NEAR(got[i], rows.const_data_ptr<float>()[i], 0.5 * step + 1e-6);
      }
      train(*model, round);
      publisher.publish();
      reader.refresh();
    }
  }
}

TEST_F(PublisherTest, ATableMayHaveAFormatOfItsOwn) {
  Publisher publisher(model, path, {.formats = {{"words", RowFormat::kInt8}}});
  publisher.publish();
  const Reader reader(path, kByHand);
  const Version& version = *reader.version();
  EXPECT_EQ(version.tables()[version.table("words")].format, "int8");
  EXPECT_EQ(version.tables()[version.table("movies")].format, "float32");
  EXPECT_VALUE_ERROR(
      Publisher(
          model, folder / "other", {.formats = {{"word", RowFormat::kInt8}}}),
      "`formats` has the table 'word', which the model does not have. Known: movies, users, words");
}

// The updates of all optimizers mark the rows that they write.
TEST_F(PublisherTest, FollowsEveryOptimizer) {
  for (const auto& [name, spec] : spec_variants()) {
    SCOPED_TRACE(name);
    const auto model = std::make_shared<PublishedModel>(
        PublishedModelOptions{.user_capacity = 512, .optimizer = spec});
    const TemporaryFolder folder;
    Publisher publisher(model, folder / "published", {.full_share = 10.0});
    publisher.publish();
    Reader reader(folder / "published", kByHand);
    for (uint64_t round = 0; round < 4; ++round) {
      train(*model, round);
      publisher.publish();
      EXPECT_FALSE(publisher.report().is_base);
      reader.refresh();
      expect_same_lookups(*reader.version(), *model, round);
    }
  }
}

TEST_F(PublisherTest, FollowsGradientsThatWaitForAStep) {
  const auto model = std::make_shared<PublishedModel>(
      PublishedModelOptions{.apply = Apply::kOnStep});
  Combined optimizer(
      torch::optim::SGD(model->parameters(), 0.1), {model->embedding});
  Publisher publisher(model, path);
  publisher.publish();
  Reader reader(path, kByHand);
  for (uint64_t round = 0; round < 3; ++round) {
    train(*model, round);
    publisher.publish();
    EXPECT_EQ(publisher.report().rows, 0);
    optimizer.step();
    publisher.publish();
    EXPECT_GT(publisher.report().rows, 0);
    reader.refresh();
    expect_same_lookups(*reader.version(), *model, round);
  }
}

TEST_F(PublisherTest, StrategiesWithoutMarksCompareTheirRows) {
  const auto model = std::make_shared<PublishedModel>(
      PublishedModelOptions{.strategy = Strategy::host(), .has_keys = false});
  torch::optim::SGD optimizer(model->embedding->parameters(), 0.1);
  Publisher publisher(model, path);
  publisher.publish();
  Reader reader(path, kByHand);
  for (uint64_t round = 1; round < 4; ++round) {
    optimizer.zero_grad();
    train(*model, round);
    optimizer.step();
    publisher.publish();
    EXPECT_FALSE(publisher.report().is_base);
    EXPECT_GT(publisher.report().rows, 0);
    EXPECT_LT(publisher.report().rows, 800);
    reader.refresh();
    std::mt19937_64 random(round);
    const auto batch = model->random_batch(random);
    for (const auto& [name, expected] : model->evaluate(batch)) {
      // LibTorch's operators add in another order.
      test::expect_close(
          at::tensor(look_up(*reader.version(), name, batch.at(name))),
          at::tensor(expected));
    }
  }
}

TEST_F(PublisherTest, ReplacedTablesMakeABase) {
  Publisher publisher(model, path);
  publisher.publish();
  Reader reader(path, kByHand);
  const auto expect_base = [&] {
    publisher.publish();
    EXPECT_TRUE(publisher.report().is_base);
    reader.refresh();
    expect_same_lookups(*reader.version(), *model, 1);
    train(*model, 9);
    publisher.publish();
    EXPECT_FALSE(publisher.report().is_base);
  };
  model->embedding->update_embedding_table("words", at::zeros({500, 10}));
  expect_base();
  // By LibTorch's operators.
  {
    const at::NoGradGuard no_grad;
    const EmbeddingTables tables = model->embedding->embedding_tables();
    tables["movies"].mul_(2.0);
  }
  expect_base();
  model->embedding->save_checkpoint(folder / "checkpoint");
  train(*model, 10);
  model->embedding->load_checkpoint(folder / "checkpoint");
  expect_base();
}

// Checkpoints notice them, see CheckpointTest.AnIncrementHasWritesFromOutside.
TEST_F(PublisherTest, OnlyComparedRowsShowWritesByARawPointer) {
  for (const Strategy& strategy : {Strategy::host(), Strategy::fused()}) {
    const auto written = std::make_shared<PublishedModel>(
        PublishedModelOptions{.strategy = strategy, .has_keys = false});
    Publisher publisher(
        written, folder / (strategy.is_fused() ? "fused" : "host"));
    publisher.publish();
    at::Tensor words = written->embedding->embedding_tables()["words"];
    words.mutable_data_ptr<float>()[words.size(1)] = 7.0F;
    publisher.publish();
    EXPECT_FALSE(publisher.report().is_base);
    EXPECT_EQ(publisher.report().rows, strategy.is_fused() ? 0 : 1);
  }
}

TEST_F(PublisherTest, ManyChangedRowsMakeABase) {
  Publisher by_share(model, folder / "share", {.full_share = 0.05});
  by_share.publish();
  train(*model, 1, 10);
  by_share.publish();
  EXPECT_TRUE(by_share.report().is_base);
}

TEST_F(PublisherTest, EveryNthVersionIsABaseAndOldOnesGo) {
  Publisher publisher(
      model,
      path,
      {.full_every = 4, .full_share = 10.0, .keep_last = 2, .keep_seconds = 0});
  for (int64_t version = 1; version <= 20; ++version) {
    train(*model, static_cast<uint64_t>(version));
    publisher.publish();
    EXPECT_EQ(publisher.report().is_base, version % 4 == 1);
    int64_t folders = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      folders += entry.is_directory() ? 1 : 0;
    }
    EXPECT_LE(folders, 6);  // a chain of 4 and a new base
    const Reader reader(path, kByHand);
    EXPECT_EQ(reader.version()->number(), version);
    expect_same_lookups(*reader.version(), *model, 1);
  }
}

TEST_F(PublisherTest, TheNextPublisherOfADirectoryContinuesIt) {
  {
    Publisher publisher(model, path);
    publisher.publish();
    EXPECT_TORCH_ERROR(
        Publisher(std::make_shared<PublishedModel>(), path),
        "Another Publisher writes to this directory");
    EXPECT_TORCH_ERROR(
        Publisher(model, folder / "other"),
        "another Publisher follows table 'movies'");
  }
  Reader reader(path, kByHand);
  Publisher publisher(model, path);
  EXPECT_EQ(publisher.publish(), 2);
  EXPECT_TRUE(publisher.report().is_base);
  EXPECT_TRUE(reader.refresh());
  expect_same_lookups(*reader.version(), *model, 1);
}

// Two publishers in one directory would show readers two trainings in turn.
TEST_F(PublisherTest, APublisherEndsWhenItHasLostItsLock) {
  for (const bool is_moved : {true, false}) {
    for (const bool background : {false, true}) {
      const TemporaryFolder folder;
      const std::string path = folder / "published";
      Publisher first(
          std::make_shared<PublishedModel>(),
          path,
          {.keep_last = 1, .keep_seconds = 0.0, .background = background});
      first.publish();
      first.wait();
      if (is_moved) {
        std::filesystem::rename(path, folder / "old");
      } else {
        std::filesystem::remove(path + "/.publisher_lock");
      }
      const std::string lost =
          "[Publisher::publish] '" + path + "/.publisher_lock' is no longer";
      EXPECT_TORCH_ERROR((first.publish(), first.wait()), lost);
      const auto model = std::make_shared<PublishedModel>();
      Publisher second(model, path);
      const int64_t version = second.publish();
      EXPECT_EQ(version, is_moved ? 1 : 2);
      EXPECT_TORCH_ERROR((first.publish(), first.wait()), lost);
      const Reader reader(path, kByHand);
      EXPECT_EQ(reader.version()->number(), version);
      expect_same_lookups(*reader.version(), *model, 1);
      EXPECT_EQ(second.publish(), version + 1);
    }
  }
}

// Whatever is missing of the versions that the next one would build on.
TEST_F(PublisherTest, ADirectoryEmptiedUnderAPublisherGetsABase) {
  for (const std::string missing :
       {"version_0000000001",
        "version_0000000002",
        "version_0000000001/data",
        "everything"}) {
    SCOPED_TRACE(missing);
    const auto model = std::make_shared<PublishedModel>();
    const TemporaryFolder folder;
    const std::string path = folder / "published";
    Publisher publisher(model, path);
    for (uint64_t round = 0; round < 3; ++round) {
      publisher.publish();
      EXPECT_EQ(publisher.report().is_base, round == 0);
      train(*model, round);
    }
    if (missing == "everything") {
      std::vector<std::filesystem::path> found;
      for (const auto& entry : std::filesystem::directory_iterator(path)) {
        if (entry.path().filename() != ".publisher_lock") {
          found.push_back(entry.path());
        }
      }
      for (const std::filesystem::path& each : found) {
        std::filesystem::remove_all(each);
      }
    } else {
      std::filesystem::remove_all(path + "/" + missing);
    }
    EXPECT_EQ(publisher.publish(), 4);
    EXPECT_TRUE(publisher.report().is_base);
    Reader reader(path, kByHand);
    expect_same_lookups(*reader.version(), *model, 1);
    train(*model, 5);
    publisher.publish();
    EXPECT_FALSE(publisher.report().is_base);
    EXPECT_TRUE(reader.refresh());
    expect_same_lookups(*reader.version(), *model, 1);
  }
}

// A full disk takes nothing away: the rows are in the next version.
TEST_F(PublisherTest, RowsOfAFailedVersionAreInTheNextOne) {
  for (const bool background : {false, true}) {
    const auto model = std::make_shared<PublishedModel>();
    const TemporaryFolder folder;
    Publisher publisher(
        model, folder / "published", {.background = background});
    publisher.publish();
    publisher.wait();
    Reader reader(folder / "published", kByHand);
    train(*model, 1);
    {
      const SmallFiles full(1000);
      EXPECT_RAISES(
          c10::Error,
          (publisher.publish(), publisher.wait()),
          "[Publisher::publish] can't write to");
    }
    EXPECT_FALSE(reader.refresh());
    train(*model, 2);
    publisher.publish();
    publisher.wait();
    EXPECT_FALSE(publisher.report().is_base);
    EXPECT_TRUE(reader.refresh());
    expect_same_lookups(*reader.version(), *model, 1);
  }
}

TEST_F(PublisherTest, InTheBackgroundAVersionIsTheModelAtItsCall) {
  Publisher publisher(model, path, {.background = true});
  for (uint64_t round = 0; round < 5; ++round) {
    train(*model, round);
    std::mt19937_64 random(round);
    const auto batch = model->random_batch(random);
    const auto expected = model->evaluate(batch);
    publisher.publish();
    train(*model, round + 100);  // changes the rows that are being written
    publisher.wait();
    const Reader reader(path, kByHand);
    for (const auto& [name, activation] : expected) {
      expect_same_bits(
          look_up(*reader.version(), name, batch.at(name)), activation);
    }
  }
}

TEST_F(PublisherTest, DenseWeightsStepAndMetricsArePublished) {
  Publisher publisher(model, path);
  publisher.publish(
      {.step = 12, .metrics = {{"loss", 0.5}, {"auc", std::nan("")}}});
  const Reader reader(path, kByHand);
  const Version& version = *reader.version();
  EXPECT_EQ(version.step(), 12);
  EXPECT_EQ(version.metrics(), (std::map<std::string, double>{{"loss", 0.5}}));
  ASSERT_EQ(version.dense().size(), 2U);
  const Version::DenseWeight& weight = version.dense()[0];
  EXPECT_EQ(weight.name, "head.weight");
  EXPECT_EQ(weight.dtype, "float32");
  EXPECT_EQ(weight.shape, (std::vector<int64_t>{1, 4}));
  EXPECT_EQ(
      std::memcmp(
          weight.bytes.data(), model->head->weight.const_data_ptr<float>(), 16),
      0);
}

// On this strategy, tables are parameters of the layer.
TEST_F(PublisherTest, TablesThatAnotherModuleSharesAreNoDenseWeights) {
  const auto model = std::make_shared<PublishedModel>(
      PublishedModelOptions{.strategy = Strategy::host(), .has_keys = false});
  const auto tables = model->embedding->parameters();
  ASSERT_FALSE(tables.empty());
  for (size_t i = 0; i < tables.size(); ++i) {
    model->head->register_parameter("tied_" + std::to_string(i), tables[i]);
  }
  Publisher(model, path).publish();
  const Reader reader(path, kByHand);
  Texts names;
  for (const Version::DenseWeight& weight : reader.version()->dense()) {
    names.emplace_back(weight.name);
  }
  EXPECT_EQ(names, listed("head.weight, head.bias"));
}

TEST_F(PublisherTest, DtypesOfDenseWeightsHaveTheirNamesAndSizes) {
  Texts names;
  for (const DenseDtype& known : kDenseDtypes) {
    names.emplace_back(known.name);
    const at::ScalarType dtype =
        c10::getStringToDtypeMap().at(std::string(known.name));
    EXPECT_EQ(c10::getDtypeNames(dtype).first, known.name);
    EXPECT_EQ(c10::elementSize(dtype), known.bytes) << known.name;
  }
  EXPECT_EQ(
      names,
      listed("float32, float64, float16, bfloat16, int64, int32, int16, int8, "
             "uint8, bool"));
}

TEST_F(PublisherTest, MistakesAreNamed) {
  EXPECT_VALUE_ERROR(
      Publisher(nullptr, path), "expected a model, but got nullptr");
  EXPECT_VALUE_ERROR(Publisher(model, ""), "expected a directory, but got ''");
  EXPECT_VALUE_ERROR(
      Publisher(std::make_shared<torch::nn::LinearImpl>(2, 2), path),
      "the model has no tables");
  EXPECT_VALUE_ERROR(
      Publisher(model, path, {.full_every = 0}), "full_every and keep_last");
  EXPECT_VALUE_ERROR(
      Publisher(model, path, {.full_share = 0.0}), "full_share must be > 0");
  EXPECT_VALUE_ERROR(
      Publisher(model, path, {.keep_seconds = std::nan("")}),
      "keep_seconds must be >= 0");
  EXPECT_VALUE_ERROR(
      Publisher(model, path, {.format = static_cast<RowFormat>(17)}),
      "format must be an enumerator");
  EXPECT_TORCH_ERROR(
      Publisher(model, path, {.pipeline = folder / "none.json"}),
      "the file can't be read");
  EXPECT_VALUE_ERROR(
      PublishCallback(nullptr, {.every_steps = 1}), "expected a Publisher");
  EXPECT_VALUE_ERROR(
      PublishCallback(std::make_shared<Publisher>(model, path), {}),
      "expected every_steps or every_seconds > 0");
  const at::Tensor words = at::zeros({500, 10});
  words[7][3] = std::nan("");
  model->embedding->update_embedding_table("words", words);
  Publisher publisher(model, path, {.format = RowFormat::kInt8});
  EXPECT_VALUE_ERROR(
      publisher.publish(),
      "table 'words': row 7 has a number that is not finite or too large");
}

}  // namespace tessera::serving::publisher_test
