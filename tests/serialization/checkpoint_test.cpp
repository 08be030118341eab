// SPDX-License-Identifier: Apache-2.0
// Tests checkpoints of layers and engines, and the options to save and load them.
#include <tessera/engine/embedding_engine.h>
#include <tessera/serialization/checkpoint.h>
#include <tessera/serialization/saved_features.h>

#include "tests/layers/layer_test_util.h"
#include "tests/optim/all_specs.h"
#include "tests/serialization/recording_disk.h"

namespace tessera::test::checkpoint_test {

using Names = std::vector<std::string>;

struct Setup {
  std::optional<optim::OptimizerSpec> optimizer =
      optim::Adagrad{.learning_rate = 0.5};
  Strategy strategy = Strategy::fused();
  uint64_t seed = 0;
  at::ScalarType dtype = at::kFloat;
  MissingSlots missing_slots = MissingSlots::kError;
};

constexpr int64_t kMovies = 70;

Nest<FeatureConfig> configs(at::ScalarType dtype) {
  const auto movies = make_table(
      {.name = "movies",
       .vocabulary_size = kMovies,
       .dim = 3,
       .dtype = dtype,
       .stochastic_rounding = dtype != at::kFloat});
  const auto users = make_table({.vocabulary_size = 4, .dim = 2});
  return features_of({{"seen", movies}, {"user", users}, {"next", movies}});
}

TPUEmbedding make_layer(const Setup& setup = {}) {
  return layer_of(
      configs(setup.dtype),
      setup.optimizer,
      {.strategy = setup.strategy,
       .seed = setup.seed,
       .missing_slots = setup.missing_slots});
}

Features batch(int64_t step) {
  return {
      {"seen", ragged({{step * 5 % kMovies, 2, 2}, {}})},
      {"user", int64s({step % 4, 3})},
      {"next", int64s({step * 11 % kMovies, 69})}};
}

void train(TPUEmbedding& layer, int64_t begin, int64_t end) {
  for (int64_t step = begin; step < end; ++step) {
    loss_of(layer->forward(batch(step))).backward();
  }
}

// Expects that another layer loads what `layer` has saved.
void expect_loads(
    const std::string& directory,
    const TPUEmbedding& layer,
    TPUEmbedding loaded = make_layer({.seed = 99})) {
  loaded->load_checkpoint(directory);
  EXPECT_TRUE(saved(loaded) == saved(layer));
}

struct RunFolder {
  const MemoryFolder folder_;
  const std::string run_ = folder_ / "run";
};

class CheckpointTest : public testing::Test, protected RunFolder {};

class CheckpointSpecTest : public testing::TestWithParam<NamedSpec>,
                           protected RunFolder {};

INSTANTIATE_TEST_SUITE_P(Specs, CheckpointSpecTest, all_variants(), spec_name);

// Every third checkpoint is a full one. If a rule changed rows that do not count
// as touched, the increments would lose them.
TEST_P(CheckpointSpecTest, EveryIncrementLoads) {
  auto layer = make_layer({.optimizer = GetParam().spec});
  std::vector<std::string> expected;
  for (int64_t step = 0; step < 7; ++step) {
    train(layer, 2 * step, 2 * step + 2);
    layer->save_checkpoint(
        run_, {.keep_last = 100, .full_every = 3, .file_bytes = 100});
    expected.push_back(saved(layer));
  }
  const Names names = list_checkpoints(run_);
  ASSERT_EQ(names.size(), expected.size());
  for (size_t i = 0; i < names.size(); ++i) {
    auto loaded = make_layer({.optimizer = GetParam().spec, .seed = 99});
    loaded->load_checkpoint(run_, {.checkpoint = names[i]});
    EXPECT_TRUE(saved(loaded) == expected[i]) << names[i];
  }
}

// ContinuesWithTheSameBits runs this test in a new process, which continues from
// the saved files.
TEST(FreshProcessTest, DISABLED_ContinuesTraining) {
  const std::filesystem::path folder = std::getenv("TESSERA_TEST_FOLDER");
  for (const NamedSpec& spec : spec_variants()) {
    for (const bool is_archive : {true, false}) {
      auto layer = make_layer({.optimizer = spec.spec, .seed = 99});
      if (is_archive) {
        torch::load(layer, folder / (spec.name + ".pt"));
      } else {
        layer->load_checkpoint(folder / spec.name);
      }
      train(layer, 3, 6);
      const char* kind = is_archive ? ".archive" : ".rows";
      write_file(folder / (spec.name + kind), saved(layer));
    }
  }
}

TEST(FreshProcessTest, ContinuesWithTheSameBits) {
  const MemoryFolder folder;
  for (const NamedSpec& spec : spec_variants()) {
    auto layer = make_layer({.optimizer = spec.spec});
    train(layer, 0, 3);
    torch::save(layer, folder / (spec.name + ".pt"));
    layer->save_checkpoint(folder / spec.name);
  }
  // ctest names the emulator, if this program is for another processor.
  const char* emulator = std::getenv("TESSERA_EMULATOR");
  const std::string command = "TESSERA_TEST_FOLDER=" + folder.path().string() +
      " " + (emulator == nullptr ? "" : emulator) + " " +
      std::filesystem::read_symlink("/proc/self/exe").string() +
      " --gtest_also_run_disabled_tests"
      " --gtest_filter=FreshProcessTest.DISABLED_ContinuesTraining > /dev/null";
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (const NamedSpec& spec : spec_variants()) {
    auto uninterrupted = make_layer({.optimizer = spec.spec});
    train(uninterrupted, 0, 6);
    for (const char* kind : {".archive", ".rows"}) {
      EXPECT_TRUE(
          read_file(folder / (spec.name + kind)) == saved(uninterrupted))
          << spec.name << kind;
    }
  }
}

// A layer can be rebuilt from a file, together with the functions that the file
// names.
TEST(SavedFeaturesTest, BuildTheSameLayer) {
  using optim::LearningRate;
  const MemoryFolder folder;
  double rate = 0.5;
  const LearningRate warm_up("warm_up", [&] { return rate; });
  const initializers::Callable halves(
      "halves", [](const at::Tensor& ids, int64_t dim) {
        return at::full({ids.numel(), dim}, 0.5, at::kFloat);
      });
  auto custom = custom_spec(0.1);
  custom.slot_creation =
      optim::SlotCreation("twos", [](const optim::SlotRequest& request) {
        return at::full(request.shape, 2.0, at::kFloat);
      });
  const auto movies = make_table(
      {.name = "movies",
       .vocabulary_size = kMovies,
       .dim = 3,
       .initializer = halves});
  const auto users =
      make_table({.vocabulary_size = 4, .dim = 2, .optimizer = custom});
  TPUEmbedding layer = layer_of(
      features_of({{"seen", movies}, {"user", users}, {"next", movies}}),
      optim::Adagrad{.learning_rate = warm_up});
  train(layer, 0, 3);
  layer->save_checkpoint(folder / "run");
  torch::save(layer, folder / "layer.pt");

  EXPECT_VALUE_ERROR(
      saved_features(folder / "run"),
      "functions that a file can't hold:\n"
      "  table 'movies': initializers 'halves'\n"
      "  table 'movies': learning_rates 'warm_up'\n"
      "  table 'table_1': rules 'normalised'\n"
      "  table 'table_1': slot_creations 'twos'\n"
      "Pass them in Callables under these names.");
  const Callables callables{
      .learning_rates = {{"warm_up", warm_up}},
      .initializers = {{"halves", halves}},
      .rules = {{"normalised", custom.rule}},
      .slot_creations = {{"twos", custom.slot_creation}}};
  torch::serialize::InputArchive archive;
  archive.load_from(folder / "layer.pt");
  auto from_rows = layer_of(saved_features(folder / "run", callables));
  auto from_archive = layer_of(saved_features(archive, callables));
  from_rows->load_checkpoint(folder / "run");
  from_archive->load(archive);
  rate = 0.25;
  for (auto* each : {&layer, &from_rows, &from_archive}) {
    train(*each, 3, 6);
    EXPECT_EQ(tables_of(*each).size(), 2U);
    expect_same_tables(*each, tables_of(layer));
  }
  EXPECT_TRUE(saved(from_rows) == saved(from_archive));
  EXPECT_VALUE_ERROR(
      saved_features(folder / "nowhere"), "there is no checkpoint in");
}

int64_t bytes_of(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    bytes += entry.path().filename() == "manifest.json"
        ? 0
        : static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

TEST_F(CheckpointTest, AnIncrementHasOnlyTheTouchedRows) {
  auto layer = make_layer();
  const CheckpointOptions options{.keep_last = 100, .full_every = 100};
  const auto save = [&] { layer->save_checkpoint(run_, options); };
  save();
  save();
  train(layer, 1, 2);
  save();
  layer->embedding_tables()["table_1"].add_(1.0F);
  save();
  const Names names = list_checkpoints(run_);
  ASSERT_EQ(
      names,
      (Names{
          "checkpoint_000001",
          "checkpoint_000002",
          "checkpoint_000003",
          "checkpoint_000004"}));
  const auto bytes = [&](size_t i) {
    return bytes_of(folder_.path() / "run" / names[i]);
  };
  // A row and its accumulators.
  constexpr int64_t kMovieBytes = 2 * 3 * sizeof(float);
  constexpr int64_t kUserBytes = 2 * 2 * sizeof(float);
  constexpr int64_t kId = 4;
  EXPECT_EQ(bytes(0), kMovies * kMovieBytes + 4 * kUserBytes);
  EXPECT_EQ(bytes(1), 0);
  // seen 5 and 2, next 11 and 69, user 1 and 3
  EXPECT_EQ(bytes(2), 4 * (kMovieBytes + kId) + 2 * (kUserBytes + kId));
  // After a write from outside, the whole table is saved.
  EXPECT_EQ(bytes(3), 4 * kUserBytes);
  expect_loads(run_, layer);
}

// Writes from outside are saved, however they are made. torch::optim's SGD writes
// through data().
TEST_F(CheckpointTest, AnIncrementHasWritesFromOutside) {
  struct Writer {
    std::string name;
    Strategy strategy;
    std::function<void(TPUEmbedding& layer)> write;
  };
  const auto sgd = [](double momentum) {
    return [momentum](TPUEmbedding& layer) {
      torch::optim::SGD optimizer(
          layer->parameters(),
          torch::optim::SGDOptions(0.1).momentum(momentum));
      for (int64_t step = 0; step < 2; ++step) {
        train(layer, step, step + 1);
        optimizer.step();
        optimizer.zero_grad();
      }
    };
  };
  const auto movies = [](TPUEmbedding& layer) {
    return layer->embedding_tables()["movies"];
  };
  const std::vector<Writer> writers{
      {"sparse SGD", Strategy::host({.sparse_gradients = true}), sgd(0.0)},
      {"dense SGD", Strategy::host(), sgd(0.0)},
      {"momentum", Strategy::host(), sgd(0.9)},
      {"padded", Strategy::padded(), sgd(0.9)},
      {"SGD beside the store",
       Strategy::fused(),
       [&](TPUEmbedding& layer) {
         const at::Tensor rows = movies(layer).detach().requires_grad_(true);
         torch::optim::SGD optimizer({rows}, torch::optim::SGDOptions(0.1));
         rows.square().sum().backward();
         optimizer.step();
       }},
      {"data()",
       Strategy::fused(),
       [&](TPUEmbedding& layer) { movies(layer).data()[3].add_(1.0); }},
      {"a pointer", Strategy::fused(), [&](TPUEmbedding& layer) {
         movies(layer).mutable_data_ptr<float>()[kMovies * 3 - 1] = 7.0F;
       }}};
  for (const Writer& writer : writers) {
    SCOPED_TRACE(writer.name);
    const MemoryFolder folder;
    auto layer = make_layer({.strategy = writer.strategy});
    layer->save_checkpoint(folder / "run", {.full_every = 100});
    const auto before = tables_of(layer);
    for (int round = 0; round < 2; ++round) {
      writer.write(layer);
      layer->save_checkpoint(folder / "run", {.full_every = 100});
      auto loaded = make_layer({.strategy = writer.strategy, .seed = 99});
      loaded->load_checkpoint(folder / "run");
      expect_same_tables(loaded, tables_of(layer));
    }
    EXPECT_FALSE(at::equal(movies(layer), before[0]));
  }
}

// Touched rows are counted from the last checkpoint that this layer wrote.
TEST_F(CheckpointTest, AnIncrementBuildsOnTheLayersLastCheckpoint) {
  auto layer = make_layer();
  auto other = make_layer({.seed = 5});
  const CheckpointOptions options{.keep_last = 100, .full_every = 100};
  layer->save_checkpoint(run_, options);
  other->save_checkpoint(run_, options);
  train(layer, 0, 1);
  layer->save_checkpoint(run_, options);  // full
  expect_loads(run_, layer);

  // The same is true in another directory, after a load, and for a clone.
  layer->save_checkpoint(folder_ / "elsewhere", options);
  layer->load_checkpoint(run_, {.checkpoint = "checkpoint_000002"});
  train(layer, 3, 4);
  layer->save_checkpoint(folder_ / "elsewhere", options);
  expect_loads(folder_ / "elsewhere", layer);
  auto copy = clone_of(layer);
  train(copy, 5, 6);
  copy->save_checkpoint(folder_ / "elsewhere", options);
  expect_loads(folder_ / "elsewhere", copy);
}

TEST_F(CheckpointTest, KeepsTheLastCheckpointsAndTheirBases) {
  auto layer = make_layer();
  for (int64_t step = 0; step < 6; ++step) {
    train(layer, step, step + 1);
    layer->save_checkpoint(run_, {.keep_last = 2, .full_every = 4});
  }
  EXPECT_EQ(
      list_checkpoints(run_),
      (Names{"checkpoint_000005", "checkpoint_000006"}));
  layer->save_checkpoint(run_, {.keep_last = 1, .full_every = 4});
  EXPECT_EQ(
      list_checkpoints(run_),
      (Names{"checkpoint_000005", "checkpoint_000006", "checkpoint_000007"}));
  layer->save_checkpoint(run_, {.keep_last = 1});
  EXPECT_EQ(list_checkpoints(run_), (Names{"checkpoint_000008"}));
  EXPECT_EQ(list_checkpoints(folder_ / "nowhere"), Names{});
}

TEST_F(CheckpointTest, MovesBetweenLayerEngineAndStrategies) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const MemoryFolder folder;
    auto layer = make_layer({.dtype = dtype});
    train(layer, 0, 3);
    layer->save_checkpoint(folder / "layer");
    EmbeddingEngine engine(
        {.features = configs(dtype),
         .optimizer = optim::Adagrad{.learning_rate = 0.5},
         .seed = 99});
    engine.load_checkpoint(folder / "layer");
    EXPECT_EQ(engine.iterations(), 3);
    engine.save_checkpoint(folder / "engine");
    expect_loads(
        folder / "engine", layer, make_layer({.seed = 99, .dtype = dtype}));
    auto serving = make_layer({.optimizer = std::nullopt, .dtype = dtype});
    serving->load_checkpoint(folder / "engine");
    expect_same_tables(serving, tables_of(layer));
  }
  // Slots move too if the host keeps them.
  const MemoryFolder folder;
  auto fused = make_layer({.optimizer = optim::Adagrad{.lazy = false}});
  train(fused, 0, 3);
  fused->save_checkpoint(folder / "run");
  auto host = make_layer(
      {.optimizer = optim::Adagrad{.lazy = false},
       .strategy = Strategy::host(),
       .seed = 99});
  const auto optimizer = make_optimizer(host);
  host->load_checkpoint(folder / "run");
  EXPECT_TRUE(saved(host) == saved(fused));
  EXPECT_TRUE(host->parameters()[0].requires_grad());
}

