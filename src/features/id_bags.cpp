// SPDX-License-Identifier: Apache-2.0
#include "src/features/id_bags.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/features/feature_state.h"
#include "src/tables/active_kernels.h"
#include "src/tables/combiner_rule.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace tessera {

namespace {

constexpr int64_t kDropped = -1;

void check_tensor(
    const FeatureState& state,
    const at::Tensor& tensor,
    const char* part) {
  TESSERA_CHECK_TYPE(
      tensor.defined(), "{}{} is an undefined tensor.", where_of(state), part);
  TESSERA_CHECK_TYPE(
      tensor.device().is_cpu() && tensor.layout() == at::kStrided,
      "{}{} must be a dense tensor on the cpu, but got {} on {}. Move it with .cpu().",
      where_of(state),
      part,
      tensor.layout(),
      tensor.device());
}

void check_integers(
    const FeatureState& state,
    const at::Tensor& tensor,
    const char* part) {
  check_tensor(state, tensor, part);
  TESSERA_CHECK_TYPE(
      tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt,
      "{}{} must be int32 or int64, but got {}. Convert with .to(torch::kLong).",
      where_of(state),
      part,
      c10::toString(tensor.scalar_type()));
}

void check_rank(
    const FeatureState& state,
    const at::Tensor& tensor,
    int64_t rank,
    const char* part) {
  TESSERA_CHECK_VALUE(
      tensor.dim() == rank,
      "{}{} must have rank {}, but got shape {}.",
      where_of(state),
      part,
      rank,
      tensor.sizes());
}

// A contiguous int64 view or copy of an integer tensor.
at::Tensor as_int64(const at::Tensor& tensor) {
  return tensor.to(at::kLong).resolve_neg().contiguous();
}

// Building one feature's bags, step by step.
class BagBuilder {
 public:
  BagBuilder(const FeatureState& state, const at::Tensor& weights)
      : state_(state), config_(state.config), weights_(weights) {
    bags_.combiner = config_.table->combiner;
    bags_.dim = config_.table->dim;
  }

  IdBags dense(const at::Tensor& ids) {
    check_integers(state_, ids, "ids");
    TESSERA_CHECK_VALUE(
        ids.dim() >= 1,
        "{}a dense feature must have rank 1 or above, but got a scalar. Give it a batch dimension.",
        where());
    TESSERA_CHECK_VALUE(
        config_.sequence_length() == 0,
        "{}a sequence feature must be sparse or ragged, but got a dense tensor. Unset max_sequence_length: dense [B, K] gives [B, K, dim].",
        where());
    // A last dimension of 1 is the ids of one bag; rank 1 is always a batch.
    bags_.batch_shape = ids.sizes().vec();
    if (ids.dim() >= 2 && ids.size(-1) == 1) {
      bags_.batch_shape.pop_back();
    }
    check_output_shape();
    bags_.bags = ids.numel();
    read_ids(ids, /*is_dense=*/true);
    return std::move(bags_);
  }

  IdBags sparse(const SparseFeature& feature) {
    check_integers(state_, feature.values, "values");
    check_rank(state_, feature.values, 1, "values");
    check_integers(state_, feature.indices, "indices");
    check_integers(state_, feature.dense_shape, "dense_shape");
    check_rank(state_, feature.dense_shape, 1, "dense_shape");
    const int64_t rank = feature.dense_shape.numel();
    const int64_t nnz = feature.values.numel();
    TESSERA_CHECK_VALUE(
        rank >= 2,
        "{}a sparse feature must have rank 2 or above, but dense_shape has {} entries. The last dimension is the one that is combined.",
        where(),
        rank);
    TESSERA_CHECK_VALUE(
        feature.indices.dim() == 2 && feature.indices.size(0) == nnz &&
            feature.indices.size(1) == rank,
        "{}indices must have shape [nnz, rank] = [{}, {}], but got {}.",
        where(),
        nnz,
        rank,
        feature.indices.sizes());
    const at::Tensor shape = as_int64(feature.dense_shape);
    const at::Tensor indices = as_int64(feature.indices);
    check_indices(
        indices.data_ptr<int64_t>(), shape.data_ptr<int64_t>(), nnz, rank);
    const int64_t* sizes = shape.data_ptr<int64_t>();
    bags_.batch_shape.assign(sizes, sizes + leading_axes(rank));
    if (config_.sequence_length() > 0) {
      bags_.batch_shape.push_back(config_.sequence_length());
      is_sequence_ = rank == 2;  // higher ranks combine the ids of a position
    }
    check_output_shape();
    bags_.bags = count_bags(bags_.batch_shape);
    place_sparse(indices.data_ptr<int64_t>(), sizes, nnz, rank);
    return finish(feature.values);
  }

