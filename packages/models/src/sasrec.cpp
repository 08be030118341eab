// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/sasrec.h>

#include <tessera/layers/layer_json.h>  // defines get_config()
#include <tessera/models/linear_cross_entropy.h>
#include "layers/initial_parameter.h"
#include "layers/mode_guard.h"
#include "packages/models/src/dropout_sum.h"
#include "packages/models/src/jagged_attention.h"
#include "packages/models/src/loss_inputs.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softplus.h>

#include <cmath>
#include <string>
#include <utility>

namespace tessera {

namespace {

void check_options(const SASRecOptions& options) {
  check_positive_option("SASRec", "num_items", options.num_items);
  check_positive_option("SASRec", "dim", options.dim);
  check_positive_option("SASRec", "max_length", options.max_length);
  constexpr int64_t kMaxBlocks = 1024;
  TESSERA_CHECK_VALUE(
      options.num_blocks >= 0 && options.num_blocks <= kMaxBlocks,
      "[SASRec] num_blocks must be in [0, {}], but got {}. The paper has 2.",
      kMaxBlocks,
      options.num_blocks);
  if (options.temperature) {
    check_temperature(*options.temperature, "[SASRec]");
  }
  const double stddev = options.initial_stddev.value_or(1.0);
  TESSERA_CHECK_VALUE(
      stddev > 0.0 && std::isfinite(stddev),
      "[SASRec] initial_stddev must be > 0 and finite, but got {}. BERT has 0.02.",
      stddev);
  TESSERA_CHECK_VALUE(
      options.positions >= SequencePositions::kFirst &&
          options.positions <= SequencePositions::kNone,
      "[SASRec] positions must be an enumerator of SequencePositions, but got {}. Choose one of them.",
      static_cast<int>(options.positions));
  TESSERA_CHECK_VALUE(
      !options.one_target || options.num_blocks > 0,
      "[SASRec] one_target needs num_blocks >= 1, but got 0. Add a block.");
  if (const auto& filter = options.block.filter) {
    TESSERA_CHECK_VALUE(
        options.one_target,
        "[SASRec] block.filter needs one_target, because a filter shows each position the items after it, which are its targets. Set one_target to true, or leave the filter out.");
    TESSERA_CHECK_VALUE(
        filter->length == options.max_length,
        "[SASRec] block.filter.length must be max_length = {}, but got {}. Set it to this number.",
        options.max_length,
        filter->length);
  }
}

Initializer initializer_of(const SASRecOptions& options) {
  return initializers::Normal{
      .stddev = options.initial_stddev.value_or(
          1.0 / std::sqrt(static_cast<double>(options.dim)))};
}

constexpr const char* kPositions[] = {"first", "last", "none"};

// Returns 0, 1, ... for the positions of each sequence, or ..., 1, 0.
at::Tensor positions_of(const at::Tensor& splits, bool from_last) {
  const at::Tensor lengths = splits.diff();
  const at::Tensor ends = splits.slice(0, 1).repeat_interleave(lengths);
  const at::Tensor from_end = ends - 1 - at::arange(ends.size(0), at::kLong);
  return from_last ? from_end
                   : lengths.repeat_interleave(lengths) - 1 - from_end;
}

void check_items(const at::Tensor& ids, const char* name, int64_t count) {
  TESSERA_CHECK_VALUE(
      ids.defined() && ids.dim() == 1 && ids.size(0) == count,
      "[SASRec] {} must have shape [{}], one item for each position, or with one_target for each sequence, but got {}. Pass as many items.",
      name,
      count,
      describe(ids));
  check_integers(ids, name, "SASRec");
  TESSERA_CHECK_VALUE(
      count >= 1,
      "[SASRec] a loss needs one position or more, but all sequences are empty. Skip this batch.");
}

void check_loss(const at::Tensor& loss) {
  TESSERA_CHECK_VALUE(
      std::isfinite(loss.item<double>()),
      "[SASRec] the loss must be finite, but it is {}: the weights have NaN or are too large. Lower the learning rate.",
      number_in_message(loss.item<double>()));
}

}  // namespace

std::string to_string(SequencePositions positions) {
  return kPositions[static_cast<size_t>(positions)];
}

SequencePositions sequence_positions_from_string(const std::string& name) {
  return value_named<SequencePositions::kNone>(name, kPositions, "positions");
}

SASRecImpl::SASRecImpl(SASRecOptions options) : LayerImpl(std::move(options)) {
  check_options(this->options());
  reset();
}

void SASRecImpl::reset() {
  const SASRecOptions& options = this->options();
  const PartialShape shape{std::nullopt, options.dim};
  // All blocks are made before one is registered, because wrong options raise an error.
  std::vector<TransformerBlock> blocks;
  for (int64_t i = 0; i < options.num_blocks; ++i) {
    blocks.emplace_back(options.block);
    blocks.back()->build(shape);
  }
  const FeatureConfig feature{
      .table = make_table(
          {.name = "items",
           .vocabulary_size = options.num_items,
           .dim = options.dim,
           .initializer = initializer_of(options),
           .optimizer = options.optimizer,
           .dtype = options.dtype,
           .slot_dtype = options.slot_dtype})};
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features = {{"sequence", feature}, {"candidates", feature}},
      .strategy = options.strategy,
      .seed = options.seed});
  const auto make_norm = [&](bool is_used, const char* name) {
    return is_used
        ? register_module(
              name,
              torch::nn::LayerNorm(torch::nn::LayerNormOptions({options.dim})))
        : torch::nn::LayerNorm(nullptr);
  };
  embedding_norm_ = make_norm(options.embedding_norm, "embedding_norm");
  items = register_module("items", embedding);
  if (options.positions != SequencePositions::kNone) {
    positions_ = register_parameter(
        "positions",
        initial_parameter(
            initializer_of(options),
            "SASRec positions",
            {options.max_length, options.dim}));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    register_module("block_" + std::to_string(i), blocks[i]);
  }
  if (options.initial_stddev) {
    const at::NoGradGuard no_grad;
    for (const TransformerBlock& block : blocks) {
      for (const auto& parameter : block->named_parameters()) {
        if (parameter.value().dim() == 2) {
          parameter.value().normal_(0.0, *options.initial_stddev);
        } else if (parameter.key().ends_with("bias")) {
          parameter.value().zero_();
        }
      }
    }
  }
  blocks_ = std::move(blocks);  // a copy still held the original's blocks
  norm_ = make_norm(options.block.norm == NormOrder::kPre, "norm");
}

