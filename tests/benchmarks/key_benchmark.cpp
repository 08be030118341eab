// SPDX-License-Identifier: Apache-2.0
// Times lookups in the keys of a full key table: our index, abseil's flat_hash_map with
// the same partitions, and the limit, a gather of random lines of the cache that knows its
// addresses. They take turns, with new keys in each batch, on one thread.
#include "src/common/parallel.h"
#include "src/tables/key_index.h"
#include "src/tables/reserved_memory.h"
#include "tests/benchmarks/torch_benchmark.h"

#ifdef TESSERA_HAS_ABSEIL
#include <absl/container/flat_hash_map.h>
#endif

namespace {

using tessera::KeyIndex;
using tessera::KeyOccurrences;
using tessera::kNoRow;

struct Options : BenchmarkOptions {
  int64_t& keys = integer(
      "--keys",
      10'000'000,
      "keys in the table",
      up_to(int64_t{1} << 31));
  int64_t& batch = integer("--batch", 4096, "keys per lookup");
  int64_t& batches = integer("--batches", 500, "lookups per round");
  int64_t& rounds = integer("--rounds", 5, "rounds, whose median is printed");
};

// Different for different i, and spread over all of int64.
int64_t key_number(int64_t i) {
  return static_cast<int64_t>(static_cast<uint64_t>(i) * 0xD1342543DE82EF95ULL);
}

// A side of the comparison: looks up one batch and returns a sum of rows.
struct Side {
  std::string name;
  std::function<uint64_t(const int64_t* keys, uint32_t* rows)> find;
  std::vector<double> rates = {};  // keys per second
};

#ifdef TESSERA_HAS_ABSEIL
// As KeyIndex: the same hash, partitions and prefetching. Different keys have different
// hashes, so the hash need not be mixed again.
struct KeyHash {
  size_t operator()(int64_t key) const {
    return tessera::hash_of_key(key);
  }
};
using Map = absl::flat_hash_map<int64_t, uint32_t, KeyHash>;

class AbseilMaps {
 public:
  explicit AbseilMaps(const KeyIndex& index)
      : partitions_(index.partitions()), maps_(partitions_.count()) {
    for (int64_t p = 0; p < partitions_.count(); ++p) {
      maps_[p].reserve(partitions_.rows(p));
    }
    for (const tessera::KeyEntry& entry : index.entries()) {
      map_of(entry.key).emplace(entry.key, entry.row);
    }
  }

  void find(const int64_t* keys, int64_t size, uint32_t* rows) const {
    constexpr int64_t kAhead = 16;
    for (int64_t i = 0; i < size; ++i) {
      if (i + kAhead < size) {
        map_of(keys[i + kAhead]).prefetch(keys[i + kAhead]);
      }
      const Map& map = map_of(keys[i]);
      const auto found = map.find(keys[i]);
      rows[i] = found == map.end() ? kNoRow : found->second;
    }
  }

 private:
  const Map& map_of(int64_t key) const {
    return maps_[partitions_.of_hash(tessera::hash_of_key(key))];
  }
  Map& map_of(int64_t key) {
    return maps_[partitions_.of_hash(tessera::hash_of_key(key))];
  }

