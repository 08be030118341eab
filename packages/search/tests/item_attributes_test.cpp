// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/item_filter.h"
#include "tests/test_util.h"

namespace tessera::item_attributes_test {

using data::ColumnView;
using data::kMissing;

struct Source {
  std::vector<int64_t> years{1994, kMissing, -7};
  std::vector<float> prices{9.5F, -0.0F, NAN};
  std::vector<std::string> genres{"war", "", "drama"};
  std::vector<std::string> tags{"old", "long", "old", ""};
  std::vector<int64_t> splits{0, 2, 2, 4};

  std::vector<std::pair<std::string, ColumnView>> columns() const {
    return {
        {"year", {.values = std::span(years)}},
        {"price", {.values = std::span(prices)}},
        {"genre", {.values = std::span(genres)}},
        {"tags", {.values = std::span(tags), .row_splits = std::span(splits)}},
    };
  }
};

std::vector<std::string> texts_of(const AttributeColumn& column) {
  std::vector<std::string> texts;
  for (const int64_t value : column.values) {
    texts.emplace_back(value == kMissing ? "(missing)" : column.texts[value]);
  }
  return texts;
}

template <class Value>
std::vector<Value> vector_of(std::span<const Value> values) {
  return {values.begin(), values.end()};
}

TEST(ItemAttributesTest, ReadsWhatWasWritten) {
  const std::string bytes = write_item_attributes(Source().columns());
  const ItemAttributes attributes(bytes, "[Test]");
  ASSERT_EQ(attributes.num_rows(), 4);
  ASSERT_EQ(attributes.columns().size(), 4);

  const AttributeColumn& years = attributes.at("year", "[Test]");
  EXPECT_EQ(years.type, data::ColumnType::kInt64);
  EXPECT_EQ(
      vector_of(years.values),
      (std::vector<int64_t>{1994, kMissing, -7, kMissing}));
  const AttributeColumn& prices = attributes.at("price", "[Test]");
  EXPECT_EQ(prices.type, data::ColumnType::kFloat32);
  EXPECT_EQ(
      vector_of(prices.values),
      (std::vector<int64_t>{data::ordered(9.5F), 0, kMissing, kMissing}));
  const AttributeColumn& genres = attributes.at("genre", "[Test]");
  EXPECT_EQ(genres.type, data::ColumnType::kText);
  EXPECT_FALSE(genres.has_lists());
  EXPECT_EQ(
      texts_of(genres), (Texts{"war", "(missing)", "drama", "(missing)"}));
  const AttributeColumn& tags = attributes.at("tags", "[Test]");
  EXPECT_TRUE(tags.has_lists());
  EXPECT_EQ(texts_of(tags), (Texts{"old", "long", "old", "(missing)"}));
  EXPECT_EQ(vector_of(tags.row_splits), (std::vector<int64_t>{0, 2, 2, 4, 4}));
}

TEST(ItemAttributesTest, SortsRowsByTheIdsOfItems) {
  constexpr int64_t kBig = int64_t{1} << 60;
  const std::vector<int64_t> ids{kBig, -3, 12};
  const std::string bytes = write_item_attributes(Source().columns(), ids);
  const ItemAttributes attributes(bytes, "[Test]");
  const AttributeColumn& genres = attributes.at("genre", "[Test]");
  EXPECT_EQ(
      texts_of(genres), (Texts{"(missing)", "drama", "war", "(missing)"}));
  const AttributeColumn& tags = attributes.at("tags", "[Test]");
  EXPECT_EQ(texts_of(tags), (Texts{"old", "(missing)", "old", "long"}));
  EXPECT_EQ(vector_of(tags.row_splits), (std::vector<int64_t>{0, 0, 2, 4, 4}));
  EXPECT_EQ(attributes.row_of(-3), 0);
  EXPECT_EQ(attributes.row_of(12), 1);
  EXPECT_EQ(attributes.row_of(kBig), 2);
  for (const int64_t other : {int64_t{0}, int64_t{1}, kBig + 1, kMissing}) {
    EXPECT_EQ(attributes.row_of(other), 3);
  }
}

TEST(ItemAttributesTest, ItemsWithoutIdsAreNumbered) {
  const std::string bytes = write_item_attributes(Source().columns());
  const ItemAttributes attributes(bytes, "[Test]");
  EXPECT_EQ(attributes.row_of(0), 0);
  EXPECT_EQ(attributes.row_of(2), 2);
  for (const int64_t other : {int64_t{3}, int64_t{-1}, kMissing}) {
    EXPECT_EQ(attributes.row_of(other), 3);
  }
}

TEST(ItemAttributesTest, MayHaveNoItems) {
  const std::vector<std::string> none;
  const std::string bytes =
      write_item_attributes({{"genre", {.values = std::span(none)}}});
  const ItemAttributes attributes(bytes, "[Test]");
  EXPECT_EQ(attributes.num_rows(), 1);
  EXPECT_EQ(attributes.row_of(0), 0);
  EXPECT_EQ(rows_where("genre = 'a'", attributes).count(), 0);
  EXPECT_EQ(rows_where("genre is missing", attributes).count(), 1);
}

TEST(ItemAttributesTest, UnknownColumnsListTheKnownOnes) {
  const std::string bytes = write_item_attributes(Source().columns());
  const ItemAttributes attributes(bytes, "[Test]");
  EXPECT_VALUE_ERROR(
      attributes.at("genres", "[Test]"),
      "[Test] there is no column 'genres'. The columns are year, price, genre, tags.");
}

TEST(ItemAttributesTest, WriterRefusesBadColumns) {
  const Source source;
  EXPECT_VALUE_ERROR(
      write_item_attributes({}),
      "[write_item_attributes] expected a column or more.");
  auto twice = source.columns();
  twice.push_back(twice[0]);
  EXPECT_VALUE_ERROR(
      write_item_attributes(twice),
      "[Columns 'year'] there is already a column of this name.");
  auto shorter = source.columns();
  shorter[1].second.values = std::span(source.prices).first(2);
  EXPECT_VALUE_ERROR(
      write_item_attributes(shorter),
      "[Columns 'price'] expected 3 examples as in the other columns, but got 2.");
  auto split = source.columns();
  const std::vector<int64_t> wrong{0, 3, 2, 4};
  split[3].second.row_splits = std::span(wrong);
  EXPECT_VALUE_ERROR(
      write_item_attributes(split),
      "[Columns 'tags'] row_splits must ascend from 0 to 4");
  EXPECT_VALUE_ERROR(
      write_item_attributes(source.columns(), std::vector<int64_t>{1, 2}),
      "[write_item_attributes] expected an id for each of the 3 examples, but got 2.");
  EXPECT_VALUE_ERROR(
      write_item_attributes(source.columns(), std::vector<int64_t>{4, 2, 4}),
      "[write_item_attributes] two examples have the id 4. Keep one of them.");
}

// Reads a copy whose memory ends with the bytes, so that a sanitizer sees reads beyond them,
// and then everything that filters and results may read. Returns true if it is valid.
bool is_read(std::string_view bytes) {
  const std::vector<char> copy(bytes.begin(), bytes.end());
  try {
    const ItemAttributes attributes({copy.data(), copy.size()}, "[Test]");
    for (const AttributeColumn& column : attributes.columns()) {
      if (column.type == data::ColumnType::kText) {
        texts_of(column);
      }
      for (const int64_t split : column.row_splits) {
        EXPECT_LE(split, std::ssize(column.values));
      }
    }
    rows_where("year > 3 and not tags contains 'old'", attributes);
    return true;
  } catch (const c10::ValueError& error) {
    EXPECT_CONTAINS(std::string(error.what_without_backtrace()), "[");
    return false;
  }
}

TEST(ItemAttributesTest, IncompleteBytesAreRefused) {
  const std::string bytes =
      write_item_attributes(Source().columns(), std::vector<int64_t>{5, 9, 7});
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(is_read(bytes.substr(0, size)));
  }
  EXPECT_TRUE(is_read(bytes));
  EXPECT_FALSE(is_read(bytes + std::string(8, '\0')));
}

TEST(ItemAttributesTest, ChangedBytesAreRefusedOrSafe) {
  const std::string bytes =
      write_item_attributes(Source().columns(), std::vector<int64_t>{5, 9, 7});
  std::mt19937_64 random(7);
  int64_t num_refused = 0;
  for (int64_t i = 0; i < 20'000; ++i) {
    std::string changed = bytes;
    for (uint64_t count = random() % 3 + 1; count > 0; --count) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    num_refused += static_cast<int64_t>(!is_read(changed));
  }
  EXPECT_GT(num_refused, 10'000);
}

TEST(ItemAttributesTest, BytesMustBeAligned) {
  const std::string bytes =
      "1" + write_item_attributes(Source().columns()) + "1234567";
  EXPECT_VALUE_ERROR(
      ItemAttributes(
          std::string_view(bytes).substr(1, bytes.size() - 8), "[Test]"),
      "[Test] the attributes of items are damaged, or not at a multiple of 8 in memory. Write them again.");
}

}  // namespace tessera::item_attributes_test
