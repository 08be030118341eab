// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/feature_pipeline.h>
#include <tessera/serialization/pipeline_file.h>

#include "tests/data/column_builders.h"
#include "tests/test_util.h"

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <limits>

namespace tessera::data {
namespace pipeline_json_test {

using namespace test;  // NOLINT(google-build-using-namespace)
using namespace transforms;  // NOLINT(google-build-using-namespace)

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Writes the pipeline as JSON text, as in a file, and reads it again.
FeaturePipeline reread(const FeaturePipeline& pipeline) {
  return pipeline_from_json(Json::parse(to_json(pipeline).dump()));
}

FeaturePipeline full_pipeline() {
  return FeaturePipeline({
      {.name = "hash \"ü\"",
       .columns = {"i"},
       .transform =
           Hash{.num_bins = 9, .salt = -kMax, .missing = Missing::kDrop}},
      {.name = "bucket",
       .columns = {"f"},
       .transform =
           Bucketize{
               .boundaries = {-1e300, -0.1, 1.0 / 3.0, 5e-324 + 1.0},
               .missing = Missing::kError}},
      {.name = "integers",
       .columns = {"i"},
       .transform =
           Vocabulary{
               .values = std::vector<int64_t>{kMax, kMissing + 1, 0},
               .num_oov_indices = 7,
               .missing = Missing::kAsValue}},
      {.name = "text",
       .columns = {"t"},
       .transform =
           Vocabulary{
               .values =
                   std::vector<std::string>{
                       "plain",
                       "日本 \"\\\n",
                       std::string("\0", 1),
                       std::string("\xff\0\xc0z", 4)}},
       .max_length = 3},
      {.name = "cross",
       .columns = {"i", "t"},
       .transform = Cross{.num_bins = 31, .salt = 4}},
      {.name = "identity",
       .columns = {"i"},
       .transform =
           Identity{.num_ids = 4, .default_id = 3, .missing = Missing::kOwnId}},
      {.name = "log",
       .columns = {"i", "f"},
       .transform = Log1p{.missing_value = -0.5}},
      {.name = "normalize",
       .columns = {"f"},
       .transform =
           Normalize{.mean = 0.1, .variance = 1e-9, .missing_value = 2}},
      {.name = "keys",
       .columns = {"t"},
       .transform = Hash64{.salt = 5, .missing = Missing::kDrop}},
      {.name = "crossed_keys",
       .columns = {"i", "t"},
       .transform = Cross64{.salt = 6, .missing = Missing::kOwnId}},
  });
}

Columns full_columns() {
  Columns columns;
  columns.add("i", integers({0, kMax, 3, kMissing}));
  columns.add("f", numbers({0.0F, -2.0F, 0.3333F, 1.0F}));
  columns.add(
      "t",
      ragged(
          text({"plain", "?", "", std::string("\xff\0\xc0z", 4), "plain"}),
          {0, 4, 4, 4, 5}));
  return columns;
}

void expect_equal(const Feature& left, const Feature& right) {
  ASSERT_EQ(left.index(), right.index());
  if (const auto* tensor = std::get_if<at::Tensor>(&left)) {
    EXPECT_TRUE(at::equal(*tensor, std::get<at::Tensor>(right)));
    return;
  }
  const auto& bags = std::get<RaggedFeature>(left);
  const auto& others = std::get<RaggedFeature>(right);
  EXPECT_TRUE(at::equal(bags.values, others.values));
  EXPECT_TRUE(at::equal(bags.row_splits, others.row_splits));
}

TEST(PipelineJsonTest, APipelineReadBackGivesTheSameFeatures) {
  const FeaturePipeline pipeline = full_pipeline();
  const FeaturePipeline again = reread(pipeline);
  EXPECT_EQ(again, pipeline);
  const PipelineBatch expected = pipeline.apply(full_columns());
  const PipelineBatch got = again.apply(full_columns());
  EXPECT_TRUE(at::equal(got.dense, expected.dense));
  ASSERT_EQ(got.features.paths(), expected.features.paths());
  for (const std::string& name : expected.features.paths()) {
    expect_equal(got.features[name], expected.features[name]);
  }
}

TEST(PipelineJsonTest, TheTextIsStable) {
  const FeaturePipeline pipeline({
      {.name = "a", .columns = {"x"}, .transform = Hash{.num_bins = 9}},
      {.name = "b",
       .columns = {"x"},
       .transform = Vocabulary{.values = std::vector<std::string>{"u", "\xff"}},
       .max_length = 5},
  });
  EXPECT_EQ(
      to_json(pipeline).dump(),
      R"({"format_version":1,"outputs":[)"
      R"({"name":"a","columns":["x"],"transform":{"class_name":"Hash",)"
      R"("config":{"num_bins":9,"salt":0,"missing":"own_id"}},"max_length":0},)"
      R"({"name":"b","columns":["x"],"transform":{"class_name":"Vocabulary",)"
      R"("config":{"values":["u",{"hex":"ff"}],"num_oov_indices":1,)"
      R"("missing":"own_id"}},"max_length":5}]})");
}

TEST(PipelineJsonTest, AMissingOptionMeansTheDefault) {
  const Json json = Json::parse(
      R"({"format_version":1,"outputs":[{"name":"a","columns":["x"],)"
      R"("transform":{"class_name":"Hash","config":{"num_bins":9}}}]})");
  EXPECT_EQ(
      pipeline_from_json(json),
      FeaturePipeline(
          {{.name = "a", .columns = {"x"}, .transform = Hash{.num_bins = 9}}}));
}

// A pipeline with one output that has the given transform.
Json with_transform(const std::string& class_name, const std::string& config) {
  return {
      {"format_version", 1},
      {"outputs",
       {{{"name", "a"},
         {"columns", {"x"}},
         {"transform",
          {{"class_name", class_name}, {"config", Json::parse(config)}}}}}}};
}

TEST(PipelineJsonTest, NamesThePathOfAWrongKey) {
  const auto refuses = [](const Json& json, const char* message) {
    EXPECT_VALUE_ERROR(pipeline_from_json(json), message);
  };
  const Json good = with_transform("Hash", R"({"num_bins":9})");
  EXPECT_EQ(pipeline_from_json(good).outputs().size(), 1);
  refuses(Json(), "[pipeline] expected an object");
  refuses(Json::object(), "[pipeline] missing key 'format_version'");
  Json json = good;
  json["format_version"] = 2;
  refuses(json, "[pipeline.format_version] expected 1, but got 2");
  json = good;
  json["more"] = 1;
  refuses(json, "[pipeline] unknown key 'more'");
  json = good;
  json["outputs"] = 3;
  refuses(json, "[pipeline.outputs] expected a list");
  json = good;
  json["outputs"][0]["length"] = 3;
  refuses(json, "[pipeline.outputs[0]] unknown key 'length'");
  for (const char* key : {"name", "columns", "transform"}) {
    json = good;
    json["outputs"][0].erase(key);
    refuses(json, "[pipeline.outputs[0]] missing key '");
  }
  json = good;
  json["outputs"][0]["name"] = 7;
  refuses(json, "[pipeline.outputs[0].name] expected a string");
  json["outputs"][0]["name"] = "\xff";
  refuses(json, "the name of outputs[0] must be UTF-8 text");
  json = good;
  json["outputs"][0]["max_length"] = 1.5;
  refuses(json, "[pipeline.outputs[0].max_length] expected a whole number");
  json["outputs"][0]["max_length"] = uint64_t{1} << 63;
  refuses(json, "[pipeline.outputs[0].max_length] expected a whole number");
  json = good;
  json["outputs"].push_back(json["outputs"][0]);
  refuses(json, "[FeaturePipeline 'a'] two outputs have this name");
  Json deep = 0;
  for (int i = 0; i < 100; ++i) {
    deep = Json::array({deep});
  }
  json = good;
  json["outputs"][0]["columns"] = deep;
  refuses(json, "[pipeline] the JSON must be at most 64 levels deep");
}

TEST(PipelineJsonTest, NamesThePathOfAWrongTransform) {
  const auto refuses =
      [](const char* class_name, const char* config, const char* message) {
        EXPECT_VALUE_ERROR(
            pipeline_from_json(with_transform(class_name, config)), message);
      };
  refuses(
      "Hashing",
      "{}",
      "class_name must be one of Hash, Bucketize, Vocabulary, Cross, Identity, "
      "Log1p, Normalize, Hash64, Cross64, but got 'Hashing'");
  refuses(
      "Hash",
      R"({"bins":9})",
      "[pipeline.outputs[0].transform.Hash] unknown key 'bins'");
  refuses(
      "Hash", R"({"num_bins":"9"})", "Hash.num_bins] expected a whole number");
  refuses("Hash", R"({"num_bins":1e30})", "Hash.num_bins] expected a whole");
  refuses("Hash", R"({"num_bins":0})", "[FeaturePipeline 'a'] Hash num_bins");
  refuses(
      "Hash",
      R"({"num_bins":9,"missing":"none"})",
      "[pipeline.outputs[0].transform.Hash.missing] [Missing] missing must be");
  refuses(
      "Bucketize",
      R"({"boundaries":[1,0.5]})",
      "[FeaturePipeline 'a'] Bucketize boundaries must ascend");
  refuses(
      "Bucketize", R"({"boundaries":["inf"]})", "must be finite, but got inf");
  refuses(
      "Bucketize",
      R"({"boundaries":[[1]]})",
      "Bucketize.boundaries] expected a number");
  refuses(
      "Vocabulary",
      R"({"values":["a","b","a"]})",
      "[FeaturePipeline 'a'] Vocabulary values must all be different, but 'a' at "
      "index 2 repeats an earlier value");
  refuses(
      "Vocabulary",
      R"({"values":[1,2,"a"]})",
      "Vocabulary.values] expected a whole number in the JSON, but got \"a\". "
      "Correct the value. It is value 2. The values must be all integers, or all text.");
  refuses(
      "Vocabulary",
      R"({"values":["a",1]})",
      "but got 1. Correct the value. It is value 1");
  refuses("Vocabulary", R"({"values":[1.0]})", "expected a whole number");
  refuses(
      "Vocabulary", R"({"values":[]})", "values must have 1 to 2^30 entries");
  refuses(
      "Vocabulary", R"({"values":{}})", "Vocabulary.values] expected a list");
  for (const char* hex : {"f", "fg", "+1", " 1", "0x1"}) {
    Json json = with_transform("Vocabulary", R"({"values":[{"hex":""}]})");
    json["outputs"][0]["transform"]["config"]["values"][0]["hex"] = hex;
    EXPECT_VALUE_ERROR(
        pipeline_from_json(json), "expected an even number of digits");
  }
  refuses("Vocabulary", R"({"values":[{"hex":""}]})", "stand for missing");
  refuses("Vocabulary", R"({"values":[{"b64":""}]})", "unknown key 'b64'");
  refuses(
      "Vocabulary",
      R"({"values":["a",{"hex":"61"}]})",
      "but 'a' at index 1 repeats an earlier value");
  Json bad = with_transform("Vocabulary", R"({"values":["a"]})");
  bad["outputs"][0]["transform"]["config"]["values"][0] = "a\xff";
  EXPECT_VALUE_ERROR(pipeline_from_json(bad), "expected valid UTF-8, or {");
  refuses(
      "Normalize", R"({"variance":-1})", "variance must be >= 0, but got -1");
  refuses("Normalize", R"({"mean":"inf"})", "mean must be finite");
  refuses(
      "Log1p", R"({"missing_value":null})", "missing_value] expected a number");
}

class PipelineFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "pipeline_XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }

