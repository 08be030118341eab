// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_reader.h"

#include "serialization/saved_keys.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

namespace tessera {

namespace {

namespace fs = std::filesystem;

// The keys of a table in a chain of checkpoints, in the order of their hashes.
struct StoredKeys {
  SavedKeys saved = {};
  std::vector<StoredRow> rows = {};  // [saved.entries]
};

// The keys of one checkpoint in the chain.
struct StoredChanges {
  std::vector<KeyEntry> entries = {};  // new or changed
  std::vector<int64_t> removed = {};
};

// Refuses keys that are not in the order of their hashes.
void check_order(
    const std::vector<int64_t>& keys,
    const char* what,
    const std::filesystem::path& folder,
    const ManifestTable& table,
    const std::string& where) {
  const auto wrong = std::ranges::adjacent_find(
      keys, std::ranges::greater_equal(), hash_of_key);
  TESSERA_CHECK_VALUE(
      wrong == keys.end(),
      "{} '{}': the {} of table '{}' must be in the order of their hashes, each of them once, but key {} follows key {}. The checkpoint is damaged. Choose another one with LoadOptions::checkpoint, or move this one out of its directory.",
      where,
      folder.string(),
      what,
      shorten(table.name),
      wrong == keys.end() ? 0 : *(wrong + 1),
      wrong == keys.end() ? 0 : *wrong);
}

// Reads the files with the keys of a table. They must have been verified.
// Errors:  c10::ValueError beginning with `where` and naming the folder, unless the keys
//          are in the order of their hashes, each once.
StoredChanges read_changes(
    const std::filesystem::path& folder,
    const ManifestTable& table,
    const std::string& where) {
  const auto keys =
      read_vector<int64_t>(folder, find_tensor(table, kSavedKeys), where);
  const auto updates =
      read_vector<uint32_t>(folder, find_tensor(table, kKeyUpdates), where);
  const auto frequencies =
      read_vector<float>(folder, find_tensor(table, kKeyFrequencies), where);
  check_order(keys, "keys", folder, table, where);
  StoredChanges changes;
  changes.entries.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    changes.entries.push_back(
        {.key = keys[i],
         .last_update = updates[i],
         .frequency = frequencies[i]});
  }
  if (table.keys->removed) {
    changes.removed = read_vector<int64_t>(folder, *table.keys->removed, where);
    check_order(changes.removed, "removed keys", folder, table, where);
  }
  return changes;
}

// Applies the changes of checkpoint `link` to the keys of its parent.
// Errors:  c10::ValueError beginning with `where` and naming the folder, for removed keys
//          that the parent does not have, or that are also listed as changed.
// All lists are in the order of the hashes, so they are merged in one walk.
void apply_changes(
    const StoredChanges& changes,
    size_t link,
    const std::filesystem::path& folder,
    const std::string& where,
    StoredKeys& keys) {
  const std::vector<KeyEntry> before = std::move(keys.saved.entries);
  const std::vector<StoredRow> rows = std::move(keys.rows);
  keys.saved.entries.clear();
  keys.rows.clear();
  keys.saved.entries.reserve(before.size() + changes.entries.size());
  keys.rows.reserve(before.size() + changes.entries.size());
  size_t old = 0;
  auto removed = changes.removed.begin();
  const auto keep_until = [&](uint64_t end, bool is_last) {
    for (;
         old < before.size() && (is_last || hash_of_key(before[old].key) < end);
         ++old) {
      if (removed != changes.removed.end() && *removed == before[old].key) {
        ++removed;
        continue;
      }
      keys.saved.entries.push_back(before[old]);
      keys.rows.push_back(rows[old]);
    }
  };
  for (size_t i = 0; i < changes.entries.size(); ++i) {
    const KeyEntry& entry = changes.entries[i];
    keep_until(hash_of_key(entry.key), /*is_last=*/false);
    if (old < before.size() && before[old].key == entry.key) {
      ++old;
    }
    keys.saved.entries.push_back(entry);
    keys.rows.push_back(
        {.link = static_cast<uint32_t>(link),
         .entry = static_cast<uint32_t>(i)});
  }
  keep_until(0, /*is_last=*/true);
  TESSERA_CHECK_VALUE(
      removed == changes.removed.end(),
      "{} '{}': key {} is listed as removed, but has no row in the checkpoint that it builds on, or is listed as changed, too. The checkpoint is damaged. Choose another one with LoadOptions::checkpoint, or move this one out of its directory.",
      where,
      folder.string(),
      removed == changes.removed.end() ? 0 : *removed);
}

bool has_same_keys(const ManifestKeys& below, const ManifestKeys& above) {
  // An increment without a sketch takes that of its parent.
  return (!below.sketch || !above.sketch ||
          below.sketch->shape == above.sketch->shape) &&
      below.partitions == above.partitions &&
      below.half_life == above.half_life;
}

// Whether both checkpoints have the same tables, as an increment and its parent must.
bool has_same_tables(const Manifest& below, const Manifest& above) {
  const auto same_table = [](const ManifestTable& x, const ManifestTable& y) {
    const bool has_keys = x.keys.has_value();
    // The number of keys may differ.
    const auto same_tensor = [&](const ManifestTensor& p,
                                 const ManifestTensor& q) {
      return p.name == q.name && p.dtype == q.dtype &&
          p.row_bytes() == q.row_bytes() && p.shape.size() == q.shape.size() &&
          (has_keys || p.shape[0] == q.shape[0]);
    };
    return x.name == y.name && has_keys == y.keys.has_value() &&
        (!has_keys || has_same_keys(*x.keys, *y.keys)) &&
        std::ranges::equal(x.tensors, y.tensors, same_tensor);
  };
  return std::ranges::equal(below.tables, above.tables, same_table);
}

// Copies ranges of whole rows, several at the same time.
void copy_rows(const CheckpointReader& reader, const LoadPlan::Copy& copy) {
  at::Tensor to = copy.to;
  if (to.numel() == 0) {
    return;
  }
  // The bytes of the table that a task reads, including rows that were not requested.
  constexpr int64_t kTaskBytes = 4 * kChunkBytes;
  const int64_t rows = to.size(0);
  const auto row_bytes = static_cast<int64_t>(to.nbytes()) / rows;
  const int64_t skipped =
      reader.has_step(copy.table, copy.rows.step) ? 1 : copy.rows.step;
  const int64_t step = std::max<int64_t>(1, kTaskBytes / row_bytes / skipped);
  note_write(to);  // first, because a task may fail
  auto* data = static_cast<char*>(to.mutable_data_ptr());
  run_tasks((rows + step - 1) / step, rows * row_bytes, [&](int64_t task) {
    const int64_t begin = task * step;
    reader.read_rows(
        copy.table,
        copy.key,
        {.first = copy.rows[begin], .step = copy.rows.step},
        std::min(rows, begin + step) - begin,
        data + begin * row_bytes);
  });
}

// The numbers in the bytes of a file, as int64.
template <class T>
at::Tensor integers_of(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return at::tensor(
      std::vector<int64_t>(values.begin(), values.end()), at::kLong);
}

// Copies single rows, several ranges at the same time. read(first, count) returns rows that
// follow each other, in the dtype of `to`. `moves` is sorted by RowMove::from.
template <class Read>
void copy_moves(const std::vector<RowMove>& moves, at::Tensor& to, Read read) {
  if (moves.empty()) {
    return;
  }
  // Reading this many unneeded bytes is faster than another read.
  constexpr int64_t kGapBytes = int64_t{1} << 14;
  constexpr int64_t kReadBytes = 4 * kChunkBytes;
  const auto row_bytes = static_cast<int64_t>(to.nbytes()) / to.size(0);
  const int64_t gap = 1 + kGapBytes / row_bytes;
  const int64_t most = std::max<int64_t>(1, kReadBytes / row_bytes);
  std::vector<size_t> begins{0};
  for (size_t i = 1; i < moves.size(); ++i) {
    if (moves[i].from - moves[i - 1].from > gap ||
        moves[i].from - moves[begins.back()].from >= most) {
      begins.push_back(i);
    }
  }
  begins.push_back(moves.size());
  note_write(to);  // first, because a task may fail
  auto* data = static_cast<char*>(to.mutable_data_ptr());
  run_tasks(
      static_cast<int64_t>(begins.size()) - 1,
      static_cast<int64_t>(moves.size()) * row_bytes,
      [&](int64_t task) {
        const RowMove* begin = moves.data() + begins[task];
        const RowMove* end = moves.data() + begins[task + 1];
        const int64_t count = (end - 1)->from - begin->from + 1;
        const at::Tensor rows = read(begin->from, count);
        const auto* source = static_cast<const char*>(rows.const_data_ptr());
        for (const RowMove* move = begin; move != end; ++move) {
          std::memcpy(
              data + int64_t{move->to} * row_bytes,
              source + (move->from - begin->from) * row_bytes,
              row_bytes);
        }
      });
}

}  // namespace

