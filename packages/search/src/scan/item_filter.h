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
/// A column is a name of letters, digits and "_", or any name in double quotes. A value is a
/// number, or text in single quotes. A quote within quotes is written twice. The words of
/// the language may be in upper case. `contains` is for columns of lists, and all others but
/// `is missing` are for columns without. Text is ordered by its bytes. A number for a column
/// of floats is rounded to float32, as the values of the column are.
///
/// A comparison with a missing value is false, also that with !=. `not` gives all other
/// items, also those with a missing value. A list without values is missing.
///
/// A filter has at most 64 KiB, 128 comparisons, and 64 nested parentheses and `not`.
/// Errors:  c10::ValueError for another filter, with the position in its text, from 1; if
///          there is no such column, with the names of all; for a value of another type.
///          Nothing is compared before the whole filter is checked.
RowSet rows_where(std::string_view filter, const ItemAttributes& attributes);

}  // namespace tessera
