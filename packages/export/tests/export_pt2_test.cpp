// SPDX-License-Identifier: Apache-2.0
// Export of embeddings and whole models to the format of torch.export.
#include <tessera/common/json_text.h>
#include <tessera/export/export_pt2.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/optim/optimizers/sgd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>

#include "packages/export/tests/export_test_util.h"
#include "src/common/checksum.h"
#include "tests/anonymous_memory.h"
#include "tests/temporary_folder.h"

#include <caffe2/serialize/inline_container.h>

namespace tessera::test::export_pt2_test {

TEST(ExportPt2Test, RefusesWhatTheLayerRefuses) {
  const std::string path = new_file();
  export_pt2(layer_of(), path, example_of({ragged({{1}, {2, 3}})}));
  const Pt2Program program(path);
  const at::Tensor one = int64s({1});
  const std::string shape = "input 'f_values' must have the shape";
  expect_refusals<std::vector<at::Tensor>>(
      {{{int64s({10}), int64s({0, 1})},
        "[Pt2Program] feature f: ids must be at least 0 and less than 10"},
       {{one, int64s({0, 2})},
        "feature f: row_splits must end with the number of values"},
       {{one, int64s({1, 1})}, "feature f: row_splits must begin with 0"},
       {{one, int64s({0, 2, 1})}, "feature f: row_splits must not decrease"},
       {{int64s({}), int64s({})}, "input 'f_row_splits' must have the shape"},
       {{one}, "expected 2 tensors, but got 1"},
       {{one.view({1, 1}), int64s({0, 1})}, shape},
       {{at::Tensor(), int64s({0, 1})},
        "input 'f_values' must be a dense tensor on the cpu"}},
      [&](const auto& arguments) { program.run(arguments); });
  EXPECT_TYPE_ERROR(
      program.run({one.to(at::kInt), int64s({0, 1})}),
      "input 'f_values' must have the dtype Long, but has Int");
}

// Four tables of 16 MiB. int8 rows take a quarter of that, and 8 bytes more per row.
TEST(ExportPt2Test, ConvertedTablesTakeTheMemoryOfOne) {
  constexpr int64_t kRows = 262'144;
  Nest<FeatureConfig>::Map features;
  Features::Map ids;
  for (const char* name : {"a", "b", "c", "d"}) {
    features.emplace_back(name, feature_of(name, kRows, 16));
    ids.emplace_back(name, int64s({1, 2, kRows - 1}));
  }
  const TPUEmbedding layer(TPUEmbeddingOptions{
      .features = Nest<FeatureConfig>::map(std::move(features)),
      .optimizer = optim::SGD{}});
  const ExportExample example{.features = Features::map(std::move(ids))};
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kChar}) {
    SCOPED_TRACE(c10::toString(dtype));
    const std::string path = new_file();
    export_pt2(layer, path, example);  // fills caches that later calls reuse
    PeakMemory peak;
    export_pt2(layer, path, example, {.dtype = dtype});
    const int64_t converted =
        dtype == at::kFloat ? 0 : kRows * 16 * c10::elementSize(dtype);
    // One part of a table is computed in float32, with a few temporary tensors.
    EXPECT_LT(peak.growth(), converted + (int64_t{12} << 20));
    const at::Tensor rows = Pt2Program(path).state_dict()[0].second;
    EXPECT_EQ(rows.scalar_type(), dtype);
    EXPECT_FALSE(at::equal(rows[0], rows[1]));
  }
}

// A model with many ragged features. It returns `head` of all their activations and ids.
struct ManyFeaturesImpl : torch::nn::Module {
  using Head = std::function<at::Tensor(
      const std::vector<at::Tensor>&,
      const std::vector<at::Tensor>&)>;

