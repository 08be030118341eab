// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include <string>
#include <vector>

namespace tessera::serving {

/// The body of /version.
std::string version_text(
    const Version& version,
    const ReaderStatus& status,
    const std::vector<ScoreInputInfo>& score_inputs);

/// The body of /healthz.
std::string health_text(const Version& version, const ReaderStatus& status);

/// The seconds since the version was published.
double age_of(const Version& version);

}  // namespace tessera::serving
