// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/kernels.h"
#include "tests/test_util.h"

namespace tessera::kernels::update_kernels_test {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<int64_t> dims() {
  std::vector<int64_t> dims(40);
  std::iota(dims.begin(), dims.end(), 1);
  dims.insert(dims.end(), {64, 100, 128, 129, 256});
  return dims;
}

// These tests are about what happens around a rule. row_rules_test.cpp tests
// the rules themselves.
std::vector<RowRule> rules() {
  return {
      SgdRule{.learning_rate = 0.3F},
      AdagradRule{.learning_rate = 0.3F},
      AdamRule{
          .learning_rate = 0.3F,
          .beta_1 = 0.9,
          .beta_2 = 0.99,
          .epsilon_inside = 1e-4F,
          .epsilon_outside = 0.0F},
      AdamRule{
          .learning_rate = 0.3F,
          .beta_1 = 0.8,
          .beta_2 = 0.7,
          .epsilon_inside = 0.0F,
          .epsilon_outside = 1e-2F}};
}

// No stage, each stage alone, and all stages together.
std::vector<RowStages> stage_choices() {
  const RowStages clip_gradient{
      .clip_gradient = true,
      .clip_gradient_min = -0.4F,
      .clip_gradient_max = 0.3F};
  const RowStages decay{.weight_decay = 0.2F};
  const RowStages clip_weight{
      .clip_weight = true, .clip_weight_min = -0.5F, .clip_weight_max = 0.6F};
  RowStages all = clip_gradient;
  all.clip_gradient_min = -kInfinity;
  all.weight_decay = 0.2F;
  all.clip_weight = true;
  all.clip_weight_min = -0.5F;
  all.clip_weight_max = kInfinity;
  return {RowStages(), clip_gradient, decay, clip_weight, all};
}

// The rules, in double precision.

double step(const SgdRule& rule, double weight, double gradient, double*) {
  return weight - rule.learning_rate * gradient;
}

double step(
    const AdagradRule& rule,
    double weight,
    double gradient,
    double* slots) {
  slots[0] += gradient * gradient;
  return weight - rule.learning_rate * gradient / std::sqrt(slots[0]);
}

double step(
    const AdamRule& rule,
    double weight,
    double gradient,
    double* slots) {
  const double beta_1 = rule.beta_1.decay;
  const double beta_2 = rule.beta_2.decay;
  slots[0] = beta_1 * slots[0] + (1.0 - beta_1) * gradient;
  slots[1] = beta_2 * slots[1] + (1.0 - beta_2) * gradient * gradient;
  return weight -
      rule.learning_rate * slots[0] /
      (std::sqrt(slots[1] + rule.epsilon_inside) + rule.epsilon_outside);
}

// Other rules do not occur in rules().
template <class Rule>
double step(const Rule&, double weight, double, double*) {
  return weight;
}

// A table with its slots, and a sorted batch of gradients with gains. The batch
// has duplicates, also of the last row. Each vector has just the needed size.
class Example {
 public:
  static constexpr int64_t kVocab = 6;

  explicit Example(int64_t dim)
      : dim_(dim),
        parameters_(random(kVocab * dim, -1.0F, 1.0F)),
        slots_{
            random(kVocab * dim, 0.1F, 1.0F),
            random(kVocab * dim, 0.1F, 1.0F)},
        contributions_{
            {0, 2},
            {2, 0},
            {2, 1},
            {2, 3},
            {3, 3},
            {5, 4},
            {5, 4},
            {5, 0}},
        factors_{1.0F, 0.5F, 1.0F, -2.0F, 0.0F},
        scratch_(dim, kNaN) {
    for (const float factor : factors_) {
      gradients_.push_back(random(dim, -1.0F, 1.0F));
      sources_.push_back({gradients_.back().data(), factor});
    }
  }

  UpdateArgs args() {
    return {
        .table = {.data = parameters_.data(), .dim = dim_},
        .slots = {slots_[0].data(), slots_[1].data()},
        .contributions = contributions_.data(),
        .count = static_cast<int64_t>(contributions_.size()),
        .sources = sources_.data(),
        .gradient = scratch_.data(),
        .accumulate = true,
        .stages = {}};
  }

  // Changes this example as the kernel should.
  void apply(const UpdateArgs& args, const RowRule& rule) {
    for (int64_t column = 0; column < dim_; ++column) {
      size_t i = 0;
      while (i < contributions_.size()) {
        const uint32_t row = contributions_[i].row;
        double gradient = term(i++, column);
        while (args.accumulate && i < contributions_.size() &&
               contributions_[i].row == row) {
          gradient += term(i++, column);
        }
        apply(args.stages, rule, row * dim_ + column, gradient);
      }
    }
  }

