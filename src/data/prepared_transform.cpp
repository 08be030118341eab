// SPDX-License-Identifier: Apache-2.0
#include "src/data/prepared_transform.h"

#include "src/data/column_values.h"
#include "src/data/cross.h"
#include "src/data/value_hash.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <concepts>

namespace tessera {

namespace {

constexpr int64_t kDropped = -1;

// Moves ids to make room for the id of missing values.
int64_t num_missing_ids(Missing missing) {
  return missing == Missing::kOwnId ? 1 : 0;
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
  TORCH_CHECK_VALUE(
      false,
      where,
      " a value is missing, and `missing` is Missing::kError. Choose what "
      "becomes of it, or fill it in before.");
}

// id_of(value), or what the policy says.
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

// Ids of all values of a column of Ts; reads() has been asked.
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

// Leaves out what is dropped, and of each example what is beyond max_length.
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
      [](const auto& options) {
        if constexpr (requires { options.missing; }) {
          return options.missing;
        } else {
          return Missing::kAsValue;
        }
      },
      transform);
}

}  // namespace

PreparedTransform::PreparedTransform(
    const Transform& transform,
    std::string where)
    : transform_(transform), where_(std::move(where)) {
  check_fields(transform_, where_);
  if (const auto* bucketize = std::get_if<transforms::Bucketize>(&transform_)) {
    boundaries_.assign(
        bucketize->boundaries.begin(), bucketize->boundaries.end());
  }
  const auto* vocabulary = std::get_if<transforms::Vocabulary>(&transform_);
  if (vocabulary == nullptr) {
    return;
  }
  std::visit(
      [&]<class T>(const std::vector<T>& values) {
        const auto repeated = index_.emplace<ValueIndex<T>>(values).repeated();
        TORCH_CHECK_VALUE(
            !repeated,
            where_,
            " values must be all different, but ",
            shown(values[repeated.value_or(0)]),
            " at place ",
            repeated.value_or(0),
            " is there already. Remove it.");
      },
      vocabulary->values);
}

const char* PreparedTransform::kinds() const {
  if (const auto* vocabulary =
          std::get_if<transforms::Vocabulary>(&transform_)) {
    const bool is_text = vocabulary->values.index() == 1;
    return is_text ? "text" : "integers";
  }
  if (std::holds_alternative<transforms::Hash>(transform_) ||
      std::holds_alternative<transforms::Cross>(transform_)) {
    return "integers or text";
  }
  if (std::holds_alternative<transforms::Identity>(transform_)) {
    return "integers";
  }
  return gives_numbers(transform_) ? "integers or floats, one per example"
                                   : "integers or floats";
}

bool PreparedTransform::reads(const Column& column) const {
  const bool has_kind =
      std::string_view(kinds()).find(kind_of(column)) != std::string::npos;
  return has_kind &&
      !(gives_numbers(transform_) && column.row_splits.defined());
}