TEST_F(CheckpointTest, AnEngineSavesIncrements) {
  EmbeddingEngine engine(
      {.features = configs(at::kFloat),
       .optimizer = optim::Adagrad{.learning_rate = 0.5}});
  for (int64_t step = 0; step < 3; ++step) {
    engine.enqueue(batch(step));
    auto activations = engine.dequeue();
    engine.apply_gradients(activations);
    engine.save_checkpoint(run_, {.full_every = 100});
  }
  EXPECT_LT(
      bytes_of(folder_.path() / "run" / "checkpoint_000003"),
      bytes_of(folder_.path() / "run" / "checkpoint_000001") / 4);
  auto layer = make_layer({.seed = 99});
  layer->load_checkpoint(run_);
  EXPECT_EQ(layer->iterations(), 3);
  EXPECT_TENSOR_EQ(
      layer->read_rows("movies", 0, kMovies),
      engine.read_rows("movies", 0, kMovies));
}

// If slots are made between two checkpoints, the second is a full one.
TEST_F(CheckpointTest, SavesTheSlotsOfALaterOptimizer) {
  const auto make_host = [] {
    return make_layer(
        {.optimizer = optim::Adagrad{.lazy = false},
         .strategy = Strategy::host()});
  };
  auto host = make_host();
  host->save_checkpoint(run_, {.full_every = 100});
  const auto optimizer = make_optimizer(host);
  host->save_checkpoint(run_, {.full_every = 100});
  auto loaded = make_host();
  const auto loaded_optimizer = make_optimizer(loaded);
  expect_loads(run_, host, loaded);
}

