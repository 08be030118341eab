// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/exported_model.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera::exporting {

/// The dense part of a model: what forward() computes from the activations. This part is a
/// model without features. Its inputs are the activations in the order of the lookups, then
/// the row_splits of ragged features with one row, and then the inputs of forward().
class DensePart {
 public:
  /// Calls forward() on `example` to find the features.
  /// Errors:  those of export_dense_pt2() for the model and the example.
  DensePart(
      const detail::ExportedModel& model,
      const ExportExample& example,
      const std::vector<std::string>& input_names,
      std::string where);
  DensePart(const DensePart&) = delete;
  DensePart& operator=(const DensePart&) = delete;

  const detail::ExportedModel& model() const {
    return dense_;
  }
  /// Random activations, and the other inputs of the example.
  const ExportExample& example() const {
    return dense_example_;
  }
  /// The path and the part of each input, as in Pt2Value.
  const std::vector<std::pair<std::string, std::string>>& inputs() const {
    return inputs_;
  }

 private:
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& tensors) const;
  void check_inputs(const std::vector<std::string>& input_names) const;
  void find_activations();
  void add_row_splits();
  void add_inputs(const std::vector<std::string>& names);
  void add(const std::string& path, const std::string& part, at::Tensor input);
  int64_t rows_of(const std::string& path, const Feature& feature) const;

  const detail::ExportedModel& original_;
  std::map<const EmbeddingState*, std::string> prefixes_;  // of feature names
  std::string where_;
  ExportExample example_;  // of the original model
  int64_t batch_ = 1;
  Features stripped_;  // without ids
  std::vector<size_t>
      with_splits_;  // the leaves of `stripped_` with row_splits
  // The user's features: the path in `example_`, and the path with the layer's prefix.
  std::map<std::string, std::string> path_in_model_;
  size_t num_activations_ = 0;
  detail::ExportedModel dense_;
  ExportExample dense_example_;
  std::vector<std::pair<std::string, std::string>> inputs_;
};

}  // namespace tessera::exporting
