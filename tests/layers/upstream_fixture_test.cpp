// SPDX-License-Identifier: Apache-2.0
// The fixture of TensorFlow's TPUEmbedding tests: two tables, three features, and
// the tables after one step of each optimizer.
#include "tests/engine/engine_fixture.h"
#include "tests/layers/layer_test_util.h"

namespace tessera::test::upstream_fixture_test {

TPUEmbedding make_layer(
    optim::OptimizerSpec optimizer,
    bool is_sequence = false) {
  const auto video = counting_table("video", 8, 4, Combiner::kSum);
  const auto user = counting_table("user", 16, 2, Combiner::kMean);
  const auto feature = [&](const TablePtr& table, int64_t length) {
    return FeatureConfig{
        .table = table, .max_sequence_length = is_sequence ? length : 0};
  };
  return layer_of(
      of_features(feature(video, 2), feature(video, 2), feature(user, 3)),
      std::move(optimizer));
}

Features two_samples() {
  return of_features<Feature>(
      ragged({{0}, {0, 1}}), ragged({{0, 1}, {1}}), ragged({{3}, {0, 1, 2}}));
}

const std::vector<Rows> kFourSamples{
    {{0}, {0, 1}, {0, 1}, {1}},
    {{0, 1}, {1}, {0}, {0, 1}},
    {{3}, {0, 1, 2}, {3}, {0, 1, 2}}};

Features four_samples() {
  return of_features<Feature>(
      ragged(kFourSamples[0]),
      sparse(kFourSamples[1], 2),
      ragged(kFourSamples[2]));
}

// Returns a sparse feature [2, 4, 3]. Both samples have the same four rows.
SparseFeature twice(const Rows& rows) {
  std::vector<int64_t> indices;
  std::vector<int64_t> values;
  for (int64_t sample = 0; sample < 2; ++sample) {
    for (int64_t row = 0; row < 4; ++row) {
      for (size_t i = 0; i < rows[row].size(); ++i) {
        indices.insert(indices.end(), {sample, row, static_cast<int64_t>(i)});
        values.push_back(rows[row][i]);
      }
    }
  }
  return {
      at::tensor(indices, at::kLong).view({-1, 3}),
      at::tensor(values, at::kLong),
      int64s({2, 4, 3})};
}

Features high_dimensional() {
  return of_features<Feature>(
      twice(kFourSamples[0]), twice(kFourSamples[1]), twice(kFourSamples[2]));
}

// Returns the sum of the squares over dim, averaged over the batch and summed over
// features.
at::Tensor loss_of(const Nest<at::Tensor>& activations) {
  at::Tensor loss = at::zeros({}, at::kFloat);
  for (const at::Tensor& activation : activations.flatten()) {
    loss = loss + activation.square().sum(-1).mean();
  }
  return loss;
}

// The touched rows of both tables after one step.
struct Expected {
  std::vector<std::vector<float>> video;  // rows 0, 1
  std::vector<std::vector<float>> user;  // rows 0, 1 and rows 2, 3
};

at::Tensor joined(const std::vector<std::vector<float>>& rows, int64_t dim) {
  std::vector<float> all;
  for (const std::vector<float>& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
  }
  return at::tensor(all, at::kFloat).view({-1, dim});
}

void expect_tables(
    const TPUEmbedding& layer,
    const Expected& expected,
    double atol = 2e-6) {
  const at::Tensor video = layer->embedding_tables()["video"];
  const at::Tensor user = layer->embedding_tables()["user"];
  expect_close(video.slice(0, 0, 2), joined(expected.video, 4), 1e-6, atol);
  expect_close(user.slice(0, 0, 4), joined(expected.user, 2), 1e-6, atol);
  EXPECT_TENSOR_EQ(video.slice(0, 2), count_up(at::arange(2, 8), 4));
  EXPECT_TENSOR_EQ(user.slice(0, 4), count_up(at::arange(4, 16), 2));
}

// Checks the loss and the tables after one step, for each of the three batches.
void expect_step(
    const optim::OptimizerSpec& optimizer,
    const Expected& expected,
    double atol = 2e-6) {
  for (const Features& batch :
       {two_samples(), four_samples(), high_dimensional()}) {
    auto layer = make_layer(optimizer);
    const at::Tensor loss = loss_of(layer->forward(batch));
    EXPECT_FLOAT_EQ(loss.item<float>(), 335.0F);
    loss.backward();
    expect_tables(layer, expected, atol);
    EXPECT_EQ(layer->iterations(), 1);
  }
}

TEST(UpstreamFixtureTest, Activations) {
  auto layer = make_layer(optim::SGD{});
  const auto activations = layer->forward(two_samples());
  expect_close(
      activations["watched"], floats({2, 4}, {0, 1, 2, 3, 4, 6, 8, 10}));
  expect_close(
      activations["favorited"], floats({2, 4}, {4, 6, 8, 10, 4, 5, 6, 7}));
  expect_close(activations["friends"], floats({2, 2}, {6, 7, 2, 3}));
}

TEST(UpstreamFixtureTest, HighDimensionalActivations) {
  auto layer = make_layer(optim::SGD{});
  const at::Tensor friends = layer->forward(high_dimensional())["friends"];
  expect_close(
      friends,
      floats({2, 4, 2}, {6, 7, 2, 3, 6, 7, 2, 3, 6, 7, 2, 3, 6, 7, 2, 3}));
}

TEST(UpstreamFixtureTest, SgdStep) {
  expect_step(
      optim::SGD{.learning_rate = 0.1},
      {.video = {{-0.8, -0.3, 0.2, 0.7}, {2.8, 3.3, 3.8, 4.3}},
       .user = {{-0.0666667, 0.9, 1.933333, 2.9}, {3.933333, 4.9, 5.4, 6.3}}});
}

TEST(UpstreamFixtureTest, AdagradStep) {
  expect_step(
      optim::Adagrad{.learning_rate = 0.1},
      {.video =
           {{-0.09992197, 0.9000296, 1.900015, 2.900009},
            {3.900035, 4.900017, 5.90001, 6.900007}},
       .user = {
           {-0.09035079, 0.9046537, 1.909649, 2.904654},
           {3.909649, 4.904654, 5.900139, 6.900102}}});
}

// Without bias correction, the first step is learning_rate * 0.1 / sqrt(0.001) for
// every gradient.
Expected after_adam_step() {
  constexpr float kStep = 0.3162278F;
  std::vector<float> rows;
  for (int i = 0; i < 8; ++i) {
    rows.push_back(static_cast<float>(i) - kStep);
  }
  return {.video = {rows}, .user = {rows}};
}

TEST(UpstreamFixtureTest, AdamStepWithTheSumInsideTheRoot) {
  expect_step(optim::Adam{.learning_rate = 0.1}, after_adam_step());
}

TEST(UpstreamFixtureTest, AdamStepWithTheSumOutsideTheRoot) {
  const optim::Adam adam{.learning_rate = 0.1, .sum_inside_sqrt = false};
  expect_step(adam, after_adam_step());
  // Row 0 starts at 0, so its weight shows all digits of the step. Epsilon changes
  // the step of the smaller gradient more.
  auto layer = make_layer(adam);
  loss_of(layer->forward(two_samples())).backward();
  const auto tables = layer->embedding_tables();
  EXPECT_NEAR(tables["video"][0][0].item<float>(), -0.3162276F, 1e-7);
  EXPECT_NEAR(tables["user"][0][0].item<float>(), -0.3162263F, 1e-7);
}

TEST(UpstreamFixtureTest, FtrlStep) {
  expect_step(
      optim::FTRL{.learning_rate = 0.1},
      {.video =
           {{-0.09992197, 0.8757116, 1.864884, 2.858766},
            {3.794662, 4.807025, 5.813775, 6.818028}},
       .user = {
           {-0.09035079, 0.6031424, 1.052506, 2.00012},
           {2.195363, 3.397097, 5.584349, 6.584196}}});
  auto layer = make_layer(optim::FTRL{.learning_rate = 0.1});
  loss_of(layer->forward(two_samples())).backward();
  const at::Tensor linears = slot_of(layer, 0, "linears");
  EXPECT_NEAR(linears[0][1].item<float>(), -113.876178F, 2e-5);
  EXPECT_NEAR(
      slot_of(layer, 1, "linears")[3][0].item<float>(), -335.525987F, 5e-5);
  EXPECT_TENSOR_EQ(linears.slice(0, 2), at::zeros({6, 4}));
}

TEST(UpstreamFixtureTest, AdagradMomentumStep) {
  expect_step(
      optim::AdagradMomentum{
          .learning_rate = 0.1,
          .momentum = 0.9,
          .use_nesterov = true,
          .exponent = 3.0,
          .beta2 = 0.9,
          .epsilon = 0.1},
      {.video =
           {{-0.8144651, 0.03938954, 0.9283203, 1.836617},
            {3.064999, 3.948676, 4.853795, 5.772533}},
       .user = {
           {-0.2414138, 0.6751046, 1.758586, 2.675105},
           {3.758586, 4.675105, 5.262938, 6.222211}}});
}

TEST(UpstreamFixtureTest, SlotsAfterTheStep) {
  auto adagrad = make_layer(optim::Adagrad{.learning_rate = 0.1});
  loss_of(adagrad->forward(two_samples())).backward();
  const at::Tensor accumulators = slot_of(adagrad, 0, "accumulators");
  expect_close(
      accumulators.slice(0, 0, 3),
      joined(
          {{64.1, 169.1, 324.1, 529.1},
           {144.1, 289.1, 484.1, 729.1},
           {.1, .1, .1, .1}},
          4));
  expect_close(slot_of(adagrad, 1, "accumulators")[3], floats({36.1, 49.1}));

  auto adam = make_layer(optim::Adam{.learning_rate = 0.1});
  loss_of(adam->forward(two_samples())).backward();
  const at::Tensor momenta = slot_of(adam, 0, "momenta");
  const at::Tensor velocities = slot_of(adam, 0, "velocities");
  EXPECT_FLOAT_EQ(momenta[0][1].item<float>(), 1.3F);
  EXPECT_FLOAT_EQ(velocities[0][1].item<float>(), 0.169F);
  EXPECT_TENSOR_EQ(momenta.slice(0, 2), at::zeros({6, 4}));
  EXPECT_TENSOR_EQ(velocities.slice(0, 2), at::zeros({6, 4}));
}

TEST(UpstreamFixtureTest, AFeatureWithoutGradientMovesNothingUnderSgd) {
  auto layer = make_layer(optim::SGD{.learning_rate = 0.1});
  const at::Tensor friends = layer->forward(two_samples())["friends"];
  friends.backward(at::ones_like(friends));
  constexpr float kThird = 0.1F / 3;
  expect_tables(
      layer,
      {.video = {{0, 1, 2, 3}, {4, 5, 6, 7}},
       .user = {
           {0 - kThird, 1 - kThird, 2 - kThird, 3 - kThird},
           {4 - kThird, 5 - kThird, 6 - 0.1F, 7 - 0.1F}}});
}

TEST(UpstreamFixtureTest, SequencesGiveNoGradientToTheirPadding) {
  auto layer =
      make_layer(optim::SGD{.learning_rate = 0.1}, /*is_sequence=*/true);
  const auto activations = layer->forward(two_samples());
  expect_close(
      activations["watched"],
      floats({2, 2, 4}, {0, 1, 2, 3, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7}));
  expect_close(
      activations["friends"],
      floats({2, 3, 2}, {6, 7, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5}));
  sum_of(activations).backward();
  Expected expected{.video = {{}}, .user = {{}}};
  for (int i = 0; i < 8; ++i) {
    expected.video[0].push_back(static_cast<float>(i) - 0.3F);
    expected.user[0].push_back(static_cast<float>(i) - 0.1F);
  }
  expect_tables(layer, expected);
}

// Lookups with a negative weight. Its id is dropped, unless the combiner is a sum
// or validation is off.
class WeightedLookupTest : public testing::Test {
 protected:
  static at::Tensor look_up(
      Combiner combiner,
      bool is_validated,
      const Feature& ids) {
    const auto table = make_table(
        {.name = "t",
         .vocabulary_size = 3,
         .dim = 2,
         .combiner = combiner,
         .initializer =
             initializers::Callable("primes", [](const at::Tensor&, int64_t) {
               return floats({3, 2}, {1, 2, 3, 5, 7, 11});
             })});
    TPUEmbedding layer = layer_of(FeatureConfig{
        .table = table, .validate_weights_and_indices = is_validated});
    const Weights weights = std::optional<Feature>(floats({0.5F, 2, 1, -1, 3}));
    return layer->forward(ids, weights).leaf();
  }

