// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/movielens/options.h"
#include "examples/movielens/ranks.h"
#include "examples/movielens/rater.h"
#include "examples/movielens/rating_data.h"
#include "examples/movielens/report.h"

#include <tessera/tessera.h>

/// Trains the model, and adds the time to the report.
tessera::training::History train(
    Rater& model,
    const RatingData& data,
    const Options& options,
    const Process& process,
    Report& report);

/// Predicts the stars of the ratings, in (1, 5).
torch::Tensor predict(
    Rater& model,
    const RatingData& data,
    const Ratings& ratings);

/// Adds the errors on the test ratings to the report, of the model and of two simple
/// methods.
void evaluate(
    const torch::Tensor& predicted,
    const RatingData& data,
    Report& report);
