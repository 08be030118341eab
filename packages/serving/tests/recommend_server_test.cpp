// SPDX-License-Identifier: Apache-2.0
// POST /recommend of a server, for directories that a Publisher has written.
#include <tessera/common/json_text.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/export/export_pt2.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/serving/program_scorer.h>
#include <tessera/serving/publisher.h>
#include <tessera/serving/server.h>

#include "packages/data/tests/column_builders.h"
#include "packages/serving/tests/http_client.h"
#include "tests/temporary_folder.h"

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

namespace tessera::serving::recommend_server_test {

using data::FeaturePipeline;
using namespace data::transforms;  // NOLINT(google-build-using-namespace)

constexpr int64_t kUsers = 20;
constexpr int64_t kFilms = 60;
constexpr int64_t kReserved = 2;  // ids of missing and unknown values
constexpr int64_t kDim = 4;
constexpr int64_t kCandidates = 12;

float age_of(int64_t user) {
  return 20.0F + static_cast<float>(user);
}

Texts numbered(const std::string& prefix, int64_t count) {
  Texts texts;
  for (int64_t i = 0; i < count; ++i) {
    texts.push_back(prefix + std::to_string(i));
  }
  return texts;
}

FeaturePipeline film_pipeline() {
  return FeaturePipeline(
      {{"user", {"user"}, Vocabulary{.values = numbered("u", kUsers)}},
       {"film", {"title"}, Vocabulary{.values = numbered("f", kFilms)}},
       {"words", {"title"}, Hash{.num_bins = 30}},
       {"genre",
        {"genre"},
        Vocabulary{.values = Texts{"drama", "crime", "comedy"}}},
       {"age", {"age"}, Normalize{.mean = 40, .variance = 100}},
       {"year", {"year"}, Normalize{.mean = 1980, .variance = 400}},
       {"likes", {"title"}, Hash{.num_bins = 25}},
       {"favorite", {"genre"}, Hash{.num_bins = 9}},
       {"taste", {"country", "genre"}, Cross{.num_bins = 40}}},
      {{"title", data::ColumnType::kText},
       {"country", data::ColumnType::kText}});
}

// What is known about a film. The last film has no row in the attributes.
struct Film {
  explicit Film(int64_t i)
      : has_row(i + 1 < kFilms),
        genre(Texts{"drama", "crime", "comedy", ""}[i % 4]),
        year(i % 13 == 12 ? kMissing : 1950 + i),
        rating(static_cast<float>(i) / 8),
        tags{"t" + std::to_string(i % 4), "s" + std::to_string(i % 5)} {}

  bool has_row;
  std::string genre;
  int64_t year;
  float rating;
  Texts tags;
};

data::Columns film_attributes() {
  Texts titles;
  Texts genres;
  Texts tags;
  std::vector<int64_t> splits{0};
  std::vector<int64_t> years;
  std::vector<float> ratings;
  for (int64_t i = kFilms - 2; i >= 0; --i) {
    const Film film(i);
    titles.push_back("f" + std::to_string(i));
    genres.push_back(film.genre);
    years.push_back(film.year);
    ratings.push_back(film.rating);
    tags.insert(tags.end(), film.tags.begin(), film.tags.end());
    splits.push_back(std::ssize(tags));
  }
  return test::columns_of(
      {{"title", test::text(titles)},
       {"genre", test::text(genres)},
       {"year", test::integers(years)},
       {"rating", test::numbers(ratings)},
       {"tags", test::ragged(test::text(tags), splits)}});
}

at::Tensor film_ids() {
  return at::arange(kReserved, kReserved + kFilms, at::kLong);
}

// A ranker and a user tower.
struct FilmModelImpl : torch::nn::Module {
  FilmModelImpl() {
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features = film_pipeline().make_features({.dim = kDim})}));
    query = register_module("query", torch::nn::Linear(kDim + 1, kDim));
    tower = register_module("tower", MLP(MLPOptions{.units = {8, 1}}));
  }

  at::Tensor forward(
      const Features& features,
      const at::Tensor& age,
      const at::Tensor& year) {
    const Nest<at::Tensor> rows = embedding->forward(features);
    return tower
        ->forward(
            {{"user", rows["user"]},
             {"film", rows["film"]},
             {"words", rows["words"]},
             {"genre", rows["genre"]},
             {"likes", rows["likes"]},
             {"favorite", rows["favorite"]},
             {"taste", rows["taste"]},
             {"age", age},
             {"year", year}})
        .squeeze(1);
  }
  at::Tensor query_of(const Features& user, const at::Tensor& age) {
    return query->forward(
        at::cat({embedding->forward_partial(user)["user"], age}, 1));
  }
  at::Tensor film_vectors() {
    return embedding->forward_partial({{"film", film_ids()}})["film"];
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Linear query{nullptr};
  MLP tower{nullptr};
};
TORCH_MODULE(FilmModel);

