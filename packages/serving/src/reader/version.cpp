// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/reader/version_impl.h"

#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/tables/combiner_rule.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera::serving {

namespace {

constexpr const char* kLookup = "[Version::lookup]";

// Fills the members that every version has new.
void add_file(const VersionData& data, Version::Impl& impl) {
  const VersionFile& file = data.file;
  impl.link = {.version = file.version, .xxh3 = data.xxh3};
  impl.base = file.base;
  impl.step = file.step;
  impl.time = file.time;
  for (const MetricFile& metric : file.metrics) {
    impl.metrics[metric.name] = metric.value;
  }
  for (size_t i = 0; i < file.dense.size(); ++i) {
    impl.dense.push_back(
        {.name = file.dense[i].name,
         .dtype = file.dense[i].dtype,
         .shape = file.dense[i].shape,
         .bytes = data.dense[i]});
  }
  impl.dense_owner = data.dense_owner;
  for (const PublishedTable& table : impl.tables) {
    impl.table_infos.push_back(
        {.name = table.name(),
         .dim = table.dim(),
         .format = to_string(table.format()),
         .vocabulary_size = table.vocabulary_size(),
         .has_keys = table.keys().has_value(),
         .rows = table.rows(),
         .overlaid_rows = table.overlaid_rows()});
  }
  impl.owners.push_back(data.owner);
}

template <class Infos>
size_t find_name(
    const Infos& infos,
    std::string_view name,
    const char* where,
    const char* kind) {
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].name == name) {
      return i;
    }
  }
  checks::fail<checks::ValueError>(
      {__func__, __FILE__, __LINE__},
      "{} there is no {} '{}'. Known: {}.",
      where,
      kind,
      shorten(name),
      join_names(infos, shortened_name));
}

int64_t examples_of(const FeatureBatch& batch) {
  return batch.row_splits.empty()
      ? static_cast<int64_t>(batch.ids.size())
      : static_cast<int64_t>(batch.row_splits.size() - 1);
}

// Reads the ids of one feature as the layer does. The members keep their memory, so a
// thread uses one object again.
class BatchReader {
 public:
  RowBags read(
      const FeatureInfo& info,
      const Version::Impl::Feature& feature,
      const PublishedTable& table,
      const FeatureBatch& batch) {
    info_ = &info;
    feature_ = &feature;
    table_ = &table;
    batch_ = &batch;
    check_shapes();
    const bool is_plain = feature.sequence_length == 0 && are_all_kept();
    is_plain ? read_plain() : read_others();
    const std::span<const int64_t> ids = is_plain ? batch.ids : ids_;
    if (!is_plain && !table.keys()) {
      narrow(ids);
    }
    return {
        .keys = ids.data(),
        .rows = rows_.data(),
        .nnz = static_cast<int64_t>(ids.size()),
        .offsets = offsets_,
        .weights = weights_,
        .scales = scales_.empty() ? nullptr : scales_.data(),
        .bags = bags_};
  }

 private:
  enum class Id { kRow, kZeros, kDropped };

  void check_shapes() const {
    const auto& [ids, splits, weights] = *batch_;
    TESSERA_CHECK_VALUE(
        ids.size() < std::numeric_limits<uint32_t>::max(),
        "{} feature '{}': a batch must have fewer than 2^32 - 1 ids, but got {}. Split the batch.",
        kLookup,
        shorten(info_->name),
        ids.size());
    const bool is_sequence = feature_->sequence_length > 0;
    TESSERA_CHECK_VALUE(
        weights.empty() ||
            (weights.size() == ids.size() && !splits.empty() && !is_sequence),
        "{} feature '{}': {} weights for {} ids {}. Give each id that is combined a weight, or leave the weights out.",
        kLookup,
        shorten(info_->name),
        weights.size(),
        ids.size(),
        splits.empty()    ? "without row_splits"
            : is_sequence ? "of a sequence, which are not combined"
                          : "do not fit");
    TESSERA_CHECK_VALUE(
        !splits.empty() || !is_sequence,
        "{} feature '{}' is a sequence, so it needs row_splits. Pass [0, n] for one example of n ids.",
        kLookup,
        shorten(info_->name));
    if (splits.empty()) {
      return;
    }
    const bool ascend = std::is_sorted(splits.begin(), splits.end());
    TESSERA_CHECK_VALUE(
        ascend && splits.front() == 0 &&
            splits.back() == static_cast<int64_t>(ids.size()),
        "{} feature '{}': row_splits must ascend from 0 to the number of ids, {}, but go from {} to {}{}. Correct the row_splits.",
        kLookup,
        shorten(info_->name),
        ids.size(),
        splits.front(),
        splits.back(),
        ascend ? "" : " and decrease in between");
  }

