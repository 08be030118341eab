// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/dataset_split.h>

#include "packages/data/tests/dataset_rows.h"

namespace tessera::data::dataset_split_test {

struct Visit {
  int64_t user;
  int64_t time;
};

// Columns with users as integers and text, and times as integers and floats.
Columns visit_columns(const std::vector<Visit>& visits) {
  std::vector<int64_t> ids;
  std::vector<int64_t> users;
  Texts names;
  std::vector<int64_t> times;
  std::vector<float> float_times;
  for (const Visit& visit : visits) {
    ids.push_back(static_cast<int64_t>(ids.size()));
    users.push_back(visit.user);
    names.push_back("user " + std::to_string(visit.user));
    times.push_back(visit.time);
    float_times.push_back(static_cast<float>(visit.time));
  }
  return columns_of(
      {{"id", integers(ids)},
       {"user", integers(users)},
       {"name", text(names)},
       {"time", integers(times)},
       {"float_time", numbers(float_times)}});
}

std::vector<Visit> random_visits(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto number = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  std::vector<Visit> visits;
  for (int64_t i = 0; i < count; ++i) {
    visits.push_back({number(0, count / 4), number(-20, 20)});
  }
  return visits;
}

std::vector<int64_t> column_of(const Dataset& dataset, const char* name) {
  std::vector<int64_t> values;
  const auto reader = dataset.open();
  while (const auto columns = reader->next()) {
    const auto some = to_vector(std::get<at::Tensor>(columns->at(name).values));
    values.insert(values.end(), some.begin(), some.end());
  }
  return values;
}

// Checks that each example is in one part, in the order of the dataset.
void expect_parts(const DatasetSplit& split, int64_t size) {
  std::set<int64_t> ids;
  for (const Dataset& part : {split.train, split.validation, split.test}) {
    const std::vector<int64_t> some = column_of(part, "id");
    EXPECT_EQ(part.size(), static_cast<int64_t>(some.size()));
    EXPECT_TRUE(std::is_sorted(some.begin(), some.end()));
    ids.insert(some.begin(), some.end());
  }
  EXPECT_EQ(static_cast<int64_t>(ids.size()), size);
  EXPECT_EQ(
      *split.train.size() + *split.validation.size() + *split.test.size(),
      size);
}

TEST(DatasetSplitTest, ByShareIsDeterministicAndHasTheShares) {
  constexpr int64_t kSize = 20'000;
  const SplitByShare by{.test = 0.2, .validation = 0.1, .seed = 3};
  const DatasetSplit parts = split(row_dataset(kSize, 999), by);
  expect_parts(parts, kSize);
  // Within five standard deviations.
  EXPECT_NEAR(*parts.test.size(), 4000, 5 * std::sqrt(kSize * 0.2 * 0.8));
  EXPECT_NEAR(*parts.validation.size(), 2000, 5 * std::sqrt(kSize * 0.09));
  // The same for other chunks, an unknown size and more examples.
  const std::vector<int64_t> test = read_ids(parts.test);
  EXPECT_EQ(read_ids(split(row_dataset(kSize, 17, false), by).test), test);
  const std::vector<int64_t> longer =
      read_ids(split(row_dataset(kSize + 500), by).test);
  EXPECT_EQ(
      std::vector<int64_t>(longer.begin(), longer.begin() + test.size()), test);
  const DatasetSplit other =
      split(row_dataset(kSize), SplitByShare{.test = 0.2, .validation = 0.1});
  EXPECT_NE(read_ids(other.test), test);
}

TEST(DatasetSplitTest, PartsCanBeReadFromAnyExample) {
  const Rows rows = make_rows(500);
  for (const double share : {0.01, 0.3, 0.99}) {
    const Dataset test =
        split(row_dataset(500, 13), SplitByShare{.test = share}).test;
    const std::vector<int64_t> ids = read_ids(test);
    for (const Row& row : read_rows(test)) {
      EXPECT_EQ(row, rows[row.id]);
    }
    for (size_t first = 0; first <= ids.size() + 1; ++first) {
      const auto begin = std::min(first, ids.size());
      EXPECT_EQ(
          read_ids(test, 0, static_cast<int64_t>(first)),
          std::vector<int64_t>(ids.begin() + begin, ids.end()));
    }
    BatchReader reader = test.batch({.size = 2})(0);
    const int64_t size = *reader.size();
    EXPECT_EQ(reader.skip(size / 2), size / 2);
    EXPECT_EQ(reader.skip(size), size - size / 2);
  }
}

TEST(DatasetSplitTest, ByTimePutsTheNewestIntoTest) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<Visit> visits = random_visits(100, seed);
    for (const char* column : {"time", "float_time"}) {
      const DatasetSplit parts = split(
          Dataset(visit_columns(visits)),
          SplitByTime{.column = column, .test = 0.1, .validation = 0.25});
      expect_parts(parts, 100);
      std::vector<std::pair<int64_t, int64_t>> sorted;
      for (size_t i = 0; i < visits.size(); ++i) {
        sorted.emplace_back(visits[i].time, i);
      }
      std::sort(sorted.begin(), sorted.end());
      const auto ids_of = [&](size_t begin, size_t end) {
        std::vector<int64_t> ids;
        for (size_t i = begin; i < end; ++i) {
          ids.push_back(sorted[i].second);
        }
        std::sort(ids.begin(), ids.end());
        return ids;
      };
      EXPECT_EQ(column_of(parts.train, "id"), ids_of(0, 65));
      EXPECT_EQ(column_of(parts.validation, "id"), ids_of(65, 90));
      EXPECT_EQ(column_of(parts.test, "id"), ids_of(90, 100));
    }
  }
}

