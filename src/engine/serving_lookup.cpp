// SPDX-License-Identifier: Apache-2.0
#include "src/engine/serving_lookup.h"

#include <tessera/engine/serving_lookup.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/tensor_text.h"
#include "src/engine/lookup.h"
#include "src/engine/operator_lookup.h"
#include "src/features/batch.h"
#include "src/tables/key_table_rows.h"

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

namespace {

size_t index_of(const FeatureState& feature, const EmbeddingTables& tables) {
  const TablePtr& config = feature.config.table;
  const auto found =
      std::ranges::find(tables, config, &EmbeddingTables::Entry::config);
  TESSERA_CHECK_VALUE(
      found != tables.end(),
      "[feature '{}'] its table '{}' must be one of the given tables, but none of them has its TablePtr. Two equal configs are two tables, so use the TablePtr of the layer or engine that has the tables.",
      shorten(feature.path),
      shorten(config->name));
  return static_cast<size_t>(found - tables.begin());
}

void check_rows(const FeatureState& feature, const at::Tensor& rows) {
  const TableConfig& config = *feature.config.table;
  // embedding_tables() gives float32 copies of rows of 8 bits.
  const bool is_copy = config.dtype == at::kChar &&
      !(rows.defined() && rows.scalar_type() == at::kChar);
  const at::ScalarType dtype = is_copy ? at::kFloat : config.dtype;
  // The keys of a key table say how many rows it has.
  const std::vector<int64_t> shape{
      config.keys && rows.defined() && rows.dim() > 0 ? rows.size(0)
                                                      : config.vocabulary_size,
      stored_columns(config.dim, dtype)};
  TESSERA_CHECK_VALUE(
      rows.defined() && rows.layout() == at::kStrided && rows.is_cpu() &&
          rows.scalar_type() == dtype &&
          rows.sizes() == c10::IntArrayRef(shape) && rows.is_contiguous() &&
          !rows.is_neg() && !rows._is_zerotensor(),
      "[feature '{}'] the tensor of its table '{}' must be a contiguous cpu tensor of {} {}, but got {}. Convert it, or pass tensor.clone(at::MemoryFormat::Contiguous) of a view.",
      shorten(feature.path),
      shorten(config.name),
      to_string(dtype),
      c10::IntArrayRef(shape),
      describe(rows));
}

bool needs_gradient(
    const Batch& batch,
    const std::vector<LookupTable>& tables) {
  const auto requires_grad = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.requires_grad();
  };
  return at::GradMode::is_enabled() &&
      (std::ranges::any_of(batch.weights, requires_grad) ||
       std::ranges::any_of(tables, [&](const LookupTable& table) {
         return requires_grad(table.rows);
       }));
}

// Replaces positions in the keys of a key table by rows. `row_of` returns the row of a
// position, or kZeroRow. Keys without a row get `default_row`, which may be kZeroRow.
void set_rows(
    IdBags& bags,
    uint32_t default_row,
    c10::function_ref<uint32_t(uint32_t position)> row_of) {
  for (uint32_t& id : bags.ids) {
    if (id == kZeroRow) {
      continue;
    }
    const uint32_t row = row_of(id);
    id = row == kZeroRow ? default_row : row;
    bags.padding += id == kZeroRow ? 1 : 0;
  }
}

// Does what set_rows() does, for a table whose `keys` [keys] int64 ascend.
void find_sorted_keys(const EmbeddingTables::Entry& table, IdBags& bags) {
  const auto* begin = table.keys.const_data_ptr<int64_t>();
  const auto* end = begin + table.keys.numel();
  const auto row_of_key = [&](int64_t key) {
    const auto* found = std::lower_bound(begin, end, key);
    return found != end && *found == key ? static_cast<uint32_t>(found - begin)
                                         : kZeroRow;
  };
  const std::optional<int64_t> default_key = table.config->keys->default_key;
  set_rows(
      bags,
      default_key ? row_of_key(*default_key) : kZeroRow,
      [&](uint32_t position) { return row_of_key(bags.keys[position]); });
}

