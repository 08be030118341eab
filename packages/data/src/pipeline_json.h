// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_text.h>
#include <tessera/data/column_type.h>
#include <tessera/data/transforms.h>
#include <tessera/serialization/json_file.h>

#include "src/common/check.h"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace tessera::data {

/// The limits of a file of a pipeline, which holds its vocabularies. They take about
/// 20 bytes per value.
inline constexpr JsonLimits kPipelineLimits{.bytes = size_t{8} << 30};

/// The contents of a saved pipeline.
struct PipelineDefinition {
  std::vector<PipelineOutput> outputs = {};
  std::map<std::string, ColumnType> types = {};
};

Json write_pipeline(
    const std::vector<PipelineOutput>& outputs,
    const std::map<std::string, ColumnType>& types);

/// Errors:  as pipeline_from_json(), except for errors of the constructor.
PipelineDefinition read_pipeline(const Json& json);

/// Reads the file of a pipeline, and returns what `make` makes of its JSON.
/// Errors:  as load_pipeline().
template <class Make>
auto read_pipeline_file(const std::string& path, Make make) {
  const Json json = load_json(path, "[load_pipeline]", kPipelineLimits);
  try {
    return make(json);
  } catch (const checks::ValueError& error) {
    checks::fail<checks::ValueError>(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        "[load_pipeline] {}: {}",
        path,
        checks::message_of_error(error));
  }
}

}  // namespace tessera::data
