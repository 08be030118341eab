// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/engine/embedding_state.h"
#include "src/engine/table_update.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera {

/// While it exists, updates on this thread refuse gradients that are not finite, whatever
/// the layers' options say.
class RefuseNonFiniteScope {
 public:
  /// `check_dense` raises an error if the gradient of a dense parameter is not finite. It
  /// is called before an update changes tables. It must not call a layer. If scopes are
  /// nested, only the innermost one is called.
  explicit RefuseNonFiniteScope(std::function<void()> check_dense = nullptr);
  ~RefuseNonFiniteScope();
  RefuseNonFiniteScope(const RefuseNonFiniteScope&) = delete;
  RefuseNonFiniteScope& operator=(const RefuseNonFiniteScope&) = delete;

  /// Whether there is a scope on this thread.
  static bool is_active();

 private:
  friend void check_dense_parameters();

  std::function<void()> check_dense_;
  RefuseNonFiniteScope* outer_;
};

/// Calls the check of the innermost scope on this thread, if there is one.
void check_dense_parameters();

/// Whether updates of the layer refuse gradients that are not finite.
bool refuses_non_finite(const EmbeddingState& state);

/// Returns the message about a gradient `value` at `index` of a feature's batch.
std::string non_finite_message(
    const EmbeddingState& state,
    size_t feature,
    int64_t index,
    float value);

/// Checks that the sums of gradients of all rows are finite. `updates` has one entry per
/// table of the layer. For each lookup, an entry has the terms of the table's features, in
/// their order. Returns an empty text, or a message that names the table and the feature.
///
/// The first row is updated before the sums of the others are known, so this function reads
/// the gradients beforehand. It reads each of them once, in order, and computes their
/// largest magnitude. It looks at rows only if this magnitude is NaN or a sum may overflow.
/// A NaN in the gradient of an empty bag belongs to no row and is accepted. With this check,
/// a step of embeddings alone took 8 to 17 % longer with one id per bag (26 tables, dim 64,
/// batch 2048, 2 cores, AVX2), and up to 6 % longer with large bags.
std::string find_non_finite(
    const EmbeddingState& state,
    const std::vector<TableUpdate>& updates);

}  // namespace tessera
