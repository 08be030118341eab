// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/joined_inputs.h"

#include <tessera/common/shorten.h>
#include <tessera/layers/input_checks.h>

#include "src/common/check.h"

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace tessera {

namespace {

// Returns a tensor whose batch is not a single row. Prefers a tensor that has columns.
const at::Tensor& batch_of(const std::vector<at::Tensor>& tensors) {
  const at::Tensor* found = &tensors[0];
  for (const at::Tensor& tensor : tensors) {
    if (tensor.size(0) != 1 && (found->size(0) == 1 || found->numel() == 0)) {
      found = &tensor;
    }
  }
  return *found;
}

// Repeats the only row of `x` for each row of `like`. A trace would record the number of
// rows as a constant, so an operator reads it from a column of `like`.
at::Tensor repeated(const at::Tensor& x, const at::Tensor& like) {
  const at::Tensor row = x.flatten(1);
  const at::Tensor columns = like.flatten(1);
  const at::Tensor rows = columns.size(1) == 0
      ? row.expand({columns.size(0), row.size(1)})
      : row.expand_as(columns.narrow(1, 0, 1).expand({-1, row.size(1)}));
  return x.dim() == 2 ? rows : rows.unflatten(1, x.sizes().slice(1));
}

// Collects columns of a matrix. Ranges that touch become one, because a single range needs
// no copy.
class Columns {
 public:
  void add(int64_t begin, int64_t count) {
    if (!ranges_.empty() &&
        ranges_.back().first + ranges_.back().second == begin) {
      ranges_.back().second += count;
    } else {
      ranges_.emplace_back(begin, count);
    }
  }

  at::Tensor of(const at::Tensor& matrix) const {
    const auto parts = c10::fmap(ranges_, [&](const auto& range) {
      return matrix.narrow(1, range.first, range.second);
    });
    return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // begin and count
};

}  // namespace

std::string input_name(const std::string& path, const std::string& class_name) {
  return path.empty() ? class_name
                      : c10::str(class_name, " '", shorten(path), "'");
}

void merge_batch(
    std::optional<int64_t>& batch,
    const std::optional<int64_t>& other,
    const std::string& path,
    const std::string& class_name) {
  if (batch == other || other == 1) {
    return;
  }
  TESSERA_CHECK_VALUE(
      !batch || !other || *batch == 1,
      "[{}] all inputs must have the same batch size or one row, but this one has {} rows and an earlier one {}. Correct the batch.",
      input_name(path, class_name),
      other.value_or(0),
      batch.value_or(0));
  batch = batch == 1 || !batch ? other : batch;
}

PartialShape joined_shape(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name) {
  std::optional<PartialShape> joined;
  for (const auto& [path, shape] : input_shapes) {
    check_rows(shape, input_name(path, class_name));
    if (!joined) {
      joined = shape;
      continue;
    }
    merge_batch(joined->front(), shape.front(), path, class_name);
    PartialShape rows = shape;
    PartialShape other_rows = *joined;
    rows.front() = joined->front();
    rows.back() = std::nullopt;
    other_rows.back() = std::nullopt;
    const std::optional<PartialShape> both = merge(other_rows, rows);
    TESSERA_CHECK_VALUE(
        both,
        "[{}] all inputs must have the same sizes between the first and the last one, but this one has the shape {} and the earlier ones {}. Reshape it.",
        input_name(path, class_name),
        to_string(shape),
        to_string(other_rows));
    const std::optional<int64_t> width = joined->back();
    joined = both;
    joined->back() = width && shape.back()
        ? std::optional(*width + *shape.back())
        : std::nullopt;
  }
  TESSERA_CHECK_VALUE(
      joined,
      "[{}] expected one input or more, but got an empty nest. Pass at least one.",
      class_name);
  return *joined;
}

int64_t joined_width(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name) {
  int64_t width = 0;
  for (const auto& [path, shape] : input_shapes) {
    width += known_dim(shape, input_name(path, class_name));
  }
  return width;
}

std::vector<at::Tensor> checked_inputs(
    const Nest<at::Tensor>& inputs,
    const std::string& class_name,
    PartialShape (*shape_of)(const Nest<PartialShape>&, const std::string&)) {
  std::vector<at::Tensor> tensors;
  std::vector<PartialShape> shapes;
  for (const auto& [path, leaf] : inputs) {
    // c10::str() would take longer than the check.
    check_floating(
        leaf,
        path.empty() ? "input" : "input '" + shorten(path) + "'",
        class_name);
    const bool is_frozen = leaf.is_inference() && at::GradMode::is_enabled();
    tensors.push_back(is_frozen ? leaf.clone() : leaf);  // for backward
    shapes.emplace_back(leaf.sizes().begin(), leaf.sizes().end());
    TESSERA_CHECK_TYPE(
        have_same_dtype(leaf, tensors[0]),
        "[{}] all inputs must have the same dtype, but this one has {} and the first one {}. Convert one of them with .to().",
        input_name(path, class_name),
        leaf.scalar_type(),
        tensors[0].scalar_type());
  }
  shape_of(inputs.pack(std::move(shapes)), class_name);
  return tensors;
}

void check_columns(
    const std::vector<at::Tensor>& inputs,
    int64_t columns,
    const std::string& class_name) {
  int64_t sum = 0;
  for (const at::Tensor& input : inputs) {
    sum += input.size(-1);
  }
  TESSERA_CHECK_VALUE(
      sum == columns,
      "[{}] was built for inputs of {} columns in total, but got {}. Make another layer for inputs of this size.",
      class_name,
      columns,
      sum);
}

void check_fits(
    const std::vector<at::Tensor>& inputs,
    const at::Tensor& weight,
    const std::string& class_name) {
  check_columns(inputs, weight.size(1), class_name);
  TESSERA_CHECK_TYPE(
      have_same_dtype(inputs[0], weight),
      "[{}] has parameters of {}, but got inputs of {}. Convert one of them with .to().",
      class_name,
      weight.scalar_type(),
      inputs[0].scalar_type());
}

bool differ_in_batch(const std::vector<at::Tensor>& tensors) {
  return std::ranges::any_of(tensors, [&](const at::Tensor& tensor) {
    return tensor.size(0) != tensors[0].size(0);
  });
}

std::vector<at::Tensor> with_equal_batches(std::vector<at::Tensor> tensors) {
  if (differ_in_batch(tensors)) {
    const at::Tensor like = batch_of(tensors);
    for (at::Tensor& tensor : tensors) {
      if (tensor.size(0) == 1) {
        tensor = repeated(tensor, like);
      }
    }
  }
  return tensors;
}

at::Tensor joined(const std::vector<at::Tensor>& inputs) {
  return inputs.size() == 1 ? inputs[0]
                            : at::cat(with_equal_batches(inputs), -1);
}

JoinedProduct without_single_rows(const JoinedProduct& product) {
  if (product.inputs[0].dim() != 2 || !differ_in_batch(product.inputs)) {
    return {with_equal_batches(product.inputs), product.weight, product.bias};
  }
  JoinedProduct single{.bias = product.bias};
  JoinedProduct rest;
  Columns single_columns;
  Columns rest_columns;
  int64_t begin = 0;
  for (const at::Tensor& input : product.inputs) {
    const bool is_single = input.size(0) == 1;
    (is_single ? single : rest).inputs.push_back(input);
    (is_single ? single_columns : rest_columns).add(begin, input.size(1));
    begin += input.size(1);
  }
  single.weight = single_columns.of(product.weight);
  rest.weight = rest_columns.of(product.weight);
  rest.bias = compute(single);
  return rest;
}

at::Tensor compute(const JoinedProduct& product) {
  const at::Tensor x = joined(product.inputs);
  if (product.bias.defined() && product.bias.dim() == 2) {
    return at::addmm(product.bias, x, product.weight.t());
  }
  return at::linear(
      x,
      product.weight,
      product.bias.defined() ? std::optional(product.bias) : std::nullopt);
}

PartialShape shape_of_features(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name) {
  std::optional<int64_t> batch = 1;
  std::optional<int64_t> dim;
  std::optional<int64_t> count = 0;
  for (const auto& [path, shape] : input_shapes) {
    TESSERA_CHECK_VALUE(
        shape.size() == 2 || shape.size() == 3,
        "[{}] expected a feature [batch, dim] or features [batch, n, dim], but got {}. Reshape it.",
        input_name(path, class_name),
        to_string(shape));
    merge_batch(batch, shape.front(), path, class_name);
    TESSERA_CHECK_VALUE(
        !dim || !shape.back() || *dim == *shape.back(),
        "[{}] all features must have the same dim, but this one has {} and an earlier one {}. Project them to the same size.",
        input_name(path, class_name),
        shape.back().value_or(0),
        dim.value_or(0));
    dim = dim ? dim : shape.back();
    const std::optional<int64_t> own =
        shape.size() == 2 ? std::optional<int64_t>(1) : shape[1];
    count = count && own ? std::optional(*count + *own) : std::nullopt;
  }
  TESSERA_CHECK_VALUE(
      count != 0,
      "[{}] expected one feature or more, but got none. Pass at least one.",
      class_name);
  return {batch, count, dim};
}

std::vector<at::Tensor> checked_features(
    const Nest<at::Tensor>& features,
    const std::string& class_name) {
  std::vector<at::Tensor> leaves =
      checked_inputs(features, class_name, shape_of_features);
  // Under autocast, a layer before may have returned bfloat16, and tables return float32.
  at::ScalarType dtype = leaves[0].scalar_type();
  for (const at::Tensor& leaf : leaves) {
    dtype = at::promote_types(dtype, leaf.scalar_type());
  }
  for (at::Tensor& leaf : leaves) {
    if (leaf.scalar_type() != dtype) {
      leaf = leaf.to(dtype);
    }
  }
  return leaves;
}

at::Tensor joined_features(at::TensorList leaves) {
  const auto blocks =
      c10::fmap(with_equal_batches(leaves.vec()), [](const at::Tensor& leaf) {
        return leaf.dim() == 2 ? leaf.unsqueeze(1) : leaf;
      });
  return blocks.size() == 1 ? blocks[0] : at::cat(blocks, 1);
}

}  // namespace tessera
