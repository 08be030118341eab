// SPDX-License-Identifier: Apache-2.0
#include "src/data/arrow/csv_blocks.h"

#include "src/common/check.h"
#include "src/data/utf8.h"

#include <arrow/buffer.h>
#include <arrow/csv/chunker.h>
#include <arrow/csv/parser.h>
#include <arrow/memory_pool.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

namespace tessera::data {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

int64_t count_newlines(std::string_view text) {
  return std::count(text.begin(), text.end(), '\n');
}

}  // namespace

arrow::csv::ParseOptions parse_options_of(const CsvOptions& options) {
  auto parse = arrow::csv::ParseOptions::Defaults();
  parse.delimiter = options.delimiter;
  parse.quoting = options.quote != '\0';
  parse.quote_char = options.quote;
  parse.newlines_in_values = parse.quoting;
  return parse;
}

CsvBlocks::CsvBlocks(
    const CsvOptions& options,
    const std::string& path,
    const FileStamp& stamp)
    : block_bytes_(static_cast<size_t>(options.block_bytes)),
      max_row_bytes_(static_cast<size_t>(options.max_row_bytes)),
      quote_(options.quote),
      path_(path),
      stamp_(stamp),
      parse_options_(parse_options_of(options)),
      bytes_(kCsvReader, path),
      chunker_(arrow::csv::MakeChunker(parse_options_)) {
  check_unchanged(
      where_of_file(kCsvReader, path), stamp, stamp_of(kCsvReader, path));
}

CsvBlocks::~CsvBlocks() = default;

// Appends up to block_bytes, or a byte order mark. Returns false at the end of the file.
bool CsvBlocks::read_some(std::string& text) {
  const size_t begin = text.size();
  const size_t target = begin +
      (is_at_begin_ ? std::max(block_bytes_, kByteOrderMark.size())
                    : block_bytes_);
  text.resize(target);
  size_t end = begin;
  bool is_at_end = false;
  try {
    while (end < target && !is_at_end) {
      const size_t count = bytes_.read(text.data() + end, target - end);
      end += count;
      is_at_end = count == 0;
    }
  } catch (...) {
    error_ = std::current_exception();
  }
  text.resize(end);
  if (is_at_begin_) {
    is_at_begin_ = false;
    if (text.starts_with(kByteOrderMark)) {
      text.erase(0, kByteOrderMark.size());
    }
  }
  return !is_at_end;
}

// The position after the last row that is complete, or 0.
size_t CsvBlocks::end_of_rows(const std::string& text) const {
  const bool has_quotes =
      quote_ != '\0' && text.find(quote_) != std::string::npos;
  if (!has_quotes) {
    const size_t newline = text.rfind('\n');
    return newline == std::string::npos ? 0 : newline + 1;
  }
  std::shared_ptr<arrow::Buffer> whole;
  std::shared_ptr<arrow::Buffer> partial;
  check_status(
      chunker_->Process(
          std::make_shared<arrow::Buffer>(std::string_view(text)),
          &whole,
          &partial),
      where_of_file(kCsvReader, path_));
  return static_cast<size_t>(whole->size());
}

bool CsvBlocks::next(CsvBlock& block) {
  if (has_first_) {
    has_first_ = false;
    block = std::move(first_);
    return true;
  }
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
  if (is_ended_) {
    return false;
  }
  block.begin = 0;
  block.text = std::move(carry_);
  carry_.clear();
  while (true) {
    const bool is_more = read_some(block.text);
    const size_t end = end_of_rows(block.text);
    if (error_ == nullptr && is_more) {
      if (end == 0 && block.text.size() <= max_row_bytes_) {
        continue;  // the row is longer than a block
      }
      TESSERA_CHECK_VALUE(
          block.text.size() - end <= max_row_bytes_,
          "{} line {}: the row is longer than max_row_bytes = {}. A quote may not be closed. Correct the line, set CsvOptions::quote to '\\0' if quotes have no meaning in this file, or increase max_row_bytes.",
          where_of_file(kCsvReader, path_),
          line_ + count_newlines(std::string_view(block.text).substr(0, end)),
          max_row_bytes_);
    }
    if (error_ != nullptr) {
      block.text.resize(end);  // the rest of the last row is missing
      if (end == 0) {
        std::rethrow_exception(error_);
      }
    } else if (is_more || end > 0) {
      carry_.assign(block.text, end);
      block.text.resize(end);
    }
    is_ended_ = !is_more && carry_.empty();
    if (!is_more) {
      check_unchanged(
          where_of_file(kCsvReader, path_),
          stamp_,
          stamp_of(kCsvReader, path_));
    }
    line_ += count_newlines(block.text);
    return !block.text.empty();
  }
}

std::vector<std::string> CsvBlocks::read_header() {
  const std::string where = where_of_file(kCsvReader, path_);
  while (next(first_)) {
    if (first_.text.find_first_not_of("\r\n") == std::string::npos) {
      header_lines_ += count_newlines(first_.text);
      continue;
    }
    arrow::csv::BlockParser parser(
        arrow::default_memory_pool(), parse_options_, -1, -1, 1);
    uint32_t parsed = 0;
    check_status(parser.ParseFinal(first_.text, &parsed), where);
    const auto lines =
        count_newlines(std::string_view(first_.text).substr(0, parsed));
    header_lines_ += lines;
    std::vector<std::string> names;
    check_status(
        parser.VisitLastRow(
            [&](const uint8_t* data, uint32_t size, bool, bool) {
              names.emplace_back(reinterpret_cast<const char*>(data), size);
              return arrow::Status::OK();
            }),
        where);
    for (const std::string& name : names) {
      TESSERA_CHECK_VALUE(
          is_utf8(name),
          "{} line {}: a column name in the header is not UTF-8. Convert the file to UTF-8.",
          where,
          header_lines_);
    }
    first_.begin = parsed;
    has_first_ = true;
    return names;
  }
  TESSERA_CHECK_VALUE(
      false,
      "{} has no row with column names. Pass a file with a header, or set CsvOptions::names.",
      where);
}

}  // namespace tessera::data
