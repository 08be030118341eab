// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/keras.h>
#include <tessera/optim/optimizers.h>
#include <tessera/serialization/config_json.h>

#include "tests/golden_util.h"
#include "tests/test_util.h"

namespace tessera::optim::keras_test {

// An optimizer's config as Keras 3 writes it. Options that `config` lacks have
// their default.
Json keras3(
    const std::string& class_name,
    const Json& config = Json::object()) {
  return {
      {"module", "keras.optimizers"},
      {"class_name", class_name},
      {"config", config},
      {"registered_name", nullptr}};
}

Json legacy(
    const std::string& class_name,
    const Json& config = Json::object()) {
  Json json = keras3(class_name, config);
  json["module"] = "keras.optimizers.legacy";
  return json;
}

using test::Refusal;

const Fidelity kKerasFidelities[] = {Fidelity::kLazy, Fidelity::kExact};

// --- configs that Keras wrote ------------------------------------------------

// A short name for a case of specs.json: its source, its class and the options
// that it sets.
std::string label(const Json& test_case) {
  const Json& spec = test_case.at("spec");
  const Json& config = spec.at("config");
  const bool is_legacy =
      spec.at("module").get<std::string>().ends_with(".legacy");
  std::string label = is_legacy ? "legacy" : test_case.at("source");
  label += " " + spec.at("class_name").get<std::string>();
  for (const char* key :
       {"momentum",
        "nesterov",
        "decay",
        "amsgrad",
        "centered",
        "weight_decay",
        "clipnorm",
        "global_clipnorm",
        "clipvalue",
        "use_ema",
        "loss_scale_factor",
        "gradient_accumulation_steps",
        "l2_shrinkage_regularization_strength"}) {
    const Json value = config.value(key, Json(nullptr));
    if (!value.is_null() && value != false && value != 0.0) {
      label += std::string(" ") + key;
    }
  }
  return label + (config.at("learning_rate").is_object() ? " schedule" : "");
}

const std::set<std::string> kAcceptedEverywhere{
    "keras3 SGD",
    "keras3 Adagrad",
    "keras3 Adam",
    "keras3 Adam schedule",
    "keras3 Ftrl",
    "legacy SGD",
    "legacy SGD schedule",
    "legacy Adagrad",
    "tf_keras SGD",
    "tf_keras Adagrad",
    "tf_keras Adam"};

const std::set<std::string> kAcceptedUnlessTpu{
    "keras3 SGD momentum nesterov",
    "keras3 SGD weight_decay",
    "keras3 Adam amsgrad",
    "keras3 Adam clipvalue",
    "keras3 Adam gradient_accumulation_steps",
    "keras3 AdamW weight_decay",
    "keras3 RMSprop",
    "keras3 Lion",
    "legacy SGD decay",
    "legacy Adam amsgrad",
    "legacy Ftrl l2_shrinkage_regularization_strength"};

// The label of each refused case, and the error text that names its option.
const std::vector<std::pair<std::string, std::string>> kRefusedCases{
    {"keras3 SGD clipnorm", "clipnorm is not supported"},
    {"keras3 SGD global_clipnorm", "global_clipnorm is not supported"},
    {"keras3 SGD use_ema", "use_ema is not supported"},
    {"legacy Adam clipnorm", "clipnorm is not supported"}};

// Returns true if a case has an option or a class without counterpart here.
bool must_be_refused(const Json& test_case) {
  static const std::set<std::string> classes{
      "SGD",
      "Adagrad",
      "Adam",
      "Ftrl",
      "AdamW",
      "RMSprop",
      "Adadelta",
      "Lion",
      "Adamax",
      "Nadam"};
  const std::string name = label(test_case);
  for (const char* option :
       {" clipnorm", " global_clipnorm", " use_ema", " loss_scale_factor"}) {
    if (name.find(option) != std::string::npos) {
      return true;
    }
  }
  return classes.count(test_case.at("spec").at("class_name")) == 0;
}

TEST(GoldenSpecsTest, RefusesExactlyTheCasesWithoutCounterpart) {
  const std::vector<std::string> files = test::golden_files("specs");
  ASSERT_FALSE(files.empty()) << "no specs*.json in " << test::golden_folder();
  for (const std::string& file : files) {
    const Json cases = test::read_golden(file);
    ASSERT_FALSE(cases.empty()) << file << " has no cases";
    for (const Json& test_case : cases) {
      SCOPED_TRACE(label(test_case));
      const Json& spec = test_case.at("spec");
      if (must_be_refused(test_case)) {
        for (const Fidelity fidelity :
             {Fidelity::kTpu, Fidelity::kLazy, Fidelity::kExact}) {
          EXPECT_VALUE_ERROR(translate_keras_optimizer(spec, fidelity), "[");
        }
        continue;
      }
      for (const Fidelity fidelity : kKerasFidelities) {
        if (fidelity == Fidelity::kExact &&
            label(test_case).starts_with("legacy Nadam")) {
          EXPECT_VALUE_ERROR(
              translate_keras_optimizer(spec, fidelity),
              "[Keras Nadam] the legacy optimizer is not supported with "
              "Fidelity::kExact");
          continue;
        }
        EXPECT_NO_THROW(translate_keras_optimizer(spec, fidelity));
        EXPECT_EQ(
            translate_keras_optimizer(spec.dump(), fidelity),
            translate_keras_optimizer(spec, fidelity));
      }
    }
    std::cout << file << ": " << cases.size() << " cases\n";
  }
}

// This test reads tests/golden/specs.json, whatever TESSERA_GOLDEN_DIR is.
TEST(GoldenSpecsTest, EveryCaseBehavesAsListed) {
  std::ifstream file(test::test_file("golden/specs.json"));
  std::set<std::string> seen;
  for (const Json& test_case : Json::parse(file)) {
    const std::string name = label(test_case);
    SCOPED_TRACE(name);
    seen.insert(name);
    const Json& spec = test_case.at("spec");
    const bool everywhere = kAcceptedEverywhere.count(name) != 0;
    if (everywhere || kAcceptedUnlessTpu.count(name) != 0) {
      for (const Fidelity fidelity : kKerasFidelities) {
        EXPECT_NO_THROW(translate_keras_optimizer(spec, fidelity));
      }
    }
    if (everywhere) {
      EXPECT_NO_THROW(translate_keras_optimizer(spec));
    } else {
      EXPECT_VALUE_ERROR(translate_keras_optimizer(spec), "[");
    }
    for (const auto& [refused_name, text] : kRefusedCases) {
      if (refused_name == name) {
        for (const Fidelity fidelity : kKerasFidelities) {
          EXPECT_VALUE_ERROR(translate_keras_optimizer(spec, fidelity), text);
        }
      }
    }
  }
  std::set<std::string> listed = kAcceptedEverywhere;
  listed.insert(kAcceptedUnlessTpu.begin(), kAcceptedUnlessTpu.end());
  for (const auto& [name, text] : kRefusedCases) {
    listed.insert(name);
  }
  EXPECT_EQ(seen, listed);
}

// --- kTpu --------------------------------------------------------------------

TEST(TranslateKerasOptimizerTest, TpuGivesTheNativeFormulas) {
  EXPECT_EQ(
      translate_keras_optimizer(keras3("SGD", {{"learning_rate", 0.5}})),
      OptimizerSpec(SGD{.learning_rate = 0.5}));
  EXPECT_EQ(
      translate_keras_optimizer(legacy(
          "Adagrad",
          {{"learning_rate", 0.3},
           {"decay", 0.0},
           {"initial_accumulator_value", 0.2},
           {"epsilon", 1e-7}})),
      OptimizerSpec(
          Adagrad{.learning_rate = 0.3, .initial_accumulator_value = 0.2}));
  EXPECT_EQ(
      translate_keras_optimizer(
          keras3("Adam", {{"beta_1", 0.8}, {"beta_2", 0.9}, {"epsilon", 0.1}})),
      OptimizerSpec(Adam{.beta_1 = 0.8, .beta_2 = 0.9, .epsilon = 0.1}));
  EXPECT_EQ(
      translate_keras_optimizer(keras3(
          "Ftrl",
          {{"learning_rate_power", -0.4},
           {"l1_regularization_strength", 0.1},
           {"l2_regularization_strength", 0.2},
           {"beta", 0.3},
           {"initial_accumulator_value", 0.4}})),
      OptimizerSpec(FTRL{
          .learning_rate_power = -0.4,
          .l1_regularization_strength = 0.1,
          .l2_regularization_strength = 0.2,
          .beta = 0.3,
          .initial_accumulator_value = 0.4}));
}

TEST(TranslateKerasOptimizerTest, MissingKeysHaveKerasDefaults) {
  const auto translate = [](const char* class_name) {
    return translate_keras_optimizer(keras3(class_name), Fidelity::kLazy);
  };
  EXPECT_EQ(translate("SGD"), OptimizerSpec(SGD{.learning_rate = 0.01}));
  EXPECT_EQ(
      translate("Adagrad"),
      OptimizerSpec(Adagrad{.epsilon = 1e-7, .epsilon_inside_sqrt = true}));
  EXPECT_EQ(
      translate("AdamW"),
      OptimizerSpec(Adam{
          .sum_inside_sqrt = false,
          .bias_correction = true,
          .weight_decay_factor = 0.004,
          .multiply_weight_decay_factor_by_learning_rate = true}));
  EXPECT_EQ(translate("RMSprop"), OptimizerSpec(RMSprop{}));
  EXPECT_EQ(translate("Adadelta"), OptimizerSpec(Adadelta{}));
  EXPECT_EQ(translate("Lion"), OptimizerSpec(Lion{}));
  EXPECT_EQ(translate("Adamax"), OptimizerSpec(Adamax{}));
  EXPECT_EQ(translate("Nadam"), OptimizerSpec(Nadam{}));
  EXPECT_EQ(translate("Ftrl"), OptimizerSpec(FTRL{}));
}

TEST(TranslateKerasOptimizerTest, TpuRefusesWhatUpstreamRefuses) {
  std::vector<Refusal<Json>> rows{
      {keras3("SGD", {{"momentum", 0.9}}),
       "[Keras SGD] momentum is not supported with Fidelity::kTpu: it must be "
       "Keras's default 0.0, but is 0.9."},
      {keras3("SGD", {{"nesterov", true}}), "[Keras SGD] nesterov is not"},
      {legacy("SGD", {{"decay", 0.1}}), "[Keras SGD] decay is not supported"},
      {legacy("Adagrad", {{"epsilon", 1e-6}}),
       "[Keras Adagrad] epsilon is not"},
      {keras3("Adam", {{"amsgrad", true}}), "[Keras Adam] amsgrad is not"},
      {legacy("Ftrl", {{"l2_shrinkage_regularization_strength", 0.1}}),
       "[Keras Ftrl] l2_shrinkage_regularization_strength is not supported"},
      {legacy("Adam", {{"clipvalue", 0.5}}), "[Keras Adam] clipvalue is not"},
      {keras3("Adam", {{"weight_decay", 0.1}}),
       "[Keras Adam] weight_decay is not supported"},
      {keras3("Adam", {{"gradient_accumulation_steps", 2}}),
       "[Keras Adam] gradient_accumulation_steps is not supported"}};
  for (const char* other :
       {"AdamW", "RMSprop", "Adadelta", "Lion", "Adamax", "Nadam"}) {
    rows.push_back(
        {keras3(other),
         "class_name must be one of SGD, Adagrad, Adam, Ftrl with "
         "Fidelity::kTpu, but got '"});
  }
  const auto translate = [](const Json& json) {
    translate_keras_optimizer(json);
  };
  test::expect_refusals(rows, translate);
  for (Refusal<Json>& row : rows) {
    row.text = "Use Fidelity::kLazy or Fidelity::kExact.";
    for (const Fidelity fidelity : kKerasFidelities) {
      EXPECT_NO_THROW(translate_keras_optimizer(row.input, fidelity));
    }
  }
  test::expect_refusals(rows, translate);
}

// --- kLazy and kExact --------------------------------------------------------

template <class Spec>
Spec translate(const Json& json, Fidelity fidelity) {
  return std::get<Spec>(translate_keras_optimizer(json, fidelity).variant());
}

TEST(TranslateKerasOptimizerTest, EpsilonIsInsideOrOutsideTheRootAsInKeras) {
  for (const Fidelity fidelity : kKerasFidelities) {
    EXPECT_TRUE(
        translate<Adagrad>(keras3("Adagrad"), fidelity).epsilon_inside_sqrt);
    EXPECT_FALSE(
        translate<Adagrad>(legacy("Adagrad"), fidelity).epsilon_inside_sqrt);
    EXPECT_TRUE(
        translate<RMSprop>(keras3("RMSprop"), fidelity).epsilon_inside_sqrt);
    EXPECT_FALSE(
        translate<RMSprop>(legacy("RMSprop"), fidelity).epsilon_inside_sqrt);
    EXPECT_TRUE(
        translate<RMSprop>(legacy("RMSprop", {{"momentum", 0.5}}), fidelity)
            .epsilon_inside_sqrt);
    const Adam adam = translate<Adam>(keras3("Adam"), fidelity);
    EXPECT_FALSE(adam.sum_inside_sqrt);
    EXPECT_TRUE(adam.bias_correction);
  }
}

TEST(TranslateKerasOptimizerTest, ExactSweepsWhereKerasMovesIdleRows) {
  const auto expect_sweeps = [](bool sweeps, const std::vector<Json>& configs) {
    for (const Json& json : configs) {
      SCOPED_TRACE(json.dump());
      EXPECT_FALSE(
          sweeps_all_rows(translate_keras_optimizer(json, Fidelity::kLazy)));
      EXPECT_EQ(
          sweeps_all_rows(translate_keras_optimizer(json, Fidelity::kExact)),
          sweeps);
    }
  };
  expect_sweeps(
      true,
      {keras3("SGD", {{"weight_decay", 0.1}}),
       keras3("SGD", {{"momentum", 0.9}}),
       keras3("Adam"),
       legacy("Adam"),
       keras3("AdamW"),
       keras3("Ftrl"),
       keras3("RMSprop"),
       legacy("RMSprop"),
       keras3("Adadelta"),
       keras3("Lion"),
       keras3("Adamax"),
       keras3("Nadam")});
  expect_sweeps(
      false,
      {keras3("SGD"),
       legacy("SGD", {{"momentum", 0.9}}),
       keras3("Adagrad"),
       legacy("Adagrad"),
       legacy("Ftrl"),
       legacy("RMSprop", {{"momentum", 0.5}}),
       legacy("Adadelta"),
       legacy("Adamax")});
}

TEST(TranslateKerasOptimizerTest, LegacyNadamsDecayBelongsToItsMomentum) {
  EXPECT_EQ(
      translate_keras_optimizer(legacy("Nadam"), Fidelity::kLazy),
      OptimizerSpec(Nadam{.schedule_decay = 0.004}));
  EXPECT_EQ(
      translate_keras_optimizer(
          legacy("Nadam", {{"learning_rate", 0.5}, {"decay", 0.25}}),
          Fidelity::kLazy),
      OptimizerSpec(Nadam{.learning_rate = 0.5, .schedule_decay = 0.25}));
  EXPECT_VALUE_ERROR(
      translate_keras_optimizer(legacy("Nadam"), Fidelity::kExact),
      "[Keras Nadam] the legacy optimizer is not supported with "
      "Fidelity::kExact, because it decays the slots of all rows, but updates "
      "the weights of only the rows in the batch. Use Fidelity::kLazy");
  // In every other class, `decay` is the decay of the learning rate.
  EXPECT_FALSE(
      translate<Adamax>(legacy("Adamax", {{"decay", 0.5}}), Fidelity::kExact)
          .learning_rate.is_constant());
}

TEST(TranslateKerasOptimizerTest, MapsTheOptionsThatAllClassesShare) {
  const Momentum momentum = translate<Momentum>(
      keras3(
          "SGD",
          {{"learning_rate", 0.5},
           {"momentum", 0.9},
           {"nesterov", true},
           {"clipvalue", 2.0},
           {"weight_decay", 0.1},
           {"gradient_accumulation_steps", 4}}),
      Fidelity::kLazy);
  EXPECT_EQ(
      momentum,
      (Momentum{
          .learning_rate = 0.5,
          .momentum = 0.9,
          .use_nesterov = true,
          .scale_momentum_by_learning_rate = true,
          .clip_gradient_min = -2.0,
          .clip_gradient_max = 2.0,
          .weight_decay_factor = 0.1,
          .multiply_weight_decay_factor_by_learning_rate = true,
          .gradient_accumulation_steps = 4}));
}

TEST(TranslateKerasOptimizerTest, LegacyDecayIsASchedule) {
  const SGD sgd = translate<SGD>(
      legacy("SGD", {{"learning_rate", 0.1}, {"decay", 0.5}}), Fidelity::kLazy);
  EXPECT_DOUBLE_EQ(sgd.learning_rate.value(0, ""), 0.1);
  EXPECT_DOUBLE_EQ(sgd.learning_rate.value(2, ""), 0.05);
  const Json schedule{
      {"class_name", "CosineDecay"},
      {"config", {{"initial_learning_rate", 0.1}, {"decay_steps", 5}}}};
  const Json both =
      legacy("SGD", {{"learning_rate", schedule}, {"decay", 0.5}});
  for (const Fidelity fidelity : kKerasFidelities) {
    EXPECT_VALUE_ERROR(
        translate_keras_optimizer(both, fidelity),
        "[Keras SGD] decay = 0.5 can't be combined with a schedule. Set decay "
        "to 0, and let the schedule decay the learning rate.");
  }
}

TEST(TranslateKerasOptimizerTest, NamesOptionsAndClassesWithoutCounterpart) {
  const std::vector<std::pair<const char*, Json>> options{
      {"clipnorm", 1.0},
      {"global_clipnorm", 1.0},
      {"use_ema", true},
      {"loss_scale_factor", 2.0}};
  for (const auto& [key, value] : options) {
    const Json spec = keras3("Adam", {{key, value}});
    for (const Fidelity fidelity :
         {Fidelity::kTpu, Fidelity::kLazy, Fidelity::kExact}) {
      EXPECT_VALUE_ERROR(
          translate_keras_optimizer(spec, fidelity),
          std::string("[Keras Adam] ") + key +
              " is not supported: it must be Keras's default ");
    }
  }
  EXPECT_VALUE_ERROR(
      translate_keras_optimizer(
          keras3("Adam", {{"clipnorm", 1.0}}), Fidelity::kExact),
      "but is 1.0. Use clipvalue");
  for (const Fidelity fidelity : kKerasFidelities) {
    EXPECT_VALUE_ERROR(
        translate_keras_optimizer(keras3("Muon"), fidelity),
        "class_name must be one of SGD, Adagrad, Adam, Ftrl, AdamW, RMSprop, "
        "Adadelta, Lion, Adamax, Nadam, but got 'Muon'.");
    EXPECT_VALUE_ERROR(
        translate_keras_optimizer(legacy("Lion"), fidelity),
        "class_name must be one of SGD, Adagrad, Adam, Ftrl, RMSprop, "
        "Adadelta, Adamax, Nadam, but got 'Lion'.");
  }
}

TEST(TranslateKerasOptimizerTest, AcceptsOptionsWithoutEffect) {
  EXPECT_EQ(
      translate_keras_optimizer(keras3(
          "SGD",
          {{"name", "sgd_7"},
           {"ema_momentum", 0.5},
           {"ema_overwrite_frequency", 3},
           {"use_ema", false},
           {"jit_compile", true},
           {"is_legacy_optimizer", false}})),
      OptimizerSpec(SGD{}));
}

TEST(TranslateKerasOptimizerTest, OldConfigsWithoutModuleAreLegacy) {
  const Json old{{"class_name", "Adagrad"}, {"config", {{"decay", 0.0}}}};
  EXPECT_FALSE(translate<Adagrad>(old, Fidelity::kLazy).epsilon_inside_sqrt);
  const Json flagged =
      keras3("Adagrad", {{"is_legacy_optimizer", true}, {"decay", 0.0}});
  EXPECT_FALSE(
      translate<Adagrad>(flagged, Fidelity::kLazy).epsilon_inside_sqrt);
}

// --- malformed input ---------------------------------------------------------

TEST(TranslateKerasOptimizerTest, RefusesWrongShapesAndUnknownKeys) {
  Json other_module = keras3("SGD");
  other_module["module"] = "my_package";
  const std::string no_object =
      "[translate_keras_optimizer.config] expected an object with the options "
      "in the JSON, but got ";
  std::vector<Refusal<Json>> rows{
      {Json::array(), "expected an object in the JSON, but got []"},
      {nullptr, "expected an object in the JSON, but got null"},
      {3, "expected an object in the JSON, but got 3"},
      {Json::object(), "missing key 'class_name'"},
      {{{"class_name", 3}}, "expected a string"},
      {{{"class_name", "SGD"}}, "missing key 'config'"},
      {{{"class_name", "SGD"}, {"config", 3}}, no_object + "3"},
      {{{"class_name", "SGD"}, {"config", nullptr}}, no_object + "null"},
      {{{"class_name", "SGD"}, {"config", Json::object()}, {"class", 1}},
       "unknown key 'class' in the JSON. Known: module, class_name, config, "
       "registered_name."},
      {other_module,
       "module must be a module of Keras, such as keras.optimizers, but got "
       "'my_package'. Your own class can't be translated. Use a native spec "
       "such as optim::Adam instead."},
      {keras3("Lion", {{"lr", 0.1}}),
       "[Keras Lion] unknown key 'lr' in the JSON. Known: name, learning_rate, "
       "weight_decay, clipnorm, global_clipnorm, clipvalue, use_ema, "},
      {keras3("SGD", {{"decay", 0.1}}), "unknown key 'decay'"},
      {legacy("SGD", {{"weight_decay", 0.1}}), "unknown key 'weight_decay'"},
      {keras3("SGD", {{"momentum", "0.9"}}),
       "[Keras SGD.momentum] expected a number"},
      {keras3("SGD", {{"momentum", nullptr}}), "expected a number"},
      {keras3("SGD", {{"nesterov", 1}}), "expected true or false"},
      {keras3("SGD", {{"clipvalue", 0.0}}), "clipvalue must be > 0"},
      {keras3("SGD", {{"clipvalue", NAN}}), "clipvalue must be > 0"},
      {keras3("SGD", {{"gradient_accumulation_steps", 1}}),
       "gradient_accumulation_steps must be >= 2, but got 1"},
      {keras3("SGD", {{"gradient_accumulation_steps", 2.5}}),
       "expected a whole number"},
      {keras3("Adam", {{"beta_1", 1.5}}), "[Keras Adam] Adam: beta_1 must be"},
      {keras3("SGD", {{"learning_rate", -0.1}}),
       "learning_rate must be finite in float32 and >= 0, but got -0.1"}};
  for (const double bad : {double{NAN}, double{INFINITY}}) {
    for (const char* key : {"learning_rate", "momentum", "weight_decay"}) {
      rows.push_back({keras3("SGD", {{key, bad}}), "[Keras SGD] "});
    }
  }
  for (const Fidelity fidelity : kKerasFidelities) {
    test::expect_refusals(rows, [&](const Json& json) {
      translate_keras_optimizer(json, fidelity);
    });
  }
}

TEST(TranslateKerasOptimizerTest, RefusesWrongSchedules) {
  const auto schedule = [](const char* name, const Json& config) {
    return Json{{"class_name", name}, {"config", config}};
  };
  const auto cosine = [&](const Json& rate, const Json& steps) {
    return schedule(
        "CosineDecay",
        {{"initial_learning_rate", rate}, {"decay_steps", steps}});
  };
  Json more = cosine(0.1, 3);
  more["config"]["steps"] = 4;
  test::expect_refusals<Json>(
      {{"fast", "[Keras SGD.learning_rate] expected a number or a"},
       {nullptr, "expected a number or a schedule"},
       {Json::array(), "expected a number or a schedule"},
       {schedule("Warmup", Json::object()),
        "class_name must be one of ExponentialDecay, PiecewiseConstantDecay, "
        "PolynomialDecay, InverseTimeDecay, CosineDecay, CosineDecayRestarts, "
        "but got 'Warmup'."},
       {{{"class_name", "CosineDecay"}}, "missing key 'config'"},
       {schedule("CosineDecay", 3), "expected an object"},
       {schedule("CosineDecay", {{"decay_steps", 3}}),
        "missing key 'initial_learning_rate'"},
       {more, "unknown key 'steps'"},
       {cosine("a", 3), "expected a number"},
       {cosine(0.1, 0), "decay_steps must be > 0"},
       {schedule(
            "PiecewiseConstantDecay",
            {{"boundaries", {1, 2}}, {"values", {0.1, 0.2}}}),
        "values must have one entry more than boundaries"}},
      [](const Json& rate) {
        translate_keras_optimizer(keras3("SGD", {{"learning_rate", rate}}));
      });
}

TEST(TranslateKerasOptimizerTest, RefusesDeepJson) {
  Json deep = Json::object();
  for (int i = 0; i < 200; ++i) {
    deep = Json{{"learning_rate", std::move(deep)}};
  }
  EXPECT_VALUE_ERROR(
      translate_keras_optimizer(keras3("SGD", deep)),
      "must be at most 64 levels deep");
}

// --- text --------------------------------------------------------------------

TEST(TranslateKerasOptimizerTest, NamesGiveNativeSpecs) {
  const std::vector<std::pair<std::string, OptimizerSpec>> names{
      {"sgd", SGD{}},
      {"adagrad", Adagrad{}},
      {"adam", Adam{}},
      {"ftrl", FTRL{}},
      {"rmsprop", RMSprop{}},
      {"adadelta", Adadelta{}},
      {"lion", Lion{}},
      {"adamax", Adamax{}},
      {"nadam", Nadam{}}};
  for (const auto& [name, spec] : names) {
    for (const Fidelity fidelity :
         {Fidelity::kTpu, Fidelity::kLazy, Fidelity::kExact}) {
      EXPECT_EQ(translate_keras_optimizer(name, fidelity), spec);
      EXPECT_EQ(translate_keras_optimizer(Json(name), fidelity), spec);
    }
  }
  for (const char* bad : {"", "SGD", "adamw", " adam", "[]"}) {
    EXPECT_VALUE_ERROR(
        translate_keras_optimizer(bad),
        std::string("name must be one of sgd, adagrad, adam, ftrl, rmsprop, "
                    "adadelta, lion, adamax, nadam, but got '") +
            bad + "'");
  }
}

TEST(TranslateKerasOptimizerTest, TextIsReadAsJson) {
  EXPECT_EQ(
      translate_keras_optimizer(
          " {\"class_name\": \"SGD\", \"config\": {\"learning_rate\": 2}}"),
      OptimizerSpec(SGD{.learning_rate = 2.0}));
  EXPECT_VALUE_ERROR(
      translate_keras_optimizer("{\"class_name\": "),
      "[translate_keras_optimizer] expected JSON, but got syntax error");
  EXPECT_VALUE_ERROR(
      translate_keras_optimizer("{\"class_name\": 1e999}"),
      "expected JSON, but got number overflow");
  const char* nothing = nullptr;
  EXPECT_VALUE_ERROR(
      translate_keras_optimizer(nothing),
      "[translate_keras_optimizer] expected a name or JSON, but got a null "
      "pointer. Pass a name such as 'adam'.");
}

// --- text and JSON in place of a spec ----------------------------------------

TEST(OptimizerSpecTest, TextAndJsonConvertToASpec) {
  const Json json = keras3("SGD", {{"learning_rate", 0.5}});
  const nlohmann::json unordered = json;
  const std::string text = json.dump();
  const OptimizerSpec expected = SGD{.learning_rate = 0.5};
  EXPECT_EQ(OptimizerSpec(json), expected);
  EXPECT_EQ(OptimizerSpec(unordered), expected);
  EXPECT_EQ(OptimizerSpec(text), expected);

  const TableConfig by_name{
      .name = "users", .vocabulary_size = 3, .dim = 2, .optimizer = "adagrad"};
  EXPECT_EQ(by_name.optimizer, OptimizerSpec(Adagrad{}));
  const TableConfig by_json{
      .name = "users", .vocabulary_size = 3, .dim = 2, .optimizer = json};
  EXPECT_EQ(by_json.optimizer, expected);
  const TableConfig by_unordered_json{
      .name = "users", .vocabulary_size = 3, .dim = 2, .optimizer = unordered};
  EXPECT_EQ(by_unordered_json, by_json);
  EXPECT_NE(by_name, by_json);
  EXPECT_EQ(table_from_json(to_json(by_json)), by_json);

  const TablePtr table = make_table(by_name);
  const TPUEmbeddingOptions options{
      .features = FeatureConfig{.table = table}, .optimizer = "adam"};
  EXPECT_EQ(options.optimizer, OptimizerSpec(Adam{}));
  const TPUEmbeddingOptions options_by_json{
      .features = FeatureConfig{.table = table}, .optimizer = json};
  EXPECT_EQ(options_by_json.optimizer, expected);
  const std::string name = "ftrl";
  const TPUEmbeddingOptions options_by_string{
      .features = FeatureConfig{.table = table}, .optimizer = name};
  EXPECT_EQ(options_by_string.optimizer, OptimizerSpec(FTRL{}));
}

TEST(OptimizerSpecTest, RefusesUntranslatableTextAtOnce) {
  EXPECT_VALUE_ERROR(
      OptimizerSpec("adamw"), "must be one of sgd, adagrad, adam, ftrl");
  EXPECT_VALUE_ERROR(
      OptimizerSpec(keras3("SGD", {{"momentum", 0.9}})),
      "momentum is not supported with Fidelity::kTpu");
}

TEST(OptimizerSpecTest, HoldsTheVariant) {
  OptimizerSpec spec = Adam{.beta_1 = 0.5};
  EXPECT_TRUE(std::holds_alternative<Adam>(spec.variant()));
  ASSERT_NE(spec.get_if<Adam>(), nullptr);
  EXPECT_EQ(spec.get_if<Adam>()->beta_1, 0.5);
  EXPECT_EQ(spec.get_if<SGD>(), nullptr);
  spec = SGD{};
  const OptimizerSpec before(spec);
  modify(spec, [](auto& held) { held.learning_rate = 0.25; });
  EXPECT_EQ(spec, OptimizerSpec(SGD{.learning_rate = 0.25}));
  EXPECT_EQ(before, OptimizerSpec(SGD{}));
  OptimizerSpec copy(spec);
  EXPECT_EQ(copy, spec);
  OptimizerSpec moved(std::move(copy));
  EXPECT_EQ(moved, spec);
  EXPECT_EQ(copy, spec);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(optimizer_from_json(to_json(spec)), spec);
  EXPECT_EQ(OptimizerSpec(), OptimizerSpec(SGD{}));
}

// --- back to Keras -----------------------------------------------------------

std::vector<OptimizerSpec> expressible() {
  const Schedule schedule = CosineDecay{0.1, 10.0, 0.0, 0.2, 5.0};
  return {
      SGD{.learning_rate = 0.5},
      SGD{.learning_rate = schedule},
      SGD{.clip_gradient_min = -1.0,
          .clip_gradient_max = 1.0,
          .weight_decay_factor = 0.1,
          .multiply_weight_decay_factor_by_learning_rate = true,
          .gradient_accumulation_steps = 3},
      Momentum{.momentum = 0.8, .scale_momentum_by_learning_rate = true},
      Momentum{
          .momentum = 0.8,
          .use_nesterov = true,
          .scale_momentum_by_learning_rate = true,
          .lazy = false},
      Adagrad{.initial_accumulator_value = 0.3},
      Adagrad{.epsilon = 1e-6, .epsilon_inside_sqrt = true},
      Adam{
          .beta_1 = 0.8,
          .sum_inside_sqrt = false,
          .bias_correction = true,
          .amsgrad = true},
      Adam{
          .lazy_adam = false,
          .sum_inside_sqrt = false,
          .bias_correction = true,
          .weight_decay_factor = 0.1,
          .multiply_weight_decay_factor_by_learning_rate = true},
      FTRL{
          .learning_rate_power = -0.4,
          .l1_regularization_strength = 0.1,
          .l2_regularization_strength = 0.2,
          .beta = 0.3,
          .l2_shrinkage_regularization_strength = 0.4,
          .lazy = false},
      RMSprop{.rho = 0.8, .momentum = 0.5, .centered = true},
      Adadelta{.rho = 0.8, .lazy = false},
      Lion{.beta_1 = 0.8},
      Adamax{.beta_1 = 0.8, .epsilon = 1e-3},
      Nadam{
          .beta_2 = 0.8,
          .weight_decay_factor = 0.1,
          .multiply_weight_decay_factor_by_learning_rate = true,
          .lazy = false}};
}

TEST(ToKerasTest, RoundTripsWithTheMatchingFidelity) {
  for (const OptimizerSpec& spec : expressible()) {
    const Json json = to_keras(spec);
    SCOPED_TRACE(json.dump());
    const Fidelity fidelity =
        sweeps_all_rows(spec) ? Fidelity::kExact : Fidelity::kLazy;
    EXPECT_EQ(translate_keras_optimizer(json, fidelity), spec);
    EXPECT_EQ(to_keras(translate_keras_optimizer(json, fidelity)), json);
  }
}

void expect_round_trip(const Json& expected) {
  nlohmann::json actual =
      to_keras(translate_keras_optimizer(expected, Fidelity::kExact));
  actual["config"]["name"] = expected.at("config").at("name");
  EXPECT_EQ(actual, nlohmann::json(expected));
}

TEST(ToKerasTest, RoundTripsTheConfigsOfKeras3) {
  for (const std::string& file : test::golden_files("specs")) {
    for (const Json& test_case : test::read_golden(file)) {
      if (test_case.at("source") != "keras3" || must_be_refused(test_case)) {
        continue;
      }
      const Json& expected = test_case.at("spec");
      SCOPED_TRACE(expected.dump());
      expect_round_trip(expected);
    }
  }
  for (const std::string& file : test::golden_files("train")) {
    for (const Json& test_case : test::read_golden(file)) {
      if (test_case.at("name").get<std::string>().starts_with("keras3")) {
        SCOPED_TRACE(test_case.at("name"));
        expect_round_trip(test_case.at("optimizer"));
      }
    }
  }
}

TEST(ToKerasTest, RefusesSpecsWithoutCounterpartInKeras) {
  const std::string rule = "the rule";
  const std::string epsilon = "epsilon_inside_sqrt = false";
  const std::string pair =
      "a pair of clip_gradient_min and clip_gradient_max other than -c and c "
      "> 0";
  for (
      const auto& [spec, text] : std::vector<Refusal<OptimizerSpec>>{
          {Adam{}, "bias_correction = false"},
          {Adam{.bias_correction = true}, "sum_inside_sqrt = true"},
          {Momentum{}, "scale_momentum_by_learning_rate = false"},
          {Adagrad{.epsilon = 1e-7}, epsilon},
          {RMSprop{.epsilon_inside_sqrt = false}, epsilon},
          {FTRL{.multiply_linear_by_learning_rate = true},
           "multiply_linear_by_learning_rate = true"},
          {FTRL{.keep_initial_weight = true}, "keep_initial_weight = true"},
          {AdagradMomentum{}, rule},
          {ProximalAdagrad{}, rule},
          {RowWiseAdagrad{}, rule},
          {LAMB{}, rule},
          {Nadam{.schedule_decay = 0.004}, "schedule_decay other than 1"},
          {SGD{.use_gradient_accumulation = false},
           "use_gradient_accumulation = false"},
          {SGD{.clip_weight_min = 0.0}, "clip_weight_min or clip_weight_max"},
          {SGD{.clip_gradient_min = -1.0}, pair},
          {SGD{.clip_gradient_max = 1.0}, pair},
          {SGD{.clip_gradient_min = -1.0, .clip_gradient_max = 2.0}, pair},
          {SGD{.weight_decay_factor = 0.1},
           "weight decay without multiply_weight_decay_factor_by_learning_rate"},
          {SGD{.learning_rate = [] { return 0.1; }},
           "a callable learning_rate"},
          {SGD{.learning_rate = Warmup{}}, "the schedule Warmup"},
          {Adagrad{.slot_creation = SlotCreation("mine", nullptr)},
           "slot_creation"}}) {
    EXPECT_VALUE_ERROR(
        to_keras(spec),
        "[to_keras] " + name_of(spec) + ": " + text +
            " has no counterpart in Keras 3. Change the spec, or save it as "
            "JSON with tessera::to_json().");
  }
}

}  // namespace tessera::optim::keras_test
