// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/publisher.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>
#include <tessera/export/pt2_program.h>

#include "packages/serving/src/publisher/dense_weights.h"
#include "packages/serving/src/publisher/described_model.h"
#include "packages/serving/src/publisher/followed_table.h"
#include "packages/serving/src/publisher/model_parts.h"
#include "packages/serving/src/publisher/publish_options.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "serialization/mapped_file.h"
#include "src/common/check.h"
#include "src/common/check_path.h"
#include "src/common/error_reason.h"
#include "src/common/names.h"
#include "src/common/rank_group.h"
#include "src/engine/embedding_state.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace tessera::serving {

namespace {

constexpr const char* kPublish = "[Publisher::publish]";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

class Publisher::Impl {
 public:
  Impl(
      training::ModelPointer model,
      const std::string& directory,
      PublishOptions options)
      : model_(checked(std::move(model))),
        options_((check_options(options), std::move(options))),
        parts_(parts_of(*model_)),
        ranks_(ranks_of(parts_)) {
    check_directory(directory);
    ranks_->broadcast(Rendezvous::kSaveCheckpoint, [&] {
      directory_.emplace(directory, kPublisher);
      read_file(kPipeline, options_.pipeline);
      read_file(kProgram, options_.program);
      read_file(kCompiledProgram, options_.compiled_program);
    });
    with_states(parts_, [&](std::vector<EmbeddingState*>& states) {
      ranks_->run_on_all_ranks(Rendezvous::kSaveCheckpoint, [&] {
        check_names(states);
        describe(states);
      });
    });
    ranks_->broadcast(Rendezvous::kSaveCheckpoint, [&] { check_program(); });
  }

  ~Impl() {
    try {
      wait_here();
    } catch (const std::exception& error) {
      TORCH_WARN(
          "[Publisher] the last version was not published: ", error.what());
    }
  }

