// SPDX-License-Identifier: Apache-2.0
// Archives of layers and optimizers with a flipped bit or a missing end.
#include "src/common/checked_archive.h"

#include <tessera/layers/dense/cross.h>
#include <tessera/layers/layer_json.h>
#include <tessera/layers/partial_tpu_embedding.h>
#include <tessera/optim/make_optimizer.h>
#include <tessera/serialization/saved_features.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::archive_checksums_test {

using torch::serialize::InputArchive;
using torch::serialize::OutputArchive;

TPUEmbedding make_layer(uint64_t seed) {
  return layer_of(
      features_of({{"a", plain_table("t", 5, 3)}}),
      optim::Adagrad{.learning_rate = 0.5},
      {.seed = seed});
}

void train(TPUEmbedding& layer) {
  layer->forward({{"a", int64s({0, 3, 3})}})["a"].sum().backward();
}

// The number of damaged copies, and of those that were loaded without an error.
struct Damage {
  int64_t files = 0;
  int64_t loaded = 0;
};

// Loads copies of `bytes` with a flipped bit or a missing end. Checks that each
// copy is refused and leaves `values()` unchanged, or gives the values of the
// undamaged archive.
template <class Loaded>
Damage damage_of(
    const std::string& bytes,
    Loaded& loaded,
    size_t step,
    const std::function<std::string()>& values) {
  const std::string bytes_before = bytes_of(loaded);
  const std::string before = values();
  load_bytes(loaded, bytes);
  const std::string whole = values();
  EXPECT_NE(whole, before);
  Damage result;
  const auto expect = [&](const std::string& damaged, const std::string& what) {
    ++result.files;
    load_bytes(loaded, bytes_before);
    try {
      load_bytes(loaded, damaged);
    } catch (const std::exception&) {
      EXPECT_TRUE(values() == before) << "changed by an error, " << what;
      return;
    }
    ++result.loaded;
    EXPECT_TRUE(values() == whole) << "other values, " << what;
  };
  for (size_t i = 0; i < bytes.size(); i += step) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i / step % 8)));
    expect(damaged, "byte " + std::to_string(i));
  }
  for (size_t size = 0; size < bytes.size(); size += 31 * step) {
    expect(bytes.substr(0, size), std::to_string(size) + " bytes");
  }
  return result;
}

template <class Loaded>
Damage damage_of(const std::string& bytes, Loaded& loaded, size_t step) {
  return damage_of(bytes, loaded, step, [&] { return bytes_of(loaded); });
}

TEST(ArchiveChecksumsTest, ADamagedLayerIsRefusedOrLoadsTheSameValues) {
  TPUEmbedding layer = make_layer(0);
  train(layer);
  TPUEmbedding loaded = make_layer(99);
  const Damage damage = damage_of(bytes_of(layer), loaded, 7);
  // Damage to the headers of records has no effect.
  EXPECT_GT(damage.loaded, 0);
  EXPECT_GT(damage.files, 2 * damage.loaded);
}

TEST(ArchiveChecksumsTest, ADamagedPartialLayerIsRefusedOrLoadsTheSameValues) {
  const auto make = [](uint64_t seed) {
    const auto table = [](const char* name, int64_t rows) {
      return FeatureConfig{.table = plain_table(name, rows, 2)};
    };
    return PartialTPUEmbedding(PartialTPUEmbeddingOptions{
        .features = {{"large", table("l", 8)}, {"small", table("s", 4)}},
        .optimizer = optim::SGD{},
        .size_threshold = 5,
        .seed = seed});
  };
  PartialTPUEmbedding loaded = make(99);
  damage_of(bytes_of(make(0)), loaded, 23);
}

struct TowerOptions {
  bool operator==(const TowerOptions&) const = default;
  template <class Self, class Visit>
  static void visit_fields(Self& /*self*/, Visit&& /*visit*/) {}
};

// A user's layer that has modules of LibTorch and Tessera.
class TowerImpl : public LayerImpl<TowerImpl, TowerOptions> {
 public:
  static constexpr const char* kClassName = "Tower";
  explicit TowerImpl(TowerOptions options = {}) : LayerImpl(options) {
    TowerImpl::reset();
  }
  void reset() override {
    layers_ = register_module(
        "layers",
        torch::nn::Sequential(
            torch::nn::Linear(3, 2), torch::nn::Linear(2, 1)));
    cross_ = register_module("cross", Cross(CrossOptions{}));
    cross_->build(PartialShape{std::nullopt, 3});
    count_ = register_buffer("count", torch::zeros({2}, torch::kLong));
  }

 private:
  torch::nn::Sequential layers_{nullptr};
  Cross cross_{nullptr};
  at::Tensor count_;
};
TORCH_MODULE(Tower);

