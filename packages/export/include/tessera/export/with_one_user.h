// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/exported_model.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tessera {

// snippet: packages/export/tests/dense_part_test.cpp with_one_user
/// Makes the example for export_dense_pt2() from a training batch, in which all features
/// have one row per example. The features of the user keep only their first row, which is
/// how export_dense_pt2() recognizes them.
///
///   const ExportExample example =
///       with_one_user(batch, {"user", "history"}, /*user_inputs=*/{0});
///   export_dense_pt2(model, path, example, {"age", "price"});
///
/// `user_inputs` are the positions in `batch.inputs` of the tensors of the user.
/// Errors:  c10::ValueError for a path that the batch does not have (the message lists its
///          paths), for features with different numbers of rows, for weights, and for fewer
///          than two rows, because the export could not tell users and candidates apart;
///          c10::IndexError for a position without an input.
ExportExample with_one_user(
    ExportExample batch,
    const std::vector<std::string>& user_features,
    const std::vector<size_t>& user_inputs = {});

}  // namespace tessera
