// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_writer.h"

#include <tessera/common/json_text.h>

#include "serialization/archive.h"
#include "serialization/checkpoint_directory.h"
#include "serialization/checkpoint_files.h"
#include "serialization/checkpoint_increment.h"
#include "serialization/checkpoint_keys.h"
#include "serialization/checkpoint_tables.h"
#include "serialization/manifest.h"
#include "src/common/check.h"
#include "src/common/check_path.h"
#include "src/common/random_key.h"
#include "src/common/rank_group.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/serialize/archive.h>

#include <exception>
#include <sstream>
#include <string>
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
      manifest_.tables = describe_tables(state_);
    });
    if (manifest_.parent) {
      increments_ = find_touched(state_, manifest_.tables);
    }
    keys_ = find_keys_to_save(
        state_,
        manifest_.parent.has_value(),
        options_.full_every > 1,
        manifest_.tables);
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
      track_changes_from(id, increments_, keys_, state_);
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
    const ChainPosition position =
        choose_parent(state_, directory_, options_.full_every);
    Json plan{
        {"name", directory_.next_name()}, {"increments", position.increments}};
    if (position.parent) {
      plan["parent"] = position.parent->name;
      plan["xxh3"] = position.parent->xxh3;
    }
    return plan.dump();
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
    ranks_.run_on_all_ranks(point_, [&] {
      write_tables(
          state_,
          increments_,
          keys_,
          options_.file_bytes,
          files,
          manifest_.tables);
      write_accumulated(state_, files, manifest_.tables);
    });
    gather_tables(state_, increments_, keys_, manifest_.tables);
    const std::vector<std::string> touched =
        gather_touched(state_, manifest_.tables, increments_);
    ranks_.broadcast(point_, [&] { write_touched(touched, files); });
    return ranks_.broadcast(point_, [&] {
      write_extra(files);
      const std::string text = write_manifest(files);
      disk_.sync_directory(hidden);
      directory_.publish(name_);
      return checkpoint_id(directory_.path() / name_, checksum_in(text));
    });
  }

  // Writes one file per table, with the touched rows of all ranks.
  void write_touched(
      const std::vector<std::string>& touched,
      const CheckpointFiles& files) {
    for (size_t i = 0; i < touched.size(); ++i) {
      if (manifest_.tables[i].touched) {
        ManifestFile& file = manifest_.tables[i].touched->file;
        file.name = fmt::format("table_{}.touched", i);
        files.write_bytes(file, touched[i]);
      }
    }
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
  std::vector<TableIncrement> increments_;  // [tables], or empty
  std::vector<KeysToSave> keys_;  // [tables]
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
