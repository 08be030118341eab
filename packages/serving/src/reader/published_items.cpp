// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/reader/published_items.h"

#include <tessera/common/json_text.h>
#include <tessera/common/json_value.h>

#include "src/common/check.h"
#include "src/features/id_rule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

namespace tessera::serving {

namespace {

// What messages about requests begin with. Clients of a server do not see it.
constexpr const char* kRecommend = "[Version::recommend]";

void expect(bool is_valid, const std::string& where, const char* what) {
  TESSERA_CHECK_VALUE(
      is_valid,
      "{} the {} of the items to recommend do not fit together. The version is damaged, or not of a Publisher.",
      where,
      what);
}

std::span<const int64_t> integers_in(
    std::string_view bytes,
    const std::string& where) {
  expect(bytes.size() % sizeof(int64_t) == 0, where, "files");
  return {
      reinterpret_cast<const int64_t*>(bytes.data()),
      bytes.size() / sizeof(int64_t)};
}

// Copies rows as floats. The row numbers must be below the number of rows.
std::vector<float> rows_of(
    const PublishedTable& table,
    std::span<const int64_t> numbers) {
  const std::vector<uint32_t> rows(numbers.begin(), numbers.end());
  std::vector<float> floats(
      rows.size() * static_cast<size_t>(table.file().dim));
  table.combine(
      {.rows = rows.data(), .nnz = std::ssize(rows), .bags = std::ssize(rows)},
      floats.data());
  return floats;
}

// Solves matrix x = b in place, for a symmetric matrix [dim, dim] whose eigenvalues are
// positive, by Cholesky's method. Returns false if they are not.
bool solve_symmetric(std::vector<double>& matrix, std::vector<double>& b) {
  const size_t dim = b.size();
  const auto at = [&](size_t i, size_t j) -> double& {
    return matrix[i * dim + j];
  };
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j <= i; ++j) {
      double sum = at(i, j);
      for (size_t k = 0; k < j; ++k) {
        sum -= at(i, k) * at(j, k);
      }
      if (i == j && !(sum > 0.0)) {
        return false;
      }
      at(i, j) = i == j ? std::sqrt(sum) : sum / at(j, j);
    }
    for (size_t k = 0; k < i; ++k) {
      b[i] -= at(i, k) * b[k];
    }
    b[i] /= at(i, i);
  }
  for (size_t i = dim; i-- > 0;) {
    for (size_t k = i + 1; k < dim; ++k) {
      b[i] -= at(k, i) * b[k];
    }
    b[i] /= at(i, i);
  }
  return true;
}

}  // namespace

BaseItems::BaseItems(
    const std::function<std::string_view(const char* name)>& read,
    const std::string& where)
    : file(read_fields<ItemsFile>(
          parse_json(read(kItems), where),
          where.substr(1, where.find(']') - 1))),
      ids(integers_in(read(kItemIds), where)),
      attributes(
          read(kItemAttributes).empty()
              ? ItemAttributes()
              : ItemAttributes(read(kItemAttributes), where)),
      catalogue(ids, attributes) {
  expect(
      !ids.empty() && ids.front() >= 0 &&
          std::ranges::adjacent_find(ids, std::greater_equal()) == ids.end() &&
          file.num_candidates >= 0,
      where,
      "ids");
  const auto seen = integers_in(read(kSeenItems), where);
  if (!seen.empty()) {
    const int64_t num_users = seen.front();
    expect(num_users >= 0 && num_users < std::ssize(seen) - 1, where, "users");
    seen_splits = seen.subspan(1, static_cast<size_t>(num_users) + 1);
    seen_ids = seen.subspan(seen_splits.size() + 1);
    expect(
        are_row_splits(seen_splits.data(), num_users, std::ssize(seen_ids)),
        where,
        "users");
  }
}

std::span<const int64_t> BaseItems::seen(int64_t user) const {
  if (user < 0 || user + 1 >= std::ssize(seen_splits)) {
    return {};
  }
  const auto splits = seen_splits.subspan(user, 2);
  return seen_ids.subspan(splits[0], splits[1] - splits[0]);
}

