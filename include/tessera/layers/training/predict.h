// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/batch_source.h>

#include <ATen/core/Tensor.h>

#include <type_traits>

namespace tessera::training {

/// What a model says about all examples of a source, in their order.
struct Predictions {
  at::Tensor predictions = {};  // [n, ...]
  /// Undefined where the steps give none.
  at::Tensor labels = {};  // [n, ...]
};
static_assert(std::is_aggregate_v<Predictions>);

/// The predictions and labels of all batches of `pass`, under NoGradGuard.
///
///   model->eval();
///   const auto [scores, clicks] = predict(*make_pass(batches, loss_of));
///
/// The steps need not give a loss. Metrics of more examples than memory holds predictions
/// for are for evaluate().
/// Errors:  c10::ValueError when there is no batch, when a batch has no predictions, and
///          when some batches have labels and others do not.
Predictions predict(Pass& pass);

}  // namespace tessera::training
