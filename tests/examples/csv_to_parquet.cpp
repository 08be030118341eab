// SPDX-License-Identifier: Apache-2.0
// Writes the rows of a CSV file to a Parquet file, for a test of an example.
#include "packages/data/tests/arrow_files.h"

#include <arrow/csv/api.h>
#include <arrow/io/file.h>

#include <exception>
#include <iostream>

namespace {

void convert(const char* csv, const char* parquet) {
  using tessera::test::value_of;
  const auto reader = value_of(arrow::csv::TableReader::Make(
      arrow::io::default_io_context(),
      value_of(arrow::io::ReadableFile::Open(csv)),
      arrow::csv::ReadOptions::Defaults(),
      arrow::csv::ParseOptions::Defaults(),
      arrow::csv::ConvertOptions::Defaults()));
  tessera::test::write_parquet(parquet, value_of(reader->Read()));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: csv_to_parquet IN.csv OUT.parquet\n";
    return 2;
  }
  try {
    convert(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "csv_to_parquet: " << error.what() << "\n";
    return 1;
  }
}
