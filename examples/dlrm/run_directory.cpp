// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/run_directory.h"

#include "examples/click_logs/text_file_writer.h"

#include <string>
#include <utility>

namespace fs = std::filesystem;
using tessera::Json;
using tessera::data::FeaturePipeline;

namespace {

class FilesWriter : public tessera::training::Callback {
 public:
  FilesWriter(fs::path directory, Json run, FeaturePipeline pipeline)
      : directory_(std::move(directory)),
        run_(std::move(run)),
        pipeline_(std::move(pipeline)) {}

  // At this time the directory exists and is locked against other processes.
  void on_epoch_begin(tessera::training::Training& training) override {
    if (training.progress().step == 0) {
      click_logs::TextFileWriter file(directory_ / "run.json", "[dlrm_criteo]");
      file.write(run_.dump(2) + "\n");
      file.finish();
      tessera::save_pipeline(
          pipeline_, (directory_ / "pipeline.json").string());
    }
  }

 private:
  fs::path directory_;
  Json run_;
  FeaturePipeline pipeline_;
};

// Returns the flags whose values differ, with the values of `options`.
std::string flags_of(const Json& options, const Json& other) {
  std::string text;
  for (const auto& [flag, value] : options.items()) {
    if (!other.contains(flag) || other[flag] != value) {
      text.append(" --").append(flag).append(" ").append(
          value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return text;
}

}  // namespace

RunDirectory::RunDirectory(const Options& options)
    : directory_(options.checkpoint),
      // Parsing the dumped text gives the same values as reading the file, even if a path
      // is not UTF-8.
      options_(tessera::parse_json(
          training_options(options)
              .dump(-1, ' ', false, Json::error_handler_t::replace))) {
  if (options.checkpoint.empty()) {
    return;
  }
  is_resumed_ = !tessera::list_checkpoints(options.checkpoint).empty();
  const fs::path path = directory_ / "run.json";
  if (!is_resumed_ && !fs::exists(path) &&
      !fs::exists(directory_ / "pipeline.json")) {
    return;
  }
  const Json run = fs::exists(path)
      ? tessera::load_json(path.string(), "[dlrm_criteo]")
      : Json();
  TORCH_CHECK_VALUE(
      run.is_object() && run.contains("options") && run.contains("model") &&
          run["options"].is_object(),
      "[dlrm_criteo] expected a new directory or one of this program, but '",
      options.checkpoint,
      "' has checkpoints or a pipeline without the run.json that belongs to "
      "them. Choose another --checkpoint directory.");
  if (!is_resumed_) {
    return;  // the earlier training ended before its first checkpoint
  }
  const std::string before = flags_of(run["options"], options_);
  const std::string now = flags_of(options_, run["options"]);
  TORCH_CHECK_VALUE(
      before.empty() && now.empty(),
      "[dlrm_criteo] '",
      options.checkpoint,
      "' was trained with",
      before,
      ", but got",
      now,
      ". Pass the same options, or choose another --checkpoint directory.");
  model_ = run["model"];
}

FeaturePipeline RunDirectory::load_pipeline() const {
  return tessera::load_pipeline((directory_ / "pipeline.json").string());
}

void RunDirectory::check(const ClickModel& model) const {
  TORCH_CHECK_VALUE(
      !is_resumed_ || tessera::to_json(model) == model_,
      "[dlrm_criteo] '",
      directory_.string(),
      "' has checkpoints of a model with another config: its run.json was made "
      "by another version. Choose another --checkpoint directory.");
}

std::shared_ptr<tessera::training::Callback> RunDirectory::make_files_writer(
    const ClickModel& model,
    const FeaturePipeline& pipeline) const {
  return std::make_shared<FilesWriter>(
      directory_,
      Json{{"options", options_}, {"model", tessera::to_json(model)}},
      pipeline);
}
