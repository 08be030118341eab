// SPDX-License-Identifier: Apache-2.0
// Measures an evaluation with all items: how long the item vectors, the index and the
// search take together, and how much memory they need beside the vectors.
#include <tessera/search/corpus_evaluation.h>
#include <tessera/search/faiss_index.h>
#include <tessera/training/ranking_metrics.h>

#include <CLI/CLI.hpp>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace training = tessera::training;

struct Options {
  int64_t items = 1'000'000;
  int64_t dim = 64;
  int64_t queries = 1000;
  int64_t seen = 100;
  int64_t batch = 4096;
  int64_t k = 100;
  std::string faiss = {};  // a description for faiss; empty: exact
  int64_t reps = 3;
};

double peak_megabytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1e3;
}

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
              training::NDCGOptions{.k = options.k})}};
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
  const double before = peak_megabytes();
  const training::CorpusEvaluation evaluation = make_evaluation(options);
  std::vector<double> seconds;
  for (int64_t i = 0; i < options.reps; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    evaluation.evaluate();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::sort(seconds.begin(), seconds.end());
  fmt::print(
      "{}: {} items of dim {}, {} queries with {} seen items, k {}: {:.2f} s (median of {}), {:.0f} MB of memory, {:.0f} MB of it vectors\n",
      options.faiss.empty() ? "exact" : options.faiss,
      options.items,
      options.dim,
      options.queries,
      options.seen,
      options.k,
      seconds[seconds.size() / 2],
      options.reps,
      peak_megabytes() - before,
      static_cast<double>(options.items * options.dim) * sizeof(float) / 1e6);
}

}  // namespace

int main(int argc, char** argv) try {
  Options options;
  CLI::App app("Measures an evaluation with all items.");
  app.add_option("--items", options.items)->check(CLI::PositiveNumber);
  app.add_option("--dim", options.dim)->check(CLI::PositiveNumber);
  app.add_option("--queries", options.queries)->check(CLI::PositiveNumber);
  app.add_option("--seen", options.seen, "seen items per query")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--batch", options.batch)->check(CLI::PositiveNumber);
  app.add_option("--k", options.k)->check(CLI::PositiveNumber);
  app.add_option("--faiss", options.faiss, "such as IVF1024,Flat");
  app.add_option("--reps", options.reps)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  run(options);
  return 0;
} catch (const c10::Error& error) {
  fmt::print(stderr, "{}\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "[corpus_evaluation_benchmark] {}\n", error.what());
  return 1;
}
