// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/rater.h"

#include "examples/common/batches.h"
#include "examples/common/learning_rates.h"
#include "examples/common/movielens_features.h"

#include <initializer_list>

namespace optim = tessera::optim;
using tessera::Combiner;
using tessera::FeatureConfig;
using torch::Tensor;

namespace {

constexpr int64_t kDim = 16;

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
           .initializer = tessera::initializers::Normal{.stddev = 0.05},
           .dtype = dtype})};
}

// A table with one number per row, and an optimizer of its own.
FeatureConfig bias_table(const char* name, int64_t rows, int64_t steps) {
  return {
      .table = tessera::make_table(
          {.name = name,
           .vocabulary_size = rows,
           .dim = 1,
           .initializer = tessera::initializers::Zeros{},
           .optimizer = optim::Adam{
               .learning_rate = linear_decay_to_zero(0.005, steps)}})};
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
      {"movie", table("movie", movies, dtype)},
      {"movie_bias", bias_table("movie_bias", movies, steps)},
      {"genres", table("genre", std::ssize(data.genres), dtype)},
      {"year", table("year", kYears, dtype)},
      {"raters", table("raters", users, dtype, Combiner::kSqrtn)}};
}

}  // namespace

int64_t number_of_steps(const RatingData& data, const Options& options) {
  return options.epochs * number_of_batches(data.train().size(), options.batch);
}

RaterImpl::RaterImpl(
    const RatingData& data,
    const Options& options,
    const tessera::Strategy& strategy)
    : mean(data.mean()) {
  const int64_t steps = number_of_steps(data, options);
  embedding = register_module(
      "embedding",
      tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
          .features = tables_of_features(
              data.movielens(),
              tessera::dtype_from_string(options.dtype),
              steps),
          .optimizer =
              optim::Adam{.learning_rate = linear_decay_to_zero(0.001, steps)},
          .strategy = strategy,
          .seed = static_cast<uint64_t>(options.seed)}));
  tower = register_module(
      "tower",
      torch::nn::Sequential(
          torch::nn::Linear(3 * kDim, 32),
          torch::nn::ReLU(),
          torch::nn::Dropout(0.3),
          torch::nn::Linear(32, 1)));
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
  const Tensor user =
      sum_of({"user", "occupation", "age", "gender", "history"});
  const Tensor movie = sum_of({"movie", "genres", "year", "raters"});
  const Tensor product = user * movie;
  const Tensor correction =
      tower->forward(torch::cat({user, movie, product}, 1));
  return {
      .stars = mean + (biases + correction).squeeze(1) + product.sum(1),
      .penalty = penalty};
}

Tensor RaterImpl::forward(
    const tessera::Features& features,
    const tessera::Weights& weights) {
  return rate(features, weights).stars;
}
