// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>

#include <string>

namespace tessera::data {

// snippet: tests/docs/reference_sources_test.cpp write_parquet
/// Writes columns to a Parquet file, with zstd compression and page checksums. pandas,
/// DuckDB, make_parquet_source() and others read it.
///
///   // An id, its text and its vector in each row.
///   const at::Tensor ids = torch::arange(pipeline.vocabulary_size("item"));
///   Columns columns;
///   columns.add("id", {.values = ids});
///   columns.add("item", {.values = pipeline.to_text("item", ids)});
///   columns.add("vector", vector_column(rows));
///   write_parquet(columns, "items.parquet");
///
/// Integers are int64, floats are float, text is string, and columns with row_splits are
/// lists. Missing values become nulls. The file appears whole or not at all.
/// Errors:  c10::ValueError if there are no columns; c10::Error with the system's reason;
///          c10::NotImplementedError if Tessera was built without Arrow.
void write_parquet(const Columns& columns, const std::string& path);

}  // namespace tessera::data
