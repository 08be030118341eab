// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/trace/exported_layer.h"

#include <tessera/common/shorten.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <set>
#include <utility>

#include "packages/export/src/trace/example_batch.h"
#include "packages/export/src/trace/export_scope.h"
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/engine/lookup.h"
#include "src/features/output_shapes.h"
#include "src/tables/key_table_rows.h"

namespace tessera::exporting {

namespace {

void check_dtype(const ExportOptions& options, const std::string& where) {
  const at::ScalarType dtype = options.dtype.value_or(at::kFloat);
  TESSERA_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf ||
          dtype == at::kChar,
      "{} options.dtype must be one of kFloat, kBFloat16, kHalf, kChar, but got {}.",
      where,
      c10::toString(dtype));
}

void check_unique(
    const std::vector<std::string>& paths,
    const std::string& where) {
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    TESSERA_CHECK_VALUE(
        seen.insert(path).second,
        "{} features must have different paths, but two have the path '{}'. Rename a key of the nest.",
        where,
        shorten(path));
  }
}

std::vector<size_t> find_features(
    const std::vector<std::string>& paths,
    const std::vector<std::string>& names,
    const std::string& where) {
  std::set<size_t> found;
  for (const std::string& path : names) {
    const auto position = std::find(paths.begin(), paths.end(), path);
    TESSERA_CHECK_VALUE(
        position != paths.end(),
        "{} options.features: expected paths of the layer's features, but got '{}'. Known: {}.",
        where,
        shorten(path),
        join_names(paths));
    found.insert(static_cast<size_t>(position - paths.begin()));
  }
  return {found.begin(), found.end()};
}

// Returns the rows of the keys in the bags. The table's own index finds the keys. The keys
// in the file are not used.
at::Tensor read_keys(
    const ExportedLayer& layer,
    const TableState& table,
    const StoredTable& stored,
    const IdBags& bags) {
  std::vector<int64_t> keys;
  for (const uint32_t id : bags.ids) {
    keys.push_back(bags.keys[id]);
  }
  std::vector<uint32_t> found(keys.size());
  table.key_rows->index().find(keys.data(), bags.nnz(), found.data());
  const at::Tensor numbers = at::empty({bags.nnz()}, at::kLong);
  std::ranges::replace_copy(
      found,
      numbers.mutable_data_ptr<int64_t>(),
      kNoRow,
      table.key_rows->row_of_unknown_keys());
  const at::ScalarType dtype = stored.is_placeholder
      ? table.parameters.scalar_type()
      : stored.rows.scalar_type();
  return read_stored(
      store(table, numbers, dtype, layer.where),
      at::arange(bags.nnz(), at::kLong));
}

// The rows of the ids in the bags.
at::Tensor read_ids(
    const ExportedLayer& layer,
    const TableState& table,
    const StoredTable& stored,
    const IdBags& bags) {
  at::Tensor ids = at::empty({bags.nnz()}, at::kLong);
  std::copy(bags.ids.begin(), bags.ids.end(), ids.mutable_data_ptr<int64_t>());
  const at::Tensor rows = read_stored(stored, ids);
  if (stored.scales.defined() && !stored.is_placeholder) {
    const at::Tensor exact =
        float_rows(table.parameters.detach().index_select(0, ids));
    const at::Tensor step = stored.scales.index_select(0, ids).unsqueeze(1);
    TESSERA_CHECK(
        ((rows - exact).abs() <= step + 1e-6 * exact.abs()).all().item<bool>(),
        "{} table '{}': int8 rows must differ from the layer's rows by one rounding step at most, but they differ by more. This is a bug. Please report it.",
        layer.where,
        shorten(table.name));
  }
  return rows;
}

}  // namespace

std::vector<int64_t> sizes_or(const PartialShape& shape, int64_t otherwise) {
  std::vector<int64_t> sizes;
  for (const std::optional<int64_t>& size : shape) {
    sizes.push_back(size.value_or(otherwise));
  }
  return sizes;
}

