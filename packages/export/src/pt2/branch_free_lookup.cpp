// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/branch_free_lookup.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <tuple>
#include <variant>
#include <vector>

#include "src/features/output_shapes.h"
#include "src/tables/combiner_operators.h"

namespace tessera::exporting {

namespace {

// The text with `?` in place of characters that a message in a `.pt2` file can't have.
// Compilers paste messages into C++ code, so messages are plain ASCII without quotes,
// backslashes, braces and percent signs.
std::string plain_text(const std::string& text) {
  std::string plain;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool is_plain = byte >= 0x20 && byte < 0x7f && letter != '"' &&
        letter != '\'' && letter != '\\' && letter != '{' && letter != '}' &&
        letter != '%';
    plain += is_plain ? letter : '?';
  }
  return plain;
}

// Ids in the order of their bags, as embedding_bag() takes them.
struct SortedIds {
  at::Tensor
      order;  // [nnz] positions of the ids of bag 0, of bag 1, ...; the rest is unused
  at::Tensor
      starts;  // [bags + 1] the beginning of each bag, and the end of the last one
};

class Lookup {
 public:
  Lookup(const ExportedLayer& layer, size_t index, Checks& checks)
      : state_(layer.features[index]),
        config_(*state_.config.table),
        table_(layer.tables[state_.table]),
        rules_(id_rules_of(state_.config, table_)),
        name_(plain_text(layer.paths[index])),
        checks_(checks) {}

  at::Tensor dense(const at::Tensor& input) const {
    at::Tensor ids = input;
    if (ids.dim() >= 2 && ids.size(-1) == 1) {
      ids = ids.squeeze(-1);
    }
    std::vector<int64_t> shape = ids.sizes().vec();
    shape.push_back(config_.dim);
    ids = ids_of(ids.reshape({-1}));
    const at::Tensor is_known = at::logical_and(ids >= 0, ids < rules_.rows);
    if (!rules_.zeros_out_of_range) {
      check_all(is_known);
    }
    at::Tensor rows = rows_of(ids.clamp(0, rules_.rows - 1));
    if (rules_.zeros_out_of_range) {
      rows = at::where(is_known.unsqueeze(1), rows, 0.0);
    }
    return rows.view(shape);
  }

  at::Tensor ragged(const RaggedFeature& feature, const at::Tensor& weights)
      const {
    const int64_t rows = feature.row_splits.size(0) - 1;
    const int64_t nnz = feature.values.size(0);
    const RaggedRows read = ragged_rows_of_batch(state_, rows);
    const at::Tensor ids = ids_of(feature.values);
    at::Tensor splits = feature.row_splits.to(at::kLong);
    check(splits.select(0, 0) == 0, "row_splits must begin with 0");
    check(
        splits.select(0, -1) == nnz,
        "row_splits must end with the number of values");
    check(
        (splits.slice(0, 1) - splits.slice(0, 0, -1) >= 0).all(),
        "row_splits must not decrease");
    // A compiler may move checks behind reads, so reads must be safe without checks.
    splits = splits.clamp(0, nnz);
    if (read.sequence_length > 0) {
      return ragged_sequence(ids, splits, read.sequence_length)
          .view(with_dim(read.output_shape));
    }
    const at::Tensor is_used = used_ids(weights, at::Tensor());
    check_ids(ids, is_used);
    const Chosen chosen = choose(ids, weights, is_used);
    const SortedIds sorted = partition(chosen.is_read, splits);
    at::Tensor sums = sum_bags(ids, sorted, chosen.weights, rows);
    if (is_divided(config_.combiner)) {
      const at::Tensor total = chosen.weights.defined()
          ? sum_terms(chosen, bag_of_id(splits, nnz), rows)
          : counts(
                rules_.zeros_out_of_range
                    ? partition(chosen.is_kept, splits).starts
                    : sorted.starts);
      sums = sums * inverse(total);
    }
    return sums.view(with_dim(read.output_shape));
  }

