// SPDX-License-Identifier: Apache-2.0
#include "layers/export/named_weights.h"

#include <memory>
#include <set>
#include <utility>

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
        for (size_t i = 0; i < layer->second.tables.size(); ++i) {
          add_table_weights(layer->second, i, prefix, weights_);
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
    const ExportedLayer& layer,
    size_t table,
    const std::string& prefix,
    std::vector<pt2::Weight>& weights) {
  const StoredTable& stored = layer.tables[table];
  if (!stored.rows.defined()) {
    return;
  }
  const size_t first = weights.size();
  const std::string name = prefix + stored_name(table);
  const bool is_int8 = stored.scales.defined();
  weights.push_back(
      {.name = name, .tensor = stored.rows, .is_parameter = !is_int8});
  if (is_int8) {
    weights.push_back({.name = name + "_scales", .tensor = stored.scales});
    weights.push_back({.name = name + "_offsets", .tensor = stored.offsets});
  }
  if (!stored.is_placeholder) {
    return;
  }
  // The rows come first and leave this copy, which then holds two numbers per row.
  const auto converted = std::make_shared<StoredTable>();
  weights[first].make = [&source = layer.state->tables[table],
                         dtype = layer.dtype_of(table),
                         where = layer.where,
                         converted] {
    *converted = store(source, dtype, where);
    return std::exchange(converted->rows, {});
  };
  if (is_int8) {
    weights[first + 1].make = [converted] {
      return std::exchange(converted->scales, {});
    };
    weights[first + 2].make = [converted] {
      return std::exchange(converted->offsets, {});
    };
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