// The first load finds slots, but no optimizer. The second load skips the slots,
// so they are still missing.
TEST_F(CheckpointTest, SkippedSlotsAreRemembered) {
  auto fused = make_layer({.optimizer = optim::Adagrad{.lazy = false}});
  fused->save_checkpoint(run_);
  auto host = make_layer(
      {.optimizer = optim::Adagrad{.lazy = false},
       .strategy = Strategy::host()});
  host->load_checkpoint(run_);
  host->load_checkpoint(run_, {.slots = false});
  EXPECT_VALUE_ERROR(make_optimizer(host), "Make the optimizer first");
}

TEST_F(CheckpointTest, MissingSlotsAreAnErrorUnlessTheLayerKeepsItsOwn) {
  auto host = make_layer({.strategy = Strategy::host()});
  host->save_checkpoint(run_);
  auto strict = make_layer({.seed = 99});
  EXPECT_VALUE_ERROR(
      strict->load_checkpoint(run_), "slot accumulators was not saved");
  auto fused = make_layer({.seed = 99, .missing_slots = MissingSlots::kKeep});
  fused->load_checkpoint(run_);
  auto fresh = make_layer();
  fresh->load_checkpoint(run_, {.slots = false});
  EXPECT_TRUE(saved(fused) == saved(fresh));
}

