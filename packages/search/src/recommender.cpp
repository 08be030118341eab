// SPDX-License-Identifier: Apache-2.0
#include <tessera/search/recommender.h>

#include <tessera/common/shorten.h>

#include "layers/mode_guard.h"
#include "packages/data/src/column_values.h"
#include "packages/search/src/scan/diverse_choice.h"
#include "packages/search/src/scan/filter_cache.h"
#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/item_filter.h"
#include "packages/search/src/scan/row_scan.h"
#include "packages/search/src/user_batch.h"
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/parallel.h"
#include "src/common/tensor_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <utility>
#include <variant>

namespace tessera {

namespace {

constexpr const char* kRecommend = "[Recommender::recommend]";
// A filter of a million items takes 125 kB.
constexpr size_t kFilterBytes = size_t{1} << 26;

// Items sorted by id. Row i has the id ids[i].
struct SortedItems {
  at::Tensor vectors = {};  // [items, dim] float32
  std::vector<int64_t> ids = {};
  std::vector<int64_t> given_rows = {};  // [items], of RecommenderItems
  std::vector<ScoredRow> by_popularity = {};  // [items], or empty
  std::vector<int64_t> attribute_rows = {};  // [items], or empty
  mutable FilterCache filters{kFilterBytes};

  int64_t size() const {
    return std::ssize(ids);
  }
  // The row of an id, or -1.
  int64_t row_of(int64_t id) const {
    const auto found = std::ranges::lower_bound(ids, id);
    return found == ids.end() || *found != id ? -1 : found - ids.begin();
  }
};

// Checks that vectors are finite floats [rows, dim]. For cosines, their length is made 1.
at::Tensor vectors_of(
    const at::Tensor& vectors,
    const std::string& what,
    int64_t rows,
    std::optional<int64_t> dim,
    ItemScore score) {
  TESSERA_CHECK_VALUE(
      vectors.defined() && vectors.dim() == 2 && vectors.size(0) == rows &&
          vectors.size(1) == dim.value_or(vectors.size(1)) &&
          vectors.size(1) > 0 && vectors.is_floating_point() &&
          vectors.layout() == at::kStrided && vectors.device().is_cpu(),
      "{} must give floats [{}, {}], dense and on the CPU, but got {}. Correct the function.",
      what,
      rows,
      dim ? std::to_string(*dim) : "dim",
      describe(vectors));
  at::Tensor result = vectors.detach();
  if (score == ItemScore::kCosine) {
    const at::Tensor doubles = result.to(at::kDouble);
    result = doubles / doubles.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12);
  }
  result = result.to(at::kFloat).contiguous();
  TESSERA_CHECK_VALUE(
      result.isfinite().all().item<bool>(),
      "{} gave NaN or infinity, which have no order. Correct the model.",
      what);
  return result;
}

// A user of the request, with the items that the user must not get.
struct User {
  int64_t id = 0;
  bool is_known = false;
  bool has_items = false;  // perhaps none of the model's
  std::vector<int64_t> items = {};  // rows
  RecommendedFrom from = RecommendedFrom::kQuery;
  std::vector<int64_t> excluded = {};  // rows, ascending
};

struct Request {
  std::shared_ptr<const SortedItems> items;
  const RecommendOptions& options;
  const data::PipelineBatch& batch;
  std::vector<User> users = {};
  std::shared_ptr<const RowSet> allowed = {};  // nullptr: all rows
  const AttributeColumn* diverse = nullptr;
  at::Tensor vectors = {};  // [users, dim] float32
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

// The best k rows of each of the users by their vectors.
std::vector<std::vector<ScoredRow>> search(
    const Request& request,
    std::span<const int64_t> users,
    int64_t k) {
  const SortedItems& items = *request.items;
  const RowSegment segment{
      .rows = {.first = items.vectors.const_data_ptr()},
      .num_rows = items.size()};
  const ScanRows rows{
      .dim = items.vectors.size(1), .segments = std::span(&segment, 1)};
  std::vector<ScanRequest> requests;
  for (const int64_t user : users) {
    requests.push_back(
        {.vector = request.vectors.const_data_ptr<float>() + user * rows.dim,
         .k = std::min(k, items.size()),
         .allowed = request.allowed.get(),
         .excluded = request.users[static_cast<size_t>(user)].excluded});
  }
  const auto bytes = static_cast<int64_t>(items.vectors.nbytes());
  return scan(
      rows,
      requests,
      {.num_threads = thread_count(),
       .run_tasks = [&](int64_t count,
                        const std::function<void(int64_t)>& task) {
         run_tasks(count, bytes, task);
       }});
}

// The k most popular rows that the user may get.
std::vector<ScoredRow> popular(
    const Request& request,
    const User& user,
    int64_t k) {
  std::vector<ScoredRow> rows;
  for (const ScoredRow& row : request.items->by_popularity) {
    if (std::ssize(rows) == k) {
      break;
    }
    if ((request.allowed == nullptr || request.allowed->contains(row.number)) &&
        !std::ranges::binary_search(user.excluded, row.number)) {
      rows.push_back(row);
    }
  }
  return rows;
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
      if (num_evaluations_++ == 0) {
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
        model_ != nullptr && options_.items && options_.query,
        "[Recommender] expected a model, options.items and options.query, but {} is empty. Set it.",
        model_ == nullptr     ? "the model"
            : !options_.items ? "options.items"
                              : "options.query");
    TESSERA_CHECK_VALUE(
        options_.num_candidates >= 1,
        "[Recommender] num_candidates must be >= 1, but is {}. Set it to some hundreds.",
        options_.num_candidates);
    if (options_.pipeline) {
      read_pipeline(*options_.pipeline);
    }
    read_attributes();
    refresh();
  }

