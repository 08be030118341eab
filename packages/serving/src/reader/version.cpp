// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/reader/version.h"

#include "packages/serving/src/format/items_file.h"

#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera::serving {

namespace {

// Fills the members that are new in every version.
void add_file(const VersionData& data, Version::Impl& impl) {
  impl.version_json = data.file;
  impl.xxh3 = data.xxh3;
  for (const MetricFile& metric : impl.version_json.metrics) {
    impl.metrics[metric.name] = metric.value;
  }
  for (size_t i = 0; i < data.dense.size(); ++i) {
    const DenseFile& dense = impl.version_json.dense[i];
    impl.dense.push_back(
        {.name = dense.name,
         .dtype = dense.dtype,
         .shape = dense.shape,
         .bytes = data.dense[i]});
  }
  impl.dense_owner = data.dense_owner;
  for (const PublishedTable& table : impl.tables) {
    impl.table_infos.push_back(table.info());
  }
  impl.owners.push_back(data.owner);
}

template <class Infos>
size_t find_name(
    const Infos& infos,
    std::string_view name,
    const char* where,
    const char* kind) {
  const auto found = std::ranges::find_if(
      infos, [&](const auto& info) { return info.name == name; });
  TESSERA_CHECK_VALUE(
      found != infos.end(),
      "{} there is no {} '{}'. Known: {}.",
      where,
      kind,
      shorten(name),
      join_names(infos, shortened_name));
  return static_cast<size_t>(found - infos.begin());
}

int64_t examples_of(const FeatureBatch& batch) {
  return batch.row_splits.empty()
      ? std::ssize(batch.ids)
      : static_cast<int64_t>(batch.row_splits.size() - 1);
}

// Reads the ids of one feature as the layer does. The members keep their memory for the
// next batch, so a thread should use the same object for all batches.
class BatchReader {
 public:
  RowBags read(
      const Version::FeatureInfo& info,
      const IdRule& rule,
      const PublishedTable& table,
      const FeatureBatch& batch) {
    info_ = &info;
    rule_ = &rule;
    batch_ = &batch;
    check_shapes();
    scales_.clear();
    weights_ = batch.weights.empty() ? nullptr : batch.weights.data();
    const bool is_plain = info.sequence_length == 0 && are_all_kept();
    is_plain ? read_plain() : read_others(table);
    const std::span<const int64_t> ids = is_plain ? batch.ids : ids_;
    if (!is_plain && !rule.has_keys) {
      narrow(ids);
    }
    return {
        .keys = ids.data(),
        .rows = rows_.data(),
        .nnz = std::ssize(ids),
        .offsets = offsets_,
        .weights = weights_,
        .scales = scales_.empty() ? nullptr : scales_.data(),
        .bags = bags_};
  }

 private:
  void check_shapes() const {
    const auto& [ids, splits, weights] = *batch_;
    TESSERA_CHECK_VALUE(
        ids.size() < std::numeric_limits<uint32_t>::max(),
        "[Version::lookup] feature '{}': a batch must have fewer than 2^32 - 1 ids, but got {}. Split the batch.",
        shorten(info_->name),
        ids.size());
    const bool is_sequence = info_->sequence_length > 0;
    TESSERA_CHECK_VALUE(
        weights.empty() ||
            (weights.size() == ids.size() && !splits.empty() && !is_sequence),
        "[Version::lookup] feature '{}': {} weights for {} ids {}. Give each id that is combined a weight, or leave the weights out.",
        shorten(info_->name),
        weights.size(),
        ids.size(),
        splits.empty()    ? "without row_splits"
            : is_sequence ? "of a sequence, which are not combined"
                          : "do not fit");
    TESSERA_CHECK_VALUE(
        !splits.empty() || !is_sequence,
        "[Version::lookup] feature '{}' is a sequence, so it needs row_splits. Pass [0, n] for one example of n ids.",
        shorten(info_->name));
    TESSERA_CHECK_VALUE(
        splits.empty() ||
            are_row_splits(
                splits.data(), std::ssize(splits) - 1, std::ssize(ids)),
        "[Version::lookup] feature '{}': row_splits must ascend from 0 to the number of ids, {}, but go from {} to {}{}. Correct the row_splits.",
        shorten(info_->name),
        ids.size(),
        splits.front(),
        splits.back(),
        std::ranges::is_sorted(splits) ? "" : " and decrease in between");
  }

