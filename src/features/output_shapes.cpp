// SPDX-License-Identifier: Apache-2.0
#include "src/features/output_shapes.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstddef>
#include <limits>
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
        "{}an input shape must have sizes >= 0, but got {}. Correct the shape.",
        where_of(feature),
        to_string(input));
  }
}

void check_ragged_rows(
    const FeatureState& feature,
    int64_t fixed,
    int64_t rows) {
  TESSERA_CHECK_VALUE(
      fixed < 0 || fixed == rows,
      "{}output_shape {} fixes the number of rows of a ragged batch, which was {} in the first one, but this batch has {} rows. Drop or fill up short batches, or leave the first dimension of output_shape unknown (std::nullopt), so that a batch may have any number of bags.",
      where_of(feature),
      to_string(*feature.config.output_shape),
      fixed,
      rows);
}

// A fully known output shape decides whether rows are bags or sequences. Returns the
// length of the sequences, or 0 for bags.
int64_t length_of_rows(
    const FeatureState& feature,
    const PartialShape& output_shape,
    int64_t rows) {
  const int64_t bags = count_bags(feature, output_shape);
  check_ragged_rows(feature, feature.ragged_rows, rows);
  if (bags == rows) {
    return 0;
  }
  TESSERA_CHECK_VALUE(
      rows > 0 && bags > rows && bags % rows == 0,
      "{}the product of output_shape must be a multiple of the number of rows of the batch, but got {} for {} rows. Correct one of them, or leave the first dimension of output_shape unknown (std::nullopt), so that a batch may have any number of bags.",
      where_of(feature),
      to_string(output_shape),
      rows);
  return bags / rows;
}

// Returns the output shape of a ragged feature whose rows are bags. The number of rows
// determines the dimension that is unknown in FeatureState::output_shape.
std::vector<int64_t> shape_of_row_bags(
    const FeatureState& feature,
    int64_t rows) {
  const PartialShape& known = *feature.output_shape;
  if (known.size() == 1 && known[0].value_or(rows) == rows &&
      rows < std::numeric_limits<uint32_t>::max()) {
    return {rows};
  }
  PartialShape shape = known;
  const auto unknown = std::find(shape.begin(), shape.end(), std::nullopt);
  if (unknown != shape.end()) {
    TESSERA_CHECK_VALUE(
        std::find(unknown + 1, shape.end(), std::nullopt) == shape.end(),
        "{}the output shape of a ragged feature may have at most one unknown dimension, but got {}. Set the others in output_shape or build().",
        where_of(feature),
        to_string(known));
    *unknown = rows / std::max<int64_t>(count_bags(feature, known), 1);
  }
  TESSERA_CHECK_VALUE(
      count_bags(feature, shape) == rows,
      "{}inconsistent shape: the output shape is set to {} (by output_shape, build() or the first batch), but this batch has {} rows. Correct the batch.",
      where_of(feature),
      to_string(known),
      rows);
  return known_sizes(shape).value();
}

// With fixed_batch_size, all features share the first dimension. Returns nullopt if no
// shape knows it.
std::optional<int64_t> common_batch_size(
    const FeatureSet& set,
    const std::vector<PartialShape>& shapes) {
  std::optional<int64_t> common;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const std::optional<int64_t>& size = shapes[i][0];
    TESSERA_CHECK_VALUE(
        !common || !size || *common == *size,
        "{}with fixed_batch_size = true, all features must have the same batch size, but got {} and {}. Correct one of them.",
        where_of(set.features[i]),
        common.value_or(0),
        size.value_or(0));
    common = common ? common : size;
  }
  return common;
}

// The numbers of dimensions differ if one shape is only a batch size. Two known sizes may
// differ in a dimension that is combined. `now` counts then.
PartialShape join(const PartialShape& before, const PartialShape& now) {
  if (before.size() != now.size()) {
    return now[0] ? now : before;
  }
  return fill_unknown(now, before);
}

}  // namespace

