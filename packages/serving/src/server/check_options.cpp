// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/check_options.h"

#include "src/common/check.h"

#include <cstdint>

namespace tessera::serving {

namespace {

void check_count(const char* name, int64_t count, int64_t max) {
  TESSERA_CHECK_VALUE(
      count >= 1 && count <= max,
      "[Server] {} must be from 1 to {}, but is {}. Correct the options.",
      name,
      max,
      count);
}

void check_seconds(const char* name, double seconds) {
  constexpr double kDay = 86400.0;
  TESSERA_CHECK_VALUE(
      seconds > 0.0 && seconds <= kDay,
      "[Server] {} must be > 0 and at most {}, but is {}. Correct the options.",
      name,
      kDay,
      seconds);
}

}  // namespace

void check_options(const Reader* reader, const ServerOptions& options) {
  constexpr int64_t kMax = 1'000'000;
  TESSERA_CHECK_VALUE(
      reader != nullptr,
      "[Server] expected a reader, but got nullptr. Pass a std::make_shared<Reader>(...).");
  check_count("threads", options.threads, 1024);
  check_count("max_queue", options.max_queue, kMax);
  check_count("max_batch", options.max_batch, kMax);
  check_count("max_batch_bytes", options.max_batch_bytes, int64_t{1} << 30);
  check_count("max_connections", options.max_connections, kMax);
  check_count("max_body_bytes", options.max_body_bytes, int64_t{1} << 30);
  check_count("max_ids", options.max_ids, int64_t{1} << 30);
  check_seconds("request_seconds", options.request_seconds);
  check_seconds("idle_seconds", options.idle_seconds);
}

}  // namespace tessera::serving
