// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/pipeline_file.h>

#include "serialization/durable_file.h"
#include "serialization/mapped_file.h"

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

namespace tessera {

void save_pipeline(const FeaturePipeline& pipeline, const std::string& path) {
  const std::string text = to_json(pipeline).dump() + "\n";
  DurableFile file(path, "[save_pipeline]");
  file.write(text.data(), text.size());
  file.commit();
}

FeaturePipeline load_pipeline(const std::string& path) {
  const MappedFile file(path, "[load_pipeline]");
  try {
    return pipeline_from_json(Json::parse(file.text()));
  } catch (const Json::exception& error) {
    TORCH_CHECK_VALUE(
        false, "[load_pipeline] ", path, " is no JSON: ", error.what());
  } catch (const c10::ValueError& error) {
    TORCH_CHECK_VALUE(
        false, "[load_pipeline] ", path, ": ", error.what_without_backtrace());
  }
}

}  // namespace tessera
