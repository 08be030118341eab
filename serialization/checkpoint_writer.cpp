// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_writer.h"

#include <tessera/common/json_text.h>

#include "optim/row_update.h"
#include "serialization/archive.h"
#include "serialization/checkpoint_reader.h"
#include "serialization/file_lock.h"
#include "serialization/manifest.h"
#include "src/common/check.h"
#include "src/common/check_path.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"
#include "src/engine/accumulated_gradients.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSave = "[save_checkpoint]";
constexpr std::string_view kHidden = ".writing_";
constexpr std::string_view kRemoved = ".removed_";

// What one data file will hold: a stretch of memory, or some rows of it.
struct FileContent {
  const char* data = nullptr;
  int64_t row_bytes = 0;
  int64_t rows = 0;
  /// Unset: the first `rows`.
  const uint32_t* touched = nullptr;
  ManifestFile* file = nullptr;  // where size and checksums go
};

class CheckpointWriter {
 public:
  CheckpointWriter(
      EmbeddingState& state,
      const std::string& directory,
      const CheckpointOptions& options,
      Disk& disk)
      : state_(state),
        place_(Rendezvous::kSaveCheckpoint, state.layer),
        directory_(directory),
        options_(options),
        disk_(disk) {}

  // On shards, rank 0 alone prepares the folder, writes the manifest and puts
  // the checkpoint in its place; all write their rows.
  void write(const Nest<FeatureConfig>& features) {
    RankGroup& ranks = *state_.ranks;
    adopt(ranks.broadcast(place_, [&] { return prepare(); }));
    ranks.together(place_, [&] {
      manifest_.config = config_text(state_, features);
      manifest_.iterations = state_.iterations;
      manifest_.seed = state_.seed;
      describe_tables();
    });
    if (manifest_.parent) {
      find_touched();
    }
    std::string id;
    try {
      ranks.broadcast(place_, [&] {
        (void)to_text(manifest_);  // refuses names before anything is written
        disk_.make_directory(hidden_);
        return std::string();
      });
      ranks.together(place_, [&] {
        write_tables();
        write_accumulated();
      });
      gather_tables();
      id = ranks.broadcast(place_, [&] {
        const std::string text = write_manifest();
        finish();
        return id_of(name_, checksum_in(text));
      });
    } catch (const c10::Error&) {
      remove_unfinished();
      throw;
    }
    count_from(id);
    ranks.together(place_, [&] {
      if (is_first()) {
        remove_old();
      }
    });
  }

 private:
  bool is_first() const {
    return state_.ranks->rank() == 0;
  }

  // Gives what the other ranks need: the name and what it builds on.
  std::string prepare() {
    make_directory();
    lock_.emplace(FileLock::of_holder(
        directory_.string(),
        kSave,
        "Let one process at a time save into a directory."));
    remove_leftovers();
    complete_ = list_checkpoints(directory_.string());
    name_ = complete_.empty() ? checkpoint_name(1)
                              : name_after(complete_.back(), kSave);
    choose_parent();
    Json plan{{"name", name_}, {"increments", manifest_.increments}};
    if (manifest_.parent) {
      plan["parent"] = manifest_.parent->name;
      plan["xxh3"] = manifest_.parent->xxh3;
    }
    return plan.dump();
  }

  void adopt(const std::string& text) {
    const Json plan = parse_json(text, kSave);
    name_ = plan["name"];
    manifest_.increments = plan["increments"];
    if (plan.contains("parent")) {
      manifest_.parent =
          ManifestParent{.name = plan["parent"], .xxh3 = plan["xxh3"]};
    }
    hidden_ = directory_ / fmt::format("{}{}", kHidden, name_);
  }

  // Gives the manifest's text.
  std::string write_manifest() {
    write_extra();
    const std::string text = to_text(manifest_);
    if (state_.ranks->size() > 1) {
      (void)manifest_from_text(text, kSave);  // put together from all ranks'
    }
    ManifestFile file{.name = kManifestFile};
    write_file(file, text);
    disk_.sync_directory(hidden_);
    return text;
  }

