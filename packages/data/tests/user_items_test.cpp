// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/user_items.h>

#include "packages/data/tests/column_builders.h"

namespace tessera::data::user_items_test {

Columns clicks(
    const std::vector<int64_t>& users,
    const std::vector<int64_t>& items) {
  Columns columns;
  columns.add("user", {.values = torch::tensor(users)});
  columns.add("item", {.values = torch::tensor(items)});
  return columns;
}

TEST(UserItemsTest, BagsHaveTheItemsInTheOrderOfTheDataset) {
  const UserItems seen(Dataset(clicks({5, -1, 5, 5}, {30, 7, 10, 30})));
  const RaggedFeature bags = seen.of(int64s({5, 4, -1, 5}));
  EXPECT_TRUE(bags.values.equal(int64s({30, 10, 30, 7, 30, 10, 30})));
  EXPECT_TRUE(bags.row_splits.equal(int64s({0, 3, 3, 4, 7})));
}

TEST(UserItemsTest, NoUsersHaveNoBags) {
  const UserItems seen(Dataset(clicks({}, {})));
  EXPECT_TRUE(seen.of(int64s({})).row_splits.equal(int64s({0})));
  EXPECT_TRUE(seen.of(int64s({3})).row_splits.equal(int64s({0, 0})));
}

TEST(UserItemsTest, ReadsTheNamedColumns) {
  Columns columns = clicks({1, 2}, {3, 4});
  const UserItems users_of_items(
      Dataset(columns), {.user = "item", .item = "user"});
  EXPECT_TRUE(users_of_items.of(int64s({4})).values.equal(int64s({2})));
}

TEST(UserItemsTest, RefusesOtherColumns) {
  Columns text;
  text.add("user", {.values = Texts{"a"}});
  text.add("item", {.values = int64s({1})});
  EXPECT_TYPE_ERROR(
      UserItems(Dataset(text)),
      "[UserItems] column 'user' must have integers, but it has text. Convert "
      "it to ids with a FeaturePipeline");
  Columns lists;
  lists.add("user", {.values = int64s({1})});
  lists.add("item", {.values = int64s({1, 2}), .row_splits = int64s({0, 2})});
  EXPECT_VALUE_ERROR(
      UserItems(Dataset(lists)),
      "[UserItems] column 'item' must have one value per example, but it has "
      "lists.");
  EXPECT_VALUE_ERROR(
      UserItems(Dataset(clicks({kMissing}, {1}))),
      "[UserItems] column 'user' has no value in example 0");
  EXPECT_VALUE_ERROR(
      UserItems(Dataset(clicks({1}, {1})), {.user = "users"}),
      "[UserItems] there is no column 'users'. Known: user, item.");
}

TEST(UserItemsTest, RefusesOtherTensorsOfUsers) {
  const UserItems seen(Dataset(clicks({1}, {1})));
  EXPECT_TYPE_ERROR(seen.of({}), "got an undefined tensor");
  EXPECT_TYPE_ERROR(seen.of(torch::zeros({2})), "must be an int64 tensor");
  EXPECT_VALUE_ERROR(
      seen.of(int64s({1}).view({1, 1})), "must have the shape [n]");
}

}  // namespace tessera::data::user_items_test