// The part of the model that gives the vector of a user.
struct QueryTower : torch::nn::Module {
  explicit QueryTower(FilmModel of) : model(std::move(of)) {
    register_module("embedding", model->embedding);
    register_module("query", model->query);
  }
  at::Tensor forward(const Features& user, const at::Tensor& age) {
    return model->query_of(user, age);
  }

  FilmModel model;
};

// A list of a plain search in double precision, and what the answer should say of it.
struct Expected {
  std::vector<int64_t> films = {};  // their numbers, from 0
  std::vector<double> scores = {};
};

// The best films by `scores`, of those that are `allowed`.
template <class Allowed>
Expected best_films(
    const at::Tensor& scores,
    int64_t k,
    Allowed allowed,
    int64_t max_per_genre = kFilms) {
  const at::Tensor order =
      scores.to(at::kDouble)
          .argsort(
              /*stable=*/true, /*dim=*/0, /*descending=*/true);
  Expected best;
  std::map<std::string, int64_t> chosen;
  for (const int64_t film : test::to_vector(order)) {
    const Film of(film);
    if (std::ssize(best.films) < k && allowed(film) &&
        (!of.has_row || of.genre.empty() ||
         ++chosen[of.genre] <= max_per_genre)) {
      best.films.push_back(film);
      best.scores.push_back(scores[film].item<double>());
    }
  }
  return best;
}

// The list of a user from France for the model as it is now, who likes the film f3 and crime,
// and must not get films with even numbers.
Expected ranked_films(
    FilmModel model,
    int64_t user,
    int64_t k,
    int64_t max_per_genre = kFilms) {
  const at::NoGradGuard no_grad;
  const Features features{{"user", at::tensor({user + kReserved}, at::kLong)}};
  const at::Tensor age = at::full({1, 1}, (age_of(user) - 40) / 10);
  const Expected candidates = best_films(
      model->film_vectors().matmul(model->query_of(features, age).squeeze(0)),
      std::max(k, kCandidates),
      [](int64_t film) { return film % 2 == 1; });
  Texts titles;
  Texts genres;
  std::vector<int64_t> years;
  for (int64_t i = 0; i < kFilms; ++i) {
    const Film film(i);
    titles.push_back(film.has_row ? "f" + std::to_string(i) : "");
    genres.push_back(film.has_row ? film.genre : "");
    years.push_back(film.has_row ? film.year : kMissing);
  }
  const data::PipelineBatch films =
      film_pipeline().apply_present(test::columns_of(
          {{"title", test::text(titles)},
           {"genre", test::text(genres)},
           {"country", test::text(Texts(kFilms, "fr"))},
           {"year", test::integers(years)}}));
  const data::PipelineBatch own =
      film_pipeline().apply_present(test::columns_of(
          {{"title", test::ragged(test::text({"f3"}), {0, 1})},
           {"genre", test::text({"crime"})}}));
  const at::Tensor scores = model->forward(
      {{"user", features["user"]},
       {"film", film_ids()},
       {"words", films.features["words"]},
       {"genre", films.features["genre"]},
       {"likes", own.features["likes"]},
       {"favorite", own.features["favorite"]},
       {"taste", films.features["taste"]}},
      age,
      films.dense.narrow(1, 1, 1));
  return best_films(
      scores,
      k,
      [&](int64_t film) {
        return std::ranges::count(candidates.films, film) > 0;
      },
      max_per_genre);
}

void expect_list(const Json& answer, const Expected& expected) {
  std::vector<int64_t> ids;
  Json titles = Json::array();
  for (const int64_t film : expected.films) {
    ids.push_back(film + kReserved);
    titles.push_back(
        Film(film).has_row ? Json("f" + std::to_string(film)) : Json());
  }
  ASSERT_TRUE(answer.contains("ids")) << answer;
  EXPECT_EQ(answer["ids"], Json(ids)) << answer;
  EXPECT_EQ(answer["items"], titles) << answer;
  ASSERT_EQ(answer["scores"].size(), expected.scores.size());
  for (size_t i = 0; i < expected.scores.size(); ++i) {
    EXPECT_NEAR(answer["scores"][i].get<double>(), expected.scores[i], 1e-5);
  }
}

class RecommendServerTest : public ::testing::Test {
 protected:
  RecommendServerTest() {
    save_pipeline(film_pipeline(), folder_ / "pipeline.json");
    ranked_films(model_, 0, 1);  // builds the tower
  }

