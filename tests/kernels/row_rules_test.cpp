// SPDX-License-Identifier: Apache-2.0
// Compares every rule with its formula in double precision, on every
// instruction set.

#include "src/kernels/kernels.h"
#include "tests/test_util.h"

namespace tessera::kernels::row_rules_test {

// A row in double precision.
struct Row {
  std::vector<double> weight;
  std::array<std::vector<double>, kMaxSlots> slots;
};
using Gradient = std::vector<double>;
using Reference = std::function<void(Row&, const Gradient&, int step)>;

struct Case {
  const char* name;
  std::function<RowRule(int step)> rule;
  // The initial value of each slot, or NaN if the rule has no such slot.
  std::array<double, kMaxSlots> initial;
  Reference reference;
  bool is_per_row = false;
};

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kRate = 0.1;

// Makes a reference from a formula that updates one element in place.
template <class F>
Reference by_element(F formula) {
  return [formula](Row& row, const Gradient& gradient, int step) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      std::array<double*, kMaxSlots> slots = {};
      for (size_t s = 0; s < kMaxSlots; ++s) {
        slots[s] = row.slots[s].empty() ? nullptr : &row.slots[s][i];
      }
      formula(row.weight[i], gradient[i], slots, step);
    }
  };
}

using Elements = std::array<double*, kMaxSlots>;

double sign(double x) {
  return x > 0 ? 1 : x < 0 ? -1 : 0;
}

void ftrl(const FtrlRule& rule, double& w, double g, const Elements& slots) {
  const double p = -rule.learning_rate_power;
  double& a = *slots[0];
  double& z = *slots[1];
  const double rate = rule.learning_rate;
  const double unit = rule.multiply_linear_by_learning_rate ? rate : 1.0;
  if (rule.keep_initial_weight && z == 0 && w != 0) {
    z = -sign(w) *
        (std::abs(w) * ((std::pow(a, p) + rule.beta) / rate + 2 * rule.l2) +
         rule.l1) *
        unit;
  }
  const double next = a + g * g;
  const double shrunk = g + 2 * rule.l2_shrinkage * w;
  z += unit * (shrunk - (std::pow(next, p) - std::pow(a, p)) / rate * w);
  a = next;
  const double l1 = unit * rule.l1;
  w = (std::clamp(z, -l1, l1) - z) /
      (unit * ((std::pow(a, p) + rule.beta) / rate + 2 * rule.l2));
}

// The same rule in each step.
std::function<RowRule(int)> always(RowRule rule) {
  return [rule](int) { return rule; };
}

Case ftrl_case(const char* name, FtrlRule rule) {
  rule.learning_rate = kRate;
  return {
      name,
      always(rule),
      {0.1, 0.0, kNone},
      by_element([rule](double& w, double g, const Elements& slots, int) {
        ftrl(rule, w, g, slots);
      })};
}

double nadam_mu(int step) {
  return 0.8 * (1 - 0.5 * std::pow(0.96, step));
}

