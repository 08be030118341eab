// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizer.h>
#include <tessera/optim/optimizers.h>

#include "optim/optimizers/nadam_factors.h"
#include "optim/row_update.h"
#include "tests/test_util.h"

#include <type_traits>

namespace tessera::optim::optimizer_spec_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const std::vector<OptimizerSpec>& all_specs() {
  static const std::vector<OptimizerSpec> specs{
      SGD{},
      Momentum{},
      Adagrad{},
      AdagradMomentum{},
      ProximalAdagrad{},
      RowWiseAdagrad{},
      Adam{},
      FTRL{},
      RMSprop{},
      Adadelta{},
      Lion{},
      LAMB{},
      Adamax{},
      Nadam{},
      CustomOptimizer{.rule = CustomRule("none", [](CustomRows&) {})}};
  static_assert(std::variant_size_v<AllSpecs> == 15, "add it above");
  return specs;
}

// A struct that is derived from a spec would lose its own part.
struct DerivedSpec : Adam {};
static_assert(std::is_constructible_v<OptimizerSpec, Adam>);
static_assert(!std::is_constructible_v<OptimizerSpec, DerivedSpec>);

// Calls `change` with a copy of each spec.
template <class Change>
void for_each_spec(Change change) {
  for (const OptimizerSpec& spec : all_specs()) {
    SCOPED_TRACE(name_of(spec));
    auto held = spec.variant();
    std::visit(change, held);
  }
}

// The same without CustomOptimizer, which has no kernel.
template <class Change>
void for_each_fused_spec(Change change) {
  for_each_spec([&]<class Spec>(Spec& spec) {
    if constexpr (!std::is_same_v<Spec, CustomOptimizer>) {
      change(spec);
    }
  });
}

TEST(LearningRateTest, ANumberIsConstant) {
  const LearningRate rate = 0.25;
  EXPECT_TRUE(rate.is_constant());
  EXPECT_EQ(rate.value(0, "[x]"), 0.25);
  EXPECT_EQ(rate.callable_name(), "");
  EXPECT_EQ(LearningRate(1).value(0, ""), 1.0);
}

TEST(LearningRateTest, ACallableIsReadEachTime) {
  double current = 0.5;
  const LearningRate rate("warm_up", [&] { return current; });
  EXPECT_FALSE(rate.is_constant());
  EXPECT_EQ(rate.callable_name(), "warm_up");
  EXPECT_EQ(rate.value(0, ""), 0.5);
  current = 0.75;
  EXPECT_EQ(rate.value(0, ""), 0.75);
  const LearningRate unnamed = [] { return 3.0; };
  EXPECT_EQ(unnamed.value(0, ""), 3.0);
  EXPECT_EQ(unnamed.callable_name(), "");
}

TEST(LearningRateTest, NumbersCompareByValueAndCallablesByIdentity) {
  EXPECT_EQ(LearningRate(0.1), LearningRate(0.1));
  EXPECT_NE(LearningRate(0.1), LearningRate(0.2));
  const auto half = [] { return 0.5; };
  const LearningRate rate("half", half);
  EXPECT_EQ(rate, LearningRate(rate));
  EXPECT_NE(rate, LearningRate("half", half));
  EXPECT_NE(rate, LearningRate(0.5));
  EXPECT_EQ(LearningRate::placeholder("a"), LearningRate::placeholder("a"));
  EXPECT_NE(LearningRate::placeholder("a"), LearningRate::placeholder("b"));
}

TEST(LearningRateTest, RefusesNegativeAndInfiniteValues) {
  for (const auto& [bad, text] :
       {std::pair{-0.1, "-0.1"},
        std::pair{kInfinity, "inf"},
        std::pair{std::nan(""), "nan"},
        std::pair{1e300, "1e+300."}}) {
    const std::string expected =
        "learning_rate must be finite in float32 and >= 0, but got ";
    EXPECT_VALUE_ERROR(
        LearningRate(bad).value(0, "[x]"), "[x] " + expected + text);
    EXPECT_VALUE_ERROR(
        LearningRate([bad = bad] { return bad; }).value(0, ""),
        expected + text);
  }
  EXPECT_EQ(LearningRate(0.0).value(0, ""), 0.0);
}