TEST_F(CheckpointTest, IncrementsFollowTheStepsOfACombined) {
  TPUEmbedding layer = layer_of(
      configs(at::kFloat),
      optim::Adagrad{.learning_rate = 0.5},
      {.apply = Apply::kOnStep});
  Combined optimizer = combined_of(layer);
  const CheckpointOptions options{.full_every = 100};
  for (int64_t step = 0; step < 4; ++step) {
    train(layer, step, step + 1);
    layer->save_checkpoint(run_, options);
    optimizer.step();
    optimizer.zero_grad();
    layer->save_checkpoint(run_, options);
    expect_loads(run_, layer);
  }
}

TEST_F(CheckpointTest, AFrozenTableIsSavedOnce) {
  const auto make_frozen = [](uint64_t seed) {
    const auto movies = make_table(
        {.name = "movies",
         .vocabulary_size = kMovies,
         .dim = 3,
         .trainable = false});
    const auto users = make_table({.vocabulary_size = 4, .dim = 2});
    return layer_of(
        features_of({{"seen", movies}, {"user", users}, {"next", movies}}),
        optim::Adagrad{.learning_rate = 0.5},
        {.seed = seed});
  };
  auto layer = make_frozen(0);
  for (int64_t step = 0; step < 2; ++step) {
    layer->save_checkpoint(run_, {.full_every = 100});
    train(layer, step, step + 1);
  }
  layer->save_checkpoint(run_, {.full_every = 100});
  EXPECT_FALSE(std::filesystem::exists(
      folder_.path() / "run" / "checkpoint_000003" / "table_0.parameters.0"));
  expect_loads(run_, layer, make_frozen(99));
}

