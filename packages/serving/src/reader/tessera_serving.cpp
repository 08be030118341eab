// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/tessera_serving.h>

#include <tessera/serving/reader.h>

#include "src/common/check.h"

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

struct tessera_reader {
  tessera_reader(const char* directory, tessera::serving::ReaderOptions options)
      : reader(directory, std::move(options)) {}

  tessera::serving::Reader reader;
};

struct tessera_version {
  std::shared_ptr<const tessera::serving::Version> version;
};

namespace {

using tessera::serving::FeatureBatch;

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

const tessera::serving::Version& checked(const tessera_version* version) {
  return *checked<const tessera_version>(version, "version").version;
}

size_t checked_number(int64_t number, size_t count, const char* kind) {
  TESSERA_CHECK_INDEX(
      number >= 0 && static_cast<uint64_t>(number) < count,
      "[tessera_serving] there are {} {}s, but got the number {}.",
      count,
      kind,
      number);
  return static_cast<size_t>(number);
}

template <class T>
std::span<T> span_of(T* data, size_t size, const char* name) {
  TESSERA_CHECK_VALUE(
      data != nullptr || size == 0,
      "[tessera_serving] {} is NULL, but should have {} entries. Pass a pointer.",
      name,
      size);
  return {data, size};
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
    tessera::serving::ReaderOptions given;
    if (options != nullptr) {
      given.follow = options->follow != 0;
      given.copy_to_memory = options->copy_to_memory != 0;
      if (options->poll_seconds != 0.0) {
        given.poll_seconds = options->poll_seconds;
      }
    }
    *out =
        new tessera_reader(&checked(directory, "directory"), std::move(given));
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
    const tessera::serving::Version& from = checked(version);
    const size_t number =
        checked_number(feature, from.features().size(), "feature");
    FeatureBatch batch{.ids = span_of(ids, num_ids, "ids")};
    TESSERA_CHECK_VALUE(
        row_splits != nullptr ? num_examples < SIZE_MAX / sizeof(int64_t)
                              : num_examples == num_ids,
        "[tessera_version_lookup] num_examples is {}, but there are {} ids{}. Correct it.",
        num_examples,
        num_ids,
        row_splits == nullptr ? ", and row_splits is NULL" : "");
    if (row_splits != nullptr) {
      batch.row_splits = {row_splits, num_examples + 1};
    }
    if (weights != nullptr) {
      batch.weights = {weights, num_ids};
    }
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
    const tessera::serving::Version& from = checked(version);
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
