// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/model_files.h"

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/partial_tpu_embedding.h>
#include <tessera/serialization/checkpoint.h>
#include <tessera/serialization/config_values.h>

#include "serialization/checkpoint_reader.h"
#include "serialization/checkpoint_writer.h"
#include "serialization/file_lock.h"
#include "serialization/mapped_file.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"
#include "src/common/checked_archive.h"
#include "src/common/checksum.h"
#include "src/common/files.h"
#include "src/common/rank_group.h"
#include "src/common/tensor_text.h"
#include "src/engine/embedding_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace tessera::training {

namespace {

// Modules with tables. Each of them writes its own checkpoints.
using Layers = std::vector<std::shared_ptr<torch::nn::Module>>;

TableModule& tables_of(const std::shared_ptr<torch::nn::Module>& layer) {
  return *TableModule::of(*layer);
}

// The layers with tables, in the order in which they are saved. Sharded layers come
// first: all ranks write their checkpoint, and rank 0 completes it. Then come layers with
// Strategy::fused(), so that a layer keeps its place when it is loaded without shards.
Layers layers_of(torch::nn::Module& model) {
  Layers layers;
  // A model on the stack has no shared_ptr of itself, so include_self would raise an
  // error.
  for (const auto& part : model.modules(/*include_self=*/false)) {
    if (TableModule::of(*part) != nullptr &&
        std::ranges::find(layers, part) == layers.end()) {
      layers.push_back(part);
    }
  }
  if (TableModule::of(model)) {
    layers.insert(layers.begin(), model.shared_from_this());
  }
  std::ranges::stable_sort(layers, {}, [](const auto& layer) {
    const Strategy strategy = tables_of(layer).strategy();
    return strategy.is_sharded() ? 0 : strategy.is_fused() ? 1 : 2;
  });
  return layers;
}

// A parameter or buffer, and its name in the model.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// The parameters, and then the buffers, of the model that are not in `layers`.
std::vector<NamedTensor> dense_of(
    const torch::nn::Module& model,
    const Layers& layers) {
  std::set<const at::TensorImpl*> layer_tensors;
  for (const auto& layer : layers) {
    for (const auto& tensors : {layer->parameters(), layer->buffers()}) {
      for (const at::Tensor& tensor : tensors) {
        layer_tensors.insert(tensor.unsafeGetTensorImpl());
      }
    }
  }
  std::vector<NamedTensor> dense;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      if (layer_tensors.count(item.value().unsafeGetTensorImpl()) == 0) {
        dense.push_back({item.key(), item.value()});
      }
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  return dense;
}

// The directory of a model.
struct Place {
  const std::string& directory;
  const std::string& where;  // begins messages

