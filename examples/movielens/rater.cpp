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

// Adam with the formula of torch::optim. Its bias correction makes the first steps longer.
optim::Adam adam(double learning_rate, int64_t steps) {
  return {
      .learning_rate = linear_decay_to_zero(learning_rate, steps),
      .epsilon = 1e-8,
      .sum_inside_sqrt = false,
      .bias_correction = true};
}

// A table with one number per row, and an optimizer of its own.
FeatureConfig number_table(
    const char* name,
    int64_t rows,
    const optim::OptimizerSpec& optimizer) {
  return {
      .table = tessera::make_table(
          {.name = name,
           .vocabulary_size = rows,
           .dim = 1,
           .combiner = Combiner::kSqrtn,
           .initializer = tessera::initializers::Zeros{},
           .optimizer = optimizer})};
}

tessera::Nest<FeatureConfig> tables_of_features(
    const MovieLens& data,
    const Options& options,
    int64_t steps) {
  const int64_t users = std::ssize(data.users);
  const int64_t movies = std::ssize(data.movies);
  const auto table = [&](const char* name,
                         int64_t rows,
                         Combiner combiner = Combiner::kMean) -> FeatureConfig {
    return {
        .table = tessera::make_table(
            {.name = name,
             .vocabulary_size = rows,
             .dim = options.dim,
             .combiner = combiner,
             .initializer = tessera::initializers::Normal{.stddev = 0.02},
             .dtype = tessera::dtype_from_string(
                 options.dtype.value_or("float32"))})};
  };
  // The loss is a mean over the batch: the rate makes a step of 0.02 for each rating, but for
  // those of a shorter last batch.
  const optim::SGD sgd{
      .learning_rate = linear_decay_to_zero(
          0.02 * static_cast<double>(options.batch), steps)};
  return {
      {"user", table("user", users)},
      {"user_bias", number_table("user_bias", users, adam(0.005, steps))},
      {"user_pairs", number_table("user_pairs", users * users, sgd)},
      {"occupation", table("occupation", std::ssize(data.occupations))},
      {"age", table("age", kAgeGroups)},
      {"gender", table("gender", 2)},
      {"history", table("history", movies, Combiner::kSqrtn)},
      {"history_stars", table("history_stars", movies, Combiner::kSum)},
      {"movie", table("movie", movies)},
      {"movie_bias", number_table("movie_bias", movies, adam(0.005, steps))},
      {"genres", table("genre", std::ssize(data.genres))},
      {"year", table("year", kYears)},
      {"raters", table("raters", users, Combiner::kSqrtn)},
      {"raters_stars", table("raters_stars", users, Combiner::kSum)}};
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
          .features = tables_of_features(data.movielens(), options, steps),
          .optimizer = adam(0.001, steps),
          .strategy = strategy,
          .seed = static_cast<uint64_t>(options.seed)}));
  tower = register_module(
      "tower",
      torch::nn::Sequential(
          torch::nn::Linear(3 * options.dim, 32),
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
  const Tensor linear =
      found["user_bias"] + found["movie_bias"] + found["user_pairs"];
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
  const Tensor score = linear + correction + product.sum(1, /*keepdim=*/true);
  const Tensor at_most = torch::sigmoid(thresholds - kScale * score);
  return {
      .stars = 5.0 - at_most.sum(1), .at_most = at_most, .penalty = penalty};
}

Tensor RaterImpl::forward(
    const tessera::Features& features,
    const tessera::Weights& weights) {
  return rate(features, weights).stars;
}
