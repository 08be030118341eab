// SPDX-License-Identifier: Apache-2.0
// Times one user and many candidates: a model on a batch that repeats the user, the same
// model with one row for the user, and the runtimes of a server.
//   candidates_benchmark --write FOLDER     writes the models for compare_candidates.py
//   candidates_benchmark FOLDER --threads N
//   candidates_benchmark FOLDER --serve     answers HTTP requests until its input ends
// Prints one JSON line per model and side.
#include <tessera/export/export_pt2.h>
#include <tessera/features/feature_config.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/models/din_attention.h>
#include <tessera/serving/program_scorer.h>
#include <tessera/serving/publisher.h>
#include <tessera/serving/server.h>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "src/common/check.h"
#include "tests/benchmarks/torch_benchmark.h"

namespace {

using namespace tessera;
using Json = nlohmann::json;

constexpr int64_t kColumns = 13;  // of the user, and of each candidate
constexpr int64_t kNumbers = 13;  // of the user
constexpr int64_t kDim = 16;
// Different requests that take turns.
constexpr size_t kRequests = 32;

const std::vector<std::string> kModels{"click", "dlrm", "two_towers", "din"};

struct Options : BenchmarkOptions {
  std::string& folder =
      text("folder", "folder of the files", "", CLI::ExistingDirectory);
  bool& writes = flag("--write", "write the models, and time nothing");
  bool& serves = flag(
      "--serve",
      "serve the model, with --threads threads, and print the port");
  std::string& model = text(
      "--model",
      "click, dlrm, two_towers or din",
      "click",
      CLI::IsMember(kModels));
  int64_t& rows = integer("--rows", 100'000, "rows of each of the 26 tables");
  int64_t& candidates = integer("--candidates", 500, "candidates of a request");
  int64_t& history = integer("--history", 100, "items in the user's history");
  int64_t& threads = integer("--threads", 1, "threads of one call");
  int64_t& calls = integer("--calls", 200, "timed calls in each round");
  int64_t& rounds = integer(
      "--rounds",
      3,
      "number of rounds, in each of which all sides are timed");

  Options() {
    get_option("folder")->required();
  }
};

std::string column_name(const char* of, int64_t column) {
  return fmt::format("{}{:02}", of, column);
}

// 13 columns of the user and 13 of a candidate with one id each, 13 numbers of the user,
// and for two models the history of the user.
//
//   click       a tower over all of them
//   dlrm        a tower over the dot products of all columns and the numbers
//   two_towers  the dot product of a vector of the user, who has a history, and one of the
//               candidate
//   din         the attention of a Deep Interest Network, and a tower
struct RankerImpl : torch::nn::Module {
  explicit RankerImpl(const Options& options) : kind(options.model) {
    Nest<FeatureConfig>::Map features;
    TablePtr items;
    for (const char* of : {"user", "item"}) {
      for (int64_t i = 0; i < kColumns; ++i) {
        const std::string name = column_name(of, i);
        items = make_table(
            {.name = name, .vocabulary_size = options.rows, .dim = kDim});
        features.emplace_back(name, FeatureConfig{.table = items});
      }
    }
    if (has_history()) {
      // `item12` and the history share a table.
      features.emplace_back(
          "history",
          FeatureConfig{
              .table = items,
              .max_sequence_length = kind == "din" ? options.history : 0});
    }
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features = Nest<FeatureConfig>::map(std::move(features))}));
    if (kind == "two_towers") {
      tower =
          register_module("tower", MLP(MLPOptions{.units = {512, 256, 64}}));
      item_tower =
          register_module("item_tower", MLP(MLPOptions{.units = {64}}));
      return;
    }
    tower = register_module("tower", MLP(MLPOptions{.units = {256, 64, 1}}));
    if (kind == "dlrm") {
      dots = register_module("dots", DotInteraction());
    } else if (kind == "din") {
      attention = register_module(
          "attention",
          DINAttention(DINAttentionOptions{
              .hidden_units = {32}, .activation = DINActivation::kPRelu}));
    }
  }

  bool has_history() const {
    return kind == "two_towers" || kind == "din";
  }

  at::Tensor forward(const Features& features, const at::Tensor& numbers) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    if (kind == "dlrm") {
      return tower
          ->forward({{"dots", dots->forward(rows)}, {"numbers", numbers}})
          .squeeze(1);
    }
    Nest<at::Tensor>::Map user{{"numbers", numbers}};
    Nest<at::Tensor>::Map item;
    rows.for_each([&](const std::string& name, const at::Tensor& leaf) {
      if (name.starts_with("item")) {
        item.emplace_back(name, leaf);
      } else if (leaf.dim() == 2) {
        user.emplace_back(name, leaf);
      }
    });
    if (kind == "two_towers") {
      return (tower->forward(Nest<at::Tensor>::map(std::move(user))) *
              item_tower->forward(Nest<at::Tensor>::map(std::move(item))))
          .sum(1);
    }
    if (kind == "din") {
      item.emplace_back(
          "interest",
          attention->forward(
              rows["item12"],
              rows["history"],
              history_lengths(features["history"])));
    }
    user.insert(user.end(), item.begin(), item.end());
    return tower->forward(Nest<at::Tensor>::map(std::move(user))).squeeze(1);
  }

  std::string kind;
  TPUEmbedding embedding{nullptr};
  DotInteraction dots{nullptr};
  DINAttention attention{nullptr};
  MLP tower{nullptr};
  MLP item_tower{nullptr};
};
TORCH_MODULE(Ranker);

