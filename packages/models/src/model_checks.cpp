// SPDX-License-Identifier: Apache-2.0
#include "packages/models/src/model_checks.h"

#include <tessera/layers/input_checks.h>

#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <algorithm>
#include <cstddef>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace tessera {

void check_positive_option(
    const char* class_name,
    const char* name,
    int64_t value) {
  TESSERA_CHECK_VALUE(
      value >= 1,
      "[{}] {} must be >= 1, but got {}. Set it to a positive number.",
      class_name,
      name,
      value);
}

void check_integers(
    const at::Tensor& ids,
    const char* name,
    const std::string& class_name) {
  TESSERA_CHECK_TYPE(
      ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt,
      "[{}] {} must be int32 or int64, but got {}. Convert them with to(torch::kLong).",
      class_name,
      name,
      describe(ids));
}

at::Tensor checked_history_ids(
    const at::Tensor& ids,
    int64_t num_items,
    const std::string& class_name) {
  TESSERA_CHECK_VALUE(
      ids.defined() && ids.dim() == 1 && ids.device().is_cpu() &&
          ids.layout() == at::kStrided,
      "[{}] histories must have values of shape [nnz], dense and on the CPU, but got {}. Make them with RaggedFeature::from_lengths().",
      class_name,
      describe(ids));
  check_integers(ids, "values of histories", class_name);
  at::Tensor result = ids.to(at::kLong).contiguous();
  const int64_t* data = result.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < result.numel(); ++i) {
    TESSERA_CHECK_INDEX(
        data[i] >= 0 && data[i] < num_items,
        "[{}] ids of histories must be in [0, {}), but got {}. Pass the numbers of the model's items.",
        class_name,
        num_items,
        data[i]);
  }
  return result;
}

void check_hidden_units(
    const std::vector<int64_t>& hidden_units,
    const std::string& class_name) {
  constexpr size_t kMaxHiddenLayers = 1023;
  TESSERA_CHECK_VALUE(
      !hidden_units.empty() && hidden_units.size() <= kMaxHiddenLayers,
      "[{}] hidden_units must have 1 to {} sizes, but got {}. Set them to the widths of the hidden layers.",
      class_name,
      kMaxHiddenLayers,
      hidden_units.size());
  const auto smallest = std::ranges::min_element(hidden_units);
  TESSERA_CHECK_VALUE(
      *smallest >= 1,
      "[{}] hidden_units[{}] must be >= 1, but got {}. Set it to the width of that layer.",
      class_name,
      smallest - hidden_units.begin(),
      *smallest);
}

void check_vectors(
    const PartialShape& features,
    bool with_weight,
    const std::string& class_name) {
  const int64_t smallest = with_weight ? 2 : 1;
  TESSERA_CHECK_VALUE(
      features.back().value_or(smallest) >= smallest,
      "[{}] the rows of features must have {} or more columns, but their width is {}. {}",
      class_name,
      smallest,
      features.back().value_or(0),
      with_weight
          ? "The first column is the weight of the feature and the others are its vector. Set use_first_order to false if there is no weight."
          : "Set the dim of the tables to the width of a vector.");
}

PartialShape check_positions(
    const Nest<PartialShape>& input_shapes,
    int64_t num_heads,
    const std::string& class_name) {
  PartialShape shape = check_rows(input_shapes, class_name);
  TESSERA_CHECK_VALUE(
      shape.size() == 2,
      "[{}] x must have shape [nnz, dim], but got {}. Pass the positions of all sequences one after the other, and their row_splits.",
      class_name,
      to_string(shape));
  TESSERA_CHECK_VALUE(
      shape[1].value_or(0) % num_heads == 0,
      "[{}] num_heads must divide dim, but got {} heads and dim {}. Choose another number of heads.",
      class_name,
      num_heads,
      shape[1].value_or(0));
  return shape;
}

at::Tensor unit_rows(const at::Tensor& rows) {
  constexpr double kSmallest = 1e-12;
  const at::Tensor norms =
      at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, /*keepdim=*/true);
  return at::where(
      norms > kSmallest,
      rows / norms.clamp_min(kSmallest),
      at::zeros_like(rows));
}

}  // namespace tessera
