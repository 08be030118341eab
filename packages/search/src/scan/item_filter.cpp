// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/scan/item_filter.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

namespace tessera {

namespace {

constexpr size_t kMaxBytes = size_t{64} << 10;
constexpr int kMaxNamed = 256;  // each costs one pass over the rows
constexpr int kMaxDepth = 64;
constexpr std::string_view kSpaces = " \t\r\n";
constexpr std::string_view kEndsOfWords = " \t\r\n()=!<>,'\"";

// Integers from `low` to `high`, both included, or all others that are not missing.
struct Range {
  int64_t low = data::kMissing + 1;
  int64_t high = std::numeric_limits<int64_t>::max();
  bool is_inverted = false;

  bool contains(int64_t value) const {  // one comparison of unsigned integers
    const auto first = static_cast<uint64_t>(low);
    const bool is_between = static_cast<uint64_t>(value) - first <=
        static_cast<uint64_t>(high) - first;
    return is_between != is_inverted && value != data::kMissing;
  }
};

// The values v for which `v comparison value` is true. A text that no item has is an empty
// range, which begins at the next text and ends at the one before it.
Range range_of(std::string_view comparison, Range value) {
  if (comparison == "<=" || comparison == ">") {
    value.low = Range().low;
  } else if (comparison == ">=" || comparison == "<") {
    value.high = Range().high;
  } else if (value.low > value.high) {
    value.low = value.high = Range().high;  // the number of no text
  }
  value.is_inverted =
      comparison == "!=" || comparison == ">" || comparison == "<";
  return value;
}

// Finds the rows that pass while it parses.
class FilterParser {
 public:
  FilterParser(std::string_view text, const ItemAttributes& attributes)
      : text_(text), attributes_(attributes) {
    next();
  }

  RowSet parse() {
    RowSet rows = parse_filter(0);
    check(kind_ == TokenKind::kEnd, "'and', 'or' (in lower case) or the end");
    return rows;
  }

 private:
  enum class TokenKind { kWord, kSymbol, kQuotedName, kText, kEnd };

  std::string where() const {
    return fmt::format("[where] position {}:", begin_ + 1);
  }
  void check(bool condition, std::string_view expected) const {
    TESSERA_CHECK_VALUE(
        condition,
        "{} expected {}, but got {}.",
        where(),
        expected,
        kind_ == TokenKind::kEnd
            ? "the end"
            : shorten(text_.substr(begin_, end_ - begin_)));
  }

  // Reads the next token: text in quotes, a word or a symbol.
  void next() {
    begin_ = std::min(text_.find_first_not_of(kSpaces, end_), text_.size());
    end_ = begin_;
    token_.clear();
    const auto rest = text_.substr(begin_);
    if (rest.empty()) {
      kind_ = TokenKind::kEnd;
    } else if (rest[0] == '\'' || rest[0] == '"') {
      kind_ = rest[0] == '"' ? TokenKind::kQuotedName : TokenKind::kText;
      read_quoted(rest[0]);
    } else {
      const size_t word = rest.find_first_of(kEndsOfWords);
      kind_ = word == 0 ? TokenKind::kSymbol : TokenKind::kWord;
      const size_t symbol = rest.size() > 1 && rest[1] == '=' ? 2 : 1;
      token_ = rest.substr(0, word == 0 ? symbol : word);
      end_ += token_.size();
    }
  }

  void read_quoted(char quote) {
    do {
      if (end_ != begin_) {
        token_ += quote;  // written twice
      }
      const size_t end = text_.find(quote, end_ + 1);
      TESSERA_CHECK_VALUE(
          end != std::string_view::npos,
          "{} the quote is not closed. Write a quote within quotes twice.",
          where());
      token_ += text_.substr(end_ + 1, end - end_ - 1);
      end_ = end + 1;
    } while (end_ < text_.size() && text_[end_] == quote);
  }

  bool is(std::string_view token) const {
    return token_ == token &&
        (kind_ == TokenKind::kWord || kind_ == TokenKind::kSymbol);
  }
  bool accept(std::string_view token) {
    const bool is_accepted = is(token);
    if (is_accepted) {
      next();
    }
    return is_accepted;
  }
  void expect(std::string_view token) {
    check(accept(token), fmt::format("'{}'", token));
  }

  RowSet parse_filter(int depth) {
    RowSet rows = parse_conjunction(depth);
    while (accept("or")) {
      rows |= parse_conjunction(depth);
    }
    return rows;
  }

