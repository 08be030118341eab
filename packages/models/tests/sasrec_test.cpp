// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/layer_json.h>
#include <tessera/models/register_models.h>
#include <tessera/models/sasrec.h>
#include <tessera/optim/optimizers/adam.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/search/top_k_index.h>

#include "packages/models/tests/padded_attention.h"
#include "tests/test_util.h"

namespace tessera::test::sasrec_test {

const std::vector<int64_t> kSequenceLengths{4, 0, 7, 1};
constexpr int64_t kItems = 11;

SASRecOptions small_options() {
  return {
      .num_items = kItems,
      .dim = 8,
      .max_length = 7,
      .num_blocks = 2,
      .block = {.num_heads = 2, .feed_forward_dim = 12},
      .optimizer = optim::SGD{.learning_rate = 1.0}};
}

at::Tensor random_items(int64_t count) {
  return at::randint(kItems, {count}, at::kLong);
}

RaggedFeature random_sequences(const std::vector<int64_t>& lengths) {
  return {random_items(sum_of(lengths)), splits_of(lengths)};
}

// The states of the docstring, by LibTorch's operators on a padded batch. `table` takes
// the place of the items.
at::Tensor states_on_padded(
    const SASRec& model,
    const at::Tensor& table,
    const at::Tensor& ids,
    const std::vector<int64_t>& lengths) {
  const auto parameters = model->named_parameters();
  const at::Tensor padded_ids = padded(ids, lengths);
  at::Tensor x = at::embedding(table, padded_ids);
  std::vector<int64_t> numbers;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) {
      numbers.push_back(
          model->options().positions == SequencePositions::kFirst
              ? i
              : length - 1 - i);
    }
  }
  if (model->options().positions != SequencePositions::kNone) {
    x = x +
        at::embedding(
            parameters["positions"],
            padded(at::tensor(numbers, at::kLong), lengths));
  }
  if (model->options().embedding_norm) {
    x = at::layer_norm(
        x,
        {x.size(-1)},
        parameters["embedding_norm.weight"],
        parameters["embedding_norm.bias"]);
  }
  const at::Tensor is_there =
      padded(at::ones({ids.size(0), 1}), lengths);  // for filters
  for (int64_t i = 0; i < model->options().num_blocks; ++i) {
    x = block_on_padded(
        *model,
        c10::str("block_", i, "."),
        model->options().block,
        x * is_there);
  }
  if (model->options().block.norm == NormOrder::kPre) {
    x = at::layer_norm(
        x, {x.size(-1)}, parameters["norm.weight"], parameters["norm.bias"]);
  }
  const at::Tensor states = packed(x, lengths);
  return model->options().one_target
      ? states.index_select(
            0, splits_of(lengths).narrow(0, 1, std::ssize(lengths)) - 1)
      : states;
}

at::Tensor unit(const at::Tensor& rows) {
  return rows / rows.norm(2, 1, true);
}

// Compares a loss, the gradients of the dense weights and the update of the table, which is
// the gradient with SGD and a learning rate of 1.
void expect_loss_of_padded_operators(
    const SASRecOptions& options,
    const std::string& kind) {
  SASRec model(options);
  const std::vector<int64_t> lengths =
      options.one_target ? std::vector<int64_t>{4, 7, 1} : kSequenceLengths;
  const RaggedFeature sequences = random_sequences(lengths);
  const int64_t count =
      options.one_target ? std::ssize(lengths) : sequences.values.size(0);
  const at::Tensor targets = random_items(count);
  const at::Tensor negatives = random_items(kind == "sampled" ? 6 : count);
  const at::Tensor table =
      model->items->read_rows("items", 0, kItems).requires_grad_();

  at::Tensor states = states_on_padded(model, table, sequences.values, lengths);
  at::Tensor rows = table;
  if (options.temperature) {
    states = unit(states);
    rows = unit(table);
  }
  expect_close(model->forward(sequences), states, 1e-4, 1e-5);
  expect_close(model->item_vectors(), rows);
  states = states / options.temperature.value_or(1.0);
  const auto scores = [&](const at::Tensor& ids) {
    return (states * at::embedding(rows, ids)).sum(1);
  };
  at::Tensor expected, loss;
  if (kind == "softmax") {
    expected = at::cross_entropy_loss(at::matmul(states, rows.t()), targets);
    loss = model->softmax_loss(sequences, targets);
  } else if (kind == "sampled") {
    // The target is class 0. Negatives that are the target of a position do not count.
    const at::Tensor sampled =
        at::matmul(states, at::embedding(rows, negatives).t())
            .masked_fill(
                negatives.unsqueeze(0).eq(targets.unsqueeze(1)), -1e30);
    expected = at::cross_entropy_loss(
        at::cat({scores(targets).unsqueeze(1), sampled}, 1),
        at::zeros({count}, at::kLong));
    loss = model->sampled_softmax_loss(sequences, targets, negatives);
  } else {
    expected =
        (at::softplus(-scores(targets)) + at::softplus(scores(negatives)))
            .mean();
    loss = model->binary_loss(sequences, targets, negatives);
  }
  expect_close(loss, expected);

  std::vector<at::Tensor> sources{table};
  const auto parameters = model->named_parameters();
  for (const auto& parameter : parameters) {
    if (parameter.key() != "items.virtual_variable") {
      sources.push_back(parameter.value());
    }
  }
  const auto gradients = torch::autograd::grad({expected}, sources);
  loss.backward();
  expect_close(
      table.detach() - model->items->read_rows("items", 0, kItems),
      gradients[0],
      1e-3,
      1e-5);
  for (size_t i = 1; i < sources.size(); ++i) {
    expect_close(sources[i].grad(), gradients[i], 1e-3, 1e-5);
  }
}