  at::Tensor sparse(const SparseFeature& feature, const at::Tensor& weights)
      const {
    const at::Tensor ids = ids_of(feature.values);
    const at::Tensor indices = feature.indices.to(at::kLong);
    const at::Tensor sizes = feature.dense_shape.to(at::kLong);
    const int64_t rank = indices.size(1);
    check((sizes >= 0).all(), "dense_shape must not be negative");
    check(
        at::logical_and(indices >= 0, indices < sizes).all(),
        "indices must lie inside dense_shape");
    PartialShape input;
    for (int64_t axis = 0; axis < rank; ++axis) {
      input.push_back(size_at(sizes, axis));
    }
    const std::vector<int64_t> shape = output_shape_of_batch(state_, input);
    const bool is_sequence = state_.config.sequence_length() > 0;
    const int64_t axes =
        is_sequence ? std::max<int64_t>(rank - 2, 1) : rank - 1;
    check(
        sizes.select(0, 0) == *input[0],
        "dense_shape must begin with the batch size of the other inputs");
    at::Tensor bag = indices.select(1, 0);
    for (int64_t axis = 1; axis < axes; ++axis) {
      check(
          sizes.select(0, axis) == *input[axis],
          fmt::format("size {} of dense_shape must be {}", axis, *input[axis])
              .c_str());
      bag = bag * *input[axis] + indices.select(1, axis);
    }
    at::Tensor is_inside;
    if (is_sequence) {
      const at::Tensor position = indices.select(1, axes);
      is_inside = position < shape.back();
      bag = bag * shape.back() + position;
    }
    const at::Tensor is_used = used_ids(weights, is_inside);
    check_ids(ids, is_used);

    const int64_t bags = c10::multiply_integers(shape);
    const at::Tensor is_safe = at::logical_and(bag >= 0, bag < bags);
    const Chosen chosen = choose(
        ids,
        weights,
        is_used.defined() ? at::logical_and(is_used, is_safe) : is_safe);
    const SortedIds sorted = sort(chosen.is_read, bag, bags);
    at::Tensor sums = sum_bags(ids, sorted, chosen.weights, bags);
    const bool is_combined = !is_sequence || rank > 2;
    if (is_combined && is_divided(config_.combiner)) {
      const bool has_same_ids =
          !chosen.weights.defined() && !rules_.zeros_out_of_range;
      const at::Tensor total = has_same_ids
          ? counts(sorted.starts)
          : sum_terms(chosen, at::where(chosen.is_kept, bag, bags), bags);
      sums = sums * inverse(total);
    }
    return sums.view(with_dim(shape));
  }

 private:
  // Reads memory, because the tracer would record item().
  static int64_t size_at(const at::Tensor& sizes, int64_t axis) {
    return sizes.const_data_ptr<int64_t>()[axis * sizes.stride(0)];
  }

  // Returns the row number of each id or key [nnz].
  at::Tensor ids_of(const at::Tensor& input) const {
    const at::Tensor ids = input.to(at::kLong);
    return table_.keys.defined() ? find_stored(table_, ids) : ids;
  }

  // The ids that a lookup counts and reads, and their weights.
  struct Chosen {
    at::Tensor is_kept = {};  // [nnz] false for ids that count as absent
    at::Tensor is_read = {};  // [nnz] false also for ids that read zeros
    at::Tensor weights = {};  // [nnz] float32, undefined without weights
  };

  // Returns a mask that is false for ids that are ignored whatever their value is. Such an
  // id is outside of a sequence, where `is_inside` is false, or its weight drops it. The
  // mask is undefined if there are no such ids.
  at::Tensor used_ids(const at::Tensor& weights, const at::Tensor& is_inside)
      const {
    if (!weights.defined() || !state_.config.validate_weights_and_indices ||
        !is_divided(config_.combiner)) {
      return is_inside;
    }
    const at::Tensor has_weight = weights.to(at::kFloat) > 0;
    return is_inside.defined() ? at::logical_and(is_inside, has_weight)
                               : has_weight;
  }

