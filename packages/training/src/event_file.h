// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/files.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::training {

/// The distribution of some numbers, as TensorBoard stores it: in bins whose limits
/// grow by 10% each, from 1e-12 to 1e20, and the same below 0. It takes the same memory
/// for any number of values.
/// Source:  tensorflow/core/lib/histogram/histogram.cc.
struct ValueHistogram {
  /// Values that are not finite are only counted, because no bin has them.
  void add(double value);

  /// The values in (limit of the previous bin, limit].
  struct Bin {
    double limit = 0.0;
    double count = 0.0;
  };
  /// Returns the bins with values. One empty bin stands for each run of empty bins, so
  /// that each bin begins where the previous one ends.
  std::vector<Bin> bins() const;

  int64_t count = 0;
  int64_t non_finite = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0.0;
  double sum_of_squares = 0.0;
  std::vector<double> counts = {};  // of all bins, or empty without values
};

/// Frames a record as TFRecord does: its length, a checksum of the length, the bytes, and
/// a checksum of the bytes.
/// Source:  tensorflow/core/lib/io/record_writer.cc.
std::string framed_record(std::string_view bytes);

/// A new file of a TensorBoard run. Records are only appended, so a process that dies
/// leaves at most the last record incomplete, which TensorBoard skips.
class EventFile {
 public:
  /// Creates a file in an existing folder. Its name comes after the names of the
  /// files there, because TensorBoard reads the files of a run in the order of their names.
  /// TensorBoard discards what earlier files have from `first_step` on.
  /// Errors:  c10::Error that begins with `where` and names the path.
  EventFile(const std::string& folder, int64_t first_step, std::string where);
  /// Writes to an open file, which may be a device.
  EventFile(
      std::pair<FileDescriptor, std::string> file_and_path,
      int64_t first_step,
      std::string where);
  /// Writes what is left, if the system allows it.
  ~EventFile();

  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  const std::string& path() const {
    return path_;
  }

  /// Adds a value, rounded to float32, to what the next flush writes.
  void add_scalar(const std::string& tag, int64_t step, double value);
  /// Does nothing for a histogram without finite values.
  void add_histogram(
      const std::string& tag,
      int64_t step,
      const ValueHistogram& histogram);

  /// Appends all values so far to the file. If that fails, the file stays as it was, the
  /// values are kept, and a later flush tries again. Returns whether it succeeded.
  bool try_flush();
  /// Appends all values, and returns when they are on the disk.
  /// Errors:  c10::Error if the system refuses. After a failed write, the values are kept,
  ///          as by try_flush().
  void flush();

 private:
  void add_summary(int64_t step, std::string_view value);

  std::string where_;
  std::string path_;
  FileDescriptor file_;
  int64_t size_ = 0;  // the bytes of complete records in the file
  std::string pending_;
};

}  // namespace tessera::training
