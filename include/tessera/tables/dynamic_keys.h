// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>

namespace tessera {

namespace admission {

// snippet: tests/docs/reference_keys_test.cpp EveryKey
/// Each key gets a row at the first update that contains it, if a row is free or the
/// eviction frees one.
///
///   const DynamicKeys keys{
///       .capacity = 1'000'000, .admission = admission::EveryKey{}};
struct EveryKey {
  bool operator==(const EveryKey&) const = default;

  TESSERA_FIELDS()
};

// snippet: tests/docs/reference_keys_test.cpp AfterOccurrences
/// A key gets a row when it has occurred `count` times in updates. Each duplicate in a
/// batch counts.
///
/// The occurrences of keys without a row are counted in a count-min sketch, whose memory is
/// bounded. A key that shares its counters with other keys may be admitted earlier.
///
/// The sketch forgets, so that a long stream does not admit every key in the end. If an
/// update makes the mean counter of a partition larger than `halve_at`, each counter of
/// the partition is halved, until the mean is at most `halve_at`:
///
///   counter = floor(counter / 2)
///
/// A counted occurrence adds 1 to four counters. So an empty sketch is halved after about
/// `halve_at * counters / 4` counted occurrences. With the default options, this number
/// is `count - 1` times the capacity. The next halving comes after at least half as many
/// occurrences. A key whose occurrences are farther apart than the halvings gets its row
/// later than at occurrence `count`, or never.
///
///   const DynamicKeys keys{
///       .capacity = 1'000'000,
///       .admission = admission::AfterOccurrences{.count = 3}};
///
/// Source:  Cormode and Muthukrishnan, An improved data stream summary, 2005; Einziger,
///          Friedman and Manes, TinyLFU: A highly efficient cache admission policy, 2017.
/// Differs: TinyLFU halves after a number of occurrences. Here, the mean counter decides,
///          so the sketch needs no other state.
struct AfterOccurrences {
  /// In [1, 255].
  int64_t count = 2;
  /// The number of one-byte counters, in [0, 2^33]. 0 means four per row of the capacity.
  /// A key has four counters, so choose about ten times the number of rare keys.
  int64_t counters = 0;
  /// The largest mean that a partition's counters may have, in [0, 255]. Unset means
  /// count - 1. With 255, which no counter exceeds, nothing is halved. With 0, the sketch
  /// keeps nothing from one update to the next.
  std::optional<double> halve_at = {};

  bool operator==(const AfterOccurrences&) const = default;

  TESSERA_FIELDS(count, counters, halve_at)
};

// snippet: tests/docs/reference_keys_test.cpp WithProbability
/// Whenever a key without a row occurs in an update, it gets a row with the probability
/// `probability`. Each duplicate in a batch counts. The decision is a function of the
/// layer's seed, the table's name, the key, the number of its occurrences and the number
/// of the update.
///
///   const DynamicKeys keys{
///       .capacity = 1'000'000,
///       .admission = admission::WithProbability{.probability = 0.1}};
struct WithProbability {
  /// In (0, 1].
  double probability = 1.0;

  bool operator==(const WithProbability&) const = default;

  TESSERA_FIELDS(probability)
};

}  // namespace admission

/// Decides which keys get a row.
using Admission = std::variant<
    admission::EveryKey,
    admission::AfterOccurrences,
    admission::WithProbability>;

namespace eviction {

// snippet: tests/docs/reference_keys_test.cpp LeastRecentlyUsed
/// The key whose last update is the oldest loses its row.
///
///   const DynamicKeys keys{
///       .capacity = 1'000'000, .eviction = eviction::LeastRecentlyUsed{}};
struct LeastRecentlyUsed {
  bool operator==(const LeastRecentlyUsed&) const = default;

  TESSERA_FIELDS()
};

// snippet: tests/docs/reference_keys_test.cpp LeastFrequentlyUsed
/// The key with the lowest frequency loses its row. An occurrence at update u has the
/// weight 2^((u - now) / half_life), so old occurrences count less and less. For each key,
/// the table keeps log2 of the sum of 2^(u / half_life). The order of these values does not
/// depend on `now`. This eviction is the default, because frequent keys survive many new
/// keys.
///
///   const DynamicKeys keys{
///       .capacity = 1'000'000,
///       .eviction = eviction::LeastFrequentlyUsed{.half_life = 10'000}};
struct LeastFrequentlyUsed {
  /// In updates, >= 0.001.
  double half_life = 10'000;

