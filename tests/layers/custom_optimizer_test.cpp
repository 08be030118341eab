// SPDX-License-Identifier: Apache-2.0
// Custom rules on Strategy::fused(), and updates that fail before a row changes.
#include <tessera/serialization/config_json.h>

#include "tests/layers/layer_test_util.h"
#include "tests/optim/all_specs.h"

namespace tessera::test::custom_optimizer_test {

using optim::CustomOptimizer;
using optim::CustomRows;
using optim::CustomRule;

// A layer of two tables. "own" has the given optimizer, and "other" has SGD.
TPUEmbedding make_layer(const optim::OptimizerSpec& own) {
  const auto table = [](const char* name, const optim::OptimizerSpec& spec) {
    return make_table(
        {.name = name,
         .vocabulary_size = 4,
         .dim = 2,
         .combiner = Combiner::kSum,
         .initializer = initializers::RowId{},
         .optimizer = spec});
  };
  return TPUEmbedding(TPUEmbeddingOptions{
      .features = features_of(
          {{"a", table("other", optim::SGD{.learning_rate = 1.0})},
           {"b", table("own", own)}})});
}

void backward(TPUEmbedding& layer, const at::Tensor& ids) {
  const auto activations = layer->forward({{"a", ids}, {"b", ids}});
  (activations["a"].sum() + activations["b"].sum()).backward();
}

TEST(CustomOptimizerTest, GetsEachTouchedRowOnceWithSummedGradients) {
  std::vector<int64_t> row_counts;
  std::vector<int64_t> updates;
  auto layer = make_layer(CustomOptimizer{
      .learning_rate = 0.5,
      .rule = CustomRule(
          "spy",
          [&](CustomRows& rows) {
            row_counts.push_back(rows.weights.size(0));
            updates.push_back(rows.update);
            EXPECT_EQ(rows.learning_rate, 0.5);
            EXPECT_EQ(rows.gradients.sizes(), rows.weights.sizes());
            rows.weights.sub_(rows.gradients, rows.learning_rate);
          }),
      .clip_weight_max = 2.25});
  backward(layer, int64s({1, 3, 1}));
  backward(layer, int64s({0}));
  EXPECT_EQ(row_counts, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(updates, (std::vector<int64_t>{1, 2}));
  expect_close(
      tables_of(layer)[1],
      floats({4, 2}, {-0.5, -0.5, 0, 0, 2, 2, 2.25, 2.25}));
}

TEST(CustomOptimizerTest, KeepsItsSlotsInCheckpoints) {
  auto layer = make_layer(custom_spec(0.1));
  EXPECT_EQ(slot_of(layer, 1, "squares").sizes(), at::IntArrayRef({4}));
  EXPECT_EQ(slot_of(layer, 1, "class")[0][0].item<float>(), 0.25F);
  backward(layer, int64s({1}));
  EXPECT_NEAR(slot_of(layer, 1, "squares")[1].item<float>(), 1.1, 1e-6);
  auto other = make_layer(custom_spec(0.1));
  copy_by_archive(layer, other);
  backward(layer, int64s({1, 2}));
  backward(other, int64s({1, 2}));
  expect_same_tables(other, tables_of(layer));
}

TEST(CustomOptimizerTest, TheRuleMayReplaceItsTensors) {
  auto layer = make_layer(CustomOptimizer{
      .rule = CustomRule(
          "keeps the previous weights",
          [](CustomRows& rows) {
            std::swap(rows.slots[0], rows.slots[1]);
            rows.slots[0] = rows.weights;
            rows.weights = rows.weights - rows.gradients;
          }),
      .slots = {
          {.name = "previous", .initial_value = 7.0}, {.name = "other"}}});
  backward(layer, int64s({3}));
  EXPECT_EQ(tables_of(layer)[1][3][0].item<float>(), 2.0F);
  EXPECT_EQ(slot_of(layer, 1, "previous")[3][0].item<float>(), 3.0F);
  EXPECT_EQ(slot_of(layer, 1, "other")[3][0].item<float>(), 7.0F);
}

TEST(CustomOptimizerTest, IsANamedPlaceholderInJson) {
  const CustomOptimizer spec = custom_spec(0.1);
  const Json json = to_json(optim::OptimizerSpec(spec));
  const optim::OptimizerSpec read = optimizer_from_json(json);
  EXPECT_EQ(to_json(read), json);
  EXPECT_NE(read, optim::OptimizerSpec(spec));
  EXPECT_VALUE_ERROR(
      make_layer(read),
      "[TableConfig 'own'] CustomOptimizer: rule must be a function, but is the "
      "placeholder of 'normalised'");
}

TEST(CustomOptimizerTest, RefusesUnusableSpecs) {
  const CustomRule rule("none", [](CustomRows&) {});
  EXPECT_VALUE_ERROR(
      make_layer(CustomOptimizer{}),
      "[TableConfig 'own'] CustomOptimizer: rule must be set");
  EXPECT_VALUE_ERROR(
      make_layer(CustomOptimizer{.rule = CustomRule("", [](CustomRows&) {})}),
      "rule must be named, so that saved configs can refer to it");
  EXPECT_VALUE_ERROR(
      make_layer(CustomOptimizer{.rule = rule, .slots = {{.name = "a b"}}}),
      "the names of slots must be different and consist of letters, digits and "
      "_, but got 'a b'. Rename the slot.");
  EXPECT_VALUE_ERROR(
      make_layer(CustomOptimizer{
          .rule = rule, .slots = {{.name = "a"}, {.name = "a"}}}),
      "but got 'a'");
  EXPECT_VALUE_ERROR(
      make_layer(CustomOptimizer{
          .rule = rule, .slots = {{.name = "a", .initial_value = NAN}}}),
      "slots: initial_value must be finite in float32, but got nan");
}

// Checks the error, and that tables, slots and counter are unchanged.
void expect_refused(const optim::OptimizerSpec& spec, const std::string& text) {
  auto layer = make_layer(spec);
  const std::string before = saved(layer);
  EXPECT_VALUE_ERROR(backward(layer, int64s({1, 3})), text);
  EXPECT_TRUE(saved(layer) == before) << text;
  EXPECT_EQ(layer->iterations(), 0);
}

TEST(FailedUpdateTest, LeavesTablesAndSlotsUnchanged) {
  const auto rule = [](auto function) {
    return CustomOptimizer{
        .rule = CustomRule("rule", function), .slots = {{.name = "slot"}}};
  };
  expect_refused(
      rule([](CustomRows& rows) {
        rows.weights.zero_();
        TORCH_CHECK_VALUE(false, "out of luck");
      }),
      "out of luck");
  expect_refused(
      rule([](CustomRows& rows) {
        rows.weights = at::zeros({2, 3});
      }),
      "[table 'own'] the custom rule must leave weights as Float of shape [2, "
      "2], but left Float of shape [2, 3]");
  expect_refused(
      rule([](CustomRows& rows) {
        rows.slots[0] = rows.slots[0].to(at::kDouble);
      }),
      "must leave slot 'slot' as Float of shape [2, 2], but left Double");
  expect_refused(
      rule([](CustomRows& rows) { rows.weights = rows.weights.to_sparse(); }),
      "as Float of shape [2, 2], but left Float of shape [2, 2] in Sparse "
      "layout");
  expect_refused(
      rule([](CustomRows& rows) { rows.slots.clear(); }),
      "must leave 1 slots, but left 0");
  expect_refused(
      rule([](CustomRows& rows) {
        rows.weights.resize_({1, 2});
      }),
      "must leave weights as Float of shape [2, 2], but left Float of shape [1, "
      "2]");
  expect_refused(
      rule([](CustomRows& rows) { rows.slots[0].unsqueeze_(-1); }),
      "must leave slot 'slot' as Float of shape [2, 2], but left Float of shape "
      "[2, 2, 1]");
  expect_refused(
      optim::Adagrad{
          .learning_rate =
              [] {
                TORCH_CHECK_VALUE(false, "no rate today");
                return 0.0;
              }},
      "no rate today");
  expect_refused(
      optim::Adagrad{.learning_rate = [] { return NAN; }},
      "[table 'own'] learning_rate must be finite in float32 and >= 0, but got nan");
  expect_refused(
      optim::Adam{.learning_rate = [] { return -0.5; }},
      "[table 'own'] learning_rate must be finite in float32 and >= 0, but got -0.5");
}

TEST(FailedUpdateTest, AnAccumulatingTableDropsTheFailedPass) {
  bool fails = false;
  const auto table = [](const char* name, const optim::OptimizerSpec& spec) {
    return make_table(
        {.name = name,
         .vocabulary_size = 2,
         .dim = 1,
         .combiner = Combiner::kSum,
         .initializer = initializers::Zeros{},
         .optimizer = spec});
  };
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = features_of(
          {{"a",
            table(
                "slow",
                optim::SGD{
                    .learning_rate = 1.0, .gradient_accumulation_steps = 2})},
           {"b",
            table(
                "fails",
                CustomOptimizer{.rule = CustomRule("rule", [&](CustomRows&) {
                                  TORCH_CHECK_VALUE(!fails, "out of luck");
                                })})}})});
  backward(layer, int64s({0}));
  fails = true;
  EXPECT_VALUE_ERROR(backward(layer, int64s({0})), "out of luck");
  expect_close(tables_of(layer)[0], at::zeros({2, 1}));
  fails = false;
  backward(layer, int64s({1}));
  expect_close(tables_of(layer)[0], floats({2, 1}, {-0.5, -0.5}));
}

