// SPDX-License-Identifier: Apache-2.0
#include <tessera/search/corpus_evaluation.h>

#include <tessera/common/profile_scope.h>

#include "layers/mode_guard.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/any.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isin.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace tessera::training {

namespace {

// The vectors of all items.
CandidateVectors collect(const BatchLoop<CandidateVectors>& batches) {
  std::vector<at::Tensor> vectors;
  std::vector<at::Tensor> ids;
  int64_t size = 0;
  batches([&](const CandidateVectors& batch) {
    TESSERA_CHECK_VALUE(
        batch.vectors.defined() && batch.vectors.dim() == 2 &&
            at::isFloatingType(batch.vectors.scalar_type()) &&
            batch.ids.defined() && batch.ids.dim() == 1 &&
            (batch.ids.scalar_type() == at::kLong ||
             batch.ids.scalar_type() == at::kInt) &&
            batch.ids.size(0) == batch.vectors.size(0),
        "[CorpusEvaluation] batch {} of the items must have vectors [n, dim] of floats and ids [n] int32 or int64, but got {} and {}. Return both in CandidateVectors.",
        vectors.size(),
        describe(batch.vectors),
        describe(batch.ids));
    TESSERA_CHECK_VALUE(
        vectors.empty() || batch.vectors.size(1) == vectors[0].size(1),
        "[CorpusEvaluation] all item vectors must have the same dim, but batch {} has {} and batch 0 has {}. Compute them with one model.",
        vectors.size(),
        batch.vectors.size(1),
        vectors.empty() ? 0 : vectors[0].size(1));
    // Copied, because the batch may be a view of a buffer that the next batch changes.
    vectors.push_back(batch.vectors.detach().to(
        at::kCPU, at::kFloat, /*non_blocking=*/false, /*copy=*/true));
    ids.push_back(batch.ids.to(
        at::kCPU, at::kLong, /*non_blocking=*/false, /*copy=*/true));
    size += batch.ids.size(0);
  });
  TESSERA_CHECK_VALUE(
      size > 0,
      "[CorpusEvaluation] expected items, but their source gave none. Pass a source that can be read again, or a function that opens it.");
  CandidateVectors all{
      .vectors = at::empty({size, vectors[0].size(1)}, at::kFloat),
      .ids = at::empty({size}, at::kLong)};
  int64_t begin = 0;
  for (size_t i = 0; i < vectors.size(); ++i) {
    const int64_t count = ids[i].size(0);
    all.vectors.narrow(0, begin, count).copy_(vectors[i]);
    all.ids.narrow(0, begin, count).copy_(ids[i]);
    begin += count;
    // Each batch is freed at once, while at::cat() would need all vectors twice.
    vectors[i].reset();
    ids[i].reset();
  }
  return all;
}

}  // namespace

CorpusEvaluation::CorpusEvaluation(
    BatchLoop<CandidateVectors> candidates,
    BatchLoop<CorpusQueries> queries,
    CorpusEvaluationOptions options)
    : candidates_(std::move(candidates)),
      queries_(std::move(queries)),
      options_(std::move(options)) {
  TESSERA_CHECK_VALUE(
      candidates_ && queries_,
      "[CorpusEvaluation] expected batches of items and of queries, but got an empty function. Make them with make_batch_loop().");
  TESSERA_CHECK_VALUE(
      options_.every_epochs >= 1,
      "[CorpusEvaluation] every_epochs must be >= 1, but got {}. Set it to 1 to evaluate after each epoch.",
      options_.every_epochs);
  TESSERA_CHECK_VALUE(
      !options_.metrics.empty(),
      "[CorpusEvaluation] expected metrics, but got none. Pass metrics of retrieved ids, such as RecallAtK.");
  check_metrics(options_.metrics, "[CorpusEvaluation]");
  for (const auto& metric : options_.metrics) {
    const std::optional<int64_t> depth = metric->depth();
    TESSERA_CHECK_VALUE(
        depth.has_value(),
        "[CorpusEvaluation] the metric '{}' does not say how many retrieved ids it uses. Pass a metric of retrieved ids, and set its k.",
        metric->name());
    depth_ = std::max(depth_, *depth);
  }
}

Logs CorpusEvaluation::evaluate() const {
  const at::NoGradGuard no_grad;
  std::optional<ModeGuard> modes;
  if (options_.model != nullptr) {
    modes.emplace(*options_.model);
    modes->eval();
  }
  CandidateVectors items = collect(candidates_);
  const auto index = options_.make_index
      ? options_.make_index(items.vectors, items.ids)
      : make_exact_index(items.vectors, items.ids);
  TESSERA_CHECK_VALUE(
      index != nullptr,
      "[CorpusEvaluation] make_index must return an index, but returned nullptr. Return the result of make_exact_index() or make_faiss_index().");
  items.vectors.reset();  // the index may have copied them
  const int64_t k = std::min(depth_, index->size());
  for (const auto& metric : options_.metrics) {
    metric->reset();
  }
  int64_t batches = 0;
  int64_t labels = 0;
  bool has_known_label = false;
  queries_([&](const CorpusQueries& batch) {
    const TopK found = index->search(
        batch.vectors.defined() ? batch.vectors.to(at::kCPU) : batch.vectors,
        k,
        batch.seen);
    for (const auto& metric : options_.metrics) {
      metric->update_batch(
          {.predictions = found.ids,
           .labels = batch.labels,
           .weights = batch.weights,
           .label_splits = batch.label_splits});
    }
    ++batches;
    labels += batch.labels.numel();
    has_known_label = has_known_label ||
        at::isin(batch.labels.to(at::kCPU, at::kLong), items.ids)
            .any()
            .item<bool>();
  });
  TESSERA_CHECK_VALUE(
      batches > 0,
      "[CorpusEvaluation] expected queries, but their source gave none. Pass a source that has queries and can be read again, or a function that opens it.");
  TESSERA_CHECK_VALUE(
      has_known_label || labels == 0,
      "[CorpusEvaluation] expected labels that are ids of items, but none of {} labels is. Map the labels with the vocabulary that gave the items their ids.",
      labels);
  Logs logs;
  for (const auto& metric : options_.metrics) {
    logs.set(options_.prefix + metric->name(), metric->result());
    metric->reset();  // frees memory
  }
  return logs;
}

void CorpusEvaluation::on_epoch_end(Training& training) {
  const ProfileScope scope("tessera::corpus_evaluation");
  const Progress& progress = training.progress();
  const int64_t epochs = progress.epoch + 1;
  if (epochs % options_.every_epochs != 0 && epochs < progress.epochs) {
    for (const std::string& name : log_names()) {
      training.log(name, std::numeric_limits<double>::quiet_NaN());
    }
    return;
  }
  const Logs logs = evaluate();
  for (const auto& [name, value] : logs.entries()) {
    training.log(name, value);
  }
}

std::vector<std::string> CorpusEvaluation::log_names() const {
  return c10::fmap(options_.metrics, [&](const auto& metric) {
    return options_.prefix + metric->name();
  });
}

Better CorpusEvaluation::better(const std::string& log_name) const {
  for (const auto& metric : options_.metrics) {
    if (options_.prefix + metric->name() == log_name) {
      return metric->better();
    }
  }
  return Better::kUnknown;
}

}  // namespace tessera::training
