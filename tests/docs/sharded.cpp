// SPDX-License-Identifier: Apache-2.0
// The program of docs/distributed.md and the examples in the docstrings of
// GlooBackendOptions, make_mpi_backend() and ShardingOptions. It runs as several ranks, and
// must train the same model as one process that gets the batches of all ranks.
// snippet: sharded
#include <tessera/distributed/gloo_backend.h>
#include <tessera/distributed/sharded_strategy.h>
#include <tessera/engine/sum_gradients.h>

// end snippet
#include <tessera/distributed/mpi_backend.h>
#include <tessera/layers/dense_parameters.h>
#include <tessera/training/fit.h>
#include <tessera/training/progress_bar.h>
#include <torch/optim/sgd.h>

#include "tests/docs/ranker.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <vector>

using tessera::Features;
using tessera::test::Ranker;

namespace {

constexpr int64_t kBatch = 6;  // of one rank

// The batches of ranks [first, first + count). All histories contain only row 1.
std::vector<Features> batches_of(int64_t first, int64_t count = 1) {
  std::vector<Features> batches;
  for (int64_t step = 0; step < 3; ++step) {
    const auto example = at::arange(first * kBatch, (first + count) * kBatch);
    const auto lengths = example % 3;
    batches.push_back(
        {{"user", (example + step) % 100},
         {"movie", example * 7 % 50},
         {"history",
          tessera::RaggedFeature::from_lengths(
              at::full({lengths.sum().item<int64_t>()}, 1, at::kLong),
              lengths)}});
  }
  return batches;
}

void fill_dense_parameters(Ranker& model) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& weights : tessera::dense_parameters(*model)) {
    weights.fill_(0.25);
  }
}

}  // namespace

namespace tessera::distributed {

c10::intrusive_ptr<c10d::Backend> backend_of_mpi() {
  // snippet: make_mpi_backend
  const auto backend = make_mpi_backend(std::chrono::minutes(5));
  // end snippet
  return backend;
}

struct ClickBatch {
  Features features;
  at::Tensor click;
};

// The batches of some ranks, of which each example with an even user is a click.
std::vector<ClickBatch> click_batches_of(int64_t first, int64_t count = 1) {
  std::vector<ClickBatch> batches;
  for (const Features& features : batches_of(first, count)) {
    const auto user = at::arange(first * kBatch, (first + count) * kBatch);
    batches.push_back({features, (user % 2).to(at::kFloat)});
  }
  return batches;
}

// Returns true if fit() logs what one process does with the batches of all ranks.
bool fit_logs_the_values_of_one_process() {
  const auto backend = make_gloo_backend();
  const auto strategy = distributed::sharded_strategy(backend);
  Ranker model(strategy);
  Ranker single;
  fill_dense_parameters(single);
  if (backend->getRank() == 0) {
    fill_dense_parameters(model);
  }
  const auto batches = click_batches_of(backend->getRank());
  const double global_batch_size =
      static_cast<double>(kBatch * backend->getSize());
  // snippet: fit
  tessera::distributed::broadcast_parameters(
      tessera::dense_parameters(*model), strategy);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto loss_of = [&](const ClickBatch& batch) {
    const auto scores = model->forward(batch.features);
    return tessera::training::StepResult{
        .loss = at::binary_cross_entropy_with_logits(
                    scores, batch.click, {}, {}, at::Reduction::Sum) /
            global_batch_size,
        .predictions = scores,
        .labels = batch.click};
  };
  tessera::training::Callbacks callbacks;
  if (backend->getRank() == 0) {
    callbacks.push_back(tessera::training::ProgressBar());
  }
  const tessera::training::History history = tessera::training::fit(
      batches,  // of this rank
      tessera::training::make_train_step(optimizer, loss_of),
      {.epochs = 3,
       .model = model,
       .metrics = {tessera::training::AUC()},
       .callbacks = callbacks});
  // end snippet
  torch::optim::SGD single_optimizer(single->parameters(), 0.1);
  const auto expected = tessera::training::fit(
      click_batches_of(0, backend->getSize()),
      tessera::training::make_train_step(
          single_optimizer,
          [&](const ClickBatch& batch) {
            const auto scores = single->forward(batch.features);
            return tessera::training::StepResult{
                .loss =
                    at::binary_cross_entropy_with_logits(scores, batch.click),
                .predictions = scores,
                .labels = batch.click};
          }),
      {.epochs = 3, .model = single, .metrics = {tessera::training::AUC()}});
  bool is_equal = true;
  for (const char* name : {"loss", "auc"}) {
    for (size_t i = 0; i < 3; ++i) {
      is_equal =
          is_equal && std::abs(history[name][i] - expected[name][i]) < 1e-5;
    }
  }
  return is_equal;
}

// Returns true if other placements give the rows that one process has.
bool other_placements_have_the_same_rows() {
  // snippet: GlooBackendOptions
  const auto backend = make_gloo_backend({.timeout = std::chrono::minutes(5)});
  // end snippet
  // snippet: ShardingOptions
  const ShardingOptions options{
      .placement =
          {{"users", TablePlacement::row_wise(RowSplit::kMod)},
           {"movies", TablePlacement::data_parallel()}},
      .gradient_transport = at::kBFloat16};
  const auto strategy = distributed::sharded_strategy(backend, options);
  // end snippet
  Ranker model(strategy);
  Ranker single;
  bool is_equal = true;
  for (const auto& table : single->embedding->embedding_tables()) {
    const at::Tensor rows = model->embedding->read_rows(
        table.name, 0, table.config->vocabulary_size);
    is_equal = is_equal && at::equal(rows, table.parameters);
  }
  return is_equal;
}

}  // namespace tessera::distributed

