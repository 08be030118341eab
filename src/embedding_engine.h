// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/embedding_state.h"
#include "src/gradient_pile.h"
#include "src/id_bags.h"
#include "src/table_update.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tessera {

/// The activation gradients of one lookup.
struct LookupGradients {
  /// As given to lookup(); they outlive the update.
  const std::vector<IdBags>* bags = nullptr;
  /// One per feature, of its activation's shape; undefined: zeros.
  std::vector<at::Tensor> gradients = {};
};

/// The software embedding engine: looks rows up and updates them.
class EmbeddingEngine {
 public:
  explicit EmbeddingEngine(std::shared_ptr<EmbeddingState> state);

  /// Activations of checked ids, one tensor with its own storage per feature.
  /// `bags` must not hold kZeroRow.
  std::vector<at::Tensor> lookup(const std::vector<IdBags>& bags) const;

  /// Refuses gradients that apply() can't use; warns, once, of a missing one.
  /// Errors:  c10::ValueError naming feature, expected and got.
  void check(const LookupGradients& gradients);

  /// One update: the gradients of all lookups, summed per row.
  ///
  /// Tables with gradient_accumulation_steps = n only collect, and every n-th
  /// time apply the mean. Reads each learning rate once, advances the step
  /// counter. Everything that can fail fails before the first row changes.
  void apply(const std::vector<LookupGradients>& lookups);

 private:
  // Adds the lookups' gradients to the updates of their tables; `copies` keeps
  // alive what the terms point to.
  void add_terms(
      const std::vector<LookupGradients>& lookups,
      std::vector<TableUpdate>& updates,
      std::vector<at::Tensor>& copies);

  // Whether a feature of the table has a gradient.
  bool is_reached(const std::vector<LookupGradients>& lookups, size_t table)
      const;
  void collect(std::vector<TableUpdate>& updates);
  void warn_of_missing_gradient(size_t feature);

  std::shared_ptr<EmbeddingState> state_;
  Buffer<float> zero_row_;  // the gradient of a feature that got none
  TableUpdater updater_;
  std::vector<GradientPile> piles_;  // one per table
  bool has_warned_ = false;  // of a missing gradient
};

}  // namespace tessera
