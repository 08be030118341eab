// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/feature_pipeline.h>

#include <string>

namespace tessera {

/// Writes to_json(pipeline) to a file. The file appears whole or not at all: after a
/// crash, `path` has its earlier content.
/// Errors:  c10::ValueError if the type of a hashed column is not known, because the
///          pipeline has not seen a batch and got no type; c10::Error naming the path and
///          the system's reason.
void save_pipeline(
    const data::FeaturePipeline& pipeline,
    const std::string& path);

/// Reads a pipeline that save_pipeline() has written, or that was written by hand.
/// Errors:  c10::Error for a file that can't be read; c10::ValueError for a file that
///          is not JSON in UTF-8, or not a pipeline. All messages name the path.
data::FeaturePipeline load_pipeline(const std::string& path);

}  // namespace tessera
