// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/pipeline_file.h>

#include "packages/data/src/pipeline_json.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <tessera/common/shorten.h>

#include <nlohmann/json.hpp>

#include <vector>

namespace tessera {

void save_pipeline(
    const data::FeaturePipeline& pipeline,
    const std::string& path) {
  const std::vector<std::string> untyped = pipeline.untyped_columns();
  TESSERA_CHECK_VALUE(
      untyped.empty(),
      "[save_pipeline] {}: integers and text have different hashes, and it is not known which of them these columns have: {}. Save the pipeline after it has converted a batch, or give their types to its constructor.",
      path,
      shorten_all(untyped));
  const std::string text = to_json(pipeline).dump() + "\n";
  TESSERA_CHECK_VALUE(
      text.size() <= data::kPipelineLimits.bytes,
      "[save_pipeline] {}: the pipeline must take at most {} bytes, but takes {}. Use smaller vocabularies.",
      path,
      data::kPipelineLimits.bytes,
      text.size());
  AtomicFile file(path, "[save_pipeline]");
  file.write(text.data(), text.size());
  file.commit();
}

data::FeaturePipeline load_pipeline(const std::string& path) {
  return data::read_pipeline_file(path, data::pipeline_from_json);
}

}  // namespace tessera
