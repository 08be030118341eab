// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/item_filter.h"
#include "packages/search/src/scan/item_catalogue.h"
#include "tests/test_util.h"

namespace tessera::item_filter_test {

using data::ColumnView;
using data::kMissing;

using Random = std::mt19937_64;
using Texts = std::vector<std::string>;

// Items with a column of each kind, some of whose values are missing.
struct Items {
  std::vector<int64_t> years;
  std::vector<float> prices;
  Texts genres;
  Texts tags;
  std::vector<int64_t> tag_splits{0};
  std::vector<int64_t> sizes;
  std::vector<int64_t> size_splits{0};

  std::string write() const {
    return write_item_attributes({
        {"year", {.values = std::span(years)}},
        {"price", {.values = std::span(prices)}},
        {"the \"genre\"", {.values = std::span(genres)}},
        {"tags",
         {.values = std::span(tags), .row_splits = std::span(tag_splits)}},
        {"sizes",
         {.values = std::span(sizes), .row_splits = std::span(size_splits)}},
    });
  }
};

template <class Value>
Value any_of(Random& random, const std::vector<Value>& values) {
  return values[random() % values.size()];
}

const std::vector<int64_t> kIntegers{
    kMissing,
    kMissing + 1,
    -1,
    0,
    1,
    2,
    int64_t{1} << 60,
    std::numeric_limits<int64_t>::max()};
const std::vector<float> kFloats{
    NAN,
    -INFINITY,
    -1.5F,
    -1e-45F,
    -0.0F,
    0.0F,
    1e-45F,
    0.1F,
    9.99F,
    INFINITY};
const Texts kTexts{"", "a", "it's", "aa", "z", "Z", "\xc3\xa9", "say \"no\""};

Items random_items(Random& random, int64_t count) {
  Items items;
  for (int64_t i = 0; i < count; ++i) {
    items.years.push_back(any_of(random, kIntegers));
    items.prices.push_back(any_of(random, kFloats));
    items.genres.push_back(any_of(random, kTexts));
    for (uint64_t j = random() % 4; j > 0; --j) {
      items.tags.push_back(any_of(random, kTexts));
    }
    items.tag_splits.push_back(std::ssize(items.tags));
    for (uint64_t j = random() % 4; j > 0; --j) {
      items.sizes.push_back(any_of(random, kIntegers));
    }
    items.size_splits.push_back(std::ssize(items.sizes));
  }
  return items;
}

// A filter as text, and as a function that evaluates it for one item. The item number
// `years.size()` has no attributes.
struct Expected {
  std::string text;
  std::function<bool(size_t)> passes;
};

std::string text_of(int64_t value) {
  return std::to_string(value);
}
std::string text_of(float value) {
  std::ostringstream text;
  text << std::setprecision(9) << value;
  return text.str();
}
std::string text_of(const std::string& value) {
  std::string text = "'";
  for (const char c : value) {
    text += c == '\'' ? "''" : std::string(1, c);
  }
  return text + "'";
}

// A value that a filter may have: not missing, and one that no item has, too.
template <class Value>
Value random_value(
    Random& random,
    const std::vector<Value>& values,
    Value other) {
  const Value value = any_of(random, values);
  return data::is_missing(value) ? other : value;
}
int64_t random_value(Random& random, const int64_t* /*type*/) {
  return random_value<int64_t>(random, kIntegers, 77);
}
float random_value(Random& random, const float* /*type*/) {
  return random_value<float>(random, kFloats, 3.25F);
}
std::string random_value(Random& random, const std::string* /*type*/) {
  return random_value<std::string>(random, kTexts, "b");
}

const std::string& spaces(Random& random) {
  static const Texts kSpaces{" ", "  ", "\n", "\t "};
  return kSpaces[random() % kSpaces.size()];
}

// A comparison with values that `values_of(item)` has.
template <class Value, class ValuesOf>
Expected random_comparison(
    Random& random,
    const std::string& column,
    bool has_lists,
    ValuesOf values_of) {
  const Value* type = nullptr;
  const auto any = [=](auto passes) {
    return [=](size_t item) {
      const auto values = values_of(item);
      return std::any_of(values.begin(), values.end(), [&](const Value& value) {
        return !data::is_missing(value) && passes(value);
      });
    };
  };
  const Value value = random_value(random, type);
  const std::string shown = text_of(value);
  const auto compare = [&](const std::string& comparison, auto passes) {
    const std::string space = random() % 2 == 0 ? spaces(random) : "";
    return Expected{
        column + space + comparison + space + shown,
        any([=](const Value& of_item) { return passes(of_item, value); })};
  };
  const uint64_t kind = random() % 8;
  if (kind == 0) {
    const auto is_present = any([](const Value&) { return true; });
    return {
        column + " is missing", [=](size_t item) { return !is_present(item); }};
  }
  if (has_lists) {
    return {column + " contains " + shown, any([=](const Value& of_item) {
              return of_item == value;
            })};
  }
  switch (kind) {
    case 1: {
      std::vector<Value> values{value};
      std::string list = shown;
      for (uint64_t i = random() % 4; i > 0; --i) {
        values.push_back(random_value(random, type));
        list += "," + spaces(random) + text_of(values.back());
      }
      return {column + " in (" + list + ")", any([=](const Value& of_item) {
                return std::find(values.begin(), values.end(), of_item) !=
                    values.end();
              })};
    }
    case 2:
      return compare("!=", std::not_equal_to());
    case 3:
      return compare("<", std::less());
    case 4:
      return compare("<=", std::less_equal());
    case 5:
      return compare(">", std::greater());
    case 6:
      return compare(">=", std::greater_equal());
    default:
      return compare("=", std::equal_to());
  }
}

template <class Value>
auto one_value(const std::vector<Value>& values) {
  return [&values](size_t item) {
    return item < values.size() ? std::vector<Value>{values[item]}
                                : std::vector<Value>{};
  };
}

template <class Value>
auto list_of(
    const std::vector<Value>& values,
    const std::vector<int64_t>& splits) {
  return [&](size_t item) {
    return item + 1 < splits.size()
        ? std::vector<Value>(
              values.begin() + splits[item], values.begin() + splits[item + 1])
        : std::vector<Value>{};
  };
}

Expected random_comparison(Random& random, const Items& items) {
  switch (random() % 5) {
    case 0:
      return random_comparison<int64_t>(
          random, "year", false, one_value(items.years));
    case 1:
      return random_comparison<float>(
          random, "\"price\"", false, one_value(items.prices));
    case 2:
      return random_comparison<std::string>(
          random, "\"the \"\"genre\"\"\"", false, one_value(items.genres));
    case 3:
      return random_comparison<std::string>(
          random, "tags", true, list_of(items.tags, items.tag_splits));
    default:
      return random_comparison<int64_t>(
          random, "sizes", true, list_of(items.sizes, items.size_splits));
  }
}

// `level` says what the text may be without parentheses: 0 a filter, 1 a conjunction,
// 2 a term.
Expected random_filter(
    Random& random,
    const Items& items,
    int depth,
    int level) {
  const uint64_t kind = depth == 0 ? 0 : random() % 4;
  if (kind == 0) {
    return random_comparison(random, items);
  }
  if (kind == 1) {
    const auto part = random_filter(random, items, depth - 1, 2);
    return {"not" + spaces(random) + part.text, [=](size_t item) {
              return !part.passes(item);
            }};
  }
  const bool is_or = kind == 2;
  const int part_level = is_or ? 1 : 2;
  const auto left = random_filter(random, items, depth - 1, part_level);
  const auto right = random_filter(random, items, depth - 1, part_level);
  Expected joined{
      left.text + (is_or ? " or" : " and") + spaces(random) + right.text,
      [=](size_t item) {
        return is_or ? left.passes(item) || right.passes(item)
                     : left.passes(item) && right.passes(item);
      }};
  if (level >= part_level) {
    joined.text = "(" + joined.text + ")";
  }
  return joined;
}

TEST(ItemFilterTest, PassesWhatAPlainEvaluationOfEachItemPasses) {
  Random random(5);
  int64_t num_passed = 0;
  int64_t num_rows = 0;
  for (int64_t round = 0; round < 100; ++round) {
    const Items items =
        random_items(random, static_cast<int64_t>(random() % 150));
    const std::string bytes = items.write();
    const ItemAttributes attributes(bytes, "[Test]");
    for (int64_t i = 0; i < 100; ++i) {
      const Expected filter = random_filter(random, items, 4, 0);
      const RowSet rows = rows_where(filter.text, attributes);
      const RowSet expected = RowSet::where(
          attributes.num_rows(),
          [&](int64_t row) { return filter.passes(static_cast<size_t>(row)); });
      ASSERT_EQ(rows, expected) << filter.text;
      num_passed += rows.count();
      num_rows += rows.size();
    }
  }
  // Neither all nor none pass.
  EXPECT_GT(num_passed, num_rows / 4);
  EXPECT_LT(num_passed, num_rows * 3 / 4);
}

std::vector<int64_t> rows_of(const RowSet& set) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < set.size(); ++row) {
    if (set.contains(row)) {
      rows.push_back(row);
    }
  }
  return rows;
}

