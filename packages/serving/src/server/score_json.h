// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include <string>
#include <string_view>

namespace tessera::serving {

/// Reads the body of a /score. An input has ids if the version has a feature of its name.
/// Errors:  std::invalid_argument for the client.
ScoreRequest read_score_request(
    std::string_view body,
    const Version& version,
    const ServerOptions& options);

/// The body of the answer.
/// Errors:  std::runtime_error for a result that does not fit the request.
std::string write_score_result(
    const ScoreResult& result,
    const ScoreRequest& request);

}  // namespace tessera::serving
