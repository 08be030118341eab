// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/trace/dense_part.h"

#include <tessera/common/shorten.h>
#include <tessera/features/feature_config.h>
#include <tessera/tables/table_config.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <exception>
#include <variant>

#include "packages/export/src/trace/example_batch.h"
#include "packages/export/src/trace/resized_examples.h"
#include "packages/export/src/trace/traced_model.h"
#include "packages/export/src/trace/visit_weights.h"
#include "src/common/check.h"
#include "src/engine/forward_interception.h"
#include "src/features/batch.h"

namespace tessera::exporting {

namespace {

// Returns the prefix of each layer's feature names.
std::map<const EmbeddingState*, std::string> prefixes_of(
    const torch::nn::Module& model) {
  std::map<const EmbeddingState*, std::string> prefixes;
  for (const auto& [tables, prefix] : tables_and_prefixes(model)) {
    prefixes.emplace(&tables->state(), prefix);
  }
  return prefixes;
}

// The configs of the features that forward_partial() looks up.
Nest<FeatureConfig> part_of_structure(
    const Nest<FeatureConfig>& structure,
    const Features& features) {
  const auto part = some_part_of(structure, features);
  if (!part) {
    return structure;
  }
  const std::vector<FeatureConfig> all = structure.flatten();
  std::vector<FeatureConfig> configs;
  for (const size_t index : part->flatten()) {
    configs.push_back(all[index]);
  }
  return part->pack(std::move(configs));
}

}  // namespace

DensePart::DensePart(
    const detail::ExportedModel& model,
    const ExportExample& example,
    const std::vector<std::string>& input_names,
    std::string where)
    : original_(model),
      prefixes_(prefixes_of(model.module)),
      where_(std::move(where)),
      example_(to_parts(example, where_)),
      dense_{
          .module = model.module,
          .forward =
              [this](const ExportExample& batch) {
                return forward(batch.inputs);
              },
          .returns_list = model.returns_list} {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      !model.takes_weights && example.weights.empty(),
      "{} expected a model whose forward() takes features without weights, but this one takes Weights. A program gets activations, which have no weights.",
      where_);
  TESSERA_CHECK_VALUE(
      example.inputs.size() == model.inputs,
      "{} example.inputs: expected {} tensors, which forward() takes after features, but got {}. Pass one tensor for each.",
      where_,
      model.inputs,
      example.inputs.size());
  example_.features.for_each(
      [&](const std::string& path, const Feature& feature) {
        batch_ = std::max(batch_, rows_of(path, feature));
      });
  check_inputs(input_names);
  find_activations();
  add_row_splits();
  add_inputs(input_names);
  dense_.inputs = inputs_.size();
  try {
    (void)dense_.forward(dense_example_);
  } catch (const std::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} forward() must compute from the activations, the row_splits of ragged features of the user, and its other inputs. It has no ids here, and features of candidates have no row_splits. It fails: {}",
        where_,
        reason_of(error));
  }
}

void DensePart::check_inputs(
    const std::vector<std::string>& input_names) const {
  TESSERA_CHECK_VALUE(
      input_names.empty() || input_names.size() == example_.inputs.size(),
      "{} input_names: expected {} names, one for each of example.inputs, but got {}. Correct the list, or leave it empty.",
      where_,
      example_.inputs.size(),
      input_names.size());
  for (size_t i = 0; i < example_.inputs.size(); ++i) {
    const at::Tensor& input = example_.inputs[i];
    TESSERA_CHECK_VALUE(
        input.dim() >= 1 && (input.size(0) == 1 || input.size(0) == batch_),
        "{} example.inputs[{}]: expected 1 row, for numbers of the user, or {}, the number of candidates, but got {}. Correct the example.",
        where_,
        i,
        batch_,
        input.sizes());
  }
}

int64_t DensePart::rows_of(const std::string& path, const Feature& feature)
    const {
  const auto* ragged = std::get_if<RaggedFeature>(&feature);
  const auto* dense = std::get_if<at::Tensor>(&feature);
  TESSERA_CHECK_NOT_IMPLEMENTED(
      ragged != nullptr || (dense != nullptr && dense->dim() == 1),
      "{} example.features '{}': expected a dense feature [batch] or a ragged feature. Pass sparse features as ragged ones.",
      where_,
      shorten(path));
  return ragged != nullptr ? ragged->row_splits.numel() - 1 : dense->size(0);
}

void DensePart::add(
    const std::string& path,
    const std::string& part,
    at::Tensor input) {
  for (const auto& [other_path, other_part] : inputs_) {
    TESSERA_CHECK_VALUE(
        path != other_path || part != other_part,
        "{} expected inputs of different names, but '{}' is there twice. Rename one of them, and look up a feature once.",
        where_,
        shorten(path));
  }
  inputs_.emplace_back(path, part);
  dense_example_.inputs.push_back(std::move(input));
}