  bool drops_weights() const {
    return !batch_->weights.empty() && feature_->validates &&
        is_divided(feature_->combiner);
  }

  // Whether each id is a row that counts. Most batches are so.
  bool are_all_kept() {
    if (drops_weights() &&
        !std::all_of(
            batch_->weights.begin(), batch_->weights.end(), [](float weight) {
              return weight > 0.0F;
            })) {
      return false;
    }
    if (const auto& keys = table_->keys()) {
      return !keys->padding_key ||
          std::find(
              batch_->ids.begin(), batch_->ids.end(), *keys->padding_key) ==
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
        ids.data(),
        static_cast<int64_t>(ids.size()),
        table_->vocabulary_size(),
        rows_.data());
  }

  void read_plain() {
    bags_ = examples_of(*batch_);
    weights_ = batch_->weights.empty() ? nullptr : batch_->weights.data();
    const bool has_offsets = !batch_->row_splits.empty() &&
        (weights_ != nullptr || !has_one_id_per_example());
    offsets_ = has_offsets ? batch_->row_splits.data() : nullptr;
    scales_.clear();
    if (has_offsets && is_divided(feature_->combiner)) {
      for (int64_t bag = 0; bag < bags_; ++bag) {
        scales_.push_back(scale_of(offsets_[bag], offsets_[bag + 1], weights_));
      }
    }
  }

  bool has_one_id_per_example() const {
    for (size_t i = 0; i < batch_->row_splits.size(); ++i) {
      if (batch_->row_splits[i] != static_cast<int64_t>(i)) {
        return false;
      }
    }
    return true;
  }

  float scale_of(int64_t begin, int64_t end, const float* weights) const {
    auto total = static_cast<double>(end - begin);
    if (weights != nullptr) {
      total = 0.0;
      for (int64_t i = begin; i < end; ++i) {
        total += combiner_term(feature_->combiner, weights[i]);
      }
    }
    return combiner_scale(feature_->combiner, total);
  }

  // Decides about each id. An id that looks up zeros counts in the denominator.
  void read_others() {
    const int64_t length = feature_->sequence_length;
    const int64_t examples = examples_of(*batch_);
    const bool is_dense = batch_->row_splits.empty();
    const bool has_scales =
        length == 0 && !is_dense && is_divided(feature_->combiner);
    ids_.clear();
    kept_weights_.clear();
    scales_.clear();
    kept_offsets_.assign(1, 0);
    for (int64_t example = 0; example < examples; ++example) {
      const int64_t begin = is_dense ? example : batch_->row_splits[example];
      const int64_t end =
          is_dense ? example + 1 : batch_->row_splits[example + 1];
      const int64_t read_end =
          length == 0 ? end : std::min(end, begin + length);
      counted_weights_.clear();
      for (int64_t i = begin; i < read_end; ++i) {
        const Id kind = kind_of(i, is_dense);
        if (kind != Id::kDropped) {
          counted_weights_.push_back(
              batch_->weights.empty() ? 1.0F : batch_->weights[i]);
        }
        if (kind == Id::kRow) {
          ids_.push_back(batch_->ids[i]);
          kept_weights_.push_back(counted_weights_.back());
        }
        if (length > 0) {
          kept_offsets_.push_back(static_cast<int64_t>(ids_.size()));
        }
      }
      if (length > 0) {
        kept_offsets_.resize(
            static_cast<size_t>((example + 1) * length + 1),
            static_cast<int64_t>(ids_.size()));
      } else {
        kept_offsets_.push_back(static_cast<int64_t>(ids_.size()));
      }
      if (has_scales) {
        scales_.push_back(scale_of(
            0,
            static_cast<int64_t>(counted_weights_.size()),
            batch_->weights.empty() ? nullptr : counted_weights_.data()));
      }
    }
    bags_ = static_cast<int64_t>(kept_offsets_.size()) - 1;
    offsets_ = kept_offsets_.data();
    weights_ = batch_->weights.empty() ? nullptr : kept_weights_.data();
  }

