// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/load_state_dict.h>

#include <tessera/common/shorten.h>
#include <tessera/layers/embedding_engine_module.h>
#include <tessera/layers/tpu_embedding.h>

#include "layers/export/exported_layer.h"
#include "layers/table_module.h"
#include "src/common/check.h"

#include <ATen/core/grad_mode.h>

#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr const char* kLoadWhere = "[load_state_dict]";

// A tensor that a state_dict must have.
struct Destination {
  std::vector<int64_t> sizes = {};
  at::ScalarType dtype = at::kFloat;
  std::function<void(const at::Tensor&)> assign = {};
};

class DestinationList {
 public:
  void add_module(torch::nn::Module& module, const std::string& prefix) {
    if (const auto tables = TableModule::of(module)) {
      add_tables(module, *tables->state, prefix);
      return;
    }
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
      add(prefix + entry.key(), entry.value());
    }
    for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
      add(prefix + entry.key(), entry.value());
    }
    for (const auto& entry : module.named_children()) {
      add_module(*entry.value(), prefix + entry.key() + ".");
    }
  }

  const std::map<std::string, Destination>& all() const {
    return destinations_;
  }

 private:
  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() ||
        !tensors_.insert(tensor.unsafeGetTensorImpl()).second) {
      return;
    }
    destinations_[name] = {
        .sizes = tensor.sizes().vec(),
        .dtype = tensor.scalar_type(),
        .assign = [tensor](const at::Tensor& values) { tensor.copy_(values); }};
  }

  void add_tables(
      torch::nn::Module& module,
      const EmbeddingState& state,
      const std::string& prefix) {
    if (!layers_.insert(&state).second) {
      return;
    }
    for (size_t i = 0; i < state.tables.size(); ++i) {
      const TableConfig& config = *state.tables[i].config;
      destinations_[prefix + exporting::stored_name(i)] = {
          .sizes = {config.vocabulary_size, config.dim},
          .dtype = config.dtype,
          .assign = [&module,
                     name = state.tables[i].name](const at::Tensor& values) {
            TableModule::update_embedding_table(module, name, values);
          }};
    }
  }

  std::map<std::string, Destination> destinations_;
  std::set<const void*> tensors_;
  std::set<const EmbeddingState*> layers_;
};

void check(
    const std::string& name,
    const at::Tensor& values,
    const Destination& destination) {
  TESSERA_CHECK_VALUE(
      values.defined(),
      "{} the tensor '{}' must be defined. Leave it out or assign it.",
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
      at::isFloatingType(values.scalar_type()) ==
              at::isFloatingType(destination.dtype) &&
          !values.is_complex(),
      "{} the tensor '{}' must have numbers like {}, but has {}. Convert it in Python.",
      kLoadWhere,
      shorten(name),
      c10::toString(destination.dtype),
      c10::toString(values.scalar_type()));
}

}  // namespace

void load_state_dict(torch::nn::Module& model, const NamedTensors& state_dict) {
  DestinationList list;
  list.add_module(model, "");
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
  std::vector<std::string> missing;
  for (const auto& [name, destination] : list.all()) {
    if (found.count(name) == 0) {
      missing.push_back(name);
    }
  }
  TESSERA_CHECK_VALUE(
      missing.empty() && unknown.empty(),
      "{} expected the names of the model's weights, but [{}] are missing and [{}] are not in the model. Use the names of the `.pt2` file's state_dict.",
      kLoadWhere,
      shorten_all(missing),
      shorten_all(unknown));
  const at::NoGradGuard no_grad;
  for (const auto& [destination, values] : assignments) {
    destination->assign(values);
  }
}

}  // namespace tessera