  // The beginning of a message about the directory.
  std::string text() const {
    return fmt::format("{} '{}'", where, directory);
  }
  std::string file() const {
    return directory + "/model.pt";
  }
  // The folder of the checkpoints of one layer.
  std::string folder(size_t layer) const {
    return layer == 0 ? directory
                      : fmt::format("{}/layer_{}", directory, layer);
  }
};

std::vector<std::string> read_names(
    torch::serialize::InputArchive& archive,
    const std::string& key,
    const Place& place) {
  c10::IValue text;
  TESSERA_CHECK_VALUE(
      archive.try_read(key, text) && text.isString(),
      "{} has a checkpoint, but save_weights() or a Checkpoint has not saved it. Choose another directory.",
      place.text());
  const Json names =
      parse_json(text.toStringRef(), fmt::format("{} {}:", place.text(), key));
  TESSERA_CHECK_VALUE(
      names.is_array() && std::ranges::all_of(names, &Json::is_string),
      "{}: {} must be a list of names, but is {}. The checkpoint is damaged. Load an earlier checkpoint, or a copy.",
      place.text(),
      key,
      shorten(names.dump()));
  return names.get<std::vector<std::string>>();
}

void write_dense(
    const std::vector<NamedTensor>& dense,
    torch::serialize::OutputArchive& archive) {
  Json names = Json::array();
  torch::serialize::OutputArchive tensors(archive.compilation_unit());
  for (const auto& [name, tensor] : dense) {
    // The keys are numbers, because LibTorch saves a tensor named `class` but cannot load
    // it.
    const auto key = fmt::format("tensor_{}", names.size());
    tensors.write(key, tensor.detach(), /*is_buffer=*/true);
    names.push_back(name);
  }
  archive.write("dense", tensors);
  archive.write("dense_names", c10::IValue(names.dump()));
}

// Returns the saved values of `dense`, in the same order.
std::vector<at::Tensor> read_dense(
    const std::vector<NamedTensor>& dense,
    torch::serialize::InputArchive& archive,
    const Place& place) {
  const auto names =
      c10::fmap(dense, [](const auto& entry) { return entry.name; });
  const auto saved = read_names(archive, "dense_names", place);
  TESSERA_CHECK_VALUE(
      saved == names,
      "{} was saved from a model with the tensors [{}], but this model has [{}]. Load into a model with the same modules. If layers of yours make parameters in their first forward(), call it or build() before.",
      place.text(),
      shorten_all(saved),
      shorten_all(names));
  torch::serialize::InputArchive tensors;
  archive.read("dense", tensors);
  std::vector<at::Tensor> values(dense.size());
  for (size_t i = 0; i < dense.size(); ++i) {
    tensors.read(fmt::format("tensor_{}", i), values[i], /*is_buffer=*/true);
    TESSERA_CHECK_VALUE(
        !tessera::detail::is_unsized(dense[i].tensor) ||
            tessera::detail::is_unsized(values[i]),
        "{}: the saved {} is {}, but its layer in this model is not built, and the checkpoint does not have the shapes to build it for. Call build() or forward() of the model once before.",
        place.text(),
        dense[i].name,
        describe(values[i]));
    TESSERA_CHECK_VALUE(
        values[i].sizes() == dense[i].tensor.sizes() &&
            values[i].scalar_type() == dense[i].tensor.scalar_type(),
        "{}: the saved {} is {}, but that of this model is {}. Load into a model with the same sizes.",
        place.text(),
        dense[i].name,
        describe(values[i]),
        describe(dense[i].tensor));
  }
  return values;
}

// The names of the checkpoints of the layers after the first.
constexpr const char* kLayers = "layers";
constexpr const char* kLayerShapes = "layer_shapes";

// Calls visit(path, layer) for the layers whose parameters get their sizes from build().
// Layers with tables are left out, because tables have their sizes before build().
template <class Visit>
void for_each_built_layer(torch::nn::Module& model, Visit visit) {
  const auto visit_part = [&](const std::string& path,
                              torch::nn::Module& part) {
    auto* layer = dynamic_cast<Layer*>(&part);
    if (layer != nullptr && !TableModule::of(part) &&
        dynamic_cast<PartialTPUEmbeddingImpl*>(&part) == nullptr) {
      visit(path, *layer);
    }
  };
  visit_part("", model);
  for (const auto& part : model.named_modules("", /*include_self=*/false)) {
    visit_part(part.key(), *part.value());
  }
}

// The shapes that the layers were built for, by their paths.
Json shapes_of_layers(torch::nn::Module& model) {
  Json shapes = Json::object();
  for_each_built_layer(model, [&](const std::string& path, Layer& layer) {
    if (const auto built = layer.input_shapes()) {
      shapes[path] = JsonValue<Nest<PartialShape>>::write(*built);
    }
  });
  return shapes;
}

// Builds the layers that are not built, for the shapes that were saved. This way, a
// training whose layers were built by its first step can be resumed. Older checkpoints have
// no shapes.
void build_layers(
    torch::nn::Module& model,
    torch::serialize::InputArchive& archive,
    const Place& place) {
  c10::IValue text;
  if (!archive.try_read(kLayerShapes, text) || !text.isString()) {
    return;
  }
  const std::string where = fmt::format("{} {}", place.text(), kLayerShapes);
  const Json shapes = parse_json(text.toStringRef(), where + ":");
  for_each_built_layer(model, [&](const std::string& path, Layer& layer) {
    if (!layer.input_shapes() && shapes.contains(path)) {
      layer.build(JsonValue<Nest<PartialShape>>::read(shapes.at(path), where));
    }
  });
}

// model.pt ends with a checksum. An entry of its archive says that it has one.
constexpr const char* kHasChecksum = "ends_with_checksum";

// Reads the archive in model.pt. Files written before checksums existed are read, too.
// Errors:  c10::Error for a damaged file.
void read_model_file(
    std::string_view bytes,
    torch::serialize::InputArchive& archive) {
  const bool has_checksum = read_archive_file(bytes, archive);
  c10::IValue unused;
  TESSERA_CHECK_VALUE(
      has_checksum || !archive.try_read(kHasChecksum, unused),
      "it does not end with its checksum");
}

// Reads the archive with everything but the tables. It is a part of the first layer's
// checkpoint, or model.pt if `checkpoint` is empty.
torch::serialize::InputArchive read_rest(
    const Place& place,
    const std::string& checkpoint) {
  const auto& [directory, where] = place;
  torch::serialize::InputArchive archive;
  if (checkpoint.empty()) {
    const MappedFile file(place.file(), where);
    try {
      read_model_file(file.text(), archive);
    } catch (const c10::Error& error) {
      TESSERA_CHECK(
          false,
          "{} '{}' can't be read: {}. The file may be truncated or damaged. Use another copy.",
          where,
          place.file(),
          error.what_without_backtrace());
    }
    return archive;
  }
  const CheckpointLink link = read_link(directory, checkpoint, where);
  TESSERA_CHECK_VALUE(
      link.manifest.extra.has_value(),
      "{} has a checkpoint of tables, but not of a whole model. Choose a directory of save_weights() or a Checkpoint.",
      place.text());
  std::istringstream stream(
      CheckpointReader(directory, checkpoint, where).read_extra());
  archive.load_from(stream);
  return archive;
}

// Removes checkpoints that unfinished saves have left in the folders of the layers after
// the first: those that are newer than the one that the first layer's newest checkpoint
// names. If they stayed, `keep_last` could delete the named one.
void remove_orphans(const Place& place, size_t layers) {
  const std::string& where = place.where;
  const std::vector<std::string> complete =
      list_checkpoints(place.directory, where);
  if (complete.empty()) {
    return;
  }
  std::vector<std::string> named;
  try {
    auto archive = read_rest(place, complete.back());
    named = read_names(archive, kLayers, place);
  } catch (const c10::Error&) {
    return;  // without the archive, it is unknown which checkpoints are needed
  }
  Disk disk(where);
  for (size_t i = 1; i < layers && i <= named.size(); ++i) {
    const std::string folder = place.folder(i);
    const std::vector<std::string> names = list_checkpoints(folder, where);
    const auto found = std::find(names.rbegin(), names.rend(), named[i - 1]);
    if (found == names.rend()) {
      continue;
    }
    remove_checkpoints(folder, {names.rbegin(), found}, disk);
  }
}

// The name of the newest checkpoint, which is empty for model.pt. nullopt if there is
// none.
std::optional<std::string> find_newest(
    const Layers& layers,
    const Place& place) {
  if (!layers.empty()) {
    const std::vector<std::string> names =
        list_checkpoints(place.directory, place.where);
    return names.empty() ? std::nullopt : std::optional(names.back());
  }
  std::error_code error;
  const auto type = std::filesystem::status(place.file(), error).type();
  TESSERA_CHECK(
      type != std::filesystem::file_type::none,
      "{} can't look for '{}': {}. {}",
      place.where,
      place.file(),
      error.message(),
      advice_to_read(error.value()));
  return type == std::filesystem::file_type::regular
      ? std::optional<std::string>("")
      : std::nullopt;
}

void make_directory(const std::string& directory, const std::string& where) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    errno = error.value();
    fail_to_write(where, directory, "the directory can't be made");
  }
}