TEST(DatasetSplitTest, ByTimeHasThresholds) {
  const Dataset dataset(visit_columns({{0, 5}, {0, -3}, {0, 7}, {0, 6}}));
  for (const char* column : {"time", "float_time"}) {
    const DatasetSplit parts = split(
        dataset,
        SplitByTime{
            .column = column, .test_from = 6.5, .validation_from = 5.0});
    EXPECT_EQ(column_of(parts.train, "id"), Ids{1});
    EXPECT_EQ(column_of(parts.validation, "id"), (Ids{0, 3}));
    EXPECT_EQ(column_of(parts.test, "id"), Ids{2});
    const auto test_from = [&](double time) {
      return column_of(
          split(dataset, SplitByTime{.column = column, .test_from = time}).test,
          "id");
    };
    EXPECT_EQ(test_from(-3.0), (Ids{0, 1, 2, 3}));
    EXPECT_EQ(test_from(-2.9), (Ids{0, 2, 3}));
    EXPECT_EQ(test_from(7.0), Ids{2});
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    EXPECT_EQ(test_from(kInfinity), Ids{});
    EXPECT_EQ(test_from(1e300), Ids{});
    EXPECT_EQ(test_from(-kInfinity).size(), 4);
    EXPECT_EQ(test_from(-1e300).size(), 4);
  }
  // A threshold that is no float32 number.
  const Columns columns = columns_of(
      {{"id", integers({0, 1})},
       {"time", numbers({0.1F, std::nextafter(0.1F, 1.0F)})}});
  const double between = static_cast<double>(0.1F) + 1e-12;
  const SplitByTime by{.column = "time", .test_from = between};
  EXPECT_EQ(column_of(split(Dataset(columns), by).test, "id"), Ids{1});
}

