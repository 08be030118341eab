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

// Adds the entries of the files that will hold `rows` rows.
void split_tensor(
    const std::string& file_name,
    int64_t rows,
    int64_t file_bytes,
    ManifestTensor& tensor) {
  const int64_t row_bytes = std::max<int64_t>(1, tensor.row_bytes());
  const int64_t step = std::max<int64_t>(1, file_bytes / row_bytes);
  for (int64_t begin = 0; begin < rows; begin += step) {
    tensor.parts.push_back(
        {.begin = begin,
         .end = std::min(rows, begin + step),
         .file = {
             .name = fmt::format("{}.{}", file_name, tensor.parts.size())}});
  }
}

// Plans the files of one table. `increment` is nullptr if all rows are saved.
void split_table(
    const TableState& table,
    const TableIncrement* increment,
    const std::string& prefix,
    int64_t file_bytes,
    ManifestTable& entry,
    std::vector<DataFile>& files) {
  for (size_t i = 0; i < entry.tensors.size(); ++i) {
    ManifestTensor& tensor = entry.tensors[i];
    const at::Tensor& values =
        i == 0 ? table.parameters : table.slots[i - 1].values;
    const auto* data = static_cast<const char*>(values.const_data_ptr());
    split_tensor(
        prefix + tensor.name,
        increment != nullptr ? static_cast<int64_t>(increment->rows.size())
                             : table.rows.count,
        file_bytes,
        tensor);
    for (ManifestPart& part : tensor.parts) {
      DataFile file{
          .rows =
              {.data = data,
               .row_bytes = tensor.row_bytes(),
               .count = part.end - part.begin},
          .entry = &part.file};
      if (increment != nullptr) {
        file.rows.rows = increment->rows.data() + part.begin;
      } else {
        file.rows.data += part.begin * file.rows.row_bytes;
      }
      files.push_back(file);
    }
  }
}

// Replaces this rank's row numbers in its parts by those of the whole table.
void number_entries(kernels::RowNumbers numbers, ManifestTable& table) {
  for (ManifestTensor& tensor : table.tensors) {
    for (ManifestPart& part : tensor.parts) {
      part.end = numbers[part.end - 1] + 1;
      part.begin = numbers[part.begin];
      // A table may have fewer rows than there are ranks.
      part.step = std::min(numbers.step, std::max<int64_t>(1, tensor.shape[0]));
    }
  }
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
    if (table.optimizer && state.with_slots == WithSlots::kYes) {
      entry.optimizer = optim::name_of(*table.optimizer);
    }
    entry.tensors.push_back(
        describe_tensor(table, "parameters", table.parameters));
    for (const Slot& slot : table.slots) {
      entry.tensors.push_back(
          describe_tensor(table, optim::slot_key(slot.name), slot.values));
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
    int64_t file_bytes,
    const CheckpointFiles& files,
    std::vector<ManifestTable>& tables) {
  std::vector<DataFile> contents;
  for (size_t i = 0; i < tables.size(); ++i) {
    if (writes_rows(state.tables[i])) {
      split_table(
          state.tables[i],
          tables[i].touched ? &increments[i] : nullptr,
          prefix_of(state, i),
          file_bytes,
          tables[i],
          contents);
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
    files.write_bytes(
        part.rows,
        {reinterpret_cast<const char*>(rows.data()),
         rows.size() * sizeof(uint32_t)});
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
    std::vector<ManifestTable>& tables) {
  RankGroup& ranks = *state.ranks;
  const RendezvousPoint place(Rendezvous::kSaveCheckpoint, state.layer);
  const std::string text = ranks.run_on_all_ranks(place, [&] {
    for (size_t i = 0; i < tables.size(); ++i) {
      number_entries(
          tables[i].touched ? kernels::RowNumbers{.first = increments[i].first}
                            : state.tables[i].rows.numbers,
          tables[i]);
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
