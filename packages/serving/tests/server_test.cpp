// SPDX-License-Identifier: Apache-2.0
// The HTTP server, asked by clients with plain sockets.
#include <tessera/common/json_text.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/data/transforms.h>
#include <tessera/serving/publisher.h>
#include <tessera/serving/server.h>

#include "packages/serving/tests/http_client.h"
#include "packages/serving/tests/published_model.h"
#include "tests/test_files.h"

#include <sys/resource.h>

namespace tessera::serving::server_test {

constexpr const char* kLookup = R"({"feature":"movie","ids":[3,1,4]})";
constexpr const char* kScore =
    R"({"user":{"user":42,"age":31.5},"candidates":{"movie":[1,2,3]}})";

// The bodies of requests with these ids of movies.
std::string lookup_of(const std::string& ids) {
  return R"({"feature":"movie","ids":[)" + ids + "]}";
}
std::string score_of(const std::string& ids) {
  return R"({"candidates":{"movie":[)" + ids + "]}}";
}

Json json_of(const HttpReply& reply) {
  return parse_json(reply.body);
}

// Expects {"error": ...} with this status and text, and without names of C++.
void expect_error(const HttpReply& reply, int status, const std::string& text) {
  EXPECT_EQ(reply.status, status) << reply.body;
  ASSERT_EQ(reply.headers.at("content-type"), "application/json");
  const Json json = json_of(reply);
  ASSERT_TRUE(json.contains("error")) << reply.body;
  const std::string error = json["error"];
  EXPECT_CONTAINS(error, text);
  EXPECT_FALSE(error.starts_with('[')) << error;
  EXPECT_EQ(error.find("::"), std::string::npos) << error;
  EXPECT_EQ(error.find("()"), std::string::npos) << error;
}

// Expects that the client is told to come again.
void expect_busy(const HttpReply& reply, const std::string& text) {
  expect_error(reply, 503, text);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
}

int64_t first_id(const ScoreRequest& request) {
  return std::get<IdLists>(request.candidates[0].values).ids[0];
}

// Gives 0.5, 1.5, ... to the candidates.
ScoreResult counted_scores(const ScoreRequest& request) {
  ScoreResult result{.version = 1};
  for (int64_t i = 0; i < request.num_candidates; ++i) {
    result.scores.push_back(static_cast<float>(i) + 0.5F);
  }
  return result;
}

std::vector<ScoreResult> score_all(std::span<const ScoreRequest> requests) {
  std::vector<ScoreResult> results;
  for (const ScoreRequest& request : requests) {
    results.push_back(counted_scores(request));
  }
  return results;
}

// A score function that waits until it may go on, and counts.
class BlockedScore {
 public:
  ScoreFunction function() {
    return [this](std::span<const ScoreRequest> requests) {
      std::unique_lock<std::mutex> lock(mutex_);
      calls_.push_back(requests.size());
      has_changed_.notify_all();
      has_changed_.wait(lock, [this] { return is_open_; });
      lock.unlock();
      return score_all(requests);
    };
  }
  // Waits until a thread of the server is in the function.
  void wait_for_call() {
    std::unique_lock<std::mutex> lock(mutex_);
    has_changed_.wait(lock, [this] { return !calls_.empty(); });
  }
  void open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_open_ = true;
    has_changed_.notify_all();
  }
  // The number of requests of each call.
  std::vector<size_t> calls() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return calls_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_changed_;
  bool is_open_ = false;
  std::vector<size_t> calls_;
};

class ServerTest : public ::testing::Test {
 protected:
  ServerTest()
      : model_(std::make_shared<PublishedModel>()),
        publisher_(model_, folder_ / "published") {
    train();
    publisher_.publish({.step = 70, .metrics = {{"loss", 0.25}}});
    reader_ = std::make_shared<Reader>(
        folder_ / "published", ReaderOptions{.follow = false});
  }

  void train() {
    model_->learn(model_->random_batch(random_));
  }

  Server& start(ServerOptions options = {}, ScoreFunction score = {}) {
    options.port = 0;
    server_ = std::make_unique<Server>(reader_, options, std::move(score));
    return *server_;
  }

  HttpClient connect() const {
    return HttpClient(server_->port());
  }
  // A client that has sent this.
  HttpClient sent(const std::string& text) const {
    HttpClient client = connect();
    client.send(text);  // a server that refuses it may close before the end
    return client;
  }
  HttpReply get(const std::string& path) const {
    return connect().get(path);
  }
  HttpReply post(const std::string& path, const std::string& body) const {
    return connect().post(path, body);
  }