// Writes model.pt with the entries that `write` adds.
template <class Write>
void save_file(const Place& place, Write write) {
  torch::serialize::OutputArchive archive;
  write(archive);
  archive.write(kHasChecksum, c10::IValue(true));
  make_directory(place.directory, place.where);
  AtomicFile file(place.file(), place.where);
  Checksum checksum;
  file.write_by([&](auto to) {
    archive.save_to([&](const void* data, size_t size) {
      checksum.add(data, size);
      return to(data, size);
    });
  });
  const std::string end = checksum_ending(checksum.digits());
  file.write(end.data(), end.size());
  file.commit();
}

// Raises the errors that loading layer `i` would raise. It changes nothing.
void check_layer(
    const TableModule& tables,
    const Place& place,
    size_t i,
    const std::string& checkpoint) {
  const std::string folder = place.folder(i);
  const std::string& where = place.where;
  CheckpointReader reader(
      folder, choose_checkpoint(folder, checkpoint, where), where);
  const EmbeddingState& state = tables.state();
  LoadPlan plan = plan_load(state, reader.saved(), {}, where);
  // Loading the first layer verifies its files before anything is changed.
  if (i > 0) {
    reader.check_files(state, plan);
  }
}

}  // namespace

void save_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory,
    CheckpointOptions options,
    const std::string& where) {
  const Layers layers = layers_of(model);
  const Place place{directory, where};
  const auto rendezvous = Rendezvous::kSaveCheckpoint;
  // Rank 0 holds the lock until all layers are saved.
  std::optional<FileLock> lock;
  if (layers.size() > 1) {
    ranks->run_on_all_ranks(rendezvous, [&] { validate(options, where); });
    ranks->broadcast(rendezvous, [&] {
      make_directory(directory, where);
      lock.emplace(FileLock::per_holder(
          directory + "/.lock",
          where,
          "Let one save at a time write into this directory."));
      remove_orphans(place, layers.size());
    });
  }
  Json names = Json::array();
  for (size_t i = 1; i < layers.size(); ++i) {
    // Keeps one checkpoint more. Until the first layer is saved, the newest checkpoint of
    // that layer names the previous checkpoint of this layer.
    CheckpointOptions own = options;
    own.extra = nullptr;
    ++own.keep_last;
    const std::string folder = place.folder(i);
    const bool is_sharded = tables_of(layers[i]).strategy().is_sharded();
    if (is_sharded) {
      tables_of(layers[i]).save_tables(folder, own, where);
    }
    // A layer that is not sharded is equal on all ranks, so rank 0 saves it.
    names.push_back(ranks->broadcast(rendezvous, [&] {
      if (!is_sharded) {
        tables_of(layers[i]).save_tables(folder, own, where);
      }
      return list_checkpoints(folder, where).back();
    }));
  }
  const auto dense = dense_of(model, layers);
  const auto write = [&](torch::serialize::OutputArchive& archive) {
    write_dense(dense, archive);
    archive.write(kLayers, c10::IValue(names.dump()));
    archive.write(kLayerShapes, c10::IValue(shapes_of_layers(model).dump()));
    if (options.extra != nullptr) {
      options.extra(archive);
    }
  };
  const auto save = [&] {
    if (!layers.empty()) {
      CheckpointOptions own = options;
      own.extra = write;
      tables_of(layers[0]).save_tables(directory, own, where);
    } else {
      save_file(place, write);
    }
  };
  if (!layers.empty() && tables_of(layers[0]).strategy().is_sharded()) {
    save();
  } else {
    ranks->broadcast(rendezvous, save);
  }
}

