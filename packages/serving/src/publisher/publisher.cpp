// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/publisher.h>

#include <tessera/common/json_value.h>
#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>
#include <tessera/data/feature_pipeline.h>

#include "packages/search/src/given_items.h"
#include "packages/serving/src/format/items_file.h"
#include "packages/serving/src/publisher/followed_table.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "packages/serving/src/publisher/published_model.h"
#include "serialization/mapped_file.h"
#include "src/common/check.h"
#include "src/common/files.h"
#include "src/common/rank_group.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

namespace tessera::serving {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

bool is_enumerator(RowFormat format) {
  return format >= RowFormat::kTable && format <= RowFormat::kInt4;
}

void check_options(const PublishOptions& options) {
  const bool are_formats = is_enumerator(options.format) &&
      std::ranges::all_of(options.formats,
                          is_enumerator,
                          [](const auto& entry) { return entry.second; });
  TESSERA_CHECK_VALUE(
      are_formats,
      "[Publisher] format must be an enumerator of RowFormat. Correct the options.");
  TESSERA_CHECK_VALUE(
      options.full_every >= 1 && options.keep_last >= 1,
      "[Publisher] full_every and keep_last must be >= 1, but are {} and {}. Correct the options.",
      options.full_every,
      options.keep_last);
  TESSERA_CHECK_VALUE(
      options.full_share > 0.0,
      "[Publisher] full_share must be > 0, but is {}. Correct the options.",
      options.full_share);
  TESSERA_CHECK_VALUE(
      options.keep_seconds >= 0.0,
      "[Publisher] keep_seconds must be >= 0, but is {}. Correct the options.",
      options.keep_seconds);
}

const PublishedItems& checked(const PublishOptions& options) {
  const PublishedItems& items = *options.items;
  TESSERA_CHECK_VALUE(
      items.items != nullptr,
      "[Publisher] items.items is empty. Set it to a function that gives the vectors of items.");
  TESSERA_CHECK_VALUE(
      items.users || !items.query.empty() || items.fold_in,
      "[Publisher] expected items.users, items.query or items.fold_in, but all are empty, so servers could find items for nobody. Set the one that gives the vectors of users.");
  TESSERA_CHECK_VALUE(
      !items.seen || items.users,
      "[Publisher] items.seen needs items.users, which says how many users there are, but that is empty. Set it, or leave `seen` out.");
  TESSERA_CHECK_VALUE(
      items.score >= ItemScore::kDot && items.score <= ItemScore::kCosine &&
          items.format > RowFormat::kTable && items.format <= RowFormat::kInt4,
      "[Publisher] items.score must be an enumerator of ItemScore, and items.format one of RowFormat but kTable, because the vectors of items are of no table. Correct the options.");
  TESSERA_CHECK_VALUE(
      items.num_candidates >= 0 &&
          (items.num_candidates == 0 || !options.program.empty()),
      "[Publisher] items.num_candidates must be >= 0, and needs options.program if it is not 0, but is {}{}. Correct the options.",
      items.num_candidates,
      options.program.empty() ? " without a program" : "");
  TESSERA_CHECK_VALUE(
      items.every >= 1,
      "[Publisher] items.every must be >= 1, but is {}. Set it to 1, so that the vectors are computed with each version.",
      items.every);
  TESSERA_CHECK_VALUE(
      items.every == 1 || items.query.empty(),
      "[Publisher] items.every must be 1 with items.query, but is {}. The program of items.query uses the weights of each version, which do not fit older vectors of items. Set items.every to 1, or give the vectors of users by items.users.",
      items.every);
  const auto& [plain, per_item, catalogue] =
      items.fold_in.value_or(PublishedFoldIn());
  TESSERA_CHECK_VALUE(
      plain > 0.0 && per_item >= 0.0 && catalogue >= 0.0 &&
          std::isfinite(plain + per_item + catalogue),
      "[Publisher] items.fold_in must have a regularization > 0 and other numbers >= 0, but has {}, {} and {}. Correct the options.",
      plain,
      per_item,
      catalogue);
  return items;
}

// The sum of v v^T over the rows v as float32, and what that leaves of it, [dim, 2 dim].
at::Tensor products_of(const at::Tensor& vectors) {
  constexpr int64_t kRows = 10'000;  // at once, as doubles
  const int64_t dim = vectors.size(1);
  at::Tensor sum = at::zeros({dim, dim}, at::kDouble);
  for (const at::Tensor& part : vectors.split(kRows)) {
    const at::Tensor rows = part.to(at::kDouble);
    sum.addmm_(rows.t(), rows);
  }
  const at::Tensor floats = sum.to(at::kFloat);
  return checked_vectors(
      at::cat({floats, sum.sub(floats).to(at::kFloat)}, 1),
      "[Publisher] the products of items",
      dim,
      2 * dim,
      ItemScore::kDot);
}

// The rows with other bits.
std::vector<uint32_t> changed_rows(
    const at::Tensor& before,
    const at::Tensor& now) {
  const at::Tensor is_other = before.view(at::kInt).ne(now.view(at::kInt));
  const at::Tensor rows = is_other.any(1).nonzero();
  const auto* first = rows.const_data_ptr<int64_t>();
  return {first, first + rows.numel()};
}

// The part of a Publisher that writes PublishOptions::items.
class ItemPublisher {
 public:
  // `options` stay in memory.
  // Errors:  c10::ValueError for items that do not fit the other options or the model.
  ItemPublisher(const PublishOptions& options, const PublishedModel& model)
      : options_(checked(options)),
        pipeline_(
            options.pipeline.empty()
                ? std::nullopt
                : std::optional(load_pipeline(options.pipeline))),
        given_(kPublisher, pipeline_, options_.user, options_.item) {
    if (!options_.attributes.entries().empty()) {
      attributes_ = given_.attributes(options_.attributes);
    }
    if (!options_.query.empty()) {
      query_ = model.check_program(options_.query, "items.query", false)
                   .outputs.at(0);
    }
  }
  ItemPublisher(const ItemPublisher&) = delete;
  ItemPublisher& operator=(const ItemPublisher&) = delete;

