// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/row_set.h"

#include <string_view>

namespace tessera {

/// The rows of items that pass a filter, an expression over their attributes:
///
///   genre = 'drama' and (year >= 1990 or not tags contains 'old')
///
///   filter      = conjunction {"or" conjunction}
///   conjunction = term {"and" term}
///   term        = "not" term | "(" filter ")" | comparison
///   comparison  = column ("=" | "!=" | "<" | "<=" | ">" | ">=") value
///               | column "in" "(" value {"," value} ")"
///               | column "contains" value
///               | column "is" "missing"
///
/// A column is a word, or any name in double quotes. A value is a number, or text in single
/// quotes. A quote within quotes is written twice. `contains` is for columns of lists, `is
/// missing` for all, and the others are for columns without lists. Text is ordered by its
/// bytes. A number for a column of floats is rounded to float32, as the column is.
///
/// A comparison with a missing value is false, also with !=. `not` gives all other items,
/// also those with a missing value. A list without values is missing.
///
/// A filter has at most 64 KiB, and names at most 256 columns and values. At most 64 `not`
/// and parentheses are nested.
/// Errors:  c10::ValueError for another filter, with the position in the text, from 1, and
///          what was expected there. For an unknown column, it lists the columns.
RowSet rows_where(std::string_view filter, const ItemAttributes& attributes);

}  // namespace tessera