at::Tensor SASRecImpl::checked_splits(const RaggedFeature& sequences) const {
  TESSERA_CHECK_VALUE(
      sequences.values.defined() && sequences.values.dim() == 1,
      "[SASRec] the ids of sequences must have shape [nnz], but got {}. Pass a RaggedFeature.",
      describe(sequences.values));
  const at::Tensor splits = checked_row_splits(
      sequences.row_splits, sequences.values.size(0), kClassName);
  const int64_t* data = splits.const_data_ptr<int64_t>();
  for (int64_t i = 0; i + 1 < splits.size(0); ++i) {
    TESSERA_CHECK_VALUE(
        data[i + 1] - data[i] <= options().max_length,
        "[SASRec] sequences must have at most max_length = {} items, but sequence {} has {}. Pass its last {} items.",
        options().max_length,
        i,
        data[i + 1] - data[i],
        options().max_length);
    TESSERA_CHECK_VALUE(
        !options().one_target || data[i] < data[i + 1],
        "[SASRec] with one_target, sequences need one item or more, but sequence {} is empty. Leave it out.",
        i);
  }
  return splits;
}

int64_t SASRecImpl::num_states(const at::Tensor& splits) const {
  const int64_t batch = splits.size(0) - 1;
  return options().one_target ? batch : splits.const_data_ptr<int64_t>()[batch];
}

at::Tensor SASRecImpl::states_of(
    const at::Tensor& embedded,
    const at::Tensor& splits) {
  const SequencePositions kind = options().positions;
  at::Tensor sum = kind == SequencePositions::kNone ? embedded
                                                    : embedded +
          at::embedding(positions_,
                        positions_of(splits, kind == SequencePositions::kLast));
  if (embedding_norm_) {
    sum = embedding_norm_->forward(sum);
  }
  at::Tensor x = dropout_sum(
      sum, at::Tensor(), is_training() ? options().block.dropout : 0.0);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const bool is_last = options().one_target && i + 1 == blocks_.size();
    x = is_last ? blocks_[i]->forward_last(x, splits)
                : blocks_[i]->forward(x, splits);
  }
  x = norm_ ? norm_->forward(x) : x;
  return options().temperature ? unit_rows(x) : x;
}

