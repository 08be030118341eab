// SPDX-License-Identifier: Apache-2.0
#include "examples/common/movielens_data.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace {

constexpr size_t kFirstGenreColumn = 5;

// Reads one file line by line, and splits lines at a separator.
class Table {
 public:
  Table(const std::string& folder, const char* file, char separator)
      : path_((std::filesystem::path(folder) / file).string()),
        stream_(path_),
        separator_(separator) {
    TORCH_CHECK_VALUE(
        stream_.is_open(),
        "[MovieLens] expected the file ",
        path_,
        ", but it can't be opened. Pass the folder of MovieLens 100K with "
        "--data, or run ./run train, which fetches it.");
  }

  /// Reads the next line that is not empty. Returns false at the end of the file.
  bool next(size_t min_columns) {
    while (std::getline(stream_, line_)) {
      ++number_;
      if (!line_.empty() && line_.back() == '\r') {
        line_.pop_back();
      }
      if (line_.empty()) {
        continue;
      }
      split();
      check(
          columns_.size() >= min_columns,
          std::to_string(min_columns) + " columns");
      return true;
    }
    TORCH_CHECK_VALUE(
        number_ > 0,
        "[MovieLens] ",
        path_,
        " is empty. Download the data again.");
    return false;
  }

  std::string_view text(size_t column) const {
    return columns_[column];
  }

  /// Reads a field that is an integer in [low, high].
  int64_t number(size_t column, int64_t low, int64_t high) const {
    const std::string_view text = columns_[column];
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), value);
    check(
        error == std::errc() && end == text.data() + text.size() &&
            value >= low && value <= high,
        "a whole number in [" + std::to_string(low) + ", " +
            std::to_string(high) + "] in column " + std::to_string(column + 1));
    return value;
  }

  void check(bool is_valid, const std::string& expected) const {
    TORCH_CHECK_VALUE(
        is_valid,
        "[MovieLens] ",
        path_,
        " line ",
        number_,
        ": expected ",
        expected,
        ", but got '",
        line_.substr(0, 80),
        "'. Download the data again.");
  }

 private:
  void split() {
    columns_.clear();
    std::string_view rest = line_;
    for (size_t end = rest.find(separator_); end != std::string_view::npos;
         end = rest.find(separator_)) {
      columns_.push_back(rest.substr(0, end));
      rest.remove_prefix(end + 1);
    }
    columns_.push_back(rest);
  }

  std::string path_;
  std::ifstream stream_;
  char separator_;
  std::string line_;
  int64_t number_ = 0;
  std::vector<std::string_view> columns_;
};

// Converts Latin-1, the encoding of the files, to UTF-8.
std::string to_utf8(std::string_view latin1) {
  std::string utf8;
  for (const char c : latin1) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      utf8 += c;
    } else {
      utf8 += static_cast<char>(0xC0 | (byte >> 6));
      utf8 += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return utf8;
}

// Reads the year of a date such as "01-Jan-1995", or of an empty field.
int64_t year_of(const Table& table, std::string_view date) {
  if (date.empty()) {
    return 0;
  }
  const size_t dash = date.rfind('-');
  int64_t year = 0;
  const std::string_view digits =
      dash == std::string_view::npos ? date : date.substr(dash + 1);
  std::from_chars(digits.data(), digits.data() + digits.size(), year);
  table.check(year >= 1800 && year <= 2100, "a release date in column 3");
  return year;
}

}  // namespace

MovieLens load_movielens(const std::string& folder) {
  constexpr int64_t kBillion = 1'000'000'000;
  MovieLens data;
  Table genres(folder, "u.genre", '|');
  while (genres.next(2)) {
    data.genres.emplace_back(genres.text(0));
  }
  Table occupations(folder, "u.occupation", '|');
  while (occupations.next(1)) {
    data.occupations.emplace_back(occupations.text(0));
  }
  Table users(folder, "u.user", '|');
  while (users.next(4)) {
    const auto expected_id = static_cast<int64_t>(data.users.size()) + 1;
    users.number(0, expected_id, expected_id);
    const auto occupation = std::find(
        data.occupations.begin(), data.occupations.end(), users.text(3));
    users.check(
        occupation != data.occupations.end(),
        "an occupation of u.occupation in column 4");
    data.users.push_back(
        {.age = users.number(1, 0, 150),
         .gender = users.text(2) == "F" ? 1 : 0,
         .occupation = occupation - data.occupations.begin()});
  }
  Table movies(folder, "u.item", '|');
  while (movies.next(kFirstGenreColumn + data.genres.size())) {
    const auto expected_id = static_cast<int64_t>(data.movies.size()) + 1;
    movies.number(0, expected_id, expected_id);
    MovieLens::Movie movie{
        .title = to_utf8(movies.text(1)),
        .year = year_of(movies, movies.text(2))};
    for (size_t genre = 0; genre < data.genres.size(); ++genre) {
      if (movies.number(kFirstGenreColumn + genre, 0, 1) == 1) {
        movie.genres.push_back(static_cast<int64_t>(genre));
      }
    }
    data.movies.push_back(std::move(movie));
  }
  Table ratings(folder, "u.data", '\t');
  while (ratings.next(4)) {
    data.ratings.push_back(
        {.user =
             ratings.number(0, 1, static_cast<int64_t>(data.users.size())) - 1,
         .movie =
             ratings.number(1, 1, static_cast<int64_t>(data.movies.size())) - 1,
         .stars = static_cast<float>(ratings.number(2, 1, 5)),
         .seconds = ratings.number(3, 0, 4 * kBillion)});
  }
  return data;
}