// Five films for the tests that show the language.
struct Films {
  std::vector<int64_t> years{1994, 1972, kMissing, 2008, 1990};
  std::vector<float> prices{9.99F, 0.1F, NAN, 5.0F, 0.0F};
  Texts genres{"drama", "crime", "drama", "", "it's"};
  Texts tags{"prison", "hope", "mafia", "joker"};
  std::vector<int64_t> tag_splits{0, 2, 3, 3, 4, 4};
  std::string bytes = write_item_attributes({
      {"year", {.values = std::span(years)}},
      {"price", {.values = std::span(prices)}},
      {"genre", {.values = std::span(genres)}},
      {"tags",
       {.values = std::span(tags), .row_splits = std::span(tag_splits)}},
      {"release date", {.values = std::span(years)}},
  });
  ItemAttributes attributes{bytes, "[Test]"};

  // The films that pass. Film 5 stands for those without attributes.
  std::vector<int64_t> passing(std::string_view filter) const {
    return rows_of(rows_where(filter, attributes));
  }
};

using Rows = std::vector<int64_t>;

TEST(ItemFilterTest, AndBindsMoreThanOr) {
  const Films films;
  EXPECT_EQ(
      films.passing("genre = 'crime' or genre = 'drama' and year >= 1990"),
      (Rows{0, 1}));
  EXPECT_EQ(
      films.passing("(genre = 'crime' or genre = 'drama') and year >= 1990"),
      (Rows{0}));
  EXPECT_EQ(
      films.passing("not genre = 'drama' and year >= 1990"), (Rows{3, 4}));
}

