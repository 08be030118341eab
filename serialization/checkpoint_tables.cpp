// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_tables.h"

#include "optim/row_update.h"
#include "src/common/parallel.h"
#include "src/common/rank_group.h"
#include "src/engine/accumulated_gradients.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

namespace {

// The content of one data file.
struct DataFile {
  RowBytes rows = {};
  ManifestFile* entry = nullptr;
};

ManifestTensor describe_tensor(
    const TableState& table,
    const std::string& name,
    const at::Tensor& values) {
  TORCH_INTERNAL_ASSERT(values.is_contiguous());
  std::vector<int64_t> shape = values.sizes().vec();
  shape[0] = table.config->vocabulary_size;
  return {
      .name = name,
      .dtype = to_string(values.scalar_type()),
      .shape = std::move(shape)};
}

// The files of all ranks are in one folder, so their names have the rank.
std::string prefix_of(const EmbeddingState& state, size_t table) {
  return state.ranks->size() == 1
      ? fmt::format("table_{}.", table)
      : fmt::format("rank_{}.table_{}.", state.ranks->rank(), table);
}

// Splits the rows of a tensor into files, and adds their entries and contents.
void add_files(
    const std::string& file_name,
    const RowBytes& rows,
    int64_t file_bytes,
    ManifestTensor& tensor,
    std::vector<DataFile>& files) {
  const int64_t step =
      std::max<int64_t>(1, file_bytes / std::max<int64_t>(1, rows.row_bytes));
  for (int64_t begin = 0; begin < rows.count; begin += step) {
    tensor.parts.push_back(
        {.begin = begin,
         .end = std::min(rows.count, begin + step),
         .file = {
             .name = fmt::format("{}.{}", file_name, tensor.parts.size())}});
  }
  for (ManifestPart& part : tensor.parts) {
    DataFile file{.rows = rows, .entry = &part.file};
    file.rows.count = part.end - part.begin;
    if (rows.rows != nullptr) {
      file.rows.rows += part.begin;
    } else {
      file.rows.data += part.begin * rows.row_bytes;
    }
    files.push_back(file);
  }
}

// Plans the files of one table's parameters and slots. `rows` are local rows; nullptr
// means the first `count` rows.
void add_table(
    const TableState& table,
    const uint32_t* rows,
    int64_t count,
    const std::string& prefix,
    int64_t file_bytes,
    ManifestTable& entry,
    std::vector<DataFile>& files) {
  for (size_t i = 0; i <= table.slots.size(); ++i) {
    ManifestTensor& tensor = entry.tensors[i];
    const at::Tensor& values =
        i == 0 ? table.parameters : table.slots[i - 1].values;
    add_files(
        prefix + tensor.name,
        {.data = static_cast<const char*>(values.const_data_ptr()),
         .row_bytes = tensor.row_bytes(),
         .count = count,
         .rows = rows},
        file_bytes,
        tensor,
        files);
  }
}

// Plans the files of the keys of a table.
void add_keys(
    const KeysToSave& keys,
    const std::string& prefix,
    int64_t file_bytes,
    ManifestTable& entry,
    std::vector<DataFile>& files) {
  const auto add = [&](const auto& values, ManifestTensor& tensor) {
    add_files(
        prefix + tensor.name,
        {.data = reinterpret_cast<const char*>(values.data()),
         .row_bytes = static_cast<int64_t>(sizeof(values[0])),
         .count = static_cast<int64_t>(values.size())},
        file_bytes,
        tensor,
        files);
  };
  for (ManifestTensor& tensor : entry.tensors) {
    if (tensor.name == kSavedKeys) {
      add(keys.list.keys, tensor);
    } else if (tensor.name == kKeyUpdates) {
      add(keys.list.updates, tensor);
    } else if (tensor.name == kKeyFrequencies) {
      add(keys.list.frequencies, tensor);
    }
  }
  if (entry.keys->sketch) {
    add(keys.sketch, *entry.keys->sketch);
  }
  if (entry.keys->removed) {
    add(keys.removed, *entry.keys->removed);
  }
}

// Replaces this rank's row numbers in its parts by those of the whole table.
void number_entries(kernels::RowNumbers numbers, ManifestTensor& tensor) {
  for (ManifestPart& part : tensor.parts) {
    part.end = numbers[part.end - 1] + 1;
    part.begin = numbers[part.begin];
    // A table may have fewer rows than there are ranks.
    part.step = std::min(numbers.step, std::max<int64_t>(1, tensor.shape[0]));
  }
}

template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {
      reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Adds the files of another rank to `tables`.
void merge_tables(
    std::vector<ManifestTable> others,
    std::vector<ManifestTable>& tables) {
  const auto move_parts = [](auto& from, auto& to) {
    to.insert(
        to.end(),
        std::make_move_iterator(from.begin()),
        std::make_move_iterator(from.end()));
  };
  for (size_t i = 0; i < others.size(); ++i) {
    for (size_t j = 0; j < others[i].tensors.size(); ++j) {
      move_parts(others[i].tensors[j].parts, tables[i].tensors[j].parts);
    }
    if (others[i].keys) {
      ManifestKeys& keys = *tables[i].keys;
      if (keys.sketch) {
        move_parts(others[i].keys->sketch->parts, keys.sketch->parts);
      }
      if (keys.removed) {
        move_parts(others[i].keys->removed->parts, keys.removed->parts);
      }
    }
    if (others[i].accumulated) {
      move_parts(others[i].accumulated->parts, tables[i].accumulated->parts);
    }
  }
}

}  // namespace

std::vector<ManifestTable> describe_tables(const EmbeddingState& state) {
  std::vector<ManifestTable> tables;
  for (const TableState& table : state.tables) {
    ManifestTable entry{.name = table.name};
    // The entry says which optimizer has trained the slots. On the host, slots that a
    // slot_creation has made are not trained before make_optimizer().
    if (table.optimizer && state.with_slots == WithSlots::kYes) {
      entry.optimizer = optim::name_of(*table.optimizer);
    }
    entry.tensors.push_back(
        describe_tensor(table, "parameters", table.parameters));
    for (const Slot& slot : table.slots) {
      entry.tensors.push_back(
          describe_tensor(table, optim::slot_key(slot.name), slot.values));
    }
    if (table.key_rows != nullptr) {
      for (const auto& [name, dtype] :
           {std::pair(kSavedKeys, "int64"),
            std::pair(kKeyUpdates, "uint32"),
            std::pair(kKeyFrequencies, "float32")}) {
        entry.tensors.push_back({.name = name, .dtype = dtype, .shape = {0}});
      }
    }
    if (is_accumulating(state, table)) {
      entry.accumulated =
          ManifestAccumulated{.steps = accumulation_steps_of(table)};
    }
    tables.push_back(std::move(entry));
  }
  return tables;
}

void write_tables(
    const EmbeddingState& state,
    const std::vector<TableIncrement>& increments,
    const std::vector<KeysToSave>& keys,
    int64_t file_bytes,
    const CheckpointFiles& files,
    std::vector<ManifestTable>& tables) {
  std::vector<DataFile> contents;
  for (size_t i = 0; i < tables.size(); ++i) {
    const TableState& table = state.tables[i];
    if (!writes_rows(table)) {
      continue;
    }
    const std::string prefix = prefix_of(state, i);
    const uint32_t* rows = nullptr;
    int64_t count = table.rows.count;
    if (table.key_rows != nullptr) {
      rows = keys[i].list.rows.data();
      count = keys[i].list.rows.size();
    } else if (tables[i].touched) {
      rows = increments[i].rows.data();
      count = static_cast<int64_t>(increments[i].rows.size());
    }
    add_table(table, rows, count, prefix, file_bytes, tables[i], contents);
    if (table.key_rows != nullptr) {
      add_keys(keys[i], prefix, file_bytes, tables[i], contents);
    }
  }
  int64_t bytes = 0;
  for (const DataFile& content : contents) {
    bytes += content.rows.count * content.rows.row_bytes;
  }
  run_tasks(static_cast<int64_t>(contents.size()), bytes, [&](int64_t i) {
    files.write_rows(*contents[i].entry, contents[i].rows);
  });
}

void write_accumulated(
    const EmbeddingState& state,
    const CheckpointFiles& files,
    std::vector<ManifestTable>& tables) {
  for (size_t i = 0; i < tables.size(); ++i) {
    std::optional<ManifestAccumulated>& entry = tables[i].accumulated;
    if (!entry || !writes_rows(state.tables[i])) {
      continue;
    }
    const AccumulatedGradients gradients = accumulated_gradients(state, i);
    const auto* first = gradients.rows.const_data_ptr<int64_t>();
    const std::vector<uint32_t> rows(first, first + gradients.rows.numel());
    const std::string prefix = prefix_of(state, i);
    ManifestGradients part{
        .count = gradients.rows.numel(),
        .rows = {.name = prefix + "accumulated_rows"},
        .sums = {.name = prefix + "accumulated_sums"}};
    files.write_bytes(part.rows, bytes_of(rows));
    if (state.tables[i].key_rows != nullptr) {
      part.collected = {
          .count = gradients.keys.numel(),
          .dropped = gradients.dropped,
          .keys = {.name = prefix + "accumulated_keys"},
          .counts = {.name = prefix + "accumulated_counts"}};
      const auto* key = gradients.keys.const_data_ptr<int64_t>();
      const auto* count = gradients.counts.const_data_ptr<int64_t>();
      files.write_bytes(
          part.collected->keys,
          bytes_of(std::vector<int64_t>(key, key + part.collected->count)));
      files.write_bytes(
          part.collected->counts,
          bytes_of(
              std::vector<uint32_t>(count, count + part.collected->count)));
    }
    files.write_bytes(
        part.sums,
        {static_cast<const char*>(gradients.sums.const_data_ptr()),
         gradients.sums.nbytes()});
    entry->parts.push_back(std::move(part));
  }
}

void gather_tables(
    const EmbeddingState& state,
    const std::vector<TableIncrement>& increments,
    const std::vector<KeysToSave>& keys,
    std::vector<ManifestTable>& tables) {
  RankGroup& ranks = *state.ranks;
  const RendezvousPoint place(Rendezvous::kSaveCheckpoint, state.layer);
  const std::string text = ranks.run_on_all_ranks(place, [&] {
    for (size_t i = 0; i < tables.size(); ++i) {
      const bool has_keys = tables[i].keys.has_value();
      const kernels::RowNumbers rows = has_keys
          ? kernels::RowNumbers{.first = keys[i].first}
          : tables[i].touched
          ? kernels::RowNumbers{.first = increments[i].first}
          : state.tables[i].rows.numbers;
      for (ManifestTensor& tensor : tables[i].tensors) {
        number_entries(rows, tensor);
      }
      if (has_keys && tables[i].keys->sketch) {
        number_entries(
            {.first = keys[i].first_counter}, *tables[i].keys->sketch);
      }
      if (has_keys && tables[i].keys->removed) {
        number_entries(
            {.first = keys[i].first_removed}, *tables[i].keys->removed);
      }
    }
    return ranks.size() == 1 ? std::string() : to_text(tables);
  });
  if (ranks.size() == 1) {
    return;
  }
  const std::vector<std::string> texts = ranks.gather(text);
  ranks.run_on_all_ranks(place, [&] {
    for (size_t rank = 1; ranks.rank() == 0 && rank < texts.size(); ++rank) {
      merge_tables(tables_from_text(texts[rank]), tables);
    }
  });
}

}  // namespace tessera
