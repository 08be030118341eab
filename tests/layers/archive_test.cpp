// SPDX-License-Identifier: Apache-2.0
// torch::save() and torch::load() of the layer, and of a model that contains it.
#include <tessera/serialization/save_to_file.h>

#include "tests/layers/layer_test_util.h"
#include "tests/small_files.h"
#include "tests/temporary_folder.h"

#include <cstdio>

namespace tessera::test::archive_test {

using torch::serialize::OutputArchive;

struct Setup {
  std::optional<optim::OptimizerSpec> optimizer =
      optim::Adagrad{.learning_rate = 0.5};
  Strategy strategy = Strategy::fused();
  uint64_t seed = 0;
  MissingSlots missing_slots = MissingSlots::kError;
};

// A layer of two tables. An archive can't have a tensor of the name `class`.
TPUEmbedding make_layer(const Setup& setup = {}) {
  const auto named = plain_table("class", 6, 3);
  const auto unnamed = make_table({.vocabulary_size = 4, .dim = 2});
  return layer_of(
      features_of({{"a", named}, {"b", unnamed}, {"c", named}}),
      setup.optimizer,
      {.strategy = setup.strategy,
       .seed = setup.seed,
       .missing_slots = setup.missing_slots});
}

Features batch(int step) {
  return {
      {"a", int64s({step % 6, 1})},
      {"b", int64s({step % 4, 3})},
      {"c", ragged({{step * 5 % 6, 2, 2}, {}})}};
}

void train(TPUEmbedding& layer, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    loss_of(layer->forward(batch(step))).backward();
  }
}

// Returns the message of the ValueError of a load, and checks that nothing has
// changed.
std::string load_error(TPUEmbedding& layer, const std::string& bytes) {
  const std::string before = saved(layer);
  std::string message = "no error";
  try {
    load_bytes(layer, bytes);
  } catch (const c10::ValueError& error) {
    message = error.what_without_backtrace();
  }
  EXPECT_TRUE(saved(layer) == before) << "changed by: " << message;
  return message;
}

// A tensor of the first table in the archive of a layer.
at::Tensor saved_tensor(const TPUEmbedding& layer, const std::string& key) {
  auto archive = archive_of(saved(layer));
  torch::serialize::InputArchive table;
  archive.read("table_0", table);
  at::Tensor tensor;
  table.read(key, tensor, /*is_buffer=*/true);
  return tensor;
}

// Joins the activations of a batch.
struct JoinImpl : torch::nn::Module {
  at::Tensor forward(const Nest<at::Tensor>& activations) {
    std::vector<at::Tensor> columns;
    activations.for_each([&](const std::string&, const at::Tensor& activation) {
      columns.push_back(activation.flatten(1));
    });
    return at::cat(columns, 1);
  }
};
TORCH_MODULE(Join);

torch::nn::Sequential model_of(TPUEmbedding layer) {
  return torch::nn::Sequential(
      std::move(layer), Join(), torch::nn::Linear(8, 1));
}

void expect_lines(
    const std::string& message,
    const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    EXPECT_CONTAINS(message, line);
  }
}

// Covers the first assertion of upstream's test_checkpoint_save_retrieves. A save
// has the current tables after a load, an update by hand and a training step.
TEST(LayerArchiveTest, SavesTheCurrentTables) {
  for (const Strategy& strategy : {Strategy::fused(), Strategy::host()}) {
    SCOPED_TRACE(strategy.name());
    auto first = make_layer({.strategy = strategy});
    auto second = make_layer({.strategy = strategy, .seed = 99});
    const auto saved_table = [&] { return saved_tensor(first, "parameters"); };
    const at::Tensor initial = tables_of(first)[0];
    EXPECT_TENSOR_EQ(saved_table(), initial);
    load_bytes(first, saved(second));
    EXPECT_FALSE(at::equal(saved_table(), initial));
    EXPECT_TENSOR_EQ(saved_table(), tables_of(second)[0]);
    first->update_embedding_table("class", at::ones({6, 3}));
    EXPECT_TENSOR_EQ(saved_table(), at::ones({6, 3}));
    if (strategy.is_fused()) {
      train(first, 0, 1);
      EXPECT_FALSE(at::equal(saved_table(), at::ones({6, 3})));
      EXPECT_TENSOR_EQ(saved_table(), tables_of(first)[0]);
    }
  }
}

