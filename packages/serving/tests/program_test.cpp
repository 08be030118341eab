// SPDX-License-Identifier: Apache-2.0
// The dense part of a published model: Program and ProgramScorer.
#include <tessera/serving/program.h>
#include <tessera/serving/program_scorer.h>

#include <tessera/common/json_text.h>
#include <tessera/export/export_pt2.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers.h>
#include <tessera/serving/publisher.h>

#include "packages/serving/src/format/version_file.h"
#include "packages/serving/tests/http_client.h"
#include "src/common/checksum.h"
#include "tests/features/feature_builders.h"
#include "tests/temporary_folder.h"

#include <torch/csrc/jit/api/module.h>

#include <sstream>

namespace tessera::program_test {

using serving::IdLists;
using serving::Program;
using serving::ProgramScorer;
using serving::Publisher;
using serving::Reader;
using serving::ScoreInput;
using serving::ScoreRequest;
using serving::ScoreResult;
using serving::Server;

struct RankerImpl : torch::nn::Module {
  RankerImpl() {
    const auto users =
        make_table({.name = "users", .vocabulary_size = 50, .dim = 4});
    const auto movies = make_table(
        {.name = "movies",
         .vocabulary_size = 80,
         .dim = 4,
         .combiner = Combiner::kMean});
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"user", FeatureConfig{.table = users}},
                 {"watched", FeatureConfig{.table = movies}},
                 {"movie", FeatureConfig{.table = movies}},
                 {"session",
                  FeatureConfig{.table = movies, .max_sequence_length = 3}},
                 {"tags", FeatureConfig{.table = movies}}},
            .optimizer = optim::Adagrad{.learning_rate = 0.1}}));
    dots = register_module("dots", DotInteraction());
    tower = register_module("tower", MLP(MLPOptions{.units = {16, 1}}));
  }

  at::Tensor forward(
      const Features& features,
      const at::Tensor& age,
      const at::Tensor& price) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    const at::Tensor session = rows["session"].sum(1);
    return tower
        ->forward(
            {{"dots",
              dots->forward(
                  {{"user", rows["user"]},
                   {"watched", rows["watched"]},
                   {"movie", rows["movie"]},
                   {"tags", rows["tags"]}})},
             {"session", session},
             {"movie", rows["movie"]},
             {"age", age},
             {"price", price}})
        .squeeze(1);
  }

  TPUEmbedding embedding{nullptr};
  DotInteraction dots{nullptr};
  MLP tower{nullptr};
};
TORCH_MODULE(Ranker);

RaggedFeature bags(std::vector<int64_t> ids, std::vector<int64_t> row_splits) {
  return {at::tensor(ids, at::kLong), at::tensor(row_splits, at::kLong)};
}

ExportExample example() {
  return {
      .features =
          {{"user", at::tensor({3}, at::kLong)},
           {"watched", bags({1, 2}, {0, 2})},
           {"movie", at::tensor({1, 2, 3}, at::kLong)},
           {"session", bags({5, 6}, {0, 2})},
           {"tags", bags({1, 2, 3}, {0, 1, 1, 3})}},
      .inputs = {at::rand({1, 1}), at::rand({3, 2})}};
}

IdLists& ids_of(ScoreInput& input) {
  return std::get<IdLists>(input.values);
}

ScoreRequest request_of(const ExportExample& batch) {
  const auto ids = [&](const char* name) {
    const Feature feature = batch.features[name];
    ScoreInput input{.name = name};
    IdLists& read = ids_of(input);
    const auto to_vector = [](const at::Tensor& tensor) {
      const auto* first = tensor.const_data_ptr<int64_t>();
      return std::vector<int64_t>(first, first + tensor.numel());
    };
    if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
      read.ids = to_vector(ragged->values);
      read.row_splits = to_vector(ragged->row_splits);
      input.rows = ragged->row_splits.numel() - 1;
    } else {
      read.ids = to_vector(std::get<at::Tensor>(feature));
      input.rows = std::ssize(read.ids);
    }
    return input;
  };
  const auto numbers = [](const char* name, const at::Tensor& tensor) {
    const auto* first = tensor.const_data_ptr<float>();
    return ScoreInput{
        .name = name,
        .values = std::vector<float>(first, first + tensor.numel()),
        .rows = tensor.size(0)};
  };
  return {
      .user =
          {ids("user"),
           ids("watched"),
           ids("session"),
           numbers("age", batch.inputs[0])},
      .candidates =
          {ids("movie"), ids("tags"), numbers("price", batch.inputs[1])},
      .num_candidates = batch.inputs[1].size(0)};
}