// A request in all forms.
struct Request {
  ExportExample one_user = {};
  ExportExample repeated = {};
  std::vector<at::Tensor> tensors = {};  // of `repeated`, for the package
  std::vector<serving::ScoreRequest> to_score = {};  // one
};

std::vector<int64_t> to_vector(const at::Tensor& ids) {
  const auto* first = ids.const_data_ptr<int64_t>();
  return {first, first + ids.numel()};
}

Request make_request(const Options& options) {
  const int64_t candidates = options.candidates;
  Features::Map one;
  Features::Map all;
  Request request;
  serving::ScoreRequest& score = request.to_score.emplace_back();
  score.num_candidates = candidates;
  for (const char* of : {"user", "item"}) {
    const bool is_user = std::string(of) == "user";
    for (int64_t i = 0; i < kColumns; ++i) {
      const std::string name = column_name(of, i);
      const at::Tensor ids =
          at::randint(options.rows, {is_user ? 1 : candidates}, at::kLong);
      one.emplace_back(name, ids);
      all.emplace_back(name, is_user ? ids.repeat({candidates}) : ids);
      request.tensors.push_back(std::get<at::Tensor>(all.back().second.leaf()));
      (is_user ? score.user : score.candidates)
          .push_back(
              {.name = name,
               .values = serving::IdLists{.ids = to_vector(ids)},
               .rows = ids.numel()});
    }
  }
  if (options.model == "two_towers" || options.model == "din") {
    const int64_t history = options.history;
    const at::Tensor ids = at::randint(options.rows, {history}, at::kLong);
    const auto bag = [](const at::Tensor& values, int64_t rows) {
      return RaggedFeature::from_lengths(
          values, at::full({rows}, values.numel() / rows, at::kLong));
    };
    const RaggedFeature repeated = bag(ids.repeat({candidates}), candidates);
    one.emplace_back("history", bag(ids, 1));
    all.emplace_back("history", repeated);
    request.tensors.push_back(repeated.values);
    request.tensors.push_back(repeated.row_splits);
    score.user.push_back(
        {.name = "history",
         .values = serving::IdLists{to_vector(ids), {0, history}},
         .rows = 1});
  }
  const at::Tensor numbers = at::rand({1, kNumbers});
  const auto* first = numbers.const_data_ptr<float>();
  score.user.push_back(
      {.name = "numbers",
       .values = std::vector<float>(first, first + kNumbers),
       .rows = 1});
  request.one_user = {
      .features = Features::map(std::move(one)), .inputs = {numbers}};
  request.repeated = {
      .features = Features::map(std::move(all)),
      .inputs = {numbers.repeat({candidates, 1})}};
  request.tensors.push_back(request.repeated.inputs[0]);
  return request;
}

