// SPDX-License-Identifier: Apache-2.0
#include "src/engine/embedding_state.h"

#include <tessera/common/shorten.h>
#include <tessera/optim/optimizers/custom_optimizer.h>

#include "optim/row_update.h"
#include "optim/tensor_update.h"
#include "src/common/check.h"
#include "src/common/memory_ranges.h"
#include "src/common/names.h"
#include "src/common/random_key.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/memory_plan.h"
#include "src/tables/key_table_rows.h"
#include "src/tables/table_memory.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace tessera {

namespace {

// The index of `config` in `tables`; adds it on first use.
size_t find_or_add(std::vector<TableState>& tables, const TablePtr& config) {
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].config == config) {
      return i;
    }
  }
  TableState table;
  table.config = config;
  table.name = config->name.empty() ? "table_" + std::to_string(tables.size())
                                    : config->name;
  TESSERA_CHECK_VALUE(
      std::ranges::find(tables, table.name, &TableState::name) == tables.end(),
      "[TableConfig '{}'] tables of one layer must have different names, but two are named '{}'. Rename one, or let features share the same TablePtr.",
      shorten(table.name),
      shorten(table.name));
  tables.push_back(std::move(table));
  return tables.size() - 1;
}

std::vector<Slot> make_slots(const TableState& table) {
  std::vector<Slot> slots;
  if (!table.optimizer) {
    return slots;
  }
  const TableConfig& config = *table.config;
  const int64_t rows = table.rows.count;
  const optim::SlotCreation& creation =
      optim::slot_creation_of(*table.optimizer);
  const at::Tensor numbers =
      creation.is_set() ? numbers_of(table.parameters) : at::Tensor();
  for (const optim::SlotSpec& spec : optim::slots_of(*table.optimizer)) {
    Slot slot{.name = spec.name, .position = spec.position};
    // A user's function does not have to support tensors without rows.
    if (creation.is_set() && rows > 0) {
      slot.values = creation.create(
          {.table = table.name,
           .parameters = numbers,
           .name = spec.name,
           .shape = optim::slot_shape(spec, {rows, config.dim}),
           .initial_value = spec.initial_value,
           .first_row = table.rows.numbers.first,
           .row_step = table.rows.numbers.step});
    } else {
      slot.values = table.key_rows != nullptr
          ? reserve_rows(
                rows,
                spec.is_per_row ? 1 : config.dim,
                slot_dtype_of(config, spec.is_per_row),
                "the slots of table '" + shorten(table.name) + "'",
                config.keys->preallocate ? rows : 0)
          : allocate_rows(
                rows,
                spec.is_per_row ? 1 : config.dim,
                slot_dtype_of(config, spec.is_per_row));
      slot.values = spec.is_per_row ? slot.values.view({rows}) : slot.values;
      if (table.key_rows == nullptr) {  // else each new key sets its own
        slot.values.fill_(spec.initial_value);
      }
    }
    slots.push_back(std::move(slot));
  }
  return slots;
}

bool has_slot_creation(const TableState& table) {
  return table.optimizer && optim::slot_creation_of(*table.optimizer).is_set();
}

// Creates the slots that `with_slots` requires and that do not exist yet. No table
// changes if a user's function fails or returns memory that is in use.
void create_slots(std::vector<TableState>& tables, WithSlots with_slots) {
  std::vector<std::vector<Slot>> slots;
  MemoryRanges used;
  for (const TableState& table : tables) {
    used.add(table.parameters);
  }
  for (const TableState& table : tables) {
    const bool is_required =
        with_slots == WithSlots::kYes || has_slot_creation(table);
    slots.push_back(
        is_required && table.slots.empty() ? make_slots(table) : table.slots);
    for (const Slot& slot : slots.back()) {
      TESSERA_CHECK_VALUE(
          !used.overlap(slot.values),
          "[table '{}'] slot '{}': slot_creation must return a new tensor each time, but this one shares memory with a table or another slot. Allocate one per call.",
          shorten(table.name),
          shorten(slot.name));
      used.add(slot.values);
    }
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    tables[i].slots = std::move(slots[i]);
  }
}

// Makes the next checkpoint a full one.
void clear_last_checkpoint(EmbeddingState& state) {
  state.last_checkpoint.clear();
  for (TableState& table : state.tables) {
    table.touched.reset();
  }
}