  // Items with rows for users.
  PublishedItems rows() {
    return {
        .items =
            [this] {
              return RecommenderItems{
                  .vectors = films_,
                  .ids = film_ids(),
                  .popularity = popularity_};
            },
        .users = [this] { return users_; },
        .item = "film",
        .fold_in = PublishedFoldIn{.regularization = 0.5},
        .seen = [](const at::Tensor& users) { return seen_by(users); },
        .attributes = film_attributes()};
  }
  // Items for users whose vectors a program gives.
  PublishedItems programs() {
    const ExportExample user{
        .features = {{"user", at::tensor({3}, at::kLong)}},
        .inputs = {at::rand({1, 1})}};
    const ExportExample candidates{
        .features =
            {{"user", at::tensor({3}, at::kLong)},
             {"film", at::tensor({2, 3, 4}, at::kLong)},
             {"words", at::tensor({2, 3, 4}, at::kLong)},
             {"genre", at::tensor({2, 3, 1}, at::kLong)},
             {"likes",
              RaggedFeature{
                  at::tensor({4, 5}, at::kLong),
                  at::tensor({0, 2}, at::kLong)}},
             {"favorite", at::tensor({3}, at::kLong)},
             {"taste", at::tensor({4, 5, 6}, at::kLong)}},
        .inputs = {at::rand({1, 1}), at::rand({3, 1})}};
    model_->eval();
    const auto query = std::make_shared<QueryTower>(model_);
    query->eval();
    export_dense_pt2(query, folder_ / "query", user, {"age"});
    export_dense_pt2(model_, folder_ / "program", candidates, {"age", "year"});
    PublishedItems items = rows();
    items.items = [this] {
      return RecommenderItems{
          .vectors = model_->film_vectors(),
          .ids = film_ids(),
          .popularity = popularity_};
    };
    items.users = nullptr;
    items.seen = nullptr;
    items.query = folder_ / "query";
    items.num_candidates = kCandidates;
    return items;
  }

  // Users have seen two films, but unknown users none.
  static std::vector<int64_t> seen_films(int64_t user) {
    return user < kReserved ? std::vector<int64_t>()
                            : std::vector{user * 3 % kFilms, user * 7 % kFilms};
  }
  static RaggedFeature seen_by(const at::Tensor& users) {
    std::vector<int64_t> ids;
    std::vector<int64_t> splits{0};
    for (const int64_t user : test::to_vector(users)) {
      for (const int64_t film : seen_films(user)) {
        ids.push_back(film + kReserved);
      }
      splits.push_back(std::ssize(ids));
    }
    return {at::tensor(ids, at::kLong), at::tensor(splits, at::kLong)};
  }

  int64_t publish(
      std::optional<PublishedItems> items,
      bool has_program = false) {
    PublishOptions options{
        .full_share = 10.0,
        .keep_last = 100,
        .pipeline = folder_ / "pipeline.json",
        .items = std::move(items)};
    if (has_program || (options.items && options.items->num_candidates > 0)) {
      options.program = folder_ / "program";
    }
    publisher_.reset();
    publisher_ = std::make_unique<Publisher>(
        model_, folder_ / "published", std::move(options));
    return publisher_->publish();
  }
  template <class... Scorer>
  void start(ServerOptions options = {}, const Scorer&... scorer) {
    options.port = 0;
    server_ = std::make_unique<Server>(reader(), options, scorer...);
  }
  std::shared_ptr<Reader> reader() {
    if (reader_ == nullptr) {
      reader_ = std::make_shared<Reader>(
          folder_ / "published", ReaderOptions{.follow = false});
    }
    return reader_;
  }

  HttpReply post(const std::string& body) const {
    return HttpClient(server_->port()).post("/recommend", body);
  }
  Json answer(const Json& body) const {
    const HttpReply reply = post(body.dump());
    EXPECT_EQ(reply.status, 200) << reply.body << " to " << body;
    return parse_json(reply.body);
  }
  Json version() const {
    Json version;
    do {  // the pipeline may still be read
      version = parse_json(HttpClient(server_->port()).get("/version").body);
    } while (version["columns"].is_null());
    return version;
  }

  const TemporaryFolder folder_;
  FilmModel model_;
  at::Tensor films_ = at::randn({kFilms, kDim});
  at::Tensor users_ = at::randn({kUsers + kReserved, kDim});
  at::Tensor popularity_ = at::randint(20, {kFilms}, at::kLong);
  std::unique_ptr<Publisher> publisher_;
  std::shared_ptr<Reader> reader_;
  std::unique_ptr<Server> server_;
};

struct Filter {
  std::string text;
  std::function<bool(const Film&)> passes;
};

std::vector<Filter> filters() {
  return {
      {"", [](const Film&) { return true; }},
      {"genre = 'drama'",
       [](const Film& film) { return film.has_row && film.genre == "drama"; }},
      {"year >= 1990 or genre != 'crime'",
       [](const Film& film) {
         return film.has_row &&
             (film.year >= 1990 ||
              (!film.genre.empty() && film.genre != "crime"));
       }},
      {"tags contains 't1' and not rating < 3.5",
       [](const Film& film) {
         return film.has_row && film.tags[0] == "t1" && film.rating >= 3.5F;
       }},
      {"not year < 1960", [](const Film& film) {
         return !film.has_row || film.year == kMissing || film.year >= 1960;
       }}};
}

