// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/trace/verification.h"

#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <exception>
#include <optional>
#include <set>

#include "packages/export/src/trace/resized_examples.h"
#include "src/common/check.h"

namespace tessera::exporting {

namespace {

// Two results are close when they differ by rounding only. The model may compute small
// layers in float32 where the file computes them in bfloat16.
bool is_close(
    const at::Tensor& actual,
    const at::Tensor& expected,
    Precision precision = Precision::kFloat32) {
  if (actual.sizes() != expected.sizes() ||
      actual.scalar_type() != expected.scalar_type()) {
    return false;
  }
  if (expected.numel() == 0 || !at::isFloatingType(expected.scalar_type())) {
    return actual.equal(expected);
  }
  const double tolerance = precision == Precision::kFloat32 ? 1e-4 : 0.05;
  const at::Tensor exact = expected.to(at::kDouble);
  const at::Tensor finite = exact.masked_fill(~exact.isfinite(), 0);
  return at::isclose(
             actual.to(at::kDouble),
             exact,
             tolerance,
             tolerance * finite.abs().max().item<double>() + 1e-7,
             /*equal_nan=*/true)
      .all()
      .item<bool>();
}

// A made-up input for one feature.
struct SyntheticInput {
  std::string description;
  Feature feature;
  at::Tensor weights = {};
};

// Returns an id of the table for each of `numbers` [ids]. If `shift` is not 0, some ids are
// out of range at both ends. In a key table, some are then unknown keys or the padding key.
at::Tensor synthetic_ids(
    const StoredTable& table,
    const at::Tensor& numbers,
    int64_t shift) {
  const int64_t rows = table.rows.size(0);
  if (!table.keys.defined()) {
    return numbers.remainder(rows + 2 * shift) - shift;
  }
  const at::Tensor keys = table.keys.index_select(0, numbers.remainder(rows));
  if (shift == 0) {
    return keys;
  }
  const at::Tensor ids =
      at::bitwise_xor(keys, numbers.remainder(3).eq(0).to(at::kLong));
  return table.padding_key.defined()
      ? at::where(numbers.remainder(5).eq(0), table.padding_key, ids)
      : ids;
}

// Makes ragged rows of 0, 1, 2, 3, 0, ... ids, dense ids, and sparse cells with gaps, in
// reverse order.
std::vector<SyntheticInput> synthetic_inputs(
    const FeatureState& feature,
    const StoredTable& table,
    int64_t batch,
    int64_t shift) {
  const auto ids = [&](int64_t count) {
    return synthetic_ids(
        table, at::arange(count, at::kLong) * 7919 + batch, shift);
  };
  const at::Tensor row = at::arange(batch, at::kLong);
  const at::Tensor lengths = row.remainder(4);
  const int64_t nnz = lengths.sum().item<int64_t>();
  const RaggedFeature ragged = RaggedFeature::from_lengths(ids(nnz), lengths);
  const at::Tensor rows = row.repeat_interleave(lengths);
  const at::Tensor columns =
      at::arange(nnz, at::kLong) - ragged.row_splits.index_select(0, rows);
  const SparseFeature sparse{
      .indices = at::stack({rows, columns * 2}, 1).flip(0),
      .values = ragged.values.flip(0),
      .dense_shape = at::tensor({batch, int64_t{8}}, at::kLong)};
  const at::Tensor weights =
      at::arange(nnz, at::kFloat).remainder(5) * 0.5 - 0.5;
  std::vector<SyntheticInput> inputs{
      {"dense", ids(batch)},
      {"dense [batch, 3]", ids(3 * batch).view({batch, 3})},
      {"ragged", ragged},
      {"weighted ragged", ragged, weights},
      {"sparse", sparse},
      {"weighted sparse", sparse, weights.flip(0)}};
  // [batch, 4, 3]: the first two ids of a row are at position 0, the third at position 1.
  const at::Tensor positions = columns.ge(2).to(at::kLong);
  const SparseFeature cells{
      .indices = at::stack({rows, positions, columns}, 1).flip(0),
      .values = sparse.values,
      .dense_shape = at::tensor({batch, int64_t{4}, int64_t{3}}, at::kLong)};
  inputs.push_back({"sparse of rank 3", cells});
  inputs.push_back({"weighted sparse of rank 3", cells, weights.flip(0)});
  if (feature.output_shape && feature.config.output_shape) {
    const std::vector<int64_t> shape = sizes_or(*feature.output_shape, 2);
    inputs.push_back(
        {"dense of output_shape",
         ids(c10::multiply_integers(shape)).view(shape)});
  }
  return inputs;
}

// Checks that the layer and the file give the same values, or both refuse the input.
void check_input(
    const ExportedLayer& layer,
    size_t index,
    const FileLookup& file_lookup,
    const SyntheticInput& input,
    int64_t batch) {
  const std::string& path = layer.paths[index];
  const Result expected = try_run([&] {
    const FeatureState& feature = layer.features[index];
    const std::optional<Feature> given = input.weights.defined()
        ? std::optional<Feature>(input.weights)
        : std::nullopt;
    const at::Tensor flat = flat_weights(feature, input.feature, given);
    return std::vector{lookup_stored(
        layer, index, make_id_bags(feature, input.feature, flat))};
  });
  const Result actual = try_run([&] {
    return std::vector{file_lookup(path, input.feature, input.weights)};
  });
  TESSERA_CHECK(
      actual.is_refused == expected.is_refused &&
          (actual.is_refused ||
           is_close(actual.outputs[0], expected.outputs[0])),
      "{} feature '{}', {}, batch size {}: the exported file must give what the layer gives, but it {}{}. This is a bug. Please report it.",
      layer.where,
      shorten(path),
      input.description,
      batch,
      actual.is_refused         ? "refuses the input: "
          : expected.is_refused ? "accepts input that the layer refuses: "
                                : "gives other values",
      actual.refusal + expected.refusal);
}

}  // namespace

Result try_run(c10::function_ref<std::vector<at::Tensor>()> run) {
  try {
    return {.outputs = run()};
  } catch (const std::exception& error) {
    return {.refusal = reason_of(error), .is_refused = true};
  }
}

std::string difference(
    const Result& actual_result,
    const Result& expected_result,
    Precision precision) {
  const auto& [actual, actual_refusal, is_actual_refused] = actual_result;
  const auto& [expected, expected_refusal, is_expected_refused] =
      expected_result;
  if (is_actual_refused != is_expected_refused) {
    return is_actual_refused
        ? "an error: " + actual_refusal
        : "a result where the model has an error: " + expected_refusal;
  }
  if (actual.size() != expected.size()) {
    return fmt::format(
        "{} tensors instead of {}", actual.size(), expected.size());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i].sizes() != expected[i].sizes()) {
      return c10::str(
          "the shape ", actual[i].sizes(), " instead of ", expected[i].sizes());
    }
    if (!is_close(actual[i], expected[i], precision)) {
      return "other values";
    }
  }
  return "";
}

