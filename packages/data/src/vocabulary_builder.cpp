// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/vocabulary_builder.h>

#include "packages/data/src/column_values.h"
#include "packages/data/src/value_hash.h"
#include "src/common/check.h"

#include <c10/util/flat_hash_map.h>

#include <algorithm>
#include <concepts>
#include <tuple>
#include <unordered_map>

namespace tessera::data {

namespace {

// The flat map grows if many keys collide, so it needs a hash with good low bits.
using IntegerCounts = ska::flat_hash_map<int64_t, int64_t, ValueHasher>;
// Not a flat map, which would take 48 bytes for every free slot.
using TextCounts = std::unordered_map<std::string, int64_t, ValueHasher>;

template <class Counts>
using ValueOf = typename Counts::key_type;

template <class Map>
std::vector<ValueOf<Map>> most_frequent(
    const Map& counts,
    const detail::VocabularyLimits& limits) {
  struct Counted {
    int64_t count;
    const ValueOf<Map>* value;
  };
  std::vector<Counted> kept;
  for (const auto& [value, count] : counts) {
    if (count >= limits.min_count) {
      kept.push_back({count, &value});
    }
  }
  const auto is_before = [](const Counted& left, const Counted& right) {
    return left.count != right.count ? left.count > right.count
                                     : *left.value > *right.value;
  };
  const auto size = std::ssize(kept);
  if (limits.max_size.value_or(size) < size) {  // to sort only what is kept
    const auto end = kept.begin() + *limits.max_size;
    std::nth_element(kept.begin(), end, kept.end(), is_before);
    kept.erase(end, kept.end());
  }
  std::ranges::sort(kept, is_before);
  std::vector<ValueOf<Map>> values;
  values.reserve(kept.size());
  for (const Counted& counted : kept) {
    values.push_back(*counted.value);
  }
  return values;
}

}  // namespace

// One of the maps is empty.
struct VocabularyBuilder::Counts : std::tuple<IntegerCounts, TextCounts> {
  template <class Map>
  Map& as(const std::string& where) {
    constexpr bool is_text = std::same_as<Map, TextCounts>;
    using Other = std::conditional_t<is_text, IntegerCounts, TextCounts>;
    TESSERA_CHECK_TYPE(
        std::get<Other>(*this).empty(),
        "{} expected {} like the values before, but got {}. Use one builder for each column.",
        where,
        is_text ? "integers" : "text",
        is_text ? "text" : "integers");
    return std::get<Map>(*this);
  }
};

VocabularyBuilder::VocabularyBuilder() : VocabularyBuilder(std::string()) {}
VocabularyBuilder::VocabularyBuilder(std::string column)
    : column_(std::move(column)), counts_(std::make_unique<Counts>()) {}
VocabularyBuilder::~VocabularyBuilder() = default;
VocabularyBuilder::VocabularyBuilder(VocabularyBuilder&&) noexcept = default;
VocabularyBuilder& VocabularyBuilder::operator=(VocabularyBuilder&&) noexcept =
    default;

VocabularyBuilder::Counts& VocabularyBuilder::counts() const {
  TESSERA_CHECK(
      counts_ != nullptr,
      "[VocabularyBuilder] expected a builder, but got one that was moved from. Use the builder that it was moved to.");
  return *counts_;
}

std::string VocabularyBuilder::where() const {
  return column_.empty() ? "[VocabularyBuilder]"
                         : c10::str("[VocabularyBuilder '", column_, "']");
}

void VocabularyBuilder::add(const Column& column) {
  validate(column, column_.empty() ? "VocabularyBuilder" : column_);
  visit_values(column, [&]<class T>(std::span<const T> values) {
    if constexpr (std::same_as<T, float>) {
      TESSERA_CHECK_TYPE(
          false,
          "{} expected integers or text, but got floats. Use transforms::Bucketize for floats.",
          where());
    } else {
      using Map = std::conditional_t<
          std::same_as<T, std::string>,
          TextCounts,
          IntegerCounts>;
      Map& counts = this->counts().as<Map>(where());
      for (const T& value : values) {
        if (!is_missing(value)) {
          ++counts[value];
        }
      }
    }
  });
}

void VocabularyBuilder::merge(const VocabularyBuilder& other) {
  Counts& own = this->counts();
  const auto merge_map = [&]<class Map>(const Map& added) {
    if (added.empty()) {
      return;
    }
    Map& counts = own.as<Map>(where());
    // If a builder is merged with itself, the loop below would change the map that it
    // reads.
    if (&counts == &added) {
      for (auto& [value, count] : counts) {
        count *= 2;
      }
      return;
    }
    for (const auto& [value, count] : added) {
      counts[value] += count;
    }
  };
  merge_map(std::get<IntegerCounts>(other.counts()));
  merge_map(std::get<TextCounts>(other.counts()));
}

int64_t VocabularyBuilder::size() const {
  return std::ssize(std::get<IntegerCounts>(counts())) +
      std::ssize(std::get<TextCounts>(counts()));
}

transforms::Vocabulary VocabularyBuilder::finish(
    const detail::VocabularyLimits& limits) const {
  TESSERA_CHECK_VALUE(
      limits.min_count >= 1,
      "{} min_count must be >= 1, but got {}. Set it to 1 to keep all values.",
      where(),
      limits.min_count);
  TESSERA_CHECK_VALUE(
      !limits.max_size || *limits.max_size >= 1,
      "{} max_size must be >= 1, but got {}. Leave it unset to keep all values.",
      where(),
      limits.max_size.value_or(1));
  transforms::Vocabulary vocabulary;
  if (const auto& texts = std::get<TextCounts>(counts()); !texts.empty()) {
    vocabulary.values = most_frequent(texts, limits);
  } else {
    vocabulary.values =
        most_frequent(std::get<IntegerCounts>(counts()), limits);
  }
  const bool is_empty = std::visit(
      [](const auto& values) { return values.empty(); }, vocabulary.values);
  TESSERA_CHECK_VALUE(
      !is_empty || size() > 0,
      "{} expected at least one value, but got none. Pass a dataset or examples that have values.",
      where());
  TESSERA_CHECK_VALUE(
      !is_empty,
      "{} none of {} different values was seen {} times or more. Lower min_count, or leave the column out.",
      where(),
      size(),
      limits.min_count);
  return vocabulary;
}

transforms::Vocabulary learn_vocabulary(
    const Dataset& dataset,
    const std::string& column,
    const detail::VocabularyLimits& limits) {
  VocabularyBuilder builder(column);
  const auto reader = dataset.open();
  while (const std::optional<Columns> examples = reader->next()) {
    builder.add(find_column(*examples, column, "[learn_vocabulary]"));
  }
  return builder.finish(limits);
}

}  // namespace tessera::data
