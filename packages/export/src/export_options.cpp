// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/export_options.h"

#include "src/common/check.h"

namespace tessera::exporting {

void check_dtype(const ExportOptions& options, const std::string& where) {
  const at::ScalarType dtype = options.dtype.value_or(at::kFloat);
  TESSERA_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf ||
          dtype == at::kChar,
      "{} options.dtype must be one of kFloat, kBFloat16, kHalf, kChar, but got {}.",
      where,
      c10::toString(dtype));
}

void check_model_example(
    const detail::ExportedModel& model,
    const ExportExample& example,
    const ExportOptions& options,
    const std::string& where) {
  check_dtype(options, where);
  TESSERA_CHECK_VALUE(
      options.features.empty(),
      "{} options.features must be empty for a model, which needs all its features. It chooses features only when a single TPUEmbedding is exported. Leave it empty.",
      where);
  TESSERA_CHECK_VALUE(
      example.inputs.size() == model.inputs,
      "{} example.inputs: expected {} tensors, which forward() takes after features and weights, but got {}. Pass one tensor for each.",
      where,
      model.inputs,
      example.inputs.size());
  TESSERA_CHECK_VALUE(
      model.takes_weights || example.weights.empty(),
      "{} example.weights must be empty, because forward() takes no Weights. Leave them out.",
      where);
}

}  // namespace tessera::exporting
