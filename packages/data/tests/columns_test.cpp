// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/columns.h>

#include "packages/data/tests/column_builders.h"

namespace tessera::data::columns_test {

TEST(ColumnsTest, KeepTheirOrderAndCountExamples) {
  Columns columns;
  EXPECT_EQ(columns.batch_size(), 0);
  columns.add("b", ragged(text({"x", "y", "z"}), {0, 3, 3}));
  columns.add("a", integers({1, 2}));
  EXPECT_EQ(columns.batch_size(), 2);
  EXPECT_EQ(columns.entries()[0].first, "b");
  EXPECT_TRUE(columns.contains("a"));
  EXPECT_EQ(
      to_vector(std::get<at::Tensor>(columns.at("a").values)), (Ids{1, 2}));
  EXPECT_VALUE_ERROR(columns.at("c"), "no column 'c'. Known: b, a.");
}

TEST(ColumnsTest, RefuseOtherBatchSizesAndDuplicateNames) {
  Columns columns;
  columns.add("a", integers({1, 2}));
  EXPECT_VALUE_ERROR(
      columns.add("b", integers({1})), "'b'] expected 2 examples");
  EXPECT_VALUE_ERROR(
      columns.add("a", integers({1, 2})),
      "[Columns 'a'] there is already a column of this name");
  EXPECT_VALUE_ERROR(
      columns.add("b", ragged(integers({1, 2}), {0, 2})),
      "expected 2 examples as in the other columns, but got 1");
  EXPECT_EQ(columns.entries().size(), 1);
}

TEST(ColumnsTest, TensorGivesOnlyColumnsOfNumbers) {
  const Columns columns = columns_of(
      {{"age", numbers({1.0F, 2.0F})},
       {"site", text({"a", "b"})},
       {"tags", ragged(integers({1, 2, 3}), {0, 1, 3})}});
  EXPECT_TRUE(columns.tensor("age").equal(torch::tensor({1.0F, 2.0F})));
  EXPECT_TYPE_ERROR(
      columns.tensor("site"),
      "[Columns] column 'site' must have one number per example, but it has "
      "text.");
  EXPECT_TYPE_ERROR(columns.tensor("tags"), "but it has lists.");
  EXPECT_VALUE_ERROR(columns.tensor("other"), "there is no column 'other'");
}

TEST(ColumnsTest, RefuseTensorsOfAnotherKind) {
  Columns columns;
  EXPECT_VALUE_ERROR(columns.add("a", {}), "must be a dense tensor [n]");
  EXPECT_VALUE_ERROR(
      columns.add("a", {.values = at::zeros({2, 2}, at::kLong)}),
      "'a'] values must be a dense tensor [n] on the CPU, but got");
  EXPECT_TYPE_ERROR(
      columns.add("a", {.values = at::zeros({2}, at::kDouble)}),
      "values must be int64 or float32, but got Double");
}

TEST(ColumnsTest, RefuseRowSplitsThatDoNotFitTheValues) {
  Columns columns;
  const auto add = [&](std::vector<int64_t> splits) {
    columns.add("a", ragged(text({"x", "y", "z"}), std::move(splits)));
  };
  const char* message = "'a'] row_splits must ascend from 0 to 3";
  EXPECT_VALUE_ERROR(add({}), message);
  EXPECT_VALUE_ERROR(add({0}), message);
  EXPECT_VALUE_ERROR(add({1, 3}), message);
  EXPECT_VALUE_ERROR(add({0, 4}), message);
  EXPECT_VALUE_ERROR((add({0, 2, 1, 3})), message);
  EXPECT_VALUE_ERROR((add({0, -1, 3})), message);
  EXPECT_TYPE_ERROR(
      (columns.add("a", {.values = int64s({1}), .row_splits = int32s({0, 1})})),
      "row_splits must be int64, but got Int");
  EXPECT_TRUE(columns.entries().empty());
}

TEST(ColumnsTest, ArePrintedAsATable) {
  const Columns columns = columns_of(
      {{"user", text({"u1", "", "Zo\xc3\xab"})},
       {"recent", ragged(integers({5, 8, kMissing}), {0, 2, 2, 3})},
       {"price", numbers({9.5F, NAN, 2.0F})}});
  EXPECT_EQ(
      to_string(columns),
      "user       recent       price\n"
      "text       [int64]      float32\n"
      "u1         [5,8]        9.5\n"
      "(missing)  []           (missing)\n"
      "Zo\xc3\xab        [(missing)]  2\n");
  std::ostringstream stream;
  stream << columns;
  EXPECT_EQ(stream.str(), to_string(columns));
  EXPECT_EQ(
      to_string(columns, 1),
      "user  recent   price\n"
      "text  [int64]  float32\n"
      "u1    [5,8]    9.5\n"
      "2 more examples\n");
  EXPECT_EQ(to_string(Columns()), "no columns\n");
}

TEST(ColumnsTest, LongValuesAreCutWhenPrinted) {
  Columns columns;
  columns.add("a\nb", text({std::string(39, 'x') + "\xc3\xab" + "y"}));
  columns.add(
      "list",
      ragged(integers({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}), {0, 12}));
  const std::string printed = to_string(columns);
  EXPECT_CONTAINS(printed, std::string(39, 'x') + "...  ");
  EXPECT_CONTAINS(printed, "[0,1,2,3,4,5,6,7,8,9,... 12 values]");
  EXPECT_EQ(printed.substr(0, 3), "a b");
}

}  // namespace tessera::data::columns_test
