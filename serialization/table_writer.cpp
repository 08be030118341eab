// SPDX-License-Identifier: Apache-2.0
#include "serialization/table_writer.h"

#include "optim/row_update.h"
#include "serialization/saved_keys.h"
#include "src/common/rank_group.h"
#include "src/engine/accumulated_gradients.h"
#include "src/tables/key_table_rows.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tessera {

namespace {

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

// The numbers that the ranks exchange about one key table.
struct RankKeys {
  int64_t keys = 0;
  int64_t changed = 0;
  int64_t removed = 0;
  int64_t counters = 0;
  KeyCounts counts = {};
  bool knows_changes = false;
  bool has_new_sketch = true;
};
static_assert(std::is_trivially_copyable_v<RankKeys>);

std::vector<RankKeys> gather_from_ranks(const RankKeys& own, RankGroup& ranks) {
  std::vector<RankKeys> all;
  for (const std::string& bytes : ranks.all_gather(
           std::string(reinterpret_cast<const char*>(&own), sizeof(own)))) {
    TORCH_INTERNAL_ASSERT(bytes.size() == sizeof(RankKeys));
    std::memcpy(&all.emplace_back(), bytes.data(), sizeof(RankKeys));
  }
  return all;
}

int64_t size_of(const auto& values) {
  return static_cast<int64_t>(values.size());
}

// The memory of a list of numbers.
RowBytes bytes_of_list(const auto& values) {
  return {
      .data = reinterpret_cast<const char*>(values.data()),
      .row_bytes = static_cast<int64_t>(sizeof(values[0])),
      .count = size_of(values)};
}

template <class T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {
      reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// The numbers of an int64 tensor as a vector.
template <class T>
std::vector<T> numbers_of(const at::Tensor& values) {
  const auto* first = values.const_data_ptr<int64_t>();
  return {first, first + values.numel()};
}

// The tensors of a table, those of its keys included.
std::vector<ManifestTensor*> tensors_of(ManifestTable& table) {
  std::vector<ManifestTensor*> tensors;
  for (ManifestTensor& tensor : table.tensors) {
    tensors.push_back(&tensor);
  }
  if (table.keys && table.keys->sketch) {
    tensors.push_back(&*table.keys->sketch);
  }
  if (table.keys && table.keys->removed) {
    tensors.push_back(&*table.keys->removed);
  }
  return tensors;
}

}  // namespace

TableWriter::TableWriter(
    EmbeddingState& state,
    size_t table,
    ManifestTable& entry)
    : state_(state), index_(table), table_(state.tables[table]), entry_(entry) {
  entry_.name = table_.name;
  // The entry says which optimizer has trained the slots. On the host, slots that a
  // slot_creation has made are not trained before make_optimizer().
  if (table_.optimizer && state.with_slots == WithSlots::kYes) {
    entry_.optimizer = optim::name_of(*table_.optimizer);
  }
  entry_.tensors.push_back(
      describe_tensor(table_, "parameters", table_.parameters));
  for (const Slot& slot : table_.slots) {
    entry_.tensors.push_back(
        describe_tensor(table_, optim::slot_key(slot.name), slot.values));
  }
  if (table_.key_rows != nullptr) {
    for (const auto& [name, dtype] :
         {std::pair(kSavedKeys, "int64"),
          std::pair(kKeyUpdates, "uint32"),
          std::pair(kKeyFrequencies, "float32")}) {
      entry_.tensors.push_back({.name = name, .dtype = dtype, .shape = {0}});
    }
  }
  if (is_accumulating(state, table_)) {
    entry_.accumulated =
        ManifestAccumulated{.steps = accumulation_steps_of(table_)};
  }
}

bool TableWriter::writes_rows() const {
  return !table_.rows.is_copy;
}

// Whether this rank compares the rows with the previous checkpoint. Interleaved rows are
// always saved whole.
bool TableWriter::compares_rows() const {
  return writes_rows() && table_.rows.numbers.step == 1;
}

void TableWriter::choose_rows(bool has_parent, bool is_tracking) {
  has_parent_ = has_parent;
  if (table_.key_rows != nullptr) {
    choose_keys(has_parent, is_tracking);
  } else if (has_parent) {
    choose_touched();
  }
}

void TableWriter::choose_touched() {
  const bool is_known = !writes_rows() || (compares_rows() && table_.touched);
  if (is_known && writes_rows()) {
    touched_ = table_.touched->rows(table_);
  }
  const std::vector<int64_t> counts =
      state_.ranks->all_gather(is_known ? size_of(touched_) : int64_t{-1});
  if (*std::min_element(counts.begin(), counts.end()) < 0) {
    return;
  }
  const auto own = counts.begin() + state_.ranks->rank();
  first_ = std::accumulate(counts.begin(), own, int64_t{0});
  const int64_t total = std::accumulate(own, counts.end(), first_);
  // If all rows were touched, a list of them would only make the checkpoint larger.
  if (total < table_.config->vocabulary_size) {
    entry_.touched = ManifestTouched{.count = total};
  }
}

void TableWriter::choose_keys(bool has_parent, bool is_tracking) {
  KeyTableRows& key_rows = *table_.key_rows;
  const KeyIndex& index = key_rows.index();
  sketch_ = index.sketch();
  if (is_tracking) {
    snapshot_.emplace(table_);
  }
  RankKeys own{
      .keys = index.size(),
      .counters = size_of(sketch_),
      .counts = index.counts(),
      .knows_changes = has_parent && is_tracking && key_rows.snapshot()};
  KeySnapshot::Changes changes;
  if (own.knows_changes) {
    changes = key_rows.snapshot()->until(*snapshot_, index);
    own.changed = size_of(changes.changed.keys);
    own.removed = size_of(changes.removed);
    own.has_new_sketch = changes.has_new_sketch;
  }

  const std::vector<RankKeys> all = gather_from_ranks(own, *state_.ranks);
  RankKeys total{.knows_changes = true, .has_new_sketch = false};
  RankKeys before;  // the ranks before this one
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (static_cast<int64_t>(rank) == state_.ranks->rank()) {
      before = total;
    }
    total.keys += all[rank].keys;
    total.changed += all[rank].changed;
    total.removed += all[rank].removed;
    total.counters += all[rank].counters;
    total.counts.admitted += all[rank].counts.admitted;
    total.counts.evicted += all[rank].counts.evicted;
    total.counts.dropped += all[rank].counts.dropped;
    total.knows_changes = total.knows_changes && all[rank].knows_changes;
    total.has_new_sketch = total.has_new_sketch || all[rank].has_new_sketch;
  }
  // If all keys have changed, a list of removed ones would only make the checkpoint larger.
  const bool is_increment = total.knows_changes && total.changed < total.keys;
  first_ = is_increment ? before.changed : before.keys;
  first_removed_ = before.removed;
  first_counter_ = before.counters;
  for (ManifestTensor& tensor : entry_.tensors) {
    tensor.shape[0] = is_increment ? total.changed : total.keys;
  }
  ManifestKeys& keys = entry_.keys.emplace();
  keys.partitions = index.partitions().count();
  keys.half_life = half_life_of(index);
  keys.admitted = total.counts.admitted;
  keys.evicted = total.counts.evicted;
  keys.dropped = total.counts.dropped;
  if (!is_increment || total.has_new_sketch) {
    keys.sketch = {
        .name = "sketch", .dtype = "uint8", .shape = {total.counters}};
  }
  if (is_increment) {
    keys.removed = {
        .name = "removed_keys", .dtype = "int64", .shape = {total.removed}};
    keys_ = std::move(changes.changed);
    removed_ = std::move(changes.removed);
  } else {
    keys_ = list_keys(index, [](const KeyEntry& /*entry*/) { return true; });
  }
}

