// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/partial_tpu_embedding.h>

#include <tessera/common/shorten.h>
#include <tessera/layers/layer_json.h>  // defines get_config()

#include "src/common/check.h"
#include "src/engine/embedding_state.h"
#include "src/features/batch.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <set>
#include <string>
#include <utility>

namespace tessera {

namespace {

// Each layer finds its features by path. Keys with a '/' can give two features one path.
void check_paths(
    const std::vector<std::string>& paths,
    const std::vector<bool>& is_tpu) {
  std::set<std::pair<bool, std::string>> seen;
  for (size_t i = 0; i < paths.size(); ++i) {
    TESSERA_CHECK_VALUE(
        seen.emplace(is_tpu[i], paths[i]).second,
        "[PartialTPUEmbeddingOptions] features must have different paths, but two have the path '{}'. Rename a key of the nest.",
        shorten(paths[i]));
  }
}

}  // namespace

PartialTPUEmbeddingImpl::PartialTPUEmbeddingImpl(
    PartialTPUEmbeddingOptions options)
    : LayerImpl(std::move(options)) {
  TESSERA_CHECK_VALUE(
      this->options().size_threshold.value_or(0) >= 0,
      "[PartialTPUEmbedding] size_threshold must be >= 0, but got {}. Set it to 0 to put all tables into the TPUEmbedding, or to std::nullopt to put none there.",
      *this->options().size_threshold);
  reset();
}

void PartialTPUEmbeddingImpl::reset() {
  const EmbeddingState whole = describe_state(
      options().features, options().optimizer, "[PartialTPUEmbeddingOptions]");
  // Unnamed tables get their names here, because each layer would number its tables from 0.
  std::vector<TablePtr> tables;
  for (const TableState& table : whole.tables) {
    tables.push_back(table.config);
    if (table.config->name.empty()) {
      TableConfig config = *table.config;
      config.name = table.name;
      tables.back() = make_table(std::move(config));
    }
  }
  is_tpu_.clear();
  std::vector<FeatureConfig> leaves = options().features.flatten();
  for (size_t i = 0; i < leaves.size(); ++i) {
    leaves[i].table = tables[whole.features[i].table];
    is_tpu_.push_back(
        leaves[i].table->keys ||
        (options().size_threshold &&
         leaves[i].table->vocabulary_size > *options().size_threshold));
  }
  const Nest<FeatureConfig> features =
      options().features.pack(std::move(leaves));
  check_paths(features.paths(), is_tpu_);
  const auto halves = split(features, "features");
  const auto make = [&](const Nest<FeatureConfig>& half, Strategy strategy) {
    return TPUEmbedding(TPUEmbeddingOptions{
        .features = half,
        .optimizer = options().optimizer,
        .strategy = std::move(strategy),
        .apply = options().apply,
        .seed = options().seed,
        .missing_slots = options().missing_slots,
        .non_finite_gradients = options().non_finite_gradients,
        .check_memory = options().check_memory});
  };
  if (!halves.tpu.empty()) {
    tpu_ =
        register_module("tpu_embedding", make(halves.tpu, options().strategy));
  }
  if (!halves.small.empty()) {
    // Saved models have the layer under this name.
    small_ = register_module(
        "dense_embedding", make(halves.small, Strategy::host()));
  }
}

// The indices of the features in `part`, or of all features if it is unset.
std::vector<size_t> PartialTPUEmbeddingImpl::indices_of(
    const Part& part) const {
  if (part) {
    return part->flatten();
  }
  std::vector<size_t> indices(is_tpu_.size());
  std::iota(indices.begin(), indices.end(), size_t{0});
  return indices;
}

// The halves are flat maps by path, so that messages name the path in the whole nest.
template <class T>
PartialTPUEmbeddingImpl::Halves<T> PartialTPUEmbeddingImpl::split(
    const Nest<T>& nest,
    const char* what,
    const Part& part) const {
  const auto leaves_of = [&](const auto& structure) {
    return std::is_same_v<Nest<T>, Weights>
        ? some_leaves_like(structure, nest, what)
        : leaves_like(structure, nest, what);
  };
  const std::vector<const T*> leaves =
      part ? leaves_of(*part) : leaves_of(options().features);
  const std::vector<size_t> indices = indices_of(part);
  std::vector<const T*> all(is_tpu_.size());
  for (size_t i = 0; i < leaves.size(); ++i) {
    all[indices[i]] = leaves[i];
  }
  const std::vector<std::string> paths = options().features.paths();
  typename Nest<T>::Map tpu;
  typename Nest<T>::Map small;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] != nullptr) {
      (is_tpu_[i] ? tpu : small).emplace_back(paths[i], *all[i]);
    }
  }
  return {Nest<T>::map(std::move(tpu)), Nest<T>::map(std::move(small))};
}

template <class T>
Nest<T> PartialTPUEmbeddingImpl::merge(
    const Nest<T>& tpu,
    const Nest<T>& small,
    const Part& part) const {
  // In `tpu` and in `small`, features are in the order of the configs.
  const std::vector<size_t> requested = indices_of(part);
  std::vector<size_t> sorted = requested;
  std::ranges::sort(sorted);
  size_t next_tpu = 0;
  size_t next_small = 0;
  std::vector<T> all(is_tpu_.size());
  for (const size_t i : sorted) {
    all[i] = is_tpu_[i] ? tpu.entries()[next_tpu++].second.leaf()
                        : small.entries()[next_small++].second.leaf();
  }
  std::vector<T> leaves;
  for (const size_t i : requested) {
    leaves.push_back(std::move(all[i]));
  }
  return part ? part->pack(std::move(leaves))
              : options().features.pack(std::move(leaves));
}