// A row has more bytes than a chunk, and several threads write.
TEST_F(CheckpointTest, RowsMayBeWide) {
  constexpr int64_t kDim = 400'000;
  const auto wide = plain_table("wide", 5, kDim);
  const auto make = [&](uint64_t seed) {
    return layer_of(
        features_of({{"id", wide}}), optim::Adagrad{}, {.seed = seed});
  };
  auto layer = make(0);
  layer->save_checkpoint(run_, {.full_every = 2});
  layer->forward({{"id", int64s({1, 3})}})["id"].sum().backward();
  layer->save_checkpoint(run_, {.full_every = 2, .file_bytes = 4 * kDim});
  expect_loads(run_, layer, make(99));
}

TEST_F(CheckpointTest, LoadsTablesMadeInInferenceMode) {
  auto trained = make_layer();
  train(trained, 0, 2);
  trained->save_checkpoint(run_);
  const auto make_serving = [] {
    const c10::InferenceMode inference;
    return make_layer({.optimizer = std::nullopt, .seed = 99});
  };
  auto serving = make_serving();
  serving->load_checkpoint(run_);
  expect_same_tables(serving, tables_of(trained));
}

TEST_F(CheckpointTest, LoadingDropsTheAccumulatedGradientsOfAnEngine) {
  optim::Adagrad adagrad{.learning_rate = 0.5};
  adagrad.gradient_accumulation_steps = 2;
  EmbeddingEngine engine(
      {.features = configs(at::kFloat), .optimizer = adagrad});
  const auto step = [&](int64_t index) {
    engine.enqueue(batch(index));
    engine.apply_gradients(engine.dequeue());
  };
  engine.save_checkpoint(run_);
  const at::Tensor initial = engine.read_rows("movies", 0, kMovies);
  step(0);
  engine.load_checkpoint(run_);
  step(1);
  EXPECT_TENSOR_EQ(engine.read_rows("movies", 0, kMovies), initial);
  step(2);
  EXPECT_FALSE(at::equal(engine.read_rows("movies", 0, kMovies), initial));
}

