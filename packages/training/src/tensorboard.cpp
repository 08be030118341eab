// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/tensorboard.h>

#include <tessera/common/json_text.h>
#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>
#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "packages/training/src/event_file.h"
#include "packages/training/src/ranks.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"
#include "src/common/files.h"
#include "src/common/rank_group.h"
#include "src/common/text.h"
#include "src/engine/embedding_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

namespace tessera::training {

namespace {

constexpr const char* kTensorBoard = "[TensorBoard]";
constexpr std::string_view kValidationPrefix = "val_";

// TensorBoard can't read a file with text that is not UTF-8.
void check_tag(const std::string& name) {
  TESSERA_CHECK_VALUE(
      !name.empty() && is_utf8(name),
      "[TensorBoard] a value must have a name in UTF-8, but got '{}'. Give it another name.",
      shorten(name));
}

bool is_of_validation(const std::string& name) {
  return name.rfind(kValidationPrefix, 0) == 0 &&
      name.size() > kValidationPrefix.size();
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::error_code ignored;
  const auto status = std::filesystem::status(folder, ignored);
  const bool is_other =
      std::filesystem::exists(status) && !std::filesystem::is_directory(status);
  TESSERA_CHECK_VALUE(
      !is_other && error != std::errc::not_a_directory,
      "[TensorBoard] {}: expected a folder, but this is a file, or is below one. Choose another path.",
      shorten(folder.string()));
  if (error) {
    errno = error.value();
    fail_to_write(
        kTensorBoard, shorten(folder.string()), "the folder can't be created");
  }
  // Creates a file and deletes it again.
  const AtomicFile probe((folder / "events").string(), kTensorBoard);
}

bool is_writer(const Strategy& strategy) {
  return ranks_of(strategy)->rank() == 0;
}

void add_values(ValueHistogram& histogram, const at::Tensor& values) {
  const at::Tensor floats =
      values.detach().to(at::kCPU, at::kFloat).contiguous();
  const float* data = floats.const_data_ptr<float>();
  for (int64_t i = 0; i < floats.numel(); ++i) {
    histogram.add(data[i]);
  }
}

void add_norms(ValueHistogram& histogram, const at::Tensor& rows) {
  add_values(
      histogram,
      at::linalg_vector_norm(rows.to(at::kFloat), 2, at::IntArrayRef{1}));
}

// The histogram covers all rows: those of a sharded table are collected from all ranks.
// Only a sharded key table has an empty histogram, because no call collects its rows.
// `copies` keeps the result of embedding_tables(), which copies all key tables.
ValueHistogram row_norms(
    const TableModule& tables,
    const TableConfig& table,
    std::optional<EmbeddingTables>& copies) {
  constexpr int64_t kFloatsAtATime = int64_t{1} << 20;
  ValueHistogram histogram;
  if (table.keys) {
    if (!tables.strategy().is_sharded()) {
      if (!copies) {
        copies = tables.embedding_tables();
      }
      add_norms(histogram, (*copies)[table.name]);
    }
    return histogram;
  }
  const int64_t rows = table.vocabulary_size;
  const int64_t part = std::max<int64_t>(1, kFloatsAtATime / table.dim);
  for (int64_t begin = 0; begin < rows; begin += part) {
    add_norms(
        histogram,
        tables.read_rows(table.name, begin, std::min(rows, begin + part)));
  }
  return histogram;
}

void add_step(EventFile& file, const History::Record& record) {
  for (const auto& [name, value] : record.logs.entries()) {
    file.add_scalar("step/" + name, record.step, value);
  }
}

}  // namespace

struct TensorBoard::Files {
  EventFile train;
  std::optional<EventFile> validation;
};

struct TensorBoard::Histograms {
  std::vector<std::pair<std::string, ValueHistogram>> by_tag = {};
};

TensorBoard::TensorBoard(TensorBoardOptions options)
    : options_(std::move(options)) {
  TESSERA_CHECK_VALUE(
      !options_.directory.empty(),
      "[TensorBoard] expected the path of a folder, but got ''. Set TensorBoardOptions::directory.");
  check_path(options_.directory, kTensorBoard);
  TESSERA_CHECK_VALUE(
      options_.every_steps >= 0,
      "[TensorBoard] every_steps must be >= 0, but got {}. Set it to 0 to log only epochs.",
      options_.every_steps);
  TESSERA_CHECK_VALUE(
      options_.histogram_epochs >= 1,
      "[TensorBoard] histogram_epochs must be >= 1, but got {}. Leave histograms_of unset for no histograms.",
      options_.histogram_epochs);
  TESSERA_CHECK_VALUE(
      options_.flush_seconds >= 0.0 && std::isfinite(options_.flush_seconds),
      "[TensorBoard] flush_seconds must be finite and >= 0, but got {}. Set it to 0 to write after every step.",
      options_.flush_seconds);
}

TensorBoard::~TensorBoard() = default;

void TensorBoard::on_train_begin(Training& training) {
  files_.reset();
  loss_sum_ = 0.0;
  loss_steps_ = 0;
  last_step_ = {};
  step_ = 0;
  loaded_step_ = -1;
  loaded_gradients_.clear();
  if (!is_writer(training.strategy())) {
    return;
  }
  bool has_validation = false;
  for (const std::string& name : training.log_names()) {
    check_tag(name);
    has_validation = has_validation || is_of_validation(name);
  }
  if (options_.step_values != nullptr) {
    const Logs logs = training.logs();
    const Logs step_values = options_.step_values();
    for (const auto& [name, value] : step_values.entries()) {
      check_tag(name);
      TESSERA_CHECK_VALUE(
          logs.find(name) == nullptr,
          "[TensorBoard] step_values returned '{}', which is logged already. Give it another name.",
          shorten(name));
    }
  }
  const std::filesystem::path folder(options_.directory);
  make_folder(folder / "train");
  if (has_validation) {
    make_folder(folder / "validation");
  }
}

// The step at which a resumed training continues is known only now.
void TensorBoard::on_epoch_begin(Training& training) {
  if (!is_writer(training.strategy()) || !files_.expired()) {
    return;
  }
  const std::filesystem::path folder(options_.directory);
  const std::vector<std::string> names = training.log_names();
  // Earlier files may have values of the checkpoint's step that are newer than the
  // checkpoint. If that step was the last of an epoch, the end of the epoch may have been
  // logged since. So the values of this step are discarded, and written once more.
  const Progress& progress = training.progress();
  const bool repeats_step =
      progress.step_in_epoch > 0 && loaded_step_ == progress.step;
  const int64_t first_step = progress.step + (repeats_step ? 0 : 1);
  const std::shared_ptr<Files> files(new Files{
      .train = EventFile(folder / "train", first_step, kTensorBoard),
      .validation = {}});
  if (std::ranges::any_of(names, is_of_validation)) {
    files->validation.emplace(folder / "validation", first_step, kTensorBoard);
  }
  if (repeats_step && last_step_.step == progress.step) {
    add_step(files->train, last_step_);
  }
  training.keep(files);
  files_ = files;
  flushed_ = std::chrono::steady_clock::now();
}

void TensorBoard::on_step_end(Training& training) {
  step_ = training.progress().step;
  const std::shared_ptr<Files> files = files_.lock();
  if (files == nullptr || options_.every_steps == 0) {
    return;
  }
  if (!training.is_skip_allowed()) {
    loss_sum_ += training.loss();
    ++loss_steps_;
  }
  if (training.progress().step % options_.every_steps == 0) {
    write_step(training, *files);
  }
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::duration<double> since = now - flushed_;
  if (since.count() >= options_.flush_seconds) {
    flushed_ = now;
    // An error here would lose the epoch. The end of the epoch reports it.
    (void)files->train.try_flush();
  }
}

void TensorBoard::write_step(Training& training, Files& files) {
  Logs logs = training.logs();
  logs.set("loss", loss_sum_ / static_cast<double>(loss_steps_));
  loss_sum_ = 0.0;
  loss_steps_ = 0;
  if (options_.step_values != nullptr) {
    const Logs step_values = options_.step_values();
    for (const auto& [name, value] : step_values.entries()) {
      check_tag(name);
      logs.set(name, value);
    }
  }
  const Progress& progress = training.progress();
  last_step_ = {progress.epoch, std::move(logs), progress.step};
  add_step(files.train, last_step_);
}

// Returns the last gradient of each parameter outside of tables with fused strategies.
TensorBoard::Gradients TensorBoard::gradients() const {
  Gradients gradients;
  for (const auto& item : options_.histograms_of->named_parameters()) {
    const at::Tensor& gradient = item.value().grad();
    // The gradient of a virtual variable is always 0.
    if (gradient.defined() && !item.key().ends_with("virtual_variable")) {
      gradients.emplace_back(
          item.key(),
          gradient.is_sparse() ? gradient.coalesce().values() : gradient);
    }
  }
  return gradients;
}

TensorBoard::Histograms TensorBoard::make_histograms(int64_t step) const {
  const at::NoGradGuard no_grad;
  Histograms histograms;
  for (const auto& part : options_.histograms_of->named_modules()) {
    const auto* tables = TableModule::of(*part.value());
    if (tables == nullptr) {
      continue;
    }
    const std::string path = part.key().empty() ? "" : part.key() + "/";
    std::optional<EmbeddingTables> copies;
    for (const TableState& table : tables->state().tables) {
      histograms.by_tag.emplace_back(
          "row_norms/" + path + table.name,
          row_norms(*tables, *table.config, copies));
    }
  }
  // A training that was resumed after the last step of an epoch has no gradients.
  for (const auto& [name, gradient] :
       step == loaded_step_ ? loaded_gradients_ : gradients()) {
    ValueHistogram histogram;
    add_values(histogram, gradient);
    histograms.by_tag.emplace_back("gradients/" + name, std::move(histogram));
  }
  return histograms;
}

void TensorBoard::on_epoch_end(Training& training) {
  const Progress& progress = training.progress();
  Histograms histograms;
  if (options_.histograms_of != nullptr &&
      (progress.epoch + 1) % options_.histogram_epochs == 0) {
    histograms =
        make_histograms(progress.step);  // collective if tables are sharded
  }
  const std::shared_ptr<Files> files = files_.lock();
  if (files == nullptr) {
    return;
  }
  const Logs logs = training.logs();
  for (const auto& [name, value] : logs.entries()) {
    const bool is_validation = files->validation && is_of_validation(name);
    EventFile& file = is_validation ? *files->validation : files->train;
    file.add_scalar(
        "epoch/" + name.substr(is_validation ? kValidationPrefix.size() : 0),
        progress.step,
        value);
  }
  for (const auto& [tag, histogram] : histograms.by_tag) {
    files->train.add_histogram(tag, progress.step, histogram);
    if (histogram.non_finite > 0) {
      files->train.add_scalar(
          "non_finite/" + tag,
          progress.step,
          static_cast<double>(histogram.non_finite));
    }
  }
  files->train.flush();
  if (files->validation) {
    files->validation->flush();
  }
  flushed_ = std::chrono::steady_clock::now();
}

void TensorBoard::on_train_end(Training& /*training*/) {
  if (const std::shared_ptr<Files> files = files_.lock()) {
    files->train.flush();
  }
}

void TensorBoard::save_state(torch::serialize::OutputArchive& archive) const {
  if (const std::shared_ptr<Files> files = files_.lock()) {
    try {
      files->train.flush();
    } catch (const c10::Error&) {
      // An error here would lose the checkpoint. The end of the epoch reports it.
    }
  }
  History logged;
  if (last_step_.step > 0) {
    logged.steps = {last_step_};
  }
  archive.write(
      "loss",
      at::tensor({loss_sum_, static_cast<double>(loss_steps_)}, at::kDouble),
      true);
  archive.write("step", c10::IValue(step_));
  archive.write("logged", c10::IValue(to_json(logged).dump()));
  if (options_.histograms_of != nullptr) {
    const Gradients current =
        step_ == loaded_step_ ? loaded_gradients_ : gradients();
    archive.write(
        "gradients", c10::IValue(static_cast<int64_t>(current.size())));
    for (size_t i = 0; i < current.size(); ++i) {
      const std::string key = "gradient_" + std::to_string(i);
      archive.write(key + "_name", c10::IValue(current[i].first));
      archive.write(key, current[i].second.detach(), true);
    }
  }
}

void TensorBoard::load_state(torch::serialize::InputArchive& archive) {
  at::Tensor loss;
  c10::IValue step, logged, gradients;
  archive.read("loss", loss, true);
  archive.read("step", step);
  archive.read("logged", logged);
  loss_sum_ = loss[0].item<double>();
  loss_steps_ = loss[1].item<int64_t>();
  loaded_step_ = step.toInt();
  step_ = loaded_step_;
  const History history = history_from_json(
      parse_json(logged.toStringRef(), "[TensorBoard] 'logged':"));
  last_step_ = history.steps.empty() ? History::Record{} : history.steps.back();
  loaded_gradients_.clear();
  if (archive.try_read("gradients", gradients)) {
    for (int64_t i = 0; i < gradients.toInt(); ++i) {
      const std::string key = "gradient_" + std::to_string(i);
      c10::IValue name;
      at::Tensor gradient;
      archive.read(key + "_name", name);
      archive.read(key, gradient, true);
      loaded_gradients_.emplace_back(name.toStringRef(), std::move(gradient));
    }
  }
}

}  // namespace tessera::training
