// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/with_one_user.h>

#include <tessera/common/shorten.h>

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "packages/export/src/trace/example_batch.h"
#include "src/common/check.h"

namespace tessera {

namespace {

constexpr const char* kOneUserWhere = "[with_one_user]";

Feature first_row(const Feature& feature, const std::string& name) {
  const ExportExample batch{.features = Features(feature)};
  const int64_t rows = exporting::batch_size_of(batch.features, kOneUserWhere);
  TESSERA_CHECK_VALUE(
      rows >= 2,
      "{} {}: expected at least two rows, one per example, but got {}. Pass a batch of training.",
      kOneUserWhere,
      name,
      rows);
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    const at::Tensor splits = ragged->row_splits.narrow(0, 0, 2);
    return RaggedFeature{
        ragged->values.narrow(0, 0, splits[1].item<int64_t>()), splits};
  }
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    const at::Tensor ids = (sparse->indices.select(1, 0) == 0).nonzero();
    at::Tensor shape = sparse->dense_shape.clone();
    shape[0] = 1;
    return SparseFeature{
        sparse->indices.index_select(0, ids.flatten()),
        sparse->values.index_select(0, ids.flatten()),
        shape};
  }
  return std::get<at::Tensor>(feature).narrow(0, 0, 1);
}

}  // namespace

ExportExample with_one_user(
    ExportExample batch,
    const std::vector<std::string>& user_features,
    const std::vector<size_t>& user_inputs) {
  TESSERA_CHECK_VALUE(
      batch.weights.empty(),
      "{} expected a batch without weights, because the server looks features up without them, but got some. Leave them out.",
      kOneUserWhere);
  exporting::batch_size_of(
      batch.features, kOneUserWhere);  // checks the features
  std::vector<std::string> paths;
  std::vector<Feature> features;
  batch.features.for_each([&](const std::string& path, const Feature& feature) {
    const bool is_of_user =
        std::find(user_features.begin(), user_features.end(), path) !=
        user_features.end();
    paths.push_back(path);
    features.push_back(
        is_of_user ? first_row(feature, fmt::format("'{}'", shorten(path)))
                   : feature);
  });
  for (const std::string& path : user_features) {
    TESSERA_CHECK_VALUE(
        std::find(paths.begin(), paths.end(), path) != paths.end(),
        "{} user_features: the batch has no feature '{}'. Choose from {}.",
        kOneUserWhere,
        shorten(path),
        fmt::to_string(fmt::join(paths, ", ")));
  }
  batch.features = batch.features.pack(std::move(features));
  for (const size_t i : user_inputs) {
    TESSERA_CHECK_INDEX(
        i < batch.inputs.size(),
        "{} user_inputs: expected positions below {}, the number of inputs, but got {}. Correct the list.",
        kOneUserWhere,
        batch.inputs.size(),
        i);
    batch.inputs[i] = std::get<at::Tensor>(
        first_row(batch.inputs[i], fmt::format("inputs[{}]", i)));
  }
  return batch;
}

}  // namespace tessera