TEST(ItemFilterTest, MissingValuesPassNoComparison) {
  const Films films;
  EXPECT_EQ(films.passing("year < 9999"), (Rows{0, 1, 3, 4}));
  EXPECT_EQ(films.passing("year != 1994"), (Rows{1, 3, 4}));
  EXPECT_EQ(films.passing("not year = 1994"), (Rows{1, 2, 3, 4, 5}));
  EXPECT_EQ(films.passing("year is missing"), (Rows{2, 5}));
  EXPECT_EQ(films.passing("price is missing"), (Rows{2, 5}));
  EXPECT_EQ(films.passing("genre is missing"), (Rows{3, 5}));
  EXPECT_EQ(films.passing("tags is missing"), (Rows{2, 4, 5}));
}

TEST(ItemFilterTest, NumbersAreRoundedAsTheColumnIs) {
  const Films films;
  EXPECT_EQ(films.passing("price = 9.99"), (Rows{0}));
  EXPECT_EQ(films.passing("price >= 9.99"), (Rows{0}));
  EXPECT_EQ(films.passing("price <= 1e-1"), (Rows{1, 4}));
  EXPECT_EQ(films.passing("price = -0"), (Rows{4}));
}

TEST(ItemFilterTest, NamesAndTextsMayBeQuoted) {
  const Films films;
  EXPECT_EQ(films.passing("\"release date\"=1972"), (Rows{1}));
  EXPECT_EQ(films.passing("genre='it''s'"), (Rows{4}));
  EXPECT_EQ(films.passing("tags contains 'hope'"), (Rows{0}));
  EXPECT_EQ(films.passing("genre in ('crime','it''s','none')"), (Rows{1, 4}));
  EXPECT_EQ(films.passing("genre > 'crime' and genre < 'e'"), (Rows{0, 2}));
}

