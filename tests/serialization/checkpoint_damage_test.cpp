// SPDX-License-Identifier: Apache-2.0
// Tests checkpoints after crashes and on full disks, and with flipped bits and
// hostile contents.
#include <tessera/optim/optimizers/adagrad.h>

#include "serialization/checkpoint_reader.h"
#include "serialization/checkpoint_writer.h"
#include "serialization/manifest.h"
#include "src/engine/table_store.h"
#include "src/tables/key_table_rows.h"
#include "tests/serialization/recording_disk.h"
#include "tests/test_util.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::test::checkpoint_damage_test {

namespace fs = std::filesystem;

Nest<FeatureConfig> configs() {
  return {
      {"movie",
       FeatureConfig{
           .table = make_table(
               {.name = "movies", .vocabulary_size = 13, .dim = 3})}},
      {"user",
       FeatureConfig{
           .table =
               make_table({.name = "users", .vocabulary_size = 5, .dim = 1})}},
      {"word",
       FeatureConfig{
           .table = make_table(
               {.name = "words",
                .dim = 2,
                .keys = DynamicKeys{
                    .capacity = 6,
                    .admission = admission::AfterOccurrences{.count = 2}}})}}};
}

// The index of the key table.
constexpr size_t kWords = 2;

EmbeddingState make_test_state(uint64_t seed = 0) {
  return make_state(
      configs(), optim::Adagrad{}, seed, WithSlots::kYes, "[test]");
}

void change_row(TableState& table, uint32_t row, std::mt19937& random) {
  auto* values = table.parameters.mutable_data_ptr<float>();
  auto* slot = table.slots[0].values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < table.config->dim; ++i) {
    values[row * table.config->dim + i] = static_cast<float>(random());
    slot[row * table.config->dim + i] = static_cast<float>(random());
  }
}

// Admits and evicts keys, and changes the rows of those that occur.
void change_keys(TableState& table, int64_t update, std::mt19937& random) {
  KeyIndex& index = table.key_rows->index();
  std::vector<int64_t> keys(7);
  for (int64_t& key : keys) {
    key = static_cast<int64_t>(random() % 11) * 0x1234'5678'9abc'def1 - 5;
  }
  std::vector<uint32_t> rows(keys.size());
  const KeyOccurrences occurrences{
      .keys = keys.data(),
      .size = static_cast<int64_t>(keys.size()),
      .rows = rows.data()};
  index.apply(index.plan(occurrences, update));
  for (const uint32_t row : rows) {
    if (row != kNoRow) {
      change_row(table, row, random);
    }
  }
}

// Changes some rows and the counter, like an update.
void change(EmbeddingState& state, std::mt19937& random) {
  ++state.passes;
  for (TableState& table : state.tables) {
    if (table.key_rows != nullptr) {
      change_keys(table, state.passes, random);
    } else {
      change_row(
          table,
          static_cast<uint32_t>(random() % table.config->vocabulary_size),
          random);
    }
  }
}

// The rows may be numbered in another way.
bool has_equal_keys(const TableState& a, const TableState& b) {
  const KeyIndex& x = a.key_rows->index();
  const KeyIndex& y = b.key_rows->index();
  const auto with_rows = x.sorted_entries();
  const auto other = y.sorted_entries();
  bool equal = x.counts() == y.counts() && x.sketch() == y.sketch() &&
      with_rows.size() == other.size();
  for (size_t i = 0; equal && i < other.size(); ++i) {
    const KeyEntry& p = with_rows[i];
    const KeyEntry& q = other[i];
    equal = p.key == q.key && p.last_update == q.last_update &&
        p.frequency == q.frequency &&
        at::equal(a.parameters[p.row], b.parameters[q.row]) &&
        at::equal(a.slots[0].values[p.row], b.slots[0].values[q.row]);
  }
  return equal;
}

bool is_equal(const EmbeddingState& a, const EmbeddingState& b) {
  bool equal = a.passes == b.passes;
  for (size_t i = 0; i < a.tables.size(); ++i) {
    if (a.tables[i].key_rows != nullptr) {
      equal = equal && has_equal_keys(a.tables[i], b.tables[i]);
      continue;
    }
    equal = equal &&
        at::equal(a.tables[i].parameters, b.tables[i].parameters) &&
        at::equal(a.tables[i].slots[0].values, b.tables[i].slots[0].values);
  }
  return equal;
}

