// SPDX-License-Identifier: Apache-2.0
#pragma once

// Metrics of retrieved ids that need no relevant ids. The metrics of ranking_metrics.h
// compare retrieved ids with relevant ids.

#include <tessera/training/metrics.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

namespace tessera::training {

/// The options of a CatalogueCoverage, and its name in logs.
struct CatalogueCoverageOptions {
  /// The number of items that could be recommended, >= 1.
  int64_t catalogue_size = 0;
  /// The number of retrieved ids of a query that count.
  int64_t k = 10;
  /// If empty, "coverage_at_10", with the value of k.
  std::string name = "";
};

// snippet: tests/docs/reference_metrics_test.cpp CatalogueCoverage
/// The share of the catalogue that is among the first k ids of at least one query. A
/// model that recommends the same popular items to everyone covers little.
///
///   CatalogueCoverage coverage({.catalogue_size = index->size(), .k = 5});
///   coverage.update(index->search(queries, 5).ids);
///   const double share = coverage.result();
///
///   different ids among the first k / catalogue_size
///
/// It ignores labels, which may be undefined, and queries with weight 0. Other weights
/// change nothing. NaN without queries. It stores each different id.
///
/// Shapes:  predictions [queries, retrieved] int32 or int64, best first, like TopK::ids;
///          -1 means no id.
/// Errors:  c10::ValueError for more different ids than catalogue_size, and as Metric.
/// Source:  Ge et al. 2010, doi:10.1145/1864708.1864761.
class CatalogueCoverage : public Metric {
 public:
  /// Errors:  c10::ValueError for catalogue_size < 1 or k < 1.
  explicit CatalogueCoverage(CatalogueCoverageOptions options);

  void update_batch(const StepResult& batch) override;
  double result() const override;
  void reset() override {
    ids_.clear();
    has_queries_ = false;
  }
  std::unique_ptr<Metric> make_empty() const override {
    return std::make_unique<CatalogueCoverage>(options_);
  }
  Better better() const override {
    return Better::kHigher;
  }
  std::optional<int64_t> depth() const override {
    return options_.k;
  }
  at::Tensor state() const override;
  void load_state(const at::Tensor& state) override;
  void merge(const at::Tensor& state) override;

 private:
  void check_size(size_t count) const;

  CatalogueCoverageOptions options_;
  std::unordered_set<int64_t> ids_;
  bool has_queries_ = false;
};

}  // namespace tessera::training
