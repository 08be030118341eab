// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/pipeline.h>

#include <tessera/common/json_text.h>
#include <tessera/data/feature_pipeline.h>

#include "packages/data/tests/column_builders.h"

namespace tessera::serving::pipeline_test {

using data::FeaturePipeline;
using data::Missing;
using data::PipelineOutput;
using namespace data::transforms;  // NOLINT(google-build-using-namespace)

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// The columns of serving as those of training.
data::Columns to_columns(const RawColumns& batch) {
  data::Columns columns;
  for (const auto& [name, raw] : batch.entries()) {
    data::Column column;
    if (const auto* texts = std::get_if<Texts>(&raw.values)) {
      column = text(*texts);
    } else if (const auto* ids = std::get_if<Ids>(&raw.values)) {
      column = integers(*ids);
    } else {
      column = numbers(std::get<std::vector<float>>(raw.values));
    }
    columns.add(
        name, raw.row_splits ? ragged(column, *raw.row_splits) : column);
  }
  return columns;
}

void expect_same(const data::PipelineBatch& trained, PipelineResult served) {
  EXPECT_EQ(served.warning, "");
  EXPECT_EQ(trained.features.paths().size(), served.features.size());
  for (const auto& [name, feature] : served.features) {
    IdLists expected;
    if (const auto* ids =
            std::get_if<at::Tensor>(&trained.features.at(name).leaf())) {
      expected.ids = to_vector(*ids);
    } else {
      const auto& ragged =
          std::get<RaggedFeature>(trained.features.at(name).leaf());
      expected.ids = to_vector(ragged.values);
      expected.row_splits = to_vector(ragged.row_splits);
    }
    EXPECT_TRUE(feature == expected) << name;
  }
  const at::Tensor& dense = trained.dense;
  ASSERT_EQ(
      dense.sizes().vec(),
      (std::vector<int64_t>{served.batch_size, served.num_dense}));
  ASSERT_EQ(served.dense.size(), static_cast<size_t>(dense.numel()));
  EXPECT_TRUE(
      served.dense.empty() ||
      std::memcmp(
          served.dense.data(),
          dense.const_data_ptr<float>(),
          served.dense.size() * sizeof(float)) == 0);
}

std::string file_of(const std::string& name) {
  return ::testing::TempDir() + "/serving_pipeline_test_" + name;
}

Pipeline reload(const FeaturePipeline& pipeline) {
  const std::string path = file_of("saved.json");
  save_pipeline(pipeline, path);
  return Pipeline::load(path);
}

// Columns of random values. The names of columns without missing values begin with "all_".
class RandomBatches {
 public:
  RawColumns next(int64_t batch) {
    RawColumns columns;
    for (const bool has_missing : {true, false}) {
      const std::string prefix = has_missing ? "" : "all_";
      columns.add(prefix + "integer", {.values = integers(batch, has_missing)});
      columns.add(prefix + "text", {.values = texts(batch, has_missing)});
      columns.add(prefix + "float", {.values = floats(batch, has_missing)});
      add_list(columns, prefix + "integers", batch, [&](int64_t size) {
        return integers(size, has_missing);
      });
      add_list(columns, prefix + "texts", batch, [&](int64_t size) {
        return texts(size, has_missing);
      });
      add_list(columns, prefix + "floats", batch, [&](int64_t size) {
        return floats(size, has_missing);
      });
    }
    return columns;
  }

  int64_t num_values() const {
    return num_values_;
  }

 private:
  int64_t below(int64_t limit) {
    return std::uniform_int_distribution<int64_t>(0, limit - 1)(random_);
  }

  std::vector<int64_t> integers(int64_t size, bool has_missing) {
    std::vector<int64_t> values(size);
    for (int64_t& value : values) {
      const int64_t kind = below(8);
      value = kind == 0 ? static_cast<int64_t>(random_()) : below(40) - 5;
      if (kind == 1 && has_missing) {
        value = kMissing;
      }
    }
    return values;
  }

  // Any bytes, so that most texts are not UTF-8.
  Texts texts(int64_t size, bool has_missing) {
    Texts values(size);
    for (std::string& value : values) {
      const int64_t kind = below(8);
      if (kind < 4) {
        value = kKnown[below(std::size(kKnown))];
      } else if (kind > 4 || !has_missing) {
        value.resize(1 + below(24));
        for (char& byte : value) {
          byte = static_cast<char>(below(256));
        }
      }
    }
    return values;
  }