at::Tensor PreparedTransform::map_values(const Column& column) const {
  if (const auto* hash = std::get_if<transforms::Hash>(&transform_)) {
    const auto bins =
        static_cast<uint64_t>(hash->num_bins - num_missing_ids(hash->missing));
    const auto seed = static_cast<uint64_t>(hash->salt);
    return map_column<int64_t, std::string>(
        column, hash->missing, where_, [&](const auto& value) {
          return static_cast<int64_t>(hash_of(value, seed) % bins);
        });
  }
  if (const auto* bucketize = std::get_if<transforms::Bucketize>(&transform_)) {
    const auto bin_of = [](const auto& boundaries, auto value) {
      return std::upper_bound(boundaries.begin(), boundaries.end(), value) -
          boundaries.begin();
    };
    return map_column<int64_t, float>(
        column, bucketize->missing, where_, [&]<class T>(T value) -> int64_t {
          if constexpr (std::same_as<T, float>) {
            return bin_of(boundaries_, value);
          } else {
            return bin_of(bucketize->boundaries, static_cast<double>(value));
          }
        });
  }
  if (const auto* identity = std::get_if<transforms::Identity>(&transform_)) {
    return map_column<int64_t>(
        column, identity->missing, where_, [&](int64_t value) {
          if (value >= 0 && value < identity->num_ids) {
            return value;
          }
          TORCH_CHECK_INDEX(
              identity->default_id.has_value(),
              where_,
              " ids must be in [0, ",
              identity->num_ids,
              "), but got ",
              value,
              ". Correct it, enlarge num_ids, or set default_id.");
          return *identity->default_id;
        });
  }
  const auto& vocabulary = std::get<transforms::Vocabulary>(transform_);
  const auto id_in = [&](const auto& index, const auto& value) {
    const uint64_t hash = hash_of(value, 0);
    const int64_t place = index.find(value, hash);
    if (place >= 0) {
      return vocabulary.num_oov_indices + place;
    }
    TORCH_CHECK_INDEX(
        vocabulary.num_oov_indices > 0,
        where_,
        " ",
        shown(value),
        " is not in the vocabulary, and num_oov_indices is 0. Set it to 1 or "
        "more for ids of unknown values.");
    return static_cast<int64_t>(
        hash % static_cast<uint64_t>(vocabulary.num_oov_indices));
  };
  if (const auto* integers = std::get_if<ValueIndex<int64_t>>(&index_)) {
    return map_column<int64_t>(
        column, vocabulary.missing, where_, [&](int64_t value) {
          return id_in(*integers, value);
        });
  }
  return map_column<std::string>(
      column, vocabulary.missing, where_, [&](const std::string& value) {
        return id_in(std::get<ValueIndex<std::string>>(index_), value);
      });
}

Feature PreparedTransform::to_ids(
    const std::vector<const Column*>& columns,
    int64_t max_length) const {
  const Missing missing = missing_of(transform_);
  at::Tensor ids;
  at::Tensor row_splits;
  if (const auto* cross = std::get_if<transforms::Cross>(&transform_)) {
    const auto bins = static_cast<uint64_t>(
        cross->num_bins - num_missing_ids(cross->missing));
    const CrossedHashes crossed =
        cross_columns(columns, static_cast<uint64_t>(cross->salt), where_);
    ids = at::empty({static_cast<int64_t>(crossed.hashes.size())}, at::kLong);
    int64_t* out = ids.data_ptr<int64_t>();
    for (const ValueHash& value : crossed.hashes) {
      auto id_of = [&](const ValueHash& hashed) {
        return static_cast<int64_t>(hashed.hash % bins);
      };
      *out++ = id_or_missing(value, missing, where_, id_of);
    }
    row_splits = crossed.row_splits;
  } else {
    ids = map_values(*columns.front());
    row_splits = columns.front()->row_splits;
  }
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
  const auto write = [&](double missing_value, auto number_of) {
    visit_values(column, [&]<class T>(std::span<const T> values) {
      if constexpr (std::same_as<T, std::string>) {
        TORCH_INTERNAL_ASSERT(false, where_, " got text");
      } else {
        float* next = out;
        for (const T& value : values) {
          *next = static_cast<float>(
              is_missing(value) ? missing_value
                                : number_of(static_cast<double>(value)));
          TORCH_CHECK_VALUE(
              std::isfinite(*next),
              where_,
              " expected a number whose result is finite in float32, but got ",
              value,
              ". Clean or scale the column.");
          next += stride;
        }
      }
    });
  };
  if (const auto* log = std::get_if<transforms::Log1p>(&transform_)) {
    write(log->missing_value, [](double value) {
      return std::log1p(std::max(value, 0.0));
    });
    return;
  }
  constexpr double kEpsilon = 1e-7;  // Keras's
  const auto& normalize = std::get<transforms::Normalize>(transform_);
  const double scale = std::max(std::sqrt(normalize.variance), kEpsilon);
  write(normalize.missing_value, [&](double value) {
    return (value - normalize.mean) / scale;
  });
}

}  // namespace tessera
