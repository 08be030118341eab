// SPDX-License-Identifier: Apache-2.0
// All functions that read JSON accept and refuse the same texts.
#include "packages/training/tests/training_fixture.h"
#include "serialization/manifest.h"
#include "tests/temporary_folder.h"
#include "tests/test_util.h"

#include <tessera/common/json_text.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/formats/safetensors.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/layer_json.h>
#include <tessera/optim/keras.h>
#include <tessera/serialization/config_json.h>
#include <tessera/serialization/json_file.h>
#include <tessera/serialization/saved_features.h>
#include <tessera/training/checkpoint.h>
#include <tessera/training/fit.h>
#include <tessera/training/history.h>

namespace tessera::test::json_readers_test {

struct Reader {
  std::string name;
  std::function<void(const std::string& text)> read;
};

std::string write_file(const TemporaryFolder& folder, const std::string& text) {
  return folder.write("file", text);
}

torch::serialize::InputArchive archive_with(
    const std::string& key,
    const std::string& text) {
  torch::serialize::OutputArchive written;
  written.write(key, c10::IValue(text));
  return reread(written);
}

// Adds the checksum that ends a manifest.
std::string with_checksum(std::string text) {
  text.pop_back();  // the closing brace
  text += ",\"xxh3\":\"";
  text += checksum_of(text);
  text += "\"}\n";
  return text;
}

// Writes a model.pt with these texts as its entries, and resumes from it.
void resume_from(
    const std::string& dense_names,
    const std::string& layers,
    const std::string& training) {
  ClickRun run(/*layers=*/0);
  const TemporaryFolder folder;
  torch::serialize::OutputArchive archive;
  torch::serialize::OutputArchive dense(archive.compilation_unit());
  int64_t i = 0;
  for (const auto& parameter : run.model->named_parameters()) {
    dense.write(
        "tensor_" + std::to_string(i++), parameter.value().detach(), true);
  }
  torch::serialize::OutputArchive fit_state(archive.compilation_unit());
  fit_state.write("training", c10::IValue(training));
  torch::serialize::OutputArchive optimizer(archive.compilation_unit());
  archive.write("dense", dense);
  archive.write("dense_names", c10::IValue(dense_names));
  archive.write("layers", c10::IValue(layers));
  archive.write("fit", fit_state);
  archive.write("optimizer", optimizer);
  archive.save_to(folder / "model.pt");
  training::fit(
      click_batches(1, 1),
      run.train_step(),
      {.model = run.model.ptr(),
       .checkpoint = std::make_shared<training::Checkpoint>(
           folder.path().string(), run.model.ptr(), run.optimizer)});
}

std::string dense_parameter_names() {
  Json names = Json::array();
  ClickRun run(/*layers=*/0);
  for (const auto& parameter : run.model->named_parameters()) {
    names.push_back(parameter.key());
  }
  return names.dump();
}

std::vector<Reader> readers() {
  return {
      {"parse_json", [](const std::string& text) { parse_json(text); }},
      {"for_each_json_entry",
       [](const std::string& text) {
         for_each_json_entry(text, "[test]", {}, [](auto&, auto&) {});
       }},
      {"load_json",
       [](const std::string& text) {
         const TemporaryFolder folder;
         load_json(write_file(folder, text));
       }},
      {"load_pipeline",
       [](const std::string& text) {
         const TemporaryFolder folder;
         load_pipeline(write_file(folder, text));
       }},
      {"translate_keras_optimizer",
       [](const std::string& text) { optim::translate_keras_optimizer(text); }},
      {"OptimizerSpec",
       [](const std::string& text) { const optim::OptimizerSpec spec(text); }},
      {"manifest_from_text",
       [](const std::string& text) {
         (void)manifest_from_text(with_checksum(text), "[test]");
       }},
      {"tables_from_text",
       [](const std::string& text) { tables_from_text(text); }},
      {"saved_features",
       [](const std::string& text) {
         auto archive = archive_with("config", text);
         saved_features(archive);
       }},
      {"load_safetensors",
       [](const std::string& text) {
         const uint64_t size = text.size();
         const TemporaryFolder folder;
         load_safetensors(write_file(
             folder,
             std::string(reinterpret_cast<const char*>(&size), sizeof(size)) +
                 text));
       }},
      {"load_of_a_layer",
       [](const std::string& text) {
         auto archive = archive_with("input_shape", text);
         Cross cross;
         cross->load(archive);
       }},
      {"dense_names",
       [](const std::string& text) { resume_from(text, "[]", "{}"); }},
      {"layers",
       [](const std::string& text) {
         resume_from(dense_parameter_names(), text, "{}");
       }},
      {"training",
       [](const std::string& text) {
         resume_from(dense_parameter_names(), "[]", text);
       }},
  };
}

class JsonReadersTest : public testing::TestWithParam<Reader> {};

INSTANTIATE_TEST_SUITE_P(
    All,
    JsonReadersTest,
    testing::ValuesIn(readers()),
    [](const auto& info) { return info.param.name; });

// The deep value has a key before it and one after it. An object that grows may
// copy its values, and copying a value recurses as deep as the value.
TEST_P(JsonReadersTest, RefusesDeepText) {
  constexpr size_t kLevels = 150'000;
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text = R"({"__metadata__":{},"b":)";
    for (size_t i = 0; i < kLevels; ++i) {
      text += open;
    }
    text += "1";
    text += std::string(kLevels, open[0] == '[' ? ']' : '}');
    text += R"(,"c":2})";
    EXPECT_VALUE_ERROR(GetParam().read(text), "levels deep, but is deeper at");
  }
}

