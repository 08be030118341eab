// SPDX-License-Identifier: Apache-2.0
#include "src/common/check.h"
#include "src/features/id_values.h"
#include "src/features/output_shapes.h"
#include "src/features/read_bags.h"
#include "src/features/tensor_checks.h"

#include <utility>

namespace tessera {

IdBags read_dense_bags(const FeatureState& feature, const at::Tensor& ids) {
  check_integers(feature, ids, "ids");
  TESSERA_CHECK_VALUE(
      ids.dim() >= 1,
      "{}a dense feature must have rank 1 or above, but got a scalar. Give it a batch dimension.",
      where_of(feature));
  TESSERA_CHECK_VALUE(
      feature.config.sequence_length() == 0,
      "{}a sequence feature must be sparse or ragged, but got a dense tensor. Set max_sequence_length to 0: a dense tensor [B, K] then gives activations [B, K, dim].",
      where_of(feature));
  PartialShape input(ids.sizes().vec());
  if (input.size() >= 2 && input.back() != 1) {
    input.emplace_back(1);  // each id is a bag
  }
  IdBags bags =
      bags_without_ids(feature, output_shape_of_batch(feature, input));
  IdValues values = read_dense_ids(feature, ids);
  bags.bags = ids.numel();
  bags.ids = std::move(values.ids);
  bags.keys = std::move(values.keys);
  bags.zero_rows = values.zero_rows;
  bags.padding = values.padding;
  return bags;
}

}  // namespace tessera