  Id kind_of(int64_t i, bool is_dense) const {
    if (drops_weights() && !(batch_->weights[i] > 0.0F)) {
      return Id::kDropped;
    }
    const int64_t id = batch_->ids[i];
    if (const auto& keys = table_->keys()) {
      const bool is_padding = keys->padding_key && id == *keys->padding_key;
      return !is_padding ? Id::kRow : is_dense ? Id::kZeros : Id::kDropped;
    }
    if (id >= 0 && id < table_->vocabulary_size()) {
      return Id::kRow;
    }
    const bool is_invalid = id < 0 && !is_dense;
    if (is_invalid && feature_->validates) {
      return Id::kDropped;
    }
    TESSERA_CHECK_INDEX(
        feature_->zeros_out_of_range && !is_invalid,
        "{} feature '{}': its table '{}' has ids in [0, {}), but got {} at position {}. Correct the id. Features trained with out_of_range = kZero take any id.",
        kLookup,
        shorten(info_->name),
        shorten(table_->name()),
        table_->vocabulary_size(),
        id,
        i);
    return Id::kZeros;
  }

  const FeatureInfo* info_ = nullptr;
  const Version::Impl::Feature* feature_ = nullptr;
  const PublishedTable* table_ = nullptr;
  const FeatureBatch* batch_ = nullptr;
  const int64_t* offsets_ = nullptr;
  const float* weights_ = nullptr;
  int64_t bags_ = 0;
  std::vector<int64_t> ids_;
  std::vector<uint32_t> rows_;  // the ids of a table with a vocabulary
  std::vector<float> kept_weights_;
  std::vector<int64_t> kept_offsets_;
  std::vector<float> scales_;
  std::vector<float> counted_weights_;  // of one example
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
  impl->feature_files = base.file.features;
  for (const FeatureFile& feature : base.file.features) {
    const size_t table = numbers.at(feature.table);
    impl->features.push_back(
        {.table = table,
         .combiner = combiner_from_string(feature.combiner),
         .sequence_length = feature.sequence_length,
         .validates = feature.validates,
         .zeros_out_of_range = feature.zeros_out_of_range});
    impl->feature_infos.push_back(
        {.name = feature.name,
         .table = feature.table,
         .dim = impl->tables[table].dim(),
         .combiner = feature.combiner,
         .sequence_length = feature.sequence_length});
  }
  for (const AttachedFile& file : base.file.files) {
    const auto bytes = base.bytes(file.bytes);
    impl->files[file.name] = {
        reinterpret_cast<const char*>(bytes.data()), bytes.size()};
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
      next.file.base == old.base && next.file.previous == old.link &&
          next.file.features == old.feature_files &&
          next.file.tables.size() == old.tables.size(),
      "{} it does not continue version {}. The file is damaged, or of another training.",
      where,
      old.link.version);
  auto impl = std::make_unique<Version::Impl>();
  for (size_t i = 0; i < old.tables.size(); ++i) {
    impl->tables.push_back(
        old.tables[i].with(next.file.tables[i], next, where));
  }
  impl->features = old.features;
  impl->feature_infos = old.feature_infos;
  impl->feature_files = old.feature_files;
  impl->files = old.files;
  impl->owners = old.owners;
  add_file(next, *impl);
  return std::make_shared<const Version>(std::move(impl));
}