PartialShape output_shape_of(
    const FeatureState& feature,
    const PartialShape& input) {
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

std::vector<int64_t> output_shape_of_batch(
    const FeatureState& feature,
    const PartialShape& input) {
  if (feature.config.sequence_length() == 0 && !feature.output_shape &&
      !input.empty() && input.size() <= 2 && input[0].value_or(-1) >= 0 &&
      input.back().value_or(0) >= 0) {
    return {*input[0]};  // the usual case, which needs no partial shapes
  }
  const PartialShape output = output_shape_of(feature, input);
  TESSERA_CHECK_VALUE(
      !feature.output_shape || !feature.verifies_shape ||
          merge(*feature.output_shape, output),
      "{}inconsistent shape: the output shape is set to {} (by output_shape, build() or the first batch), but this batch gives {}. Correct the batch.",
      where_of(feature),
      to_string(*feature.output_shape),
      to_string(output));
  return known_sizes(output).value();
}

RaggedRows ragged_rows_of_batch(const FeatureState& feature, int64_t rows) {
  const std::optional<PartialShape>& own = feature.config.output_shape;
  if (auto fixed = own ? known_sizes(*own) : std::nullopt) {
    return {
        .output_shape = std::move(*fixed),
        .sequence_length = length_of_rows(feature, *own, rows),
        .fixed_rows = rows};
  }
  const int64_t length = feature.config.sequence_length();
  const std::optional<PartialShape>& known = feature.output_shape;
  if (length == 0 && !known) {
    return {.output_shape = {rows}};
  }
  if (length == 0 && (feature.verifies_shape || known->size() > 1)) {
    return {.output_shape = shape_of_row_bags(feature, rows)};
  }
  return {
      .output_shape = output_shape_of_batch(feature, {rows, std::nullopt}),
      .sequence_length = length};
}

int64_t count_bags(
    const FeatureState& feature,
    const PartialShape& output_shape) {
  int64_t bags = 1;
  bool fits = true;
  for (const std::optional<int64_t>& size : output_shape) {
    fits = fits && !__builtin_mul_overflow(bags, size.value_or(1), &bags);
  }
  TESSERA_CHECK_VALUE(
      fits && bags < std::numeric_limits<uint32_t>::max(),
      "{}a batch must have fewer than 2^32 - 1 bags, but the output shape is {}. Split the batch.",
      where_of(feature),
      to_string(output_shape));
  return bags;
}

FeatureState with_any_batch_size(FeatureState feature) {
  std::optional<PartialShape>& shape = feature.output_shape;
  const std::optional<PartialShape>& own = feature.config.output_shape;
  if (shape && (own || shape->size() > 1)) {
    (*shape)[0] = own ? (*own)[0] : std::nullopt;
  } else {
    shape.reset();
  }
  return feature;
}

std::optional<int64_t> known_bags(const FeatureState& feature) {
  const auto sizes =
      feature.output_shape ? known_sizes(*feature.output_shape) : std::nullopt;
  if (!sizes) {
    return std::nullopt;
  }
  return c10::multiply_integers(*sizes);
}

int64_t fixed_rows_of(const FeatureState& feature) {
  const std::optional<PartialShape>& own = feature.config.output_shape;
  if (own && known_sizes(*own)) {
    return feature.ragged_rows;
  }
  return known_bags(feature).value_or(-1);
}

std::vector<PartialShape> compute_output_shapes(
    const FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    const Nest<PartialShape>& input_shapes) {
  const auto inputs = leaves_like(structure, input_shapes, "input_shapes");
  std::vector<PartialShape> shapes;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const FeatureState& feature = set.features[i];
    const PartialShape output = output_shape_of(feature, *inputs[i]);
    const PartialShape& known = feature.output_shape.value_or(output);
    std::optional<PartialShape> merged = merge(known, output);
    TESSERA_CHECK_VALUE(
        merged,
        "{}inconsistent shape: the output shape is set to {}, but this build gives {}. Correct one of them.",
        where_of(feature),
        to_string(known),
        to_string(output));
    TESSERA_CHECK_VALUE(
        std::find(merged->begin() + 1, merged->end(), std::nullopt) ==
            merged->end(),
        "{}the output shape {} is not fully defined: only the first dimension may stay unknown. Set the others in build(), or in FeatureConfig::output_shape.",
        where_of(feature),
        to_string(*merged));
    count_bags(feature, *merged);  // raises if there are too many
    shapes.push_back(*std::move(merged));
  }
  if (set.fixed_batch_size) {
    const std::optional<int64_t> batch_size = common_batch_size(set, shapes);
    for (PartialShape& shape : shapes) {
      shape[0] = batch_size;
    }
  }
  return shapes;
}

void build_output_shapes(
    FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    const Nest<PartialShape>& input_shapes) {
  auto shapes = compute_output_shapes(set, structure, input_shapes);
  // If the fixed batch size is still unknown, the first batch determines it.
  set.is_built = !set.fixed_batch_size || shapes.front()[0].has_value();
  for (size_t i = 0; i < shapes.size(); ++i) {
    set.features[i].output_shape = std::move(shapes[i]);
  }
}

Nest<PartialShape> input_shapes_of(
    const FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    int64_t batch_size) {
  TESSERA_CHECK_VALUE(
      batch_size >= 1,
      "[build] batch_size must be >= 1, but got {}. Pass the number of examples in a batch.",
      batch_size);
  std::vector<PartialShape> inputs;
  for (const FeatureState& feature : set.features) {
    inputs.push_back({batch_size});
    if (feature.config.output_shape) {
      inputs.back() = *feature.output_shape;
      inputs.back()[0] = inputs.back()[0].value_or(batch_size);
      inputs.back().emplace_back();  // the dimension that is combined
    }
  }
  return structure.pack(std::move(inputs));
}

Nest<PartialShape> join_input_shapes(
    const Nest<FeatureConfig>& structure,
    const std::optional<Nest<PartialShape>>& before,
    const Nest<PartialShape>& now) {
  std::vector<PartialShape> joined;
  for (const PartialShape* shape :
       leaves_like(structure, now, "input_shapes")) {
    joined.push_back(*shape);
  }
  if (before) {
    const std::vector<PartialShape> earlier = before->flatten();
    for (size_t i = 0; i < joined.size(); ++i) {
      joined[i] = join(earlier[i], joined[i]);
    }
  }
  return structure.pack(std::move(joined));
}

void build_output_shapes_from_batch(
    FeatureSet& set,
    const std::vector<IdBags>& batch) {
  std::vector<PartialShape> shapes;
  for (const IdBags& bags : batch) {
    shapes.emplace_back(bags.batch_shape);
  }
  if (set.fixed_batch_size && common_batch_size(set, shapes) == 0) {
    return;  // an empty batch fixes nothing
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (!set.fixed_batch_size) {
      shapes[i][0] = std::nullopt;
    }
    std::optional<PartialShape>& known = set.features[i].output_shape;
    known = known ? fill_unknown(*known, shapes[i]) : shapes[i];
  }
  set.is_built = true;
}

void set_ragged_rows(FeatureSet& set, const std::vector<int64_t>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    FeatureState& feature = set.features[i];
    if (rows[i] >= 0 && feature.verifies_shape) {
      const int64_t fixed = feature.ragged_rows.set_once(-1, rows[i]);
      check_ragged_rows(feature, fixed, rows[i]);
    }
  }
}

}  // namespace tessera