CheckpointLink read_link(
    const fs::path& directory,
    const std::string& checkpoint,
    const std::string& where) {
  const fs::path path = directory / checkpoint / kManifestFile;
  const std::string text =
      InputFile(path, where).read_all(static_cast<int64_t>(kMaxManifestBytes));
  return {
      .name = checkpoint,
      .manifest = manifest_from_text(
          text, fmt::format("{} '{}'", where, path.string())),
      .xxh3 = checksum_in(text)};
}

std::vector<CheckpointLink> read_chain(
    const fs::path& directory,
    const std::string& checkpoint,
    const std::string& where) {
  std::vector<CheckpointLink> chain{read_link(directory, checkpoint, where)};
  // This ends because `increments` becomes smaller by one with each parent.
  while (chain.front().manifest.parent) {
    const CheckpointLink& child = chain.front();
    CheckpointLink link =
        read_link(directory, child.manifest.parent->name, where);
    TESSERA_CHECK_VALUE(
        link.xxh3 == child.manifest.parent->xxh3 &&
            link.manifest.increments == child.manifest.increments - 1 &&
            has_same_tables(link.manifest, child.manifest),
        "{} '{}' is not the checkpoint that the increment '{}' builds on. Choose another checkpoint with LoadOptions::checkpoint, or move the increment out of its directory.",
        where,
        (directory / link.name).string(),
        shorten(child.name));
    chain.insert(chain.begin(), std::move(link));
  }
  return chain;
}

