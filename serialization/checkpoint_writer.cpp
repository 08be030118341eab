// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_writer.h"

#include <tessera/common/json_text.h>

#include "optim/row_update.h"
#include "serialization/archive.h"
#include "serialization/checkpoint_directory.h"
#include "serialization/checkpoint_reader.h"
#include "serialization/manifest.h"
#include "serialization/saved_keys.h"
#include "src/common/check.h"
#include "src/common/checksum.h"
#include "src/common/files.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"
#include "src/common/rank_group.h"
#include "src/engine/accumulated_gradients.h"
#include "src/kernels/prefetch.h"
#include "src/tables/key_snapshot.h"
#include "src/tables/key_table_rows.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <numeric>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

namespace tessera {

namespace {

// Rows in memory, in the order in which they go into a file.
struct RowBytes {
  const char* data = nullptr;
  int64_t row_bytes = 0;
  int64_t count = 0;
  // The numbers of these rows in `data`. nullptr means the first `count` rows.
  const uint32_t* rows = nullptr;
};

// Writes the files of a checkpoint into its folder and syncs each of them. Several
// threads may write files at the same time.
class CheckpointFiles {
 public:
  CheckpointFiles(std::filesystem::path folder, Disk& disk)
      : folder_(std::move(folder)), disk_(disk) {}

  // Writes a file named `entry.name`, and sets its size and checksums in `entry`.
  void write_bytes(ManifestFile& entry, std::string_view bytes) const {
    OutputFile file = disk_.create(folder_ / entry.name);
    entry.bytes = static_cast<int64_t>(bytes.size());
    write_chunks(file, bytes, entry);
    disk_.sync(file);
  }

  void write_rows(ManifestFile& entry, const RowBytes& rows) const {
    const int64_t bytes = rows.count * rows.row_bytes;
    if (rows.rows == nullptr) {
      write_bytes(entry, {rows.data, static_cast<size_t>(bytes)});
      return;
    }
    OutputFile file = disk_.create(folder_ / entry.name);
    entry.bytes = bytes;
    // The processor can't predict rows that are in the order of their keys' hashes.
    const int64_t ahead = kernels::prefetch_distance(rows.row_bytes);
    std::string buffer;
    buffer.reserve(std::min(bytes, kChunkBytes) + rows.row_bytes);
    for (int64_t i = 0; i < rows.count; ++i) {
      if (i + ahead < rows.count) {
        kernels::prefetch_row(rows.data, rows.row_bytes, rows.rows[i + ahead]);
      }
      buffer.append(rows.data + rows.rows[i] * rows.row_bytes, rows.row_bytes);
      if (buffer.size() >= kChunkBytes) {
        // All chunks except the last are written whole.
        const size_t ready = buffer.size() / kChunkBytes * kChunkBytes;
        write_chunks(file, {buffer.data(), ready}, entry);
        buffer.erase(0, ready);
      }
    }
    write_chunks(file, buffer, entry);
    disk_.sync(file);
  }

 private:
  void write_chunks(
      OutputFile& file,
      std::string_view bytes,
      ManifestFile& entry) const {
    for (; !bytes.empty();
         bytes.remove_prefix(std::min<size_t>(bytes.size(), kChunkBytes))) {
      const std::string_view chunk = bytes.substr(0, kChunkBytes);
      entry.xxh3.push_back(checksum_of(chunk));
      disk_.write(file, chunk.data(), chunk.size());
    }
  }

