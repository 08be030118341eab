// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/collect_sequences.h>

#include "packages/data/tests/dataset_rows.h"

namespace tessera::data::collect_sequences_test {

// Seven events of the users 2, 1 and 3, not in the order of time.
Columns events() {
  return columns_of(
      {{"user", integers({2, 1, 2, 3, 2, 1, 2})},
       {"name", text({"b", "a", "b", "c", "b", "a", "b"})},
       {"item", integers({10, 11, 12, 13, 14, 15, 16})},
       {"time", integers({5, 9, 3, 1, 5, 8, 3})},
       {"price", numbers({0, 1, 2, 3, 4, 5, 6})}});
}

TEST(CollectSequencesTest, GroupsByTheColumnAndSortsByTime) {
  // At equal times, the order is that of the dataset.
  EXPECT_EQ(
      to_string(collect_sequences(
          Dataset(events()),
          {.by = "user", .time = "time", .values = {"item", "time"}})),
      "user   item           time\n"
      "int64  [int64]        [int64]\n"
      "1      [15,11]        [8,9]\n"
      "2      [12,16,10,14]  [3,3,5,5]\n"
      "3      [13]           [1]\n");
  const Columns all = collect_sequences(
      Dataset(events()).skip(1).take(4), {.by = "name", .time = "price"});
  EXPECT_EQ(
      to_string(all),
      "name  user     item     time     price\n"
      "text  [int64]  [int64]  [int64]  [float32]\n"
      "a     [1]      [11]     [9]      [1]\n"
      "b     [2,2]    [12,14]  [3,5]    [2,4]\n"
      "c     [3]      [13]     [1]      [3]\n");
}

TEST(CollectSequencesTest, LengthsAreLimited) {
  EXPECT_EQ(
      to_string(collect_sequences(
          Dataset(events()),
          {.by = "user",
           .time = "time",
           .values = {"item"},
           .min_length = 2,
           .max_length = 3})),
      "user   item\n"
      "int64  [int64]\n"
      "1      [15,11]\n"
      "2      [16,10,14]\n");
  const Columns none = collect_sequences(
      Dataset(events()), {.by = "user", .time = "time", .min_length = 9});
  EXPECT_EQ(none.batch_size(), 0);
  EXPECT_EQ(none.entries().size(), 5);
}

TEST(CollectSequencesTest, TimesAreExact) {
  constexpr int64_t kTime = 1'700'000'000'000'000'000;  // nanoseconds
  const Columns columns = columns_of(
      {{"user", integers({1, 1, 1})},
       {"time", integers({kTime + 2, kTime + 1, kTime})},
       {"item", integers({0, 1, 2})}});
  EXPECT_EQ(
      to_string(collect_sequences(
          Dataset(columns),
          {.by = "user", .time = "time", .values = {"item"}})),
      "user   item\nint64  [int64]\n1      [2,1,0]\n");
}

// A source returns examples in several parts.
TEST(CollectSequencesTest, ReadsAllPartsOfADataset) {
  const Dataset part(events());
  EXPECT_EQ(
      to_string(collect_sequences(
          part.concatenate(part),
          {.by = "user", .time = "time", .values = {"name", "price"}})),
      "user   name               price\n"
      "int64  [text]             [float32]\n"
      "1      [a,a,a,a]          [5,5,1,1]\n"
      "2      [b,b,b,b,b,b,b,b]  [2,6,2,6,0,4,0,4]\n"
      "3      [c,c]              [3,3]\n");
}

TEST(CollectSequencesTest, NamesWhatIsWrong) {
  const auto collect = [](const Columns& columns,
                          detail::CollectOptions options) {
    if (options.by.empty()) {
      options.by = "user";
    }
    if (options.time.empty()) {
      options.time = "time";
    }
    collect_sequences(Dataset(columns), options);
  };
  EXPECT_VALUE_ERROR(
      collect_sequences(Dataset(events()), {.by = "user"}),
      "[collect_sequences] time must be the name of a column");
  EXPECT_VALUE_ERROR(
      collect_sequences(
          Dataset(events()).take(0), {.by = "user", .time = "time"}),
      "[collect_sequences] expected a dataset with examples, but got none");
  EXPECT_VALUE_ERROR(
      collect(events(), {.time = "tme"}),
      "[collect_sequences] there is no column 'tme'. Known: user");
  EXPECT_VALUE_ERROR(
      collect(events(), {.by = "session"}), "there is no column 'session'");
  EXPECT_VALUE_ERROR(
      collect(events(), {.values = {"x"}}), "there is no column 'x'");
  EXPECT_VALUE_ERROR(collect(events(), {.values = {"item", "item"}}), "'item'");
  EXPECT_VALUE_ERROR(
      collect(events(), {.values = {"user"}}),
      "`values` has the column 'user' of `by`");
  EXPECT_TYPE_ERROR(
      collect(events(), {.by = "price"}),
      "column 'price' must have integers or text, but it has floats");
  EXPECT_TYPE_ERROR(
      collect(events(), {.time = "name"}),
      "column 'name' must have integers or floats, but it has text");
  EXPECT_VALUE_ERROR(
      collect(events(), {.min_length = 0}), "min_length must be >= 1");
  EXPECT_VALUE_ERROR(
      collect(events(), {.max_length = 0}), "max_length must be >= 1");
  Columns missing = events();
  missing.add("when", integers({1, 2, kMissing, 4, 5, 6, 7}));
  missing.add("float_time", numbers({1, 2, 3, 16777216, 5, 6, 7}));
  missing.add("tags", ragged(integers({1}), {0, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_VALUE_ERROR(
      collect(missing, {.time = "when", .values = {"item"}}),
      "column 'when' has no value in example 2");
  EXPECT_VALUE_ERROR(
      collect(missing, {.by = "when", .values = {"item"}}),
      "column 'when' has no value in example 2");
  EXPECT_VALUE_ERROR(
      collect(missing, {.time = "float_time", .values = {"item"}}),
      "float32 rounds such times");
  EXPECT_VALUE_ERROR(
      collect(missing, {}), "column 'tags' must have one value per example");
}

}  // namespace tessera::data::collect_sequences_test