TEST(LayerArchiveTest, RoundTripsThroughAFile) {
  const std::string path = testing::TempDir() + "tessera_layer_archive.pt";
  auto layer = make_layer();
  train(layer, 0, 3);
  torch::save(layer, path);
  auto loaded = make_layer({.seed = 99});
  torch::load(loaded, path);
  std::remove(path.c_str());
  EXPECT_EQ(saved(loaded), saved(layer));
}

TEST(LayerArchiveTest, TablesMayHaveAnyName) {
  const auto make_named = [](uint64_t seed) {
    Nest<FeatureConfig>::Map features;
    for (const char* name :
         {"class", "a/b.c", "with space", "table_0", "parameters", "\u00fc"}) {
      const auto table = plain_table(name, 4, 2);
      features.emplace_back(name, FeatureConfig{.table = table});
    }
    return layer_of(
        Nest<FeatureConfig>::map(features), optim::Adagrad{}, {.seed = seed});
  };
  const auto layer = make_named(0);
  auto loaded = make_named(99);
  load_bytes(loaded, saved(layer));
  EXPECT_EQ(loaded->embedding_tables().size(), 6);
  expect_same_tables(loaded, tables_of(layer));
}

TEST(LayerArchiveTest, LoadingWritesToTheExistingTensors) {
  auto layer = make_layer();
  train(layer, 0, 3);
  auto loaded = make_layer({.seed = 99});
  const at::Tensor rows = loaded->embedding_tables()["class"];
  const at::Tensor variable = loaded->virtual_variable();
  load_bytes(loaded, saved(layer));
  EXPECT_TENSOR_EQ(rows, layer->embedding_tables()["class"]);
  EXPECT_TRUE(variable.is_same(loaded->virtual_variable()));
  EXPECT_TRUE(variable.requires_grad());
}

