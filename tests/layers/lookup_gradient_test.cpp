// SPDX-License-Identifier: Apache-2.0
// Compares the gradients of rows and per-id weights with central differences, both
// of a reference lookup in doubles and of the layer's own forward().
#include "tests/layers/layer_test_util.h"

namespace tessera::test::lookup_gradient_test {

constexpr int64_t kVocab = 7;
constexpr int64_t kLength = 3;  // the length of sequences and grids
constexpr int64_t kRank3Length = 2;  // the length of sparse sequences of rank 3

enum class Kind {
  kDense,
  kDenseGrid,
  kSparse,
  kSparseRank3,
  kSparseSequence,
  kSparseRank3Sequence,
  kRagged,
  kRaggedReshaped,
  kRaggedPartial,
  kRaggedSequence,
  kRaggedSpread
};

// kUnusual has negative ids, ids past the table under OutOfRange::kZero, and
// weights of zero and below.
enum class Ids { kPlain, kUnusual };

struct KindName {
  Kind kind;
  const char* name;
};

void PrintTo(const KindName& kind, std::ostream* stream) {
  *stream << kind.name;
}

bool is_dense(Kind kind) {
  return kind == Kind::kDense || kind == Kind::kDenseGrid;
}
bool is_sequence(Kind kind) {
  return kind == Kind::kSparseSequence || kind == Kind::kRaggedSequence ||
      kind == Kind::kRaggedSpread;
}

// Returns FeatureConfig::max_sequence_length.
int64_t length_of(Kind kind) {
  if (kind == Kind::kSparseRank3Sequence) {
    return kRank3Length;
  }
  return is_sequence(kind) && kind != Kind::kRaggedSpread ? kLength : 0;
}

std::vector<float> random_floats(int64_t count, float low, float high) {
  std::mt19937 random(static_cast<uint32_t>(count));
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(uniform(random));
  }
  return values;
}

// One id of the batch.
struct Value {
  int64_t row = 0;  // -1 if it looks up zeros
  int64_t bag = 0;  // -1 if it is dropped
};

struct Sample {
  Feature feature = at::Tensor();
  std::vector<Value> values = {};
  std::vector<int64_t> batch_shape = {};
  std::optional<PartialShape> output_shape = {};
};

Sample make_dense_sample(Kind kind, Ids kind_of_ids) {
  std::vector<int64_t> ids{3, 0, 6, 3, 5, 1};
  if (kind_of_ids == Ids::kUnusual) {
    ids = {3, -1, 6, kVocab, 3, 1};
  }
  Sample sample;
  for (const int64_t id : ids) {
    const bool is_row = id >= 0 && id < kVocab;
    const auto bag = static_cast<int64_t>(sample.values.size());
    sample.values.push_back({is_row ? id : -1, bag});
  }
  sample.batch_shape = kind == Kind::kDense ? std::vector<int64_t>{6}
                                            : std::vector<int64_t>{2, kLength};
  sample.feature = at::tensor(ids, at::kLong).view(sample.batch_shape);
  return sample;
}

