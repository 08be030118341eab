// SPDX-License-Identifier: Apache-2.0
#include <tessera/engine/table_module.h>

#include "serialization/archive.h"
#include "serialization/checkpoint_reader.h"
#include "serialization/checkpoint_writer.h"
#include "serialization/saved_keys.h"
#include "src/engine/embedding_state.h"
#include "src/engine/key_updates.h"
#include "src/engine/pending_gradients.h"
#include "src/engine/strategies/embedding_strategy.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

namespace tessera {

namespace {

constexpr const char* kUpdateTable = "[update_embedding_table]";

bool has_pending_passes(const TableModule& tables) {
  const auto strategy = tables.backward_strategy();
  const auto pending = strategy == nullptr ? nullptr : strategy->pending();
  return pending != nullptr && pending->passes() > 0;
}

void discard_pending(const TableModule& tables) {
  if (const auto strategy = tables.backward_strategy()) {
    strategy->discard_pending();
  }
}

}  // namespace

EmbeddingTables TableModule::embedding_tables() const {
  check_holds_all_rows(
      state(),
      "[embedding_tables]",
      "Use read_rows(), which collects them from all ranks, or "
      "update_embedding_table().");
  wait_for_lookups();
  std::optional<EmbeddingTables> tables;
  read_state([&](const EmbeddingState& state) {
    tables = embedding_tables_of(state, !strategy().is_fused());
  });
  return std::move(*tables);
}

void TableModule::update_embedding_table(
    const std::string& name,
    const at::Tensor& values) {
  change_state([&](EmbeddingState& state) {
    assign_table(find_table(state, name, kUpdateTable), values);
  });
}

void TableModule::update_embedding_table(
    const std::string& name,
    const at::Tensor& keys,
    const at::Tensor& values) {
  change_state([&](EmbeddingState& state) {
    TableState& table = find_table(state, name, kUpdateTable);
    if (table.key_rows != nullptr) {
      check_nothing_waits(
          state, table, has_pending_passes(*this), kUpdateTable);
    }
    assign_keys(table, keys, values, updates_of(state, table));
  });
}

int64_t TableModule::evict(const std::string& name, int64_t updates) {
  int64_t evicted = 0;
  change_state([&](EmbeddingState& state) {
    evicted = evict_keys(
        state,
        find_table(state, name, "[evict]"),
        updates,
        has_pending_passes(*this));
  });
  return evicted;
}

void TableModule::save(torch::serialize::OutputArchive& archive) const {
  check_holds_all_rows(
      state(),
      fmt::format("[{}::save]", class_name()),
      "Use save_checkpoint(), to which each rank writes its rows.");
  read_state([&](const EmbeddingState& state) {
    save_state(state, feature_configs(), archive);
  });
}

void TableModule::load(torch::serialize::InputArchive& archive) {
  load(archive, {});
}

void TableModule::load(
    torch::serialize::InputArchive& archive,
    const LoadOptions& options) {
  change_state([&](EmbeddingState& state) {
    load_state(
        state, archive, options, fmt::format("[{}::load]", class_name()));
    discard_pending(*this);
  });
}

void TableModule::save_checkpoint(
    const std::string& directory,
    const CheckpointOptions& options) {
  save_tables(directory, options, "[save_checkpoint]");
}

void TableModule::load_checkpoint(
    const std::string& directory,
    const LoadOptions& options) {
  load_tables(directory, options, "[load_checkpoint]");
}

void TableModule::save_tables(
    const std::string& directory,
    const CheckpointOptions& options,
    const std::string& where) {
  Disk disk(where);
  change_state([&](EmbeddingState& state) {
    tessera::save_checkpoint(
        state, feature_configs(), directory, options, disk);
  });
}

void TableModule::load_tables(
    const std::string& directory,
    const LoadOptions& options,
    const std::string& where) {
  change_state([&](EmbeddingState& state) {
    tessera::load_checkpoint(state, directory, options, where);
    discard_pending(*this);
  });
}

}  // namespace tessera
