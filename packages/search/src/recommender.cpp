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
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/parallel.h"
#include "src/common/tensor_text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>
#include <variant>

namespace tessera {

namespace {

constexpr const char* kMake = "[Recommender]";
constexpr const char* kRecommend = "[Recommender::recommend]";
// A filter of a million items takes 125 kB.
constexpr size_t kFilterBytes = size_t{1} << 26;

// Items sorted by id. Row i has the id ids[i].
struct SortedItems {
  int64_t number = 0;  // of the refresh
  at::Tensor vectors = {};  // [items, dim] float32
  std::vector<int64_t> ids = {};
  std::vector<float> popularity = {};  // [items], or empty
  std::vector<int64_t> attribute_rows = {};  // [items], or empty

  int64_t size() const {
    return std::ssize(ids);
  }
  // The row of an id, or -1.
  int64_t row_of(int64_t id) const {
    const auto found = std::ranges::lower_bound(ids, id);
    return found == ids.end() || *found != id ? -1 : found - ids.begin();
  }
};

std::vector<int64_t> integers_of(
    const at::Tensor& tensor,
    const char* where,
    const std::string& name) {
  TESSERA_CHECK_VALUE(
      tensor.defined() && tensor.dim() == 1 && tensor.device().is_cpu() &&
          (tensor.scalar_type() == at::kLong ||
           tensor.scalar_type() == at::kInt),
      "{} {} must be int32 or int64 of one dimension on the CPU, but got {}.",
      where,
      name,
      describe(tensor));
  const at::Tensor values = tensor.to(at::kLong).contiguous();
  const int64_t* begin = values.const_data_ptr<int64_t>();
  return {begin, begin + values.numel()};
}

// Rows of length 1 for cosines. A length below 1e-12 counts as 1e-12.
at::Tensor scaled_for(ItemScore score, const at::Tensor& vectors) {
  return score == ItemScore::kDot
      ? vectors
      : vectors / vectors.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12);
}

// A float32 matrix with `rows` rows of finite numbers.
at::Tensor vectors_of(
    const at::Tensor& vectors,
    const char* where,
    const std::string& name,
    int64_t rows,
    std::optional<int64_t> dim) {
  TESSERA_CHECK_VALUE(
      vectors.defined() && vectors.dim() == 2 && vectors.size(0) == rows &&
          vectors.size(1) == dim.value_or(vectors.size(1)) &&
          vectors.size(1) > 0 && vectors.is_floating_point() &&
          vectors.device().is_cpu(),
      "{} {} must give floats [{}, {}] on the CPU, but got {}.",
      where,
      name,
      rows,
      dim ? std::to_string(*dim) : "dim",
      describe(vectors));
  const at::Tensor floats = vectors.detach().to(at::kFloat).contiguous();
  TESSERA_CHECK_VALUE(
      floats.isfinite().all().item<bool>(),
      "{} {} gave NaN or infinity. Correct the model; scores would have no order.",
      where,
      name);
  return floats;
}

// The items of users, one bag for each.
struct Bags {
  std::vector<int64_t> ids = {};
  std::vector<int64_t> splits = {};

