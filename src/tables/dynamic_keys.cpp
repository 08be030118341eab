// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/dynamic_keys.h>

#include "src/common/check.h"

#include <cmath>
#include <limits>

namespace tessera {

namespace {

constexpr int64_t kMaxCapacity = int64_t{1} << 31;
constexpr int64_t kMaxOccurrences = 255;  // a counter has one byte
constexpr double kMaxMeanCounter = 255.0;
constexpr int64_t kMaxCounters = int64_t{1} << 33;  // four per row
constexpr double kMinHalfLife = 1e-3;
constexpr int64_t kMaxAge = std::numeric_limits<uint32_t>::max() - 1;

}  // namespace

void validate(const DynamicKeys& keys, const std::string& where) {
  TESSERA_CHECK_VALUE(
      keys.capacity >= 1 && keys.capacity <= kMaxCapacity,
      "{} keys: capacity must be in [1, {}], but got {}. Set it to the largest number of rows that memory may hold.",
      where,
      kMaxCapacity,
      keys.capacity);
  if (keys.default_key) {
    TESSERA_CHECK_VALUE(
        keys.capacity >= 2,
        "{} keys: capacity must be >= 2 with a default_key, which keeps one row, but got {}. Enlarge it.",
        where,
        keys.capacity);
    TESSERA_CHECK_VALUE(
        keys.default_key != keys.padding_key,
        "{} keys: default_key must differ from padding_key, which has no row, but both are {}. Change one of them.",
        where,
        *keys.default_key);
  }
  if (const auto* occurrences =
          std::get_if<admission::AfterOccurrences>(&keys.admission)) {
    TESSERA_CHECK_VALUE(
        occurrences->count >= 1 && occurrences->count <= kMaxOccurrences,
        "{} keys: the count of AfterOccurrences must be in [1, {}], but got {}. Choose a count in this range.",
        where,
        kMaxOccurrences,
        occurrences->count);
    TESSERA_CHECK_VALUE(
        occurrences->counters >= 0 && occurrences->counters <= kMaxCounters,
        "{} keys: the counters of AfterOccurrences must be in [0, {}], but got {}. Use 0 for four per row of the capacity.",
        where,
        kMaxCounters,
        occurrences->counters);
    const double halve_at = occurrences->halve_at.value_or(0.0);
    TESSERA_CHECK_VALUE(
        halve_at >= 0.0 && halve_at <= kMaxMeanCounter,
        "{} keys: the halve_at of AfterOccurrences must be in [0, {}], but got {}. Leave it out for count - 1.",
        where,
        kMaxMeanCounter,
        halve_at);
  }
  if (const auto* random =
          std::get_if<admission::WithProbability>(&keys.admission)) {
    TESSERA_CHECK_VALUE(
        random->probability > 0.0 && random->probability <= 1.0,
        "{} keys: the probability of WithProbability must be in (0, 1], but got {}. Set it to 1.0 to admit every key.",
        where,
        random->probability);
  }
  if (const auto* frequency =
          std::get_if<eviction::LeastFrequentlyUsed>(&keys.eviction)) {
    TESSERA_CHECK_VALUE(
        frequency->half_life >= kMinHalfLife &&
            std::isfinite(frequency->half_life),
        "{} keys: the half_life of LeastFrequentlyUsed must be a finite number of updates >= {}, but got {}. The default is 10000.",
        where,
        kMinHalfLife,
        frequency->half_life);
  }
  if (const auto* age = std::get_if<eviction::OlderThan>(&keys.eviction)) {
    TESSERA_CHECK_VALUE(
        age->updates >= 1 && age->updates <= kMaxAge,
        "{} keys: the updates of OlderThan must be in [1, {}], but got {}. Set them to the age at which a key may lose its row.",
        where,
        kMaxAge,
        age->updates);
  }
}

}  // namespace tessera
