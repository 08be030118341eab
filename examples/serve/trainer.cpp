// SPDX-License-Identifier: Apache-2.0
#include "examples/serve/trainer.h"

#include "examples/serve/movie_ranker.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
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
  Trainer(const MovieLens& data, const tessera::data::FeaturePipeline& pipeline)
      : model_(pipeline),
        stream_(data, pipeline),
        optimizer_((build(), model_->parameters()), 1e-3),
        num_train_(stream_.size() * 9 / 10),
        popularity_(torch::zeros({pipeline.vocabulary_size("movie")})) {}

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
    const auto movies = std::get<torch::Tensor>(batch.features["movie"]);
    popularity_ += movies.bincount(batch.is_liked, popularity_.numel());
    ++step_;
  }

  /// All movies. How popular one is depends on the ratings so far.
  tessera::RecommenderItems items() {
    const auto ids = torch::arange(popularity_.numel());
    return {
        .vectors =
            model_->embedding->forward_partial({{"movie", ids}})["movie"],
        .popularity = popularity_};
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
  torch::Tensor popularity_;  // [movies]: how often each was liked
  int64_t step_ = 0;
  double loss_ = 0.0;
};

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
    nlohmann::json json;
    json["user"] = {
        {"user", std::to_string(user + 1)}, {"liked", stream.liked(user)}};
    nlohmann::json& candidates = json["candidates"];
    for (int64_t j = 0; j < kCandidates; ++j) {
      const MovieLens::Movie& movie = data.movies[draw(data.movies.size())];
      nlohmann::json genres = nlohmann::json::array();
      for (const int64_t genre : movie.genres) {
        genres.push_back(data.genres[genre]);
      }
      candidates["title"].push_back(movie.title);
      candidates["year"].push_back(
          movie.year == 0 ? nlohmann::json() : nlohmann::json(movie.year));
      candidates["genres"].push_back(genres);
    }
    file << json.dump() << "\n";
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
  const tessera::data::FeaturePipeline pipeline = movie_pipeline(data);
  Trainer trainer(data, pipeline);
  const training::StopSignal signal;
  for (int i = 0; i < 200 && signal.name() == nullptr; ++i) {
    trainer.train_step();
  }
  // snippet: publish_program
  const std::string program = options.directory + "/program.pt2";
  const tessera::ExportExample example = tessera::with_one_user(
      {.features = trainer.stream().batch(0, 3).features}, {"user", "liked"});
  tessera::export_dense_pt2(trainer.model(), program, example);
  // end snippet
  // snippet: publish_items
  const std::string query = options.directory + "/query.pt2";
  tessera::export_dense_pt2(
      std::make_shared<UserTower>(trainer.model()),
      query,
      {.features = {
           {"user", example.features["user"]},
           {"liked", example.features["liked"]}}});
  const std::string file = options.directory + "/pipeline.json";
  tessera::save_pipeline(pipeline, file);
  serving::Publisher publisher(
      trainer.model(),
      options.directory + "/published",
      {.background = true,
       .pipeline = file,
       .program = program,
       .items = serving::PublishedItems{
           .items = [&] { return trainer.items(); },
           .query = query,
           .item = "movie",
           .user_items = "liked",
           .fold_in = serving::PublishedFoldIn{.regularization = 1.0},
           .attributes = movie_catalogue(data),
           .num_candidates = 200}});
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