TEST(LearningRateTest, ACallableMayGiveATensor) {
  at::Tensor current = at::scalar_tensor(0.5);
  const LearningRate rate = [&] { return current; };
  EXPECT_FALSE(rate.is_constant());
  EXPECT_EQ(rate.value(0, ""), 0.5);
  current = at::full({1}, 0.25, at::kDouble);
  EXPECT_EQ(rate.value(0, ""), 0.25);
  current = at::full({1, 1}, 2, at::kLong);
  EXPECT_EQ(rate.value(0, ""), 2.0);
  current = at::full({}, 0.5, at::kBFloat16);
  EXPECT_EQ(rate.value(0, ""), 0.5);
  current = at::full({}, 0.75).requires_grad_();
  EXPECT_EQ(rate.value(0, ""), 0.75);

  const LearningRate named(
      "warm_up", [&]() -> const at::Tensor& { return current; });
  EXPECT_EQ(named.callable_name(), "warm_up");
  EXPECT_EQ(named.value(0, ""), 0.75);
  EXPECT_EQ(named, LearningRate(named));
  EXPECT_NE(named, rate);
  const std::function<at::Tensor()> function = [&] { return current * 2; };
  EXPECT_EQ(SGD{.learning_rate = function}.learning_rate.value(0, ""), 1.5);
  EXPECT_EQ(LearningRate("f", function).value(0, ""), 1.5);
}

TEST(LearningRateTest, RefusesAnEmptyFunction) {
  for (const LearningRate& rate :
       {LearningRate(std::function<double()>()),
        LearningRate("named", std::function<at::Tensor()>())}) {
    EXPECT_VALUE_ERROR(
        validate(SGD{.learning_rate = rate}, "[SGD]"),
        "learning_rate must be a function that can be called, but is an empty "
        "std::function. Assign a function to it.");
  }
}

TEST(LearningRateTest, RefusesTensorsThatAreNotALearningRate) {
  at::Tensor current;
  const LearningRate rate = [&] { return current; };
  EXPECT_TYPE_ERROR(
      rate.value(0, "[table 'users']"),
      "[table 'users'] the learning_rate's callable must return a number or a "
      "tensor of a floating-point or integer type, but returned no tensor. "
      "Convert its result.");
  for (const at::ScalarType dtype : {at::kBool, at::kComplexFloat}) {
    current = at::full({}, 1, dtype);
    EXPECT_TYPE_ERROR(
        rate.value(0, ""), std::string("but returned ") + c10::toString(dtype));
  }
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{0}, {2}, {1, 2}, {2, 0}}) {
    current = at::full(shape, 0.5);
    EXPECT_VALUE_ERROR(
        rate.value(0, "[table 'users']"),
        c10::str(
            "[table 'users'] the learning_rate's callable must return a dense "
            "tensor of one element, but returned a Strided tensor of shape ",
            c10::IntArrayRef(shape),
            " on cpu. Select one element."));
  }
  current = at::full({1}, 0.5).to_sparse();
  EXPECT_VALUE_ERROR(
      rate.value(0, ""), "but returned a Sparse tensor of shape [1]");
  current = at::empty({}, at::TensorOptions(at::kMeta));
  EXPECT_VALUE_ERROR(rate.value(0, ""), "of shape [] on meta.");
  for (const double bad : {-0.1, kInfinity, std::nan("")}) {
    current = at::scalar_tensor(bad);
    EXPECT_VALUE_ERROR(
        rate.value(0, ""), "must be finite in float32 and >= 0, but got");
  }
}

// Only callables that return a learning rate convert to one. Overloads for
// other callables stay possible.
TEST(LearningRateTest, OtherCallablesDoNotConvert) {
  const auto text = [] { return std::string("0.1"); };
  const auto nothing = [] {};
  const auto of_step = [](int64_t) { return 0.1; };
  static_assert(!std::is_convertible_v<decltype(text), LearningRate>);
  static_assert(!std::is_convertible_v<decltype(nothing), LearningRate>);
  static_assert(!std::is_convertible_v<decltype(of_step), LearningRate>);
  static_assert(!std::is_convertible_v<at::Tensor, LearningRate>);
}