SASRecImpl::StatesAndRows SASRecImpl::look_up(
    const at::Tensor& splits,
    const RaggedFeature& sequences,
    const at::Tensor& candidates) {
  const auto found = items->forward(
      {{"sequence", sequences.values}, {"candidates", candidates}});
  const at::Tensor states = states_of(found["sequence"], splits);
  const auto& temperature = options().temperature;
  return temperature
      ? StatesAndRows{states / *temperature, unit_rows(found["candidates"])}
      : StatesAndRows{states, found["candidates"]};
}

at::Tensor SASRecImpl::forward(const RaggedFeature& sequences) {
  const at::Tensor splits = checked_splits(sequences);
  const auto found = items->forward(
      {{"sequence", sequences.values},
       {"candidates", at::empty({0}, at::kLong)}});
  return states_of(found["sequence"], splits);
}

at::Tensor SASRecImpl::softmax_loss(
    const RaggedFeature& sequences,
    const at::Tensor& targets) {
  const at::Tensor splits = checked_splits(sequences);
  check_items(targets, "targets", num_states(splits));
  const auto [states, rows] =
      look_up(splits, sequences, at::arange(options().num_items, at::kLong));
  return linear_cross_entropy(states, rows, targets);
}

at::Tensor SASRecImpl::sampled_softmax_loss(
    const RaggedFeature& sequences,
    const at::Tensor& targets,
    const at::Tensor& negatives) {
  const at::Tensor splits = checked_splits(sequences);
  const int64_t count = num_states(splits);
  check_items(targets, "targets", count);
  TESSERA_CHECK_VALUE(
      negatives.defined() && negatives.dim() == 1 && negatives.size(0) >= 1,
      "[SASRec] negatives must have shape [num_negatives], with one item or more, but got {}. Draw some items for the batch, for example 1000 with torch::randint().",
      describe(negatives));
  check_integers(negatives, "negatives", kClassName);
  const auto [states, rows] = look_up(
      splits,
      sequences,
      at::cat({targets.to(at::kLong), negatives.to(at::kLong)}));
  return sampled_linear_cross_entropy(
      states,
      rows.narrow(0, 0, count),
      rows.narrow(0, count, negatives.size(0)),
      targets,
      negatives);
}

at::Tensor SASRecImpl::binary_loss(
    const RaggedFeature& sequences,
    const at::Tensor& targets,
    const at::Tensor& negatives) {
  const at::Tensor splits = checked_splits(sequences);
  const int64_t count = num_states(splits);
  check_items(targets, "targets", count);
  check_items(negatives, "negatives", count);
  const StatesAndRows found = look_up(
      splits,
      sequences,
      at::cat({targets.to(at::kLong), negatives.to(at::kLong)}));
  const auto scores = [&](int64_t first) {
    return (found.states * found.rows.narrow(0, first, count)).sum(1);
  };
  const at::Tensor loss =
      (at::softplus(-scores(0)) + at::softplus(scores(count))).mean();
  check_loss(loss);
  return loss;
}

at::Tensor SASRecImpl::queries(const RaggedFeature& sequences) {
  const at::NoGradGuard no_grad;
  const at::Tensor splits = checked_splits(sequences);
  const int64_t* data = splits.const_data_ptr<int64_t>();
  const int64_t batch = splits.size(0) - 1;
  for (int64_t i = 0; i < batch; ++i) {
    TESSERA_CHECK_VALUE(
        data[i] < data[i + 1],
        "[SASRec] queries need one item or more, but sequence {} is empty. Recommend popular items to new users.",
        i);
  }
  const ModeGuard mode(*this);
  mode.eval();
  const at::Tensor states = forward(sequences);
  return options().one_target
      ? states
      : states.index_select(0, splits.narrow(0, 1, batch) - 1);
}

at::Tensor SASRecImpl::item_vectors() const {
  const at::Tensor rows = items->read_rows("items", 0, options().num_items);
  return options().temperature ? unit_rows(rows) : rows;
}

}  // namespace tessera