// Calls forward() once with random activations, and records which features it looks up.
void DensePart::find_activations() {
  // A separate generator leaves the random numbers of a training as they are.
  const at::Generator generator = at::detail::createCPUGenerator(/*seed=*/1);
  const ForwardInterception interception([&](const auto& state,
                                             const auto& all,
                                             const auto& features,
                                             const auto& weights) {
    const Nest<FeatureConfig> structure = part_of_structure(all, features);
    const auto prefix = prefixes_.find(&state);
    check_is_submodule(prefix != prefixes_.end(), where_);
    TESSERA_CHECK_NOT_IMPLEMENTED(
        weights.empty(),
        "{} forward() passes weights to an embedding, and a program gets activations that have none. Leave them out.",
        where_);
    const auto inputs = leaves_like(structure, features, "features");
    std::vector<at::Tensor> activations;
    structure.for_each([&](const std::string& path,
                           const FeatureConfig& config) {
      TESSERA_CHECK_NOT_IMPLEMENTED(
          !config.output_shape,
          "{} feature '{}' has an output_shape, which a program does not support. Leave the output_shape out.",
          where_,
          shorten(path));
      const int64_t rows = rows_of(path, *inputs[activations.size()]);
      TESSERA_CHECK_VALUE(
          rows == 1 || rows == batch_,
          "{} example.features '{}': expected 1 row, for a feature of the user, or {}, the number of candidates, but got {}. Correct the example.",
          where_,
          shorten(path),
          batch_,
          rows);
      std::vector<int64_t> sizes{rows};
      if (config.max_sequence_length > 0) {
        sizes.push_back(config.max_sequence_length);
      }
      sizes.push_back(config.table->dim);
      activations.push_back(at::randn(sizes, generator));
      if (rows > 1) {
        sizes[0] = kBatchOfInputs;
      }
      add(prefix->second + path, "activations", at::randn(sizes, generator));
      if (rows == 1) {
        path_in_model_.emplace(path, prefix->second + path);
      }
    });
    return structure.pack(std::move(activations));
  });
  (void)original_.forward(example_);
  num_activations_ = inputs_.size();
  check_calls_layers(num_activations_ > 0, original_.module, where_);
}

void DensePart::add_row_splits() {
  std::vector<Feature> stripped;
  example_.features.for_each(
      [&](const std::string& path, const Feature& feature) {
        if (!std::holds_alternative<RaggedFeature>(feature)) {
          stripped.emplace_back(at::Tensor());
          return;
        }
        if (rows_of(path, feature) == 1) {
          with_splits_.push_back(stripped.size());
          const auto found = path_in_model_.find(path);
          add(found == path_in_model_.end() ? path : found->second,
              "row_splits",
              std::get<RaggedFeature>(feature).row_splits);
        }
        stripped.emplace_back(RaggedFeature());
      });
  stripped_ = example_.features.pack(std::move(stripped));
}

void DensePart::add_inputs(const std::vector<std::string>& names) {
  for (size_t i = 0; i < example_.inputs.size(); ++i) {
    const at::Tensor& input = example_.inputs[i];
    add(names.empty() ? "input_" + std::to_string(i) : names[i],
        "",
        input.size(0) == 1
            ? input
            : input.index_select(
                  0, at::arange(kBatchOfInputs, at::kLong).remainder(batch_)));
  }
}

std::vector<at::Tensor> DensePart::forward(
    const std::vector<at::Tensor>& tensors) const {
  size_t next = 0;
  const ForwardInterception interception([&](const auto& state,
                                             const auto& all,
                                             const auto& features,
                                             const auto& weights) {
    (void)weights;
    const Nest<FeatureConfig> structure = part_of_structure(all, features);
    std::vector<at::Tensor> activations;
    structure.for_each([&](const std::string& path, const FeatureConfig&) {
      TESSERA_CHECK_VALUE(
          next < num_activations_ &&
              inputs_[next].first == prefixes_.at(&state) + path,
          "{} forward() must look up the same features in each call, but it looks up '{}' in another order.",
          where_,
          shorten(path));
      activations.push_back(tensors[next++]);
    });
    return structure.pack(std::move(activations));
  });
  std::vector<Feature> features = stripped_.flatten();
  for (size_t i = 0; i < with_splits_.size(); ++i) {
    std::get<RaggedFeature>(features[with_splits_[i]]).row_splits =
        tensors[num_activations_ + i];
  }
  const size_t begin = num_activations_ + with_splits_.size();
  return original_.forward(
      {.features = stripped_.pack(std::move(features)),
       .inputs = {
           tensors.begin() + static_cast<int64_t>(begin), tensors.end()}});
}

}  // namespace tessera::exporting