  IdBags ragged(const RaggedFeature& feature) {
    check_integers(state_, feature.values, "values");
    check_rank(state_, feature.values, 1, "values");
    check_integers(state_, feature.row_splits, "row_splits");
    check_rank(state_, feature.row_splits, 1, "row_splits");
    const at::Tensor splits = as_int64(feature.row_splits);
    const int64_t* offsets = splits.data_ptr<int64_t>();
    const int64_t batch = splits.numel() - 1;
    check_row_splits(offsets, batch, feature.values.numel());
    int64_t length = config_.sequence_length();
    bags_.batch_shape = {batch};
    if (length > 0) {
      bags_.batch_shape.push_back(length);
      check_output_shape();
    } else if (const auto shape = fixed_output_shape()) {
      bags_.batch_shape = *shape;
      bags_.ragged_rows = batch;
      length = length_from_output_shape(batch);
    } else if (
        state_.output_shape &&
        (state_.verifies_shape || state_.output_shape->size() > 1)) {
      reshape_rows(batch);
    }
    if (length > 0) {
      bags_.bags = count_bags({batch, length});
      place_ragged_sequence(offsets, batch, length);
      return finish(feature.values);
    }
    bags_.bags = batch;
    bags_.offsets.assign(offsets, offsets + batch + 1);
    if (read_ids(feature.values, /*is_dense=*/false) && read_weights()) {
      compute_scales();
      return std::move(bags_);
    }
    place_from_offsets();
    return finish(feature.values);
  }

 private:
  std::string where() const {
    return where_of(state_);
  }

  // Against what is known of the activation's shape.
  void check_output_shape() const {
    if (!state_.output_shape || !state_.verifies_shape) {
      return;
    }
    const PartialShape& known = *state_.output_shape;
    bool agrees = known.size() == bags_.batch_shape.size();
    for (size_t i = 0; agrees && i < known.size(); ++i) {
      agrees = !known[i] || *known[i] == bags_.batch_shape[i];
    }
    TESSERA_CHECK_VALUE(
        agrees,
        "{}inconsistent shape: the output shape is set to {} (by output_shape, build() or the first batch), but this batch gives {}. Correct the batch.",
        where(),
        to_string(known),
        c10::IntArrayRef(bags_.batch_shape));
  }

  // The product of `shape`, which must not wrap around.
  int64_t count_bags(c10::IntArrayRef shape) const {
    int64_t bags = 1;
    bool fits = true;
    for (const int64_t size : shape) {
      fits = fits && !__builtin_mul_overflow(bags, size, &bags);
    }
    TESSERA_CHECK_VALUE(
        fits && bags < std::numeric_limits<uint32_t>::max(),
        "{}a batch must have fewer than 2^32 - 1 bags, but the activation has the shape {} and dim. Split the batch.",
        where(),
        shape);
    return bags;
  }

  void check_row_splits(const int64_t* offsets, int64_t batch, int64_t nnz)
      const {
    TESSERA_CHECK_VALUE(
        batch >= 0,
        "{}row_splits must have batch + 1 >= 1 entries, but is empty. A batch of zero rows has the row_splits [0].",
        where());
    TESSERA_CHECK_VALUE(
        offsets[0] == 0,
        "{}row_splits must begin with 0, but begins with {}.",
        where(),
        offsets[0]);
    for (int64_t row = 0; row < batch; ++row) {
      TESSERA_CHECK_VALUE(
          offsets[row] <= offsets[row + 1],
          "{}row_splits must not fall, but entry {} is {} after {}.",
          where(),
          row + 1,
          offsets[row + 1],
          offsets[row]);
    }
    TESSERA_CHECK_VALUE(
        offsets[batch] == nnz,
        "{}row_splits must end with the number of values, {}, but ends with {}.",
        where(),
        nnz,
        offsets[batch]);
  }

