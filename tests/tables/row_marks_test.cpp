// SPDX-License-Identifier: Apache-2.0
#include "src/tables/row_marks.h"
#include "tests/test_util.h"

namespace tessera::test::row_marks_test {

TEST(RowMarksTest, TakesEachMarkedRowOnceInOrder) {
  constexpr int64_t kRows = 20'003;
  RowMarks marks(kRows, "the marks");
  EXPECT_TRUE(marks.take().empty());
  std::mt19937 random(1);
  for (const int count : {1, 10, 3000, 0, 100'000}) {
    std::set<uint32_t> expected{kRows - 1};
    marks.mark(kRows - 1);
    for (int i = 0; i < count; ++i) {
      const auto row = static_cast<uint32_t>(random() % kRows);
      marks.mark(row);
      expected.insert(row);
    }
    EXPECT_EQ(
        marks.take(), std::vector<uint32_t>(expected.begin(), expected.end()));
    EXPECT_TRUE(marks.take().empty());
  }
}

TEST(RowMarksTest, ThreadsMarkTheSameBlock) {
  constexpr uint32_t kRows = 4096;
  RowMarks marks(kRows, "the marks");
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&marks, thread] {
      for (uint32_t row = thread; row < kRows; row += 4) {
        marks.mark(row);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(marks.take().size(), kRows);
}

}  // namespace tessera::test::row_marks_test
