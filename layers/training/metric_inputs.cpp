// SPDX-License-Identifier: Apache-2.0
#include "layers/training/metric_inputs.h"

#include <algorithm>
#include <cmath>

#include "src/common/check.h"

namespace tessera::training {

namespace {

void check_dense(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      values.layout() == at::kStrided && !values.is_meta(),
      "{} {} must be a dense tensor of real numbers, but got {}. Convert the tensor first.",
      where,
      what,
      values.toString());
}

std::vector<double> read_values(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  check_dense(values, what, where);
  TESSERA_CHECK_VALUE(
      !values.is_complex() && !values.is_quantized(),
      "{} {} must be a dense tensor of real numbers, but got {}. Convert the tensor first.",
      where,
      what,
      values.toString());
  const at::Tensor flat =
      values.detach().to(at::kCPU, at::kDouble).contiguous();
  const double* begin = flat.const_data_ptr<double>();
  std::vector<double> numbers(begin, begin + flat.numel());
  TESSERA_CHECK_VALUE(
      std::none_of(
          numbers.begin(),
          numbers.end(),
          [](double number) { return std::isnan(number); }),
      "{} {} must be numbers, but some are NaN. Lower the learning rate, or check the data.",
      where,
      what);
  return numbers;
}

void check_sizes(size_t labels, int64_t rows, const std::string& where) {
  TESSERA_CHECK_VALUE(
      static_cast<int64_t>(labels) == rows,
      "{} predictions and labels must have the same length, but got {} predictions and {} labels. Pass both for the same examples.",
      where,
      rows,
      labels);
}

void check_column(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      values.defined(),
      "{} expected {}, but got an undefined tensor. Pass them, or return them from the step.",
      where,
      what);
  TESSERA_CHECK_VALUE(
      values.dim() == 1 || (values.dim() == 2 && values.size(1) == 1),
      "{} {} must have shape [n] or [n, 1], but got {}. Flatten it, or give one column at a time.",
      where,
      what,
      values.sizes());
}

// Ids stay int64, because doubles would round large ones.
std::vector<int64_t> read_integers(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  check_dense(values, what, where);
  TESSERA_CHECK_VALUE(
      values.scalar_type() == at::kLong || values.scalar_type() == at::kInt,
      "{} {} must be ids of dtype int32 or int64, but got {}. Convert the tensor first.",
      where,
      what,
      values.toString());
  const at::Tensor flat = values.to(at::kCPU, at::kLong).contiguous();
  const int64_t* begin = flat.const_data_ptr<int64_t>();
  return {begin, begin + flat.numel()};
}

}  // namespace

std::vector<double> read_column(
    const at::Tensor& values,
    const char* what,
    const std::string& where) {
  check_column(values, what, where);
  return read_values(values, what, where);
}

std::vector<double> read_weights(
    const at::Tensor& weights,
    size_t size,
    const std::string& where) {
  if (!weights.defined()) {
    return {};
  }
  std::vector<double> numbers = read_column(weights, "weights", where);
  TESSERA_CHECK_VALUE(
      numbers.size() == size,
      "{} expected a weight for each of {} examples, but got {}. If all weights are 1, leave them out.",
      where,
      size,
      numbers.size());
  for (const double number : numbers) {
    TESSERA_CHECK_VALUE(
        number >= 0.0 && std::isfinite(number),
        "{} weights must be finite and >= 0, but got {}. Correct the weights.",
        where,
        number);
  }
  return numbers;
}

MetricInputs read_scores(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where) {
  MetricInputs inputs{
      .predictions = read_column(predictions, "predictions", where),
      .labels = read_column(labels, "labels", where)};
  check_sizes(
      inputs.size(), static_cast<int64_t>(inputs.predictions.size()), where);
  return inputs;
}

MetricInputs read_classes(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where) {
  MetricInputs inputs;
  if (predictions.defined() && predictions.dim() == 2 &&
      predictions.size(1) > 1) {
    inputs = {
        .predictions = read_values(predictions, "predictions", where),
        .labels = read_column(labels, "labels", where),
        .classes = predictions.size(1)};
    check_sizes(inputs.size(), predictions.size(0), where);
  } else {
    inputs = read_scores(predictions, labels, where);
  }
  const auto classes =
      static_cast<double>(std::max<int64_t>(2, inputs.classes));
  for (const double label : inputs.labels) {
    TESSERA_CHECK_VALUE(
        label >= 0.0 && label < classes && label == std::floor(label),
        "{} labels must be classes 0 to {}, but got {}. Number the classes from 0.",
        where,
        classes - 1.0,
        label);
  }
  return inputs;
}

RetrievedIds read_ids(
    const at::Tensor& predictions,
    const at::Tensor& labels,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      predictions.defined() && predictions.dim() == 2,
      "{} predictions must be ids of shape [n, retrieved], but got {}. Pass one row of retrieved ids for each example.",
      where,
      predictions.defined() ? c10::str("shape ", predictions.sizes())
                            : "an undefined tensor");
  check_column(labels, "labels", where);
  RetrievedIds ids{
      .ids = read_integers(predictions, "predictions", where),
      .labels = read_integers(labels, "labels", where),
      .per_example = predictions.size(1)};
  check_sizes(ids.labels.size(), predictions.size(0), where);
  for (const int64_t label : ids.labels) {
    TESSERA_CHECK_VALUE(
        label >= 0,
        "{} labels must be ids >= 0, but got {}. Correct the labels.",
        where,
        label);
  }
  return ids;
}

}  // namespace tessera::training
