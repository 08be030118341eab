// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/keras.h>
#include <tessera/optim/schedule.h>

#include <tessera/optim/optimizer_json.h>
#include <tessera/optim/optimizers.h>
#include "tests/golden_util.h"
#include "tests/test_util.h"

#include <numbers>

namespace tessera::optim::schedule_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Reads the schedule of a Keras config as the learning rate of an optimizer.
Schedule from_keras(const Json& schedule) {
  const OptimizerSpec spec = translate_keras_optimizer(
      Json{{"class_name", "SGD"}, {"config", {{"learning_rate", schedule}}}});
  return *std::get<SGD>(spec.variant()).learning_rate.schedule();
}

Schedule round_trip(const Schedule& schedule) {
  return JsonValue<Schedule>::read(
      Json::parse(JsonValue<Schedule>::write(schedule).dump()), "schedule");
}

class GoldenScheduleTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenScheduleTest, GivesKerasLearningRates) {
  const Json cases = test::read_golden(GetParam());
  ASSERT_FALSE(cases.empty()) << GetParam() << " has no cases";
  int values = 0;
  for (const Json& test_case : cases) {
    SCOPED_TRACE(test_case.at("spec").dump());
    const Schedule schedule = from_keras(test_case.at("spec"));
    EXPECT_EQ(test_case.at("spec").at("class_name"), name_of(schedule));
    const Json& steps = test_case.at("steps");
    ASSERT_EQ(steps.size(), test_case.at("values").size());
    ASSERT_FALSE(steps.empty());
    for (size_t i = 0; i < steps.size(); ++i) {
      const double expected = test_case.at("values")[i];
      // Keras computes in float32.
      EXPECT_NEAR(
          value_at(schedule, steps[i]),
          expected,
          1e-5 * std::abs(expected) + 1e-9)
          << "step " << steps[i];
      ++values;
    }
    EXPECT_EQ(round_trip(schedule), schedule);
  }
  std::cout << GetParam() << ": " << cases.size() << " cases, " << values
            << " values\n";
}

INSTANTIATE_TEST_SUITE_P(
    Files,
    GoldenScheduleTest,
    testing::ValuesIn(test::golden_files("schedule")),
    test::golden_test_name);

TEST(GoldenFolderTest, HasScheduleCases) {
  EXPECT_FALSE(test::golden_files("schedule").empty())
      << "expected a file schedule*.json in " << test::golden_folder()
      << ". Set TESSERA_GOLDEN_DIR to a folder that has one.";
}

const std::vector<Schedule>& all_schedules() {
  static const std::vector<Schedule> schedules{
      ExponentialDecay{0.1, 10.0, 0.9, true},
      PiecewiseConstantDecay{{3.0, 7.0}, {0.3, 0.2, 0.1}},
      PolynomialDecay{0.1, 10.0, 0.01, 2.0, true},
      InverseTimeDecay{0.1, 10.0, 0.5, true},
      CosineDecay{0.1, 10.0, 0.2, 0.4, 5.0},
      CosineDecayRestarts{0.1, 10.0, 1.5, 0.5, 0.1},
      Warmup{0.01, 4.0, CosineDecay{0.1, 10.0}}};
  static_assert(std::variant_size_v<Schedule> == 7, "add it above");
  return schedules;
}

TEST(ScheduleTest, RoundTripsThroughJson) {
  for (const Schedule& schedule : all_schedules()) {
    SCOPED_TRACE(name_of(schedule));
    EXPECT_EQ(round_trip(schedule), schedule);
    EXPECT_NO_THROW(validate(schedule, "here"));
  }
}

TEST(ScheduleTest, StaircaseHoldsBetweenSteps) {
  const Schedule schedule = ExponentialDecay{1.0, 10.0, 0.5, true};
  EXPECT_DOUBLE_EQ(value_at(schedule, 0), 1.0);
  EXPECT_DOUBLE_EQ(value_at(schedule, 9), 1.0);
  EXPECT_DOUBLE_EQ(value_at(schedule, 10), 0.5);
  EXPECT_DOUBLE_EQ(value_at(schedule, 29), 0.25);
}

