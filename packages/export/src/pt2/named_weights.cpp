// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/named_weights.h"

#include <tessera/layers/layer.h>

#include <memory>
#include <set>
#include <utility>

#include "packages/export/src/trace/visit_weights.h"
#include "src/common/check.h"
#include "src/engine/embedding_state.h"

namespace tessera::exporting {

namespace {

void check_dense(
    const std::string& name,
    const at::Tensor& tensor,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      tensor.is_cpu() && tensor.layout() == at::kStrided,
      "{} the parameter or buffer '{}' must be a dense tensor on the cpu, but is on {}. Call to(torch::kCPU) on the model before the export.",
      where,
      name,
      tensor.device());
}

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
  if (stored.keys.defined()) {
    weights.push_back({.name = name + "_keys", .tensor = stored.keys});
  }
  if (stored.padding_key.defined()) {
    weights.push_back(
        {.name = name + "_padding_key", .tensor = stored.padding_key});
  }
  if (!stored.is_placeholder) {
    return;
  }
  // The first function takes the rows out of this copy. After that, the copy holds two
  // numbers per row.
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
  std::vector<pt2::Weight> weights;
  std::set<const EmbeddingState*> found;
  std::set<const void*> tensors;
  visit_weights(
      model,
      "",
      [&](const std::string& name, const at::Tensor& tensor, WeightKind kind) {
        if (!tensor.defined() || tessera::detail::is_unsized(tensor)) {
          return;  // a layer that forward() does not call is perhaps not built
        }
        check_dense(name, tensor, where);
        if (tensors.insert(tensor.unsafeGetTensorImpl()).second) {
          weights.push_back(
              {.name = name,
               .tensor = tensor,
               .is_parameter = kind == WeightKind::kParameter &&
                   at::isFloatingType(tensor.scalar_type())});
        }
      },
      [&](const TableModule& tables, const std::string& prefix) {
        const EmbeddingState* state = &tables.state();
        const auto layer = layers.find(state);
        if (layer != layers.end() && found.insert(state).second) {
          for (size_t i = 0; i < layer->second.tables.size(); ++i) {
            add_table_weights(layer->second, i, prefix, weights);
          }
        }
      });
  return weights;
}

}  // namespace tessera::exporting
