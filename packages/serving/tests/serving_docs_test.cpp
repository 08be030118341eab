// SPDX-License-Identifier: Apache-2.0
// The code of docs/serving.md and of the docstrings.
#include <tessera/common/json.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/serving/publish_callback.h>
#include <tessera/serving/publisher.h>
#include <tessera/serving/server.h>
#include <tessera/serving/short_time_slices.h>

#include "packages/serving/tests/http_client.h"
#include "packages/serving/tests/published_model.h"
#include "packages/training/tests/training_fixture.h"

namespace tessera::serving::serving_docs_test {

// Runs in a folder of its own.
class ServingDocsTest : public ::testing::Test {
 protected:
  ServingDocsTest() : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(folder_.path());
  }
  ~ServingDocsTest() override {
    std::filesystem::current_path(before_);
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path before_;
};

TEST_F(ServingDocsTest, PublishesAndReads) {
  const auto model = std::make_shared<PublishedModel>();
  const auto train_step = [&](int64_t step) {
    std::mt19937_64 random(static_cast<uint64_t>(step));
    model->learn(model->random_batch(random));
  };
  // snippet: Publisher
  Publisher publisher(model, "published", {.format = RowFormat::kInt8});
  for (int64_t step = 1; step <= 20; ++step) {
    train_step(step);
    if (step % 5 == 0) {
      publisher.publish({.step = step});
    }
  }
  const PublishReport report = publisher.report();
  std::cout << "version " << report.version << ": " << report.rows << " rows\n";
  // end snippet
  // snippet: Reader
  Reader reader("published");
  const auto current = reader.version();  // once per request
  // end snippet
  EXPECT_EQ(current->step(), 20);
  // snippet: Version
  const std::shared_ptr<const Version> version = reader.version();
  const size_t movie = version->feature("movie");
  const std::vector<int64_t> ids{3, 1, 4};
  std::vector<float> out(version->output_size(movie, {.ids = ids}));
  version->lookup(movie, {.ids = ids}, out);  // [3, dim]
  // end snippet
  EXPECT_EQ(out.size(), 48U);
  // snippet: ragged
  // The movies that two users have watched: 3 and 1, and 4.
  const std::vector<int64_t> row_splits{0, 2, 3};
  const FeatureBatch watched{.ids = ids, .row_splits = row_splits};
  const size_t feature = version->feature("watched");
  std::vector<float> means(version->output_size(feature, watched));
  version->lookup(feature, watched, means);  // [2, dim]
  // end snippet
  EXPECT_EQ(means.size(), 32U);
  // snippet: ReaderOptions
  const Reader careful(
      "published", ReaderOptions{.on_event = [](const ReaderEvent& event) {
        std::cerr << "version " << event.version << " " << event.problem
                  << "\n";
      }});
  const ReaderStatus status = careful.status();
  std::cout << "serves " << status.version << " of " << status.newest << "\n";
  // end snippet
  EXPECT_EQ(status.version, 4);
  // snippet: rollback
  reader.rollback(2);  // serves version 2
  reader.unpin();  // and the newest one again
  // end snippet
  EXPECT_EQ(reader.version()->number(), 4);
  // snippet: use_short_time_slices
  std::thread worker([&] {
    use_short_time_slices();
    reader.version()->lookup(movie, {.ids = ids}, out);
  });
  // end snippet
  worker.join();
}

TEST_F(ServingDocsTest, AnswersRequests) {
  if (!TESSERA_HAS_BOOST) {
    GTEST_SKIP() << "needs Boost";
  }
  const auto model = std::make_shared<PublishedModel>();
  Publisher publisher(model, "published");
  publisher.publish();
  // snippet: Server
  const auto reader = std::make_shared<Reader>("published");
  // Gives each movie the first number of its row. A model would go here.
  const auto score = [&](std::span<const ScoreRequest> requests) {
    const std::shared_ptr<const Version> version = reader->version();
    const size_t movie = version->feature("movie");
    std::vector<ScoreResult> results;
    for (const ScoreRequest& request : requests) {
      ScoreResult& result = results.emplace_back();
      result.version = version->number();
      const ScoreInput& input = request.candidates.at(0);
      if (input.name != "movie") {
        result.error = "Expected the candidates as 'movie'.";
        continue;
      }
      const FeatureBatch movies = std::get<IdLists>(input.values).batch();
      std::vector<float> rows(version->output_size(movie, movies));
      version->lookup(movie, movies, rows);  // [candidates, dim]
      const auto dim = static_cast<size_t>(version->features()[movie].dim);
      for (size_t row = 0; row < rows.size(); row += dim) {
        result.scores.push_back(rows[row]);
      }
    }
    return results;
  };
  Server server(reader, {.port = 0}, score);
  std::cout << "http://127.0.0.1:" << server.port() << "\n";
  // end snippet
  HttpClient client(server.port());
  const HttpReply reply = client.post(
      "/score", R"({"user":{"age":31.5},"candidates":{"movie":[3,1]}})");
  EXPECT_EQ(reply.status, 200);
  const at::Tensor rows = model->embedding->read_rows("movies", 0, 10);
  float first = 0.0F;
  float second = 0.0F;
  ASSERT_EQ(
      std::sscanf(
          reply.body.c_str(),
          R"({"version":1,"scores":[%f,%f]})",
          &first,
          &second),
      2);
  EXPECT_EQ(first, rows[3][0].item<float>());
  EXPECT_EQ(second, rows[1][0].item<float>());
  EXPECT_EQ(
      client.post("/score", R"({"candidates":{"film":[3]}})").status, 400);
  EXPECT_EQ(
      client.post("/score", R"({"candidates":{"movie":[[1,2],[],[3]]}})")
          .status,
      200);
}

TEST_F(ServingDocsTest, PublishesDuringFit) {
  using namespace training;
  ClickRun run;
  const auto model = run.model;
  const auto batches = click_batches(5, 1);
  const auto step = run.train_step();
  // snippet: PublishCallback
  const auto publisher = std::make_shared<Publisher>(model, "published");
  fit(batches,
      step,
      {.callbacks = {PublishCallback(publisher, {.every_seconds = 10.0})}});
  // end snippet
  EXPECT_EQ(Reader("published").version()->number(), 1);
}

// Publishes a model with a pipeline of films and ages, and with the films as items.
std::shared_ptr<PublishedModel> publish_with_pipeline() {
  const auto model = std::make_shared<PublishedModel>();
  save_pipeline(
      data::FeaturePipeline(
          {{.name = "watched",
            .columns = {"watched"},
            .transform =
                data::transforms::Vocabulary{
                    .values = std::vector<std::string>{"Alien", "Heat"}}},
           {.name = "age",
            .columns = {"age"},
            .transform =
                data::transforms::Normalize{.mean = 40.0, .variance = 100.0}}}),
      "pipeline.json");
  const PublishedItems films{
      .items =
          [&] {
            return RecommenderItems{
                .vectors = model->embedding->read_rows("movies", 0, 4)};
          },
      .item = "watched",
      .fold_in = PublishedFoldIn{.regularization = 0.5}};
  Publisher publisher(
      model, "published", {.pipeline = "pipeline.json", .items = films});
  publisher.publish({.step = 70, .metrics = {{"auc", 0.75}}});
  return model;
}

// The score of an item for a user who has watched a film. The vector u of the user minimizes
// (1 - u v)^2 + 0.5 |u|^2 for the row v of that film.
double score_of(const PublishedModel& model, int64_t item, int64_t watched) {
  const at::Tensor rows =
      model.embedding->read_rows("movies", 0, 4).to(at::kDouble);
  const at::Tensor seen = rows[watched];
  return (rows[item].dot(seen) / (seen.dot(seen) + 0.5)).item<double>();
}

std::string format(const char* text, double first, double second) {
  char line[200];
  std::snprintf(line, sizeof(line), text, first, second);
  return line;
}

TEST_F(ServingDocsTest, AProgramInCReads) {
  const auto model = publish_with_pipeline();
  const std::string command = C_CLIENT;
  ASSERT_EQ(std::system((command + " published > out").c_str()), 0);
  // Ids 0 and 1 are those of missing and of unknown films.
  const at::Tensor rows = model->embedding->read_rows("movies", 0, 4);
  const std::string out = read_text("out");
  const size_t begin = out.find("item 3: ");
  ASSERT_NE(begin, std::string::npos) << out;
  EXPECT_EQ(
      out,
      "version 1 of base 1, step 70\nauc: 0.75\n"
      "head.weight: float32, 16 bytes\nhead.bias: float32, 4 bytes\n" +
          format(
              "watched: %.9g\nwatched: %.9g\nage: 0 and -1\n",
              rows[3][0].item<double>(),
              static_cast<double>(
                  (rows[2][0].item<float>() + rows[1][0].item<float>()) *
                  0.5F)) +
          out.substr(begin));
  // The second user has watched film 2.
  const double shown = std::stod(out.substr(begin + std::strlen("item 3: ")));
  EXPECT_NEAR(shown, score_of(*model, /*item=*/3, /*watched=*/2), 1e-6);
  EXPECT_NE(std::system((command + " nowhere 2> errors").c_str()), 0);
  EXPECT_CONTAINS(read_text("errors"), "nowhere");
}

TEST_F(ServingDocsTest, AProgramInPythonReads) {
  const std::string command = PYTHON_CLIENT;
  if (command.empty()) {
    GTEST_SKIP() << "needs python3-numpy, and a build without sanitizers";
  }
  const auto model = publish_with_pipeline();
  const std::string values =
      R"('{"watched": [["Heat"], ["Alien", null], []], "age": [null, 30, 4.5]}')";
  ASSERT_EQ(
      std::system((command + " published " + values + " > out").c_str()), 0);
  const std::string out = read_text("out");
  const std::string item = "items [2] [";
  const size_t begin = out.find(item);
  ASSERT_TRUE(out.starts_with("watched [") && begin != std::string::npos)
      << out;
  const Json rows = Json::parse(out.substr(0, begin).substr(out.find('[')));
  EXPECT_NEAR(
      std::stod(out.substr(begin + item.size())),
      score_of(*model, /*item=*/2, /*watched=*/3),
      1e-6);
  const PublishedBatch batch{.ids = {3, 2, 0}, .row_splits = {0, 1, 3, 3}};
  const std::vector<float> expected =
      look_up(*Reader("published").version(), "watched", batch);
  ASSERT_EQ(rows.size(), size_t{3});
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(rows.at(i / 16).at(i % 16).get<float>(), expected[i]);
  }
  const std::string wrong = R"('{"watched": [["Heat"]], "age": [30, 31]}')";
  EXPECT_NE(
      std::system((command + " published " + wrong + " 2> errors").c_str()), 0);
  EXPECT_CONTAINS(
      read_text("errors"),
      "[Columns 'age'] expected 1 examples as in the other columns, but got 2.");
}

}  // namespace tessera::serving::serving_docs_test