std::string choose_checkpoint(
    const std::string& directory,
    const std::string& checkpoint,
    const std::string& where) {
  const std::vector<std::string> names = list_checkpoints(directory, where);
  TESSERA_CHECK_VALUE(
      !names.empty(),
      "{} there is no checkpoint in '{}'. Pass the directory that was given to save_checkpoint().",
      where,
      directory);
  TESSERA_CHECK_VALUE(
      checkpoint.empty() || std::ranges::find(names, checkpoint) != names.end(),
      "{} LoadOptions::checkpoint must be one of {}, but got '{}'.",
      where,
      join_names(names),
      shorten(checkpoint));
  return checkpoint.empty() ? names.back() : checkpoint;
}

CheckpointReader::CheckpointReader(
    const std::string& directory,
    const std::string& checkpoint,
    std::string where)
    : where_(std::move(where)),
      directory_(directory),
      chain_(read_chain(directory, checkpoint, where_)) {
  touched_.resize(chain_.size());
}

bool CheckpointReader::has_step(size_t table, int64_t step) const {
  const ManifestTable& newest = saved().tables[table];
  const std::vector<ManifestPart>& parts = newest.tensors[0].parts;
  return !newest.is_increment() && !parts.empty() && parts[0].step == step;
}

size_t CheckpointReader::first_link(size_t table) const {
  size_t link = chain_.size() - 1;
  while (table_of(link, table).is_increment()) {
    --link;
  }
  return link;
}

size_t CheckpointReader::link_of_sketch(size_t table) const {
  size_t link = chain_.size() - 1;
  while (!table_of(link, table).keys->sketch) {
    --link;  // check(ManifestKeys) has seen that the first one has a sketch
  }
  return link;
}

void CheckpointReader::check_files(
    const EmbeddingState& state,
    LoadPlan& plan) {
  std::set<std::pair<size_t, size_t>> increments;
  std::vector<ChunkRange> ranges;
  const auto append_touched = [&](size_t link, size_t table) {
    const ManifestTable& entry = table_of(link, table);
    if (entry.touched && increments.emplace(link, table).second) {
      append_file(link, entry.touched->file, ranges);
    }
  };
  for (const LoadPlan::Copy& copy : plan.copies) {
    for (size_t link = first_link(copy.table); link < chain_.size(); ++link) {
      const ManifestTable& entry = table_of(link, copy.table);
      append_touched(link, copy.table);
      for (const ManifestPart& part : find_tensor(entry, copy.key).parts) {
        const CommonRows common = find_common(part, copy.rows, copy.to.size(0));
        // The entries of an increment are not numbered by row.
        if (entry.touched || common.first < common.end) {
          append_file(link, part.file, ranges);
        }
      }
    }
  }
  for (const LoadPlan::KeyTable& entry : plan.key_tables) {
    for (size_t link = first_link(entry.table); link < chain_.size(); ++link) {
      append_touched(link, entry.table);
      append_key_files(link, entry.table, ranges);
    }
  }
  check_ranges(ranges, where_);
  for (const auto& [link, table] : increments) {
    read_touched(link, table);
  }
  ranges.clear();
  for (LoadPlan::KeyTable& entry : plan.key_tables) {
    read_keys(state.tables[entry.to], entry);
    append_row_files(entry, ranges);
  }
  check_ranges(ranges, where_);
  for (LoadPlan::Accumulated& entry : plan.accumulated) {
    entry.gradients = read_accumulated(entry.table, state.tables[entry.to]);
  }
}

