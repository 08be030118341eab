// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

#include <tessera/data/feature_pipeline.h>

/// Makes the pipeline that converts columns to features. It learns the vocabularies from
/// the training files.
tessera::data::FeaturePipeline learn_pipeline(const Options& options);
