// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/retrieval_metrics.h>

#include "packages/training/src/metric_inputs.h"
#include "src/common/check.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace tessera::training {

CatalogueCoverage::CatalogueCoverage(CatalogueCoverageOptions options)
    : Metric(name_or(options.name, "coverage_at_" + std::to_string(options.k))),
      options_(std::move(options)) {
  TESSERA_CHECK_VALUE(
      options_.catalogue_size >= 1,
      "[Metric '{}'] catalogue_size must be >= 1, but got {}. Set it to the number of items, such as index->size().",
      name(),
      options_.catalogue_size);
  TESSERA_CHECK_VALUE(
      options_.k >= 1,
      "[Metric '{}'] k must be >= 1, but got {}. Set it to the number of retrieved ids that count.",
      name(),
      options_.k);
}

void CatalogueCoverage::check_size(size_t count) const {
  TESSERA_CHECK_VALUE(
      count <= static_cast<size_t>(options_.catalogue_size),
      "[Metric '{}'] expected at most {} different ids, the size of the catalogue, but got {}. Correct catalogue_size.",
      name(),
      options_.catalogue_size,
      count);
}

void CatalogueCoverage::update_batch(const StepResult& batch) {
  const std::string where = where_of(name());
  const std::vector<int64_t> ids = read_id_rows(batch.predictions, where);
  const auto queries = static_cast<size_t>(batch.predictions.size(0));
  const auto per_query = static_cast<size_t>(batch.predictions.size(1));
  const std::vector<double> counted =
      read_weights(batch.weights, queries, where);
  const size_t count = std::min(per_query, static_cast<size_t>(options_.k));
  std::set<int64_t> added;
  bool has_queries = has_queries_;
  for (size_t query = 0; query < queries; ++query) {
    if (counted[query] == 0.0) {
      continue;
    }
    has_queries = true;
    for (size_t i = query * per_query; i < query * per_query + count; ++i) {
      if (ids[i] >= 0 && !ids_.contains(ids[i])) {
        added.insert(ids[i]);
      }
    }
  }
  check_size(ids_.size() + added.size());
  ids_.insert(added.begin(), added.end());
  has_queries_ = has_queries;
}

double CatalogueCoverage::result() const {
  return has_queries_ ? static_cast<double>(ids_.size()) /
          static_cast<double>(options_.catalogue_size)
                      : kUndefined;
}

// Layout: whether there were queries, then two numbers for each id, sorted.
at::Tensor CatalogueCoverage::state() const {
  std::vector<double> numbers{has_queries_ ? 1.0 : 0.0};
  for (const int64_t id : std::set(ids_.begin(), ids_.end())) {
    append_id(numbers, id);
  }
  return metric_state(numbers);
}

void CatalogueCoverage::load_state(const at::Tensor& state) {
  const std::vector<double> numbers = read_state(state, name());
  TESSERA_CHECK_VALUE(
      numbers.size() % 2 == 1 && (numbers[0] == 0.0 || numbers[0] == 1.0),
      "[Metric '{}'] expected the state of a CatalogueCoverage, but got the state of another metric. Resume with the same metrics.",
      name());
  check_size(numbers.size() / 2);
  has_queries_ = numbers[0] == 1.0;
  ids_.clear();
  for (size_t i = 1; i < numbers.size(); i += 2) {
    ids_.insert(id_at(numbers, i));
  }
}

void CatalogueCoverage::merge(const at::Tensor& state) {
  CatalogueCoverage other(options_);
  other.load_state(state);
  other.ids_.insert(ids_.begin(), ids_.end());
  check_size(other.ids_.size());
  ids_ = std::move(other.ids_);
  has_queries_ = has_queries_ || other.has_queries_;
}

}  // namespace tessera::training
