// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/negative_sampling.h>

#include <tessera/common/shorten.h>

#include "packages/data/src/example_columns.h"
#include "packages/data/src/random_stream.h"
#include "packages/data/src/row_stage.h"
#include "packages/data/src/value_hash.h"
#include "src/common/check.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::data {

namespace {

constexpr int64_t kUnknown = -1;
// After this many excluded draws, nearly all items may be excluded. A loop over all items
// then finds the allowed ones.
constexpr int kTries = 32;

void check_options(const NegativeSampler::Options& options) {
  constexpr int64_t kMaxNegatives = 65536;
  TESSERA_CHECK_VALUE(
      !options.item.empty() && !options.output.empty(),
      "[NegativeSampler] item and output must be names of columns, but one of them is empty.");
  TESSERA_CHECK_VALUE(
      options.excluded != ExcludedItems::kKnown || !options.user.empty(),
      "[NegativeSampler] excluded = kKnown needs the users, but user is empty. Set it to the column with the user.");
  TESSERA_CHECK_VALUE(
      options.num_negatives >= 1 && options.num_negatives <= kMaxNegatives,
      "[NegativeSampler] num_negatives must be in [1, {}], but got {}.",
      kMaxNegatives,
      options.num_negatives);
  // NaN fails this check, too. With a larger power, the weights of rare items would
  // underflow to 0.
  constexpr double kMaxPower = 16.0;
  TESSERA_CHECK_VALUE(
      options.power >= 0.0 && options.power <= kMaxPower,
      "[NegativeSampler] power must be in [0, {}], but got {}. 0 is uniform, 1 is as in the data.",
      kMaxPower,
      options.power);
}

// Numbers the distinct values of a column by their first appearance.
class ValueNumbers {
 public:
  ValueNumbers(std::string name, const char* missing)
      : name_(std::move(name)), missing_(missing) {}

  // Numbers the new values of the range. Calls `use` for each value, with its place in the
  // range and its number.
  template <class Use>
  void add(const RowRange& range, Use&& use) {
    visit(*range.columns, [&]<class T>(std::span<const T> values) {
      auto& map = std::get<Map<T>>(values_);
      for (int64_t i = 0; i < range.count; ++i) {
        const T& value = values[range.first + i];
        TESSERA_CHECK_VALUE(
            missing_ == nullptr || !is_missing(value),
            "[NegativeSampler] column '{}' has {}. Drop such examples before, with filter().",
            shorten(name_),
            missing_);
        const auto next = std::ssize(map);
        use(i, map.try_emplace(value, next).first->second);
      }
    });
  }

  // Returns the numbers of the values. Values that add() has not seen get numbers below
  // kUnknown, and equal values get equal numbers.
  std::vector<int64_t> find(const Columns& columns) const {
    std::vector<int64_t> numbers;
    visit(columns, [&]<class T>(std::span<const T> values) {
      const auto& map = std::get<Map<T>>(values_);
      TESSERA_CHECK_TYPE(
          std::ssize(map) == size(),
          "[NegativeSampler] column '{}' must have the same kind as in the dataset of the sampler, but it has {}.",
          shorten(name_),
          kind_of(columns.at(name_)));
      Map<T> others;
      numbers.reserve(values.size());
      for (const T& value : values) {
        const auto found = map.find(value);
        if (found != map.end()) {
          numbers.push_back(found->second);
          continue;
        }
        const auto next = kUnknown - 1 - std::ssize(others);
        numbers.push_back(others.try_emplace(value, next).first->second);
      }
    });
    return numbers;
  }

  int64_t size() const {
    const auto& [integers, texts] = values_;
    return static_cast<int64_t>(integers.size() + texts.size());
  }

  // The values in the order of their numbers.
  Column values() const {
    const auto in_order = []<class T>(const Map<T>& map) {
      std::vector<T> all(map.size());
      for (const auto& [value, number] : map) {
        all[number] = value;
      }
      return all;
    };
    const auto& [integers, texts] = values_;
    if (texts.empty()) {
      return {.values = at::tensor(in_order(integers), at::kLong)};
    }
    return {.values = in_order(texts)};
  }

 private:
  template <class T>
  using Map = std::unordered_map<T, int64_t, ValueHasher>;

