// SPDX-License-Identifier: Apache-2.0
// Raw values in requests: the server converts them with the pipeline of the version.
#include <tessera/common/json_text.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/export/export_pt2.h>
#include <tessera/export/with_one_user.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/serving/program_scorer.h>
#include <tessera/serving/publisher.h>
#include <tessera/serving/server.h>

#include "packages/data/tests/column_builders.h"
#include "packages/serving/tests/http_client.h"
#include "packages/serving/tests/published_model.h"
#include "tests/temporary_folder.h"

namespace tessera::serving::raw_values_test {

using data::ColumnType;
using data::FeaturePipeline;
using data::Missing;
using data::PipelineOutput;
using namespace data::transforms;  // NOLINT(google-build-using-namespace)

// A model with a table for each feature of a pipeline.
struct Tables : torch::nn::Module {
  explicit Tables(const FeaturePipeline& pipeline) {
    register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features = pipeline.make_features({.dim = 4})}));
  }
};

// A ranker whose features are those of a pipeline.
struct RankerImpl : torch::nn::Module {
  explicit RankerImpl(const FeaturePipeline& pipeline) {
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features = pipeline.make_features({.dim = 4})}));
    tower = register_module("tower", MLP(MLPOptions{.units = {8, 1}}));
  }

  at::Tensor forward(const Features& features, const at::Tensor& numbers) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    Nest<at::Tensor>::Map inputs{{"numbers", numbers}};
    for (const auto& [name, row] : rows.entries()) {
      inputs.emplace_back(name, row.leaf());
    }
    return tower->forward(Nest<at::Tensor>::map(std::move(inputs))).squeeze(1);
  }

  TPUEmbedding embedding{nullptr};
  MLP tower{nullptr};
};
TORCH_MODULE(Ranker);

FeaturePipeline movie_pipeline() {
  return FeaturePipeline(
      {{"user", {"user"}, Hash{.num_bins = 50}},
       {"country", {"country"}, Vocabulary{.values = Texts{"de", "fr"}}},
       {"liked", {"liked"}, Hash{.num_bins = 40}},
       {"movie", {"title"}, Vocabulary{.values = Texts{"a9", "b1", "c3"}}},
       {"year", {"year"}, Bucketize{.boundaries = {1990, 2000}}},
       {"taste", {"country", "genre"}, Cross{.num_bins = 30}},
       {"age", {"age"}, Normalize{.mean = 40, .variance = 100}},
       {"counts", {"views", "price"}, Log1p{.missing_value = -1}}},
      {{"user", ColumnType::kText},
       {"liked", ColumnType::kText},
       {"genre", ColumnType::kText}});
}

Json json_of(const HttpReply& reply) {
  return parse_json(reply.body);
}

class RawValuesTest : public ::testing::Test {
 protected:
  // Publishes a model for the features of a pipeline, as a new base.
  void publish(
      const FeaturePipeline& pipeline,
      const std::string& program = {}) {
    const std::string file = folder_ / "pipeline.json";
    save_pipeline(pipeline, file);
    publisher_.reset();
    publisher_ = std::make_unique<Publisher>(
        model_,
        folder_ / "published",
        PublishOptions{.pipeline = file, .program = program});
    publisher_->publish();
  }
  void make_model(const FeaturePipeline& pipeline) {
    model_ = std::make_shared<Tables>(pipeline);
  }

  // Starts a server whose score function keeps the requests in `seen_`.
  void start(ServerOptions options = {}) {
    options.port = 0;
    reader_ = std::make_shared<Reader>(
        folder_ / "published", ReaderOptions{.follow = false});
    server_ = std::make_unique<Server>(
        reader_, options, [this](std::span<const ScoreRequest> requests) {
          std::vector<ScoreResult> results;
          for (const ScoreRequest& request : requests) {
            seen_ = request;
            results.push_back(
                {.version = reader_->version()->number(),
                 .scores = std::vector<float>(
                     static_cast<size_t>(request.num_candidates), 0.5F)});
          }
          return results;
        });
  }
  void start_with_movies(ServerOptions options = {}) {
    make_model(movie_pipeline());
    publish(movie_pipeline());
    start(std::move(options));
  }

  HttpReply post(const std::string& path, const std::string& body) const {
    return HttpClient(server_->port()).post(path, body);
  }
  HttpReply score(const std::string& body) const {
    return post("/score", body);
  }
  Json version() const {
    return json_of(HttpClient(server_->port()).get("/version"));
  }

  static void expect_refused(const HttpReply& reply, const std::string& text) {
    EXPECT_EQ(reply.status, 400) << reply.body;
    const Json json = json_of(reply);
    ASSERT_TRUE(json.contains("error")) << reply.body;
    const std::string error = json["error"];
    EXPECT_CONTAINS(error, text);
    EXPECT_FALSE(error.starts_with('[')) << error;
  }
  void expect_refusals(
      const std::string& path,
      const std::vector<std::pair<std::string, std::string>>& rows) const {
    for (const auto& [body, text] : rows) {
      SCOPED_TRACE(body.substr(0, 300));
      expect_refused(post(path, body), text);
    }
  }

  const ScoreInput& seen(const std::string& name, bool of_user) const {
    const auto& inputs = of_user ? seen_.user : seen_.candidates;
    for (const ScoreInput& input : inputs) {
      if (input.name == name) {
        return input;
      }
    }
    ADD_FAILURE() << "no input " << name;
    static const ScoreInput none;
    return none;
  }
  IdLists seen_ids(const std::string& name, bool of_user) const {
    return std::get<IdLists>(seen(name, of_user).values);
  }
  std::vector<float> seen_numbers(const std::string& name, bool of_user) const {
    return std::get<std::vector<float>>(seen(name, of_user).values);
  }

  TemporaryFolder folder_;
  std::shared_ptr<torch::nn::Module> model_;
  std::unique_ptr<Publisher> publisher_;
  std::shared_ptr<Reader> reader_;
  std::unique_ptr<Server> server_;
  ScoreRequest seen_;
};

IdLists ids_of(const Feature& feature) {
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    return {to_vector(ragged->values), to_vector(ragged->row_splits)};
  }
  return {to_vector(std::get<at::Tensor>(feature))};
}

