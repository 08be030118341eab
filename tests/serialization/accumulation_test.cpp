// SPDX-License-Identifier: Apache-2.0
// Tests the saved state besides tables and slots: accumulated gradients, the step
// counter, and the seed of random rounding.
#include <tessera/engine/embedding_engine.h>
#include <tessera/serialization/checkpoint.h>

#include "serialization/manifest.h"
#include "tests/layers/layer_test_util.h"
#include "tests/optim/all_specs.h"
#include "tests/serialization/changed_archive.h"
#include "tests/serialization/recording_disk.h"

namespace tessera::test::accumulation_test {

constexpr int64_t kMovies = 30;

struct Case {
  optim::OptimizerSpec optimizer = optim::SGD{};
  Strategy strategy = Strategy::fused();
  uint64_t seed = 0;
  at::ScalarType dtype = at::kFloat;
};

const Strategy kSparseHost = Strategy::host({.sparse_gradients = true});

optim::OptimizerSpec with_steps(optim::OptimizerSpec spec, int64_t steps) {
  optim::modify(
      spec, [&](auto& held) { held.gradient_accumulation_steps = steps; });
  return spec;
}

Nest<FeatureConfig> configs(at::ScalarType dtype = at::kFloat) {
  const auto feature = [&](const char* name, int64_t rows, int64_t dim) {
    return FeatureConfig{
        .table = make_table(
            {.name = name,
             .vocabulary_size = rows,
             .dim = dim,
             .dtype = dtype,
             .stochastic_rounding = dtype != at::kFloat})};
  };
  return {
      {"seen", feature("movies", kMovies, 3)},
      {"user", feature("users", 4, 2)}};
}

Features batch(int64_t step) {
  return {
      {"seen", ragged({{step * 7 % kMovies, 2, 2, 29}, {step, 5}})},
      {"user", int64s({step % 4, 3})}};
}

// A layer, and on the host also the optimizer of its tables.
struct Trainee {
  explicit Trainee(const Case& setup)
      : layer(TPUEmbeddingOptions{
            .features = configs(setup.dtype),
            .optimizer = setup.optimizer,
            .strategy = setup.strategy,
            .seed = setup.seed}),
        optimizer(layer) {}

  void train(int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      loss_of(layer->forward(batch(step))).backward();
      optimizer.step();
    }
  }

  std::string bytes() const {
    return saved(layer);
  }

  TPUEmbedding layer;
  TableOptimizer optimizer;
};

// Trains for 10 passes and stops after 4 and after 5. Training must continue
// with the same bits from an archive, a full checkpoint and an increment.
void expect_same_bits(const Case& setup) {
  Case other = setup;
  other.seed = 99;
  Trainee uninterrupted(setup);
  uninterrupted.train(0, 10);
  Trainee first(setup);
  const MemoryFolder folder;
  first.layer->save_checkpoint(folder / "increments", {.full_every = 100});
  first.train(0, 4);
  for (const int64_t stop : {4, 5}) {
    first.train(std::max<int64_t>(4, stop - 1), stop);
    const std::string bytes = first.bytes();
    const std::string full = folder / std::to_string(stop);
    first.layer->save_checkpoint(full);
    first.layer->save_checkpoint(folder / "increments", {.full_every = 100});
    const std::vector<std::function<void(TPUEmbedding&)>> loads{
        [&](TPUEmbedding& layer) { load_bytes(layer, bytes); },
        [&](TPUEmbedding& layer) { layer->load_checkpoint(full); },
        [&](TPUEmbedding& layer) {
          layer->load_checkpoint(folder / "increments");
        }};
    for (size_t i = 0; i < loads.size(); ++i) {
      SCOPED_TRACE(c10::str("stopped after ", stop, ", load ", i));
      Trainee second(other);
      second.train(0, 2);  // loading drops the gradients of these passes
      loads[i](second.layer);
      EXPECT_TRUE(second.bytes() == bytes);
      second.train(stop, 10);
      EXPECT_TRUE(second.bytes() == uninterrupted.bytes());
    }
  }
}