  template <class Use>
  void visit(const Columns& columns, Use&& use) const {
    ExampleColumn{"NegativeSampler", name_}.visit<int64_t, std::string>(
        columns, "integers or text", use);
  }

  std::string name_;
  const char*
      missing_;  // what messages call a missing value; nullptr if it is allowed
  // One of the maps is empty.
  std::tuple<Map<int64_t>, Map<std::string>> values_;
};

// The items that are excluded for one example. Each member may exclude nothing.
struct Exclusion {
  int64_t own = kUnknown;
  std::span<const int64_t> known = {};  // ascending

  bool has(int64_t item) const {
    return item == own || std::ranges::binary_search(known, item);
  }
};

}  // namespace

struct NegativeSampler::Items {
  explicit Items(Options with_options)
      : options(std::move(with_options)),
        items(options.item, "examples without an item"),
        users(options.user, nullptr) {}

  void read(const Dataset& positives) {
    const bool has_users = options.excluded == ExcludedItems::kKnown;
    std::vector<double> counts;
    std::vector<std::pair<int64_t, int64_t>> pairs;  // user and item
    scan_rows(positives, [&](const RowRange& range, int64_t) {
      const size_t first = pairs.size();
      items.add(range, [&](int64_t, int64_t item) {
        if (static_cast<size_t>(item) == counts.size()) {
          counts.push_back(0.0);
        }
        counts[item] += 1.0;
        if (has_users) {
          pairs.emplace_back(0, item);
        }
      });
      if (has_users) {
        users.add(range, [&](int64_t i, int64_t user) {
          pairs[first + static_cast<size_t>(i)].first = user;
        });
      }
    });
    TESSERA_CHECK_VALUE(
        items.size() > 0,
        "[NegativeSampler] expected examples with items, but the dataset has none.");
    values = items.values();
    if (options.distribution == NegativeDistribution::kPopularity) {
      // For counts in [1, 2^63], the weights are above 1e-304, so they do not underflow.
      const double largest = *std::ranges::max_element(counts);
      for (const double count : counts) {
        weights.push_back(std::pow(count / largest, options.power));
      }
      table = AliasTable(weights);
    }
    collect_known(std::move(pairs));
  }

  void collect_known(std::vector<std::pair<int64_t, int64_t>> pairs) {
    std::ranges::sort(pairs);
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    known_splits.push_back(0);
    for (const auto& [user, item] : pairs) {
      while (std::ssize(known_splits) <= user) {
        known_splits.push_back(std::ssize(known));
      }
      known.push_back(item);
    }
    known_splits.push_back(std::ssize(known));
  }

  double weight(int64_t item) const {
    return options.distribution == NegativeDistribution::kUniform
        ? 1.0
        : weights[item];
  }
  int64_t draw(RandomStream& random) const {
    return options.distribution == NegativeDistribution::kUniform
        ? random.below(items.size())
        : table.draw(random);
  }

  Exclusion excluded_for(int64_t item, int64_t user) const {
    Exclusion excluded;
    if (options.excluded != ExcludedItems::kNone) {
      excluded.own = item;
    }
    if (options.excluded == ExcludedItems::kKnown && user >= 0) {
      const auto begin = static_cast<size_t>(user);
      excluded.known = std::span(known).subspan(
          known_splits[begin], known_splits[begin + 1] - known_splits[begin]);
    }
    return excluded;
  }

  // Returns kUnknown if no item is allowed.
  int64_t draw_allowed(const Exclusion& excluded, RandomStream& random) const {
    for (int i = 0; i < kTries; ++i) {
      const int64_t item = draw(random);
      if (!excluded.has(item)) {
        return item;
      }
    }
    const auto weight_of = [&](int64_t item) {
      return excluded.has(item) ? 0.0 : weight(item);
    };
    double sum = 0.0;
    for (int64_t item = 0; item < items.size(); ++item) {
      sum += weight_of(item);
    }
    double left = random.uniform() * sum;
    int64_t last = kUnknown;
    for (int64_t item = 0; item < items.size() && left >= 0.0; ++item) {
      if (const double weight = weight_of(item); weight > 0.0) {
        last = item;
        left -= weight;
      }
    }
    return last;
  }

