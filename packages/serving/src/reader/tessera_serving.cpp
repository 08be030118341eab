// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/tessera_serving.h>

#include <tessera/common/shorten.h>
#include <tessera/serving/pipeline.h>
#include <tessera/serving/reader.h>

#include "src/common/check.h"

#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

struct tessera_reader {
  tessera::serving::Reader reader;
};

struct tessera_version {
  std::shared_ptr<const tessera::serving::Version> version;
};

namespace {

using tessera::serving::Pipeline;
using tessera::serving::RawColumns;
using tessera::serving::Version;

// Each of these structs owns what the pointers of its base point to.
struct OwningInfo : tessera_version_info {
  std::shared_ptr<const Version> version;
  std::vector<tessera_metric> metric_list;
  std::vector<tessera_dense_weight> dense_list;
};
struct OwningPipeline : tessera_pipeline {
  Pipeline pipeline;
  std::vector<tessera::serving::PipelineColumn> column_list;
  std::vector<tessera_column_info> info_list;
};
struct OwningResult : tessera_pipeline_result {
  tessera::serving::PipelineResult memory;
  std::vector<tessera_column> feature_list;
};
struct OwningRecommendation : tessera_recommendation {
  tessera::serving::RecommendResult memory;
};

std::string& last_error() {
  thread_local std::string message;
  return message;
}

// Returns run(), or after an exception -1 or NULL.
template <class Run>
auto without_exceptions(Run run) noexcept {
  try {
    return run();
  } catch (const std::exception& error) {
    try {
      last_error() = error.what();
    } catch (...) {
      last_error().clear();
    }
  } catch (...) {
    last_error().clear();
  }
  if constexpr (std::is_pointer_v<std::invoke_result_t<Run>>) {
    return std::invoke_result_t<Run>(nullptr);
  } else {
    return std::invoke_result_t<Run>(-1);
  }
}

template <class T>
T& checked(T* pointer, const char* name) {
  TESSERA_CHECK_VALUE(
      pointer != nullptr,
      "[tessera_serving] {} is NULL. Pass a pointer.",
      name);
  return *pointer;
}

const Version& checked(const tessera_version* version) {
  return *checked<const tessera_version>(version, "version").version;
}

size_t checked_number(int64_t number, size_t count, const char* kind) {
  TESSERA_CHECK_INDEX(
      number >= 0 && static_cast<uint64_t>(number) < count,
      "[tessera_serving] expected the number of a {}, from 0 and below {}, but got {}. Correct it.",
      kind,
      count,
      number);
  return static_cast<size_t>(number);
}

template <class T>
std::span<T> span_of(T* data, size_t size, const char* name) {
  TESSERA_CHECK_VALUE(
      size == 0 || (data != nullptr && size <= PTRDIFF_MAX / sizeof(T)),
      "[tessera_serving] {} should have {} entries, but is {}. Pass a pointer and the number of its entries.",
      name,
      size,
      data == nullptr ? "NULL" : "shorter");
  return {data, size};
}

// The row_splits of the feature or column `name`. Empty: each value is an example.
std::span<const int64_t> splits_of(
    const std::string& name,
    const int64_t* row_splits,
    size_t num_examples,
    size_t num_values) {
  constexpr size_t kMax = PTRDIFF_MAX / sizeof(int64_t);
  TESSERA_CHECK_VALUE(
      num_values < kMax &&
          (row_splits != nullptr ? num_examples < kMax
                                 : num_examples == num_values),
      "[tessera_serving] '{}': num_examples can't be {} with {} values{}. Correct it.",
      tessera::shorten(name),
      num_examples,
      num_values,
      row_splits == nullptr ? " and without row_splits" : "");
  return {row_splits, row_splits == nullptr ? 0 : num_examples + 1};
}

RawColumns::Column read_column(const tessera_column& column) {
  const auto& [name, integers, floats, texts, size, splits, examples] = column;
  TESSERA_CHECK_VALUE(
      !integers + !floats + !texts == 2,
      "[tessera_serving] column '{}' must have integers, floats or texts. Set one of them, even without values, and the others to NULL.",
      tessera::shorten(name));
  RawColumns::Column result;
  const auto row_splits = splits_of(name, splits, examples, size);
  if (!row_splits.empty()) {
    result.row_splits.emplace(row_splits.begin(), row_splits.end());
  }
  if (integers != nullptr) {
    result.values = std::vector(integers, integers + size);
  } else if (floats != nullptr) {
    result.values = std::vector(floats, floats + size);
  } else {
    auto& values = result.values.emplace<std::vector<std::string>>(size);
    for (size_t i = 0; i < size; ++i) {
      values[i] = texts[i] == nullptr ? "" : texts[i];
    }
  }
  return result;
}

}  // namespace

const char* tessera_error(void) {
  return last_error().c_str();
}