  Chosen choose(
      const at::Tensor& ids,
      const at::Tensor& weights,
      const at::Tensor& is_used) const {
    Chosen chosen{.is_kept = ids >= 0};
    if (is_used.defined()) {
      chosen.is_kept = at::logical_and(chosen.is_kept, is_used);
    }
    if (weights.defined()) {
      chosen.weights = weights.to(at::kFloat);
    }
    chosen.is_read = at::logical_and(chosen.is_kept, ids < rules_.rows);
    return chosen;
  }

  // Moves the ids that are read to the front, and keeps their order.
  static SortedIds partition(
      const at::Tensor& is_read,
      const at::Tensor& splits) {
    const int64_t nnz = is_read.size(0);
    const at::Tensor count = is_read.to(at::kLong).cumsum(0);
    const at::Tensor place = at::where(is_read, count - 1, nnz);
    const at::Tensor order = at::zeros({nnz + 1}, at::kLong)
                                 .scatter(0, place, at::arange(nnz, at::kLong))
                                 .slice(0, 0, nnz);
    return {
        .order = order,
        .starts = at::constant_pad_nd(count, {1, 0}).index_select(0, splits)};
  }

  // Sorts the ids that are read by their bags. The others come last.
  static SortedIds sort(
      const at::Tensor& is_read,
      const at::Tensor& bag,
      int64_t bags) {
    const auto [key, order] = at::sort(
        at::where(is_read, bag, bags),
        /*stable=*/true,
        /*dim=*/0,
        /*descending=*/false);
    return {
        .order = order,
        .starts = at::searchsorted(key, at::arange(bags + 1, at::kLong))};
  }

  // The weighted sums of the rows of each bag [bags, dim].
  at::Tensor sum_bags(
      const at::Tensor& ids,
      const SortedIds& sorted,
      const at::Tensor& weights,
      int64_t bags) const {
    const int64_t nnz = ids.size(0);
    const at::Tensor known = ids.clamp(0, rules_.rows - 1);
    const bool is_plain = table_.rows.scalar_type() == at::kFloat &&
        buckets_of(config_).step == 0.0F;
    // The unused rest of `order` is one more bag, which is dropped. A weight of 0 instead
    // would turn infinite rows into NaN. index_add() in place of embedding_bag() took 15
    // times as long in a compiled program.
    const at::Tensor offsets =
        at::cat({sorted.starts, at::full({1}, nnz, at::kLong)});
    std::optional<at::Tensor> weight;
    if (weights.defined()) {
      weight = weights.index_select(0, sorted.order);
    }
    const at::Tensor sums = std::get<0>(at::embedding_bag(
        is_plain ? table_.rows : rows_of(known),
        is_plain ? known.index_select(0, sorted.order) : sorted.order,
        offsets,
        /*scale_grad_by_freq=*/false,
        /*mode=*/0,
        /*sparse=*/false,
        weight,
        /*include_last_offset=*/true,
        /*padding_idx=*/std::nullopt));
    return sums.slice(0, 0, bags);
  }

  // The table rows of the first `length` ids of each ragged row: [rows * length, dim].
  at::Tensor ragged_sequence(
      const at::Tensor& ids,
      const at::Tensor& splits,
      int64_t length) const {
    const int64_t nnz = ids.size(0);
    const at::Tensor position =
        splits.slice(0, 0, -1).unsqueeze(1) + at::arange(length, at::kLong);
    const at::Tensor is_there = position < splits.slice(0, 1).unsqueeze(1);
    const at::Tensor place = at::where(is_there, position, nnz).reshape({-1});
    const at::Tensor shown =
        at::constant_pad_nd(ids, {0, 1}, -1).index_select(0, place);
    const at::Tensor is_inside = is_there.reshape({-1});
    check_ids(shown, is_inside);
    const at::Tensor is_read = at::logical_and(
        is_inside, at::logical_and(shown >= 0, shown < rules_.rows));
    return at::where(
        is_read.unsqueeze(1), rows_of(shown.clamp(0, rules_.rows - 1)), 0.0);
  }