  Options options;
  ValueNumbers items;
  ValueNumbers users;
  Column values;  // of the items
  std::vector<double> weights;  // of kPopularity
  AliasTable table;
  // The items of user i are known[known_splits[i]] to known[known_splits[i + 1]],
  // ascending.
  std::vector<int64_t> known;
  std::vector<int64_t> known_splits;
};

namespace {

// Draws other examples of a batch for its example `row`, unless all are excluded.
void draw_in_batch(
    const std::vector<int64_t>& batch_items,
    size_t row,
    const Exclusion& excluded,
    int64_t count,
    RandomStream& random,
    std::vector<int64_t>& drawn) {
  const int64_t size = std::ssize(batch_items);
  const auto is_allowed = [&](int64_t number) {
    const auto other = static_cast<size_t>(number);
    return other != row && !excluded.has(batch_items[other]);
  };
  for (int excluded_draws = 0; count > 0 && excluded_draws < kTries;) {
    const int64_t other = random.below(size);
    if (is_allowed(other)) {
      drawn.push_back(other);
      --count;
      excluded_draws = 0;
    } else {
      ++excluded_draws;
    }
  }
  if (count == 0) {
    return;
  }
  std::vector<int64_t> allowed;
  for (int64_t other = 0; other < size; ++other) {
    if (is_allowed(other)) {
      allowed.push_back(other);
    }
  }
  for (; count > 0 && !allowed.empty(); --count) {
    drawn.push_back(allowed[random.below(std::ssize(allowed))]);
  }
}

}  // namespace

NegativeSampler::NegativeSampler(const Dataset& positives, Options options) {
  check_options(options);
  const auto items = std::make_shared<Items>(std::move(options));
  items->read(positives);
  items_ = items;
}

Column NegativeSampler::sample(
    const Columns& examples,
    const MapContext& context) const {
  const Options& options = items_->options;
  const bool is_in_batch =
      options.distribution == NegativeDistribution::kInBatch;
  TESSERA_CHECK_VALUE(
      !is_in_batch || context.is_batch,
      "[NegativeSampler] kInBatch needs whole batches. Call map() after batch().");
  std::vector<int64_t> items = items_->items.find(examples);
  std::vector<int64_t> users(items.size(), kUnknown);
  if (options.excluded == ExcludedItems::kKnown) {
    users = items_->users.find(examples);
  }
  std::vector<int64_t> numbers;  // of items, or of examples with kInBatch
  std::vector<int64_t> splits{0};
  for (size_t row = 0; row < items.size(); ++row) {
    const Exclusion excluded = items_->excluded_for(items[row], users[row]);
    RandomStream random(
        static_cast<uint64_t>(options.seed),
        static_cast<uint64_t>(context.epoch),
        static_cast<uint64_t>(context.first_row) + row);
    if (is_in_batch) {
      draw_in_batch(
          items, row, excluded, options.num_negatives, random, numbers);
    }
    for (int64_t k = 0; !is_in_batch && k < options.num_negatives; ++k) {
      const int64_t item = items_->draw_allowed(excluded, random);
      TESSERA_CHECK_VALUE(
          item != kUnknown,
          "[NegativeSampler] all items are excluded for example {} (counted from 0). Drop such examples, or exclude fewer items.",
          context.first_row + static_cast<int64_t>(row));
      numbers.push_back(item);
    }
    splits.push_back(std::ssize(numbers));
  }
  Columns from;
  from.add("values", is_in_batch ? examples.at(options.item) : items_->values);
  Columns gathered = gather_rows(owned_range(contiguous(from)), numbers);
  Column result = gathered.at("values");
  result.row_splits = at::tensor(splits, at::kLong);
  return result;
}

Columns NegativeSampler::operator()(Columns examples, const MapContext& context)
    const {
  Column negatives = sample(examples, context);
  examples.add(items_->options.output, std::move(negatives));
  return examples;
}

int64_t NegativeSampler::num_items() const {
  return items_->items.size();
}

const NegativeSampler::Options& NegativeSampler::options() const& {
  return items_->options;
}
NegativeSampler::Options NegativeSampler::options() const&& {
  return items_->options;
}

}  // namespace tessera::data
