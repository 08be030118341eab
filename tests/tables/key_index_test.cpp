// SPDX-License-Identifier: Apache-2.0
// Compares KeyIndex with maps that follow its rules in the plainest way.
#include "src/tables/key_index.h"

#include "src/common/parallel.h"
#include "src/common/random_key.h"
#include "src/tables/log2_of_sum.h"
#include "tests/test_util.h"

#include <c10/util/ScopeExit.h>

#include <deque>
#include <unordered_set>

namespace tessera::test::key_index_test {

constexpr uint64_t kRandomKey = 1234;

KeyIndex make_index(const DynamicKeys& config) {
  return {config, "t", kRandomKey, KeyPartitions(config.capacity).all()};
}

// One update of the index with these keys, each once. Returns their rows. The keys from
// `unknown_version` on are a term without a version.
std::vector<uint32_t> update(
    KeyIndex& index,
    const std::vector<int64_t>& keys,
    int64_t number,
    const std::vector<uint32_t>& counts = {},
    const std::vector<uint32_t>& looked_up = {},
    std::optional<uint64_t> version = {},
    size_t unknown_version = std::numeric_limits<size_t>::max(),
    std::optional<uint64_t> insertions = {}) {
  std::vector<uint32_t> rows(keys.size());
  const auto term_of = [&](size_t begin, size_t end) {
    return KeyOccurrences{
        .keys = keys.data() + begin,
        .looked_up = looked_up.empty() ? nullptr : looked_up.data() + begin,
        .version = begin == 0 ? version : std::nullopt,
        .insertions = insertions,
        .counts = counts.empty() ? nullptr : counts.data() + begin,
        .size = static_cast<int64_t>(end - begin),
        .rows = rows.data() + begin};
  };
  const size_t split = std::min(keys.size(), unknown_version);
  KeyPlan plan =
      index.plan({term_of(0, split), term_of(split, keys.size())}, number);
  // The update of the rows records their uses in some steps, and apply() in the others.
  std::map<uint32_t, uint32_t> uses;
  if (number % 2 == 0) {
    for (const auto& term : plan.used_rows) {
      for (const uint32_t row : term) {
        ++uses[row];
      }
    }
    uses.erase(kNoRow);
    plan.used_rows.clear();
  }
  index.apply(plan);
  for (const auto& [row, count] : uses) {
    index.record_use(row, count, static_cast<uint32_t>(number));
  }
  return rows;
}

std::vector<uint32_t> find(
    const KeyIndex& index,
    const std::vector<int64_t>& keys) {
  std::vector<uint32_t> rows(keys.size());
  index.find(keys.data(), static_cast<int64_t>(keys.size()), rows.data());
  return rows;
}

std::vector<int64_t> keys_of(const KeyIndex& index) {
  std::vector<int64_t> keys;
  for (const KeyEntry& entry : index.entries()) {
    keys.push_back(entry.key);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

using Keys = std::vector<int64_t>;

// Spread over all of int64.
constexpr int64_t key_of_number(int64_t number) {
  return static_cast<int64_t>(
      static_cast<uint64_t>(number) * 0xD1342543DE82EF95ULL);
}

// --- the reference -----------------------------------------------------------

// A table of keys as the documentation describes it.
class Reference {
 public:
  struct Entry {
    int64_t last_update = 0;
    double frequency = 0.0;
  };

  explicit Reference(const DynamicKeys& config)
      : config_(config), partitions_(config.capacity) {}

  void update(
      const std::vector<int64_t>& keys,
      const std::vector<uint32_t>& counts,
      const std::vector<bool>& had_row,
      int64_t number) {
    std::map<int64_t, uint64_t> used;
    std::map<int64_t, uint64_t> missing;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (entries.count(keys[i]) > 0) {
        used[keys[i]] += counts[i];
      } else if (had_row[i]) {
        dropped += counts[i];
      } else {
        missing[keys[i]] += counts[i];
      }
    }
    for (const auto& [key, count] : used) {
      touch(entries[key], count, number, /*is_new=*/false);
    }
    std::unordered_set<int64_t> is_new;
    for (const auto& [key, count] : missing) {
      seen_[key] += count;
      if (admits(key, count, number)) {
        touch(entries[key], count, number, /*is_new=*/true);
        is_new.insert(key);
      }
    }
    std::map<int64_t, std::vector<int64_t>> by_partition;
    for (const auto& [key, entry] : entries) {
      if (key != config_.default_key) {  // it is never evicted
        by_partition[partitions_.of_hash(hash_of_key(key))].push_back(key);
      }
    }
    for (const auto& [partition, of_partition] : by_partition) {
      const bool keeps_a_row = config_.default_key &&
          partitions_.of_hash(hash_of_key(*config_.default_key)) == partition;
      shrink(
          of_partition,
          partitions_.rows(partition) - (keeps_a_row ? 1 : 0),
          number,
          is_new,
          used);
    }
    admitted += static_cast<int64_t>(is_new.size());
  }

  std::unordered_map<int64_t, Entry> entries;
  int64_t admitted = 0;
  int64_t evicted = 0;
  int64_t dropped = 0;

 private:
  void touch(Entry& entry, uint64_t count, int64_t number, bool is_new) const {
    entry.last_update = number;
    if (const auto* policy =
            std::get_if<eviction::LeastFrequentlyUsed>(&config_.eviction)) {
      const double added = std::log2(static_cast<double>(count)) +
          static_cast<double>(number) / policy->half_life;
      const double sum = is_new
          ? added
          : std::log2(std::exp2(entry.frequency) + std::exp2(added));
      entry.frequency = static_cast<float>(sum);
    }
  }

  bool admits(int64_t key, uint64_t count, int64_t number) const {
    if (key == config_.default_key) {
      return true;
    }
    if (const auto* policy =
            std::get_if<admission::AfterOccurrences>(&config_.admission)) {
      return seen_.at(key) >= static_cast<uint64_t>(policy->count);
    }
    if (const auto* policy =
            std::get_if<admission::WithProbability>(&config_.admission)) {
      const uint64_t bits = mix_bits(
          mix_bits(kRandomKey + hash_of_key(key)) +
          static_cast<uint64_t>(number));
      return static_cast<double>(bits >> 11) * 0x1p-53 <
          1.0 - std::pow(1.0 - policy->probability, count);
    }
    return true;
  }

  // A new key comes before the keys that have rows and the same score.
  using Rank = std::tuple<double, bool, int64_t, uint64_t>;
  Rank rank(int64_t key, bool is_new) const {
    const Entry& entry = entries.at(key);
    const bool is_frequency =
        std::holds_alternative<eviction::LeastFrequentlyUsed>(config_.eviction);
    const double score =
        is_frequency ? entry.frequency : static_cast<double>(entry.last_update);
    return {score, !is_new, entry.last_update, hash_of_key(key)};
  }

  void shrink(
      const std::vector<int64_t>& keys,
      int64_t rows,
      int64_t number,
      std::unordered_set<int64_t>& is_new,
      const std::map<int64_t, uint64_t>& used) {
    auto excess = static_cast<int64_t>(keys.size()) - rows;
    if (excess <= 0) {
      return;
    }
    std::vector<std::pair<Rank, int64_t>> ranked;
    for (const int64_t key : keys) {
      ranked.emplace_back(rank(key, is_new.count(key) > 0), key);
    }
    std::sort(ranked.begin(), ranked.end());
    const auto* old_only = std::get_if<eviction::OlderThan>(&config_.eviction);
    // With OlderThan, old keys go first and then new ones.
    for (int pass = 0; pass < 2 && excess > 0; ++pass) {
      for (const auto& [key_rank, key] : ranked) {
        if (excess == 0 || entries.count(key) == 0) {
          continue;
        }
        const int64_t age = number - entries.at(key).last_update;
        if (old_only != nullptr &&
            (pass == 0 ? age <= old_only->updates : is_new.count(key) == 0)) {
          continue;
        }
        if (is_new.erase(key) == 0) {
          ++evicted;
          if (const auto found = used.find(key); found != used.end()) {
            dropped += static_cast<int64_t>(found->second);
          }
        }
        entries.erase(key);
        --excess;
      }
    }
  }

  DynamicKeys config_;
  KeyPartitions partitions_;
  std::unordered_map<int64_t, uint64_t> seen_;
};

struct Case {
  std::string name;
  DynamicKeys config;
  int64_t keys;  // the number of possible keys
  int64_t batch;
  int64_t updates;
};

// The keys of a test with `rows` rows.
DynamicKeys recent(int64_t rows) {
  return {.capacity = rows, .eviction = eviction::LeastRecentlyUsed{}};
}

DynamicKeys frequent(int64_t rows, double half_life = 3.0) {
  return {
      .capacity = rows,
      .eviction = eviction::LeastFrequentlyUsed{.half_life = half_life}};
}

DynamicKeys older(int64_t rows, int64_t updates) {
  return {
      .capacity = rows, .eviction = eviction::OlderThan{.updates = updates}};
}

DynamicKeys thrice(DynamicKeys keys) {
  keys.admission =
      admission::AfterOccurrences{.count = 3, .counters = int64_t{1} << 22};
  return keys;
}

DynamicKeys at_random(double probability, DynamicKeys keys) {
  keys.admission = admission::WithProbability{.probability = probability};
  return keys;
}

DynamicKeys with_default(int64_t number, DynamicKeys keys) {
  keys.default_key = key_of_number(number);
  return keys;
}

std::vector<Case> cases() {
  return {
      {"one_row", recent(1), 4, 3, 400},
      {"two_rows_by_frequency", frequent(2), 5, 4, 400},
      {"few_rows", recent(7), 30, 9, 400},
      {"never_full", recent(20'000), 10'000, 1000, 50},
      {"recent", recent(900), 3000, 700, 300},
      {"frequent", frequent(900), 3000, 700, 300},
      {"frequent_for_long", frequent(300, 1000.0), 1000, 200, 300},
      {"old", older(900, 4), 3000, 300, 300},
      {"thrice", thrice(recent(900)), 3000, 700, 300},
      {"at_random", at_random(0.2, recent(900)), 3000, 700, 300},
      {"partitions", recent(20'000), 60'000, 6000, 40},
      {"partitions_thrice", thrice(frequent(20'000)), 60'000, 6000, 40},
      {"few_evictions", recent(2000), 4000, 60, 400},
      {"few_evictions_by_frequency", frequent(2000, 30.0), 4000, 60, 400},
      {"partitions_by_frequency", frequent(20'000), 60'000, 6000, 40},
      {"few_old", older(2000, 30), 4000, 60, 400},
      {"larger_than_the_table", recent(50), 400, 300, 100},
      {"larger_by_frequency", frequent(50), 400, 300, 100},
      {"two_rows_default", with_default(2, recent(2)), 5, 3, 400},
      {"two_frequent_default", with_default(0, frequent(2)), 5, 4, 400},
      // The default keys below are rare, so that they often come when the table is full.
      {"few_rows_default", with_default(29, recent(7)), 30, 9, 400},
      {"frequent_default", with_default(2999, frequent(900)), 3000, 700, 300},
      {"old_default", with_default(2999, older(900, 4)), 3000, 300, 300},
      {"thrice_default",
       with_default(2990, thrice(recent(900))),
       3000,
       700,
       300},
      {"partitions_at_random_default",
       with_default(59'990, at_random(0.5, recent(20'000))),
       60'000,
       6000,
       15},
      {"few_evictions_default",
       with_default(3990, recent(2000)),
       4000,
       60,
       400},
      {"larger_default", with_default(399, recent(50)), 400, 300, 100}};
}

// The ids of one step, and what their lookup found.
struct Batch {
  std::vector<int64_t> keys;
  std::vector<uint32_t> counts;
  bool has_counts = true;  // else all are 1
  std::vector<uint32_t> looked_up;
  uint64_t version = 0;
  uint64_t insertions = 0;
};

// Frequencies that differ by less than rounding may be ordered otherwise by the
// reference, so both take them from the same formula in float.
class KeyIndexSpecTest : public testing::TestWithParam<Case> {
 protected:
  // Small numbers are frequent. Keys are spread over all of int64.
  Batch look_up_random_keys() {
    Batch batch;
    batch.version = index_.version();
    batch.insertions = index_.insertions();
    batch.has_counts = random_() % 2 == 0;
    for (int64_t i = 0; i < GetParam().batch; ++i) {
      const double u = std::uniform_real_distribution<>(0.0, 1.0)(random_);
      const auto number = static_cast<int64_t>(
          static_cast<double>(GetParam().keys) * u * u * u);
      batch.keys.push_back(key_of_number(number));
      const bool is_repeated = batch.has_counts && random_() % 8 == 0;
      batch.counts.push_back(is_repeated ? 3 : 1);
    }
    batch.looked_up = find(index_, batch.keys);
    return batch;
  }

  // One update of the index and of the reference, which must agree.
  void update_both(
      const Batch& batch,
      std::optional<uint64_t> version,
      int64_t number) {
    SCOPED_TRACE(number);
    const std::vector<int64_t>& keys = batch.keys;
    std::vector<bool> had_row;
    for (const uint32_t row : batch.looked_up) {
      had_row.push_back(row != kNoRow);
    }
    const auto rows = update(
        index_,
        keys,
        number,
        batch.has_counts ? batch.counts : std::vector<uint32_t>{},
        batch.looked_up,
        version,
        number % 3 == 0 ? keys.size() / 2 : keys.size(),
        number % 5 == 0 ? std::nullopt : std::optional(batch.insertions));
    reference_.update(keys, batch.counts, had_row, number);

    const auto found = find(index_, keys);
    std::unordered_map<uint32_t, int64_t> key_of_row;
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool has_row = reference_.entries.count(keys[i]) > 0;
      ASSERT_EQ(found[i] != kNoRow, has_row) << keys[i];
      // An occurrence that was dropped has no row, even if another occurrence admits the
      // key again.
      if (rows[i] != kNoRow) {
        ASSERT_EQ(rows[i], found[i]);
        ASSERT_EQ(key_of_row.emplace(rows[i], keys[i]).first->second, keys[i]);
        ASSERT_EQ(
            index_.partitions().of_row(rows[i]),
            index_.partitions().of_hash(hash_of_key(keys[i])));
      } else {
        ASSERT_TRUE(!has_row || had_row[i]);
      }
    }
    ASSERT_EQ(index_.size(), static_cast<int64_t>(reference_.entries.size()));
    ASSERT_EQ(
        index_.counts(),
        (KeyCounts{
            .admitted = reference_.admitted,
            .evicted = reference_.evicted,
            .dropped = reference_.dropped}));
    std::unordered_set<uint32_t> used_rows;
    for (const KeyEntry& entry : index_.entries()) {
      const auto expected = reference_.entries.find(entry.key);
      ASSERT_NE(expected, reference_.entries.end());
      ASSERT_EQ(entry.last_update, expected->second.last_update);
      ASSERT_EQ(entry.frequency, expected->second.frequency);
      ASSERT_TRUE(used_rows.insert(entry.row).second);
      ASSERT_LT(entry.row, GetParam().config.capacity);
    }
  }

  KeyIndex index_ = make_index(GetParam().config);
  Reference reference_{GetParam().config};
  std::mt19937_64 random_{17};
};

TEST_P(KeyIndexSpecTest, FollowsTheReferenceForRandomUpdates) {
  for (int64_t number = 1; number <= GetParam().updates; ++number) {
    Batch batch = look_up_random_keys();
    // Some keys had a row at the lookup, and lost it in an update since.
    for (uint32_t& row : batch.looked_up) {
      if (row == kNoRow && random_() % 16 == 0) {
        row = 0;
      }
    }
    if (number % 7 == 0) {
      // A plan that is not carried out makes no difference.
      std::vector<uint32_t> rows(batch.keys.size());
      index_.plan(
          KeyOccurrences{
              .keys = batch.keys.data(),
              .size = static_cast<int64_t>(batch.keys.size()),
              .rows = rows.data()},
          number);
    }
    update_both(batch, std::nullopt, number);
    if (HasFatalFailure()) {
      return;
    }
  }
  RecordProperty(
      "operations", std::to_string(GetParam().updates * GetParam().batch));
}

TEST_P(KeyIndexSpecTest, FollowsTheReferenceForLookupsOfOlderVersions) {
  std::deque<Batch> ahead;
  // More evictions than the index remembers happen between some lookups and their
  // updates.
  constexpr size_t kMaxAhead = 100;
  for (int64_t number = 1; number <= GetParam().updates; ++number) {
    const size_t wanted = number % 200 < 100 ? 1 + random_() % 3 : kMaxAhead;
    do {
      ahead.push_back(look_up_random_keys());
    } while (ahead.size() < wanted);
    do {
      const Batch batch = std::move(ahead.front());
      ahead.pop_front();
      update_both(batch, batch.version, number);
      if (HasFatalFailure()) {
        return;
      }
    } while (ahead.size() > wanted && ++number <= GetParam().updates);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Policies,
    KeyIndexSpecTest,
    testing::ValuesIn(cases()),
    [](const auto& info) { return info.param.name; });

// --- properties --------------------------------------------------------------

TEST(DynamicKeysTest, NoInt64IsSpecial) {
  KeyIndex index = make_index({.capacity = 100});
  const Keys keys{
      0,
      -1,
      1,
      std::numeric_limits<int64_t>::min(),
      std::numeric_limits<int64_t>::max(),
      std::numeric_limits<uint32_t>::max()};
  EXPECT_EQ(find(index, keys), std::vector<uint32_t>(keys.size(), kNoRow));
  const auto rows = update(index, keys, 1);
  EXPECT_EQ(find(index, keys), rows);
  EXPECT_EQ(index.size(), 6);
}

TEST(DynamicKeysTest, TheDefaultKeyNeedsNoAdmissionAndIsNeverEvicted) {
  for (const int64_t key :
       {int64_t{0},
        int64_t{-1},
        std::numeric_limits<int64_t>::min(),
        std::numeric_limits<int64_t>::max()}) {
    KeyIndex index = make_index(
        {.capacity = 3,
         .admission = admission::AfterOccurrences{.count = 2},
         .default_key = key});
    // One row is reserved for it.
    update(index, {11, 12, 13}, 1, {2, 2, 2});
    EXPECT_EQ(index.size(), 2);
    EXPECT_EQ(index.default_row(), kNoRow);
    update(index, {key}, 2);
    const uint32_t row = index.default_row();
    EXPECT_EQ(find(index, {key}), std::vector<uint32_t>{row});
    EXPECT_EQ(index.size(), 3);
    for (int64_t number = 3; number < 20; ++number) {
      update(index, {10 * number, 10 * number + 1, 10 * number + 2}, number);
      update(index, {10 * number, 10 * number + 1, 10 * number + 2}, number);
      EXPECT_EQ(index.size(), 3);
      EXPECT_EQ(index.default_row(), row);
    }
    EXPECT_EQ(index.evict_before(1000), 2);
    EXPECT_EQ(index.default_row(), row);
    EXPECT_EQ(index.size(), 1);
  }
}

TEST(DynamicKeysTest, TheRowOfTheDefaultKeyIsReservedInAFile) {
  const DynamicKeys keys{.capacity = 3, .default_key = 7};
  KeyIndex index = make_index(keys);
  std::vector<KeyEntry> with{{.key = 1}, {.key = 2}, {.key = 7}};
  index.assign(with, {}, {}, "[test]");
  EXPECT_EQ(index.default_row(), with[2].row);
  std::vector<KeyEntry> without{{.key = 1}, {.key = 2}, {.key = 3}};
  EXPECT_VALUE_ERROR(
      index.assign(without, {}, {}, "[test]"),
      "but 3 keys belong to partition 0, which has 2 rows for them");
  EXPECT_EQ(keys_of(index), (Keys{1, 2, 7}));
}

TEST(DynamicKeysTest, ThreadsMakeNoDifference) {
  const DynamicKeys config{
      .capacity = 30'000,
      .admission = admission::AfterOccurrences{.count = 2},
      .eviction = eviction::LeastFrequentlyUsed{.half_life = 5.0},
      .default_key = 3};
  const int64_t threads = thread_count();
  const auto restore = c10::make_scope_exit([&] { set_thread_count(threads); });
  std::vector<std::vector<KeyEntry>> results;
  for (const int64_t count : {1, 2, 4}) {
    set_thread_count(count);
    KeyIndex index = make_index(config);
    std::mt19937_64 random(3);
    for (int64_t number = 1; number <= 12; ++number) {
      Keys keys(50'000);
      for (int64_t& key : keys) {
        key = static_cast<int64_t>(random() % 90'000);
      }
      update(index, keys, number);
    }
    results.push_back(index.entries());
  }
  EXPECT_GT(results[0].size(), 25'000);
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

TEST(DynamicKeysTest, TheOrderOfABatchMakesNoDifference) {
  const DynamicKeys config{
      .capacity = 50, .admission = admission::AfterOccurrences{.count = 2}};
  KeyIndex forwards = make_index(config);
  KeyIndex backwards = make_index(config);
  std::mt19937_64 random(5);
  for (int64_t number = 1; number <= 100; ++number) {
    Keys keys(60);
    for (int64_t& key : keys) {
      key = static_cast<int64_t>(random() % 200);
    }
    update(forwards, keys, number);
    std::reverse(keys.begin(), keys.end());
    update(backwards, keys, number);
    ASSERT_EQ(forwards.entries(), backwards.entries());
    ASSERT_EQ(forwards.sketch(), backwards.sketch());
  }
}

TEST(DynamicKeysTest, TheKeyThatWasUsedLastLongestAgoIsEvicted) {
  KeyIndex index =
      make_index({.capacity = 3, .eviction = eviction::LeastRecentlyUsed{}});
  update(index, {1, 2, 3}, 1);
  update(index, {1}, 2);
  update(index, {3}, 3);
  const auto row = find(index, {2})[0];
  EXPECT_EQ(update(index, {9}, 4)[0], row);
  EXPECT_EQ(keys_of(index), (Keys{1, 3, 9}));
}

TEST(DynamicKeysTest, AKeyOfTheSameUpdateKeepsItsRow) {
  for (int64_t i = 0; i < 20; ++i) {
    KeyIndex index =
        make_index({.capacity = 2, .eviction = eviction::LeastRecentlyUsed{}});
    update(index, {i, i + 100}, 1);
    update(index, {i + 200, i, i + 300, i + 100}, 2);
    EXPECT_EQ(keys_of(index), (Keys{i, i + 100}));
    EXPECT_EQ(index.counts().dropped, 0);
  }
}

TEST(DynamicKeysTest, AKeyOfTheSameFrequencyKeepsItsRow) {
  for (int64_t i = 0; i < 20; ++i) {
    KeyIndex index = make_index(
        {.capacity = 1,
         .eviction = eviction::LeastFrequentlyUsed{.half_life = 1.0}});
    update(index, {i, i}, 1);
    // One occurrence counts as much as two of the update before.
    update(index, {i + 100}, 2);
    EXPECT_EQ(keys_of(index), Keys{i});
    update(index, {i + 100}, 3);
    EXPECT_EQ(keys_of(index), Keys{i + 100});
  }
}

TEST(DynamicKeysTest, SumsOfPowersOfTwo) {
  for (double difference = 0.0; difference < 80.0; difference += 0.0037) {
    const double expected = std::log2(1.0 + std::exp2(-difference));
    ASSERT_NEAR(log2_of_sum(0.0, -difference), expected, 2e-15) << difference;
    ASSERT_EQ(log2_of_sum(-difference, 0.0), log2_of_sum(0.0, -difference));
  }
  EXPECT_EQ(log2_of_sum(5.0, 5.0), 6.0);
  EXPECT_EQ(log2_of_sum(-3e6, 7e6), 7e6);
}

TEST(DynamicKeysTest, OldOccurrencesCountLess) {
  const DynamicKeys config{
      .capacity = 2,
      .eviction = eviction::LeastFrequentlyUsed{.half_life = 1.0}};
  KeyIndex index = make_index(config);
  update(index, {1, 2}, 1, {4, 1});
  update(index, {2}, 2);  // 2 has 1/2 + 1, and 1 has 4/2
  update(index, {3}, 3);
  EXPECT_EQ(keys_of(index), (Keys{1, 3}));
  // 3 has 1/2, and 1 has 4/8 and an older update.
  update(index, {4}, 4);
  EXPECT_EQ(keys_of(index), (Keys{3, 4}));
}

TEST(DynamicKeysTest, WithoutOldKeysNewOnesGetNoRow) {
  KeyIndex index = make_index(
      {.capacity = 2, .eviction = eviction::OlderThan{.updates = 2}});
  update(index, {1, 2}, 1);
  EXPECT_EQ(update(index, {3}, 3)[0], kNoRow);
  EXPECT_EQ(keys_of(index), (Keys{1, 2}));
  update(index, {1, 3}, 4);
  EXPECT_EQ(keys_of(index), (Keys{1, 3}));
}

TEST(DynamicKeysTest, EvictsOnDemand) {
  KeyIndex index = make_index({.capacity = 10});
  update(index, {1, 2, 3}, 1);
  update(index, {2}, 5);
  EXPECT_EQ(index.evict_before(1), 0);
  EXPECT_EQ(index.evict_before(5), 2);
  EXPECT_EQ(keys_of(index), (Keys{2}));
  update(index, {4, 5, 6}, 6);
  EXPECT_EQ(keys_of(index), (Keys{2, 4, 5, 6}));
  EXPECT_EQ(index.counts(), (KeyCounts{.admitted = 6, .evicted = 2}));
}

TEST(DynamicKeysTest, AKeyThatComesBackStartsAnew) {
  KeyIndex index = make_index(
      {.capacity = 1,
       .eviction = eviction::LeastFrequentlyUsed{.half_life = 1e9}});
  update(index, {1}, 1, {100});
  index.evict_before(2);
  update(index, {1}, 2);
  EXPECT_NEAR(index.entries()[0].frequency, 0.0, 1e-6);
}

// Nine keys share a place that has room for six. The index counts the keys that went on,
// and the count must become smaller when they leave: else it would be 0 again after 2^16
// updates, and hide three keys.
TEST(DynamicKeysTest, CrowdedKeysMayComeAndGoAnyNumberOfTimes) {
  KeyIndex index = make_index({.capacity = 9});
  int64_t next = 0;
  for (int64_t number = 1; number <= 66'000; ++number) {
    Keys keys;
    for (; keys.size() < 9; ++next) {
      if ((hash_of_key(next) >> 31) % 2 == 0) {
        keys.push_back(next);
      }
    }
    const auto rows = update(index, keys, number);
    ASSERT_EQ(find(index, keys), rows) << number;
    ASSERT_EQ(index.size(), 9);
  }
}

TEST(DynamicKeysTest, ARandomAdmissionHasItsProbability) {
  const KeyIndex index = make_index(
      {.capacity = 10,
       .admission = admission::WithProbability{.probability = 0.25}});
  int64_t once = 0;
  int64_t twice = 0;
  for (int64_t key = 0; key < 100'000; ++key) {
    once += index.would_admit(key, 1, 1) ? 1 : 0;
    twice += index.would_admit(key, 2, 1) ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(once) / 1e5, 0.25, 0.01);
  EXPECT_NEAR(static_cast<double>(twice) / 1e5, 1.0 - 0.75 * 0.75, 0.01);
}

TEST(DynamicKeysTest, TheSketchAdmitsNoKeyLate) {
  // 64 counters for 1000 keys.
  KeyIndex index = make_index(
      {.capacity = 2000,
       .admission = admission::AfterOccurrences{.count = 200, .counters = 64}});
  for (int64_t key = 0; key < 1000; ++key) {
    update(index, {key}, key + 1, {200});
  }
  EXPECT_EQ(index.size(), 1000);
}

// The sketch of AfterOccurrences as the documentation describes it.
class ReferenceSketch {
 public:
  ReferenceSketch(const DynamicKeys& config, int64_t width, double halve_at)
      : partitions_(config.capacity), width_(width), halve_at_(halve_at) {
    counters_.resize(partitions_.count(), std::vector<uint8_t>(4 * width));
  }

  void count(int64_t key, uint64_t times) {
    const uint64_t hash = hash_of_key(key);
    for (uint64_t row = 0; row < 4; ++row) {
      const uint64_t bits = mix_bits(hash + (row + 1) * 0x9E3779B97F4A7C15ULL);
      const uint64_t column = ((bits >> 32) * width_) >> 32;
      uint8_t& counter =
          counters_[partitions_.of_hash(hash)][row * width_ + column];
      counter = static_cast<uint8_t>(std::min<uint64_t>(255, counter + times));
    }
  }

  void finish_update() {
    for (std::vector<uint8_t>& counters : counters_) {
      const auto sum = [&] {
        double sum = 0.0;
        for (const uint8_t counter : counters) {
          sum += counter;
        }
        return sum;
      };
      for (; sum() / static_cast<double>(counters.size()) > halve_at_;
           ++halvings) {
        for (uint8_t& counter : counters) {
          counter = static_cast<uint8_t>(counter / 2);
        }
      }
    }
  }

  std::vector<uint8_t> counters() const {
    std::vector<uint8_t> all;
    for (const std::vector<uint8_t>& counters : counters_) {
      all.insert(all.end(), counters.begin(), counters.end());
    }
    return all;
  }

  int64_t halvings = 0;

 private:
  KeyPartitions partitions_;
  uint64_t width_;
  double halve_at_;
  std::vector<std::vector<uint8_t>> counters_;  // [partitions][4 * width]
};

// Updates one or two partitions of an index at a time, as ranks and threads do, and saves
// and restores one of the indices after each update.
TEST(DynamicKeysTest, TheSketchForgets) {
  struct SketchCase {
    int64_t capacity;
    admission::AfterOccurrences admission;
    int64_t width;  // counters of a partition / 4
    double halve_at;
  };
  const int64_t threads = thread_count();
  const auto restore = c10::make_scope_exit([&] { set_thread_count(threads); });
  for (const SketchCase& param :
       {SketchCase{1, {.count = 2}, 1, 1},
        SketchCase{10, {.count = 3}, 10, 2},
        SketchCase{20'000, {.count = 2}, 5'000, 1},
        SketchCase{20'000, {.count = 7, .counters = 16'000}, 1'000, 6},
        SketchCase{20'000, {.count = 250, .counters = 160}, 10, 249},
        SketchCase{20'000, {.count = 3, .halve_at = 0.25}, 5'000, 0.25},
        SketchCase{20'000, {.count = 3, .halve_at = 0}, 5'000, 0},
        SketchCase{
            20'000, {.count = 4, .counters = 16, .halve_at = 255}, 1, 255}}) {
    SCOPED_TRACE(param.capacity);
    SCOPED_TRACE(param.admission.count);
    const DynamicKeys config{
        .capacity = param.capacity,
        .admission = param.admission,
        .default_key = param.capacity > 1
            ? std::optional<int64_t>(key_of_number(3))
            : std::nullopt};
    ReferenceSketch reference(config, param.width, param.halve_at);
    KeyIndex whole = make_index(config);
    KeyIndex restored = make_index(config);
    const int64_t count = whole.partitions().count();
    KeyIndex first(config, "t", kRandomKey, {0, (count + 1) / 2});
    KeyIndex second(config, "t", kRandomKey, {(count + 1) / 2, count});
    std::mt19937_64 random(11);
    for (int64_t number = 1; number <= 60; ++number) {
      Keys keys(param.capacity < 100 ? 5 : 5000);
      std::vector<uint32_t> counts(keys.size());
      for (size_t i = 0; i < keys.size(); ++i) {
        keys[i] = key_of_number(static_cast<int64_t>(random() % 200'000));
        counts[i] = random() % 100 == 0 ? 150 : 1;
      }
      const std::vector<uint32_t> before = find(whole, keys);
      for (size_t i = 0; i < keys.size(); ++i) {
        if (before[i] == kNoRow && keys[i] != config.default_key) {
          reference.count(keys[i], counts[i]);
        }
      }
      reference.finish_update();

      set_thread_count(1);
      update(whole, keys, number, counts);
      set_thread_count(2);
      update(restored, keys, number, counts);
      for (KeyIndex* part : {&first, &second}) {
        Keys owned;
        std::vector<uint32_t> owned_counts;
        for (size_t i = 0; i < keys.size(); ++i) {
          if (part->owns(keys[i])) {
            owned.push_back(keys[i]);
            owned_counts.push_back(counts[i]);
          }
        }
        if (!owned.empty()) {
          update(*part, owned, number, owned_counts);
        }
      }
      ASSERT_EQ(whole.sketch(), reference.counters()) << number;
      ASSERT_EQ(restored.sketch(), whole.sketch()) << number;
      ASSERT_EQ(restored.sorted_entries(), whole.sorted_entries()) << number;
      std::vector<uint8_t> parts = first.sketch().vec();
      const auto second_part = second.sketch();
      parts.insert(parts.end(), second_part.begin(), second_part.end());
      ASSERT_EQ(parts, whole.sketch()) << number;

      restored = KeyIndex(whole);
      if (number % 2 == 0) {
        std::vector<KeyEntry> entries = whole.entries();
        restored = make_index(config);
        restored.assign(
            entries, whole.sketch().vec(), whole.counts(), "[test]");
        whole = KeyIndex(restored);
      }
    }
    EXPECT_EQ(reference.halvings > 0, param.halve_at < 255.0);
  }
}

// Each key occurs once, so none deserves a row.
TEST(DynamicKeysTest, ALongStreamOfNewKeysFillsNoSketch) {
  const auto admitted = [](std::optional<double> halve_at) {
    KeyIndex index = make_index(
        {.capacity = 10'000,
         .admission =
             admission::AfterOccurrences{.count = 2, .halve_at = halve_at}});
    Keys keys(1000);
    for (int64_t number = 1; number <= 200; ++number) {
      for (size_t i = 0; i < keys.size(); ++i) {
        keys[i] = key_of_number(number * 1000 + static_cast<int64_t>(i));
      }
      update(index, keys, number);
    }
    return index.counts().admitted;
  };
  EXPECT_LT(admitted(std::nullopt), 200'000 / 10);
  EXPECT_GT(admitted(255), 200'000 / 2);
}

TEST(DynamicKeysTest, PartitionsShareTheCapacity) {
  for (const int64_t capacity :
       {int64_t{1},
        int64_t{4095},
        int64_t{8191},
        int64_t{100'003},
        int64_t{1} << 20,
        int64_t{10'000'019},
        int64_t{1} << 31}) {
    SCOPED_TRACE(capacity);
    const KeyPartitions partitions(capacity);
    EXPECT_EQ(partitions.first_row(partitions.count()), capacity);
    EXPECT_LE(partitions.max_rows(), KeyPartitions::kMaxRows);
    for (int64_t p = 0; p < partitions.count(); ++p) {
      ASSERT_GE(partitions.rows(p), 1);
      ASSERT_LE(partitions.rows(p), partitions.max_rows());
      ASSERT_EQ(partitions.of_row(partitions.first_row(p)), p);
      ASSERT_EQ(partitions.of_row(partitions.first_row(p + 1) - 1), p);
    }
  }
}

TEST(DynamicKeysTest, BucketsAscendInEachPartition) {
  for (const int64_t capacity :
       {int64_t{1}, int64_t{100'003}, int64_t{1} << 31}) {
    const KeyPartitions partitions(capacity);
    for (const int64_t buckets : {int64_t{1}, int64_t{3}, int64_t{32'768}}) {
      SCOPED_TRACE(testing::Message() << capacity << ", " << buckets);
      int64_t partition = 0;
      int64_t bucket = 0;
      const auto check = [&](uint64_t hash) {
        const int64_t p = partitions.of_hash(hash);
        const int64_t b = partitions.bucket_of_hash(hash, buckets);
        ASSERT_TRUE(b >= 0 && b < buckets) << hash;
        ASSERT_LE(std::pair(partition, bucket), std::pair(p, b)) << hash;
        partition = p;
        bucket = b;
      };
      constexpr uint64_t kStep = 0x0000123456789ABCULL;
      uint64_t hash = 0;
      for (; hash <= ~kStep; hash += kStep) {
        check(hash);
      }
      check(~uint64_t{0});
      EXPECT_EQ(partition, partitions.count() - 1);
      EXPECT_EQ(bucket, buckets - 1);
    }
  }
}

TEST(DynamicKeysTest, TheIndexTakesAtMost24BytesPerKey) {
  for (const int64_t capacity : {100'000, 10'000'000}) {
    for (const Eviction& eviction : std::vector<Eviction>{
             eviction::LeastRecentlyUsed{}, eviction::LeastFrequentlyUsed{}}) {
      const KeyIndex index =
          make_index({.capacity = capacity, .eviction = eviction});
      EXPECT_LE(index.bytes_at_capacity(), 24 * capacity);
    }
  }
}

TEST(DynamicKeysTest, EntriesCanBeSavedAndRestored) {
  const DynamicKeys config{
      .capacity = 10'000,
      .admission = admission::AfterOccurrences{.count = 2},
      .eviction = eviction::LeastFrequentlyUsed{.half_life = 5.0}};
  KeyIndex index = make_index(config);
  std::mt19937_64 random(3);
  const auto train = [&random](std::vector<KeyIndex*> indices, int64_t number) {
    Keys keys(4000);
    for (int64_t& key : keys) {
      key = static_cast<int64_t>(random() % 30'000);
    }
    for (KeyIndex* each : indices) {
      update(*each, keys, number);
    }
  };
  for (int64_t number = 1; number <= 10; ++number) {
    train({&index}, number);
  }
  EXPECT_GT(index.evict_before(6), 0);  // leaves free rows
  KeyIndex restored = make_index(config);
  update(restored, {7, 8}, 1);
  auto entries = index.entries();
  restored.assign(entries, index.sketch().vec(), index.counts(), "[test]");
  KeyIndex copy(index);
  for (int64_t number = 11; number <= 20; ++number) {
    train({&index, &restored, &copy}, number);
  }
  EXPECT_EQ(copy.entries(), index.entries());
  EXPECT_EQ(keys_of(restored), keys_of(index));
  EXPECT_EQ(restored.sketch(), index.sketch());
  EXPECT_EQ(restored.counts(), index.counts());
}

TEST(DynamicKeysTest, RefusesUnusableEntries) {
  KeyIndex index = make_index({.capacity = 2});
  update(index, {5}, 1);
  std::vector<KeyEntry> twice{{.key = 1}, {.key = 1}};
  EXPECT_VALUE_ERROR(
      index.assign(twice, {}, {}, "[test]"),
      "[test] the keys of table 't' must be distinct, but 1 occurs twice");
  std::vector<KeyEntry> many{{.key = 1}, {.key = 2}, {.key = 3}};
  EXPECT_VALUE_ERROR(
      index.assign(many, {}, {}, "[test]"),
      "[test] table 't' has a capacity of 2 rows in 1 partitions, but 3 keys");
  std::vector<KeyEntry> one{{.key = 1}};
  EXPECT_VALUE_ERROR(
      index.assign(one, {1, 2}, {}, "[test]"), "must have 0 counters");
  EXPECT_EQ(keys_of(index), (Keys{5}));
}

TEST(DynamicKeysTest, LookupsRunBesideAPlan) {
  KeyIndex index = make_index({.capacity = 20'000});
  Keys keys(20'000);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<int64_t>(i);
  }
  update(index, keys, 1);
  const auto expected = find(index, keys);
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 5; ++round) {
        EXPECT_EQ(find(index, keys), expected);
      }
    });
  }
  std::vector<uint32_t> rows(keys.size());
  for (int round = 0; round < 5; ++round) {
    Keys others = keys;
    for (int64_t& key : others) {
      key += 10'000;
    }
    index.plan(
        KeyOccurrences{
            .keys = others.data(),
            .size = static_cast<int64_t>(others.size()),
            .rows = rows.data()},
        2);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(DynamicKeysTest, RefusesOptionsOutOfRange) {
  const auto refuses = [](auto change, const auto& values, const char* text) {
    for (const auto value : values) {
      DynamicKeys keys{.capacity = 2};
      change(keys, value);
      EXPECT_VALUE_ERROR(validate(keys, "[test]"), text);
    }
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  using Integers = std::vector<int64_t>;
  using Numbers = std::vector<double>;
  refuses(
      [](auto& keys, int64_t capacity) { keys.capacity = capacity; },
      Integers{0, -1, (int64_t{1} << 31) + 1},
      "[test] keys: capacity must be in [1, 2147483648], but got ");
  refuses(
      [](auto& keys, int64_t count) {
        keys.admission = admission::AfterOccurrences{.count = count};
      },
      Integers{0, 256},
      "the count of AfterOccurrences must be in [1, 255]");
  refuses(
      [](auto& keys, int64_t counters) {
        keys.admission = admission::AfterOccurrences{.counters = counters};
      },
      Integers{-1},
      "counters of AfterOccurrences");
  refuses(
      [](auto& keys, double halve_at) {
        keys.admission = admission::AfterOccurrences{.halve_at = halve_at};
      },
      Numbers{-0.5, 255.5, kNan},
      "the halve_at of AfterOccurrences must be in [0, 255]");
  refuses(
      [](auto& keys, double probability) {
        keys = at_random(probability, keys);
      },
      Numbers{0.0, -0.5, 1.5, kNan},
      "the probability of WithProbability must be in (0, 1]");
  refuses(
      [](auto& keys, double half_life) { keys = frequent(1, half_life); },
      Numbers{0.0, 1e-38, -1.0, kNan, INFINITY},
      "half_life of LeastFrequentlyUsed");
  refuses(
      [](auto& keys, int64_t updates) { keys = older(1, updates); },
      Integers{0, int64_t{1} << 32},
      "the updates of OlderThan");
  expect_refusals<DynamicKeys>(
      {{{}, "but got 0"},
       {{.capacity = -1}, "but got -1"},
       {{.capacity = (int64_t{1} << 31) + 1}, "but got 2147483649"},
       {{.capacity = 1, .default_key = 5},
        "capacity must be >= 2 with a default_key, which keeps one row, but got 1"},
       {{.capacity = 2, .padding_key = -5, .default_key = -5},
        "default_key must differ from padding_key, which has no row, but both are -5"}},
      [](const DynamicKeys& keys) { validate(keys, "[test]"); });
  validate({.capacity = int64_t{1} << 31}, "[test]");
  validate({.capacity = 2, .padding_key = 0, .default_key = 1}, "[test]");
}

}  // namespace tessera::test::key_index_test
