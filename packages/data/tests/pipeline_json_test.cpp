// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/feature_pipeline.h>

#include "packages/data/tests/column_builders.h"
#include "tests/temporary_folder.h"

namespace tessera::data::pipeline_json_test {

using namespace transforms;  // NOLINT(google-build-using-namespace)

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

// Writes the pipeline as JSON text, as in a file, and reads it again.
FeaturePipeline reread(const FeaturePipeline& pipeline) {
  return pipeline_from_json(Json::parse(to_json(pipeline).dump()));
}

FeaturePipeline full_pipeline() {
  return FeaturePipeline({
      {"hash \"ü\"",
       {"i"},
       Hash{.num_bins = 9, .salt = -kMax, .missing = Missing::kDrop}},
      {"bucket",
       {"f"},
       Bucketize{
           .boundaries = {-1e300, -0.1, 1.0 / 3.0, 5e-324 + 1.0},
           .missing = Missing::kError}},
      {"integers",
       {"i"},
       Vocabulary{
           .values = Ids{kMax, kMissing + 1, 0},
           .num_oov_indices = 7,
           .missing = Missing::kAsValue}},
      {"text",
       {"t"},
       Vocabulary{
           .values =
               Texts{
                   "plain",
                   "日本 \"\\\n",
                   std::string("\0", 1),
                   std::string("\xff\0\xc0z", 4)}},
       3},
      {"cross", {"i", "t"}, Cross{.num_bins = 31, .salt = 4}},
      {"identity",
       {"i"},
       Identity{.num_ids = 4, .default_id = 3, .missing = Missing::kOwnId}},
      {"log", {"i", "f"}, Log1p{.missing_value = -0.5}},
      {"normalize",
       {"f"},
       Normalize{.mean = 0.1, .variance = 1e-9, .missing_value = 2}},
      {"keys", {"t"}, Hash64{.salt = 5, .missing = Missing::kDrop}},
      {"crossed_keys",
       {"i", "t"},
       Cross64{.salt = 6, .missing = Missing::kOwnId}},
  });
}

Columns full_columns() {
  return columns_of(
      {{"i", integers({0, kMax, 3, kMissing})},
       {"f", numbers({0.0F, -2.0F, 0.3333F, 1.0F})},
       {"t",
        ragged(
            text({"plain", "?", "", std::string("\xff\0\xc0z", 4), "plain"}),
            {0, 4, 4, 4, 5})}});
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
      {"a", {"x"}, Hash{.num_bins = 9}},
      {"b", {"x"}, Vocabulary{.values = Texts{"u", "\xff"}}, 5},
  });
  EXPECT_EQ(
      to_json(pipeline).dump(),
      R"({"format_version":2,"types":{"x":"text"},"outputs":[)"
      R"({"name":"a","columns":["x"],"transform":{"class_name":"Hash",)"
      R"("config":{"num_bins":9,"salt":0,"missing":"own_id"}},"max_length":0},)"
      R"({"name":"b","columns":["x"],"transform":{"class_name":"Vocabulary",)"
      R"("config":{"values":["u",{"hex":"ff"}],"num_oov_indices":1,)"
      R"("missing":"own_id"}},"max_length":5}]})");
}

// A pipeline that hashes the columns "x" and "y".
Json hashing_json(int64_t version) {
  return Json::parse(
      R"({"format_version":)" + std::to_string(version) +
      R"(,"outputs":[{"name":"a","columns":["x","y"],)"
      R"("transform":{"class_name":"Cross64","config":{}}}]})");
}

Columns x_and_y(Column x, Column y) {
  return columns_of({{"x", std::move(x)}, {"y", std::move(y)}});
}

TEST(PipelineJsonTest, TheTypesOfColumnsAreKept) {
  const FeaturePipeline pipeline = pipeline_from_json(hashing_json(2));
  {
    const Warnings ignored;
    pipeline.apply(x_and_y(integers({1}), text({"1"})));
  }
  const Json json = to_json(pipeline);
  EXPECT_EQ(json["types"].dump(), R"({"x":"int64","y":"text"})");
  const FeaturePipeline served = pipeline_from_json(json);
  Warnings warnings;
  EXPECT_VALUE_ERROR(
      served.apply(x_and_y(text({"1", "guest"}), text({"1", "2"}))),
      "column 'x' has text, but this pipeline takes integers for it");
  served.apply(x_and_y(integers({1, 2}), text({"1", "2"})));
  EXPECT_TRUE(warnings.texts.empty());
}

