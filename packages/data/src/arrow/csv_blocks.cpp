// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/csv_blocks.h"

#include "src/common/check.h"
#include "src/common/text.h"

#include <arrow/csv/parser.h>
#include <arrow/memory_pool.h>

namespace tessera::data {

namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

int64_t count_newlines(std::string_view text) {
  return std::ranges::count(text, '\n');
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
    : options_(options),
      block_bytes_(static_cast<size_t>(options.block_bytes)),
      max_row_bytes_(static_cast<size_t>(options.max_row_bytes)),
      path_(path),
      stamp_(stamp),
      bytes_(kCsvReader, path) {
  check_unchanged(kCsvReader, path, stamp);
}

// Appends up to block_bytes. The first call reads at least the three bytes of a byte
// order mark, and removes the mark. Returns false at the end of the file. An error is
// kept in error_.
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

// Describes a broken row. `row` is its text as far as it was read.
RowProblem CsvBlocks::describe(RowPhase phase, std::string_view row) const {
  constexpr const char* kNoQuotes =
      "set CsvOptions::quote to '\\0' if quotes have no meaning in this file";
  if (phase == RowPhase::kTextAfterQuote) {
    return {
        .text =
            "text after a closing quote. A quote in this row may not be closed",
        .advice = kNoQuotes};
  }
  if (row.size() > max_row_bytes_) {
    return {
        .text = fmt::format(
            "the row is longer than max_row_bytes = {}. A quote may not be closed",
            max_row_bytes_),
        .advice =
            "set CsvOptions::quote to '\\0' if quotes have no meaning in this file, increase max_row_bytes"};
  }
  // With kSkip, the lines after the first one are read as other rows.
  const int64_t lines = options_.malformed_lines == MalformedLines::kSkip
      ? 1
      : count_newlines(row);
  return {
      .text = lines < 2
          ? "a quote is not closed"
          : fmt::format(
                "a quote is not closed, so the {} lines from here to the end of the file belong to this row",
                lines),
      .advice = kNoQuotes};
}

// Blanks the line at `begin` up to its newline, as empty lines are not rows. Returns the
// position after the blank part.
size_t CsvBlocks::blank_line(std::string& text, size_t begin) {
  const size_t end = find_newline(text, begin);
  is_blanking_ = end == text.size();
  std::fill(
      text.begin() + static_cast<std::ptrdiff_t>(begin),
      text.begin() + static_cast<std::ptrdiff_t>(end),
      '\r');
  return end;
}

// Removes the rest of a broken row's first line from the beginning of the text. The
// whole line may not fit into memory.
void CsvBlocks::leave_out_rest_of_line(CsvBlock& block) {
  if (!is_blanking_) {
    return;
  }
  const size_t end = find_newline(block.text, 0);
  is_blanking_ = end == block.text.size();
  block.text.erase(0, end);
  block.left_out += static_cast<int64_t>(end);
  open_ = {};
}

// Scans the row at `begin`. Reads at most max_row_bytes and one more byte, which shows
// that a row is too long. Therefore, the result does not depend on how much was read.
// `end` of the result counts from the beginning of the row.
RowScan CsvBlocks::scan(std::string_view text, size_t begin) {
  const auto first = static_cast<int64_t>(begin);
  const std::string_view row = text.substr(begin, max_row_bytes_ + 1);
  const auto scan_from = [&](size_t at, RowPhase phase) {
    return scan_row(row, options_.delimiter, options_.quote, at, phase);
  };
  const auto continued = [&] {
    return scan_from(static_cast<size_t>(open_.end - first), open_.phase);
  };
  RowScan result;
  if (open_.row == first) {
    result = continued();
  } else if (first < open_.end) {
    // This row begins inside a broken row that was scanned up to open_.end. At each
    // newline, that scan was inside quotes. Otherwise, the broken row would have ended
    // there. If this row is inside quotes at its first newline, too, both scans agree
    // from there on, and this scan continues where the other scan stopped.
    const size_t line_end = find_newline(row, 0);
    result =
        scan_row(row.substr(0, line_end), options_.delimiter, options_.quote);
    if (result.phase != RowPhase::kTextAfterQuote) {
      const bool is_alike = result.phase == RowPhase::kInQuotes &&
          first + static_cast<int64_t>(line_end) < open_.end;
      result = is_alike ? continued() : scan_from(line_end, result.phase);
    }
  } else {
    result = scan_from(0, RowPhase::kFieldBegin);
  }
  const int64_t end = first + static_cast<int64_t>(result.end);
  if (result.phase != RowPhase::kComplete && end >= open_.end) {
    open_ = {.row = first, .end = end, .phase = result.phase};
  }
  return result;
}

// Finds the broken rows, and blanks their first lines. Returns the position after the
// last row that is complete, or 0.
size_t CsvBlocks::end_of_rows(CsvBlock& block, bool is_at_end) {
  using enum RowPhase;
  std::string& text = block.text;
  const char quote = options_.quote;
  if (open_.row != 0 && text.size() <= max_row_bytes_ &&
      (quote == '\0' || text.find(quote) == std::string::npos)) {
    const size_t newline = text.find_last_of("\r\n");
    if (is_at_end || text.empty()) {
      return text.size();
    }
    if (newline != std::string::npos) {
      return newline + 1;
    }
    const bool is_field_begin = text.back() == options_.delimiter;
    open_ = {
        .row = 0,
        .end = std::ssize(text),
        .phase = is_field_begin ? kFieldBegin : kInField};
    return 0;
  }
  size_t begin = 0;
  while (begin < text.size()) {
    if (is_newline(text[begin])) {
      ++begin;
      continue;
    }
    const RowScan found = scan(text, begin);
    if (found.phase == kComplete) {
      begin += found.end;
      continue;
    }
    const std::string_view row =
        std::string_view(text).substr(begin, max_row_bytes_ + 1);
    const bool is_broken = found.phase == kTextAfterQuote ||
        row.size() > max_row_bytes_ || (is_at_end && found.phase == kInQuotes);
    if (is_broken) {
      block.broken.push_back({begin, describe(found.phase, row)});
      if (options_.malformed_lines == MalformedLines::kError) {
        return begin;
      }
      begin = blank_line(text, begin);
    } else if (is_at_end) {
      begin = text.size();
    } else {
      break;
    }
  }
  return begin;
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
  block = {.text = std::exchange(carry_, {})};
  bool is_more = false;
  bool is_refused = false;
  size_t end = 0;
  do {  // a row may be longer than a block
    is_more = read_some(block.text);
    leave_out_rest_of_line(block);
    end = end_of_rows(block, !is_more);
    is_refused = !block.broken.empty() &&
        options_.malformed_lines == MalformedLines::kError;
  } while (end == 0 && is_more && error_ == nullptr && !is_refused);
  if (is_refused) {  // the reader raises an error after the earlier rows
    block.text.resize(end);
    is_ended_ = true;
    error_ = nullptr;
    return true;
  }
  if (error_ != nullptr) {
    block.text.resize(end);  // the rest of the last row is missing
    if (end == 0) {
      std::rethrow_exception(error_);
    }
    return true;
  }
  carry_.assign(block.text, end);
  block.text.resize(end);
  open_.row -= static_cast<int64_t>(end);
  open_.end -= static_cast<int64_t>(end);
  if (!is_more) {
    is_ended_ = true;
    check_unchanged(kCsvReader, path_, stamp_);
  }
  return !block.text.empty() || block.left_out > 0;
}

std::vector<std::string> CsvBlocks::read_header() {
  const std::string where = where_of_file(kCsvReader, path_);
  while (next(first_)) {
    const std::string_view text = first_.text;
    const size_t begin = std::min(text.find_first_not_of("\r\n"), text.size());
    if (!first_.broken.empty() && first_.broken.front().begin <= begin) {
      const BrokenRow& row = first_.broken.front();
      TESSERA_CHECK_VALUE(
          false,
          "{} line {}: {}. Correct the row with the column names, or {}.",
          where,
          header_lines_ + 1 + count_newlines(text.substr(0, row.begin)),
          row.problem.text,
          row.problem.advice);
    }
    if (begin == text.size()) {
      header_lines_ += count_newlines(text);
      continue;
    }
    const int64_t line =
        header_lines_ + 1 + count_newlines(text.substr(0, begin));
    arrow::csv::BlockParser parser(
        arrow::default_memory_pool(), parse_options_of(options_), -1, -1, 1);
    uint32_t parsed = 0;
    check_status(parser.ParseFinal(text, &parsed), where);
    header_lines_ += count_newlines(text.substr(0, parsed));
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
          "{} line {}: a column name in the header is not UTF-8. Convert the file to UTF-8, or write it as text if it is of another format.",
          where,
          line);
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