  void refresh() {
    const std::lock_guard lock(refresh_mutex_);
    const RecommenderItems given = evaluate(options_.items);
    TESSERA_CHECK_VALUE(
        given.vectors.defined() && given.vectors.dim() == 2 &&
            given.vectors.size(0) > 0,
        "[Recommender] options.items must give the vectors of one or more items, [items, dim], but got {}.",
        describe(given.vectors));
    const int64_t size = given.vectors.size(0);
    const at::Tensor vectors = vectors_of(
        given.vectors,
        "[Recommender] items.vectors",
        size,
        std::nullopt,
        options_.score);
    auto items = std::make_shared<SortedItems>();
    sort_ids(given, size, *items);
    items->vectors =
        vectors.index_select(0, at::tensor(items->given_rows, at::kLong));
    if (given.popularity.defined()) {
      sort_popularity(given.popularity, size, *items);
    }
    if (attributes_) {
      bool has_attributes = false;
      for (const int64_t id : items->ids) {
        items->attribute_rows.push_back(attributes_->row_of(id));
        has_attributes = has_attributes ||
            items->attribute_rows.back() + 1 < attributes_->num_rows();
      }
      TESSERA_CHECK_VALUE(
          has_attributes,
          "[Recommender] options.attributes have no row about an item of the model, whose ids begin with {}. Correct the column of '{}'.",
          items->ids.front(),
          shorten(options_.item));
    }
    const std::lock_guard items_lock(mutex_);
    items_ = std::move(items);
  }

  Recommendations recommend(
      const data::Columns& columns,
      const RecommendOptions& options) const {
    TESSERA_CHECK_VALUE(
        options_.pipeline.has_value(),
        "{} raw values need RecommenderOptions::pipeline, which is empty. Set it, or pass features.",
        kRecommend);
    for (const auto& [name, column] : columns.entries()) {
      TESSERA_CHECK_VALUE(
          columns_.contains(name),
          "{} the pipeline has no column '{}'. Known: {}. Correct the name, or leave the column out.",
          kRecommend,
          shorten(name),
          join_names(columns_));
    }
    return recommend(options_.pipeline->apply_present(columns), options);
  }

  Recommendations recommend(
      const data::PipelineBatch& batch,
      const RecommendOptions& options) const {
    Request request{.items = items(), .options = options, .batch = batch};
    const int64_t size = request.items->size();
    TESSERA_CHECK_VALUE(
        options.k >= 1 && options.k <= size,
        "{} k must be in [1, {}], the number of items, but is {}. Ask for that many.",
        kRecommend,
        size,
        options.k);
    request.users = read_users(batch, *request.items, options);
    request.allowed = allowed_rows(*request.items, options);
    request.diverse = diverse_column(options);
    exclude(request);
    request.vectors = query_vectors(request);
    return result_of(request, best_items(request));
  }

 private:
  std::shared_ptr<const SortedItems> items() const {
    const std::lock_guard lock(mutex_);
    return items_;
  }

