// SPDX-License-Identifier: Apache-2.0
#include <tessera/search/recommender.h>

#include <tessera/common/shorten.h>

#include "layers/mode_guard.h"
#include "packages/search/src/given_items.h"
#include "packages/search/src/scan/item_catalogue.h"
#include "packages/search/src/scan/row_scan.h"
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/parallel.h"
#include "src/common/tensor_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <variant>

namespace tessera {

namespace {

constexpr const char* kRecommend = "[Recommender::recommend]";

// The items of the model as it was at the last refresh().
struct ModelItems {
  ModelItems(SortedItems items, const ItemAttributes& attributes)
      : sorted(std::move(items)), catalogue(sorted.ids, attributes) {
    if (!sorted.popularity.defined()) {
      return;
    }
    // In its own dtype, because float32 has no integers beyond 2^24.
    const at::Tensor order = sorted.popularity.argsort(
        /*stable=*/true, /*dim=*/0, /*descending=*/true);
    const at::Tensor scores = sorted.popularity.to(at::kFloat).contiguous();
    for (const int64_t row : integers_of(order, "the order")) {
      by_popularity.push_back(
          {.number = row, .score = scores.const_data_ptr<float>()[row]});
    }
  }

  SortedItems sorted;
  ItemCatalogue catalogue;
  std::vector<ScoredRow> by_popularity = {};  // [items], or empty
};

// A user of the request, with the items that the user must not get.
struct User {
  int64_t id = 0;
  bool is_known = false;
  bool has_items = false;  // perhaps none of the model's
  std::vector<int64_t> items = {};  // rows, in the order of the history
  std::vector<int64_t> seen = {};  // the same, by RecommenderOptions::seen
  RecommendedFrom from = RecommendedFrom::kQuery;
  std::vector<int64_t> excluded = {};  // rows, ascending
};

struct Request {
  std::shared_ptr<const ModelItems> items;
  const RecommendOptions& options;
  const data::PipelineBatch& batch;
  std::vector<User> users = {};
  ItemChoice choice = {};
  at::Tensor vectors = {};  // [users, dim] float32
  bool has_scores = false;  // `vectors` are the scores [users, items]
};

std::vector<int64_t> users_from(const Request& request, RecommendedFrom from) {
  std::vector<int64_t> users;
  for (size_t user = 0; user < request.users.size(); ++user) {
    if (request.users[user].from == from) {
      users.push_back(static_cast<int64_t>(user));
    }
  }
  return users;
}

// The most popular of the allowed rows, as many as are searched.
std::vector<ScoredRow> most_popular(
    const Request& request,
    int64_t user,
    const RowSet* allowed) {
  std::vector<ScoredRow> first;
  for (const ScoredRow& row : request.items->by_popularity) {
    if (std::ssize(first) == request.choice.num_searched()) {
      break;
    }
    if ((allowed == nullptr || allowed->contains(row.number)) &&
        !std::ranges::binary_search(request.users[user].excluded, row.number)) {
      first.push_back(row);
    }
  }
  return first;
}

// The best k rows of each of the users by their vectors.
std::vector<std::vector<ScoredRow>> search(
    const Request& request,
    std::span<const int64_t> users,
    int64_t k,
    const RowSet* allowed) {
  std::vector<std::vector<ScoredRow>> found;
  if (request.has_scores && users.size() != 1) {
    for (const int64_t& user : users) {
      found.push_back(search(request, std::span(&user, 1), k, allowed).front());
    }
    return found;
  }
  // The scores of a user are scanned as vectors of one number, times 1.
  constexpr float kOne = 1.0F;
  const at::Tensor& vectors = request.items->sorted.vectors;
  const auto* queries = request.vectors.const_data_ptr<float>();
  const ScanRows rows{
      .dim = vectors.size(1),
      .rows =
          {.first = request.has_scores ? queries + users[0] * vectors.size(0)
                                       : vectors.const_data_ptr()},
      .num_rows = vectors.size(0)};
  std::vector<ScanRequest> requests;
  for (const int64_t user : users) {
    requests.push_back(
        {.vector = request.has_scores ? &kOne : queries + user * rows.dim,
         .k = std::min(k, rows.num_rows),
         .allowed = allowed,
         .excluded = request.users[user].excluded});
  }
  const auto bytes = static_cast<int64_t>(vectors.nbytes());
  return scan(
      rows,
      requests,
      {.num_threads = thread_count(),
       .run_tasks = [&](int64_t count,
                        const std::function<void(int64_t)>& task) {
         run_tasks(count, bytes, task);
       }});
}

}  // namespace

class Recommender::Impl {
  // Calls a function that uses the model. The first of several threads puts the model into
  // eval(), and the last one restores its modes.
  template <class Function, class... Args>
  auto evaluate(const Function& function, const Args&... args) const {
    const at::NoGradGuard no_grad;
    {
      const std::lock_guard lock(mutex_);
      if (num_evaluations_++ == 0 && model_ != nullptr) {
        modes_.emplace(*model_).eval();
      }
    }
    const auto restore = c10::make_scope_exit([&] {
      const std::lock_guard lock(mutex_);
      if (--num_evaluations_ == 0) {
        modes_.reset();
      }
    });
    return function(args...);
  }