// The files of all ranks are in one folder, so their names have the rank.
std::string TableWriter::file_prefix() const {
  return state_.ranks->size() == 1
      ? fmt::format("table_{}.", index_)
      : fmt::format("rank_{}.table_{}.", state_.ranks->rank(), index_);
}

void TableWriter::add_files(int64_t file_bytes, std::vector<DataFile>& files) {
  if (!writes_rows()) {
    return;
  }
  // `numbers` are those of the rows in the whole table, or in the list of all ranks.
  const auto add = [&](ManifestTensor& tensor,
                       const RowBytes& rows,
                       kernels::RowNumbers numbers) {
    const int64_t step =
        std::max<int64_t>(1, file_bytes / std::max<int64_t>(1, rows.row_bytes));
    tensor.parts.reserve(rows.count / step + 1);  // the entries may not move
    for (int64_t begin = 0; begin < rows.count; begin += step) {
      const int64_t end = std::min(rows.count, begin + step);
      ManifestPart& part = tensor.parts.emplace_back();
      part.begin = numbers[begin];
      part.end = numbers[end - 1] + 1;
      // A table may have fewer rows than there are ranks.
      part.step = std::min(numbers.step, std::max<int64_t>(1, tensor.shape[0]));
      part.file.name = fmt::format(
          "{}{}.{}", file_prefix(), tensor.name, tensor.parts.size() - 1);
      DataFile file{.rows = rows, .entry = &part.file};
      file.rows.count = end - begin;
      if (rows.rows != nullptr) {
        file.rows.rows += begin;
      } else {
        file.rows.data += begin * rows.row_bytes;
      }
      files.push_back(file);
    }
  };
  const uint32_t* rows = nullptr;
  int64_t count = table_.rows.count;
  kernels::RowNumbers numbers = table_.rows.numbers;
  if (entry_.keys) {
    rows = keys_.rows.data();
    count = size_of(keys_.rows);
    numbers = {.first = first_};
  } else if (entry_.touched) {
    rows = touched_.data();
    count = size_of(touched_);
    numbers = {.first = first_};
  }
  size_t next = 0;
  const auto add_values = [&](const at::Tensor& values) {
    ManifestTensor& tensor = entry_.tensors[next++];
    add(tensor,
        {.data = static_cast<const char*>(values.const_data_ptr()),
         .row_bytes = tensor.row_bytes(),
         .count = count,
         .rows = rows},
        numbers);
  };
  add_values(table_.parameters);
  for (const Slot& slot : table_.slots) {
    add_values(slot.values);
  }
  if (!entry_.keys) {
    return;
  }
  add(entry_.tensors[next++], bytes_of_list(keys_.keys), numbers);
  add(entry_.tensors[next++], bytes_of_list(keys_.updates), numbers);
  add(entry_.tensors[next++], bytes_of_list(keys_.frequencies), numbers);
  if (entry_.keys->sketch) {
    add(*entry_.keys->sketch,
        bytes_of_list(sketch_),
        {.first = first_counter_});
  }
  if (entry_.keys->removed) {
    add(*entry_.keys->removed,
        bytes_of_list(removed_),
        {.first = first_removed_});
  }
}