  // The value of a line of /metrics.
  double metric(const std::string& name) const {
    const std::string text = "\n" + get("/metrics").body;
    const size_t begin = text.find("\n" + name + " ");
    if (begin == std::string::npos) {
      return -1.0;
    }
    return std::atof(text.c_str() + begin + name.size() + 2);
  }
  void wait_for_metric(const std::string& name, double value) const {
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (metric(name) != value) {
      ASSERT_LT(std::chrono::steady_clock::now(), end) << name;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }

  // Expects that these bodies are refused with these texts.
  void expect_refusals(
      const std::string& path,
      const std::vector<std::pair<std::string, std::string>>& rows) const {
    for (const auto& [body, text] : rows) {
      SCOPED_TRACE(body);
      expect_error(post(path, body), 400, text);
    }
  }
  void expect_alive() const {
    EXPECT_EQ(get("/healthz").status, 200);
    EXPECT_EQ(post("/lookup", kLookup).status, 200);
  }

  TemporaryFolder folder_;
  std::mt19937_64 random_{5};
  std::shared_ptr<PublishedModel> model_;
  Publisher publisher_;
  std::shared_ptr<Reader> reader_;
  std::unique_ptr<Server> server_;
};

TEST_F(ServerTest, ShowsThePage) {
  start();
  const HttpReply reply = get("/");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(
      reply.headers.at("content-security-policy"),
      "default-src 'self' 'unsafe-inline'");
  EXPECT_EQ(
      reply.body,
      read_text(test_file("../packages/serving/src/server/page.html")));
  EXPECT_EQ(get("/?x=1").body, reply.body);
}

TEST_F(ServerTest, TellsWhatServes) {
  start();
  const HttpReply health = get("/healthz");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(health.body, R"({"status":"ok","version":1})");

  const Json version = json_of(get("/version"));
  EXPECT_EQ(version["version"], 1);
  EXPECT_EQ(version["base"], 1);
  EXPECT_EQ(version["step"], 70);
  EXPECT_EQ(version["time"], reader_->version()->time());
  EXPECT_GE(version["age_seconds"], 0.0);
  EXPECT_EQ(version["metrics"].dump(), R"({"loss":0.25})");
  EXPECT_EQ(version["newest"], 1);
  EXPECT_EQ(version["pinned"], false);
  EXPECT_EQ(version["taken"], 1);
  EXPECT_EQ(version["problem"], "");
  ASSERT_EQ(version["features"].size(), reader_->version()->features().size());
  EXPECT_EQ(
      version["features"][reader_->version()->feature("session")].dump(),
      R"({"name":"session","table":"movies","dim":16,"combiner":"mean","sequence_length":3})");
  EXPECT_EQ(version["inputs"].dump(), "[]");
  ASSERT_EQ(version["tables"].size(), 3U);
  EXPECT_EQ(
      version["tables"][reader_->version()->table("words")].dump(),
      R"({"name":"words","dim":10,"format":"float32","rows":500,"overlaid_rows":0,"has_keys":false,"vocabulary_size":500})");
}

TEST_F(ServerTest, TellsTheInputsOfTheScoreFunction) {
  const auto& reader = reader_;
  const ScoreFunction score = score_all;
  // snippet: ScoreInputInfo
  const auto inputs = [] {
    return std::vector<ScoreInputInfo>{
        {.name = "age", .is_of_user = true, .width = 2}, {.name = "movie"}};
  };
  const Server server(reader, {.port = 0, .inputs = inputs}, score);
  // end snippet
  EXPECT_EQ(
      json_of(HttpClient(server.port()).get("/version"))["inputs"].dump(),
      R"([{"name":"age","side":"user","values":"numbers","width":2},)"
      R"({"name":"movie","side":"candidates","values":"ids","width":0,"vocabulary_size":3000}])");
}

TEST_F(ServerTest, TellsOfAProblem) {
  start();
  train();
  publisher_.publish();
  std::ofstream(folder_ / "published/version_0000000002/data", std::ios::trunc);
  EXPECT_THROW(reader_->refresh(), std::exception);
  const HttpReply health = get("/healthz");
  EXPECT_EQ(health.status, 200);
  EXPECT_EQ(json_of(health)["version"], 1);
  EXPECT_CONTAINS(
      json_of(health)["problem"].get<std::string>(), "version_0000000002");
  EXPECT_EQ(json_of(get("/version"))["problem"], json_of(health)["problem"]);
}

// One value per example, or one list.
template <class T>
Json nested(const std::vector<T>& values, const std::vector<int64_t>& splits) {
  if (splits.empty()) {
    return values;
  }
  Json lists = Json::array();
  for (size_t i = 0; i + 1 < splits.size(); ++i) {
    lists.push_back(std::vector<T>(
        values.begin() + splits[i], values.begin() + splits[i + 1]));
  }
  return lists;
}

void append_floats(const Json& json, std::vector<float>& floats) {
  if (json.is_array()) {
    for (const Json& item : json) {
      append_floats(item, floats);
    }
  } else {
    floats.push_back(json.get<float>());
  }
}

// All numbers of the answer to a lookup.
std::vector<float> vectors_in(const Json& answer) {
  std::vector<float> floats;
  append_floats(answer["vectors"], floats);
  return floats;
}

TEST_F(ServerTest, LookupsHaveTheBitsOfTheVersion) {
  start();
  HttpClient client = connect();
  for (const auto& [name, batch] : model_->random_batch(random_)) {
    SCOPED_TRACE(name);
    Json request{
        {"feature", name}, {"ids", nested(batch.ids, batch.row_splits)}};
    if (!batch.weights.empty()) {
      request["weights"] = nested(batch.weights, batch.row_splits);
    }
    const HttpReply reply = client.post("/lookup", request.dump());
    ASSERT_EQ(reply.status, 200) << reply.body;
    const Json answer = json_of(reply);
    EXPECT_EQ(answer["version"], 1);
    EXPECT_EQ(answer["feature"], name);
    const size_t examples = batch.row_splits.empty()
        ? batch.ids.size()
        : batch.row_splits.size() - 1;
    ASSERT_EQ(answer["vectors"].size(), examples);
    const Json& first = answer["vectors"][0];
    if (name == "session") {
      ASSERT_EQ(first.size(), 3U);
      EXPECT_EQ(first[0].size(), answer["dim"].get<size_t>());
    } else {
      EXPECT_EQ(first.size(), answer["dim"].get<size_t>());
    }
    expect_same_bits(
        vectors_in(answer), look_up(*reader_->version(), name, batch));
  }
  EXPECT_EQ(
      client.post("/lookup", R"({"feature":"movie","ids":[]})").body,
      R"({"version":1,"feature":"movie","dim":16,"vectors":[]})");
  EXPECT_EQ(
      client.post("/lookup", R"({"feature":"watched","ids":[[],[]]})").status,
      200);
}

TEST_F(ServerTest, RefusesWrongLookups) {
  start({.max_ids = 1000});
  const Json ids(size_t{600}, Json::array({1}));
  expect_refusals(
      "/lookup",
      {{"", "the text is empty"},
       {"{", "expected JSON"},
       {"[1]", "expected an object"},
       {"\xff", "expected JSON"},
       {"{}", "missing key 'feature'"},
       {R"({"feature":"movie"})", "missing key 'ids'"},
       {R"({"feature":7,"ids":[1]})", "feature: expected the name"},
       {R"({"feature":"film","ids":[1]})", "there is no feature 'film'"},
       {R"({"feature":"movie","ids":7})", "ids: expected a list, but got 7"},
       {R"({"feature":"movie","ids":[1],"x":1})", "unknown key 'x'"},
       {R"({"feature":"movie","ids":[1],"ids":[2]})", "the key 'ids' twice"},
       {R"({"feature":"movie","ids":[1.0]})", "an integer from -2^63"},
       {R"({"feature":"movie","ids":["1"]})", "but got \"1\""},
       {R"({"feature":"movie","ids":[null]})", "but got null"},
       {R"({"feature":"user","ids":[9223372036854775808]})",
        "but got 9223372036854775808"},
       {R"({"feature":"user","ids":[-9223372036854775809]})",
        "an integer from -2^63"},
       {R"({"feature":"movie","ids":[NaN]})", "expected JSON"},
       {R"({"feature":"movie","ids":[3000]})", "has ids in [0, 3000)"},
       {R"({"feature":"session","ids":[1]})",
        "ids: expected a list of ids for each example, such as [[3,1],[4]], "
        "because the feature 'session' is a sequence"},
       {R"({"feature":"movie","ids":[1],"weights":[1]})",
        "weights: expected none, because only lists of ids are combined"},
       {R"({"feature":"watched","ids":[[1],2]})", "as the first entry is"},
       {R"({"feature":"movie","ids":[1,[2]]})", "but got a list"},
       {R"({"feature":"watched","ids":[[1],[[2]]]})", "but got a list"},
       {R"({"feature":"watched","ids":[[1,2]],"weights":[[1]]})",
        "but got 1 weights for 2 ids"},
       {R"({"feature":"watched","ids":[[1]],"weights":[1]})",
        "weights: expected a list, but got 1"},
       {R"({"feature":"watched","ids":[[1,2]],"weights":[]})",
        "one list per list of ids"},
       {R"({"feature":"watched","ids":[[1]],"weights":[[Infinity]]})",
        "expected JSON"},
       {R"({"feature":"watched","ids":[[1]],"weights":[[1e400]]})",
        "expected JSON"},
       {R"({"feature":"watched","ids":[[1]],"weights":[[1e39]]})",
        "in the range of float32"},
       {std::string(1000, '[') + std::string(1000, ']'), "levels deep"},
       {Json{{"feature", "watched"}, {"ids", ids}}.dump(),
        "at most 1000 ids, numbers and rows"}});

  EXPECT_EQ(
      post("/lookup", R"({"feature":"user","ids":[9223372036854775807,
                        -9223372036854775808]})")
          .status,
      200);
  expect_alive();
}

