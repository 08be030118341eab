// SPDX-License-Identifier: Apache-2.0
#include "src/features/batch_plan.h"

#include "src/common/active_kernels.h"
#include "src/common/parallel.h"
#include "src/features/id_rule.h"
#include "src/features/id_values.h"
#include "src/features/tensor_checks.h"

#include <new>
#include <numeric>
#include <utility>

namespace tessera {

namespace {

// With more ids, several threads read a batch, and the checks take little of the time.
constexpr int64_t kMaxPlannedIds = kParallelBytes / kIdReadBytes;
// Enough for a loop that prepares one batch ahead.
constexpr size_t kMaxSpareBags = 4;

bool copy_valid_ids(const at::Tensor& ids, int64_t vocab, uint32_t* to) {
  const kernels::KernelTable& kernels = active_kernels();
  return ids.scalar_type() == at::kLong
      ? kernels.narrow_int64(
            ids.const_data_ptr<int64_t>(), ids.numel(), vocab, to)
      : kernels.narrow_int32(
            ids.const_data_ptr<int32_t>(), ids.numel(), vocab, to);
}

// Reads row splits as read_ragged_bags() does. Returns false if they are invalid.
bool read_splits(const at::Tensor& row_splits, int64_t nnz, IdBags& bags) {
  const int64_t* splits = row_splits.const_data_ptr<int64_t>();
  if (nnz == bags.bags && has_one_id_per_row(splits, bags.bags)) {
    return true;
  }
  if (!are_row_splits(splits, bags.bags, nnz)) {
    return false;
  }
  bags.offsets.assign(splits, splits + bags.bags + 1);
  compute_scales(bags);
  return true;
}

// Empties the buffers of `bags` without freeing their memory, and copies the other
// fields of `planned`.
void begin_bags(const IdBags& planned, IdBags& bags) {
  bags.ids.clear();
  bags.offsets.clear();
  bags.weights.clear();
  bags.scales.clear();
  bags.kept.clear();
  bags.combiner = planned.combiner;
  bags.bags = planned.bags;
  bags.zero_rows = 0;
  bags.batch_shape = planned.batch_shape;
  bags.dim = planned.dim;
  bags.ragged_rows = planned.ragged_rows;
}

IdBags without_ids(const IdBags& bags) {
  IdBags result;
  begin_bags(bags, result);
  return result;
}

}  // namespace

bool BatchPlan::can_plan(
    const FeatureState& state,
    const Feature& feature,
    const IdBags& bags) {
  const auto* ragged = std::get_if<RaggedFeature>(&feature);
  const bool is_ragged_bags = ragged != nullptr &&
      bags.bags == ragged->row_splits.numel() - 1 &&
      ragged->row_splits.scalar_type() == at::kLong;
  const bool is_dense = std::holds_alternative<at::Tensor>(feature) &&
      !has_sparse_layout(feature);
  // A batch with ragged_rows may fix the number of rows, which only happens once.
  return (is_ragged_bags || is_dense) && bags.ragged_rows < 0 &&
      state.config.sequence_length() == 0 && !state.config.table->keys;
}

std::shared_ptr<const BatchPlan> BatchPlan::make(
    const Nest<FeatureConfig>& structure,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Batch& batch) {
  const int64_t num_ids = std::accumulate(
      batch.bags.begin(),
      batch.bags.end(),
      int64_t{0},
      [](int64_t sum, const IdBags& bags) { return sum + bags.nnz(); });
  if (num_ids >= kMaxPlannedIds) {
    return nullptr;
  }
  auto plan = std::make_shared<BatchPlan>();
  std::vector<size_t> indices(states.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  plan->nest_ =
      part_like(structure.pack(std::move(indices)), features, "features");
  const auto leaves = leaves_like(structure, features, "features");
  for (size_t i = 0; i < leaves.size(); ++i) {
    const FeatureState& state = states[i];
    if (!can_plan(state, *leaves[i], batch.bags[i])) {
      return nullptr;
    }
    const at::Tensor& ids = values_of(*leaves[i]);
    const auto* ragged = std::get_if<RaggedFeature>(leaves[i]);
    plan->features_.push_back(
        {.ids = TensorKind::of(ids),
         .sizes = ids.sizes().vec(),
         .is_ragged = ragged != nullptr,
         .row_splits =
             TensorKind::of(ragged == nullptr ? ids : ragged->row_splits),
         .vocab = state.config.table->vocabulary_size,
         .bags = without_ids(batch.bags[i])});
  }
  return plan;
}

bool BatchPlan::read(const Features& features, std::vector<IdBags>& bags)
    const {
  bags.resize(features_.size());
  return read_nest(nest_, features, bags);
}

bool BatchPlan::read_nest(
    const Nest<size_t>& nest,
    const Features& features,
    std::vector<IdBags>& bags) const {
  if (nest.is_leaf()) {
    const size_t index = nest.leaf();
    return features.is_leaf() &&
        read_feature(features_[index], features.leaf(), bags[index]);
  }
  if (features.is_leaf() || nest.is_map() != features.is_map() ||
      nest.size() != features.size()) {
    return false;
  }
  for (size_t i = 0; i < nest.size(); ++i) {
    if (nest.is_map() &&
        nest.entries()[i].first != features.entries()[i].first) {
      return false;
    }
    const bool is_read = nest.is_map()
        ? read_nest(
              nest.entries()[i].second, features.entries()[i].second, bags)
        : read_nest(nest.items()[i], features.items()[i], bags);
    if (!is_read) {
      return false;
    }
  }
  return true;
}

bool BatchPlan::read_feature(
    const PlannedFeature& planned,
    const Feature& feature,
    IdBags& bags) const {
  const auto* ragged = std::get_if<RaggedFeature>(&feature);
  if (planned.is_ragged != (ragged != nullptr) ||
      std::holds_alternative<SparseFeature>(feature)) {
    return false;
  }
  const at::Tensor& ids = values_of(feature);
  if (!planned.ids.matches(ids)) {
    return false;
  }
  begin_bags(planned.bags, bags);
  if (ragged == nullptr) {
    if (ids.sizes() != c10::IntArrayRef(planned.sizes)) {
      return false;
    }
  } else if (
      ids.dim() != 1 || ids.numel() >= kMaxPlannedIds ||
      !planned.row_splits.matches(ragged->row_splits) ||
      ragged->row_splits.dim() != 1 ||
      ragged->row_splits.numel() != bags.bags + 1 ||
      !read_splits(ragged->row_splits, ids.numel(), bags)) {
    return false;
  }
  bags.ids.resize(ids.numel());
  return copy_valid_ids(ids, planned.vocab, bags.ids.data());
}

std::vector<IdBags> SpareBags::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spare_.empty()) {
    return {};
  }
  std::vector<IdBags> bags = std::move(spare_.back());
  spare_.pop_back();
  return bags;
}