void CheckpointReader::append_file(
    size_t link,
    const ManifestFile& file,
    std::vector<ChunkRange>& ranges) const {
  append_ranges(folder_of(link) / file.name, file, where_, ranges);
}

// Adds the files that say which keys there are.
void CheckpointReader::append_key_files(
    size_t link,
    size_t table,
    std::vector<ChunkRange>& ranges) const {
  const ManifestTable& entry = table_of(link, table);
  const auto append = [&](const ManifestTensor& tensor) {
    for (const ManifestPart& part : tensor.parts) {
      append_file(link, part.file, ranges);
    }
  };
  if (!entry.keys) {
    return;
  }
  for (const char* name : {kSavedKeys, kKeyUpdates, kKeyFrequencies}) {
    append(find_tensor(entry, name));
  }
  if (entry.keys->removed) {
    append(*entry.keys->removed);
  }
  if (link == link_of_sketch(table)) {
    append(*entry.keys->sketch);
  }
}

void CheckpointReader::read_keys(
    const TableState& table,
    LoadPlan::KeyTable& entry) {
  const ManifestTable& newest = saved().tables[entry.table];
  const int64_t updates = saved().passes / accumulation_steps_of(table);
  if (!newest.keys) {
    entry.keys = LoadedKeys(
        keys_of_vocabulary(newest.tensors[0].shape[0], table, updates),
        updates,
        entry.later_updates,
        table,
        where_);
    return;
  }
  const ManifestKeys& keys = *newest.keys;
  StoredKeys stored{
      .saved = {
          .partitions = keys.partitions,
          .half_life = keys.half_life,
          .counts = {keys.admitted, keys.evicted, keys.dropped}}};
  for (size_t link = first_link(entry.table); link < chain_.size(); ++link) {
    const ManifestTable& changes = table_of(link, entry.table);
    apply_changes(
        read_changes(folder_of(link), changes, where_),
        link,
        folder_of(link),
        where_,
        stored);
  }
  const size_t link = link_of_sketch(entry.table);
  stored.saved.sketch = read_vector<uint8_t>(
      folder_of(link), *table_of(link, entry.table).keys->sketch, where_);
  entry.keys = LoadedKeys(
      std::move(stored.saved), updates, entry.later_updates, table, where_);
  std::vector<StoredRow>& rows = stored_rows_[entry.table];
  rows.clear();
  for (const int64_t position : entry.keys.positions()) {
    rows.push_back(stored.rows[position]);
  }
}

std::vector<std::vector<RowMove>> CheckpointReader::moves_of(
    const LoadPlan::KeyTable& entry,
    const std::vector<uint32_t>& rows) const {
  std::vector<std::vector<RowMove>> moves(chain_.size());
  const std::vector<int64_t>& positions = entry.keys.positions();
  for (size_t i = 0; i < positions.size(); ++i) {
    const uint32_t to = rows.empty() ? 0 : rows[i];
    if (entry.has_saved_keys) {
      const StoredRow& row = stored_rows_.at(entry.table)[i];
      moves[row.link].push_back({.from = row.entry, .to = to});
    } else {
      moves.back().push_back(
          {.from = static_cast<uint32_t>(positions[i]), .to = to});
    }
  }
  return moves;
}

// Adds the files of parameters and slots that have rows of this rank's keys.
void CheckpointReader::append_row_files(
    const LoadPlan::KeyTable& entry,
    std::vector<ChunkRange>& ranges) const {
  const std::vector<std::vector<RowMove>> moves = moves_of(entry, {});
  std::vector<std::string> names = entry.slots;
  names.emplace_back("parameters");
  for (size_t link = first_link(entry.table); link < chain_.size(); ++link) {
    const ManifestTable& files = table_of(link, entry.table);
    for (const std::string& name : names) {
      for (const ManifestPart& part : find_tensor(files, name).parts) {
        const auto first = std::ranges::lower_bound(
            moves[link], part.begin, {}, &RowMove::from);
        // The rows of a vocabulary may lie in any checkpoint of the chain.
        if (!entry.has_saved_keys ||
            (first != moves[link].end() && first->from < part.end)) {
          append_file(link, part.file, ranges);
        }
      }
    }
  }
}