TEST(DatasetSplitTest, ByTimeIsExactForNanoseconds) {
  constexpr int64_t kTime = 1'700'000'000'000'000'001;
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  const Dataset dataset(columns_of(
      {{"id", integers({0, 1, 2, 3, 4})},
       {"time", integers({kTime - 1, kTime, kTime + 1, kLast - 1, kLast})}}));
  const auto test_of = [&](const SplitByTime& by) {
    return column_of(split(dataset, by).test, "id");
  };
  EXPECT_EQ(test_of({.column = "time", .test_from = kTime}), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(test_of({.column = "time", .test_from = kLast}), Ids{4});
  const double rounded = 1.7e18;  // kTime - 1
  EXPECT_EQ(test_of({.column = "time", .test_from = rounded}).size(), 5);
  EXPECT_EQ(test_of({.column = "time", .test_from = 0x1p63}), Ids{});
  const SplitByTime both{
      .column = "time", .test_from = kTime + 1, .validation_from = kTime};
  EXPECT_EQ(column_of(split(dataset, both).validation, "id"), Ids{1});
  EXPECT_VALUE_ERROR(
      (test_of(
          {.column = "time",
           .test_from = kTime,
           .validation_from = kTime + 1})),
      "validation_from must be <= test_from, but got "
      "1700000000000000002 and 1700000000000000001");
}

TEST(DatasetSplitTest, ByUserKeepsUsersTogether) {
  const std::vector<Visit> visits = random_visits(8000, 5);
  const Dataset dataset(visit_columns(visits));
  for (const char* column : {"user", "name"}) {
    const SplitByUser by{
        .column = column, .test = 0.2, .validation = 0.2, .seed = 1};
    const DatasetSplit parts = split(dataset, by);
    expect_parts(parts, 8000);
    std::map<int64_t, std::set<int>> parts_of_user;
    int number = 0;
    for (const Dataset& part : {parts.train, parts.validation, parts.test}) {
      for (const int64_t user : column_of(part, "user")) {
        parts_of_user[user].insert(number);
      }
      ++number;
    }
    std::map<int, double> users;
    for (const auto& [user, some] : parts_of_user) {
      ASSERT_EQ(some.size(), 1);
      users[*some.begin()] += 1.0;
    }
    const auto num_users = static_cast<double>(parts_of_user.size());
    const double deviation = 5 * std::sqrt(num_users * 0.2 * 0.8);
    EXPECT_NEAR(users[1], num_users * 0.2, deviation);
    EXPECT_NEAR(users[2], num_users * 0.2, deviation);
    SplitByUser other = by;
    other.seed = 2;
    EXPECT_NE(
        column_of(split(dataset, other).test, "id"),
        column_of(parts.test, "id"));
  }
}

TEST(DatasetSplitTest, LeavesTheLastTwoOfEachUserOut) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    const std::vector<Visit> visits = random_visits(60, seed);
    std::map<int64_t, std::vector<std::pair<int64_t, int64_t>>> of_user;
    for (size_t i = 0; i < visits.size(); ++i) {
      of_user[visits[i].user].emplace_back(visits[i].time, i);
    }
    for (const int64_t min_examples : {3, 5}) {
      std::vector<int64_t> test;
      std::vector<int64_t> validation;
      for (auto& [user, some] : of_user) {
        std::sort(some.begin(), some.end());
        if (static_cast<int64_t>(some.size()) >= min_examples) {
          test.push_back(some[some.size() - 1].second);
          validation.push_back(some[some.size() - 2].second);
        }
      }
      std::sort(test.begin(), test.end());
      std::sort(validation.begin(), validation.end());
      for (const char* user : {"user", "name"}) {
        for (const char* time : {"time", "float_time"}) {
          const DatasetSplit parts = split(
              Dataset(visit_columns(visits)),
              LeaveOneOut{
                  .user = user, .time = time, .min_examples = min_examples});
          expect_parts(parts, 60);
          EXPECT_EQ(column_of(parts.test, "id"), test);
          EXPECT_EQ(column_of(parts.validation, "id"), validation);
        }
      }
    }
  }
}