TEST(LayerArchiveTest, SavesAWholeModel) {
  const auto train_model = [](torch::nn::Sequential& model, int step) {
    torch::optim::SGD optimizer(
        model->parameters(), torch::optim::SGDOptions(0.1));
    model->forward(batch(step)).square().sum().backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  TPUEmbedding layer = make_layer();
  auto model = model_of(layer);
  train_model(model, 0);
  const std::string path = testing::TempDir() + "tessera_model_archive.pt";
  torch::save(model, path);

  const TPUEmbedding loaded_layer = make_layer({.seed = 99});
  auto loaded = model_of(loaded_layer);
  torch::load(loaded, path);
  std::remove(path.c_str());
  EXPECT_EQ(loaded_layer->iterations(), 1);
  EXPECT_TENSOR_EQ(loaded->forward(batch(1)), model->forward(batch(1)));
  train_model(model, 1);
  train_model(loaded, 1);
  EXPECT_EQ(saved(loaded_layer), saved(layer));

  // A layer can't read the archive of a model.
  std::ostringstream stream;
  torch::save(model, stream);
  expect_lines(
      load_error(layer, stream.str()),
      {"[TPUEmbedding::load] expected an archive that a TPUEmbedding or "
       "EmbeddingEngine saved, but the archive has no format_version"});
}

TEST(LayerArchiveTest, TheHostReadsFusedTables) {
  auto fused = make_layer();
  train(fused, 0, 3);
  auto host = make_layer({.strategy = Strategy::host(), .seed = 99});
  load_bytes(host, saved(fused));
  expect_same_tables(host, tables_of(fused));
  EXPECT_EQ(host->iterations(), 3);
  EXPECT_TRUE(host->parameters()[0].requires_grad());
  EXPECT_TENSOR_EQ(host->forward(batch(0))["a"], fused->forward(batch(0))["a"]);
}

std::vector<std::string> keys_of(torch::serialize::InputArchive& archive) {
  auto keys = archive.keys();
  std::sort(keys.begin(), keys.end());
  return keys;
}

TEST(LayerArchiveTest, HoldsTablesAndSlotsUnderOneSetOfKeys) {
  using Keys = std::vector<std::string>;
  for (const Strategy& strategy :
       {Strategy::fused(), Strategy::host(), Strategy::padded()}) {
    SCOPED_TRACE(strategy.name());
    const auto layer = make_layer(
        {.optimizer = optim::Adagrad{.lazy = false}, .strategy = strategy});
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (!strategy.is_fused()) {
      optimizer = make_optimizer(layer);
    }
    auto archive = archive_of(saved(layer));
    EXPECT_EQ(
        keys_of(archive),
        (Keys{
            "config",
            "format_version",
            "iterations",
            "seed",
            "table_0",
            "table_1",
            "tessera_checksums"}));
    torch::serialize::InputArchive table;
    archive.read("table_0", table);
    EXPECT_EQ(
        keys_of(table),
        (Keys{"name", "optimizer", "parameters", "slot_accumulators"}));
  }
}

TEST(LayerArchiveTest, TrainingOnPaddedContinuesOnEveryStrategy) {
  auto padded = make_layer({.strategy = Strategy::padded()});
  torch::optim::SGD sgd(padded->parameters(), torch::optim::SGDOptions(0.1));
  const auto step = [](TPUEmbedding& layer, torch::optim::SGD& sgd, int index) {
    sgd.zero_grad();
    train(layer, index, index + 1);
    sgd.step();
  };
  step(padded, sgd, 0);
  const std::string bytes = saved(padded);
  step(padded, sgd, 1);
  const auto expect_close_to_padded = [&](const TPUEmbedding& other) {
    for (const char* table : {"class", "table_1"}) {
      expect_close(
          other->embedding_tables()[table], padded->embedding_tables()[table]);
    }
  };
  for (const Strategy& strategy : {Strategy::padded(), Strategy::host()}) {
    auto other = make_layer({.strategy = strategy, .seed = 99});
    load_bytes(other, bytes);
    torch::optim::SGD other_sgd(
        other->parameters(), torch::optim::SGDOptions(0.1));
    step(other, other_sgd, 1);
    expect_close_to_padded(other);
  }
  auto fused =
      make_layer({.optimizer = optim::SGD{.learning_rate = 0.1}, .seed = 99});
  load_bytes(fused, bytes);
  train(fused, 1, 2);
  expect_close_to_padded(fused);
}

TEST(LayerArchiveTest, FusedWithoutOptimizerReadsTheTablesAlone) {
  auto trained = make_layer({.optimizer = optim::Adam{.learning_rate = 0.1}});
  train(trained, 0, 3);
  auto serving = make_layer({.optimizer = std::nullopt, .seed = 99});
  load_bytes(serving, saved(trained));
  expect_same_tables(serving, tables_of(trained));
  EXPECT_EQ(serving->iterations(), 3);
  const at::NoGradGuard no_grad;
  EXPECT_TENSOR_EQ(
      serving->forward(batch(1))["c"], trained->forward(batch(1))["c"]);
}

TEST(LayerArchiveTest, FusedWithoutOptimizerReadsTheHostsTables) {
  const auto host = make_layer({.strategy = Strategy::host()});
  auto fused = make_layer({.optimizer = std::nullopt, .seed = 99});
  load_bytes(fused, saved(host));
  expect_same_tables(fused, tables_of(host));

  auto trained = make_layer({.seed = 99});
  expect_lines(
      load_error(trained, saved(host)),
      {"table 'class': slot accumulators was not saved",
       "table 'table_1': slot accumulators was not saved"});
}

// MissingSlots is an option of the layer, because torch::load() of a model takes
// no options.
TEST(LayerArchiveTest, FusedMayKeepItsSlotsWhenItLoadsHostTables) {
  auto host = make_layer({.strategy = Strategy::host()});
  auto host_model = model_of(host);
  std::ostringstream stream;
  torch::save(host_model, stream);

  auto fused = make_layer({.seed = 99, .missing_slots = MissingSlots::kKeep});
  train(fused, 0, 2);
  const at::Tensor slots = saved_tensor(fused, "slot_accumulators");
  auto fused_model = model_of(fused);
  load_bytes(fused_model, stream.str());
  expect_same_tables(fused, tables_of(host));
  EXPECT_EQ(fused->iterations(), 0);
  EXPECT_TENSOR_EQ(saved_tensor(fused, "slot_accumulators"), slots);
  // The sums of the linear layer may be rounded differently.
  EXPECT_TRUE(at::allclose(
      fused_model->forward(batch(0)),
      host_model->forward(batch(0)),
      /*rtol=*/1e-6,
      /*atol=*/1e-6));

  // A clone has the same option.
  auto clone = clone_of(fused);
  load_bytes(clone, saved(host));

  // Slots of the same optimizer are loaded, and those of another are refused.
  auto trained = make_layer();
  train(trained, 0, 3);
  load_bytes(fused, saved(trained));
  EXPECT_EQ(saved(fused), saved(trained));
  EXPECT_EQ(fused->iterations(), 3);
  expect_lines(
      load_error(fused, saved(make_layer({.optimizer = optim::Adam{}}))),
      {"table 'class': the optimizer is Adagrad, but the saved one is Adam",
       "saved configuration, or load less with LoadOptions, whose "
       "convert_rows allows other dtypes. load() and "});
}

TEST(LayerArchiveTest, RefusesAnotherOptimizer) {
  auto layer = make_layer({.optimizer = optim::Adam{}, .seed = 99});
  expect_lines(
      load_error(layer, saved(make_layer())),
      {"the saved tables do not fit this layer. Nothing was changed. Problems:",
       "\n  table 'class': slot momenta was not saved",
       "\n  table 'class': slot velocities was not saved",
       "\n  table 'table_1': slot momenta was not saved",
       "\nBuild the layer with the saved configuration, set the option "
       "missing_slots, or load less with LoadOptions, whose "
       "convert_rows allows other dtypes. load() and "
       "load_checkpoint() of the layer take LoadOptions, but torch::load() and "
       "load_weights() do not."});
}

TEST(LayerArchiveTest, SlotsOfAnotherOptimizerAreNotDropped) {
  auto adagrad = make_layer();
  auto sgd = make_layer({.optimizer = optim::SGD{}});
  expect_lines(
      load_error(sgd, saved(adagrad)),
      {"the optimizer is SGD, but the saved one is Adagrad"});
}

TEST(LayerArchiveTest, AllDifferencesAreListedAtOnce) {
  const auto wide = plain_table("wide", 6, 5);
  const auto more = make_table({.vocabulary_size = 5, .dim = 2});
  const auto third = make_table({.vocabulary_size = 5, .dim = 2});
  const TPUEmbedding other = layer_of(
      features_of({{"a", wide}, {"b", more}, {"c", third}}), optim::Adagrad{});
  auto layer = make_layer({.seed = 99});
  expect_lines(
      load_error(layer, saved(other)),
      {"\n  table 'class': it was not saved. Saved tables: 'wide', 'table_1', "
       "'table_2'",
       "\n  table 'table_1': parameters is float32 [4, 2] in the layer, but "
       "was saved as float32 [5, 2]",
       "\n  table 'table_1': slot accumulators is float32 [4, 2] in the layer, "
       "but was saved as",
       "\n  table 'wide': it was saved, but the layer has only 'class', "
       "'table_1'",
       "\n  table 'table_2': it was saved, but the layer has only"});

  TPUEmbedding larger(TPUEmbeddingOptions{
      .features = features_of({{"a", wide}, {"b", more}, {"c", third}})});
  expect_lines(
      load_error(larger, saved(layer)),
      {"\n  table 'wide': it was not saved. Saved tables: 'class', 'table_1'",
       "\n  table 'table_2': it was not saved"});
}

// Returns the bytes of an archive that `write` has filled.
std::string archive_bytes(const std::function<void(OutputArchive&)>& write) {
  OutputArchive archive;
  write(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return stream.str();
}

TEST(LayerArchiveTest, RefusesALaterFormat) {
  auto layer = make_layer();
  expect_lines(
      load_error(layer, archive_bytes([](OutputArchive& archive) {
                   archive.write("format_version", c10::IValue(2));
                 })),
      {"format_version must be 1, but got 2. Update Tessera, or use the version "
       "that saved it."});
}

TEST(LayerArchiveTest, RefusesEntriesOfAnotherKind) {
  auto layer = make_layer();
  expect_lines(
      load_error(layer, archive_bytes([](OutputArchive& archive) {
                   archive.write("format_version", c10::IValue(1));
                   OutputArchive nameless(archive.compilation_unit());
                   nameless.write("name", at::zeros({1}));
                   archive.write("table_0", nameless);
                   OutputArchive table(archive.compilation_unit());
                   table.write("name", c10::IValue("table_1"));
                   table.write("parameters", at::zeros({4, 2}, at::kDouble));
                   table.write("slot_accumulators", c10::IValue("text"));
                   archive.write("table_1", table);
                 })),
      {"\n  iterations is missing",
       "\n  table_0 has no name",
       "\n  table 'class': it was not saved",
       "\n  table 'table_1': parameters is float32 [4, 2] in the layer, but "
       "was saved as Double [4, 2]",
       "\n  table 'table_1': slot accumulators was not saved"});
}

TEST(LayerArchiveTest, TruncatedOrForeignBytesChangeNothing) {
  auto layer = make_layer();
  train(layer, 0, 3);
  const std::string whole = saved(layer);
  auto loaded = make_layer({.seed = 99});
  const std::string before = saved(loaded);
  for (const size_t length :
       {size_t{0}, size_t{10}, whole.size() / 2, whole.size() - 1}) {
    EXPECT_ANY_THROW(load_bytes(loaded, whole.substr(0, length)))
        << length << " of " << whole.size() << " bytes";
  }
  EXPECT_ANY_THROW(load_bytes(loaded, "not an archive at all"));
  std::ostringstream linear;
  torch::save(torch::nn::Linear(2, 3), linear);
  expect_lines(load_error(loaded, linear.str()), {"no format_version"});
  EXPECT_ANY_THROW(torch::load(loaded, testing::TempDir() + "no such file"));
  EXPECT_EQ(saved(loaded), before);
  load_bytes(loaded, whole);
  EXPECT_EQ(saved(loaded), whole);
}

TEST(SaveToFileTest, AFullDiskIsAnErrorAndLeavesTheOldFile) {
  const TemporaryFolder folder;
  const std::string path = folder.write("layer.pt", "old");
  const auto layer = make_layer();
  {
    const SmallFiles small(200);
    EXPECT_TORCH_ERROR(
        save_to_file(layer, path),
        "[save_to_file] " + path +
            ": the file can't be written: File too large. Choose a path where "
            "files may be larger.");
  }
  EXPECT_EQ(read_text(path), "old");
  EXPECT_TORCH_ERROR(
      save_to_file(layer, folder / "no/layer.pt"),
      "[save_to_file] " + folder / "no/layer.pt" +
          ": the file can't be created: No such file or directory. Make its "
          "folder first, or choose another path.");
  EXPECT_VALUE_ERROR(save_to_file(layer, ""), "expected the path of a file");
  const std::string empty_path = folder / "empty.pt";
  const std::string empty = "but got an empty one. Make it before you save it.";
  EXPECT_VALUE_ERROR(save_to_file(TPUEmbedding(nullptr), empty_path), empty);
  EXPECT_VALUE_ERROR(save_to_file(at::Tensor(), empty_path), empty);
  EXPECT_VALUE_ERROR(
      save_to_file(
          std::vector<at::Tensor>{at::ones({1}), at::Tensor()}, empty_path),
      empty);
  EXPECT_VALUE_ERROR(
      save_to_file(std::shared_ptr<torch::nn::Module>(), empty_path), empty);
  EXPECT_EQ(
      std::distance(
          std::filesystem::directory_iterator(folder.path()),
          std::filesystem::directory_iterator()),
      1);
}

TEST(LoadFromFileTest, FilesAreThoseOfTorch) {
  const TemporaryFolder folder;
  const std::string path = folder / "file.pt";
  auto layer = make_layer();
  train(layer, 0, 3);
  torch::nn::Sequential model(layer, Join(), torch::nn::Linear(8, 2));
  const std::vector<at::Tensor> tensors{at::ones({2, 3}), at::zeros({4})};
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  const auto expect_loaded = [&](const auto& save, const auto& load) {
    save(model);
    const auto loaded_layer = make_layer({.seed = 99});
    torch::nn::Sequential loaded(loaded_layer, Join(), torch::nn::Linear(8, 2));
    load(loaded);
    EXPECT_EQ(saved(loaded_layer), saved(layer));
    EXPECT_TENSOR_EQ(loaded->forward(batch(1)), model->forward(batch(1)));

    save(tensors);
    std::vector<at::Tensor> loaded_tensors;
    load(loaded_tensors);
    ASSERT_EQ(loaded_tensors.size(), 2U);
    EXPECT_TENSOR_EQ(loaded_tensors[1], tensors[1]);

    save(tensors[0]);
    at::Tensor loaded_tensor;
    load(loaded_tensor);
    EXPECT_TENSOR_EQ(loaded_tensor, tensors[0]);

    save(optimizer);
    load(optimizer);
  };
  const auto save = [&](const auto& value) { save_to_file(value, path); };
  const auto load = [&](auto& value) { load_from_file(value, path); };
  expect_loaded(save, load);
  expect_loaded(save, [&](auto& value) { torch::load(value, path); });
  expect_loaded([&](const auto& value) { torch::save(value, path); }, load);

  save(tensors);
  std::vector<at::Tensor> replaced{at::ones({7})};
  load(replaced);
  EXPECT_EQ(replaced.size(), 2U);
}

// Loads copies of `whole` with a flipped bit, a missing end or other bytes in the middle.
// Returns how many were loaded without an error.
int64_t count_loaded_damages(
    const std::string& whole,
    const std::string& path) {
  const at::Tensor inputs = at::ones({1, 2});
  std::mt19937 random(1);
  int64_t loaded = 0;
  for (int i = 0; i < 200; ++i) {
    std::string damaged = whole;
    const size_t at = random() % whole.size();
    if (i % 3 == 0) {
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << (i % 8)));
    } else if (i % 3 == 1) {
      damaged.resize(at);
    } else {
      damaged.replace(at, 64, std::string(64, static_cast<char>(random())));
    }
    std::ofstream(path, std::ios::binary) << damaged;
    torch::nn::Linear linear(2, 3);
    const at::Tensor before = linear->forward(inputs).detach();
    try {
      load_from_file(linear, path);
      ++loaded;
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_EQ(message.rfind("[load_from_file] " + path, 0), 0U) << message;
      EXPECT_EQ(message.find("ASSERT"), std::string::npos) << message;
      EXPECT_TENSOR_EQ(linear->forward(inputs), before) << message;
    }
  }
  return loaded;
}