void CheckpointReader::copy_key_rows(
    const LoadPlan::KeyTable& entry,
    TableState& table,
    const std::vector<uint32_t>& rows) const {
  const std::vector<std::vector<RowMove>> moves = moves_of(entry, rows);
  const auto copy = [&](const std::string& name, at::Tensor& to) {
    for (size_t link = 0; link < chain_.size(); ++link) {
      const ManifestTensor& from =
          find_tensor(table_of(link, entry.table), name);
      copy_moves(moves[link], to, [&](int64_t first, int64_t count) {
        std::vector<int64_t> shape = from.shape;
        shape[0] = count;
        const at::Tensor saved = at::empty(shape, from.scalar_type());
        auto* at = static_cast<char*>(saved.mutable_data_ptr());
        if (entry.has_saved_keys) {
          read_parts(folder_of(link), from, {first}, count, where_, at);
        } else {
          read_rows(entry.table, name, {first}, count, at);
        }
        return saved.scalar_type() == to.scalar_type()
            ? saved
            : rows_of_dtype(float_rows(saved), to.scalar_type());
      });
    }
  };
  copy("parameters", table.parameters);
  for (size_t i = 0; i < entry.slots.size(); ++i) {
    copy(entry.slots[i], table.slots[i].values);
  }
  finish_slots(rows, entry.slots, table);
}

void CheckpointReader::read_touched(size_t link, size_t table) {
  const ManifestTable& entry = table_of(link, table);
  touched_[link].resize(chain_[link].manifest.tables.size());
  std::vector<uint32_t>& rows = touched_[link][table];
  rows.resize(entry.touched->count);
  const fs::path path = folder_of(link) / entry.touched->file.name;
  InputFile(path, where_)
      .read(0, entry.touched->file.bytes, reinterpret_cast<char*>(rows.data()));
  const bool is_ascending =
      std::ranges::adjacent_find(rows, std::ranges::greater_equal()) ==
      rows.end();
  TESSERA_CHECK_VALUE(
      is_ascending && (rows.empty() || rows.back() < entry.tensors[0].shape[0]),
      "{} '{}' must list rows of the table in ascending order, each of them once. The file is damaged. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
      where_,
      path.string());
}

void CheckpointReader::read_rows(
    size_t table,
    const std::string& key,
    kernels::RowNumbers rows,
    int64_t count,
    char* to) const {
  const LocalRows requested{.numbers = rows, .count = count};
  for (size_t link = first_link(table); link < chain_.size(); ++link) {
    const ManifestTable& entry = table_of(link, table);
    const ManifestTensor& tensor = find_tensor(entry, key);
    if (!entry.touched) {
      read_parts(folder_of(link), tensor, rows, count, where_, to);
      continue;
    }
    const std::vector<uint32_t>& touched = touched_[link][table];
    const auto first =
        std::lower_bound(touched.begin(), touched.end(), rows.first);
    const auto last =
        std::lower_bound(first, touched.end(), rows[count - 1] + 1);
    const int64_t row_bytes = tensor.row_bytes();
    std::string values((last - first) * row_bytes, '\0');
    read_parts(
        folder_of(link),
        tensor,
        {.first = first - touched.begin()},
        last - first,
        where_,
        values.data());
    for (auto row = first; row != last; ++row) {
      const int64_t i = requested.count_before(*row);
      if (rows[i] == *row) {
        std::memcpy(
            to + i * row_bytes,
            values.data() + (row - first) * row_bytes,
            row_bytes);
      }
    }
  }
}

std::string CheckpointReader::read_extra() const {
  const CheckpointLink& newest = chain_.back();
  const std::optional<ManifestFile>& extra = newest.manifest.extra;
  TESSERA_CHECK_VALUE(
      extra.has_value(),
      "{} LoadOptions::extra is set, but '{}' was saved without CheckpointOptions::extra. Leave LoadOptions::extra unset, or load another checkpoint.",
      where_,
      shorten(newest.name));
  return read_whole(*extra);
}