TEST_F(RecommendServerTest, ListsAreThoseOfAPlainReference) {
  publish(rows());
  start();
  std::mt19937_64 random(7);
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  const at::Tensor vectors = films_.to(at::kDouble);
  std::map<std::string, int64_t> counts;
  for (int64_t i = 0; i < 400; ++i) {
    const Filter filter = filters()[below(5)];
    const int64_t k = 1 + below(kFilms);
    // An id. Many users have none, or that of unknown ones.
    const int64_t user = below(2) == 0 ? below(2) : kReserved + below(kUsers);
    Json body{{"k", k}, {"user", Json::object()}};
    if (user > 0) {
      body["user"]["user"] =
          user == 1 ? "nobody" : "u" + std::to_string(user - kReserved);
    }
    std::set<int64_t> excluded;
    std::vector<int64_t> own;
    if (below(2) == 0) {
      body["user"]["title"] = Json::array({"no such film"});
      for (int64_t j = below(4); j > 0; --j) {
        own.push_back(below(kFilms));
        body["user"]["title"].push_back("f" + std::to_string(own.back()));
      }
    }
    if (!filter.text.empty()) {
      body["where"] = filter.text;
    }
    if ((user > 0 || body["user"].contains("title")) && below(2) == 0) {
      body["exclude_seen"] = true;
      excluded.insert(own.begin(), own.end());
      const auto seen = seen_films(user);
      excluded.insert(seen.begin(), seen.end());
    }
    if (below(3) == 0) {
      body["exclude"] = {"f1", "no such film", "f2"};
      excluded.insert({1, 2});
    } else if (below(2) == 0) {
      body["exclude"]["ids"] = {kReserved + 5, 0, -7, int64_t{1} << 60};
      excluded.insert(5);
    }
    const bool chooses = below(3) == 0;
    if (chooses) {
      for (int64_t film = 0; film < kFilms; film += 2) {
        body["choose_from"].push_back("f" + std::to_string(film));
      }
    }
    const bool is_diverse = below(3) == 0;
    if (is_diverse) {
      body["diversity"] = {{"column", "genre"}, {"max_per_value", 2}};
    }
    const auto passes = [&](int64_t film) {
      return filter.passes(Film(film)) && (!chooses || film % 2 == 0);
    };
    // The vector, or the popularity.
    std::string from = "popularity";
    at::Tensor scores = popularity_;
    if (user >= kReserved) {
      from = "query";
      scores = vectors.matmul(users_[user].to(at::kDouble));
    } else if (!own.empty()) {
      from = "fold_in";
      const at::Tensor rows =
          vectors.index_select(0, at::tensor(own, at::kLong));
      const at::Tensor matrix =
          rows.t().matmul(rows) + 0.5 * at::eye(kDim, at::kDouble);
      scores = vectors.matmul(matrix.inverse().matmul(rows.sum(0)));
    }
    ++counts[from];
    const Json found = answer(body);
    expect_list(
        found,
        best_films(
            scores,
            k,
            [&](int64_t film) {
              return passes(film) && !excluded.contains(film);
            },
            is_diverse ? 2 : kFilms));
    int64_t passed = 0;
    for (int64_t film = 0; film < kFilms; ++film) {
      passed += passes(film) ? 1 : 0;
    }
    EXPECT_EQ(found["passed"], passed) << body;
    EXPECT_EQ(found["from"], from) << body;
    EXPECT_EQ(found["version"], 1);
    EXPECT_EQ(found.contains("history"), body.contains("exclude_seen"));
    if (found.contains("history")) {
      EXPECT_EQ(found["history"], user >= kReserved) << body;
    }
    if (HasFailure()) {
      FAIL() << body;
    }
  }
  for (const char* from : {"query", "fold_in", "popularity"}) {
    EXPECT_GE(counts[from], 15) << from;
  }
}

TEST_F(RecommendServerTest, AnswersShowAttributes) {
  publish(rows());
  start();
  const Json found = answer(
      {{"user", {{"user", "u3"}}},
       {"k", 4},
       {"choose_from", {"f59", "f12", "f2", "f3"}},
       {"show", {"title", "year", "rating", "tags", "genre"}}});
  ASSERT_EQ(found["ids"].size(), 4);
  for (size_t i = 0; i < 4; ++i) {
    const auto number = found["ids"][i].get<int64_t>() - kReserved;
    const Film film(number);
    const auto shown = [&](const char* name) {
      return found["shown"][name][i];
    };
    const auto or_null = [](bool is_there, const Json& value) {
      return is_there ? value : Json();
    };
    EXPECT_EQ(shown("title"), found["items"][i]);
    EXPECT_EQ(
        shown("year"),
        or_null(film.has_row && film.year != kMissing, film.year));
    EXPECT_EQ(shown("rating"), or_null(film.has_row, film.rating));
    EXPECT_EQ(shown("tags"), film.has_row ? Json(film.tags) : Json::array());
    EXPECT_EQ(
        shown("genre"),
        or_null(film.has_row && !film.genre.empty(), film.genre));
  }
}