  std::vector<float> floats(int64_t size, bool has_missing) {
    std::vector<float> values(size);
    for (float& value : values) {
      const int64_t kind = below(8);
      const auto number = static_cast<float>(below(2'000'001) - 1'000'000);
      value = kind == 0 ? number * 1e20F
          : kind == 1   ? number * 1e-40F
          : kind == 2   ? std::round(number * 1e-5F)
                        : number * 1e-5F;
      if (kind == 3 && has_missing) {
        value = kNaN;
      }
    }
    return values;
  }

  template <class MakeValues>
  void add_list(
      RawColumns& columns,
      const std::string& name,
      int64_t batch,
      MakeValues make_values) {
    std::vector<int64_t> row_splits{0};
    for (int64_t example = 0; example < batch; ++example) {
      row_splits.push_back(row_splits.back() + below(4));
    }
    const int64_t size = row_splits.back();
    num_values_ += size + batch;  // one list and one single column
    columns.add(name, {.values = make_values(size), .row_splits = row_splits});
  }

  static inline const std::string kKnown[] =
      {"de", "fr", "日本", std::string("\0", 1), "\xff\xfe", "unknown"};

  std::mt19937_64 random_{7};
  int64_t num_values_ = 0;
};

// A pipeline with each transform and each policy for missing values.
FeaturePipeline full_pipeline() {
  std::vector<PipelineOutput> outputs{
      {"log", {"integer", "float"}, Log1p{.missing_value = -0.5}},
      {"normalize",
       {"float", "all_float", "all_integer"},
       Normalize{.mean = 0.1, .variance = 3.0}}};
  const std::vector<int64_t> integers{3, -2, 17, 0, 1'000'000'007};
  const Texts texts{"fr", "de", "日本", std::string("\0", 1), "\xff\xfe"};
  const std::vector<double> boundaries{-3.5, 0.0, 0.1, 2.0, 30.0};
  for (const Missing missing :
       {Missing::kOwnId, Missing::kDrop, Missing::kAsValue, Missing::kError}) {
    const std::string prefix = missing == Missing::kError ? "all_" : "";
    const auto add = [&](const char* name,
                         const Texts& columns,
                         const data::Transform& transform,
                         int64_t max_length = 0) {
      PipelineOutput& output = outputs.emplace_back();
      output.name = std::string(name) + " " + data::to_string(missing);
      for (const std::string& column : columns) {
        output.columns.push_back(prefix + column);
      }
      output.transform = transform;
      output.max_length = max_length;
    };
    const Hash hash{.num_bins = 1000, .salt = 5, .missing = missing};
    add("hash integer", {"integer"}, hash);
    add("hash text", {"text"}, hash);
    add("hash integers", {"integers"}, hash);
    add("hash two texts", {"texts"}, hash, 2);
    const Hash64 hash64{.salt = -1, .missing = missing};
    add("hash64 integers", {"integers"}, hash64, 1);
    add("hash64 text", {"text"}, hash64);
    add("vocabulary integer",
        {"integer"},
        Vocabulary{.values = integers, .missing = missing});
    add("vocabulary integers",
        {"integers"},
        Vocabulary{
            .values = integers, .num_oov_indices = 3, .missing = missing});
    add("vocabulary text",
        {"text"},
        Vocabulary{.values = texts, .num_oov_indices = 4, .missing = missing});
    add("vocabulary texts",
        {"texts"},
        Vocabulary{.values = texts, .missing = missing},
        2);
    const Identity identity{
        .num_ids = 20, .default_id = 19, .missing = missing};
    if (missing == Missing::kAsValue) {
      add("identity", {"integer"}, identity);
    }
    add("identities", {"integers"}, identity);
    const Cross cross{.num_bins = 500, .salt = 3, .missing = missing};
    add("cross", {"integer", "text"}, cross);
    add("cross lists", {"integer", "texts", "integers"}, cross);
    const Cross64 cross64{.salt = 4, .missing = missing};
    add("cross64", {"text", "integer"}, cross64);
    add("cross64 lists", {"texts", "integers"}, cross64, 3);
    if (missing != Missing::kAsValue) {
      const Bucketize bucketize{.boundaries = boundaries, .missing = missing};
      add("bucketize integer", {"integer"}, bucketize);
      add("bucketize float", {"float"}, bucketize);
      add("bucketize floats", {"floats"}, bucketize, 2);
    }
  }
  return FeaturePipeline(
      std::move(outputs), {{"text", data::ColumnType::kText}});
}

TEST(ServingPipelineTest, GivesTheNumbersOfTheTrainerForAMillionRawValues) {
  const FeaturePipeline trained = full_pipeline();
  RandomBatches batches;
  const RawColumns first = batches.next(1000);
  trained.apply(to_columns(first));  // decides about the types
  const Pipeline served = reload(trained);
  expect_same(trained.apply(to_columns(first)), served.apply(first));
  for (int64_t i = 0; batches.num_values() < 1'000'000; ++i) {
    const RawColumns batch = batches.next(i % 4 == 0 ? i % 3 : 9000);
    expect_same(trained.apply(to_columns(batch)), served.apply(batch));
  }
}

TEST(ServingPipelineTest, ThreadsMayUseOnePipeline) {
  const FeaturePipeline trained = full_pipeline();
  const RawColumns batch = RandomBatches().next(200);
  trained.apply(to_columns(batch));
  const Pipeline served = reload(trained);
  const PipelineResult expected = served.apply(batch);
  std::atomic<int> differences = 0;
  run_in_threads(4, [&](size_t) {
    const Pipeline copy = served;
    for (int repetition = 0; repetition < 10; ++repetition) {
      const PipelineResult result = copy.apply(batch);
      differences +=
          result.features == expected.features && result.dense == expected.dense
          ? 0
          : 1;
    }
  });
  EXPECT_EQ(differences, 0);
}

FeaturePipeline small_pipeline() {
  return FeaturePipeline(
      {{"country", {"country"}, Vocabulary{.values = Texts{"de", "fr"}}},
       {"tags", {"tags"}, Hash{.num_bins = 10}},
       {"strict",
        {"shop"},
        Vocabulary{
            .values = std::vector<int64_t>{3, 4},
            .num_oov_indices = 0,
            .missing = Missing::kError}},
       {"weekday", {"weekday"}, Identity{.num_ids = 7}},
       {"age", {"age"}, Normalize{}}},
      {{"tags", data::ColumnType::kUInt64Bits}});
}

struct SmallBatch {
  RawColumns::Column country{.values = Texts{"fr", "it"}};
  RawColumns::Column tags{
      .values = std::vector<int64_t>{5, 6, -7},
      .row_splits = std::vector<int64_t>{0, 2, 3}};
  RawColumns::Column shop{.values = std::vector<int64_t>{3, 4}};
  RawColumns::Column weekday{.values = std::vector<int64_t>{0, 6}};
  RawColumns::Column age{.values = std::vector<float>{31.0F, kNaN}};

  RawColumns columns() const {
    RawColumns batch;
    batch.add("country", country);
    batch.add("tags", tags);
    batch.add("shop", shop);
    batch.add("weekday", weekday);
    batch.add("age", age);
    return batch;
  }
};

TEST(ServingPipelineTest, GivesFeaturesByNameAndOneMatrixOfNumbers) {
  const Pipeline pipeline = reload(small_pipeline());
  const PipelineResult result = pipeline.apply(SmallBatch().columns());
  expect_same(
      small_pipeline().apply(to_columns(SmallBatch().columns())), result);
  EXPECT_EQ(result.features.at("country").ids, (std::vector<int64_t>{3, 1}));
  EXPECT_TRUE(result.features.at("country").row_splits.empty());
  EXPECT_EQ(
      result.features.at("tags").row_splits, (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(result.dense, (std::vector<float>{31.0F, 0.0F}));
  EXPECT_EQ(result.batch_size, 2);
  EXPECT_EQ(result.num_dense, 1);
  EXPECT_EQ(pipeline.num_dense(), 1);
}

TEST(ServingPipelineTest, NamesItsColumnsAndFeatures) {
  const Pipeline pipeline = reload(small_pipeline());
  EXPECT_EQ(
      pipeline.columns(),
      (std::vector<PipelineColumn>{
          {.name = "country",
           .type = PipelineColumn::Type::kText,
           .takes_lists = true},
          {.name = "tags",
           .type = PipelineColumn::Type::kUInt64Bits,
           .takes_lists = true},
          {.name = "shop",
           .type = PipelineColumn::Type::kInt64,
           .takes_lists = true},
          {.name = "weekday",
           .type = PipelineColumn::Type::kInt64,
           .takes_lists = true},
          {.name = "age",
           .type = PipelineColumn::Type::kNumbers,
           .takes_lists = false}}));
  EXPECT_EQ(
      pipeline.feature_names(),
      (Texts{"country", "tags", "strict", "weekday"}));
}

TEST(ServingPipelineTest, TheDocstringExample) {
  const std::string path = file_of("example.json");
  save_pipeline(
      FeaturePipeline(
          {{"country", {"country"}, Vocabulary{.values = Texts{"de", "fr"}}},
           {"age", {"age"}, Normalize{.mean = 40.0, .variance = 100.0}}}),
      path);
  // snippet: serving_pipeline
  const auto pipeline = Pipeline::load(path);
  RawColumns batch;
  batch.add("country", {.values = std::vector<std::string>{"fr", "it"}});
  batch.add("age", {.values = std::vector<float>{45.0F, 30.0F}});
  const PipelineResult inputs = pipeline.apply(batch);
  const IdLists& country = inputs.features.at("country");
  // country.ids: 3 and 1, which is the id of unknown values; inputs.dense: 0.5 and -1
  for (const PipelineColumn& column : pipeline.columns()) {
    std::puts(column.name.c_str());  // country, age
  }
  // end snippet
  EXPECT_EQ(country.ids, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(inputs.dense, (std::vector<float>{0.5F, -1.0F}));
}

// Returns the message of the error that the call raises, which must be an `Expected`.
template <class Expected, class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const c10::Error& error) {
    EXPECT_EQ(typeid(error), typeid(Expected));
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    EXPECT_EQ(typeid(error), typeid(Expected));
    return error.what();
  }
  ADD_FAILURE() << "expected an error";
  return "";
}

// Expects the error of the trainer, with the text.
template <class Trained, class Served>
void expect_same_error(const SmallBatch& batch, const char* text) {
  const FeaturePipeline trained = small_pipeline();
  const RawColumns columns = batch.columns();
  const std::string message =
      message_of<Served>([&] { reload(trained).apply(columns); });
  EXPECT_EQ(message, message_of<Trained>([&] {
              trained.apply(to_columns(columns));
            }));
  EXPECT_CONTAINS(message, text);
}

TEST(ServingPipelineTest, RaisesTheErrorsOfTheTrainer) {
  SmallBatch kinds;
  kinds.country = {.values = std::vector<int64_t>{1, 2}};
  kinds.tags = {.values = Texts{"a", "b"}};
  kinds.age.row_splits = {0, 1, 2};
  for (
      const char* text :
      {"'country': column 'country' has integers, but Vocabulary takes text.",
       "'tags': column 'tags' has text, but this pipeline takes integers",
       "'age': column 'age' has lists of floats, but Normalize takes integers or "
       "floats, one per example.",
       "Columns of the batch: country, tags, shop, weekday, age."}) {
    expect_same_error<c10::ValueError, std::invalid_argument>(kinds, text);
  }
  const auto with_shop = [](std::vector<int64_t> values) {
    SmallBatch batch;
    batch.shop = {.values = std::move(values)};
    return batch;
  };
  expect_same_error<c10::IndexError, std::out_of_range>(
      with_shop({3, 5}),
      "[FeaturePipeline 'strict'] Vocabulary 5 is not in the vocabulary, and "
      "num_oov_indices is 0.");
  expect_same_error<c10::ValueError, std::invalid_argument>(
      with_shop({3, kMissing}),
      "a value is missing, and `missing` is Missing::kError");
  SmallBatch weekday;
  weekday.weekday = {.values = Ids{7, 0}};
  expect_same_error<c10::IndexError, std::out_of_range>(
      weekday, "ids must be in [0, 7), but got 7");
  SmallBatch infinite;
  infinite.age = {.values = std::vector<float>{0.0F, INFINITY}};
  expect_same_error<c10::ValueError, std::invalid_argument>(
      infinite, "expected a number whose result is finite in float32");
}

TEST(ServingPipelineTest, NamesEachMissingColumn) {
  const FeaturePipeline trained = small_pipeline();
  RawColumns columns;
  columns.add("other", SmallBatch().age);
  const std::string message = message_of<std::invalid_argument>(
      [&] { reload(trained).apply(columns); });
  EXPECT_EQ(message, message_of<c10::ValueError>([&] {
              trained.apply(to_columns(columns));
            }));
  for (const char* text :
       {"'country': column 'country' is missing.",
        "'age': column 'age' is missing.",
        "Columns of the batch: other."}) {
    EXPECT_CONTAINS(message, text);
  }
  EXPECT_THROW(reload(trained).apply({}), std::invalid_argument);
}

TEST(ServingPipelineTest, ChecksColumnsAsTheTrainer) {
  const SmallBatch batch;
  const auto add = [](auto&& columns, const auto& first, const auto& second) {
    columns.add("a", first);
    columns.add(second.first, second.second);
  };
  const RawColumns::Column splits_before_zero{
      .values = std::vector<int64_t>{1},
      .row_splits = std::vector<int64_t>{1, 1}};
  const RawColumns::Column descending{
      .values = std::vector<int64_t>{1, 2},
      .row_splits = std::vector<int64_t>{0, 3, 2}};
  const RawColumns::Column without_splits{
      .values = std::vector<int64_t>{}, .row_splits = std::vector<int64_t>{}};
  const RawColumns::Column three{.values = std::vector<float>{1, 2, 3}};
  for (const std::pair<std::string, RawColumns::Column>& second :
       std::vector<std::pair<std::string, RawColumns::Column>>{
           {"a", batch.shop},
           {"b", three},
           {"c", splits_before_zero},
           {"d", descending},
           {"e", without_splits}}) {
    const std::string message = message_of<std::invalid_argument>(
        [&] { add(RawColumns(), batch.shop, second); });
    EXPECT_EQ(message.find("[Columns '" + second.first + "'] "), size_t{0})
        << message;
  }
  EXPECT_EQ(RawColumns().batch_size(), 0);
}

TEST(ServingPipelineTest, RefusesDamagedFiles) {
  const auto message_of_text = [](const std::string& text) {
    return message_of<std::invalid_argument>(
        [&] { Pipeline::from_json_text(text); });
  };
  const std::string good = data::to_json(small_pipeline()).dump();
  EXPECT_EQ(Pipeline::from_json_text(good).num_dense(), 1);
  for (size_t size = 0; size < good.size(); size += 7) {
    EXPECT_EQ(
        message_of_text(good.substr(0, size))
            .find("[Pipeline::from_json_text] "),
        size_t{0});
  }
  for (const char* text :
       {"[]",
        "{}",
        R"({"format_version":3,"outputs":[]})",
        R"({"format_version":2,"outputs":[{"name":"a"}]})",
        R"({"format_version":2,"outputs":[],"types":{"a":"int64"}})",
        R"({"format_version":2,"outputs":[],"types":{"a":"int65"}})",
        R"({"format_version":2,"outputs":[{"name":"a","columns":["x"],)"
        R"("transform":{"class_name":"Hash","config":{"num_bins":0}}}]})",
        R"({"format_version":2,"outputs":[{"name":"a","columns":["x"],)"
        R"("transform":{"class_name":"Hash","config":{"bins":9}}}]})"}) {
    EXPECT_EQ(message_of_text(text), message_of<c10::ValueError>([&] {
                data::pipeline_from_json(parse_json(text));
              }))
        << text;
  }
  const std::string path = file_of("damaged.json");
  save_pipeline(small_pipeline(), path);
  std::filesystem::resize_file(path, 100);
  EXPECT_EQ(
      message_of<std::invalid_argument>([&] { Pipeline::load(path); }),
      message_of<c10::ValueError>([&] { load_pipeline(path); }));
  const std::string nowhere = file_of("nowhere.json");
  EXPECT_EQ(
      message_of<std::runtime_error>([&] { Pipeline::load(nowhere); }),
      message_of<c10::Error>([&] { load_pipeline(nowhere); }));
}

TEST(ServingPipelineTest, WarnsWhenTheFirstBatchDecidesAboutAType) {
  const Pipeline pipeline = Pipeline::from_json_text(
      R"({"format_version":1,"outputs":[{"name":"a","columns":["x"],)"
      R"("transform":{"class_name":"Hash","config":{"num_bins":9}}}]})");
  EXPECT_EQ(pipeline.columns().front().type, PipelineColumn::Type::kUnknown);
  RawColumns text;
  text.add("x", {.values = Texts{"7"}});
  EXPECT_CONTAINS(pipeline.apply(text).warning, "'x' as text");
  EXPECT_EQ(pipeline.apply(text).warning, "");
  EXPECT_EQ(pipeline.columns().front().type, PipelineColumn::Type::kText);
  RawColumns integers;
  integers.add("x", {.values = std::vector<int64_t>{7}});
  EXPECT_THROW(pipeline.apply(integers), std::invalid_argument);
}

}  // namespace tessera::serving::pipeline_test
