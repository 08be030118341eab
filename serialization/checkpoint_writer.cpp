// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_writer.h"

#include "optim/row_update.h"
#include "serialization/archive.h"
#include "serialization/checkpoint_reader.h"
#include "serialization/manifest.h"
#include "src/parallel.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/serialize/archive.h>

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr const char* kWhere = "[save_checkpoint]";
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

// One writer at a time: the lock of another process or thread is an error.
class DirectoryLock {
 public:
  explicit DirectoryLock(const fs::path& directory)
      : file_(directory, ::open(directory.c_str(), O_RDONLY | O_CLOEXEC)) {
    TORCH_CHECK(
        file_.descriptor() >= 0 &&
            ::flock(file_.descriptor(), LOCK_EX | LOCK_NB) == 0,
        "[save_checkpoint] can't lock '",
        directory.string(),
        "': ",
        std::strerror(errno),
        ". Let one process at a time save into a directory.");
  }

 private:
  OutputFile file_;
};

class CheckpointWriter {
 public:
  CheckpointWriter(
      EmbeddingState& state,
      const std::string& directory,
      const CheckpointOptions& options,
      Disk& disk)
      : state_(state), directory_(directory), options_(options), disk_(disk) {}

  void write(const Nest<FeatureConfig>& features) {
    make_directory();
    const DirectoryLock lock(directory_);
    remove_leftovers();
    complete_ = list_checkpoints(directory_.string());
    const std::string name = checkpoint_name(
        complete_.empty() ? 1 : *checkpoint_number(complete_.back()) + 1);
    hidden_ = directory_ / fmt::format("{}{}", kHidden, name);
    choose_parent();
    manifest_.config = config_text(state_, features);
    manifest_.iterations = state_.iterations;
    describe_tables();
    (void)to_text(manifest_);  // refuses names before anything is written
    std::string text;
    try {
      text = write_folder();
    } catch (const c10::Error&) {
      remove_unfinished();
      throw;
    }
    disk_.rename(hidden_, directory_ / name);
    disk_.sync_directory(directory_);
    complete_.push_back(name);
    count_from(id_of(name, checksum_in(text)));
    remove_old();
  }

 private:
  // Gives the manifest's text.
  std::string write_folder() {
    disk_.make_directory(hidden_);
    write_tables();
    write_extra();
    const std::string text = to_text(manifest_);
    ManifestFile file{.name = kManifestFile};
    write_file(file, text);
    disk_.sync_directory(hidden_);
    return text;
  }

  // What it has taken of a full disk is free again.
  void remove_unfinished() {
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

  // With the folders above it that are missing.
  void make_directory() {
    std::vector<fs::path> missing;
    std::error_code error;
    for (fs::path path = fs::absolute(directory_).lexically_normal();
         !path.empty() && !fs::exists(path, error) && !error;
         path = path.parent_path()) {
      missing.push_back(path);
    }
    for (auto path = missing.rbegin(); path != missing.rend(); ++path) {
      disk_.make_directory(*path);
      disk_.sync_directory(path->parent_path());
    }
    TORCH_CHECK(
        fs::is_directory(directory_, error),
        "[save_checkpoint] '",
        directory_.string(),
        "' is no directory, or can't be read. Name another one.");
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
      chain = read_chain(directory_, complete_.back(), kWhere);
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
    touched_.resize(state_.tables.size());
    for (size_t i = 0; i < state_.tables.size(); ++i) {
      TableState& table = state_.tables[i];
      ManifestTable entry{.name = table.name};
      if (table.optimizer && state_.with_slots == WithSlots::kYes) {
        entry.optimizer = optim::name_of(*table.optimizer);
      }
      if (manifest_.parent && table.touched) {
        table.touched->notice_writes(table);
        if (!table.touched->is_all()) {
          touched_[i] = table.touched->rows();
          entry.touched = ManifestTouched{
              .count = static_cast<int64_t>(touched_[i].size())};
        }
      }
      entry.tensors.push_back(describe("parameters", table.parameters));
      for (const Slot& slot : table.slots) {
        entry.tensors.push_back(
            describe(optim::slot_key(slot.name), slot.values));
      }
      manifest_.tables.push_back(std::move(entry));
    }
  }

  static ManifestTensor describe(
      const std::string& name,
      const at::Tensor& values) {
    TORCH_INTERNAL_ASSERT(values.is_contiguous());
    return {
        .name = name,
        .dtype = to_string(values.scalar_type()),
        .shape = values.sizes().vec()};
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
    ManifestTable& entry = manifest_.tables[index];
    const std::string prefix = fmt::format("table_{}.", index);
    if (entry.touched) {
      entry.touched->file.name = prefix + "touched";
      contents.push_back(
          {.data = reinterpret_cast<const char*>(touched_[index].data()),
           .row_bytes = sizeof(uint32_t),
           .rows = entry.touched->count,
           .file = &entry.touched->file});
    }
    const TableState& table = state_.tables[index];
    for (size_t i = 0; i < entry.tensors.size(); ++i) {
      ManifestTensor& tensor = entry.tensors[i];
      const at::Tensor& values =
          i == 0 ? table.parameters : table.slots[i - 1].values;
      const auto* data = static_cast<const char*>(values.const_data_ptr());
      split(
          tensor,
          prefix + tensor.name,
          entry.touched ? entry.touched->count : tensor.shape[0]);
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

  void write_file(ManifestFile& entry, const std::string& bytes) {
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
    state_.last_checkpoint = id;
    for (TableState& table : state_.tables) {
      table.touched.emplace(table);
    }
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
             read_chain(directory_, complete_[i], kWhere)) {
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
  const fs::path directory_;
  const CheckpointOptions& options_;
  Disk& disk_;
  fs::path hidden_;
  std::vector<std::string> complete_;
  Manifest manifest_;
  std::vector<std::vector<uint32_t>> touched_;  // [tables]
};

void validate(const CheckpointOptions& options) {
  const auto require = [](const char* what, int64_t got) {
    TORCH_CHECK_VALUE(
        got >= 1,
        "[CheckpointOptions] ",
        what,
        " must be >= 1, but got ",
        got,
        ". Correct the option.");
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
  validate(options);
  TORCH_CHECK_VALUE(
      !directory.empty(),
      "[save_checkpoint] directory must be a path, but got ''.");
  CheckpointWriter(state, directory, options, disk).write(features);
}

}  // namespace tessera