 public:
  Impl(training::ModelPointer model, RecommenderOptions options)
      : model_(std::move(model)), options_(std::move(options)) {
    TESSERA_CHECK_VALUE(
        options_.items &&
            (options_.scores || (model_ != nullptr && options_.query)),
        "[Recommender] expected a model, options.items and options.query, but {} is empty. Set it, or options.scores in place of the model and the query.",
        !options_.items         ? "options.items"
            : model_ == nullptr ? "the model"
                                : "options.query");
    TESSERA_CHECK_VALUE(
        !options_.scores ||
            (!options_.query && !options_.fold_in &&
             options_.score == ItemScore::kDot),
        "[Recommender] options.scores stands in place of query, fold_in and ItemScore::kCosine. Leave these out.");
    TESSERA_CHECK_VALUE(
        options_.num_candidates >= 1,
        "[Recommender] num_candidates must be >= 1, but is {}. Set it to some hundreds.",
        options_.num_candidates);
    if (options_.pipeline) {
      for (const data::PipelineOutput& output : options_.pipeline->outputs()) {
        columns_.insert(output.columns.begin(), output.columns.end());
      }
    }
    given_.emplace(
        "[Recommender]", options_.pipeline, options_.user, options_.item);
    const data::Columns attributes = std::exchange(options_.attributes, {});
    if (!attributes.entries().empty()) {
      attribute_bytes_ = given_->attributes(attributes);
      attributes_ = ItemAttributes(attribute_bytes_, "[Recommender]");
    }
    refresh();
  }

  void refresh() {
    const std::lock_guard lock(refresh_mutex_);
    RecommenderItems given = evaluate(options_.items);
    if (options_.scores) {
      const at::Tensor& list =
          given.ids.defined() ? given.ids : given.popularity;
      TESSERA_CHECK_VALUE(
          !given.vectors.defined() && list.defined(),
          "[Recommender] with options.scores, options.items must give ids or popularity, and no vectors. Correct the function.");
      given.vectors = at::zeros({list.numel(), 1});  // the scores replace them
    }
    auto items = std::make_shared<const ModelItems>(
        given_->sort(given, options_.score), attributes_);
    if (!attribute_bytes_.empty()) {
      given_->check_attributes(attributes_, items->sorted.ids);
    }
    const std::lock_guard items_lock(mutex_);
    items_ = std::move(items);
  }

  Recommendations recommend(
      const data::Columns& columns,
      const RecommendOptions& options) const {
    TESSERA_CHECK_VALUE(
        options_.pipeline.has_value(),
        "[Recommender::recommend] raw values need RecommenderOptions::pipeline, which is empty. Set it, or pass features.");
    for (const auto& [name, column] : columns.entries()) {
      TESSERA_CHECK_VALUE(
          columns_.contains(name),
          "[Recommender::recommend] the pipeline has no column '{}'. Known: {}. Correct the name, or leave the column out.",
          shorten(name),
          join_names(columns_));
    }
    return recommend(options_.pipeline->apply_present(columns), options);
  }