  ManyFeaturesImpl(int64_t count, Head head) : head_(std::move(head)) {
    const auto table =
        make_table({.name = "t", .vocabulary_size = 9, .dim = 2});
    Nest<FeatureConfig>::Map features;
    for (int64_t i = 0; i < count; ++i) {
      features.emplace_back(
          "f" + std::to_string(i), FeatureConfig{.table = table});
    }
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features = Nest<FeatureConfig>::map(std::move(features)),
            .optimizer = optim::SGD{}}));
  }
  at::Tensor forward(const Features& features) {
    std::vector<at::Tensor> ids;
    for (const Feature& feature : features.flatten()) {
      ids.push_back(std::get<RaggedFeature>(feature).values);
    }
    return head_(embedding->forward(features).flatten(), ids);
  }

  TPUEmbedding embedding{nullptr};
  Head head_;
};

void expect_many_features_agree(ManyFeaturesImpl::Head head) {
  constexpr int64_t kCount = 30;
  const auto model =
      std::make_shared<ManyFeaturesImpl>(kCount, std::move(head));
  const auto batch_of = [](int64_t shift) {
    Features::Map features;
    for (int64_t i = 0; i < kCount; ++i) {
      std::vector<std::vector<int64_t>> rows(2 + shift);
      for (int64_t j = 0; j < 1 + (i + shift) % 5; ++j) {
        rows[j % rows.size()].push_back(j);
      }
      features.emplace_back("f" + std::to_string(i), ragged(rows));
    }
    return Features::map(std::move(features));
  };
  const std::string path = new_file();
  export_pt2(model, path, {.features = batch_of(0)});
  const at::NoGradGuard no_grad;
  expect_close(
      Pt2Program(path).run(arguments_of(batch_of(3)))[0],
      model->forward(batch_of(3)));
}

TEST(ExportPt2ModelTest, ManyNumbersOfIds) {
  expect_many_features_agree([](const auto& activations, const auto& ids) {
    return at::cat(activations, 1) + ids[3].view({-1, 1}).sum() +
        ids[7].repeat({activations[0].size(0)}).sum();
  });
}

// The size of the joined ids depends on all features.
TEST(ExportPt2ModelTest, ManyNumbersOfIdsInOneSize) {
  expect_many_features_agree([](const auto& activations, const auto& ids) {
    return activations[0] + at::cat(ids).cumsum(0).sum();
  });
}

TEST(ExportPt2Test, NamesSayWhatTheArgumentsAre) {
  const auto table = make_table({.name = "t", .vocabulary_size = 9, .dim = 2});
  const TPUEmbedding layer(TPUEmbeddingOptions{
      .features =
          {{"user",
            Nest<FeatureConfig>{
                {"class", FeatureConfig{.table = table}},
                {"history", FeatureConfig{.table = table}}}},
           {"user_history", FeatureConfig{.table = table}},
           {"\xc3\xa9 1", FeatureConfig{.table = table}}},
      .optimizer = optim::Adagrad{}});
  const std::string path = new_file();
  const Features features{
      {"user", Features{{"history", ragged({{1}, {2, 3}})}}},
      {"\xc3\xa9 1", int64s({1, 2})}};
  const Pt2Signature signature = export_pt2(
      layer,
      path,
      {.features = features},
      {.features = {"user/history", "\xc3\xa9 1"}});
  Texts names;
  for (const Pt2Value& input : signature.inputs) {
    names.push_back(input.name);
  }
  EXPECT_EQ(
      names, (Texts{"user_history_values", "user_history_row_splits", "x_1"}));
  EXPECT_EQ(signature.inputs[0].path, "user/history");
  EXPECT_EQ(signature.inputs[0].part, "values");
  EXPECT_EQ(signature.inputs[2].path, "\xc3\xa9 1");
  ASSERT_EQ(signature.outputs.size(), 2);
  EXPECT_EQ(signature.outputs[0].path, "user/history");
  EXPECT_EQ(
      signature.outputs[0].shape,
      (std::vector<std::optional<int64_t>>{std::nullopt, 2}));
  const Pt2Program program(path);
  EXPECT_EQ(program.signature(), signature);
  EXPECT_CONTAINS(to_string(signature), "user_history_values");
}