TEST(SASRecTest, LossesAndGradientsMatchPaddedOperatorsOfTorch) {
  for (const std::string kind : {"softmax", "sampled", "binary"}) {
    SASRecOptions options = small_options();
    expect_loss_of_padded_operators(options, kind);
    options.block.norm = NormOrder::kPost;
    expect_loss_of_padded_operators(options, kind);
    options.temperature = 0.5;
    options.positions = SequencePositions::kNone;
    expect_loss_of_padded_operators(options, kind);
    options.temperature = {};
    options.positions = SequencePositions::kLast;
    options.one_target = true;
    options.embedding_norm = true;
    options.block.filter =
        SequenceFilterOptions{.share = 0.6, .num_frequencies = 2, .length = 7};
    expect_loss_of_padded_operators(options, kind);
  }
}

TEST(SASRecTest, InitialValuesHaveTheStandardDeviation) {
  SASRecOptions options = small_options();
  options.num_items = 1000;
  options.initial_stddev = 0.02;
  SASRec model(options);
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor& value = parameter.value();
    if (value.dim() == 2) {
      const auto size = static_cast<double>(value.numel());
      EXPECT_NEAR(
          value.std().item<double>(), 0.02, 5 * 0.02 / std::sqrt(2 * size))
          << parameter.key();
    } else if (parameter.key().ends_with("bias")) {
      EXPECT_TRUE(value.eq(0.0).all().item<bool>()) << parameter.key();
    }
  }
  EXPECT_NEAR(model->item_vectors().std().item<double>(), 0.02, 0.001);
}

TEST(SASRecTest, QueriesAreTheLastStatesWithoutDropout) {
  SASRecOptions options = small_options();
  options.block.dropout = 0.5;
  SASRec model(options);
  const RaggedFeature sequences = random_sequences({2, 3});
  const at::Tensor queries = model->queries(sequences);
  EXPECT_TRUE(model->is_training());
  EXPECT_FALSE(queries.requires_grad());
  EXPECT_FALSE(at::equal(model->forward(sequences)[4], queries[1]));
  model->eval();
  const at::Tensor states = model->forward(sequences);
  EXPECT_TRUE(at::equal(states[1], queries[0]));
  EXPECT_TRUE(at::equal(states[4], queries[1]));
}