void check_keys(
    const FeatureState& feature,
    const EmbeddingTables::Entry& table) {
  TESSERA_CHECK_VALUE(
      table.keys.defined() && table.keys.scalar_type() == at::kLong &&
          table.keys.is_cpu() && table.keys.is_contiguous() &&
          table.keys.dim() == 1 && table.parameters.defined() &&
          table.parameters.dim() == 2 &&
          table.keys.numel() == table.parameters.size(0),
      "[feature '{}'] its table '{}' has keys, so the entry must have contiguous int64 keys [rows], one for each row, but got {}. Take both from embedding_tables().",
      shorten(feature.path),
      shorten(table.name),
      describe(table.keys));
}

// `prepare` may change the state of each feature before its batch is read. `find` replaces
// the positions in the keys of a key table, as find_sorted_keys() does.
Nest<at::Tensor> lookup_by(
    const Nest<FeatureConfig>& feature_config,
    const EmbeddingTables& tables,
    const Features& features,
    const Weights& weights,
    c10::function_ref<void(FeatureState&)> prepare,
    c10::function_ref<void(size_t table, IdBags&)> find) {
  const Nest<FeatureConfig> configs =
      part_like(feature_config, features, "features");
  std::vector<FeatureState> states = feature_states(
      configs,
      [&](const FeatureState& feature) { return index_of(feature, tables); });
  std::vector<LookupTable> rows;
  for (FeatureState& feature : states) {
    prepare(feature);
    rows.push_back({(tables.begin() + feature.table)->parameters});
    check_rows(feature, rows.back().rows);
  }
  Batch batch;
  {
    const ProfileScope scope("tessera::read_batch");
    batch = read_batch(configs, states, features, weights);
  }
  for (size_t i = 0; i < states.size(); ++i) {
    if (states[i].config.table->keys) {
      find(states[i].table, batch.bags[i]);
    }
  }
  const ProfileScope scope("tessera::lookup");
  if (!needs_gradient(batch, rows)) {
    for (IdBags& bags : batch.bags) {
      drop_zero_rows(bags);
    }
    return configs.pack(lookup(batch.bags, rows));
  }
  std::vector<at::Tensor> activations;
  for (size_t i = 0; i < states.size(); ++i) {
    activations.push_back(lookup_by_operators(
                              rows[i],
                              batch.bags[i],
                              batch.weights[i],
                              /*sparse_gradients=*/false)
                              .view(batch.bags[i].activation_shape()));
  }
  return configs.pack(std::move(activations));
}

}  // namespace

Nest<at::Tensor> serving_embedding_lookup(
    const Features& features,
    const Weights& weights,
    const EmbeddingTables& tables,
    const Nest<FeatureConfig>& feature_config) {
  return lookup_by(
      feature_config,
      tables,
      features,
      weights,
      [&](FeatureState& feature) {
        if (feature.config.table->keys) {
          check_keys(feature, *(tables.begin() + feature.table));
        }
      },
      [&](size_t table, IdBags& bags) {
        find_sorted_keys(*(tables.begin() + table), bags);
      });
}

Nest<at::Tensor> lookup_for_serving(
    const EmbeddingState& state,
    const Features& features,
    const Weights& weights,
    const Nest<FeatureConfig>& feature_config) {
  const at::NoGradGuard no_grad;
  // Unlike embedding_tables_of(), this does not copy key tables.
  auto entries = c10::fmap(state.tables, [](const TableState& table) {
    return EmbeddingTables::Entry{
        table.config, table.name, table.parameters.detach()};
  });
  return lookup_by(
      feature_config,
      EmbeddingTables(std::move(entries)),
      features,
      weights,
      [&](FeatureState& feature) {
        for (const FeatureState& known : state.features) {
          if (known.path == feature.path && known.config == feature.config) {
            feature.ragged_rows = known.ragged_rows;
          }
        }
      },
      [&](size_t table, IdBags& bags) {
        const KeyIndex& index = state.tables[table].key_rows->index();
        Buffer<uint32_t> rows(bags.keys.size());
        index.find(bags.keys.data(), std::ssize(bags.keys), rows.data());
        static_assert(kNoRow == kZeroRow);
        set_rows(bags, index.default_row(), [&](uint32_t position) {
          return rows[position];
        });
      });
}

}  // namespace tessera
