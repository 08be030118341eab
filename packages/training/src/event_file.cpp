// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/event_file.h"

#include "src/common/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <isa-l/crc.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>

namespace tessera::training {

namespace {

// These functions write the few fields of TensorBoard's protobuf messages. A generated
// encoder would need protoc in each build, and Debian's libprotobuf, whose version differs
// from the one that libtorch_cpu.so contains and exports.
namespace proto {

enum class WireType : uint64_t {
  kVarint = 0,
  kFixed64 = 1,
  kBytes = 2,
  kFixed32 = 5
};

void add_varint(std::string& message, uint64_t value) {
  for (; value >= 0x80; value >>= 7U) {
    message += static_cast<char>(value | 0x80U);
  }
  message += static_cast<char>(value);
}

template <class Number>
void add_little_endian(std::string& message, Number value) {
  for (size_t i = 0; i < sizeof(value); ++i) {
    message += static_cast<char>(value >> (8 * i));
  }
}

void add_key(std::string& message, uint64_t field, WireType type) {
  add_varint(message, field << 3U | static_cast<uint64_t>(type));
}

void add_int(std::string& message, uint64_t field, int64_t value) {
  add_key(message, field, WireType::kVarint);
  add_varint(message, static_cast<uint64_t>(value));
}

void add_float(std::string& message, uint64_t field, float value) {
  add_key(message, field, WireType::kFixed32);
  add_little_endian(message, std::bit_cast<uint32_t>(value));
}

void add_double(std::string& message, uint64_t field, double value) {
  add_key(message, field, WireType::kFixed64);
  add_little_endian(message, std::bit_cast<uint64_t>(value));
}

// `bytes` are text or another message.
void add_bytes(std::string& message, uint64_t field, std::string_view bytes) {
  add_key(message, field, WireType::kBytes);
  add_varint(message, bytes.size());
  message += bytes;
}

}  // namespace proto

// Begins an Event of event.proto.
std::string event_at(int64_t step) {
  const std::chrono::duration<double> now =
      std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  proto::add_double(event, 1, now.count());  // wall_time
  proto::add_int(event, 2, step);
  return event;
}

// The limits of the bins of a ValueHistogram.
const std::vector<double>& all_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
      positive.push_back(limit);
    }
    positive.push_back(std::numeric_limits<double>::max());
    std::vector<double> all(positive.rbegin(), positive.rend());
    std::ranges::transform(all, all.begin(), std::negate<>());
    all.push_back(0.0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

// Returns a HistogramProto of histogram.proto.
std::string encoded(const ValueHistogram& histogram) {
  std::string limits, counts;
  for (const ValueHistogram::Bin& bin : histogram.bins()) {
    proto::add_little_endian(limits, std::bit_cast<uint64_t>(bin.limit));
    proto::add_little_endian(counts, std::bit_cast<uint64_t>(bin.count));
  }
  std::string message;
  proto::add_double(message, 1, histogram.min);
  proto::add_double(message, 2, histogram.max);
  proto::add_double(message, 3, static_cast<double>(histogram.count));
  proto::add_double(message, 4, histogram.sum);
  proto::add_double(message, 5, histogram.sum_of_squares);
  proto::add_bytes(message, 6, limits);
  proto::add_bytes(message, 7, counts);
  return message;
}

uint32_t masked_checksum(std::string_view bytes) {
  // ISA-L takes at most INT_MAX bytes at a time, and does not change them.
  constexpr size_t kMaxBytes = size_t{1} << 30U;
  uint32_t checksum = 0xffffffffU;
  while (!bytes.empty()) {
    const std::string_view part = bytes.substr(0, kMaxBytes);
    checksum = crc32_iscsi(
        reinterpret_cast<unsigned char*>(const_cast<char*>(part.data())),
        static_cast<int>(part.size()),
        checksum);
    bytes.remove_prefix(part.size());
  }
  checksum = ~checksum;
  // TFRecord masks checksums, because a record may contain checksums itself.
  return std::rotr(checksum, 15) + 0xa282ead8U;
}

constexpr std::string_view kFilePrefix = "events.out.tfevents.";

// The seconds in a name that EventFile or TensorFlow gave a file; 0 for other names.
int64_t seconds_of(const std::string& name) {
  int64_t seconds = 0;
  if (name.starts_with(kFilePrefix)) {
    constexpr size_t kMaxDigits = 12;
    const std::string digits = name.substr(kFilePrefix.size(), kMaxDigits);
    std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  }
  return std::max<int64_t>(seconds, 0);
}

// The seconds of a file that comes after all files in the folder, also if the clock has
// been set back.
int64_t next_seconds(const std::string& folder) {
  int64_t seconds = std::chrono::duration_cast<std::chrono::seconds>(
                        std::chrono::system_clock::now().time_since_epoch())
                        .count();
  std::error_code error;
  for (auto file = std::filesystem::directory_iterator(folder, error);
       !error && file != std::filesystem::directory_iterator();
       file.increment(error)) {
    seconds =
        std::max(seconds, seconds_of(file->path().filename().string()) + 1);
  }
  return seconds;
}

std::pair<FileDescriptor, std::string> create_event_file(
    const std::string& folder) {
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  // Another process may create a file of the same name at the same time.
  for (int64_t seconds = next_seconds(folder);; ++seconds) {
    std::string path = (std::filesystem::path(folder) /
                        fmt::format("{}{:010}.tessera", kFilePrefix, seconds))
                           .string();
    FileDescriptor file(::open(path.c_str(), kFlags, 0666));
    if (file.is_open() || errno != EEXIST) {
      return {std::move(file), std::move(path)};
    }
  }
}

}  // namespace

void ValueHistogram::add(double value) {
  if (!std::isfinite(value)) {
    ++non_finite;
    return;
  }
  const auto& limits = all_limits();
  counts.resize(limits.size());
  const auto bin = std::ranges::lower_bound(limits, value);
  counts[static_cast<size_t>(bin - limits.begin())] += 1.0;
  ++count;
  min = std::min(min, value);
  max = std::max(max, value);
  sum += value;
  sum_of_squares += value * value;
}

std::vector<ValueHistogram::Bin> ValueHistogram::bins() const {
  const auto& limits = all_limits();
  std::vector<Bin> bins;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0.0) {
      const bool is_gap = i > 0 && counts[i - 1] <= 0.0;
      if (is_gap) {
        bins.push_back({limits[i - 1], 0.0});
      }
      bins.push_back({limits[i], counts[i]});
    }
  }
  return bins;
}

