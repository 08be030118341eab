// SPDX-License-Identifier: Apache-2.0
#include "examples/serve/movie_ranker.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <utility>

using tessera::data::Columns;
using Texts = std::vector<std::string>;

namespace {

constexpr int64_t kHistory = 20;

// Builds a column of lists row by row.
struct Lists {
  void add(const Texts& texts) {
    values.insert(values.end(), texts.begin(), texts.end());
    splits.push_back(std::ssize(values));
  }
  tessera::data::Column column() const {
    return {
        .values = values, .row_splits = torch::tensor(splits, torch::kLong)};
  }

  Texts values = {};
  std::vector<int64_t> splits{0};
};

Columns movie_columns(
    const MovieLens& data,
    const std::vector<int64_t>& movies) {
  Texts titles;
  std::vector<int64_t> years;
  Lists genres;
  for (const int64_t id : movies) {
    const MovieLens::Movie& movie = data.movies.at(id);
    titles.push_back(movie.title);
    years.push_back(movie.year == 0 ? tessera::data::kMissing : movie.year);
    Texts names;
    for (const int64_t genre : movie.genres) {
      names.push_back(data.genres.at(genre));
    }
    genres.add(names);
  }
  Columns columns;
  columns.add("title", {.values = titles});
  columns.add("year", {.values = torch::tensor(years, torch::kLong)});
  columns.add("genres", genres.column());
  return columns;
}

}  // namespace

Columns movie_catalogue(const MovieLens& data) {
  std::map<std::string, int64_t> by_title;
  for (size_t i = 0; i < data.movies.size(); ++i) {
    by_title.emplace(data.movies[i].title, i);
  }
  const auto movies = std::views::values(by_title);
  return movie_columns(data, {movies.begin(), movies.end()});
}

tessera::data::FeaturePipeline movie_pipeline(const MovieLens& data) {
  using namespace tessera::data::transforms;
  Texts users;
  for (size_t user = 1; user <= data.users.size(); ++user) {
    users.push_back(std::to_string(user));
  }
  std::vector<double> years;
  for (double year = 1920; year < 1998; year += year < 1990 ? 10 : 1) {
    years.push_back(year);
  }
  const Vocabulary movies{
      .values = std::get<Texts>(movie_catalogue(data).at("title").values)};
  return tessera::data::FeaturePipeline(
      {{"user", {"user"}, Vocabulary{.values = users}},
       {"liked", {"liked"}, movies},
       {"movie", {"title"}, movies},
       {"period", {"year"}, Bucketize{.boundaries = years}},
       {"genre", {"genres"}, Vocabulary{.values = data.genres}}},
      {{"year", tessera::data::ColumnType::kInt64}});
}

MovieRankerImpl::MovieRankerImpl(
    const tessera::data::FeaturePipeline& pipeline) {
  // Movies that nobody has rated yet must not come first by chance.
  const auto movies = pipeline.make_table(
      "movie", {.dim = 16, .initializer = tessera::initializers::Zeros{}});
  const auto feature = [&](const char* name) {
    return tessera::FeatureConfig{
        .table = pipeline.make_table(name, {.dim = 16})};
  };
  embedding = register_module(
      "embedding",
      tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
          .features =
              {{"user", feature("user")},
               {"liked", tessera::FeatureConfig{.table = movies}},
               {"movie", tessera::FeatureConfig{.table = movies}},
               {"period", feature("period")},
               {"genre", feature("genre")}},
          .optimizer = tessera::optim::Adagrad{.learning_rate = 0.05}}));
  query_tower = register_module(
      "query_tower", tessera::MLP(tessera::MLPOptions{.units = {32, 16}}));
  tower = register_module(
      "tower", tessera::MLP(tessera::MLPOptions{.units = {64, 32, 1}}));
}

// snippet: forward
torch::Tensor MovieRankerImpl::forward(const tessera::Features& features) {
  const auto rows = embedding->forward(features);
  const torch::Tensor users =
      query_tower->forward({{"user", rows["user"]}, {"liked", rows["liked"]}});
  return tower->forward(rows).squeeze(1) + (users * rows["movie"]).sum(1);
}
// end snippet

RatingStream::RatingStream(
    const MovieLens& data,
    tessera::data::FeaturePipeline pipeline)
    : data_(data), pipeline_(std::move(pipeline)), liked_(data.users.size()) {
  for (const MovieLens::Rating& rating : data.ratings) {
    ratings_.push_back({.rating = rating});
  }
  std::stable_sort(
      ratings_.begin(), ratings_.end(), [](const Rated& a, const Rated& b) {
        return a.rating.seconds < b.rating.seconds;
      });
  for (Rated& rated : ratings_) {
    std::vector<int64_t>& liked = liked_[rated.rating.user];
    rated.liked_before = std::ssize(liked);
    if (rated.rating.stars >= 4.0F) {
      liked.push_back(rated.rating.movie);
    }
  }
}

Texts RatingStream::history(int64_t user, int64_t liked_before) const {
  const auto end = liked_.at(user).begin() + liked_before;
  Texts titles;
  for (auto movie = end - std::min(liked_before, kHistory); movie != end;
       ++movie) {
    titles.push_back(data_.movies.at(*movie).title);
  }
  return titles;
}

Texts RatingStream::liked(int64_t user) const {
  return history(user, std::ssize(liked_.at(user)));
}

RatingBatch RatingStream::batch(int64_t begin, int64_t end) const {
  Texts users;
  std::vector<int64_t> movies;
  std::vector<float> labels;
  Lists histories;
  for (int64_t i = begin; i < end; ++i) {
    const auto& [rating, liked_before] = ratings_.at(i);
    users.push_back(std::to_string(rating.user + 1));
    movies.push_back(rating.movie);
    labels.push_back(rating.stars >= 4.0F ? 1.0F : 0.0F);
    histories.add(history(rating.user, liked_before));
  }
  Columns columns = movie_columns(data_, movies);
  columns.add("user", {.values = users});
  columns.add("liked", histories.column());
  return {pipeline_.apply(columns).features, torch::tensor(labels)};
}