// The lines that show where a snippet of a page begins and ends are not part of a body.
std::string without_marks(const std::string& text) {
  std::istringstream lines(text);
  std::string body;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("// ") == std::string::npos) {
      body += line + "\n";
    }
  }
  return body;
}

const std::string kBody = without_marks(R"(
// snippet: raw_score
{"user": {"user": "000077", "country": "fr", "liked": ["a9", "c3"],
          "columns": {"age": 45}},
 "candidates": {"title": ["a9", "b1"], "genre": ["drama", "crime"],
                "views": [0, 3], "price": [2.5, 1],
                "columns": {"year": [1994, null]}}}
// end snippet
)");

data::Columns columns_of_body() {
  return columns_of(
      {{"user", text({"000077", "000077"})},
       {"country", text({"fr", "fr"})},
       {"age", numbers({45, 45})},
       {"liked", ragged(text({"a9", "c3", "a9", "c3"}), {0, 2, 4})},
       {"title", text({"a9", "b1"})},
       {"year", integers({1994, data::kMissing})},
       {"genre", text({"drama", "crime"})},
       {"views", integers({0, 3})},
       {"price", numbers({2.5, 1})}});
}

TEST_F(RawValuesTest, InputsAreThoseOfTheTrainer) {
  start_with_movies();
  const HttpReply reply = score(kBody);
  ASSERT_EQ(reply.status, 200) << reply.body;
  const data::PipelineBatch expected =
      movie_pipeline().apply(columns_of_body());
  for (const char* name : {"user", "country", "liked"}) {
    IdLists all = ids_of(expected.features.at(name).leaf());
    all.ids.resize(all.ids.size() / 2);  // the trainer has two rows of the user
    if (!all.row_splits.empty()) {
      all.row_splits.pop_back();
    }
    EXPECT_EQ(seen_ids(name, true), all) << name;
    EXPECT_EQ(seen(name, true).rows, 1);
  }
  for (const char* name : {"movie", "year", "taste"}) {
    EXPECT_EQ(seen_ids(name, false), ids_of(expected.features.at(name).leaf()))
        << name;
    EXPECT_EQ(seen(name, false).rows, 2);
  }
  EXPECT_EQ(seen_numbers("age", true), (std::vector<float>{0.5F}));
  EXPECT_EQ(
      seen_numbers("counts", false),
      (std::vector<float>{
          0.0F, std::log1p(2.5F), std::log1p(3.0F), std::log1p(1.0F)}));
  EXPECT_EQ(seen_.num_candidates, 2);
}

// The pipeline of a file that save_pipeline() did not write.
std::string pipeline_without_types() {
  return R"({"format_version":1,"outputs":[{"name":"user","columns":["user"],)"
         R"("transform":{"class_name":"Hash","config":{"num_bins":50}}}]})";
}

// UTF-8 of one to four bytes.
std::string random_text(std::mt19937_64& random) {
  static const std::vector<std::string> kParts{
      "a", "Z", "7", " ", "\"", "\\", "\n", "\u00e9", "\u65e5", "\U0001F600"};
  std::string text;
  for (uint64_t i = random() % 8; i > 0; --i) {
    text += kParts[random() % kParts.size()];
  }
  return text;
}