TEST(ItemFilterTest, ErrorsSayWhatWasExpectedAndWhere) {
  const Films films;
  using Case = test::Refusal<std::string>;
  test::expect_refusals<std::string>(
      {
          Case{
              "",
              "[where] position 1: expected a column, 'not' or '(', but got the end."},
          {"year = 1990 and",
           "[where] position 16: expected a column, 'not' or '(', but got the end."},
          {"'year' = 1990",
           "[where] position 1: expected a column, 'not' or '(', but got 'year'."},
          {"= 1990",
           "[where] position 1: expected a column, 'not' or '(', but got =."},
          {"yaer = 1990",
           "[where] position 1: there is no column 'yaer'. The columns are year, price, genre, tags, release date."},
          {"year = 1990 year",
           "[where] position 13: expected 'and', 'or' (in lower case) or the end, but got year."},
          {"year = 1990)",
           "[where] position 12: expected 'and', 'or' (in lower case) or the end, but got )."},
          {"(year = 1990",
           "[where] position 13: expected ')', but got the end."},
          {"year 1990",
           "[where] position 6: expected =, !=, <, <=, >, >=, 'in' or 'is missing' for the column 'year' without lists, but got 1990."},
          {"year == 1990",
           "[where] position 6: expected =, !=, <, <=, >, >=, 'in' or 'is missing' for the column 'year' without lists, but got ==."},
          {"genre contains 'd'",
           "[where] position 7: expected =, !=, <, <=, >, >=, 'in' or 'is missing' for the column 'genre' without lists, but got contains."},
          {"tags = 'hope'",
           "[where] position 6: expected 'contains' or 'is missing' for the column 'tags' of lists, but got =."},
          {"tags in ('hope')",
           "[where] position 6: expected 'contains' or 'is missing' for the column 'tags' of lists, but got in."},
          {"tags contains 3",
           "[where] position 15: expected 'text' in single quotes, not empty, for the column 'tags', but got 3."},
          {"year is 1990",
           "[where] position 9: expected 'missing', but got 1990."},
          {"year = '1990'",
           "[where] position 8: expected an integer for the column 'year', but got '1990'."},
          {"year = 1990.5",
           "[where] position 8: expected an integer for the column 'year', but got 1990.5."},
          {"year = 9223372036854775808",
           "[where] position 8: expected an integer for the column 'year', but got 9223372036854775808."},
          {"year = -9223372036854775808",
           "[where] position 8: expected an integer for the column 'year', but got -9223372036854775808."},
          {"price < cheap",
           "[where] position 9: expected a float32 for the column 'price', but got cheap."},
          {"price < nan",
           "[where] position 9: expected a float32 for the column 'price', but got nan."},
          {"price < 1e39",
           "[where] position 9: expected a float32 for the column 'price', but got 1e39."},
          {"price <",
           "[where] position 8: expected a float32 for the column 'price', but got the end."},
          {"genre = drama",
           "[where] position 9: expected 'text' in single quotes, not empty, for the column 'genre', but got drama."},
          {"genre = ''",
           "[where] position 9: expected 'text' in single quotes, not empty, for the column 'genre', but got ''."},
          {"genre = 'drama",
           "[where] position 9: the quote is not closed. Write a quote within quotes twice."},
          {"genre = 'it's'",
           "[where] position 13: expected 'and', 'or' (in lower case) or the end, but got s."},
          {"genre in 'drama'",
           "[where] position 10: expected '(', but got 'drama'."},
          {"genre in ()",
           "[where] position 11: expected 'text' in single quotes, not empty, for the column 'genre', but got )."},
          {"genre in ('drama' 'crime')",
           "[where] position 19: expected ')', but got 'crime'."},
          {"year = 1990 AND price = 1",
           "[where] position 13: expected 'and', 'or' (in lower case) or the end, but got AND."},
      },
      [&](const std::string& filter) { films.passing(filter); });
}

