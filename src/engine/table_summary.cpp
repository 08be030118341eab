// SPDX-License-Identifier: Apache-2.0
#include "src/engine/table_summary.h"

#include <tessera/common/shorten.h>

#include "optim/row_update.h"
#include "src/common/names.h"
#include "src/common/text.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/sampled_rows.h"
#include "src/tables/key_table_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace tessera {

namespace {

std::string keys_line(const TableState& table) {
  const KeyIndex& index = table.key_rows->index();
  const KeyCounts& counts = index.counts();
  const std::optional<int64_t> default_key = index.config().default_key;
  return fmt::format(
      "table '{}': {} of {} rows have keys ({:.0f} %), {} keys admitted, {} evicted, {} gradients of evicted keys dropped{}\n",
      shorten(table.name),
      index.size(),
      table.config->max_rows(),
      100.0 * static_cast<double>(index.size()) /
          static_cast<double>(table.config->max_rows()),
      counts.admitted,
      counts.evicted,
      counts.dropped,
      default_key ? fmt::format(", unknown keys look up {}", *default_key)
                  : "");
}

// Returns a warning if the accumulators have hardly grown in kMinUpdates or more updates,
// and an empty text otherwise.
std::string warning_line(const EmbeddingState& state, const TableState& table) {
  // The rows of a key table without a key have no slots yet.
  if (!table.optimizer || table.key_rows != nullptr ||
      updates_of(state, table) < kMinUpdates) {
    return "";
  }
  const double start = initial_accumulator_of(table);
  if (start <= 0.0) {
    return "";
  }
  const SampledRows rows = sample_rows(table);
  rows.accumulators.fill_(start);
  const TableMovement found = compare(rows, table);
  if (!has_hardly_grown(found)) {
    return "";
  }
  return fmt::format(
      "table '{}': after {} updates, the accumulators of its touched rows have "
      "grown by {:.2g} % from their start, {:.3g}. Its rows may hardly move: "
      "see docs/optimizers.md.\n",
      shorten(table.name),
      updates_of(state, table),
      100.0 * found.accumulator_growth,
      start);
}

// Such as "1 table" or "2 tables".
std::string counted(size_t count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace

std::string summary_of(
    const EmbeddingState& state,
    const std::string& strategy) {
  std::vector<std::vector<std::string>> lines{
      {"table",
       "rows",
       "dim",
       "dtype",
       "combiner",
       "optimizer",
       "slots",
       state.ranks->size() == 1 ? "memory" : "memory here"}};
  int64_t total = 0;
  int64_t with_all_keys = 0;
  for (const TableState& table : state.tables) {
    int64_t bytes = static_cast<int64_t>(table.parameters.nbytes());
    for (const Slot& slot : table.slots) {
      bytes += static_cast<int64_t>(slot.values.nbytes());
    }
    const KeyIndex* keys =
        table.key_rows != nullptr ? &table.key_rows->index() : nullptr;
    bytes += keys != nullptr ? keys->bytes_at_capacity() : 0;
    bytes += keys != nullptr && rounds_at_random(*table.config)
        ? 8 * keys->rows()  // KeyTableRows::row_keys()
        : 0;
    with_all_keys += bytes;
    if (keys != nullptr) {  // of the rows in use, with their keys
      bytes = bytes / std::max<int64_t>(1, keys->rows()) * keys->size();
    }
    total += bytes;
    const bool has_narrow_slots = !table.slots.empty() &&
        table.slots[0].values.scalar_type() == at::kBFloat16;
    lines.push_back(
        {table.name,
         std::to_string(
             keys != nullptr ? keys->size() : table.config->vocabulary_size),
         std::to_string(table.config->dim),
         to_string(table.config->dtype),
         to_string(table.config->combiner),
         table.optimizer ? optim::name_of(*table.optimizer) : "-",
         (table.slots.empty() ? "-" : join_names(table.slots, &Slot::name)) +
             (has_narrow_slots ? " in bfloat16" : ""),
         megabytes(bytes)});
  }
  std::string text = align(lines);
  text += fmt::format(
      "{}, {}, {}{}, {}{}\n",
      counted(state.tables.size(), "table"),
      counted(state.features.size(), "feature"),
      megabytes(total),
      has_key_tables(state)
          ? fmt::format(" (with all keys {})", megabytes(with_all_keys))
          : "",
      strategy,
      state.ranks->size() == 1
          ? ""
          : fmt::format(
                ", rank {} of {}", state.ranks->rank(), state.ranks->size()));
  for (const TableState& table : state.tables) {
    if (table.key_rows != nullptr) {
      text += keys_line(table);
    }
  }
  for (const TableState& table : state.tables) {
    text += warning_line(state, table);
  }
  return text;
}

}  // namespace tessera
