// SPDX-License-Identifier: Apache-2.0
// Repeats the training of every case of every train*.json, on Strategy::fused() and on
// the host. The fidelity is kExact unless the case says otherwise.
#include <tessera/layers/layer_optimizer.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/keras.h>

#include "tests/features/feature_builders.h"
#include "tests/golden_util.h"

#include <cstddef>

namespace tessera::test::keras_train_test {

// The golden numbers are rounded to 7 decimals.
double tolerance_of(const std::string& class_name) {
  const bool has_powers = class_name == "Ftrl" || class_name == "Nadam" ||
      class_name.starts_with("Adam");
  return has_powers ? 2e-5 : 1e-5;
}

at::Tensor table_of(const TPUEmbedding& layer) {
  const EmbeddingTables tables = layer->embedding_tables();
  return tables.begin()->parameters;
}

TPUEmbedding layer_of(
    const Json& test_case,
    const optim::OptimizerSpec& optimizer,
    const Strategy& strategy) {
  const Json& config = test_case.at("table");
  const TablePtr table = make_table(
      {.name = config.at("name"),
       .vocabulary_size = config.at("vocabulary_size"),
       .dim = config.at("dim"),
       .combiner =
           combiner_from_string(config.at("combiner").get<std::string>()),
       .optimizer = optimizer});
  Nest<FeatureConfig>::Map features;
  for (const Json& feature : test_case.at("steps").front().at("features")) {
    features.emplace_back(
        feature.at("name").get<std::string>(), FeatureConfig{.table = table});
  }
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = Nest<FeatureConfig>::map(features), .strategy = strategy});
  table_of(layer).copy_(golden_rows(config.at("rows")));
  return layer;
}

void train_step(
    TPUEmbedding& layer,
    TableOptimizer& optimizer,
    const Json& step,
    double tolerance) {
  Features::Map inputs;
  for (const Json& feature : step.at("features")) {
    inputs.emplace_back(
        feature.at("name").get<std::string>(),
        golden_feature(feature.at("value")));
  }
  const Nest<at::Tensor> activations = layer->forward(Features::map(inputs));
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
  for (const Json& feature : step.at("features")) {
    const std::string name = feature.at("name");
    SCOPED_TRACE(name);
    roots.push_back(activations[name]);
    gradients.push_back(golden_tensor(feature.at("gradient")));
    if (feature.contains("expected")) {
      expect_close(
          activations[name],
          golden_tensor(feature.at("expected")),
          tolerance,
          tolerance);
    }
  }
  torch::autograd::backward(roots, gradients);
  optimizer.step();
  expect_close(
      table_of(layer),
      golden_rows(step.at("rows_after")),
      tolerance,
      tolerance);
}

// The slot here that Keras calls `keras_name`.
std::string slot_name(
    const std::string& class_name,
    const std::string& keras_name) {
  if (class_name == "Adamax" && keras_name == "v") {
    return "norms";
  }
  static const std::map<std::string, std::string> names{
      {"accum_grad", "accumulators"},
      {"accum_var", "updates"},
      {"accumulator", "accumulators"},
      {"linear", "linears"},
      {"m", "momenta"},
      {"mg", "means"},
      {"momentum", "momenta"},
      {"rms", "mean_squares"},
      {"u", "norms"},
      {"v", "velocities"},
      {"vhat", "max_velocities"}};
  return names.at(keras_name);
}

