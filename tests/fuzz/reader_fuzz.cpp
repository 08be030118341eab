// SPDX-License-Identifier: Apache-2.0
// libFuzzer on everything that reads bytes from outside: the manifest of a
// checkpoint, a layer's archive, whole or damaged, .npy and safetensors files, lines of click logs,
// a pipeline of features, and any JSON. Whatever they hold, a reader gives a value or a
// c10::Error.
#include "serialization/archive.h"
#include "serialization/manifest.h"
#include "src/common/checked_archive.h"
#include "src/common/json_entries.h"
#include "src/data/criteo_line.h"
#include "src/engine/embedding_state.h"

#include <tessera/common/json_text.h>
#include <tessera/data/criteo_reader.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/serialization/npy.h>
#include <tessera/serialization/safetensors.h>
#include <tessera/serialization/saved_features.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <fuzzer/FuzzedDataProvider.h>
#include <nlohmann/json.hpp>
#include <torch/serialize/archive.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace tessera {
namespace {

void require(bool is_right, const char* what) {
  if (!is_right) {
    std::cerr << "reader_fuzz: " << what << "\n";
    std::abort();
  }
}

// Whether it went through; any other exception ends the program.
bool reads(const std::function<void()>& read) {
  try {
    read();
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// Any text, with the right checksum: mutations should get beyond that.
void fuzz_manifest(FuzzedDataProvider& data) {
  std::string text = data.ConsumeRemainingBytesAsString();
  text += ",\"xxh3\":\"";
  text += checksum_of(text);
  text += "\"}\n";
  reads([&] {
    const Manifest manifest = manifest_from_text(text, "[fuzz]");
    // What passes is written and read again.
    const std::string again = to_text(manifest);
    require(
        to_text(manifest_from_text(again, "[fuzz]")) == again,
        "a manifest changes when it is written");
  });
}

const Nest<FeatureConfig>& configs() {
  static const Nest<FeatureConfig> configs{
      {"a",
       FeatureConfig{
           .table =
               make_table({.name = "t", .vocabulary_size = 3, .dim = 2})}}};
  return configs;
}

at::Tensor any_tensor(FuzzedDataProvider& data) {
  constexpr at::ScalarType kTypes[] = {
      at::kFloat, at::kDouble, at::kLong, at::kHalf, at::kBool};
  std::vector<int64_t> shape;
  for (int i = data.ConsumeIntegralInRange(0, 3); i > 0; --i) {
    shape.push_back(data.ConsumeIntegralInRange(0, 4));
  }
  return at::zeros(shape, kTypes[data.ConsumeIntegralInRange(0, 4)]);
}

// Some entries of a layer's archive, of any kind and value.
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
      reads([&] { load_state(state, archive, options, "[fuzz]"); });
  require(
      is_loaded ||
          (state.iterations == 0 &&
           at::equal(state.tables[0].parameters, initial.tables[0].parameters)),
      "a load that failed has changed the layer");
  reads([&] { saved_features(archive); });
}

// The bytes of an archive, some of which have changed or are missing: a load
// raises an error, or gives what the whole archive gives.
void fuzz_damaged_archive(FuzzedDataProvider& data) {
  static const EmbeddingState initial =
      make_state(configs(), optim::Adagrad{}, 0, WithSlots::kYes, "[fuzz]");
  static const EmbeddingState saved = [] {
    EmbeddingState state = deep_copy(initial);
    state.iterations = 5;
    state.tables[0].parameters.fill_(0.5F);
    state.tables[0].slots[0].values.fill_(2.0F);
    return state;
  }();
  static const std::string whole = [] {
    torch::serialize::OutputArchive archive;
    save_state(saved, configs(), archive);
    std::ostringstream stream;
    archive.save_to(stream);
    return stream.str();
  }();
  std::string bytes = whole;
  if (data.ConsumeBool()) {
    bytes.resize(data.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1));
  }
  for (int i = data.ConsumeIntegralInRange(0, 4); i > 0 && !bytes.empty();
       --i) {
    const size_t at = data.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1);
    bytes[at] = static_cast<char>(bytes[at] ^ data.ConsumeIntegral<uint8_t>());
  }
  torch::serialize::InputArchive archive;
  try {
    archive.load_from(bytes.data(), bytes.size());
  } catch (const std::exception&) {
    return;  // LibTorch's reader has errors of other types, too.
  }
  c10::IValue checksums;
  if (!archive.try_read(kChecksumsKey, checksums)) {
    return;  // An archive of before there were checksums.
  }
  EmbeddingState state = deep_copy(initial);
  const bool is_loaded =
      reads([&] { load_state(state, archive, {}, "[fuzz]"); });
  const EmbeddingState& expected = is_loaded ? saved : initial;
  require(
      state.iterations == expected.iterations &&
          at::equal(
              state.tables[0].parameters, expected.tables[0].parameters) &&
          at::equal(
              state.tables[0].slots[0].values,
              expected.tables[0].slots[0].values),
      "a damaged archive gives other values, or has changed the layer");
}

