// SPDX-License-Identifier: Apache-2.0
// This program is linked to arrow_unavailable.cpp, even where Arrow is installed.
#include <tessera/data/csv_source.h>
#include <tessera/data/parquet_source.h>
#include <tessera/data/write_parquet.h>

#include "tests/test_util.h"

namespace tessera::data {
namespace arrow_unavailable_test {

TEST(ArrowUnavailableTest, SaysWhatToInstall) {
  EXPECT_FALSE(has_arrow());
  EXPECT_RAISES(
      c10::NotImplementedError,
      make_csv_source({}),
      "[make_csv_source] expected a Tessera with Arrow, but this one was built "
      "without it. Run ./run setup, which downloads Arrow, or install pyarrow");
  EXPECT_RAISES(
      c10::NotImplementedError,
      make_parquet_source({}),
      "[make_parquet_source]");
  EXPECT_RAISES(
      c10::NotImplementedError,
      write_parquet({}, "a.parquet"),
      "[write_parquet]");
}

}  // namespace arrow_unavailable_test
}  // namespace tessera::data