  void finish() {
    disk_.rename(hidden_, directory_ / name_);
    is_renamed_ = true;
    disk_.sync_directory(directory_);
    complete_.push_back(name_);
  }

  // What it has taken of a full disk is free again.
  void remove_unfinished() {
    if (!is_first() || is_renamed_) {
      return;
    }
    try {
      disk_.remove(hidden_);
    } catch (const c10::Error&) {
      // The next save tries again.
    }
  }

  // Differs where the same number was written by another layer.
  std::string id_of(const std::string& name, const std::string& xxh3) const {
    return fs::absolute(directory_ / name).lexically_normal().string() + " " +
        xxh3;
  }

  // Makes the directory and the missing folders above it, one component at a time,
  // because ".." may follow a missing folder or a symbolic link.
  void make_directory() {
    std::error_code error;
    fs::path path;
    for (const fs::path& part : fs::absolute(directory_)) {
      const fs::path above = path;
      path /= part;
      if (!fs::exists(path, error) && !error) {
        disk_.make_directory(path);
        disk_.sync_directory(above);
      }
    }
    TESSERA_CHECK(
        fs::is_directory(directory_, error),
        "[save_checkpoint] '{}' is not a directory. Choose another path.",
        directory_.string());
  }

  // What a crash has left.
  void remove_leftovers() {
    std::error_code error;
    std::vector<fs::path> leftovers;
    for (fs::directory_iterator entry(directory_, error), end;
         !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      for (const std::string_view prefix : {kHidden, kRemoved}) {
        if (name.starts_with(prefix) &&
            checkpoint_number(name.substr(prefix.size()))) {
          leftovers.push_back(entry->path());
        }
      }
    }
    for (const fs::path& path : leftovers) {
      disk_.remove(path);
    }
  }

  // An increment goes onto the newest checkpoint, if that is the one which the
  // touched rows count from.
  void choose_parent() {
    if (options_.full_every == 1 || complete_.empty() ||
        state_.last_checkpoint.empty()) {
      return;
    }
    std::vector<CheckpointLink> chain;
    try {
      chain = read_chain(directory_, complete_.back(), kSave);
    } catch (const c10::Error&) {
      return;  // A damaged one is nothing to build on.
    }
    const CheckpointLink& newest = chain.back();
    if (state_.last_checkpoint == id_of(newest.name, newest.xxh3) &&
        newest.manifest.increments + 1 < options_.full_every) {
      manifest_.parent =
          ManifestParent{.name = newest.name, .xxh3 = newest.xxh3};
      manifest_.increments = newest.manifest.increments + 1;
    }
  }

  void describe_tables() {
    for (TableState& table : state_.tables) {
      ManifestTable entry{.name = table.name};
      if (table.optimizer && state_.with_slots == WithSlots::kYes) {
        entry.optimizer = optim::name_of(*table.optimizer);
      }
      entry.tensors.push_back(describe(table, "parameters", table.parameters));
      for (const Slot& slot : table.slots) {
        entry.tensors.push_back(
            describe(table, optim::slot_key(slot.name), slot.values));
      }
      if (is_accumulating(state_, table)) {
        entry.accumulated =
            ManifestAccumulated{.steps = accumulation_steps_of(table)};
      }
      manifest_.tables.push_back(std::move(entry));
    }
  }