  Recommendations recommend(
      const data::PipelineBatch& batch,
      const RecommendOptions& options) const {
    Request request{
        .items = items(),
        .options = options,
        .batch = batch,
        .has_scores = static_cast<bool>(options_.scores)};
    const ItemCatalogue& catalogue = request.items->catalogue;
    catalogue.check_k(options.k, kRecommend);
    request.users = read_users(batch, catalogue, options);
    request.choice = {
        .k = options.k,
        .allowed =
            catalogue.allowed(options.where, options.choose_from, kRecommend)};
    if (const auto& diversity = options.diversity) {
      request.choice.diverse = &catalogue.diverse_column(
          diversity->column, diversity->max_per_value, kRecommend);
      request.choice.max_per_value = diversity->max_per_value;
    }
    request.vectors = query_vectors(request);
    return result_of(request, best_items(request));
  }

 private:
  std::shared_ptr<const ModelItems> items() const {
    const std::lock_guard lock(mutex_);
    return items_;
  }

  std::vector<User> read_users(
      const data::PipelineBatch& batch,
      const ItemCatalogue& catalogue,
      const RecommendOptions& options) const {
    const int64_t num_reserved_users = given_->num_reserved_users();
    const int64_t count = num_users(batch, kRecommend);
    std::vector<User> users(static_cast<size_t>(count));
    const bool has_ids = batch.features.contains(options_.user);
    if (has_ids) {
      const Feature& feature = batch.features.at(options_.user).leaf();
      const std::string what = feature_place(kRecommend, options_.user);
      TESSERA_CHECK_VALUE(
          std::holds_alternative<at::Tensor>(feature),
          "{} must have one id per user, but is ragged. Pass single values.",
          what);
      const auto ids = integers_of(std::get<at::Tensor>(feature), what);
      for (size_t user = 0; user < users.size(); ++user) {
        users[user].id = ids[user];
        TESSERA_CHECK_VALUE(
            ids[user] >= 0 || num_reserved_users == 0,
            "{} has the id {}, but ids of the pipeline are >= 0. Correct it.",
            what,
            ids[user]);
        users[user].is_known =
            ids[user] >= num_reserved_users || num_reserved_users == 0;
      }
    }
    const bool has_items = batch.features.contains(options_.item);
    if (has_items) {
      const Feature& feature = batch.features.at(options_.item).leaf();
      const std::string what = feature_place(kRecommend, options_.item);
      TESSERA_CHECK_VALUE(
          std::holds_alternative<RaggedFeature>(feature),
          "{} must be ragged, because it has the items of each user, but is dense. Pass lists.",
          what);
      const ItemBags bags =
          bags_of(std::get<RaggedFeature>(feature), count, what);
      for (int64_t user = 0; user < count; ++user) {
        users[user].items = catalogue.rows_of(bags.of(user));
        users[user].has_items = std::ranges::any_of(
            bags.of(user),
            [&](int64_t id) { return id >= given_->num_reserved_items(); });
      }
    }
    if (options_.seen && (options.exclude_seen || options_.scores)) {
      read_seen(users, catalogue);
    }
    for (User& user : users) {
      if (options_.scores && user.items.empty()) {
        user.items = user.seen;
      }
      const bool suits_query = !options_.scores &&
          (has_ids ? user.is_known : !has_items || user.has_items);
      const bool suits_fold_in = !user.items.empty() &&
          (options_.scores || (!user.is_known && options_.fold_in));
      user.from = suits_fold_in ? RecommendedFrom::kFoldIn
          : suits_query         ? RecommendedFrom::kQuery
                                : RecommendedFrom::kPopularity;
      auto& excluded = user.excluded;
      excluded = catalogue.rows_of(options.exclude);
      if (options.exclude_seen) {
        excluded.insert(excluded.end(), user.items.begin(), user.items.end());
        excluded.insert(excluded.end(), user.seen.begin(), user.seen.end());
      }
      std::ranges::sort(excluded);
    }
    TESSERA_CHECK_VALUE(
        !options.exclude_seen || has_items ||
            (has_ids && options_.seen != nullptr),
        "[Recommender::recommend] exclude_seen needs the items of users as the feature '{}', or RecommenderOptions::seen and the feature '{}'. Pass one of them.",
        shorten(options_.item),
        shorten(options_.user));
    return users;
  }