Sample make_sample(Kind kind, Ids kind_of_ids) {
  if (is_dense(kind)) {
    return make_dense_sample(kind, kind_of_ids);
  }
  // Empty bags, a single id, duplicates, and bags longer than a sequence.
  Rows rows{{4, 0}, {}, {6}, {2, 3, 2, 3, 2}, {}, {1, 5, 4, 1}};
  if (kind_of_ids == Ids::kUnusual) {
    rows = {{-1, 0}, {}, {kVocab}, {2, 9, 2, -5, 2}, {-1}, {1, kVocab, 4, 1}};
  }
  Sample sample{.batch_shape = {6}};
  std::vector<int64_t> indices;
  for (int64_t bag = 0; bag < 6; ++bag) {
    for (int64_t i = 0; i < static_cast<int64_t>(rows[bag].size()); ++i) {
      const int64_t id = rows[bag][i];
      int64_t position = bag;
      if (is_sequence(kind)) {
        position = i < kLength ? bag * kLength + i : -1;
      } else if (kind == Kind::kSparseRank3Sequence) {
        position =
            bag % 3 < kRank3Length ? bag / 3 * kRank3Length + bag % 3 : -1;
      }
      sample.values.push_back({id < kVocab ? id : -1, id < 0 ? -1 : position});
      indices.insert(indices.end(), {bag / 3, bag % 3, i});
    }
  }
  switch (kind) {
    case Kind::kSparseRank3:
    case Kind::kSparseRank3Sequence:
      sample.batch_shape = {2, kind == Kind::kSparseRank3 ? 3 : kRank3Length};
      sample.feature = SparseFeature{
          at::tensor(indices, at::kLong).view({-1, 3}),
          ragged(rows).values,
          int64s({2, 3, 5})};
      break;
    case Kind::kSparse:
    case Kind::kSparseSequence:
      sample.feature = sparse(rows, 5);
      break;
    case Kind::kRaggedReshaped:
    case Kind::kRaggedPartial:
      sample.batch_shape = {2, 3};
      sample.output_shape = sample.batch_shape;
      if (kind == Kind::kRaggedPartial) {
        (*sample.output_shape)[0] = std::nullopt;
      }
      [[fallthrough]];
    default:
      sample.feature = ragged(rows);
  }
  if (kind == Kind::kRaggedSpread) {
    sample.batch_shape = {2, 3 * kLength};
    sample.output_shape = sample.batch_shape;
  } else if (is_sequence(kind)) {
    sample.batch_shape.push_back(kLength);
  }
  return sample;
}

// Computes the activation in plain loops. `weights` do not decide which ids are
// dropped.
std::vector<double> reference_lookup(
    const std::vector<Value>& values,
    Combiner combiner,
    int64_t bags,
    const std::vector<double>& table,
    const std::vector<double>& weights) {
  const auto dim = static_cast<int64_t>(table.size()) / kVocab;
  std::vector<double> out(bags * dim);
  std::vector<double> totals(bags);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto [row, bag] = values[i];
    if (bag < 0) {
      continue;
    }
    for (int64_t column = 0; row >= 0 && column < dim; ++column) {
      out[bag * dim + column] += weights[i] * table[row * dim + column];
    }
    totals[bag] +=
        combiner == Combiner::kSqrtn ? weights[i] * weights[i] : weights[i];
  }
  for (int64_t bag = 0; bag < bags && combiner != Combiner::kSum; ++bag) {
    const double denominator =
        combiner == Combiner::kMean ? totals[bag] : std::sqrt(totals[bag]);
    for (int64_t column = 0; column < dim; ++column) {
      double& value = out[bag * dim + column];
      value = denominator == 0.0 ? 0.0 : value / denominator;
    }
  }
  return out;
}

// Returns sum(upstream * activation) + sum(activation^2) / 2. Its third derivative
// by the rows is zero, so central differences are exact.
double loss_of(
    const std::vector<double>& activation,
    const std::vector<float>& upstream) {
  double loss = 0.0;
  for (size_t i = 0; i < activation.size(); ++i) {
    loss += upstream[i] * activation[i] + 0.5 * activation[i] * activation[i];
  }
  return loss;
}

at::Tensor central_differences(
    std::vector<double>& values,
    double epsilon,
    const std::function<double()>& loss) {
  std::vector<double> gradient;
  for (double& value : values) {
    const double middle = value;
    value = middle + epsilon;
    const double above = loss();
    value = middle - epsilon;
    gradient.push_back((above - loss()) / (2 * epsilon));
    value = middle;
  }
  return at::tensor(gradient, at::kDouble);
}

std::vector<double> doubles(const at::Tensor& tensor) {
  const at::Tensor flat =
      tensor.detach().to(at::kDouble).contiguous().view({-1});
  const double* data = flat.const_data_ptr<double>();
  return {data, data + flat.numel()};
}

Weights nest_of(const at::Tensor& weights) {
  return weights.defined() ? Weights(std::optional<Feature>(weights))
                           : Weights{};
}

struct Gradients {
  at::Tensor rows = {};  // [kVocab, dim]
  at::Tensor weights = {};  // [values], or undefined
};