RaggedFeature random_bags(const std::vector<int64_t>& row_splits) {
  return {
      at::randint(80, {row_splits.back()}, at::kLong),
      at::tensor(row_splits, at::kLong)};
}

ExportExample random_example(int64_t candidates) {
  const int64_t watched = candidates % 4;
  std::vector<int64_t> splits{0};
  for (int64_t i = 0; i < candidates; ++i) {
    splits.push_back(splits.back() + i % 3);
  }
  return {
      .features =
          {{"user", at::randint(50, {1}, at::kLong)},
           {"watched", random_bags({0, watched})},
           {"movie", at::randint(80, {candidates}, at::kLong)},
           {"session", random_bags({0, candidates % 5})},
           {"tags", random_bags(splits)}},
      .inputs = {at::rand({1, 1}), at::rand({candidates, 2})}};
}

// Publishes a model with its program.
class ProgramTest : public ::testing::Test {
 protected:
  ProgramTest() {
    export_dense_pt2(model_, program_, example(), {"age", "price"});
    publisher_ = std::make_unique<Publisher>(
        model_,
        directory_,
        serving::PublishOptions{.keep_last = 100, .program = program_});
    publisher_->publish();
  }

  void train() {
    const ExportExample batch = random_example(30);
    torch::optim::SGD optimizer(model_->parameters(), 0.5);
    model_->train();
    optimizer.zero_grad();
    ExportExample full = batch;
    at::Tensor scores =
        model_->forward(full.features, full.inputs[0], full.inputs[1]);
    (scores - 1).square().mean().backward();
    optimizer.step();
    model_->eval();
  }

  std::vector<float> expected(const ExportExample& batch) {
    const at::NoGradGuard no_grad;
    model_->eval();
    const at::Tensor scores =
        model_->forward(batch.features, batch.inputs[0], batch.inputs[1]);
    const auto* first = scores.const_data_ptr<float>();
    return {first, first + scores.numel()};
  }

  static void expect_close(
      const std::vector<float>& actual,
      const std::vector<float>& expected) {
    test::expect_close(at::tensor(actual), at::tensor(expected), 1e-4, 1e-4);
  }

  Ranker model_;
  TemporaryFolder folder_;
  std::string program_ = folder_ / "program";
  std::string directory_ = folder_ / "published";
  std::unique_ptr<Publisher> publisher_;
};

TEST_F(ProgramTest, ScoresAreThoseOfTheModel) {
  const auto reader = std::make_shared<Reader>(directory_);
  const ProgramScorer score(reader);
  EXPECT_FALSE(score.program()->is_compiled());
  for (const int64_t candidates : {1, 2, 3, 40}) {
    const ExportExample batch = random_example(candidates);
    const std::vector<ScoreRequest> requests{request_of(batch)};
    const std::vector<ScoreResult> results = score(requests);
    ASSERT_EQ(results.size(), 1U);
    EXPECT_EQ(results[0].error, "");
    EXPECT_EQ(results[0].version, 1);
    expect_close(results[0].scores, expected(batch));
  }
}

TEST_F(ProgramTest, TheCodeOfTheDocsRuns) {
  const std::string published = directory_;
  const auto reader = std::make_shared<Reader>(published);
  const ExportExample batch = random_example(3);
  const at::NoGradGuard no_grad;
  const Nest<at::Tensor> rows = model_->embedding->forward(batch.features);
  const auto splits = [&](const char* name) {
    return std::get<RaggedFeature>(batch.features[name]).row_splits;
  };
  const std::vector<at::Tensor> inputs{
      rows["user"],
      rows["watched"],
      rows["movie"],
      rows["session"],
      rows["tags"],
      splits("watched"),
      splits("session"),
      batch.inputs[0],
      batch.inputs[1]};
  // snippet: Program
  const Program program(reader->version());
  std::cout << to_string(program.signature());  // the names of the inputs
  const at::Tensor scores = program.run(inputs)[0];
  // end snippet
  expect_close(
      {scores.const_data_ptr<float>(), scores.const_data_ptr<float>() + 3},
      expected(batch));
  // snippet: ProgramScorer
  const ProgramScorer score(reader);
  const Server server(reader, {.port = 0}, score);
  // end snippet
  const Json version =
      parse_json(HttpClient(server.port()).get("/version").body);
  EXPECT_EQ(
      version["inputs"].dump(),
      R"([{"name":"user","side":"user","values":"ids","width":0,"vocabulary_size":50},)"
      R"({"name":"watched","side":"user","values":"ids","width":0,"vocabulary_size":80},)"
      R"({"name":"movie","side":"candidates","values":"ids","width":0,"vocabulary_size":80},)"
      R"({"name":"session","side":"user","values":"ids","width":0,"vocabulary_size":80},)"
      R"({"name":"tags","side":"candidates","values":"ids","width":0,"vocabulary_size":80},)"
      R"({"name":"age","side":"user","values":"numbers","width":1},)"
      R"({"name":"price","side":"candidates","values":"numbers","width":2}])");
}