std::string repeat(const std::string& text, int64_t count) {
  std::string all;
  for (int64_t i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

TEST(ItemFilterTest, LimitsLengthDepthAndValues) {
  const Films films;
  EXPECT_VALUE_ERROR(
      films.passing(std::string(1 << 20, ' ')),
      "[where] a filter has at most 65536 bytes, but this one has 1048576. Shorten it.");
  EXPECT_EQ(
      films.passing("year = 1972" + std::string((1 << 16) - 11, ' ')),
      (Rows{1}));

  const auto nested = [](int64_t depth) {
    return repeat("not (", depth / 2) + "year = 1972" + repeat(")", depth / 2);
  };
  EXPECT_EQ(films.passing(nested(64)), (Rows{1}));
  EXPECT_VALUE_ERROR(
      films.passing(nested(66)),
      "[where] position 165: a filter has at most 64 nested 'not' and parentheses. Use fewer.");
  EXPECT_VALUE_ERROR(films.passing(repeat("(", 1 << 16)), "at most 64 nested");

  EXPECT_EQ(
      films.passing(repeat("year = 1 or ", 127) + "year = 1972"), (Rows{1}));
  EXPECT_VALUE_ERROR(
      films.passing(repeat("year = 1 or ", 128) + "year = 1972"),
      "[where] position 1537: a filter has at most 256 columns and values.");
  EXPECT_EQ(
      films.passing("year in (1972" + repeat(",1", 254) + ")"), (Rows{1}));
  EXPECT_VALUE_ERROR(
      films.passing("year in (1972" + repeat(",1", 255) + ")"),
      "[where] position 523: a filter has at most 256 columns and values.");
  EXPECT_VALUE_ERROR(
      films.passing(repeat("year is missing or ", 256) + "year = 1972"),
      "[where] position 4865: a filter has at most 256 columns and values.");
}

TEST(ItemFilterTest, RandomTextIsRefusedOrEvaluated) {
  const Films films;
  const Texts parts{
      "year", "genre",   "tags",     "=",   "<",    "!",
      "(",    ")",       "'",        "\"",  ",",    "in",
      "is",   "missing", "contains", "not", "and",  "or",
      "3",    "-",       "'drama'",  " ",   "\xff", std::string(1, '\0')};
  Random random(3);
  int64_t num_valid = 0;
  for (int64_t i = 0; i < 50'000; ++i) {
    std::string filter;
    for (uint64_t count = random() % 8; count > 0; --count) {
      filter += any_of(random, parts) + (random() % 2 == 0 ? " " : "");
    }
    try {
      films.passing(filter);
      ++num_valid;
    } catch (const c10::ValueError& error) {
      EXPECT_CONTAINS(
          std::string(error.what_without_backtrace()), "[where] position ");
    }
  }
  EXPECT_GT(num_valid, 0);
}

TEST(FilterCacheTest, FindsRowsOnce) {
  FilterCache cache(1 << 20);
  int64_t num_calls = 0;
  const auto find = [&] {
    ++num_calls;
    return RowSet(num_calls).complement();
  };
  const auto first = cache.get("a", find);
  EXPECT_EQ(cache.get("a", find), first);
  EXPECT_EQ(num_calls, 1);
  EXPECT_EQ(cache.get("b", find)->size(), 2);
  EXPECT_EQ(cache.get("a", find)->size(), 1);
  EXPECT_EQ(num_calls, 2);
  EXPECT_RAISES(
      std::runtime_error,
      cache.get("c", []() -> RowSet { throw std::runtime_error("no"); }),
      "no");
  EXPECT_EQ(cache.get("c", find)->size(), 3);
}

TEST(FilterCacheTest, ForgetsWhatWasNotUsedForTheLongestTime) {
  constexpr int64_t kRows = 64'000;  // 8,000 bytes
  FilterCache cache(3 * 8'000 + 100);
  const auto is_new = [&](const std::string& filter) {
    bool is_called = false;
    cache.get(filter, [&] {
      is_called = true;
      return RowSet(kRows);
    });
    return is_called;
  };
  EXPECT_TRUE(is_new("a"));
  EXPECT_TRUE(is_new("b"));
  EXPECT_TRUE(is_new("c"));
  EXPECT_FALSE(is_new("a"));
  EXPECT_TRUE(is_new("d"));  // instead of b
  EXPECT_FALSE(is_new("a"));
  EXPECT_FALSE(is_new("c"));
  EXPECT_TRUE(is_new("b"));
  // Rows that do not fit at all are found, but not kept.
  const auto rows = cache.get("large", [] { return RowSet(8 * kRows); });
  EXPECT_EQ(rows->size(), 8 * kRows);
  EXPECT_TRUE(is_new("a"));
}

TEST(FilterCacheTest, ServesSeveralThreads) {
  FilterCache cache(2'000);
  std::atomic<int64_t> num_wrong = 0;
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      Random random(static_cast<uint64_t>(i));
      for (int64_t j = 0; j < 5'000; ++j) {
        const auto rows = static_cast<int64_t>(random() % 40);
        const auto found = cache.get(std::to_string(rows), [&] {
          return RowSet(rows * 100).complement();
        });
        num_wrong += static_cast<int64_t>(found->count() != rows * 100);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(num_wrong, 0);
}

TEST(ItemCatalogueTest, ListsLeaveOutWhatTooManyBetterOnesAreLike) {
  Random random(11);
  for (int64_t round = 0; round < 2'000; ++round) {
    const auto size = static_cast<int64_t>(random() % 300 + 1);
    const auto num_values = random() % 20 + 1;
    Rows ids(static_cast<size_t>(size));
    std::iota(ids.begin(), ids.end(), 0);
    Rows values;
    for (int64_t i = 0; i < size; ++i) {
      // Small values are more frequent, and 0 is missing.
      const auto value =
          static_cast<int64_t>(std::min(random(), random()) % num_values);
      values.push_back(value == 0 ? data::kMissing : value);
    }
    const std::string bytes = write_item_attributes(
        {{"value", {.values = std::span<const int64_t>(values)}}});
    const ItemAttributes attributes(bytes, "[test]");
    const ItemCatalogue catalogue(ids, attributes);
    const auto k = static_cast<int64_t>(random() % 30 + 1);
    const auto limit = static_cast<int64_t>(random() % 4 + 1);
    const RowSet even =
        RowSet::where(size, [](int64_t row) { return row % 2 == 0; });
    const RowSet* allowed = round % 3 == 0 ? &even : nullptr;
    Rows expected;
    std::map<int64_t, int64_t> counts;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t value = values[static_cast<size_t>(i)];
      if (std::ssize(expected) < k &&
          (allowed == nullptr || allowed->contains(i)) &&
          (value == data::kMissing || counts[value] < limit)) {
        expected.push_back(i);
        ++counts[value];
      }
    }
    uint64_t num_searches = 0;
    const auto ranked = [&](int64_t count, const RowSet* open) {
      ++num_searches;
      std::vector<ScoredRow> rows;
      for (int64_t i = 0; i < size && std::ssize(rows) < count; ++i) {
        if (open == nullptr || open->contains(i)) {
          rows.push_back({.number = i});
        }
      }
      return rows;
    };
    Rows chosen;
    ItemChoice choice{
        .k = k,
        .diverse = &attributes.columns().front(),
        .max_per_value = limit};
    if (allowed != nullptr) {
      choice.allowed = std::make_shared<const RowSet>(*allowed);
    }
    for (const ScoredRow& row : catalogue.choose(
             choice,
             ranked(choice.num_searched(), allowed),
             [&](int64_t count, const RowSet&open) {
               return ranked(count, &open);
             })) {
      chosen.push_back(row.number);
    }
    ASSERT_EQ(chosen, expected);
    ASSERT_LE(num_searches, num_values + 1);
  }
}

TEST(RowSetTest, IsASetOfNumbers) {
  Random random(2);
  for (const int64_t size : {0, 1, 63, 64, 65, 1'000}) {
    std::vector<bool> bits(static_cast<size_t>(size));
    std::vector<bool> other_bits(bits.size());
    RowSet rows(size);
    RowSet others(size);
    for (int64_t i = 0; i < 2 * size; ++i) {
      const auto row = static_cast<int64_t>(random() % bits.size());
      const bool is_added = random() % 2 == 0;
      bits[static_cast<size_t>(row)] = is_added;
      is_added ? rows.add(row) : rows.remove(row);
      const auto other = static_cast<int64_t>(random() % bits.size());
      other_bits[static_cast<size_t>(other)] = true;
      others.add(other);
    }
    const auto expect_rows = [&](const RowSet& actual, auto contains) {
      Rows expected;
      for (int64_t row = 0; row < size; ++row) {
        if (contains(static_cast<size_t>(row))) {
          expected.push_back(row);
        }
        EXPECT_EQ(actual.contains(row), contains(static_cast<size_t>(row)));
      }
      EXPECT_EQ(rows_of(actual), expected);
      EXPECT_EQ(actual.count(), std::ssize(expected));
      EXPECT_EQ(actual.size(), size);
    };
    const auto copy = [](const RowSet& set) { return set; };
    expect_rows(rows, [&](size_t i) { return bits[i]; });
    expect_rows(copy(rows).complement(), [&](size_t i) { return !bits[i]; });
    expect_rows(copy(rows) &= others, [&](size_t i) {
      return bits[i] && other_bits[i];
    });
    expect_rows(copy(rows) |= others, [&](size_t i) {
      return bits[i] || other_bits[i];
    });
    expect_rows(RowSet(size).complement(), [](size_t) { return true; });
    expect_rows(
        RowSet::where(size, [&](int64_t row) { return rows.contains(row); }),
        [&](size_t i) { return bits[i]; });
  }
}

}  // namespace tessera::item_filter_test