TEST(PipelineJsonTest, AnOldFileLoadsAndSaysWhichTypesItAssumes) {
  for (const int64_t version : {1, 2}) {
    const FeaturePipeline pipeline = pipeline_from_json(hashing_json(version));
    Warnings warnings;
    pipeline.apply(x_and_y(integers({}), text({})));
    EXPECT_TRUE(warnings.texts.empty());
    pipeline.apply(x_and_y(integers({7}), text({"7"})));
    pipeline.apply(x_and_y(integers({8}), text({"8"})));
    ASSERT_EQ(warnings.texts.size(), 1);
    EXPECT_CONTAINS(warnings.texts[0], "'x' as integers, 'y' as text");
    EXPECT_VALUE_ERROR(
        pipeline.apply(x_and_y(text({"7"}), text({"7"}))),
        "column 'x' has text, but this pipeline takes integers");
  }
}

TEST(PipelineJsonTest, RefusesTypesThatDoNotFit) {
  const auto refuses = [](const char* types, const char* message) {
    Json json = hashing_json(2);
    json["types"] = Json::parse(types);
    EXPECT_VALUE_ERROR(pipeline_from_json(json), message);
  };
  refuses("[]", "[pipeline.types] expected an object");
  refuses(
      R"({"x":"int32"})",
      "[pipeline.types.x] [ColumnType] the type of a column must be one of int64, "
      "float32, text, uint64_bits, but got 'int32'");
  refuses(R"({"x":1})", "[pipeline.types.x] expected a string");
  refuses(
      R"({"z":"text"})", "`types` has the column 'z', which no output reads");
  refuses(R"({"x":"float32"})", "column 'x' can't have floats");
}

TEST(PipelineJsonTest, AMissingOptionMeansTheDefault) {
  const Json json = Json::parse(
      R"({"format_version":1,"outputs":[{"name":"a","columns":["x"],)"
      R"("transform":{"class_name":"Hash","config":{"num_bins":9}}}]})");
  EXPECT_EQ(
      pipeline_from_json(json),
      FeaturePipeline({{"a", {"x"}, Hash{.num_bins = 9}}}));
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
  const Json good = with_transform("Hash", R"({"num_bins":9})");
  EXPECT_EQ(pipeline_from_json(good).outputs().size(), 1);
  const auto with = [&](const char* place, const Json& value) {
    Json json = good;
    json[Json::json_pointer(place)] = value;
    return json;
  };
  const auto without = [&](const char* key) {
    Json json = good;
    json["outputs"][0].erase(key);
    return json;
  };
  Json deep = 0;
  for (int i = 0; i < 100; ++i) {
    deep = Json::array({deep});
  }
  const char* length = "/outputs/0/max_length";
  const std::string whole =
      "[pipeline.outputs[0].max_length] expected a whole number";
  expect_refusals<Json>(
      {{Json(), "[pipeline] expected an object"},
       {Json::object(), "[pipeline] missing key 'format_version'"},
       {with("/format_version", 3),
        "[pipeline.format_version] expected 1 to 2, but got 3"},
       {with("/more", 1), "[pipeline] unknown key 'more'"},
       {with("/outputs", 3), "[pipeline.outputs] expected a list"},
       {with("/outputs/0/length", 3),
        "[pipeline.outputs[0]] unknown key 'length'"},
       {without("name"), "[pipeline.outputs[0]] missing key 'name'"},
       {without("columns"), "[pipeline.outputs[0]] missing key 'columns'"},
       {without("transform"), "[pipeline.outputs[0]] missing key 'transform'"},
       {with("/outputs/0/name", 7),
        "[pipeline.outputs[0].name] expected a string"},
       {with("/outputs/0/name", "\xff"),
        "the name of outputs[0] must be UTF-8 text"},
       {with(length, 1.5), whole},
       {with(length, uint64_t{1} << 63), whole},
       {with("/outputs/1", good["outputs"][0]),
        "[FeaturePipeline 'a'] two outputs have this name"},
       {with("/outputs/0/columns", deep),
        "[pipeline] the JSON must be at most 64 levels deep"}},
      [](const Json& json) { pipeline_from_json(json); });
}