bool has_output_shape(const torch::nn::Module& model) {
  bool found = false;
  model.apply([&](const torch::nn::Module& part) {
    if (const auto tables = TableModule::of(part)) {
      tables->feature_configs().for_each(
          [&](const std::string&, const FeatureConfig& config) {
            found = found || config.output_shape.has_value();
          });
    }
  });
  return found;
}

void check_embedding(
    const ExportedLayer& layer,
    const FileLookup& file_lookup) {
  for (const size_t index : layer.exported) {
    const FeatureState& feature = layer.features[index];
    std::set<int64_t> batches{0, 1, 6};
    if (feature.config.output_shape) {
      batches.insert(
          c10::multiply_integers(sizes_or(*feature.output_shape, 2)));
    }
    for (const int64_t batch : batches) {
      for (const int64_t shift : {0, 1}) {
        for (const SyntheticInput& input : synthetic_inputs(
                 feature, layer.tables[feature.table], batch, shift)) {
          check_input(layer, index, file_lookup, input, batch);
        }
      }
    }
  }
}

void check_model(
    const torch::nn::Module& model,
    const ExportExample& example,
    const Outputs& model_outputs,
    const Outputs& file_outputs,
    Precision precision,
    const std::string& where) {
  const ResizedExamples examples(example, where);
  const int64_t batch = examples.sizes()[0];
  std::string refusal;
  int compared = 0;
  for (const int64_t size : {batch, int64_t{0}, int64_t{1}, 2 * batch + 1}) {
    const ExportExample inputs =
        size == batch ? example : examples.with_batch_size(size);
    const Result expected = try_run([&] { return model_outputs(inputs); });
    if (expected.is_refused) {
      refusal = expected.refusal;
      continue;  // the file need not compute a batch that the model refuses
    }
    ++compared;
    const std::string problem = difference(
        try_run([&] { return file_outputs(inputs); }), expected, precision);
    TESSERA_CHECK_VALUE(
        problem.empty(),
        "{} at batch size {}: the exported file must give what the model gives, but it gives {}. The file was traced from a batch of {}. It has sizes, conditions and random numbers of that batch as constants if C++ code computes them. Write flatten(1) or view({{-1, n}}) for sizes and at::where for conditions, and leave random numbers out.",
        where,
        size,
        problem,
        batch);
  }
  TESSERA_CHECK_VALUE(
      compared > (batch == 1 ? 2 : 1) || has_output_shape(model),
      "{} expected a model that takes batches of any size, but it takes only the example's batch size, {}: {}. Let each input that belongs to the batch have the batch size as its first dimension.",
      where,
      batch,
      refusal);
}

}  // namespace tessera::exporting
