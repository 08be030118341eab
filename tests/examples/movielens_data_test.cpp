// SPDX-License-Identifier: Apache-2.0

#include "examples/common/movielens_data.h"
#include "tests/test_files.h"
#include "tests/test_util.h"

namespace movielens_data_test {

namespace fs = std::filesystem;

// Gives each test a copy of the made-up data, which it may damage.
class MovieLensDataTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / test->name();
    fs::remove_all(folder_);
    fs::copy(
        tessera::test::test_file("movielens_tiny"),
        folder_,
        fs::copy_options::recursive);
  }
  void TearDown() override {
    fs::remove_all(folder_);
  }

  void append(const char* file, const std::string& line) {
    std::ofstream(folder_ / file, std::ios::app) << line << "\n";
  }

  MovieLens load() {
    return load_movielens(folder_.string());
  }

  fs::path folder_;
};

TEST_F(MovieLensDataTest, ReadsEveryFile) {
  const MovieLens data = load();
  EXPECT_EQ(data.users.size(), 12);
  EXPECT_EQ(data.movies.size(), 15);
  EXPECT_EQ(data.ratings.size(), 120);
  EXPECT_EQ(data.genres.size(), 3);
  EXPECT_EQ(data.movies[2].title, "Mis\xc3\xa9rables, Les (1995)");
  EXPECT_EQ(data.movies[6].year, 0);
  EXPECT_EQ(data.movies[6].genres.front(), 0);
}

TEST_F(MovieLensDataTest, MissingFileIsNamed) {
  fs::remove(folder_ / "u.item");
  EXPECT_VALUE_ERROR(load(), "u.item, but it can't be opened");
}

TEST_F(MovieLensDataTest, EmptyFileIsNamed) {
  std::ofstream(folder_ / "u.data", std::ios::trunc);
  EXPECT_VALUE_ERROR(load(), "u.data is empty");
}

TEST_F(MovieLensDataTest, RatingOutOfRangeNamesTheLine) {
  append("u.data", "1\t1\t6\t880000000");
  EXPECT_VALUE_ERROR(
      load(), "line 121: expected a whole number in [1, 5] in column 3");
}

TEST_F(MovieLensDataTest, UnknownMovieNamesTheLine) {
  append("u.data", "1\t16\t5\t880000000");
  EXPECT_VALUE_ERROR(load(), "line 121");
}

TEST_F(MovieLensDataTest, TruncatedLineNamesTheLine) {
  append("u.user", "13|24|M");
  EXPECT_VALUE_ERROR(load(), "line 13: expected 4 columns");
}

TEST_F(MovieLensDataTest, UnknownOccupationNamesTheLine) {
  append("u.user", "13|24|M|astronaut|12345");
  EXPECT_VALUE_ERROR(load(), "an occupation of u.occupation in column 4");
}

TEST_F(MovieLensDataTest, DamagedDateNamesTheLine) {
  append("u.item", "16|Film|01-Jan-xx|||0|1|0");
  EXPECT_VALUE_ERROR(load(), "line 16: expected a release date");
}

}  // namespace movielens_data_test