TEST_F(RecommendServerTest, VersionDescribesTheItems) {
  publish(rows());
  start();
  const Json recommend = version()["recommend"];
  EXPECT_EQ(recommend["user"], Json({"user", "title"}));
  EXPECT_EQ(recommend["user_items"], "title");
  EXPECT_EQ(recommend["item"], "film");
  EXPECT_EQ(recommend["item_column"], "title");
  EXPECT_EQ(recommend["items"], kFilms);
  EXPECT_EQ(recommend["history"], true);
  EXPECT_EQ(recommend["ranked"], false);
  const Json& attributes = recommend["attributes"];
  ASSERT_EQ(attributes.size(), 5);
  EXPECT_EQ(attributes[0]["values"].size(), 20);
  EXPECT_EQ(
      attributes[1],
      Json(
          {{"name", "genre"},
           {"type", "text"},
           {"lists", false},
           {"values", {"comedy", "crime", "drama"}}}));
  EXPECT_EQ(attributes[2]["type"], "int64");
  EXPECT_EQ(attributes[3]["type"], "float32");
  EXPECT_EQ(attributes[4]["lists"], true);
}

TEST_F(RecommendServerTest, WithoutAPipelineUsersAndItemsAreIds) {
  publisher_ = std::make_unique<Publisher>(
      model_,
      folder_ / "published",
      PublishOptions{
          .items = PublishedItems{
              .items = [this] { return RecommenderItems{.vectors = films_}; },
              .users = [this] { return users_; },
              .user_items = "liked"}});
  publisher_->publish();
  start();
  // The model has no features "item" and "liked".
  const Json found = answer(
      {{"user", {{"user", 5}, {"liked", {7, 8}}}},
       {"exclude_seen", true},
       {"exclude", {9}},
       {"k", 3}});
  const Expected expected = best_films(
      films_.to(at::kDouble).matmul(users_[5].to(at::kDouble)),
      3,
      [](int64_t film) { return film < 7 || film > 9; });
  EXPECT_EQ(found["ids"], Json(expected.films));
  EXPECT_EQ(found["items"], found["ids"]);
  EXPECT_EQ(found["history"], false);
  EXPECT_EQ(version()["recommend"]["item_column"], Json());
  EXPECT_EQ(version()["recommend"]["user_items"], "liked");
  const HttpReply reply = post(R"({"user":{"user":5},"where":"year > 3"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_CONTAINS(reply.body, "\"`where` needs attributes of the items");
  EXPECT_CONTAINS(
      post(R"({"user":{"user":5},"diversity":{"column":"year"}})").body,
      "\"`diversity` needs attributes of the items");
  EXPECT_CONTAINS(
      post(R"({"user":{"user":5},"show":["year"]})").body,
      "show: this version has no attributes of items");
  EXPECT_CONTAINS(
      post(R"({"user":{}})").body, "nothing is known about the user");
}

