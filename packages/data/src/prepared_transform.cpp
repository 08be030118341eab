// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/prepared_transform.h"

#include "packages/data/src/column_values.h"
#include "packages/data/src/cross.h"
#include "packages/data/src/value_hash.h"
#include "src/common/check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/overloaded.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <limits>

namespace tessera::data {

namespace {

constexpr int64_t kDropped = -1;

// The key of a hash of 64 bits. The marks for dropped and missing values must not be keys.
int64_t key_of_hash(uint64_t hash) {
  const auto key = static_cast<int64_t>(hash);
  const bool is_mark = key == kDropped || key == kDropped - 1 ||
      key == std::numeric_limits<int64_t>::max();
  return is_mark ? key ^ (int64_t{1} << 40) : key;
}

template <class T>
std::string shown(const T& value) {
  constexpr size_t kLength = 80;
  if constexpr (std::same_as<T, std::string>) {
    return c10::str("'", std::string_view(value).substr(0, kLength), "'");
  } else {
    return std::to_string(value);
  }
}

void refuse_missing(const std::string& where) {
  TESSERA_CHECK_VALUE(
      false,
      "{} a value is missing, and `missing` is Missing::kError. Set `missing` to another enumerator, or fill in the values first.",
      where);
}

// Returns id_of(value), or treats a missing value as `missing` says.
template <class T, class IdOf>
int64_t id_or_missing(
    const T& value,
    Missing missing,
    const std::string& where,
    IdOf& id_of) {
  if (missing != Missing::kAsValue && is_missing(value)) {
    if (missing == Missing::kError) {
      refuse_missing(where);
    }
    return missing == Missing::kOwnId ? 0 : kDropped;
  }
  return num_missing_ids(missing) + id_of(value);
}

// Converts every value of a column to an id. The type of the values must be one of Ts.
template <class... Ts, class IdOf>
at::Tensor map_column(
    const Column& column,
    Missing missing,
    const std::string& where,
    IdOf id_of) {
  at::Tensor ids;
  visit_values(column, [&]<class T>(std::span<const T> values) {
    if constexpr ((std::same_as<T, Ts> || ...)) {
      ids = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
      int64_t* out = ids.data_ptr<int64_t>();
      for (const T& value : values) {
        *out++ = id_or_missing(value, missing, where, id_of);
      }
    } else {
      TORCH_INTERNAL_ASSERT(false, where, " got ", kind_of(column));
    }
  });
  return ids;
}

// Removes dropped ids, and keeps at most max_length ids of each example.
RaggedFeature compact(
    const at::Tensor& ids,
    const at::Tensor& row_splits,
    int64_t max_length) {
  const at::Tensor splits = row_splits.contiguous();
  const int64_t batch = splits.numel() - 1;
  const int64_t* from = ids.const_data_ptr<int64_t>();
  const int64_t* begin = splits.const_data_ptr<int64_t>();
  at::Tensor kept = at::empty({ids.numel()}, at::kLong);
  at::Tensor kept_splits = at::empty({batch + 1}, at::kLong);
  int64_t* out = kept.data_ptr<int64_t>();
  int64_t* out_splits = kept_splits.data_ptr<int64_t>();
  const int64_t limit = max_length > 0 ? max_length : ids.numel();
  int64_t size = out_splits[0] = 0;
  for (int64_t example = 0; example < batch; ++example) {
    const int64_t first = size;
    for (int64_t i = begin[example];
         i < begin[example + 1] && size - first < limit;
         ++i) {
      out[size] = from[i];
      size += from[i] != kDropped ? 1 : 0;
    }
    out_splits[example + 1] = size;
  }
  return {.values = kept.narrow(0, 0, size), .row_splits = kept_splits};
}

Missing missing_of(const Transform& transform) {
  return std::visit(
      []<class Kind>(const Kind& options) {
        if constexpr (ReturnsIds<Kind>) {
          return options.missing;
        } else {
          return Missing::kAsValue;
        }
      },
      transform);
}

// Returns the function that a transform applies to numbers that are not missing.
auto number_of(const transforms::Log1p&) {
  return [](double value) { return std::log1p(std::max(value, 0.0)); };
}

auto number_of(const transforms::Normalize& normalize) {
  constexpr double kEpsilon = 1e-7;  // the same as in Keras
  const double scale = std::max(std::sqrt(normalize.variance), kEpsilon);
  return [mean = normalize.mean, scale](double value) {
    return (value - mean) / scale;
  };
}

}  // namespace

bool ReadableColumns::has(const Column& column) const {
  if (column.row_splits.defined() && !lists) {
    return false;
  }
  const auto* tensor = std::get_if<at::Tensor>(&column.values);
  return tensor == nullptr                 ? text
      : tensor->scalar_type() == at::kLong ? integers
                                           : floats;
}

std::string ReadableColumns::describe() const {
  std::string kinds;
  const auto add = [&](bool is_read, const char* kind) {
    if (is_read) {
      kinds.append(kinds.empty() ? "" : " or ").append(kind);
    }
  };
  add(integers, "integers");
  add(floats, "floats");
  add(text, "text");
  return lists ? kinds : kinds.append(", one per example");
}

ReadableColumns readable_columns(const Transform& transform) {
  constexpr ReadableColumns kIntegersOrText{
      .integers = true, .text = true, .lists = true};
  constexpr ReadableColumns kNumbers{.integers = true, .floats = true};
  return std::visit(
      c10::overloaded(
          [&](const transforms::Hash&) { return kIntegersOrText; },
          [&](const transforms::Hash64&) { return kIntegersOrText; },
          [&](const transforms::Cross64&) { return kIntegersOrText; },
          [](const transforms::Bucketize&) {
            return ReadableColumns{
                .integers = true, .floats = true, .lists = true};
          },
          [](const transforms::Vocabulary& vocabulary) {
            const bool is_text =
                std::holds_alternative<std::vector<std::string>>(
                    vocabulary.values);
            return ReadableColumns{
                .integers = !is_text, .text = is_text, .lists = true};
          },
          [&](const transforms::Cross&) { return kIntegersOrText; },
          [](const transforms::Identity&) {
            return ReadableColumns{.integers = true, .lists = true};
          },
          [&](const transforms::Log1p&) { return kNumbers; },
          [&](const transforms::Normalize&) { return kNumbers; }),
      transform);
}

PreparedTransform::PreparedTransform(
    const Transform& transform,
    std::string where)
    : transform_(transform), where_(std::move(where)) {
  check_fields(transform_, where_);
  std::visit(
      c10::overloaded(
          [&](const transforms::Bucketize& bucketize) {
            boundaries_.assign(
                bucketize.boundaries.begin(), bucketize.boundaries.end());
          },
          [&](const transforms::Vocabulary& vocabulary) {
            make_index(vocabulary);
          },
          [](const auto&) {}),
      transform_);
}

void PreparedTransform::make_index(const transforms::Vocabulary& vocabulary) {
  std::visit(
      [&]<class T>(const std::vector<T>& values) {
        const auto repeated = index_.emplace<ValueIndex<T>>(values).repeated();
        TESSERA_CHECK_VALUE(
            !repeated,
            "{} values must all be different, but {} at index {} repeats an earlier value. Remove it.",
            where_,
            shown(values[repeated.value_or(0)]),
            repeated.value_or(0));
      },
      vocabulary.values);
}

at::Tensor PreparedTransform::ids_of(
    const transforms::Hash& hash,
    const Column& column) const {
  const auto bins =
      static_cast<uint64_t>(hash.num_bins - num_missing_ids(hash.missing));
  const auto seed = static_cast<uint64_t>(hash.salt);
  return map_column<int64_t, std::string>(
      column, hash.missing, where_, [&](const auto& value) {
        return static_cast<int64_t>(hash_of(value, seed) % bins);
      });
}

at::Tensor PreparedTransform::ids_of(
    const transforms::Hash64& hash,
    const Column& column) const {
  const auto seed = static_cast<uint64_t>(hash.salt);
  return map_column<int64_t, std::string>(
      column, hash.missing, where_, [&](const auto& value) {
        return key_of_hash(hash_of(value, seed));
      });
}

at::Tensor PreparedTransform::ids_of(
    const transforms::Bucketize& bucketize,
    const Column& column) const {
  const auto bin_of = [](const auto& boundaries, auto value) {
    return std::upper_bound(boundaries.begin(), boundaries.end(), value) -
        boundaries.begin();
  };
  return map_column<int64_t, float>(
      column, bucketize.missing, where_, [&]<class T>(T value) -> int64_t {
        if constexpr (std::same_as<T, float>) {
          return bin_of(boundaries_, value);
        } else {
          return bin_of(bucketize.boundaries, static_cast<double>(value));
        }
      });
}

at::Tensor PreparedTransform::ids_of(
    const transforms::Identity& identity,
    const Column& column) const {
  return map_column<
      int64_t>(column, identity.missing, where_, [&](int64_t value) {
    if (value >= 0 && value < identity.num_ids) {
      return value;
    }
    TESSERA_CHECK_INDEX(
        identity.default_id.has_value(),
        "{} ids must be in [0, {}), but got {}. Correct the id, increase num_ids, or set default_id.",
        where_,
        identity.num_ids,
        value);
    return *identity.default_id;
  });
}

at::Tensor PreparedTransform::ids_of(
    const transforms::Vocabulary& vocabulary,
    const Column& column) const {
  const auto id_in = [&](const auto& index, const auto& value) {
    const uint64_t hash = hash_of(value, 0);
    const int64_t position = index.find(value, hash);
    if (position >= 0) {
      return vocabulary.num_oov_indices + position;
    }
    TESSERA_CHECK_INDEX(
        vocabulary.num_oov_indices > 0,
        "{} {} is not in the vocabulary, and num_oov_indices is 0. Set it to 1 or more for ids of unknown values.",
        where_,
        shown(value));
    return static_cast<int64_t>(
        hash % static_cast<uint64_t>(vocabulary.num_oov_indices));
  };
  return std::visit(
      [&]<class T>(const std::vector<T>&) {
        const auto& index = std::get<ValueIndex<T>>(index_);
        return map_column<T>(
            column, vocabulary.missing, where_, [&](const T& value) {
              return id_in(index, value);
            });
      },
      vocabulary.values);
}

template <class Crossed>
PreparedTransform::Ids PreparedTransform::crossed_ids(
    const Crossed& cross,
    const std::vector<const Column*>& columns) const {
  const CrossedHashes crossed =
      cross_columns(columns, static_cast<uint64_t>(cross.salt), where_);
  const at::Tensor ids =
      at::empty({static_cast<int64_t>(crossed.hashes.size())}, at::kLong);
  auto* out = ids.data_ptr<int64_t>();
  auto id_of = [&](const ValueHash& hashed) {
    if constexpr (std::same_as<Crossed, transforms::Cross>) {
      const auto bins = static_cast<uint64_t>(
          cross.num_bins - num_missing_ids(cross.missing));
      return static_cast<int64_t>(hashed.hash % bins);
    } else {
      return key_of_hash(hashed.hash);
    }
  };
  for (const ValueHash& value : crossed.hashes) {
    *out++ = id_or_missing(value, cross.missing, where_, id_of);
  }
  return {.values = ids, .row_splits = crossed.row_splits};
}

Feature PreparedTransform::to_ids(
    const std::vector<const Column*>& columns,
    int64_t max_length) const {
  const Missing missing = missing_of(transform_);
  auto [ids, row_splits] = std::visit(
      [&]<class Kind>(const Kind& transform) -> Ids {
        if constexpr (
            std::same_as<Kind, transforms::Cross> ||
            std::same_as<Kind, transforms::Cross64>) {
          return crossed_ids(transform, columns);
        } else if constexpr (ReturnsIds<Kind>) {
          const Column& column = *columns.front();
          return {ids_of(transform, column), column.row_splits};
        } else {
          TORCH_INTERNAL_ASSERT(false, where_, " gives numbers");
        }
      },
      transform_);
  if (!row_splits.defined() && missing != Missing::kDrop) {
    return ids;
  }
  if (!row_splits.defined()) {
    row_splits = at::arange(ids.numel() + 1, at::kLong);
  }
  if (missing != Missing::kDrop && max_length == 0) {
    return RaggedFeature{.values = ids, .row_splits = row_splits};
  }
  return compact(ids, row_splits, max_length);
}

void PreparedTransform::to_numbers(
    const Column& column,
    float* out,
    int64_t stride) const {
  const auto write = [&]<class Kind, class T>(
                         const Kind& transform, std::span<const T> values) {
    if constexpr (ReturnsIds<Kind> || std::same_as<T, std::string>) {
      TORCH_INTERNAL_ASSERT(false, where_, " got ", kind_of(column));
    } else {
      const auto number = number_of(transform);
      for (const T& value : values) {
        *out = static_cast<float>(
            is_missing(value) ? transform.missing_value
                              : number(static_cast<double>(value)));
        TESSERA_CHECK_VALUE(
            std::isfinite(*out),
            "{} expected a number whose result is finite in float32, but got {}. Clean or scale the column.",
            where_,
            value);
        out += stride;
      }
    }
  };
  std::visit(
      [&](const auto& transform) {
        visit_values(column, [&](auto values) { write(transform, values); });
      },
      transform_);
}

}  // namespace tessera::data