  // Asks for what the known users have seen.
  void read_seen(std::vector<User>& users, const ItemCatalogue& catalogue)
      const {
    std::vector<int64_t> known;
    for (const User& user : users) {
      if (user.is_known) {
        known.push_back(user.id);
      }
    }
    if (known.empty()) {
      return;
    }
    const ItemBags seen = bags_of(
        options_.seen(at::tensor(known, at::kLong)),
        std::ssize(known),
        "[Recommender::recommend] the result of options.seen");
    int64_t next = 0;
    for (User& user : users) {
      if (user.is_known) {
        user.seen = catalogue.rows_of(seen.of(next++));
      }
    }
  }

  at::Tensor query_vectors(const Request& request) const {
    const SortedItems& items = request.items->sorted;
    const int64_t dim =
        request.has_scores ? items.num_given : items.vectors.size(1);
    at::Tensor vectors =
        at::zeros({std::ssize(request.users), dim}, at::kFloat);
    const auto add = [&](RecommendedFrom from, auto compute) {
      const std::vector<int64_t> users = users_from(request, from);
      if (!users.empty()) {
        vectors.index_copy_(
            0,
            at::tensor(users, at::kLong),
            checked_vectors(
                compute(users),
                request.has_scores ? "[Recommender::recommend] options.scores"
                    : from == RecommendedFrom::kQuery
                    ? "[Recommender::recommend] options.query"
                    : "[Recommender::recommend] options.fold_in",
                std::ssize(users),
                dim,
                options_.score));
      }
    };
    add(RecommendedFrom::kQuery, [&](const std::vector<int64_t>& users) {
      return evaluate(
          options_.query,
          users.size() == request.users.size()
              ? request.batch
              : select_users(request.batch, users, kRecommend));
    });
    add(RecommendedFrom::kFoldIn, [&](const std::vector<int64_t>& users) {
      ItemBags rows{.splits = {0}};
      for (const int64_t user : users) {
        for (const int64_t row : request.users[user].items) {
          rows.ids.push_back(items.given_rows[row]);
        }
        rows.splits.push_back(std::ssize(rows.ids));
      }
      return evaluate(
          request.has_scores ? options_.scores : options_.fold_in,
          ragged_of(rows));
    });
    return request.has_scores
        ? vectors.index_select(1, at::tensor(items.given_rows, at::kLong))
        : vectors;
  }

  std::vector<std::vector<ScoredRow>> best_items(const Request& request) const {
    const ItemCatalogue& catalogue = request.items->catalogue;
    const ItemChoice& choice = request.choice;
    const int64_t count = options_.ranker
        ? std::max(choice.k, options_.num_candidates)
        : choice.num_searched();
    std::vector<std::vector<ScoredRow>> found(request.users.size());
    std::vector<int64_t> users = users_from(request, RecommendedFrom::kQuery);
    const auto folded = users_from(request, RecommendedFrom::kFoldIn);
    users.insert(users.end(), folded.begin(), folded.end());
    auto rows = search(request, users, count, choice.allowed.get());
    for (size_t i = 0; i < users.size(); ++i) {
      const int64_t user = users[i];
      if (options_.ranker) {
        rank(request, user, rows[i]);
      }
      const auto search_more = [&](int64_t size, const RowSet& allowed) {
        return search(request, std::span(&user, 1), size, &allowed).front();
      };
      found[user] = catalogue.choose(
          choice,
          std::move(rows[i]),
          options_.ranker ? ItemCatalogue::Search() : search_more);
    }
    for (const int64_t user :
         users_from(request, RecommendedFrom::kPopularity)) {
      TESSERA_CHECK_VALUE(
          !request.items->by_popularity.empty(),
          "[Recommender::recommend] user {} of the batch is unknown and has no items, and the items have no popularity. Set RecommenderItems::popularity, or leave the user out.",
          user);
      found[user] = catalogue.choose(
          choice,
          most_popular(request, user, choice.allowed.get()),
          [&](int64_t /*count*/, const RowSet& allowed) {
            return most_popular(request, user, &allowed);
          });
    }
    return found;
  }