TEST_F(RecommendServerTest, WrongBodiesAreNamed) {
  publish(rows());
  start({.max_ids = 500});
  const std::vector<std::pair<std::string, std::string>> bodies{
      {"[]", "an object"},
      {R"({"users":{}})", "unknown key 'users'"},
      {R"({"user":[1]})", "user: expected an object with the inputs"},
      {R"({"user":{"city":"Rome"}})", "user.city: expected"},
      {R"({"user":{"city":3}})", "there is no input 'city' of a user"},
      {R"({"user":{"year":1990}})",
       "user: no input of a user is made from the column 'year'. The columns are user, title."},
      {R"({"user":{"columns":{"country":"fr"}}})",
       "is made from the column 'country'"},
      {R"({"user":{"genre":"drama","user":7}})", "user.user: expected text"},
      {R"({"user":{"user":["u1","u2"]}})", "expected one id as 'user'"},
      {R"({"user":{"inputs":{"user":[3,4]}}})", "expected one id as 'user'"},
      {R"({"user":{"inputs":{"user":-4}}})", "user must be >= 0, but is -4"},
      {R"({"k":0})", R"("k must be in [1, 60])"},
      {R"({"k":61})", R"("k must be in [1, 60])"},
      {R"({"k":1000000000000})", "at most 500 ids"},
      {R"({"k":1.5})", R"("k: expected a whole number)"},
      {R"({"k":"9"})", R"("k: expected a whole number)"},
      {R"({"exclude_seen":1})", R"("exclude_seen: expected true or false)"},
      {R"({"exclude_seen":true})", "exclude_seen needs the items of the user"},
      {R"({"where":7})", R"("where: expected a string)"},
      {R"({"where":"color = 'red'"})",
       "where: position 1: there is no column 'color'"},
      {R"({"where":"year = 'x'"})", "year"},
      {R"({"where":"year ="})", "where"},
      {R"({"exclude":"f1"})", "exclude: expected a list"},
      {R"({"exclude":[["f1"]]})", "exclude: expected a list of items"},
      {R"({"exclude":[3]})", "exclude.title: expected text"},
      {R"({"exclude":{"id":[3]}})", "exclude: unknown key 'id'"},
      {R"({"exclude":{"ids":["f1"]}})", "exclude.ids: expected an id"},
      {R"({"choose_from":["f1","f99"]})", "has no item \\\"f99\\\""},
      {R"({"choose_from":{"ids":[1152921504606846976]}})",
       "has no item 1152921504606846976"},
      {R"({"diversity":2})", R"("diversity: expected an object)"},
      {R"({"diversity":{"max_per_value":2}})", "missing key 'column'"},
      {R"({"diversity":{"column":"color"}})",
       R"("diversity: there is no column 'color')"},
      {R"({"diversity":{"column":""}})",
       R"("diversity: there is no column '')"},
      {R"({"diversity":{"column":"tags"}})", "'tags' has lists"},
      {R"({"diversity":{"column":"genre","max_per_value":0}})",
       "max_per_value >= 1"},
      {R"({"diversity":{"column":"genre","max_per_value":"2"}})",
       R"("diversity.max_per_value: expected a whole number)"},
      {R"({"show":"title"})", R"("show: expected a list)"},
      {R"({"show":["title","color"]})", "show: there is no column 'color'"},
      {R"({"show":["year","title","year"]})",
       "show: expected each column once, but 'year' is there twice"}};
  for (const auto& [body, text] : bodies) {
    SCOPED_TRACE(body);
    const HttpReply reply = post(body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_CONTAINS(reply.body, text);
    EXPECT_FALSE(reply.body.starts_with(R"({"error":"[)")) << reply.body;
  }
  EXPECT_EQ(answer(Json::object())["from"], "popularity");
}

TEST_F(RecommendServerTest, VersionsThatCanNotBeServedGive404) {
  publish(std::nullopt);
  start();
  EXPECT_EQ(version()["recommend"], Json());
  HttpReply reply = post("{}");
  EXPECT_EQ(reply.status, 404);
  EXPECT_CONTAINS(reply.body, "Publish it with PublishOptions::items");
  publish(programs());
  reader()->refresh();
  reply = post("{}");
  EXPECT_EQ(reply.status, 404);
  EXPECT_CONTAINS(reply.body, "Make it with a ProgramScorer");
}

Json ranked_body(int64_t user, int64_t k) {
  Json films = Json::array();
  for (int64_t film = 1; film < kFilms; film += 2) {
    films.push_back(film + kReserved);
  }
  return {
      {"user",
       {{"user", "u" + std::to_string(user)},
        {"columns", {{"age", age_of(user)}}},
        {"title", {"f3"}},
        {"genre", "crime"},
        {"country", "fr"}}},
      {"k", k},
      {"choose_from", {{"ids", films}}}};
}

TEST_F(RecommendServerTest, ProgramsGiveVectorsAndScores) {
  publish(programs());
  start({}, ProgramScorer(reader()));
  const Json recommend = version()["recommend"];
  EXPECT_EQ(
      recommend["user"], Json({"user", "title", "age", "genre", "country"}));
  EXPECT_EQ(recommend["ranked"], true);
  for (int64_t user = 0; user < kUsers; ++user) {
    for (const int64_t k : {5, 20}) {  // below and above num_candidates
      Json body = ranked_body(user, k);
      expect_list(answer(body), ranked_films(model_, user, k));
      body["diversity"] = {{"column", "genre"}, {"max_per_value", 1}};
      expect_list(answer(body), ranked_films(model_, user, k, 1));
    }
  }
}

TEST_F(RecommendServerTest, InputsOfProgramsThatAreMissingAreNamed) {
  publish(programs());
  start({}, ProgramScorer(reader()));
  HttpReply reply = post(R"({"user":{"user":"u1"}})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_CONTAINS(reply.body, "expected 'age' in user");
  Json body = ranked_body(3, 5);
  body["user"].erase("country");
  reply = post(body.dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_CONTAINS(
      reply.body, "the input 'taste' from the columns country, genre");
}

TEST_F(RecommendServerTest, UsersDoNotChangeAttributesOfItems) {
  publish(programs());
  start({}, ProgramScorer(reader()));
  Json body = ranked_body(3, 5);
  body["user"]["columns"]["year"] = 1920;
  const HttpReply reply = post(body.dump());
  EXPECT_EQ(reply.status, 400);
  EXPECT_CONTAINS(
      reply.body,
      "user: no input of a user is made from the column 'year'. The columns are user, title, age, genre, country.");
}

using Names = std::set<std::string>;

Names names_of(const std::vector<ScoreInput>& inputs) {
  Names names;
  for (const ScoreInput& input : inputs) {
    EXPECT_TRUE(names.insert(input.name).second) << input.name;
  }
  return names;
}

TEST_F(RecommendServerTest, ScoreFunctionsGetTheInputsThatTheyList) {
  publish(programs());
  ScoreRequest scored;
  const ScoreFunction score = [&](std::span<const ScoreRequest> requests) {
    scored = requests[0];
    const auto count = static_cast<size_t>(scored.num_candidates);
    return std::vector<ScoreResult>{
        {.version = 1, .scores = std::vector<float>(count)}};
  };
  ServerOptions options{
      .query =
          [](std::span<const ScoreRequest>) {
            return std::vector<ScoreResult>{
                {.version = 1, .scores = {1, 2, 3, 4}}};
          },
      .query_inputs =
          [] {
            return std::vector<ScoreInputInfo>{
                {.name = "user", .is_of_user = true},
                {.name = "genre", .is_of_user = true}};
          }};
  // The query takes the genre of a user, and the score function those of films.
  options.inputs = [] {
    return std::vector<ScoreInputInfo>{
        {.name = "user", .is_of_user = true},
        {.name = "likes", .is_of_user = true},
        {.name = "film"},
        {.name = "genre"},
        {.name = "taste"}};
  };
  Json body{
      {"user",
       {{"user", "u3"},
        {"title", {"f3"}},
        {"genre", "crime"},
        {"country", "fr"}}}};
  start(options, score);
  answer(body);
  EXPECT_EQ(names_of(scored.user), (Names{"user", "likes"}));
  EXPECT_EQ(names_of(scored.candidates), (Names{"film", "genre", "taste"}));

  // Without a list, it gets all that the pipeline makes.
  options.inputs = nullptr;
  start(options, score);
  body["user"]["columns"]["age"] = 45;
  answer(body);
  EXPECT_EQ(names_of(scored.user), (Names{"user", "genre", "age"}));
  EXPECT_EQ(
      names_of(scored.candidates),
      (Names{"film", "words", "year", "likes", "favorite", "taste"}));
}

TEST_F(RecommendServerTest, PopularItemsAreOfTheNewestVersion) {
  publish(programs());
  start({}, ProgramScorer(reader()));
  for (int64_t number = 1; number <= 3; ++number) {
    // Such users need no program.
    EXPECT_EQ(answer({{"k", 3}})["version"], number);
    publisher_->publish();
    reader_->refresh();
  }
}

TEST_F(RecommendServerTest, ItemsMayComeLater) {
  const PublishedItems items = programs();
  publish(std::nullopt, /*has_program=*/true);
  start({}, ProgramScorer(reader()));
  EXPECT_EQ(post("{}").status, 404);
  publish(items);
  reader_->refresh();
  EXPECT_EQ(answer({{"k", 3}})["version"], 2);
}

TEST_F(RecommendServerTest, AnswersAreOfOneVersion) {
  constexpr int64_t kVersions = 25;
  constexpr int64_t kClients = 3;
  const at::NoGradGuard no_grad;
  std::mutex mutex;  // guards `expected`
  std::map<int64_t, std::vector<Expected>> expected;
  const auto remember = [&](int64_t number) {
    model_->eval();
    const std::lock_guard lock(mutex);
    for (int64_t user = 0; user < kClients; ++user) {
      expected[number].push_back(ranked_films(model_, user, 4));
    }
  };
  remember(1);
  publish(programs());
  start({.threads = 2}, ProgramScorer(reader()));
  std::atomic<bool> stops = false;
  std::atomic<int64_t> refused = 0;
  std::array<std::map<int64_t, int64_t>, kClients> answers;  // by version
  std::vector<std::thread> clients;
  for (int64_t user = 0; user < kClients; ++user) {
    clients.emplace_back([&, user] {
      HttpClient client(server_->port());
      const std::string body = ranked_body(user, 4).dump();
      while (!stops) {
        const HttpReply reply = client.post("/recommend", body);
        if (reply.status == 503) {
          ++refused;
          continue;
        }
        ASSERT_EQ(reply.status, 200) << reply.body;
        const Json found = parse_json(reply.body);
        const std::lock_guard lock(mutex);
        expect_list(found, expected.at(found["version"])[user]);
        ++answers[user][found["version"]];
      }
    });
  }
  for (int64_t number = 2; number <= kVersions; ++number) {
    model_->query->weight.uniform_(-1, 1);
    for (at::Tensor& weight : model_->tower->parameters()) {
      weight.uniform_(-1, 1);
    }
    model_->embedding->update_embedding_table(
        "film", at::randn({kFilms + kReserved, kDim}));
    remember(number);
    publisher_->publish();
    reader_->refresh();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  stops = true;
  for (std::thread& client : clients) {
    client.join();
  }
  for (const auto& by_version : answers) {
    EXPECT_GE(std::ssize(by_version), kVersions / 2);
  }
  EXPECT_LE(refused, kVersions);
}

TEST_F(RecommendServerTest, ResultsOfTheQueryFunctionAreChecked) {
  publish(programs());
  int64_t calls = 0;
  ScoreResult result{.version = 1, .scores = {1, 2, 3, 4}};
  start(
      {.query =
           [&](std::span<const ScoreRequest> requests) {
             ++calls;
             return std::vector<ScoreResult>(requests.size(), result);
           },
       .query_inputs =
           [] {
             return std::vector<ScoreInputInfo>{
                 {.name = "user", .is_of_user = true}};
           }});
  const std::string body = R"({"user":{"user":"u1"},"k":3})";
  EXPECT_EQ(post(body).status, 200);
  EXPECT_EQ(post(R"({"user":{"title":["f1"]}})").status, 200);
  EXPECT_EQ(calls, 1);  // the second user has a fold-in
  result.scores = {1, 2, 3};
  EXPECT_EQ(post(body).status, 500);
  result.scores = {1, 2, 3, NAN};
  EXPECT_EQ(post(body).status, 500);
  result.error = "no such user";
  HttpReply reply = post(body);
  EXPECT_EQ(reply.status, 400);
  EXPECT_CONTAINS(reply.body, "no such user");
  calls = 0;
  result = {.version = 2, .scores = {1, 2, 3, 4}};
  reply = post(body);
  EXPECT_EQ(reply.status, 503);
  EXPECT_CONTAINS(reply.body, "New versions arrived during the request");
  EXPECT_EQ(calls, 3);
  // A newer version refuses the request. The next attempt would ask it again.
  result.error = "no such user";
  EXPECT_EQ(post(body).status, 503);
  EXPECT_EQ(calls, 6);
  result.version = 0;
  EXPECT_CONTAINS(post(body).body, "no such user");
  result.error = "";
  // So that this line is not one of many within a second, which are skipped.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(post(body).status, 500);
  EXPECT_CONTAINS(
      ::testing::internal::GetCapturedStderr(),
      "gave results of version 0. Set ScoreResult::version");
  result.version = 2;
  calls = 3;

  // Users with a row have no need of the query.
  PublishedItems items = programs();
  items.users = [this] { return users_; };
  publish(items);
  reader()->refresh();
  EXPECT_EQ(post(body).status, 200);
  EXPECT_EQ(calls, 3);

  // A user who came later has none.
  items.users = [this] { return users_.narrow(0, 0, kReserved); };
  publish(items);
  reader()->refresh();
  result.version = 3;
  EXPECT_EQ(post(body).status, 200);
  EXPECT_EQ(calls, 4);
}

TEST_F(RecommendServerTest, WaitingRequestsAreSearchedTogether) {
  publish(rows());
  std::promise<void> started;
  std::promise<void> goes_on;
  start({}, ScoreFunction([&](std::span<const ScoreRequest> requests) {
          started.set_value();
          goes_on.get_future().wait();
          return std::vector<ScoreResult>(
              requests.size(), {.version = 1, .scores = {0}});
        }));
  HttpClient slow(server_->port());
  slow.send(
      HttpClient::post_text("/score", R"({"candidates":{"title":["f1"]}})"));
  started.get_future().wait();
  // The only thread is busy, so these wait.
  std::vector<HttpClient> clients;
  for (int64_t i = 0; i < 10; ++i) {
    clients.emplace_back(server_->port());
    clients.back().send(HttpClient::post_text(
        "/recommend",
        i == 4 ? R"({"k":0})" : R"({"k":)" + std::to_string(i + 1) + "}"));
  }
  while (HttpClient(server_->port())
             .get("/metrics")
             .body.find("tessera_queue_length 10") == std::string::npos) {
  }
  goes_on.set_value();
  EXPECT_EQ(slow.read().status, 200);
  for (int64_t i = 0; i < 10; ++i) {
    const HttpReply reply = clients[i].read();
    EXPECT_EQ(reply.status, i == 4 ? 400 : 200) << reply.body;
    if (i != 4) {
      EXPECT_EQ(parse_json(reply.body)["ids"].size(), i + 1);
    }
  }
  const std::string metrics = HttpClient(server_->port()).get("/metrics").body;
  EXPECT_CONTAINS(metrics, "tessera_batch_requests_count 2\n");
  EXPECT_CONTAINS(metrics, "tessera_batch_requests_sum 10\n");
  EXPECT_CONTAINS(metrics, "tessera_items_total 50\n");
  EXPECT_CONTAINS(
      metrics, R"(tessera_requests_total{path="/recommend",code="200"} 9)");
}

}  // namespace tessera::serving::recommend_server_test
