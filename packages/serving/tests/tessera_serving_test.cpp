// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/tessera_serving.h>

#include <tessera/data/feature_pipeline.h>
#include <tessera/serving/publisher.h>

#include "packages/data/tests/column_builders.h"
#include "packages/serving/tests/published_model.h"

#include <fmt/format.h>

namespace tessera::serving::tessera_serving_test {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

data::FeaturePipeline films_pipeline() {
  const data::transforms::Vocabulary films{
      .values = Texts{"Heat", "Alien", "Fargo"}};
  return data::FeaturePipeline(
      {{.name = "movie", .columns = {"film"}, .transform = films},
       {.name = "watched", .columns = {"watched"}, .transform = films},
       {.name = "word",
        .columns = {"year"},
        .transform = data::transforms::Hash{.num_bins = 500}},
       {.name = "numbers",
        .columns = {"age", "price"},
        .transform =
            data::transforms::Normalize{.mean = 40.0, .variance = 100.0}}},
      {{"year", data::ColumnType::kInt64}});
}

// A model whose features have the ids of films_pipeline().
struct PublishedFilms {
  PublishedFilms() {
    save_pipeline(films_pipeline(), folder / "pipeline.json");
    publisher.emplace(
        model,
        directory(),
        PublishOptions{.pipeline = folder / "pipeline.json"});
  }
  std::string directory() const {
    return folder / "published";
  }
  void publish(int64_t step) {
    std::mt19937_64 random(static_cast<uint64_t>(step));
    model->learn(model->random_batch(random));
    publisher->publish(
        {.step = step, .metrics = {{"auc", 0.75}, {"loss", 0.5 / step}}});
  }

  std::shared_ptr<PublishedModel> model = std::make_shared<PublishedModel>();
  TemporaryFolder folder;
  std::optional<Publisher> publisher;
};

// The columns of three users, in C.
struct Users {
  std::vector<const char*> films{"Heat", nullptr, "Up"};
  std::vector<const char*> watched{"Fargo", "", "Alien"};
  std::vector<int64_t> row_splits{0, 0, 2, 3};
  std::vector<int64_t> years{1995, INT64_MIN, -7};
  std::vector<float> ages{50.0F, kNaN, 30.0F};
  std::vector<int64_t> prices{40, 45, 60};

  std::vector<tessera_column> columns() const {
    return {
        {.name = "film",
         .integers = nullptr,
         .floats = nullptr,
         .texts = films.data(),
         .num_values = 3,
         .row_splits = nullptr,
         .num_examples = 3},
        {.name = "watched",
         .integers = nullptr,
         .floats = nullptr,
         .texts = watched.data(),
         .num_values = 3,
         .row_splits = row_splits.data(),
         .num_examples = 3},
        numbers("year", years.data(), nullptr),
        numbers("age", nullptr, ages.data()),
        numbers("price", prices.data(), nullptr)};
  }
  static tessera_column numbers(
      const char* name,
      const int64_t* integers,
      const float* floats) {
    return {
        .name = name,
        .integers = integers,
        .floats = floats,
        .texts = nullptr,
        .num_values = 3,
        .row_splits = nullptr,
        .num_examples = 3};
  }
};

// What the trainer's pipeline gives for Users.
data::PipelineBatch trained_batch() {
  const Users users;
  return films_pipeline().apply(columns_of(
      {{"film", text({"Heat", "", "Up"})},
       {"watched", ragged(text({"Fargo", "", "Alien"}), users.row_splits)},
       {"year", integers(users.years)},
       {"age", numbers(users.ages)},
       {"price", integers(users.prices)}}));
}

// Opens the reader, the newest version and its pipeline, and releases them.
struct Opened {
  explicit Opened(const std::string& directory) {
    const tessera_reader_options options{
        .follow = 0, .poll_seconds = 0.0, .copy_to_memory = 0};
    EXPECT_EQ(tessera_reader_open(directory.c_str(), &options, &reader), 0);
    version = tessera_reader_version(reader);
    pipeline = tessera_version_pipeline(version);
    EXPECT_NE(pipeline, nullptr) << tessera_error();
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    tessera_reader_close(reader);
    tessera_version_release(version);
    tessera_pipeline_release(pipeline);
  }