  void read_pipeline(const data::FeaturePipeline& pipeline) {
    num_reserved_items_ = pipeline.num_reserved_ids(options_.item);
    bool has_user_output = false;
    for (const data::PipelineOutput& output : pipeline.outputs()) {
      columns_.insert(output.columns.begin(), output.columns.end());
      if (output.name == options_.user) {
        num_reserved_users_ = pipeline.num_reserved_ids(options_.user);
        has_user_output = true;
      }
    }
    TESSERA_CHECK_VALUE(
        has_user_output || options_.user == RecommenderOptions().user,
        "[Recommender] options.pipeline has no output '{}', which options.user names. Correct the name.",
        shorten(options_.user));
    try {
      pipeline.to_text(options_.item, at::zeros({0}, at::kLong));
      has_texts_ = true;
    } catch (const c10::ValueError&) {
      has_texts_ = false;  // such as Hash
    }
  }

  void read_attributes() {
    const data::Columns columns = std::exchange(options_.attributes, {});
    if (columns.entries().empty()) {
      return;
    }
    std::vector<int64_t> ids;
    if (options_.pipeline) {
      const Features features =
          options_.pipeline->apply_present(columns).features;
      const auto& entries = features.entries();
      const auto found = std::ranges::find_if(entries, [&](const auto& entry) {
        return entry.first == options_.item;
      });
      TESSERA_CHECK_VALUE(
          found != entries.end() &&
              std::holds_alternative<at::Tensor>(found->second.leaf()),
          "[Recommender] options.attributes must have the columns of the pipeline's output '{}', with one value per row. Add them.",
          shorten(options_.item));
      ids = integers_of(
          std::get<at::Tensor>(found->second.leaf()),
          "[Recommender] options.attributes");
    } else {
      TESSERA_CHECK_VALUE(
          columns.contains(options_.item) &&
              std::holds_alternative<at::Tensor>(
                  columns.at(options_.item).values) &&
              !columns.at(options_.item).row_splits.defined(),
          "[Recommender] options.attributes must have the column '{}' with one id per row, as integers. Add it, or set options.pipeline, which converts text.",
          shorten(options_.item));
      ids = integers_of(
          columns.tensor(options_.item), "[Recommender] options.attributes");
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < num_reserved_items_) {
        // Not an item of the model. No item has a negative id.
        ids[i] = -1 - static_cast<int64_t>(i);
      }
    }
    std::vector<int64_t> sorted = ids;
    std::ranges::sort(sorted);
    const auto twice = std::ranges::adjacent_find(sorted);
    TESSERA_CHECK_VALUE(
        twice == sorted.end(),
        "[Recommender] options.attributes have two rows about the item with the id {}. Keep one.",
        *twice);
    std::vector<at::Tensor> kept;
    std::vector<std::pair<std::string, data::ColumnView>> views;
    for (const auto& [name, column] : columns.entries()) {
      views.emplace_back(name, data::view_of(column, kept));
    }
    attribute_bytes_ = write_item_attributes(views, ids);
    attributes_.emplace(attribute_bytes_, "[Recommender]");
  }