// Each number that the server writes is one that it reads.
TEST_F(ServerTest, TakesEveryFloatAsItWritesIt) {
  const std::vector<float> numbers{
      std::numeric_limits<float>::max(),
      std::numeric_limits<float>::lowest(),
      std::numeric_limits<float>::min(),
      std::numeric_limits<float>::denorm_min(),
      -0.0F,
      0.0F,
      16777216.0F,
      1e-45F};
  std::vector<float> seen;
  start({}, [&](std::span<const ScoreRequest> requests) {
    seen = std::get<std::vector<float>>(requests[0].candidates[0].values);
    return std::vector<ScoreResult>{{.version = 1, .scores = numbers}};
  });
  HttpClient client = connect();
  const auto score = [&](const std::string& list) {
    return client.post("/score", R"({"candidates":{"price":)" + list + "}}");
  };
  const HttpReply first = score("[1,1,1,1,1,1,1,1]");
  const std::string list = first.body.substr(first.body.find('['));
  EXPECT_EQ(
      list,
      "[3.4028235e+38,-3.4028235e+38,1.1754944e-38,1e-45,-0.0,0,16777216,1e-45]}");
  const HttpReply second = score(list.substr(0, list.size() - 1));
  ASSERT_EQ(second.status, 200) << second.body;
  EXPECT_EQ(
      std::memcmp(seen.data(), numbers.data(), numbers.size() * sizeof(float)),
      0);
  // Beyond them, numbers are rounded to zero or refused.
  EXPECT_EQ(score("[1e-400,1e-300,-1e-46,0,0,0,0,0]").status, 200);
  EXPECT_EQ(seen[0], 0.0F);
  expect_error(score("[3.4028236e38]"), 400, "in the range of float32");
}

TEST_F(ServerTest, TextIsRefusedWithWhatToDo) {
  start({}, score_all);
  for (const auto& [path, body] :
       std::vector<std::pair<std::string, std::string>>{
           {"/lookup", R"({"feature":"movie","ids":["Heat"]})"},
           {"/score", R"({"candidates":{"movie":["Heat"]}})"},
           {"/score", R"({"user":{"user":"Ann"},"candidates":{"movie":[1]}})"},
           {"/score", R"({"candidates":{"price":["cheap"]}})"}}) {
    expect_error(
        post(path, body),
        400,
        "This version has no pipeline, so the server takes no text. Send the ids and numbers with which the model was trained");
  }
  // With a pipeline, the ids and numbers are those of the pipeline.
  const std::string pipeline = folder_ / "pipeline.json";
  save_pipeline(
      data::FeaturePipeline(
          {{.name = "movie",
            .columns = {"title"},
            .transform = data::transforms::Hash{.num_bins = 9}}},
          {{"title", data::ColumnType::kText}}),
      pipeline);
  Publisher(
      std::make_shared<PublishedModel>(),
      folder_ / "other",
      {.pipeline = pipeline})
      .publish();
  const Server other(
      std::make_shared<Reader>(folder_ / "other"), {.port = 0}, score_all);
  expect_error(
      HttpClient(other.port())
          .post("/score", R"({"candidates":{"movie":["Heat"]}})"),
      400,
      "candidates.movie: expected an id, which is an integer from -2^63 to 2^63 - 1, but got \"Heat\". "
      "The pipeline has the columns title.");
}

TEST_F(ServerTest, RefusesAnAnswerThatIsTooLong) {
  start();
  Json ids(size_t{90000}, Json::array());
  ids[0].push_back(1);
  expect_error(
      post("/lookup", Json{{"feature", "session"}, {"ids", ids}}.dump()),
      400,
      "at most 4194304 numbers in the answer, but it would have 4320000");
}

TEST_F(ServerTest, TheScoreFunctionGetsTheInputs) {
  std::vector<ScoreRequest> seen;
  start({}, [&](std::span<const ScoreRequest> requests) {
    seen.assign(requests.begin(), requests.end());
    return score_all(requests);
  });
  const HttpReply reply = post(
      "/score",
      R"({"user":{"user":42,"watched":[7,8,9],"age":31.5,"place":[1,2.5]},
          "candidates":{"movie":[1,2,3],"session":[[1],[2,3],[]],
                        "price":[1.5,2,3],"image":[[1,2],[3,4],[5,6]]}})");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.body, R"({"version":1,"scores":[0.5,1.5,2.5]})");
  ASSERT_EQ(seen.size(), 1U);
  const ScoreRequest& request = seen[0];
  EXPECT_EQ(request.num_candidates, 3);
  ASSERT_EQ(request.user.size(), 4U);
  ASSERT_EQ(request.candidates.size(), 4U);
  const auto expect_input = [](const ScoreInput& got,
                               const ScoreInput& expected) {
    EXPECT_EQ(got.name, expected.name);
    EXPECT_TRUE(got.values == expected.values) << got.name;
    EXPECT_EQ(got.rows, expected.rows);
  };
  using Ids = IdLists;
  using Numbers = std::vector<float>;
  expect_input(request.user[0], {"user", Ids{{42}}, 1});
  expect_input(request.user[1], {"watched", Ids{{7, 8, 9}, {0, 3}}, 1});
  expect_input(request.user[2], {"age", Numbers{31.5F}, 1});
  expect_input(request.user[3], {"place", Numbers{1.0F, 2.5F}, 1});
  expect_input(request.candidates[0], {"movie", Ids{{1, 2, 3}}, 3});
  expect_input(
      request.candidates[1], {"session", Ids{{1, 2, 3}, {0, 1, 3, 3}}, 3});
  expect_input(request.candidates[2], {"price", Numbers{1.5F, 2, 3}, 3});
  expect_input(request.candidates[3], {"image", Numbers{1, 2, 3, 4, 5, 6}, 3});
}

