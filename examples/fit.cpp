// SPDX-License-Identifier: Apache-2.0
// Teaches fit(): the model of quick_start.cpp with validation, early stopping, history,
// learning curves, and a checkpoint from which it resumes after Ctrl-C.
//
//   fit run          trains, or resumes if the folder `run` has a checkpoint
#include <tessera/common/thread_spins.h>
#include <tessera/tessera.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace fs = std::filesystem;
namespace optim = tessera::optim;
using tessera::FeatureConfig;

namespace {

struct RankerImpl : torch::nn::Module {
  RankerImpl() {
    const auto users = tessera::make_table(
        {.name = "users", .vocabulary_size = 1000, .dim = 16});
    const auto movies = tessera::make_table(
        {.name = "movies",
         .vocabulary_size = 500,
         .dim = 16,
         .optimizer = optim::Adagrad{.learning_rate = 0.1}});
    embedding = register_module(
        "embedding",
        tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
            .features =
                {{"user", FeatureConfig{.table = users}},
                 {"movie", FeatureConfig{.table = movies}},
                 {"history", FeatureConfig{.table = movies}}},
            .optimizer = optim::Adam{.learning_rate = 0.01}}));
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            tessera::Concatenate(),
            torch::nn::Linear(48, 32),
            torch::nn::ReLU(),
            torch::nn::Linear(32, 1)));
  }

  torch::Tensor forward(const tessera::Features& features) {
    return tower->forward(embedding->forward(features)).squeeze(1);
  }

  tessera::TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Ranker);

struct Batch {
  tessera::Features features;
  torch::Tensor click;
};

// Generates clicks. The same seed gives the same batches.
std::vector<Batch> draw_batches(int64_t count, uint64_t seed) {
  torch::manual_seed(seed);
  std::vector<Batch> batches;
  for (int64_t i = 0; i < count; ++i) {
    const auto user = torch::randint(1000, {256});
    const auto movie = torch::randint(500, {256});
    const auto history = tessera::RaggedFeature::from_lengths(
        torch::randint(500, {256 * 5}), torch::full({256}, 5, torch::kLong));
    batches.push_back(
        {{{"user", user}, {"movie", movie}, {"history", history}},
         (user % 10 + movie % 10 > 9).to(torch::kFloat)});
  }
  return batches;
}

// Returns the exit status.
int train(const std::string& folder) {
  fs::create_directories(folder);
  TORCH_CHECK_VALUE(
      fs::is_empty(folder) || fs::exists(folder + "/checkpoints"),
      "[fit] expected a new folder or one of this program, but '",
      folder,
      "' has other files. Choose another folder.");
  torch::manual_seed(1);
  Ranker model;
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  const auto held_out = draw_batches(10, 2);

  // snippet: fit
  const auto loss_of = [&](const Batch& batch) {
    const auto scores = model->forward(batch.features);
    return tessera::training::StepResult{
        .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
        .predictions = scores,
        .labels = batch.click};
  };
  const tessera::training::History history = tessera::training::fit(
      // The number of the epoch is the seed, so a resumed epoch has the same batches.
      [](int64_t epoch) {
        return draw_batches(40, 100 + static_cast<uint64_t>(epoch));
      },
      tessera::training::make_train_step(optimizer, loss_of),
      {.epochs = 30,
       .model = model,
       .metrics = {tessera::training::AUC()},
       .validation = tessera::training::make_pass(held_out, loss_of),
       .callbacks =
           {tessera::training::ProgressBar(),
            tessera::training::TerminateOnNonFinite(),
            tessera::training::EarlyStopping(
                {.monitor = "val_auc",
                 .patience = 3,
                 .min_delta = 0.001,
                 .restore_best = model}),
            tessera::training::CsvHistory(folder + "/history.csv"),
            tessera::training::LearningCurves(
                folder + "/curves.svg", {.title = "clicks"})},
       .checkpoint = std::make_shared<tessera::training::Checkpoint>(
           folder + "/checkpoints", model, optimizer)});
  // end snippet

  const auto pass = tessera::training::make_pass(held_out, loss_of);
  const auto metrics = tessera::training::evaluate(
      *pass, {std::make_shared<tessera::training::AUC>()});
  std::cout << history.epochs.size() << " epochs"
            << (history.stop_reason.empty() ? "" : ", stopped: ")
            << history.stop_reason << "\nvalidation AUC " << metrics["auc"]
            << "\n";
  TORCH_CHECK(
      std::cout.flush(),
      "[fit] expected to write the report, but standard output failed. Check "
      "that the disk is not full.");
  const int signal = history.stop_signal();
  return signal == 0 ? 0 : 128 + signal;  // the convention of shells
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  const std::string folder = argc == 2 ? argv[1] : "";
  if (folder.empty() || folder[0] == '-') {
    std::cerr << "usage: fit FOLDER\n";
    return folder == "--help" ? 0 : 2;
  }
  try {
    return train(folder);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const fs::filesystem_error& error) {
    std::cerr << "[fit] " << error.what() << "\n";
  }
  return 1;
}