TEST_F(ProgramTest, RequestsOfABatchAreIndependent) {
  const auto reader = std::make_shared<Reader>(directory_);
  const ProgramScorer score(reader);
  std::vector<ExportExample> batches;
  std::vector<ScoreRequest> requests;
  for (const int64_t candidates : {3, 1, 7, 20, 2}) {
    batches.push_back(random_example(candidates));
    requests.push_back(request_of(batches.back()));
  }
  std::vector<ScoreResult> results = score(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(results[i].error, "");
    expect_close(results[i].scores, expected(batches[i]));
  }

  // A wrong request does not disturb the others.
  ids_of(requests[2].candidates[0]).ids[0] = 80;
  results = score(requests);
  EXPECT_CONTAINS(results[2].error, "80");
  for (const size_t i : {0, 1, 3, 4}) {
    EXPECT_EQ(results[i].error, "");
    expect_close(results[i].scores, expected(batches[i]));
  }
}

TEST_F(ProgramTest, TablesAndDenseWeightsChangeTogether) {
  const auto reader = std::make_shared<Reader>(
      directory_, serving::ReaderOptions{.follow = false});
  const ProgramScorer score(reader);
  const ExportExample batch = random_example(9);
  const std::vector<ScoreRequest> requests{request_of(batch)};
  const std::shared_ptr<const Program> first = score.program();
  const std::vector<float> before = expected(batch);
  for (int64_t version = 2; version <= 6; ++version) {
    train();
    publisher_->publish({.base = version == 4});
    // Until the reader takes it, the old version serves.
    EXPECT_EQ(score(requests)[0].version, version - 1);
    ASSERT_TRUE(reader->refresh());
    const ScoreResult result = score(requests)[0];
    EXPECT_EQ(result.version, version);
    expect_close(result.scores, expected(batch));
    EXPECT_NE(result.scores, before);
  }
  // A request that has begun with an old version ends with it.
  EXPECT_EQ(first->version().number(), 1);
}

// Each result must be that of one whole version.
TEST_F(ProgramTest, NoRequestMixesVersions) {
  const ExportExample batch = random_example(6);
  const std::vector<ScoreRequest> requests{request_of(batch)};
  std::map<int64_t, std::vector<float>> by_version{{1, expected(batch)}};
  const auto reader = std::make_shared<Reader>(directory_);
  const ProgramScorer score(reader);
  std::atomic<bool> stops = false;
  std::vector<std::vector<ScoreResult>> results(2);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < results.size(); ++i) {
    threads.emplace_back([&, i] {
      while (!stops) {
        results[i].push_back(score(requests)[0]);
      }
    });
  }
  for (int64_t version = 2; version <= 30; ++version) {
    train();
    by_version[version] = expected(batch);
    publisher_->publish({.base = version % 10 == 0});
  }
  while (score(requests)[0].version < 30) {
    std::this_thread::yield();
  }
  stops = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& of_thread : results) {
    EXPECT_FALSE(of_thread.empty());
    for (const ScoreResult& result : of_thread) {
      ASSERT_EQ(result.error, "");
      expect_close(result.scores, by_version.at(result.version));
    }
  }
}