bool has_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory,
    const std::string& where) {
  const Layers layers = layers_of(model);
  return ranks->broadcast(Rendezvous::kLoadCheckpoint, [&] {
    return find_newest(layers, {directory, where}).has_value();
  });
}

bool peek_model(
    torch::nn::Module& model,
    const std::string& directory,
    const std::string& where,
    const std::function<void(torch::serialize::InputArchive&)>& extra) {
  const Place place{directory, where};
  const auto newest = find_newest(layers_of(model), place);
  if (!newest) {
    return false;
  }
  auto archive = read_rest(place, *newest);
  extra(archive);
  return true;
}

bool load_model(
    torch::nn::Module& model,
    const Ranks& ranks,
    const std::string& directory,
    const std::string& where,
    const std::function<void(torch::serialize::InputArchive&)>& extra) {
  const Layers layers = layers_of(model);
  const Place place{directory, where};
  // Rank 0 chooses for all ranks, because a newer checkpoint may appear meanwhile.
  std::optional<std::string> newest;
  const bool is_there = ranks->broadcast(Rendezvous::kLoadCheckpoint, [&] {
    newest = find_newest(layers, place);
    return newest.has_value();
  });
  if (!is_there) {
    return false;
  }
  std::vector<std::string> names{
      ranks->broadcast(Rendezvous::kLoadCheckpoint, [&] { return *newest; })};
  std::vector<NamedTensor> dense;
  std::vector<at::Tensor> values;
  ranks->run_on_all_ranks(Rendezvous::kLoadCheckpoint, [&] {
    auto archive = read_rest(place, names[0]);
    std::ranges::move(
        read_names(archive, kLayers, place), std::back_inserter(names));
    TESSERA_CHECK_VALUE(
        names.size() == std::max<size_t>(1, layers.size()),
        "{} was saved from a model with {} layers with tables, but this model has {}. Load into a model with the same layers.",
        place.text(),
        names.size(),
        layers.size());
    build_layers(model, archive, place);
    dense = dense_of(model, layers);
    values = read_dense(dense, archive, place);
    for (size_t i = 0; i < layers.size(); ++i) {
      check_layer(tables_of(layers[i]), place, i, names[i]);
    }
    if (extra != nullptr) {
      extra(archive);
    }
  });
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto load = [&] {
      tables_of(layers[i]).load_tables(
          place.folder(i), {.checkpoint = names[i]}, where);
    };
    if (tables_of(layers[i]).strategy().is_sharded()) {
      load();
    } else {
      ranks->run_on_all_ranks(Rendezvous::kLoadCheckpoint, load);
    }
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < dense.size(); ++i) {
    dense[i].tensor.copy_(values[i]);
  }
  return true;
}

void check_directory(const std::string& directory, const std::string& where) {
  TESSERA_CHECK_VALUE(
      !directory.empty(),
      "{} expected a directory, but got an empty path. Pass the path of a directory.",
      where);
  check_path(directory, where);
}

void check_model_directory(
    const std::string& directory,
    const std::string& where) {
  check_directory(directory, where);
  make_directory(directory, where);
  const AtomicFile probe(directory + "/probe", where);
}

std::shared_ptr<void> lock_for_training(
    const Ranks& ranks,
    const std::string& directory) {
  std::shared_ptr<void> lock;
  ranks->broadcast(Rendezvous::kTrain, [&] {
    lock = std::make_shared<FileLock>(FileLock::per_process(
        directory + "/.training_lock",
        "[Checkpoint]",
        "Let one process at a time train with this directory."));
  });
  return lock;
}

std::string model_to_bytes(const torch::nn::Module& model) {
  torch::serialize::OutputArchive archive;
  model.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

void model_from_bytes(torch::nn::Module& model, const std::string& bytes) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size());
  model.load(archive);
}

}  // namespace tessera::training
