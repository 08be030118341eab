// SPDX-License-Identifier: Apache-2.0
#include "src/tables/touched_rows.h"
#include "tests/test_util.h"

#include "src/tables/table_state.h"

namespace tessera::test::touched_rows_test {

// A table that several tasks read, of which every second row is touched.
TEST(TouchedRowsTest, AcceptedRowsDoNotCountAnyMore) {
  constexpr int64_t kRows = 300000;
  TableState table;
  table.rows = LocalRows::all(kRows);
  table.parameters = at::zeros({kRows, 8});
  TouchedRows touched(table);
  EXPECT_TRUE(touched.rows(table).empty());
  table.parameters.view({kRows / 2, 16}).select(1, 3).fill_(1.0);
  std::vector<uint32_t> expected;
  for (uint32_t row = 0; row < kRows; row += 2) {
    expected.push_back(row);
  }
  EXPECT_TRUE(touched.rows(table) == expected);
  touched.accept(table, expected);
  EXPECT_TRUE(touched.rows(table).empty());
  table.parameters[kRows - 1].fill_(2.0);
  EXPECT_EQ(touched.rows(table), (std::vector<uint32_t>{kRows - 1}));
}

}  // namespace tessera::test::touched_rows_test
