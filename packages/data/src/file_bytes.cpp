// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/file_bytes.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace tessera::data {

namespace {

constexpr size_t kRawBytes = 1 << 17;
constexpr char kMagic[] = {'\x1f', '\x8b'};

}  // namespace

class FileBytes::Stream {
 public:
  Stream(std::string path, const std::string& reader)
      : where_("[" + reader + "]"), path_(std::move(path)), raw_(kRawBytes) {
    check_path(path_, where_);
    file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file_.is_open()) {
      const int number = errno;
      fail(
          c10::str("can't be opened: ", std::strerror(number)),
          advice_to_read(number));
    }
    // Reads both bytes of kMagic, even from a pipe that gives one byte at a time.
    while (raw_end_ < sizeof(kMagic)) {
      const size_t count =
          read_raw(raw_.data() + raw_end_, kRawBytes - raw_end_);
      if (count == 0) {
        break;
      }
      raw_end_ += count;
    }
    is_gzip_ = begins_member();
    // 15 allows any window size; + 16 expects gzip's header and checksum.
    if (is_gzip_ && inflateInit2(&stream_, 15 + 16) != Z_OK) {
      fail("can't be decompressed: zlib has no memory", "Free some memory.");
    }
  }

  ~Stream() {
    if (is_gzip_) {
      inflateEnd(&stream_);
    }
  }

  size_t read(char* to, size_t size) {
    if (is_gzip_) {
      size_t count = 0;
      while (count == 0 && !is_ended_ && size > 0) {
        count = inflate_some(to, size);
      }
      return count;
    }
    if (raw_begin_ == raw_end_) {
      return read_raw(to, size);
    }
    const size_t count = std::min(size, raw_end_ - raw_begin_);
    std::memcpy(to, raw_.data() + raw_begin_, count);
    raw_begin_ += count;
    return count;
  }

 private:
  size_t read_raw(char* to, size_t size) {
    ssize_t count = 0;
    do {
      count = ::read(file_.number(), to, size);
    } while (count < 0 && errno == EINTR);
    if (count < 0) {
      const int number = errno;
      fail(
          c10::str("can't be read: ", std::strerror(number)),
          advice_to_read(number));
    }
    return static_cast<size_t>(count);
  }

  void fetch() {
    if (raw_begin_ == raw_end_) {
      raw_begin_ = 0;
      raw_end_ = 0;
      raw_end_ = read_raw(raw_.data(), raw_.size());
    }
  }

  bool begins_member() const {
    return raw_end_ - raw_begin_ >= sizeof(kMagic) &&
        std::memcmp(raw_.data() + raw_begin_, kMagic, sizeof(kMagic)) == 0;
  }

  // Returns the number of bytes, which may be 0 before the end.
  size_t inflate_some(char* to, size_t size) {
    if (is_damaged_) {
      fail(
          c10::str(
              "has damaged gzip data: ",
              stream_.msg != nullptr ? stream_.msg : "zlib can't continue"),
          "Download it again.");
    }
    if (is_between_members_) {
      begin_member();
      return 0;
    }
    fetch();
    if (raw_begin_ == raw_end_) {
      fail(
          "ends in the middle of its gzip data, as after an interrupted download",
          "Download it again.");
    }
    stream_.next_in = reinterpret_cast<Bytef*>(raw_.data() + raw_begin_);
    stream_.avail_in = static_cast<uInt>(raw_end_ - raw_begin_);
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    constexpr size_t kMaxBytes = size_t{1} << 30;
    const size_t requested = std::min(size, kMaxBytes);
    stream_.avail_out = static_cast<uInt>(requested);
    const int status = inflate(&stream_, Z_NO_FLUSH);
    raw_begin_ = raw_end_ - stream_.avail_in;
    const size_t count = requested - stream_.avail_out;
    is_between_members_ = status == Z_STREAM_END;
    is_damaged_ = status != Z_OK && !is_between_members_;
    return count;
  }

  // After a gzip member comes another member, zeros that pad a tape block, or the end.
  void begin_member() {
    is_between_members_ = false;
    fetch();
    if (raw_end_ - raw_begin_ == 1) {
      raw_[0] = raw_[raw_begin_];
      raw_begin_ = 0;
      raw_end_ = 1 + read_raw(raw_.data() + 1, raw_.size() - 1);
    }
    if (begins_member()) {
      inflateReset(&stream_);
      return;
    }
    while (raw_begin_ < raw_end_) {
      for (; raw_begin_ < raw_end_; ++raw_begin_) {
        if (raw_[raw_begin_] != 0) {
          fail("has other data after its gzip data", "Download it again.");
        }
      }
      fetch();
    }
    is_ended_ = true;
  }

  [[noreturn]] void fail(const std::string& problem, const char* advice) const {
    TESSERA_CHECK_VALUE(
        false, "{} '{}' {}. {}", where_, shorten(path_), problem, advice);
  }

  std::string where_;  // such as "[CriteoReader]"
  std::string path_;
  FileDescriptor file_;
  bool is_gzip_ = false;
  bool is_between_members_ = false;
  bool is_damaged_ = false;
  bool is_ended_ = false;
  std::vector<char> raw_;  // bytes [raw_begin_, raw_end_) are not used yet
  size_t raw_begin_ = 0;
  size_t raw_end_ = 0;
  z_stream stream_ = {};
};

FileBytes::FileBytes(std::string path, std::string reader)
    : stream_(std::make_unique<Stream>(std::move(path), reader)) {}

FileBytes::FileBytes(FileBytes&&) noexcept = default;
FileBytes& FileBytes::operator=(FileBytes&&) noexcept = default;
FileBytes::~FileBytes() = default;

size_t FileBytes::read(char* to, size_t size) {
  return stream_->read(to, size);
}

void check_readable(const std::string& path, const std::string& reader) {
  struct stat status = {};
  const int failed = ::stat(path.c_str(), &status);
  const char* problem = failed != 0                    ? std::strerror(errno)
      : S_ISDIR(status.st_mode)                        ? "it is a folder"
      : S_ISREG(status.st_mode) && status.st_size == 0 ? "it is empty"
                                                       : nullptr;
  TESSERA_CHECK_VALUE(
      problem == nullptr,
      "[{}] expected a file with examples, but got '{}': {}. Correct its path in `files`.",
      reader,
      shorten(path),
      problem);
}

}  // namespace tessera::data
