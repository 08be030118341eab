// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tables/table_config.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

/// The initializer of the table, or the default one.
Initializer initializer_of(const TableConfig& config);

/// Fills `rows` [keys, dim] float32 like initialize_rows(), with the keys of a key
/// table instead of row numbers.
/// Errors:  c10::ValueError for an unusable result of a Callable.
void initialize_keys(
    const Initializer& initializer,
    uint64_t seed,
    std::string_view table_name,
    const int64_t* keys,
    at::Tensor rows);

/// Refuses initial values that are infinite in the dtype of the table. `rounded` are the
/// values in this dtype.
/// Errors:  c10::ValueError naming the table.
void check_initial_values(
    const at::Tensor& rounded,
    const TableConfig& config,
    const std::string& name);

}  // namespace tessera