  std::span<const int64_t> of(int64_t user) const {
    const auto begin = static_cast<size_t>(splits[user]);
    return std::span(ids).subspan(
        begin, static_cast<size_t>(splits[user + 1]) - begin);
  }
};

Bags bags_of(
    const RaggedFeature& feature,
    int64_t users,
    const std::string& name) {
  Bags bags{
      .ids = integers_of(feature.values, kRecommend, name + ".values"),
      .splits =
          integers_of(feature.row_splits, kRecommend, name + ".row_splits")};
  TESSERA_CHECK_VALUE(
      std::ssize(bags.splits) == users + 1 && bags.splits.front() == 0 &&
          bags.splits.back() == std::ssize(bags.ids) &&
          std::ranges::is_sorted(bags.splits),
      "{} the row_splits of {} must have {} numbers that ascend from 0 to {}. Make it with RaggedFeature::from_lengths().",
      kRecommend,
      name,
      users + 1,
      bags.ids.size());
  return bags;
}

RaggedFeature select_bags(const Bags& bags, const std::vector<int64_t>& users) {
  std::vector<int64_t> ids;
  std::vector<int64_t> splits{0};
  for (const int64_t user : users) {
    const auto own = bags.of(user);
    ids.insert(ids.end(), own.begin(), own.end());
    splits.push_back(std::ssize(ids));
  }
  return {
      .values = at::tensor(ids, at::kLong),
      .row_splits = at::tensor(splits, at::kLong)};
}

int64_t batch_of(const Feature& feature, const std::string& name) {
  TESSERA_CHECK_VALUE(
      !std::holds_alternative<SparseFeature>(feature),
      "{} the feature '{}' is sparse. Pass dense or ragged features.",
      kRecommend,
      shorten(name));
  const auto* ragged = std::get_if<RaggedFeature>(&feature);
  const at::Tensor& tensor =
      ragged != nullptr ? ragged->row_splits : std::get<at::Tensor>(feature);
  TESSERA_CHECK_VALUE(
      tensor.defined() && tensor.dim() >= 1 &&
          (ragged == nullptr || tensor.size(0) >= 1),
      "{} the feature '{}' has no rows, but got {}. Pass one row per user.",
      kRecommend,
      shorten(name),
      describe(tensor));
  return tensor.size(0) - (ragged == nullptr ? 0 : 1);
}

Features select_users(
    const Features& features,
    const std::vector<int64_t>& users) {
  Features::Map selected;
  for (const auto& [name, feature] : features.entries()) {
    const Feature& leaf = feature.leaf();
    if (const auto* ragged = std::get_if<RaggedFeature>(&leaf)) {
      const int64_t batch = batch_of(leaf, name);
      selected.emplace_back(
          name, Feature(select_bags(bags_of(*ragged, batch, name), users)));
    } else {
      selected.emplace_back(
          name,
          Feature(std::get<at::Tensor>(leaf).index_select(
              0, at::tensor(users, at::kLong))));
    }
  }
  return Features::map(std::move(selected));
}

std::set<std::string> columns_of(
    const std::vector<data::PipelineOutput>& outputs) {
  std::set<std::string> columns;
  for (const data::PipelineOutput& output : outputs) {
    columns.insert(output.columns.begin(), output.columns.end());
  }
  return columns;
}

// What is known about the users of a request.
struct Users {
  std::vector<int64_t> ids =
      {};  // [users], or empty if there is no such feature
  Bags items = {};
  std::vector<RecommendedFrom> from = {};  // [users]
};

}  // namespace

class Recommender::Impl {
  // Calls a function that uses the model.
  template <class Function, class... Args>
  auto evaluate(const Function& function, const Args&... args) const {
    const at::NoGradGuard no_grad;
    std::optional<ModeGuard> modes;
    if (model_->is_training()) {
      modes.emplace(*model_);
      modes->eval();
    }
    return function(args...);
  }

 public:
  Impl(training::ModelPointer model, RecommenderOptions options)
      : model_(std::move(model)),
        options_(std::move(options)),
        filters_(kFilterBytes) {
    TESSERA_CHECK_VALUE(
        model_ != nullptr && options_.items && options_.query,
        "{} expected a model, options.items and options.query, but one of them is empty. Set all of them.",
        kMake);
    TESSERA_CHECK_VALUE(
        options_.num_candidates >= 1,
        "{} num_candidates must be >= 1, but is {}. Correct it.",
        kMake,
        options_.num_candidates);
    read_attributes();
    refresh();
  }

