// SPDX-License-Identifier: Apache-2.0
// Tests very long names, paths with a zero byte, and huge files.
#include "examples/click_logs/criteo_generator.h"
#include "serialization/checkpoint_reader.h"
#include "serialization/file_lock.h"
#include "serialization/manifest.h"
#include "src/common/atomic_file.h"
#include "tests/layers/layer_test_util.h"
#include "tests/serialization/recording_disk.h"

#include <tessera/common/json_text.h>
#include <tessera/common/shorten.h>
#include <tessera/data/columns.h>
#include <tessera/data/criteo_reader.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/formats/npy.h>
#include <tessera/formats/safetensors.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/layer_json.h>
#include <tessera/optim/keras.h>
#include <tessera/serialization/checkpoint.h>
#include <tessera/serialization/config_json.h>
#include <tessera/serialization/json_file.h>
#include <tessera/serialization/saved_features.h>
#include <tessera/training/checkpoint.h>
#include <tessera/training/history.h>

#include <sys/stat.h>

namespace tessera::test::hostile_input_test {

namespace fs = std::filesystem;

const std::string kLong(1'000'000, 'x');

TPUEmbedding make_layer(
    const std::string& table = "users",
    const std::string& feature = "user") {
  const TableConfig config{.name = table, .vocabulary_size = 10, .dim = 2};
  return TPUEmbedding(
      features_of({{feature, make_table(config)}}), optim::Adagrad{});
}

TEST(ShortenTest, KeepsShortTextAndBothEndsOfLongText) {
  EXPECT_EQ(shorten(""), "");
  EXPECT_EQ(shorten("users"), "users");
  EXPECT_EQ(shorten(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(
      shorten(std::string(150, 'a') + std::string(51, 'b')),
      std::string(120, 'a') + " [... 201 bytes ...] " + std::string(40, 'b'));
  EXPECT_EQ(shorten(std::string("a\0b", 3)), "a\\0b");
  // No character of two bytes is cut in half.
  std::string text = "a";
  for (int i = 0; i < 150; ++i) {
    text += "\xc3\xa4";
  }
  const std::string shown = shorten(text);
  EXPECT_EQ(shown.substr(118, 7), "\xa4 [... ");
  EXPECT_EQ(shown.substr(shown.size() - 40, 2), "\xc3\xa4");
  EXPECT_EQ(
      Json(shown).dump().empty(), false);  // dump() throws if it is not UTF-8
}

TEST(ShortenTest, ListsTheFirstHundred) {
  EXPECT_EQ(shorten_all({}), "");
  EXPECT_EQ(shorten_all({"a", "b"}), "a, b");
  const std::string list = shorten_all(std::vector<std::string>(1000, "a"));
  EXPECT_TRUE(list.ends_with("a, a and 900 more"));
}

// An error shows both ends of a long name, and its length.
TEST(LongNamesTest, AreShortenedInErrors) {
  const MemoryFolder folder;
  auto users = make_layer();
  make_layer(kLong)->save_checkpoint(folder / "long");
  users->save_checkpoint(folder / "users");
  torch::save(make_layer(kLong), folder / "long.pt");
  save_safetensors(
      {.tensors = {{kLong, at::ones({1})}}}, folder / "long.safetensors");
  const Features features{{"user", int64s({1, 2})}};
  const Features others{{kLong, int64s({1, 2})}};
  const auto as_json = [](const std::string& text) { return parse_json(text); };
  const data::FeaturePipeline pipeline(
      {{.name = "a",
        .columns = {kLong},
        .transform = data::transforms::Hash{.num_bins = 3}}});
  data::Columns columns;
  columns.add(kLong, {.values = int64s({1, 2})});

  const std::vector<std::pair<const char*, std::function<void()>>> cases{
      {"a table's name in a checkpoint",
       [&] { users->load_checkpoint(folder / "long"); }},
      {"a table's name in an archive",
       [&] {
         auto layer = make_layer();
         torch::load(layer, folder / "long.pt");
       }},
      {"a table's name in a layer",
       [&] { make_layer(kLong)->load_checkpoint(folder / "users"); }},
      {"a table's name in LoadOptions",
       [&] { users->load_checkpoint(folder / "users", {.tables = {kLong}}); }},
      {"a checkpoint's name",
       [&] {
         users->load_checkpoint(folder / "users", {.checkpoint = kLong});
       }},
      {"a table's name in TableConfig", [] { plain_table(kLong, 0, 1); }},
      {"a key of TableConfig",
       [&] { table_from_json(as_json("{\"" + kLong + "\": 1}")); }},
      {"a combiner",
       [&] { table_from_json(as_json("{\"combiner\": \"" + kLong + "\"}")); }},
      {"a wrong value",
       [&] { table_from_json(as_json("{\"dim\": \"" + kLong + "\"}")); }},
      {"a key given twice",
       [&] { as_json("{\"" + kLong + "\": 1, \"" + kLong + "\": 2}"); }},
      {"an initializer",
       [&] {
         initializer_from_json(as_json("{\"class_name\": \"" + kLong + "\"}"));
       }},
      {"a layer's class",
       [&] {
         layer_from_json(
             as_json("{\"class_name\": \"" + kLong + "\", \"config\": {}}"));
       }},
      {"a key of Keras",
       [&] {
         optim::translate_keras_optimizer(
             "{\"class_name\": \"SGD\", \"config\": {\"" + kLong + "\": 1}}");
       }},
      {"a class of Keras",
       [&] {
         optim::translate_keras_optimizer(
             "{\"class_name\": \"" + kLong + "\", \"config\": {}}");
       }},
      {"an optimizer", [] { optim::translate_keras_optimizer(kLong); }},
      {"a log",
       [&] {
         training::history_from_json(
             as_json("{\"epochs\": [{\"epoch\": 0, \"" + kLong + "\": []}]}"));
       }},
      {"a requested log",
       [] {
         (void)training::Logs({{"loss", 1.0}})[kLong];
       }},
      {"an unknown feature", [&] { users->forward(others); }},
      {"a missing feature",
       [&] { make_layer("users", kLong)->forward(features); }},
      {"a requested table", [&] { (void)users->embedding_tables()[kLong]; }},
      {"a missing column", [&] { (void)pipeline.apply({}); }},
      {"the known columns", [&] { (void)columns.at("a"); }},
      {"a requested column", [&] { (void)data::Columns().at(kLong); }},
      {"a tensor's name",
       [&] { (void)load_safetensors(folder / "long.safetensors")["a"]; }},
      {"a path", [] { load_npy(kLong); }},
      {"a path of slashes",
       [] { load_npy("/" + std::string(1'000'000, '/')); }},
      {"a directory", [&] { users->save_checkpoint(kLong); }},
  };
  for (const auto& [name, raise] : cases) {
    SCOPED_TRACE(name);
    try {
      raise();
      ADD_FAILURE() << "expected an error";
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      EXPECT_LT(message.size(), 2000);
      EXPECT_CONTAINS(message, " bytes ...]");
    }
  }
}

// The system takes a zero byte for the end of the path, and would use another file.
TEST(PathsTest, RefusesAZeroByte) {
  const MemoryFolder folder;
  auto layer = make_layer();
  const std::string before = bytes_of(layer);
  layer->save_checkpoint(folder / "run");
  save_npy(at::ones({2}), folder / "a.npy");
  save_safetensors({}, folder / "a.safetensors");
  write_file(fs::path(folder / "a.txt"), "1\t\n");
  write_file(fs::path(folder / "a.json"), "{}");
  torch::nn::Linear model(1, 1);
  training::save_weights(*model, folder / "weights");

  const auto with_zero = [&](const std::string& name) {
    return folder / name + std::string("\0x", 2);
  };
  const std::vector<std::pair<const char*, std::function<void()>>> cases{
      {"save_checkpoint", [&] { layer->save_checkpoint(with_zero("run")); }},
      {"load_checkpoint", [&] { layer->load_checkpoint(with_zero("run")); }},
      {"list_checkpoints", [&] { list_checkpoints(with_zero("run")); }},
      {"saved_features", [&] { saved_features(with_zero("run")); }},
      {"save_npy", [&] { save_npy(at::ones({1}), with_zero("a.npy")); }},
      {"load_npy", [&] { load_npy(with_zero("a.npy")); }},
      {"save_safetensors",
       [&] { save_safetensors({}, with_zero("a.safetensors")); }},
      {"load_safetensors",
       [&] { load_safetensors(with_zero("a.safetensors")); }},
      {"load_json", [&] { load_json(with_zero("a.json")); }},
      {"load_pipeline", [&] { load_pipeline(with_zero("a.json")); }},
      {"CriteoReader",
       [&] {
         data::CriteoReader reader({.files = {with_zero("a.txt")}});
         (void)reader.next();
       }},
      {"CriteoGenerator",
       [&] {
         click_logs::CriteoGenerator({.examples = 1}).write(with_zero("a.txt"));
       }},
      {"save_weights",
       [&] { training::save_weights(*model, with_zero("weights")); }},
      {"has_weights",
       [&] { training::has_weights(*model, with_zero("weights")); }},
      {"load_weights",
       [&] { training::load_weights(*model, with_zero("weights")); }},
      {"FileLock",
       [&] { FileLock::per_process(with_zero("lock"), "[test]", "Wait."); }},
  };
  const auto listing = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
      files[entry.path().string()] =
          entry.is_regular_file() ? read_file(entry.path()) : "";
    }
    return files;
  };
  const auto files = listing();
  for (const auto& [name, raise] : cases) {
    SCOPED_TRACE(name);
    EXPECT_VALUE_ERROR(
        raise(), "expected a path without a zero byte, but got '");
    EXPECT_VALUE_ERROR(raise(), "\\0x'. Choose another path.");
  }
  EXPECT_TRUE(listing() == files);
  EXPECT_EQ(bytes_of(layer), before);
}

// The files are sparse, so they take no room on the disk.
TEST(LargeFilesTest, ALargeManifestIsRefusedBeforeItIsRead) {
  const MemoryFolder folder;
  auto layer = make_layer();
  layer->save_checkpoint(folder / "run");
  const std::string before = bytes_of(layer);
  const std::string manifest = folder / "run/checkpoint_000001/manifest.json";
  fs::resize_file(manifest, 200'000'000'000);
  const std::string problem = "'" + manifest +
      "' is too large: expected at most 1073741824 bytes, but got 200000000000";
  EXPECT_VALUE_ERROR(layer->load_checkpoint(folder / "run"), problem);
  EXPECT_VALUE_ERROR(saved_features(folder / "run"), problem);
  EXPECT_EQ(bytes_of(layer), before);
}

TEST(LargeFilesTest, ExtraIsComparedWithTheManifestBeforeItIsRead) {
  const MemoryFolder folder;
  auto layer = make_layer();
  layer->save_checkpoint(
      folder / "run", {.extra = [](torch::serialize::OutputArchive& archive) {
        archive.write("a", c10::IValue(int64_t{1}));
      }});
  const std::string extra = folder / "run/checkpoint_000001/extra.pt";
  const std::string size = std::to_string(fs::file_size(extra));
  fs::resize_file(extra, 200'000'000'000);
  EXPECT_VALUE_ERROR(
      layer->load_checkpoint(
          folder / "run", {.extra = [](torch::serialize::InputArchive&) {}}),
      "'" + extra + "' must have " + size + " bytes, but has 200000000000");
}

TEST(LargeFilesTest, KeysAreComparedWithTheManifestBeforeTheyAreRead) {
  const MemoryFolder folder;
  const TablePtr users = make_table(
      {.name = "users",
       .dim = 2,
       .keys = DynamicKeys{
           .capacity = 5,
           .admission = admission::AfterOccurrences{.count = 2}}});
  TPUEmbedding layer(features_of({{"user", users}}), optim::Adagrad{});
  const Features batch{{"user", int64s({7, -7, 7, -7, 1})}};
  layer->forward(batch)["user"].sum().backward();
  layer->save_checkpoint(folder / "run");
  layer->update_embedding_table("users", int64s({1, 2, 3}), at::ones({3, 2}));
  const std::string before = bytes_of(layer);
  for (const char* name :
       {"keys", "key_updates", "key_frequencies", "sketch", "parameters"}) {
    const fs::path file = folder.path() / "run/checkpoint_000001" /
        fmt::format("table_0.{}.0", name);
    const auto size = fs::file_size(file);
    fs::resize_file(file, 200'000'000'000);
    EXPECT_VALUE_ERROR(
        layer->load_checkpoint(folder / "run"),
        fmt::format(
            "'{}' must have {} bytes, but has 200000000000",
            file.string(),
            size));
    fs::resize_file(file, size);
    EXPECT_EQ(bytes_of(layer), before);
  }
  layer->load_checkpoint(folder / "run");
  EXPECT_NE(bytes_of(layer), before);
}

TEST(CheckpointNumbersTest, RefusesToSaveAfterTheLargestNumber) {
  const MemoryFolder folder;
  auto layer = make_layer();
  fs::create_directories(folder / "run/checkpoint_999999999998");
  layer->save_checkpoint(folder / "run", {.keep_last = 5});
  EXPECT_EQ(list_checkpoints(folder / "run").back(), "checkpoint_999999999999");
  layer->load_checkpoint(folder / "run");

  const std::string before = bytes_of(layer);
  EXPECT_VALUE_ERROR(
      layer->save_checkpoint(folder / "run"),
      "the directory has 'checkpoint_999999999999', and no checkpoint can have "
      "a larger number. Choose another directory");
  EXPECT_EQ(list_checkpoints(folder / "run").size(), 2);
  EXPECT_EQ(
      std::distance(
          fs::directory_iterator(folder / "run"), fs::directory_iterator()),
      2);
  EXPECT_EQ(bytes_of(layer), before);
}

TEST(CheckpointDirectoryTest, PathMayLeadThroughMissingFolders) {
  const MemoryFolder folder;
  auto layer = make_layer();
  layer->save_checkpoint(folder / "a/missing/../run");
  EXPECT_EQ(list_checkpoints(folder / "a/run").size(), 1);
  layer->load_checkpoint(folder / "a/missing/../run");
  layer->save_checkpoint(folder / "b/run/");
  EXPECT_EQ(list_checkpoints(folder / "b/run").size(), 1);
}

// After a link to a folder, ".." is the parent of that folder, not of the link.
TEST(CheckpointDirectoryTest, PathMayLeadThroughALink) {
  const MemoryFolder folder;
  auto layer = make_layer();
  fs::create_directories(folder / "far/away");
  fs::create_directory_symlink(folder / "far/away", folder / "link");
  layer->save_checkpoint(folder / "link/../run");
  EXPECT_EQ(list_checkpoints(folder / "far/run").size(), 1);
  EXPECT_FALSE(fs::exists(folder / "run"));
}

mode_t mode_of(const std::string& path) {
  struct stat status = {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(FileLockTest, KeepsTheModeOfAnExistingFile) {
  const MemoryFolder folder;
  ::chmod(folder.path().c_str(), 0777);
  const std::string secret = folder.write("secret", "mine");
  ::chmod(secret.c_str(), 0600);
  fs::create_hard_link(secret, folder / "lock");
  {
    const auto lock = FileLock::per_process(folder / "lock", "[test]", "Wait.");
    const auto holder =
        FileLock::per_holder(folder / "lock", "[test]", "Wait.");
    EXPECT_EQ(mode_of(secret), 0600);
  }
  EXPECT_EQ(read_file(secret), "mine");
  // Everybody who may write to the folder may use a new lock file.
  const auto lock = FileLock::per_process(folder / "new", "[test]", "Wait.");
  EXPECT_EQ(mode_of(folder / "new"), 0666);
}

}  // namespace tessera::test::hostile_input_test
