// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

/// Whether a reader fails at a line or row that is not an example, or skips it.
enum class MalformedLines { kError, kSkip };

// snippet: tests/docs/reference_data_test.cpp CriteoReport
/// Counts what a reader of text files has read so far.
///
///   CriteoReader reader(
///       {.files = {"day_0.gz", "day_1.gz"},
///        .malformed_lines = MalformedLines::kSkip});
///   for (CriteoBatch& batch : reader) {
///     train(to_columns(batch));
///   }
///   const CriteoReport& report = reader.report();
///   std::cout << report.examples << " examples, " << report.malformed_lines
///             << " malformed lines\n";
struct ReadReport {
  int64_t examples = 0;
  /// The number of unpacked bytes in the blocks that next() has reached.
  int64_t bytes = 0;
  int64_t malformed_lines = 0;
  /// The file, the line number and the problem of the first ten malformed lines.
  std::vector<std::string> first_malformed_lines = {};
};

}  // namespace tessera::data
