// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/learn_pipeline.h"

#include "examples/dlrm/clicks.h"

#include <tessera/data/columns.h>
#include <tessera/data/criteo_reader.h>
#include <tessera/data/dataset.h>
#include <tessera/data/statistics.h>
#include <tessera/data/transforms.h>
#include <tessera/data/vocabulary_builder.h>

#include <ATen/core/Tensor.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

using tessera::data::FeaturePipeline;

namespace {

// The boundaries of the integers' intervals: one interval for each of the smallest
// integers, then two between successive powers of two.
const std::vector<double> kBoundaries{
    -2,   -1,   0,    1,    2,    3,     4,     6,     8,     12,    16,   24,
    32,   48,   64,   96,   128,  192,   256,   384,   512,   768,   1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536};

// Returns the boundaries of the intervals of a column of scaled numbers, with equally many
// examples in each. A column of equal numbers has none.
std::vector<double> find_boundaries(
    const tessera::data::Column& first_examples) {
  constexpr int64_t kIntervals = 32;
  const auto& values = std::get<at::Tensor>(first_examples.values);
  const at::Tensor numbers = values.masked_select(values.isfinite());
  if (numbers.numel() == 0 || numbers.eq(numbers[0]).all().item<bool>()) {
    return {};
  }
  return tessera::data::quantile_boundaries(first_examples, kIntervals);
}

}  // namespace

// snippet: pipeline
// Integers become logarithms and intervals. The numbers of Criteo_x1 are scaled already,
// and the first examples determine their intervals. Each category column has a
// vocabulary, or keys of 64 bits for tables without one.
FeaturePipeline learn_pipeline(const Options& options) {
  const ClickLogs logs = open_files(options.data, options);
  std::vector<tessera::data::VocabularyBuilder> builders;
  for (int64_t i = 1; i <= tessera::data::kCriteoCategories; ++i) {
    builders.emplace_back(c10::str("C", i));
  }
  if (!options.keys) {  // else no vocabulary is needed
    const auto reader = logs.examples->open();
    while (const auto columns = reader->next()) {
      for (tessera::data::VocabularyBuilder& builder : builders) {
        builder.add(columns->at(builder.column()));
      }
    }
    report_skipped(logs.report());
  }
  const bool is_scaled = is_criteo_x1(options.data.front());
  // A missing number is not a zero.
  tessera::data::PipelineOutput numbers{
      .name = "numbers",
      .transform = is_scaled
          ? tessera::data::Transform(
                tessera::data::transforms::Normalize{.missing_value = -1.0})
          : tessera::data::transforms::Log1p{.missing_value = -1.0}};
  for (int64_t i = 1; i <= tessera::data::kCriteoIntegers; ++i) {
    numbers.columns.push_back(c10::str("I", i));
  }
  std::vector<tessera::data::PipelineOutput> outputs{numbers};
  tessera::data::Columns first;
  if (is_scaled) {
    first = tessera::data::Dataset(logs.examples).head(100'000);
  }
  for (const std::string& column : numbers.columns) {
    const std::vector<double> boundaries =
        is_scaled ? find_boundaries(first.at(column)) : kBoundaries;
    if (!boundaries.empty()) {
      outputs.push_back(
          {.name = column,
           .columns = {column},
           .transform =
               tessera::data::transforms::Bucketize{.boundaries = boundaries}});
    }
  }
  for (const tessera::data::VocabularyBuilder& builder : builders) {
    outputs.push_back(
        {.name = builder.column(),
         .columns = {builder.column()},
         .transform = options.keys
             ? tessera::data::Transform(tessera::data::transforms::Hash64{})
             : builder.size() == 0
             ? tessera::data::Transform(
                   tessera::data::transforms::Hash{.num_bins = 2})
             : builder.finish({.min_count = options.min_count})});
  }
  std::map<std::string, tessera::data::ColumnType> types;
  for (const tessera::data::VocabularyBuilder& builder : builders) {
    types[builder.column()] = tessera::data::ColumnType::kInt64;
  }
  return FeaturePipeline(std::move(outputs), std::move(types));
}
// end snippet