void fuzz_config(FuzzedDataProvider& data) {
  torch::serialize::OutputArchive written;
  written.write("config", c10::IValue(data.ConsumeRemainingBytesAsString()));
  std::stringstream stream;
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  reads([&] { saved_features(archive); });
}

void fuzz_tensor_file(FuzzedDataProvider& data, bool is_npy) {
  static const std::string path = [] {
    const bool has_memory = ::access("/dev/shm", W_OK) == 0;
    return std::string(has_memory ? "/dev/shm" : "/tmp") + "/reader_fuzz." +
        std::to_string(::getpid());
  }();
  ::unlink(path.c_str());
  std::ofstream(path, std::ios::binary) << data.ConsumeRemainingBytesAsString();
  reads([&] {
    if (is_npy) {
      (void)load_npy(path).sum();
    } else {
      for (const auto& [name, tensor] : load_safetensors(path).tensors) {
        (void)tensor.sum();
      }
    }
  });
  ::unlink(path.c_str());
}

// The fast parser takes a line if the slow one finds no problem in it.
void fuzz_criteo_line(FuzzedDataProvider& data) {
  std::string line = data.ConsumeRemainingBytesAsString();
  line.resize(std::min(line.size(), line.find('\n')));
  const size_t size = line.size();
  const bool is_right = data::criteo_line_problem(line, size).empty();
  std::vector<char> text(line.begin(), line.end());  // whose end is guarded
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
      next == (is_right ? text.data() + size + 1 : nullptr),
      "the parsers of a line disagree");
}

void fuzz_pipeline(FuzzedDataProvider& data) {
  const std::string text = data.ConsumeRemainingBytesAsString();
  reads([&] {
    const data::FeaturePipeline pipeline =
        data::pipeline_from_json(parse_json(text));
    require(
        data::pipeline_from_json(parse_json(to_json(pipeline).dump())) ==
            pipeline,
        "a pipeline changes when it is written");
  });
}

// What passes is what the library's own parser reads; that takes more.
void fuzz_json(FuzzedDataProvider& data) {
  const JsonLimits limits{
      .bytes = data.ConsumeIntegralInRange<size_t>(0, 4096),
      .depth = data.ConsumeIntegralInRange<size_t>(0, kMaxJsonDepth),
      .list_size = data.ConsumeIntegralInRange<size_t>(0, 100)};
  const std::string text = data.ConsumeRemainingBytesAsString();
  Json json;
  if (!reads([&] { json = parse_json(text, "[fuzz]", limits); })) {
    return;
  }
  require(json == Json::parse(text), "the parsers of JSON disagree");
  require(parse_json(json.dump()) == json, "JSON changes when it is written");
  Json entries = Json::object();
  const auto add = [&](const std::string& key, const Json& value) {
    entries[key] = value;
  };
  require(
      reads([&] { for_each_json_entry(text, "[fuzz]", limits, add); }) ==
          json.is_object(),
      "entries are read of an object, and of nothing else");
  require(!json.is_object() || entries == json, "an entry is lost");
}

}  // namespace
}  // namespace tessera

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  switch (data.ConsumeIntegralInRange(0, 7)) {
    case 0:
      tessera::fuzz_manifest(data);
      break;
    case 1:
      tessera::fuzz_archive(data);
      break;
    case 2:
      tessera::fuzz_config(data);
      break;
    case 3:
      tessera::fuzz_tensor_file(data, true);
      break;
    case 4:
      tessera::fuzz_tensor_file(data, false);
      break;
    case 5:
      tessera::fuzz_criteo_line(data);
      break;
    case 6:
      tessera::fuzz_pipeline(data);
      break;
    case 7:
      tessera::fuzz_json(data);
      break;
    default:
      tessera::fuzz_damaged_archive(data);
  }
  return 0;
}
