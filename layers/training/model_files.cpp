// SPDX-License-Identifier: Apache-2.0
#include "layers/training/model_files.h"

#include <tessera/layers/tpu_embedding.h>
#include <tessera/serialization/checkpoint.h>

#include "serialization/durable_file.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

namespace tessera {

namespace {

using Layers = std::vector<std::shared_ptr<TPUEmbeddingImpl>>;

Layers layers_of(torch::nn::Module& model) {
  Layers layers;
  // A model on the stack has no shared_ptr of itself, and is no such layer.
  for (const auto& part : model.modules(/*include_self=*/false)) {
    if (auto layer = std::dynamic_pointer_cast<TPUEmbeddingImpl>(part)) {
      if (std::find(layers.begin(), layers.end(), layer) == layers.end()) {
        layers.push_back(std::move(layer));
      }
    }
  }
  if (dynamic_cast<TPUEmbeddingImpl*>(&model) != nullptr) {
    layers.insert(
        layers.begin(),
        std::dynamic_pointer_cast<TPUEmbeddingImpl>(model.shared_from_this()));
  }
  return layers;
}

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Parameters and buffers outside of `layers`.
std::vector<NamedTensor> dense_of(
    const torch::nn::Module& model,
    const Layers& layers) {
  std::set<const at::TensorImpl*> of_layers;
  for (const auto& layer : layers) {
    for (const auto& tensor : layer->parameters()) {
      of_layers.insert(tensor.unsafeGetTensorImpl());
    }
    for (const auto& tensor : layer->buffers()) {
      of_layers.insert(tensor.unsafeGetTensorImpl());
    }
  }
  std::vector<NamedTensor> dense;
  const auto add = [&](const auto& named) {
    for (const auto& item : named) {
      if (of_layers.count(item.value().unsafeGetTensorImpl()) == 0) {
        dense.push_back({item.key(), item.value()});
      }
    }
  };
  add(model.named_parameters());
  add(model.named_buffers());
  return dense;
}

nlohmann::json read_json(
    torch::serialize::InputArchive& archive,
    const std::string& key,
    const std::string& directory) {
  c10::IValue text;
  nlohmann::json json = nlohmann::json::value_t::discarded;
  if (archive.try_read(key, text) && text.isString()) {
    json = nlohmann::json::parse(text.toStringRef(), nullptr, false);
  }
  const auto is_text = [](const nlohmann::json& item) {
    return item.is_string();
  };
  TORCH_CHECK_VALUE(
      json.is_array() && std::all_of(json.begin(), json.end(), is_text),
      "[load_model] '",
      directory,
      "' has a checkpoint, but not of a model that was saved by a Checkpoint. "
      "Use another directory.");
  return json;
}

void write_dense(
    const std::vector<NamedTensor>& dense,
    torch::serialize::OutputArchive& archive) {
  nlohmann::json names = nlohmann::json::array();
  torch::serialize::OutputArchive tensors(archive.compilation_unit());
  for (const auto& [name, tensor] : dense) {
    // A tensor named `class` could be saved, but not be loaded.
    const auto key = fmt::format("tensor_{}", names.size());
    tensors.write(key, tensor.detach(), /*is_buffer=*/true);
    names.push_back(name);
  }
  archive.write("dense", tensors);
  archive.write("dense_names", c10::IValue(names.dump()));
}

// All are read before the first is written.
void read_dense(
    const std::vector<NamedTensor>& dense,
    torch::serialize::InputArchive& archive,
    const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : dense) {
    names.push_back(entry.name);
  }
  const auto saved = read_json(archive, "dense_names", directory)
                         .get<std::vector<std::string>>();
  TORCH_CHECK_VALUE(
      saved == names,
      "[load_model] '",
      directory,
      "' was made of a model with [",
      fmt::format("{}", fmt::join(saved, ", ")),
      "], but this one has [",
      fmt::format("{}", fmt::join(names, ", ")),
      "].");
  torch::serialize::InputArchive tensors;
  archive.read("dense", tensors);
  std::vector<at::Tensor> values(dense.size());
  for (size_t i = 0; i < dense.size(); ++i) {
    tensors.read(fmt::format("tensor_{}", i), values[i], /*is_buffer=*/true);
    TORCH_CHECK_VALUE(
        values[i].sizes() == dense[i].tensor.sizes() &&
            values[i].scalar_type() == dense[i].tensor.scalar_type(),
        "[load_model] '",
        directory,
        "': ",
        dense[i].name,
        " is ",
        values[i].toString(),
        " ",
        values[i].sizes(),
        ", but in this model ",
        dense[i].tensor.toString(),
        " ",
        dense[i].tensor.sizes(),
        ".");
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < dense.size(); ++i) {
    dense[i].tensor.copy_(values[i]);
  }
}

std::string layer_directory(const std::string& directory, size_t i) {
  return fmt::format("{}/layer_{}", directory, i);
}

std::string file_of(const std::string& directory) {
  return directory + "/model.pt";
}

// Of a save that was not finished: the first layer's checkpoint, which counts,
// names an older one.
void remove_newer(const std::string& directory, const std::string& name) {
  const std::vector<std::string> names = list_checkpoints(directory);
  const auto found = std::find(names.begin(), names.end(), name);
  for (auto i = found == names.end() ? found : found + 1; i != names.end();
       ++i) {
    std::error_code ignored;
    std::filesystem::remove_all(std::filesystem::path(directory) / *i, ignored);
  }
}

}  // namespace