TEST_F(CheckpointTest, ExtraMayThrowButNotCallTheEngine) {
  EmbeddingEngine engine({.features = configs(at::kFloat)});
  EXPECT_TORCH_ERROR(
      engine.save_checkpoint(
          run_,
          {.extra =
               [&](torch::serialize::OutputArchive&) {
                 engine.read_rows("movies", 0, 1);
               }}),
      "expected no call of the engine within its own update or checkpoint");
  EXPECT_EQ(list_checkpoints(run_), Names{});
  EXPECT_TRUE(std::filesystem::is_empty(run_));
  engine.save_checkpoint(
      run_, {.extra = [](torch::serialize::OutputArchive& archive) {
        archive.write("x", c10::IValue(1));
      }});
  EXPECT_TORCH_ERROR(
      engine.load_checkpoint(
          run_,
          {.extra =
               [](torch::serialize::InputArchive&) {
                 TORCH_CHECK(false, "mine");
               }}),
      "mine");
  engine.read_rows("movies", 0, 1);  // still works
}

TEST_F(CheckpointTest, KeepsForeignFilesInTheDirectory) {
  auto layer = make_layer();
  std::filesystem::create_directories(folder_ / "run/.writing_notes");
  std::filesystem::create_directories(
      folder_ / "run/.writing_checkpoint_000007");
  write_file(folder_ / "run/checkpoint_1", "");
  write_file(folder_ / "run/checkpoint_9223372036854775807", "");
  layer->save_checkpoint(run_);
  EXPECT_EQ(list_checkpoints(run_), (Names{"checkpoint_000001"}));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "run/.writing_notes"));
  EXPECT_FALSE(
      std::filesystem::exists(folder_ / "run/.writing_checkpoint_000007"));
}

TEST_F(CheckpointTest, AnIncrementHasTheRowsOfEarlierPasses) {
  optim::Adagrad adagrad{.learning_rate = 0.5};
  adagrad.gradient_accumulation_steps = 2;
  auto layer = make_layer({.optimizer = adagrad});
  const CheckpointOptions options{.full_every = 100};
  layer->save_checkpoint(run_, options);
  train(layer, 0, 1);
  layer->save_checkpoint(run_, options);  // no row has changed
  train(layer, 1, 2);
  layer->save_checkpoint(run_, options);
  expect_loads(run_, layer, make_layer({.optimizer = adagrad, .seed = 99}));
}