TEST(PipelineJsonTest, NamesThePathOfAWrongTransform) {
  std::vector<Refusal<std::string>> cases{
      // a class and its config
      {R"(Hashing {})",
       "class_name must be one of Hash, Bucketize, Vocabulary, Cross, Identity, "
       "Log1p, Normalize, Hash64, Cross64, but got 'Hashing'"},
      {R"(Hash {"bins":9})",
       "[pipeline.outputs[0].transform.Hash] unknown key 'bins'"},
      {R"(Hash {"num_bins":"9"})", "Hash.num_bins] expected a whole number"},
      {R"(Hash {"num_bins":1e30})", "Hash.num_bins] expected a whole"},
      {R"(Hash {"num_bins":0})", "[FeaturePipeline 'a'] Hash num_bins"},
      {R"(Hash {"num_bins":9,"missing":"none"})",
       "[pipeline.outputs[0].transform.Hash.missing] [Missing] missing must be"},
      {R"(Bucketize {"boundaries":[1,0.5]})",
       "[FeaturePipeline 'a'] Bucketize boundaries must ascend"},
      {R"(Bucketize {"boundaries":["inf"]})", "must be finite, but got inf"},
      {R"(Bucketize {"boundaries":[[1]]})",
       "Bucketize.boundaries] expected a number"},
      {R"(Vocabulary {"values":["a","b","a"]})",
       "[FeaturePipeline 'a'] Vocabulary values must all be different, but 'a' at "
       "index 2 repeats an earlier value"},
      {R"(Vocabulary {"values":[1,2,"a"]})",
       "Vocabulary.values] expected a whole number in the JSON, but got \"a\". "
       "Correct the value. It is value 2. The values must be all integers, or all text."},
      {R"(Vocabulary {"values":["a",1]})",
       "but got 1. Correct the value. It is value 1"},
      {R"(Vocabulary {"values":[1.0]})", "expected a whole number"},
      {R"(Vocabulary {"values":[]})", "values must have 1 to 2^30 entries"},
      {R"(Vocabulary {"values":{}})", "Vocabulary.values] expected a list"},
      {R"(Vocabulary {"values":[{"hex":""}]})", "stand for missing"},
      {R"(Vocabulary {"values":[{"b64":""}]})", "unknown key 'b64'"},
      {R"(Vocabulary {"values":["a",{"hex":"61"}]})",
       "but 'a' at index 1 repeats an earlier value"},
      {R"(Normalize {"variance":-1})", "variance must be >= 0, but got -1"},
      {R"(Normalize {"mean":"inf"})", "mean must be finite"},
      {R"(Log1p {"missing_value":null})", "missing_value] expected a number"}};
  for (const char* hex : {"f", "fg", "+1", " 1", "0x1"}) {
    cases.push_back(
        {c10::str(R"(Vocabulary {"values":[{"hex":")", hex, R"("}]})"),
         "expected an even number of digits"});
  }
  expect_refusals(cases, [](const std::string& text) {
    const size_t space = text.find(' ');
    pipeline_from_json(
        with_transform(text.substr(0, space), text.substr(space + 1)));
  });
  Json bad = with_transform("Vocabulary", R"({"values":["a"]})");
  bad["outputs"][0]["transform"]["config"]["values"][0] = "a\xff";
  EXPECT_VALUE_ERROR(pipeline_from_json(bad), "expected valid UTF-8, or {");
}

class PipelineFileTest : public testing::Test {
 protected:
  TemporaryFolder folder_;
};

TEST_F(PipelineFileTest, RoundTripsAndLeavesNoOtherFile) {
  const std::string path = folder_.write("pipeline.json", "an older file");
  save_pipeline(full_pipeline(), path);
  EXPECT_EQ(load_pipeline(path), full_pipeline());
  const std::filesystem::directory_iterator files(folder_.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1);
}

