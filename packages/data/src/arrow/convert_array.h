// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>
#include <tessera/data/columns.h>

#include "packages/data/src/arrow/column_request.h"

#include <arrow/type_fwd.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

/// The default type of the values of an Arrow column.
/// Errors:  c10::ValueError that begins with `where`, for types that no column can have.
ColumnType default_type(
    const std::string& where,
    const std::string& name,
    const arrow::DataType& type);

/// What the integers of a column of times count, such as "days since 1970". Empty for other
/// columns.
std::string unit_of(const arrow::DataType& type);

/// Errors:  c10::ValueError that begins with `where`, if values of this Arrow type can't
///          become those of the request.
void check_convertible(
    const std::string& where,
    const ColumnRequest& request,
    const arrow::DataType& type);

/// Converts a batch whose column `positions[i]` is request i. `first_row` is the number of
/// its first row in the file, counted from 0.
/// Errors:  c10::ValueError that begins with `where`, for a value that the column can't
///          have.
Columns convert_batch(
    const std::string& where,
    const arrow::RecordBatch& batch,
    const std::vector<ColumnRequest>& requests,
    const std::vector<int>& positions,
    int64_t first_row);

}  // namespace tessera::data