ItemSearch::ItemSearch(
    std::shared_ptr<const BaseItems> items,
    const std::vector<PublishedTable>& tables,
    const std::string& where)
    : items_(std::move(items)) {
  const auto find = [&](const char* name,
                        std::optional<int64_t> dim,
                        std::optional<int64_t> rows) -> const PublishedTable* {
    const auto found = std::ranges::find_if(
        tables, [&](const auto& table) { return table.file().name == name; });
    if (found == tables.end()) {
      return nullptr;
    }
    const TableFile& file = found->file();
    expect(
        !file.keys && !file.rounded_to && file.dim == dim.value_or(file.dim) &&
            file.vocabulary_size == rows.value_or(file.vocabulary_size),
        where,
        "tables");
    return &*found;
  };
  const int64_t size = items_->catalogue.size();
  vectors_ = find(kItemVectors, std::nullopt, size);
  expect(vectors_ != nullptr, where, "vectors");
  exact_vectors_ = find(kExactVectors, dim(), size);
  popularity_ = find(kPopularity, 1, size);
  users_ = find(kUserVectors, dim(), std::nullopt);
  products_ = find(kItemProducts, 2 * dim(), dim());
  const auto& fold_in = items_->file.fold_in;
  expect(
      products_ != nullptr || !fold_in ||
          !(fold_in->catalogue_confidence > 0.0),
      where,
      "tables");
}

bool ItemSearch::has_row(const RecommendRequest& request) const {
  return users_ != nullptr && request.user &&
      *request.user < users_->file().vocabulary_size;
}

RecommendedFrom ItemSearch::from_of(
    const RecommendRequest& request,
    bool has_program) const {
  const bool has_vector = has_program || has_row(request);
  const bool is_known = has_vector && request.user &&
      *request.user >= items_->file.num_reserved_users;
  const bool has_items =
      request.items && std::ranges::any_of(*request.items, [&](int64_t id) {
        return id >= items_->file.num_reserved_items;
      });
  const bool suits_query =
      request.user ? is_known : !request.items || has_items;
  if (!request.vector.empty()) {
    return RecommendedFrom::kQuery;
  }
  if (!is_known && items_->file.fold_in && request.items &&
      !items_->catalogue.rows_of(*request.items).empty()) {
    return RecommendedFrom::kFoldIn;
  }
  return suits_query && has_vector ? RecommendedFrom::kQuery
                                   : RecommendedFrom::kPopularity;
}

ItemSearch::Query ItemSearch::prepare(
    RecommendRequest request,
    const std::function<std::vector<float>()>& program) const {
  const ItemCatalogue& catalogue = items_->catalogue;
  Query query{.request = std::move(request)};
  RecommendRequest& given = query.request;
  catalogue.check_k(given.k, kRecommend);
  TESSERA_CHECK_VALUE(
      !given.user || *given.user >= 0,
      "[Version::recommend] user must be >= 0, but is {}. Correct the id.",
      *given.user);
  TESSERA_CHECK_VALUE(
      !given.exclude_seen || given.items ||
          (given.user && items_->has_history()),
      "[Version::recommend] exclude_seen needs the items of the user, or a user and a version that has the items of users. Send the items as '{}'.",
      items_->file.user_items);
  query.choice = {
      .k = given.k,
      .allowed = catalogue.allowed(given.where, given.choose_from, kRecommend),
      .max_per_value = given.max_per_value};
  if (!given.diverse_column.empty()) {
    query.choice.diverse = &catalogue.diverse_column(
        given.diverse_column, given.max_per_value, kRecommend);
  }
  std::vector<int64_t> excluded = given.exclude;
  if (given.exclude_seen) {
    const std::span<const int64_t> seen = items_->seen(given.user.value_or(-1));
    query.has_history = !seen.empty();
    excluded.insert(excluded.end(), seen.begin(), seen.end());
    if (given.items) {
      excluded.insert(excluded.end(), given.items->begin(), given.items->end());
    }
  }
  query.excluded = catalogue.rows_of(excluded);
  std::ranges::sort(query.excluded);
  query.from = from_of(given, program != nullptr);
  if (query.from == RecommendedFrom::kQuery && given.vector.empty() &&
      !has_row(given)) {
    given.vector = program();
  }
  query.vector = vector_of(query);
  return query;
}

std::vector<float> ItemSearch::vector_of(const Query& query) const {
  const RecommendRequest& request = query.request;
  if (query.from == RecommendedFrom::kPopularity) {
    TESSERA_CHECK_VALUE(
        popularity_ != nullptr,
        "[Version::recommend] nothing is known about the user, and the version has no popularity of items. Send a known user or items that the model has.");
    return {};
  }
  std::vector<float> vector = query.from == RecommendedFrom::kFoldIn
      ? solve(items_->catalogue.rows_of(*request.items))
      : request.vector.empty() ? rows_of(*users_, std::array{*request.user})
                               : request.vector;
  TESSERA_CHECK_VALUE(
      std::ssize(vector) == dim(),
      "[Version::recommend] the vector of the user must have {} numbers, but has {}. Correct it.",
      dim(),
      vector.size());
  TESSERA_CHECK_VALUE(
      std::ranges::all_of(
          vector, [](float number) { return std::isfinite(number); }),
      "[Version::recommend] the vector of the user has NaN or infinity, which have no order. Correct it.");
  if (items_->file.is_cosine) {
    double squares = 0.0;
    for (const double number : vector) {
      squares += number * number;
    }
    constexpr double kMinLength = 1e-12;  // as the vectors of items
    const double length = std::max(std::sqrt(squares), kMinLength);
    for (float& number : vector) {
      number = static_cast<float>(number / length);
    }
  }
  return vector;
}