// Copies the rows of a slot that keys have or have had.
at::Tensor copy_used_rows(const KeyTableRows& table, const at::Tensor& rows) {
  const int64_t width = rows.dim() == 1 ? 1 : rows.size(1);
  at::Tensor copy = reserve_rows(
      rows.size(0),
      width,
      rows.scalar_type(),
      "the slots of a copy",
      table.index().config().preallocate ? rows.size(0) : 0);
  copy = copy.view(rows.sizes());
  table.index().visit_used_rows([&](int64_t first, int64_t used) {
    copy.narrow(0, first, used).copy_(rows.narrow(0, first, used));
  });
  return copy;
}

at::Tensor copy_rows(const at::Tensor& rows) {
  const int64_t width = rows.dim() == 1 ? 1 : rows.size(1);
  at::Tensor copy = allocate_rows(rows.size(0), width, rows.scalar_type());
  copy = copy.view(rows.sizes());
  return copy.copy_(rows.detach());
}

}  // namespace

void check_holds_all_rows(
    const EmbeddingState& state,
    const std::string& where,
    const std::string& advice) {
  TESSERA_CHECK(
      state.ranks->size() == 1,
      "{} the tables are spread over {} ranks, but this call needs all of their rows in one process. {}",
      where,
      state.ranks->size(),
      advice);
}

void check_has_no_keys(
    const EmbeddingState& state,
    const std::string& where,
    const std::string& advice) {
  for (const TableState& table : state.tables) {
    TESSERA_CHECK_NOT_IMPLEMENTED(
        table.key_rows == nullptr,
        "{} expected tables with a vocabulary, but table '{}' has keys. {}",
        where,
        shorten(table.name),
        advice);
  }
}

EmbeddingState describe_state(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    const std::string& where,
    const Shards& shards) {
  if (optimizer) {
    optim::validate(*optimizer, where);
  }
  EmbeddingState state;
  state.ranks = shards.ranks;
  state.features = feature_states(features, [&](const FeatureState& feature) {
    return find_or_add(state.tables, feature.config.table);
  });
  for (const FeatureState& feature : state.features) {
    if (feature.config.output_shape && feature.config.max_sequence_length > 0) {
      TORCH_WARN(fmt::format(
          "[feature '{}'] max_sequence_length = {} is ignored, because output_shape is set to {}. Remove one of them.",
          shorten(feature.path),
          feature.config.max_sequence_length,
          to_string(*feature.config.output_shape)));
    }
  }
  state.accumulated.resize(state.tables.size());
  TESSERA_CHECK_VALUE(
      !state.features.empty(),
      "{} features must have at least one feature, but got an empty nest. Add a FeatureConfig.",
      where);
  for (TableState& table : state.tables) {
    if (table.config->trainable) {
      table.optimizer =
          table.config->optimizer ? table.config->optimizer : optimizer;
    }
    // A layer refuses the placeholders that make_table() accepts for optimizers from JSON.
    if (table.optimizer) {
      optim::validate(
          *table.optimizer,
          c10::str("[TableConfig '", shorten(table.name), "']"));
    }
    // Functions of the user work with float32.
    TESSERA_CHECK_VALUE(
        table.config->slot_dtype == at::kFloat || !table.optimizer ||
            (!has_slot_creation(table) &&
             !table.optimizer->get_if<optim::CustomOptimizer>()),
        "[table '{}'] slot_dtype must be kFloat with a CustomOptimizer or slot_creation, but got {}. Use kFloat or another optimizer.",
        shorten(table.name),
        to_string(table.config->slot_dtype));
    table.rows = shards.rows_of ? shards.rows_of(table.name, *table.config)
                                : LocalRows::all(table.config->max_rows());
  }
  return state;
}

EmbeddingState make_state(
    const Nest<FeatureConfig>& features,
    const std::optional<optim::OptimizerSpec>& optimizer,
    uint64_t seed,
    WithSlots with_slots,
    const std::string& where,
    const Shards& shards,
    bool checks_memory) {
  EmbeddingState state = describe_state(features, optimizer, where, shards);
  if (checks_memory) {
    check_memory(plan_memory(state, with_slots), where);
  }
  state.with_slots = with_slots;
  state.seed = seed;
  for (TableState& table : state.tables) {
    if (table.config->keys) {
      TESSERA_CHECK_VALUE(
          !has_slot_creation(table),
          "[table '{}'] a key table can't have slot_creation, because slots are created when keys get their rows. Remove it.",
          shorten(table.name));
      table.key_rows = std::make_shared<KeyTableRows>(
          *table.config,
          table.name,
          seed,
          KeyPartitions(table.config->keys->capacity)
              .in_rows(table.rows.numbers.first, table.rows.count));
      table.parameters = table.key_rows->rows();
      continue;
    }
    table.parameters = allocate_rows(
        table.rows.count,
        stored_columns(table.config->dim, table.config->dtype),
        table.config->dtype);
    fill_rows(table, seed);
  }
  create_slots(state.tables, with_slots);
  return state;
}