  // Whether each id is a row that counts. This is so in most batches.
  bool are_all_kept() {
    if (rule_->drops_weights() &&
        !std::ranges::all_of(
            batch_->weights, [](float weight) { return weight > 0.0F; })) {
      return false;
    }
    if (rule_->has_keys) {
      return !rule_->padding_key ||
          std::ranges::find(batch_->ids, *rule_->padding_key) ==
          batch_->ids.end();
    }
    return narrow(batch_->ids);
  }

  // Fills rows_. Returns false if an id is not the number of a row.
  bool narrow(std::span<const int64_t> ids) {
    if (rows_.size() < ids.size()) {
      rows_.resize(ids.size());
    }
    return active_kernels().narrow_int64(
        ids.data(), std::ssize(ids), rule_->vocabulary_size, rows_.data());
  }

  void read_plain() {
    bags_ = examples_of(*batch_);
    const bool has_offsets = !batch_->row_splits.empty() &&
        (weights_ != nullptr ||
         !has_one_id_per_row(batch_->row_splits.data(), bags_));
    offsets_ = has_offsets ? batch_->row_splits.data() : nullptr;
    if (has_offsets && is_divided(rule_->combiner)) {
      for (int64_t bag = 0; bag < bags_; ++bag) {
        scales_.push_back(scale_of_bag(
            rule_->combiner, weights_, offsets_[bag], offsets_[bag + 1]));
      }
    }
  }

  // Decides about each id. An id that looks up zeros counts in the combiner's denominator.
  void read_others(const PublishedTable& table) {
    const int64_t length = info_->sequence_length;
    const bool is_dense = batch_->row_splits.empty();
    const bool has_scales =
        length == 0 && !is_dense && is_divided(rule_->combiner);
    ids_.clear();
    kept_weights_.clear();
    offsets_of_kept_.assign(1, 0);
    const auto end_bag = [&] { offsets_of_kept_.push_back(std::ssize(ids_)); };
    for (int64_t example = 0; example < examples_of(*batch_); ++example) {
      const int64_t begin = is_dense ? example : batch_->row_splits[example];
      const int64_t end =
          is_dense ? example + 1 : batch_->row_splits[example + 1];
      double total = 0.0;
      for (int64_t i = begin;
           i < (length == 0 ? end : std::min(end, begin + length));
           ++i) {
        const IdUse use = use_of(i, !is_dense, table);
        const float weight = weights_ == nullptr ? 1.0F : weights_[i];
        if (use != IdUse::kDropped) {
          total += combiner_term(rule_->combiner, weight);
        }
        if (use == IdUse::kRow) {
          ids_.push_back(batch_->ids[i]);
          kept_weights_.push_back(weight);
        }
        if (length > 0) {
          end_bag();
        }
      }
      // Each position of a sequence is a bag.
      const int64_t bags = length > 0 ? (example + 1) * length : example + 1;
      offsets_of_kept_.resize(bags + 1, std::ssize(ids_));
      if (has_scales) {
        scales_.push_back(combiner_scale(rule_->combiner, total));
      }
    }
    bags_ = std::ssize(offsets_of_kept_) - 1;
    offsets_ = offsets_of_kept_.data();
    weights_ = weights_ == nullptr ? nullptr : kept_weights_.data();
  }

  IdUse use_of(int64_t i, bool is_in_bag, const PublishedTable& table) const {
    if (weights_ != nullptr && rule_->drops_weights() &&
        !(weights_[i] > 0.0F)) {
      return IdUse::kDropped;
    }
    const IdUse use = rule_->use_of(batch_->ids[i], is_in_bag);
    TESSERA_CHECK_INDEX(
        use != IdUse::kRefused,
        "[Version::lookup] feature '{}': its table '{}' has ids in [0, {}), but got {} at position {}. Correct the id. Features trained with out_of_range = kZero take any id.",
        shorten(info_->name),
        shorten(table.file().name),
        rule_->vocabulary_size,
        batch_->ids[i],
        i);
    return use;
  }

