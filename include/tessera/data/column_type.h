// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera::data {

/// The types of values that a Column may have.
enum class ColumnType { kInt64, kFloat32, kText };

}  // namespace tessera::data