  void check_indices(
      const int64_t* indices,
      const int64_t* shape,
      int64_t nnz,
      int64_t rank) const {
    int64_t cells = 1;
    for (int64_t axis = 0; axis < rank; ++axis) {
      TESSERA_CHECK_VALUE(
          shape[axis] >= 0 &&
              !__builtin_mul_overflow(cells, shape[axis], &cells),
          "{}dense_shape must be >= 0 and its product fit in 64 bits, but entry {} is {}.",
          where(),
          axis,
          shape[axis]);
    }
    for (int64_t i = 0; i < nnz; ++i) {
      for (int64_t axis = 0; axis < rank; ++axis) {
        const int64_t index = indices[i * rank + axis];
        TESSERA_CHECK_VALUE(
            index >= 0 && index < shape[axis],
            "{}indices must lie inside dense_shape, but indices[{}][{}] is {} and the dimension is {}.",
            where(),
            i,
            axis,
            index,
            shape[axis]);
      }
    }
  }

  // The output_shape if it is fully known. Then it decides whether a ragged row is a
  // bag or a sequence.
  std::optional<std::vector<int64_t>> fixed_output_shape() const {
    return config_.output_shape ? known_sizes(*config_.output_shape)
                                : std::nullopt;
  }

  // 0: the rows are reduced and only reshaped; otherwise their new length.
  int64_t length_from_output_shape(int64_t batch) const {
    const c10::IntArrayRef shape = bags_.batch_shape;
    const int64_t wanted = count_bags(shape);
    check_ragged_rows(state_, state_.ragged_rows, batch);
    if (wanted == batch) {
      return 0;
    }
    TESSERA_CHECK_VALUE(
        batch > 0 && wanted > batch && wanted % batch == 0,
        "{}output_shape must hold a multiple of the batch, but got {} for {} rows. Correct one of them, or leave the first dimension of output_shape unknown (std::nullopt) for bags of any number.",
        where(),
        shape,
        batch);
    TESSERA_CHECK_VALUE(
        !weights_.defined(),
        "{}weights are given, but output_shape {} spreads each of the {} rows as a sequence, which is not combined. Leave the weights out.",
        where(),
        shape,
        batch);
    return wanted / batch;
  }

  // Reshapes the rows of a ragged feature, which are bags, to the output shape. The
  // number of rows determines an unknown dimension.
  void reshape_rows(int64_t batch) {
    const PartialShape& known = *state_.output_shape;
    bags_.batch_shape.clear();
    for (const std::optional<int64_t>& size : known) {
      bags_.batch_shape.push_back(size.value_or(1));
    }
    const auto unknown = std::find(known.begin(), known.end(), std::nullopt);
    if (unknown != known.end()) {
      TESSERA_CHECK_VALUE(
          std::find(unknown + 1, known.end(), std::nullopt) == known.end(),
          "{}a ragged feature must know all dimensions of its output shape but one, but got {}. Give the others in output_shape or build().",
          where(),
          to_string(known));
      const int64_t others = count_bags(bags_.batch_shape);
      bags_.batch_shape[unknown - known.begin()] =
          batch / std::max<int64_t>(others, 1);
    }
    TESSERA_CHECK_VALUE(
        count_bags(bags_.batch_shape) == batch,
        "{}inconsistent shape: the output shape is set to {} (by output_shape, build() or the first batch), but this batch has {} rows. Correct the batch.",
        where(),
        to_string(known),
        batch);
  }

  // The number of axes of a sparse feature before the positions of a sequence. Without
  // a sequence, the number of axes before the ids of a bag.
  int64_t leading_axes(int64_t rank) const {
    return config_.sequence_length() > 0 ? std::max<int64_t>(rank - 2, 1)
                                         : rank - 1;
  }

  // Which bag each value belongs to; kDropped for none.

  void place_sparse(
      const int64_t* indices,
      const int64_t* shape,
      int64_t nnz,
      int64_t rank) {
    placement_.resize(nnz);
    const int64_t length = config_.sequence_length();
    const int64_t axes = leading_axes(rank);
    for (int64_t i = 0; i < nnz; ++i) {
      const int64_t* index = indices + i * rank;
      int64_t bag = 0;
      for (int64_t axis = 0; axis < axes; ++axis) {
        bag = bag * shape[axis] + index[axis];
      }
      if (length > 0) {
        const int64_t place = index[axes];
        bag = place < length ? bag * length + place : kDropped;
      }
      placement_[i] = bag;
    }
  }

