// SPDX-License-Identifier: Apache-2.0
#include "layers/export/named_weights.h"

#include <set>

#include "layers/table_module.h"
#include "src/common/check.h"

namespace tessera::exporting {

namespace {

class WeightList {
 public:
  WeightList(const TracedModel::Layers& layers, const std::string& where)
      : layers_(layers), where_(where) {}

  void add_module(const torch::nn::Module& module, const std::string& prefix) {
    if (const auto tables = TableModule::of(module)) {
      const auto layer = layers_.find(tables->state);
      if (layer != layers_.end() && found_.insert(tables->state).second) {
        const std::vector<StoredTable>& stored = layer->second.tables;
        for (size_t i = 0; i < stored.size(); ++i) {
          add_table_weights(stored[i], prefix + stored_name(i), weights_);
        }
      }
      return;
    }
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
      add(prefix + entry.key(), entry.value(), /*is_parameter=*/true);
    }
    for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
      add(prefix + entry.key(), entry.value(), /*is_parameter=*/false);
    }
    for (const auto& entry : module.named_children()) {
      add_module(*entry.value(), prefix + entry.key() + ".");
    }
  }

  bool has(const EmbeddingState* state) const {
    return found_.count(state) > 0;
  }
  std::vector<pt2::Weight> take() {
    return std::move(weights_);
  }

 private:
  void add(
      const std::string& name,
      const at::Tensor& tensor,
      bool is_parameter) {
    TESSERA_CHECK_VALUE(
        !tensor.defined() ||
            (tensor.is_cpu() && tensor.layout() == at::kStrided),
        "{} the parameter or buffer '{}' must be a dense tensor on the cpu, but is on {}. Call to(torch::kCPU) on the model before the export.",
        where_,
        name,
        tensor.device());
    if (tensor.defined() &&
        tensors_.insert(tensor.unsafeGetTensorImpl()).second) {
      weights_.push_back(
          {.name = name,
           .tensor = tensor,
           .is_parameter =
               is_parameter && at::isFloatingType(tensor.scalar_type())});
    }
  }

  const TracedModel::Layers& layers_;
  const std::string& where_;
  std::set<const EmbeddingState*> found_;
  std::set<const void*> tensors_;
  std::vector<pt2::Weight> weights_;
};

}  // namespace

void add_table_weights(
    const StoredTable& table,
    const std::string& name,
    std::vector<pt2::Weight>& weights) {
  if (!table.rows.defined()) {
    return;
  }
  const bool is_int8 = table.scales.defined();
  weights.push_back(
      {.name = name, .tensor = table.rows, .is_parameter = !is_int8});
  if (is_int8) {
    weights.push_back({.name = name + "_scales", .tensor = table.scales});
    weights.push_back({.name = name + "_offsets", .tensor = table.offsets});
  }
}

std::vector<pt2::Weight> named_weights(
    const torch::nn::Module& model,
    const TracedModel::Layers& layers,
    const std::string& where) {
  WeightList list(layers, where);
  list.add_module(model, "");
  for (const auto& [state, layer] : layers) {
    TESSERA_CHECK_VALUE(
        list.has(state),
        "{} every TPUEmbedding and EmbeddingEngine that forward() calls must be a submodule of the model, but one is not. Register it with register_module(). An EmbeddingEngine must be an EmbeddingEngineModule for that.",
        where);
  }
  return list.take();
}

}  // namespace tessera::exporting
