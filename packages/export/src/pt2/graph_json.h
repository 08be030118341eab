// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/graph.h"

#include <tessera/common/json.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::pt2 {

/// A tensor's type and sizes in torch.export's schema. Its sizes are constants.
Json to_json(const at::Tensor& tensor, bool is_parameter);

/// The file `models/model.json`: torch.export's ExportedProgram.
/// Source:  torch/_export/serde/schema.py
Json to_json(const Graph& graph, const std::vector<Weight>& weights);

/// Reads an integer. The JSON library alone would cut fractions and wrap large numbers.
/// Errors:  c10::ValueError beginning with `where`, for any other value.
int64_t integer_from_json(const Json& json, const std::string& where);

/// A graph, and the names of its weights in the state_dict.
struct NamedGraph {
  Graph graph = {};
  std::vector<std::string> weights = {};
};

/// Reads a graph with the kinds of arguments that to_json() writes.
/// Errors:  c10::ValueError beginning with `where`, for JSON that has another schema.
NamedGraph graph_from_json(const Json& json, const std::string& where);

/// A tensor's type and sizes, as to_json() writes them for a weight.
struct StoredType {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {};
};

/// Errors:  c10::ValueError beginning with `where`, for JSON that has another schema, and
///          for tensors that are not contiguous or not on the CPU.
StoredType stored_type_from_json(const Json& json, const std::string& where);

}  // namespace tessera::pt2
