// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/with_one_user.h>

#include <tessera/common/shorten.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "packages/export/src/example_batch.h"
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
  return exporting::with_batch_size(batch, rows, 1, kOneUserWhere)
      .features.flatten()
      .front();
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