TEST(LearningRateTest, APlaceholderHasNoValue) {
  EXPECT_VALUE_ERROR(
      LearningRate::placeholder("warm_up").value(0, "[table 'users']"),
      "[table 'users'] learning_rate is the placeholder of the callable "
      "'warm_up'. Replace it by LearningRate(\"warm_up\", callable).");
  for (const LearningRate& rate :
       {LearningRate("empty", LearningRate::Callable()),
        LearningRate("empty", LearningRate::TensorCallable()),
        LearningRate("empty", nullptr)}) {
    EXPECT_VALUE_ERROR(rate.value(0, ""), "the callable 'empty'");
  }
}

TEST(OptimizerSpecTest, DefaultsMatchUpstream) {
  EXPECT_EQ(SGD{}.learning_rate, LearningRate(0.01));
  EXPECT_EQ(Adagrad{}.learning_rate, LearningRate(0.001));
  EXPECT_EQ(Adagrad{}.initial_accumulator_value, 0.1);
  EXPECT_EQ(Adam{}.learning_rate, LearningRate(0.001));
  EXPECT_EQ(Adam{}.beta_1, 0.9);
  EXPECT_EQ(Adam{}.beta_2, 0.999);
  EXPECT_EQ(Adam{}.epsilon, 1e-7);
  EXPECT_TRUE(Adam{}.sum_inside_sqrt);
  for_each_spec([](const auto& spec) {
    EXPECT_TRUE(spec.use_gradient_accumulation);
    EXPECT_FALSE(spec.clip_weight_min || spec.clip_weight_max);
    EXPECT_FALSE(spec.clip_gradient_min || spec.clip_gradient_max);
    EXPECT_FALSE(spec.weight_decay_factor.has_value());
    EXPECT_FALSE(spec.multiply_weight_decay_factor_by_learning_rate);
    validate(spec, "");
  });
}

// Throws when a variant makes an SGD of it.
struct Thrower {
  operator SGD() const {  // NOLINT(google-explicit-constructor)
    throw std::runtime_error("no SGD");
  }
};

TEST(OptimizerSpecTest, RefusesAVariantWithoutAValue) {
  detail::OptimizerVariant held = Adam{};
  EXPECT_THROW(held.emplace<SGD>(Thrower()), std::runtime_error);
  ASSERT_TRUE(held.valueless_by_exception());
  EXPECT_VALUE_ERROR(
      (void)OptimizerSpec(held),
      "[OptimizerSpec] expected a variant that holds a spec, but got one "
      "without a value, because an exception interrupted its assignment. "
      "Assign a spec to it.");
  OptimizerSpec spec = Adam{};
  EXPECT_VALUE_ERROR(spec = held, "[OptimizerSpec]");
  EXPECT_EQ(spec, OptimizerSpec(Adam{}));
  held = Lion{};
  EXPECT_EQ(OptimizerSpec(held), OptimizerSpec(Lion{}));
}

TEST(OptimizerSpecTest, ASpecThatWasMovedFromKeepsItsValue) {
  OptimizerSpec spec = Adam{.beta_1 = 0.5};
  const OptimizerSpec copy = std::move(spec);
  EXPECT_EQ(copy, OptimizerSpec(Adam{.beta_1 = 0.5}));
  // NOLINTNEXTLINE(bugprone-use-after-move): OptimizerSpec has no moves.
  EXPECT_EQ(spec, copy);
}

TEST(OptimizerSpecTest, NamesAreTheClassNames) {
  std::string names;
  for (const OptimizerSpec& spec : all_specs()) {
    names += name_of(spec) + " ";
  }
  EXPECT_EQ(
      names,
      "SGD Momentum Adagrad AdagradMomentum ProximalAdagrad RowWiseAdagrad "
      "Adam FTRL RMSprop Adadelta Lion LAMB Adamax Nadam CustomOptimizer ");
}

