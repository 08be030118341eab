// SPDX-License-Identifier: Apache-2.0
// Compares training through the layer with the same arithmetic in doubles. Every
// stage of an update is tested.
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::optimizer_reference_test {

constexpr int64_t kVocab = 6;
constexpr int64_t kDim = 5;
constexpr int kSteps = 12;
constexpr double kRate = 0.1;

// One weight of a table with its slots.
struct Cell {
  double weight = 0.0;
  double first = 0.0;  // accumulator or momentum
  double second = 0.0;  // velocity
};

void apply_rule(const optim::SGD& /*sgd*/, double gradient, Cell& cell) {
  cell.weight -= kRate * gradient;
}

void apply_rule(
    const optim::Adagrad& /*adagrad*/,
    double gradient,
    Cell& cell) {
  cell.first += gradient * gradient;
  cell.weight -= kRate * gradient / std::sqrt(cell.first);
}

void apply_rule(const optim::Adam& adam, double gradient, Cell& cell) {
  cell.first = adam.beta_1 * cell.first + (1 - adam.beta_1) * gradient;
  cell.second =
      adam.beta_2 * cell.second + (1 - adam.beta_2) * gradient * gradient;
  const double denominator = adam.sum_inside_sqrt
      ? std::sqrt(cell.second + adam.epsilon * adam.epsilon)
      : std::sqrt(cell.second) + adam.epsilon;
  cell.weight -= kRate * cell.first / denominator;
}

template <class Spec>
void update_cell(const Spec& spec, double gradient, Cell& cell) {
  gradient = std::max(gradient, spec.clip_gradient_min.value_or(gradient));
  gradient = std::min(gradient, spec.clip_gradient_max.value_or(gradient));
  const double decay = spec.weight_decay_factor.value_or(0.0);
  cell.weight -= cell.weight * decay *
      (spec.multiply_weight_decay_factor_by_learning_rate ? kRate : 1.0);
  apply_rule(spec, gradient, cell);
  cell.weight =
      std::max(cell.weight, spec.clip_weight_min.value_or(cell.weight));
  cell.weight =
      std::min(cell.weight, spec.clip_weight_max.value_or(cell.weight));
}

// The gradient that one looked-up id adds to its row.
struct Contribution {
  int64_t row = 0;
  std::vector<double> gradient = {};  // [dim]
};

template <class Spec>
void update_table(
    const Spec& spec,
    const std::vector<Contribution>& contributions,
    std::vector<Cell>& cells) {
  std::vector<Contribution> updates;
  for (const Contribution& contribution : contributions) {
    const auto same_row =
        std::find_if(updates.begin(), updates.end(), [&](const auto& update) {
          return update.row == contribution.row;
        });
    if (!spec.use_gradient_accumulation || same_row == updates.end()) {
      updates.push_back(contribution);
      continue;
    }
    for (int64_t column = 0; column < kDim; ++column) {
      same_row->gradient[column] += contribution.gradient[column];
    }
  }
  for (const Contribution& update : updates) {
    for (int64_t column = 0; column < kDim; ++column) {
      update_cell(
          spec, update.gradient[column], cells[update.row * kDim + column]);
    }
  }
}

struct NamedSpec {
  std::string name;
  optim::OptimizerSpec spec;
};

void PrintTo(const NamedSpec& spec, std::ostream* stream) {
  *stream << spec.name;
}

// Adds `spec` without stages, with each stage alone, and with all stages.
template <class Spec>
void add_stages(
    const std::string& name,
    const Spec& spec,
    std::vector<NamedSpec>& specs) {
  Spec all = spec;
  const auto add = [&](const std::string& stage, auto set_options) {
    Spec changed = spec;
    set_options(changed);
    set_options(all);
    specs.push_back({name + stage, changed});
  };
  add("", [](Spec&) {});
  add("ClipGradient", [](Spec& changed) {
    changed.clip_gradient_min = -0.3;
    changed.clip_gradient_max = 0.5;
  });
  add("ClipGradientAboveOnly",
      [](Spec& changed) { changed.clip_gradient_max = 0.4; });
  add("Decay", [](Spec& changed) { changed.weight_decay_factor = 0.05; });
  add("DecayByLearningRate", [](Spec& changed) {
    changed.weight_decay_factor = 0.2;
    changed.multiply_weight_decay_factor_by_learning_rate = true;
  });
  add("ClipWeight", [](Spec& changed) {
    changed.clip_weight_min = -0.6;
    changed.clip_weight_max = 0.4;
  });
  specs.push_back({name + "AllStages", all});
  all.clip_gradient_min = {};
  all.clip_gradient_max = {};
  all.use_gradient_accumulation = false;
  specs.push_back({name + "AllStagesOneByOne", all});
}

std::vector<NamedSpec> all_specs() {
  std::vector<NamedSpec> specs;
  add_stages("Sgd", optim::SGD{.learning_rate = kRate}, specs);
  add_stages("Adagrad", optim::Adagrad{.learning_rate = kRate}, specs);
  add_stages(
      "AdamInside",
      optim::Adam{.learning_rate = kRate, .beta_2 = 0.9, .epsilon = 1e-2},
      specs);
  add_stages(
      "AdamOutside",
      optim::Adam{
          .learning_rate = kRate,
          .beta_1 = 0.5,
          .epsilon = 1e-2,
          .sum_inside_sqrt = false},
      specs);
  return specs;
}

class OptimizerReferenceTest : public testing::TestWithParam<NamedSpec> {};

INSTANTIATE_TEST_SUITE_P(
    Specs,
    OptimizerReferenceTest,
    testing::ValuesIn(all_specs()),
    test::spec_name);

TEST_P(OptimizerReferenceTest, TwelveStepsMatchArithmeticInDoubles) {
  const optim::OptimizerSpec& spec = GetParam().spec;
  const auto table = make_table(
      {.name = "t",
       .vocabulary_size = kVocab,
       .dim = kDim,
       .combiner = Combiner::kSum,
       .initializer = initializers::Uniform{.low = -1, .high = 1}});
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = test::features_of({{"dense", table}, {"bags", table}}),
      .optimizer = spec,
      .seed = 5});
  const at::Tensor initial = test::tables_of(layer)[0];
  std::vector<Cell> cells(kVocab * kDim);
  for (size_t i = 0; i < cells.size(); ++i) {
    cells[i].weight = initial.const_data_ptr<float>()[i];
    if (const auto* adagrad = spec.get_if<optim::Adagrad>()) {
      cells[i].first = adagrad->initial_accumulator_value;
    }
  }

  std::mt19937 random(11);
  // The last row stays untouched.
  const auto draw_id = [&] {
    return static_cast<int64_t>(random() % (kVocab - 1));
  };
  const auto draw_gradient = [&] {
    return std::uniform_real_distribution<float>(-1.0F, 1.0F)(random);
  };
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<int64_t> ids{draw_id(), draw_id(), draw_id()};
    const test::Rows bags{{draw_id(), draw_id()}, {}, {draw_id()}};
    std::vector<float> upstream;  // [2, 3, dim]: dense, bags
    for (int64_t i = 0; i < 2 * 3 * kDim; ++i) {
      upstream.push_back(draw_gradient());
    }
    std::vector<Contribution> contributions;
    const auto contribute = [&](int64_t row, int64_t activation) {
      const auto begin = upstream.begin() + activation * kDim;
      contributions.push_back({row, {begin, begin + kDim}});
    };
    for (int64_t i = 0; i < 3; ++i) {
      contribute(ids[i], i);
    }
    for (int64_t bag = 0; bag < 3; ++bag) {
      for (const int64_t id : bags[bag]) {
        contribute(id, 3 + bag);
      }
    }

    const auto activations = layer->forward(
        {{"dense", at::tensor(ids, at::kLong)}, {"bags", test::ragged(bags)}});
    const at::Tensor gradients =
        at::tensor(upstream, at::kFloat).view({2, 3, kDim});
    ((activations["dense"] * gradients[0]).sum() +
     (activations["bags"] * gradients[1]).sum())
        .backward();
    std::visit(
        [&](const auto& concrete) {
          if constexpr (requires { apply_rule(concrete, 0.0, cells[0]); }) {
            update_table(concrete, contributions, cells);
          } else {
            FAIL() << "no arithmetic for " << optim::name_of(spec);
          }
        },
        spec.variant());
  }

  const at::Tensor actual = test::tables_of(layer)[0];
  std::vector<double> expected;
  for (const Cell& cell : cells) {
    expected.push_back(cell.weight);
  }
  test::expect_close(
      actual,
      at::tensor(expected, at::kDouble).view({kVocab, kDim}),
      5e-6,
      5e-6);
  EXPECT_TRUE(at::equal(actual[kVocab - 1], initial[kVocab - 1]));
}

}  // namespace tessera::optimizer_reference_test
