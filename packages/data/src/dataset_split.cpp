// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/dataset_split.h>

#include <tessera/common/shorten.h>

#include "packages/data/src/example_columns.h"
#include "packages/data/src/random_stream.h"
#include "packages/data/src/row_stage.h"
#include "packages/data/src/value_hash.h"
#include "src/common/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tessera::data {

namespace {

constexpr uint8_t kTrainPart = 0;
constexpr uint8_t kValidationPart = 1;
constexpr uint8_t kTestPart = 2;

void check_shares(const char* where, double test, double validation) {
  // NaN fails these checks, too.
  TESSERA_CHECK_VALUE(
      test > 0.0 && test < 1.0,
      "[{}] test must be in (0, 1), but got {}. Set it to the share of the test examples, such as 0.1.",
      where,
      test);
  TESSERA_CHECK_VALUE(
      validation >= 0.0 && validation < 1.0,
      "[{}] validation must be in [0, 1), but got {}. Set it to the share of the validation examples, or leave it out.",
      where,
      validation);
  TESSERA_CHECK_VALUE(
      test + validation < 1.0,
      "[{}] test and validation must have a sum < 1, but got {} and {}, which leaves nothing for the training.",
      where,
      test,
      validation);
}

void check_order(const char* where, const Dataset& dataset) {
  TESSERA_CHECK_VALUE(
      DatasetAccess::stage(dataset)->has_fixed_order,
      "[{}] the order of the examples changes with the epoch, so an example would change its part. Split before shuffle().",
      where);
}

// The smallest ordered() value of a time >= `time`. Unset if there is no such time.
std::optional<int64_t> first_at(long double time, bool is_float) {
  static_assert(
      std::numeric_limits<long double>::digits >= 63,
      "long double must have all integers of 64 bits");
  if (is_float) {
    auto value = static_cast<float>(time);
    if (static_cast<long double>(value) < time) {
      value = std::nextafter(value, std::numeric_limits<float>::infinity());
    }
    return ordered(value);
  }
  if (time >= 0x1p63L) {
    return std::nullopt;
  }
  return time <= -0x1p63L ? std::numeric_limits<int64_t>::min()
                          : static_cast<int64_t>(std::ceil(time));
}

// The part of each row of a stage.
using RowParts = std::vector<uint8_t>;

// Reads the rows of one part, in their order, without the first `skipped` ones. `input`
// has as many rows as `parts`.
RowReader read_part(
    const RowStagePtr& input,
    const std::shared_ptr<const RowParts>& parts,
    uint8_t part,
    int64_t epoch,
    int64_t skipped) {
  const auto is_in_part = [=](int64_t row) { return (*parts)[row] == part; };
  // The rows to read end with a row of the part.
  int64_t end = std::ssize(*parts);
  while (end > 0 && !is_in_part(end - 1)) {
    --end;
  }
  int64_t row = 0;
  for (; row < end && (skipped > 0 || !is_in_part(row)); ++row) {
    skipped -= is_in_part(row) ? 1 : 0;
  }
  const auto pick = [=,
                     rows = row < end ? input->open(epoch, row) : RowReader()](
                        int64_t max_rows) mutable -> std::optional<PickedRows> {
    if (row == end) {
      return std::nullopt;
    }
    // Up to the last row that the caller wants, so that no others are read.
    int64_t count = 0;
    const int64_t most = std::min(std::max(max_rows, kScanRows), end - row);
    for (int64_t left = max_rows; left > 0 && count < most; ++count) {
      left -= is_in_part(row + count) ? 1 : 0;
    }
    const std::optional<RowRange> range = rows(count);
    TESSERA_CHECK_VALUE(
        range.has_value(),
        "[Dataset] expected {} examples before the split, as when it was made, but got {}. Do not change the files while they are read.",
        parts->size(),
        row);
    PickedRows picked{.range = *range};
    for (int64_t i = 0; i < range->count; ++i) {
      if (is_in_part(row + i)) {
        picked.rows.push_back(i);
      }
    }
    row += range->count;
    return picked;
  };
  return picked_rows(pick, /*skipped=*/0);
}

DatasetSplit make_split(const Dataset& dataset, RowParts parts) {
  const auto shared = std::make_shared<const RowParts>(std::move(parts));
  const auto make = [&](uint8_t part) {
    const RowStagePtr input = DatasetAccess::stage(dataset);
    const auto open = [=](int64_t epoch, int64_t first) {
      return read_part(input, shared, part, epoch, first);
    };
    const auto size = [count = std::ranges::count(*shared, part)] {
      return count;
    };
    return DatasetAccess::make(
        make_stage({open, size, input->has_fixed_order}));
  };
  return {
      .train = make(kTrainPart),
      .validation = make(kValidationPart),
      .test = make(kTestPart)};
}

// Returns the part of an example with this random number in [0, 1).
template <class By>
uint8_t part_of_random(double random, const By& by) {
  return random < by.test                ? kTestPart
      : random < by.test + by.validation ? kValidationPart
                                         : kTrainPart;
}

void check_times(const SplitByTime& by) {
  constexpr const char* kName = "SplitByTime";
  check_column_name(kName, "column", by.column);
  if (!by.test_from && !by.validation_from) {
    check_shares(kName, by.test, by.validation);
    return;
  }
  TESSERA_CHECK_VALUE(
      by.test == 0.0 && by.validation == 0.0,
      "[{}] expected either shares or times, but got both. Leave out test and validation, or test_from and validation_from.",
      kName);
  TESSERA_CHECK_VALUE(
      by.test_from.has_value(),
      "[{}] test_from must be set if validation_from is. Set it to the first time of the test examples.",
      kName);
  TESSERA_CHECK_VALUE(
      !std::isnan(*by.test_from) && !std::isnan(by.validation_from.value_or(0)),
      "[{}] test_from and validation_from must be numbers, but got NaN.",
      kName);
  TESSERA_CHECK_VALUE(
      !by.validation_from || *by.validation_from <= *by.test_from,
      "[{}] validation_from must be <= test_from, but got {} and {}.",
      kName,
      fmt::format("{:.19g}", by.validation_from.value_or(0)),
      fmt::format("{:.19g}", *by.test_from));
}

// Assigns the newest examples to test and validation by the shares of these parts.
void assign_newest(const Times& times, const SplitByTime& by, RowParts& parts) {
  const auto size = std::ssize(parts);
  const auto count_of = [&](double share) -> int64_t {
    return std::llround(share * static_cast<double>(size));
  };
  const int64_t test = count_of(by.test);
  const int64_t validation = std::min(count_of(by.validation), size - test);
  std::vector<int64_t> rows(parts.size());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  const auto is_newer = [&](int64_t left, int64_t right) {
    const auto key = [&](int64_t row) {
      return std::pair(times.values[row], row);
    };
    return key(left) > key(right);
  };
  const auto assign = [&](int64_t begin, int64_t count, uint8_t part) {
    const auto first = rows.begin() + begin;
    std::nth_element(first, first + count, rows.end(), is_newer);
    for (auto row = first; row != first + count; ++row) {
      parts[*row] = part;
    }
  };
  assign(0, test, kTestPart);
  assign(test, validation, kValidationPart);
}

// The two newest examples of a user.
struct UserEnd {
  int64_t examples = 0;
  std::pair<int64_t, int64_t> last = {};  // time and row
  std::pair<int64_t, int64_t> before = {};

