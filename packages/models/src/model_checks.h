// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Errors:  c10::ValueError naming the option unless `value` is >= 1.
void check_positive_option(
    const char* class_name,
    const char* name,
    int64_t value);

/// Errors:  c10::TypeError unless `ids` are int32 or int64.
void check_integers(
    const at::Tensor& ids,
    const char* name,
    const std::string& class_name);

/// Returns ids of items as contiguous int64.
/// Errors:  unless they are [nnz] integers in [0, num_items), dense and on the CPU.
at::Tensor checked_history_ids(
    const at::Tensor& ids,
    int64_t num_items,
    const std::string& class_name);

/// Checks the widths of hidden layers, after which one layer follows.
/// Errors:  c10::ValueError unless there are 1 to 1023 sizes >= 1.
void check_hidden_units(
    const std::vector<int64_t>& hidden_units,
    const std::string& class_name);

/// Checks that the rows of features [batch, features, dim] have at least one column. If
/// `with_weight` is true, the first column is the weight of the feature, and at least one
/// more must follow.
/// Errors:  c10::ValueError if the rows have fewer columns.
void check_vectors(
    const PartialShape& features,
    bool with_weight,
    const std::string& class_name);

/// Checks the shape [nnz, dim] of the positions of all sequences, and returns it.
/// Errors:  c10::ValueError for another shape, and unless `num_heads` divides dim.
PartialShape check_positions(
    const Nest<PartialShape>& input_shapes,
    int64_t num_heads,
    const std::string& class_name);

/// Divides rows by their lengths. A row of zeros stays, and gets no gradient.
at::Tensor unit_rows(const at::Tensor& rows);

}  // namespace tessera