TEST_F(ProgramTest, WrongRequestsAreNamed) {
  const auto reader = std::make_shared<Reader>(directory_);
  const ProgramScorer score(reader);
  const auto error_of = [&](auto&& change) {
    ScoreRequest request = request_of(random_example(3));
    change(request);
    return score(std::vector<ScoreRequest>{request})[0].error;
  };
  using Change = std::function<void(ScoreRequest&)>;
  for (const auto& [change, text] : std::vector<std::pair<Change, std::string>>{
           {[](auto& request) { request.user.erase(request.user.begin()); },
            "expected 'user' in user, but the request does not have it. Add "
            "what is missing."},
           {[](auto& request) { request.candidates.pop_back(); },
            "expected 'price' in candidates, but the request does not have "
            "it. Add what is missing."},
           {[](auto& request) {
              request.user.push_back(
                  {.name = "agee", .values = std::vector<float>{1}, .rows = 1});
            },
            "expected an input of the model, but got 'agee'. Correct the "
            "name, or leave it out. GET /version of the server lists the "
            "inputs."},
           {[](auto& request) {
              std::swap(request.user.back(), request.candidates.back());
            },
            "expected 'price' in candidates, but got it in user. Move it."},
           {[](auto& request) {
              std::get<std::vector<float>>(request.candidates.back().values)
                  .pop_back();
            },
            "'price' must have 2 numbers for each of 3 rows, but has 5 in "
            "total. Correct the request."}}) {
    EXPECT_EQ(error_of(change), "[ProgramScorer] " + text);
  }
  EXPECT_EQ(
      error_of([](ScoreRequest& request) {
        request.user[0].values = IdLists{{1, 2}, {0, 2}};
      }),
      "");  // a bag of two users is combined
}

TEST_F(ProgramTest, RowsThatDoNotFitAreNamed) {
  const auto reader = std::make_shared<Reader>(directory_);
  const ProgramScorer score(reader);
  EXPECT_TRUE(score(std::vector<ScoreRequest>{}).empty());
  const std::vector<ScoreRequest> good{request_of(random_example(2))};
  const auto error_of = [&](auto&& change) {
    std::vector<ScoreRequest> requests{good[0], good[0]};
    change(requests[0]);
    const std::vector<ScoreResult> results = score(requests);
    EXPECT_EQ(results[1].error, "");
    return results[0].error;
  };
  EXPECT_EQ(
      error_of([](ScoreRequest& request) {
        ids_of(request.candidates[0]).ids.push_back(1);
      }),
      "[ProgramScorer] 'movie' must have 2 rows, but has 2 rows with 3 ids. "
      "Correct the request.");
  EXPECT_EQ(
      error_of([](ScoreRequest& request) {
        ids_of(request.candidates[0]).ids.push_back(1);
        request.candidates[0].rows = 3;
      }),
      "[ProgramScorer] 'movie' must have 2 rows, but has 3 rows with 3 ids. "
      "Correct the request.");
  for (const std::vector<int64_t>& splits :
       {std::vector<int64_t>{0, 2},
        std::vector<int64_t>{0, 3, 2},
        std::vector<int64_t>{1, 1, 2},
        std::vector<int64_t>{0, 1, 1}}) {
    EXPECT_NE(
        error_of([&](ScoreRequest& request) {
          ids_of(request.candidates[0]).row_splits = splits;
        }),
        "");
  }
  // Also if another request of the batch has lists, of which ids < 0 are dropped.
  std::vector<ScoreRequest> requests{good[0], good[0]};
  ids_of(requests[0].candidates[0]).ids[0] = -1;
  ids_of(requests[1].candidates[0]).row_splits = {0, 1, 2};
  const std::vector<ScoreResult> results = score(requests);
  EXPECT_CONTAINS(results[0].error, "must have ids >= 0");
  EXPECT_EQ(results[1].error, "");
}

TEST_F(ProgramTest, OldVersionsAreFreed) {
  const auto reader = std::make_shared<Reader>(
      directory_, serving::ReaderOptions{.follow = false});
  const ProgramScorer score(reader);
  const std::vector<ScoreRequest> requests{request_of(random_example(2))};
  std::vector<std::weak_ptr<const serving::Version>> versions;
  for (int i = 0; i < 6; ++i) {
    versions.push_back(reader->version());
    train();
    publisher_->publish({.base = i == 3});
    reader->refresh();
    score(requests);
  }
  versions.pop_back();  // the reader keeps one version before the newest
  for (const auto& version : versions) {
    EXPECT_TRUE(version.expired());
  }
}