  std::string write(const std::string& text) const {
    const std::string path = (folder_ / "pipeline.json").string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::filesystem::path folder_;
};

TEST_F(PipelineFileTest, RoundTripsAndLeavesNoOtherFile) {
  const std::string path = write("an older file");
  save_pipeline(full_pipeline(), path);
  EXPECT_EQ(load_pipeline(path), full_pipeline());
  const std::filesystem::directory_iterator files(folder_);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(PipelineFileTest, NamesAFileThatIsNotAPipeline) {
  const auto refuses = [&](const std::string& text, const char* message) {
    const std::string path = write(text);
    EXPECT_VALUE_ERROR(load_pipeline(path), path);
    EXPECT_VALUE_ERROR(load_pipeline(path), message);
  };
  refuses("", "expected JSON, but the text is empty");
  refuses("{\"outputs\": [}", "expected JSON, but got");
  refuses("{\"outputs\": [\"\xff\"]}", "ill-formed UTF-8 byte");
  refuses("{\"a\": 1e999}", "expected JSON, but got");
  refuses("{}", "[pipeline] missing key 'format_version'");
  std::string deep(100'000, '[');
  deep.append(100'000, ']');
  refuses(deep, "at most 64 levels deep");
  EXPECT_TORCH_ERROR(
      load_pipeline((folder_ / "nothing").string()), "[load_pipeline]");
  EXPECT_TORCH_ERROR(
      save_pipeline(full_pipeline(), (folder_ / "no" / "x").string()),
      "[save_pipeline]");
  EXPECT_VALUE_ERROR(
      save_pipeline(full_pipeline(), "/dev/null"),
      "[save_pipeline] /dev/null: expected the path of a file");
}

}  // namespace pipeline_json_test
}  // namespace tessera::data