  // True if the next version gets new items. Otherwise it keeps those of the last version.
  bool is_due() const {
    return num_to_keep_ == 0;
  }
  // Takes what PublishedItems::items and users have given for the next version.
  // Errors:  c10::ValueError for what a version can't have.
  void take(const RecommenderItems& given, const at::Tensor& users) {
    SortedItems items = given_.sort(given, options_.score);
    const int64_t dim = items.vectors.size(1);
    TESSERA_CHECK_VALUE(
        !query_ ||
            (!query_->shape.empty() &&
             query_->shape.back().value_or(dim) == dim &&
             std::all_of(
                 query_->shape.begin(),
                 query_->shape.end() - 1,
                 [](const auto& size) { return size.value_or(1) == 1; })),
        "[Publisher] the first output of items.query must have {} numbers per user, as the vectors of items, but is {} of another shape. Export a model that returns the vector of the user first.",
        dim,
        query_->name);
    taken_ = {.ids = std::move(items.ids)};
    add_table(kItemVectors, items.vectors, options_.format);
    if (options_.exact_scores && options_.format >= RowFormat::kInt8) {
      add_table(kExactVectors, items.vectors, RowFormat::kFloat32);
    }
    if (items.popularity.defined()) {
      add_table(
          kPopularity,
          items.popularity.to(at::kFloat).contiguous().unsqueeze(1),
          RowFormat::kFloat32);
    }
    if (options_.users) {
      const at::Tensor vectors = checked_vectors(
          users, "[Publisher] items.users", std::nullopt, dim, options_.score);
      // They may be the memory of the model, which changes.
      add_table(kUserVectors, vectors.clone(), RowFormat::kFloat32);
    }
    if (options_.fold_in && options_.fold_in->catalogue_confidence > 0.0) {
      add_table(kItemProducts, products_of(items.vectors), RowFormat::kFloat32);
    }
    compare();
    if (needs_base_ && !attributes_.empty()) {
      given_.check_attributes(
          ItemAttributes(attributes_, kPublisher), taken_.ids);
    }
  }
  // Takes the items of the last version for the next one.
  void keep() {
    taken_ = written_;
    for (Table& table : taken_.tables) {
      table.changed.clear();
    }
    needs_base_ = false;
  }
  // True if other items, or tables of other sizes, were taken than the last version has.
  bool needs_base() const {
    return needs_base_;
  }
  // The bytes of all rows, or of those that differ from the last version.
  int64_t bytes(bool is_base) const {
    int64_t bytes = 0;
    for (const Table& table : taken_.tables) {
      bytes +=
          row_bytes(format_from_string(table.file.format), table.file.dim) *
          (is_base ? table.file.vocabulary_size : std::ssize(table.changed));
    }
    return bytes;
  }
  // Adds these rows, and the files of a base.
  // Errors:  c10::ValueError for a wrong result of PublishedItems::seen.
  void add(bool is_base, VersionContent& content) const {
    for (const Table& table : taken_.tables) {
      content.tables.push_back(content_of(
          table.file,
          table.values,
          is_base ? std::nullopt : std::optional(table.changed)));
      content.tables.back().is_copy = true;
    }
    if (!is_base) {
      return;
    }
    ItemsFile file{
        .user = options_.user,
        .item = options_.item,
        .user_items =
            options_.user_items.empty() ? options_.item : options_.user_items,
        .num_reserved_users = given_.num_reserved_users(),
        .num_reserved_items = given_.num_reserved_items(),
        .is_cosine = options_.score == ItemScore::kCosine,
        .num_candidates = options_.num_candidates};
    if (options_.fold_in) {
      file.fold_in = FoldInFile{*options_.fold_in};
    }
    content.files.emplace_back(kItems, write_fields(file).dump());
    content.files.emplace_back(kItemIds, bytes_of(taken_.ids));
    if (!attributes_.empty()) {
      content.files.emplace_back(kItemAttributes, attributes_);
    }
    if (options_.seen) {
      content.files.emplace_back(kSeenItems, seen_items());
    }
  }
  // Called when this version is written.
  void accept() {
    written_ = std::move(taken_);
    num_to_keep_ = (num_to_keep_ == 0 ? options_.every : num_to_keep_) - 1;
  }