TEST_F(ServerTest, RefusesWrongScoreRequests) {
  start({}, score_all);
  expect_refusals(
      "/score",
      {{"nonsense", "expected JSON"},
       {"{}", "missing key 'candidates'"},
       {R"({"candidates":{}})", "one list per input"},
       {R"({"candidates":[1]})", "one list per input"},
       {R"({"candidates":{"movie":7}})", "one entry per candidate"},
       {R"({"candidates":{"movie":[]}})", "at least one candidate"},
       {R"({"candidates":{"movie":[1,2,3],"price":[1.5,2]}})",
        "but 'movie' has 3 and 'price' has 2"},
       {R"({"candidates":{"movie":[1.5]}})",
        "candidates.movie: expected an id"},
       {R"({"candidates":{"movie":[1,"a"]}})", "but got \"a\""},
       {R"({"candidates":{"price":["a"]}})",
        "candidates.price: expected a number"},
       {R"({"candidates":{"price":[1e300]}})", "in the range of float32"},
       {R"({"candidates":{"tags":[[1],[2,3]]}})",
        "'tags' is not a feature; the features are movie"},
       {R"({"candidates":{"tags":[[],[]]}})", "at least one number"},
       {R"({"candidates":{"session":[[1],2]}})", "as the first entry is"},
       {R"({"user":7,"candidates":{"movie":[1]}})", "the inputs of the user"},
       {R"({"user":{"user":1.5},"candidates":{"movie":[1]}})",
        "user.user: expected an id"},
       {R"({"user":{"age":[]},"candidates":{"movie":[1]}})",
        "user.age: expected at least one number"},
       {R"({"user":{"movie":1},"candidates":{"movie":[1]}})",
        "Name each input once"},
       {R"({"candidates":{"movie":[1]},"k":5})", "unknown key 'k'"}});

  EXPECT_EQ(post("/score", score_of("1")).status, 200);
}

TEST_F(ServerTest, ErrorsOfTheScoreFunctionReachOnlyTheirRequest) {
  start({}, [](std::span<const ScoreRequest> requests) {
    std::vector<ScoreResult> results = score_all(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      switch (first_id(requests[i])) {
        case 1:
          results[i].error = "no such film";
          break;
        case 2:
          throw std::invalid_argument("wrong film");
        case 3:
          throw std::out_of_range("far film");
        case 4:
          throw std::runtime_error("a secret");
        case 5:
          results[i].scores[0] = std::numeric_limits<float>::quiet_NaN();
          break;
        case 6:
          results[i].scores.push_back(1.0F);
          break;
        case 7:
          results.pop_back();
          break;
        case 8:
          throw 8;  // not a std::exception
      }
    }
    return results;
  });
  const auto score = [&](const std::string& id) {
    return post("/score", score_of(id));
  };
  expect_error(score("1"), 400, "no such film");
  expect_error(score("2"), 400, "wrong film");
  expect_error(score("3"), 400, "far film");
  for (const char* id : {"4", "5", "6", "7", "8"}) {
    SCOPED_TRACE(id);
    const HttpReply reply = score(id);
    EXPECT_EQ(reply.status, 500);
    EXPECT_EQ(reply.body, R"({"error":"internal error"})");
  }
  EXPECT_EQ(score("9").status, 200);
}

TEST_F(ServerTest, RequestsThatWaitAreScoredTogether) {
  BlockedScore blocked;
  std::vector<std::vector<int64_t>> batches;
  const ScoreFunction wait = blocked.function();
  start({.max_batch = 4}, [&](std::span<const ScoreRequest> requests) {
    std::vector<ScoreResult> results = wait(requests);
    std::vector<int64_t>& batch = batches.emplace_back();
    for (size_t i = 0; i < requests.size(); ++i) {
      const int64_t id = first_id(requests[i]);
      batch.push_back(id);
      results[i].scores[0] = static_cast<float>(id);
      if (id == 3) {
        throw std::invalid_argument("no three");
      }
    }
    return results;
  });
  std::vector<HttpClient> clients;
  const auto ask = [&](int id) {
    clients.push_back(
        sent(HttpClient::post_text("/score", score_of(std::to_string(id)))));
  };
  ask(0);
  blocked.wait_for_call();
  for (int id = 1; id <= 6; ++id) {
    ask(id);
    wait_for_metric("tessera_queue_length", id);
  }
  blocked.open();
  for (int id = 0; id <= 6; ++id) {
    const HttpReply reply = clients[id].read();
    if (id == 3) {
      expect_error(reply, 400, "no three");
    } else {
      EXPECT_EQ(
          reply.body, R"({"version":1,"scores":[)" + std::to_string(id) + "]}");
    }
  }
  server_->stop();
  // After the exception for four requests, each of them is alone.
  const std::vector<std::vector<int64_t>> expected{
      {0}, {1, 2, 3}, {1}, {2}, {3}, {4}, {5, 6}};
  EXPECT_EQ(batches, expected);
}

TEST_F(ServerTest, LargeRequestsAreScoredAlone) {
  BlockedScore blocked;
  std::vector<size_t> batches;
  const ScoreFunction wait = blocked.function();
  start({.max_batch_bytes = 100}, [&](std::span<const ScoreRequest> requests) {
    batches.push_back(requests.size());
    return wait(requests);
  });
  std::vector<HttpClient> clients;
  const auto ask = [&](const std::string& ids) {
    clients.push_back(sent(HttpClient::post_text("/score", score_of(ids))));
  };
  ask("0");
  blocked.wait_for_call();
  std::string many = "1";
  for (int i = 0; i < 100; ++i) {
    many += ",1";
  }
  const Texts waiting{many, many, "1", "1", many, "1"};
  for (size_t i = 0; i < waiting.size(); ++i) {
    ask(waiting[i]);
    wait_for_metric("tessera_queue_length", static_cast<int>(i) + 1);
  }
  blocked.open();
  for (HttpClient& client : clients) {
    EXPECT_EQ(client.read().status, 200);
  }
  server_->stop();
  // The first two of 230 bytes, and then two small ones with a large one.
  const std::vector<size_t> expected{1, 1, 1, 3, 1};
  EXPECT_EQ(batches, expected);
}

TEST_F(ServerTest, UnknownPathsAndMethods) {
  start();
  HttpClient client = connect();
  expect_error(
      client.get("/nope"),
      404,
      "There is no path '/nope'. Choose one of /, /healthz, /version, /metrics, /lookup, /score, /recommend.");
  expect_error(client.post("/nope", "x"), 404, "There is no path");
  const HttpReply get_reply = client.get("/lookup");
  expect_error(get_reply, 405, "/lookup takes POST, but got GET");
  EXPECT_EQ(get_reply.headers.at("allow"), "POST");
  const HttpReply post_reply = client.post("/version", "{}");
  expect_error(post_reply, 405, "/version takes GET, HEAD, but got POST");
  EXPECT_EQ(post_reply.headers.at("allow"), "GET, HEAD");
  expect_error(
      client.post("/score", kScore), 404, "This server does not score");
  EXPECT_EQ(client.get("/healthz").status, 200);
}

