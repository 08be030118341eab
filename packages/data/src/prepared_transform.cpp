// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/prepared_transform.h"

#include "src/common/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace tessera::data {

namespace {

constexpr int64_t kDropped = -1;

struct ValueHash {
  uint64_t hash = 0;
  bool has_missing = false;
};

using data::is_missing;
bool is_missing(const ValueHash& value) {
  return value.has_missing;
}

// The key of a hash of 64 bits. The marks for dropped and missing values must not be
// keys, even after Missing::kOwnId adds 1.
int64_t key_of_hash(uint64_t hash) {
  const auto key = static_cast<int64_t>(hash);
  const bool is_mark = key == kDropped || key == kDropped - 1 ||
      key == std::numeric_limits<int64_t>::max();
  return is_mark ? key ^ (int64_t{1} << 40) : key;
}

// Returns the function that makes an id of a hash of 64 bits: a bin, or a key if the
// transform has no bins.
template <class Hashed>
auto id_of_hash(const Hashed& hashed) {
  if constexpr (requires { hashed.num_bins; }) {
    const auto bins = static_cast<uint64_t>(
        hashed.num_bins - num_missing_ids(hashed.missing));
    return [bins](uint64_t hash) { return static_cast<int64_t>(hash % bins); };
  } else {
    return key_of_hash;
  }
}

template <class T>
std::string shown(const T& value) {
  constexpr size_t kLength = 80;
  if constexpr (std::same_as<T, std::string>) {
    return fmt::format("'{}'", std::string_view(value).substr(0, kLength));
  } else {
    return std::to_string(value);
  }
}

// Returns id_of(value), or treats a missing value as `missing` says.
template <class T, class IdOf>
int64_t id_or_missing(
    const T& value,
    Missing missing,
    const std::string& where,
    IdOf& id_of) {
  if (missing != Missing::kAsValue && is_missing(value)) {
    TESSERA_CHECK_VALUE(
        missing != Missing::kError,
        "{} a value is missing, and `missing` is Missing::kError. Set `missing` to another enumerator, or fill in the values first.",
        where);
    return missing == Missing::kOwnId ? 0 : kDropped;
  }
  return num_missing_ids(missing) + id_of(value);
}

// Converts every value of a column to an id. The type of the values must be one of Ts.
template <class... Ts, class IdOf>
void map_column(
    const ColumnView& column,
    Missing missing,
    const std::string& where,
    int64_t* out,
    IdOf id_of) {
  std::visit(
      [&]<class T>(std::span<const T> values) {
        if constexpr ((std::same_as<T, Ts> || ...)) {
          for (const T& value : values) {
            *out++ = id_or_missing(value, missing, where, id_of);
          }
        } else {
          TESSERA_CHECK(false, "{} got {}", where, kind_of(column));
        }
      },
      column.values);
}

// Removes dropped ids, and keeps at most max_length ids of each example. Without
// row_splits, each example has one id.
void compact(
    std::span<int64_t> ids,
    std::optional<std::span<const int64_t>> row_splits,
    int64_t max_length,
    IdsMemory& memory) {
  const auto num_ids = std::ssize(ids);
  const int64_t batch =
      row_splits ? static_cast<int64_t>(row_splits->size()) - 1 : num_ids;
  const std::span<int64_t> kept_splits =
      memory.make_row_splits(static_cast<size_t>(batch) + 1);
  const int64_t limit = max_length > 0 ? max_length : num_ids;
  int64_t size = kept_splits[0] = 0;
  for (int64_t example = 0; example < batch; ++example) {
    const int64_t begin = row_splits ? (*row_splits)[example] : example;
    const int64_t end = row_splits ? (*row_splits)[example + 1] : example + 1;
    const int64_t first = size;
    for (int64_t i = begin; i < end && size - first < limit; ++i) {
      ids[size] = ids[i];  // size <= i
      size += ids[i] != kDropped ? 1 : 0;
    }
    kept_splits[example + 1] = size;
  }
  memory.shrink_ids(static_cast<size_t>(size));
}

// 2^26 ids take 512 MiB. Lists that give more are probably a mistake.
constexpr double kMaxCombinations = int64_t{1} << 26;

// The hashes of a column's values, and the position of each example's first hash.
struct HashedColumn {
  std::vector<ValueHash> hashes;
  std::optional<std::span<const int64_t>> row_splits;

