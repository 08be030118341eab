// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/leaderboard/data_sets.h"
#include "examples/leaderboard/results.h"

#include <string>
#include <vector>

/// The results of the data set, of Tessera and published ones, sorted by the last metric, the
/// worst first. Results of several seeds are one line with their mean and standard deviation.
/// The seconds, the memory and the standard errors of the last metric over the users are
/// means, too.
std::string text_table(const DataSet& data, const std::vector<Result>& results);

/// The same in Markdown.
std::string markdown_table(
    const DataSet& data,
    const std::vector<Result>& results);

/// A line for each model of `shown` of which `all`, the results of this and other calls, has
/// several settings with validation values: their number, and the median and the best of these
/// values. The value of a setting with several seeds is their mean.
std::string tries_text(
    const std::vector<Result>& shown,
    const std::vector<Result>& all);
