// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A point of a learning curve.
struct CurvePoint {
  double seconds = 0.0;  // of the training steps up to it
  double value = 0.0;  // NDCG on the validation items
};
