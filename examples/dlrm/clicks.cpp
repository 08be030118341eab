// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/clicks.h"

#include <iostream>

tessera::data::CriteoReader open_files(
    const std::vector<std::string>& files,
    const Options& options) {
  return tessera::data::CriteoReader(
      {.files = files,
       .batch_size = options.batch,
       .malformed_lines = options.malformed == "skip"
           ? tessera::data::MalformedLines::kSkip
           : tessera::data::MalformedLines::kError,
       .max_malformed_lines = options.max_malformed});
}

void report_skipped(const tessera::data::CriteoReport& report) {
  for (const std::string& line : report.first_malformed_lines) {
    std::cerr << "skipped " << line << "\n";
  }
  if (report.malformed_lines > 0) {
    std::cerr << report.malformed_lines << " lines skipped\n";
  }
}
