// SPDX-License-Identifier: Apache-2.0
// Backward passes that end in an error. They change nothing, and the next pass
// succeeds.
#include <torch/csrc/autograd/custom_function.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::failed_backward_test {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kSecondPass =
    "a second backward pass over the same forward()";

TPUEmbedding make_layer(optim::LearningRate learning_rate = 1.0) {
  const auto table = constant_table("t", 4, 1, 0.0);
  return layer_of(
      FeatureConfig{.table = table},
      optim::Adagrad{
          .learning_rate = std::move(learning_rate),
          .initial_accumulator_value = 1.0});
}

// Looks up the ids, and returns the sum of their rows as a loss.
at::Tensor loss_of(TPUEmbedding& layer, at::Tensor ids) {
  return layer->forward(std::move(ids)).leaf().sum();
}

void backward_and_retain(const at::Tensor& loss) {
  loss.backward({}, /*retain_graph=*/true);
}

// A copy of everything that a backward pass changes.
struct Snapshot {
  explicit Snapshot(const TPUEmbedding& layer)
      : tables(tables_of(layer)),
        accumulators(slot_of(layer, 0, "accumulators")),
        iterations(layer->iterations()) {}

  void expect_unchanged(const TPUEmbedding& layer) const {
    expect_same_tables(layer, tables);
    EXPECT_TENSOR_EQ(slot_of(layer, 0, "accumulators"), accumulators);
    EXPECT_EQ(layer->iterations(), iterations);
  }

  std::vector<at::Tensor> tables;
  at::Tensor accumulators;
  int64_t iterations;
};

// The identity. Its backward pass throws while `is_failing` is true.
struct FailingBackward : torch::autograd::Function<FailingBackward> {
  static inline bool is_failing = true;

  static at::Tensor forward(AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    if (is_failing) {
      throw std::out_of_range("half-way");
    }
    return gradients;
  }
};

// Backward passes that fail after the node of the layer has run. LibTorch runs
// newer nodes first, and the failing node is the oldest.
class HalfWayTest : public testing::Test {
 protected:
  HalfWayTest() : layer_(make_layer()) {
    FailingBackward::is_failing = true;
    layer_->virtual_variable().register_hook(
        [this](const at::Tensor&) { ++layer_runs_; });
    failing_ = FailingBackward::apply(at::ones({}).requires_grad_());
  }

  void expect_table(int64_t iterations, const std::vector<float>& rows) {
    EXPECT_EQ(layer_->iterations(), iterations);
    expect_close(layer_->embedding_tables()["t"], floats({4, 1}, rows));
  }

  TPUEmbedding layer_;
  at::Tensor failing_;
  int layer_runs_ = 0;
};

TEST_F(HalfWayTest, TablesAreUnchangedAndTheNextPassSucceeds) {
  const Snapshot before(layer_);
  const at::Tensor loss = failing_ + loss_of(layer_, int64s({0, 1, 1}));
  EXPECT_THROW(loss.backward(), std::out_of_range);
  EXPECT_EQ(layer_runs_, 1);
  before.expect_unchanged(layer_);

  loss_of(layer_, int64s({2})).backward();
  expect_table(1, {0, 0, -1 / std::sqrt(2.0F), 0});
}

TEST_F(HalfWayTest, ARetainedGraphCanBeTriedAgain) {
  const Snapshot before(layer_);
  const at::Tensor loss = failing_ + loss_of(layer_, int64s({0, 1, 1}));
  EXPECT_THROW(backward_and_retain(loss), std::out_of_range);
  EXPECT_THROW(backward_and_retain(loss), std::out_of_range);
  EXPECT_EQ(layer_runs_, 2);
  before.expect_unchanged(layer_);

  FailingBackward::is_failing = false;
  backward_and_retain(loss);
  expect_table(1, {-1 / std::sqrt(2.0F), -2 / std::sqrt(5.0F), 0, 0});
  EXPECT_TORCH_ERROR(backward_and_retain(loss), kSecondPass);
}

TEST_F(HalfWayTest, AFailureBeforeTheLayerRanChangesNothing) {
  const Snapshot before(layer_);
  const at::Tensor lookup = loss_of(layer_, int64s({0, 1, 1}));
  const at::Tensor newest =
      FailingBackward::apply(at::ones({}).requires_grad_());
  const at::Tensor loss = lookup + newest;
  EXPECT_THROW(backward_and_retain(loss), std::out_of_range);
  EXPECT_EQ(layer_runs_, 0);
  before.expect_unchanged(layer_);

  FailingBackward::is_failing = false;
  loss.backward();
  expect_table(1, {-1 / std::sqrt(2.0F), -2 / std::sqrt(5.0F), 0, 0});
}

TEST_F(HalfWayTest, AFailureBetweenTwoLookupsDropsCollectedGradients) {
  const Snapshot before(layer_);
  const at::Tensor older = layer_->forward(int64s({0, 1})).leaf();
  const at::Tensor middle =
      FailingBackward::apply(at::ones({}).requires_grad_());
  const at::Tensor newer = layer_->forward(int64s({1, 1})).leaf();
  int older_runs = 0;
  int newer_runs = 0;
  older.register_hook([&](const at::Tensor&) { ++older_runs; });
  newer.register_hook([&](const at::Tensor&) { ++newer_runs; });
  const at::Tensor loss = older.sum() + middle + newer.sum();
  EXPECT_THROW(backward_and_retain(loss), std::out_of_range);
  EXPECT_EQ(older_runs, 0);
  EXPECT_EQ(newer_runs, 1);
  before.expect_unchanged(layer_);

  FailingBackward::is_failing = false;
  loss.backward();
  expect_table(1, {-1 / std::sqrt(2.0F), -3 / std::sqrt(10.0F), 0, 0});
}

