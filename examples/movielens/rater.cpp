// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/rater.h"

#include "examples/common/batches.h"
#include "examples/common/learning_rates.h"
#include "examples/common/movielens_features.h"

#include <cmath>
#include <initializer_list>
#include <vector>

namespace optim = tessera::optim;
using tessera::Combiner;
using tessera::FeatureConfig;
using torch::Tensor;

namespace {

constexpr int64_t kDim = 32;

FeatureConfig table(
    const char* name,
    int64_t rows,
    at::ScalarType dtype,
    Combiner combiner = Combiner::kMean) {
  return {
      .table = tessera::make_table(
          {.name = name,
           .vocabulary_size = rows,
           .dim = kDim,
           .combiner = combiner,
           .initializer = tessera::initializers::Normal{.stddev = 0.02},
           .dtype = dtype})};
}

// Adam with the formula of torch::optim. Its bias correction makes the first steps longer.
optim::Adam adam(double learning_rate, int64_t steps) {
  return {
      .learning_rate = linear_decay_to_zero(learning_rate, steps),
      .epsilon = 1e-8,
      .sum_inside_sqrt = false,
      .bias_correction = true};
}

// A table with one number per row, and an optimizer of its own.
FeatureConfig bias_table(const char* name, int64_t rows, int64_t steps) {
  return {
      .table = tessera::make_table(
          {.name = name,
           .vocabulary_size = rows,
           .dim = 1,
           .initializer = tessera::initializers::Zeros{},
           .optimizer = adam(0.005, steps)})};
}

tessera::Nest<FeatureConfig> tables_of_features(
    const MovieLens& data,
    at::ScalarType dtype,
    int64_t steps) {
  const int64_t users = std::ssize(data.users);
  const int64_t movies = std::ssize(data.movies);
  return {
      {"user", table("user", users, dtype)},
      {"user_bias", bias_table("user_bias", users, steps)},
      {"occupation", table("occupation", std::ssize(data.occupations), dtype)},
      {"age", table("age", kAgeGroups, dtype)},
      {"gender", table("gender", 2, dtype)},
      {"history", table("history", movies, dtype, Combiner::kSqrtn)},
      {"history_stars", table("history_stars", movies, dtype, Combiner::kSum)},
      {"movie", table("movie", movies, dtype)},
      {"movie_bias", bias_table("movie_bias", movies, steps)},
      {"genres", table("genre", std::ssize(data.genres), dtype)},
      {"year", table("year", kYears, dtype)},
      {"raters", table("raters", users, dtype, Combiner::kSqrtn)},
      {"raters_stars", table("raters_stars", users, dtype, Combiner::kSum)}};
}

// The log odds of k stars or less, for k = 1, ..., 4.
Tensor thresholds_of(const Ratings& ratings) {
  std::vector<double> thresholds;
  for (int stars = 1; stars < 5; ++stars) {
    // Half a rating on each side keeps the odds finite.
    double fewer = 0.5;
    double more = 0.5;
    for (const MovieLens::Rating& rating : ratings) {
      (rating.stars <= static_cast<float>(stars) ? fewer : more) += 1.0;
    }
    thresholds.push_back(std::log(fewer / more));
  }
  return torch::tensor(thresholds, torch::kFloat);
}

}  // namespace

int64_t number_of_steps(const RatingData& data, const Options& options) {
  return options.epochs * number_of_batches(data.train().size(), options.batch);
}

RaterImpl::RaterImpl(
    const RatingData& data,
    const Options& options,
    const tessera::Strategy& strategy) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));  // of the tower
  const int64_t steps = number_of_steps(data, options);
  embedding = register_module(
      "embedding",
      tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
          .features = tables_of_features(
              data.movielens(),
              tessera::dtype_from_string(options.dtype),
              steps),
          .optimizer = adam(0.001, steps),
          .strategy = strategy,
          .seed = static_cast<uint64_t>(options.seed)}));
  tower = register_module(
      "tower",
      torch::nn::Sequential(
          torch::nn::Linear(3 * kDim, 32),
          torch::nn::ReLU(),
          torch::nn::Dropout(0.3),
          torch::nn::Linear(32, 1)));
  thresholds = register_buffer("thresholds", thresholds_of(data.train()));
  // At first the tower is only a small correction of the bilinear model.
  const torch::NoGradGuard no_grad;
  tower[3]->as<torch::nn::Linear>()->weight.mul_(0.1);
  tower[3]->as<torch::nn::Linear>()->bias.zero_();
}

RaterImpl::Output RaterImpl::rate(
    const tessera::Features& features,
    const tessera::Weights& weights) {
  const auto found = embedding->forward(features, weights);
  const Tensor biases = found["user_bias"] + found["movie_bias"];
  Tensor penalty;
  const auto sum_of = [&](std::initializer_list<const char*> names) {
    Tensor sum;
    for (const char* name : names) {
      const Tensor& activation = found[name];
      const Tensor squares = activation.square().sum();
      sum = sum.defined() ? sum + activation : activation;
      penalty = penalty.defined() ? penalty + squares : squares;
    }
    return sum;
  };
  const Tensor user = sum_of(
      {"user", "occupation", "age", "gender", "history", "history_stars"});
  const Tensor movie =
      sum_of({"movie", "genres", "year", "raters", "raters_stars"});
  const Tensor product = user * movie;
  const Tensor correction =
      tower->forward(torch::cat({user, movie, product}, 1));
  constexpr double kScale = 1.8;
  const Tensor score = biases + correction + product.sum(1, /*keepdim=*/true);
  const Tensor at_most = torch::sigmoid(thresholds - kScale * score);
  return {
      .stars = 5.0 - at_most.sum(1), .at_most = at_most, .penalty = penalty};
}

Tensor RaterImpl::forward(
    const tessera::Features& features,
    const tessera::Weights& weights) {
  return rate(features, weights).stars;
}
