// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera::serving {

struct LookupAnswer {
  std::string body = {};
  /// The ids that were looked up.
  size_t ids = 0;
};

/// Answers the body of a /lookup.
/// Errors:  std::invalid_argument and std::out_of_range for the client.
LookupAnswer answer_lookup(
    std::string_view body,
    const Version& version,
    const ServerOptions& options);

}  // namespace tessera::serving