// Saves increments, and files of a few rows.
const CheckpointOptions kOptions{
    .keep_last = 2,
    .full_every = 3,
    .file_bytes = 60};

void save(
    EmbeddingState& state,
    const fs::path& directory,
    Disk& disk,
    const CheckpointOptions& options = kOptions) {
  save_checkpoint(state, configs(), directory.string(), options, disk);
}

// Writes a full checkpoint and two increments. Returns the last state. The key
// table is full before.
EmbeddingState write_three(const fs::path& directory, int seed = 1) {
  std::mt19937 random(seed);
  Disk disk;
  EmbeddingState state = make_test_state();
  for (int i = 0; i < 10; ++i) {
    change(state, random);
    if (i >= 7) {
      save(state, directory, disk);
    }
  }
  return deep_copy(state);
}

std::string load_error(const fs::path& directory) {
  EmbeddingState state = make_test_state(99);
  const EmbeddingState before = deep_copy(state);
  try {
    load_checkpoint(state, directory.string(), {});
  } catch (const c10::ValueError& error) {
    const std::string message = error.what_without_backtrace();
    EXPECT_TRUE(is_equal(state, before)) << "changed by: " << message;
    return message;
  }
  return "no error";
}

bool loads(const fs::path& directory, const EmbeddingState& expected) {
  EmbeddingState state = make_test_state(99);
  load_checkpoint(state, directory.string(), {});
  return is_equal(state, expected);
}

// Whether a load of the third checkpoint may not need the file. The parents' sketches are
// out of date, and so are rows of keys that were changed or removed since.
bool is_unneeded(const fs::path& file) {
  const std::string name = file.filename().string();
  return file.parent_path().filename() != "checkpoint_000003" &&
      (name.starts_with("table_2.sketch") ||
       name.starts_with("table_2.parameters") ||
       name.starts_with("table_2.slot"));
}

std::vector<fs::path> files_under(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file()) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

class CheckpointDamageTest : public testing::Test {
 protected:
  const MemoryFolder folder_;
  const fs::path run_ = folder_.path() / "run";
};

TEST_F(CheckpointDamageTest, NamesTheFileOfEveryFlippedByte) {
  const EmbeddingState last = write_three(run_);
  int64_t flips = 0;
  const auto files = files_under(run_);
  EXPECT_GT(files.size(), 30U);
  for (const fs::path& path : files) {
    const std::string intact = read_file(path);
    for (size_t i = 0; i < intact.size(); ++i) {
      std::string damaged = intact;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
      write_file(path, damaged);
      const std::string message = load_error(run_);
      if (is_unneeded(path)) {
        EXPECT_TRUE(message != "no error" || loads(run_, last)) << path;
        continue;
      }
      EXPECT_CONTAINS(
          message, c10::str("'", path.string(), "': the bytes [0, "));
      ++flips;
    }
    write_file(path, intact);
  }
  std::cout << flips << " flipped bytes in " << files.size() << " files\n";
  EXPECT_EQ(load_error(run_), "no error");
}

TEST_F(CheckpointDamageTest, NamesADamagedChunkByItsBytes) {
  const Nest<FeatureConfig> wide{
      {"wide",
       FeatureConfig{
           .table = make_table(
               {.name = "wide", .vocabulary_size = 700, .dim = 1024})}}};
  EmbeddingState state =
      make_state(wide, std::nullopt, 0, WithSlots::kYes, "[test]");
  Disk disk;
  save_checkpoint(state, wide, run_.string(), {}, disk);
  const fs::path file = run_ / "checkpoint_000001" / "table_0.parameters.0";
  std::string bytes = read_file(file);
  bytes[2'500'000] ^= 1;
  write_file(file, bytes);
  EXPECT_VALUE_ERROR(
      load_checkpoint(state, run_.string(), {}),
      "table_0.parameters.0': the bytes [2097152, 2867200) do not match");
}