// Runs forward() and backward() of a layer. On Strategy::fused(), an SGD step with
// learning rate 1 shows the gradients of the rows.
Gradients gradients_of(
    TPUEmbedding& layer,
    const Sample& sample,
    const at::Tensor& weights,
    const at::Tensor& upstream) {
  at::Tensor leaf;
  if (weights.defined()) {
    leaf = weights.clone().requires_grad_();
  }
  const at::Tensor before = tables_of(layer)[0];
  const at::Tensor activation =
      layer->forward(sample.feature, nest_of(leaf)).leaf();
  std::vector<int64_t> shape = sample.batch_shape;
  shape.push_back(before.size(1));
  EXPECT_EQ(activation.sizes(), shape);
  const at::Tensor loss =
      (activation * upstream.view(shape)).sum() + activation.square().sum() / 2;
  loss.backward();
  const bool on_host = !layer->options().strategy.is_fused();
  return {
      .rows = on_host ? layer->parameters()[0].grad()
                      : before - tables_of(layer)[0],
      .weights = leaf.defined() ? leaf.grad() : at::Tensor()};
}

struct Case {
  Kind kind;
  Ids ids;
  Combiner combiner;
  bool is_weighted;
  int64_t dim;
};

// The lookup of a case, and its reference.
class Lookup {
 public:
  explicit Lookup(const Case& test_case)
      : sample(make_sample(test_case.kind, test_case.ids)),
        config{
            .table = make_table(
                {.name = "t",
                 .vocabulary_size = kVocab,
                 .dim = test_case.dim,
                 .combiner = test_case.combiner,
                 .initializer = initializers::Uniform{.low = -1, .high = 1}}),
            .max_sequence_length = length_of(test_case.kind),
            .output_shape = sample.output_shape,
            .out_of_range = test_case.ids == Ids::kUnusual
                ? OutOfRange::kZero
                : OutOfRange::kError},
        combiner(
            is_sequence(test_case.kind) || is_dense(test_case.kind)
                ? Combiner::kSum
                : test_case.combiner) {
    const auto count = static_cast<int64_t>(sample.values.size());
    std::vector<float> values(count, 1.0F);
    if (test_case.is_weighted) {
      values = random_floats(count, 0.5F, 1.5F);
      for (int64_t i = 0; test_case.ids == Ids::kUnusual && i < count; i += 4) {
        values[i] = i % 8 == 0 ? -0.75F : 0.0F;
        if (combiner != Combiner::kSum) {
          sample.values[i].bag = -1;
        }
      }
      weights = at::tensor(values, at::kFloat);
    }
    weight = {values.begin(), values.end()};
    for (const int64_t length : sample.batch_shape) {
      bags *= length;
    }
    upstream = random_floats(bags * test_case.dim, -0.5F, 0.5F);
  }

  double reference_loss(const std::vector<double>& table) const {
    return loss_of(
        reference_lookup(sample.values, combiner, bags, table, weight),
        upstream);
  }

  Sample sample;
  FeatureConfig config;
  Combiner combiner;
  at::Tensor weights = {};  // undefined if the case has no weights
  std::vector<double> weight = {};
  int64_t bags = 1;
  std::vector<float> upstream = {};
};

// Compares gradients with central differences of the layer's own forward(), in
// float: for the rows along two directions, and for each weight.
void expect_own_differences(
    TPUEmbedding& layer,
    const Lookup& lookup,
    const Gradients& gradients) {
  constexpr double kEpsilon = 1e-2;
  const at::NoGradGuard no_grad;
  const at::Tensor table = layer->embedding_tables()["t"];
  const at::Tensor middle = table.clone();
  at::Tensor weights = lookup.weights;
  const auto loss = [&] {
    return loss_of(
        doubles(layer->forward(lookup.sample.feature, nest_of(weights)).leaf()),
        lookup.upstream);
  };
  for (const float sign : {1.0F, -1.0F}) {
    const at::Tensor direction =
        at::tensor(random_floats(table.numel(), -0.2F, 1.0F), at::kFloat)
            .view(table.sizes())
            .pow(sign > 0 ? 1 : 2);
    table.copy_(middle + kEpsilon * direction);
    const double above = loss();
    table.copy_(middle - kEpsilon * direction);
    const double slope = (above - loss()) / (2 * kEpsilon);
    const double expected = (gradients.rows * direction).sum().item<double>();
    EXPECT_NEAR(slope, expected, 1e-3 * (1 + std::abs(expected)));
  }
  table.copy_(middle);
  for (int64_t i = 0; weights.defined() && i < weights.numel(); ++i) {
    if (lookup.weight[i] == 0.0) {
      continue;  // a smaller weight would drop its id
    }
    weights = lookup.weights.clone();
    weights[i] += kEpsilon;
    const double above = loss();
    weights[i] -= 2 * kEpsilon;
    const double slope = (above - loss()) / (2 * kEpsilon);
    const auto expected = gradients.weights[i].item<double>();
    EXPECT_NEAR(slope, expected, 2e-3 * (1 + std::abs(expected))) << i;
  }
}