  void expect_like(const Example& expected, double tolerance) const {
    // Stops after the first wrong element.
    for (int64_t i = 0; i < kVocab * dim_ && !testing::Test::HasFatalFailure();
         ++i) {
      expect_near(parameters_[i], expected.parameters_[i], tolerance, i);
      expect_near(slots_[0][i], expected.slots_[0][i], tolerance, i);
      expect_near(slots_[1][i], expected.slots_[1][i], tolerance, i);
    }
  }

  // The contributions with those of different rows mixed. Those of one row keep their
  // order.
  static std::vector<Contribution> scattered() {
    return {{2, 0}, {5, 4}, {2, 1}, {0, 2}, {5, 4}, {3, 3}, {2, 3}, {5, 0}};
  }

  std::vector<float>& parameters() {
    return parameters_;
  }
  std::vector<float>& gradient(size_t source) {
    return gradients_[source];
  }

 private:
  std::vector<float> random(int64_t count, float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    std::vector<float> values(count);
    std::generate(
        values.begin(), values.end(), [&] { return uniform(random_); });
    return values;
  }

  double term(size_t contribution, int64_t column) const {
    const uint32_t source = contributions_[contribution].source;
    return static_cast<double>(factors_[source]) * gradients_[source][column];
  }

  void apply(
      const RowStages& stages,
      const RowRule& rule,
      int64_t element,
      double gradient) {
    double weight = parameters_[element];
    if (stages.clip_gradient) {
      gradient = std::clamp<double>(
          gradient, stages.clip_gradient_min, stages.clip_gradient_max);
    }
    weight -= stages.weight_decay * weight;
    double slots[] = {slots_[0][element], slots_[1][element]};
    weight = std::visit(
        [&](const auto& typed) { return step(typed, weight, gradient, slots); },
        rule);
    if (stages.clip_weight) {
      weight = std::clamp<double>(
          weight, stages.clip_weight_min, stages.clip_weight_max);
    }
    parameters_[element] = static_cast<float>(weight);
    slots_[0][element] = static_cast<float>(slots[0]);
    slots_[1][element] = static_cast<float>(slots[1]);
  }

  void expect_near(
      float actual,
      float expected,
      double tolerance,
      int64_t element) const {
    ASSERT_NEAR(actual, expected, tolerance)
        << "dim " << dim_ << ", row " << element / dim_ << ", column "
        << element % dim_;
  }