  void add(int64_t time, int64_t row) {
    const std::pair<int64_t, int64_t> example(time, row);
    if (examples == 0 || example > last) {
      before = std::exchange(last, example);
    } else if (examples == 1 || example > before) {
      before = example;
    }
    ++examples;
  }
};

template <class User>
using UserEnds = std::unordered_map<User, UserEnd, ValueHasher>;

}  // namespace

DatasetSplit split(const Dataset& dataset, const SplitByShare& by) {
  constexpr const char* kName = "SplitByShare";
  check_shares(kName, by.test, by.validation);
  check_order(kName, dataset);
  RowParts parts;
  const auto add = [&](int64_t end) {
    for (auto row = std::ssize(parts); row < end; ++row) {
      RandomStream random(
          static_cast<uint64_t>(by.seed), static_cast<uint64_t>(row), 0);
      parts.push_back(part_of_random(random.uniform(), by));
    }
  };
  if (const std::optional<int64_t> size = dataset.size()) {
    parts.reserve(*size);
    add(*size);
  } else {
    scan_rows(dataset, [&](const RowRange& range, int64_t first) {
      add(first + range.count);
    });
  }
  return make_split(dataset, std::move(parts));
}

DatasetSplit split(const Dataset& dataset, const SplitByTime& by) {
  constexpr const char* kName = "SplitByTime";
  check_times(by);
  check_order(kName, dataset);
  const ExampleColumn column{kName, by.column};
  Times times;
  scan_rows(dataset, [&](const RowRange& range, int64_t first) {
    times.add(column, range, first);
  });
  RowParts parts(times.values.size(), kTrainPart);
  if (!by.test_from) {
    assign_newest(times, by, parts);
    return make_split(dataset, std::move(parts));
  }
  const auto assign = [&](long double from, uint8_t part) {
    const std::optional<int64_t> first = first_at(from, times.is_float);
    for (size_t i = 0; first && i < parts.size(); ++i) {
      if (times.values[i] >= *first) {
        parts[i] = part;
      }
    }
  };
  if (by.validation_from) {
    assign(*by.validation_from, kValidationPart);
  }
  assign(*by.test_from, kTestPart);
  return make_split(dataset, std::move(parts));
}