TEST(OptimizerSpecTest, ComparesByValue) {
  for_each_spec([](const auto& original) {
    const auto expect_other = [&](auto change) {
      auto spec = original;
      EXPECT_EQ(spec, original);
      change(spec);
      EXPECT_NE(spec, original);
    };
    expect_other([](auto& spec) { spec.learning_rate = 0.5; });
    expect_other([](auto& spec) { spec.use_gradient_accumulation = false; });
    expect_other([](auto& spec) { spec.clip_weight_min = 0.0; });
    expect_other([](auto& spec) { spec.clip_gradient_max = 0.0; });
    expect_other([](auto& spec) { spec.weight_decay_factor = 0.0; });
    expect_other([](auto& spec) {
      spec.multiply_weight_decay_factor_by_learning_rate = true;
    });
  });
  EXPECT_NE(OptimizerSpec(SGD{}), OptimizerSpec(Adagrad{}));
  EXPECT_NE(Adam{}, Adam{.beta_2 = 0.99});
}

TEST(OptimizerSpecTest, RefusesAnUnusableLearningRate) {
  for_each_spec([](auto spec) {
    spec.learning_rate = -1.0;
    EXPECT_VALUE_ERROR(
        validate(spec, "[TableConfig 'users']"),
        "[TableConfig 'users'] " + name_of(spec) +
            ": learning_rate must be finite in float32 and >= 0, but got -1");
    // A callable is not read before an update.
    spec.learning_rate = [] { return -1.0; };
    validate(spec, "");
    spec.learning_rate = LearningRate::placeholder("later");
    validate(spec, "");
  });
}

TEST(OptimizerSpecTest, RefusesLimitsInTheWrongOrder) {
  for_each_spec([](auto spec) {
    spec.clip_weight_min = 1.0;
    validate(spec, "");
    spec.clip_weight_max = 0.5;
    EXPECT_VALUE_ERROR(
        validate(spec, "[x]"),
        "[x] " + name_of(spec) +
            ": clip_weight_min must be <= clip_weight_max, but got 1 and 0.5");
    spec.clip_weight_max = 1.0;
    validate(spec, "");
    spec.clip_gradient_max = -kInfinity;
    spec.clip_gradient_min = 0.0;
    EXPECT_VALUE_ERROR(
        validate(spec, "[x]"),
        "clip_gradient_min must be <= clip_gradient_max, but got 0 and -inf");
    spec.clip_gradient_max = std::nan("");
    EXPECT_VALUE_ERROR(validate(spec, "[x]"), "but got 0 and nan");
  });
}

TEST(OptimizerSpecTest, RefusesToClipGradientsThatAreNotAccumulated) {
  for_each_fused_spec([](auto spec) {
    spec.use_gradient_accumulation = false;
    validate(spec, "");
    // Upstream tests clipvalue 0 and (None, 1). The third pair has no maximum.
    using Limit = std::optional<double>;
    for (const auto& [low, high] :
         {std::pair<Limit, Limit>{0.0, 0.0},
          std::pair<Limit, Limit>{std::nullopt, 1.0},
          std::pair<Limit, Limit>{-1.0, std::nullopt}}) {
      spec.clip_gradient_min = low;
      spec.clip_gradient_max = high;
      EXPECT_VALUE_ERROR(
          validate(spec, "[x]"),
          "clip_gradient_min and clip_gradient_max need "
          "use_gradient_accumulation = true");
    }
  });
}

TEST(OptimizerSpecTest, RefusesToUpdateAllRowsWithoutAccumulation) {
  for (const OptimizerSpec& spec : std::vector<OptimizerSpec>{
           Adam{.lazy_adam = false, .use_gradient_accumulation = false},
           Momentum{.use_gradient_accumulation = false, .lazy = false}}) {
    EXPECT_VALUE_ERROR(
        validate(spec, "[x]"),
        "updating all rows (lazy = false, lazy_adam = false) needs "
        "use_gradient_accumulation = true");
  }
}