class AccumulationSpecTest : public testing::TestWithParam<NamedSpec> {};

INSTANTIATE_TEST_SUITE_P(
    Specs,
    AccumulationSpecTest,
    all_variants(),
    spec_name);

// With one step, the middle of an accumulation is the end of an update.
TEST_P(AccumulationSpecTest, ContinuesWithTheSameBitsFromItsMiddle) {
  for (const int64_t steps : {1, 3}) {
    for (const Strategy& strategy : {Strategy::fused(), kSparseHost}) {
      SCOPED_TRACE(c10::str(steps, " steps on ", strategy.name()));
      expect_same_bits(
          {.optimizer = with_steps(GetParam().spec, steps),
           .strategy = strategy});
    }
  }
}

TEST(AccumulationTest, DenseGradientsContinueWithTheSameBits) {
  const optim::OptimizerSpec adam = with_steps(
      optim::Adam{
          .learning_rate = 0.1, .lazy_adam = false, .bias_correction = true},
      3);
  for (const Strategy& strategy :
       {Strategy::host(), Strategy::padded(), Strategy::fused()}) {
    SCOPED_TRACE(strategy.name());
    expect_same_bits({.optimizer = adam, .strategy = strategy});
  }
}

TEST(AccumulationTest, MovesBetweenHostAndFused) {
  const optim::OptimizerSpec adagrad =
      with_steps(optim::Adagrad{.learning_rate = 0.5}, 3);
  Trainee uninterrupted({.optimizer = adagrad});
  uninterrupted.train(0, 8);
  for (const bool begins_on_host : {true, false}) {
    Trainee first(
        {.optimizer = adagrad,
         .strategy = begins_on_host ? kSparseHost : Strategy::fused()});
    Trainee second(
        {.optimizer = adagrad,
         .strategy = begins_on_host ? Strategy::fused() : kSparseHost,
         .seed = 99});
    first.train(0, 5);
    load_bytes(second.layer, first.bytes());
    second.train(5, 8);
    for (const char* table : {"movies", "users"}) {
      expect_close(
          second.layer->embedding_tables()[table],
          uninterrupted.layer->embedding_tables()[table],
          1e-5,
          1e-5);
    }
  }
}

TEST(AccumulationTest, AnEmbeddingEngineContinues) {
  const EmbeddingEngineOptions options{
      .features = configs(),
      .optimizer = with_steps(
          optim::Adam{.learning_rate = 0.1, .bias_correction = true}, 3)};
  const auto train = [](EmbeddingEngine& engine, int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) {
      engine.enqueue(batch(step));
      engine.apply_gradients(engine.dequeue());
    }
  };
  const MemoryFolder folder;
  EmbeddingEngine uninterrupted(options), first(options), second(options);
  train(uninterrupted, 0, 10);
  train(first, 0, 5);
  first.save_checkpoint(folder / "run");
  second.load_checkpoint(folder / "run");
  EXPECT_EQ(second.iterations(), 1);
  train(second, 5, 10);
  EXPECT_EQ(second.iterations(), 3);
  for (const char* table : {"movies", "users"}) {
    const int64_t rows = table == std::string("movies") ? kMovies : 4;
    EXPECT_TENSOR_EQ(
        second.read_rows(table, 0, rows),
        uninterrupted.read_rows(table, 0, rows));
  }
}

TEST(AccumulationTest, ACloneContinues) {
  for (const Strategy& strategy : {Strategy::fused(), kSparseHost}) {
    const Case setup{
        .optimizer = with_steps(optim::Adagrad{}, 3), .strategy = strategy};
    Trainee uninterrupted(setup), first(setup), second(setup);
    uninterrupted.train(0, 7);
    first.train(0, 5);
    second.layer = clone_of(first.layer);
    second.optimizer = TableOptimizer(second.layer);
    first.train(8, 9);  // does not affect the clone
    second.train(5, 7);
    EXPECT_TRUE(second.bytes() == uninterrupted.bytes()) << strategy.name();
  }
}

