// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

#include <tessera/data/feature_pipeline.h>

/// What makes features of columns, with vocabularies from the training files.
tessera::data::FeaturePipeline learn_pipeline(const Options& options);