ExportExample model_parts(
    const detail::ExportedModel& model,
    const ExportExample& example,
    const ExportOptions& options,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      options.features.empty(),
      "{} options.features must be empty for a model, which needs all its features. It chooses features only when a single TPUEmbedding is exported. Leave it empty.",
      where);
  TESSERA_CHECK_VALUE(
      example.inputs.size() == model.inputs,
      "{} example.inputs: expected {} tensors, which forward() takes after features and weights, but got {}. Pass one tensor for each.",
      where,
      model.inputs,
      example.inputs.size());
  TESSERA_CHECK_VALUE(
      model.takes_weights || example.weights.empty(),
      "{} example.weights must be empty, because forward() takes no Weights. Leave them out.",
      where);
  ExportExample parts = to_parts(example, where);
  check_unique(parts.features.paths(), where);
  batch_size_of(parts.features, where);
  return parts;
}

std::string stored_name(size_t table) {
  return "table_" + std::to_string(table);
}

at::ScalarType ExportedLayer::dtype_of(size_t table) const {
  return dtype.value_or(state->tables[table].config->dtype);
}

ExportedLayer export_layer(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& structure,
    const ExportOptions& options,
    Conversion conversion,
    const std::string& where) {
  check_dtype(options, where);
  check_holds_all_rows(
      state,
      where,
      "Save a checkpoint, load it into a layer on Strategy::fused() in one "
      "process, and export that.");
  ExportedLayer layer{
      .where = where,
      .state = &state,
      .structure = structure,
      .paths = structure.paths(),
      .dtype = options.dtype};
  check_unique(layer.paths, where);
  for (const FeatureState& feature : state.features) {
    layer.features.push_back(with_any_batch_size(feature));
  }
  layer.exported = find_features(
      layer.paths,
      options.features.empty() ? layer.paths : options.features,
      where);
  layer.tables.resize(state.tables.size());
  for (const size_t index : layer.exported) {
    const size_t table = layer.features[index].table;
    StoredTable& stored = layer.tables[table];
    if (stored.rows.defined()) {
      continue;  // a shared table is written once
    }
    const TableState& source = state.tables[table];
    const at::ScalarType dtype = layer.dtype_of(table);
    stored = conversion == Conversion::kNow ? store(source, dtype, where)
                                            : placeholder_of(source, dtype);
    add_keys(source, stored);
  }
  return layer;
}

void write_layer(
    const TableModule* tables,
    const std::string& path,
    const ExportOptions& options,
    Conversion conversion,
    const std::string& where,
    c10::function_ref<void(ExportedLayer& layer, AtomicFile& file)> write) {
  TESSERA_CHECK_VALUE(
      tables != nullptr,
      "{} expected a layer, but got an empty holder. Make the layer before the export.",
      where);
  TESSERA_CHECK_VALUE(
      tables->activation_dtype() == at::kFloat,
      "{} the activations of an exported layer must be float32, but they are {}. Call to(torch::kFloat) before the export, or export the whole model.",
      where,
      c10::toString(tables->activation_dtype()));
  TESSERA_CHECK_VALUE(
      options.precision == Precision::kFloat32,
      "{} options.precision must be kFloat32 for a layer alone, which sums rows in float32. Leave it out, or export a model with dense layers.",
      where);
  tables->wait_for_lookups();
  tables->read_state([&](const EmbeddingState& state) {
    ExportScope scope(path, where);
    ExportedLayer layer = export_layer(
        state, tables->feature_configs(), options, conversion, where);
    write(layer, scope.file);
  });
}

at::Tensor lookup_stored(
    const ExportedLayer& layer,
    size_t index,
    IdBags bags) {
  const FeatureState& feature = layer.features[index];
  const TableState& table = layer.state->tables[feature.table];
  const StoredTable& stored = layer.tables[feature.table];
  drop_zero_rows(bags);
  const at::Tensor rows = table.key_rows != nullptr
      ? read_keys(layer, table, stored, bags)
      : read_ids(layer, table, stored, bags);
  for (int64_t i = 0; i < bags.nnz(); ++i) {
    bags.ids[i] = static_cast<uint32_t>(i);
  }
  std::vector<IdBags> one;
  one.push_back(std::move(bags));
  return lookup(one, {{rows, buckets_of(*table.config)}})[0];
}

Nest<at::Tensor> lookup_all(
    const ExportedLayer& layer,
    const Features& features,
    const Weights& weights) {
  Batch batch = read_batch(layer.structure, layer.features, features, weights);
  std::vector<at::Tensor> activations;
  for (size_t i = 0; i < batch.bags.size(); ++i) {
    activations.push_back(lookup_stored(layer, i, std::move(batch.bags[i])));
  }
  return layer.structure.pack(std::move(activations));
}

}  // namespace tessera::exporting
