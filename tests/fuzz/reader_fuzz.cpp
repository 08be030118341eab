// SPDX-License-Identifier: Apache-2.0
// Fuzzes everything that reads bytes from files: the manifest of a checkpoint, its files
// of keys, a layer's archive, .npy and safetensors files, lines of click logs, a pipeline of
// features, and any JSON. Whatever the bytes are, a reader must return a value or
// throw a c10::Error.
#include "packages/data/src/criteo_line.h"
#include "serialization/archive.h"
#include "serialization/checkpoint_reader.h"
#include "serialization/checkpoint_writer.h"
#include "serialization/manifest.h"
#include "src/common/checked_archive.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"
#include "tests/fuzz/fuzz_util.h"

#include <tessera/common/json_text.h>
#include <tessera/data/criteo_reader.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/formats/npy.h>
#include <tessera/formats/safetensors.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/serialization/saved_features.h>

#include <sstream>

namespace tessera::test {
namespace {

// Any text with a correct checksum, so that mutations reach the code behind the
// check.
void fuzz_manifest(FuzzedDataProvider& data) {
  std::string text = data.ConsumeRemainingBytesAsString();
  text += ",\"xxh3\":\"";
  text += checksum_of(text);
  text += "\"}\n";
  succeeds([&] {
    const Manifest manifest = manifest_from_text(text, "[fuzz]");
    // An accepted manifest is written and read again.
    const std::string rewritten = to_text(manifest);
    require(
        to_text(manifest_from_text(rewritten, "[fuzz]")) == rewritten,
        "a manifest changes when it is written");
  });
}

const Nest<FeatureConfig>& configs() {
  static const Nest<FeatureConfig> configs{
      {"a",
       FeatureConfig{
           .table = make_table({.name = "t", .vocabulary_size = 3, .dim = 2})}},
      {"b",
       FeatureConfig{
           .table = make_table(
               {.name = "k",
                .dim = 2,
                .keys = DynamicKeys{
                    .capacity = 3,
                    .admission = admission::AfterOccurrences{.count = 2}}})}}};
  return configs;
}

// Makes three keys with rows and slots.
void add_keys(TableState& table) {
  const std::vector<int64_t> keys{-5, 7, 1 << 20, 7, -5, 1 << 20};
  std::vector<uint32_t> rows(keys.size());
  KeyIndex& index = table.key_rows->index();
  const KeyOccurrences occurrences{
      .keys = keys.data(),
      .size = static_cast<int64_t>(keys.size()),
      .rows = rows.data()};
  index.apply(index.plan(occurrences, /*update=*/1));
  for (const uint32_t row : rows) {
    table.parameters[row].fill_(static_cast<double>(row) + 0.5);
    table.slots[0].values[row].fill_(2.0);
  }
}

// Whether two tables have the same keys, rows and slots. Rows may have other numbers.
bool has_same_keys(const TableState& a, const TableState& b) {
  const auto x = a.key_rows->index().sorted_entries();
  const auto y = b.key_rows->index().sorted_entries();
  bool equal = x.size() == y.size() &&
      a.key_rows->index().sketch() == b.key_rows->index().sketch() &&
      a.key_rows->index().counts() == b.key_rows->index().counts();
  for (size_t i = 0; equal && i < x.size(); ++i) {
    equal = x[i].key == y[i].key && x[i].last_update == y[i].last_update &&
        at::equal(a.parameters[x[i].row], b.parameters[y[i].row]) &&
        at::equal(a.slots[0].values[x[i].row], b.slots[0].values[y[i].row]);
  }
  return equal;
}

bool is_same(const EmbeddingState& a, const EmbeddingState& b) {
  return a.passes == b.passes &&
      at::equal(a.tables[0].parameters, b.tables[0].parameters) &&
      at::equal(a.tables[0].slots[0].values, b.tables[0].slots[0].values) &&
      has_same_keys(a.tables[1], b.tables[1]);
}

at::Tensor any_tensor(FuzzedDataProvider& data) {
  constexpr at::ScalarType kTypes[] = {
      at::kFloat, at::kDouble, at::kLong, at::kHalf, at::kBool, at::kByte};
  std::vector<int64_t> shape;
  for (int i = data.ConsumeIntegralInRange(0, 3); i > 0; --i) {
    shape.push_back(data.ConsumeIntegralInRange(0, 4));
  }
  return at::zeros(shape, kTypes[data.ConsumeIntegralInRange(0, 5)]);
}

// Writes some entries of a layer's archive, with any type and value.
void write_entries(
    FuzzedDataProvider& data,
    torch::serialize::OutputArchive& archive,
    int depth) {
  const char* names[] = {
      "format_version",
      "config",
      "iterations",
      "table_0",
      "table_1",
      "name",
      "optimizer",
      "parameters",
      "slot_accumulators",
      "keys",
      "key_updates",
      "key_frequencies",
      "key_sketch",
      "key_counts",
      kChecksumsKey};
  for (const char* name : names) {
    switch (data.ConsumeIntegralInRange(0, 8)) {
      case 0:
        break;
      case 1:
        archive.write(name, c10::IValue(data.ConsumeIntegral<int64_t>()));
        break;
      case 2:
        archive.write(name, c10::IValue(int64_t{1}));
        break;
      case 3:
        archive.write(name, c10::IValue(data.ConsumeRandomLengthString(200)));
        break;
      case 4:
        archive.write(name, any_tensor(data), /*is_buffer=*/true);
        break;
      case 5:
        archive.write(name, c10::IValue(data.ConsumeBool() ? "t" : "Adagrad"));
        break;
      default:
        if (depth > 0) {
          torch::serialize::OutputArchive entry(archive.compilation_unit());
          write_entries(data, entry, depth - 1);
          archive.write(name, entry);
        }
    }
  }
}

void fuzz_archive(FuzzedDataProvider& data) {
  torch::serialize::OutputArchive written;
  write_entries(data, written, 1);
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  static const EmbeddingState initial =
      make_state(configs(), optim::Adagrad{}, 0, WithSlots::kYes, "[fuzz]");
  EmbeddingState state = deep_copy(initial);
  LoadOptions options;
  options.slots = data.ConsumeBool();
  options.grown = data.ConsumeBool();
  if (data.ConsumeBool()) {
    options.tables = {"t"};
  }
  const bool is_loaded =
      succeeds([&] { load_state(state, archive, options, "[fuzz]"); });
  require(
      is_loaded || is_same(state, initial),
      "a load that failed has changed the layer");
  succeeds([&] { saved_features(archive); });
}

// Loads an archive with changed or missing bytes. The load must raise an error, or
// give the same as the intact archive.
void fuzz_damaged_archive(FuzzedDataProvider& data) {
  static const EmbeddingState initial =
      make_state(configs(), optim::Adagrad{}, 0, WithSlots::kYes, "[fuzz]");
  static const EmbeddingState saved = [] {
    EmbeddingState state = deep_copy(initial);
    state.passes = 5;
    state.tables[0].parameters.fill_(0.5F);
    state.tables[0].slots[0].values.fill_(2.0F);
    add_keys(state.tables[1]);
    return state;
  }();
  static const std::string intact = [] {
    torch::serialize::OutputArchive archive;
    save_state(saved, configs(), archive);
    std::ostringstream stream;
    archive.save_to(stream);
    return stream.str();
  }();
  std::string bytes = intact;
  if (data.ConsumeBool()) {
    bytes.resize(data.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1));
  }
  for (int i = data.ConsumeIntegralInRange(0, 4); i > 0 && !bytes.empty();
       --i) {
    const size_t index =
        data.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1);
    bytes[index] =
        static_cast<char>(bytes[index] ^ data.ConsumeIntegral<uint8_t>());
  }
  torch::serialize::InputArchive archive;
  try {
    archive.load_from(bytes.data(), bytes.size());
  } catch (const std::exception&) {
    return;  // LibTorch's reader throws other types, too.
  }
  c10::IValue checksums;
  if (!archive.try_read(kChecksumsKey, checksums)) {
    return;  // An archive from before checksums were saved.
  }
  EmbeddingState state = deep_copy(initial);
  const bool is_loaded =
      succeeds([&] { load_state(state, archive, {}, "[fuzz]"); });
  require(
      is_same(state, is_loaded ? saved : initial),
      "a damaged archive gives other values, or has changed the layer");
}