  tessera::KeyPartitions partitions_;
  std::vector<Map> maps_;
};
#endif

// Fills the index until all partitions are full.
void fill(KeyIndex& index, int64_t keys) {
  constexpr int64_t kPerUpdate = 1 << 20;
  std::vector<int64_t> batch(kPerUpdate);
  std::vector<uint32_t> rows(kPerUpdate);
  int64_t update = 0;
  for (int64_t i = 0; index.size() < keys && i < 2 * keys; i += kPerUpdate) {
    for (int64_t k = 0; k < kPerUpdate; ++k) {
      batch[k] = key_number(i + k);
    }
    const KeyOccurrences occurrences{
        .keys = batch.data(), .size = kPerUpdate, .rows = rows.data()};
    index.apply(index.plan(occurrences, ++update));
  }
}

void run(const Options& options) {
  tessera::set_thread_count(1);
  const tessera::DynamicKeys config{
      .capacity = options.keys, .preallocate = true};
  KeyIndex index(
      config, "benchmark", 0, tessera::KeyPartitions(config.capacity).all());
  const double fill_seconds = seconds_of([&] { fill(index, options.keys); });
  const int64_t size = index.size();
  std::vector<int64_t> keys;
  for (const tessera::KeyEntry& entry : index.entries()) {
    keys.push_back(entry.key);
  }
  fmt::print(
      "{} keys in {} partitions, filled in {:.1f} s; {:.1f} bytes per key beside the rows\n",
      size,
      index.partitions().count(),
      fill_seconds,
      static_cast<double>(index.bytes_at_capacity()) /
          static_cast<double>(options.keys));

  std::mt19937_64 random(1);
  std::vector<int64_t> requested(options.batch * options.batches);
  std::vector<uint32_t> rows(options.batch);
  const int64_t line_count = size;
  tessera::ReservedArray<uint64_t> lines(8 * line_count, "lines");
  for (int64_t i = 0; i < line_count; ++i) {
    lines[8 * i] = static_cast<uint64_t>(i);
  }
  const auto sum = [&](const uint32_t* found) {
    uint64_t total = 0;
    for (int64_t i = 0; i < options.batch; ++i) {
      total += found[i];
    }
    return total;
  };

  std::vector<Side> sides;
  // A key is the number of its line.
  sides.push_back(
      {"gather of 64-byte lines", [&](const int64_t* batch, uint32_t* found) {
         constexpr int64_t kAhead = 16;
         const auto line_of = [&](int64_t key) {
           return static_cast<int64_t>(
               ((tessera::hash_of_key(key) >> 32) *
                static_cast<uint64_t>(line_count)) >>
               32);
         };
         for (int64_t i = 0; i < options.batch; ++i) {
           if (i + kAhead < options.batch) {
             __builtin_prefetch(lines.data() + 8 * line_of(batch[i + kAhead]));
           }
           found[i] = static_cast<uint32_t>(lines[8 * line_of(batch[i])]);
         }
         return sum(found);
       }});
  sides.push_back(
      {"KeyIndex::find()", [&](const int64_t* batch, uint32_t* found) {
         index.find(batch, options.batch, found);
         return sum(found);
       }});
#ifdef TESSERA_HAS_ABSEIL
  const AbseilMaps maps(index);
  sides.push_back(
      {"absl::flat_hash_map", [&](const int64_t* batch, uint32_t* found) {
         maps.find(batch, options.batch, found);
         return sum(found);
       }});
#endif
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (int64_t& key : requested) {
      key = keys[random() % keys.size()];
    }
    std::vector<uint64_t> sums;
    for (const size_t s : turns(round, sides.size())) {
      Side& side = sides[s];
      uint64_t total = 0;
      const double seconds = seconds_of([&] {
        for (int64_t b = 0; b < options.batches; ++b) {
          total += side.find(requested.data() + b * options.batch, rows.data());
        }
      });
      side.rates.push_back(static_cast<double>(requested.size()) / seconds);
      if (side.name != sides[0].name) {
        sums.push_back(total);
      }
    }
    TORCH_CHECK(
        std::equal(sums.begin() + 1, sums.end(), sums.begin()),
        "the sides find different rows");
  }
  for (const Side& side : sides) {
    fmt::print(
        "  {:<24} {:6.1f} million keys/s  {:.2f} of the limit\n",
        side.name,
        median(side.rates) / 1e6,
        median(side.rates) / median(sides[0].rates));
  }
  if (sides.size() > 2) {
    fmt::print(
        "KeyIndex is {:.2f} times as fast as absl::flat_hash_map\n",
        median(sides[1].rates) / median(sides[2].rates));
  }
}

}  // namespace

TESSERA_BENCHMARK(
    "Times lookups in the keys of a full key table, beside abseil's flat_hash_map and a plain gather.",
    run)