int main() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return tessera::distributed::backend_of_mpi()->getSize() > 0 ? 0 : 1;
  }
  // snippet: sharded
  const auto backend = tessera::distributed::make_gloo_backend();
  const auto strategy = tessera::distributed::sharded_strategy(backend);
  Ranker model(strategy);  // in its TPUEmbeddingOptions: .strategy = strategy
  // end snippet
  if (backend->getRank() == 0) {
    fill_dense_parameters(model);  // the other ranks get them from here
  }
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const double global_batch_size =
      static_cast<double>(kBatch * backend->getSize());
  // snippet: sharded
  tessera::distributed::broadcast_parameters(
      tessera::dense_parameters(*model), strategy);
  for (auto& batch : batches_of(backend->getRank())) {
    optimizer.zero_grad();
    auto loss = model->forward(batch).sum() / global_batch_size;
    loss.backward();  // tables: the sum over all ranks, applied once per row
    tessera::distributed::sum_gradients(
        tessera::dense_parameters(*model), strategy);
    optimizer.step();
  }
  // end snippet

  Ranker single;
  fill_dense_parameters(single);
  torch::optim::SGD single_optimizer(single->parameters(), 0.1);
  for (auto& batch : batches_of(0, backend->getSize())) {
    single_optimizer.zero_grad();
    (single->forward(batch).sum() / global_batch_size).backward();
    single_optimizer.step();
  }
  const auto expected = tessera::dense_parameters(*single);
  const auto actual = tessera::dense_parameters(*model);
  bool is_equal = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    is_equal = is_equal && at::allclose(actual[i], expected[i], 1e-4, 1e-6) &&
        !at::allclose(actual[i], at::full_like(actual[i], 0.25));
  }
  for (const auto& table : single->embedding->embedding_tables()) {
    is_equal = is_equal &&
        at::allclose(
                   model->embedding->read_rows(
                       table.name, 0, table.config->vocabulary_size),
                   table.parameters,
                   1e-4,
                   1e-6);
  }
  const bool is_placed =
      tessera::distributed::other_placements_have_the_same_rows();
  if (!is_equal) {
    std::cerr << "rank " << backend->getRank()
              << ": expected what one process trains on all batches\n";
    return 1;
  }
  if (!tessera::distributed::fit_logs_the_values_of_one_process()) {
    std::cerr << "rank " << backend->getRank()
              << ": expected that fit() logs the values of one process\n";
    return 1;
  }
  if (!is_placed) {
    std::cerr << "rank " << backend->getRank()
              << ": expected the rows of one process on other placements\n";
    return 1;
  }
  return 0;
}