  const Version::FeatureInfo* info_ = nullptr;
  const IdRule* rule_ = nullptr;
  const FeatureBatch* batch_ = nullptr;
  const int64_t* offsets_ = nullptr;
  const float* weights_ = nullptr;
  int64_t bags_ = 0;
  std::vector<int64_t> ids_;
  std::vector<uint32_t> rows_;  // the ids of a table with a vocabulary
  std::vector<float> kept_weights_;
  std::vector<int64_t> offsets_of_kept_;
  std::vector<float> scales_;
};

}  // namespace

std::shared_ptr<const Version> make_version(
    const VersionData& base,
    const std::string& where) {
  auto impl = std::make_unique<Version::Impl>();
  std::map<std::string_view, size_t> numbers;  // of the tables
  for (const TableFile& table : base.file.tables) {
    numbers[table.name] = impl->tables.size();
    impl->tables.emplace_back(table, base, where);
  }
  for (const FeatureFile& feature : base.file.features) {
    const size_t table = numbers.at(feature.table);
    impl->features.push_back(
        {.table = table, .rule = impl->tables[table].rule_of(feature)});
    impl->feature_infos.push_back(
        {.name = feature.name,
         .table = feature.table,
         .dim = impl->tables[table].file().dim,
         .combiner = feature.combiner,
         .sequence_length = feature.sequence_length});
  }
  for (const AttachedFile& file : base.file.files) {
    impl->files[file.name] = base.text(file.bytes);
  }
  if (impl->files.contains(kItems)) {
    impl->items = std::make_unique<const ItemSearch>(
        std::make_shared<const BaseItems>(
            [&](const char* name) { return impl->file(name); }, where),
        impl->tables,
        where);
  }
  add_file(base, *impl);
  return std::make_shared<const Version>(std::move(impl));
}

std::shared_ptr<const Version> make_next_version(
    const Version& version,
    const VersionData& next,
    const std::string& where) {
  const Version::Impl& old = version.impl();
  TESSERA_CHECK_VALUE(
      next.file.base == old.version_json.base &&
          next.file.previous == old.link() &&
          next.file.features == old.version_json.features &&
          next.file.tables.size() == old.tables.size(),
      "{} it does not continue version {}. The file is damaged, or of another training.",
      where,
      old.version_json.version);
  auto impl = std::make_unique<Version::Impl>();
  for (size_t i = 0; i < old.tables.size(); ++i) {
    impl->tables.push_back(
        old.tables[i].with(next.file.tables[i], next, where));
  }
  impl->features = old.features;
  impl->feature_infos = old.feature_infos;
  impl->files = old.files;
  if (old.items != nullptr) {
    impl->items = std::make_unique<const ItemSearch>(
        old.items->items(), impl->tables, where);
  }
  impl->owners = old.owners;
  add_file(next, *impl);
  return std::make_shared<const Version>(std::move(impl));
}