// Other tables keep their accumulated gradients.
TEST(AccumulationTest, LoadingSomeTablesDropsOnlyTheirGradients) {
  const Case setup{
      .optimizer = with_steps(optim::SGD{.learning_rate = 1.0}, 2)};
  const MemoryFolder folder;
  Trainee run(setup), expected(setup);
  run.layer->save_checkpoint(folder / "run");
  run.train(0, 1);
  run.layer->load_checkpoint(folder / "run", {.tables = {"movies"}});
  run.train(1, 2);
  expected.train(0, 2);
  EXPECT_TENSOR_EQ(
      run.layer->embedding_tables()["users"],
      expected.layer->embedding_tables()["users"]);
  EXPECT_FALSE(at::equal(
      run.layer->embedding_tables()["movies"],
      expected.layer->embedding_tables()["movies"]));
}

// Returns the message of the ValueError of `load`, which must change nothing.
template <class Load>
std::string error_of(const Trainee& run, Load load) {
  const std::string before = run.bytes();
  std::string message = "no error";
  try {
    load();
  } catch (const c10::ValueError& error) {
    message = error.what_without_backtrace();
  }
  EXPECT_TRUE(run.bytes() == before) << "changed by: " << message;
  return message;
}

TEST(AccumulationTest, RefusesAnotherNumberOfSteps) {
  const MemoryFolder folder;
  Trainee run({.optimizer = with_steps(optim::SGD{}, 3)});
  run.train(0, 4);
  run.layer->save_checkpoint(folder / "run");
  for (const int64_t steps : {1, 2}) {
    Trainee other({.optimizer = with_steps(optim::SGD{}, steps), .seed = 99});
    other.train(0, 1);
    const std::string expected = c10::str(
        "table 'movies': gradient_accumulation_steps is ",
        steps,
        ", but the saved gradients are a part of an accumulation over 3 "
        "steps");
    for (const std::string& message :
         {error_of(other, [&] { load_bytes(other.layer, run.bytes()); }),
          error_of(
              other, [&] { other.layer->load_checkpoint(folder / "run"); })}) {
      EXPECT_CONTAINS(message, expected);
    }
    other.layer->load_checkpoint(folder / "run", {.slots = false});
  }
}

TEST(AccumulationTest, RefusesDamagedGradients) {
  Trainee run({.optimizer = with_steps(optim::SGD{}, 3)});
  run.train(0, 5);  // at least two rows of each table have gradients
  Trainee other({.optimizer = with_steps(optim::SGD{}, 3), .seed = 99});
  other.train(0, 2);
  struct Row {
    std::string key;
    std::function<void(at::Tensor&)> damage;
    const char* text;
  };
  const std::string rows = "accumulated_rows";
  const char* out_of_range =
      "damaged: their rows must be in [0, vocabulary_size)";
  const char* no_int64s = "damaged: their rows must be int64 [n]";
  const std::vector<Row> cases{
      {rows, [](at::Tensor& tensor) { tensor[0] = -1; }, out_of_range},
      {rows, [](at::Tensor& tensor) { tensor[-1] = kMovies; }, out_of_range},
      {rows,
       [](at::Tensor& tensor) { tensor[1] = tensor[0].clone(); },
       "damaged: their rows must be in ascending order"},
      {rows,
       [](at::Tensor& tensor) { tensor = tensor.to(at::kFloat); },
       no_int64s},
      {rows, [](at::Tensor& tensor) { tensor = at::Tensor(); }, no_int64s},
      {"accumulated_sums",
       [](at::Tensor& tensor) { tensor = tensor.slice(1, 0, 1).clone(); },
       "sums must be float32 [n, dim]. Load another file, or load no slots "
       "with LoadOptions{.slots = false}. load() and load_checkpoint() of the "
       "layer take LoadOptions, but torch::load() and load_weights() do not."}};
  for (const Row& row : cases) {
    const std::string bytes = changed_archive(
        run.bytes(), [&](const std::string& name, at::Tensor& value) {
          if (name == row.key) {
            row.damage(value);
          }
          return value.defined() || name != row.key;
        });
    const std::string message =
        error_of(other, [&] { load_bytes(other.layer, bytes); });
    EXPECT_CONTAINS(message, row.text);
  }
}