TEST_F(PipelineFileTest, IsNotWrittenWithoutTheTypesOfHashedColumns) {
  const std::string path = folder_ / "pipeline.json";
  const FeaturePipeline pipeline({{"a", {"x"}, Hash{.num_bins = 9}}});
  EXPECT_VALUE_ERROR(
      save_pipeline(pipeline, path),
      "it is not known which of them these columns have: x. Save the pipeline "
      "after it has converted a batch, or give their types to its constructor");
  EXPECT_FALSE(std::filesystem::exists(path));
  pipeline.apply(columns_of({{"x", text({"a"})}}));
  save_pipeline(pipeline, path);
  EXPECT_EQ(load_pipeline(path), pipeline);
  EXPECT_EQ(load_pipeline(path).types().at("x"), ColumnType::kText);
}

TEST_F(PipelineFileTest, NamesAFileThatIsNotAPipeline) {
  const std::string deep =
      std::string(100'000, '[') + std::string(100'000, ']');
  expect_refusals<std::string>(
      {{"", "expected JSON, but the text is empty"},
       {"{\"outputs\": [}", "expected JSON, but got"},
       {"{\"outputs\": [\"\xff\"]}", "ill-formed UTF-8 byte"},
       {"{\"a\": 1e999}", "expected JSON, but got"},
       {"{}", "[pipeline] missing key 'format_version'"},
       {deep, "at most 64 levels deep"}},
      [&](const std::string& text) {
        const std::string path = folder_.write("pipeline.json", text);
        EXPECT_VALUE_ERROR(load_pipeline(path), path);
        load_pipeline(path);
      });
  EXPECT_TORCH_ERROR(load_pipeline(folder_ / "nothing"), "[load_pipeline]");
  EXPECT_TORCH_ERROR(
      save_pipeline(full_pipeline(), folder_ / "no/x"), "[save_pipeline]");
  EXPECT_VALUE_ERROR(
      save_pipeline(full_pipeline(), "/dev/null"),
      "[save_pipeline] /dev/null: expected the path of a file");
}

// Text is written as hexadecimal digits, because it may have any bytes.
Json json_of(const Column& column) {
  Json json;
  if (const auto* texts = std::get_if<Texts>(&column.values)) {
    json["type"] = "text";
    json["values"] = Json::array();
    for (const std::string& value : *texts) {
      std::string digits;
      for (const char byte : value) {
        digits += fmt::format("{:02x}", static_cast<unsigned char>(byte));
      }
      json["values"].push_back(digits);
    }
  } else {
    const auto& tensor = std::get<at::Tensor>(column.values);
    const bool is_integer = tensor.scalar_type() == at::kLong;
    json["type"] = is_integer ? "int64" : "float32";
    json["values"] = Json::array();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      if (is_integer) {
        json["values"].push_back(tensor[i].item<int64_t>());
      } else {
        const float value = tensor[i].item<float>();
        json["values"].push_back(std::isnan(value) ? Json() : Json(value));
      }
    }
  }
  if (column.row_splits.defined()) {
    json["row_splits"] = to_vector(column.row_splits);
  }
  return json;
}

Json json_of(const Feature& feature) {
  if (const auto* ids = std::get_if<at::Tensor>(&feature)) {
    return {{"values", to_vector(*ids)}};
  }
  const auto& bags = std::get<RaggedFeature>(feature);
  return {
      {"values", to_vector(bags.values)},
      {"row_splits", to_vector(bags.row_splits)}};
}