TEST(LoadFromFileTest, ADamagedFileIsAReadableErrorAndChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = folder / "linear.pt";
  const torch::nn::Linear linear(2, 3);
  save_to_file(linear, path);
  // Only the last bytes, which are the checksum, are of no importance.
  EXPECT_LT(count_loaded_damages(read_text(path), path), 5);
  // A file of torch::save() has no checksum, so more damages are not noticed.
  torch::save(linear, path);
  EXPECT_LT(count_loaded_damages(read_text(path), path), 150);

  torch::nn::Linear loaded(2, 3);
  EXPECT_VALUE_ERROR(
      load_from_file(loaded, folder.write("empty.pt", "")),
      "empty.pt: the file can't be read: it is empty. It may be truncated");
  EXPECT_VALUE_ERROR(
      load_from_file(loaded, folder.write("text.pt", "user,item\n")),
      "LibTorch can't decode it");
  EXPECT_TORCH_ERROR(
      load_from_file(loaded, folder / "none.pt"),
      "[load_from_file] " + folder / "none.pt" +
          ": the file can't be read: No such file or directory. Correct the "
          "path.");
  torch::nn::Linear unmade(nullptr);
  EXPECT_VALUE_ERROR(
      load_from_file(unmade, path),
      "but got an empty one. Make it before you load it.");
  save_to_file(linear, path);
  auto other = make_layer();
  EXPECT_VALUE_ERROR(load_from_file(other, path), "no format_version");
}

TEST(LoadFromFileTest, TheFileOfAnotherModelIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder / "model.pt";
  save_to_file(
      torch::nn::Linear(torch::nn::LinearOptions(2, 3).bias(false)), path);
  torch::nn::Linear with_bias(2, 3);
  EXPECT_VALUE_ERROR(
      load_from_file(with_bias, path),
      "[load_from_file] " + path +
          ": the file has the entries of another model: No such serialized "
          "tensor 'bias'. Make the model as the program did that saved the file.");

  // An error of the module names the file, too, and advises only what helps.
  auto layer = make_layer();
  save_to_file(layer, path);
  TPUEmbedding wider = layer_of(
      features_of({{"a", plain_table("class", 3, 9)}}), optim::Adagrad{});
  const std::string error = load_error(wider, saved(layer));
  EXPECT_EQ(error.find("missing_slots"), std::string::npos) << error;
  EXPECT_VALUE_ERROR(load_from_file(wider, path), "[load_from_file] " + path);
}

}  // namespace tessera::test::archive_test
