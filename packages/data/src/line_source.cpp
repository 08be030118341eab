// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/line_source.h>

#include <tessera/common/shorten.h>

#include "packages/data/src/reader_checks.h"
#include "src/common/check.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace tessera::data {

namespace {

LineSource::Options validated(LineSource::Options options) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  constexpr size_t kMaxPadding = size_t{1} << 20;
  check_files(options.reader, options.files);
  check_option(
      options.reader, "block_bytes", options.block_bytes, 1, kMaxBytes);
  check_option(
      options.reader, "max_line_bytes", options.max_line_bytes, 1, kMaxBytes);
  check_option(options.reader, "padding", options.padding, 0, kMaxPadding);
  TESSERA_CHECK_VALUE(
      options.start_line >= 0,
      "[{}] start_line must be >= 0, but got {}. Set it to the number of lines to skip.",
      options.reader,
      options.start_line);
  return options;
}

// The position after the first newline, or nullptr.
char* after_newline(char* begin, const char* end) {
  auto* newline = static_cast<char*>(
      std::memchr(begin, '\n', static_cast<size_t>(end - begin)));
  return newline == nullptr ? nullptr : newline + 1;
}

}  // namespace

LineSource::LineSource(Options options)
    : options_(validated(std::move(options))) {}

LineSource::~LineSource() = default;

void LineSource::open_file() {
  check_readable(options_.files[file_], options_.reader);
  bytes_ = std::make_unique<FileBytes>(options_.files[file_], options_.reader);
  line_of_file_ = 0;
  is_at_begin_ = true;
}

void LineSource::close_file() {
  TESSERA_CHECK_VALUE(
      line_of_file_ > 0,
      "[{}] expected a file with examples, but got '{}': it is empty. Correct its path in `files`.",
      options_.reader,
      shorten(options_.files[file_]));
  bytes_.reset();
  ++file_;
}

bool LineSource::next(Block& block) {
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
  // Room for the beginning of a line, the bytes that are read, a newline that the last
  // line may lack, and the padding.
  block.text.resize(
      options_.max_line_bytes + options_.block_bytes + 1 + options_.padding);
  try {
    if (file_ < options_.files.size()) {
      if (bytes_ == nullptr) {
        open_file();
      }
      fill(block);
      return true;
    }
    if (line_ < options_.start_line) {
      checks::fail<StartAfterEnd>(
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
          "[{}] start_line must be at most the number of lines, {}, but got {}. Pass the files of the reader that gave this line.",
          options_.reader,
          line_,
          options_.start_line);
    }
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
  return false;
}

void LineSource::fill(Block& block) {
  block.file = file_;
  block.begin = 0;
  block.end = carry_.size();
  std::memcpy(block.text.data(), carry_.data(), carry_.size());
  carry_.clear();
  const size_t target_end = block.end + options_.block_bytes;
  bool is_at_end = false;
  try {
    while (block.end < target_end && !is_at_end) {
      const size_t count =
          bytes_->read(block.text.data() + block.end, target_end - block.end);
      block.end += count;
      is_at_end = count == 0;
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  if (std::exchange(is_at_begin_, false)) {
    const std::string_view text(block.text.data(), block.end);
    // FileBytes unpacks gzip, so text that begins like gzip was compressed twice.
    check_text_begin(
        text.substr(0, kTextBeginBytes),
        begins_gzip(text),
        fmt::format(
            "[{}] '{}'", options_.reader, shorten(options_.files[file_])));
  }
  drop_rest_of_line(block);
  cut_last_line(block, is_at_end);
  block.first_line = line_;
  block.first_line_of_file = line_of_file_;
  skip_to_start(block);
  if (is_at_end) {
    is_dropping_ = false;
    close_file();
  }
  if (error_ != nullptr && block.lines == 0) {
    std::rethrow_exception(error_);
  }
}

void LineSource::drop_rest_of_line(Block& block) {
  if (!is_dropping_) {
    return;
  }
  char* text = block.text.data();
  const char* next = after_newline(text, text + block.end);
  block.begin = next == nullptr ? block.end : static_cast<size_t>(next - text);
  is_dropping_ = next == nullptr;
}

// At the end of the file, or if it is too long, the text after the last newline becomes a
// line. Otherwise, it is kept for the next block, or dropped before an error.
void LineSource::cut_last_line(Block& block, bool is_at_end) {
  char* text = block.text.data();
  const void* newline =
      ::memrchr(text + block.begin, '\n', block.end - block.begin);
  const size_t last = newline == nullptr
      ? block.begin
      : static_cast<size_t>(static_cast<const char*>(newline) - text) + 1;
  const size_t rest = block.end - last;
  const bool is_too_long = rest > options_.max_line_bytes;
  block.end = last;
  if (error_ != nullptr || rest == 0) {
    return;
  }
  if (is_at_end || is_too_long) {
    block.end += std::min(rest, options_.max_line_bytes + 1);
    text[block.end++] = '\n';
    is_dropping_ = is_too_long && !is_at_end;
  } else {
    carry_.assign(text + last, rest);
  }
}

// Counts the block's lines and removes those before start_line.
void LineSource::skip_to_start(Block& block) {
  block.lines = 0;
  char* text = block.text.data();
  const char* end = text + block.end;
  for (char* next = text + block.begin;
       next < end && (next = after_newline(next, end)) != nullptr;) {
    if (line_ < options_.start_line) {
      block.begin = static_cast<size_t>(next - text);
      ++block.first_line;
      ++block.first_line_of_file;
    } else {
      ++block.lines;
    }
    ++line_;
    ++line_of_file_;
  }
}

}  // namespace tessera::data