double nadam_product(int steps) {
  double product = 1.0;
  for (int step = 1; step <= steps; ++step) {
    product *= nadam_mu(step);
  }
  return product;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back(
      {"Sgd",
       always(SgdRule{kRate}),
       {kNone, kNone, kNone},
       by_element(
           [](double& w, double g, const Elements&, int) { w -= kRate * g; })});
  for (const double epsilon : {0.0, 0.01}) {
    for (const bool inside : {true, false}) {
      const double in = inside ? epsilon : 0.0;
      const double out = inside ? 0.0 : epsilon;
      all.push_back(
          {"Adagrad",
           always(AdagradRule{
               kRate, static_cast<float>(in), static_cast<float>(out)}),
           {0.1, kNone, kNone},
           by_element([in, out](double& w, double g, const Elements& s, int) {
             *s[0] += g * g;
             w -= kRate * g / (std::sqrt(*s[0] + in) + out);
           })});
    }
  }
  for (const bool nesterov : {false, true}) {
    for (const double exponent : {2.0, 3.0}) {
      for (const double beta : {1.0, 0.9}) {
        all.push_back(
            {"AdagradMomentum",
             always(AdagradMomentumRule{
                 kRate,
                 0.9F,
                 static_cast<float>(beta),
                 0.1F,
                 static_cast<float>(exponent),
                 nesterov}),
             {0.0, 0.0, kNone},
             by_element([=](double& w, double g, const Elements& s, int) {
               *s[0] = beta == 1.0 ? *s[0] + g * g
                                   : beta * *s[0] + (1 - beta) * g * g;
               const double scaled = g * std::pow(*s[0] + 0.1, -1 / exponent);
               *s[1] = 0.9 * *s[1] + scaled;
               w -= kRate * (nesterov ? 0.9 * *s[1] + scaled : *s[1]);
             })});
      }
    }
    for (const bool scaled : {false, true}) {
      all.push_back(
          {"Momentum",
           always(MomentumRule{kRate, 0.9F, nesterov, scaled}),
           {0.0, kNone, kNone},
           by_element([=](double& w, double g, const Elements& s, int) {
             if (scaled) {
               *s[0] = 0.9 * *s[0] - kRate * g;
               w += nesterov ? 0.9 * *s[0] - kRate * g : *s[0];
             } else {
               *s[0] = 0.9 * *s[0] + g;
               w -= kRate * (nesterov ? g + 0.9 * *s[0] : *s[0]);
             }
           })});
    }
  }
  all.push_back(ftrl_case("Ftrl", {}));
  all.push_back(ftrl_case(
      "FtrlRegularised",
      {.learning_rate_power = -0.6F,
       .l1 = 0.3F,
       .l2 = 0.2F,
       .l2_shrinkage = 0.05F,
       .beta = 0.3F}));
  all.push_back(ftrl_case(
      "FtrlMultiplied",
      {.l1 = 0.3F,
       .l2 = 0.2F,
       .beta = 0.3F,
       .multiply_linear_by_learning_rate = true}));
  all.push_back(ftrl_case(
      "FtrlKeepsInitialWeight",
      {.l1 = 0.1F, .l2 = 0.2F, .beta = 0.3F, .keep_initial_weight = true}));
  // An accumulator of 0 comes from a checkpoint or a slot_creation.
  Case constant_power =
      ftrl_case("FtrlConstantPower", {.learning_rate_power = 0.0F});
  constant_power.initial[0] = 0.0;
  all.push_back(constant_power);
  for (const bool amsgrad : {false, true}) {
    for (const bool inside : {false, true}) {
      const double epsilon = 1e-3;
      all.push_back(
          {"Adam",
           always(AdamRule{
               kRate,
               0.8F,
               0.95F,
               inside ? static_cast<float>(epsilon * epsilon) : 0.0F,
               inside ? 0.0F : static_cast<float>(epsilon),
               amsgrad}),
           {0.0, 0.0, amsgrad ? 0.0 : kNone},
           by_element([=](double& w, double g, const Elements& s, int) {
             *s[0] = 0.8 * *s[0] + 0.2 * g;
             *s[1] = 0.95 * *s[1] + 0.05 * g * g;
             double v = *s[1];
             if (amsgrad) {
               *s[2] = v = std::max(*s[2], v);
             }
             w -= kRate * *s[0] /
                 (inside ? std::sqrt(v + epsilon * epsilon)
                         : std::sqrt(v) + epsilon);
           })});
    }
  }
  for (const bool centered : {false, true}) {
    for (const double momentum : {0.0, 0.5}) {
      all.push_back(
          {"Rmsprop",
           always(RmspropRule{
               kRate,
               0.9F,
               static_cast<float>(momentum),
               1e-2F,
               1e-3F,
               centered}),
           {0.0, momentum > 0 ? 0.0 : kNone, centered ? 0.0 : kNone},
           by_element([=](double& w, double g, const Elements& s, int) {
             if (centered) {
               const double mean_square = *s[0] + *s[2] * *s[2];
               *s[2] = 0.9 * *s[2] + 0.1 * g;
               *s[0] = 0.9 * mean_square + 0.1 * g * g - *s[2] * *s[2];
             } else {
               *s[0] = 0.9 * *s[0] + 0.1 * g * g;
             }
             double step = kRate * g / (std::sqrt(*s[0] + 1e-2) + 1e-3);
             if (s[1] != nullptr) {
               *s[1] = step = momentum * *s[1] + step;
             }
             w -= step;
           })});
    }
  }
  all.push_back(
      {"Adadelta",
       always(AdadeltaRule{kRate, 0.95F, 1e-3F}),
       {0.0, 0.0, kNone},
       by_element([](double& w, double g, const Elements& s, int) {
         *s[0] = 0.95 * *s[0] + 0.05 * g * g;
         const double delta =
             std::sqrt(*s[1] + 1e-3) / std::sqrt(*s[0] + 1e-3) * g;
         *s[1] = 0.95 * *s[1] + 0.05 * delta * delta;
         w -= kRate * delta;
       })});
  all.push_back(
      {"ProximalAdagrad",
       always(ProximalAdagradRule{kRate, 0.5F, 0.2F}),
       {0.1, kNone, kNone},
       by_element([](double& w, double g, const Elements& s, int) {
         *s[0] += g * g;
         const double rate = kRate / std::sqrt(*s[0]);
         const double x = w - rate * g;
         w = sign(x) * std::max(std::abs(x) - rate * 0.5, 0.0) /
             (1 + 0.2 * rate);
       })});
  all.push_back(
      {"Lion",
       always(LionRule{kRate, 0.9F, 0.99F}),
       {0.0, kNone, kNone},
       by_element([](double& w, double g, const Elements& s, int) {
         w -= kRate * sign(0.9 * *s[0] + 0.1 * g);
         *s[0] = 0.99 * *s[0] + 0.01 * g;
       })});
  all.push_back(
      {"RowWiseAdagrad",
       always(RowWiseAdagradRule{kRate, 1e-3F}),
       {0.0, kNone, kNone},
       [](Row& row, const Gradient& gradient, int) {
         double squares = 0;
         for (const double g : gradient) {
           squares += g * g;
         }
         double& a = row.slots[0][0];
         a += squares / static_cast<double>(gradient.size());
         for (size_t i = 0; i < gradient.size(); ++i) {
           row.weight[i] -= kRate * gradient[i] / (std::sqrt(a) + 1e-3);
         }
       },
       true});
  all.push_back(
      {"Lamb",
       [](int step) {
         return LambRule{
             kRate,
             0.8F,
             0.95F,
             1e-3F,
             0.1F,
             static_cast<float>(1 / (1 - std::pow(0.8, step))),
             static_cast<float>(1 / (1 - std::pow(0.95, step)))};
       },
       {0.0, 0.0, kNone},
       [](Row& row, const Gradient& gradient, int step) {
         std::vector<double> direction(gradient.size());
         double weights = 0;
         double directions = 0;
         for (size_t i = 0; i < gradient.size(); ++i) {
           double& m = row.slots[0][i];
           double& v = row.slots[1][i];
           m = 0.8 * m + 0.2 * gradient[i];
           v = 0.95 * v + 0.05 * gradient[i] * gradient[i];
           direction[i] = m / (1 - std::pow(0.8, step)) /
                   (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-3) +
               0.1 * row.weight[i];
           weights += row.weight[i] * row.weight[i];
           directions += direction[i] * direction[i];
         }
         const double trust = weights > 0 && directions > 0
             ? std::sqrt(weights / directions)
             : 1.0;
         for (size_t i = 0; i < gradient.size(); ++i) {
           row.weight[i] -= kRate * trust * direction[i];
         }
       }});
  all.push_back(
      {"Adamax",
       [](int step) {
         return AdamaxRule{
             kRate,
             0.8F,
             0.95F,
             1e-3F,
             static_cast<float>(1 / (1 - std::pow(0.8, step)))};
       },
       {0.0, 0.0, kNone},
       by_element([](double& w, double g, const Elements& s, int step) {
         *s[0] = 0.8 * *s[0] + 0.2 * g;
         *s[1] = std::max(0.95 * *s[1], std::abs(g));
         w -= kRate / (1 - std::pow(0.8, step)) * *s[0] / (*s[1] + 1e-3);
       })});
  all.push_back(
      {"Nadam",
       [](int step) {
         const double now = nadam_product(step);
         const double next = nadam_product(step + 1);
         return NadamRule{
             kRate,
             0.8F,
             0.95F,
             1e-3F,
             static_cast<float>(nadam_mu(step + 1) / (1 - next)),
             static_cast<float>((1 - nadam_mu(step)) / (1 - now)),
             static_cast<float>(1 / (1 - std::pow(0.95, step)))};
       },
       {0.0, 0.0, kNone},
       by_element([](double& w, double g, const Elements& s, int step) {
         *s[0] = 0.8 * *s[0] + 0.2 * g;
         *s[1] = 0.95 * *s[1] + 0.05 * g * g;
         const double momentum =
             nadam_mu(step + 1) * *s[0] / (1 - nadam_product(step + 1));
         const double gradient =
             (1 - nadam_mu(step)) * g / (1 - nadam_product(step));
         const double velocity = *s[1] / (1 - std::pow(0.95, step));
         w -= kRate * (momentum + gradient) / (std::sqrt(velocity) + 1e-3);
       })});
  return all;
}