  RowSet parse_conjunction(int depth) {
    RowSet rows = parse_term(depth);
    while (accept("and")) {
      rows &= parse_term(depth);
    }
    return rows;
  }

  RowSet parse_term(int depth) {
    TESSERA_CHECK_VALUE(
        depth <= kMaxDepth,
        "{} a filter has at most {} nested 'not' and parentheses. Use fewer.",
        where(),
        kMaxDepth);
    if (accept("not")) {
      return parse_term(depth + 1).complement();
    }
    if (!accept("(")) {
      return parse_comparison();
    }
    RowSet rows = parse_filter(depth + 1);
    expect(")");
    return rows;
  }

  void count_named() {
    TESSERA_CHECK_VALUE(
        ++num_named_ <= kMaxNamed,
        "{} a filter has at most {} columns and values. Pass long lists as ids of items.",
        where(),
        kMaxNamed);
  }

  RowSet parse_comparison() {
    count_named();
    check(
        kind_ == TokenKind::kWord || kind_ == TokenKind::kQuotedName,
        "a column, 'not' or '('");
    const AttributeColumn& column = attributes_.at(token_, where());
    next();
    if (accept("is")) {
      expect("missing");
      return rows_in(column, Range()).complement();
    }
    if (!column.has_lists() && accept("in")) {
      expect("(");
      RowSet rows(attributes_.num_rows());
      do {
        rows |= rows_in(column, range_of("=", take_value(column)));
      } while (accept(","));
      expect(")");
      return rows;
    }
    const std::string comparison = token_;
    check(
        column.has_lists()
            ? is("contains")
            : is("=") || is("!=") || is("<") || is("<=") || is(">") || is(">="),
        fmt::format(
            "{} or 'is missing' for the column '{}' {} lists",
            column.has_lists() ? "'contains'" : "=, !=, <, <=, >, >=, 'in'",
            shorten(column.name),
            column.has_lists() ? "of" : "without"));
    next();
    return rows_in(column, range_of(comparison, take_value(column)));
  }

  Range take_value(const AttributeColumn& column) {
    count_named();
    const Range value = column.type == data::ColumnType::kText
        ? text_range(column)
        : column.type == data::ColumnType::kFloat32
        ? number_range<float>(column, "a float32")
        : number_range<int64_t>(column, "an integer");
    next();
    return value;
  }

  void check_value(
      bool condition,
      const AttributeColumn& column,
      std::string_view kind) const {
    check(
        condition,
        fmt::format("{} for the column '{}'", kind, shorten(column.name)));
  }

  Range text_range(const AttributeColumn& column) const {
    const bool is_text = kind_ == TokenKind::kText && !token_.empty();
    check_value(is_text, column, "'text' in single quotes, not empty,");
    const auto same = std::ranges::equal_range(column.texts, token_);
    const auto first = column.texts.begin();
    return {same.begin() - first, same.end() - first - 1};
  }

  template <class Number>
  Range number_range(const AttributeColumn& column, std::string_view kind)
      const {
    Number number{};
    const char* end = token_.data() + token_.size();
    const auto read = std::from_chars(token_.data(), end, number);
    const bool is_number =
        kind_ == TokenKind::kWord && read.ec == std::errc() && read.ptr == end;
    check_value(is_number && !data::is_missing(number), column, kind);
    return {data::ordered(number), data::ordered(number)};
  }

  RowSet rows_in(const AttributeColumn& column, Range range) const {
    const int64_t* values = column.values.data();
    const int64_t* splits = column.row_splits.data();
    const auto is_in = [range](int64_t value) { return range.contains(value); };
    if (!column.has_lists()) {
      return RowSet::where(attributes_.num_rows(), [=](int64_t row) {
        return is_in(values[row]);
      });
    }
    return RowSet::where(attributes_.num_rows(), [=](int64_t row) {
      return std::any_of(values + splits[row], values + splits[row + 1], is_in);
    });
  }

  std::string_view text_;
  const ItemAttributes& attributes_;
  int num_named_ = 0;
  // The token, which is in [begin_, end_) of the text. token_ has no quotes.
  TokenKind kind_ = TokenKind::kEnd;
  std::string token_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace

RowSet rows_where(std::string_view filter, const ItemAttributes& attributes) {
  TESSERA_CHECK_VALUE(
      filter.size() <= kMaxBytes,
      "[where] a filter has at most {} bytes, but this one has {}. Shorten it.",
      kMaxBytes,
      filter.size());
  return FilterParser(filter, attributes).parse();
}

}  // namespace tessera
