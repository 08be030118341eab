// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/engine/strategy.h>
#include <tessera/features/feature.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/models/transformer_block.h>
#include <tessera/optim/optimizer.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

/// From where the positions of a sequence are counted.
enum class SequencePositions { kFirst, kLast, kNone };

/// "first", "last" or "none".
std::string to_string(SequencePositions positions);
/// Errors:  c10::ValueError listing the choices.
SequencePositions sequence_positions_from_string(const std::string& name);

/// In JSON, a SequencePositions is its name.
template <>
struct JsonValue<SequencePositions>
    : detail::JsonName<sequence_positions_from_string> {};

/// The config of a SASRec model.
struct SASRecOptions {
  /// Items have the ids 0 to num_items - 1.
  int64_t num_items = 0;
  int64_t dim = 64;
  /// The number of items of the longest sequence.
  int64_t max_length = 200;
  int64_t num_blocks = 2;
  /// The number of heads, the width of the feed-forward network, dropout and norm of
  /// each block. The embeddings have the same dropout.
  TransformerBlockOptions block = {};
  /// If set, scores are cosines divided by this number. It must be > 0; 0.1 is a good start.
  /// If unset, scores are dot products.
  std::optional<double> temperature = {};
  SequencePositions positions = SequencePositions::kFirst;
  /// If true, a sequence has one target, the item after its last position, and only this
  /// position has a state. Pass each beginning of a history as a sequence of its own.
  /// Required by TransformerBlockOptions::filter.
  bool one_target = false;
  /// If true, sums of items and positions pass a LayerNorm before the dropout.
  bool embedding_norm = false;
  /// If set, all matrices begin with normal numbers of this standard deviation, and biases
  /// with 0, as in BERT, which has 0.02. Unset: items and positions have 1/sqrt(dim), and the
  /// matrices of blocks what torch::nn gives.
  std::optional<double> initial_stddev = {};
  /// The fused optimizer of the items. If unset, they can't be trained on
  /// Strategy::fused().
  std::optional<optim::OptimizerSpec> optimizer = {};
  Strategy strategy = Strategy::fused();
  /// The dtypes of the items, as TableConfig::dtype and TableConfig::slot_dtype.
  at::ScalarType dtype = at::kFloat;
  at::ScalarType slot_dtype = at::kFloat;
  /// The seed of the items' initial values. torch::manual_seed() seeds the rest.
  uint64_t seed = 0;

  bool operator==(const SASRecOptions&) const = default;

  TESSERA_FIELDS(
      num_items,
      dim,
      max_length,
      num_blocks,
      block,
      temperature,
      positions,
      one_target,
      embedding_norm,
      initial_stddev,
      optimizer,
      strategy,
      dtype,
      slot_dtype,
      seed)
};