TEST_F(CheckpointTest, LoadsExtraWithTheTables) {
  auto layer = make_layer();
  const at::Tensor dense = floats({1.0F, 2.0F});
  layer->save_checkpoint(
      run_, {.extra = [&](torch::serialize::OutputArchive& archive) {
        archive.write("dense", dense);
      }});
  at::Tensor read;
  const auto extra = [&](torch::serialize::InputArchive& archive) {
    archive.read("dense", read);
  };
  layer->load_checkpoint(run_, {.extra = extra});
  EXPECT_TENSOR_EQ(read, dense);
  layer->save_checkpoint(run_);
  EXPECT_VALUE_ERROR(
      layer->load_checkpoint(run_, {.extra = extra}),
      "'checkpoint_000002' was saved without CheckpointOptions::extra");
}

TEST_F(CheckpointTest, RefusesUnusableOptionsAndPaths) {
  auto layer = make_layer();
  expect_refusals<CheckpointOptions>(
      {{{.keep_last = 0},
        "[save_checkpoint] keep_last must be >= 1, but got 0"},
       {{.full_every = -1}, "full_every must be >= 1, but got -1"},
       {{.file_bytes = 0}, "file_bytes must be >= 1, but got 0"}},
      [&](const CheckpointOptions& options) {
        layer->save_checkpoint(run_, options);
      });
  EXPECT_VALUE_ERROR(
      layer->save_checkpoint(""), "directory must be a path, but got ''");
  EXPECT_FALSE(std::filesystem::exists(run_));
  EXPECT_VALUE_ERROR(layer->load_checkpoint(run_), "there is no checkpoint in");
  layer->save_checkpoint(run_);
  EXPECT_VALUE_ERROR(
      layer->load_checkpoint(run_, {.checkpoint = "../run"}),
      "must be one of checkpoint_000001, but got '../run'");
  write_file(folder_ / "file", "");
  EXPECT_TORCH_ERROR(
      layer->save_checkpoint(folder_ / "file"),
      "file' is not a directory. Choose another path.");
  EXPECT_TORCH_ERROR(
      layer->save_checkpoint("/proc/nowhere"),
      "can't make the directory '/proc/nowhere'");
}

TEST(LoadOptionsOfAnArchiveTest, RefusesOptionsOfDirectories) {
  const MemoryFolder folder;
  auto layer = make_layer();
  torch::save(layer, folder / "layer.pt");
  torch::serialize::InputArchive archive;
  archive.load_from(folder / "layer.pt");
  for (const LoadOptions& options :
       {LoadOptions{.checkpoint = "checkpoint_000001"},
        LoadOptions{.extra = [](torch::serialize::InputArchive&) {}}}) {
    EXPECT_VALUE_ERROR(
        layer->load(archive, options),
        "are for checkpoint directories, but this is an archive");
  }
}

// LoadOptions work alike for archives and checkpoints.
class LoadOptionsTest : public testing::TestWithParam<bool> {
 protected:
  void save(TPUEmbedding& layer) {
    if (GetParam()) {
      layer->save_checkpoint(folder_ / "run");
    } else {
      torch::save(layer, folder_ / "layer.pt");
    }
  }
  TPUEmbedding save_trained() {
    auto trained = make_layer();
    train(trained, 0, 4);
    save(trained);
    return trained;
  }
  void load(TPUEmbedding& layer, const LoadOptions& options) {
    if (GetParam()) {
      layer->load_checkpoint(folder_ / "run", options);
    } else {
      torch::serialize::InputArchive archive;
      archive.load_from(folder_ / "layer.pt");
      layer->load(archive, options);
    }
  }