  void refresh() {
    const RecommenderItems items = evaluate(options_.items);
    TESSERA_CHECK_VALUE(
        items.vectors.defined() && items.vectors.dim() == 2 &&
            items.vectors.size(0) > 0,
        "{} options.items must give the vectors of one or more items, [items, dim], but got {}.",
        kMake,
        describe(items.vectors));
    const int64_t size = items.vectors.size(0);
    const std::vector<int64_t> ids = integers_of(
        items.ids.defined() ? items.ids : at::arange(size, at::kLong),
        kMake,
        "items.ids");
    TESSERA_CHECK_VALUE(
        std::ssize(ids) == size,
        "{} items.ids must have one id per vector, {}, but has {}.",
        kMake,
        size,
        ids.size());
    std::vector<int64_t> order(ids.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::ranges::sort(order, {}, [&](int64_t i) { return ids[i]; });
    auto sorted = std::make_shared<SortedItems>();
    for (const int64_t i : order) {
      TESSERA_CHECK_VALUE(
          ids[i] >= 0 && (sorted->ids.empty() || sorted->ids.back() != ids[i]),
          "{} items.ids must be >= 0 and different, but has {}{}. Give each item its own id.",
          kMake,
          ids[i],
          ids[i] < 0 ? "" : " twice");
      sorted->ids.push_back(ids[i]);
    }
    sorted->vectors = scaled_for(
        options_.score,
        vectors_of(items.vectors, kMake, "items.vectors", size, std::nullopt)
            .index_select(0, at::tensor(order, at::kLong)));
    if (items.popularity.defined()) {
      const at::Tensor popularity = vectors_of(
          items.popularity.to(at::kFloat).unsqueeze(-1),
          kMake,
          "items.popularity",
          size,
          1);
      for (const int64_t i : order) {
        sorted->popularity.push_back(popularity.const_data_ptr<float>()[i]);
      }
    }
    if (attributes_) {
      for (const int64_t id : sorted->ids) {
        sorted->attribute_rows.push_back(attributes_->row_of(id));
      }
    }
    const std::lock_guard lock(mutex_);
    sorted->number = items_ == nullptr ? 1 : items_->number + 1;
    items_ = std::move(sorted);
  }

  Recommendations recommend(
      const data::Columns& columns,
      const RecommendOptions& options) const {
    TESSERA_CHECK_VALUE(
        options_.pipeline.has_value(),
        "{} raw values need RecommenderOptions::pipeline, which is empty. Set it, or pass features.",
        kRecommend);
    return recommend(apply(columns).features, options);
  }

  Recommendations recommend(
      const Features& features,
      const RecommendOptions& options) const {
    Request request{.items = items(), .options = options, .features = features};
    const int64_t size = request.items->size();
    TESSERA_CHECK_VALUE(
        options.k >= 1 && options.k <= size,
        "{} k must be in [1, {}], the number of items, but is {}. Correct it.",
        kRecommend,
        size,
        options.k);
    request.users = read_users(features, *request.items);
    request.allowed = allowed_rows(*request.items, options);
    request.excluded = excluded_rows(request);
    request.diverse = diverse_column(options);
    request.vectors = query_vectors(request);

    std::vector<std::vector<ScoredRow>> found(request.users.from.size());
    for (const bool is_popular : {false, true}) {
      const std::vector<int64_t> users =
          users_where(request, [&](RecommendedFrom from) {
            return (from == RecommendedFrom::kPopularity) == is_popular;
          });
      auto best = best_items(request, users, is_popular);
      for (size_t i = 0; i < users.size(); ++i) {
        found[users[i]] = std::move(best[i]);
      }
    }
    return result_of(request, found);
  }

 private:
  struct Request {
    std::shared_ptr<const SortedItems> items;
    const RecommendOptions& options;
    const Features& features;
    Users users = {};
    std::shared_ptr<const RowSet> allowed = {};  // nullptr: all rows
    std::vector<std::vector<int64_t>> excluded =
        {};  // [users], rows, ascending
    const AttributeColumn* diverse = nullptr;
    at::Tensor vectors = {};  // [users, dim] float32
  };

  std::shared_ptr<const SortedItems> items() const {
    const std::lock_guard lock(mutex_);
    return items_;
  }

  // Applies the outputs of the pipeline whose columns are there, or only one of them.
  data::PipelineBatch apply(
      const data::Columns& columns,
      const std::optional<std::string>& only = {}) const {
    std::vector<data::PipelineOutput> outputs;
    std::set<std::string> names;
    for (const data::PipelineOutput& output : options_.pipeline->outputs()) {
      if (only ? output.name == *only
               : std::ranges::all_of(
                     output.columns, [&](const std::string& column) {
                       return columns.contains(column);
                     })) {
        outputs.push_back(output);
        names.insert(output.name);
      }
    }
    TESSERA_CHECK_VALUE(
        !outputs.empty(),
        "{} no output of the pipeline has all its columns. The pipeline reads {}. Pass the columns of users, such as the one of '{}'.",
        kRecommend,
        join_names(columns_of(options_.pipeline->outputs())),
        shorten(options_.user));
    const std::lock_guard lock(mutex_);
    auto found = pipelines_.find(names);
    if (found == pipelines_.end()) {
      data::ColumnTypes types = options_.pipeline->types();
      const std::set<std::string> used = columns_of(outputs);
      std::erase_if(
          types, [&](const auto& type) { return !used.contains(type.first); });
      found =
          pipelines_
              .emplace(
                  names,
                  data::FeaturePipeline(std::move(outputs), std::move(types)))
              .first;
    }
    return found->second.apply(columns);
  }

  // The id from which on ids of the pipeline stand for known values.
  int64_t first_known_id(const std::string& feature) const {
    return options_.pipeline ? options_.pipeline->num_reserved_ids(feature) : 0;
  }

  void read_attributes() {
    const data::Columns& columns = options_.attributes;
    if (columns.entries().empty()) {
      return;
    }
    TESSERA_CHECK_VALUE(
        columns.contains(options_.item),
        "{} options.attributes must have the column '{}', which says what item a row is about. Add it, or correct options.item.",
        kMake,
        shorten(options_.item));
    std::vector<int64_t> ids = integers_of(
        options_.pipeline
            ? std::get<at::Tensor>(
                  apply(columns, options_.item).features[options_.item])
            : columns.tensor(options_.item),
        kMake,
        "options.attributes");
    const int64_t first_known = first_known_id(options_.item);
    std::vector<at::Tensor> kept;
    std::vector<std::pair<std::string, data::ColumnView>> views;
    for (const auto& [name, column] : columns.entries()) {
      views.emplace_back(name, data::view_of(column, kept));
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < first_known) {
        // Not an item of the model. No item has a negative id.
        ids[i] = -1 - static_cast<int64_t>(i);
      }
    }
    attribute_bytes_ = write_item_attributes(views, ids);
    attributes_.emplace(attribute_bytes_, kMake);
  }