void expect_slots(
    const TPUEmbedding& layer,
    const std::string& class_name,
    const Json& slots,
    double tolerance) {
  std::stringstream stream;
  torch::save(layer, stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  torch::serialize::InputArchive table;
  archive.read("table_0", table);
  for (const auto& [keras_name, rows] : slots.items()) {
    SCOPED_TRACE(keras_name);
    at::Tensor actual;
    const std::string name = "slot_" + slot_name(class_name, keras_name);
    if (!table.try_read(name, actual, /*is_buffer=*/true)) {
      // Of a centered RMSprop.
      ASSERT_EQ(name, "slot_mean_squares");
      at::Tensor means;
      table.read("slot_variances", actual, /*is_buffer=*/true);
      table.read("slot_means", means, /*is_buffer=*/true);
      actual = actual + means.square();
    }
    expect_close(actual, golden_rows(rows), tolerance, tolerance);
  }
}

void run_case(const Json& test_case, const Strategy& strategy) {
  const Json& spec = test_case.at("optimizer");
  const std::string class_name = spec.at("class_name");
  const optim::Fidelity fidelity =
      test_case.value("fidelity", "exact") == "lazy" ? optim::Fidelity::kLazy
                                                     : optim::Fidelity::kExact;
  const optim::OptimizerSpec optimizer =
      optim::translate_keras_optimizer(spec, fidelity);
  const double tolerance = tolerance_of(class_name);
  TPUEmbedding layer = layer_of(test_case, optimizer, strategy);
  TableOptimizer table_optimizer(layer);
  int64_t index = 0;
  for (const Json& step : test_case.at("steps")) {
    SCOPED_TRACE("step " + std::to_string(index++));
    train_step(layer, table_optimizer, step, tolerance);
  }
  if (test_case.contains("slots_after")) {
    expect_slots(layer, class_name, test_case.at("slots_after"), tolerance);
  }
}

class GoldenTrainTest : public testing::TestWithParam<std::string> {
 protected:
  static void run(const Strategy& strategy);
};

TEST_P(GoldenTrainTest, GivesKerasRowsAndSlotsOnFused) {
  run(Strategy::fused());
}

TEST_P(GoldenTrainTest, GivesKerasRowsAndSlotsOnTheHost) {
  run(Strategy::host({.sparse_gradients = true}));
}

void GoldenTrainTest::run(const Strategy& strategy) {
  const Json cases = read_golden(GetParam());
  ASSERT_FALSE(cases.empty()) << GetParam() << " has no cases";
  int passed = 0;
  int failed = 0;
  for (const Json& test_case : cases) {
    const std::string name = test_case.at("name");
    SCOPED_TRACE(name);
    const auto failures_so_far = [] {
      return testing::UnitTest::GetInstance()
          ->current_test_info()
          ->result()
          ->total_part_count();
    };
    const int before = failures_so_far();
    try {
      run_case(test_case, strategy);
    } catch (const c10::Error& error) {
      ADD_FAILURE() << error.what_without_backtrace();
    }
    if (failures_so_far() != before) {
      ++failed;
    } else {
      ++passed;
    }
  }
  RecordProperty("passed", passed);
  std::cout << GetParam() << " on " << strategy.name() << ": " << passed
            << " passed, " << failed << " failed\n";
  EXPECT_GT(passed, 0) << "nothing was trained";
}

INSTANTIATE_TEST_SUITE_P(
    Files,
    GoldenTrainTest,
    testing::ValuesIn(golden_files("train")),
    golden_test_name);

// TensorFlow looks up row 0 for an empty bag and hides it, so that the row counts as
// touched. `in_keras` is row 0 after each batch, as make_train_fixtures.py prints it: one
// with a gradient of 1 for row 0, and two with an empty bag.
struct EmptyBags {
  const char* class_name;
  Json config;
  std::vector<double> in_keras;
};

std::vector<EmptyBags> empty_bags() {
  return {
      {"SGD", {{"learning_rate", 0.1}, {"momentum", 0.9}}, {0.9, 0.81, 0.729}},
      {"Adamax", {{"learning_rate", 0.1}}, {0.9, 0.8525842, 0.8226351}},
      {"RMSprop",
       {{"learning_rate", 0.1}, {"momentum", 0.9}},
       {0.6837724, 0.3991676, 0.1430233}},
      {"Adagrad", {{"learning_rate", 0.1}}, {0.9046537, 0.9046537, 0.9046537}},
      {"Adam", {{"learning_rate", 0.1}}, {0.9, 0.8329949, 0.7811993}}};
}

// Trains a table with rows of 1. In the batches with an empty bag, passes `second`
// instead of it.
std::vector<double> row_0_after_each_batch(
    const EmptyBags& expected,
    const Strategy& strategy,
    const RaggedFeature& second,
    const at::Tensor& weights) {
  const Json config{
      {"module", "keras.optimizers.legacy"},
      {"class_name", expected.class_name},
      {"config", expected.config}};
  const TablePtr table = make_table(
      {.name = "t",
       .vocabulary_size = 2,
       .dim = 1,
       .combiner = Combiner::kSum,
       .initializer = initializers::Constant{1.0},
       .optimizer =
           optim::translate_keras_optimizer(config, optim::Fidelity::kExact)});
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = FeatureConfig{.table = table}, .strategy = strategy});
  TableOptimizer optimizer(layer);
  std::vector<double> row_0;
  for (int step = 0; step < 3; ++step) {
    const Nest<at::Tensor> activations = step == 0
        ? layer->forward(ragged(Rows{{0}}))
        : weights.defined() ? layer->forward(second, weights)
                            : layer->forward(second);
    activations.leaf().sum().backward();
    optimizer.step();
    row_0.push_back(table_of(layer)[0].item<double>());
  }
  return row_0;
}

TEST(LegacyKerasTest, AnEmptyBagTouchesRow0InKerasOnly) {
  for (const EmptyBags& expected : empty_bags()) {
    for (const Strategy& strategy :
         {Strategy::fused(), Strategy::host({.sparse_gradients = true})}) {
      SCOPED_TRACE(expected.class_name + (" on " + strategy.name()));
      const bool sweeps = expected.class_name == std::string("Adam");
      const auto here =
          row_0_after_each_batch(expected, strategy, ragged({{1}, {}}), {});
      // An id 0 with the weight 0 touches row 0 as Keras does.
      const auto as_keras = row_0_after_each_batch(
          expected, strategy, ragged({{1}, {0}}), floats({1.0F, 0.0F}));
      for (size_t step = 0; step < 3; ++step) {
        EXPECT_NEAR(as_keras[step], expected.in_keras[step], 1e-5);
        EXPECT_NEAR(here[step], expected.in_keras[sweeps ? step : 0], 1e-5);
      }
    }
  }
}

TEST(GoldenFolderTest, HasTrainCases) {
  EXPECT_FALSE(golden_files("train").empty())
      << "expected a file train*.json in " << golden_folder()
      << ". Set TESSERA_GOLDEN_DIR to a folder that has one.";
}

}  // namespace tessera::test::keras_train_test