// The kernels compute in float32.
TEST(OptimizerSpecTest, RefusesOptionsOutOfRange) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const CustomRule rule("none", [](CustomRows&) {});
  const std::string negative = "must be >= 0 and finite in float32, but got -1";
  const std::string large =
      "must be >= 0 and finite in float32, but got 1e+300";
  const std::string initial = "initial_accumulator_value must be > 0";
  const std::string epsilon = "epsilon must be > 0";
  const std::string schedule = "[x] Nadam: schedule_decay must be >= 0";
  test::expect_refusals<OptimizerSpec>(
      {{FTRL{.initial_accumulator_value = 0.0}, "[x] FTRL: " + initial},
       {FTRL{.initial_accumulator_value = -0.1}, initial},
       {FTRL{.initial_accumulator_value = kNan}, initial},
       {FTRL{.learning_rate_power = 0.5},
        "[x] FTRL: learning_rate_power must be <= 0 and finite in float32, but "
        "got 0.5"},
       {FTRL{.learning_rate_power = -1e300},
        "[x] FTRL: learning_rate_power must be <= 0 and finite in float32, but "
        "got -1e+300"},
       {FTRL{.l1_regularization_strength = -1.0},
        "l1_regularization_strength " + negative},
       {FTRL{.l2_regularization_strength = -1.0},
        "l2_regularization_strength " + negative},
       {FTRL{.l1_regularization_strength = 1e300}, large},
       {FTRL{.l2_regularization_strength = 1e300}, large},
       {FTRL{.l2_shrinkage_regularization_strength = 1e300}, large},
       {FTRL{.beta = 1e300}, large},
       {ProximalAdagrad{.l1_regularization_strength = 1e300}, large},
       {ProximalAdagrad{.l2_regularization_strength = 1e300}, large},
       {RowWiseAdagrad{.initial_accumulator_value = 1e300}, large},
       {Adagrad{.epsilon = 1e300}, large},
       {Adagrad{.initial_accumulator_value = 0.0}, "[x] Adagrad: " + initial},
       {Adagrad{.initial_accumulator_value = -0.1}, initial},
       {Adagrad{.initial_accumulator_value = kInfinity}, initial},
       {Adagrad{.initial_accumulator_value = kNan}, initial},
       {Adagrad{.initial_accumulator_value = 1e-46}, initial},
       {Adagrad{.initial_accumulator_value = 1e39}, initial},
       {AdagradMomentum{.exponent = 0.0},
        "[x] AdagradMomentum: exponent must be > 0"},
       {AdagradMomentum{.exponent = -1.0}, "exponent must be > 0"},
       {AdagradMomentum{.exponent = kInfinity}, "exponent must be > 0"},
       {AdagradMomentum{.epsilon = 0.0}, "[x] AdagradMomentum: " + epsilon},
       {AdagradMomentum{.epsilon = -1.0}, epsilon},
       {AdagradMomentum{.epsilon = kInfinity}, epsilon},
       {Adam{.beta_1 = 1.0},
        "[x] Adam: beta_1 must be >= 0 and < 1, but got 1"},
       {Adam{.beta_1 = kNan}, "beta_1 must be >= 0"},
       {Adam{.beta_2 = -0.5}, "beta_2 must be >= 0 and < 1, but got -0.5"},
       {Adam{.epsilon = 0.0}, "[x] Adam: " + epsilon},
       {Adam{.epsilon = -1e-7}, epsilon},
       {Adam{.epsilon = kInfinity}, epsilon},
       {Adam{.epsilon = kNan}, epsilon},
       {Adam{.epsilon = 0.0, .sum_inside_sqrt = false}, epsilon},
       {Adam{.epsilon = -1e-7, .sum_inside_sqrt = false}, epsilon},
       {Adam{.epsilon = kInfinity, .sum_inside_sqrt = false}, epsilon},
       {Adam{.epsilon = kNan, .sum_inside_sqrt = false}, epsilon},
       {Adam{.epsilon = 1e-30},
        "epsilon^2 must be > 0 and fit in float32, but got 1e-60"},
       {Adamax{.beta_1 = 1.0},
        "[x] Adamax: beta_1 must be >= 0 and < 1, but got 1"},
       {Adamax{.beta_2 = 1.5},
        "[x] Adamax: beta_2 must be >= 0 and <= 1, but got 1.5"},
       {Adamax{.epsilon = 0.0}, "[x] Adamax: epsilon must be"},
       {Nadam{.beta_1 = 1.0},
        "[x] Nadam: beta_1 must be >= 0 and < 1, but got 1"},
       {Nadam{.beta_2 = 1.0},
        "[x] Nadam: beta_2 must be >= 0 and < 1, but got 1"},
       {Nadam{.epsilon = 0.0}, "[x] Nadam: epsilon must be"},
       {Nadam{.schedule_decay = -0.1}, schedule},
       {Nadam{.schedule_decay = kInfinity}, schedule},
       {Nadam{.schedule_decay = kNan}, schedule},
       {Nadam{.schedule_decay = 1e300}, large},
       {LAMB{.weight_decay = 1e300}, large},
       {CustomOptimizer{
            .rule = rule, .slots = {{.name = "s", .initial_value = -1e300}}},
        "slots: initial_value must be finite in float32, but got -1e+300"}},
      [](const OptimizerSpec& spec) { validate(spec, "[x]"); });
  validate(Adam{.epsilon = 1e-30, .sum_inside_sqrt = false}, "[x]");
  validate(Adamax{.beta_2 = 1.0}, "[x]");
  for_each_spec([](auto spec) {
    spec.weight_decay_factor = std::numeric_limits<float>::max();
    validate(spec, "[x]");
    for (const double bad : {1e300, kInfinity}) {
      spec.weight_decay_factor = bad;
      EXPECT_VALUE_ERROR(
          validate(spec, "[x]"),
          "weight_decay_factor must be finite in float32, but got ");
    }
  });
}