 private:
  struct Table {
    TableFile file = {};
    at::Tensor values = {};  // [rows, dim] float32
    std::vector<uint32_t> changed = {};  // rows, ascending
  };
  struct Content {
    std::vector<int64_t> ids = {};
    std::vector<Table> tables = {};
  };

  void add_table(const char* name, at::Tensor values, RowFormat format) {
    taken_.tables.push_back(
        {.file =
             {.name = name,
              .dim = values.size(1),
              .format = to_string(stored_format(format, at::kFloat)),
              .vocabulary_size = values.size(0)},
         .values = std::move(values)});
  }
  // Compares what was taken with the last version.
  void compare() {
    const auto fits = [](const Table& left, const Table& right) {
      return left.file.name == right.file.name &&
          left.values.sizes() == right.values.sizes();
    };
    needs_base_ = taken_.ids != written_.ids ||
        !std::ranges::equal(taken_.tables, written_.tables, fits);
    for (size_t i = 0; i < taken_.tables.size() && !needs_base_; ++i) {
      Table& table = taken_.tables[i];
      table.changed = changed_rows(written_.tables[i].values, table.values);
    }
  }
  // The bytes of the file kSeenItems.
  std::string seen_items() const {
    constexpr int64_t kUsers = 100'000;  // at once
    const auto users =
        std::ranges::find(taken_.tables, kUserVectors, [](const Table& table) {
          return table.file.name;
        });
    const int64_t end = users->file.vocabulary_size;
    // Users with reserved ids are unknown.
    int64_t first = std::min(given_.num_reserved_users(), end);
    std::vector<int64_t> splits(static_cast<size_t>(first) + 1);
    std::vector<int64_t> ids;
    for (; first < end; first += kUsers) {
      const int64_t count = std::min(kUsers, end - first);
      const ItemBags bags = bags_of(
          options_.seen(at::arange(first, first + count, at::kLong)),
          count,
          "[Publisher] items.seen");
      for (int64_t user = 0; user < count; ++user) {
        for (const int64_t id : bags.of(user)) {
          if (std::ranges::binary_search(taken_.ids, id)) {
            ids.push_back(id);
          }
        }
        splits.push_back(std::ssize(ids));
      }
    }
    return bytes_of(std::vector<int64_t>{end}) + bytes_of(splits) +
        bytes_of(ids);
  }

  const PublishedItems& options_;
  std::optional<data::FeaturePipeline> pipeline_;
  GivenItems given_;
  std::string attributes_;
  std::optional<Pt2Value>
      query_;  // the vectors that PublishedItems::query gives
  Content taken_;
  Content written_;  // in the last version
  bool needs_base_ = true;
  int64_t num_to_keep_ = 0;  // versions before the next new items
};

}  // namespace

class Publisher::Impl {
 public:
  Impl(
      training::ModelPointer model,
      const std::string& directory,
      PublishOptions options)
      : options_((check_options(options), std::move(options))),
        model_(std::move(model)),
        ranks_(model_.ranks()) {
    TESSERA_CHECK_VALUE(
        !directory.empty(),
        "[Publisher] expected a directory, but got ''. Pass a path.");
    check_path(directory, kPublisher);
    ranks_.broadcast(Rendezvous::kSaveCheckpoint, [&] {
      directory_.emplace(directory);
      read_file(kPipeline, options_.pipeline);
      read_file(kProgram, options_.program);
      read_file(kCompiledProgram, options_.compiled_program);
      read_file(kQueryProgram, options_.items ? options_.items->query : "");
    });
    model_.follow(options_);
    ranks_.broadcast(Rendezvous::kSaveCheckpoint, [&] {
      if (options_.items) {
        items_.emplace(options_, model_);
      }
    });
  }

