// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>

#include <map>
#include <string>

namespace tessera {

/// Writes the types of columns to a JSON file, such as {"item": "text", "price":
/// "float32"}. ExampleSource::types() gives them. The file appears whole or not at all.
/// Errors:  c10::ValueError if the name of a column is not UTF-8; c10::Error naming the
///          path and the system's reason.
void save_column_types(
    const std::map<std::string, data::ColumnType>& types,
    const std::string& path);

/// Reads a file that save_column_types() has written, or that was written by hand, for
/// the option `types` of a source. to_string(ColumnType) lists the names of types.
/// Errors:  c10::Error for a file that can't be read; c10::ValueError for a file that is
///          not JSON in UTF-8, or has an unknown type. All messages name the path.
std::map<std::string, data::ColumnType> load_column_types(
    const std::string& path);

}  // namespace tessera