TEST_F(ServerTest, RefusesEncodedBodies) {
  start({}, score_all);
  HttpClient client = connect();
  const auto ask = [&](const std::string& path, const std::string& header) {
    std::string text = HttpClient::post_text(path, kLookup);
    text.insert(text.find("\r\n") + 2, header);
    client.send(text);
    return client.read();
  };
  for (const char* path : {"/lookup", "/score"}) {
    SCOPED_TRACE(path);
    const HttpReply reply = ask(path, "Content-Encoding: gzip\r\n");
    expect_error(reply, 415, "The body has the Content-Encoding 'gzip'");
    EXPECT_EQ(reply.headers.at("accept-encoding"), "identity");
    EXPECT_EQ(reply.headers.at("connection"), "keep-alive");
  }
  expect_error(
      ask("/lookup",
          "Content-Encoding: identity\r\nContent-Encoding:\r\ncontent-encoding: br\r\n"),
      415,
      "the Content-Encoding 'br'");
  expect_error(
      ask("/lookup", "Content-Encoding: identity, br\r\n"),
      415,
      "the Content-Encoding 'identity, br'");
  EXPECT_EQ(ask("/lookup", "Content-Encoding: Identity\r\n").status, 200);
  EXPECT_EQ(ask("/nowhere", "Content-Encoding: br\r\n").status, 404);
  EXPECT_EQ(client.post("/lookup", kLookup).status, 200);
}

TEST_F(ServerTest, ErrorsOfLookupsInTheScoreFunctionConcernTheRequest) {
  start({}, [&](std::span<const ScoreRequest> requests) {
    std::vector<ScoreResult> results = score_all(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const ScoreInput& input = requests[i].candidates[0];
      const auto* ids = std::get_if<IdLists>(&input.values);
      try {
        look_up(
            *reader_->version(),
            input.name,
            {.ids = ids == nullptr ? std::vector<int64_t>() : ids->ids});
      } catch (const std::out_of_range& error) {
        results[i].error = error.what();
      }
    }
    return results;
  });
  expect_error(
      post("/score", score_of("3000")),
      400,
      "feature 'movie': its table 'movies' has ids in [0, 3000), but got 3000 "
      "at position 0. Correct the id");
  expect_error(
      post("/score", R"({"candidates":{"film":[1]}})"),
      400,
      "there is no feature 'film'");
  EXPECT_EQ(post("/score", R"({"candidates":{"movie":[1]}})").status, 200);
}

TEST_F(ServerTest, HeadHasNoBody) {
  start();
  HttpClient client = sent("HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
  const HttpReply reply = client.read(/*has_body=*/false);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(
      reply.headers.at("content-length"),
      std::to_string(client.get("/healthz").body.size()));
}

TEST_F(ServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start({.threads = 3}, score_all);
  HttpClient client = connect();
  std::string text;
  for (int i = 0; i < 50; ++i) {
    text += HttpClient::post_text("/lookup", lookup_of(std::to_string(i)));
    text += HttpClient::post_text("/score", kScore);
    text += "GET /nope" + std::to_string(i) + " HTTP/1.1\r\nHost: a\r\n\r\n";
  }
  ASSERT_TRUE(client.send(text));
  for (int64_t i = 0; i < 50; ++i) {
    EXPECT_EQ(
        vectors_in(json_of(client.read())),
        look_up(*reader_->version(), "movie", {.ids = {i}}));
    EXPECT_EQ(client.read().body, R"({"version":1,"scores":[0.5,1.5,2.5]})");
    expect_error(client.read(), 404, "'/nope" + std::to_string(i) + "'");
  }
}

TEST_F(ServerTest, TakesChunkedBodiesAndSplitRequests) {
  start({.max_body_bytes = 100});
  const std::string expected = post("/lookup", kLookup).body;
  HttpClient client = connect();
  const std::string head =
      "POST /lookup HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  client.send(
      head +
      "9;x=y\r\n{\"feature\r\n18\r\n\":\"movie\",\"ids\":[3,1,4]}\r\n0\r\n\r\n");
  EXPECT_EQ(client.read().body, expected);
  for (const char byte : HttpClient::post_text("/lookup", kLookup)) {
    client.send(std::string(1, byte));
  }
  EXPECT_EQ(client.read().body, expected);
  client.send(head + "80\r\n" + std::string(128, ' '));
  expect_error(client.read(), 413, "at most 100 bytes");
  EXPECT_TRUE(client.waits_for_close());
}

