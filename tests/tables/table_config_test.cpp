// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/tables/table_config.h>

#include "tests/test_util.h"

namespace tessera::table_config_test {

TableConfig users() {
  return {.name = "users", .vocabulary_size = 10, .dim = 4};
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
  TableConfig other = users();
  other.name = "movies";
  EXPECT_NE(other, users());
  other = users();
  other.vocabulary_size = 11;
  EXPECT_NE(other, users());
  other = users();
  other.dim = 5;
  EXPECT_NE(other, users());
  other = users();
  other.combiner = Combiner::kSum;
  EXPECT_NE(other, users());
  other = users();
  other.initializer = initializers::Zeros{};
  EXPECT_NE(other, users());
  other = users();
  other.optimizer = optim::SGD{};
  EXPECT_NE(other, users());
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

TEST(TableConfigTest, RefusesAVocabularyOutsideOfItsRange) {
  TableConfig table = users();
  table.vocabulary_size = 0;
  EXPECT_VALUE_ERROR(
      validate(table),
      "[TableConfig 'users'] vocabulary_size must be in [1, 4294967294], but "
      "got 0. Set it to the number of distinct ids, or set keys.");
  table.vocabulary_size = -3;
  EXPECT_VALUE_ERROR(validate(table), "but got -3");
  table.vocabulary_size = 4294967295;
  EXPECT_VALUE_ERROR(make_table(table), "but got 4294967295");
  table.vocabulary_size = 4294967294;
  validate(table);
}

TEST(TableConfigTest, RefusesZeroRowsBeyondTheTable) {
  TableConfig table = users();
  table.zero_rows = table.vocabulary_size;
  validate(table);
  ++table.zero_rows;
  EXPECT_VALUE_ERROR(
      validate(table), "[TableConfig 'users'] zero_rows must be in [0, ");
  table.zero_rows = -1;
  EXPECT_VALUE_ERROR(validate(table), "but got -1");
  table = {.dim = 1, .zero_rows = 1, .keys = DynamicKeys{.capacity = 9}};
  EXPECT_VALUE_ERROR(
      validate(table), "zero_rows must be in [0, 0] with keys, but got 1");
}

TEST(TableConfigTest, RefusesADimBelowOne) {
  TableConfig table = users();
  table.dim = 0;
  EXPECT_VALUE_ERROR(
      make_table(table),
      "[TableConfig 'users'] dim must be >= 1, but got 0. Set dim to the width "
      "of one embedding row.");
  table.dim = -1;
  EXPECT_VALUE_ERROR(validate(table), "dim must be >= 1, but got -1");
}

TEST(TableConfigTest, RefusesASizeThatOverflows) {
  TableConfig table = users();
  table.vocabulary_size = 4294967294;
  table.dim = std::numeric_limits<int64_t>::max();
  EXPECT_VALUE_ERROR(
      validate(table),
      "a table must fit into memory, but 4294967294 rows of 9223372036854775807 "
      "values are more than any machine can hold");
}

TEST(TableConfigTest, NamesTheTableOfAnUnusableInitializerOrOptimizer) {
  TableConfig table = users();
  table.initializer = initializers::Normal{.stddev = -1.0};
  EXPECT_VALUE_ERROR(
      validate(table),
      "[TableConfig 'users'] initializer: stddev must be >= 0, and mean +- 7 stddev "
      "must be finite in float32, but got -1");
  table = users();
  table.optimizer = optim::Adagrad{.initial_accumulator_value = 0.0};
  EXPECT_VALUE_ERROR(
      validate(table),
      "[TableConfig 'users'] Adagrad: initial_accumulator_value must be > 0");
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

}  // namespace tessera::table_config_test
