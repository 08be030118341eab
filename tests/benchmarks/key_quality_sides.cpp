// SPDX-License-Identifier: Apache-2.0
#include "tests/benchmarks/key_quality_sides.h"

#include "src/tables/key_index.h"
#include "src/tables/table_state.h"
#include "tests/benchmarks/long_tail_clicks.h"
#include "tests/benchmarks/torch_benchmark.h"

#include <tessera/tables/dynamic_keys.h>
#include <tessera/tables/table_config.h>

namespace data = tessera::data;

namespace {

using IdColumn = LongTailClicks::IdColumn;

int64_t distinct_ids(const data::transforms::Vocabulary& vocabulary) {
  return static_cast<int64_t>(
      std::get<std::vector<int64_t>>(vocabulary.values).size());
}

// The bytes of a row and of its slot of Adagrad.
int64_t row_bytes(const SideOptions& options) {
  const auto size = static_cast<int64_t>(c10::elementSize(options.dtype));
  return tessera::stored_columns(options.dim, options.dtype) * size +
      options.dim * static_cast<int64_t>(sizeof(float));
}

tessera::DynamicKeys keys_of_capacity(
    int64_t capacity,
    const SideOptions& options) {
  tessera::DynamicKeys keys{.capacity = capacity};
  if (options.occurrences > 1) {
    keys.admission = tessera::admission::AfterOccurrences{
        .count = options.occurrences,
        .counters = static_cast<int64_t>(
            options.counters_per_row * static_cast<double>(capacity))};
  }
  if (options.eviction == "lfu") {
    keys.eviction =
        tessera::eviction::LeastFrequentlyUsed{.half_life = options.half_life};
  } else {
    keys.eviction = tessera::eviction::LeastRecentlyUsed{};
  }
  return keys;
}

int64_t bytes_of(const tessera::DynamicKeys& keys, const SideOptions& options) {
  const tessera::KeyPartitions partitions(keys.capacity);
  // Rows that are rounded at random keep their keys.
  const int64_t row_key = options.dtype == at::kFloat ? 0 : 8;
  return keys.capacity * (row_bytes(options) + row_key) +
      tessera::KeyIndex(keys, "t", 0, partitions.all()).bytes_at_capacity();
}

// Returns the largest capacity whose table takes at most `bytes`, or 1.
tessera::DynamicKeys keys_of_bytes(int64_t bytes, const SideOptions& options) {
  int64_t low = 1;
  int64_t high = std::max<int64_t>(1, bytes / row_bytes(options));
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (bytes_of(keys_of_capacity(middle, options), options) <= bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return keys_of_capacity(low, options);
}

}  // namespace

Side make_side(
    const std::string& name,
    double fraction,
    const std::vector<data::transforms::Vocabulary>& vocabularies,
    const SideOptions& options) {
  Side side;
  data::PipelineOutput numbers{
      .name = "numbers", .transform = data::transforms::Normalize{}};
  for (int64_t n = 0; n < LongTailClicks::kNumbers; ++n) {
    numbers.columns.push_back(fmt::format("number_{}", n));
  }
  side.outputs.push_back(numbers);
  for (size_t c = 0; c < LongTailClicks::kIdColumns.size(); ++c) {
    const IdColumn& column = LongTailClicks::kIdColumns[c];
    const auto missing = data::Missing::kAsValue;
    const int64_t distinct = distinct_ids(vocabularies[c]);
    const auto bytes = static_cast<int64_t>(
        fraction * static_cast<double>(distinct * row_bytes(options)));
    data::PipelineOutput output{.name = column.name, .columns = {column.name}};
    tessera::TableConfig table{
        .name = column.name,
        .dim = options.dim,
        .combiner = tessera::Combiner::kSum,
        .initializer =
            tessera::initializers::Uniform{
                .low = -options.initial, .high = options.initial},
        .dtype = options.dtype};
    int64_t rows = distinct;
    int64_t taken = distinct * row_bytes(options);
    if (!column.has_long_tail || name == "vocabulary") {
      output.transform = vocabularies[c];
      std::get<data::transforms::Vocabulary>(output.transform).missing =
          missing;
    } else if (name == "keys") {
      output.transform = data::transforms::Hash64{.missing = missing};
      table.keys = keys_of_bytes(bytes, options);
      rows = table.keys->capacity;
      taken = bytes_of(*table.keys, options);
    } else {
      rows = std::max<int64_t>(1, bytes / row_bytes(options));
      taken = rows * row_bytes(options);
      output.transform =
          data::transforms::Hash{.num_bins = rows, .missing = missing};
    }
    table.vocabulary_size = data::vocabulary_size(output.transform);
    side.features.emplace_back(
        column.name,
        tessera::FeatureConfig{.table = tessera::make_table(table)});
    side.outputs.push_back(std::move(output));
    if (column.has_long_tail) {
      side.rows += rows;
      side.bytes += taken;
    }
  }
  return side;
}