int tessera_reader_open(
    const char* directory,
    const tessera_reader_options* options,
    tessera_reader** out) {
  return without_exceptions([&] {
    checked(out, "out") = nullptr;
    const auto [follow, poll_seconds, copy_to_memory] =
        options != nullptr ? *options : tessera_reader_options{1, 0.0, 0};
    *out = new tessera_reader{tessera::serving::Reader(
        &checked(directory, "directory"),
        {.follow = follow != 0,
         .poll_seconds = poll_seconds == 0.0 ? 1.0 : poll_seconds,
         .copy_to_memory = copy_to_memory != 0})};
    return 0;
  });
}

void tessera_reader_close(tessera_reader* reader) {
  delete reader;
}

int tessera_reader_refresh(tessera_reader* reader) {
  return without_exceptions(
      [&] { return checked(reader, "reader").reader.refresh() ? 1 : 0; });
}

int tessera_reader_rollback(tessera_reader* reader, int64_t version) {
  return without_exceptions([&] {
    checked(reader, "reader").reader.rollback(version);
    return 0;
  });
}

int tessera_reader_unpin(tessera_reader* reader) {
  return without_exceptions([&] {
    checked(reader, "reader").reader.unpin();
    return 0;
  });
}

tessera_version* tessera_reader_version(tessera_reader* reader) {
  return without_exceptions([&] {
    return new tessera_version{checked(reader, "reader").reader.version()};
  });
}

void tessera_version_release(tessera_version* version) {
  delete version;
}

int64_t tessera_version_number(const tessera_version* version) {
  return without_exceptions([&] { return checked(version).number(); });
}

int64_t tessera_version_step(const tessera_version* version) {
  return without_exceptions([&] { return checked(version).step(); });
}

tessera_version_info* tessera_version_describe(const tessera_version* version) {
  return without_exceptions([&]() -> tessera_version_info* {
    auto info = std::make_unique<OwningInfo>();
    info->version = checked<const tessera_version>(version, "version").version;
    for (const auto& [name, value] : info->version->metrics()) {
      info->metric_list.push_back({name.c_str(), value});
    }
    for (const Version::DenseWeight& weight : info->version->dense()) {
      info->dense_list.push_back(
          {.name = weight.name.c_str(),
           .dtype = weight.dtype.c_str(),
           .shape = weight.shape.data(),
           .num_dims = weight.shape.size(),
           .bytes = weight.bytes.data(),
           .num_bytes = weight.bytes.size()});
    }
    info->base = info->version->base();
    info->time = info->version->time();
    info->metrics = info->metric_list.data();
    info->num_metrics = info->metric_list.size();
    info->dense_weights = info->dense_list.data();
    info->num_dense_weights = info->dense_list.size();
    return info.release();
  });
}

void tessera_version_info_release(tessera_version_info* info) {
  delete static_cast<OwningInfo*>(info);
}

int64_t tessera_version_feature(
    const tessera_version* version,
    const char* name) {
  return without_exceptions([&] {
    return static_cast<int64_t>(
        checked(version).feature(&checked(name, "name")));
  });
}

int64_t tessera_version_table(
    const tessera_version* version,
    const char* name) {
  return without_exceptions([&] {
    return static_cast<int64_t>(checked(version).table(&checked(name, "name")));
  });
}

int64_t tessera_version_feature_dim(
    const tessera_version* version,
    int64_t feature) {
  return without_exceptions([&] {
    const auto& features = checked(version).features();
    return features[checked_number(feature, features.size(), "feature")].dim;
  });
}

int64_t tessera_version_table_dim(
    const tessera_version* version,
    int64_t table) {
  return without_exceptions([&] {
    const auto& tables = checked(version).tables();
    return tables[checked_number(table, tables.size(), "table")].dim;
  });
}

int64_t tessera_version_lookup(
    const tessera_version* version,
    int64_t feature,
    const int64_t* ids,
    size_t num_ids,
    const int64_t* row_splits,
    size_t num_examples,
    const float* weights,
    float* out,
    size_t out_size) {
  return without_exceptions([&] {
    const Version& from = checked(version);
    const size_t number =
        checked_number(feature, from.features().size(), "feature");
    const tessera::serving::FeatureBatch batch{
        .ids = span_of(ids, num_ids, "ids"),
        .row_splits = splits_of(
            from.features()[number].name, row_splits, num_examples, num_ids),
        .weights = {weights, weights == nullptr ? 0 : num_ids}};
    const size_t size = from.output_size(number, batch);
    TESSERA_CHECK_VALUE(
        out_size >= size,
        "[tessera_version_lookup] the batch gives {} floats, but `out` has {}. Pass a larger one.",
        size,
        out_size);
    from.lookup(number, batch, span_of(out, size, "out"));
    return static_cast<int64_t>(size);
  });
}

int tessera_version_lookup_rows(
    const tessera_version* version,
    int64_t table,
    const int64_t* ids,
    size_t num_ids,
    float* out,
    size_t out_size) {
  return without_exceptions([&] {
    const Version& from = checked(version);
    const size_t number = checked_number(table, from.tables().size(), "table");
    const auto dim = static_cast<size_t>(from.tables()[number].dim);
    TESSERA_CHECK_VALUE(
        num_ids <= out_size / dim,
        "[tessera_version_lookup_rows] {} rows of {} floats do not fit into `out` with {}. Pass a larger one.",
        num_ids,
        dim,
        out_size);
    from.lookup_rows(
        number,
        span_of(ids, num_ids, "ids"),
        span_of(out, num_ids * dim, "out"));
    return 0;
  });
}