TEST(ScheduleTest, ABoundaryBelongsToTheValueBefore) {
  const Schedule schedule = PiecewiseConstantDecay{{2.0, 5.0}, {3.0, 2.0, 1.0}};
  const std::vector<double> expected{3.0, 3.0, 3.0, 2.0, 2.0, 2.0, 1.0};
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_EQ(value_at(schedule, static_cast<int64_t>(step)), expected[step])
        << "step " << step;
  }
}

TEST(ScheduleTest, PolynomialDecayEndsOrCycles) {
  PolynomialDecay decay{1.0, 10.0, 0.1, 1.0};
  EXPECT_DOUBLE_EQ(value_at(decay, 10), 0.1);
  EXPECT_DOUBLE_EQ(value_at(decay, 1000), 0.1);
  decay.cycle = true;
  EXPECT_DOUBLE_EQ(value_at(decay, 0), 1.0);
  EXPECT_DOUBLE_EQ(value_at(decay, 10), 0.1);
  EXPECT_DOUBLE_EQ(value_at(decay, 15), 0.1 + 0.9 * 0.25);
}

TEST(ScheduleTest, RestartsMayHaveEqualLengths) {
  const CosineDecayRestarts decay{1.0, 4.0, 1.0, 0.5, 0.0};
  EXPECT_NEAR(value_at(decay, 0), 1.0, 1e-7);
  EXPECT_NEAR(value_at(decay, 2), 0.5, 1e-7);
  EXPECT_NEAR(value_at(decay, 4), 0.5, 1e-7);
  EXPECT_NEAR(value_at(decay, 8), 0.25, 1e-7);
}

// Periods that become shorter end at step 20. Keras gives NaN from there on.
TEST(ScheduleTest, ShorterRestartsEnd) {
  CosineDecayRestarts decay{
      .initial_learning_rate = 1.0, .first_decay_steps = 10.0, .t_mul = 0.5};
  EXPECT_NEAR(value_at(decay, 10), 1.0, 1e-6);
  EXPECT_NEAR(value_at(decay, 15), 1.0, 1e-6);
  EXPECT_TRUE(std::isfinite(value_at(decay, 19)));
  for (const int64_t step : {20, 21, 1 << 30}) {
    EXPECT_VALUE_ERROR(
        value_at(decay, step),
        "[CosineDecayRestarts] step " + std::to_string(step) +
            " must be before the end of the last period, but with t_mul = 0.5 "
            "all periods end at step 20. Increase first_decay_steps, or use "
            "t_mul >= 1.");
  }
  const Schedule warmup = Warmup{.steps = 5.0, .then = decay};
  EXPECT_VALUE_ERROR(
      value_at(warmup, 25), "[CosineDecayRestarts] step 20 must");
}

// The quotient of the logarithms is 5 in float32, but a little less in double
// precision.
TEST(ScheduleTest, RestartsAtTheSameStepAsKeras) {
  const CosineDecayRestarts decay{1.0, 1.0, 3.0, 1.0, 0.0};
  EXPECT_NEAR(value_at(decay, 120), 0.0, 1e-3);
  EXPECT_NEAR(value_at(decay, 121), 1.0, 1e-6);
}

// In float32, the steps 2^24 and 2^24 + 1 are equal.
TEST(ScheduleTest, RestartsCountLateSteps) {
  constexpr int64_t kLast = int64_t{1} << 24;
  const CosineDecayRestarts of_two{1.0, 2.0, 1.0, 1.0, 0.0};
  EXPECT_NEAR(value_at(of_two, kLast), 1.0, 1e-6);
  EXPECT_NEAR(value_at(of_two, kLast + 1), 0.5, 1e-6);
  // Periods of 1, 3, 9, ... steps. Period i starts at step (3^i - 1) / 2.
  const CosineDecayRestarts longer{1.0, 1.0, 3.0, 0.5, 0.0};
  int64_t start = 0;
  int64_t length = 1;
  for (int64_t i = 0; start < int64_t{1} << 40; ++i) {
    if (start > 1024) {  // those before are computed as Keras does
      const double height = std::pow(0.5, i);
      EXPECT_LT(value_at(longer, start - 1), 0.01 * height) << i;
      EXPECT_NEAR(value_at(longer, start), height, 1e-5 * height) << i;
    }
    start += length;
    length *= 3;
  }
}

