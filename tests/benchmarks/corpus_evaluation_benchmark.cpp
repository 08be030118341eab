// SPDX-License-Identifier: Apache-2.0
// Measures an evaluation with all items: how long the item vectors, the index and the
// search take together, and how much memory they need beside the vectors.
#include <tessera/search/corpus_evaluation.h>
#include <tessera/search/faiss_index.h>
#include <tessera/training/ranking_metrics.h>

#include "tests/benchmarks/torch_benchmark.h"

namespace {

namespace training = tessera::training;

struct Options : BenchmarkOptions {
  int64_t& items = integer("--items", 1'000'000);
  int64_t& dim = integer("--dim", 64);
  int64_t& queries = integer("--queries", 1000);
  int64_t& seen =
      integer("--seen", 100, "seen items per query", up_to(1'000'000'000, 0));
  int64_t& batch = integer("--batch", 4096);
  int64_t& k = integer("--k", 100);
  std::string& faiss =
      text("--faiss", "such as IVF1024,Flat; without it, the search is exact");
  int64_t& reps = integer("--reps", 3);
};

// The first id of each batch of `count` ids.
std::vector<int64_t> batches_of(int64_t count, int64_t batch) {
  std::vector<int64_t> begins;
  for (int64_t begin = 0; begin < count; begin += batch) {
    begins.push_back(begin);
  }
  return begins;
}

// Random vectors that depend only on `seed`, so that no tower has to be kept.
at::Tensor vectors_of(int64_t seed, int64_t count, int64_t dim) {
  auto generator =
      at::detail::createCPUGenerator(static_cast<uint64_t>(seed) + 1);
  return at::randn({count, dim}, generator, at::kFloat);
}

training::CorpusEvaluation make_evaluation(const Options& options) {
  training::CorpusEvaluationOptions evaluation{
      .metrics = {
          std::make_shared<training::RecallAtK>(
              training::RankingMetricOptions{.k = options.k}),
          std::make_shared<training::NDCG>(
              training::RankingMetricOptions{.k = options.k})}};
  if (!options.faiss.empty()) {
    evaluation.make_index =
        [&options](const at::Tensor& vectors, const at::Tensor& ids) {
          return tessera::make_faiss_index(
              vectors, ids, {.factory = options.faiss});
        };
  }
  return {
      training::make_batch_loop<training::CandidateVectors>(
          batches_of(options.items, options.batch),
          [&options](int64_t begin) {
            const int64_t end = std::min(begin + options.batch, options.items);
            return training::CandidateVectors{
                .vectors = vectors_of(begin, end - begin, options.dim),
                .ids = at::arange(begin, end)};
          }),
      training::make_batch_loop<training::CorpusQueries>(
          batches_of(options.queries, options.batch),
          [&options](int64_t begin) {
            const int64_t count =
                std::min(begin + options.batch, options.queries) - begin;
            return training::CorpusQueries{
                .vectors = vectors_of(-begin - 2, count, options.dim),
                .labels = at::randint(options.items, {count}, at::kLong),
                .seen = {
                    .values = at::randint(
                        options.items, {count * options.seen}, at::kLong),
                    .row_splits = at::arange(count + 1) * options.seen}};
          }),
      std::move(evaluation)};
}

void run(const Options& options) {
  const int64_t before = peak_resident_bytes();
  const training::CorpusEvaluation evaluation = make_evaluation(options);
  const double ms = median_ms(
      options.reps, [&] { evaluation.evaluate(); }, 0);
  fmt::print(
      "{}: {} items of dim {}, {} queries with {} seen items, k {}: {:.2f} s (median of {}), {:.0f} MB of memory, {:.0f} MB of it vectors\n",
      options.faiss.empty() ? "exact" : options.faiss,
      options.items,
      options.dim,
      options.queries,
      options.seen,
      options.k,
      ms / 1e3,
      options.reps,
      static_cast<double>(peak_resident_bytes() - before) / 1e6,
      static_cast<double>(options.items * options.dim) * sizeof(float) / 1e6);
}

}  // namespace

TESSERA_BENCHMARK("Measures an evaluation with all items.", run)