std::string framed_record(std::string_view bytes) {
  std::string record;
  proto::add_little_endian(record, static_cast<uint64_t>(bytes.size()));
  proto::add_little_endian(record, masked_checksum(record));
  record += bytes;
  proto::add_little_endian(record, masked_checksum(bytes));
  return record;
}

EventFile::EventFile(
    const std::string& folder,
    int64_t first_step,
    std::string where)
    : EventFile(create_event_file(folder), first_step, std::move(where)) {}

EventFile::EventFile(
    std::pair<FileDescriptor, std::string> file_and_path,
    int64_t first_step,
    std::string where)
    : where_(std::move(where)),
      path_(std::move(file_and_path.second)),
      file_(std::move(file_and_path.first)) {
  if (!file_.is_open()) {
    fail_to_write(where_, path_, "the file can't be created");
  }
  std::string version = event_at(0);
  proto::add_bytes(version, 3, "brain.Event:2");  // file_version
  pending_ = framed_record(version);
  // Makes TensorBoard discard the events of earlier files from `first_step` on.
  std::string log;
  proto::add_int(log, 1, 1);  // status: START
  std::string start = event_at(first_step);
  proto::add_bytes(start, 7, log);  // session_log
  pending_ += framed_record(start);
}

EventFile::~EventFile() {
  try_flush();
}

void EventFile::add_summary(int64_t step, std::string_view value) {
  std::string summary;
  proto::add_bytes(summary, 1, value);
  std::string event = event_at(step);
  proto::add_bytes(event, 5, summary);
  pending_ += framed_record(event);
}

void EventFile::add_scalar(const std::string& tag, int64_t step, double value) {
  std::string encoded_value;
  proto::add_bytes(encoded_value, 1, tag);
  proto::add_float(encoded_value, 2, static_cast<float>(value));
  add_summary(step, encoded_value);
}

void EventFile::add_histogram(
    const std::string& tag,
    int64_t step,
    const ValueHistogram& histogram) {
  if (histogram.count > 0) {
    std::string encoded_value;
    proto::add_bytes(encoded_value, 1, tag);
    proto::add_bytes(encoded_value, 5, encoded(histogram));
    add_summary(step, encoded_value);
  }
}

bool EventFile::try_flush() {
  if (pending_.empty()) {
    return true;
  }
  if (!file_.write(pending_.data(), pending_.size())) {
    const int number = errno;
    // Removes what was written of these records. This fails for a device, which has no
    // length.
    if (::ftruncate(file_.number(), size_) == 0) {
      ::lseek(file_.number(), size_, SEEK_SET);
    }
    errno = number;
    return false;
  }
  size_ += static_cast<int64_t>(pending_.size());
  pending_.clear();
  return true;
}

void EventFile::flush() {
  if (!try_flush()) {
    fail_to_write(where_, path_, "the file can't be written");
  }
  if (!file_.sync()) {
    fail_to_write(where_, path_, "the file can't be synced");
  }
}

}  // namespace tessera::training