TEST_F(CheckpointDamageTest, NamesTruncatedAndMissingFiles) {
  write_three(run_);
  for (const fs::path& path : files_under(run_)) {
    if (is_unneeded(path)) {
      continue;
    }
    const std::string intact = read_file(path);
    for (const size_t size :
         {size_t{0}, intact.size() / 2, intact.size() - 1, intact.size() + 1}) {
      std::string changed = intact;
      changed.resize(size, 'x');
      write_file(path, changed);
      EXPECT_CONTAINS(load_error(run_), path.string()) << path;
    }
    fs::remove(path);
    EXPECT_CONTAINS(load_error(run_), path.string()) << path;
    fs::create_directory(path);
    EXPECT_CONTAINS(load_error(run_), path.string()) << path;
    fs::remove(path);
    write_file(path, intact);
  }
  EXPECT_EQ(load_error(run_), "no error");
}

// Changes the manifest of the newest checkpoint and corrects its checksum.
class HostileManifestTest : public CheckpointDamageTest {
 protected:
  HostileManifestTest() {
    write_three(run_);
    path_ = run_ / "checkpoint_000003" / "manifest.json";
    json_ = Json::parse(read_file(path_));
    json_.erase("xxh3");
  }

  std::string error_of(const std::function<void(Json&)>& change) {
    Json json = json_;
    change(json);
    return error_of_text(json.dump());
  }
  // The error of other bytes in a file of the key table, with correct checksums.
  std::string error_of_bytes(
      const std::string& tensor,
      const std::function<void(std::string&)>& change) {
    const fs::path file = path_.parent_path() / ("table_2." + tensor + ".0");
    const std::string intact = read_file(file);
    std::string bytes = intact;
    change(bytes);
    write_file(file, bytes);
    Json json = json_;
    Json& words = json["tables"][kWords];
    std::vector<Json*> tensors{
        &words["keys"]["removed"], &words["keys"]["sketch"]};
    for (Json& entry : words["tensors"]) {
      tensors.push_back(&entry);
    }
    for (Json* entry : tensors) {
      if ((*entry)["name"] == tensor) {
        (*entry)["parts"][0]["file"]["xxh3"][0] = checksum_of(bytes);
      }
    }
    const std::string message = error_of_text(json.dump());
    write_file(file, intact);
    return message;
  }
  std::string error_of_text(std::string text) {
    text.back() = ',';
    text += "\"xxh3\":\"";
    text.append(checksum_of(text)).append("\"}\n");
    write_file(path_, text);
    return load_error(run_);
  }

  // The error of another value at a JSON pointer.
  void expect(const std::string& text, const char* at, const Json& value) {
    SCOPED_TRACE(at);
    const std::string message =
        error_of([&](Json& json) { json[Json::json_pointer(at)] = value; });
    EXPECT_CONTAINS(message, text);
  }
  // The error without the last key of a JSON pointer.
  void expect_without(const std::string& text, const char* at) {
    SCOPED_TRACE(at);
    const Json::json_pointer pointer(at);
    const std::string message = error_of([&](Json& json) {
      json[pointer.parent_pointer()].erase(pointer.back());
    });
    EXPECT_CONTAINS(message, text);
  }

  fs::path path_;
  Json json_;
};