  static inline const Rows kRows{{0, 1, 1}, {}, {2, 0}};
};

TEST_F(WeightedLookupTest, ValidatedRowsOfSparseAndRagged) {
  for (const Feature& ids :
       {Feature(sparse(kRows, 3)), Feature(ragged(kRows))}) {
    expect_close(
        look_up(Combiner::kSum, true, ids),
        floats({3, 2}, {9.5, 16, 0, 0, -4, -5}));
    expect_close(
        look_up(Combiner::kMean, true, ids),
        floats({3, 2}, {2.7142857, 4.5714286, 0, 0, 1, 2}));
    expect_close(
        look_up(Combiner::kSqrtn, true, ids),
        floats({3, 2}, {4.1461399, 6.9829725, 0, 0, 1, 2}));
  }
}

TEST_F(WeightedLookupTest, WithoutValidationNothingIsDropped) {
  for (const Feature& ids :
       {Feature(sparse(kRows, 3)), Feature(ragged(kRows))}) {
    expect_close(look_up(Combiner::kMean, false, ids)[2], floats({-2, -2.5}));
    expect_close(
        look_up(Combiner::kSqrtn, false, ids)[2],
        floats({-1.2649111, -1.5811388}));
  }
}

// A layer with one feature over the table `video`.
TPUEmbedding make_video_layer(FeatureConfig config) {
  config.table = make_layer(optim::SGD{})->options().features["watched"].table;
  return layer_of(config, optim::SGD{.learning_rate = 0.1});
}

// The batches of four rows are those of upstream's serving tests. Upstream decides
// by the number of rows of each batch whether rows are bags or sequences.
TEST(UpstreamFixtureTest, AShortRaggedBatchNeverTurnsBagsIntoSequences) {
  const auto rows_of = [](TPUEmbedding& layer, size_t count) {
    Rows rows = kFourSamples[0];
    rows.resize(count);
    return layer->forward(ragged(rows)).leaf();
  };
  TPUEmbedding bags = make_video_layer({.output_shape = {{2, 2}}});
  const at::Tensor activation = rows_of(bags, 4);
  expect_close(
      activation,
      floats({2, 2, 4}, {0, 1, 2, 3, 4, 6, 8, 10, 4, 6, 8, 10, 4, 5, 6, 7}));
  activation.sum().backward();
  const std::string before = saved(bags);
  EXPECT_VALUE_ERROR(
      bags->embedding_lookup(ragged({{1}, {2}})), "was 4 in the first one");
  for (const size_t rows : {0, 1, 2, 3}) {
    EXPECT_VALUE_ERROR(
        rows_of(bags, rows),
        "output_shape [2, 2] fixes the number of rows of a ragged batch, which "
        "was 4 in the first one, but this batch has " +
            std::to_string(rows) + " rows.");
  }
  EXPECT_EQ(saved(bags), before);
  TPUEmbedding copy = clone_of(bags);
  EXPECT_VALUE_ERROR(copy->forward(ragged({{1}, {2}})), "was 4 in the first");

  TPUEmbedding sequences = make_video_layer({.output_shape = {{2, 4}}});
  expect_close(
      rows_of(sequences, 4).select(2, 0),
      floats({2, 4}, {0, 0, 0, 4, 0, 4, 4, 0}));
  EXPECT_VALUE_ERROR(rows_of(sequences, 2), "was 4 in the first one");
  EXPECT_VALUE_ERROR(
      sequences->forward(ragged(Rows(8, {1}))), "was 4 in the first one");
}

TEST(UpstreamFixtureTest, AnOutputShapeMayLeaveTheBatchSizeOpen) {
  TPUEmbedding layer =
      make_video_layer({.output_shape = PartialShape{std::nullopt, 2}});
  expect_close(
      layer->forward(ragged(kFourSamples[0])).leaf().select(2, 0),
      floats({2, 2}, {0, 4, 4, 4}));
  const at::Tensor last = layer->forward(ragged({{0}, {0, 1}})).leaf();
  expect_close(last, floats({1, 2, 4}, {0, 1, 2, 3, 4, 6, 8, 10}));
  EXPECT_VALUE_ERROR(
      layer->forward(ragged({{0}})),
      "the output shape is set to [?, 2] (by output_shape, build() or the first "
      "batch), but this batch has 1 rows.");
  EXPECT_EQ(
      layer->compute_output_shape(PartialShape{3, 2, std::nullopt}).leaf(),
      (PartialShape{3, 2, 4}));
  EXPECT_VALUE_ERROR(
      layer->build(Nest<PartialShape>(PartialShape{3, 4, std::nullopt})),
      "the output shape is set to [?, 2], but this build gives [3, 4]");
  layer->build(3);
  EXPECT_VALUE_ERROR(layer->forward(ragged({{0}, {1}})), "is set to [3, 2]");
}

// By the documentation of upstream's enqueue(), the last dimension of the output is
// max_sequence_length, and each position combines its ids.
TEST(
    UpstreamFixtureTest,
    ASparseSequenceOfRankThreeCombinesTheIdsOfEachPosition) {
  TPUEmbedding layer = make_video_layer({.max_sequence_length = 2});
  const SparseFeature ids = twice(kFourSamples[0]);
  const at::Tensor activation = layer->forward(ids).leaf();
  const std::vector<float> sample{0, 1, 2, 3, 4, 6, 8, 10};
  std::vector<float> both = sample;
  both.insert(both.end(), sample.begin(), sample.end());
  expect_close(activation, floats({2, 2, 4}, both));
  // Each sample looks up row 0 twice and row 1 once. Its other rows are cut off.
  activation.sum().backward();
  const at::Tensor video = layer->embedding_tables()["video"];
  expect_close(
      video.slice(0, 0, 3),
      floats({3, 4}, {-.4, .6, 1.6, 2.6, 3.8, 4.8, 5.8, 6.8, 8, 9, 10, 11}));
  TPUEmbedding longer = make_video_layer({.max_sequence_length = 5});
  const at::Tensor padded = longer->forward(ids).leaf();
  EXPECT_EQ(padded.sizes(), at::IntArrayRef({2, 5, 4}));
  EXPECT_TENSOR_EQ(padded.select(1, 4), at::zeros({2, 4}));
  // Weights apply as in any bag.
  const at::Tensor halves = at::full({ids.values.numel()}, 0.5F);
  expect_close(
      layer->forward(ids, Weights(std::optional<Feature>(halves))).leaf(),
      layer->forward(ids).leaf() / 2);
}

TEST(UpstreamFixtureTest, AnOutputShapeIgnoresTheSequenceLength) {
  testing::internal::CaptureStderr();
  TPUEmbedding layer = make_video_layer(
      {.max_sequence_length = 3, .output_shape = PartialShape{2, 4}});
  EXPECT_CONTAINS(
      testing::internal::GetCapturedStderr(),
      "max_sequence_length = 3 is ignored, because output_shape is set to "
      "[2, 4]");
  TPUEmbedding plain = make_video_layer({.output_shape = PartialShape{2, 4}});
  Rows rows = kFourSamples[0];
  rows.insert(rows.end(), rows.begin(), rows.end());
  for (const Feature& feature :
       {Feature(twice(kFourSamples[0])),
        Feature(ragged(rows)),
        Feature(at::arange(8).view({2, 4}))}) {
    expect_close(
        layer->forward(feature).leaf(), plain->forward(feature).leaf());
  }
}

TEST(UpstreamFixtureTest, EmbeddingLookupTakesAServingConfig) {
  TPUEmbedding layer = make_layer(optim::SGD{.learning_rate = 0.1});
  const Features friends{{"friends", ragged({{3}, {0, 1, 2}})}};
  const at::Tensor expected = floats({2, 2}, {6, 7, 2, 3});
  // Look up some of the features by the layer's own configs.
  const auto activations = layer->embedding_lookup(friends);
  EXPECT_EQ(activations.paths(), std::vector<std::string>{"friends"});
  expect_close(activations["friends"], expected);
  EXPECT_FALSE(activations["friends"].requires_grad());
  // Look up other features of the same tables by a serving config.
  const TablePtr user = layer->options().features["friends"].table;
  const Nest<FeatureConfig> configs{
      {"recent", FeatureConfig{.table = user, .max_sequence_length = 2}},
      {"query", FeatureConfig{.table = user}}};
  expect_close(
      layer->embedding_lookup(
          {{"recent", ragged({{5}})}}, {}, configs)["recent"],
      floats({1, 2, 2}, {10, 11, 0, 0}));
  expect_close(
      layer->embedding_lookup(
          {{"query", ragged({{3, 5}})}},
          {{"query", Feature(floats({2}, {3, 1}))}},
          configs)["query"],
      floats({1, 2}, {7, 8}));
  EXPECT_VALUE_ERROR(
      layer->embedding_lookup(
          friends, {}, features_of({{"friends", plain_table("user", 16, 2)}})),
      "its table 'user' must be one of the given tables, but none of them has "
      "its TablePtr");
  EXPECT_VALUE_ERROR(
      layer->embedding_lookup({{"movies", ragged({{3}})}}),
      "'movies' is not among the feature configs");
  // The lookup sees the updated tables.
  loss_of(layer->forward(two_samples())).backward();
  EXPECT_FLOAT_EQ(
      layer->embedding_lookup(friends)["friends"][0][0].item<float>(), 5.4F);
}

TEST(UpstreamFixtureTest, SomeOfTheFeaturesAreEnoughWithoutGradients) {
  TPUEmbedding layer = make_layer(optim::SGD{.learning_rate = 0.1});
  const Features some{
      {"friends", ragged({{3}, {0, 1, 2}})}, {"watched", ragged({{0}})}};
  EXPECT_VALUE_ERROR(
      layer->forward(some),
      "missing entry 'favorited'. Got: friends, watched.");
  EXPECT_VALUE_ERROR(
      layer->forward(some),
      "With gradients on, a batch must have all of the features. Under "
      "torch::NoGradGuard, some of them are enough.");
  EXPECT_VALUE_ERROR(layer->begin_forward(some), "missing entry 'favorited'");
  EXPECT_EQ(layer->iterations(), 0);
  const at::NoGradGuard no_grad;
  for (const auto& activations :
       {layer->forward(some),
        layer->finish_forward(layer->begin_forward(some))}) {
    EXPECT_EQ(
        activations.paths(), (std::vector<std::string>{"friends", "watched"}));
    expect_close(activations["friends"], floats({2, 2}, {6, 7, 2, 3}));
    expect_close(activations["watched"], floats({1, 4}, {0, 1, 2, 3}));
  }
  expect_close(
      layer->forward(
          {{"friends", ragged({{3, 5}})}},
          {{"friends", Feature(floats({2}, {3, 1}))}})["friends"],
      floats({1, 2}, {7, 8}));
  EXPECT_TRUE(layer->forward(Features()).empty());
  EXPECT_VALUE_ERROR(
      layer->forward({{"movies", ragged({{3}})}}),
      "[features] 'movies' is not among the feature configs. Known: watched, "
      "favorited, friends.");
  EXPECT_VALUE_ERROR(
      layer->forward({{"friends", ragged({{3}})}}, {{"watched", std::nullopt}}),
      "[weights] unexpected entry 'watched'");
}

}  // namespace tessera::test::upstream_fixture_test