// snippet: tests/docs/reference_sasrec_test.cpp SASRecImpl
/// SASRec: predicts the next item of each sequence with a causal transformer.
///
///   SASRec model(SASRecOptions{
///       .num_items = 1000,
///       .dim = 16,
///       .max_length = 50,
///       .block = {.num_heads = 2, .dropout = 0.2},
///       .optimizer = optim::Adam{.learning_rate = 0.003}});
///   torch::optim::Adam optimizer(model->parameters(), 0.003);
///   // Two users: 7, 8, 9, then 10, and 3, then 5.
///   const RaggedFeature sequences{
///       .values = torch::tensor({7, 8, 9, 3}),
///       .row_splits = torch::tensor({0, 3, 4})};
///   const auto targets = torch::tensor({8, 9, 10, 5});
///
///   model->softmax_loss(sequences, targets).backward();  // updates the items
///   optimizer.step();
///
///   const auto index = make_exact_index(model->item_vectors());
///   const TopK next = index->search(model->queries(sequences), 10, sequences);
///
/// The state of a position is computed from the items up to it:
///
///   x      = dropout(items[id] + positions[i])    with i = 0, 1, ... in each sequence
///   x      = block(x)                             num_blocks times
///   state  = norm(x)                              or x with NormOrder::kPost
///   score  = state . items[candidate]
///
/// With SequencePositions::kLast, i is ..., 1, 0.
///
/// With a temperature, states and the rows of candidates are divided by their lengths, and
/// scores in losses by the temperature.
///
/// The table of items is shared by sequences and candidates. backward() updates it. All
/// other weights are parameters() for any torch::optim. Sequences are ragged and
/// need no padding.
///
/// Parts:   `items` (TPUEmbedding), `positions` [max_length, dim], `embedding_norm`, `block_0`,
///          `block_1`, ..., `norm`.
/// Shapes:  sequences of nnz ids in total; states [nnz, dim], one for each position. With
///          one_target, there is one for each sequence, so `nnz` below is `batch`.
/// Errors:  c10::ValueError for options out of range, sequences longer than max_length,
///          no positions in a loss, empty sequences with one_target, and a loss that is not
///          finite; c10::IndexError for ids out of range; c10::TypeError for wrong dtypes.
///          Nothing is changed.
/// Source:  Kang and McAuley 2018, doi:10.1109/ICDM.2018.00035; BSARec, Shin et al. 2024,
///          arXiv:2312.10325.
/// Differs: positions are counted from the first item by default, because there is no padding.
///          softmax_loss(), sampled_softmax_loss() and the temperature are not in the paper.
class SASRecImpl : public LayerImpl<SASRecImpl, SASRecOptions> {
 public:
  static constexpr const char* kClassName = "SASRec";

  explicit SASRecImpl(SASRecOptions options);

  /// The states, [nnz, dim]. With a temperature, they have the length 1.
  at::Tensor forward(const RaggedFeature& sequences);

  /// The mean cross entropy of a softmax over all items, for `targets` [nnz], the items
  /// that follow the states.
  at::Tensor softmax_loss(
      const RaggedFeature& sequences,
      const at::Tensor& targets);

  /// The mean cross entropy of a softmax over the target and sampled `negatives`, which
  /// all positions of the batch share:
  ///
  ///   log(exp(s target) + sum over negatives of exp(s)) - s target
  ///
  /// A negative that is the target of a position is left out there. With uniform samples,
  /// the loss comes close to softmax_loss(), with num_negatives products per position.
  /// Shapes:  targets [nnz], negatives [num_negatives], 1 or more.
  at::Tensor sampled_softmax_loss(
      const RaggedFeature& sequences,
      const at::Tensor& targets,
      const at::Tensor& negatives);

  /// The mean binary cross entropy of `targets` [nnz] and `negatives` [nnz], as in the
  /// paper: softplus(-target score) + softplus(negative score).
  at::Tensor binary_loss(
      const RaggedFeature& sequences,
      const at::Tensor& targets,
      const at::Tensor& negatives);

  /// The state of the last position of each sequence, [batch, dim], without gradients and
  /// dropout. It is the query for a TopKIndex of item_vectors().
  /// Errors:  c10::ValueError for an empty sequence.
  at::Tensor queries(const RaggedFeature& sequences);

  /// A copy of the table of items, [num_items, dim]. With a temperature, its rows have the
  /// length 1.
  at::Tensor item_vectors() const;

  void reset() override;

  TPUEmbedding items{nullptr};

 private:
  // The states of sequences, and the rows of other items, from one lookup.
  struct StatesAndRows {
    at::Tensor states = {};  // [nnz, dim]
    at::Tensor rows = {};  // [candidates, dim]
  };
  StatesAndRows look_up(
      const at::Tensor& splits,
      const RaggedFeature& sequences,
      const at::Tensor& candidates);
  at::Tensor states_of(const at::Tensor& embedded, const at::Tensor& splits);
  at::Tensor checked_splits(const RaggedFeature& sequences) const;
  int64_t num_states(const at::Tensor& splits) const;

  at::Tensor positions_;  // [max_length, dim], or undefined
  std::vector<TransformerBlock> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::LayerNorm embedding_norm_{nullptr};
};

using SASRec = LayerHolder<SASRecImpl>;

}  // namespace tessera
