// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/publisher.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>
#include <tessera/layers/layer.h>

#include "packages/serving/src/format/key_buckets.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "packages/serving/src/publisher/row_copier.h"
#include "serialization/mapped_file.h"
#include "src/common/buffer.h"
#include "src/common/check.h"
#include "src/common/check_path.h"
#include "src/common/names.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace tessera::serving {

namespace {

constexpr const char* kPublisher = "[Publisher]";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A module with tables, and what its names begin with.
struct Part {
  std::shared_ptr<torch::nn::Module> module;
  std::string prefix;

  TableModule& tables() const {
    return *TableModule::of(*module);
  }
};

std::vector<Part> parts_of(const std::shared_ptr<torch::nn::Module>& model) {
  std::vector<Part> parts;
  if (TableModule::of(*model) != nullptr) {
    parts.push_back({model, ""});
  }
  for (const auto& item : model->named_modules("", /*include_self=*/false)) {
    const bool is_new =
        std::none_of(parts.begin(), parts.end(), [&](const Part& part) {
          return part.module == item.value();
        });
    if (TableModule::of(*item.value()) != nullptr && is_new) {
      parts.push_back({item.value(), item.key() + "."});
    }
  }
  if (parts.size() == 1) {
    parts.front().prefix.clear();
  }
  return parts;
}

StoredFormat stored_format(RowFormat format, at::ScalarType dtype) {
  switch (format) {
    case RowFormat::kTable:
      return format_of(dtype);
    case RowFormat::kFloat32:
      return StoredFormat::kFloat32;
    case RowFormat::kBFloat16:
      return StoredFormat::kBFloat16;
    case RowFormat::kFloat16:
      return StoredFormat::kFloat16;
    case RowFormat::kInt8:
      return StoredFormat::kInt8;
    case RowFormat::kInt4:
      break;
  }
  return StoredFormat::kInt4;
}

bool is_enumerator(RowFormat format) {
  return format >= RowFormat::kTable && format <= RowFormat::kInt4;
}

void check_options(const PublishOptions& options) {
  const bool are_formats = is_enumerator(options.format) &&
      std::all_of(options.formats.begin(),
                  options.formats.end(),
                  [](const auto& entry) {
                    return is_enumerator(entry.second);
                  });
  TESSERA_CHECK_VALUE(
      are_formats,
      "{} format must be an enumerator of RowFormat. Correct the options.",
      kPublisher);
  TESSERA_CHECK_VALUE(
      options.full_every >= 1 && options.keep_last >= 1,
      "{} full_every and keep_last must be >= 1, but are {} and {}. Correct the options.",
      kPublisher,
      options.full_every,
      options.keep_last);
  TESSERA_CHECK_VALUE(
      options.full_share > 0.0,
      "{} full_share must be > 0, but is {}. Correct the options.",
      kPublisher,
      options.full_share);
  TESSERA_CHECK_VALUE(
      options.keep_seconds >= 0.0,
      "{} keep_seconds must be >= 0, but is {}. Correct the options.",
      kPublisher,
      options.keep_seconds);
}

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kLong:
      return "int64";
    case at::kInt:
      return "int32";
    case at::kShort:
      return "int16";
    case at::kChar:
      return "int8";
    case at::kByte:
      return "uint8";
    case at::kBool:
      return "bool";
    default:
      return c10::toString(dtype);
  }
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {
      reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

FeatureFile describe_feature(
    const FeatureState& feature,
    const std::string& prefix,
    const std::string& table) {
  const FeatureConfig& config = feature.config;
  TESSERA_CHECK_NOT_IMPLEMENTED(
      !config.output_shape,
      "{} feature '{}' has an output_shape, which serving does not know. Leave it out; a dense or ragged feature needs none.",
      kPublisher,
      shorten(feature.path));
  return {
      .name = prefix + feature.path,
      .table = table,
      .combiner = to_string(config.table->combiner),
      .sequence_length = config.sequence_length(),
      .validates = config.validate_weights_and_indices,
      .zeros_out_of_range = config.out_of_range == OutOfRange::kZero};
}

TableFile describe_table(
    const TableState& table,
    const std::string& name,
    StoredFormat format) {
  const TableConfig& config = *table.config;
  TableFile file{
      .name = name,
      .dim = config.dim,
      .format = to_string(format),
      .vocabulary_size = config.vocabulary_size};
  if (config.keys) {
    file.keys = KeyOptions{
        .capacity = config.keys->capacity,
        .default_key = config.keys->default_key,
        .padding_key = config.keys->padding_key};
  }
  if (config.quantization) {
    TESSERA_CHECK_VALUE(
        format != StoredFormat::kInt8 && format != StoredFormat::kInt4,
        "{} table '{}' has a quantization, which rounds what is looked up, so its rows can't have the format {}. Choose another format for it in PublishOptions::formats.",
        kPublisher,
        shorten(name),
        to_string(format));
    file.rounded_to = RoundedTo{
        .lower = config.quantization->lower,
        .upper = config.quantization->upper,
        .num_buckets = config.quantization->num_buckets};
  }
  return file;
}

// Follows the changes of one table.
class FollowedTable {
 public:
  FollowedTable(
      TableState& table,
      bool is_fused,
      TableFile file,
      StoredFormat format)
      : file_(std::move(file)), format_(format) {
    if (is_fused) {
      TESSERA_CHECK(
          table.marks == nullptr || table.marks.use_count() == 1,
          "{} another Publisher follows table '{}'. Destroy it before you make a new one.",
          kPublisher,
          shorten(file_.name));
      table.marks = std::make_shared<RowMarks>(
          table.rows.count, "the marks of table '" + shorten(table.name) + "'");
      marks_ = table.marks;
      if (table.key_rows != nullptr) {
        lost_keys_ = table.key_rows->index().collect_lost_keys();
      }
    } else {
      compared_.emplace(table);
    }
    version_ = table.parameters._version();
  }

  const TableFile& file() const {
    return file_;
  }
  int64_t base_bytes(const TableState& table) const {
    return count(table) * row_bytes(format_, file_.dim);
  }
  int64_t count(const TableState& table) const {
    return table.key_rows != nullptr ? table.key_rows->index().size()
                                     : table.rows.count;
  }

  // What has changed since the last call.
  struct Changes {
    bool are_all = false;
    std::vector<uint32_t> rows = {};  // ascending
    std::vector<int64_t> lost_keys = {};
  };
  // With `again`, also those of the last call, whose version was not written.
  Changes take(const TableState& table, bool again) {
    Changes changes;
    // Other code writes to the tensor by LibTorch's operators.
    const auto version = table.parameters._version();
    changes.are_all = std::exchange(version_, version) != version && marks_;
    if (marks_ != nullptr) {
      RowMarks::Taken taken = marks_->take();
      changes.are_all = changes.are_all || taken.are_all;
      changes.rows = std::move(taken.rows);
    } else {
      changes.rows = compared_->rows(table);
      compared_->accept(table, changes.rows);
    }
    if (lost_keys_ != nullptr) {
      for (std::vector<int64_t>& keys : *lost_keys_) {
        changes.lost_keys.insert(
            changes.lost_keys.end(), keys.begin(), keys.end());
        keys.clear();
      }
    }
    if (again) {
      std::vector<uint32_t> rows;
      std::set_union(
          changes.rows.begin(),
          changes.rows.end(),
          last_.rows.begin(),
          last_.rows.end(),
          std::back_inserter(rows));
      changes.rows = std::move(rows);
      changes.lost_keys.insert(
          changes.lost_keys.end(),
          last_.lost_keys.begin(),
          last_.lost_keys.end());
      changes.are_all = changes.are_all || last_.are_all;
    }
    last_ = changes;
    return changes;
  }

  // All rows, of a base.
  TableContent all_rows(const TableState& table) const {
    const RowCopier copier(table, format_);
    TableContent content{.file = file_, .row_bytes = copier.row_bytes()};
    content.file.count = count(table);
    if (table.key_rows == nullptr) {
      content.copy = [copier](int64_t begin, int64_t end, std::byte* out) {
        copier.copy(begin, end - begin, out);
      };
      return content;
    }
    const NumberedKeys sorted = table.key_rows->sorted_keys();
    const auto* keys = sorted.keys.const_data_ptr<int64_t>();
    const auto* rows = sorted.rows.const_data_ptr<int64_t>();
    const std::vector<uint32_t> numbers(rows, rows + sorted.rows.numel());
    content.file.count = static_cast<int64_t>(numbers.size());
    content.numbers = bytes_of(
        make_key_buckets(std::vector<int64_t>(keys, keys + numbers.size())));
    content.copy = [copier, numbers](
                       int64_t begin, int64_t end, std::byte* out) {
      copier.copy(
          c10::ArrayRef<uint32_t>(numbers).slice(
              static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
          out);
    };
    return content;
  }

  // The changed rows.
  TableContent changed_rows(const TableState& table, const Changes& changes)
      const {
    const RowCopier copier(table, format_);
    TableContent content{.file = file_, .row_bytes = copier.row_bytes()};
    std::vector<uint32_t> rows = changes.rows;
    if (table.key_rows == nullptr) {
      content.numbers = bytes_of(rows);
    } else {
      const KeyIndex& index = table.key_rows->index();
      std::vector<uint32_t> with_key;
      std::vector<int64_t> keys;
      for (const uint32_t row : rows) {
        // A row whose key was evicted since has none.
        if (const auto key = index.key_of_row(row)) {
          with_key.push_back(row);
          keys.push_back(*key);
        }
      }
      rows = std::move(with_key);
      content.numbers = bytes_of(keys);
      std::vector<uint32_t> found(changes.lost_keys.size());
      index.find(
          changes.lost_keys.data(),
          static_cast<int64_t>(found.size()),
          found.data());
      std::vector<int64_t> removed;
      for (size_t i = 0; i < found.size(); ++i) {
        if (found[i] == kNoRow) {
          removed.push_back(changes.lost_keys[i]);
        }
      }
      content.removed = bytes_of(removed);
    }
    content.file.count = static_cast<int64_t>(rows.size());
    content.copy = [copier, rows = std::move(rows)](
                       int64_t begin, int64_t end, std::byte* out) {
      copier.copy(
          c10::ArrayRef<uint32_t>(rows).slice(
              static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
          out);
    };
    return content;
  }

 private:
  TableFile file_;
  StoredFormat format_;
  std::shared_ptr<RowMarks> marks_;
  std::shared_ptr<KeyIndex::LostKeys> lost_keys_;
  std::optional<TouchedRows> compared_;
  uint32_t version_ = 0;
  Changes last_;
};

// Copies the rows now, so that the table may change before they are written.
void copy_now(TableContent& content) {
  const auto rows = std::make_shared<Buffer<char>>();
  rows->resize(static_cast<size_t>(content.file.count * content.row_bytes));
  auto* to = reinterpret_cast<std::byte*>(rows->data());
  content.copy(0, content.file.count, to);
  content.copy = [rows, to, row_bytes = content.row_bytes](
                     int64_t begin, int64_t end, std::byte* out) {
    std::copy(to + begin * row_bytes, to + end * row_bytes, out);
  };
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
        parts_(parts_of(model_)),
        directory_(checked_path(directory), kPublisher) {
    check_parts();
    if (!options_.pipeline.empty()) {
      const MappedFile file(options_.pipeline, kPublisher);
      pipeline_ = std::string(file.text());
    }
    with_states([&](std::vector<EmbeddingState*>& states) {
      check_names(states);
      describe(states);
    });
  }

  ~Impl() {
    try {
      wait();
    } catch (const std::exception& error) {
      TORCH_WARN(
          "[Publisher] the last version was not published: ", error.what());
    }
  }

  int64_t publish(const PublishInfo& info) {
    const ProfileScope scope("tessera::publish");
    wait();
    const Clock::time_point begin = Clock::now();
    VersionContent content;
    PublishReport report{.version = directory_.next_version()};
    content.file.version = report.version;
    content.file.previous = directory_.current();
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
    with_states([&](std::vector<EmbeddingState*>& states) {
      add_tables(states, content, report);
      add_dense(content);
      if (report.is_base && pipeline_) {
        content.pipeline = pipeline_;
      }
      // Set until the version is written, so that its rows are not lost.
      has_failed_ = true;
      if (options_.background) {
        for (TableContent& table : content.tables) {
          copy_now(table);
        }
      } else {
        report.bytes = write(content);
        commit();
      }
      report.copy_seconds = seconds_since(begin);
    });
    if (options_.background) {
      const auto shared = std::make_shared<VersionContent>(std::move(content));
      writing_ = std::async(std::launch::async, [this, shared, report, begin] {
        PublishReport done = report;
        done.bytes = write(*shared);
        finish(done, begin);
      });
    } else {
      finish(report, begin);
    }
    return report.version;
  }

  void wait() {
    if (!writing_.valid()) {
      return;
    }
    writing_.get();
    commit();
  }

  PublishReport report() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return report_;
  }

 private:
  static std::shared_ptr<torch::nn::Module> checked(
      training::ModelPointer model) {
    TESSERA_CHECK_VALUE(
        model != nullptr,
        "{} expected a model, but got nullptr. Pass the model that is trained.",
        kPublisher);
    return model;
  }
  static const std::string& checked_path(const std::string& directory) {
    TESSERA_CHECK_VALUE(
        !directory.empty(),
        "{} expected a directory, but got ''. Pass a path.",
        kPublisher);
    check_path(directory, kPublisher);
    return directory;
  }

  void check_parts() const {
    TESSERA_CHECK_VALUE(
        !parts_.empty(),
        "{} the model has no tables. Pass one with a TPUEmbedding or an EmbeddingEngineModule.",
        kPublisher);
    for (const Part& part : parts_) {
      TESSERA_CHECK_NOT_IMPLEMENTED(
          !part.tables().strategy().is_sharded(),
          "{} the tables of a {} are sharded, and only whole tables can be published. Save a checkpoint, load it in one process, and publish there.",
          kPublisher,
          part.tables().class_name());
    }
  }

  // Calls `use` while no thread changes the tables of any part.
  template <class Use>
  void with_states(Use use) {
    std::vector<EmbeddingState*> states;
    with_more_states(states, use);
  }
  template <class Use>
  void with_more_states(std::vector<EmbeddingState*>& states, Use& use) {
    if (states.size() == parts_.size()) {
      use(states);
      return;
    }
    parts_[states.size()].tables().change_state([&](EmbeddingState& state) {
      states.push_back(&state);
      with_more_states(states, use);
    });
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

  void describe(const std::vector<EmbeddingState*>& states) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const bool is_fused = parts_[i].tables().strategy().is_fused();
      for (TableState& table : states[i]->tables) {
        const std::string name = parts_[i].prefix + table.name;
        const auto chosen = options_.formats.find(name);
        const StoredFormat format = stored_format(
            chosen == options_.formats.end() ? options_.format : chosen->second,
            table.config->dtype);
        tables_.emplace_back(
            table, is_fused, describe_table(table, name, format), format);
      }
      for (const FeatureState& feature : states[i]->features) {
        features_.push_back(describe_feature(
            feature,
            parts_[i].prefix,
            parts_[i].prefix + states[i]->tables[feature.table].name));
      }
    }
  }

  // Calls visit(followed, state) for each table.
  template <class Visit>
  void visit_tables(const std::vector<EmbeddingState*>& states, Visit visit) {
    size_t next = 0;
    for (const EmbeddingState* state : states) {
      for (const TableState& table : state->tables) {
        visit(next, tables_[next], table);
        ++next;
      }
    }
  }

  void add_tables(
      const std::vector<EmbeddingState*>& states,
      VersionContent& content,
      PublishReport& report) {
    std::vector<FollowedTable::Changes> changes(tables_.size());
    bool needs_base =
        chain_.base == 0 || chain_.versions >= options_.full_every;
    int64_t base_bytes = 0;
    int64_t changed_bytes = 0;
    visit_tables(
        states, [&](size_t i, FollowedTable& table, const TableState& state) {
          changes[i] = table.take(state, has_failed_);
          needs_base = needs_base || changes[i].are_all;
          base_bytes += table.base_bytes(state);
          changed_bytes += static_cast<int64_t>(changes[i].rows.size()) *
              row_bytes(format_from_string(table.file().format),
                        table.file().dim);
        });
    report.is_base = needs_base ||
        static_cast<double>(chain_.bytes + changed_bytes) >
            options_.full_share * static_cast<double>(base_bytes);
    content.file.base = report.is_base ? report.version : chain_.base;
    visit_tables(
        states, [&](size_t i, FollowedTable& table, const TableState& state) {
          content.tables.push_back(
              report.is_base ? table.all_rows(state)
                             : table.changed_rows(state, changes[i]));
          const TableContent& added = content.tables.back();
          report.rows += added.file.count;
          report.removed_keys += added.removed
              ? static_cast<int64_t>(added.removed->size() / sizeof(int64_t))
              : 0;
        });
    next_chain_ = report.is_base ? Chain{.base = report.version, .versions = 1}
                                 : Chain{
                                       .base = chain_.base,
                                       .versions = chain_.versions + 1,
                                       .bytes = chain_.bytes + changed_bytes};
  }

  // Called when a version is written.
  void commit() {
    chain_ = next_chain_;
    has_failed_ = false;
  }

  void add_dense(VersionContent& content) const {
    std::set<const at::TensorImpl*> of_tables;
    for (const Part& part : parts_) {
      for (const auto& tensor : part.module->parameters()) {
        of_tables.insert(tensor.unsafeGetTensorImpl());
      }
      for (const auto& tensor : part.module->buffers()) {
        of_tables.insert(tensor.unsafeGetTensorImpl());
      }
    }
    const auto add = [&](const auto& named) {
      for (const auto& item : named) {
        const at::Tensor& tensor = item.value();
        if (of_tables.contains(tensor.unsafeGetTensorImpl())) {
          continue;
        }
        TESSERA_CHECK_VALUE(
            tensor.defined() && !tessera::detail::is_unsized(tensor),
            "{} the layer of '{}' is not built. Call forward() or build() of the model before you publish it.",
            kPublisher,
            shorten(item.key()));
        const at::Tensor values = tensor.detach().cpu().contiguous();
        content.dense.push_back(
            {.file =
                 {.name = item.key(),
                  .dtype = dtype_name(values.scalar_type()),
                  .shape = values.sizes().vec()},
             .values = std::string(
                 static_cast<const char*>(values.const_data_ptr()),
                 values.nbytes())});
      }
    };
    add(model_->named_parameters());
    add(model_->named_buffers());
  }

  int64_t write(const VersionContent& content) {
    Disk disk("[Publisher::publish]");
    return directory_.write(content, disk);
  }

  void finish(PublishReport report, Clock::time_point begin) {
    report.seconds = seconds_since(begin);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      report_ = report;
    }
    Disk disk("[Publisher::publish]");
    try {
      directory_.keep(options_.keep_last, options_.keep_seconds, disk);
    } catch (const c10::Error& error) {
      TORCH_WARN(
          error.what_without_backtrace(),
          " Version ",
          report.version,
          " is published, but older ones take up the disk.");
    }
  }

  std::shared_ptr<torch::nn::Module> model_;
  PublishOptions options_;
  std::vector<Part> parts_;
  PublishedDirectory directory_;
  std::optional<std::string> pipeline_;
  std::vector<FollowedTable> tables_;  // of all parts
  std::vector<FeatureFile> features_;
  // The versions from the last base on.
  struct Chain {
    int64_t base = 0;  // 0: none
    int64_t versions = 0;
    int64_t bytes = 0;  // of the rows after the base
  };
  Chain chain_;
  Chain next_chain_;  // with the version that is being written
  bool has_failed_ = false;
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