// Runs `work`, which comes before the lookup of the large tables. If it fails, tells the
// ranks that wait for this rank.
template <class Work>
auto PartialTPUEmbeddingImpl::run_or_abort(Work work) {
  try {
    return work();
  } catch (...) {
    if (!tpu_.is_empty()) {
      tpu_->abort(std::current_exception());
    }
    throw;
  }
}

Nest<at::Tensor> PartialTPUEmbeddingImpl::forward(
    const Features& features,
    const Weights& weights) {
  return forward_halves(
      features, weights, &part_of, &TPUEmbeddingImpl::forward);
}

Nest<at::Tensor> PartialTPUEmbeddingImpl::forward_partial(
    const Features& features,
    const Weights& weights) {
  return forward_halves(
      features, weights, &some_part_of, &TPUEmbeddingImpl::forward_partial);
}

Nest<at::Tensor> PartialTPUEmbeddingImpl::forward_halves(
    const Features& features,
    const Weights& weights,
    FindPart find_part,
    Forward forward) {
  FeatureHalves halves;
  const Nest<at::Tensor> small = run_or_abort([&] {
    halves = split_batch(features, weights, find_part);
    return small_.is_empty()
        ? Nest<at::Tensor>()
        : ((*small_).*forward)(halves.features.small, halves.weights.small);
  });
  Nest<at::Tensor> tpu;
  if (!tpu_.is_empty()) {
    tpu = ((*tpu_).*forward)(halves.features.tpu, halves.weights.tpu);
  }
  return merge(tpu, small, halves.part);
}

PartialTPUEmbeddingImpl::FeatureHalves PartialTPUEmbeddingImpl::split_batch(
    const Features& features,
    const Weights& weights,
    FindPart find_part) const {
  FeatureHalves halves{.part = find_part(options().features, features)};
  halves.features = split(features, "features", halves.part);
  const bool has_none = halves.part
      ? has_no_weights(weights, *halves.part)
      : has_no_weights(weights, options().features);
  if (!has_none) {
    halves.weights = split(weights, "weights", halves.part);
  }
  return halves;
}

PartialTPUEmbeddingImpl::Pending PartialTPUEmbeddingImpl::begin_forward(
    const Features& features,
    const Weights& weights) {
  FeatureHalves halves;
  Pending pending;
  run_or_abort([&] {
    halves = split_batch(features, weights, &part_of);
    if (!small_.is_empty()) {
      pending.small_ =
          small_->begin_forward(halves.features.small, halves.weights.small);
    }
  });
  if (!tpu_.is_empty()) {
    pending.tpu_ = tpu_->begin_forward(halves.features.tpu, halves.weights.tpu);
  }
  pending.part_ = std::move(halves.part);
  return pending;
}

Nest<at::Tensor> PartialTPUEmbeddingImpl::finish_forward(Pending&& pending) {
  Pending taken = std::exchange(pending, {});
  TESSERA_CHECK(
      taken.tpu_.has_value() == !tpu_.is_empty() &&
          taken.small_.has_value() == !small_.is_empty(),
      "[PartialTPUEmbedding::finish_forward] expected a pending forward of this layer, but this one is finished already, or another layer began it. Call begin_forward() on this layer again.");
  Nest<at::Tensor> tpu;
  if (taken.tpu_) {
    tpu = tpu_->finish_forward(std::move(*taken.tpu_));
  }
  Nest<at::Tensor> small;
  if (taken.small_) {
    small = small_->finish_forward(std::move(*taken.small_));
  }
  return merge(tpu, small, taken.part_);
}

Nest<PartialShape> PartialTPUEmbeddingImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  const auto halves = split(input_shapes, "input_shapes");
  return merge(
      tpu_.is_empty() ? Nest<PartialShape>()
                      : tpu_->compute_output_shape(halves.tpu),
      small_.is_empty() ? Nest<PartialShape>()
                        : small_->compute_output_shape(halves.small));
}

void PartialTPUEmbeddingImpl::build(const Nest<PartialShape>& input_shapes) {
  const bool was_built = this->input_shapes().has_value();
  LayerImpl::build(input_shapes);
  if (was_built) {
    compute_output_shape(input_shapes);  // check both halves before changes
    make_parameters(input_shapes);
  }
}

std::optional<Nest<PartialShape>> PartialTPUEmbeddingImpl::input_shapes()
    const {
  if (!LayerImpl::input_shapes()) {
    return std::nullopt;
  }
  const auto input_shapes_of = [](const TPUEmbedding& half) {
    return half.is_empty() ? Nest<PartialShape>() : *half->input_shapes();
  };
  return merge(input_shapes_of(tpu_), input_shapes_of(small_));
}

void PartialTPUEmbeddingImpl::make_parameters(
    const Nest<PartialShape>& input_shapes) {
  const auto halves = split(input_shapes, "input_shapes");
  if (!tpu_.is_empty()) {
    tpu_->build(halves.tpu);
  }
  if (!small_.is_empty()) {
    small_->build(halves.small);
  }
}

}  // namespace tessera