  ~Impl() {
    try {
      wait_here();
    } catch (const std::exception& error) {
      TORCH_WARN(
          "[Publisher] the last version was not published: ", error.what());
    }
  }

  int64_t publish(const detail::PublishInfo& info) {
    const ProfileScope scope("tessera::publish");
    wait();
    const Clock::time_point begin = Clock::now();
    plan_ = ranks_.broadcast(Rendezvous::kSaveCheckpoint, [&] {
      plan_.report = {.version = directory_->next_version()};
      directory_->check_lock();
      plan_.wants_base = info.base ||
          (plan_.chain.base != 0 && !directory_->has_chain(plan_.chain.base));
      plan_.has_new_items = items_ && items_->is_due();
      keep_newest();  // makes room on a full disk
      return plan_;
    });
    take_items();
    VersionContent content;
    model_.hold_tables([&] {
      add_tables(content);
      ranks_.broadcast(Rendezvous::kSaveCheckpoint, [&] {
        complete(info, content);
        if (options_.background) {
          for (TableContent& table : content.tables) {
            copy_now(table);
          }
        } else {
          plan_.report.bytes = directory_->write(content);
          commit();
        }
      });
    });
    plan_.report.copy_seconds = seconds_since(begin);
    if (ranks_.rank() != 0) {
      const std::lock_guard<std::mutex> lock(mutex_);
      report_ = plan_.report;
    } else if (options_.background) {
      const auto shared = std::make_shared<VersionContent>(std::move(content));
      writing_ = std::async(
          std::launch::async,
          [this, shared, begin, report = plan_.report]() mutable {
            report.bytes = directory_->write(*shared);
            finish(report, begin);
          });
    } else {
      finish(plan_.report, begin);
    }
    return plan_.report.version;
  }

  void wait() {
    ranks_.broadcast(Rendezvous::kSaveCheckpoint, [&] { wait_here(); });
  }