// Each item determines the next one.
TEST(SASRecTest, LearnsWhichItemFollows) {
  constexpr int64_t kCount = 30;
  torch::manual_seed(1);
  SASRec model(SASRecOptions{
      .num_items = kCount,
      .dim = 16,
      .max_length = 10,
      .num_blocks = 1,
      .block = {.dropout = 0.1},
      .optimizer =
          optim::Adam{.learning_rate = 0.01, .bias_correction = true}});
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  const auto walks = [&](int64_t walks) {  // [walks, 11]
    const at::Tensor begin = at::randint(kCount, {walks, 1}, at::kLong);
    return (begin + 7 * at::arange(11)).remainder(kCount);
  };
  const auto sequences_of = [](const at::Tensor& ids) {
    return RaggedFeature::from_lengths(
        ids.flatten(), at::full({ids.size(0)}, ids.size(1), at::kLong));
  };
  double loss_value = 0.0;
  for (int64_t step = 0; step < 150; ++step) {
    const at::Tensor ids = walks(16);
    optimizer.zero_grad();
    const at::Tensor loss = model->softmax_loss(
        sequences_of(ids.narrow(1, 0, 10)), ids.narrow(1, 1, 10).flatten());
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  EXPECT_LT(loss_value, 0.5);
  const at::Tensor ids = walks(20);
  const TopK found =
      make_exact_index(model->item_vectors())
          ->search(model->queries(sequences_of(ids.narrow(1, 0, 10))), 1);
  EXPECT_TRUE(at::equal(found.ids, ids.narrow(1, 10, 1)));
}

TEST(SASRecTest, SeedsDetermineTheTraining) {
  const RaggedFeature sequences = random_sequences(kSequenceLengths);
  const at::Tensor targets = random_items(sequences.values.size(0));
  const auto train = [&](uint64_t table_seed, uint64_t seed, int threads) {
    const Threads used(threads);
    torch::manual_seed(seed);
    SASRecOptions options = small_options();
    options.block.dropout = 0.3;
    options.seed = table_seed;
    SASRec model(options);
    torch::optim::Adam optimizer(model->parameters(), 0.01);
    for (int64_t step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model->softmax_loss(sequences, targets).backward();
      optimizer.step();
    }
    return model->item_vectors();
  };
  const at::Tensor expected = train(1, 2, 1);
  EXPECT_TRUE(at::equal(train(1, 2, 1), expected));
  // LibTorch's products differ in the last bits.
  expect_close(train(1, 2, 3), expected, 1e-3, 1e-3);
  EXPECT_FALSE(at::equal(train(3, 2, 1), expected));
  EXPECT_FALSE(at::equal(train(1, 3, 1), expected));
}

TEST(SASRecTest, TakesEmptyBatches) {
  SASRec model(small_options());
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{}, std::vector<int64_t>{0, 0}}) {
    const RaggedFeature empty = random_sequences(lengths);
    EXPECT_EQ(model->forward(empty).sizes(), at::IntArrayRef({0, 8}));
    EXPECT_VALUE_ERROR(
        model->softmax_loss(empty, random_items(0)),
        "a loss needs one position or more");
    EXPECT_VALUE_ERROR(
        model->binary_loss(empty, random_items(0), random_items(0)),
        "a loss needs one position or more");
    EXPECT_VALUE_ERROR(
        model->sampled_softmax_loss(empty, random_items(0), random_items(3)),
        "a loss needs one position or more");
  }
  SASRecOptions options = small_options();
  options.one_target = true;
  SASRec one(options);
  EXPECT_EQ(
      one->forward(random_sequences({})).sizes(), at::IntArrayRef({0, 8}));
  EXPECT_VALUE_ERROR(
      one->forward(random_sequences({1, 0})),
      "with one_target, sequences need one item or more, but sequence 1 is empty");
  EXPECT_VALUE_ERROR(
      one->softmax_loss(random_sequences({3, 1}), random_items(4)),
      "targets must have shape [2], one item for each position, or with one_target for each sequence");
  EXPECT_EQ(
      model->queries(random_sequences({})).sizes(), at::IntArrayRef({0, 8}));
  EXPECT_VALUE_ERROR(
      model->queries(random_sequences({1, 0})), "sequence 1 is empty");
}

TEST(SASRecTest, RefusesWrongInputsAndChangesNothing) {
  SASRec model(small_options());
  const at::Tensor before = model->item_vectors();
  const RaggedFeature sequences = random_sequences({3, 2});
  const at::Tensor targets = random_items(5);
  EXPECT_VALUE_ERROR(
      model->forward(random_sequences({2, 8})),
      "at most max_length = 7 items, but sequence 1 has 8");
  EXPECT_INDEX_ERROR(
      model->forward({int64s({0, kItems}), int64s({0, 2})}), "11");
  EXPECT_INDEX_ERROR(model->forward({int64s({0, -1}), int64s({0, 2})}), "-1");
  EXPECT_VALUE_ERROR(
      model->forward({random_items(2), int64s({0, 3})}), "row_splits");
  EXPECT_VALUE_ERROR(
      model->forward({random_items(4).view({2, 2}), int64s({0, 4})}),
      "must have shape [nnz], but got Long of shape [2, 2]");
  EXPECT_VALUE_ERROR(model->forward({}), "no tensor");
  EXPECT_TYPE_ERROR(model->forward({at::randn({2}), int64s({0, 2})}), "int");
  const auto softmax = [&](const at::Tensor& items) {
    model->softmax_loss(sequences, items);
  };
  const auto sampled = [&](const at::Tensor& items, const at::Tensor& others) {
    model->sampled_softmax_loss(sequences, items, others);
  };
  EXPECT_VALUE_ERROR(
      softmax(random_items(4)),
      "targets must have shape [5], one item for each position");
  EXPECT_TYPE_ERROR(softmax(at::randn({5})), "targets must be int32 or int64");
  EXPECT_INDEX_ERROR(
      softmax(at::full({5}, kItems, at::kLong)),
      "targets must be in [0, 11), but got 11");
  EXPECT_VALUE_ERROR(
      model->binary_loss(sequences, targets, random_items(6)),
      "negatives must have shape [5]");
  EXPECT_INDEX_ERROR(
      model->binary_loss(sequences, targets, at::full({5}, -1, at::kLong)),
      "-1");
  EXPECT_VALUE_ERROR(
      sampled(random_items(4), random_items(3)),
      "targets must have shape [5], one item for each position");
  EXPECT_VALUE_ERROR(
      sampled(targets, random_items(0)),
      "negatives must have shape [num_negatives], with one item or more, but got Long of shape [0]");
  EXPECT_VALUE_ERROR(sampled(targets, {}), "no tensor");
  EXPECT_TYPE_ERROR(
      sampled(targets, at::randn({5})), "negatives must be int32 or int64");
  EXPECT_INDEX_ERROR(sampled(targets, at::full({2}, kItems, at::kLong)), "11");
  EXPECT_TRUE(at::equal(model->item_vectors(), before));

  at::Tensor rows = before.clone();
  rows[3].fill_(std::numeric_limits<double>::quiet_NaN());
  model->items->update_embedding_table("items", rows);
  EXPECT_VALUE_ERROR(
      model->softmax_loss(sequences, targets), "the loss must be finite");
  EXPECT_VALUE_ERROR(
      model->binary_loss(
          sequences, at::full({5}, 3, at::kLong), random_items(5)),
      "the loss must be finite");
}