  void place_ragged_sequence(
      const int64_t* offsets,
      int64_t batch,
      int64_t length) {
    placement_.resize(offsets[batch]);
    for (int64_t row = 0; row < batch; ++row) {
      for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
        const int64_t ordinal = i - offsets[row];
        placement_[i] = ordinal < length ? row * length + ordinal : kDropped;
      }
    }
    is_sequence_ = true;
  }

  void place_from_offsets() {
    placement_.resize(bags_.offsets.back());
    for (int64_t bag = 0; bag < bags_.bags; ++bag) {
      for (int64_t i = bags_.offsets[bag]; i < bags_.offsets[bag + 1]; ++i) {
        placement_[i] = bag;
      }
    }
  }

  // Copies all ids. True when none of them is dropped.
  bool read_ids(const at::Tensor& values, bool is_dense) {
    const int64_t nnz = values.numel();
    TESSERA_CHECK_VALUE(
        nnz < std::numeric_limits<uint32_t>::max(),
        "{}a batch must have fewer than 2^32 - 1 ids, but got {}. Split the batch.",
        where(),
        nnz);
    const at::Tensor contiguous = values.resolve_neg().contiguous();
    const int64_t vocab = config_.table->vocabulary_size;
    bags_.ids.resize(nnz);
    const kernels::KernelTable& kernels = active_kernels();
    const bool valid = values.scalar_type() == at::kLong
        ? kernels.narrow_int64(
              contiguous.data_ptr<int64_t>(), nnz, vocab, bags_.ids.data())
        : kernels.narrow_int32(
              contiguous.data_ptr<int32_t>(), nnz, vocab, bags_.ids.data());
    if (!valid) {
      check_ids(as_int64(contiguous), is_dense);
    }
    return dropped_.empty();
  }

  // Marks ids that look up zeros, and in dropped_ those that are left out.
  void check_ids(const at::Tensor& values, bool is_dense) {
    const int64_t* ids = values.data_ptr<int64_t>();
    const int64_t vocab = config_.table->vocabulary_size;
    for (int64_t i = 0; i < bags_.nnz(); ++i) {
      const bool is_negative = ids[i] < 0;
      if (!is_negative && ids[i] < vocab) {
        continue;
      }
      if (!placement_.empty() && placement_[i] == kDropped) {
        continue;  // Past the end of its sequence: never looked at.
      }
      if (is_negative && !is_dense && config_.validate_weights_and_indices) {
        dropped_.resize(bags_.ids.size(), 0);
        dropped_[i] = 1;
        continue;
      }
      TESSERA_CHECK_INDEX(
          config_.out_of_range == OutOfRange::kZero &&
              (!is_negative || is_dense),
          "{}{} has ids in [0, {}), but got {} at position {}. {}",
          where(),
          config_.table->name.empty()
              ? std::string("its table")
              : "table '" + shorten(config_.table->name) + "'",
          vocab,
          ids[i],
          i,
          is_negative && !is_dense
              ? "Set validate_weights_and_indices to drop negative ids."
              : "Correct the id, enlarge vocabulary_size, or set out_of_range "
                "= OutOfRange::kZero.");
      bags_.ids[i] = kZeroRow;
      ++bags_.zero_rows;
    }
  }

  // Copies all weights. True when none of them drops its id.
  bool read_weights() {
    if (!weights_.defined()) {
      return true;
    }
    const at::Tensor contiguous = weights_.detach().resolve_neg().contiguous();
    const float* weights = contiguous.data_ptr<float>();
    bags_.weights.assign(weights, weights + contiguous.numel());
    if (!config_.validate_weights_and_indices || !is_divided(bags_.combiner)) {
      return true;
    }
    for (size_t i = 0; i < bags_.weights.size(); ++i) {
      if (!(bags_.weights[i] > 0.0F)) {
        dropped_.resize(bags_.ids.size(), 0);
        dropped_[i] = 1;
      }
    }
    return dropped_.empty();
  }