std::string CheckpointReader::read_whole(const ManifestFile& file) const {
  const fs::path path = folder_of(chain_.size() - 1) / file.name;
  std::vector<ChunkRange> ranges;
  append_ranges(path, file, where_, ranges);
  check_ranges(ranges, where_);
  return InputFile(path, where_).read_all(file.bytes);
}

AccumulatedGradients CheckpointReader::read_accumulated(
    size_t table,
    const TableState& to) const {
  const ManifestTable& entry = saved().tables[table];
  const int64_t dim = entry.tensors[0].dim();
  // Each rank has written one part, and the rows of the parts may interleave.
  std::vector<at::Tensor> rows{at::empty({0}, at::kLong)};
  std::vector<at::Tensor> sums{at::empty({0, dim}, at::kFloat)};
  std::vector<at::Tensor> keys{at::empty({0}, at::kLong)};
  std::vector<at::Tensor> counts{at::empty({0}, at::kLong)};
  int64_t dropped = 0;
  int64_t first_key = 0;
  for (const ManifestGradients& part : entry.accumulated->parts) {
    const at::Tensor numbers = integers_of<uint32_t>(read_whole(part.rows));
    const std::string sums_bytes = read_whole(part.sums);
    rows.push_back(numbers + first_key);
    sums.push_back(at::empty({part.count, dim}, at::kFloat));
    std::memcpy(
        sums.back().mutable_data_ptr(), sums_bytes.data(), sums_bytes.size());
    if (part.collected) {
      keys.push_back(integers_of<int64_t>(read_whole(part.collected->keys)));
      counts.push_back(
          integers_of<uint32_t>(read_whole(part.collected->counts)));
      dropped += part.collected->dropped;
      first_key += part.collected->count;
    }
  }
  const auto [sorted, order] = at::cat(rows).sort();
  const AccumulatedGradients all{
      .rows = sorted,
      .sums = at::cat(sums).index_select(0, order),
      .keys = at::cat(keys),
      .counts = at::cat(counts),
      .dropped = dropped};
  check_accumulated(all, to, where_);
  return local_part(all, to);
}

void load_checkpoint(
    EmbeddingState& state,
    const std::string& directory,
    const LoadOptions& options,
    const std::string& where) {
  const at::NoGradGuard no_grad;
  RankGroup& ranks = *state.ranks;
  const RendezvousPoint point(Rendezvous::kLoadCheckpoint, state.layer);
  ranks.barrier_and_compare(
      point,
      nullptr,
      random_key(
          0,
          fmt::format(
              "{} {} {} {} {} {}",
              fmt::join(options.tables, ","),
              options.slots,
              options.grown,
              options.convert_rows,
              options.checkpoint,
              options.extra != nullptr)),
      "loads with other LoadOptions. Use the same on all ranks.");
  // Only one rank chooses, because a newer checkpoint may appear meanwhile.
  const std::string checkpoint = ranks.broadcast(point, [&] {
    return choose_checkpoint(directory, options.checkpoint, where);
  });
  std::optional<CheckpointReader> reader;
  LoadPlan plan;
  torch::serialize::InputArchive extra;
  ranks.run_on_all_ranks(point, [&] {
    reader.emplace(directory, checkpoint, where);
    plan = plan_load(state, reader->saved(), options, where);
    reader->check_files(state, plan);
    if (options.extra) {
      std::istringstream stream(reader->read_extra());
      extra.load_from(stream);
    }
  });
  ranks.barrier_and_compare(
      point,
      nullptr,
      random_key(0, reader->xxh3()),
      "loads another checkpoint. All ranks must see the same directory.");
  ranks.run_on_all_ranks(point, [&] {
    try {
      for (LoadPlan::KeyTable& entry : plan.key_tables) {
        TableState& table = state.tables[entry.to];
        reader->copy_key_rows(entry, table, entry.keys.place(table));
      }
      for (const LoadPlan::Copy& copy : plan.copies) {
        copy_rows(*reader, copy);
      }
    } catch (const c10::Error& error) {
      TESSERA_CHECK(
          false,
          "{} the files changed while they were loaded: {} Some rows of the tables are loaded, and the others are not, so load again. If another process removes old checkpoints, increase its CheckpointOptions::keep_last.",
          where,
          error.what_without_backtrace());
    }
  });
  plan.finish(state);
  ranks.run_on_all_ranks(point, [&] {
    if (options.extra) {
      options.extra(extra);
    }
  });
}

}  // namespace tessera