TEST(AccumulationTest, NamesDamagedFilesOfGradients) {
  const MemoryFolder folder;
  Trainee run({.optimizer = with_steps(optim::SGD{}, 3)});
  run.train(0, 4);
  run.layer->save_checkpoint(folder / "run");
  Trainee other({.optimizer = with_steps(optim::SGD{}, 3), .seed = 99});
  other.train(0, 2);
  int64_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           folder.path() / "run" / "checkpoint_000001")) {
    const std::string name = entry.path().filename();
    if (name.find("accumulated") == std::string::npos) {
      continue;
    }
    ++files;
    const std::string good = read_file(entry.path());
    std::string bad = good;
    bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
    for (const std::string& bytes : {bad, good.substr(1)}) {
      write_file(entry.path(), bytes);
      const std::string message = error_of(
          other, [&] { other.layer->load_checkpoint(folder / "run"); });
      EXPECT_CONTAINS(message, name);
    }
    write_file(entry.path(), good);
  }
  EXPECT_EQ(files, 4);
  other.layer->load_checkpoint(folder / "run");
  EXPECT_TRUE(other.bytes() == run.bytes());
}

// A host layer without an optimizer cannot hold these gradients yet.
TEST(AccumulationTest, AHostNeedsItsOptimizerBeforeItLoadsGradients) {
  optim::Adagrad adagrad{.gradient_accumulation_steps = 3};
  adagrad.slot_creation = {"ones", [](const optim::SlotRequest& request) {
                             return at::ones(request.shape);
                           }};
  Trainee run({.optimizer = adagrad});
  run.train(0, 4);
  const std::string bytes = run.bytes();
  TPUEmbedding without_optimizer =
      layer_of(configs(), adagrad, {.strategy = kSparseHost});
  load_bytes(without_optimizer, bytes);
  EXPECT_VALUE_ERROR(
      make_optimizer(without_optimizer),
      "Make the optimizer first, then load.");
  Trainee with_optimizer({.optimizer = adagrad, .strategy = kSparseHost});
  load_bytes(with_optimizer.layer, bytes);
  EXPECT_TRUE(with_optimizer.bytes() == bytes);
}

TEST(AccumulationTest, RefusesAWrongManifest) {
  const MemoryFolder folder;
  Trainee run({.optimizer = with_steps(optim::SGD{}, 3)});
  run.train(0, 4);
  run.layer->save_checkpoint(folder / "run");
  const Manifest good = manifest_from_text(
      read_file(folder / "run/checkpoint_000001/manifest.json"), "[test]");
  using Damage = std::function<void(ManifestAccumulated&)>;
  expect_refusals<Damage>(
      {{[](auto& accumulated) { accumulated.steps = 1; },
        "accumulated steps must be more than 1"},
       {[](auto& accumulated) { accumulated.parts[0].count = -1; },
        "the number of rows with accumulated gradients must be in"},
       {[](auto& accumulated) { --accumulated.parts[0].count; },
        "the size of a file of accumulated gradients does not fit its rows"},
       {[](auto& accumulated) { accumulated.parts[0].rows.name = "../rows"; },
        "a file name must consist of letters"}},
      [&](const Damage& damage) {
        Manifest bad = good;
        damage(*bad.tables[0].accumulated);
        manifest_from_text(to_text(bad), "[test]");
      });
}

bool is_key_of_old_files(const std::string& key, at::Tensor& /*value*/) {
  return !key.starts_with("accumul") && key != "seed";
}