  int64_t publish(const PublishInfo& info) {
    const ProfileScope scope("tessera::publish");
    wait();
    const Clock::time_point begin = Clock::now();
    plan_ = ranks_->broadcast(Rendezvous::kSaveCheckpoint, [&] {
      plan_.report = {.version = directory_->next_version()};
      directory_->check_lock(kPublish);
      plan_.wants_base = info.base ||
          (plan_.chain.base != 0 && !directory_->has_chain(plan_.chain.base));
      keep_newest();  // makes room on a full disk
      return plan_;
    });
    VersionContent content;
    with_states(parts_, [&](std::vector<EmbeddingState*>& states) {
      add_tables(states, content);
      ranks_->broadcast(Rendezvous::kSaveCheckpoint, [&] {
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
    if (ranks_->rank() != 0) {
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
    ranks_->broadcast(Rendezvous::kSaveCheckpoint, [&] { wait_here(); });
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
    int64_t bytes = 0;  // of the rows after the base
  };
  // What the ranks agree about before a version.
  struct Plan {
    Chain chain = {};
    Chain next_chain = {};  // with this version
    // Whether the changes of the last version were not written.
    bool has_failed = false;
    bool wants_base = false;  // PublishInfo::base
    PublishReport report = {};
  };

  static std::shared_ptr<torch::nn::Module> checked(
      training::ModelPointer model) {
    TESSERA_CHECK_VALUE(
        model != nullptr,
        "{} expected a model, but got nullptr. Pass the model that is trained.",
        kPublisher);
    return model;
  }
  static void check_directory(const std::string& directory) {
    TESSERA_CHECK_VALUE(
        !directory.empty(),
        "{} expected a directory, but got ''. Pass a path.",
        kPublisher);
    check_path(directory, kPublisher);
  }

  void check_names(const std::vector<EmbeddingState*>& states) const {
    std::set<std::string> known;
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (const TableState& table : states[i]->tables) {
        const std::string name = parts_[i].prefix + table.name;
        TESSERA_CHECK_VALUE(
            known.insert(name).second,
            "{} two tables have the name '{}'. Rename one of them.",
            kPublisher,
            shorten(name));
      }
    }
    for (const auto& [name, format] : options_.formats) {
      TESSERA_CHECK_VALUE(
          known.contains(name),
          "{} `formats` has the table '{}', which the model does not have. Known: {}. Correct the name.",
          kPublisher,
          shorten(name),
          shorten_all({known.begin(), known.end()}));
    }
  }

  void read_file(const char* name, const std::string& path) {
    if (!path.empty()) {
      const MappedFile file(path, kPublisher);
      files_.emplace_back(name, file.text());
    }
  }

  // A program that does not fit would be noticed in the servers only.
  void check_program() const {
    TESSERA_CHECK_VALUE(
        options_.compiled_program.empty() || !options_.program.empty(),
        "{} options.compiled_program needs options.program, which has the names of its inputs, but that is empty. Set it to the file of export_dense_pt2() from which the package was compiled.",
        kPublisher);
    if (options_.program.empty()) {
      return;
    }
    const Pt2Program program(options_.program);
    std::map<std::string, at::Tensor> weights;
    for (const auto& [name, tensor] : dense()) {
      weights[name] = tensor;
    }
    program.with_weights(weights);
    for (const Pt2Value& input : program.signature().inputs) {
      check_input(input);
    }
  }

  void check_input(const Pt2Value& input) const {
    if (input.part.empty()) {
      TESSERA_CHECK_TYPE(
          input.dtype == at::kFloat,
          "{} options.program has the input '{}' of {}, but servers pass numbers of float32. Convert it in forward().",
          kPublisher,
          shorten(input.path),
          c10::toString(input.dtype));
      return;
    }
    const auto feature = std::find_if(
        features_.begin(), features_.end(), [&](const FeatureFile& each) {
          return each.name == input.path;
        });
    TESSERA_CHECK_VALUE(
        feature != features_.end(),
        "{} options.program has the feature '{}', which the model does not have. Export the program from this model.",
        kPublisher,
        shorten(input.path));
    if (input.part == "row_splits") {
      return;
    }
    TESSERA_CHECK_VALUE(
        input.part == "activations",
        "{} options.program takes {} of the feature '{}', but a program gets activations. Export it with export_dense_pt2().",
        kPublisher,
        input.part,
        shorten(input.path));
    const auto table = std::find_if(
        tables_.begin(), tables_.end(), [&](const FollowedTable& each) {
          return each.file().name == feature->table;
        });
    std::vector<std::optional<int64_t>> sizes{input.shape.at(0)};
    if (feature->sequence_length > 0) {
      sizes.emplace_back(feature->sequence_length);
    }
    sizes.emplace_back(table->file().dim);
    TESSERA_CHECK_VALUE(
        input.shape == sizes,
        "{} options.program takes the feature '{}' with another dim or sequence length than the model has. Export the program from this model.",
        kPublisher,
        shorten(input.path));
  }

  void describe(const std::vector<EmbeddingState*>& states) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const bool is_fused = parts_[i].tables().strategy().is_fused();
      for (TableState& table : states[i]->tables) {
        const std::string name = parts_[i].prefix + table.name;
        const StoredFormat format =
            stored_format(options_, name, table.config->dtype);
        tables_.emplace_back(
            table, is_fused, describe_table(table, name, format));
      }
      for (const FeatureState& feature : states[i]->features) {
        features_.push_back(describe_feature(
            feature,
            parts_[i].prefix,
            parts_[i].prefix + states[i]->tables[feature.table].name));
      }
    }
  }

  // Calls visit(followed, state, part) for each table.
  template <class Visit>
  void visit_tables(const std::vector<EmbeddingState*>& states, Visit visit) {
    size_t next = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (const TableState& table : states[i]->tables) {
        visit(tables_[next++], table, parts_[i]);
      }
    }
  }

  int64_t sum_of_ranks(int64_t value) const {
    const std::vector<int64_t> values = ranks_->all_gather(value);
    return std::accumulate(values.begin(), values.end(), int64_t{0});
  }

  // Takes the changes of all tables, and decides whether the version is a base. Rank 0 gets
  // the rows of all ranks.
  void add_tables(
      const std::vector<EmbeddingState*>& states,
      VersionContent& content) {
    const bool is_first = ranks_->rank() == 0;
    bool needs_base = plan_.wants_base || plan_.chain.base == 0 ||
        plan_.chain.versions >= options_.full_every;
    int64_t base_bytes = 0;
    int64_t changed_bytes = 0;
    // Set until the version is written, so that its changes are not lost.
    const bool again = std::exchange(plan_.has_failed, true);
    const auto take =
        [&](FollowedTable& table, const TableState& state, const Part& part) {
          const FollowedTable::Changes& changes = table.take(state, again);
          needs_base = needs_base || changes.are_all;
          if ((part.is_sharded() || is_first) && !state.rows.is_copy) {
            base_bytes += table.count(state) * table.row_bytes();
            changed_bytes +=
                static_cast<int64_t>(changes.rows.size()) * table.row_bytes();
          }
        };
    ranks_->run_on_all_ranks(Rendezvous::kSaveCheckpoint, [&] {
      if (is_first) {
        // Each version has all dense weights.
        base_bytes = changed_bytes = dense_bytes(dense());
      }
      visit_tables(states, take);
    });
    base_bytes = sum_of_ranks(base_bytes);
    const int64_t bytes = plan_.chain.bytes + sum_of_ranks(changed_bytes);
    const bool is_base =
        ranks_->any_of(Rendezvous::kSaveCheckpoint, needs_base) ||
        static_cast<double>(bytes) >
            options_.full_share * static_cast<double>(base_bytes);
    plan_.report.is_base = is_base;
    plan_.next_chain = is_base
        ? Chain{.base = plan_.report.version, .versions = 1}
        : Chain{
              .base = plan_.chain.base,
              .versions = plan_.chain.versions + 1,
              .bytes = bytes};
    visit_tables(
        states,
        [&](FollowedTable& table, const TableState& state, const Part& part) {
          if (part.is_sharded()) {
            const std::string own = ranks_->run_on_all_ranks(
                Rendezvous::kSaveCheckpoint,
                [&] { return table.pack(state, is_base); });
            const std::vector<std::string> packed = ranks_->gather(own);
            if (is_first) {
              content.tables.push_back(table.unpack(packed, is_base));
            }
          } else if (is_first) {
            content.tables.push_back(
                is_base ? table.all_rows(state) : table.changed_rows(state));
          }
        });
  }

  // Adds everything but the tables.
  void complete(const PublishInfo& info, VersionContent& content) {
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
    content.file.features = features_;
    content.dense = dense_content(dense());
    if (report.is_base) {
      content.files = files_;
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
  }

  void wait_here() {
    if (writing_.valid()) {
      writing_.get();
      commit();
    }
  }

  DenseWeights dense() const {
    return dense_weights(*model_, parts_);
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

  std::shared_ptr<torch::nn::Module> model_;
  PublishOptions options_;
  std::vector<Part> parts_;
  std::shared_ptr<RankGroup> ranks_;
  std::optional<PublishedDirectory> directory_;  // of rank 0
  std::vector<std::pair<std::string, std::string>> files_;  // names and bytes
  std::vector<FollowedTable> tables_;  // of all parts
  std::vector<FeatureFile> features_;
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

int64_t Publisher::publish(const PublishInfo& info) {
  return impl_->publish(info);
}

void Publisher::wait() {
  impl_->wait();
}

PublishReport Publisher::report() const {
  return impl_->report();
}

}  // namespace tessera::serving
