// SPDX-License-Identifier: Apache-2.0
// Teaches checkpoints and export in your own training loop: how to train a ranking model,
// resume where an earlier run ended, and export the model for programs without Tessera.
//
//   export_for_serving --folder run --steps 150   # the first half
//   export_for_serving --folder run --steps 300   # resumes, then exports
//   serve_ranker run/ranker.pt                    # links only LibTorch
//
// A Python program can train the weights of run/ranker.pt2 further. This loads its result:
//
//   export_for_serving --folder back --weights trained.safetensors
#include <tessera/common/thread_spins.h>
#include <tessera/tessera.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>

namespace optim = tessera::optim;
using tessera::FeatureConfig;
using torch::Tensor;

namespace {

constexpr int64_t kUsers = 1000;
constexpr int64_t kMovies = 500;

struct RankerImpl : torch::nn::Module {
  RankerImpl() {
    const auto users = tessera::make_table(
        {.name = "users", .vocabulary_size = kUsers, .dim = 16});
    const auto movies = tessera::make_table(
        {.name = "movies", .vocabulary_size = kMovies, .dim = 16});
    embedding = register_module(
        "embedding",
        tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
            .features =
                {{"user", FeatureConfig{.table = users}},
                 {"history", FeatureConfig{.table = movies}}},
            .optimizer = optim::Adam{.learning_rate = 0.01}}));
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            tessera::Concatenate(),
            torch::nn::Linear(32, 32),
            torch::nn::ReLU(),
            torch::nn::Dropout(0.1),
            torch::nn::Linear(32, 1)));
  }

  Tensor forward(const tessera::Features& features) {
    return tower->forward(embedding->forward(features)).squeeze(1);
  }

  tessera::TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Ranker);

struct Batch {
  tessera::Features features = {};
  Tensor clicks = {};
};

Batch random_batch(int64_t size) {
  const Tensor user = torch::randint(kUsers, {size});
  const Tensor lengths = torch::randint(1, 6, {size});
  const Tensor movies =
      torch::randint(kMovies, {lengths.sum().item<int64_t>()});
  const Tensor first = lengths.cumsum(0) - lengths;
  const Tensor clicks = user % 10 + movies.index({first}) % 10 > 9;
  return {
      .features =
          {{"user", user},
           {"history", tessera::RaggedFeature::from_lengths(movies, lengths)}},
      .clicks = clicks.to(torch::kFloat)};
}

// Saves the tables, and in the same checkpoint the dense weights and their optimizer.
void save(Ranker& model, torch::optim::Adam& optimizer, const std::string& to) {
  model->embedding->save_checkpoint(
      to,
      {.keep_last = 2,
       .full_every = 10,
       .extra = [&](torch::serialize::OutputArchive& archive) {
         torch::serialize::OutputArchive tower, dense;
         model->tower->save(tower);
         optimizer.save(dense);
         archive.write("tower", tower);
         archive.write("optimizer", dense);
       }});
}

void load(
    Ranker& model,
    torch::optim::Adam& optimizer,
    const std::string& from) {
  model->embedding->load_checkpoint(
      from, {.extra = [&](torch::serialize::InputArchive& archive) {
        torch::serialize::InputArchive tower, dense;
        archive.read("tower", tower);
        archive.read("optimizer", dense);
        model->tower->load(tower);
        optimizer.load(dense);
      }});
}

void train(Ranker& model, const std::string& checkpoints, int64_t steps) {
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  if (!tessera::list_checkpoints(checkpoints).empty()) {
    load(model, optimizer, checkpoints);
    std::cout << "resumed after step " << model->embedding->iterations()
              << "\n";
  }
  while (model->embedding->iterations() < steps) {
    const int64_t step = model->embedding->iterations();
    // The same batches and the same dropout, also after a resume.
    torch::manual_seed(static_cast<uint64_t>(step));
    const Batch batch = random_batch(256);
    optimizer.zero_grad();
    const Tensor loss = torch::binary_cross_entropy_with_logits(
        model->forward(batch.features), batch.clicks);
    loss.backward();
    optimizer.step();
    if ((step + 1) % 50 == 0 || step + 1 == steps) {
      save(model, optimizer, checkpoints);
      std::cout << "step " << step + 1 << "  loss " << loss.item<float>()
                << "  checkpoint "
                << tessera::list_checkpoints(checkpoints).back() << std::endl;
    }
  }
}

void run(const std::string& folder, int64_t steps, const std::string& weights) {
  torch::manual_seed(1);
  Ranker model;
  if (weights.empty()) {
    train(model, folder + "/checkpoints", steps);
  } else {
    tessera::load_state_dict(*model, tessera::load_safetensors(weights));
  }
  torch::manual_seed(0);
  const Batch example = random_batch(4);
  tessera::export_torchscript(
      model, folder + "/ranker.pt", {.features = example.features});
  std::cout << tessera::to_string(tessera::export_pt2(
      model, folder + "/ranker.pt2", {.features = example.features}));

  // serve_ranker prints the same scores.
  model->eval();
  const Tensor scores = model->forward(
      {{"user", torch::tensor({7, 300, 42})},
       {"history",
        tessera::RaggedFeature{
            .values = torch::tensor({1, 2, 3, 499}),
            .row_splits = torch::tensor({0, 3, 3, 4})}}});
  std::cout << "scores";
  for (int64_t i = 0; i < scores.size(0); ++i) {
    std::cout << " " << scores[i].item<float>();
  }
  std::cout << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  std::string folder = "ranker";
  std::string weights;
  int64_t steps = 300;
  CLI::App app(
      "Trains a ranking model or resumes its training, and then exports the model.");
  app.add_option(
         "--folder", folder, "folder for checkpoints, ranker.pt and ranker.pt2")
      ->capture_default_str();
  app.add_option(
         "--steps",
         steps,
         "number of steps, including those of the run that is resumed")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option(
         "--weights",
         weights,
         "safetensors file of a Python model, which is exported without training")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    std::filesystem::create_directories(folder);
    run(folder, steps, weights);
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