// Files from before gradients were saved still load. A warning says what is
// missing.
TEST(AccumulationTest, PassesThatOldFilesLackCountAsZeros) {
  const MemoryFolder folder;
  const Case setup{
      .optimizer = with_steps(optim::SGD{.learning_rate = 1.0}, 2)};
  Trainee run(setup);
  run.train(0, 3);
  run.layer->save_checkpoint(folder / "run");
  const std::string path = folder / "run/checkpoint_000001/manifest.json";
  Manifest manifest = manifest_from_text(read_file(path), "[test]");
  manifest.seed = {};
  for (ManifestTable& table : manifest.tables) {
    table.accumulated = {};
  }
  write_file(path, to_text(manifest));
  EXPECT_EQ(read_file(path).find("accumulated"), std::string::npos);
  EXPECT_EQ(read_file(path).find("seed"), std::string::npos);
  const std::string bytes = changed_archive(run.bytes(), is_key_of_old_files);

  for (const bool is_archive : {true, false}) {
    Trainee loaded(setup);
    const Warnings warnings;
    if (is_archive) {
      load_bytes(loaded.layer, bytes);
    } else {
      loaded.layer->load_checkpoint(folder / "run");
    }
    ASSERT_EQ(warnings.texts.size(), 1U);
    EXPECT_CONTAINS(
        warnings.texts[0],
        std::string(is_archive ? "[TPUEmbedding::load]" : "[load_checkpoint]") +
            " the loaded tables were saved after pass 3, in the middle of a "
            "gradient accumulation of this layer, but without the accumulated "
            "gradients of 'movies', 'users'");
    EXPECT_EQ(loaded.layer->iterations(), 1);
    const at::Tensor before = loaded.layer->embedding_tables()["users"].clone();
    // The update is the mean of zeros and of gradients of 1 for rows 0 and 3.
    loaded.layer
        ->forward(
            {{"seen", ragged({{1}, {}})}, {"user", int64s({0, 3})}})["user"]
        .sum()
        .backward();
    EXPECT_EQ(loaded.layer->iterations(), 2);
    at::Tensor expected = before;
    expected[0] -= 0.5;
    expected[3] -= 0.5;
    expect_close(
        loaded.layer->embedding_tables()["users"], expected, 1e-6, 1e-6);
  }
}

TEST(AccumulationTest, IterationsCountUpdatesNotPasses) {
  for (const Strategy& strategy : {Strategy::fused(), kSparseHost}) {
    SCOPED_TRACE(strategy.name());
    Trainee run(
        {.optimizer = with_steps(optim::SGD{.learning_rate = 1.0}, 3),
         .strategy = strategy});
    at::Tensor before = tables_of(run.layer)[0];
    for (int64_t pass = 1; pass <= 7; ++pass) {
      run.train(pass, pass + 1);
      EXPECT_EQ(run.layer->iterations(), pass / 3);
      EXPECT_EQ(run.layer->schedule_step(), pass);
      const at::Tensor now = tables_of(run.layer)[0];
      EXPECT_EQ(at::equal(now, before), pass % 3 != 0) << pass;
      before = now;
    }
    Trainee loaded(
        {.optimizer = with_steps(optim::SGD{}, 3), .strategy = strategy});
    load_bytes(loaded.layer, run.bytes());
    EXPECT_EQ(loaded.layer->iterations(), 2);
    EXPECT_EQ(loaded.layer->schedule_step(), 7);
  }
}

TEST(AccumulationTest, IterationsAreThoseOfTheMostUpdatedTable) {
  const auto table = [](const char* name, int64_t steps) {
    return FeatureConfig{
        .table = make_table(
            {.name = name,
             .vocabulary_size = 4,
             .dim = 2,
             .optimizer = with_steps(optim::SGD{}, steps)})};
  };
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {{"a", table("a", 2)}, {"b", table("b", 3)}}});
  for (int64_t pass = 1; pass <= 7; ++pass) {
    const auto activations =
        layer->forward({{"a", int64s({0})}, {"b", int64s({1})}});
    (activations["a"].sum() + activations["b"].sum()).backward();
    EXPECT_EQ(layer->iterations(), pass / 2);
  }
}

