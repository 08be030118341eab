// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/transforms.h>

#include "packages/data/src/column_view.h"
#include "packages/data/src/prepared_transform.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>

namespace tessera::data {

namespace {

constexpr std::array<const char*, 4> kMissingNames{
    "own_id",
    "drop",
    "as_value",
    "error"};

constexpr std::array<const char*, 9> kTransformNames{
    "Hash",
    "Bucketize",
    "Vocabulary",
    "Cross",
    "Identity",
    "Log1p",
    "Normalize",
    "Hash64",
    "Cross64"};
static_assert(kTransformNames.size() == std::variant_size_v<Transform>);

// Sums of a few such numbers don't overflow int64, and every JSON reader represents
// integers up to this size exactly.
constexpr int64_t kMaxIds = int64_t{1} << 53;

void check_size(
    int64_t value,
    int64_t min,
    const std::string& where,
    const char* field) {
  TESSERA_CHECK_VALUE(
      value >= min && value <= kMaxIds,
      "{} {} must be in [{}, 2^53], but got {}. Correct it.",
      where,
      field,
      min,
      value);
}

// Checks Hash and Cross.
template <class Hashed>
void check_bins(const Hashed& hashed, const std::string& where) {
  check_size(hashed.num_bins, 1, where, "num_bins");
  TESSERA_CHECK_VALUE(
      hashed.num_bins > num_missing_ids(hashed.missing),
      "{} num_bins must be >= 2 with Missing::kOwnId, which takes one bin, but got {}. Increase num_bins.",
      where,
      hashed.num_bins);
}

void check_finite(double value, const std::string& where, const char* field) {
  TESSERA_CHECK_VALUE(
      std::isfinite(value),
      "{} {} must be finite, but got {}. Correct it.",
      where,
      field,
      value);
}

void check_boundaries(
    const transforms::Bucketize& bucketize,
    const std::string& where) {
  const std::vector<double>& boundaries = bucketize.boundaries;
  TESSERA_CHECK_VALUE(
      !boundaries.empty(),
      "{} boundaries must have one or more numbers, but are empty. quantile_boundaries() computes them.",
      where);
  for (size_t i = 0; i < boundaries.size(); ++i) {
    check_finite(boundaries[i], where, "boundaries");
    TESSERA_CHECK_VALUE(
        i == 0 || boundaries[i - 1] < boundaries[i],
        "{} boundaries must ascend, but {} is followed by {}. Sort them, and remove repeated ones.",
        where,
        boundaries[i == 0 ? 0 : i - 1],
        boundaries[i]);
  }
  TESSERA_CHECK_VALUE(
      bucketize.missing != Missing::kAsValue,
      "{} missing must be own_id, drop or error, but got as_value. A missing number can't be compared with boundaries.",
      where);
}

void check_vocabulary(
    const transforms::Vocabulary& vocabulary,
    const std::string& where) {
  check_size(vocabulary.num_oov_indices, 0, where, "num_oov_indices");
  std::visit(
      [&](const auto& values) {
        TESSERA_CHECK_VALUE(
            !values.empty() &&
                values.size() <= size_t{ValueIndex<int64_t>::kMaxSize},
            "{} values must have 1 to 2^30 entries, but got {}. VocabularyBuilder collects them.",
            where,
            values.size());
        TESSERA_CHECK_VALUE(
            std::ranges::none_of(
                values, [](const auto& value) { return is_missing(value); }),
            "{} values must not have the empty text or kMissing, because these stand for missing values. Remove the entry. The option `missing` decides about missing values.",
            where);
      },
      vocabulary.values);
}

}  // namespace

std::string to_string(Missing policy) {
  return kMissingNames.at(static_cast<size_t>(policy));
}

Missing missing_from_string(std::string_view name) {
  return value_named<Missing::kError>(name, kMissingNames, "[Missing] missing");
}

const char* name_of(const Transform& transform) {
  return kTransformNames.at(transform.index());
}

bool gives_numbers(const Transform& transform) {
  return std::visit(
      []<class Kind>(const Kind&) { return !ReturnsIds<Kind>; }, transform);
}

void check_fields(const Transform& transform, const std::string& where) {
  std::visit(
      Overloaded(
          [&](const transforms::Hash& hash) { check_bins(hash, where); },
          [](const transforms::Hash64&) {},
          [](const transforms::Cross64&) {},
          [&](const transforms::Bucketize& bucketize) {
            check_boundaries(bucketize, where);
          },
          [&](const transforms::Vocabulary& vocabulary) {
            check_vocabulary(vocabulary, where);
          },
          [&](const transforms::Cross& cross) { check_bins(cross, where); },
          [&](const transforms::Identity& identity) {
            check_size(identity.num_ids, 1, where, "num_ids");
            TESSERA_CHECK_VALUE(
                !identity.default_id ||
                    (*identity.default_id >= 0 &&
                     *identity.default_id < identity.num_ids),
                "{} default_id must be in [0, {}), but got {}. Correct it.",
                where,
                identity.num_ids,
                identity.default_id.value_or(0));
          },
          [&](const transforms::Log1p& log) {
            check_finite(log.missing_value, where, "missing_value");
          },
          [&](const transforms::Normalize& normalize) {
            check_finite(normalize.missing_value, where, "missing_value");
            check_finite(normalize.mean, where, "mean");
            check_finite(normalize.variance, where, "variance");
            TESSERA_CHECK_VALUE(
                normalize.variance >= 0,
                "{} variance must be >= 0, but got {}. Correct it.",
                where,
                normalize.variance);
          }),
      transform);
}

int64_t vocabulary_size(const Transform& transform) {
  const std::string where = fmt::format("[{}]", name_of(transform));
  TESSERA_CHECK_VALUE(
      !gives_numbers(transform),
      "{} gives numbers instead of ids, so it has no table and no vocabulary size. Leave this transform out.",
      where);
  check_fields(transform, where);
  return std::visit(
      Overloaded(
          [](const transforms::Bucketize& bucketize) {
            return num_missing_ids(bucketize.missing) +
                std::ssize(bucketize.boundaries) + 1;
          },
          [](const transforms::Vocabulary& vocabulary) {
            return num_missing_ids(vocabulary.missing) +
                vocabulary.num_oov_indices +
                std::visit(
                       [](const auto& values) { return std::ssize(values); },
                       vocabulary.values);
          },
          [](const transforms::Identity& identity) {
            return num_missing_ids(identity.missing) + identity.num_ids;
          },
          [](const transforms::Log1p&) { return int64_t{0}; },
          [](const transforms::Hash64&) { return int64_t{0}; },
          [](const transforms::Cross64&) { return int64_t{0}; },
          [](const transforms::Normalize&) { return int64_t{0}; },
          [](const auto& hashed) { return hashed.num_bins; }),
      transform);
}

int64_t num_reserved_ids(const Transform& transform) {
  if (vocabulary_size(transform) == 0) {
    return 0;
  }
  return std::visit(
      []<class Kind>(const Kind& options) -> int64_t {
        if constexpr (std::same_as<Kind, transforms::Vocabulary>) {
          return num_missing_ids(options.missing) + options.num_oov_indices;
        } else if constexpr (ReturnsIds<Kind>) {
          return num_missing_ids(options.missing);
        } else {
          return 0;
        }
      },
      transform);
}

namespace {

std::string text_at(const transforms::Vocabulary& vocabulary, size_t position) {
  return std::visit(
      [&]<class T>(const std::vector<T>& values) {
        if constexpr (std::same_as<T, std::string>) {
          return values[position];
        } else {
          return std::to_string(values[position]);
        }
      },
      vocabulary.values);
}

// The interval of a bin, such as [18, 30).
std::string text_at(const transforms::Bucketize& bucketize, size_t bin) {
  const std::vector<double>& boundaries = bucketize.boundaries;
  const std::string begin =
      bin == 0 ? "(-inf" : fmt::format("[{}", boundaries[bin - 1]);
  return bin == boundaries.size()
      ? begin + ", inf)"
      : fmt::format("{}, {})", begin, boundaries[bin]);
}

// Only for Identity, because the other transforms can't be reversed.
template <class Kind>
std::string text_at(const Kind&, size_t position) {
  return std::to_string(position);
}

}  // namespace

std::vector<std::string> texts_of_ids(
    const Transform& transform,
    std::span<const int64_t> ids,
    const std::string& where) {
  const bool can_reverse =
      std::holds_alternative<transforms::Vocabulary>(transform) ||
      std::holds_alternative<transforms::Identity>(transform) ||
      std::holds_alternative<transforms::Bucketize>(transform);
  TESSERA_CHECK_VALUE(
      can_reverse,
      "{} {} can't be reversed, because several values may have one id. Keep the values beside their ids, or use a Vocabulary.",
      where,
      name_of(transform));
  // These functions check the whole vocabulary, so they are called only once.
  const int64_t size = vocabulary_size(transform);
  const int64_t reserved = num_reserved_ids(transform);
  std::vector<std::string> texts;
  texts.reserve(ids.size());
  std::visit(
      [&]<class Kind>(const Kind& options) {
        for (const int64_t id : ids) {
          TESSERA_CHECK_INDEX(
              id >= 0 && id < size,
              "{} ids must be in [0, {}), but got {}. Pass ids of this feature.",
              where,
              size,
              id);
          if constexpr (ReturnsIds<Kind>) {
            texts.push_back(
                id < num_missing_ids(options.missing) ? "(missing)"
                    : id < reserved
                    ? "(unknown)"
                    : text_at(options, static_cast<size_t>(id - reserved)));
          }
        }
      },
      transform);
  return texts;
}

}  // namespace tessera::data