  Users read_users(const Features& features, const SortedItems& items) const {
    TESSERA_CHECK_VALUE(
        features.is_map() && !features.empty(),
        "{} expected a map of the features of users, such as {{\"{}\", ids}}, but got {}.",
        kRecommend,
        shorten(options_.user),
        features.is_map() ? "an empty one" : "no map");
    Users users;
    std::optional<int64_t> count;
    bool has_items = false;
    for (const auto& [name, nest] : features.entries()) {
      const Feature& feature = nest.leaf();
      const int64_t rows = batch_of(feature, name);
      TESSERA_CHECK_VALUE(
          rows >= 1 && rows == count.value_or(rows),
          "{} the features must have the same number of users, 1 or more, but '{}' has {}{}.",
          kRecommend,
          shorten(name),
          rows,
          count ? " and others have " + std::to_string(*count) : "");
      count = rows;
      if (name == options_.user) {
        TESSERA_CHECK_VALUE(
            std::holds_alternative<at::Tensor>(feature),
            "{} the feature '{}' must have one id per user, but it is ragged.",
            kRecommend,
            shorten(name));
        users.ids =
            integers_of(std::get<at::Tensor>(feature), kRecommend, name);
      } else if (name == options_.item) {
        TESSERA_CHECK_VALUE(
            std::holds_alternative<RaggedFeature>(feature),
            "{} the feature '{}' must be ragged, because it has the items of each user, but it is dense.",
            kRecommend,
            shorten(name));
        users.items = bags_of(std::get<RaggedFeature>(feature), rows, name);
        has_items = true;
      }
    }
    if (!has_items) {
      users.items.splits.assign(static_cast<size_t>(*count) + 1, 0);
    }
    const int64_t first_known =
        users.ids.empty() ? 0 : first_known_id(options_.user);
    for (int64_t user = 0; user < *count; ++user) {
      const bool is_known =
          users.ids.empty() ? !has_items : users.ids[user] >= first_known;
      users.from.push_back(
          is_known                           ? RecommendedFrom::kQuery
              : users.items.of(user).empty() ? RecommendedFrom::kPopularity
              : options_.fold_in             ? RecommendedFrom::kFoldIn
                                             : RecommendedFrom::kQuery);
      TESSERA_CHECK_VALUE(
          users.from.back() != RecommendedFrom::kPopularity ||
              !items.popularity.empty(),
          "{} user {} of the batch is unknown and has no items, and the items have no popularity. Set RecommenderItems::popularity, or leave the user out.",
          kRecommend,
          user);
    }
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
      allowed = filters_.get(items.number, options.where, [&] {
        const RowSet rows = rows_where(options.where, *attributes_);
        return RowSet::where(items.size(), [&](int64_t row) {
          return rows.contains(items.attribute_rows[row]);
        });
      });
    }
    if (options.choose_from) {
      RowSet chosen(items.size());
      for (const int64_t id : *options.choose_from) {
        const int64_t row = items.row_of(id);
        TESSERA_CHECK_VALUE(
            row >= 0,
            "{} choose_from has the id {}, which no item has. Remove it.",
            kRecommend,
            id);
        chosen.add(row);
      }
      if (allowed != nullptr) {
        chosen &= *allowed;
      }
      allowed = std::make_shared<const RowSet>(std::move(chosen));
    }
    return allowed;
  }

  std::vector<std::vector<int64_t>> excluded_rows(
      const Request& request) const {
    const Users& users = request.users;
    const auto count = static_cast<int64_t>(users.from.size());
    Bags seen;
    seen.splits.assign(users.from.size() + 1, 0);
    if (request.options.exclude_seen) {
      TESSERA_CHECK_VALUE(
          options_.seen != nullptr || !users.items.ids.empty(),
          "{} exclude_seen needs RecommenderOptions::seen, or the items of users as the feature '{}'. Set one of them.",
          kRecommend,
          shorten(options_.item));
      if (options_.seen != nullptr && !users.ids.empty()) {
        seen = bags_of(
            options_.seen(at::tensor(users.ids, at::kLong)),
            count,
            "the result of options.seen");
      }
    }
    const int64_t first_known =
        users.ids.empty() ? 0 : first_known_id(options_.user);
    std::vector<std::vector<int64_t>> excluded;
    for (int64_t user = 0; user < count; ++user) {
      std::vector<int64_t>& rows = excluded.emplace_back();
      const auto exclude = [&](std::span<const int64_t> ids) {
        for (const int64_t id : ids) {
          const int64_t row = request.items->row_of(id);
          if (row >= 0) {
            rows.push_back(row);
          }
        }
      };
      exclude(request.options.exclude);
      if (request.options.exclude_seen) {
        exclude(users.items.of(user));
        // Unknown users share an id, but have not seen the same items.
        if (!users.ids.empty() && users.ids[user] >= first_known) {
          exclude(seen.of(user));
        }
      }
      std::ranges::sort(rows);
    }
    return excluded;
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
        !column.has_lists() && options.diversity->max_per_value >= 1,
        "{} `diversity` needs a column with one value per item and max_per_value >= 1, but '{}' has {} and max_per_value is {}.",
        kRecommend,
        shorten(std::string(column.name)),
        column.has_lists() ? "lists" : "one value",
        options.diversity->max_per_value);
    return &column;
  }

  template <class Predicate>
  static std::vector<int64_t> users_where(
      const Request& request,
      Predicate is_wanted) {
    std::vector<int64_t> users;
    for (size_t user = 0; user < request.users.from.size(); ++user) {
      if (is_wanted(request.users.from[user])) {
        users.push_back(static_cast<int64_t>(user));
      }
    }
    return users;
  }

  at::Tensor query_vectors(const Request& request) const {
    const auto count = static_cast<int64_t>(request.users.from.size());
    const int64_t dim = request.items->vectors.size(1);
    at::Tensor vectors = at::zeros({count, dim}, at::kFloat);
    const auto add = [&](RecommendedFrom from, const char* name, auto compute) {
      const std::vector<int64_t> users = users_where(
          request, [&](RecommendedFrom each) { return each == from; });
      if (!users.empty()) {
        vectors.index_copy_(
            0,
            at::tensor(users, at::kLong),
            scaled_for(
                options_.score,
                vectors_of(
                    compute(users), kRecommend, name, std::ssize(users), dim)));
      }
    };
    add(RecommendedFrom::kQuery,
        "options.query",
        [&](const std::vector<int64_t>& users) {
          return evaluate(
              options_.query,
              std::ssize(users) == count
                  ? request.features
                  : select_users(request.features, users));
        });
    add(RecommendedFrom::kFoldIn,
        "options.fold_in",
        [&](const std::vector<int64_t>& users) {
          return evaluate(
              options_.fold_in, select_bags(request.users.items, users));
        });
    return vectors;
  }

  // The best k rows of each of the users.
  std::vector<std::vector<ScoredRow>> search(
      const Request& request,
      std::span<const int64_t> users,
      bool is_popular,
      int64_t k) const {
    const SortedItems& items = *request.items;
    const RowSegment segment{
        .rows = {.first = items.vectors.const_data_ptr()},
        .num_rows = items.size()};
    const ScanRows rows{
        .dim = items.vectors.size(1),
        .segments = std::span(&segment, 1),
        // The vectors of these users are zeros.
        .biases = is_popular ? items.popularity.data() : nullptr};
    std::vector<ScanRequest> requests;
    for (const int64_t user : users) {
      requests.push_back(
          {.vector = request.vectors.const_data_ptr<float>() + user * rows.dim,
           .k = std::min(k, items.size()),
           .allowed = request.allowed.get(),
           .excluded = request.excluded[user]});
    }
    const auto bytes = static_cast<int64_t>(items.vectors.nbytes());
    return scan(
        rows,
        requests,
        {.num_parts = thread_count(),
         .run_tasks = [&](int64_t count,
                          const std::function<void(int64_t)>& task) {
           run_tasks(count, bytes, task);
         }});
  }

  std::vector<std::vector<ScoredRow>> best_items(
      const Request& request,
      const std::vector<int64_t>& users,
      bool is_popular) const {
    const bool is_ranked = options_.ranker != nullptr && !is_popular;
    const int64_t k = request.options.k;
    auto found = search(
        request, users, is_popular, is_ranked ? options_.num_candidates : k);
    for (size_t i = 0; i < users.size(); ++i) {
      std::vector<ScoredRow>& best = found[i];
      if (is_ranked) {
        rank(request, users[i], best);
      }
      if (request.diverse != nullptr) {
        best = choose_diverse(
            k,
            request.options.diversity->max_per_value,
            [&](int64_t count) {
              return is_ranked
                  ? best
                  : search(request, std::span(&users[i], 1), is_popular, count)
                        .front();
            },
            [&](const ScoredRow& row) -> std::optional<int64_t> {
              const int64_t value =
                  request.diverse
                      ->values[request.items->attribute_rows[row.number]];
              return data::is_missing(value) ? std::nullopt
                                             : std::optional(value);
            });
      }
      best.resize(std::min(best.size(), static_cast<size_t>(k)));
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
      ids.push_back(request.items->ids[row.number]);
    }
    const at::Tensor scores = evaluate(
        options_.ranker,
        select_users(request.features, {user}),
        at::tensor(ids, at::kLong));
    TESSERA_CHECK_VALUE(
        scores.defined() && scores.dim() == 1,
        "{} options.ranker must give one score per item, [{}], but got {}.",
        kRecommend,
        ids.size(),
        describe(scores));
    const at::Tensor checked = vectors_of(
        scores.unsqueeze(-1), kRecommend, "options.ranker", std::ssize(ids), 1);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].score = checked.const_data_ptr<float>()[i];
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
        .from = request.users.from,
        .passed = request.allowed == nullptr ? request.items->size()
                                             : request.allowed->count()};
    for (size_t user = 0; user < found.size(); ++user) {
      const auto begin = static_cast<int64_t>(user) * request.options.k;
      for (size_t i = 0; i < found[user].size(); ++i) {
        const auto at = begin + static_cast<int64_t>(i);
        result.ids.mutable_data_ptr<int64_t>()[at] =
            request.items->ids[found[user][i].number];
        result.scores.mutable_data_ptr<float>()[at] = found[user][i].score;
      }
      if (options_.pipeline) {
        result.texts.push_back(options_.pipeline->to_text(
            options_.item,
            result.ids[static_cast<int64_t>(user)].narrow(
                0, 0, std::ssize(found[user]))));
      }
    }
    return result;
  }

  training::ModelPointer model_;
  RecommenderOptions options_;
  std::string attribute_bytes_;
  std::optional<ItemAttributes> attributes_;
  mutable FilterCache filters_;
  mutable std::mutex mutex_;  // guards the members below
  std::shared_ptr<const SortedItems> items_;
  mutable std::map<std::set<std::string>, data::FeaturePipeline> pipelines_;
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
  return impl_->recommend(users, options);
}

Recommendations Recommender::recommend(
    const data::Columns& users,
    const RecommendOptions& options) const {
  return impl_->recommend(users, options);
}

}  // namespace tessera