// A checkpoint of which the files have any bytes, with correct checksums.
void fuzz_checkpoint(FuzzedDataProvider& data) {
  static const EmbeddingState initial =
      make_state(configs(), optim::Adagrad{}, 0, WithSlots::kYes, "[fuzz]");
  static const ScratchFolder folder;
  static const std::string intact = [] {
    EmbeddingState state = deep_copy(initial);
    add_keys(state.tables[1]);
    Disk disk;
    const CheckpointOptions options{.keep_last = 2, .full_every = 2};
    save_checkpoint(state, configs(), folder.path().string(), options, disk);
    const std::vector<int64_t> keys{9, 9};
    std::vector<uint32_t> rows(keys.size());
    KeyIndex& index = state.tables[1].key_rows->index();
    index.apply(index.plan(
        KeyOccurrences{.keys = keys.data(), .size = 2, .rows = rows.data()},
        /*update=*/2));
    save_checkpoint(state, configs(), folder.path().string(), options, disk);
    return read_text(folder / "checkpoint_000002/" + kManifestFile);
  }();
  const std::string name = "checkpoint_000002/";
  Manifest manifest = manifest_from_text(intact, "[fuzz]");
  ManifestKeys& keys = *manifest.tables[1].keys;
  std::vector<ManifestTensor*> tensors{&*keys.removed};
  if (keys.sketch) {
    tensors.push_back(&*keys.sketch);
  }
  for (ManifestTensor& tensor : manifest.tables[1].tensors) {
    tensors.push_back(&tensor);
  }
  for (ManifestTensor* tensor : tensors) {
    for (ManifestPart& part : tensor->parts) {
      std::string bytes(part.file.bytes, '\0');
      data.ConsumeData(bytes.data(), bytes.size());
      folder.write(name + part.file.name, bytes);
      part.file.xxh3 = {checksum_of(bytes)};
    }
  }
  folder.write(name + kManifestFile, to_text(manifest));
  EmbeddingState state = deep_copy(initial);
  require(
      succeeds([&] {
        load_checkpoint(state, folder.path().string(), {}, "[fuzz]");
      }) ||
          is_same(state, initial),
      "a load that failed has changed the layer");
}

