// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_writer.h"

#include <tessera/common/json_text.h>

#include "serialization/archive.h"
#include "serialization/checkpoint_directory.h"
#include "serialization/checkpoint_files.h"
#include "serialization/checkpoint_reader.h"
#include "serialization/manifest.h"
#include "serialization/table_writer.h"
#include "src/common/check.h"
#include "src/common/check_path.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"
#include "src/common/rank_group.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/serialize/archive.h>

#include <exception>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace tessera {

namespace {

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
  std::exception_ptr error;
  try {
    validate(options, disk.where());
    TESSERA_CHECK_VALUE(
        !directory.empty(),
        "{} directory must be a path, but got ''. Pass the path of a directory.",
        disk.where());
    check_path(directory, disk.where());
  } catch (...) {
    error = std::current_exception();
  }
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