void add_slots(EmbeddingState& state) {
  if (state.with_slots == WithSlots::kYes) {
    return;
  }
  create_slots(state.tables, WithSlots::kYes);
  state.with_slots = WithSlots::kYes;
  clear_last_checkpoint(state);
}

int64_t updates_of(const EmbeddingState& state, const TableState& table) {
  return state.passes / accumulation_steps_of(table);
}

kernels::Rounding rounding_of(
    const EmbeddingState& state,
    const TableState& table) {
  if (table.config->dtype == at::kFloat &&
      table.config->slot_dtype == at::kFloat) {
    return {};
  }
  return {
      .is_stochastic = table.config->stochastic_rounding,
      .key = mix_bits(
          random_key(state.seed, table.name) +
          static_cast<uint64_t>(state.passes)),
      .rows = table.rows.numbers,
      .keeps_scale = true,
      .row_keys =
          table.key_rows != nullptr ? table.key_rows->row_keys() : nullptr};
}

EmbeddingState deep_copy(const EmbeddingState& state) {
  EmbeddingState copy = state;
  clear_last_checkpoint(copy);
  for (TableState& table : copy.tables) {
    table.marks = nullptr;
    table.first_rows.reset();
    if (table.key_rows != nullptr) {
      table.key_rows = table.key_rows->clone();
      table.parameters = table.key_rows->rows();
      for (Slot& slot : table.slots) {
        slot.values = copy_used_rows(*table.key_rows, slot.values);
      }
      continue;
    }
    table.parameters = copy_rows(table.parameters);
    for (Slot& slot : table.slots) {
      slot.values = copy_rows(slot.values);
    }
    if (table.gradient_sum != nullptr) {
      table.gradient_sum = std::make_shared<at::Tensor>(
          table.gradient_sum->defined() ? table.gradient_sum->clone()
                                        : at::Tensor());
    }
  }
  return copy;
}

TableState& find_table(
    EmbeddingState& state,
    const std::string& name,
    const std::string& where) {
  const auto found = std::ranges::find(state.tables, name, &TableState::name);
  TESSERA_CHECK_VALUE(
      found != state.tables.end(),
      "{} no table '{}'. Known: {}. Correct the name.",
      where,
      shorten(name),
      join_names(state.tables, shortened_name));
  return *found;
}

at::Tensor read_rows(
    EmbeddingState& state,
    const std::string& table,
    int64_t begin,
    int64_t end) {
  const at::NoGradGuard no_grad;
  RankGroup& ranks = *state.ranks;
  at::Tensor rows;
  const std::exception_ptr error = error_of([&] {
    rows = read_local_rows(find_table(state, table, "[read_rows]"), begin, end);
  });
  const at::Tensor sum = ranks.sum(
      {Rendezvous::kReadRows, state.layer},
      error,
      {.value = static_cast<int64_t>(random_key(
           static_cast<uint64_t>(begin), table + " " + std::to_string(end))),
       .problem = "reads other rows. Read the same rows on all ranks."},
      error == nullptr ? rows.flatten() : rows);
  return sum.view(rows.sizes());
}

EmbeddingTables embedding_tables_of(
    const EmbeddingState& state,
    bool are_parameters) {
  std::vector<EmbeddingTables::Entry> entries;
  for (const TableState& table : state.tables) {
    if (table.key_rows != nullptr) {
      const NumberedKeys sorted = table.key_rows->sorted_keys();
      const at::Tensor rows =
          table.key_rows->all_rows().index_select(0, sorted.rows);
      entries.push_back(
          {table.config, table.name, numbers_of(rows), sorted.keys});
      continue;
    }
    entries.push_back(
        {.config = table.config,
         .name = table.name,
         .parameters = numbers_of(table.parameters.detach()),
         .variable = are_parameters ? table.parameters : at::Tensor()});
  }
  return EmbeddingTables(std::move(entries));
}

}  // namespace tessera