void save_model(
    torch::nn::Module& model,
    const std::string& directory,
    CheckpointOptions options) {
  const Layers layers = layers_of(model);
  nlohmann::json names = nlohmann::json::array();
  for (size_t i = 1; i < layers.size(); ++i) {
    // One more: until the first layer has saved, its newest names the older.
    CheckpointOptions own = options;
    own.extra = nullptr;
    ++own.keep_last;
    const std::string folder = layer_directory(directory, i);
    layers[i]->save_checkpoint(folder, own);
    names.push_back(list_checkpoints(folder).back());
  }
  const auto dense = dense_of(model, layers);
  const auto write = [&](torch::serialize::OutputArchive& archive) {
    write_dense(dense, archive);
    archive.write("layers", c10::IValue(names.dump()));
    if (options.extra != nullptr) {
      options.extra(archive);
    }
  };
  if (!layers.empty()) {
    CheckpointOptions own = options;
    own.extra = write;
    layers[0]->save_checkpoint(directory, own);
    return;
  }
  torch::serialize::OutputArchive archive;
  write(archive);
  std::filesystem::create_directories(directory);
  DurableFile file(file_of(directory), "[save_model]");
  archive.save_to([&](const void* data, size_t size) {
    file.write(data, size);
    return size;
  });
  file.commit();
}

bool has_model(torch::nn::Module& model, const std::string& directory) {
  return layers_of(model).empty() ? std::filesystem::exists(file_of(directory))
                                  : !list_checkpoints(directory).empty();
}

bool load_model(
    torch::nn::Module& model,
    const std::string& directory,
    const std::function<void(torch::serialize::InputArchive&)>& extra) {
  if (!has_model(model, directory)) {
    return false;
  }
  const Layers layers = layers_of(model);
  const auto dense = dense_of(model, layers);
  std::vector<std::string> names;
  const auto read = [&](torch::serialize::InputArchive& archive) {
    names =
        read_json(archive, "layers", directory).get<std::vector<std::string>>();
    TORCH_CHECK_VALUE(
        names.size() + 1 == std::max<size_t>(1, layers.size()),
        "[load_model] '",
        directory,
        "' was made of a model with ",
        names.size() + 1,
        " TPUEmbedding layers, but this one has ",
        layers.size(),
        ".");
    read_dense(dense, archive, directory);
    if (extra != nullptr) {
      extra(archive);
    }
  };
  if (layers.empty()) {
    torch::serialize::InputArchive archive;
    archive.load_from(file_of(directory));
    read(archive);
    return true;
  }
  layers[0]->load_checkpoint(directory, {.extra = read});
  for (size_t i = 1; i < layers.size(); ++i) {
    const std::string folder = layer_directory(directory, i);
    remove_newer(folder, names[i - 1]);
    layers[i]->load_checkpoint(folder, {.checkpoint = names[i - 1]});
  }
  return true;
}

void check_model_directory(
    const std::string& directory,
    const std::string& where) {
  TORCH_CHECK_VALUE(
      !directory.empty(), where, " expected a directory, but got none.");
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  TORCH_CHECK(
      std::filesystem::is_directory(directory),
      where,
      " ",
      directory,
      ": the directory can't be made: ",
      error.message(),
      ".");
  const DurableFile probe(directory + "/probe", where);
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

}  // namespace tessera