  // Replaces the scores by those of the ranker, and sorts by them.
  void rank(const Request& request, int64_t user, std::vector<ScoredRow>& rows)
      const {
    if (rows.empty()) {
      return;
    }
    std::vector<int64_t> ids;
    for (const ScoredRow& row : rows) {
      ids.push_back(request.items->catalogue.id_of(row.number));
    }
    const at::Tensor scores = evaluate(
        options_.ranker,
        select_users(request.batch, {user}, kRecommend),
        at::tensor(ids, at::kLong));
    TESSERA_CHECK_VALUE(
        scores.defined() && scores.dim() == 1 &&
            scores.size(0) == std::ssize(ids) && scores.is_floating_point() &&
            scores.isfinite().all().item<bool>(),
        "[Recommender::recommend] options.ranker must give one finite score per item, floats [{}], but got {}. Correct the function.",
        ids.size(),
        describe(scores));
    const at::Tensor floats = scores.detach().to(at::kFloat).contiguous();
    sort_by({floats.const_data_ptr<float>(), rows.size()}, rows);
  }

  Recommendations result_of(
      const Request& request,
      const std::vector<std::vector<ScoredRow>>& found) const {
    const std::vector<int64_t> shape{std::ssize(found), request.options.k};
    Recommendations result{
        .ids = at::full(shape, -1, at::kLong),
        .scores = at::full(
            shape, -std::numeric_limits<float>::infinity(), at::kFloat),
        .passed = request.choice.allowed == nullptr
            ? request.items->catalogue.size()
            : request.choice.allowed->count()};
    std::vector<int64_t> ids;
    for (size_t user = 0; user < found.size(); ++user) {
      const int64_t begin = static_cast<int64_t>(user) * request.options.k;
      for (size_t i = 0; i < found[user].size(); ++i) {
        const int64_t place = begin + static_cast<int64_t>(i);
        ids.push_back(request.items->catalogue.id_of(found[user][i].number));
        result.ids.mutable_data_ptr<int64_t>()[place] = ids.back();
        result.scores.mutable_data_ptr<float>()[place] = found[user][i].score;
      }
      result.from.push_back(request.users[user].from);
    }
    if (given_->has_texts()) {
      const auto texts =
          options_.pipeline->to_text(options_.item, at::tensor(ids, at::kLong));
      auto next = texts.begin();
      for (const std::vector<ScoredRow>& rows : found) {
        result.texts.emplace_back(next, next + std::ssize(rows));
        next += std::ssize(rows);
      }
    }
    return result;
  }

  training::ModelPointer model_;
  RecommenderOptions options_;
  std::set<std::string> columns_;  // of the pipeline
  std::optional<GivenItems> given_;
  std::string attribute_bytes_;
  ItemAttributes attributes_;  // views of attribute_bytes_
  std::mutex refresh_mutex_;  // one refresh() at a time
  mutable std::mutex mutex_;  // guards the members below
  std::shared_ptr<const ModelItems> items_;
  mutable int64_t num_evaluations_ = 0;
  mutable std::optional<ModeGuard> modes_;
};

Recommender::Recommender(
    training::ModelPointer model,
    RecommenderOptions options)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(options))) {}

Recommender::~Recommender() = default;

void Recommender::refresh() {
  impl_->refresh();
}

Recommendations Recommender::recommend(
    const Features& users,
    const RecommendOptions& options) const {
  return impl_->recommend(data::PipelineBatch{.features = users}, options);
}

Recommendations Recommender::recommend(
    const data::Columns& users,
    const RecommendOptions& options) const {
  return impl_->recommend(users, options);
}

}  // namespace tessera