TEST_F(RawValuesTest, AMillionRandomValuesGetTheIdsOfTheTrainer) {
  const FeaturePipeline pipeline(
      {{"integer", {"number"}, Hash{.num_bins = 1000, .salt = 3}},
       {"known",
        {"number"},
        Vocabulary{.values = std::vector<int64_t>{-3, 0, 7, 1LL << 60}}},
       {"text", {"name"}, Hash{.num_bins = 5000}},
       {"word",
        {"name"},
        Vocabulary{.values = Texts{"a", "7"}, .num_oov_indices = 9}},
       {"bits", {"key"}, Hash{.num_bins = 700}},
       {"tags", {"tags"}, Hash{.num_bins = 300, .missing = Missing::kDrop}},
       {"bin", {"price"}, Bucketize{.boundaries = {-1.5, 0.1, 30}}},
       {"pair", {"city", "name"}, Cross{.num_bins = 900}},
       {"numbers", {"price", "number"}, Normalize{.mean = 0.3, .variance = 2}}},
      {{"number", ColumnType::kInt64},
       {"name", ColumnType::kText},
       {"key", ColumnType::kUInt64Bits},
       {"tags", ColumnType::kText},
       {"price", ColumnType::kFloat32},
       {"city", ColumnType::kText}});
  make_model(pipeline);
  publish(pipeline);
  start({.max_body_bytes = 1 << 24, .max_ids = 1 << 20});
  std::mt19937_64 random(11);
  HttpClient client(server_->port());
  constexpr int64_t kRows = 20'000;
  for (int64_t values = 0; values < 1'000'000; values += 5 * kRows) {
    std::vector<int64_t> number;
    std::vector<int64_t> key;
    std::vector<float> price;
    Texts name;
    Texts tags;
    std::vector<int64_t> splits{0};
    Json lists = Json::object();
    for (int64_t row = 0; row < kRows; ++row) {
      const auto bits = static_cast<int64_t>(random());
      number.push_back(random() % 2 == 0 ? bits : bits % 10);
      lists["number"].push_back(number.back());
      if (random() % 9 == 0) {
        number.back() = kMissing;
        lists["number"].back() = nullptr;
      }
      key.push_back(static_cast<int64_t>(random() >> (random() % 64)));
      lists["key"].push_back(static_cast<uint64_t>(key.back()));
      if (key.back() == kMissing) {
        key.back() = 5;
        lists["key"].back() = 5;
      }
      price.push_back(
          static_cast<float>(bits % 100'000) *
          (random() % 2 == 0 ? 1e-3F : 1e-20F));
      lists["price"].push_back(price.back());
      if (random() % 9 == 0) {
        price.back() = std::nanf("");
        lists["price"].back() = nullptr;
      }
      name.push_back(random_text(random));
      lists["name"].push_back(name.back());
      if (name.back().empty() && row % 2 == 0) {
        lists["name"].back() = nullptr;
      }
      Json list = Json::array();
      for (uint64_t i = random() % 3; i > 0; --i) {
        tags.push_back(random_text(random));
        list.push_back(tags.back());
      }
      splits.push_back(std::ssize(tags));
      lists["tags"].push_back(std::move(list));
    }
    const Json body{
        {"user", {{"city", "K\u00f6ln"}}}, {"candidates", std::move(lists)}};
    const HttpReply reply = client.post("/score", body.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    const data::PipelineBatch expected = pipeline.apply(columns_of(
        {{"number", integers(number)},
         {"name", text(name)},
         {"key", integers(key)},
         {"tags", ragged(text(tags), splits)},
         {"price", numbers(price)},
         {"city", text(Texts(kRows, "K\u00f6ln"))}}));
    for (const auto& [path, feature] : expected.features.entries()) {
      ASSERT_TRUE(seen_ids(path, false) == ids_of(feature.leaf())) << path;
    }
    const std::vector<float> dense = seen_numbers("numbers", false);
    ASSERT_EQ(std::ssize(dense), expected.dense.numel());
    ASSERT_EQ(
        std::memcmp(
            dense.data(),
            expected.dense.const_data_ptr<float>(),
            dense.size() * sizeof(float)),
        0);
  }
}

TEST_F(RawValuesTest, AProgramScoresRawValuesAsTheModel) {
  const FeaturePipeline pipeline(
      {{"user", {"user"}, Hash{.num_bins = 50}},
       {"movie", {"title"}, Vocabulary{.values = Texts{"a9", "b1"}}},
       {"pair", {"user", "title"}, Cross{.num_bins = 30}},
       {"age", {"age"}, Normalize{.mean = 40, .variance = 100}},
       {"counts", {"views", "price"}, Log1p{}}},
      {{"user", ColumnType::kText}, {"title", ColumnType::kText}});
  Ranker ranker(pipeline);
  ranker->eval();
  model_ = ranker.ptr();
  const data::PipelineBatch batch = pipeline.apply(columns_of(
      {{"user", text({"u7", "u7", "u7"})},
       {"title", text({"b1", "zz", "a9"})},
       {"age", numbers({31, 31, 31})},
       {"views", integers({1, 0, 12})},
       {"price", numbers({0.5, 7, 2})}}));
  const at::NoGradGuard no_grad;
  const at::Tensor expected = ranker->forward(batch.features, batch.dense);
  const std::string program = folder_ / "program.pt2";
  export_dense_pt2(
      ranker,
      program,
      with_one_user(
          {.features = batch.features, .inputs = {batch.dense}}, {"user"}));
  publish(pipeline, program);
  reader_ = std::make_shared<Reader>(folder_ / "published");
  server_ = std::make_unique<Server>(
      reader_, ServerOptions{.port = 0}, ProgramScorer(reader_));
  const HttpReply reply = score(
      R"({"user":{"user":"u7","age":31},
          "candidates":{"title":["b1","zz","a9"],"views":[1,0,12],"price":[0.5,7,2]}})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::vector<float> scores = json_of(reply)["scores"];
  test::expect_close(at::tensor(scores), expected, 1e-5, 1e-5);

  // The pipeline makes all numbers of input_0, and repeats those of the user.
  const Json shown = version();
  EXPECT_EQ(
      shown["inputs"].dump(),
      R"([{"name":"user","side":"user","values":"ids","width":0,"vocabulary_size":50,"default":0,"columns":["user"]},)"
      R"({"name":"movie","side":"candidates","values":"ids","width":0,"vocabulary_size":4,"default":0,"columns":["title"]},)"
      R"({"name":"pair","side":"candidates","values":"ids","width":0,"vocabulary_size":30,"default":null,"columns":["user","title"]},)"
      R"({"name":"input_0","side":"candidates","values":"numbers","width":3,"default":null,"columns":["age","views","price"]}])");
  EXPECT_EQ(
      shown["columns"].dump(),
      R"([{"name":"user","type":"text","lists":true,"side":"user"},)"
      R"({"name":"title","type":"text","lists":true,"side":"candidates"},)"
      R"({"name":"age","type":"numbers","lists":false,"side":"candidates"},)"
      R"({"name":"views","type":"numbers","lists":false,"side":"candidates"},)"
      R"({"name":"price","type":"numbers","lists":false,"side":"candidates"}])");

  expect_refusals(
      "/score",
      {{R"({"user":{"age":31},"candidates":{"title":["b1"]}})",
        "makes the input 'pair' from the columns user, title. Send all of these columns"},
       {R"({"user":{"user":"u7"},"candidates":{"title":["b1"]}})",
        "expected 'input_0' in candidates"},
       {R"({"user":{"title":"b1"},"candidates":{"user":["u7"],"age":[1],"views":[2],"price":[3]}})",
        "expected 'user' in user, but got it in candidates"},
       {R"({"user":{"user":"u7","age":31,"year":1990},
            "candidates":{"title":["b1"],"views":[1],"price":[1]}})",
        "expected an input of the model, but got 'year'"}});
}