TEST_F(HalfWayTest, LibTorchRefusesARetryWithoutARetainedGraph) {
  const at::Tensor loss = failing_ + loss_of(layer_, int64s({0, 1}));
  EXPECT_THROW(loss.backward(), std::out_of_range);
  const Snapshot before(layer_);
  FailingBackward::is_failing = false;
  EXPECT_TORCH_ERROR(
      loss.backward(), "backward through the graph a second time");
  before.expect_unchanged(layer_);
}

TEST(SecondBackwardTest, IsAnErrorWithoutARetainedGraph) {
  auto layer = make_layer();
  const at::Tensor loss = loss_of(layer, int64s({0}));
  loss.backward();
  const Snapshot before(layer);
  EXPECT_TORCH_ERROR(
      loss.backward(), "backward through the graph a second time");
  before.expect_unchanged(layer);
}

TEST(SecondBackwardTest, IsAnErrorWithARetainedGraph) {
  auto layer = make_layer();
  const at::Tensor loss = loss_of(layer, int64s({0}));
  backward_and_retain(loss);
  const Snapshot before(layer);
  EXPECT_TORCH_ERROR(backward_and_retain(loss), kSecondPass);
  EXPECT_TORCH_ERROR(loss.backward(), kSecondPass);
  before.expect_unchanged(layer);
}

TEST(SecondBackwardTest, APassWithOneUsedLookupUpdatesNothing) {
  auto layer = make_layer();
  const at::Tensor first = loss_of(layer, int64s({0}));
  const at::Tensor second = loss_of(layer, int64s({1}));
  backward_and_retain(first);
  const Snapshot before(layer);
  EXPECT_TORCH_ERROR(backward_and_retain(first + second), kSecondPass);
  EXPECT_TORCH_ERROR(backward_and_retain(second + first), kSecondPass);
  before.expect_unchanged(layer);
  // The second lookup has made no update yet, so a pass over it succeeds.
  second.backward();
  const float step = -1 / std::sqrt(2.0F);
  expect_close(
      layer->embedding_tables()["t"], floats({4, 1}, {step, step, 0, 0}));
}

TEST(SecondBackwardTest, APassWithOneFreedGraphUpdatesNothing) {
  auto layer = make_layer();
  const at::Tensor first = loss_of(layer, int64s({0}));
  const at::Tensor second = loss_of(layer, int64s({1}));
  first.backward();
  const Snapshot before(layer);
  EXPECT_TORCH_ERROR(
      backward_and_retain(first + second),
      "backward through the graph a second time");
  before.expect_unchanged(layer);
  second.backward();
  EXPECT_EQ(layer->iterations(), 2);
}

TEST(FailingLearningRateTest, ReachesTheCallerWithItsTypeAndChangesNothing) {
  bool is_failing = true;
  auto layer = make_layer([&]() -> double {
    if (is_failing) {
      throw std::domain_error("no rate today");
    }
    return 1.0;
  });
  const Snapshot before(layer);
  const at::Tensor loss = loss_of(layer, int64s({0}));
  EXPECT_THROW(backward_and_retain(loss), std::domain_error);
  before.expect_unchanged(layer);
  is_failing = false;
  loss.backward();
  EXPECT_EQ(layer->iterations(), 1);
  EXPECT_NEAR(
      layer->embedding_tables()["t"][0].item<float>(),
      -1 / std::sqrt(2.0F),
      1e-6);
}

TEST(WrongGradientTest, ASparseGradientIsAnError) {
  auto layer = make_layer();
  const Snapshot before(layer);
  const at::Tensor activation = layer->forward(int64s({0, 1, 2})).leaf();
  const at::Tensor chosen = at::embedding(
      activation,
      int64s({2}),
      /*padding_idx=*/-1,
      /*scale_grad_by_freq=*/false,
      /*sparse=*/true);
  EXPECT_VALUE_ERROR(
      chosen.sum().backward(),
      "the gradient must be a dense float32 cpu tensor of shape [3, 1], but "
      "got Float of shape [3, 1] in Sparse layout");
  before.expect_unchanged(layer);
}

// The identity. Its backward pass runs another backward pass.
struct NestedBackward : torch::autograd::Function<NestedBackward> {
  static inline at::Tensor inner_loss = {};

  static at::Tensor forward(AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    inner_loss.backward();
    return gradients;
  }
};

TEST(NestedBackwardTest, EachPassMakesItsOwnUpdate) {
  auto layer = make_layer();
  const at::Tensor outer = loss_of(layer, int64s({0, 0}));
  NestedBackward::inner_loss = loss_of(layer, int64s({0}));
  const at::Tensor nested =
      NestedBackward::apply(at::ones({}).requires_grad_());
  (outer + nested).backward();
  NestedBackward::inner_loss = at::Tensor();
  EXPECT_EQ(layer->iterations(), 2);
  expect_close(slot_of(layer, 0, "accumulators")[0], floats({1 + 1 + 4}));
}

}  // namespace tessera::test::failed_backward_test
