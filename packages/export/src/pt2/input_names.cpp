// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/input_names.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_set>
#include <variant>

#include "packages/export/src/pt2/graph_conversion.h"

namespace tessera::exporting {

std::vector<Pt2Value> describe_inputs(
    const ExportExample& example,
    const InputNames& input_names) {
  std::vector<Pt2Value> values;
  std::unordered_set<std::string> taken;
  const auto add = [&](const std::string& name,
                       const std::string& path,
                       const std::string& part) {
    values.push_back(
        {.name = identifier(name, taken), .path = path, .part = part});
  };
  example.features.for_each(
      [&](const std::string& path, const Feature& feature) {
        if (std::holds_alternative<at::Tensor>(feature)) {
          add(path, path, "ids");
          return;
        }
        const std::vector<const char*> parts =
            std::holds_alternative<RaggedFeature>(feature)
            ? std::vector<const char*>{"values", "row_splits"}
            : std::vector<const char*>{"indices", "values", "dense_shape"};
        for (const char* part : parts) {
          add(path + "_" + part, path, part);
        }
      });
  example.weights.for_each(
      [&](const std::string& path, const std::optional<Feature>& weight) {
        if (weight) {
          add(path + "_weights", path, "weights");
        }
      });
  for (size_t i = 0; i < example.inputs.size(); ++i) {
    if (input_names.empty()) {
      const std::string name = fmt::format("input_{}", i);
      add(name, name, "");
    } else {
      const auto& [path, part] = input_names[i];
      add(part == "row_splits" ? path + "_" + part : path, path, part);
    }
  }
  return values;
}

}  // namespace tessera::exporting