struct Side {
  std::string name;
  std::function<at::Tensor(const Request&)> score;
  std::vector<double> microseconds = {};
};

void measure(std::vector<Side>& sides, const Options& options) {
  std::vector<Request> requests;
  for (size_t i = 0; i < kRequests; ++i) {
    requests.push_back(make_request(options));
  }
  const at::Tensor expected = sides[0].score(requests[0]);
  for (const Side& side : sides) {
    TESSERA_CHECK_VALUE(
        at::allclose(side.score(requests[0]), expected, 1e-3, 1e-5),
        "[candidates_benchmark] '{}' must give what '{}' gives, but its scores differ. Run ./run bench --candidates again.",
        side.name,
        sides[0].name);
  }
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (const size_t turn : turns(round, sides.size())) {
      Side& side = sides[turn];
      for (int64_t call = -20; call < options.calls; ++call) {
        const Request& request =
            requests[static_cast<size_t>(call + 20) % kRequests];
        const Stopwatch watch;
        const at::Tensor scores = side.score(request);
        if (call >= 0) {
          side.microseconds.push_back(1e6 * watch.seconds());
        }
      }
    }
  }
  for (const Side& side : sides) {
    std::cout << Json{{"model", options.model},
                      {"side", side.name},
                      {"threads", at::get_num_threads()},
                      {"candidates", options.candidates},
                      {"p50_us", quantile(side.microseconds, 0.5)},
                      {"p99_us", quantile(side.microseconds, 0.99)}}
                     .dump()
              << std::endl;
  }
}

Ranker make_model(const Options& options) {
  at::manual_seed(1);
  Ranker model(options);
  const ExportExample batch = make_request(options).one_user;
  const at::NoGradGuard no_grad;
  model->forward(batch.features, batch.inputs[0]);
  model->eval();
  return model;
}

Json json_of(const std::vector<serving::ScoreInput>& inputs, bool is_user) {
  Json json = Json::object();
  for (const serving::ScoreInput& input : inputs) {
    const auto* ids = std::get_if<serving::IdLists>(&input.values);
    json[input.name] = ids == nullptr
        ? Json(std::get<std::vector<float>>(input.values))
        : is_user && ids->row_splits.empty() ? Json(ids->ids[0])
                                             : Json(ids->ids);
  }
  return json;
}

// One body of a request per line.
void write_requests(const Options& options) {
  std::ofstream file(options.folder + "/" + options.model + ".jsonl");
  for (size_t i = 0; i < kRequests; ++i) {
    const Request request = make_request(options);
    const serving::ScoreRequest& score = request.to_score[0];
    file << Json{{"user", json_of(score.user, true)},
                 {"candidates", json_of(score.candidates, false)}}
                .dump()
         << "\n";
  }
}

void write(const Options& options) {
  Ranker model = make_model(options);
  const Request request = make_request(options);
  const std::string path = options.folder + "/" + options.model;
  export_pt2(model, path + ".pt2", request.repeated);
  export_dense_pt2(model, path + ".dense.pt2", request.one_user, {"numbers"});
  write_requests(options);
}

at::Tensor scores_of(
    const serving::ProgramScorer& scorer,
    const Request& request) {
  const serving::ScoreResult result = scorer(request.to_score).front();
  TESSERA_CHECK_VALUE(
      result.error.empty(), "[candidates_benchmark] {}", result.error);
  return at::tensor(result.scores);
}

// A published model, and what scores its newest version.
struct Published {
  Published(
      const Ranker& model,
      const std::string& directory,
      const std::string& program,
      const std::string& package)
      : publisher(std::make_unique<serving::Publisher>(
            model,
            cleared(directory),
            serving::PublishOptions{
                .program = program,
                .compiled_program = package})),
        reader((publisher->publish(), open(directory))),
        scorer(reader) {}

  void publish_next() const {
    publisher->publish();
    reader->refresh();
  }

  static std::string cleared(const std::string& directory) {
    std::filesystem::remove_all(directory);
    return directory;
  }
  static std::shared_ptr<serving::Reader> open(const std::string& directory) {
    return std::make_shared<serving::Reader>(
        directory,
        serving::ReaderOptions{.follow = false, .copy_to_memory = true});
  }