// Gradients of ordinary parameters are not saved either before a step.
TEST(AccumulationTest, DoesNotSaveGradientsThatWaitForAStep) {
  const MemoryFolder folder;
  TPUEmbedding layer = layer_of(
      configs(), optim::SGD{.learning_rate = 1.0}, {.apply = Apply::kOnStep});
  Combined optimizer(
      std::make_unique<torch::optim::SGD>(
          layer->parameters(), torch::optim::SGDOptions(0.1)),
      {layer});
  const auto before = tables_of(layer);
  layer->forward(batch(0))["user"].sum().backward();
  layer->save_checkpoint(folder / "run");
  layer->load_checkpoint(folder / "run");
  optimizer.step();
  expect_same_tables(layer, before);
  EXPECT_EQ(layer->iterations(), 0);
}

// --- the seed -------------------------------------------------------------------

TEST(SavedSeedTest, RandomRoundingContinuesWithTheSameBits) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    for (const int64_t steps : {1, 3}) {
      expect_same_bits(
          {.optimizer = with_steps(optim::Adagrad{.learning_rate = 0.1}, steps),
           .seed = 0x8000'0000'0000'0001,
           .dtype = dtype});
    }
  }
}

TEST(SavedSeedTest, AnEmbeddingEngineUsesTheSavedSeed) {
  const MemoryFolder folder;
  EmbeddingEngineOptions options{
      .features = configs(at::kBFloat16),
      .optimizer = optim::SGD{.learning_rate = 0.1},
      .seed = 1};
  EmbeddingEngine first(options);
  options.seed = 2;
  EmbeddingEngine second(options);
  first.save_checkpoint(folder / "run");
  second.load_checkpoint(folder / "run");
  for (EmbeddingEngine* engine : {&first, &second}) {
    for (int64_t step = 0; step < 5; ++step) {
      engine->enqueue(batch(step));
      engine->apply_gradients(engine->dequeue());
    }
  }
  EXPECT_TENSOR_EQ(
      first.read_rows("movies", 0, kMovies),
      second.read_rows("movies", 0, kMovies));
}

// A layer keeps its own seed if it does not load the step counter, or if the file
// is from before seeds were saved.
TEST(SavedSeedTest, ALayerMayKeepItsOwnSeed) {
  const Case setup{
      .optimizer = optim::SGD{.learning_rate = 0.1},
      .seed = 1,
      .dtype = at::kBFloat16};
  Case other = setup;
  other.seed = 2;
  const MemoryFolder folder;
  Trainee run(setup);
  run.layer->save_checkpoint(folder / "run");
  run.layer->save_checkpoint(folder / "old");
  const std::string path = folder / "old/checkpoint_000001/manifest.json";
  Manifest manifest = manifest_from_text(read_file(path), "[test]");
  manifest.seed = {};
  write_file(path, to_text(manifest));
  const std::string bytes = changed_archive(run.bytes(), is_key_of_old_files);
  const std::vector<std::function<void(TPUEmbedding&)>> loads{
      [&](TPUEmbedding& layer) { layer->load_checkpoint(folder / "old"); },
      [&](TPUEmbedding& layer) { load_bytes(layer, bytes); },
      [&](TPUEmbedding& layer) {
        layer->load_checkpoint(folder / "run", {.slots = false});
      },
      [&](TPUEmbedding& layer) {
        layer->load_checkpoint(folder / "run", {.tables = {"movies", "users"}});
      }};
  // Trains a layer that has the same rows, but another seed.
  const auto trained = [&](const std::function<void(TPUEmbedding&)>& load) {
    Trainee loaded(other);
    load(loaded.layer);
    loaded.train(0, 5);
    return tables_of(loaded.layer);
  };
  const auto expected = trained([&](TPUEmbedding& layer) {
    for (const char* table : {"movies", "users"}) {
      layer->update_embedding_table(
          table, run.layer->embedding_tables()[table]);
    }
  });
  for (const auto& load : loads) {
    const auto actual = trained(load);
    EXPECT_TENSOR_EQ(actual[0], expected[0]);
    EXPECT_TENSOR_EQ(actual[1], expected[1]);
  }
  run.train(0, 5);
  EXPECT_FALSE(at::equal(tables_of(run.layer)[0], expected[0]));
}

}  // namespace tessera::test::accumulation_test