Version::Version(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Version::~Version() = default;

int64_t Version::number() const {
  return impl_->version_json.version;
}

int64_t Version::base() const {
  return impl_->version_json.base;
}

int64_t Version::step() const {
  return impl_->version_json.step;
}

double Version::time() const {
  return impl_->version_json.time;
}

const std::map<std::string, double>& Version::metrics() const {
  return impl_->metrics;
}

const std::vector<Version::FeatureInfo>& Version::features() const {
  return impl_->feature_infos;
}

const std::vector<Version::TableInfo>& Version::tables() const {
  return impl_->table_infos;
}

const std::vector<Version::DenseWeight>& Version::dense() const {
  return impl_->dense;
}

std::string_view Version::pipeline() const {
  return impl_->file(kPipeline);
}

std::string_view Version::program() const {
  return impl_->file(kProgram);
}

std::string_view Version::compiled_program() const {
  return impl_->file(kCompiledProgram);
}

std::string_view Version::query_program() const {
  return impl_->file(kQueryProgram);
}

std::shared_ptr<const void> Version::base_memory() const {
  return impl_->owners.front();
}

size_t Version::feature(std::string_view name) const {
  return find_name(impl_->feature_infos, name, "[Version::feature]", "feature");
}

size_t Version::table(std::string_view name) const {
  return find_name(impl_->table_infos, name, "[Version::table]", "table");
}

size_t Version::output_size(size_t feature, const FeatureBatch& batch) const {
  TESSERA_CHECK_INDEX(
      feature < impl_->features.size(),
      "[Version::lookup] there are {} features, but got the number {}. Call feature() for the number of a name.",
      impl_->features.size(),
      feature);
  const FeatureInfo& info = impl_->feature_infos[feature];
  const int64_t floats = std::max<int64_t>(info.sequence_length, 1) * info.dim;
  int64_t size = 0;
  TESSERA_CHECK_VALUE(
      examples_of(batch) >= 0 &&
          !__builtin_mul_overflow(examples_of(batch), floats, &size),
      "[Version::lookup] feature '{}': {} examples of {} floats are too many. Split the batch.",
      shorten(info.name),
      static_cast<uint64_t>(examples_of(batch)),
      floats);
  return static_cast<size_t>(size);
}

void Version::lookup(
    size_t feature,
    const FeatureBatch& batch,
    std::span<float> out) const {
  const size_t size = output_size(feature, batch);
  const FeatureInfo& info = impl_->feature_infos[feature];
  TESSERA_CHECK_VALUE(
      out.size() == size,
      "[Version::lookup] feature '{}' gives {} floats for this batch, but `out` has {}. Call output_size().",
      shorten(info.name),
      size,
      out.size());
  thread_local BatchReader reader;
  const PublishedTable& table = impl_->tables[impl_->features[feature].table];
  table.combine(
      reader.read(info, impl_->features[feature].rule, table, batch),
      out.data());
}

void Version::lookup_rows(
    size_t table,
    std::span<const int64_t> ids,
    std::span<float> out) const {
  TESSERA_CHECK_INDEX(
      table < impl_->tables.size(),
      "[Version::lookup_rows] there are {} tables, but got the number {}. Call table() for the number of a name.",
      impl_->tables.size(),
      table);
  const PublishedTable& published = impl_->tables[table];
  const TableFile& rows = published.file();
  size_t size = 0;
  TESSERA_CHECK_VALUE(
      !__builtin_mul_overflow(ids.size(), static_cast<size_t>(rows.dim), &size),
      "[Version::lookup_rows] {} ids of table '{}' are too many. Split them.",
      ids.size(),
      shorten(rows.name));
  TESSERA_CHECK_VALUE(
      out.size() == size,
      "[Version::lookup_rows] {} ids of table '{}' give {} floats, but `out` has {}. Pass that many.",
      ids.size(),
      shorten(rows.name),
      size,
      out.size());
  for (size_t i = 0; !rows.keys && i < ids.size(); ++i) {
    TESSERA_CHECK_INDEX(
        ids[i] >= 0 && ids[i] < rows.vocabulary_size,
        "[Version::lookup_rows] table '{}' has rows in [0, {}), but got {} at position {}. Correct the id.",
        shorten(rows.name),
        rows.vocabulary_size,
        ids[i],
        i);
  }
  // The ids are read as those of a dense feature, so that a padding key gives zeros.
  thread_local BatchReader reader;
  const FeatureInfo info{.name = rows.name};
  const IdRule rule =
      published.rule_of({.combiner = to_string(Combiner::kSum)});
  published.combine(
      reader.read(info, rule, published, {.ids = ids}), out.data());
}

std::vector<RecommendResult> Version::recommend(
    std::span<const RecommendRequest> requests) const {
  TESSERA_CHECK_VALUE(
      impl_->items != nullptr,
      "[Version::recommend] version {} has no items to recommend. Publish them with PublishOptions::items.",
      number());
  std::vector<ItemSearch::Query> queries;
  for (const RecommendRequest& request : requests) {
    queries.push_back(impl_->items->prepare(request));
  }
  auto rows = impl_->items->search(queries, /*count=*/1);
  std::vector<RecommendResult> results;
  for (size_t i = 0; i < queries.size(); ++i) {
    results.push_back(impl_->items->result(
        queries[i], std::move(rows[i]), /*is_final=*/false));
  }
  return results;
}

}  // namespace tessera::serving