// The vector u that minimizes what FoldIn does, with targets and confidences of 1:
// sum over items (1 - u v)^2 + confidence * sum over all others (u v)^2 + penalty |u|^2.
std::vector<float> ItemSearch::solve(std::vector<int64_t> rows) const {
  std::ranges::sort(rows);
  const FoldInFile& options = *items_->file.fold_in;
  const auto size = static_cast<size_t>(dim());
  std::vector<double> matrix(size * size);
  if (products_ != nullptr) {
    std::vector<int64_t> all(size);
    std::iota(all.begin(), all.end(), int64_t{0});
    const std::vector<float> products = rows_of(*products_, all);
    for (size_t i = 0; i < size * size; ++i) {
      // Each row has the numbers, and then what float32 leaves of them.
      const float* number = products.data() + i / size * 2 * size + i % size;
      matrix[i] =
          options.catalogue_confidence * (number[0] + double{number[size]});
    }
  }
  const std::vector<float> vectors =
      rows_of(exact_vectors_ != nullptr ? *exact_vectors_ : *vectors_, rows);
  std::vector<double> solved(size);
  for (size_t item = 0; item < rows.size(); ++item) {
    const float* vector = vectors.data() + item * size;
    // An item that is there twice has two terms, but is only once among all items.
    const bool is_first = item == 0 || rows[item] != rows[item - 1];
    const double weight = is_first ? 1.0 - options.catalogue_confidence : 1.0;
    for (size_t i = 0; i < size; ++i) {
      solved[i] += vector[i];
      for (size_t j = 0; j < size; ++j) {
        matrix[i * size + j] += weight * vector[i] * double{vector[j]};
      }
    }
  }
  for (size_t i = 0; i < size; ++i) {
    matrix[i * size + i] += options.regularization +
        options.regularization_per_item * static_cast<double>(rows.size());
  }
  TESSERA_CHECK(
      solve_symmetric(matrix, solved),
      "the published fold_in.regularization is too small for the vectors of the items");
  return {solved.begin(), solved.end()};
}

std::vector<std::vector<ScoredRow>> ItemSearch::search(
    std::span<const Query> queries,
    int64_t count) const {
  const int64_t size = items_->catalogue.size();
  const float one = 1.0F;  // gives the popularity as the score
  std::vector<std::vector<ScoredRow>> found(queries.size());
  const auto search_in = [&](const PublishedTable* table,
                             const PublishedTable* exact,
                             bool is_popularity) {
    std::vector<ScanRequest> requests;
    std::vector<size_t> places;
    for (size_t i = 0; i < queries.size(); ++i) {
      const Query& query = queries[i];
      if (query.vector.empty() == is_popularity) {
        places.push_back(i);
        requests.push_back(
            {.vector = is_popularity ? &one : query.vector.data(),
             .k = std::min(std::max(count, query.choice.num_searched()), size),
             .allowed = query.choice.allowed.get(),
             .excluded = query.excluded});
      }
    }
    if (requests.empty()) {
      return;
    }
    auto rows = scan(
        {.dim = table->file().dim,
         .rows = table->memory(),
         .exact_rows = exact == nullptr ? RowMemory() : exact->memory(),
         .num_rows = size},
        requests);
    for (size_t i = 0; i < rows.size(); ++i) {
      found[places[i]] = std::move(rows[i]);
    }
  };
  search_in(vectors_, exact_vectors_, /*is_popularity=*/false);
  search_in(popularity_, nullptr, /*is_popularity=*/true);
  return found;
}

RecommendResult ItemSearch::result(
    const Query& query,
    std::vector<ScoredRow> rows,
    bool is_final) const {
  const ItemCatalogue& catalogue = items_->catalogue;
  const auto search_more = [&](int64_t count, const RowSet& allowed) {
    Query rest = query;
    rest.choice.allowed = std::make_shared<const RowSet>(allowed);
    return search(std::span(&rest, 1), count).front();
  };
  const RowSet* allowed = query.choice.allowed.get();
  RecommendResult result{
      .from = query.from,
      .passed = allowed == nullptr ? catalogue.size() : allowed->count(),
      .has_history = query.has_history};
  for (const ScoredRow& row : catalogue.choose(
           query.choice,
           std::move(rows),
           is_final ? ItemCatalogue::Search() : search_more)) {
    result.ids.push_back(catalogue.id_of(row.number));
    result.scores.push_back(row.score);
  }
  return result;
}

}  // namespace tessera::serving