TEST(SASRecTest, RefusesWrongOptions) {
  std::vector<Refusal<SASRecOptions>> rows{
      {{}, "[SASRec] num_items must be >= 1, but got 0"},
      {{.num_items = 1, .dim = -1}, "dim must be >= 1"},
      {{.num_items = 1, .max_length = 0}, "max_length must be >= 1"},
      {{.num_items = 1, .num_blocks = -1},
       "num_blocks must be in [0, 1024], but got -1"},
      {{.num_items = 1, .dim = 8, .block = {.num_heads = 3}},
       "num_heads must divide dim, but got 3 heads and dim 8"},
      {{.num_items = 1, .block = {.dropout = 1.0}},
       "dropout must be in [0, 1)"},
      {{.num_items = 1, .initial_stddev = 0.0},
       "initial_stddev must be > 0 and finite, but got 0"},
      {{.num_items = 1, .num_blocks = 0, .one_target = true},
       "one_target needs num_blocks >= 1"},
      {{.num_items = 1, .positions = static_cast<SequencePositions>(7)},
       "positions must be an enumerator of SequencePositions, but got 7"}};
  const TransformerBlockOptions filtered{
      .norm = NormOrder::kPost, .filter = SequenceFilterOptions{.length = 50}};
  rows.push_back(
      {{.num_items = 1, .max_length = 50, .block = filtered},
       "block.filter needs one_target, because a filter shows each position the items after it"});
  rows.push_back(
      {{.num_items = 1,
        .max_length = 60,
        .block = filtered,
        .one_target = true},
       "block.filter.length must be max_length = 60, but got 50"});
  for (const double temperature : {0.0, -0.1, std::nan("")}) {
    rows.push_back(
        {{.num_items = 1, .temperature = temperature},
         "[SASRec] temperature must be > 0"});
  }
  expect_refusals(
      rows, [](const SASRecOptions& options) { SASRec model(options); });
}

TEST(SASRecTest, IsSavedClonedAndBuiltFromJson) {
  SASRecOptions options = small_options();
  options.block.norm = NormOrder::kPost;
  options.temperature = 0.1;
  options.positions = SequencePositions::kLast;
  options.embedding_norm = true;
  options.initial_stddev = 0.05;
  SASRec model(options);
  const RaggedFeature sequences = random_sequences(kSequenceLengths);
  const at::Tensor targets = random_items(sequences.values.size(0));
  model->softmax_loss(sequences, targets).backward();  // changes the items
  const at::Tensor expected = model->forward(sequences);

  register_models();
  auto same = from_json<SASRec>(to_json(model));
  EXPECT_EQ(same->options(), model->options());
  copy_by_archive(model, same);
  EXPECT_TRUE(at::equal(same->forward(sequences), expected));

  const auto copy = std::dynamic_pointer_cast<SASRecImpl>(model->clone());
  EXPECT_TRUE(at::equal(copy->forward(sequences), expected));
  copy->softmax_loss(sequences, targets).backward();
  EXPECT_FALSE(at::equal(copy->forward(sequences), expected));
  EXPECT_TRUE(at::equal(model->forward(sequences), expected));
}

}  // namespace tessera::test::sasrec_test