  std::mt19937 random_{5};
  int64_t dim_;
  std::vector<float> parameters_;
  std::vector<float> slots_[kMaxSlots];
  std::vector<Contribution> contributions_;
  std::vector<float> factors_;
  std::vector<std::vector<float>> gradients_;
  std::vector<GradientSource> sources_;
  std::vector<float> scratch_;
};

template <class Check>
void for_each_isa_and_rule(Check check) {
  for (const KernelTable& kernels : available_kernels()) {
    for (const RowRule& rule : rules()) {
      SCOPED_TRACE(kernels.isa + ", rule " + std::to_string(rule.index()));
      check(kernels, rule);
    }
  }
}

// Without accumulation, the rule runs once per duplicate.
TEST(UpdateKernelsTest, SumsTheDuplicatesOfARowAndAppliesTheRuleOnce) {
  for_each_isa_and_rule([](const KernelTable& kernels, const RowRule& rule) {
    for (const RowStages& stages : stage_choices()) {
      for (const int64_t dim : dims()) {
        for (const bool accumulate : {true, false}) {
          Example actual(dim);
          Example expected(dim);
          UpdateArgs args = actual.args();
          args.accumulate = accumulate;
          args.stages = stages;
          kernels.update(args, rule);
          expected.apply(args, rule);
          actual.expect_like(expected, 3e-6);
        }
      }
    }
  });
}

// With room for two rows, the rows of the example need two rounds.
TEST(UpdateKernelsTest, SummingManyRowsFirstGivesTheSameBits) {
  for_each_isa_and_rule([](const KernelTable& kernels, const RowRule& rule) {
    for (const RowStages& stages : stage_choices()) {
      for (const int64_t dim : dims()) {
        for (const int64_t max_rows : {1, 2, 3, 4, 9}) {
          Example actual(dim);
          Example expected(dim);
          UpdateArgs args = expected.args();
          args.stages = stages;
          kernels.update(args, rule);
          std::vector<uint32_t> rows(max_rows);
          std::vector<float> sums(max_rows * dim, kNaN);
          args = actual.args();
          args.stages = stages;
          args.sums = {
              .rows = rows.data(), .sums = sums.data(), .max_rows = max_rows};
          kernels.update(args, rule);
          actual.expect_like(expected, 0.0);
        }
      }
    }
  });
}

TEST(UpdateKernelsTest, SummingScatteredContributionsGivesTheSameBits) {
  for_each_isa_and_rule([](const KernelTable& kernels, const RowRule& rule) {
    const std::vector<Contribution> scattered = Example::scattered();
    for (const RowStages& stages : stage_choices()) {
      for (const int64_t dim : dims()) {
        Example actual(dim);
        Example expected(dim);
        UpdateArgs args = expected.args();
        args.stages = stages;
        kernels.update(args, rule);
        std::vector<uint32_t> rows(4);
        std::vector<float> sums(4 * dim, kNaN);
        std::vector<uint16_t> places(Example::kVocab);
        args = actual.args();
        args.stages = stages;
        args.contributions = scattered.data();
        args.sums = {
            .rows = rows.data(),
            .sums = sums.data(),
            .max_rows = 4,
            .places = places.data(),
            .number_of = {.low_mask = 7}};
        kernels.update(args, rule);
        actual.expect_like(expected, 0.0);
        EXPECT_EQ(rows, (std::vector<uint32_t>{2, 5, 0, 3}));
        EXPECT_EQ(places, std::vector<uint16_t>(Example::kVocab, 0));
      }
    }
  });
}

TEST(UpdateKernelsTest, ARowNumberLacksTheSharedBits) {
  const RowNumbering number_of{.low_mask = 0x3, .shared_bits = 4};
  EXPECT_EQ(number_of(0x2A), 0x2U);
  EXPECT_EQ(number_of(0x7AB), 0x7BU);
  EXPECT_EQ(RowNumbering()(0x7AB), 0x7ABU);
}

TEST(UpdateKernelsTest, OtherRowsKeepTheirBits) {
  for_each_isa_and_rule([](const KernelTable& kernels, const RowRule& rule) {
    for (const int64_t dim : dims()) {
      Example actual(dim);
      const std::vector<float> before = actual.parameters();
      UpdateArgs args = actual.args();
      args.stages = stage_choices().back();
      kernels.update(args, rule);
      for (const int64_t row : {1, 4}) {
        ASSERT_TRUE(std::equal(
            before.begin() + row * dim,
            before.begin() + (row + 1) * dim,
            actual.parameters().begin() + row * dim));
      }
      ASSERT_NE(before, actual.parameters());
    }
  });
}

TEST(UpdateKernelsTest, WithoutContributionsNothingChanges) {
  for_each_isa_and_rule([](const KernelTable& kernels, const RowRule& rule) {
    Example actual(7);
    const std::vector<float> before = actual.parameters();
    UpdateArgs args = actual.args();
    args.count = 0;
    args.stages = stage_choices().back();
    kernels.update(args, rule);
    EXPECT_EQ(before, actual.parameters());
  });
}

TEST(UpdateKernelsTest, ANaNGradientStaysVisibleInEveryStage) {
  for_each_isa_and_rule([](const KernelTable& kernels, const RowRule& rule) {
    for (const RowStages& stages : stage_choices()) {
      for (const int64_t dim : {1, 3, 4, 8, 17, 40}) {
        for (int64_t column = 0; column < dim; ++column) {
          Example actual(dim);
          actual.gradient(1)[column] = kNaN;  // of row 2 only
          UpdateArgs args = actual.args();
          args.stages = stages;
          kernels.update(args, rule);
          for (int64_t i = 0; i < Example::kVocab * dim; ++i) {
            ASSERT_EQ(
                std::isnan(actual.parameters()[i]), i == 2 * dim + column);
          }
        }
      }
    }
  });
}

TEST(UpdateKernelsTest, AnInfiniteGradientIsClipped) {
  RowStages stages = stage_choices()[1];
  for_each_isa_and_rule([&](const KernelTable& kernels, const RowRule& rule) {
    for (const int64_t dim : {1, 5, 16}) {
      Example actual(dim);
      Example expected(dim);
      actual.gradient(2).assign(dim, -kInfinity);  // of row 0, alone
      expected.gradient(2).assign(dim, -0.4F);
      UpdateArgs args = actual.args();
      args.stages = stages;
      kernels.update(args, rule);
      expected.apply(args, rule);
      actual.expect_like(expected, 3e-6);
    }
  });
}

TEST(UpdateKernelsTest, AGradientOfZeroStillDecaysAndClipsTheWeight) {
  for (const KernelTable& kernels : available_kernels()) {
    SCOPED_TRACE(kernels.isa);
    std::vector<float> weight{2.0F};
    const std::vector<float> zero{0.0F};
    float scratch = 0.0F;
    const Contribution contribution{0, 0};
    const GradientSource source{zero.data(), 1.0F};
    UpdateArgs args{
        .table = {.data = weight.data(), .dim = 1},
        .contributions = &contribution,
        .count = 1,
        .sources = &source,
        .gradient = &scratch};
    args.stages.weight_decay = 0.25F;
    kernels.update(args, SgdRule{.learning_rate = 1.0F});
    EXPECT_EQ(weight[0], 1.5F);
    args.stages.clip_weight = true;
    args.stages.clip_weight_max = 1.0F;
    args.stages.clip_weight_min = -1.0F;
    kernels.update(args, SgdRule{.learning_rate = 1.0F});
    EXPECT_EQ(weight[0], 1.0F);
  }
}

}  // namespace tessera::kernels::update_kernels_test