void check(const Case& test_case) {
  Lookup lookup(test_case);
  std::vector<at::Tensor> rows_by_strategy;
  for (const Strategy& strategy :
       {Strategy::fused(), Strategy::host(), Strategy::padded()}) {
    SCOPED_TRACE(strategy.name());
    TPUEmbedding layer = layer_of(
        lookup.config,
        optim::SGD{.learning_rate = 1.0},
        {.strategy = strategy});
    const at::Tensor initial = tables_of(layer)[0];
    std::vector<double> table = doubles(initial);
    const auto loss = [&] { return lookup.reference_loss(table); };

    const Gradients gradients = gradients_of(
        layer,
        lookup.sample,
        lookup.weights,
        at::tensor(lookup.upstream, at::kFloat));

    expect_close(
        gradients.rows,
        central_differences(table, 1e-5, loss).view({-1, test_case.dim}),
        1e-5,
        2e-6);
    if (test_case.is_weighted) {
      expect_close(
          gradients.weights,
          central_differences(lookup.weight, 1e-5, loss),
          1e-5,
          5e-6);
    }
    write_table(layer, "t", initial);
    expect_own_differences(layer, lookup, gradients);
    rows_by_strategy.push_back(gradients.rows);
  }
  expect_close(rows_by_strategy[0], rows_by_strategy[1], 1e-5, 1e-6);
}

class LookupGradientTest : public testing::TestWithParam<KindName> {};

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    LookupGradientTest,
    testing::Values(
        KindName{Kind::kDense, "Dense"},
        KindName{Kind::kDenseGrid, "DenseGrid"},
        KindName{Kind::kSparse, "Sparse"},
        KindName{Kind::kSparseRank3, "SparseRank3"},
        KindName{Kind::kSparseSequence, "SparseSequence"},
        KindName{Kind::kSparseRank3Sequence, "SparseRank3Sequence"},
        KindName{Kind::kRagged, "Ragged"},
        KindName{Kind::kRaggedReshaped, "RaggedReshaped"},
        KindName{Kind::kRaggedPartial, "RaggedPartial"},
        KindName{Kind::kRaggedSequence, "RaggedSequence"},
        KindName{Kind::kRaggedSpread, "RaggedSpread"}),
    [](const auto& info) { return info.param.name; });

void check_all(Kind kind, Ids ids) {
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    for (const int64_t dim : {1, 3, 8, 33}) {
      for (const bool is_weighted : {false, true}) {
        if (is_weighted && (is_dense(kind) || is_sequence(kind))) {
          continue;  // an error that other tests cover
        }
        SCOPED_TRACE(
            to_string(combiner) + " dim " + std::to_string(dim) +
            (is_weighted ? " weighted" : ""));
        check({kind, ids, combiner, is_weighted, dim});
      }
    }
  }
}

TEST_P(LookupGradientTest, AgreesWithTheReferenceAndWithDifferences) {
  check_all(GetParam().kind, Ids::kPlain);
}

TEST_P(LookupGradientTest, LeavesOutDroppedIdsAndZeroRows) {
  check_all(GetParam().kind, Ids::kUnusual);
}

}  // namespace tessera::test::lookup_gradient_test