// Every transform with every policy for missing values, on columns with a value or a list
// per example. `is_text` decides about the columns that are hashed.
FeaturePipeline pipeline_for_python(
    std::mt19937_64& random,
    const std::string& column) {
  const bool is_text = column.starts_with("text");
  std::vector<PipelineOutput> outputs;
  const auto add =
      [&](const Transform& transform, Texts columns, int64_t max_length = 0) {
        outputs.push_back(
            {c10::str("output ", outputs.size()),
             std::move(columns),
             transform,
             max_length});
      };
  for (const Missing missing :
       {Missing::kOwnId, Missing::kDrop, Missing::kAsValue}) {
    const auto salt = static_cast<int64_t>(random());
    const int64_t bins = 2 + static_cast<int64_t>(random() % 100'000);
    add(Hash{.num_bins = bins, .salt = salt, .missing = missing}, {column});
    add(Hash64{.salt = salt, .missing = missing}, {column}, 2);
    add(Cross{.num_bins = bins, .salt = salt, .missing = missing},
        {column, "other", "short lists"});
    add(Cross64{.salt = salt, .missing = missing}, {"other", column}, 3);
    VocabularyValues values = Ids{7, -3, 0, kMax};
    if (is_text) {
      values = Texts{"b", "日本", std::string("\xff\0", 2)};
    }
    add(Vocabulary{.values = values, .num_oov_indices = 3, .missing = missing},
        {column});
    add(Identity{.num_ids = 9, .default_id = 4, .missing = missing}, {"other"});
    if (missing != Missing::kAsValue) {
      add(
          Bucketize{
              .boundaries = {-0.1, 0.7, 7, 16777216.5}, .missing = missing},
          {"numbers"});
      add(Bucketize{.boundaries = {-3, 0.5, 9e15}, .missing = missing},
          {"other"});
    }
  }
  add(Log1p{.missing_value = -1}, {"numbers", "other"});
  add(Normalize{.mean = 0.3, .variance = 2.5, .missing_value = 7}, {"numbers"});
  return FeaturePipeline(outputs);
}

// packages/data/tests/pipeline_test.py compares a reader in Python with these files.
TEST(PipelinesForPython, Write) {
  const char* folder = std::getenv("TESSERA_PIPELINES_OUT");
  if (folder == nullptr) {
    GTEST_SKIP() << "only when TESSERA_PIPELINES_OUT names a folder";
  }
  std::mt19937_64 random(5);
  const std::vector<int64_t> some{
      0, 1, -1, 7, -3, kMax, kMissing + 1, kMissing, 5, int64_t{1} << 53};
  const Texts words{
      "",
      "a",
      "b",
      "日本",
      std::string("\xff\0", 2),
      "7",
      std::string(300, 'x')};
  const auto integer = [&] {
    return random() % 4 == 0 ? static_cast<int64_t>(random())
                             : some[random() % some.size()];
  };
  int file = 0;
  for (const char* column :
       {"integer", "text", "integer lists", "text lists"}) {
    for (const size_t batch : {0, 1, 50, 50, 50, 50}) {
      std::vector<int64_t> ids;
      std::vector<int64_t> others;
      std::vector<int64_t> lists;
      std::vector<int64_t> splits{0};
      std::vector<int64_t> short_splits{0};
      std::vector<int64_t> shorts;
      Texts texts;
      Texts text_lists;
      std::vector<float> floats;
      for (size_t i = 0; i < batch; ++i) {
        ids.push_back(integer());
        others.push_back(
            random() % 7 == 0 ? kMissing : static_cast<int64_t>(random() % 12));
        texts.push_back(words[random() % words.size()]);
        floats.push_back(
            random() % 5 == 0 ? std::numeric_limits<float>::quiet_NaN()
                              : static_cast<float>(random() % 40) / 10 - 1);
        for (size_t k = random() % 4; k > 0; --k) {
          lists.push_back(integer());
          text_lists.push_back(words[random() % words.size()]);
        }
        splits.push_back(static_cast<int64_t>(lists.size()));
        for (size_t k = random() % 3; k > 0; --k) {
          shorts.push_back(integer());
        }
        short_splits.push_back(static_cast<int64_t>(shorts.size()));
      }
      if (batch > 0) {
        floats[0] = 0.7F;  // less than the boundary 0.7 in float64
      }
      const Columns columns = columns_of(
          {{"integer", integers(ids)},
           {"text", text(texts)},
           {"integer lists", ragged(integers(lists), splits)},
           {"text lists", ragged(text(text_lists), splits)},
           {"other", integers(others)},
           {"short lists", ragged(integers(shorts), short_splits)},
           {"numbers", numbers(floats)}});
      const FeaturePipeline pipeline = pipeline_for_python(random, column);
      const PipelineBatch applied = pipeline.apply(columns);
      Json json;
      json["pipeline"] = to_json(pipeline);
      for (const auto& [name, values] : columns.entries()) {
        json["columns"][name] = json_of(values);
      }
      for (const std::string& name : applied.features.paths()) {
        json["features"][name] = json_of(applied.features[name]);
      }
      json["dense"] = Json::array();
      const at::Tensor dense = applied.dense.contiguous();
      for (int64_t i = 0; i < dense.numel(); ++i) {
        json["dense"].push_back(dense.const_data_ptr<float>()[i]);
      }
      std::ofstream(fmt::format("{}/{}.json", folder, file++)) << json.dump();
    }
  }
}

}  // namespace tessera::data::pipeline_json_test