TEST(LearningRateTagsTest, ThirtyTablesShareTenCallables) {
  std::vector<int> reads(10, 0);
  std::vector<optim::LearningRate> rates;
  for (int i = 0; i < 10; ++i) {
    rates.emplace_back([&reads, i] {
      ++reads[i];
      return 1.0 + i;
    });
  }
  // Tables use the callables out of order, so a tag is not the callable's index.
  const auto rate_of = [](int64_t table) { return (table * 7 + 3) % 10; };
  Nest<FeatureConfig>::Map features;
  Features::Map batch;
  std::vector<optim::LearningRate> table_rates;
  for (int64_t i = 0; i < 30; ++i) {
    table_rates.push_back(rates[rate_of(i)]);
    const std::string name = c10::str("t", i);
    features.emplace_back(
        name,
        FeatureConfig{
            .table = make_table(
                {.name = name,
                 .vocabulary_size = 1,
                 .dim = 1,
                 .initializer = initializers::Zeros{},
                 .optimizer =
                     optim::SGD{.learning_rate = table_rates.back()}})});
    batch.emplace_back(name, int64s({0}));
  }
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 30; ++i) {
    expected.push_back(i % 10);
  }
  EXPECT_EQ(optim::learning_rate_tags(table_rates), expected);

  TPUEmbedding layer = layer_of(Nest<FeatureConfig>::map(features));
  for (int step = 1; step <= 2; ++step) {
    at::Tensor loss = at::zeros({});
    layer->forward(Features::map(batch))
        .for_each([&](const std::string&, const at::Tensor& activation) {
          loss = loss + activation.sum();
        });
    EXPECT_EQ(reads, std::vector<int>(10, step - 1));
    loss.backward();
    EXPECT_EQ(reads, std::vector<int>(10, step));
  }
  const auto tables = tables_of(layer);
  for (int64_t i = 0; i < 30; ++i) {
    EXPECT_EQ(
        tables[i].item<float>(), -2.0F * static_cast<float>(1 + rate_of(i)));
  }
}

TEST(LearningRateTagsTest, EqualNumbersAndSchedulesShareATag) {
  using namespace optim;
  EXPECT_EQ(
      learning_rate_tags(
          {0.1,
           ExponentialDecay{.initial_learning_rate = 0.1},
           0.1,
           0.2,
           ExponentialDecay{.initial_learning_rate = 0.1},
           ExponentialDecay{.initial_learning_rate = 0.2}}),
      (std::vector<int64_t>{0, 1, 0, 2, 1, 3}));
  EXPECT_TRUE(learning_rate_tags({}).empty());
}

}  // namespace tessera::test::custom_optimizer_test
