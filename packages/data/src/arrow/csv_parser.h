// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/csv_source.h>

#include "packages/data/src/arrow/column_request.h"
#include "packages/data/src/arrow/csv_blocks.h"
#include "packages/data/src/arrow/csv_value.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::data {

/// A row that is not an example.
struct MalformedRow {
  int64_t example = 0;  // the number of examples before it in its block
  int64_t line = 0;  // in its block, counted from 0
  RowProblem problem = {};
};

/// The examples of a block.
struct ParsedBlock {
  Columns columns = {};
  std::vector<MalformedRow> malformed = {};
  int64_t bytes = 0;
  int64_t lines = 0;
  size_t file = 0;
  int64_t header_lines = 0;  // before the block, if it is the first of its file
};

/// Parses the rows of a block of this file. Arrow only splits them into fields, because its
/// converters stop at the first wrong value, can't skip a row, and infer types again for
/// each block.
ParsedBlock parse_csv_block(
    const CsvOptions& options,
    const CsvFile& file,
    const std::vector<ColumnRequest>& requests,
    const CsvBlock& block);

/// Adds the values of some columns of a block, except missing values, to their
/// inferences. `columns` are indices into `requests` and `inferences`. Malformed rows are
/// skipped.
void infer_types(
    const CsvOptions& options,
    const CsvFile& file,
    const std::vector<ColumnRequest>& requests,
    const std::vector<size_t>& columns,
    const CsvBlock& block,
    std::vector<TypeInference>& inferences);

}  // namespace tessera::data