TEST(ArchiveChecksumsTest, ADamagedTowerIsRefusedOrLoadsTheSameValues) {
  torch::manual_seed(1);
  Tower tower;
  tower->buffers()[0].fill_(3);
  Tower loaded;
  // The archives may differ, because a dimension of size 1 may have any stride.
  const auto values = [&] {
    std::vector<at::Tensor> tensors;
    for (const auto& tensors_of : {loaded->parameters(), loaded->buffers()}) {
      for (const at::Tensor& tensor : tensors_of) {
        tensors.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
      }
    }
    return bytes_of(tensors);
  };
  const Damage damage = damage_of(bytes_of(tower), loaded, 41, values);
  EXPECT_LT(damage.loaded, damage.files);
}

TEST(ArchiveChecksumsTest, ADamagedOptimizerIsRefusedOrLoadsTheSameValues) {
  const auto make = [](std::vector<at::Tensor>& parameters) {
    parameters = {torch::ones({3, 2}).set_requires_grad(true)};
    return optim::make_optimizer(optim::Adam{}, parameters);
  };
  std::vector<at::Tensor> parameters, loaded_parameters;
  const auto optimizer = make(parameters), loaded = make(loaded_parameters);
  const auto step = [](auto& optimizer, const auto& parameters) {
    parameters[0].mutable_grad() = at::full({3, 2}, 0.5);
    optimizer.step();
  };
  step(*optimizer, parameters);
  step(*optimizer, parameters);
  step(*loaded, loaded_parameters);
  damage_of(bytes_of(*optimizer), *loaded, 13);
}

TEST(ArchiveChecksumsTest, ADamagedCombinedIsRefused) {
  const auto make = [](double rate) {
    TPUEmbedding layer = layer_of(
        features_of({{"a", make_table({.vocabulary_size = 5, .dim = 3})}}),
        optim::SGD{},
        {.apply = Apply::kOnStep});
    return Combined(torch::optim::Adam(layer->parameters(), rate), {layer});
  };
  const auto rate_of = [](const Combined& combined) {
    return combined.param_groups()[0].options().get_lr();
  };
  const std::string bytes = bytes_of(make(0.1));
  std::string damaged = bytes;
  const size_t position =
      damaged.find("\x3f\xb9\x99\x99");  // 0.1 in pickle's format
  ASSERT_NE(position, std::string::npos);
  damaged[position + 1] = static_cast<char>(damaged[position + 1] ^ 1);
  Combined loaded = make(0.2);
  EXPECT_VALUE_ERROR(
      load_bytes(loaded, damaged),
      "[Combined::load] the archive is damaged, and nothing was changed. "
      "Damaged entries:\n  dense/param_groups/");
  EXPECT_EQ(rate_of(loaded), 0.2);
  load_bytes(loaded, bytes);
  EXPECT_EQ(rate_of(loaded), 0.1);
}

// Each case changes one entry and keeps the checksums of the original.
TEST(ArchiveChecksumsTest, EachDamagedEntryIsNamed) {
  const auto write = [](const std::string& damaged) {
    OutputArchive output;
    CheckedArchive archive(output), nested(output.compilation_unit());
    const auto is = [&](const char* key) { return damaged == key; };
    nested.write("values", at::arange(6, at::kFloat).view({2, 3}));
    archive.write("count", c10::IValue(3));
    archive.write("rate", c10::IValue(0.5));
    archive.write("name", c10::IValue("x"));
    archive.write("nested", nested);
    // Write the same entries once more, one of them changed, with these checksums.
    OutputArchive again;
    OutputArchive part(again.compilation_unit());
    at::Tensor values = at::arange(6, at::kFloat).view({2, 3});
    if (is("values")) {
      values[1][2] = 7;
    } else if (is("shape")) {
      values = values.view({3, 2});
    } else if (is("dtype")) {
      values = values.to(at::kDouble);
    }
    part.write(is("key") ? "other" : "values", values, true);
    again.write("count", c10::IValue(is("count") ? 4 : 3));
    again.write("rate", c10::IValue(is("rate") ? 0.25 : 0.5));
    again.write("name", c10::IValue(is("name") ? "y" : "x"));
    again.write("nested", part);
    archive.finish();
    c10::IValue text;
    reread(output).read(kChecksumsKey, text);
    std::string checksums = text.toStringRef();
    if (is("checksums")) {
      checksums[40] ^= 1;
    }
    again.write(kChecksumsKey, c10::IValue(checksums));
    return reread(again);
  };
  const auto expect = [&](const char* damaged, const std::string& problem) {
    SCOPED_TRACE(damaged);
    InputArchive archive = write(damaged);
    EXPECT_VALUE_ERROR(
        check_checksums(archive, "[here]"),
        "[here] the archive is damaged, and nothing was changed. Damaged "
        "entries:\n  " +
            problem + "\nLoad another copy");
  };
  InputArchive whole = write("nothing");
  check_checksums(whole, "[here]");
  expect("count", "count does not agree with its checksum");
  expect("rate", "rate does not agree with its checksum");
  expect("name", "name does not agree with its checksum");
  expect("values", "nested/values does not agree with its checksum");
  expect("shape", "nested/values is Float[3,2], but Float[2,3] was saved");
  expect("dtype", "nested/values is Double[2,3], but Float[2,3] was saved");
  expect("key", "nested/values is missing");
  expect("checksums", "tessera_checksums does not agree with its checksum");
  InputArchive count = write("count");
  check_checksums(count, "[here]", "name");
}