auto make_ranker() {
  torch::nn::Sequential tower(
      torch::nn::Linear(14, 8),
      torch::nn::BatchNorm1d(8),
      torch::nn::ReLU(),
      torch::nn::Dropout(0.5),
      torch::nn::Linear(8, 1));
  auto model = make_model(
      [tower](auto& self, const Features& features, const auto& input) mutable {
        const at::Tensor embedded = at::cat({self.embed(features), input}, 1);
        return at::sigmoid(tower->forward(embedded)).squeeze(1);
      },
      4);
  model->register_module("tower", tower);
  return model;
}

void expect_model_agrees(const std::shared_ptr<FunctionModel<>>& model) {
  const std::string path = new_file();
  export_pt2(model, path, model_example());
  const Pt2Program program(path);
  model->eval();
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> arguments = arguments_of(five_examples());
  arguments.push_back(at::rand({5, 2}));
  expect_close(
      program.run(arguments)[0],
      model->forward(five_examples(), arguments.back()));
}

TEST(ExportPt2ModelTest, TablesAndTowerMatchTheModel) {
  expect_model_agrees(make_ranker());
}

TEST(ExportPt2ModelTest, OwnLayersMatchTheModel) {
  const auto expect_layer_agrees = [](auto layer, auto inputs_of) {
    auto model = make_model(
        [=](auto& self, const Features& features, const auto&) mutable {
          return layer->forward(inputs_of(self, features));
        },
        4);
    model->register_module("layer", layer);
    expect_model_agrees(model);
  };
  expect_layer_agrees(Cross(CrossOptions{}), [](auto& self, auto& features) {
    return self.embed(features);
  });
  expect_layer_agrees(DotInteraction(), [](auto& self, auto& features) {
    return self.embedding->forward(features);
  });
}

TEST(ExportPt2ModelTest, SizesThatCppReadsBecomeExpressions) {
  expect_model_agrees(make_model(
      [](auto& self, const Features& features, const at::Tensor& input) {
        const at::Tensor embedded = self.embed(features);
        return embedded.view({input.size(0) * 3, 4}).sum(1, true) +
            at::arange(input.size(0) * 3).unsqueeze(1);
      },
      4));
}

TEST(ExportPt2ModelTest, InPlaceOperatorsAndLists) {
  expect_model_agrees(make_model(
      [](auto& self, const Features& features, const at::Tensor& input) {
        at::Tensor embedded = self.embed(features) * 1.0;
        embedded.add_(1).mul_(2);
        const auto parts = embedded.chunk(3, 1);
        return at::cat({parts[2], parts[0] + parts[1], input}, 1);
      },
      4));
}

TEST(ExportPt2ModelTest, StateDictHasTheModelsNames) {
  const auto model = make_ranker();
  const std::string path = new_file();
  export_pt2(model, path, model_example());
  Texts names;
  for (const auto& [name, tensor] : Pt2Program(path).state_dict()) {
    names.push_back(name);
    if (name == "tower.0.weight") {
      EXPECT_TRUE(tensor.equal(model->named_parameters()[name]));
    }
  }
  for (const char* name :
       {"embedding.table_0",
        "embedding.table_1",
        "tower.0.weight",
        "tower.1.running_mean",
        "tower.4.bias"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
}

TEST(ExportPt2ModelTest, RefusesModelsThatCanNotBeTraced) {
  const std::string path = new_file();
  expect_refusals<FunctionModel<>::Function>(
      {{[](auto& self, const Features& features, const auto& input) {
          return self.embed(features) * input.sum().item().toDouble();
        },
        "[export_pt2] forward() must not read values of tensors, but it does "
        "so after aten::sum"},
       {[](auto& self, const Features& features, const auto& input) {
          const at::Tensor embedded = self.embed(features);
          return input.size(0) > 12 ? embedded.relu() : embedded.tanh();
        },
        "forward() must call the same operators for batches of all sizes"},
       {[](auto& self, const Features& features, const auto& input) {
          return self.embed(features) * (1.0 / input.size(0));
        },
        "must not depend on the sizes of the batch, unless it is an integer"},
       {[](auto& self, const Features& features, const auto& input) {
          return self.embed(features).slice(0, 0, input.size(0) / 2);
        },
        "sizes must be sums of products of the batch size"},
       {[](auto&, const Features&, const auto& input) { return input * 2; },
        "[export_pt2] expected a model whose forward() calls a TPUEmbedding"}},
      [&](const auto& function) {
        export_pt2(make_model(function), path, model_example());
      });
  expect_nothing_at(path);
}

TEST(ExportPt2ModelTest, ExportLeavesTheModelUnchanged) {
  const auto model = make_ranker();
  model->train();
  const std::string tables = saved(model->embedding);
  export_pt2(model, new_file(), model_example(), {.dtype = at::kChar});
  EXPECT_TRUE(model->is_training());
  EXPECT_EQ(saved(model->embedding), tables);
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.requires_grad());
  }
}

