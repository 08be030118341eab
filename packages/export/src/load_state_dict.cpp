// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/load_state_dict.h>

#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>
#include <tessera/layers/embedding_engine_module.h>
#include <tessera/layers/tpu_embedding.h>

#include "packages/export/src/trace/exported_layer.h"
#include "packages/export/src/trace/visit_weights.h"
#include "src/common/check.h"
#include "src/engine/embedding_state.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr const char* kLoadWhere = "[load_state_dict]";

// A weight of the model.
struct Destination {
  std::vector<int64_t> sizes = {};
  at::ScalarType dtype = at::kFloat;
  /// Whether the layer is not built yet.
  bool is_unsized = false;
  /// Whether another name of the same weight comes before this name, which may then be
  /// missing.
  bool is_alias = false;
  std::function<void(const at::Tensor&)> assign = {};
};

class DestinationList {
 public:
  explicit DestinationList(torch::nn::Module& model) {
    visit_weights(
        model,
        "",
        [this](const std::string& name, const at::Tensor& tensor, WeightKind) {
          add(name, tensor);
        },
        [this](TableModule& tables, const std::string& prefix) {
          add_tables(tables, prefix);
        });
  }

  const std::map<std::string, Destination>& all() const {
    return destinations_;
  }
  bool shares_memory(const at::Tensor& values) const {
    return memory_.count(values.storage().data()) > 0;
  }

 private:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    TESSERA_CHECK_VALUE(
        tensor.layout() == at::kStrided &&
            at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
        "{} the model's weight '{}' must be a dense tensor whose elements have memory of their own. Call contiguous() on it.",
        kLoadWhere,
        shorten(name));
    const bool is_new = tensors_.insert(tensor.unsafeGetTensorImpl()).second;
    memory_.insert(tensor.storage().data());
    destinations_[name] = {
        .sizes = tensor.sizes().vec(),
        .dtype = tensor.scalar_type(),
        .is_unsized = detail::is_unsized(tensor),
        .is_alias = !is_new,
        .assign = [tensor](const at::Tensor& values) { tensor.copy_(values); }};
  }

  void add_tables(TableModule& tables, const std::string& prefix) {
    const EmbeddingState& state = tables.state();
    check_has_no_keys(
        state,
        "[load_state_dict]",
        "Call update_embedding_table() with keys and values.");
    const bool is_new = layers_.insert(&state).second;
    for (size_t i = 0; i < state.tables.size(); ++i) {
      const TableConfig& config = *state.tables[i].config;
      memory_.insert(state.tables[i].parameters.storage().data());
      destinations_[prefix + exporting::stored_name(i)] = {
          .sizes = {config.vocabulary_size, config.dim},
          .dtype = config.dtype == at::kChar ? at::kFloat : config.dtype,
          .is_alias = !is_new,
          .assign = [&tables,
                     name = state.tables[i].name](const at::Tensor& values) {
            tables.update_embedding_table(name, values);
          }};
    }
  }

  std::map<std::string, Destination> destinations_;
  std::set<const void*> tensors_;
  std::set<const EmbeddingState*> layers_;
  std::set<const void*> memory_;
};

bool is_same_kind(at::ScalarType a, at::ScalarType b) {
  return c10::isComplexType(a) == c10::isComplexType(b) &&
      c10::isFloatingType(a) == c10::isFloatingType(b);
}

void check(
    const std::string& name,
    const at::Tensor& values,
    const Destination& destination) {
  TESSERA_CHECK_VALUE(
      values.defined() && values.layout() == at::kStrided && values.is_cpu(),
      "{} the tensor '{}' must be a dense tensor on the cpu, but is {}. Convert it before the call.",
      kLoadWhere,
      shorten(name),
      values.defined() ? c10::str(values.device(), " ", values.layout())
                       : "undefined");
  TESSERA_CHECK_VALUE(
      !destination.is_unsized,
      "{} the layer of '{}' is not built, so its weight has no size yet. Call build() or forward() once before.",
      kLoadWhere,
      shorten(name));
  TESSERA_CHECK_VALUE(
      values.sizes() == at::IntArrayRef(destination.sizes),
      "{} the tensor '{}' must have the sizes {}, but has {}. Make the Python model with the sizes of this model.",
      kLoadWhere,
      shorten(name),
      at::IntArrayRef(destination.sizes),
      values.sizes());
  TESSERA_CHECK_TYPE(
      is_same_kind(values.scalar_type(), destination.dtype),
      "{} the tensor '{}' must have a dtype of the same kind as the model's {}, but has {}. Convert it in Python. Export tables as float32 if Python is to train them.",
      kLoadWhere,
      shorten(name),
      c10::toString(destination.dtype),
      c10::toString(values.scalar_type()));
}

}  // namespace

void load_state_dict(torch::nn::Module& model, const NamedTensors& state_dict) {
  const DestinationList list(model);
  std::vector<std::pair<const Destination*, at::Tensor>> assignments;
  std::set<std::string> found;
  std::vector<std::string> unknown;
  for (const auto& [name, values] : state_dict.tensors) {
    const auto destination = list.all().find(name);
    if (destination == list.all().end()) {
      unknown.push_back(name);
      continue;
    }
    TESSERA_CHECK_VALUE(
        found.insert(name).second,
        "{} each name must occur once, but '{}' occurs twice. Remove one of the tensors.",
        kLoadWhere,
        shorten(name));
    check(name, values, destination->second);
    assignments.emplace_back(&destination->second, values);
  }
  TESSERA_CHECK_VALUE(
      unknown.empty(),
      "{} expected names of the model's weights, but it has no [{}]. Remove them. Layers of your own may have weights only after build() or the first forward().",
      kLoadWhere,
      shorten_all(unknown));
  std::vector<std::string> missing;
  for (const auto& [name, destination] : list.all()) {
    if (found.count(name) == 0 && !destination.is_alias) {
      missing.push_back(name);
    }
  }
  TESSERA_CHECK_VALUE(
      missing.empty(),
      "{} expected all weights of the model, but [{}] are missing. Add them.",
      kLoadWhere,
      shorten_all(missing));
  const at::NoGradGuard no_grad;
  for (auto& [destination, values] : assignments) {
    if (list.shares_memory(values)) {
      values = values.clone();  // else another assignment might change it
    }
  }
  for (const auto& [destination, values] : assignments) {
    destination->assign(values);
  }
}

}  // namespace tessera