  int64_t begin(int64_t example) const {
    return row_splits ? (*row_splits)[example] : example;
  }
};

HashedColumn hash_column(const ColumnView& column, uint64_t seed) {
  HashedColumn hashed;
  hashed.row_splits = column.row_splits;
  std::visit(
      [&]<class T>(std::span<const T> values) {
        if constexpr (std::same_as<T, float>) {
          TESSERA_CHECK(false, "[Cross] got floats");
        } else {
          hashed.hashes.reserve(values.size());
          for (const T& value : values) {
            hashed.hashes.push_back({hash_of(value, seed), is_missing(value)});
          }
        }
      },
      column.values);
  return hashed;
}

double count_combinations(
    const std::vector<HashedColumn>& columns,
    int64_t example) {
  double combinations = 1.0;
  for (const HashedColumn& column : columns) {
    combinations *=
        static_cast<double>(column.begin(example + 1) - column.begin(example));
  }
  return combinations;
}

// Appends to `out` all combinations of `prefix` with values of columns[column] and of the
// columns after it.
void append(
    const std::vector<HashedColumn>& columns,
    size_t column,
    int64_t example,
    ValueHash prefix,
    std::vector<ValueHash>& out) {
  if (column == columns.size()) {
    out.push_back(prefix);
    return;
  }
  const HashedColumn& own = columns[column];
  for (int64_t i = own.begin(example); i < own.begin(example + 1); ++i) {
    const ValueHash& value = own.hashes[i];
    append(
        columns,
        column + 1,
        example,
        {combine_hashes(prefix.hash, value.hash),
         prefix.has_missing || value.has_missing},
        out);
  }
}

struct CrossedHashes {
  std::vector<ValueHash> hashes;
  // nullopt if all columns have one value per example.
  std::optional<std::vector<int64_t>> row_splits;
};

// Hashes all combinations of the columns' values, example by example.
// Errors:  c10::ValueError beginning with `where` if there are too many.
CrossedHashes cross_columns(
    std::span<const ColumnView* const> columns,
    uint64_t seed,
    const std::string& where) {
  const int64_t batch = columns.front()->batch_size();
  bool is_ragged = false;
  std::vector<HashedColumn> hashed;
  for (const ColumnView* column : columns) {
    hashed.push_back(hash_column(*column, seed));
    is_ragged = is_ragged || column->row_splits.has_value();
  }
  double total = 0.0;
  for (int64_t example = 0; example < batch; ++example) {
    total += count_combinations(hashed, example);
  }
  TESSERA_CHECK_VALUE(
      total <= kMaxCombinations,
      "{} expected at most 2^26 combinations of the columns' values in a batch, but got {}. Shorten the lists, or take smaller batches.",
      where,
      total);

  CrossedHashes crossed;
  crossed.hashes.reserve(static_cast<size_t>(total));
  std::vector<int64_t> row_splits{0};
  row_splits.reserve(static_cast<size_t>(batch) + 1);
  for (int64_t example = 0; example < batch; ++example) {
    // If one column has no values, append() would loop over the other columns in vain.
    if (count_combinations(hashed, example) > 0) {
      append(hashed, 0, example, {.hash = seed}, crossed.hashes);
    }
    row_splits.push_back(std::ssize(crossed.hashes));
  }
  if (is_ragged) {
    crossed.row_splits = std::move(row_splits);
  }
  return crossed;
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

void IdsMemory::take_row_splits(std::span<const int64_t> row_splits) {
  std::ranges::copy(row_splits, make_row_splits(row_splits.size()).begin());
}

bool ReadableColumns::has(const ColumnView& column) const {
  return has(column.type()) && (lists || !column.row_splits);
}

bool ReadableColumns::has(ColumnType type) const {
  return type == ColumnType::kText   ? text
      : type == ColumnType::kFloat32 ? floats
                                     : integers;
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
      Overloaded(
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
          [](const transforms::Identity&) {
            return ReadableColumns{.integers = true, .lists = true};
          },
          [&]<class Other>(const Other&) {
            return ReturnsIds<Other> ? kIntegersOrText : kNumbers;
          }),
      transform);
}

PreparedTransform::PreparedTransform(
    const Transform& transform,
    std::string where)
    : transform_(transform), where_(std::move(where)) {
  check_fields(transform_, where_);
  std::visit(
      Overloaded(
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

template <class Hashed>
void PreparedTransform::write_ids(
    const Hashed& hashed,
    const ColumnView& column,
    int64_t* out) const {
  const auto seed = static_cast<uint64_t>(hashed.salt);
  const auto id_of = id_of_hash(hashed);
  map_column<int64_t, std::string>(
      column, hashed.missing, where_, out, [&](const auto& value) {
        return id_of(hash_of(value, seed));
      });
}

void PreparedTransform::write_ids(
    const transforms::Bucketize& bucketize,
    const ColumnView& column,
    int64_t* out) const {
  const auto bin_of = [](const auto& boundaries, auto value) {
    return std::ranges::upper_bound(boundaries, value) - boundaries.begin();
  };
  map_column<int64_t, float>(
      column, bucketize.missing, where_, out, [&]<class T>(T value) -> int64_t {
        if constexpr (std::same_as<T, float>) {
          return bin_of(boundaries_, value);
        } else {
          return bin_of(bucketize.boundaries, static_cast<double>(value));
        }
      });
}

void PreparedTransform::write_ids(
    const transforms::Identity& identity,
    const ColumnView& column,
    int64_t* out) const {
  map_column<
      int64_t>(column, identity.missing, where_, out, [&](int64_t value) {
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

void PreparedTransform::write_ids(
    const transforms::Vocabulary& vocabulary,
    const ColumnView& column,
    int64_t* out) const {
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
  std::visit(
      [&]<class T>(const std::vector<T>&) {
        const auto& index = std::get<ValueIndex<T>>(index_);
        map_column<T>(
            column, vocabulary.missing, where_, out, [&](const T& value) {
              return id_in(index, value);
            });
      },
      vocabulary.values);
}

void PreparedTransform::to_ids(
    std::span<const ColumnView* const> columns,
    int64_t max_length,
    IdsMemory& memory) const {
  bool may_drop = false;
  std::span<int64_t> ids;
  std::optional<std::span<const int64_t>> row_splits;
  CrossedHashes crossed;
  std::visit(
      [&]<class Kind>(const Kind& transform) {
        if constexpr (
            std::same_as<Kind, transforms::Cross> ||
            std::same_as<Kind, transforms::Cross64>) {
          const auto seed = static_cast<uint64_t>(transform.salt);
          crossed = cross_columns(columns, seed, where_);
          ids = memory.make_ids(crossed.hashes.size());
          row_splits = crossed.row_splits;
          auto id_of = [id = id_of_hash(transform)](const ValueHash& hashed) {
            return id(hashed.hash);
          };
          for (size_t i = 0; i < ids.size(); ++i) {
            ids[i] = id_or_missing(
                crossed.hashes[i], transform.missing, where_, id_of);
          }
        } else if constexpr (ReturnsIds<Kind>) {
          const ColumnView& column = *columns.front();
          ids = memory.make_ids(column.size());
          row_splits = column.row_splits;
          write_ids(transform, column, ids.data());
        } else {
          TESSERA_CHECK(false, "{} gives numbers", where_);
        }
        if constexpr (ReturnsIds<Kind>) {
          may_drop = transform.missing == Missing::kDrop;
        }
      },
      transform_);
  if (may_drop || (row_splits && max_length > 0)) {
    compact(ids, row_splits, max_length, memory);
  } else if (crossed.row_splits) {
    const auto copied = memory.make_row_splits(row_splits->size());
    std::ranges::copy(*row_splits, copied.begin());
  } else if (row_splits) {
    memory.take_row_splits(*row_splits);
  }
}

void PreparedTransform::to_numbers(
    const ColumnView& column,
    float* out,
    int64_t stride) const {
  const auto write = [&]<class Kind, class T>(
                         const Kind& transform, std::span<const T> values) {
    if constexpr (ReturnsIds<Kind> || std::same_as<T, std::string>) {
      TESSERA_CHECK(false, "{} got {}", where_, kind_of(column));
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
        std::visit(
            [&](auto values) { write(transform, values); }, column.values);
      },
      transform_);
}

}  // namespace tessera::data