  // The number of ids of each bag.
  static at::Tensor counts(const at::Tensor& starts) {
    return (starts.slice(0, 1) - starts.slice(0, 0, -1)).to(at::kDouble);
  }

  static at::Tensor bag_of_id(const at::Tensor& splits, int64_t nnz) {
    const at::Tensor bag = at::searchsorted(
                               splits,
                               at::arange(nnz, at::kLong),
                               /*out_int32=*/false,
                               /*right=*/true) -
        1;
    return bag.clamp(0, splits.size(0) - 1);
  }

  // The sum of combiner_term() in each bag. The ids in bag number `bags` are dropped.
  at::Tensor sum_terms(
      const Chosen& chosen,
      const at::Tensor& bag,
      int64_t bags) const {
    const at::Tensor terms = chosen.weights.defined()
        ? combiner_term(config_.combiner, chosen.weights.to(at::kDouble))
        : at::ones({bag.size(0)}, at::kDouble);
    return at::zeros({bags + 1}, at::kDouble)
        .index_add(0, at::where(chosen.is_kept, bag, bags), terms)
        .slice(0, 0, bags);
  }

  // 1 / denominator for each bag [bags, 1], and 0 for a bag without ids.
  at::Tensor inverse(const at::Tensor& total) const {
    const at::Tensor scale = combiner_denominator(config_.combiner, total)
                                 .reciprocal()
                                 .to(at::kFloat);
    return at::where(scale.isinf().logical_not(), scale, 0.0).unsqueeze(1);
  }

  std::vector<int64_t> with_dim(std::vector<int64_t> shape) const {
    shape.push_back(config_.dim);
    return shape;
  }

  // The rows [nnz, dim] of ids in the table, as float32.
  at::Tensor rows_of(const at::Tensor& ids) const {
    at::Tensor rows = read_stored(table_, ids);
    const kernels::Buckets buckets = buckets_of(config_);
    if (buckets.step != 0.0F) {
      const double lower = buckets.lower;
      const double step = buckets.step;
      rows =
          at::floor((rows.clamp(lower, buckets.upper) - lower) / step + 0.5) *
              step +
          lower;
    }
    return rows;
  }

  // Refuses ids as the layer does. Ids may have any value where `is_used` is false. If
  // `is_used` is undefined, all ids are used.
  void check_ids(const at::Tensor& ids, const at::Tensor& is_used) const {
    at::Tensor is_right;
    if (!rules_.drops_negative) {
      is_right = ids >= 0;
    }
    if (!rules_.zeros_out_of_range) {
      const at::Tensor is_below = ids < rules_.rows;
      is_right =
          is_right.defined() ? at::logical_and(is_right, is_below) : is_below;
    }
    if (!is_right.defined()) {
      return;
    }
    if (is_used.defined()) {
      is_right = at::logical_or(is_right, is_used.logical_not());
    }
    check_all(is_right);
  }

  void check_all(const at::Tensor& is_right) const {
    check(
        is_right.all(),
        fmt::format("ids must be at least 0 and less than {}", rules_.rows)
            .c_str());
  }

  void check(const at::Tensor& condition, const char* text) const {
    checks_.push_back(
        {.condition = condition,
         .message = fmt::format("feature {}: {}", name_, text)});
  }

  const FeatureState& state_;
  const TableConfig& config_;
  const StoredTable& table_;
  IdRules rules_;
  std::string name_;
  Checks& checks_;
};

}  // namespace

at::Tensor branch_free_lookup(
    const ExportedLayer& layer,
    size_t index,
    const Feature& feature,
    const at::Tensor& weights,
    Checks& checks) {
  const Lookup lookup(layer, index, checks);
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    return lookup.sparse(*sparse, weights);
  }
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    return lookup.ragged(*ragged, weights);
  }
  return lookup.dense(std::get<at::Tensor>(feature));
}

}  // namespace tessera::exporting
