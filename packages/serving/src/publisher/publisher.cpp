// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/publisher.h>

#include <tessera/common/profile_scope.h>

#include "packages/serving/src/format/items_file.h"
#include "packages/serving/src/publisher/item_publisher.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "packages/serving/src/publisher/published_model.h"
#include "serialization/mapped_file.h"
#include "src/common/check.h"
#include "src/common/files.h"
#include "src/common/rank_group.h"

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

constexpr const char* kPublish = "[Publisher::publish]";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

bool is_enumerator(RowFormat format) {
  return format >= RowFormat::kTable && format <= RowFormat::kInt4;
}

void check_options(const PublishOptions& options) {
  const bool are_formats = is_enumerator(options.format) &&
      std::ranges::all_of(options.formats, [](const auto& entry) {
                             return is_enumerator(entry.second);
                           });
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
    check_directory(directory);
    ranks_.broadcast(Rendezvous::kSaveCheckpoint, [&] {
      directory_.emplace(directory, kPublisher);
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
      directory_->check_lock(kPublish);
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
          plan_.report.bytes = write(content);
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
            report.bytes = write(*shared);
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

  static void check_directory(const std::string& directory) {
    TESSERA_CHECK_VALUE(
        !directory.empty(),
        "[Publisher] expected a directory, but got ''. Pass a path.");
    check_path(directory, kPublisher);
  }

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

  int64_t write(const VersionContent& content) {
    Disk disk(kPublish);
    return directory_->write(content, disk);
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
    Disk disk(kPublish);
    try {
      directory_->keep(options_.keep_last, options_.keep_seconds, disk);
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