// A '/' in a key gives two entries the path "a/b".
TEST(ArchiveChecksumsTest, EntriesMayHaveTheSamePath) {
  OutputArchive output;
  CheckedArchive archive(output), part(output.compilation_unit());
  archive.write("a/b", at::full({2}, 1.0));
  part.write("b", at::full({2}, 2.0));
  archive.write("a", part);
  archive.finish();
  auto whole = reread(output);
  check_checksums(whole, "[here]");
  // The same entries with another value in a/b, and the old checksums.
  c10::IValue checksums;
  whole.read(kChecksumsKey, checksums);
  OutputArchive again;
  OutputArchive nested(again.compilation_unit());
  again.write("a/b", at::full({2}, 1.0), true);
  nested.write("b", at::full({2}, 7.0), true);
  again.write("a", nested);
  again.write(kChecksumsKey, checksums);
  auto damaged = reread(again);
  EXPECT_VALUE_ERROR(
      check_checksums(damaged, "[here]"),
      "nothing was changed. Damaged entries:\n  a/b does not agree with its "
      "checksum\nLoad");
}

// Checksums cover entries that were not written through CheckedArchive.
TEST(ArchiveChecksumsTest, CoversEntriesOfPlainArchives) {
  OutputArchive output;
  CheckedArchive archive(output);
  OutputArchive plain(output.compilation_unit());
  plain.write(
      "pair", c10::IValue(c10::ivalue::Tuple::create({0.5, int64_t{2}})));
  plain.write("list", c10::IValue(std::vector<at::Tensor>{at::ones({2})}));
  plain.write("none", c10::IValue());
  archive.write("plain", plain);
  archive.finish();
  auto read = reread(output);
  c10::IValue text;
  read.read(kChecksumsKey, text);
  EXPECT_EQ(
      std::count(text.toStringRef().begin(), text.toStringRef().end(), '\n'),
      4);
  check_checksums(read, "[here]");
}

// Writes a layer in the format without checksums.
void write_old_layer(OutputArchive& archive) {
  archive.write("format_version", c10::IValue(1));
  archive.write("config", c10::IValue("{}"));
  archive.write("iterations", c10::IValue(7));
  OutputArchive table(archive.compilation_unit());
  table.write("name", c10::IValue("t"));
  table.write("optimizer", c10::IValue("Adagrad"));
  table.write("parameters", at::full({5, 3}, 2.0), /*is_buffer=*/true);
  table.write("slot_accumulators", at::full({5, 3}, 3.0), /*is_buffer=*/true);
  archive.write("table_0", table);
}

template <class Loaded>
void load_old(
    Loaded& loaded,
    const std::function<void(OutputArchive&)>& write) {
  OutputArchive archive;
  write(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  load_bytes(loaded, stream.str());
}

TEST(ArchiveChecksumsTest, ArchivesWithoutChecksumsAreStillRead) {
  TPUEmbedding layer = make_layer(0);
  load_old(layer, write_old_layer);
  EXPECT_EQ(layer->iterations(), 7);
  EXPECT_TENSOR_EQ(layer->embedding_tables()["t"], at::full({5, 3}, 2.0));

  Tower tower;
  load_old(tower, [&](OutputArchive& archive) {
    tower->torch::nn::Module::save(archive);
  });

  auto parameters =
      std::vector<at::Tensor>{torch::ones({1}).set_requires_grad(true)};
  const auto optimizer =
      optim::make_optimizer(optim::SGD{.learning_rate = 0.5}, parameters);
  load_old(*optimizer, [](OutputArchive& archive) {
    archive.write("format_version", c10::IValue(1));
    archive.write("iterations", c10::IValue(4));
    archive.write("groups", c10::IValue(1));
    OutputArchive group(archive.compilation_unit());
    group.write("optimizer", c10::IValue("SGD"));
    group.write("learning_rate", c10::IValue(0.25));
    group.write("parameters", c10::IValue(1));
    archive.write("group_0", group);
  });
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.5);
}

TEST(ArchiveChecksumsTest, SavedFeaturesRefusesADamagedConfig) {
  const std::string bytes = bytes_of(make_layer(0));
  std::string damaged = bytes;
  const size_t position = damaged.find("vocabulary_size\":5");
  ASSERT_NE(position, std::string::npos);
  damaged[position + 17] = '6';
  auto archive = archive_of(damaged);
  EXPECT_VALUE_ERROR(
      saved_features(archive),
      "[saved_features] the archive is damaged, and nothing was changed. "
      "Damaged entries:\n  config does not agree");
}

}  // namespace tessera::test::archive_checksums_test
