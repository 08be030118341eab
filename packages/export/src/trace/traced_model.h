// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/trace/exported_layer.h"
#include "packages/export/src/trace/record_graph.h"

#include <tessera/export/exported_model.h>
#include <tessera/features/feature.h>
#include <tessera/features/nest.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera {
class ForwardInterception;
}  // namespace tessera

namespace tessera::exporting {

/// A model that LibTorch's tracer records. A function of the caller adds the lookups to
/// the graph, so this class does not depend on the format of the file.
class TracedModel {
 public:
  TracedModel(
      const detail::ExportedModel& model,
      const ExportOptions& options,
      Conversion conversion,
      std::string where);

  /// The outputs of the model itself, with the table rows as they are in the file.
  std::vector<at::Tensor> outputs(const ExportExample& batch);

  using Layers = std::map<const EmbeddingState*, ExportedLayer>;
  /// Finds the layers that forward() calls.
  /// Errors:  c10::ValueError beginning with `where`, if there are none, or if a layer is
  ///          not a submodule of the model.
  Layers& find_layers(const ExportExample& example);

  /// Adds the lookup of one feature to the graph that the tracer records, and returns its
  /// activations. `weights` may be undefined. `activations` are the result of the layer's
  /// own lookup, which was not recorded.
  using RecordLookup = std::function<at::Tensor(
      const ExportedLayer& layer,
      size_t index,
      const Feature& feature,
      const at::Tensor& weights,
      const at::Tensor& activations)>;

  /// Records a function that takes `weights` and the tensors of flatten(example), and
  /// returns the outputs, and then the conditions that `record_lookup` has appended to
  /// `checks`. A size that C++ code of the model reads becomes a constant, the size in
  /// this example.
  /// Errors:  c10::ValueError beginning with `where`, for a model that can't be recorded
  ///          or that reads values of tensors.
  std::shared_ptr<torch::jit::Graph> record(
      const std::vector<at::Tensor>& weights,
      const ExportExample& example,
      const RecordLookup& record_lookup,
      const Checks& checks);

  /// Records compute(), which takes the tensors of flatten(example) and returns the
  /// outputs. In the graph, the tensors of `root` and its submodules are attributes.
  /// Errors:  c10::ValueError beginning with `where`, for a model that can't be recorded.
  std::shared_ptr<torch::jit::Graph> trace(
      torch::jit::Module& root,
      const ExportExample& example,
      const RecordLookup& record_lookup);

 private:
  ExportedLayer& layer_of(
      const EmbeddingState& state,
      const Nest<FeatureConfig>& structure);
  /// While the result lives, lookups read the rows in the file. If `record_lookup` is not
  /// empty, it records them.
  ForwardInterception intercept(const RecordLookup& record_lookup);
  Nest<at::Tensor> record_lookups(
      const ExportedLayer& layer,
      const Features& features,
      const Weights& weights,
      const RecordLookup& record_lookup) const;
  std::vector<at::Tensor> forward(const ExportExample& batch) const;
  void check_is_known(const std::string& path, const at::Tensor& tensor) const;

  const detail::ExportedModel& model_;
  const ExportOptions& options_;
  Conversion conversion_;
  std::string where_;
  Layers layers_;
};

/// Errors:  c10::ValueError beginning with `where`, if forward() calls no layer with
///          tables.
void check_calls_layers(
    bool does,
    const torch::nn::Module& model,
    const std::string& where);

/// Errors:  c10::ValueError beginning with `where`, for a layer with tables that is not a
///          submodule of the model.
void check_is_submodule(bool is_one, const std::string& where);

}  // namespace tessera::exporting