// The texts have the key `__metadata__`, which the reader of safetensors accepts
// without a tensor.
TEST_P(JsonReadersTest, RefusesAnythingButOneValue) {
  const auto expect_refused = [&](const std::string& text,
                                  const std::string& problem) {
    EXPECT_VALUE_ERROR(GetParam().read(text), "expected JSON, but got");
    EXPECT_VALUE_ERROR(GetParam().read(text), problem);
  };
  expect_refused(
      R"({"__metadata__":{"k":1,"k":2}})",
      "the key 'k' twice at byte 26, line 1");
  expect_refused(R"({"__metadata__":{"k":1,"\u006b":2}})", "the key 'k' twice");
  expect_refused(
      "{\"__metadata__\":{},\n\"__metadata__\":{}}",
      "the key '__metadata__' twice at byte 34, line 2");
  expect_refused(R"({"__metadata__":{}}{"b":{}})", "unexpected '{'");
  expect_refused(R"({"__metadata__":{}} "b":{}})", "unexpected string literal");
  expect_refused(
      "{\"__metadata__\":{\"k\":\"\xff\"}}", "ill-formed UTF-8 byte");
  expect_refused(R"({"__metadata__":{"k":[1,2}})", "unexpected '}'");
  expect_refused(R"({"__metadata__":{"k":1e999}})", "number overflow");
}

// A parser may take a zero byte for the end of the text.
TEST_P(JsonReadersTest, RefusesAZeroByte) {
  EXPECT_VALUE_ERROR(
      GetParam().read(std::string("{\"__metadata__\":{}}\0}", 21)),
      "expected JSON, but got a zero byte at byte 20, line 1");
}

TEST(ParseJsonTest, ReturnsTheValueOfTheText) {
  for (const char* text :
       {"{}",
        "[]",
        "null",
        "\"a\"",
        "-7",
        "18446744073709551615",
        "0.1",
        R"([true,false,null,1,-1,1.5,"\u00e4\n",[],{}])",
        R"({"z":1,"a":{"b":[{"c":2}]},"m":"x"})"}) {
    EXPECT_EQ(parse_json(text).dump(), Json::parse(text).dump());
    EXPECT_EQ(parse_json(text), Json::parse(text));
  }
  EXPECT_EQ(parse_json(" \n{\"a\" : 1 }\n "), Json({{"a", 1}}));
}

TEST(ParseJsonTest, KeepsTheGivenLimits) {
  const JsonLimits limits{.bytes = 12, .depth = 2, .list_size = 3};
  EXPECT_EQ(parse_json("[[1,2,3],[]]", "[x]", limits).size(), 2);
  EXPECT_VALUE_ERROR(
      parse_json("[[1,2,3],[] ]", "[x]", limits),
      "[x] expected at most 12 bytes of JSON, but got 13");
  EXPECT_VALUE_ERROR(
      parse_json("[\n[[]]]", "[x]", limits),
      "[x] the JSON must be at most 2 levels deep, but is deeper at byte 4, "
      "line 2");
  EXPECT_VALUE_ERROR(
      parse_json("[1,2,3,4]", "[x]", limits),
      "[x] expected lists of at most 3 values in the JSON");
  const std::string at_limit(kMaxJsonDepth, '[');
  EXPECT_EQ(parse_json(at_limit + std::string(kMaxJsonDepth, ']')).size(), 1);
  EXPECT_VALUE_ERROR(
      parse_json("[" + at_limit), "must be at most 64 levels deep");
}