DatasetSplit split(const Dataset& dataset, const SplitByUser& by) {
  constexpr const char* kName = "SplitByUser";
  check_column_name(kName, "column", by.column);
  check_shares(kName, by.test, by.validation);
  check_order(kName, dataset);
  const ExampleColumn column{kName, by.column};
  RowParts parts;
  scan_rows(dataset, [&](const RowRange& range, int64_t first) {
    column.visit_users(range, first, [&](int64_t, const auto& user) {
      RandomStream random(static_cast<uint64_t>(by.seed), hash_of(user, 0), 0);
      parts.push_back(part_of_random(random.uniform(), by));
    });
  });
  return make_split(dataset, std::move(parts));
}

DatasetSplit split(const Dataset& dataset, const LeaveOneOut& by) {
  constexpr const char* kName = "LeaveOneOut";
  check_column_name(kName, "user", by.user);
  check_column_name(kName, "time", by.time);
  TESSERA_CHECK_VALUE(
      by.min_examples >= 3,
      "[{}] min_examples must be >= 3, so that users in test have an example in validation and one in train, but got {}.",
      kName,
      by.min_examples);
  check_order(kName, dataset);
  const ExampleColumn user_column{kName, by.user};
  const ExampleColumn time_column{kName, by.time};
  Times times;
  // One of the maps is empty.
  std::tuple<UserEnds<int64_t>, UserEnds<std::string>> users;
  scan_rows(dataset, [&](const RowRange& range, int64_t first) {
    times.add(time_column, range, first);
    user_column.visit_users(
        range, first, [&]<class T>(int64_t i, const T& user) {
          std::get<UserEnds<T>>(users)[user].add(
              times.values[first + i], first + i);
        });
  });
  RowParts parts(times.values.size(), kTrainPart);
  bool is_any_left_out = parts.empty();
  const auto leave_out = [&](const auto& ends) {
    for (const auto& [user, end] : ends) {
      if (end.examples >= by.min_examples) {
        parts[end.last.second] = kTestPart;
        parts[end.before.second] = kValidationPart;
        is_any_left_out = true;
      }
    }
  };
  leave_out(std::get<0>(users));
  leave_out(std::get<1>(users));
  TESSERA_CHECK_VALUE(
      is_any_left_out,
      "[{}] no user in column '{}' has min_examples = {} examples or more, so validation and test would be empty. Pass more examples, or another column.",
      kName,
      shorten(by.user),
      by.min_examples);
  return make_split(dataset, std::move(parts));
}

}  // namespace tessera::data