  static ManifestTensor describe(
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

  // Whether this rank compares the rows of `table` with the previous checkpoint.
  // Interleaved rows are always saved whole.
  bool compares(const TableState& table) const {
    return writes(table) && table.rows.numbers.step == 1;
  }

  // An increment of a table has the rows that some rank has touched; all of them
  // where one rank does not know, or where the ranks' rows interleave.
  void find_touched() {
    const size_t tables = state_.tables.size();
    const int64_t own = state_.ranks->rank();
    touched_.resize(tables);
    first_touched_.resize(tables, 0);
    for (size_t i = 0; i < tables; ++i) {
      const TableState& table = state_.tables[i];
      const bool is_known =
          !writes(table) || (compares(table) && table.touched);
      if (is_known && writes(table)) {
        touched_[i] = table.touched->rows(table);
      }
      const std::vector<double> counts = state_.ranks->all_gather(
          is_known ? static_cast<double>(touched_[i].size()) : -1.0);
      if (*std::min_element(counts.begin(), counts.end()) < 0.0) {
        continue;
      }
      int64_t total = 0;
      for (size_t rank = 0; rank < counts.size(); ++rank) {
        first_touched_[i] =
            static_cast<int64_t>(rank) == own ? total : first_touched_[i];
        total += static_cast<int64_t>(counts[rank]);
      }
      // When all rows have changed, the list of rows would only add to the file.
      if (total < table.config->vocabulary_size) {
        manifest_.tables[i].touched = ManifestTouched{.count = total};
      }
    }
  }

  // Of rows that several ranks have, the first one's are written.
  bool writes(const TableState& table) const {
    return !table.rows.is_copy;
  }

  // Splits tensors into files and writes these, several at a time.
  void write_tables() {
    std::vector<FileContent> contents;
    for (size_t i = 0; i < manifest_.tables.size(); ++i) {
      split(i, contents);
    }
    int64_t bytes = 0;
    for (const FileContent& content : contents) {
      bytes += content.rows * content.row_bytes;
    }
    run_tasks(static_cast<int64_t>(contents.size()), bytes, [&](int64_t i) {
      write_content(contents[i]);
    });
  }

  void split(size_t index, std::vector<FileContent>& contents) {
    const TableState& table = state_.tables[index];
    if (!writes(table)) {
      return;
    }
    ManifestTable& entry = manifest_.tables[index];
    const std::string prefix = prefix_of(index);
    for (size_t i = 0; i < entry.tensors.size(); ++i) {
      ManifestTensor& tensor = entry.tensors[i];
      const at::Tensor& values =
          i == 0 ? table.parameters : table.slots[i - 1].values;
      const auto* data = static_cast<const char*>(values.const_data_ptr());
      // Entries are local here, and become the table's in gather_tables().
      split(
          tensor,
          prefix + tensor.name,
          entry.touched ? static_cast<int64_t>(touched_[index].size())
                        : table.rows.count);
      for (ManifestPart& part : tensor.parts) {
        FileContent content{
            .data = data,
            .row_bytes = tensor.row_bytes(),
            .rows = part.end - part.begin,
            .file = &part.file};
        if (entry.touched) {
          content.touched = touched_[index].data() + part.begin;
        } else {
          content.data += part.begin * content.row_bytes;
        }
        contents.push_back(content);
      }
    }
  }

  // Files of all ranks lie in one folder.
  std::string prefix_of(size_t table) const {
    return state_.ranks->size() == 1
        ? fmt::format("table_{}.", table)
        : fmt::format("rank_{}.table_{}.", state_.ranks->rank(), table);
  }

  // Writes the gradients that this rank has collected for its rows.
  void write_accumulated() {
    for (size_t i = 0; i < manifest_.tables.size(); ++i) {
      std::optional<ManifestAccumulated>& entry =
          manifest_.tables[i].accumulated;
      if (!entry || !writes(state_.tables[i])) {
        continue;
      }
      const AccumulatedGradients gradients = accumulated_gradients(state_, i);
      const auto* first = gradients.rows.const_data_ptr<int64_t>();
      const std::vector<uint32_t> rows(first, first + gradients.rows.numel());
      ManifestGradients part{
          .count = gradients.rows.numel(),
          .rows = {.name = prefix_of(i) + "accumulated_rows"},
          .sums = {.name = prefix_of(i) + "accumulated_sums"}};
      write_file(
          part.rows,
          {reinterpret_cast<const char*>(rows.data()),
           rows.size() * sizeof(uint32_t)});
      write_file(
          part.sums,
          {static_cast<const char*>(gradients.sums.const_data_ptr()),
           gradients.sums.nbytes()});
      entry->parts.push_back(std::move(part));
    }
  }

  void split(ManifestTensor& tensor, const std::string& file_name, int64_t rows)
      const {
    const int64_t row_bytes = std::max<int64_t>(1, tensor.row_bytes());
    const int64_t step = std::max<int64_t>(1, options_.file_bytes / row_bytes);
    for (int64_t begin = 0; begin < rows; begin += step) {
      tensor.parts.push_back(
          {.begin = begin,
           .end = std::min(rows, begin + step),
           .file = {
               .name = fmt::format("{}.{}", file_name, tensor.parts.size())}});
    }
  }

  // The parts of all ranks, as rank 0 needs them.
  void gather_tables() {
    for (size_t i = 0; i < manifest_.tables.size(); ++i) {
      number_entries(i);
    }
    RankGroup& ranks = *state_.ranks;
    if (ranks.size() > 1) {
      const std::vector<std::string> texts =
          ranks.gather(to_text(manifest_.tables));
      for (size_t rank = 1; is_first() && rank < texts.size(); ++rank) {
        merge(tables_from_text(texts[rank]));
      }
    }
    gather_touched();
  }

  void number_entries(size_t index) {
    ManifestTable& entry = manifest_.tables[index];
    const kernels::RowNumbers numbers = entry.touched
        ? kernels::RowNumbers{.first = first_touched_[index]}
        : state_.tables[index].rows.numbers;
    for (ManifestTensor& tensor : entry.tensors) {
      for (ManifestPart& part : tensor.parts) {
        part.end = numbers[part.end - 1] + 1;
        part.begin = numbers[part.begin];
        // A table may have fewer rows than ranks.
        part.step =
            std::min(numbers.step, std::max<int64_t>(1, tensor.shape[0]));
      }
    }
  }

  void merge(std::vector<ManifestTable> others) {
    for (size_t i = 0; i < others.size(); ++i) {
      for (size_t j = 0; j < others[i].tensors.size(); ++j) {
        std::vector<ManifestPart>& from = others[i].tensors[j].parts;
        std::vector<ManifestPart>& to = manifest_.tables[i].tensors[j].parts;
        to.insert(
            to.end(),
            std::make_move_iterator(from.begin()),
            std::make_move_iterator(from.end()));
      }
      if (others[i].accumulated) {
        for (ManifestGradients& part : others[i].accumulated->parts) {
          manifest_.tables[i].accumulated->parts.push_back(std::move(part));
        }
      }
    }
  }

  // One file for all ranks' touched rows, which rank 0 writes.
  void gather_touched() {
    RankGroup& ranks = *state_.ranks;
    std::vector<std::string> all(manifest_.tables.size());
    for (size_t i = 0; i < manifest_.tables.size(); ++i) {
      if (!manifest_.tables[i].touched) {
        continue;
      }
      const auto first =
          static_cast<uint32_t>(state_.tables[i].rows.numbers.first);
      std::vector<uint32_t> rows = touched_[i];
      for (uint32_t& row : rows) {
        row += first;
      }
      for (const std::string& of_rank : ranks.gather(
               {reinterpret_cast<const char*>(rows.data()),
                rows.size() * sizeof(uint32_t)})) {
        all[i].append(of_rank);
      }
    }
    ranks.together(place_, [&] {
      for (size_t i = 0; is_first() && i < all.size(); ++i) {
        if (manifest_.tables[i].touched) {
          ManifestFile& file = manifest_.tables[i].touched->file;
          file.name = fmt::format("table_{}.touched", i);
          write_file(file, all[i]);
        }
      }
    });
  }

  void write_content(const FileContent& content) {
    OutputFile file = disk_.create(hidden_ / content.file->name);
    content.file->bytes = content.rows * content.row_bytes;
    if (content.touched == nullptr) {
      write_chunks(
          file,
          {content.data, static_cast<size_t>(content.file->bytes)},
          *content.file);
    } else {
      std::string rows;
      for (int64_t i = 0; i < content.rows; ++i) {
        rows.append(
            content.data + content.touched[i] * content.row_bytes,
            content.row_bytes);
        // Whole chunks but for the last.
        const size_t ready = rows.size() / kChunkBytes * kChunkBytes;
        write_chunks(file, {rows.data(), ready}, *content.file);
        rows.erase(0, ready);
      }
      write_chunks(file, rows, *content.file);
    }
    disk_.sync(file);
  }

  void write_chunks(
      OutputFile& file,
      std::string_view bytes,
      ManifestFile& entry) {
    for (; !bytes.empty();
         bytes.remove_prefix(std::min<size_t>(bytes.size(), kChunkBytes))) {
      const std::string_view chunk = bytes.substr(0, kChunkBytes);
      entry.xxh3.push_back(checksum_of(chunk));
      disk_.write(file, chunk.data(), chunk.size());
    }
  }

  void write_extra() {
    if (!options_.extra) {
      return;
    }
    torch::serialize::OutputArchive archive;
    options_.extra(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    manifest_.extra = ManifestFile{.name = "extra.pt"};
    write_file(*manifest_.extra, stream.str());
  }

  void write_file(ManifestFile& entry, std::string_view bytes) {
    OutputFile file = disk_.create(hidden_ / entry.name);
    entry.bytes = static_cast<int64_t>(bytes.size());
    write_chunks(file, bytes, entry);
    disk_.sync(file);
  }

  // From now on touched rows count from this checkpoint.
  void count_from(const std::string& id) {
    if (options_.full_every == 1) {
      return;
    }
    for (size_t i = 0; i < state_.tables.size(); ++i) {
      TableState& table = state_.tables[i];
      if (!compares(table)) {
        continue;
      }
      if (manifest_.parent && table.touched) {
        table.touched->accept(table, touched_[i]);
      } else {
        table.touched.emplace(table);
      }
    }
    state_.last_checkpoint = id;
  }

  // All but the newest, and what these build on. First under a name that is no
  // checkpoint's: one that is half removed must not look complete. The newest
  // first: an increment must not stay without what it builds on.
  void remove_old() {
    std::set<std::string> kept;
    const auto count = static_cast<int64_t>(complete_.size());
    for (int64_t i = std::max<int64_t>(0, count - options_.keep_last);
         i < count;
         ++i) {
      try {
        for (CheckpointLink& link :
             read_chain(directory_, complete_[i], kSave)) {
          kept.insert(std::move(link.name));
        }
      } catch (const c10::Error&) {
        return;  // Nobody knows what this one builds on: all stay.
      }
    }
    std::vector<fs::path> removed;
    for (auto name = complete_.rbegin(); name != complete_.rend(); ++name) {
      if (!kept.contains(*name)) {
        removed.push_back(directory_ / fmt::format("{}{}", kRemoved, *name));
        disk_.rename(directory_ / *name, removed.back());
      }
    }
    if (!removed.empty()) {
      disk_.sync_directory(directory_);
    }
    for (const fs::path& path : removed) {
      disk_.remove(path);
    }
  }

  EmbeddingState& state_;
  const Place place_;
  const fs::path directory_;
  const CheckpointOptions& options_;
  Disk& disk_;
  std::optional<FileLock> lock_;  // on rank 0
  std::string name_;
  fs::path hidden_;
  bool is_renamed_ = false;
  std::vector<std::string> complete_;
  Manifest manifest_;
  std::vector<std::vector<uint32_t>> touched_;  // [tables], local rows
  std::vector<int64_t> first_touched_;  // [tables], among those of all ranks
};

void validate(const CheckpointOptions& options) {
  const auto require = [](const char* what, int64_t got) {
    TESSERA_CHECK_VALUE(
        got >= 1,
        "[CheckpointOptions] {} must be >= 1, but got {}. Correct the option.",
        what,
        got);
  };
  require("keep_last", options.keep_last);
  require("full_every", options.full_every);
  require("file_bytes", options.file_bytes);
}

}  // namespace

void save_checkpoint(
    EmbeddingState& state,
    const Nest<FeatureConfig>& features,
    const std::string& directory,
    const CheckpointOptions& options,
    Disk& disk) {
  std::exception_ptr error;
  try {
    validate(options);
    TESSERA_CHECK_VALUE(
        !directory.empty(),
        "[save_checkpoint] directory must be a path, but got ''.");
    check_path(directory, kSave);
  } catch (...) {
    error = std::current_exception();
  }
  state.ranks->barrier_with_same(
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
