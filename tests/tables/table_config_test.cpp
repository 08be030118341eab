// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/tables/table_config.h>

#include "tests/test_util.h"

namespace tessera::test::table_config_test {

TableConfig users() {
  return {.name = "users", .vocabulary_size = 10, .dim = 4};
}

using Change = std::function<void(TableConfig&)>;

TableConfig users_with(const Change& change) {
  TableConfig table = users();
  change(table);
  return table;
}

TEST(TableConfigTest, DefaultsMatchUpstream) {
  const TableConfig table;
  EXPECT_EQ(table.name, "");
  EXPECT_EQ(table.combiner, Combiner::kMean);
  EXPECT_FALSE(table.initializer.has_value());
  EXPECT_FALSE(table.optimizer.has_value());
}

TEST(TableConfigTest, ComparesByValue) {
  EXPECT_EQ(users(), users());
  for (const Change& change : std::vector<Change>{
           [](TableConfig& table) { table.name = "movies"; },
           [](TableConfig& table) { table.vocabulary_size = 11; },
           [](TableConfig& table) { table.dim = 5; },
           [](TableConfig& table) { table.combiner = Combiner::kSum; },
           [](TableConfig& table) {
             table.initializer = initializers::Zeros{};
           },
           [](TableConfig& table) { table.optimizer = optim::SGD{}; }}) {
    EXPECT_NE(users_with(change), users());
  }
}

TEST(TableConfigTest, ComparesNestedOptionsByValue) {
  TableConfig left = users();
  TableConfig right = users();
  left.optimizer = optim::SGD{.learning_rate = 0.1};
  right.optimizer = optim::SGD{.learning_rate = 0.1};
  left.initializer = initializers::Normal{.stddev = 2.0};
  right.initializer = initializers::Normal{.stddev = 2.0};
  EXPECT_EQ(left, right);
  right.optimizer = optim::SGD{.learning_rate = 0.2};
  EXPECT_NE(left, right);
}

TEST(TableConfigTest, MakeTableKeepsTheConfig) {
  const TablePtr table = make_table(users());
  EXPECT_EQ(*table, users());
  EXPECT_NE(table, make_table(users()));
}

TEST(TableConfigTest, TheNameMayBeEmptyOrAnyText) {
  TableConfig table = users();
  table.name = "";
  validate(table);
  table.name = "class / 'quoted' \n";
  validate(table);
}

TEST(TableConfigTest, RefusesUnusableOptions) {
  constexpr int64_t kMaxRows = 4294967294;
  expect_refusals<Change>(
      {{[](TableConfig& table) { table.vocabulary_size = 0; },
        "[TableConfig 'users'] vocabulary_size must be in [1, 4294967294], but "
        "got 0. Set it to the number of distinct ids, or set keys."},
       {[](TableConfig& table) { table.vocabulary_size = -3; }, "but got -3"},
       {[](TableConfig& table) { table.vocabulary_size = kMaxRows + 1; },
        "but got 4294967295"},
       {[](TableConfig& table) { table.zero_rows = 11; },
        "[TableConfig 'users'] zero_rows must be in [0, "},
       {[](TableConfig& table) { table.zero_rows = -1; }, "but got -1"},
       {[](TableConfig& table) {
          table = {
              .dim = 1, .zero_rows = 1, .keys = DynamicKeys{.capacity = 9}};
        },
        "zero_rows must be in [0, 0] with keys, but got 1"},
       {[](TableConfig& table) { table.dim = 0; },
        "[TableConfig 'users'] dim must be >= 1, but got 0. Set dim to the "
        "width of one embedding row."},
       {[](TableConfig& table) { table.dim = -1; },
        "dim must be >= 1, but got -1"},
       {[](TableConfig& table) {
          table.vocabulary_size = kMaxRows;
          table.dim = std::numeric_limits<int64_t>::max();
        },
        "a table must fit into memory, but 4294967294 rows of "
        "9223372036854775807 values are more than any machine can hold"},
       {[](TableConfig& table) {
          table.initializer = initializers::Normal{.stddev = -1.0};
        },
        "[TableConfig 'users'] initializer: stddev must be >= 0, and mean +- 7 "
        "stddev must be finite in float32, but got -1"},
       {[](TableConfig& table) {
          table.optimizer = optim::Adagrad{.initial_accumulator_value = 0.0};
        },
        "[TableConfig 'users'] Adagrad: initial_accumulator_value must be > "
        "0"}},
      [](const Change& change) { make_table(users_with(change)); });
  validate(
      users_with([](TableConfig& table) { table.vocabulary_size = kMaxRows; }));
  validate(users_with([](TableConfig& table) { table.zero_rows = 10; }));
}

TEST(CombinerTest, NamesReadBackAsTheSameCombiner) {
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    EXPECT_EQ(combiner_from_string(to_string(combiner)), combiner);
  }
  EXPECT_EQ(to_string(Combiner::kSqrtn), "sqrtn");
}

TEST(CombinerTest, AnUnknownNameListsTheChoices) {
  EXPECT_VALUE_ERROR(
      combiner_from_string("max"),
      "combiner must be one of sum, mean, sqrtn, but got 'max'");
  EXPECT_VALUE_ERROR(combiner_from_string(""), "but got ''");
  EXPECT_VALUE_ERROR(combiner_from_string("Mean"), "but got 'Mean'");
}

}  // namespace tessera::test::table_config_test
