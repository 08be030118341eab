// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/csv_source.h>
#include <tessera/data/parquet_source.h>
#include <tessera/data/write_parquet.h>

#include "src/common/check.h"

namespace tessera::data {

namespace {

[[noreturn]] void refuse_without_arrow(const char* where) {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      false,
      "{} expected a Tessera with Arrow, but this one was built without it. Run ./run setup, which downloads Arrow, or install pyarrow and configure with -DTesseraArrow_ROOT=<its folder>. Then build Tessera again with -DTESSERA_WITH_ARROW=ON.",
      where);
}

}  // namespace

bool has_arrow() {
  return false;
}

std::unique_ptr<ExampleSource> make_csv_source(const CsvOptions&) {
  refuse_without_arrow("[make_csv_source]");
}

std::unique_ptr<ExampleSource> make_parquet_source(const ParquetOptions&) {
  refuse_without_arrow("[make_parquet_source]");
}

void write_parquet(const Columns&, const std::string&) {
  refuse_without_arrow("[write_parquet]");
}

}  // namespace tessera::data