void SpareBags::give_back(std::vector<IdBags> bags) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (spare_.size() < kMaxSpareBags) {
    try {
      spare_.push_back(std::move(bags));
    } catch (const std::bad_alloc&) {
      return;  // The next batch allocates its own bags.
    }
  }
}

bool PlannedReader::read(
    const Features& features,
    const Weights& weights,
    Batch& batch) const {
  if (!has_no_weights(weights, features)) {
    return false;
  }
  std::shared_ptr<const BatchPlan> plan;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    plan = plan_;
  }
  if (plan == nullptr) {
    return false;
  }
  std::vector<IdBags> bags = spare_->take();
  if (!plan->read(features, bags)) {
    spare_->give_back(std::move(bags));
    return false;
  }
  batch.weights.resize(bags.size());
  batch.bags = std::move(bags);
  batch.spare = spare_;
  return true;
}

void PlannedReader::plan(
    const Nest<FeatureConfig>& structure,
    const std::vector<FeatureState>& states,
    const Features& features,
    const Weights& weights,
    const Batch& batch) {
  if (!has_no_weights(weights, structure)) {
    return;
  }
  auto plan = BatchPlan::make(structure, states, features, batch);
  const std::lock_guard<std::mutex> lock(mutex_);
  plan_ = std::move(plan);
}

void PlannedReader::forget_plan() {
  const std::lock_guard<std::mutex> lock(mutex_);
  plan_ = nullptr;
}

}  // namespace tessera