  PublishReport report() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return report_;
  }

 private:
  // The versions from the last base on.
  struct Chain {
    int64_t base = 0;  // 0: none
    int64_t versions = 0;
    int64_t bytes = 0;  // of rows and dense weights after the base
  };
  // What the ranks agree about before a version.
  struct Plan {
    Chain chain = {};
    Chain next_chain = {};  // with this version
    // Whether the changes of the last version were not written.
    bool has_failed = false;
    bool wants_base = false;  // PublishInfo::base, or the chain is broken
    bool has_new_items = false;
    PublishReport report = {};
  };

  void read_file(const char* name, const std::string& path) {
    if (!path.empty()) {
      const MappedFile file(path, kPublisher);
      files_.emplace_back(name, file.text());
    }
  }

  int64_t sum_of_ranks(int64_t value) const {
    const std::vector<int64_t> values = ranks_.all_gather(value);
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  }

  // All ranks compute the items, because their tables may be sharded.
  void take_items() {
    if (!plan_.has_new_items) {
      if (items_) {
        items_->keep();
      }
      return;
    }
    ranks_.run_on_all_ranks(Rendezvous::kSaveCheckpoint, [&] {
      RecommenderItems items;
      at::Tensor users;
      model_.evaluate([&] {
        const PublishedItems& given = options_.items.value();
        items = given.items();
        users = given.users ? given.users() : at::Tensor();
      });
      if (items_) {
        items_->take(items, users);
      }
    });
  }

  // Takes the changes of all tables, and decides whether the version is a base. Rank 0 gets
  // the rows of all ranks.
  void add_tables(VersionContent& content) {
    const bool is_first = ranks_.rank() == 0;
    bool needs_base = plan_.wants_base || plan_.chain.base == 0 ||
        plan_.chain.versions >= options_.full_every;
    int64_t base_bytes = 0;
    int64_t changed_bytes = 0;
    // Set until the version is written, so that its changes are not lost.
    const bool again = std::exchange(plan_.has_failed, true);
    const auto take = [&](FollowedTable& table, const TableState& state) {
      const FollowedTable::Changes& changes = table.take(state, again);
      needs_base = needs_base || changes.are_all;
      if ((table.is_sharded() || is_first) && !state.rows.is_copy) {
        base_bytes += table.count(state) * table.row_bytes();
        changed_bytes += std::ssize(changes.rows) * table.row_bytes();
      }
    };
    ranks_.run_on_all_ranks(Rendezvous::kSaveCheckpoint, [&] {
      if (is_first) {
        // Each version has all dense weights.
        base_bytes = changed_bytes = model_.dense_bytes();
      }
      if (items_) {
        needs_base = needs_base || items_->needs_base();
        base_bytes += items_->bytes(/*is_base=*/true);
        changed_bytes += items_->bytes(/*is_base=*/false);
      }
      model_.visit_tables(take);
    });
    base_bytes = sum_of_ranks(base_bytes);
    const int64_t bytes = plan_.chain.bytes + sum_of_ranks(changed_bytes);
    const bool is_base =
        ranks_.any_of(Rendezvous::kSaveCheckpoint, needs_base) ||
        static_cast<double>(bytes) >
            options_.full_share * static_cast<double>(base_bytes);
    plan_.report.is_base = is_base;
    plan_.next_chain = is_base
        ? Chain{.base = plan_.report.version, .versions = 1}
        : Chain{
              .base = plan_.chain.base,
              .versions = plan_.chain.versions + 1,
              .bytes = bytes};
    model_.visit_tables([&](FollowedTable& table, const TableState& state) {
      if (table.is_sharded()) {
        const std::string own = ranks_.run_on_all_ranks(
            Rendezvous::kSaveCheckpoint,
            [&] { return table.pack(state, is_base); });
        const std::vector<std::string> packed = ranks_.gather(own);
        if (is_first) {
          content.tables.push_back(table.unpack(packed, is_base));
        }
      } else if (is_first) {
        content.tables.push_back(table.content(state, is_base));
      }
    });
  }

  // Adds everything but the tables.
  void complete(const detail::PublishInfo& info, VersionContent& content) {
    PublishReport& report = plan_.report;
    content.file.version = report.version;
    content.file.base = plan_.next_chain.base;
    content.file.previous = directory_->current();
    content.file.step = info.step;
    content.file.time = std::chrono::duration<double>(
                            std::chrono::system_clock::now().time_since_epoch())
                            .count();
    for (const auto& [name, value] : info.metrics) {
      if (!std::isnan(value)) {  // JSON has no NaN
        content.file.metrics.push_back({.name = name, .value = value});
      }
    }
    content.file.features = model_.features();
    content.dense = model_.dense_content();
    if (report.is_base) {
      content.files = files_;
    }
    if (items_) {
      items_->add(report.is_base, content);
    }
    for (const TableContent& table : content.tables) {
      report.rows += table.file.count;
      report.removed_keys += table.removed
          ? static_cast<int64_t>(table.removed->size() / sizeof(int64_t))
          : 0;
    }
  }

  // Called when a version is written.
  void commit() {
    plan_.chain = plan_.next_chain;
    plan_.has_failed = false;
    if (items_) {
      items_->accept();
    }
  }

  void wait_here() {
    if (writing_.valid()) {
      writing_.get();
      commit();
    }
  }

  void finish(PublishReport report, Clock::time_point begin) {
    report.seconds = seconds_since(begin);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      report_ = report;
    }
    keep_newest();
  }

  void keep_newest() {
    try {
      directory_->keep(options_.keep_last, options_.keep_seconds);
    } catch (const std::exception& error) {
      TORCH_WARN(reason_of(error), " Old versions take up the disk.");
    }
  }

  PublishOptions options_;
  PublishedModel model_;
  RankGroup& ranks_;
  std::optional<PublishedDirectory> directory_;  // of rank 0
  std::optional<ItemPublisher> items_;  // of rank 0
  std::vector<std::pair<std::string, std::string>> files_;  // names and bytes
  Plan plan_;
  mutable std::mutex mutex_;  // guards report_
  PublishReport report_;
  std::future<void> writing_;  // the last member, because it uses the others
};

Publisher::Publisher(
    training::ModelPointer model,
    std::string directory,
    PublishOptions options)
    : impl_(std::make_unique<Impl>(
          std::move(model),
          directory,
          std::move(options))) {}

Publisher::~Publisher() = default;

int64_t Publisher::publish(const detail::PublishInfo& info) {
  return impl_->publish(info);
}

void Publisher::wait() {
  impl_->wait();
}

PublishReport Publisher::report() const {
  return impl_->report();
}

}  // namespace tessera::serving