TEST_F(RawValuesTest, IdsAndRawValuesAreTold) {
  start_with_movies();
  // Ids of features without a column of their name, beside raw values.
  ASSERT_EQ(
      score(
          R"({"user":{"user":"x","inputs":{"country":2,"liked":[7,8],"age":0.5}},
              "candidates":{"movie":[3,1],"inputs":{"year":[1,2]}}})")
          .status,
      200);
  EXPECT_EQ(seen_ids("country", true).ids, (std::vector<int64_t>{2}));
  EXPECT_EQ(seen_ids("liked", true).ids, (std::vector<int64_t>{7, 8}));
  EXPECT_EQ(seen_ids("movie", false).ids, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(seen_ids("year", false).ids, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(seen_numbers("age", true), (std::vector<float>{0.5F}));
  EXPECT_EQ(seen_.user.size(), 4U);
  EXPECT_EQ(seen_.candidates.size(), 2U);
  // Numbers under the name of a column and of an input could be either, and what else the
  // request has does not decide.
  const std::string unclear =
      ": this is a column of the pipeline and an input of the model, so its numbers could be of either";
  for (
      const auto& [body, place] :
      std::vector<std::pair<std::string, std::string>>{
          {R"({"candidates":{"movie":[1,2],"year":[1994,1985]}})",
           "candidates.year"},
          {R"({"candidates":{"title":["a9","b1"],"year":[2,1]}})",
           "candidates.year"},
          {R"({"candidates":{"movie":[1],"year":[null]}})", "candidates.year"},
          {R"({"user":{"inputs":{"country":2},"age":0.5},"candidates":{"movie":[1,2]}})",
           "user.age"},
          {R"({"user":{"inputs":{"country":2}},"candidates":{"movie":[3],"year":[2]}})",
           "candidates.year"},
          {R"({"user":{"columns":{"country":"fr"},"age":45},"candidates":{"movie":[3]}})",
           "user.age"}}) {
    SCOPED_TRACE(body);
    expect_refused(score(body), place + unclear);
  }
  ASSERT_EQ(
      score(R"({"candidates":{"movie":[1,2],"inputs":{"year":[0,3]}}})").status,
      200);
  EXPECT_EQ(seen_ids("year", false).ids, (std::vector<int64_t>{0, 3}));
  ASSERT_EQ(
      score(R"({"candidates":{"movie":[1,2],"columns":{"year":[1994,1985]}}})")
          .status,
      200);
  EXPECT_EQ(seen_ids("year", false).ids, (std::vector<int64_t>{2, 1}));
  // Columns of text, and columns that are no inputs, need no sign.
  ASSERT_EQ(
      score(
          R"({"user":{"country":"fr"},"candidates":{"title":["b1",null],"genre":["x","y"],"views":[0,1],"price":[1,0]}})")
          .status,
      200);
  EXPECT_EQ(seen_ids("movie", false).ids, (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(seen_ids("country", true).ids, (std::vector<int64_t>{3}));
  EXPECT_EQ(seen_numbers("counts", false)[0], 0.0F);
  expect_refusals(
      "/score",
      {{R"({"candidates":{"title":["b1"],"movie":[1]}})",
        "makes the input 'movie' from the columns title. Send all of these columns, or none of them and the input in \"inputs\"."},
       {R"({"candidates":{"title":["b1"],"inputs":{"movie":[1]}}})",
        "makes the input 'movie' from the columns title"},
       {R"({"user":{"columns":{"age":45},"inputs":{"age":0.5}},"candidates":{"movie":[1]}})",
        "makes the input 'age' from the columns age. Send all of these"},
       {R"({"candidates":{"columns":[1]}})",
        "candidates.columns: expected an object, but got a list"},
       {R"({"user":{"inputs":2},"candidates":{"movie":[1]}})",
        "user.inputs: expected an object, but got 2"},
       {R"({"user":{"country":2},"candidates":{"movie":[1]}})",
        "user.country: expected text"},
       {R"({"user":{"user":"x","columns":{"user":"y"}},"candidates":{"movie":[1]}})",
        "the request has 'user' twice"},
       {R"({"user":{"user":"x"},"candidates":{"user":["y"]}})",
        "the request has 'user' twice"},
       {R"({"user":{"inputs":{"movie":1}},"candidates":{"movie":[1]}})",
        "the request has 'movie' twice"},
       {R"({"candidates":{"columns":{"movie":[1]}}})",
        "candidates.columns.movie: expected a column, which are user, country, liked, title, year, genre, age, views, price"},
       {R"({"candidates":{"inputs":{"movie":["a9"]}}})",
        "candidates.inputs.movie: expected an id"},
       {R"({"candidates":{"inputs":{}}})", "one list per input"},
       {R"({"user":{"genre":"x"},"candidates":{"movie":[1]}})",
        "makes the input 'taste' from the columns country, genre"}});
}

// A column may have the name of an input of several numbers.
TEST_F(RawValuesTest, NumbersAreSentUnderTheNameOfAColumn) {
  const auto inputs = [] {
    return std::vector<ScoreInputInfo>{
        {.name = "movie"}, {.name = "price", .width = 3}};
  };
  start_with_movies({.inputs = inputs});
  const HttpReply reply =
      score(R"({"candidates":{"movie":[1],"inputs":{"price":[[1,2,3]]}}})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(seen_numbers("price", false), (std::vector<float>{1, 2, 3}));
  expect_refused(
      score(R"({"candidates":{"movie":[1],"price":[1]}})"),
      "candidates.price: this is a column of the pipeline and an input");
}

TEST_F(RawValuesTest, NullListsAreEmpty) {
  start_with_movies();
  const auto liked = [&](const std::string& lists) {
    const HttpReply reply =
        score(R"({"candidates":{"liked":[)" + lists + "]}}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return seen_ids("liked", false);
  };
  const int64_t q = liked(R"("q")").ids[0];
  EXPECT_EQ(liked(R"(["q"],null)"), (IdLists{{q}, {0, 1, 1}}));
  EXPECT_EQ(liked(R"(null,["q"])"), (IdLists{{q}, {0, 0, 1}}));
  EXPECT_EQ(liked(R"(null,["q",null],[])"), (IdLists{{q, 0}, {0, 0, 2, 2}}));
  // Without a list, nothing shows that the column has lists, and null is a missing value.
  EXPECT_EQ(liked("null,null"), (IdLists{{0, 0}}));
  EXPECT_EQ(liked(R"(null,"q")"), (IdLists{{0, q}}));
  expect_refusals(
      "/score",
      {{R"({"candidates":{"liked":[null,["q"],"q"]}})",
        "candidates.liked: expected a list, as the first entry is"},
       {R"({"candidates":{"inputs":{"liked":[null,[1]]}}})",
        "expected a list, as the first entry is, but got null"},
       {R"({"candidates":{"movie":[1,2],"columns":{"age":[null,[1]]}}})",
        "age: expected one value, as the pipeline takes, but got a list"}});
}

// What the pipeline makes counts, too, before it is made.
TEST_F(RawValuesTest, MadeValuesAreLimited) {
  std::vector<PipelineOutput> outputs;
  std::map<std::string, ColumnType> types{{"text", ColumnType::kText}};
  for (int64_t i = 0; i < 100; ++i) {
    const std::string number = std::to_string(i);
    outputs.push_back({"feature" + number, {"text"}, Hash{.num_bins = 5}});
  }
  make_model(FeaturePipeline({outputs[0]}, types));
  const std::string list = Json(size_t{200}, "x").dump();
  const std::string body = R"({"candidates":{"text":)" + list + "}}";
  publish(FeaturePipeline(outputs, types));
  start({.max_ids = 2000});
  expect_refused(score(body), "at most 2000 ids");
  outputs.resize(1);
  for (int64_t i = 0; i < 1000; ++i) {
    outputs.push_back(
        {"number" + std::to_string(i), {"n" + std::to_string(i)}, Log1p{}});
  }
  publish(FeaturePipeline(outputs, types));
  start({.max_ids = 2000});
  expect_refused(score(body), "at most 2000 ids");
  start({.max_ids = 20'000});
  EXPECT_EQ(score(body).status, 200);
}

TEST_F(RawValuesTest, ColumnsWithoutATypeAreRefused) {
  const std::string text = pipeline_without_types();
  make_model(movie_pipeline());
  const std::string file = folder_ / "untyped.json";
  std::ofstream(file) << text;
  Publisher(model_, folder_ / "published", {.pipeline = file}).publish();
  start();
  for (const char* value : {"\"x\"", "7"}) {
    expect_refused(
        score(
            R"({"user":{"user":)" + std::string(value) +
            R"(},"candidates":{"movie":[1]}})"),
        "user.user: the pipeline does not say whether this column has text or integers");
  }
  EXPECT_EQ(
      score(R"({"user":{"inputs":{"user":7}},"candidates":{"movie":[1]}})")
          .status,
      200);
}

TEST_F(RawValuesTest, WrongValuesAreNamed) {
  const auto inputs = [] {
    return std::vector<ScoreInputInfo>{
        {.name = "user", .is_of_user = true},
        {.name = "country", .is_of_user = true},
        {.name = "liked", .is_of_user = true},
        {.name = "age", .is_of_user = true, .width = 1},
        {.name = "movie"},
        {.name = "year"}};
  };
  start_with_movies({.inputs = inputs});
  const std::string of_user = R"(},"candidates":{"title":["a9"]}})";
  const auto user = [&](const std::string& values) {
    return R"({"user":{)" + values + of_user;
  };
  const std::string big(1'000'000, 'x');
  expect_refusals(
      "/score",
      {{user(R"("user":42)"),
        "user.user: expected text, as the pipeline takes, but got 42"},
       {user(R"("age":31)"), "user.age: this is a column of the pipeline"},
       {user(R"("country":["fr",["de"]])"), "but got a list"},
       {user(R"("liked":[["a9"]])"), "user.liked: expected text"},
       {user(R"("columns":{"age":"old"})"),
        "user.columns.age: expected a number in the range of float32, but got \"old\". The pipeline has the columns user, country"},
       {user(R"("columns":{"age":[31]})"),
        "user.columns.age: expected one value, as the pipeline takes, but got a list"},
       {user(R"("age":NaN)"), "expected JSON"},
       {user(R"("columns":{"age":1e39})"), "in the range of float32"},
       {user(R"("user":{"a":1})"), "user.user: expected text"},
       {user(R"("user":true)"), "user.user: expected text"},
       {user(R"("film":"a9")"),
        "user.film: expected a number in the range of float32, but got \"a9\". The pipeline has the columns user, country, liked, title"},
       {R"({"candidates":{"title":["a9",7]}})",
        "candidates.title: expected text"},
       {R"({"candidates":{"title":[]}})", "at least one candidate"},
       {R"({"candidates":{"title":["a9"],"inputs":{"year":[1,2]}}})",
        "inputs.year: expected one entry per candidate in each list, but 'title' has 1 and 'year' has 2"},
       {R"({"candidates":{"title":["a9"],"columns":{"year":["1994"]}}})",
        "candidates.columns.year: expected a number"},
       {R"({"user":"Ann","candidates":{"title":["a9"]}})",
        "the inputs of the user"}});
  // Any text is a value, and an empty user has none.
  EXPECT_EQ(score(user(R"("user":"NaN","country":"")")).status, 200);
  EXPECT_EQ(seen_ids("country", true).ids, (std::vector<int64_t>{0}));
  EXPECT_EQ(score(user(R"("user":")" + big + "\"")).status, 200);
  EXPECT_EQ(score(user("")).status, 200);
  EXPECT_EQ(score(user(R"("liked":[])")).status, 200);
  EXPECT_EQ(seen_ids("liked", true), (IdLists{{}, {0, 0}}));
  EXPECT_EQ(score(user(R"("liked":["a9",null])")).status, 200);
  EXPECT_EQ(seen_ids("liked", true).ids[1], 0);
  EXPECT_EQ(seen_ids("liked", true).row_splits, (std::vector<int64_t>{0, 2}));
}

TEST_F(RawValuesTest, IntegersOfTheTrainerAreExact) {
  const FeaturePipeline pipeline(
      {{"key", {"key"}, Hash{.num_bins = 1 << 20}},
       {"bits", {"bits"}, Hash{.num_bins = 1 << 20}},
       {"day", {"day"}, Identity{.num_ids = 7}},
       {"shop",
        {"shop_code"},
        Vocabulary{
            .values = std::vector<int64_t>{3, 4},
            .num_oov_indices = 0,
            .missing = Missing::kError}}},
      {{"key", ColumnType::kInt64}, {"bits", ColumnType::kUInt64Bits}});
  make_model(pipeline);
  publish(pipeline);
  start();
  const auto score_of = [&](const std::string& columns) {
    return score(R"({"candidates":{"columns":{)" + columns + "}}}");
  };
  ASSERT_EQ(
      score_of(
          R"("key":[1152921504606846976,-9223372036854775807],
             "bits":[1152921504606846976,18446744073709551615])")
          .status,
      200);
  const data::PipelineBatch expected = pipeline.apply(columns_of(
      {{"key", integers({1LL << 60, -std::numeric_limits<int64_t>::max()})},
       {"bits", integers({1LL << 60, -1})},
       {"day", integers({0, 0})},
       {"shop_code", integers({3, 3})}}));
  for (const char* name : {"key", "bits"}) {
    EXPECT_EQ(seen_ids(name, false), ids_of(expected.features.at(name).leaf()));
  }
  for (
      const auto& [columns, text] :
      std::vector<std::pair<std::string, std::string>>{
          {R"("key":[9223372036854775808])",
           "candidates.columns.key: expected an integer from -2^63 + 1 to 2^63 - 1, but got 9223372036854775808"},
          {R"("key":[-9223372036854775808])",
           "an integer from -2^63 + 1 to 2^63 - 1, but got -9223372036854775808"},
          {R"("key":[18446744073709551616])", "key: expected an integer"},
          {R"("key":[1.5])", "key: expected an integer"},
          {R"("bits":[-1])", "bits: expected an integer from 0 to 2^64 - 1"},
          {R"("bits":[9223372036854775808])", "that is not 2^63"},
          {R"("bits":[18446744073709551616])", "bits: expected an integer"},
          {R"("day":[7])",
           "FeaturePipeline 'day': Identity ids must be in [0, 7), but got 7"},
          {R"("day":[null])", "'day': Identity a value is missing"},
          {R"("shop_code":[5])",
           "'shop': Vocabulary 5 is not in the vocabulary"},
          {R"("shop_code":[null])", "'shop': Vocabulary a value is missing"}}) {
    SCOPED_TRACE(columns);
    expect_refused(score_of(columns), text);
  }
}

// Small requests must not take much memory.
TEST_F(RawValuesTest, CombinationsAndRepeatedTextAreLimited) {
  const FeaturePipeline pipeline(
      {{"pairs", {"a", "b"}, Cross{.num_bins = 30}}},
      {{"a", ColumnType::kText}, {"b", ColumnType::kText}});
  make_model(pipeline);
  publish(pipeline);
  start({.max_ids = 10'000});
  const Json many(size_t{300}, "x");
  const Json few(size_t{5}, "x");
  const auto body = [&](const Json& a, const Json& b) {
    return Json{
        {"user", {{"a", a}, {"b", b}}}, {"candidates", {{"price", {1}}}}}
        .dump();
  };
  expect_refused(score(body(many, many)), "at most 10000 ids");
  ASSERT_EQ(score(body(many, few)).status, 200);
  EXPECT_EQ(seen_ids("pairs", true).ids.size(), 1500U);
  const Json repeated{
      {"user", {{"a", std::string(64'000, 'x')}}},
      {"candidates", {{"b", few}}}};
  EXPECT_EQ(score(repeated.dump()).status, 200);
  const Json too_often{
      {"user", {{"a", std::string(64'000, 'x')}}},
      {"candidates", {{"b", Json(size_t{10}, "x")}}}};
  expect_refused(score(too_often.dump()), "at most 10000 ids");
}

TEST_F(RawValuesTest, LookupsTakeRawValues) {
  start_with_movies();
  const auto vectors = [&](const std::string& body) {
    const HttpReply reply = post("/lookup", body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json_of(reply)["vectors"].dump();
  };
  EXPECT_EQ(
      vectors(R"({"feature":"movie","values":["b1","zz",null]})"),
      vectors(R"({"feature":"movie","ids":[3,1,0]})"));
  EXPECT_EQ(
      vectors(R"({"feature":"movie","values":{"title":["b1"]}})"),
      vectors(R"({"feature":"movie","ids":[3]})"));
  EXPECT_EQ(
      vectors(R"({"feature":"year","values":[1994]})"),
      vectors(R"({"feature":"year","ids":[2]})"));
  const IdLists taste = ids_of(
      movie_pipeline().apply(columns_of_body()).features.at("taste").leaf());
  EXPECT_EQ(
      vectors(
          R"({"feature":"taste","values":{"country":["fr","fr"],"genre":["drama","crime"]}})"),
      vectors(R"({"feature":"taste","ids":)" + Json(taste.ids).dump() + "}"));
  expect_refusals(
      "/lookup",
      {{R"({"feature":"taste","values":["fr"]})",
        "values: expected an object with lists for the columns country, genre, from which the pipeline makes 'taste'"},
       {R"({"feature":"taste","values":{"genre":["x"]}})",
        "makes the input 'taste' from the columns country, genre"},
       {R"({"feature":"movie","values":{"title":["a9"],"genre":["x"]}})",
        "values.genre: the pipeline makes 'movie' from the columns title. Leave this one out."},
       {R"({"feature":"taste","values":{"country":["fr"],"genre":["x","y"]}})",
        "values.genre: expected one entry per example in each list"},
       {R"({"feature":"movie","values":["a9"],"ids":[1]})", "but got both"},
       {R"({"feature":"movie","values":[["a9"]],"weights":[[1]]})",
        "but got both"},
       {R"({"feature":"movie","values":"a9"})",
        "values.title: expected a list with one entry per example"},
       {R"({"feature":"movie","values":[]})", "at least one example"},
       {R"({"feature":"movie","values":{}})", "an object with lists"},
       {R"({"feature":"movie","values":{"x":[1]}})",
        "values.x: expected a column"},
       {R"({"feature":"movie","values":[7]})", "values.title: expected text"},
       {R"({"feature":"movie","ids":["a9"]})", "ids: expected an id"},
       {R"({"feature":"movie"})", "missing key 'ids'"}});
}

TEST_F(RawValuesTest, FunctionsMakeColumns) {
  const FeaturePipeline pipeline(
      {{"decade", {"decade"}, Hash{.num_bins = 20}},
       {"user", {"user"}, Hash{.num_bins = 50}}},
      {{"decade", ColumnType::kInt64}, {"user", ColumnType::kText}});
  make_model(pipeline);
  publish(pipeline);
  // snippet: ColumnFunction
  ServerOptions options;
  options.functions["decade"] = {
      .columns = {{"year", PipelineColumn::Type::kInt64}},
      .function = [](const RawColumns& columns) {
        auto years =
            std::get<std::vector<int64_t>>(columns.find("year")->values);
        for (int64_t& year : years) {
          year -= year == kMissing ? 0 : year % 10;
        }
        return RawColumns::Column{.values = std::move(years)};
      }};
  // end snippet
  start(options);
  const data::PipelineBatch expected = pipeline.apply(columns_of(
      {{"decade", integers({1990, 1980})}, {"user", text({"x", "x"})}}));
  const IdLists ids = ids_of(expected.features.at("decade").leaf());
  ASSERT_EQ(
      score(R"({"user":{"user":"x"},"candidates":{"year":[1994,1985]}})")
          .status,
      200);
  EXPECT_EQ(seen_ids("decade", false), ids);
  ASSERT_EQ(
      score(
          R"({"user":{"user":"x"},"candidates":{"columns":{"decade":[1990,1980]}}})")
          .status,
      200);
  EXPECT_EQ(seen_ids("decade", false), ids);
  EXPECT_EQ(
      json_of(post(
          "/lookup",
          R"({"feature":"decade","values":{"year":[1994]}})"))["vectors"],
      json_of(post(
          "/lookup", R"({"feature":"decade","values":[1990]})"))["vectors"]);
  // Without the function, the column must be sent.
  start();
  expect_refused(
      post("/lookup", R"({"feature":"decade","values":{"year":[1994]}})"),
      "values.year: expected a column, which are decade, user");
}

TEST_F(RawValuesTest, AnswersAreOfOnePipeline) {
  start_with_movies();
  const std::string other = folder_ / "other.json";
  const auto publish_before_scores = [&](const FeaturePipeline& pipeline) {
    server_ = std::make_unique<Server>(
        reader_,
        ServerOptions{.port = 0},
        [&, pipeline](std::span<const ScoreRequest> requests) {
          seen_ = requests[0];
          if (reader_->version()->number() % 2 == 1) {
            publish(pipeline);
            reader_->refresh();
          }
          return std::vector<ScoreResult>{
              {.version = reader_->version()->number(), .scores = {0.5F}}};
        });
    return HttpClient(server_->port())
        .post("/score", R"({"candidates":{"title":["a9"]}})");
  };
  EXPECT_EQ(reader_->version()->number(), 1);
  const HttpReply same = publish_before_scores(movie_pipeline());
  EXPECT_EQ(same.status, 200) << same.body;
  EXPECT_EQ(json_of(same)["version"], 2);
  publish(movie_pipeline());
  reader_->refresh();
  std::vector<PipelineOutput> outputs = movie_pipeline().outputs();
  outputs[3].transform = Vocabulary{.values = Texts{"c3", "b1", "a9"}};
  const FeaturePipeline changed(outputs, movie_pipeline().types());
  const HttpReply refused = publish_before_scores(changed);
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_CONTAINS(refused.body, "A version with another pipeline arrived");
  // The next request is of the new version.
  EXPECT_EQ(score(R"({"candidates":{"title":["a9"]}})").status, 200);
  EXPECT_EQ(seen_ids("movie", false).ids, (std::vector<int64_t>{4}));
}

TEST_F(RawValuesTest, ADamagedPipelineIsAnError) {
  make_model(movie_pipeline());
  const std::string file = folder_ / "damaged.json";
  std::ofstream(file) << R"({"format_version":2})";
  Publisher(model_, folder_ / "published", {.pipeline = file}).publish();
  start();
  for (const HttpReply& reply :
       {score(R"({"candidates":{"title":["a9"]}})"),
        score(R"({"candidates":{"columns":{"year":[1994]}}})"),
        post("/lookup", R"({"feature":"movie","values":[1]})"),
        post("/lookup", R"({"feature":"movie","ids":["a9"]})")}) {
    EXPECT_EQ(reply.status, 503);
    EXPECT_CONTAINS(reply.body, "[pipeline] missing key 'outputs'");
  }
  // Ids need no pipeline.
  EXPECT_EQ(score(R"({"candidates":{"inputs":{"movie":[1]}}})").status, 200);
  EXPECT_EQ(score(R"({"candidates":{"movie":[1]}})").status, 200);
  EXPECT_EQ(post("/lookup", R"({"feature":"movie","ids":[1]})").status, 200);
  EXPECT_EQ(score(R"({"candidates":{"movie":[1.5]}})").status, 400);
  EXPECT_EQ(version()["problem"].get<std::string>().find("[pipeline] "), 0U);
  EXPECT_EQ(version()["columns"], Json::array());
  EXPECT_EQ(HttpClient(server_->port()).get("/healthz").status, 200);
}

TEST_F(RawValuesTest, FunctionsAreChecked) {
  const FeaturePipeline pipeline(
      {{"decade", {"decade"}, Hash{.num_bins = 20}},
       {"year", {"year"}, Bucketize{.boundaries = {1990}}}},
      {{"decade", ColumnType::kInt64}, {"year", ColumnType::kInt64}});
  make_model(pipeline);
  publish(pipeline);
  using Type = PipelineColumn::Type;
  const auto start_with = [&](std::vector<PipelineColumn> columns,
                              RawColumns::Column result) {
    ServerOptions options;
    options.functions["decade"] = {
        .columns = std::move(columns),
        .function = [result](const RawColumns&) { return result; }};
    start(options);
  };
  const std::string body = R"({"candidates":{"columns":{"year":[1994,1985]}}})";
  start_with({{"year", Type::kInt64}}, {std::vector<int64_t>{1990, 1980}});
  EXPECT_EQ(score(body).status, 200);
  EXPECT_EQ(seen_.candidates.size(), 2U);
  // The types and lists of the function's columns hold.
  expect_refusals(
      "/score",
      {{R"({"candidates":{"columns":{"year":[[1994,1985],[]]}}})",
        "year: expected one value"},
       {R"({"candidates":{"columns":{"year":[1994.5,1985]}}})",
        "year: expected an integer"},
       {R"({"candidates":{"columns":{"year":["1994",null]}}})",
        "year: expected an integer"}});
  // A wrong result is the fault of the server.
  for (const RawColumns::Column& wrong :
       {RawColumns::Column{std::vector<int64_t>{1990}},
        RawColumns::Column{std::vector<float>{1990, 1980}},
        RawColumns::Column{std::vector<std::string>{"1990", "1980"}},
        RawColumns::Column{std::vector<int64_t>{1990}, {{0, 1, 3}}}}) {
    start_with({{"year", Type::kInt64}}, wrong);
    EXPECT_EQ(score(body).status, 500);
  }
  // Problems are logged once per second.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(score(body).status, 500);
  EXPECT_CONTAINS(
      ::testing::internal::GetCapturedStderr(),
      "the function of 'decade' returned a wrong column");
  // So is an exception that would otherwise tell of a wrong request.
  ServerOptions throwing;
  throwing.functions["decade"] = {
      .columns = {{"year", Type::kInt64}},
      .function = [](const RawColumns&) -> RawColumns::Column {
        throw std::out_of_range("not for clients");
      }};
  start(throwing);
  const HttpReply reply = score(body);
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(reply.body.find("not for clients"), std::string::npos);
  start_with(
      {{"year", Type::kInt64}, {"month", Type::kInt64}},
      {std::vector<int64_t>{1990}});
  expect_refusals(
      "/score",
      {{R"({"user":{"month":1},"candidates":{"columns":{"year":[1994]}}})",
        "makes the column 'decade' from the columns year, month. Send all of them, on one side."},
       {R"({"candidates":{"columns":{"year":[1994]}}})", "on one side"}});
  EXPECT_EQ(
      post("/lookup", R"({"feature":"year","values":[1994]})").status, 200);
  start_with({{"year", Type::kText}}, {std::vector<int64_t>{1990}});
  EXPECT_CONTAINS(
      score(R"({"candidates":{"title":["x"]}})").body,
      "reads the column 'year' with another type");

  const auto refuse = [&](const ColumnFunction& function,
                          const std::string& text) {
    ServerOptions options;
    options.functions["decade"] = function;
    EXPECT_INVALID_ARGUMENT(start(options), text);
  };
  const auto none = [](const RawColumns&) { return RawColumns::Column(); };
  refuse({.columns = {{"year", Type::kInt64}}}, "'decade' needs a function");
  refuse({.function = none}, "'decade' needs a function and the columns");
  refuse({.columns = {{"year"}}, .function = none}, "with its type");
  refuse(
      {.columns = {{"year", Type::kInt64}, {"year", Type::kInt64}},
       .function = none},
      "each once");
}

// GET /version begins to read the pipeline, and does not wait for it.
TEST_F(RawValuesTest, VersionsWithDifferentPipelinesTakeTurns) {
  const auto pipeline_of = [](const std::string& first) {
    Texts texts{first};
    for (int64_t i = 0; i < 100'000; ++i) {
      texts.push_back("text " + std::to_string(i));
    }
    return FeaturePipeline({{"word", {"text"}, Vocabulary{.values = texts}}});
  };
  make_model(pipeline_of("a"));
  publish(pipeline_of("a"));
  const Reader first(folder_ / "published", {.follow = false});
  publish(pipeline_of("b"));
  const Reader second(folder_ / "published", {.follow = false});
  int64_t number = 0;
  start({.version = [&] {
    return (number % 2 == 0 ? first : second).version();
  }});
  EXPECT_TRUE(version()["columns"].is_null());
  for (; number < 20; ++number) {
    const Json body =
        json_of(post("/score", R"({"candidates":{"text":["b"]}})"));
    EXPECT_EQ(seen_ids("word", false).ids[0], number % 2 == 0 ? 1 : 2) << body;
  }
  for (int i = 0; version()["columns"].is_null() && i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(version()["columns"].size(), 1U);
}

// Reading a pipeline does not keep the bytes of its version.
TEST_F(RawValuesTest, PipelinesDoNotKeepVersions) {
  start_with_movies();
  const std::weak_ptr<const void> bytes = reader_->version()->base_memory();
  const auto uses = bytes.use_count();
  EXPECT_EQ(score(R"({"candidates":{"movie":[1]}})").status, 200);
  for (int i = 0; bytes.use_count() > uses && i < 1000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(bytes.use_count(), uses);
}

TEST_F(RawValuesTest, AVersionFunctionMustGiveAVersion) {
  start_with_movies({.version = [] { return nullptr; }});
  EXPECT_EQ(score(R"({"candidates":{"movie":[1]}})").status, 500);
  EXPECT_EQ(post("/lookup", R"({"feature":"movie","ids":[1]})").status, 200);
}

// A score function may have a function version() of its own.
struct NumberedScorer {
  std::vector<ScoreInputInfo> inputs() const {
    return {{.name = "movie"}};
  }
  int64_t version() const {
    return 7;
  }
  std::vector<ScoreResult> operator()(
      std::span<const ScoreRequest> /*requests*/) const {
    return {{.version = version(), .scores = {0.5F}}};
  }
};

TEST_F(RawValuesTest, AScorerMayHaveAnotherVersion) {
  start_with_movies();
  server_ = std::make_unique<Server>(
      reader_, ServerOptions{.port = 0}, NumberedScorer());
  // Only raw values need the pipeline of the version that scores.
  EXPECT_EQ(score(R"({"candidates":{"inputs":{"movie":[1]}}})").status, 200);
  EXPECT_EQ(score(R"({"candidates":{"title":["a9"]}})").status, 503);
}

// A pipeline of a larger model makes ids that the tables do not have.
TEST_F(RawValuesTest, APipelineThatDoesNotFitIsAnError) {
  make_model(movie_pipeline());
  std::vector<PipelineOutput> outputs = movie_pipeline().outputs();
  outputs[0].transform = Identity{.num_ids = 1 << 30};
  outputs[1].name = "land";
  publish(FeaturePipeline(
      outputs, {{"liked", ColumnType::kText}, {"genre", ColumnType::kText}}));
  start();
  expect_refused(
      post("/lookup", R"({"feature":"user","values":[99999]})"),
      "feature 'user': its table 'user' has ids in [0, 50), but got 99999");
  expect_refused(
      post("/lookup", R"({"feature":"country","values":["fr"]})"),
      "values: this version has no pipeline that makes 'country'");
}

}  // namespace tessera::serving::raw_values_test