TEST(ExportPt2Test, RefusesPathsAndExamples) {
  const TPUEmbedding layer = layer_of();
  EXPECT_THROW(
      export_pt2(layer, "/no/such/folder/f.pt2", example_of({int64s({1})})),
      c10::Error);
  const std::string path = new_file();
  EXPECT_VALUE_ERROR(
      export_pt2(layer, path, {}),
      "[export_pt2] example.features must have the feature 'f'");
  EXPECT_VALUE_ERROR(
      export_pt2(layer, path, example_of({int64s({})})), "[export_pt2]");
  EXPECT_VALUE_ERROR(
      export_pt2(
          layer, path, example_of({int64s({1})}), {.features = {"user"}}),
      "expected paths of the layer's features, but got 'user'");
  EXPECT_VALUE_ERROR(
      export_pt2(TPUEmbedding(nullptr), path, {}), "got an empty holder");
  expect_nothing_at(path);
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(Pt2ProgramTest, ReadsBytesAtAnyAddress) {
  const std::string path = new_file();
  export_pt2(layer_of(), path, example_of({int64s({1, 2})}));
  const std::string bytes = read_text(path);
  const Pt2Program from_file(path);
  const std::vector<at::Tensor> inputs{int64s({3, 1, 4})};
  // Whole pages, which a program without an owner must not free.
  constexpr size_t kPage = 4096;
  std::vector<char> memory(bytes.size() + 2 * kPage);
  for (const size_t shift : {size_t{0}, size_t{1}}) {
    SCOPED_TRACE(shift);
    const auto begin = reinterpret_cast<uintptr_t>(memory.data());
    char* copy = memory.data() + (kPage - begin % kPage) + shift;
    std::copy(bytes.begin(), bytes.end(), copy);
    {
      const Pt2Program from_bytes({copy, bytes.size()}, nullptr);
      EXPECT_TRUE(at::equal(
          from_bytes.run(inputs).front(), from_file.run(inputs).front()));
      for (const auto& [name, weight] : from_bytes.state_dict()) {
        EXPECT_EQ(
            reinterpret_cast<uintptr_t>(weight.const_data_ptr()) %
                sizeof(float),
            0U)
            << name;
      }
    }
    EXPECT_EQ(std::string_view(copy, bytes.size()), bytes);
    for (const size_t size : {size_t{0}, size_t{1}, bytes.size() - 1}) {
      EXPECT_VALUE_ERROR(Pt2Program({copy, size}, nullptr), "[Pt2Program]");
    }
  }
}

TEST(Pt2ProgramTest, RefusesDamagedFiles) {
  const std::string path = new_file();
  export_pt2(layer_of(), path, example_of({ragged({{1}, {2, 3}})}));
  const std::string bytes = read_text(path);
  const std::string damaged = path + ".damaged";
  for (const size_t size :
       {size_t{0}, size_t{1}, bytes.size() / 2, bytes.size() - 1}) {
    write_bytes(damaged, bytes.substr(0, size));
    EXPECT_VALUE_ERROR(Pt2Program{damaged}, "[Pt2Program]");
  }
  // A flipped bit in a record is noticed. One in the padding between records is not.
  const size_t weights = bytes.find("data/weights/weight_0");
  const size_t graph = bytes.find("\"graph_module\"");
  ASSERT_NE(weights, std::string::npos);
  ASSERT_NE(graph, std::string::npos);
  for (const size_t position : {graph + 20, graph + 2000}) {
    std::string flipped = bytes;
    flipped[position] = static_cast<char>(flipped[position] ^ 1);
    write_bytes(damaged, flipped);
    EXPECT_VALUE_ERROR(Pt2Program{damaged}, "does not agree with its checksum");
  }
  for (size_t position = 0; position < bytes.size(); position += 97) {
    std::string flipped = bytes;
    flipped[position] = static_cast<char>(flipped[position] ^ 0x40);
    write_bytes(damaged, flipped);
    try {
      const Pt2Program program(damaged);
      program.run({int64s({1, 2}), int64s({0, 1, 2})});
    } catch (const c10::Error&) {
    }
  }
  write_bytes(damaged, "PK");
  EXPECT_VALUE_ERROR(Pt2Program{damaged}, "[Pt2Program]");
  EXPECT_THROW(Pt2Program{path + ".missing"}, c10::Error);
}

// The records of a zip file, in order.
using Records = std::vector<std::pair<std::string, std::string>>;

Records read_records(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader reader(path);
  Records records;
  for (const std::string& name : reader.getAllRecords()) {
    const auto [data, size] = reader.getRecord(name);
    records.emplace_back(
        name, std::string(static_cast<const char*>(data.get()), size));
  }
  return records;
}

std::string& find_record(Records& records, const std::string& name) {
  for (auto& [record, text] : records) {
    if (record == name) {
      return text;
    }
  }
  throw std::runtime_error("no record " + name);
}

// Writes records whose checksums agree, as an attacker could.
void write_records(Records records, const std::string& path) {
  std::string& values = find_record(records, "extra/tessera.json");
  Json json = Json::parse(values);
  for (auto& [name, checksum] : json["checksums"].items()) {
    for (const auto& [record, text] : records) {
      if (record == name) {
        checksum = checksum_of(text);
      }
    }
  }
  values = json.dump();
  find_record(records, "extra/tessera.checksum") = checksum_of(values);
  caffe2::serialize::PyTorchStreamWriter writer(path);
  for (const auto& [name, text] : records) {
    if (!name.starts_with(".data/") && name != "version") {
      writer.writeRecord(name, text.data(), text.size());
    }
  }
  writer.writeEndOfFile();
}

// Changes one character of the graph, of the weights' config or of the description. Each
// file is refused, or it runs.
TEST(Pt2ProgramTest, HostileFilesWithRightChecksumsDoNoHarm) {
  const std::string path = new_file();
  export_pt2(layer_of(), path, example_of({ragged({{1}, {2, 3}})}));
  const Records records = read_records(path);
  write_records(records, path);
  const std::vector<at::Tensor> batch{int64s({1, 2}), int64s({0, 1, 2})};
  EXPECT_EQ(Pt2Program(path).run(batch)[0].size(0), 2);

  std::mt19937 random(1);
  const std::string letters = "0129-{}[],:\"aft.";
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    Records hostile = records;
    std::string& text = find_record(
        hostile,
        i % 3 == 0       ? "data/weights/model_weights_config.json"
            : i % 3 == 1 ? "models/model.json"
                         : "extra/tessera.json");
    std::string changed = text;
    changed[random() % text.size()] = letters[random() % letters.size()];
    if (i % 3 != 2 || Json::accept(changed)) {
      text = changed;
    }
    try {
      write_records(hostile, path);
      Pt2Program(path).run(batch);
    } catch (const Json::exception&) {  // of write_records()
    } catch (const c10::Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

// The checksums agree, as in a file of another release or machine.
TEST(Pt2ProgramTest, RefusesOtherVersionsAndNumbersOutOfRange) {
  const std::string path = new_file();
  export_pt2(layer_of(), path, example_of({ragged({{1}, {2, 3}})}));
  const Records records = read_records(path);
  struct Change {
    const char *record, *from;
    std::string to, message;
  };
  constexpr const char* kValues = "extra/tessera.json";
  constexpr const char* kModel = "models/model.json";
  std::vector<Change> changes{
      {"byteorder",
       "little",
       "big",
       "the record 'byteorder' must be 'little', but is 'big'"},
      {"archive_version", "0", "1", "the record 'archive_version' must be '0'"},
      {"archive_format", "pt2", "pt3", "the record 'archive_format' must be"},
      {kValues,
       R"("version":1)",
       R"("version":2)",
       "'extra/tessera.json' must have the version 1, but has 2"},
      {kModel,
       R"("major":8)",
       R"("major":18446744073709551624)",  // 8 modulo 2^64
       "expected an integer of 64 bits"},
      {kModel,
       R"("sizes":[)",
       R"("sizes":[{"as_int":-1},)",
       "expected a size or a stride"}};
  for (const char* shape : {"[null,-3]", "[null,4]", "[null]", "[2,3]", "{}"}) {
    changes.push_back(
        {kValues,
         R"("shape":[null,3])",
         std::string(R"("shape":)") + shape,
         "with the type and the shape that the graph has"});
  }
  for (const char* number :
       {"9223372036854775808", "18446744073709551615", "1e30", "3.5", "true"}) {
    changes.push_back(
        {kModel,
         R"("as_int":3})",
         std::string(R"("as_int":)") + number + "}",
         "expected an integer of 64 bits, but got "});
  }
  for (const auto& [record, from, to, message] : changes) {
    SCOPED_TRACE(to);
    Records changed = records;
    std::string& text = find_record(changed, record);
    ASSERT_NE(text.find(from), std::string::npos);
    text.replace(text.find(from), std::string_view(from).size(), to);
    write_records(changed, path);
    EXPECT_VALUE_ERROR(Pt2Program{path}, message);
  }
}

TEST(Pt2ProgramTest, ATensorOfManyDimensionsTakesLittleMemory) {
  const std::string path = new_file();
  export_pt2(layer_of(), path, example_of({ragged({{1}, {2, 3}})}));
  Records records = read_records(path);
  std::string sizes = R"("sizes":[)";
  for (int i = 0; i < 100'000; ++i) {
    sizes += R"({"as_int":1},)";
  }
  std::string& text = find_record(records, "models/model.json");
  text.replace(text.find(R"("sizes":[)"), 9, sizes);
  write_records(records, path);
  PeakMemory peak;
  EXPECT_VALUE_ERROR(
      Pt2Program{path}, "expected tensors with at most 64 dimensions");
  EXPECT_LT(peak.growth(), int64_t{64} << 20);
}

TEST(Pt2ProgramTest, RefusesFilesOfOthers) {
  const std::string path = new_file();
  torch::save(at::ones({2}), path);
  EXPECT_VALUE_ERROR(
      Pt2Program{path},
      "[Pt2Program] " + path +
          ": the file is TorchScript, which only torch::jit::load runs. Export "
          "the model with export_pt2(), or its dense part with "
          "export_dense_pt2().");
  const std::vector<char> bytes = torch::pickle_save(at::ones({2}));
  std::ofstream(path).write(
      bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EXPECT_VALUE_ERROR(
      Pt2Program{path}, "expected the record 'extra/tessera.json'");
}

}  // namespace tessera::test::export_pt2_test