TEST_F(ProgramTest, TheVersionIsTheNewestThatCanBeLoaded) {
  const auto reader = std::make_shared<Reader>(
      directory_, serving::ReaderOptions{.follow = false});
  const ProgramScorer score(reader);
  EXPECT_EQ(score.version()->number(), 1);
  publisher_->publish();
  reader->refresh();
  EXPECT_EQ(score.version()->number(), 2);
  publisher_.reset();
  Publisher(model_, directory_).publish();  // without a program
  reader->refresh();
  EXPECT_EQ(reader->version()->number(), 3);
  EXPECT_EQ(score.version()->number(), 2);
}

TEST_F(ProgramTest, AVersionWithoutAProgramDoesNotServe) {
  const auto reader = std::make_shared<Reader>(
      directory_, serving::ReaderOptions{.follow = false});
  const ProgramScorer score(reader);
  publisher_.reset();
  Publisher without(model_, directory_);
  without.publish();
  reader->refresh();
  EXPECT_EQ(reader->version()->number(), 2);
  const std::vector<ScoreRequest> requests{request_of(random_example(2))};
  for (int i = 0; i < 3; ++i) {
    const ScoreResult result = score(requests)[0];
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.version, 1);
  }
}

TEST_F(ProgramTest, ADamagedProgramIsRefusedWhenItIsPublished) {
  publisher_.reset();
  const std::string whole = read_text(program_);
  Texts damaged;
  for (const size_t bytes : {size_t{0}, size_t{100}, whole.size() - 1}) {
    damaged.push_back(whole.substr(0, bytes));
  }
  // The middle is in a weight or in code. LibTorch does not notice such damage.
  damaged.push_back(whole);
  damaged.back()[whole.size() / 2] ^= 1;
  for (const std::string& bytes : damaged) {
    const std::string path = folder_.write("damaged", bytes);
    EXPECT_THROW(
        Publisher(
            model_,
            folder_ / "sixth",
            serving::PublishOptions{.program = path}),
        c10::Error)
        << bytes.size() << " bytes";
    EXPECT_FALSE(std::filesystem::exists(folder_ / "sixth/CURRENT"));
  }
}

TEST_F(ProgramTest, AProgramThatDoesNotFitIsRefusedWhenItIsMade) {
  EXPECT_VALUE_ERROR(
      ProgramScorer(nullptr),
      "[ProgramScorer] expected a reader, but got nullptr");
  EXPECT_VALUE_ERROR(
      Program(nullptr), "[Program] expected a version, but got nullptr");
  publisher_.reset();
  const std::string other = folder_ / "other";
  {
    Publisher without(model_, other);
    without.publish();
  }
  const auto reader = std::make_shared<Reader>(other);
  EXPECT_VALUE_ERROR(
      ProgramScorer{reader}, "[Program] version 1 has no program");

  Ranker changed;
  changed->tower =
      changed->replace_module("tower", MLP(MLPOptions{.units = {8, 1}}));
  const ExportExample batch = example();
  changed->forward(batch.features, batch.inputs[0], batch.inputs[1]);
  EXPECT_VALUE_ERROR(
      Publisher(
          changed,
          folder_ / "third",
          serving::PublishOptions{.program = program_}),
      "Program] with_weights: the weight 'tower.linear_0.weight' must be a dense "
      "tensor");
  // The dense weights are the same, and the tables are not.
  struct ScaledImpl : torch::nn::Module {
    explicit ScaledImpl(int64_t dim) {
      embedding = register_module(
          "embedding",
          TPUEmbedding(TPUEmbeddingOptions{
              .features = {
                  {"user", feature_of("users", 9, dim)},
                  {"movie", feature_of("movies", 9, dim)}}}));
    }
    at::Tensor forward(const Features& features) {
      const Nest<at::Tensor> rows = embedding->forward(features);
      return (rows["user"] * rows["movie"]).sum(1);
    }
    TPUEmbedding embedding{nullptr};
  };
  const torch::nn::ModuleHolder<ScaledImpl> narrow(4);
  const torch::nn::ModuleHolder<ScaledImpl> wide(8);
  const std::string of_narrow = folder_ / "narrow";
  export_dense_pt2(
      narrow,
      of_narrow,
      {.features = {
           {"user", at::tensor({3}, at::kLong)},
           {"movie", at::tensor({1, 2}, at::kLong)}}});
  EXPECT_VALUE_ERROR(
      Publisher(
          wide.ptr(),
          folder_ / "fifth",
          serving::PublishOptions{.program = of_narrow}),
      "options.program takes the feature 'user' with another dim");
  EXPECT_VALUE_ERROR(
      Publisher(
          model_,
          folder_ / "fourth",
          serving::PublishOptions{.compiled_program = program_}),
      "options.compiled_program needs options.program");
  EXPECT_NO_THROW(Publisher(
      model_,
      folder_ / "seventh",
      {.program = program_, .compiled_program = program_}));
}

