// SPDX-License-Identifier: Apache-2.0
// The bodies of requests and of their answers, in JSON.
#pragma once

#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include "packages/serving/src/server/request_values.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera::serving {

struct LookupAnswer {
  std::string body = {};
  /// The number of ids that were looked up.
  size_t ids = 0;
};

/// Answers the body of a /lookup.
/// Errors:  std::invalid_argument and std::out_of_range with a message for the client.
LookupAnswer answer_lookup(
    std::string_view body,
    const RequestContext& context);

/// Reads the body of a /score. An entry has raw values if the pipeline has a column of its
/// name. Otherwise it has ids if the version has a feature of its name, or else numbers. What
/// stands in the object "columns" is always raw, and what stands in "inputs" never is.
/// Errors:  std::invalid_argument and std::out_of_range with a message for the client, and
///          PipelineProblem for raw values if the pipeline can't be read.
ScoreRequest read_score_request(
    std::string_view body,
    const RequestContext& context,
    bool& has_columns);

/// Checks numbers that a function has given.
/// Errors:  std::runtime_error if there are not `count`, or for one that is not finite.
void check_numbers(std::span<const float> numbers, int64_t count);

/// The body of the answer to /score.
/// Errors:  std::runtime_error for a result that does not fit the request.
std::string write_score_result(
    const ScoreResult& result,
    const ScoreRequest& request);

/// The body of /version. `recommend` is what it says about /recommend.
std::string version_text(
    const RequestContext& context,
    const ReaderStatus& status,
    Json recommend);

/// The body of /healthz.
std::string health_text(const Version& version, const ReaderStatus& status);

/// The seconds since the version was published.
double age_of(const Version& version);

}  // namespace tessera::serving