  const MemoryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(
    From,
    LoadOptionsTest,
    testing::Bool(),
    [](const auto& info) { return info.param ? "Checkpoint" : "Archive"; });

TEST_P(LoadOptionsTest, LoadsSomeTablesByName) {
  auto trained = save_trained();
  auto layer = make_layer({.seed = 99});
  train(layer, 0, 1);
  const auto before = tables_of(layer);
  load(layer, {.tables = {"movies"}});
  EXPECT_TENSOR_EQ(
      layer->embedding_tables()["movies"],
      trained->embedding_tables()["movies"]);
  EXPECT_TENSOR_EQ(
      slot_of(layer, 0, "accumulators"), slot_of(trained, 0, "accumulators"));
  EXPECT_TENSOR_EQ(layer->embedding_tables()["table_1"], before[1]);
  EXPECT_EQ(layer->iterations(), 1);
  EXPECT_VALUE_ERROR(
      load(layer, {.tables = {"movies", "actors"}}),
      "table 'actors': LoadOptions::tables names it, but the layer has only "
      "'movies', 'table_1'");
}

TEST_P(LoadOptionsTest, LoadsSomeTablesIntoAnotherLayer) {
  auto trained = save_trained();
  const auto movies = plain_table("movies", kMovies, 3);
  const auto actors = plain_table("actors", 5, 7);
  TPUEmbedding layer = layer_of(
      features_of({{"actor", actors}, {"movie", movies}}), optim::SGD{});
  EXPECT_VALUE_ERROR(
      load(layer, {.tables = {"movies"}}),
      "table 'movies': the optimizer is SGD, but the saved one is Adagrad");
  load(layer, {.tables = {"movies"}, .slots = false});
  EXPECT_TENSOR_EQ(
      layer->embedding_tables()["movies"],
      trained->embedding_tables()["movies"]);
  EXPECT_VALUE_ERROR(
      load(layer, {.slots = false}),
      "Nothing was changed. Problems:\n"
      "  table 'actors': it was not saved. Saved tables: 'movies', 'table_1'\n"
      "  table 'table_1': it was saved, but the layer has only 'actors', "
      "'movies'\n");
}

TEST_P(LoadOptionsTest, LoadsRowsWithoutSlots) {
  auto trained = save_trained();
  auto layer = make_layer({.seed = 99});
  train(layer, 0, 1);
  const at::Tensor slot = slot_of(layer, 0, "accumulators");
  load(layer, {.slots = false});
  expect_same_tables(layer, tables_of(trained));
  EXPECT_TENSOR_EQ(slot_of(layer, 0, "accumulators"), slot);
  EXPECT_EQ(layer->iterations(), 1);
}

TEST_P(LoadOptionsTest, LoadsIntoATableThatHasGrown) {
  auto trained = save_trained();
  const auto grown = [] {
    const auto movies = plain_table("movies", kMovies + 30, 3);
    const auto users = make_table({.vocabulary_size = 4, .dim = 2});
    return layer_of(
        features_of({{"seen", movies}, {"user", users}}),
        optim::Adagrad{.learning_rate = 0.5},
        {.seed = 7});
  };
  auto layer = grown();
  EXPECT_VALUE_ERROR(
      load(layer, {}),
      "table 'movies': parameters is float32 [100, 3] in the layer, but was "
      "saved as float32 [70, 3]\n"
      "  table 'movies': slot accumulators is float32 [100, 3] in the layer, "
      "but was saved as float32 [70, 3]\n");
  const auto initial = tables_of(layer);
  load(layer, {.grown = true});
  const at::Tensor rows = layer->embedding_tables()["movies"];
  EXPECT_TENSOR_EQ(
      rows.slice(0, 0, kMovies), trained->embedding_tables()["movies"]);
  EXPECT_TENSOR_EQ(rows.slice(0, kMovies), initial[0].slice(0, kMovies));
  const at::Tensor slot = slot_of(layer, 0, "accumulators");
  EXPECT_TENSOR_EQ(
      slot.slice(0, 0, kMovies), slot_of(trained, 0, "accumulators"));
  EXPECT_TENSOR_EQ(
      slot.slice(0, kMovies),
      slot_of(grown(), 0, "accumulators").slice(0, kMovies));
  EXPECT_EQ(layer->iterations(), 4);

  // A table never shrinks.
  save(layer);
  EXPECT_VALUE_ERROR(
      load(trained, {.grown = true}),
      "table 'movies': parameters is float32 [70, 3] in the layer, but was "
      "saved as float32 [100, 3]");
}

}  // namespace tessera::test::checkpoint_test
