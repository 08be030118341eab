// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/vocabulary_builder.h>

#include "src/data/column_values.h"
#include "src/data/value_hash.h"

#include <c10/util/Exception.h>
#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <concepts>
#include <unordered_map>

namespace tessera {

namespace {

// Good in all bits: the flat map grows when keys gather at one place.
struct ValueHasher {
  size_t operator()(int64_t value) const {
    return hash_of(value, 0);
  }
  size_t operator()(const std::string& value) const {
    return hash_of(value, 0);
  }
};

using IntegerCounts = ska::flat_hash_map<int64_t, int64_t, ValueHasher>;
// A flat map of text would keep 24 to 48 bytes for every free slot.
using TextCounts = std::unordered_map<std::string, int64_t, ValueHasher>;

template <class Counts>
using ValueOf = typename Counts::key_type;

template <class Map>
std::vector<ValueOf<Map>> most_frequent(
    const Map& counts,
    const VocabularyLimits& limits) {
  std::vector<const typename Map::value_type*> kept;
  for (const auto& entry : counts) {
    if (entry.second >= limits.min_count) {
      kept.push_back(&entry);
    }
  }
  const auto last = std::min<int64_t>(
      static_cast<int64_t>(kept.size()),
      limits.max_size.value_or(static_cast<int64_t>(kept.size())));
  std::partial_sort(
      kept.begin(),
      kept.begin() + last,
      kept.end(),
      [](const auto* left, const auto* right) {
        return left->second != right->second ? left->second > right->second
                                             : left->first > right->first;
      });
  std::vector<ValueOf<Map>> values;
  values.reserve(last);
  for (int64_t i = 0; i < last; ++i) {
    values.push_back(kept[i]->first);
  }
  return values;
}

}  // namespace

struct VocabularyBuilder::Counts {
  // Nothing yet: the first column says which it is.
  std::variant<std::monostate, IntegerCounts, TextCounts> values;

  template <class Map>
  Map& as() {
    if (std::holds_alternative<std::monostate>(values)) {
      values.emplace<Map>();
    }
    TORCH_CHECK_TYPE(
        std::holds_alternative<Map>(values),
        "[VocabularyBuilder] expected ",
        std::same_as<Map, TextCounts> ? "integers" : "text",
        ", as before, but got ",
        std::same_as<Map, TextCounts> ? "text" : "integers",
        ". Use one builder for each column.");
    return std::get<Map>(values);
  }
};

VocabularyBuilder::VocabularyBuilder() : counts_(std::make_unique<Counts>()) {}
VocabularyBuilder::~VocabularyBuilder() = default;
VocabularyBuilder::VocabularyBuilder(VocabularyBuilder&&) noexcept = default;
VocabularyBuilder& VocabularyBuilder::operator=(VocabularyBuilder&&) noexcept =
    default;

void VocabularyBuilder::add(const Column& column) {
  validate(column, "VocabularyBuilder");
  visit_values(column, [&]<class T>(std::span<const T> values) {
    if constexpr (std::same_as<T, float>) {
      TORCH_CHECK_TYPE(
          false,
          "[VocabularyBuilder] expected integers or text, but got floats. "
          "Bucketize is for those.");
    } else {
      using Map = std::conditional_t<
          std::same_as<T, std::string>,
          TextCounts,
          IntegerCounts>;
      Map& counts = counts_->as<Map>();
      for (const T& value : values) {
        if (!is_missing(value)) {
          ++counts[value];
        }
      }
    }
  });
}

void VocabularyBuilder::merge(const VocabularyBuilder& other) {
  std::visit(
      [&]<class Map>(const Map& added) {
        if constexpr (!std::same_as<Map, std::monostate>) {
          Map& counts = counts_->as<Map>();
          if (&counts == &added) {  // with itself: adding would move entries
            for (auto& [value, count] : counts) {
              count *= 2;
            }
            return;
          }
          for (const auto& [value, count] : added) {
            counts[value] += count;
          }
        }
      },
      other.counts_->values);
}

int64_t VocabularyBuilder::size() const {
  return std::visit(
      []<class Map>(const Map& counts) {
        if constexpr (std::same_as<Map, std::monostate>) {
          return int64_t{0};
        } else {
          return static_cast<int64_t>(counts.size());
        }
      },
      counts_->values);
}

transforms::Vocabulary VocabularyBuilder::finish(
    const VocabularyLimits& limits) const {
  TORCH_CHECK_VALUE(
      limits.min_count >= 1 && limits.max_size.value_or(1) >= 1,
      "[VocabularyBuilder] min_count and max_size must be >= 1, but got ",
      limits.min_count,
      " and ",
      limits.max_size.value_or(1),
      ".");
  transforms::Vocabulary vocabulary;
  std::visit(
      [&]<class Map>(const Map& counts) {
        if constexpr (!std::same_as<Map, std::monostate>) {
          vocabulary.values = most_frequent(counts, limits);
        }
      },
      counts_->values);
  const bool is_empty = std::visit(
      [](const auto& values) { return values.empty(); }, vocabulary.values);
  TORCH_CHECK_VALUE(
      !is_empty,
      "[VocabularyBuilder] none of ",
      size(),
      " different values was seen ",
      limits.min_count,
      " times or more. Lower min_count, or leave the column out.");
  return vocabulary;
}

}  // namespace tessera