  bool operator==(const LeastFrequentlyUsed&) const = default;

  TESSERA_FIELDS(half_life)
};

// snippet: tests/docs/reference_keys_test.cpp OlderThan
/// Only keys that have not occurred in the last `updates` updates lose their rows, the
/// oldest first. If no key is that old, new keys get no row.
///
///   const DynamicKeys keys{
///       .capacity = 1'000'000,
///       .eviction = eviction::OlderThan{.updates = 50'000}};
struct OlderThan {
  /// In [1, 2^32 - 1).
  int64_t updates = 1;

  bool operator==(const OlderThan&) const = default;

  TESSERA_FIELDS(updates)
};

}  // namespace eviction

/// Decides which keys lose their rows if a table is full. Under LeastFrequentlyUsed, the
/// score of a key is its frequency. Otherwise, it is the number of the key's last update.
/// The key with the lowest score loses its row. Of keys with equal scores, the one with
/// the older last update goes first, then the one with the smaller hash.
///
/// A new key gets a row only if its score is above that of a key with a row. With equal
/// scores, the old key keeps its row. The new key gets none, and its gradient is dropped.
/// So under LeastRecentlyUsed and OlderThan, a key of an update never loses its row to a
/// new key of this update. If the rows of other keys are not enough for the new keys, the
/// new keys with the largest hashes get them.
using Eviction = std::variant<
    eviction::LeastRecentlyUsed,
    eviction::LeastFrequentlyUsed,
    eviction::OlderThan>;

// snippet: tests/docs/reference_keys_test.cpp DynamicKeys
/// Makes any int64 a key of the table, such as the hash of a user's name. A key gets a
/// row in an update that contains it, once `admission` allows it.
///
/// Keys hash into partitions, whose number depends on `capacity` alone. Each partition
/// holds its share of the capacity, and evicts keys when its share is full. With many
/// keys, this happens when the table is 95 % full or more.
///
///   const TablePtr users = make_table(
///       {.name = "users",
///        .dim = 16,
///        .keys = DynamicKeys{
///            .capacity = 1'000'000,
///            .admission = admission::AfterOccurrences{.count = 2}}});
struct DynamicKeys {
  /// The largest number of rows, in [1, 2^31]. Address space is reserved for all of them,
  /// but memory is taken only when rows are used, unless `preallocate` is set.
  int64_t capacity = 0;
  Admission admission = {};
  Eviction eviction = tessera::eviction::LeastFrequentlyUsed{};
  /// A key that stands for no value. A dense feature looks up zeros for it. A sparse or
  /// ragged feature drops it. The key gets no row and no gradient.
  std::optional<int64_t> padding_key = {};
  /// The key whose row all unknown keys share, such as the token that stands for words
  /// out of the vocabulary. Unset: unknown keys look up zeros and get no gradient.
  ///
  /// In training, a key without a row is looked up and trained as the default key, unless
  /// the next update admits it. The occurrence still counts for the admission of the key.
  /// In evaluation, all keys without a row look up the row of the default key.
  ///
  /// Batches may contain the default key itself. One row is reserved for it, so it needs
  /// no admission and is never evicted. It gets this row at the first update that contains
  /// it or an unknown key. Until then, unknown keys look up zeros in evaluation. A table
  /// with a default key needs a capacity of at least 2.
  std::optional<int64_t> default_key = {};
  /// If true, the memory of all rows, slots and keys is taken when the layer is built, so
  /// that no later step waits until the system provides pages of the table. This memory has
  /// huge pages, if the system has them, and access to it is faster. If false, memory is
  /// taken when rows are used, in small pages.
  bool preallocate = false;

  bool operator==(const DynamicKeys&) const = default;

  TESSERA_FIELDS(
      capacity,
      admission,
      eviction,
      padding_key,
      default_key,
      preallocate)
};
static_assert(std::is_aggregate_v<DynamicKeys>);

/// Refuses options out of range, and a default key that is the padding key.
/// Errors:  c10::ValueError beginning with `where`.
void validate(const DynamicKeys& keys, const std::string& where);

}  // namespace tessera