  void sort_ids(const RecommenderItems& given, int64_t size, SortedItems& items)
      const {
    const std::vector<int64_t> ids = integers_of(
        given.ids.defined() ? given.ids : at::arange(size, at::kLong),
        "[Recommender] items.ids");
    TESSERA_CHECK_VALUE(
        std::ssize(ids) == size,
        "[Recommender] items.ids must have one id per vector, {}, but has {}.",
        size,
        ids.size());
    std::vector<int64_t> order(ids.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::sort(order, {}, [&](int64_t i) { return ids[i]; });
    for (const int64_t i : order) {
      TESSERA_CHECK_VALUE(
          ids[i] >= 0 && (items.ids.empty() || items.ids.back() != ids[i]),
          "[Recommender] items.ids must be >= 0 and different, but has {}{}. Give each item its own id.",
          ids[i],
          ids[i] < 0 ? "" : " twice");
      if (ids[i] >= num_reserved_items_) {
        items.ids.push_back(ids[i]);
        items.given_rows.push_back(i);
      }
    }
    if (has_texts_) {
      const int64_t end = options_.pipeline->vocabulary_size(options_.item);
      TESSERA_CHECK_VALUE(
          ids[order.back()] < end,
          "[Recommender] items.ids has {}, but the pipeline gives items ids in [0, {}). Correct the ids.",
          ids[order.back()],
          end);
      TESSERA_CHECK_VALUE(
          given.ids.defined() || size == end,
          "[Recommender] there are {} vectors without items.ids, but the pipeline gives items ids in [0, {}). Set items.ids.",
          size,
          end);
    }
    TESSERA_CHECK_VALUE(
        !items.ids.empty(),
        "[Recommender] all items.ids are below {}, and stand for missing and unknown values in the pipeline. Pass the ids of items.",
        num_reserved_items_);
  }

  static void sort_popularity(
      const at::Tensor& popularity,
      int64_t size,
      SortedItems& items) {
    TESSERA_CHECK_VALUE(
        popularity.dim() == 1 && popularity.size(0) == size &&
            popularity.layout() == at::kStrided &&
            popularity.device().is_cpu() &&
            popularity.isfinite().all().item<bool>(),
        "[Recommender] items.popularity must have one finite number per item, [{}], dense and on the CPU, but got {}. Correct it.",
        size,
        describe(popularity));
    const at::Tensor given =
        popularity.index_select(0, at::tensor(items.given_rows, at::kLong));
    const at::Tensor order = given.argsort(
        /*stable=*/true, /*dim=*/0, /*descending=*/true);
    const at::Tensor scores = given.to(at::kFloat).contiguous();
    for (const int64_t row : integers_of(order, "the order")) {
      items.by_popularity.push_back(
          {.number = row, .score = scores.const_data_ptr<float>()[row]});
    }
  }

  std::vector<User> read_users(
      const data::PipelineBatch& batch,
      const SortedItems& items,
      const RecommendOptions& options) const {
    const int64_t count = num_users(batch, kRecommend);
    std::vector<User> users(static_cast<size_t>(count));
    bool has_ids = false;
    bool has_items = false;
    for (const auto& [name, nest] : batch.features.entries()) {
      const std::string what = feature_place(kRecommend, name);
      if (name == options_.user) {
        TESSERA_CHECK_VALUE(
            std::holds_alternative<at::Tensor>(nest.leaf()),
            "{} must have one id per user, but is ragged. Pass single values.",
            what);
        const auto ids = integers_of(std::get<at::Tensor>(nest.leaf()), what);
        for (size_t user = 0; user < users.size(); ++user) {
          users[user].id = ids[user];
          TESSERA_CHECK_VALUE(
              ids[user] >= 0 || num_reserved_users_ == 0,
              "{} has the id {}, but ids of the pipeline are >= 0. Correct it.",
              what,
              ids[user]);
          users[user].is_known =
              ids[user] >= num_reserved_users_ || num_reserved_users_ == 0;
        }
        has_ids = true;
      } else if (name == options_.item) {
        TESSERA_CHECK_VALUE(
            std::holds_alternative<RaggedFeature>(nest.leaf()),
            "{} must be ragged, because it has the items of each user, but is dense. Pass lists.",
            what);
        const ItemBags bags =
            bags_of(std::get<RaggedFeature>(nest.leaf()), count, what);
        for (int64_t user = 0; user < count; ++user) {
          for (const int64_t id : bags.of(user)) {
            users[user].has_items =
                users[user].has_items || id >= num_reserved_items_;
            if (items.row_of(id) >= 0) {
              users[user].items.push_back(items.row_of(id));
            }
          }
        }
        has_items = true;
      }
    }
    for (User& user : users) {
      const bool suits_query =
          has_ids ? user.is_known : !has_items || user.has_items;
      const bool suits_fold_in =
          !user.is_known && options_.fold_in && !user.items.empty();
      user.from = suits_fold_in ? RecommendedFrom::kFoldIn
          : suits_query         ? RecommendedFrom::kQuery
                                : RecommendedFrom::kPopularity;
    }
    TESSERA_CHECK_VALUE(
        !options.exclude_seen || has_items ||
            (has_ids && options_.seen != nullptr),
        "{} exclude_seen needs the items of users as the feature '{}', or RecommenderOptions::seen and the feature '{}'. Pass one of them.",
        kRecommend,
        shorten(options_.item),
        shorten(options_.user));
    return users;
  }

  // nullptr if all rows are allowed.
  std::shared_ptr<const RowSet> allowed_rows(
      const SortedItems& items,
      const RecommendOptions& options) const {
    std::shared_ptr<const RowSet> allowed;
    if (!options.where.empty()) {
      TESSERA_CHECK_VALUE(
          attributes_.has_value(),
          "{} `where` needs RecommenderOptions::attributes, which are empty. Set them, or leave `where` empty.",
          kRecommend);
      allowed = items.filters.get(/*version=*/0, options.where, [&] {
        const RowSet rows = rows_where(options.where, *attributes_);
        return RowSet::where(items.size(), [&](int64_t row) {
          return rows.contains(items.attribute_rows[row]);
        });
      });
    }
    if (options.choose_from) {
      RowSet chosen(items.size());
      for (const int64_t id : *options.choose_from) {
        TESSERA_CHECK_VALUE(
            items.row_of(id) >= 0,
            "{} choose_from has the id {}, which no item has. Remove it.",
            kRecommend,
            id);
        chosen.add(items.row_of(id));
      }
      if (allowed != nullptr) {
        chosen &= *allowed;
      }
      allowed = std::make_shared<const RowSet>(std::move(chosen));
    }
    return allowed;
  }

  // Collects the rows that each user must not get.
  void exclude(Request& request) const {
    ItemBags seen;
    std::vector<int64_t> known;
    if (request.options.exclude_seen && options_.seen != nullptr) {
      for (const User& user : request.users) {
        if (user.is_known) {
          known.push_back(user.id);
        }
      }
      if (!known.empty()) {
        seen = bags_of(
            options_.seen(at::tensor(known, at::kLong)),
            std::ssize(known),
            "[Recommender::recommend] the result of options.seen");
      }
    }
    const auto add = [&](std::span<const int64_t> ids,
                         std::vector<int64_t>& rows) {
      for (const int64_t id : ids) {
        const int64_t row = request.items->row_of(id);
        if (row >= 0) {
          rows.push_back(row);
        }
      }
    };
    std::vector<int64_t> of_all;
    add(request.options.exclude, of_all);
    int64_t next_known = 0;
    for (User& user : request.users) {
      user.excluded = of_all;
      if (request.options.exclude_seen) {
        user.excluded.insert(
            user.excluded.end(), user.items.begin(), user.items.end());
        if (user.is_known && !seen.splits.empty()) {
          add(seen.of(next_known++), user.excluded);
        }
      }
      std::ranges::sort(user.excluded);
    }
  }

  const AttributeColumn* diverse_column(const RecommendOptions& options) const {
    if (!options.diversity) {
      return nullptr;
    }
    TESSERA_CHECK_VALUE(
        attributes_.has_value(),
        "{} `diversity` needs RecommenderOptions::attributes, which are empty. Set them, or leave it out.",
        kRecommend);
    const AttributeColumn& column =
        attributes_->at(options.diversity->column, kRecommend);
    TESSERA_CHECK_VALUE(
        !column.has_lists(),
        "{} `diversity` needs a column with one value per item, but '{}' has lists. Choose another.",
        kRecommend,
        shorten(std::string(column.name)));
    TESSERA_CHECK_VALUE(
        options.diversity->max_per_value >= 1,
        "{} `diversity` needs max_per_value >= 1, but it is {}. Set it.",
        kRecommend,
        options.diversity->max_per_value);
    return &column;
  }

  at::Tensor query_vectors(const Request& request) const {
    const int64_t dim = request.items->vectors.size(1);
    at::Tensor vectors =
        at::zeros({std::ssize(request.users), dim}, at::kFloat);
    const auto add = [&](RecommendedFrom from, auto compute) {
      const std::vector<int64_t> users = users_from(request, from);
      if (!users.empty()) {
        vectors.index_copy_(
            0,
            at::tensor(users, at::kLong),
            vectors_of(
                compute(users),
                from == RecommendedFrom::kQuery
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
          rows.ids.push_back(request.items->given_rows[row]);
        }
        rows.splits.push_back(std::ssize(rows.ids));
      }
      return evaluate(options_.fold_in, ragged_of(rows));
    });
    return vectors;
  }

  std::vector<std::vector<ScoredRow>> best_items(const Request& request) const {
    const int64_t k = request.options.k;
    const int64_t count = options_.ranker ? std::max(k, options_.num_candidates)
        : request.diverse != nullptr      ? 4 * k
                                          : k;
    std::vector<std::vector<ScoredRow>> found(request.users.size());
    std::vector<int64_t> users = users_from(request, RecommendedFrom::kQuery);
    const auto folded = users_from(request, RecommendedFrom::kFoldIn);
    users.insert(users.end(), folded.begin(), folded.end());
    auto rows = search(request, users, count);
    for (size_t i = 0; i < users.size(); ++i) {
      const int64_t user = users[i];
      if (options_.ranker) {
        rank(request, user, rows[i]);
      }
      found[user] = choose(request, [&](int64_t size) {
        return options_.ranker || size <= count
            ? rows[i]
            : search(request, std::span(&user, 1), size).front();
      });
    }
    for (const int64_t user :
         users_from(request, RecommendedFrom::kPopularity)) {
      TESSERA_CHECK_VALUE(
          !request.items->by_popularity.empty(),
          "{} user {} of the batch is unknown and has no items, and the items have no popularity. Set RecommenderItems::popularity, or leave the user out.",
          kRecommend,
          user);
      found[user] = choose(request, [&](int64_t size) {
        return popular(request, request.users[user], size);
      });
    }
    return found;
  }

  // The best k rows, or with diversity the best that it allows. `ranked(size)` returns the
  // best rows, `size` of them or more, or all if there are fewer.
  template <class Ranked>
  static std::vector<ScoredRow> choose(const Request& request, Ranked ranked) {
    const int64_t k = request.options.k;
    if (request.diverse == nullptr) {
      std::vector<ScoredRow> rows = ranked(k);
      rows.resize(std::min(rows.size(), static_cast<size_t>(k)));
      return rows;
    }
    return choose_diverse(
        k,
        request.options.diversity->max_per_value,
        ranked,
        [&](const ScoredRow& row) -> std::optional<int64_t> {
          const int64_t value =
              request.diverse
                  ->values[request.items->attribute_rows[row.number]];
          return data::is_missing(value) ? std::nullopt : std::optional(value);
        });
  }

  // Replaces the scores by those of the ranker, and sorts by them.
  void rank(const Request& request, int64_t user, std::vector<ScoredRow>& rows)
      const {
    if (rows.empty()) {
      return;
    }
    std::vector<int64_t> ids;
    for (const ScoredRow& row : rows) {
      ids.push_back(request.items->ids[row.number]);
    }
    const at::Tensor scores = evaluate(
        options_.ranker,
        select_users(request.batch, {user}, kRecommend),
        at::tensor(ids, at::kLong));
    TESSERA_CHECK_VALUE(
        scores.defined() && scores.dim() == 1 &&
            scores.size(0) == std::ssize(ids) && scores.is_floating_point() &&
            scores.isfinite().all().item<bool>(),
        "{} options.ranker must give one finite score per item, floats [{}], but got {}. Correct the function.",
        kRecommend,
        ids.size(),
        describe(scores));
    const at::Tensor floats = scores.detach().to(at::kFloat).contiguous();
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].score = floats.const_data_ptr<float>()[i];
    }
    std::ranges::sort(rows, [](const ScoredRow& left, const ScoredRow& right) {
      return left.score != right.score ? left.score > right.score
                                       : left.number < right.number;
    });
  }

  Recommendations result_of(
      const Request& request,
      const std::vector<std::vector<ScoredRow>>& found) const {
    const std::vector<int64_t> shape{std::ssize(found), request.options.k};
    Recommendations result{
        .ids = at::full(shape, -1, at::kLong),
        .scores = at::full(
            shape, -std::numeric_limits<float>::infinity(), at::kFloat),
        .passed = request.allowed == nullptr ? request.items->size()
                                             : request.allowed->count()};
    std::vector<int64_t> ids;
    for (size_t user = 0; user < found.size(); ++user) {
      const int64_t begin = static_cast<int64_t>(user) * request.options.k;
      for (size_t i = 0; i < found[user].size(); ++i) {
        const int64_t place = begin + static_cast<int64_t>(i);
        ids.push_back(request.items->ids[found[user][i].number]);
        result.ids.mutable_data_ptr<int64_t>()[place] = ids.back();
        result.scores.mutable_data_ptr<float>()[place] = found[user][i].score;
      }
      result.from.push_back(request.users[user].from);
    }
    if (has_texts_) {
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
  int64_t num_reserved_users_ = 0;
  int64_t num_reserved_items_ = 0;
  bool has_texts_ = false;
  std::string attribute_bytes_;
  std::optional<ItemAttributes> attributes_;  // views of attribute_bytes_
  std::mutex refresh_mutex_;  // one refresh() at a time
  mutable std::mutex mutex_;  // guards the members below
  std::shared_ptr<const SortedItems> items_;
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
