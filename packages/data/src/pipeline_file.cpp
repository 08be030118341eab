// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/pipeline_file.h>

#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <tessera/common/shorten.h>
#include <tessera/serialization/json_file.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <vector>

namespace tessera {

namespace {

// A pipeline holds its vocabularies, which take about 20 bytes per value.
constexpr JsonLimits kLimits{.bytes = size_t{8} << 30};

}  // namespace

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
      text.size() <= kLimits.bytes,
      "[save_pipeline] {}: the pipeline must take at most {} bytes, but takes {}. Use smaller vocabularies.",
      path,
      kLimits.bytes,
      text.size());
  AtomicFile file(path, "[save_pipeline]");
  file.write(text.data(), text.size());
  file.commit();
}

data::FeaturePipeline load_pipeline(const std::string& path) {
  const Json json = load_json(path, "[load_pipeline]", kLimits);
  try {
    return data::pipeline_from_json(json);
  } catch (const c10::ValueError& error) {
    TESSERA_CHECK_VALUE(
        false, "[load_pipeline] {}: {}", path, error.what_without_backtrace());
  }
}

}  // namespace tessera