  std::unique_ptr<serving::Publisher> publisher;
  std::shared_ptr<serving::Reader> reader;
  serving::ProgramScorer scorer;
};

// A new version has new weights, the version before it keeps its own, and old versions are
// freed.
void check_versions(
    Ranker& model,
    const Published& published,
    const Request& request) {
  const std::weak_ptr<const serving::Version> first =
      published.reader->version();
  const at::Tensor before = scores_of(published.scorer, request);
  for (const double factor : {1.1, 1.0 / 1.1, 1.0}) {
    const auto old_program = published.scorer.program();
    const int64_t old_version = old_program->version().number();
    for (at::Tensor& parameter : model->tower->parameters()) {
      parameter.mul_(factor);
    }
    published.publish_next();
    const at::Tensor expected =
        model->forward(request.one_user.features, request.one_user.inputs[0]);
    TESSERA_CHECK_VALUE(
        at::allclose(
            scores_of(published.scorer, request), expected, 1e-3, 1e-5) &&
            at::allclose(before, expected, 1e-3, 1e-5) == (factor <= 1.0) &&
            old_program->version().number() == old_version,
        "[candidates_benchmark] the scores of a new version must be those of the new weights, but they differ.");
  }
  TESSERA_CHECK_VALUE(
      first.expired(),
      "[candidates_benchmark] expected the first version to be freed, but a program keeps it.");
}

void measure_all(const Options& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  const at::NoGradGuard no_grad;
  Ranker model = make_model(options);
  const std::string path = options.folder + "/" + options.model;
  const auto compiled = [&](const std::string& file) {
    return fmt::format("{}{}.{}.aoti.pt2", path, file, options.threads);
  };
  std::vector<Side> sides;
  sides.push_back({"repeated", [&](const Request& request) {
                     return model->forward(
                         request.repeated.features, request.repeated.inputs[0]);
                   }});
  sides.push_back({"one user", [&](const Request& request) {
                     return model->forward(
                         request.one_user.features, request.one_user.inputs[0]);
                   }});
  // One publisher follows a model at a time.
  std::unique_ptr<torch::inductor::AOTIModelPackageLoader> package;
  std::optional<Published> compiled_program;
  if (std::filesystem::exists(compiled(""))) {
    compiled_program.emplace(
        model, path + ".compiled", path + ".dense.pt2", compiled(".dense"));
    check_versions(model, *compiled_program, make_request(options));
    compiled_program->publisher.reset();
  }
  Published program(model, path + ".program", path + ".dense.pt2", "");
  program.publisher.reset();
  sides.push_back({"program", [&](const Request& request) {
                     return scores_of(program.scorer, request);
                   }});
  if (compiled_program) {
    package =
        std::make_unique<torch::inductor::AOTIModelPackageLoader>(compiled(""));
    sides.push_back({"compiled program", [&](const Request& request) {
                       return scores_of(compiled_program->scorer, request);
                     }});
    sides.push_back({"AOTInductor, repeated", [&](const Request& request) {
                       return package->run(request.tensors)[0];
                     }});
  }
  measure(sides, options);
}

// The threads of the server score, so LibTorch has one.
void serve(const Options& options) {
  at::set_num_threads(1);
  Ranker model = make_model(options);
  const std::string path = options.folder + "/" + options.model;
  const std::string package = path + ".dense.1.aoti.pt2";
  Published published(
      model,
      path + ".served",
      path + ".dense.pt2",
      std::filesystem::exists(package) ? package : "");
  serving::Server server(
      published.reader,
      {.port = 0, .threads = options.threads},
      published.scorer);
  std::cout << server.port() << std::endl;
  std::cin.get();
}

void run(const Options& options) {
  if (options.writes) {
    write(options);
  } else if (options.serves) {
    serve(options);
  } else {
    measure_all(options);
  }
}

}  // namespace

TESSERA_BENCHMARK(
    "Times the scores of many candidates for one user in several runtimes.",
    run)
