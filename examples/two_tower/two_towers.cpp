// SPDX-License-Identifier: Apache-2.0
#include "examples/two_tower/two_towers.h"

#include "examples/common/learning_rates.h"
#include "examples/common/movielens_features.h"

#include <utility>

using tessera::Combiner;
using tessera::FeatureConfig;
using torch::Tensor;

TowerImpl::TowerImpl(
    tessera::TPUEmbeddingOptions options,
    const Settings& settings)
    : is_unit_length(settings.unit_length) {
  embedding =
      register_module("embedding", tessera::TPUEmbedding(std::move(options)));
  dropout = register_module("dropout", torch::nn::Dropout(settings.dropout));
}

TowerImpl::Output TowerImpl::forward(const TowerInputs& inputs) {
  const auto found = embedding->forward(inputs.features, inputs.weights);
  Tensor sum;
  for (const auto& [name, activation] : found) {
    sum = sum.defined() ? sum + activation : activation;
  }
  const Tensor squares = sum.square().sum();
  sum = dropout->forward(sum);
  return {
      .vectors = is_unit_length ? torch::nn::functional::normalize(sum) : sum,
      .squares = squares};
}

TwoTowersImpl::TwoTowersImpl(
    const Sequences& sequences,
    const Settings& settings,
    uint64_t seed,
    int64_t steps)
    : only_ids(settings.only_ids), penalty(settings.penalty) {
  const auto table = [&](const char* name,
                         int64_t rows,
                         Combiner combiner = Combiner::kSqrtn) {
    return FeatureConfig{
        .table = tessera::make_table(
            {.name = name,
             .vocabulary_size = rows,
             .dim = settings.dim,
             .combiner = combiner,
             .initializer = tessera::initializers::Normal{.stddev = 0.05},
             .optimizer = tessera::optim::Adam{
                 .learning_rate =
                     linear_decay_to_zero(settings.learning_rate, steps)}})};
  };
  const MovieLens& data = sequences.movielens();
  const int64_t movies = std::ssize(data.movies);
  tessera::Nest<FeatureConfig>::Map user_tables{
      {"user", table("user", std::ssize(data.users))}};
  tessera::Nest<FeatureConfig>::Map movie_tables{
      {"movie", table("movie", movies)}};
  if (!only_ids) {
    user_tables.emplace_back("age", table("age", kAgeGroups));
    user_tables.emplace_back("gender", table("gender", 2));
    user_tables.emplace_back(
        "occupation", table("occupation", std::ssize(data.occupations)));
    user_tables.emplace_back("history", table("history", movies));
    user_tables.emplace_back("latest", table("latest", movies, Combiner::kSum));
    movie_tables.emplace_back("year", table("year", kYears));
    movie_tables.emplace_back(
        "genres", table("genre", std::ssize(data.genres)));
  }
  const auto tower = [&](tessera::Nest<FeatureConfig>::Map features,
                         uint64_t tower_seed) {
    return Tower(
        tessera::TPUEmbeddingOptions{
            .features = tessera::Nest<FeatureConfig>::map(std::move(features)),
            .seed = tower_seed},
        settings);
  };
  user = register_module("user", tower(std::move(user_tables), 2 * seed));
  movie =
      register_module("movie", tower(std::move(movie_tables), 2 * seed + 1));
  retrieval = register_module(
      "retrieval",
      tessera::Retrieval(tessera::RetrievalOptions{
          .temperature = settings.temperature,
          .remove_accidental_hits = true,
          .reduction = tessera::LossReduction::kMean}));
}

TwoTowersImpl::Output TwoTowersImpl::forward(
    const Sequences& sequences,
    const Examples& examples) {
  const Tensor ids = sequences.movies_of(examples);
  const auto users = user->forward(sequences.users(examples, only_ids));
  const auto movies = movie->forward(sequences.movies(ids, only_ids));
  const Tensor loss = retrieval->forward(
      users.vectors,
      movies.vectors,
      {.candidate_ids = ids,
       .candidate_sampling_probability =
           sequences.probabilities().index_select(0, ids)});
  const auto size = static_cast<double>(examples.size());
  return {
      .loss = loss,
      .objective = loss + (penalty / size) * (users.squares + movies.squares)};
}

Tensor TwoTowersImpl::user_vectors(
    const Sequences& sequences,
    const Examples& examples) {
  const torch::NoGradGuard no_grad;
  eval();
  return user->forward(sequences.users(examples, only_ids)).vectors;
}

Tensor TwoTowersImpl::movie_vectors(const Sequences& sequences) {
  const torch::NoGradGuard no_grad;
  eval();
  const Tensor ids =
      torch::arange(std::ssize(sequences.movielens().movies), torch::kLong);
  return movie->forward(sequences.movies(ids, only_ids)).vectors;
}
