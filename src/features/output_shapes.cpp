// SPDX-License-Identifier: Apache-2.0
#include "src/features/output_shapes.h"

#include <tessera/common/shorten.h>

#include <limits>
#include <optional>
#include <utility>

#include "src/common/check.h"

namespace tessera {

namespace {

void check_input(const FeatureState& feature, const PartialShape& input) {
  TESSERA_CHECK_VALUE(
      !input.empty(),
      "{}an input shape must have rank 1 or above, but got []. Give it a batch dimension.",
      where_of(feature));
  for (const std::optional<int64_t>& size : input) {
    TESSERA_CHECK_VALUE(
        !size || *size >= 0,
        "{}an input shape must have sizes >= 0, but got {}.",
        where_of(feature),
        to_string(input));
  }
}

PartialShape output_of(const FeatureState& feature, const PartialShape& input) {
  check_input(feature, input);
  const int64_t length = feature.config.sequence_length();
  if (length > 0 && input.size() <= 2) {
    return {input[0], length};
  }
  PartialShape output = input;
  if (output.size() >= 2) {
    output.pop_back();
  }
  if (length > 0) {
    output.back() = length;
  }
  return output;
}

// The number of bags must fit, with 1 for what is not known.
void check_size(const FeatureState& feature, const PartialShape& shape) {
  int64_t bags = 1;
  bool fits = true;
  for (const std::optional<int64_t>& size : shape) {
    fits = fits && !__builtin_mul_overflow(bags, size.value_or(1), &bags);
  }
  TESSERA_CHECK_VALUE(
      fits && bags < std::numeric_limits<uint32_t>::max(),
      "{}a batch must have fewer than 2^32 - 1 bags, but the output shape is {}. Split the batch.",
      where_of(feature),
      to_string(shape));
}

// `known` where it is more precise, after a check that `other` agrees.
PartialShape merge(
    const FeatureState& feature,
    const PartialShape& known,
    const PartialShape& other) {
  bool agrees = known.size() == other.size();
  PartialShape merged = known;
  for (size_t i = 0; agrees && i < known.size(); ++i) {
    agrees = !known[i] || !other[i] || *known[i] == *other[i];
    merged[i] = known[i] ? known[i] : other[i];
  }
  TESSERA_CHECK_VALUE(
      agrees,
      "{}inconsistent shape: the output shape is set to {}, but this build gives {}. Correct one of them.",
      where_of(feature),
      to_string(known),
      to_string(other));
  return merged;
}

// With fixed_batch_size, the first dimension that all features share, if one of
// them has it.
std::optional<int64_t> common_batch_size(
    const FeatureSet& set,
    const std::vector<PartialShape>& shapes) {
  std::optional<int64_t> common;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::optional<int64_t>& size = shapes[i][0];
    TESSERA_CHECK_VALUE(
        !common || !size || *common == *size,
        "{}with fixed_batch_size all features must have one batch size, but got {} and {}. Correct one of them.",
        where_of(set.features[i]),
        common.value_or(0),
        size.value_or(0));
    common = common ? common : size;
  }
  return common;
}

}  // namespace

void build_output_shapes(
    FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    const Nest<PartialShape>& input_shapes) {
  const auto inputs = leaves_like(structure, input_shapes, "input_shapes");
  std::vector<PartialShape> merged;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const FeatureState& feature = set.features[i];
    PartialShape output = output_of(feature, *inputs[i]);
    merged.push_back(
        feature.output_shape ? merge(feature, *feature.output_shape, output)
                             : std::move(output));
    for (size_t axis = 1; axis < merged[i].size(); ++axis) {
      TESSERA_CHECK_VALUE(
          merged[i][axis].has_value(),
          "{}the output shape {} is not fully defined: only the first dimension may stay unknown. Give the others in build(), or FeatureConfig::output_shape.",
          where_of(feature),
          to_string(merged[i]));
    }
    check_size(feature, merged[i]);
  }
  bool is_final = true;
  if (set.fixed_batch_size) {
    const std::optional<int64_t> batch_size = common_batch_size(set, merged);
    for (PartialShape& shape : merged) {
      shape[0] = batch_size;
    }
    is_final = batch_size.has_value();  // else the first batch fixes it
  }
  for (size_t i = 0; i < merged.size(); ++i) {
    set.features[i].output_shape = std::move(merged[i]);
  }
  set.is_built = is_final;
}

Nest<PartialShape> input_shapes_of(
    const FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    int64_t batch_size) {
  TESSERA_CHECK_VALUE(
      batch_size >= 1,
      "[build] batch_size must be >= 1, but got {}.",
      batch_size);
  std::vector<PartialShape> inputs;
  for (const FeatureState& feature : set.features) {
    inputs.push_back({batch_size});
    if (feature.config.output_shape) {
      inputs.back() = *feature.output_shape;
      inputs.back()[0] = inputs.back()[0].value_or(batch_size);
      inputs.back().emplace_back();  // combined
    }
  }
  return structure.pack(std::move(inputs));
}

void learn_output_shapes(FeatureSet& set, const std::vector<IdBags>& batch) {
  std::vector<PartialShape> shapes;
  for (const IdBags& bags : batch) {
    shapes.emplace_back(bags.batch_shape.begin(), bags.batch_shape.end());
  }
  if (set.fixed_batch_size && common_batch_size(set, shapes) == 0) {
    return;  // an empty batch fixes nothing
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    std::optional<PartialShape>& known = set.features[i].output_shape;
    const std::optional<int64_t> batch_size =
        set.fixed_batch_size ? shapes[i][0] : std::nullopt;
    if (!known) {
      known.emplace(shapes[i].size());
    }
    for (size_t axis = 1; axis < known->size(); ++axis) {
      std::optional<int64_t>& size = (*known)[axis];
      size = size ? size : shapes[i][axis];
    }
    std::optional<int64_t>& first = (*known)[0];
    first = first ? first : batch_size;
  }
  set.is_built = true;
}

void fix_ragged_rows(FeatureSet& set, const std::vector<int64_t>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    FeatureState& feature = set.features[i];
    if (rows[i] >= 0 && feature.verifies_shape) {
      const int64_t fixed = feature.ragged_rows.set_once(-1, rows[i]);
      check_ragged_rows(feature, fixed, rows[i]);
    }
  }
}

}  // namespace tessera