void TableWriter::write_accumulated(const CheckpointFiles& files) {
  if (!entry_.accumulated || !writes_rows()) {
    return;
  }
  const AccumulatedGradients gradients = accumulated_gradients(state_, index_);
  const std::string prefix = file_prefix() + "accumulated_";
  ManifestGradients part{
      .count = gradients.rows.numel(),
      .rows = {.name = prefix + "rows"},
      .sums = {.name = prefix + "sums"}};
  files.write_bytes(part.rows, bytes_of(numbers_of<uint32_t>(gradients.rows)));
  if (table_.key_rows != nullptr) {
    part.collected = {
        .count = gradients.keys.numel(),
        .dropped = gradients.dropped,
        .keys = {.name = prefix + "keys"},
        .counts = {.name = prefix + "counts"}};
    files.write_bytes(
        part.collected->keys, bytes_of(numbers_of<int64_t>(gradients.keys)));
    files.write_bytes(
        part.collected->counts,
        bytes_of(numbers_of<uint32_t>(gradients.counts)));
  }
  files.write_bytes(
      part.sums,
      {static_cast<const char*>(gradients.sums.const_data_ptr()),
       gradients.sums.nbytes()});
  entry_.accumulated->parts.push_back(std::move(part));
}

void TableWriter::merge(ManifestTable other) {
  const auto move_parts = [](auto& from, auto& to) {
    to.insert(
        to.end(),
        std::make_move_iterator(from.begin()),
        std::make_move_iterator(from.end()));
  };
  const std::vector<ManifestTensor*> from = tensors_of(other);
  const std::vector<ManifestTensor*> to = tensors_of(entry_);
  for (size_t i = 0; i < from.size(); ++i) {
    move_parts(from[i]->parts, to[i]->parts);
  }
  if (other.accumulated) {
    move_parts(other.accumulated->parts, entry_.accumulated->parts);
  }
}

void TableWriter::gather_touched() {
  if (!entry_.touched) {
    return;
  }
  std::vector<uint32_t> rows = touched_;
  for (uint32_t& row : rows) {
    row += static_cast<uint32_t>(table_.rows.numbers.first);
  }
  for (const std::string& of_rank :
       state_.ranks->gather(std::string(bytes_of(rows)))) {
    all_touched_ += of_rank;
  }
}

void TableWriter::write_touched(const CheckpointFiles& files) {
  if (entry_.touched) {
    entry_.touched->file.name = fmt::format("table_{}.touched", index_);
    files.write_bytes(entry_.touched->file, all_touched_);
  }
}

void TableWriter::track_changes() {
  if (table_.key_rows != nullptr) {
    table_.key_rows->snapshot() = std::move(snapshot_);
  } else if (compares_rows() && has_parent_ && table_.touched) {
    table_.touched->accept(table_, touched_);
  } else if (compares_rows()) {
    table_.touched.emplace(table_);
  }
}

}  // namespace tessera