  // Ids, weights and offsets by bag, in the order of the values in each bag.
  IdBags finish(const at::Tensor& values) {
    if (bags_.ids.empty()) {
      read_ids(values, /*is_dense=*/false);
    }
    if (bags_.weights.empty()) {
      read_weights();
    }
    for (size_t i = 0; i < dropped_.size(); ++i) {
      if (dropped_[i] != 0) {
        placement_[i] = kDropped;
      }
    }
    sort_into_bags();
    if (is_sequence_) {
      bags_.combiner = Combiner::kSum;  // At most one id, nothing to combine.
    }
    compute_scales();
    return std::move(bags_);
  }

  // A stable counting sort by bag.
  void sort_into_bags() {
    bags_.offsets.assign(bags_.bags + 1, 0);
    for (const int64_t bag : placement_) {
      if (bag != kDropped) {
        ++bags_.offsets[bag + 1];
      }
    }
    for (int64_t bag = 0; bag < bags_.bags; ++bag) {
      bags_.offsets[bag + 1] += bags_.offsets[bag];
    }
    const int64_t nnz = bags_.offsets.back();
    Buffer<int64_t> next(bags_.offsets.begin(), bags_.offsets.end());
    Buffer<uint32_t> ids(nnz);
    Buffer<float> weights(bags_.weights.empty() ? 0 : nnz);
    bags_.kept.resize(nnz);
    bags_.zero_rows = 0;
    for (size_t i = 0; i < placement_.size(); ++i) {
      if (placement_[i] == kDropped) {
        continue;
      }
      const int64_t to = next[placement_[i]]++;
      ids[to] = bags_.ids[i];
      bags_.kept[to] = static_cast<int64_t>(i);
      bags_.zero_rows += bags_.ids[i] == kZeroRow ? 1 : 0;
      if (!weights.empty()) {
        weights[to] = bags_.weights[i];
      }
    }
    bags_.ids = std::move(ids);
    bags_.weights = std::move(weights);
  }

  void compute_scales() {
    const Combiner combiner = bags_.combiner;
    if (!is_divided(combiner)) {
      return;
    }
    bags_.scales.resize(bags_.bags);
    for (int64_t bag = 0; bag < bags_.bags; ++bag) {
      double total = static_cast<double>(bags_.end(bag) - bags_.begin(bag));
      if (!bags_.weights.empty()) {
        total = 0.0;
        for (int64_t i = bags_.begin(bag); i < bags_.end(bag); ++i) {
          total += combiner_term(combiner, bags_.weights[i]);
        }
      }
      const double denominator = combiner_denominator(combiner, total);
      // A float's inverse may be infinite: as good as a zero denominator.
      const auto scale = static_cast<float>(1.0 / denominator);
      bags_.scales[bag] = std::isinf(scale) ? 0.0F : scale;
    }
  }

  const FeatureState& state_;
  const FeatureConfig& config_;
  const at::Tensor& weights_;
  IdBags bags_;
  Buffer<int64_t> placement_;  // [values]
  std::vector<char> dropped_;  // [values] or empty: none
  bool is_sequence_ = false;
};

const char* kind_of(const Feature& feature) {
  constexpr const char* kKinds[] = {"dense", "sparse", "ragged"};
  return kKinds[feature.index()];
}

bool same_values(const at::Tensor& left, const at::Tensor& right) {
  return left.is_same(right) ||
      (left.defined() && right.defined() && left.sizes() == right.sizes() &&
       at::equal(as_int64(left), as_int64(right)));
}

}  // namespace

Feature with_sparse_as_feature(const Feature& feature) {
  const auto* tensor = std::get_if<at::Tensor>(&feature);
  if (tensor != nullptr && tensor->defined() &&
      tensor->layout() == at::kSparse) {
    return SparseFeature::from_coo(*tensor);
  }
  return feature;
}

std::vector<int64_t> IdBags::activation_shape() const {
  std::vector<int64_t> shape = batch_shape;
  shape.push_back(dim);
  return shape;
}