void fuzz_config(FuzzedDataProvider& data) {
  torch::serialize::OutputArchive written;
  written.write("config", c10::IValue(data.ConsumeRemainingBytesAsString()));
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  succeeds([&] { saved_features(archive); });
}

void fuzz_tensor_file(FuzzedDataProvider& data, bool is_npy) {
  const ScratchFile file(data.ConsumeRemainingBytesAsString());
  succeeds([&] {
    if (is_npy) {
      (void)load_npy(file.path()).sum();
    } else {
      for (const auto& [name, tensor] : load_safetensors(file.path()).tensors) {
        (void)tensor.sum();
      }
    }
  });
}

// The fast parser must accept a line if the slow one finds no problem in it, and
// only then.
void fuzz_criteo_line(FuzzedDataProvider& data) {
  std::string line = data.ConsumeRemainingBytesAsString();
  line.resize(std::min(line.size(), line.find('\n')));
  const size_t size = line.size();
  const bool is_valid = data::criteo_line_problem(line, size).empty();
  // A vector, because the sanitizer guards its end.
  std::vector<char> text(line.begin(), line.end());
  text.push_back('\n');
  text.resize(text.size() + data::kCriteoPadding, '0');
  float label = 0.0F;
  std::vector<int64_t> integers(data::kCriteoIntegers);
  std::vector<int64_t> categories(data::kCriteoCategories);
  const char* next = data::parse_criteo_line(
      text.data(),
      0,
      {.labels = &label,
       .integers = integers.data(),
       .categories = categories.data(),
       .stride = 1});
  require(
      next == (is_valid ? text.data() + size + 1 : nullptr),
      "the parsers of a line disagree");
}

void fuzz_pipeline(FuzzedDataProvider& data) {
  const std::string text = data.ConsumeRemainingBytesAsString();
  succeeds([&] {
    const data::FeaturePipeline pipeline =
        data::pipeline_from_json(parse_json(text));
    require(
        data::pipeline_from_json(parse_json(to_json(pipeline).dump())) ==
            pipeline,
        "a pipeline changes when it is written");
  });
}

// Accepted text must have the value that the JSON library's own parser gives. That
// parser accepts more texts.
void fuzz_json(FuzzedDataProvider& data) {
  const JsonLimits limits{
      .bytes = data.ConsumeIntegralInRange<size_t>(0, 4096),
      .depth = data.ConsumeIntegralInRange<size_t>(0, kMaxJsonDepth),
      .list_size = data.ConsumeIntegralInRange<size_t>(0, 100)};
  const std::string text = data.ConsumeRemainingBytesAsString();
  Json json;
  if (!succeeds([&] { json = parse_json(text, "[fuzz]", limits); })) {
    return;
  }
  require(json == Json::parse(text), "the parsers of JSON disagree");
  require(parse_json(json.dump()) == json, "JSON changes when it is written");
  Json entries = Json::object();
  const auto add = [&](const std::string& key, const Json& value) {
    entries[key] = value;
  };
  require(
      succeeds([&] { for_each_json_entry(text, "[fuzz]", limits, add); }) ==
          json.is_object(),
      "entries are read of an object, and of nothing else");
  require(!json.is_object() || entries == json, "an entry is lost");
}

}  // namespace
}  // namespace tessera::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  switch (data.ConsumeIntegralInRange(0, 9)) {
    case 0:
      tessera::test::fuzz_manifest(data);
      break;
    case 1:
      tessera::test::fuzz_archive(data);
      break;
    case 2:
      tessera::test::fuzz_config(data);
      break;
    case 3:
      tessera::test::fuzz_tensor_file(data, true);
      break;
    case 4:
      tessera::test::fuzz_tensor_file(data, false);
      break;
    case 5:
      tessera::test::fuzz_criteo_line(data);
      break;
    case 6:
      tessera::test::fuzz_pipeline(data);
      break;
    case 7:
      tessera::test::fuzz_json(data);
      break;
    case 9:
      tessera::test::fuzz_checkpoint(data);
      break;
    default:
      tessera::test::fuzz_damaged_archive(data);
  }
  return 0;
}