// A table in single precision, and the expected one in double precision.
class ComparedTables {
 public:
  ComparedTables(
      const Case& rule,
      int64_t rows,
      int64_t dim,
      std::mt19937& random)
      : case_(rule), dim_(dim), reference_(rows) {
    std::normal_distribution<float> normal;
    weights_.resize(rows * dim);
    for (int64_t row = 0; row < rows; ++row) {
      reference_[row].weight.resize(dim);
      for (int64_t i = 0; i < dim; ++i) {
        weights_[row * dim + i] = normal(random);
        reference_[row].weight[i] = weights_[row * dim + i];
      }
    }
    for (size_t s = 0; s < kMaxSlots; ++s) {
      if (std::isnan(rule.initial[s])) {
        continue;
      }
      const int64_t width = rule.is_per_row ? 1 : dim;
      slots_[s].assign(rows * width, static_cast<float>(rule.initial[s]));
      for (Row& row : reference_) {
        row.slots[s].assign(width, rule.initial[s]);
      }
    }
  }

  // gradients[i] is the gradient of rows[i]. A row may occur several times.
  void update(
      const KernelTable& kernels,
      const std::vector<uint32_t>& rows,
      const std::vector<std::vector<float>>& gradients,
      bool sweep,
      int step) {
    std::vector<Contribution> contributions;
    std::vector<GradientSource> sources;
    for (size_t i = 0; i < rows.size(); ++i) {
      contributions.push_back({rows[i], static_cast<uint32_t>(i)});
      sources.push_back({gradients[i].data(), 1.0F});
    }
    std::stable_sort(
        contributions.begin(), contributions.end(), [](auto& a, auto& b) {
          return a.row < b.row;
        });
    std::vector<float> scratch(2 * dim_);
    const std::vector<float> zeros(dim_, 0.0F);
    UpdateArgs args{
        .table = {.data = weights_.data(), .dim = dim_},
        .contributions = contributions.data(),
        .count = static_cast<int64_t>(contributions.size()),
        .sources = sources.data(),
        .gradient = scratch.data(),
        .direction = scratch.data() + dim_,
        .sweep = sweep,
        .end_row = static_cast<uint32_t>(reference_.size()),
        .zeros = zeros.data()};
    for (size_t s = 0; s < kMaxSlots; ++s) {
      args.slots[s] = slots_[s].empty() ? nullptr : slots_[s].data();
    }
    kernels.update(args, case_.rule(step));

    for (size_t row = 0; row < reference_.size(); ++row) {
      Gradient sum(dim_, 0.0);
      bool is_touched = sweep;
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] == row) {
          is_touched = true;
          for (int64_t c = 0; c < dim_; ++c) {
            sum[c] += gradients[i][c];
          }
        }
      }
      if (is_touched) {
        case_.reference(reference_[row], sum, step);
      }
    }
  }

  void expect_close() const {
    const auto close = [](double expected, double actual) {
      return std::abs(expected - actual) <= 1e-4 * (1.0 + std::abs(expected));
    };
    for (size_t row = 0; row < reference_.size(); ++row) {
      for (int64_t i = 0; i < dim_; ++i) {
        const float actual = weights_[row * dim_ + i];
        ASSERT_TRUE(close(reference_[row].weight[i], actual))
            << "weight[" << row << "][" << i << "] "
            << reference_[row].weight[i] << " " << actual;
      }
      for (size_t s = 0; s < kMaxSlots; ++s) {
        const auto& slot = reference_[row].slots[s];
        for (size_t i = 0; i < slot.size(); ++i) {
          const float actual = slots_[s][row * slot.size() + i];
          ASSERT_TRUE(close(slot[i], actual))
              << "slot " << s << "[" << row << "][" << i << "] " << slot[i]
              << " " << actual;
        }
      }
    }
  }

  const std::vector<float>& weights() const {
    return weights_;
  }
  const std::array<std::vector<float>, kMaxSlots>& slots() const {
    return slots_;
  }

 private:
  const Case& case_;
  int64_t dim_;
  std::vector<Row> reference_;
  std::vector<float> weights_;
  std::array<std::vector<float>, kMaxSlots> slots_;
};

