// SPDX-License-Identifier: Apache-2.0
#include "examples/serve/trainer.h"

#include "examples/serve/movie_ranker.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <random>
#include <thread>

#include <unistd.h>

namespace serving = tessera::serving;
namespace training = tessera::training;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kBatch = 256;
// Nine tenths of them are more than a batch.
constexpr int64_t kMinRatings = (kBatch + 1) * 10 / 9 + 1;
// Leaves time for the server on a machine with two cores.
constexpr auto kPause = std::chrono::milliseconds(10);

void check_data(const MovieLens& data, const std::string& folder) {
  TORCH_CHECK_VALUE(
      std::ssize(data.ratings) >= kMinRatings && data.users.size() >= 2 &&
          data.movies.size() >= 4,
      "[serve] --data: expected at least ",
      kMinRatings,
      " ratings, 2 users and 4 movies, but '",
      folder,
      "' has ",
      data.ratings.size(),
      " ratings, ",
      data.users.size(),
      " users and ",
      data.movies.size(),
      " movies. Use the files of MovieLens 100K.");
}

class Trainer {
 public:
  explicit Trainer(const MovieLens& data)
      : model_(data),
        stream_(data),
        optimizer_((build(), model_->parameters()), 1e-3),
        num_train_(stream_.size() * 9 / 10) {}

  MovieRanker& model() {
    return model_;
  }
  const RatingStream& stream() const {
    return stream_;
  }
  int64_t step() const {
    return step_;
  }

  /// One update with the next ratings. After the last one, the first one follows.
  void train_step() {
    const int64_t begin = step_ * kBatch % (num_train_ - kBatch);
    const RatingBatch batch = stream_.batch(begin, begin + kBatch);
    model_->train();
    optimizer_.zero_grad();
    const auto loss = torch::binary_cross_entropy_with_logits(
        model_->forward(batch.features), batch.is_liked);
    loss.backward();
    optimizer_.step();
    loss_ = step_ == 0 ? loss.item<double>()
                       : 0.99 * loss_ + 0.01 * loss.item<double>();
    ++step_;
  }

  /// The loss of the last steps, and the AUC of the last tenth of the ratings.
  std::map<std::string, double> metrics() {
    const torch::NoGradGuard no_grad;
    model_->eval();
    training::AUC auc;
    for (int64_t begin = num_train_; begin < stream_.size(); begin += kBatch) {
      const RatingBatch batch =
          stream_.batch(begin, std::min(begin + kBatch, stream_.size()));
      auc.update(model_->forward(batch.features).sigmoid(), batch.is_liked);
    }
    return {{"loss", loss_}, {"auc", auc.result()}};
  }

 private:
  void build() {
    const torch::NoGradGuard no_grad;
    model_->eval();
    model_->forward(stream_.batch(0, 2).features);
  }

  MovieRanker model_;
  RatingStream stream_;
  torch::optim::Adam optimizer_;
  int64_t num_train_;
  int64_t step_ = 0;
  double loss_ = 0.0;
};

std::vector<int64_t> to_vector(const torch::Tensor& numbers) {
  const auto* first = numbers.const_data_ptr<int64_t>();
  return {first, first + numbers.numel()};
}

// One entry per row: its id, or a list of its ids.
nlohmann::json json_of(const tessera::Feature& feature) {
  const auto* bags = std::get_if<tessera::RaggedFeature>(&feature);
  if (bags == nullptr) {
    return to_vector(std::get<torch::Tensor>(feature));
  }
  const std::vector<int64_t> ids = to_vector(bags->values);
  const std::vector<int64_t> splits = to_vector(bags->row_splits);
  nlohmann::json rows = nlohmann::json::array();
  for (size_t row = 0; row + 1 < splits.size(); ++row) {
    rows.push_back(std::vector<int64_t>(
        ids.begin() + splits[row], ids.begin() + splits[row + 1]));
  }
  return rows;
}

// The body of a request for /score.
nlohmann::json json_of(const tessera::Features& request) {
  nlohmann::json json;
  request.for_each(
      [&](const std::string& name, const tessera::Feature& feature) {
        const bool is_of_movie =
            name == "movie" || name == "year" || name == "genres";
        if (is_of_movie) {
          json["candidates"][name] = json_of(feature);
        } else {
          json["user"][name] = json_of(feature)[0];  // the only row
        }
      });
  return json;
}

// One request per line, which a program that makes load can send.
void write_requests(
    const RatingStream& stream,
    const MovieLens& data,
    const std::string& path) {
  constexpr int64_t kRequests = 200;
  constexpr int64_t kCandidates = 100;
  std::mt19937_64 random(1);
  const auto draw = [&](size_t end) {
    return static_cast<int64_t>(random() % end);
  };
  std::ofstream file(path);
  for (int64_t i = 0; i < kRequests; ++i) {
    const int64_t user = draw(data.users.size());
    std::vector<int64_t> movies;
    for (int64_t j = 0; j < kCandidates; ++j) {
      movies.push_back(draw(data.movies.size()));
    }
    file << json_of(stream.request(user, movies)).dump() << "\n";
  }
  TORCH_CHECK(
      file.flush(), "[serve] could not write ", path, ". Free some space.");
}

}  // namespace

int train_and_publish(const TrainerOptions& options) {
  torch::manual_seed(1);
  torch::set_num_threads(1);
  const MovieLens data = load_movielens(options.movielens);
  check_data(data, options.movielens);
  Trainer trainer(data);
  const training::StopSignal signal;
  for (int i = 0; i < 200 && signal.name() == nullptr; ++i) {
    trainer.train_step();
  }
  // snippet: publish_program
  const std::string program = options.directory + "/program.pt2";
  tessera::export_dense_pt2(
      trainer.model(),
      program,
      {.features = trainer.stream().request(1, {1, 2, 3})});
  serving::Publisher publisher(
      trainer.model(),
      options.directory + "/published",
      {.background = true, .program = program});
  // end snippet
  write_requests(trainer.stream(), data, options.directory + "/requests.jsonl");
  const pid_t server = getppid();
  const auto goes_on = [&] {
    return signal.name() == nullptr && getppid() == server;
  };
  while (goes_on()) {
    try {
      publisher.publish({.step = trainer.step(), .metrics = trainer.metrics()});
    } catch (const c10::Error& error) {
      // The next version has the rows of this one.
      std::cerr << error.what_without_backtrace() << "\n";
    }
    const auto next = Clock::now() +
        std::chrono::duration_cast<Clock::duration>(
                          std::chrono::duration<double>(options.every_seconds));
    while (Clock::now() < next && goes_on()) {
      trainer.train_step();
      std::this_thread::sleep_for(kPause);
    }
  }
  publisher.wait();
  return 0;
}