TEST(ParseJsonTest, DescribesSyntaxErrors) {
  EXPECT_VALUE_ERROR(
      parse_json(""),
      "[parse_json] expected JSON, but the text is empty (syntax error while "
      "parsing value - unexpected end of input");
  for (const char* blank : {"", " \n"}) {
    EXPECT_VALUE_ERROR(
        parse_json(blank), "expected JSON, but the text is empty (");
    EXPECT_VALUE_ERROR(parse_json(blank), "). Pass a JSON value");
  }
  EXPECT_VALUE_ERROR(parse_json("[1,\n2"), "at byte 5, line 2");
  EXPECT_VALUE_ERROR(parse_json("{a}"), "at byte 2, line 1");
  // The error does not repeat a token of a megabyte.
  try {
    parse_json("\"" + std::string(1'000'000, 'x'));
    ADD_FAILURE() << "expected an error";
  } catch (const c10::ValueError& error) {
    EXPECT_LT(std::string(error.what_without_backtrace()).size(), 500);
  }
}

// A parser that compares each key with all keys before it takes minutes.
TEST(ParseJsonTest, ManyKeysTakeLinearTime) {
  std::string text = "{";
  constexpr int kKeys = 300'000;
  for (int i = 0; i < kKeys; ++i) {
    text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":[" +
        std::to_string(i) + "]";
  }
  text += "}";
  EXPECT_EQ(parse_json(text).size(), kKeys);
}

TEST(ForEachJsonEntryTest, VisitsEntriesInOrder) {
  std::vector<std::pair<std::string, Json>> entries;
  for_each_json_entry(
      R"({"b":{"x":[1,{}]},"a":2,"c":null})",
      "[x]",
      {},
      [&](const std::string& key, const Json& value) {
        entries.emplace_back(key, value);
      });
  ASSERT_EQ(entries.size(), 3);
  EXPECT_EQ(entries[0].first, "b");
  EXPECT_EQ(entries[0].second.dump(), R"({"x":[1,{}]})");
  EXPECT_EQ(entries[1].first, "a");
  EXPECT_EQ(entries[1].second, 2);
  EXPECT_TRUE(entries[2].second.is_null());
  for (const char* text : {"[]", "1"}) {
    EXPECT_VALUE_ERROR(
        for_each_json_entry(text, "[x]", {}, [](auto&, auto&) {}),
        "[x] expected JSON, but got a value that is not an object");
  }
}

// The values may come from another parser.
TEST(JsonValueReadersTest, RefuseDeepValues) {
  std::string text = R"({"class_name":"SGD","config":)";
  text += std::string(150'000, '[') + std::string(150'000, ']') + "}";
  const Json deep = Json::parse(text);
  const nlohmann::json sorted = nlohmann::json::parse(text);
  const std::string problem = "at most 64 levels deep";
  EXPECT_VALUE_ERROR(optim::translate_keras_optimizer(deep), problem);
  EXPECT_VALUE_ERROR(optim::translate_keras_optimizer(sorted), problem);
  EXPECT_VALUE_ERROR(data::pipeline_from_json(deep), problem);
  EXPECT_VALUE_ERROR(features_from_json(deep), problem);
  EXPECT_VALUE_ERROR(training::history_from_json(deep), problem);
  EXPECT_VALUE_ERROR(layer_from_json(deep), problem);
  EXPECT_VALUE_ERROR(from_config<Cross>(deep), problem);
}

// The file is sparse, so it takes no room on the disk.
TEST(LoadJsonTest, ALargeFileIsRefusedBeforeItIsRead) {
  const TemporaryFolder folder;
  const std::string path = folder.write("file", "{}");
  std::filesystem::resize_file(path, 200'000'000'000);
  EXPECT_VALUE_ERROR(
      load_json(path),
      "[load_json] " + path +
          ": expected at most 1073741824 bytes of JSON, but got 200000000000");
  EXPECT_VALUE_ERROR(
      load_pipeline(path),
      "[load_pipeline] " + path + ": expected at most 8589934592 bytes");
}

}  // namespace tessera::test::json_readers_test