tessera_recommendation* tessera_version_recommend(
    const tessera_version* version,
    const tessera_recommend_request* request) {
  return without_exceptions([&]() -> tessera_recommendation* {
    const auto& given = checked(request, "request");
    const auto ids = [](const int64_t* first, size_t count, const char* name) {
      const auto span = span_of(first, count, name);
      return std::vector<int64_t>(span.begin(), span.end());
    };
    tessera::serving::RecommendRequest converted{
        .k = given.k,
        .exclude_seen = given.exclude_seen != 0,
        .where = given.where == nullptr ? "" : given.where,
        .exclude = ids(given.exclude, given.num_exclude, "exclude"),
        .diverse_column =
            given.diverse_column == nullptr ? "" : given.diverse_column,
        .max_per_value = given.max_per_value};
    if (given.user != nullptr) {
      converted.user = *given.user;
    }
    if (given.items != nullptr || given.num_items > 0) {
      converted.items = ids(given.items, given.num_items, "items");
    }
    if (given.choose_from != nullptr || given.num_choose_from > 0) {
      converted.choose_from =
          ids(given.choose_from, given.num_choose_from, "choose_from");
    }
    const auto vector = span_of(given.vector, given.dim, "vector");
    converted.vector.assign(vector.begin(), vector.end());
    auto found = std::make_unique<OwningRecommendation>();
    found->memory =
        std::move(checked(version).recommend({&converted, 1}).front());
    found->ids = found->memory.ids.data();
    found->scores = found->memory.scores.data();
    found->num_items = found->memory.ids.size();
    static_assert(
        static_cast<int>(tessera::serving::RecommendedFrom::kPopularity) ==
        TESSERA_FROM_POPULARITY);
    found->from = static_cast<tessera_recommended_from>(found->memory.from);
    found->passed = found->memory.passed;
    found->has_history = found->memory.has_history ? 1 : 0;
    return found.release();
  });
}

void tessera_recommendation_release(tessera_recommendation* recommendation) {
  delete static_cast<OwningRecommendation*>(recommendation);
}

tessera_pipeline* tessera_version_pipeline(const tessera_version* version) {
  return without_exceptions([&]() -> tessera_pipeline* {
    const Version& from = checked(version);
    TESSERA_CHECK_VALUE(
        !from.pipeline().empty(),
        "[tessera_version_pipeline] version {} has no pipeline. Publish one with PublishOptions::pipeline.",
        from.number());
    const auto pipeline = Pipeline::from_json_text(from.pipeline());
    std::unique_ptr<OwningPipeline> result(
        new OwningPipeline{{}, pipeline, pipeline.columns(), {}});
    // The names of PipelineColumn::Type, in the same order.
    constexpr std::array kTypes{
        "int64", "float32", "text", "uint64_bits", "numbers", "unknown"};
    for (const auto& column : result->column_list) {
      result->info_list.push_back(
          {.name = column.name.c_str(),
           .type = kTypes.at(static_cast<size_t>(column.type)),
           .takes_lists = column.takes_lists ? 1 : 0});
    }
    result->columns = result->info_list.data();
    result->num_columns = result->info_list.size();
    return result.release();
  });
}

void tessera_pipeline_release(tessera_pipeline* pipeline) {
  delete static_cast<OwningPipeline*>(pipeline);
}

tessera_pipeline_result* tessera_pipeline_apply(
    const tessera_pipeline* pipeline,
    const tessera_column* columns,
    size_t num_columns) {
  return without_exceptions([&]() -> tessera_pipeline_result* {
    const auto& from =
        static_cast<const OwningPipeline&>(checked(pipeline, "pipeline"));
    RawColumns batch;
    for (const auto& column : span_of(columns, num_columns, "columns")) {
      const std::string name = &checked(column.name, "the name of a column");
      batch.add(name, read_column(column));
    }
    auto result = std::make_unique<OwningResult>();
    result->memory = from.pipeline.apply(batch);
    const auto num_examples = static_cast<size_t>(batch.batch_size());
    for (const auto& [name, feature] : result->memory.features) {
      const auto& [ids, row_splits] = feature;
      result->feature_list.push_back(
          {.name = name.c_str(),
           .integers = ids.data(),
           .floats = nullptr,
           .texts = nullptr,
           .num_values = ids.size(),
           .row_splits = row_splits.empty() ? nullptr : row_splits.data(),
           .num_examples = num_examples});
    }
    result->features = result->feature_list.data();
    result->num_features = result->feature_list.size();
    result->dense = result->memory.dense.data();
    result->num_examples = num_examples;
    result->num_dense = static_cast<size_t>(result->memory.num_dense);
    result->warning = result->memory.warning.c_str();
    return result.release();
  });
}

void tessera_pipeline_result_release(tessera_pipeline_result* result) {
  delete static_cast<OwningResult*>(result);
}