  std::filesystem::path folder_;
  Disk& disk_;
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

// The numbers of an int64 tensor as a vector.
template <class T>
std::vector<T> numbers_of(const at::Tensor& values) {
  const auto* first = values.const_data_ptr<int64_t>();
  return {first, first + values.numel()};
}

// The content of one data file, and its entry in the manifest.
struct DataFile {
  RowBytes rows = {};
  ManifestFile* entry = nullptr;
};

// One table in a new checkpoint. It completes the entry of the table in the manifest, and
// knows which rows this rank writes. If several ranks have the same rows, only the first
// of these ranks writes them.
//
// A checkpoint has the keys of a table in the order of their hashes, and their rows and
// scores in the same order. The high bits of the hash choose the partition, so the keys of
// one rank come before those of the next. A load finds the keys of a rank in one range, even
// if another number of ranks has written them.
class TableWriter {
 public:
  // Makes the entry, without files. It must not move while this object lives.
  TableWriter(EmbeddingState& state, size_t table, ManifestTable& entry)
      : state_(state),
        index_(table),
        table_(state.tables[table]),
        entry_(entry) {
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

  // Chooses the rows or keys that the checkpoint holds. If `has_parent` is true and all
  // ranks know what has changed since the parent, it holds the changed ones, otherwise all.
  // It also holds all rows if all have changed, or if the rows of the ranks interleave.
  // `is_tracking` says that the next checkpoint may be an increment. All ranks must call
  // this.
  void choose_rows(bool has_parent, bool is_tracking) {
    has_parent_ = has_parent;
    if (table_.key_rows != nullptr) {
      choose_keys(has_parent, is_tracking);
    } else if (has_parent) {
      choose_touched();
    }
  }

  // Adds the files of this rank to the entry, and their contents to `files`. A file has
  // at most `file_bytes`, but at least one row.
  void add_files(int64_t file_bytes, std::vector<DataFile>& files) {
    if (!writes_rows()) {
      return;
    }
    // `numbers` has the positions of the rows in the table, or in the list of all ranks.
    const auto add = [&](ManifestTensor& tensor,
                         const RowBytes& rows,
                         kernels::RowNumbers numbers) {
      const int64_t step = std::max<int64_t>(
          1, file_bytes / std::max<int64_t>(1, rows.row_bytes));
      tensor.parts.reserve(rows.count / step + 1);  // the entries may not move
      for (int64_t begin = 0; begin < rows.count; begin += step) {
        const int64_t end = std::min(rows.count, begin + step);
        ManifestPart& part = tensor.parts.emplace_back();
        part.begin = numbers[begin];
        part.end = numbers[end - 1] + 1;
        // A table may have fewer rows than there are ranks.
        part.step =
            std::min(numbers.step, std::max<int64_t>(1, tensor.shape[0]));
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
    if (entry_.keys || entry_.touched) {
      rows = entry_.keys ? keys_.rows.data() : touched_.data();
      count = entry_.keys ? size_of(keys_.rows) : size_of(touched_);
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
          {.first = before_.counters});
    }
    if (entry_.keys->removed) {
      add(*entry_.keys->removed,
          bytes_of_list(removed_),
          {.first = before_.removed});
    }
  }

  // Writes the gradients that this rank has accumulated.
  void write_accumulated(const CheckpointFiles& files) {
    if (!entry_.accumulated || !writes_rows()) {
      return;
    }
    const AccumulatedGradients gradients =
        accumulated_gradients(state_, index_);
    const std::string prefix = file_prefix() + "accumulated_";
    ManifestGradients part{
        .count = gradients.rows.numel(),
        .rows = {.name = prefix + "rows"},
        .sums = {.name = prefix + "sums"}};
    files.write_rows(
        part.rows, bytes_of_list(numbers_of<uint32_t>(gradients.rows)));
    if (table_.key_rows != nullptr) {
      part.collected = {
          .count = gradients.keys.numel(),
          .dropped = gradients.dropped,
          .keys = {.name = prefix + "keys"},
          .counts = {.name = prefix + "counts"}};
      files.write_rows(
          part.collected->keys,
          bytes_of_list(numbers_of<int64_t>(gradients.keys)));
      files.write_rows(
          part.collected->counts,
          bytes_of_list(numbers_of<uint32_t>(gradients.counts)));
    }
    files.write_bytes(
        part.sums,
        {static_cast<const char*>(gradients.sums.const_data_ptr()),
         gradients.sums.nbytes()});
    entry_.accumulated->parts.push_back(std::move(part));
  }

  // Adds the files in the entry of another rank.
  void merge(ManifestTable other) {
    const auto move_parts = [](auto& from, auto& to) {
      std::ranges::move(from.parts, std::back_inserter(to.parts));
    };
    for (size_t i = 0; i < other.tensors.size(); ++i) {
      move_parts(other.tensors[i], entry_.tensors[i]);
    }
    if (other.keys && other.keys->sketch) {
      move_parts(*other.keys->sketch, *entry_.keys->sketch);
    }
    if (other.keys && other.keys->removed) {
      move_parts(*other.keys->removed, *entry_.keys->removed);
    }
    if (other.accumulated) {
      move_parts(*other.accumulated, *entry_.accumulated);
    }
  }

  // Collects the numbers of the touched rows of all ranks on rank 0, which write_touched()
  // writes. All ranks must call it.
  void gather_touched() {
    if (!entry_.touched) {
      return;
    }
    std::vector<uint32_t> rows = touched_;
    for (uint32_t& row : rows) {
      row += static_cast<uint32_t>(table_.rows.numbers.first);
    }
    const RowBytes own = bytes_of_list(rows);
    for (const std::string& of_rank : state_.ranks->gather(
             std::string(own.data, own.count * own.row_bytes))) {
      all_touched_ += of_rank;
    }
  }

  void write_touched(const CheckpointFiles& files) {
    if (entry_.touched) {
      entry_.touched->file.name = fmt::format("table_{}.touched", index_);
      files.write_bytes(entry_.touched->file, all_touched_);
    }
  }

  // From now on, changes count from this checkpoint, which must be complete.
  void track_changes() {
    if (table_.key_rows != nullptr) {
      table_.key_rows->snapshot() = std::move(snapshot_);
    } else if (compares_rows() && has_parent_ && table_.touched) {
      table_.touched->accept(table_, touched_);
    } else if (compares_rows()) {
      table_.touched.emplace(table_);
    }
  }

 private:
  bool writes_rows() const {
    return !table_.rows.is_copy;
  }

  // Whether this rank compares the rows with the previous checkpoint. Interleaved rows are
  // always saved whole.
  bool compares_rows() const {
    return writes_rows() && table_.rows.numbers.step == 1;
  }

  void choose_touched() {
    const bool is_known = !writes_rows() || (compares_rows() && table_.touched);
    if (is_known && writes_rows()) {
      touched_ = table_.touched->rows(table_);
    }
    const std::vector<int64_t> counts =
        state_.ranks->all_gather(is_known ? size_of(touched_) : int64_t{-1});
    if (std::ranges::min(counts) < 0) {
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

  void choose_keys(bool has_parent, bool is_tracking) {
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
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (static_cast<int64_t>(rank) == state_.ranks->rank()) {
        before_ = total;
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
    first_ = is_increment ? before_.changed : before_.keys;
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
  std::string file_prefix() const {
    return state_.ranks->size() == 1
        ? fmt::format("table_{}.", index_)
        : fmt::format("rank_{}.table_{}.", state_.ranks->rank(), index_);
  }

  EmbeddingState& state_;
  size_t index_;
  TableState& table_;
  ManifestTable& entry_;
  bool has_parent_ = false;
  std::vector<uint32_t> touched_;  // local rows, ascending
  std::string all_touched_;  // rank 0: the touched rows of all ranks, as bytes

  // The keys of a key table, and the keys that lost their rows, in the order of their
  // hashes.
  KeyList keys_;
  std::vector<int64_t> removed_;
  // The counters of the owned partitions, in the memory of the index.
  c10::ArrayRef<uint8_t> sketch_;
  // The state of the keys now, if the next checkpoint may be an increment.
  std::optional<KeySnapshot> snapshot_;

  // The position of the first touched row or key of this rank among those of all ranks.
  int64_t first_ = 0;
  RankKeys before_;  // of the ranks before this one
};

// Writes one checkpoint. All ranks write their rows. Only rank 0 prepares the directory,
// writes the manifest and publishes the checkpoint.
class CheckpointWriter {
 public:
  CheckpointWriter(
      EmbeddingState& state,
      const std::string& directory,
      const CheckpointOptions& options,
      Disk& disk)
      : state_(state),
        ranks_(*state.ranks),
        point_(Rendezvous::kSaveCheckpoint, state.layer),
        options_(options),
        disk_(disk),
        directory_(directory, disk) {}

  void write(const Nest<FeatureConfig>& features) {
    adopt(ranks_.broadcast(point_, [&] { return prepare(); }));
    ranks_.run_on_all_ranks(point_, [&] {
      manifest_.config = config_text(state_, features);
      manifest_.passes = state_.passes;
      manifest_.seed = state_.seed;
      manifest_.tables.resize(state_.tables.size());
      for (size_t i = 0; i < state_.tables.size(); ++i) {
        tables_.emplace_back(state_, i, manifest_.tables[i]);
      }
    });
    for (TableWriter& table : tables_) {
      table.choose_rows(
          manifest_.parent.has_value(),
          /*is_tracking=*/options_.full_every > 1);
    }
    std::string id;
    try {
      id = write_files();
    } catch (const c10::Error&) {
      if (is_first()) {
        directory_.discard(name_);
      }
      throw;
    }
    if (options_.full_every > 1) {
      for (TableWriter& table : tables_) {
        table.track_changes();
      }
      state_.last_checkpoint = id;
    }
    ranks_.run_on_all_ranks(point_, [&] {
      if (is_first()) {
        directory_.keep_newest(options_.keep_last);
      }
    });
  }

 private:
  bool is_first() const {
    return ranks_.rank() == 0;
  }

  // Returns what the other ranks need: the checkpoint's name and its parent.
  std::string prepare() {
    directory_.open();
    Json plan{{"name", directory_.next_name()}, {"increments", 0}};
    if (const auto parent = find_parent()) {
      plan["increments"] = parent->manifest.increments + 1;
      plan["parent"] = parent->name;
      plan["xxh3"] = parent->xxh3;
    }
    return plan.dump();
  }

  // The newest checkpoint of the directory, if changes count from it and `full_every`
  // allows one more increment.
  std::optional<CheckpointLink> find_parent() const {
    if (options_.full_every == 1 || directory_.complete().empty() ||
        state_.last_checkpoint.empty()) {
      return std::nullopt;
    }
    try {
      CheckpointLink newest =
          read_chain(
              directory_.path(), directory_.complete().back(), disk_.where())
              .back();
      const bool fits = newest.manifest.increments + 1 < options_.full_every &&
          state_.last_checkpoint == id_of(newest.name, newest.xxh3);
      return fits ? std::optional(std::move(newest)) : std::nullopt;
    } catch (const c10::Error&) {
      return std::nullopt;  // Nothing can build on a damaged checkpoint.
    }
  }

  // The checksum of the manifest tells a checkpoint from one of the same name that another
  // layer has written.
  std::string id_of(const std::string& name, const std::string& xxh3) const {
    std::error_code ignored;
    return std::filesystem::absolute(directory_.path() / name, ignored)
               .lexically_normal()
               .string() +
        " " + xxh3;
  }

  void adopt(const std::string& text) {
    const Json plan = parse_json(text, disk_.where());
    name_ = plan["name"];
    manifest_.increments = plan["increments"];
    if (plan.contains("parent")) {
      manifest_.parent =
          ManifestParent{.name = plan["parent"], .xxh3 = plan["xxh3"]};
    }
  }

  // Returns the id of the complete checkpoint.
  std::string write_files() {
    const std::filesystem::path hidden = directory_.hidden(name_);
    const CheckpointFiles files(hidden, disk_);
    ranks_.broadcast(point_, [&] {
      // Checks the names before anything is written.
      (void)to_text(manifest_, disk_.where());
      disk_.make_directory(hidden);
    });
    ranks_.run_on_all_ranks(point_, [&] { write_tables(files); });
    gather_tables();
    return ranks_.broadcast(point_, [&] {
      for (TableWriter& table : tables_) {
        table.write_touched(files);
      }
      write_extra(files);
      const std::string text = write_manifest(files);
      disk_.sync_directory(hidden);
      directory_.publish(name_);
      return id_of(name_, checksum_in(text));
    });
  }

  // Writes the rows of this rank, several files at a time.
  void write_tables(const CheckpointFiles& files) {
    std::vector<DataFile> contents;
    for (TableWriter& table : tables_) {
      table.add_files(options_.file_bytes, contents);
    }
    int64_t bytes = 0;
    for (const DataFile& content : contents) {
      bytes += content.rows.count * content.rows.row_bytes;
    }
    run_tasks(static_cast<int64_t>(contents.size()), bytes, [&](int64_t i) {
      files.write_rows(*contents[i].entry, contents[i].rows);
    });
    for (TableWriter& table : tables_) {
      table.write_accumulated(files);
    }
  }

  // Adds the files of the other ranks to the manifest of rank 0.
  void gather_tables() {
    for (TableWriter& table : tables_) {
      table.gather_touched();
    }
    if (ranks_.size() == 1) {
      return;
    }
    const std::vector<std::string> texts =
        ranks_.gather(ranks_.run_on_all_ranks(
            point_, [&] { return to_text(manifest_.tables); }));
    ranks_.run_on_all_ranks(point_, [&] {
      for (size_t rank = 1; is_first() && rank < texts.size(); ++rank) {
        std::vector<ManifestTable> others = tables_from_text(texts[rank]);
        for (size_t i = 0; i < others.size(); ++i) {
          tables_[i].merge(std::move(others[i]));
        }
      }
    });
  }

  void write_extra(const CheckpointFiles& files) {
    if (!options_.extra) {
      return;
    }
    torch::serialize::OutputArchive archive;
    options_.extra(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    manifest_.extra = ManifestFile{.name = "extra.pt"};
    files.write_bytes(*manifest_.extra, stream.str());
  }

  // Returns the manifest's text.
  std::string write_manifest(const CheckpointFiles& files) const {
    const std::string text = to_text(manifest_, disk_.where());
    if (ranks_.size() > 1) {
      // The text has parts of all ranks, so check that they fit together.
      (void)manifest_from_text(text, disk_.where());
    }
    ManifestFile file{.name = kManifestFile};
    files.write_bytes(file, text);
    return text;
  }

  EmbeddingState& state_;
  RankGroup& ranks_;
  const RendezvousPoint point_;
  const CheckpointOptions& options_;
  Disk& disk_;
  CheckpointDirectory directory_;  // open on rank 0
  std::string name_;
  Manifest manifest_;
  std::vector<TableWriter> tables_;  // one for each of manifest_.tables
};

}  // namespace

void validate(const CheckpointOptions& options, const std::string& where) {
  const auto require = [&](const char* what, int64_t got) {
    TESSERA_CHECK_VALUE(
        got >= 1,
        "{} {} must be >= 1, but got {}. Correct the option.",
        where,
        what,
        got);
  };
  require("keep_last", options.keep_last);
  require("full_every", options.full_every);
  require("file_bytes", options.file_bytes);
}

void save_checkpoint(
    EmbeddingState& state,
    const Nest<FeatureConfig>& features,
    const std::string& directory,
    const CheckpointOptions& options,
    Disk& disk) {
  const std::exception_ptr error = error_of([&] {
    validate(options, disk.where());
    TESSERA_CHECK_VALUE(
        !directory.empty(),
        "{} directory must be a path, but got ''. Pass the path of a directory.",
        disk.where());
    check_path(directory, disk.where());
  });
  state.ranks->barrier_and_compare(
      {Rendezvous::kSaveCheckpoint, state.layer},
      error,
      random_key(
          0,
          fmt::format(
              "{} {} {}", directory, options.keep_last, options.full_every)),
      "saves into another directory, or with other CheckpointOptions. Use the "
      "same on all ranks.");
  CheckpointWriter(state, directory, options, disk).write(features);
}

}  // namespace tessera