void expect_formulas(bool sweep) {
  for (const KernelTable& kernels : available_kernels()) {
    for (const Case& rule : cases()) {
      for (const int64_t dim : {1, 5, 16, 33}) {
        SCOPED_TRACE(
            kernels.isa + " " + rule.name + " dim " + std::to_string(dim));
        std::mt19937 random(7);
        std::normal_distribution<float> normal;
        ComparedTables tables(rule, 6, dim, random);
        for (int step = 1; step <= 12; ++step) {
          // Row 1 occurs twice, and row 3 has a gradient of zeros. Rows 0, 2
          // and 5 have no gradient.
          const std::vector<uint32_t> rows{4, 1, 3, 1};
          std::vector<std::vector<float>> gradients(
              4, std::vector<float>(dim, 0.0F));
          for (const size_t i : {0, 1, 3}) {
            for (float& value : gradients[i]) {
              value = normal(random);
            }
          }
          tables.update(kernels, rows, gradients, sweep, step);
        }
        tables.expect_close();
        if (testing::Test::HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST(RowRulesTest, TouchedRowsFollowTheFormulas) {
  expect_formulas(/*sweep=*/false);
}

TEST(RowRulesTest, SweepGivesOtherRowsAZeroGradient) {
  expect_formulas(/*sweep=*/true);
}

// Gradients of some kinds, one per column, in step `step`.
std::vector<float> gradients_of_kinds(int step, std::mt19937& random) {
  std::normal_distribution<float> normal;
  return {
      1.4F,
      step < 10 ? 1.4F : 0.7F,
      step / 100 % 2 == 0 ? 1.4F : 0.7F,
      normal(random),
      1.0F + 1e-3F * normal(random),
      -1000.0F,
      1e-3F,
      0.0F};
}

// A difference of squares in float32 gives NaN or wrong steps for gradients that hardly
// change.
TEST(RowRulesTest, CenteredRmspropIsExactOver10000Steps) {
  constexpr double kEpsilon = 1e-7;
  for (const KernelTable& kernels : available_kernels()) {
    for (const double rho : {0.5, 0.9, 0.99, 0.999}) {
      for (const double momentum : {0.0, 0.5}) {
        SCOPED_TRACE(
            kernels.isa + " rho " + std::to_string(rho) + " momentum " +
            std::to_string(momentum));
        const Case rule{
            "Rmsprop",
            always(RmspropRule{
                1e-3F,
                rho,
                static_cast<float>(momentum),
                static_cast<float>(kEpsilon),
                0.0F,
                true}),
            {0.0, momentum > 0 ? 0.0 : kNone, 0.0},
            [](Row&, const Gradient&, int) {}};
        std::mt19937 random(3);
        const auto dim =
            static_cast<int64_t>(gradients_of_kinds(0, random).size());
        ComparedTables tables(rule, 1, dim, random);
        std::vector<double> weights(
            tables.weights().begin(), tables.weights().end());
        std::vector<long double> squares(dim);
        std::vector<long double> means(dim);
        std::vector<double> momenta(dim);
        for (int step = 0; step < 10'000; ++step) {
          const std::vector<float> gradients = gradients_of_kinds(step, random);
          tables.update(kernels, {0}, {gradients}, /*sweep=*/false, step + 1);
          for (int64_t i = 0; i < dim; ++i) {
            const long double g = gradients[i];
            squares[i] = rho * squares[i] + (1 - rho) * g * g;
            means[i] = rho * means[i] + (1 - rho) * g;
            const long double variance = squares[i] - means[i] * means[i];
            momenta[i] = momentum * momenta[i] +
                static_cast<double>(1e-3L * g / std::sqrt(variance + kEpsilon));
            weights[i] -= momenta[i];
            ASSERT_NEAR(
                tables.weights()[i],
                weights[i],
                2e-4 * (1 + std::abs(weights[i])))
                << "column " << i << ", step " << step;
          }
        }
      }
    }
  }
}

TEST(RowRulesTest, AdamaxKeepsANaNVisible) {
  for (const KernelTable& kernels : available_kernels()) {
    const Case rule{
        "Adamax",
        always(AdamaxRule{kRate, 0.8F, 0.95F, 1e-3F}),
        {0.0, 1.0, kNone},
        [](Row&, const Gradient&, int) {}};
    std::mt19937 random(1);
    ComparedTables tables(rule, 1, 5, random);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    tables.update(kernels, {0}, {std::vector<float>(5, nan)}, false, 1);
    for (int i = 0; i < 5; ++i) {
      EXPECT_TRUE(std::isnan(tables.slots()[1][i])) << kernels.isa;
      EXPECT_TRUE(std::isnan(tables.weights()[i])) << kernels.isa;
    }
  }
}

TEST(RowRulesTest, FtrlChangesNothingAtALearningRateOfZero) {
  for (const KernelTable& kernels : available_kernels()) {
    const Case rule{"Ftrl", always(FtrlRule{}), {0.1, 0.0, kNone}, {}};
    std::mt19937 random(1);
    ComparedTables tables(rule, 2, 5, random);
    const std::vector<float> before = tables.weights();
    const Reference ignore = [](Row&, const Gradient&, int) {};
    const_cast<Reference&>(rule.reference) = ignore;
    tables.update(kernels, {1}, {std::vector<float>(5, 1.0F)}, false, 1);
    EXPECT_EQ(tables.weights(), before) << kernels.isa;
  }
}

TEST(LargestMagnitudeTest, EveryElementCountsAndNaNIsTheLargest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr auto kNan = std::numeric_limits<float>::quiet_NaN();
  for (const KernelTable& kernels : available_kernels()) {
    for (const int64_t dim : {1, 3, 4, 7, 8, 16, 33}) {
      SCOPED_TRACE(kernels.isa + " dim " + std::to_string(dim));
      const int64_t rows = 3;
      const int64_t stride = dim + 2;
      // The values between the rows don't count.
      std::vector<float> values(rows * stride, kNan);
      const auto fill = [&] {
        for (int64_t i = 0; i < rows * dim; ++i) {
          values[i / dim * stride + i % dim] = i % 2 == 0 ? 0.5F : -0.25F;
        }
      };
      const auto largest = [&] {
        return kernels.largest_magnitude({values.data(), stride}, rows, dim);
      };
      fill();
      EXPECT_EQ(largest(), 0.5F);
      for (int64_t i = 0; i < rows * dim; ++i) {
        float& value = values[i / dim * stride + i % dim];
        value = -3e38F;
        EXPECT_EQ(largest(), 3e38F);
        value = -kInfinity;
        EXPECT_EQ(largest(), kInfinity);
        for (const float nan : {kNan, -kNan}) {
          value = nan;
          EXPECT_TRUE(std::isnan(largest()));
        }
        fill();
      }
      EXPECT_EQ(kernels.largest_magnitude({nullptr, 0}, 0, dim), 0.0F);
    }
  }
}

TEST(RowRulesTest, SumRowsAddsDuplicatesInOrder) {
  const std::vector<float> gradients{1, 2, 3, 4, 5, 6};
  const std::vector<GradientSource> sources{
      {gradients.data(), 1.0F},
      {gradients.data() + 2, 2.0F},
      {gradients.data() + 4, 0.5F}};
  const std::vector<Contribution> contributions{{2, 0}, {2, 1}, {9, 2}};
  for (const KernelTable& kernels : available_kernels()) {
    std::vector<uint32_t> rows(2);
    std::vector<float> sums(4);
    kernels.sum_rows(
        {.dim = 2,
         .contributions = contributions.data(),
         .count = 3,
         .sources = sources.data(),
         .rows = rows.data(),
         .sums = sums.data()});
    EXPECT_EQ(rows, (std::vector<uint32_t>{2, 9})) << kernels.isa;
    EXPECT_EQ(sums, (std::vector<float>{7, 10, 2.5F, 3})) << kernels.isa;
  }
}

}  // namespace tessera::kernels::row_rules_test
