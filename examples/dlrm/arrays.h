// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

#include <tessera/data/feature_pipeline.h>

/// Writes ids, numbers and labels of training and test to the --write-arrays directory,
/// as .npy. A benchmark script trains the same models on them in Python's torch.
void write_arrays(
    const tessera::data::FeaturePipeline& pipeline,
    const Options& options);