TEST(OptimizerSpecTest, RefusesLimitsThatMakeEveryValueInfinite) {
  for_each_spec([](auto spec) {
    spec.clip_weight_min = -1e300;
    spec.clip_weight_max = kInfinity;
    validate(spec, "[x]");
    spec.clip_weight_min = 1e300;
    EXPECT_VALUE_ERROR(
        validate(spec, "[x]"),
        "clip_weight_min must be < infinity in float32, and clip_weight_max > "
        "-infinity, but got 1e+300 and inf. Leave the limit unset, or set a "
        "number that float32 can hold.");
    spec.clip_weight_min = std::nullopt;
    spec.clip_weight_max = -1e300;
    EXPECT_VALUE_ERROR(
        validate(spec, "[x]"),
        "clip_weight_max > -infinity, but got -inf and -1e+300");
  });
}

// Keras multiplies this product step by step in a variable of the optimizer.
TEST(NadamFactorsTest, MatchTheRunningProduct) {
  for (const double beta_1 : {0.9, 0.999, 0.0}) {
    for (const double decay : {1.0, 0.004, 0.0, 1e-12, 1e6}) {
      SCOPED_TRACE(c10::str("beta_1 ", beta_1, ", schedule_decay ", decay));
      const Nadam spec{.beta_1 = beta_1, .schedule_decay = decay};
      const auto mu = [&](int64_t t) {
        return beta_1 *
            (1 - 0.5 * std::pow(0.96, decay * static_cast<double>(t)));
      };
      double product = 1.0;
      for (int64_t t = 1; t <= 5000; ++t) {
        product *= mu(t);
        const NadamFactors factors = nadam_factors(spec, t);
        const double momentum = mu(t + 1) / (1 - product * mu(t + 1));
        ASSERT_NEAR(factors.momentum, momentum, 1e-12 * (1 + momentum)) << t;
        const double gradient = (1 - mu(t)) / (1 - product);
        ASSERT_NEAR(factors.gradient, gradient, 1e-12 * (1 + gradient)) << t;
        const double power = std::pow(0.999, static_cast<double>(t));
        ASSERT_NEAR(factors.velocity, 1 / (1 - power), 1e-9) << t;
      }
    }
  }
}