  tessera_reader* reader = nullptr;
  tessera_version* version = nullptr;
  tessera_pipeline* pipeline = nullptr;
};

std::vector<int64_t> ids_of(const tessera_column& feature) {
  return {feature.integers, feature.integers + feature.num_values};
}

TEST(CInterfaceTest, NamesMistakesAndThrowsNothing) {
  PublishedFilms published;
  published.publish(1);
  const std::string path = published.directory();
  tessera_reader* reader = nullptr;
  EXPECT_EQ(tessera_reader_open(nullptr, nullptr, &reader), -1);
  EXPECT_STREQ(
      tessera_error(), "[tessera_serving] directory is NULL. Pass a pointer.");
  EXPECT_EQ(tessera_reader_open(path.c_str(), nullptr, nullptr), -1);
  EXPECT_EQ(tessera_reader_open((path + "x").c_str(), nullptr, &reader), -1);
  EXPECT_EQ(reader, nullptr);
  EXPECT_EQ(tessera_reader_version(nullptr), nullptr);
  EXPECT_EQ(tessera_version_number(nullptr), -1);
  ASSERT_EQ(tessera_reader_open(path.c_str(), nullptr, &reader), 0);
  tessera_version* version = tessera_reader_version(reader);
  EXPECT_EQ(tessera_version_feature(version, nullptr), -1);
  EXPECT_EQ(tessera_version_feature(version, "film"), -1);
  const int64_t movie = tessera_version_feature(version, "movie");
  EXPECT_EQ(tessera_version_feature_dim(version, movie), 16);
  EXPECT_EQ(tessera_version_feature_dim(version, -1), -1);
  EXPECT_EQ(tessera_version_table_dim(version, 3), -1);
  const std::vector<int64_t> ids{1, 2};
  std::vector<float> out(32);
  const auto lookup = [&](int64_t feature, const int64_t* of, size_t size) {
    return tessera_version_lookup(
        version, feature, of, 2, nullptr, 2, nullptr, out.data(), size);
  };
  EXPECT_EQ(lookup(movie, ids.data(), 32), 32);
  EXPECT_EQ(lookup(movie, ids.data(), 31), -1);
  EXPECT_EQ(lookup(movie, nullptr, 32), -1);
  EXPECT_EQ(lookup(7, ids.data(), 32), -1);
  EXPECT_EQ(
      tessera_version_lookup(
          version, movie, ids.data(), 2, nullptr, 1, nullptr, out.data(), 32),
      -1);
  // Numbers of examples whose row_splits would have more bytes than there are addresses.
  for (const size_t examples :
       {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2 + 1, SIZE_MAX / 2, SIZE_MAX / 8}) {
    EXPECT_EQ(
        tessera_version_lookup(
            version,
            movie,
            ids.data(),
            2,
            ids.data(),
            examples,
            nullptr,
            out.data(),
            32),
        -1);
    EXPECT_CONTAINS(tessera_error(), "num_examples can't be");
  }
  EXPECT_EQ(tessera_reader_rollback(reader, 7), -1);
  tessera_reader_close(reader);
  EXPECT_EQ(lookup(movie, ids.data(), 32), 32);  // versions stay valid
  tessera_version_release(version);
  tessera_reader_close(nullptr);
  tessera_version_release(nullptr);
}

TEST(CInterfaceTest, PipelinesGiveWhatTheTrainerGives) {
  PublishedFilms published;
  published.publish(1);
  const Opened opened(published.directory());
  std::string columns;
  for (size_t i = 0; i < opened.pipeline->num_columns; ++i) {
    const tessera_column_info& column = opened.pipeline->columns[i];
    columns += std::string(column.name) + " " + column.type +
        (column.takes_lists != 0 ? " lists, " : ", ");
  }
  EXPECT_EQ(
      columns,
      "film text lists, watched text lists, year int64 lists, age numbers, "
      "price numbers, ");
  const data::PipelineBatch trained = trained_batch();
  const Users users;
  const std::vector<tessera_column> batch = users.columns();
  tessera_pipeline_result* result =
      tessera_pipeline_apply(opened.pipeline, batch.data(), batch.size());
  ASSERT_NE(result, nullptr) << tessera_error();
  ASSERT_EQ(result->num_features, size_t{3});
  const std::span features(result->features, 3);
  EXPECT_STREQ(features[0].name, "movie");
  EXPECT_EQ(
      ids_of(features[0]),
      to_vector(std::get<at::Tensor>(trained.features.at("movie").leaf())));
  EXPECT_EQ(features[0].row_splits, nullptr);
  EXPECT_EQ(features[0].num_examples, size_t{3});
  EXPECT_STREQ(features[1].name, "watched");
  const auto& watched =
      std::get<RaggedFeature>(trained.features.at("watched").leaf());
  EXPECT_EQ(ids_of(features[1]), to_vector(watched.values));
  EXPECT_EQ(features[1].num_examples, size_t{3});
  ASSERT_NE(features[1].row_splits, nullptr);
  EXPECT_EQ(
      std::vector(features[1].row_splits, features[1].row_splits + 4),
      to_vector(watched.row_splits));
  EXPECT_STREQ(features[2].name, "word");
  EXPECT_EQ(
      ids_of(features[2]),
      to_vector(std::get<at::Tensor>(trained.features.at("word").leaf())));
  ASSERT_EQ(result->num_examples, size_t{3});
  ASSERT_EQ(result->num_dense, size_t{2});
  expect_same_bits(
      {result->dense, 6}, {trained.dense.const_data_ptr<float>(), 6});
  EXPECT_STREQ(result->warning, "");
  tessera_pipeline_result_release(result);
}

TEST(CInterfaceTest, VersionsAreDescribed) {
  PublishedFilms published;
  published.publish(1);
  published.publish(2);
  const Opened opened(published.directory());
  tessera_version_info* info = tessera_version_describe(opened.version);
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(tessera_version_number(opened.version), 2);
  EXPECT_EQ(info->base, 1);
  const Reader reader(published.directory());
  EXPECT_EQ(info->time, reader.version()->time());
  ASSERT_EQ(info->num_metrics, size_t{2});
  EXPECT_STREQ(info->metrics[0].name, "auc");
  EXPECT_EQ(info->metrics[0].value, 0.75);
  EXPECT_STREQ(info->metrics[1].name, "loss");
  EXPECT_EQ(info->metrics[1].value, 0.25);
  ASSERT_EQ(info->num_dense_weights, size_t{2});
  const tessera_dense_weight& weight = info->dense_weights[0];
  EXPECT_STREQ(weight.name, "head.weight");
  EXPECT_STREQ(weight.dtype, "float32");
  EXPECT_EQ(
      std::vector(weight.shape, weight.shape + weight.num_dims),
      (std::vector<int64_t>{1, 4}));
  ASSERT_EQ(weight.num_bytes, 4 * sizeof(float));
  expect_same_bits(
      {static_cast<const float*>(weight.bytes), 4},
      {published.model->head->weight.const_data_ptr<float>(), 4});
  EXPECT_STREQ(info->dense_weights[1].name, "head.bias");
  tessera_version_info_release(info);
}

TEST(CInterfaceTest, WrongColumnsAreNamed) {
  PublishedFilms published;
  published.publish(1);
  const Opened opened(published.directory());
  const Users users;
  const auto message_of = [&](size_t number, auto change) {
    std::vector<tessera_column> columns = users.columns();
    change(columns[number]);
    EXPECT_EQ(
        tessera_pipeline_apply(opened.pipeline, columns.data(), columns.size()),
        nullptr);
    return std::string(tessera_error());
  };
  using Column = tessera_column;
  EXPECT_CONTAINS(
      message_of(0, [](Column& column) { column.name = nullptr; }),
      "the name of a column is NULL");
  EXPECT_CONTAINS(
      message_of(1, [](Column& column) { column.name = "film"; }),
      "[Columns 'film'] there is already a column of this name");
  EXPECT_CONTAINS(
      message_of(0, [](Column& column) { column.name = "movie"; }),
      "'movie': column 'film' is missing.");
  const char* kinds = "column 'film' must have integers, floats or texts.";
  EXPECT_CONTAINS(
      message_of(0, [](Column& column) { column.texts = nullptr; }), kinds);
  EXPECT_CONTAINS(
      message_of(
          0, [&](Column& column) { column.integers = users.years.data(); }),
      kinds);
  EXPECT_CONTAINS(
      message_of(
          3, [&](Column& column) { column.integers = users.years.data(); }),
      "column 'age' must have");
  EXPECT_CONTAINS(
      message_of(0, [](Column& column) { column.num_examples = 2; }),
      "'film': num_examples can't be 2 with 3 values and without row_splits.");
  EXPECT_CONTAINS(
      message_of(
          0,
          [](Column& column) { column.num_examples = column.num_values = 2; }),
      "[Columns 'watched'] expected 2 examples as in the other columns, but got 3.");
  EXPECT_CONTAINS(
      message_of(1, [](Column& column) { column.num_values = 2; }),
      "[Columns 'watched'] row_splits must ascend from 0 to 2");
  EXPECT_CONTAINS(
      message_of(
          1, [&](Column& column) { column.row_splits = users.years.data(); }),
      "[Columns 'watched'] row_splits must ascend from 0 to 3");
  EXPECT_CONTAINS(
      message_of(
          2,
          [&](Column& column) {
            column.integers = nullptr;
            column.floats = users.ages.data();
          }),
      "column 'year' has floats");
  EXPECT_CONTAINS(
      message_of(
          4,
          [](Column& column) {
            static const std::array<float, 3> infinite{INFINITY, 0.0F, 0.0F};
            column.integers = nullptr;
            column.floats = infinite.data();
          }),
      "finite");
  // Numbers that are negative in C, and counts whose bytes wrap around.
  for (const size_t wrong : {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX / 8 + 1}) {
    for (const size_t number : {size_t{0}, size_t{1}, size_t{2}, size_t{3}}) {
      EXPECT_CONTAINS(
          message_of(
              number,
              [&](Column& column) {
                column.num_values = column.num_examples = wrong;
              }),
          std::string("'") + users.columns()[number].name + "'");
    }
    const std::vector<Column> columns = users.columns();
    EXPECT_EQ(
        tessera_pipeline_apply(opened.pipeline, columns.data(), wrong),
        nullptr);
    EXPECT_CONTAINS(tessera_error(), "columns should have");
  }
  EXPECT_EQ(tessera_pipeline_apply(opened.pipeline, nullptr, 5), nullptr);
  EXPECT_CONTAINS(
      tessera_error(), "columns should have 5 entries, but is NULL.");
  EXPECT_EQ(tessera_pipeline_apply(opened.pipeline, nullptr, 0), nullptr);
  EXPECT_CONTAINS(tessera_error(), "column 'film' is missing.");
  EXPECT_EQ(tessera_pipeline_apply(nullptr, nullptr, 0), nullptr);
  EXPECT_CONTAINS(tessera_error(), "pipeline is NULL");
}

TEST(CInterfaceTest, DescribingNullIsAnError) {
  EXPECT_EQ(tessera_version_describe(nullptr), nullptr);
  EXPECT_CONTAINS(tessera_error(), "version is NULL");
  EXPECT_EQ(tessera_version_pipeline(nullptr), nullptr);
  EXPECT_CONTAINS(tessera_error(), "version is NULL");
  tessera_version_info_release(nullptr);
  tessera_pipeline_release(nullptr);
  tessera_pipeline_result_release(nullptr);
}

TEST(CInterfaceTest, AVersionWithoutAPipelineSaysSo) {
  const TemporaryFolder folder;
  Publisher(std::make_shared<PublishedModel>(), folder / "published").publish();
  tessera_reader* reader = nullptr;
  const std::string path = folder / "published";
  ASSERT_EQ(tessera_reader_open(path.c_str(), nullptr, &reader), 0);
  tessera_version* version = tessera_reader_version(reader);
  EXPECT_EQ(tessera_version_pipeline(version), nullptr);
  EXPECT_CONTAINS(tessera_error(), "version 1 has no pipeline.");
  tessera_version_info* info = tessera_version_describe(version);
  EXPECT_EQ(info->num_metrics, size_t{0});
  tessera_version_info_release(info);
  tessera_version_release(version);
  tessera_reader_close(reader);
}

// The ids and from of a result, or the error.
std::string recommended(
    const tessera_version* version,
    const tessera_recommend_request& request) {
  tessera_recommendation* found = tessera_version_recommend(version, &request);
  if (found == nullptr) {
    return tessera_error();
  }
  std::string text;
  for (size_t i = 0; i < found->num_items; ++i) {
    text += fmt::format("{} {}, ", found->ids[i], found->scores[i]);
  }
  text += fmt::format(
      "from {} of {}, history {}",
      static_cast<int>(found->from),
      found->passed,
      found->has_history);
  tessera_recommendation_release(found);
  return text;
}

TEST(CInterfaceTest, ItemsAreRecommended) {
  const TemporaryFolder folder;
  const PublishedItems items{
      .items =
          [] {
            return RecommenderItems{
                .vectors =
                    at::tensor(
                        {1.0F, 0.0F, 0.0F, 1.0F, 2.0F, 2.0F, 3.0F, -1.0F})
                        .view({4, 2}),
                .ids = at::tensor({10, 20, 30, 40}, at::kLong),
                .popularity = at::tensor({5, 9, 1, 2}, at::kLong)};
          },
      .users = [] { return at::eye(2); },
      .fold_in = PublishedFoldIn{.regularization = 1.0},
      .seen =
          [](const at::Tensor&) {
            return RaggedFeature{
                at::tensor({40}, at::kLong), at::tensor({0, 1, 1}, at::kLong)};
          },
      .attributes = columns_of(
          {{"item", integers({10, 20, 30, 40})},
           {"color", text({"red", "blue", "red", "red"})}})};
  Publisher(
      std::make_shared<PublishedModel>(),
      folder / "published",
      {.items = items})
      .publish();
  tessera_reader* opened = nullptr;
  const std::string path = folder / "published";
  ASSERT_EQ(tessera_reader_open(path.c_str(), nullptr, &opened), 0);
  tessera_version* version = tessera_reader_version(opened);

  const int64_t user = 0;
  const std::vector<int64_t> ids{40, 20};
  const std::vector<float> vector{0.0F, 1.0F};
  const auto expect = [&](auto change, const std::string& expected) {
    tessera_recommend_request request{};
    request.k = 2;
    change(request);
    EXPECT_CONTAINS(recommended(version, request), expected);
  };
  using Request = tessera_recommend_request;
  expect([](Request&) {}, "20 9, 10 5, from 2 of 4, history 0");
  expect(
      [&](Request& request) { request.user = &user; },
      "40 3, 30 2, from 0 of 4, history 0");
  expect(
      [&](Request& request) {
        request.user = &user;
        request.exclude_seen = 1;
      },
      "30 2, 10 1, from 0 of 4, history 1");
  expect(
      [&](Request& request) {
        request.vector = vector.data();
        request.dim = 2;
        request.where = "color = 'red'";
      },
      "30 2, 10 0, from 0 of 3, history 0");
  expect(  // (1 - u v)^2 + |u|^2 is least for v / 2
      [&](Request& request) {
        request.items = &ids[1];
        request.num_items = 1;
      },
      "30 1, 20 0.5, from 1 of 4, history 0");
  expect(
      [&](Request& request) {
        request.user = &user;
        request.exclude = ids.data();
        request.num_exclude = 2;
      },
      "30 2, 10 1, from 0 of 4, history 0");
  expect(
      [&](Request& request) {
        request.user = &user;
        request.choose_from = ids.data();
        request.num_choose_from = 2;
      },
      "40 3, 20 0, from 0 of 2, history 0");
  expect(
      [&](Request& request) {
        request.user = &user;
        request.choose_from = ids.data();  // none
      },
      "from 0 of 0, history 0");
  expect(
      [&](Request& request) {
        request.user = &user;
        request.diverse_column = "color";
        request.max_per_value = 1;
      },
      "40 3, 20 0, from 0 of 4, history 0");

  expect([](Request& request) { request.k = 0; }, "k must be in [1, 4]");
  expect([](Request& request) { request.num_items = 2; }, "items should have");
  expect([](Request& request) { request.dim = 2; }, "vector should have 2");
  expect(
      [](Request& request) { request.num_exclude = 1; }, "exclude should have");
  expect(
      [](Request& request) { request.num_choose_from = SIZE_MAX; },
      "choose_from should have");
  expect(
      [&](Request& request) {
        request.vector = vector.data();
        request.dim = 1;
      },
      "the vector of the user must have 2 numbers, but has 1");
  expect([](Request& request) { request.where = "size > 3"; }, "'size'");
  expect(
      [](Request& request) { request.diverse_column = "color"; },
      "max_per_value");
  EXPECT_EQ(tessera_version_recommend(version, nullptr), nullptr);
  EXPECT_CONTAINS(tessera_error(), "request is NULL");
  EXPECT_CONTAINS(recommended(nullptr, {}), "version is NULL");
  tessera_recommendation_release(nullptr);
  tessera_version_release(version);
  tessera_reader_close(opened);
}

// The address sanitizer sees a pointer into what is gone.
TEST(CInterfaceTest, EachObjectIsReleasedInAnyOrder) {
  PublishedFilms published;
  published.publish(1);
  Opened opened(published.directory());
  const Users users;
  const std::vector<tessera_column> columns = users.columns();
  tessera_pipeline_result* result =
      tessera_pipeline_apply(opened.pipeline, columns.data(), columns.size());
  tessera_version_info* info = tessera_version_describe(opened.version);
  tessera_reader_close(std::exchange(opened.reader, nullptr));
  tessera_version_release(std::exchange(opened.version, nullptr));
  EXPECT_STREQ(opened.pipeline->columns[0].name, "film");
  tessera_pipeline_result_release(
      tessera_pipeline_apply(opened.pipeline, columns.data(), columns.size()));
  tessera_pipeline_release(std::exchange(opened.pipeline, nullptr));
  EXPECT_EQ(
      ids_of(result->features[0]),
      to_vector(
          std::get<at::Tensor>(trained_batch().features.at("movie").leaf())));
  EXPECT_STREQ(info->dense_weights[0].name, "head.weight");
  EXPECT_EQ(
      *static_cast<const float*>(info->dense_weights[0].bytes),
      published.model->head->weight[0][0].item<float>());
  tessera_version_info_release(info);
  tessera_pipeline_result_release(result);
}

TEST(CInterfaceTest, ThreadsShareAReaderAndItsPipeline) {
  PublishedFilms published;
  published.publish(1);
  const Opened opened(published.directory());
  const std::vector<int64_t> expected = to_vector(
      std::get<RaggedFeature>(trained_batch().features.at("watched").leaf())
          .values);
  std::atomic<int> wrong = 0;
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const Users users;
      const std::string unknown = "feature_" + std::to_string(thread);
      std::vector<float> out(3 * 16);
      std::vector<float> row(3 * 16);
      while (!ends) {
        wrong += tessera_reader_refresh(opened.reader) < 0 ? 1 : 0;
        tessera_version* version = tessera_reader_version(opened.reader);
        tessera_version_info* info = tessera_version_describe(version);
        wrong += info->metrics[1].value !=
                0.5 / static_cast<double>(tessera_version_step(version))
            ? 1
            : 0;
        tessera_version_info_release(info);
        // Each thread has its own message.
        wrong +=
            tessera_version_feature(version, unknown.c_str()) != -1 ? 1 : 0;
        const std::vector<tessera_column> columns = users.columns();
        tessera_pipeline_result* result = tessera_pipeline_apply(
            opened.pipeline, columns.data(), columns.size());
        const tessera_column& watched = result->features[1];
        wrong += ids_of(watched) != expected ? 1 : 0;
        wrong += tessera_version_lookup(
                     version,
                     tessera_version_feature(version, watched.name),
                     watched.integers,
                     watched.num_values,
                     watched.row_splits,
                     watched.num_examples,
                     nullptr,
                     out.data(),
                     out.size()) != 48
            ? 1
            : 0;
        // The last user has watched one film.
        const int64_t table = tessera_version_table(version, "movies");
        wrong +=
            tessera_version_lookup_rows(
                version, table, &watched.integers[2], 1, row.data(), 16) == 0 &&
                std::equal(row.begin(), row.begin() + 16, out.begin() + 32)
            ? 0
            : 1;
        wrong += std::string(tessera_error()).find(unknown) == std::string::npos
            ? 1
            : 0;
        tessera_pipeline_result_release(result);
        tessera_version_release(version);
      }
    });
  }
  for (int64_t step = 2; step <= 20; ++step) {
    published.publish(step);
  }
  ends = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace tessera::serving::tessera_serving_test