// The formulas of the header, in long double, which has all steps up to 2^64.
long double reference(const Schedule& schedule, int64_t step) {
  const long double s = step;
  const long double pi = std::numbers::pi_v<long double>;
  if (const auto* d = std::get_if<ExponentialDecay>(&schedule)) {
    const long double n = s / d->decay_steps;
    return d->initial_learning_rate *
        std::pow(
               static_cast<long double>(d->decay_rate),
               d->staircase ? std::floor(n) : n);
  }
  if (const auto* d = std::get_if<InverseTimeDecay>(&schedule)) {
    const long double n = s / d->decay_steps;
    return d->initial_learning_rate /
        (1 + d->decay_rate * (d->staircase ? std::floor(n) : n));
  }
  if (const auto* d = std::get_if<PolynomialDecay>(&schedule)) {
    const long double length = d->decay_steps *
        (d->cycle ? std::max(1.0L, std::ceil(s / d->decay_steps)) : 1.0L);
    return (d->initial_learning_rate - d->end_learning_rate) *
        std::pow(
               1 - std::min(s, length) / length,
               static_cast<long double>(d->power)) +
        d->end_learning_rate;
  }
  if (const auto* d = std::get_if<CosineDecay>(&schedule)) {
    const long double length = d->decay_steps;
    const long double wave =
        (1 + std::cos(pi * std::min(s, length) / length)) / 2;
    return d->initial_learning_rate * ((1 - d->alpha) * wave + d->alpha);
  }
  const auto& d = std::get<CosineDecayRestarts>(schedule);
  long double f = s / d.first_decay_steps;
  long double i = std::floor(f);
  if (d.t_mul == 1.0) {  // with whole first_decay_steps
    f = (step % static_cast<int64_t>(d.first_decay_steps)) /
        static_cast<long double>(d.first_decay_steps);
  } else {
    const long double t = d.t_mul;
    i = std::floor(std::log(1 - f * (1 - t)) / std::log(t));
    const long double length = std::pow(t, i);
    f = (f - (1 - length) / (1 - t)) / length;
  }
  const long double wave = (1 + std::cos(pi * f)) / 2;
  return d.initial_learning_rate *
      ((1 - d.alpha) * std::pow(static_cast<long double>(d.m_mul), i) * wave +
       d.alpha);
}

TEST(ScheduleTest, EqualsItsFormulaUpToStep2To40) {
  std::mt19937_64 generator(1);
  const auto draw = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(generator);
  };
  const auto flip = [&] { return draw(0.0, 1.0) < 0.5; };
  int64_t values = 0;
  for (int64_t i = 0; i < 20'000; ++i) {
    const auto step = static_cast<int64_t>(std::exp2(draw(24.001, 40.0)));
    const double rate = draw(0.001, 1.0);
    const double length = std::floor(std::exp2(draw(0.0, 40.0)));
    const std::vector<Schedule> schedules{
        ExponentialDecay{rate, length, draw(0.5, 1.0), flip()},
        InverseTimeDecay{rate, length, draw(0.0, 2.0), flip()},
        PolynomialDecay{rate, length, 0.1 * rate, draw(0.5, 3.0), flip()},
        CosineDecay{rate, length, draw(0.0, 0.5)},
        CosineDecayRestarts{rate, length, 1.0, 1.0, draw(0.0, 0.5)},
        CosineDecayRestarts{
            rate, length, draw(1.1, 3.0), draw(0.9, 1.0), draw(0.0, 0.5)}};
    for (const Schedule& schedule : schedules) {
      const auto expected = static_cast<double>(reference(schedule, step));
      EXPECT_NEAR(value_at(schedule, step), expected, 1e-9 * rate)
          << JsonValue<Schedule>::write(schedule).dump() << " step " << step;
      ++values;
    }
  }
  std::cout << values << " values\n";
}

// Below step 2^24, too, float32 would lose the step after many periods.
TEST(ScheduleTest, RestartsLoseNoStepBefore2To24) {
  std::mt19937_64 generator(2);
  const auto draw = [&](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(generator);
  };
  for (int64_t i = 0; i < 20'000; ++i) {
    const auto step = static_cast<int64_t>(std::exp2(draw(0.0, 24.0)));
    const CosineDecayRestarts decay{
        1.0, std::floor(std::exp2(draw(0.0, 12.0))), 1.0, 1.0, 0.0};
    EXPECT_NEAR(
        value_at(decay, step),
        static_cast<double>(reference(decay, step)),
        2e-4)
        << decay.first_decay_steps << " step " << step;
  }
}