TEST(NadamFactorsTest, ApproachAdamsAfterManyUpdates) {
  const NadamFactors factors = nadam_factors(Nadam{}, int64_t{1} << 40);
  EXPECT_NEAR(factors.momentum, 0.9, 1e-12);
  EXPECT_NEAR(factors.gradient, 0.1, 1e-12);
  EXPECT_EQ(factors.velocity, 1.0);
}

TEST(RowUpdateTest, SlotsHaveTheNamesAndValuesOfTheSpec) {
  EXPECT_TRUE(slots_of(SGD{}).empty());
  const auto adagrad = slots_of(Adagrad{.initial_accumulator_value = 0.3});
  ASSERT_EQ(adagrad.size(), 1U);
  EXPECT_EQ(adagrad[0].name, "accumulators");
  EXPECT_EQ(adagrad[0].initial_value, 0.3);
  const auto adam = slots_of(Adam{});
  ASSERT_EQ(adam.size(), 2U);
  EXPECT_EQ(adam[0].name, "momenta");
  EXPECT_EQ(adam[1].name, "velocities");
  EXPECT_EQ(adam[0].initial_value + adam[1].initial_value, 0.0);
}

TEST(RowUpdateTest, WeightDecayMayIncludeTheLearningRate) {
  for_each_fused_spec([](auto spec) {
    EXPECT_FALSE(row_update(spec, {.learning_rate = 0.5}).stages.any());
    spec.weight_decay_factor = 0.25;
    EXPECT_EQ(
        row_update(spec, {.learning_rate = 0.5}).stages.weight_decay, 0.25F);
    spec.multiply_weight_decay_factor_by_learning_rate = true;
    EXPECT_EQ(
        row_update(spec, {.learning_rate = 0.5}).stages.weight_decay, 0.125F);
  });
}

TEST(RowUpdateTest, AnAbsentLimitIsInfinite) {
  for_each_fused_spec([](auto spec) {
    spec.clip_weight_min = -1.0;
    spec.clip_gradient_max = 2.0;
    const kernels::RowStages stages =
        row_update(spec, {.learning_rate = 0.1}).stages;
    constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
    EXPECT_TRUE(stages.clip_weight && stages.clip_gradient);
    EXPECT_EQ(stages.clip_weight_min, -1.0F);
    EXPECT_EQ(stages.clip_weight_max, kFloatInfinity);
    EXPECT_EQ(stages.clip_gradient_min, -kFloatInfinity);
    EXPECT_EQ(stages.clip_gradient_max, 2.0F);
  });
}

TEST(RowUpdateTest, TheRuleHoldsTheLearningRateOfThisUpdate) {
  for_each_fused_spec([](auto spec) {
    spec.use_gradient_accumulation = false;
    const RowUpdate update = row_update(spec, {.learning_rate = 0.125});
    std::visit(
        [](const auto& rule) { EXPECT_EQ(rule.learning_rate, 0.125F); },
        update.rule);
    EXPECT_FALSE(update.accumulate);
    EXPECT_EQ(learning_rate_of(spec), spec.learning_rate);
  });
}

TEST(RowUpdateTest, AdamsEpsilonIsInsideOrOutsideTheRoot) {
  const auto inside = std::get<kernels::AdamRule>(
      row_update(Adam{.epsilon = 0.5}, {.learning_rate = 0.1}).rule);
  EXPECT_EQ(inside.epsilon_inside, 0.25F);
  EXPECT_EQ(inside.epsilon_outside, 0.0F);
  const auto outside = std::get<kernels::AdamRule>(
      row_update(
          Adam{.epsilon = 0.5, .sum_inside_sqrt = false},
          {.learning_rate = 0.1})
          .rule);
  EXPECT_EQ(outside.epsilon_inside, 0.0F);
  EXPECT_EQ(outside.epsilon_outside, 0.5F);
}

}  // namespace tessera::optim::optimizer_spec_test