TEST_F(HostileManifestTest, IsRefused) {
  EXPECT_EQ(error_of([](Json&) {}), "no error");
  const Json none = Json::array();
  expect("format_version must be 1, but got 2", "/format_version", 2);
  expect("expected a whole number", "/format_version", "1");
  expect_without("missing key 'tables'", "/tables");
  expect("unknown key 'more'", "/more", 1);
  expect("iterations is negative", "/iterations", -1);
  expect("increments does not fit parent", "/increments", 0);
  expect("is not the checkpoint that the increment", "/increments", 7);
  expect("increments does not fit parent", "/parent", nullptr);
  expect("is not the checkpoint that", "/parent/name", "checkpoint_000003");
  expect("parent is not a checkpoint", "/parent/name", "../other");
  expect("parent is not a checkpoint", "/parent/name", "/etc");
  expect("can't be opened", "/parent/name", "checkpoint_000009");
  expect("is not the checkpoint that", "/parent/xxh3", "0000000000000000");
  expect("listed twice", "/tables/1", json_["tables"][0]);
  expect("expected a list", "/tables/0/tensors", Json());
  expect("it has no tensors", "/tables/0/tensors", none);
  expect("is not the checkpoint that", "/tables/0/name", "actors");
  const char* touched_count = "/tables/0/touched/count";
  expect("number of touched rows must be in", touched_count, -1);
  expect("number of touched rows must be in", touched_count, 1000);
  expect("the size of the file of touched rows", touched_count, 2);
  const char* file_name = "/tables/0/tensors/0/parts/0/file/name";
  for (const char* name :
       {"/etc/passwd", "../x", "a/b", "..", ".", "", ".hidden", "a\nb"}) {
    expect("a file name must consist of", file_name, name);
  }
  expect("a file is listed twice", file_name, "table_0.touched");
  for (const int64_t bytes :
       {int64_t{-1}, int64_t{1} << 62, INT64_MAX, INT64_MIN}) {
    expect("file's", "/tables/0/tensors/0/parts/0/file/bytes", bytes);
  }
  const char* checksums = "/tables/0/tensors/0/parts/0/file/xxh3";
  expect("the number of a file's checksums", checksums, none);
  expect("the number of a file's checksums", checksums, Json{"nothing"});
  expect("expected a list", checksums, 3);
  for (const int64_t begin : {int64_t{-1}, int64_t{1}, INT64_MIN, INT64_MAX}) {
    expect("without gaps", "/tables/0/tensors/0/parts/0/begin", begin);
  }
  const char* part_end = "/tables/0/tensors/0/parts/0/end";
  for (const int64_t end : {int64_t{-1}, int64_t{0}, int64_t{14}, INT64_MAX}) {
    expect("without gaps", part_end, end);
  }
  expect("whole number", part_end, 1e30);
  expect("rows are missing", "/tables/0/tensors/0/parts", none);
  for (const auto& shape : std::vector<std::vector<int64_t>>{
           {},
           {13},
           {13, 3, 1},
           {-13, 3},
           {13, -3},
           {INT64_MAX, 3},
           {13, INT64_MAX}}) {
    const auto change = [&](Json& json) {
      json["tables"][0]["tensors"][0]["shape"] = shape;
    };
    EXPECT_NE(error_of(change), "no error");
  }
  expect("dtype must be one of", "/tables/0/tensors/0/dtype", "float64");
  expect(
      "first tensor must be parameters", "/tables/0/tensors/0/name", "slot_x");
  // A file of touched rows with a correct checksum, but without ascending rows.
  const fs::path touched = run_ / "checkpoint_000003" / "table_0.touched";
  const std::string good = read_file(touched);
  const std::string bad(good.size(), '\x7f');
  write_file(touched, bad);
  EXPECT_CONTAINS(
      error_of([&](Json& json) {
        json["tables"][0]["touched"]["file"]["xxh3"][0] = checksum_of(bad);
      }),
      "must list rows of the table in ascending order, each");
  write_file(touched, good);
  EXPECT_NE(error_of_text(std::string(100'000, '[') + "}"), "no error");
  EXPECT_NE(error_of_text("{\"a\": \"\xff\"}"), "no error");
  EXPECT_NE(error_of_text("null "), "no error");
}

TEST_F(HostileManifestTest, IsRefusedForWrongKeys) {
  expect("a count of keys is negative", "/tables/2/keys/admitted", -1);
  expect("a count of keys is negative", "/tables/2/keys/evicted", -1);
  expect("a count of keys is negative", "/tables/2/keys/dropped", -1);
  Json& tensors = json_["tables"][kWords]["tensors"];
  const auto rows = tensors[0]["shape"][0].get<int64_t>();
  const Json touched_file{
      {"name", "x"}, {"bytes", 4 * rows}, {"xxh3", {"0123456789abcdef"}}};
  expect(
      "a key table has no touched rows",
      "/tables/2/touched",
      {{"count", rows}, {"file", touched_file}});
  expect_without("missing key 'sketch'", "/tables/2/keys/sketch");
  Json keys = json_["tables"][kWords]["keys"];
  keys["sketch"]["shape"][0] = 0;
  keys["sketch"]["parts"] = Json::array();
  expect("is not the checkpoint that the increment", "/tables/2/keys", keys);
  keys["sketch"] = nullptr;
  keys["removed"] = nullptr;
  expect("only an increment may take the sketch", "/tables/2/keys", keys);
  const char* sketch_size = "/tables/2/keys/sketch/shape/0";
  expect("rows are missing", sketch_size, 25);
  expect("must be [size]", sketch_size, INT64_MAX);
  expect("must be [size]", "/tables/2/keys/sketch/shape", {24, 1});
  expect("must be [size]", "/tables/2/keys/removed/shape/0", -1);
  expect("dtype must be one of uint8", "/tables/2/keys/sketch/dtype", "int64");
  const auto expect_of = [&](const char* text,
                             const std::string& name,
                             const std::function<void(Json&)>& change) {
    Json changed = tensors;
    for (Json& tensor : changed) {
      if (tensor["name"] == name) {
        change(tensor);
      }
    }
    expect(text, "/tables/2/tensors", changed);
  };
  expect_of("dtype must be one of int64", "keys", [](Json& tensor) {
    tensor["dtype"] = "float32";
  });
  expect_of("dtype must be one of uint32", "key_updates", [](Json& tensor) {
    tensor["dtype"] = "int64";
  });
  for (const std::string name : {"keys", "key_updates", "key_frequencies"}) {
    expect_of("a tensor of its keys is missing", name, [&](Json& tensor) {
      tensor["name"] = "slot_x";
      tensor["dtype"] = "float32";
      if (name == "keys") {
        tensor["shape"].push_back(2);  // as many bytes
      }
    });
    expect_of("must be [keys]", name, [](Json& tensor) {
      tensor["shape"].push_back(1);
    });
  }
  expect_of("different numbers of rows", "keys", [](Json& tensor) {
    tensor["shape"][0] = 1;
  });
  expect_without("dtype must be one of float32", "/tables/2/keys");
}

// Files with correct checksums, but with wrong keys.
TEST_F(HostileManifestTest, IsRefusedForWrongFilesOfKeys) {
  const auto expect =
      [&](const char* text, const char* tensor, const auto& change) {
        const std::string message = error_of_bytes(tensor, change);
        EXPECT_CONTAINS(message, text);
      };
  static constexpr size_t kKey = sizeof(int64_t);
  EXPECT_EQ(error_of_bytes("keys", [](std::string&) {}), "no error");
  expect(
      "the keys of table 'words' must be in the order of their hashes",
      "keys",
      [](std::string& bytes) {
        ASSERT_GE(bytes.size(), 2 * kKey);
        std::swap_ranges(
            bytes.begin(), bytes.begin() + kKey, bytes.begin() + kKey);
      });
  expect(
      "the keys of table 'words' must be in the order of their hashes",
      "keys",
      [](std::string& bytes) {
        std::copy_n(bytes.begin(), kKey, bytes.begin() + kKey);
      });
  expect(
      "is listed as removed, but has no row in the checkpoint that it builds",
      "removed_keys",
      [](std::string& bytes) {
        ASSERT_GE(bytes.size(), kKey);
        // The hash of key 0 is 0, so the keys stay in order.
        std::fill_n(bytes.begin(), kKey, '\0');
      });
  for (const uint32_t bits : {0x7fc00000U, 0x7f800000U, 0xff800000U}) {
    expect("is not finite", "key_frequencies", [&](std::string& bytes) {
      std::memcpy(bytes.data(), &bits, sizeof(bits));
    });
  }
  // Fewer removed keys than there are: more keys than rows.
  Json json = json_;
  Json& removed = json["tables"][kWords]["keys"]["removed"];
  removed["shape"][0] = 0;
  removed["parts"] = Json::array();
  EXPECT_CONTAINS(error_of_text(json.dump()), "has a capacity of 6 rows");
}

// A manifest that is its own parent must not send a writer into an endless loop.
// The writer must not remove checkpoints on which an unreadable one may build.
TEST_F(HostileManifestTest, AWriterKeepsWhatItCannotRead) {
  error_of([](Json& json) {
    json["parent"]["name"] = "checkpoint_000003";
    json["increments"] = 1;
  });
  Disk disk;
  EmbeddingState state = make_test_state(5);
  save(state, run_, disk);
  EXPECT_EQ(list_checkpoints(run_.string()).size(), 4U);
  EXPECT_TRUE(loads(run_, state));
}

TEST_F(CheckpointDamageTest, ADamagedBaseGetsNoIncrement) {
  std::mt19937 random(1);
  Disk disk;
  EmbeddingState state = make_test_state();
  CheckpointOptions options = kOptions;
  options.full_every = 100;
  for (int i = 0; i < 3; ++i) {
    change(state, random);
    save(state, run_, disk, options);
  }
  const fs::path base = run_ / "checkpoint_000001" / "manifest.json";
  std::string text = read_file(base);
  text[10] ^= 1;
  write_file(base, text);
  change(state, random);
  save(state, run_, disk, options);  // saves a full checkpoint
  EXPECT_TRUE(loads(run_, state));
  EXPECT_EQ(list_checkpoints(run_.string()).size(), 4U);
}

// A checkpoint with all rows of a table does not need older files of it.
TEST_F(CheckpointDamageTest, DamageBeforeAFullTableDoesNotMatter) {
  std::mt19937 random(1);
  Disk disk;
  EmbeddingState state = make_test_state();
  CheckpointOptions options = kOptions;
  options.full_every = 100;
  for (int i = 0; i < 4; ++i) {
    change(state, random);
    if (i == 2) {
      for (TableState& table : state.tables) {
        table.parameters.neg_();
      }
    }
    save(state, run_, disk, options);
  }
  write_file(run_ / "checkpoint_000002" / "table_0.touched", "damaged");
  EXPECT_TRUE(loads(run_, state));
}

TEST(CheckpointReaderTest, ReadsAnyRowsFromFilesOfAnySize) {
  for (const int64_t file_rows : {1, 2, 5, 13, 100}) {
    const MemoryFolder folder;
    Disk disk;
    std::mt19937 random(static_cast<uint32_t>(file_rows));
    EmbeddingState state = make_test_state();
    for (int i = 0; i < 3; ++i) {
      change(state, random);
      save(
          state,
          folder.path() / "run",
          disk,
          {.keep_last = 9,
           .full_every = 3,
           .file_bytes = file_rows * 3 * static_cast<int64_t>(sizeof(float))});
    }
    const std::string run = folder / "run";
    CheckpointReader reader(run, choose_checkpoint(run, ""));
    const at::Tensor table = state.tables[0].parameters;
    LoadPlan plan;
    plan.copies = {{.table = 0, .key = "parameters", .to = table}};
    reader.check_files(EmbeddingState(), plan);
    for (int64_t first = 0; first < 13; ++first) {
      for (const int64_t step : {1, 2, 3, 7}) {
        const at::Tensor all = table.slice(0, first, 13, step);
        for (int64_t count = 1; count <= all.size(0); ++count) {
          at::Tensor rows = at::rand({count, 3});
          reader.read_rows(
              0,
              "parameters",
              {.first = first, .step = step},
              count,
              static_cast<char*>(rows.mutable_data_ptr()));
          EXPECT_TENSOR_EQ(rows, all.slice(0, 0, count))
              << count << " of every " << step << ". row from " << first
              << " on, from files of " << file_rows;
        }
      }
    }
  }
}

// The power fails before each step of a save. Without being synced, nothing,
// everything or random parts have reached the disk.
TEST(CheckpointCrashTest, TheLastCompleteCheckpointLoadsAfterPowerLoss) {
  struct PowerFails {};
  int64_t crashes = 0;
  int64_t steps = 1;
  std::mt19937 coin(3);
  for (int64_t failing_step = 0; failing_step < steps; ++failing_step) {
    const MemoryFolder folder;
    const fs::path run = folder.path() / "run";
    RecordingDisk disk(folder.path());
    std::mt19937 random(1);
    EmbeddingState state = make_test_state();
    for (int i = 0; i < 3; ++i) {
      change(state, random);
      save(state, run, disk);
    }
    const EmbeddingState third = deep_copy(state);
    change(state, random);
    const int64_t first = disk.steps();
    disk.before_step = [&](const std::string&) {
      if (disk.steps() == first + failing_step) {
        throw PowerFails();
      }
    };
    bool has_finished = false;
    try {
      save(state, run, disk);
      has_finished = true;
    } catch (const PowerFails&) {
    }
    steps = has_finished ? failing_step : failing_step + 2;
    for (int draw = 0; draw < 12; ++draw) {
      const MemoryFolder remains;
      disk.after_power_loss(remains.path(), [&] {
        return draw == 0 ? false : draw == 1 || coin() % 2 == 0;
      });
      EmbeddingState loaded = make_test_state(99);
      load_checkpoint(loaded, remains / "run", {});
      EXPECT_TRUE(
          is_equal(loaded, state) || (!has_finished && is_equal(loaded, third)))
          << "step " << failing_step << ", draw " << draw << ": iterations "
          << loaded.passes;
      // The next save works too.
      Disk plain;
      change(loaded, random);
      save(loaded, remains.path() / "run", plain);
      EXPECT_TRUE(loads(remains / "run", loaded));
      ++crashes;
    }
  }
  std::cout << crashes << " power losses at " << steps << " steps\n";
  EXPECT_GT(steps, 25);
}

// Each step fails once. The error reaches the caller, nothing is lost, and the
// next increment has the rows of the failed one.
TEST(CheckpointCrashTest, NothingIsLostIfTheDiskFails) {
  int64_t steps = 1;
  for (int64_t failing_step = 0; failing_step < steps; ++failing_step) {
    const MemoryFolder folder;
    const fs::path run = folder.path() / "run";
    RecordingDisk disk(folder.path());
    std::mt19937 random(1);
    EmbeddingState state = make_test_state();
    save(state, run, disk);
    change(state, random);
    save(state, run, disk);
    const EmbeddingState second = deep_copy(state);
    change(state, random);
    const int64_t first = disk.steps();
    disk.before_step = [&](const std::string& step) {
      TORCH_CHECK(
          disk.steps() != first + failing_step,
          "can't ",
          step,
          ": No space left");
    };
    bool has_finished = false;
    try {
      save(state, run, disk);
      has_finished = true;
    } catch (const c10::Error& error) {
      EXPECT_CONTAINS(std::string(error.what()), "No space left");
    }
    steps = has_finished ? failing_step : failing_step + 2;
    EmbeddingState loaded = make_test_state(99);
    load_checkpoint(loaded, run.string(), {});
    EXPECT_TRUE(is_equal(loaded, second) || is_equal(loaded, state))
        << failing_step;
    disk.before_step = [](const std::string&) {};
    change(state, random);
    save(state, run, disk);
    load_checkpoint(loaded, run.string(), {});
    EXPECT_TRUE(is_equal(loaded, state)) << "after step " << failing_step;
    for (const auto& entry : fs::directory_iterator(run)) {
      EXPECT_NE(entry.path().filename().string()[0], '.') << entry.path();
    }
  }
  EXPECT_GT(steps, 20);
}

// Runs `work` in a child process. Returns its exit status, or the negated number
// of the signal that ended it.
int run_in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 2;
    try {
      status = work();
    } catch (const std::exception& error) {
      std::cerr << error.what() << std::endl;
    }
    ::_exit(status);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Makes the next update, which each process computes alike.
void change_next(EmbeddingState& state) {
  std::mt19937 random(static_cast<uint32_t>(state.passes));
  change(state, random);
}

// Kills the process at one step of a phase. A write is interrupted in its middle.
class KilledDisk : public RecordingDisk {
 public:
  KilledDisk(const fs::path& root, std::string phase, int64_t step)
      : RecordingDisk(root), phase_(std::move(phase)), steps_left_(step) {
    before_step = [this](const std::string& name) {
      const std::string phase = in_manifest_ ? "manifest" : phase_of(name);
      if (phase == phase_ && steps_left_-- == 0 && name != "write") {
        ::raise(SIGKILL);
      }
    };
  }

  OutputFile create(const fs::path& path) override {
    in_manifest_ = path.filename() == kManifestFile;
    return RecordingDisk::create(path);
  }
  void write(OutputFile& file, const void* data, size_t size) override {
    if (steps_left_ == 0 && phase_ == (in_manifest_ ? "manifest" : "data")) {
      Disk::write(file, data, size / 2);
      ::raise(SIGKILL);
    }
    RecordingDisk::write(file, data, size);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    in_manifest_ = false;
    RecordingDisk::rename(from, to);
  }

 private:
  static std::string phase_of(const std::string& step) {
    if (step == "create" || step == "write") {
      return "data";
    }
    return step == "sync" || step == "sync_directory" ? "fsync" : "rename";
  }

  std::string phase_;
  int64_t steps_left_;
  bool in_manifest_ = false;
};

// Each killed writer leaves a complete checkpoint. The next writer continues from
// it.
TEST(CheckpointCrashTest, TheLastCompleteCheckpointLoadsAfterSigkill) {
  const MemoryFolder folder;
  const fs::path run = folder.path() / "run";
  std::map<std::string, int> kills;
  Disk disk;
  EmbeddingState last = make_test_state();
  save(last, run, disk);
  constexpr const char* kPhases[] = {"data", "fsync", "rename", "manifest"};
  for (int64_t attempt = 0; attempt < 360; ++attempt) {
    const std::string phase = kPhases[attempt % 4];
    const int64_t steps = phase == "data" ? 40
        : phase == "fsync"                ? 18
        : phase == "manifest"             ? 4
                                          : 3;
    const int64_t step = attempt / 4 % steps;
    const int status = run_in_child([&] {
      EmbeddingState state = make_test_state(99);
      load_checkpoint(state, run.string(), {});
      if (!is_equal(state, last)) {
        return 1;
      }
      KilledDisk killed(folder.path(), phase, step);
      // Saves a full checkpoint and an increment.
      for (int i = 0; i < 2; ++i) {
        change_next(state);
        save(state, run, killed);
      }
      return 0;
    });
    EXPECT_TRUE(status == 0 || status == -SIGKILL) << status;
    kills[phase] += status == -SIGKILL ? 1 : 0;
    EmbeddingState loaded = make_test_state(99);
    load_checkpoint(loaded, run.string(), {});
    EXPECT_GE(loaded.passes, last.passes);
    while (last.passes < loaded.passes) {
      change_next(last);
    }
    EXPECT_TRUE(is_equal(loaded, last));
  }
  int total = 0;
  for (const auto& [phase, count] : kills) {
    std::cout << count << " kills in phase " << phase << "\n";
    EXPECT_GE(count, 20) << phase;
    total += count;
  }
  EXPECT_GE(total, 200);
}

// Fills a small tmpfs that is mounted in its own namespace.
TEST(CheckpointCrashTest, AFullDiskIsAnError) {
  const MemoryFolder folder;
  constexpr int kNotPermitted = 77;
  const int status = run_in_child([&] {
    const int user = ::geteuid() == 0 ? 0 : CLONE_NEWUSER;
    if (::unshare(user | CLONE_NEWNS) != 0 ||
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.path().c_str(), "tmpfs", 0, "size=160k") != 0) {
      return kNotPermitted;
    }
    const Nest<FeatureConfig> configs{
        {"wide",
         FeatureConfig{
             .table = make_table(
                 {.name = "wide",
                  .vocabulary_size = 40,
                  .dim = 600})}}};  // small enough for one thread
    EmbeddingState state =
        make_state(configs, std::nullopt, 0, WithSlots::kYes, "[test]");
    const std::string run = folder / "run";
    Disk disk;
    save_checkpoint(state, configs, run, {}, disk);
    const EmbeddingState first = deep_copy(state);
    const at::NoGradGuard no_grad;
    state.tables[0].parameters.add_(1.0F);
    try {
      save_checkpoint(state, configs, run, {}, disk);
      return 3;
    } catch (const c10::Error& error) {
      const std::string message = error.what_without_backtrace();
      if (message.find("can't write to '" + run) == SIZE_MAX ||
          message.find("No space left on device") == SIZE_MAX) {
        std::cerr << message << std::endl;
        return 4;
      }
    }
    load_checkpoint(state, run, {});
    return at::equal(state.tables[0].parameters, first.tables[0].parameters)
        ? 0
        : 5;
  });
  if (status == kNotPermitted) {
    GTEST_SKIP() << "no permission to mount a tmpfs";
  }
  EXPECT_EQ(status, 0);
}

TEST(CheckpointCrashTest, RefusesASecondWriter) {
  const MemoryFolder folder;
  const fs::path run = folder.path() / "run";
  RecordingDisk disk(folder.path());
  EmbeddingState state = make_test_state();
  EmbeddingState other = make_test_state();
  bool was_refused = false;
  disk.before_step = [&](const std::string& step) {
    if (step == "sync" && !was_refused) {
      Disk second;
      EXPECT_TORCH_ERROR(
          save(other, run, second),
          "[save_checkpoint] can't lock '" + run.string() +
              "': it is in use. Let one save at a time write");
      was_refused = true;
    }
  };
  save(state, run, disk);
  EXPECT_TRUE(was_refused);
  EXPECT_EQ(list_checkpoints(run.string()).size(), 1U);
}

}  // namespace tessera::test::checkpoint_damage_test