TEST_F(ServerTest, RefusesLargeRequestsWithoutReadingThem) {
  start({.max_body_bytes = 1000});
  HttpClient client =
      sent("POST /lookup HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n");
  const HttpReply reply = client.read();
  expect_error(reply, 413, "at most 1000 bytes");
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_TRUE(client.waits_for_close());

  // A client that sends all before it reads. The server reads on for a second, so that the
  // client does not lose the response. A busy machine may need another try.
  const std::string large =
      HttpClient::post_text("/lookup", std::string(10'000'000, ' '));
  bool is_sent = false;
  int tries = 0;
  for (; !is_sent && tries < 10; ++tries) {
    HttpClient sender = connect();
    is_sent = sender.send(large);
    expect_error(sender.read(), 413, "at most 1000 bytes");
  }
  EXPECT_TRUE(is_sent);

  HttpClient talker =
      sent("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(20000, 'x'));
  expect_error(talker.read(), 431, "at most 16384 bytes");
  EXPECT_TRUE(talker.waits_for_close());
  EXPECT_EQ(
      metric(R"(tessera_rejected_total{reason="body_size"})"), 1.0 + tries);
  EXPECT_EQ(metric(R"(tessera_rejected_total{reason="header_size"})"), 1.0);
  expect_alive();
}

TEST_F(ServerTest, BodiesThatAreBeingReceivedTakeBoundedMemory) {
  start({.max_body_bytes = int64_t{1} << 30});
  {
    // It may become as large as all bodies together.
    HttpClient large = sent(
        "POST /lookup HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
        "Transfer-Encoding: chunked\r\n\r\n");
    EXPECT_EQ(large.read().status, 100);
    HttpClient refused = connect();
    expect_busy(refused.post("/lookup", kLookup), "too many large requests");
    EXPECT_TRUE(refused.waits_for_close());
    EXPECT_EQ(metric(R"(tessera_rejected_total{reason="memory"})"), 1.0);
  }
  wait_for_metric("tessera_connections", 1.0);
  expect_alive();
}

// Its answer of some 8 MB is more than the system keeps for a client that does not read.
std::string large_lookup() {
  return HttpClient::post_text(
      "/lookup",
      Json{{"feature", "movie"}, {"ids", Json(size_t{50000}, Json(7))}}.dump());
}

TEST_F(ServerTest, AnswersThatNobodyReadsTakeBoundedMemory) {
  start({.max_body_bytes = int64_t{1} << 30, .request_seconds = 60.0});
  // It leaves 12 MiB for others.
  HttpClient large = sent(
      "POST /lookup HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
      "Content-Length: " +
      std::to_string((1 << 30) - (12 << 20)) + "\r\n\r\n");
  EXPECT_EQ(large.read().status, 100);
  {
    HttpClient silent = sent(large_lookup());
    wait_for_metric("tessera_lookups_total", 50000.0);
    HttpClient refused = sent(large_lookup());
    expect_busy(refused.read(), "too many large requests and answers");
    EXPECT_EQ(metric(R"(tessera_rejected_total{reason="memory"})"), 1.0);
    // Small answers go on, on the same connection, too.
    EXPECT_EQ(refused.post("/lookup", kLookup).status, 200);
    EXPECT_EQ(get("/healthz").status, 200);
  }
  wait_for_metric("tessera_connections", 2.0);
  HttpClient next = sent(large_lookup());
  EXPECT_EQ(next.read().status, 200);
}

TEST_F(ServerTest, SlowClientsAreSentAway) {
  start({.request_seconds = 0.2, .idle_seconds = 0.4});
  HttpClient header = sent("GET / HT");
  HttpClient body =
      sent("POST /lookup HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n123");
  HttpClient idle = connect();
  for (HttpClient* client : {&header, &body}) {
    expect_error(client->read(), 408, "complete after 0.2 seconds");
    EXPECT_TRUE(client->waits_for_close());
  }
  EXPECT_EQ(idle.read().status, 0);  // closed without a word
  EXPECT_TRUE(idle.waits_for_close());
  EXPECT_EQ(metric(R"(tessera_rejected_total{reason="slow_client"})"), 2.0);
  expect_alive();
}

// A client that never reads its answers, so that the server can't write them.
TEST_F(ServerTest, ClientsThatDoNotReadAreSentAway) {
  start({.request_seconds = 2.0});
  HttpClient client = sent(large_lookup());
  wait_for_metric("tessera_lookups_total", 50000.0);
  wait_for_metric("tessera_connections", 1.0);  // that of /metrics itself
}

TEST_F(ServerTest, AFullQueueRefusesAtOnce) {
  BlockedScore blocked;
  start({.max_queue = 2}, blocked.function());
  HttpClient first = sent(HttpClient::post_text("/score", kScore));
  blocked.wait_for_call();
  HttpClient second = sent(HttpClient::post_text("/score", kScore));
  HttpClient third = sent(HttpClient::post_text("/lookup", kLookup));
  wait_for_metric("tessera_queue_length", 2.0);
  HttpClient refused = connect();
  for (int i = 0; i < 3; ++i) {
    const HttpReply reply = refused.post("/score", kScore);
    expect_busy(reply, "2 requests wait already");
    EXPECT_EQ(reply.headers.at("connection"), "keep-alive");
  }
  EXPECT_EQ(refused.get("/healthz").status, 200);
  EXPECT_EQ(metric(R"(tessera_rejected_total{reason="queue_full"})"), 3.0);
  blocked.open();
  EXPECT_EQ(first.read().status, 200);
  EXPECT_EQ(second.read().status, 200);
  EXPECT_EQ(third.read().status, 200);
  EXPECT_EQ(refused.post("/score", kScore).status, 200);
}

TEST_F(ServerTest, ARequestThatWaitsTooLongIsNotComputed) {
  BlockedScore blocked;
  start({.request_seconds = 0.3}, blocked.function());
  HttpClient first = sent(HttpClient::post_text("/score", kScore));
  blocked.wait_for_call();
  HttpClient second = connect();
  expect_busy(second.post("/score", kScore), "waited too long");
  EXPECT_EQ(metric("tessera_queue_length"), 0.0);
  EXPECT_EQ(metric(R"(tessera_rejected_total{reason="deadline"})"), 1.0);
  blocked.open();
  EXPECT_EQ(first.read().status, 200);  // its computation had begun
  EXPECT_EQ(second.post("/score", kScore).status, 200);
  EXPECT_EQ(blocked.calls(), (std::vector<size_t>{1, 1}));
}

TEST_F(ServerTest, ClientsMayLeaveAtAnyTime) {
  BlockedScore blocked;
  start({}, blocked.function());
  {
    HttpClient computed = sent(HttpClient::post_text("/score", kScore));
    blocked.wait_for_call();
    HttpClient waiting = sent(HttpClient::post_text("/score", kScore));
    wait_for_metric("tessera_queue_length", 1.0);
    HttpClient half = sent("POST /score HTTP/1.1\r\nContent-Le");
    HttpClient silent = connect();
  }
  HttpClient closed_half = sent(HttpClient::post_text("/score", kScore));
  closed_half.end_sending();
  wait_for_metric("tessera_queue_length", 2.0);
  blocked.open();
  EXPECT_EQ(closed_half.read().status, 200);
  wait_for_metric("tessera_connections", 1.0);
  // Half a request is no wrong request.
  EXPECT_EQ(metric(R"(tessera_requests_total{path="other",code="400"})"), -1.0);
  expect_alive();
}

TEST_F(ServerTest, ManyConnectionsAtOnce) {
  constexpr int kClients = 400;
  constexpr int kThreads = 4;
  start({.threads = 2, .max_queue = 1000}, score_all);
  std::atomic<bool> ends = false;
  std::atomic<int> other_answers = 0;
  std::thread other([&] {
    HttpClient client = connect();
    const std::string expected = client.post("/lookup", kLookup).body;
    while (!ends) {
      EXPECT_EQ(client.post("/lookup", kLookup).body, expected);
      ++other_answers;
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<HttpClient> clients;
      for (int i = 0; i < kClients / kThreads; ++i) {
        clients.push_back(connect());
      }
      for (int64_t repeat = 0; repeat < 3; ++repeat) {
        const auto id_of = [&](size_t i) {
          return static_cast<int64_t>(i) * 7 + t + repeat;
        };
        for (size_t i = 0; i < clients.size(); ++i) {
          ASSERT_TRUE(clients[i].send(HttpClient::post_text(
              "/lookup", lookup_of(std::to_string(id_of(i))))));
        }
        for (size_t i = 0; i < clients.size(); ++i) {
          ASSERT_EQ(
              vectors_in(json_of(clients[i].read())),
              look_up(*reader_->version(), "movie", {.ids = {id_of(i)}}));
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  ends = true;
  other.join();
  EXPECT_GT(other_answers, 0);
  wait_for_metric("tessera_connections", 1.0);
}

// The rest would wait without an answer, and the reader could open no new version.
TEST_F(ServerTest, KeepsFilesForTheReader) {
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  start();
  std::vector<HttpClient> clients;
  clients.push_back(connect());
  EXPECT_EQ(clients[0].get("/healthz").status, 200);
  // 64 files for others, of which this process has fewer open, and 8 connections.
  const rlimit low{.rlim_cur = 72, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  for (int i = 0; i < 7; ++i) {
    clients.push_back(connect());
    EXPECT_EQ(clients.back().get("/healthz").status, 200);
  }
  HttpClient ninth = connect();
  EXPECT_TRUE(ninth.waits_for_close());
  EXPECT_EQ(clients[0].get("/healthz").status, 200);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(ServerTest, ClosesConnectionsBeyondTheLimit) {
  start({.max_connections = 2});
  HttpClient first = connect();
  EXPECT_EQ(first.get("/healthz").status, 200);
  HttpClient second = connect();
  EXPECT_EQ(second.get("/healthz").status, 200);
  HttpClient third = connect();
  EXPECT_TRUE(third.waits_for_close());
  const std::string metrics = first.get("/metrics").body;
  EXPECT_CONTAINS(metrics, R"(tessera_rejected_total{reason="connections"} 1)");
  EXPECT_CONTAINS(metrics, "tessera_connections 2\n");
}

// Replaces a value in the JSON by one that is often of another kind.
std::string with_other_value(
    const std::string& body,
    const std::function<size_t(size_t)>& below) {
  const std::vector<Json> others{
      7,
      -1,
      1.5,
      1e300,
      nullptr,
      true,
      "movie",
      Json::array(),
      Json::array({1}),
      Json::array({Json::array({1})}),
      Json::object(),
      Json{{"movie", 1}}};
  Json json = parse_json(body);
  const Json flat = json.flatten();
  auto chosen = flat.begin();
  std::advance(chosen, below(flat.size()));
  Json::json_pointer place(chosen.key());
  while (!place.empty() && below(2) == 0) {
    place = place.parent_pointer();
  }
  json[place] = others[below(others.size())];
  return json.dump();
}

TEST_F(ServerTest, ValuesOfAnotherKindDoNoHarm) {
  start({}, score_all);
  std::mt19937_64 random(19);
  const auto below = [&](size_t end) { return random() % end; };
  const std::vector<std::pair<std::string, std::string>> valid{
      {"/lookup", kLookup},
      {"/lookup",
       R"({"feature":"watched","ids":[[3,1],[4]],"weights":[[1,2],[1]]})"},
      {"/score", kScore},
      {"/score",
       R"({"user":{"watched":[1,2],"place":[1.5,2]},"candidates":{"session":[[1],[2,3]],"image":[[1,2],[3,4]]}})"}};
  HttpClient client = connect();
  std::map<int, int> statuses;
  for (int i = 0; i < 2000; ++i) {
    const auto& [path, body] = valid[below(valid.size())];
    const std::string changed = with_other_value(body, below);
    const HttpReply reply = client.post(path, changed);
    ++statuses[reply.status];
    if (reply.status != 200) {
      expect_error(reply, 400, "");
      ASSERT_FALSE(HasFailure()) << changed;
    }
  }
  EXPECT_GT(statuses[200], 100);
  EXPECT_GT(statuses[400], 100);
  expect_alive();
}

TEST_F(ServerTest, JunkAndMutatedRequestsDoNoHarm) {
  start({.max_body_bytes = 4000, .max_ids = 1000}, score_all);
  std::mt19937_64 random(17);
  const auto below = [&](size_t end) { return random() % end; };
  const Texts valid{
      HttpClient::post_text("/lookup", kLookup),
      HttpClient::post_text(
          "/lookup",
          R"({"feature":"watched","ids":[[3,1],[4]],"weights":[[1,2],[1]]})"),
      HttpClient::post_text("/score", kScore),
      "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n",
      "POST /score HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n2\r\n1}\r\n0\r\n\r\n"};
  std::map<int, int> statuses;
  for (int i = 0; i < 3000; ++i) {
    std::string text = valid[below(valid.size())];
    for (size_t changes = 1 + below(4); changes > 0; --changes) {
      const size_t at = below(text.size());
      switch (below(5)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, 1 + below(5));
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), below(20)));
          break;
        case 3:
          text.insert(at, std::string(below(30), "[{\"0-9,.e}]"[below(11)]));
          break;
        default:
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
      }
      if (text.empty()) {
        text = "x";
      }
    }
    if (i % 10 == 0) {
      for (char& byte : text) {
        byte = static_cast<char>(below(256));
      }
    }
    HttpClient client = connect();
    ASSERT_TRUE(client.is_connected());
    client.send(text);
    client.end_sending();
    while (true) {
      const HttpReply reply = client.read();
      ++statuses[reply.status];
      if (reply.status == 0) {
        break;
      }
      ASSERT_NE(reply.status, 500) << text;
      if (reply.status >= 400) {
        ASSERT_TRUE(json_of(reply).contains("error")) << text;
      }
    }
  }
  EXPECT_GT(statuses[200], 30);
  EXPECT_GT(statuses[400], 100);
  expect_alive();
}

TEST_F(ServerTest, StopAnswersWhatWaits) {
  BlockedScore blocked;
  Server& server = start({}, blocked.function());
  const uint16_t port = server.port();
  std::vector<HttpClient> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(sent(HttpClient::post_text("/score", kScore)));
    if (i == 0) {
      blocked.wait_for_call();
    }
  }
  wait_for_metric("tessera_queue_length", 3.0);
  HttpClient idle = connect();
  EXPECT_EQ(idle.get("/healthz").status, 200);
  std::thread stopper([&] { server.stop(); });
  EXPECT_TRUE(idle.waits_for_close());
  EXPECT_FALSE(HttpClient(port).is_connected());
  blocked.open();
  for (HttpClient& client : clients) {
    const HttpReply reply = client.read();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("connection"), "close");
    EXPECT_TRUE(client.waits_for_close());
  }
  stopper.join();
  server.stop();  // a second time
}

// The body, or the rest of the header, comes after stop() was called.
TEST_F(ServerTest, StopReceivesWhatIsOnItsWay) {
  Server& server = start({.request_seconds = 60.0});
  const std::string lookup = HttpClient::post_text("/lookup", kLookup);
  const size_t body = lookup.find("\r\n\r\n") + 4;
  HttpClient with_body = sent(
      lookup.substr(0, body - 2) + "Expect: 100-continue\r\n\r\n" +
      lookup.substr(body, 5));
  EXPECT_EQ(with_body.read().status, 100);
  HttpClient with_header =
      sent("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /ver");
  EXPECT_EQ(with_header.read().status, 200);
  HttpClient idle = connect();
  EXPECT_EQ(idle.get("/healthz").status, 200);
  std::thread stopper([&] { server.stop(); });
  EXPECT_TRUE(idle.waits_for_close());
  with_body.send(lookup.substr(body + 5));
  with_header.send("sion HTTP/1.1\r\nHost: a\r\n\r\n");
  for (HttpClient* client : {&with_body, &with_header}) {
    const HttpReply reply = client->read();
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.headers.at("connection"), "close");
    EXPECT_TRUE(client->waits_for_close());
  }
  stopper.join();
}

TEST_F(ServerTest, StopDoesNotWaitLongerThanAClientMayTake) {
  Server& server = start({.request_seconds = 0.5});
  HttpClient client = sent(
      "POST /lookup HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n"
      "Content-Length: 10\r\n\r\n");
  EXPECT_EQ(client.read().status, 100);
  server.stop();
  expect_error(client.read(), 408, "complete after 0.5 seconds");
  EXPECT_TRUE(client.waits_for_close());
}

TEST_F(ServerTest, EachAnswerIsOfOneVersion) {
  start({.threads = 2});
  // All clients ask for the same rows, which are so many that a new version often comes
  // in the middle of an answer.
  PublishedBatch batch;
  for (int64_t id = 0; id < 2000; ++id) {
    batch.ids.push_back(id);
  }
  const std::string body =
      Json{{"feature", "movie"}, {"ids", batch.ids}}.dump();
  std::map<int64_t, std::vector<float>> expected;
  expected[1] = look_up(*reader_->version(), "movie", batch);
  std::atomic<bool> ends = false;
  std::vector<Texts> answers(3);
  std::vector<std::thread> clients;
  for (Texts& own : answers) {
    clients.emplace_back([&] {
      HttpClient client = connect();
      while (!ends) {
        std::string answer = client.post("/lookup", body).body;
        if (own.empty() || own.back() != answer) {
          own.push_back(std::move(answer));
        }
      }
    });
  }
  for (int64_t version = 2; version <= 20; ++version) {
    train();
    publisher_.publish();
    ASSERT_TRUE(reader_->refresh());
    expected[version] = look_up(*reader_->version(), "movie", batch);
    // Some answers are of this version.
    EXPECT_EQ(json_of(post("/lookup", body))["version"], version);
  }
  ends = true;
  for (std::thread& client : clients) {
    client.join();
  }
  for (const Texts& own : answers) {
    int64_t last = 0;
    for (const std::string& answer : own) {
      const Json json = parse_json(answer);
      const auto version = json["version"].get<int64_t>();
      EXPECT_GE(version, last);
      last = version;
      ASSERT_EQ(vectors_in(json), expected.at(version))
          << "version " << version;
    }
    EXPECT_FALSE(own.empty());
  }
}

TEST_F(ServerTest, CountsWhatItDoes) {
  start({}, score_all);
  HttpClient client = connect();
  client.post("/score", kScore);
  client.post("/lookup", kLookup);
  client.post("/lookup", "{}");
  client.get("/nope");
  const HttpReply reply = client.get("/metrics");
  EXPECT_EQ(
      reply.headers.at("content-type"),
      "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line :
       {"# TYPE tessera_requests_total counter",
        "# TYPE tessera_request_seconds histogram",
        R"(tessera_requests_total{path="/score",code="200"} 1)",
        R"(tessera_requests_total{path="/lookup",code="200"} 1)",
        R"(tessera_requests_total{path="/lookup",code="400"} 1)",
        R"(tessera_requests_total{path="other",code="404"} 1)",
        R"(tessera_request_seconds_bucket{path="/lookup",le="+Inf"} 2)",
        R"(tessera_request_seconds_count{path="/lookup"} 2)",
        R"(tessera_batch_requests_bucket{le="1"} 1)",
        "tessera_batch_requests_count 1",
        R"(tessera_rejected_total{reason="queue_full"} 0)",
        "tessera_queue_length 0",
        "tessera_connections 1",
        "tessera_version 1",
        "tessera_version_step 70",
        "tessera_versions_taken_total 1",
        "tessera_candidates_total 3",
        "tessera_lookups_total 3"}) {
    EXPECT_CONTAINS("\n" + reply.body, "\n" + std::string(line) + "\n");
  }
}

TEST_F(ServerTest, RefusesWrongOptions) {
  const std::vector<Refusal<ServerOptions>> rows{
      {{.address = "nowhere"},
       "address must be an IP address or \"localhost\", but is 'nowhere'"},
      {{.threads = 0}, "threads must be from 1 to 1024, but is 0"},
      {{.max_queue = 0}, "max_queue must be from 1 to 1000000, but is 0"},
      {{.max_batch = -1}, "max_batch must be from 1 to 1000000, but is -1"},
      {{.max_connections = 0},
       "max_connections must be from 1 to 1000000, but is 0"},
      {{.max_body_bytes = 0},
       "max_body_bytes must be from 1 to 1073741824, but is 0"},
      {{.max_ids = 0}, "max_ids must be from 1 to 1073741824, but is 0"},
      {{.request_seconds = 0.0},
       "request_seconds must be > 0 and at most 86400, but is 0"},
      {{.idle_seconds = std::numeric_limits<double>::quiet_NaN()},
       "idle_seconds must be > 0 and at most 86400, but is nan"}};
  for (const auto& [options, text] : rows) {
    try {
      const Server server(reader_, options);
      ADD_FAILURE() << "expected an error with: " << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(), "[Server] " + text + ". Correct the options.");
    }
  }
  EXPECT_THROW(Server(nullptr, {.port = 0}), std::invalid_argument);
}

TEST_F(ServerTest, APortHasOneServer) {
  const uint16_t port = start({.address = "localhost"}).port();
  try {
    const Server second(reader_, {.port = port});
    ADD_FAILURE() << "expected an error";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "[Server] can't listen on address 127.0.0.1, port " +
            std::to_string(port) +
            ": Address already in use. Choose an address of this machine and another port, or 0 for any.");
  }
  expect_alive();
  // The system remembers a connection that the server has closed.
  HttpClient client = connect();
  EXPECT_EQ(client.get("/healthz").status, 200);
  server_->stop();
  EXPECT_TRUE(client.waits_for_close());
  const Server next(reader_, {.port = port});  // free again
  EXPECT_EQ(HttpClient(port).get("/healthz").status, 200);
}

}  // namespace tessera::serving::server_test
