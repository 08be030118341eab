// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/feature_pipeline.h>

#include <string>

namespace tessera {

/// Writes to_json(pipeline). The file appears whole or not at all: a crash leaves
/// what stood at `path` before.
/// Errors:  c10::Error naming the path and the system's reason.
void save_pipeline(
    const data::FeaturePipeline& pipeline,
    const std::string& path);

/// The pipeline that save_pipeline() wrote, or that was written by hand.
/// Errors:  c10::Error for a file that can't be read; c10::ValueError for one that
///          is no JSON in UTF-8 or no pipeline. All name the path.
data::FeaturePipeline load_pipeline(const std::string& path);

}  // namespace tessera