Version::Version(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Version::~Version() = default;

int64_t Version::number() const {
  return impl_->link.version;
}

int64_t Version::base() const {
  return impl_->base;
}

int64_t Version::step() const {
  return impl_->step;
}

double Version::time() const {
  return impl_->time;
}

const std::map<std::string, double>& Version::metrics() const {
  return impl_->metrics;
}

const std::vector<FeatureInfo>& Version::features() const {
  return impl_->feature_infos;
}

const std::vector<TableInfo>& Version::tables() const {
  return impl_->table_infos;
}

const std::vector<DenseWeight>& Version::dense() const {
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

size_t Version::feature(std::string_view name) const {
  return find_name(impl_->feature_infos, name, "[Version::feature]", "feature");
}

size_t Version::table(std::string_view name) const {
  return find_name(impl_->table_infos, name, "[Version::table]", "table");
}

size_t Version::output_size(size_t feature, const FeatureBatch& batch) const {
  TESSERA_CHECK_INDEX(
      feature < impl_->features.size(),
      "{} there are {} features, but got the number {}. Call feature() for the number of a name.",
      kLookup,
      impl_->features.size(),
      feature);
  const FeatureInfo& info = impl_->feature_infos[feature];
  const int64_t floats = std::max<int64_t>(info.sequence_length, 1) * info.dim;
  int64_t size = 0;
  TESSERA_CHECK_VALUE(
      examples_of(batch) >= 0 &&
          !__builtin_mul_overflow(examples_of(batch), floats, &size),
      "{} feature '{}': {} examples of {} floats are too many. Split the batch.",
      kLookup,
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
      "{} feature '{}' gives {} floats for this batch, but `out` has {}. Call output_size().",
      kLookup,
      shorten(info.name),
      size,
      out.size());
  thread_local BatchReader reader;
  const PublishedTable& table = impl_->tables[impl_->features[feature].table];
  const RowBags bags =
      reader.read(info, impl_->features[feature], table, batch);
  table.combine(bags, out.data());
}

void Version::lookup_rows(
    size_t table,
    std::span<const int64_t> ids,
    std::span<float> out) const {
  constexpr const char* kWhere = "[Version::lookup_rows]";
  TESSERA_CHECK_INDEX(
      table < impl_->tables.size(),
      "{} there are {} tables, but got the number {}. Call table() for the number of a name.",
      kWhere,
      impl_->tables.size(),
      table);
  const PublishedTable& rows = impl_->tables[table];
  size_t size = 0;
  TESSERA_CHECK_VALUE(
      !__builtin_mul_overflow(
          ids.size(), static_cast<size_t>(rows.dim()), &size),
      "{} {} ids of table '{}' are too many. Split them.",
      kWhere,
      ids.size(),
      shorten(rows.name()));
  TESSERA_CHECK_VALUE(
      out.size() == size,
      "{} {} ids of table '{}' give {} floats, but `out` has {}. Pass that many.",
      kWhere,
      ids.size(),
      shorten(rows.name()),
      size,
      out.size());
  for (size_t i = 0; !rows.keys() && i < ids.size(); ++i) {
    TESSERA_CHECK_INDEX(
        ids[i] >= 0 && ids[i] < rows.vocabulary_size(),
        "{} table '{}' has rows in [0, {}), but got {} at position {}. Correct the id.",
        kWhere,
        shorten(rows.name()),
        rows.vocabulary_size(),
        ids[i],
        i);
  }
  // As a dense feature, so that a padding key gives zeros.
  thread_local BatchReader reader;
  const FeatureInfo info{.name = rows.name()};
  const Impl::Feature feature{};
  rows.combine(reader.read(info, feature, rows, {.ids = ids}), out.data());
}

}  // namespace tessera::serving