// What a Publisher of a development state of Tessera 0.3 may have published.
std::string torchscript_program() {
  torch::jit::Module module("Ranker");
  module.define("def forward(self, user, movie):\n  return user * movie\n");
  std::ostringstream stream;
  module.save(stream, {{"tessera.json", "{}"}});
  const std::string bytes = stream.str();
  return bytes + checksum_ending(checksum_of(bytes));
}

std::string folder_of_first(const std::string& directory) {
  return directory + "/version_0000000001/";
}

serving::VersionFile read_first(const std::string& directory) {
  return serving::version_from_text(
      read_text(folder_of_first(directory) + "version.json"), "[test]");
}

void write_first(
    const std::string& directory,
    const serving::VersionFile& file) {
  const std::string text = to_text(file);
  std::ofstream(folder_of_first(directory) + "version.json") << text;
  std::ofstream(directory + "/CURRENT") << to_text(
      serving::VersionLink{.version = 1, .xxh3 = serving::checksum_in(text)});
}

// Replaces the program of the version that CURRENT names.
void replace_program(const std::string& directory, const std::string& bytes) {
  const std::string path = folder_of_first(directory) + "data";
  std::string data = read_text(path);
  data.resize((data.size() + 63) / 64 * 64);
  serving::VersionFile file = read_first(directory);
  ASSERT_EQ(file.files.size(), 1U);
  file.files[0].bytes = {
      .offset = static_cast<int64_t>(data.size()),
      .bytes = static_cast<int64_t>(bytes.size()),
      .xxh3 = checksum_of(bytes)};
  data += bytes + std::string(64, '\0');
  file.data_bytes = static_cast<int64_t>(data.size());
  std::ofstream(path) << data;
  write_first(directory, file);
}

// A Reader compares the shape of a weight with its bytes only if it knows the dtype.
TEST_F(ProgramTest, OtherNamesOfDtypesAreRefused) {
  publisher_.reset();
  serving::VersionFile file = read_first(directory_);
  file.dense.at(0).dtype = "float";
  write_first(directory_, file);
  const Reader reader(directory_);
  EXPECT_VALUE_ERROR(
      Program{reader.version()},
      "a dense weight has the dtype 'float', which a program can't read.");
}

TEST_F(ProgramTest, OnlyLookupsOfAVersionWithTorchScriptWork) {
  publisher_.reset();
  replace_program(directory_, torchscript_program());
  const auto reader = std::make_shared<Reader>(directory_);
  const std::shared_ptr<const serving::Version> version = reader->version();
  const std::vector<int64_t> ids{3};
  std::vector<float> row(4);
  version->lookup(version->feature("user"), {.ids = ids}, row);
  const at::NoGradGuard no_grad;
  const at::Tensor user =
      model_->embedding->forward(example().features)["user"].contiguous();
  EXPECT_EQ(
      row,
      std::vector<float>(
          user.const_data_ptr<float>(), user.const_data_ptr<float>() + 4));
  const std::string advice =
      "the file is TorchScript, which only torch::jit::load runs. Export the "
      "model with export_pt2(), or its dense part with export_dense_pt2().";
  EXPECT_VALUE_ERROR(
      Program{version},
      "[Program] version 1 has a program that can't be loaded: ");
  EXPECT_VALUE_ERROR(Program{version}, advice);
  EXPECT_VALUE_ERROR(ProgramScorer{reader}, advice);
  EXPECT_VALUE_ERROR(
      Publisher(
          model_,
          folder_ / "other",
          {.program = folder_.write("program.pt", torchscript_program())}),
      advice);

  // The next version with another program serves.
  Publisher(model_, directory_, {.program = program_}).publish();
  const auto later = std::make_shared<Reader>(directory_);
  const ExportExample batch = random_example(5);
  const ScoreResult result =
      ProgramScorer(later)(std::vector<ScoreRequest>{request_of(batch)})[0];
  EXPECT_EQ(result.version, 2);
  expect_close(result.scores, expected(batch));
}

}  // namespace tessera::program_test