// Expects that a split of one example is refused.
void refuses(const auto& by, const std::string& text) {
  SCOPED_TRACE(text);
  EXPECT_VALUE_ERROR(split(Dataset(visit_columns({{0, 0}})), by), text);
}

TEST(DatasetSplitTest, RefusesShares) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string range = "test must be in (0, 1)";
  for (const double share : {0.0, 1.0, -0.1, 1.5, nan}) {
    refuses(SplitByShare{.test = share}, "[SplitByShare] " + range);
    refuses(
        SplitByUser{.column = "user", .test = share}, "[SplitByUser] " + range);
    refuses(
        SplitByTime{.column = "time", .test = share}, "[SplitByTime] " + range);
  }
  refuses(
      SplitByShare{.test = 0.5, .validation = -0.1},
      "validation must be in [0, 1), but got -0.1");
  refuses(
      SplitByShare{.test = 0.5, .validation = 0.5},
      "sum < 1, but got 0.5 and 0.5");
}

TEST(DatasetSplitTest, RefusesTimes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string time = "time";
  refuses(
      SplitByTime{.column = time, .test = 0.1, .test_from = 3.0},
      "either shares or times, but got both");
  refuses(
      SplitByTime{.column = time, .validation_from = 3.0},
      "test_from must be set");
  refuses(
      SplitByTime{.column = time, .test_from = nan},
      "must be numbers, but got NaN");
  refuses(
      SplitByTime{.column = time, .test_from = 3.0, .validation_from = 4.0},
      "validation_from must be <= test_from, but got 4 and 3");
  refuses(
      LeaveOneOut{.user = "user", .time = time, .min_examples = 2},
      "min_examples must be >= 3");
}

TEST(DatasetSplitTest, RefusesColumns) {
  Columns columns = visit_columns({{0, 0}, {0, 1}});
  columns.add("lists", ragged(integers({1, 2}), {0, 1, 2}));
  columns.add("no_user", integers({1, kMissing}));
  columns.add(
      "no_time", numbers({1.0F, std::numeric_limits<float>::quiet_NaN()}));
  columns.add("no_name", text({"a", ""}));
  const Dataset dataset(columns);
  const auto by_user = [&](const char* column) {
    return split(dataset, SplitByUser{.column = column, .test = 0.5});
  };
  const auto by_time = [&](const char* column) {
    return split(dataset, SplitByTime{.column = column, .test = 0.5});
  };
  const auto leave_one_out = [&](const char* user, const char* time) {
    return split(dataset, LeaveOneOut{.user = user, .time = time});
  };
  EXPECT_VALUE_ERROR(
      by_user("x"),
      "[SplitByUser] there is no column 'x'. Known: id, user, name, time,");
  EXPECT_VALUE_ERROR(by_time("x"), "[SplitByTime] there is no column 'x'");
  EXPECT_VALUE_ERROR(
      leave_one_out("x", "time"), "[LeaveOneOut] there is no column 'x'");
  EXPECT_VALUE_ERROR(
      leave_one_out("user", "x"), "[LeaveOneOut] there is no column 'x'");
  EXPECT_VALUE_ERROR(by_user(""), "column must be the name of a column");
  EXPECT_VALUE_ERROR(by_time(""), "column must be the name of a column");
  EXPECT_VALUE_ERROR(leave_one_out("", "time"), "user must be the name");
  EXPECT_VALUE_ERROR(leave_one_out("user", ""), "time must be the name");
  EXPECT_TYPE_ERROR(
      by_user("float_time"),
      "[SplitByUser] column 'float_time' must have integers or text, but it has floats");
  EXPECT_TYPE_ERROR(
      by_time("name"),
      "[SplitByTime] column 'name' must have integers or floats, but it has text");
  EXPECT_VALUE_ERROR(
      by_user("lists"), "column 'lists' must have one value per example");
  EXPECT_VALUE_ERROR(by_time("lists"), "it has lists");
  EXPECT_VALUE_ERROR(
      by_user("no_user"),
      "column 'no_user' has no value in example 1 (counted from 0). Drop");
  EXPECT_VALUE_ERROR(by_user("no_name"), "has no value in example 1");
  EXPECT_VALUE_ERROR(by_time("no_time"), "has no value in example 1");
  EXPECT_VALUE_ERROR(
      leave_one_out("no_user", "time"), "'no_user' has no value in example 1");
  EXPECT_VALUE_ERROR(by_time("no_user"), "'no_user' has no value in example 1");
}

