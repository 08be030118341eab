// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/with_one_user.h>

#include <tessera/common/shorten.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "src/common/check.h"

namespace tessera {

namespace {

constexpr const char* kOneUserWhere = "[with_one_user]";

// The first row of a tensor.
at::Tensor first_row(const at::Tensor& tensor, const std::string& name) {
  TESSERA_CHECK_VALUE(
      tensor.defined() && tensor.dim() >= 1 && tensor.size(0) >= 2,
      "{} {}: expected at least two rows, one per example, but got {}. Pass a batch of training.",
      kOneUserWhere,
      name,
      tensor.defined() ? fmt::format("{}", tensor.sizes().vec()) : "no tensor");
  return tensor.narrow(0, 0, 1);
}

Feature first_row(const Feature& feature, const std::string& name) {
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    TESSERA_CHECK_VALUE(
        ragged->row_splits.defined() && ragged->row_splits.dim() == 1 &&
            ragged->row_splits.numel() >= 3,
        "{} {}: expected row_splits of at least two rows. Pass a batch of training.",
        kOneUserWhere,
        name);
    const at::Tensor splits = ragged->row_splits.narrow(0, 0, 2);
    return RaggedFeature{
        ragged->values.narrow(0, 0, splits[1].item<int64_t>()), splits};
  }
  const auto* dense = std::get_if<at::Tensor>(&feature);
  TESSERA_CHECK_NOT_IMPLEMENTED(
      dense != nullptr && dense->layout() == at::kStrided,
      "{} {}: expected a dense or a ragged feature. Pass sparse features as ragged ones.",
      kOneUserWhere,
      name);
  return first_row(*dense, name);
}

}  // namespace

ExportExample with_one_user(
    ExportExample batch,
    const std::vector<std::string>& user_features,
    const std::vector<size_t>& user_inputs) {
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
    batch.inputs[i] = first_row(batch.inputs[i], fmt::format("inputs[{}]", i));
  }
  return batch;
}

}  // namespace tessera