TEST(ScheduleTest, WarmupRisesAndThenFollowsTheNextSchedule) {
  const Warmup warmup{
      .start = 0.2, .steps = 4.0, .then = ExponentialDecay{1.0, 1.0, 0.5}};
  const std::vector<double> expected{0.2, 0.4, 0.6, 0.8, 1.0, 0.5, 0.25};
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_DOUBLE_EQ(
        value_at(warmup, static_cast<int64_t>(step)), expected[step])
        << "step " << step;
  }
}

TEST(ScheduleTest, RefusesOptionsOutOfRange) {
  std::vector<test::Refusal<Schedule>> rows{
      {CosineDecay{.alpha = kNan}, "alpha must be finite in float32, but got"},
      {PiecewiseConstantDecay{{1.0, 2.0}, {0.1, 0.2}},
       "[here] PiecewiseConstantDecay: values must have one entry more than "
       "boundaries, but got 2 values and 2 boundaries. Add or remove entries."},
      {PiecewiseConstantDecay{{}, {}}, "but got 0 values and 0 boundaries"},
      {PiecewiseConstantDecay{{2.0, 2.0}, {0.1, 0.2, 0.3}},
       "boundaries must be in strictly ascending order, but got 2"},
      {PiecewiseConstantDecay{{kNan}, {0.1, 0.2}},
       "boundaries must be finite in float32, but got"}};
  for (const double bad : {0.0, -1.0, kNan, kInfinity}) {
    const std::string text = " must be > 0 and fit in float32, but got";
    rows.insert(
        rows.end(),
        {{ExponentialDecay{.decay_steps = bad},
          "[here] ExponentialDecay: decay_steps" + text},
         {PolynomialDecay{.decay_steps = bad},
          "[here] PolynomialDecay: decay_steps" + text},
         {InverseTimeDecay{.decay_steps = bad},
          "[here] InverseTimeDecay: decay_steps" + text},
         {CosineDecay{.decay_steps = bad},
          "[here] CosineDecay: decay_steps" + text},
         {CosineDecayRestarts{.first_decay_steps = bad},
          "[here] CosineDecayRestarts: first_decay_steps" + text},
         {CosineDecayRestarts{.t_mul = bad},
          "[here] CosineDecayRestarts: t_mul" + text},
         {Warmup{.steps = bad}, "[here] Warmup: steps" + text},
         {Warmup{.then = CosineDecay{.decay_steps = bad}},
          "[here] Warmup: then CosineDecay: decay_steps" + text}});
  }
  for (const double bad : {-0.1, kNan, kInfinity}) {
    const std::string text = " must be >= 0 and finite in float32, but got";
    rows.insert(
        rows.end(),
        {{ExponentialDecay{.initial_learning_rate = bad},
          "initial_learning_rate" + text},
         {PolynomialDecay{.end_learning_rate = bad},
          "end_learning_rate" + text},
         {CosineDecay{.warmup_target = bad}, "warmup_target" + text},
         {PiecewiseConstantDecay{{}, {bad}}, "values" + text},
         {Warmup{.start = bad}, "start" + text}});
  }
  test::expect_refusals(
      rows, [](const Schedule& schedule) { validate(schedule, "[here]"); });
}

TEST(ScheduleTest, RefusesMalformedJson) {
  test::expect_refusals<std::string>(
      {{R"({"class_name": "Halving"})",
        "[optimizer] class_name must be one of ExponentialDecay, "},
       {R"({"class_name": "CosineDecay", "config": {"steps": 3}})",
        "unknown key 'steps'"},
       {R"({"class_name": "CosineDecay", "config": {"alpha": "a"}})",
        "expected a number in the JSON, but got \"a\""},
       {R"({"class_name": "PiecewiseConstantDecay",
               "config": {"boundaries": 3}})",
        "expected a list in the JSON, but got 3"},
       {"[]", "expected an object"}},
      [](const std::string& text) {
        JsonValue<Schedule>::read(Json::parse(text), "optimizer");
      });
}

}  // namespace tessera::optim::schedule_test