// As float32, the seconds of 2023 are multiples of 128.
TEST(DatasetSplitTest, RefusesTimesThatFloat32Rounds) {
  const auto dataset_of = [](const std::vector<float>& times) {
    return Dataset(columns_of(
        {{"user", integers(Ids(times.size(), 1))}, {"time", numbers(times)}}));
  };
  EXPECT_VALUE_ERROR(
      (split(
          dataset_of({0.0F, 1700000003.5F, 1700000002.5F}),
          LeaveOneOut{.user = "user", .time = "time"})),
      "[LeaveOneOut] column 'time' has the time 1700000000 in example 1 "
      "(counted from 0), but float32 rounds such times to multiples of 128. "
      "Store the times as integers");
  EXPECT_VALUE_ERROR(
      (split(
          dataset_of({-16777216.0F}),
          SplitByTime{.column = "time", .test = 0.5})),
      "[SplitByTime] column 'time' has the time -16777216 in example 0 "
      "(counted from 0), but float32 rounds such times to multiples of 2.");
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(
      split(
          dataset_of({16777215.0F, -kInfinity, kInfinity}),
          LeaveOneOut{.user = "user", .time = "time"})
          .test.size(),
      1);
}

TEST(DatasetSplitTest, RefusesToLeaveNothingOut) {
  const Dataset dataset(visit_columns({{0, 0}, {0, 1}, {1, 0}, {1, 1}}));
  EXPECT_VALUE_ERROR(
      (split(dataset, LeaveOneOut{.user = "name", .time = "time"})),
      "[LeaveOneOut] no user in column 'name' has min_examples = 3 examples or "
      "more, so validation and test would be empty.");
}

TEST(DatasetSplitTest, RefusesAnOrderThatChanges) {
  const Dataset dataset =
      Dataset(visit_columns({{0, 0}})).shuffle({.buffer = 5});
  EXPECT_VALUE_ERROR(
      split(dataset, SplitByShare{.test = 0.5}), "Split before shuffle()");
  EXPECT_VALUE_ERROR(
      (split(dataset.take(1), SplitByTime{.column = "time", .test = 0.5})),
      "Split before shuffle()");
  // A cached order does not change.
  expect_parts(split(dataset.cache(), SplitByShare{.test = 0.5}), 1);
}

TEST(DatasetSplitTest, EmptyDataHaveEmptyParts) {
  const Dataset dataset(visit_columns({}));
  expect_parts(split(dataset, SplitByShare{.test = 0.5}), 0);
  expect_parts(split(dataset, SplitByTime{.column = "time", .test = 0.5}), 0);
  expect_parts(split(dataset, SplitByUser{.column = "user", .test = 0.5}), 0);
  expect_parts(split(dataset, LeaveOneOut{.user = "user", .time = "time"}), 0);
  EXPECT_EQ(
      *split(row_dataset(100), SplitByShare{.test = 0.5}).validation.size(), 0);
}

TEST(DatasetSplitTest, RefusesDataThatHaveShrunk) {
  const auto source =
      std::make_shared<RowSource>(make_rows(100), 7, /*knows_size=*/false);
  const Dataset test = split(Dataset(source), SplitByShare{.test = 0.5}).test;
  source->rows.resize(40);
  EXPECT_VALUE_ERROR(read_rows(test), "expected 100 examples");
}

}  // namespace tessera::data::dataset_split_test