at::Tensor flat_weights(
    const FeatureState& state,
    const Feature& feature,
    const std::optional<Feature>& weights) {
  if (!weights) {
    return {};
  }
  const std::string where = where_of(state);
  TESSERA_CHECK_VALUE(
      !std::holds_alternative<at::Tensor>(feature),
      "{}weights are given, but the feature is dense. Leave the weights out, or pass a sparse or ragged feature.",
      where);
  const auto* cells = std::get_if<SparseFeature>(&feature);
  const bool combines_places = cells != nullptr &&
      cells->dense_shape.defined() && cells->dense_shape.numel() > 2;
  TESSERA_CHECK_VALUE(
      state.config.sequence_length() == 0 || combines_places,
      "{}weights are given, but this is a sequence feature, which is not combined. Leave the weights out.",
      where);
  at::Tensor flat;
  at::Tensor values;
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    values = sparse->values;
  } else {
    values = std::get<RaggedFeature>(feature).values;
  }
  if (const auto* tensor = std::get_if<at::Tensor>(&*weights)) {
    flat = *tensor;
  } else {
    TESSERA_CHECK_TYPE(
        weights->index() == feature.index(),
        "{}weights must be {} like the feature, or its flat values, but are {}.",
        where,
        kind_of(feature),
        kind_of(*weights));
    bool same = false;
    if (const auto* sparse = std::get_if<SparseFeature>(&*weights)) {
      const auto& ids = std::get<SparseFeature>(feature);
      flat = sparse->values;
      same = same_values(sparse->indices, ids.indices) &&
          same_values(sparse->dense_shape, ids.dense_shape);
    } else {
      const auto& ragged = std::get<RaggedFeature>(*weights);
      flat = ragged.values;
      same = same_values(
          ragged.row_splits, std::get<RaggedFeature>(feature).row_splits);
    }
    TESSERA_CHECK_VALUE(
        same,
        "{}weights must have the {} of the feature, but they differ.",
        where,
        std::holds_alternative<SparseFeature>(feature)
            ? "indices and dense_shape"
            : "row_splits");
  }
  check_tensor(state, flat, "weights");
  TESSERA_CHECK_TYPE(
      at::isFloatingType(flat.scalar_type()),
      "{}weights must be of a floating-point type, but got {}.",
      where,
      c10::toString(flat.scalar_type()));
  TESSERA_CHECK_VALUE(
      values.defined() && flat.dim() == 1 && flat.numel() == values.numel(),
      "{}weights must have one value per id, [{}], but got shape {}.",
      where,
      values.defined() ? values.numel() : 0,
      flat.sizes());
  return flat.to(at::kFloat);
}

IdBags make_id_bags(
    const FeatureState& state,
    const Feature& feature,
    const at::Tensor& weights) {
  BagBuilder builder(state, weights);
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    return builder.sparse(*sparse);
  }
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    return builder.ragged(*ragged);
  }
  return builder.dense(std::get<at::Tensor>(feature));
}

IdBags make_no_bags(const FeatureState& state) {
  IdBags bags;
  bags.offsets.assign(1, 0);
  bags.combiner = state.config.table->combiner;
  bags.batch_shape = {0};
  bags.dim = state.config.table->dim;
  return bags;
}

void check_ragged_rows(const FeatureState& state, int64_t fixed, int64_t rows) {
  TESSERA_CHECK_VALUE(
      fixed < 0 || fixed == rows,
      "{}output_shape {} fixes the number of rows of a ragged batch, which was {} in the first one, but this batch has {} rows. Drop or fill up short batches, or leave the first dimension of output_shape unknown (std::nullopt) for bags of any number.",
      where_of(state),
      to_string(*state.config.output_shape),
      fixed,
      rows);
}

void drop_zero_rows(IdBags& bags) {
  if (bags.zero_rows == 0) {
    return;
  }
  Buffer<int64_t> offsets(bags.bags + 1);
  int64_t to = 0;
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    const int64_t begin = bags.begin(bag);
    const int64_t end = bags.end(bag);
    offsets[bag] = to;
    for (int64_t i = begin; i < end; ++i) {
      if (bags.ids[i] == kZeroRow) {
        continue;
      }
      bags.ids[to] = bags.ids[i];
      if (!bags.weights.empty()) {
        bags.weights[to] = bags.weights[i];
      }
      ++to;
    }
  }
  offsets[bags.bags] = to;
  bags.offsets = std::move(offsets);
  bags.ids.resize(to);
  bags.weights.resize(bags.weights.empty() ? 0 : to);
  bags.kept.clear();
  bags.zero_rows = 0;
}

}  // namespace tessera
