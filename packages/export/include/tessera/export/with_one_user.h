// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/exported_model.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tessera {

// snippet: packages/export/tests/dense_part_test.cpp with_one_user
/// Makes the example of a dense program from a batch of training, which has one row per
/// example in all features. Those of the user keep only the first row, so that
/// export_dense_pt2() takes them for features of the user.
///
///   const ExportExample example =
///       with_one_user(batch, {"user", "history"}, /*user_inputs=*/{0});
///   export_dense_pt2(model, path, example, {"age", "price"});
///
/// `user_inputs` are the positions in `batch.inputs` of the tensors of the user.
/// Errors:  c10::ValueError for a path that the batch does not have, listing those that it
///          has, for features with other numbers of rows, for weights, and for a batch with
///          fewer than two rows, from which the export could not tell the two kinds apart;
///          c10::IndexError for a position without an input.
ExportExample with_one_user(
    ExportExample batch,
    const std::vector<std::string>& user_features,
    const std::vector<size_t>& user_inputs = {});

}  // namespace tessera
