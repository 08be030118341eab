// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/text_vectors.h>

#include <tessera/common/shorten.h>
#include <tessera/data/line_source.h>

#include "packages/data/src/reader_checks.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"
#include "src/common/text.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>
#include <utility>

namespace tessera::data {

namespace {

constexpr int64_t kMaxDim = 100'000;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
constexpr size_t kMaxLineBytes = size_t{1} << 22;

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

std::string_view without_spaces_at_end(std::string_view text) {
  while (!text.empty() && is_space(text.back())) {
    text.remove_suffix(1);
  }
  return text;
}

// Removes the last field and returns it.
std::string_view take_last_field(std::string_view& line) {
  line = without_spaces_at_end(line);
  size_t begin = line.size();
  while (begin > 0 && !is_space(line[begin - 1])) {
    --begin;
  }
  const std::string_view field = line.substr(begin);
  line.remove_suffix(line.size() - begin);
  return field;
}

// Returns true if a field looks like a number, in any spelling. "inf" and "nan" are words.
bool is_number(std::string_view field) {
  double number = 0;
  field.remove_prefix(field.starts_with('+') ? 1 : 0);
  const char* end = field.data() + field.size();
  const auto result = std::from_chars(field.data(), end, number);
  return result.ec != std::errc::invalid_argument && result.ptr == end &&
      field.find_first_of("0123456789") != std::string_view::npos;
}

int64_t count_fields(std::string_view line) {
  int64_t count = 0;
  while (!take_last_field(line).empty()) {
    ++count;
  }
  return count;
}

// Collects the words and vectors of one file.
class Parser {
 public:
  Parser(std::string path, const detail::TextVectorOptions& options)
      : path_(std::move(path)), options_(options), dim_(options.dim) {}

  bool is_full() const {
    return options_.max_words && count() >= *options_.max_words;
  }

  void add_line(std::string_view line) {
    ++line_;
    if (line_ == 1 && line.starts_with(kByteOrderMark)) {
      line.remove_prefix(kByteOrderMark.size());
    }
    TESSERA_CHECK_VALUE(
        line.size() <= kMaxLineBytes,
        "{} is longer than {} bytes. Pass a file of the text format of word2vec or GloVe.",
        where(),
        kMaxLineBytes);
    line = without_spaces_at_end(line);
    if (line.empty() || is_full() || (words_.empty() && is_header(line))) {
      return;
    }
    if (dim_ == 0) {
      dim_ = count_fields(line) - 1;
      source_ = c10::str(" as line ", line_, " has");
    }
    const size_t begin = values_.size();
    values_.resize(begin + static_cast<size_t>(dim_));
    for (int64_t i = dim_ - 1; i >= 0; --i) {
      const std::string_view field = take_last_field(line);
      float& value = values_[begin + static_cast<size_t>(i)];
      TESSERA_CHECK_VALUE(
          parse_float(field, value) && std::isfinite(value),
          "{} must have a word and {} numbers{}, but number {} is '{}'. Correct the file, or set `dim` if its first word has spaces.",
          where(),
          dim_,
          source_,
          i + 1,
          shorten(field));
    }
    const std::string_view word = without_spaces_at_end(line);
    TESSERA_CHECK_VALUE(
        dim_ > 0 && !word.empty() && is_utf8(std::string(word)),
        "{} must have a word in UTF-8 and then {} numbers, but has {}. Correct the file.",
        where(),
        std::max<int64_t>(dim_, 1),
        dim_ == 0          ? "one field"
            : word.empty() ? "no word"
                           : "other bytes than UTF-8");
    std::string_view rest = word;
    const std::string_view last = take_last_field(rest);
    TESSERA_CHECK_VALUE(
        without_spaces_at_end(rest).empty() || !is_number(last),
        "{} must have a word and {} numbers{}, but has more: its word would be '{}', which ends in a number. Remove what is no vector from the beginning of the file, correct its first line or `dim`, or replace the spaces in the word.",
        where(),
        dim_,
        source_,
        shorten(word));
    words_.emplace_back(word);
  }

  TextVectors finish() {
    TESSERA_CHECK_VALUE(
        !words_.empty(),
        "[load_text_vectors] '{}' has no vectors. Pass a file of the text format of word2vec or GloVe.",
        shorten(path_));
    TESSERA_CHECK_VALUE(
        !expected_ || is_full() || *expected_ == count(),
        "[load_text_vectors] '{}' must have {} words, as its first line says, but has {}. Get the whole file.",
        shorten(path_),
        expected_.value_or(0),
        count());
    at::Tensor vectors = at::tensor(values_, at::kFloat).view({count(), dim_});
    return {.words = std::move(words_), .vectors = std::move(vectors)};
  }

 private:
  int64_t count() const {
    return std::ssize(words_);
  }
  std::string where() const {
    return c10::str("[load_text_vectors] '", shorten(path_), "' line ", line_);
  }

  // In word2vec's format, the first line has the number of words and the number of
  // values.
  bool is_header(std::string_view line) {
    int64_t words = 0;
    int64_t dim = 0;
    if (expected_ || count_fields(line) != 2 ||
        !parse_whole(take_last_field(line), dim) ||
        !parse_whole(take_last_field(line), words) || dim < 1 || words < 0) {
      return false;
    }
    TESSERA_CHECK_VALUE(
        dim <= kMaxDim,
        "{} says that vectors have {} values, but they may have at most {}. Correct the file.",
        where(),
        dim,
        kMaxDim);
    TESSERA_CHECK_VALUE(
        dim_ == 0 || dim_ == dim,
        "{} says that vectors have {} values, but `dim` is {}. Leave `dim` out.",
        where(),
        dim,
        dim_);
    dim_ = dim;
    source_ = c10::str(" as line ", line_, " says");
    expected_ = words;
    return true;
  }

  std::string path_;
  const detail::TextVectorOptions& options_;
  int64_t dim_;
  std::string source_;  // where dim_ comes from, if not from the options
  std::optional<int64_t> expected_;
  int64_t line_ = 0;
  std::vector<std::string> words_;
  std::vector<float> values_;
};

}  // namespace

TextVectors load_text_vectors(
    const std::string& path,
    const detail::TextVectorOptions& options) {
  TESSERA_CHECK_VALUE(
      options.dim >= 0 && options.dim <= kMaxDim,
      "[load_text_vectors] dim must be in [0, {}], but got {}. Leave it at 0 to take it from the file.",
      kMaxDim,
      options.dim);
  TESSERA_CHECK_VALUE(
      !options.max_words || *options.max_words >= 1,
      "[load_text_vectors] max_words must be >= 1, but got {}. Leave it unset to read all words.",
      options.max_words.value_or(1));
  Parser parser(path, options);
  LineSource source(
      {.files = {path},
       .max_line_bytes = kMaxLineBytes,
       .reader = "load_text_vectors"});
  for (LineSource::Block block; !parser.is_full() && source.next(block);) {
    std::string_view text(
        block.text.data() + block.begin, block.end - block.begin);
    while (!text.empty()) {
      const size_t end = text.find('\n');
      parser.add_line(text.substr(0, end));
      text.remove_prefix(std::min(end, text.size() - 1) + 1);
    }
  }
  return parser.finish();
}

int64_t copy_vectors(
    const TextVectors& from,
    const FeaturePipeline& pipeline,
    std::string_view feature,
    const at::Tensor& rows) {
  const int64_t size = pipeline.vocabulary_size(feature);
  TESSERA_CHECK_VALUE(
      from.vectors.defined() && from.vectors.dim() == 2 &&
          from.vectors.size(0) == std::ssize(from.words),
      "[copy_vectors] expected a vector for each of {} words, but got {}.",
      from.words.size(),
      describe(from.vectors));
  TESSERA_CHECK_VALUE(
      rows.defined() && rows.dim() == 2 && rows.size(0) == size &&
          rows.size(1) == from.vectors.size(1),
      "[copy_vectors] feature '{}' expected rows [{}, {}], but got {}. Pass the rows of its table, whose dim is that of the vectors.",
      shorten(feature),
      size,
      from.vectors.size(1),
      describe(rows));
  std::unordered_map<std::string_view, int64_t> positions;
  for (size_t i = 0; i < from.words.size(); ++i) {
    // emplace() keeps the first of equal words.
    positions.emplace(from.words[i], static_cast<int64_t>(i));
  }
  std::vector<int64_t> values;
  for (int64_t id = pipeline.num_reserved_ids(feature); id < size; ++id) {
    values.push_back(id);
  }
  const std::vector<std::string> texts =
      pipeline.to_text(feature, at::tensor(values, at::kLong));
  std::vector<int64_t> ids;
  std::vector<int64_t> sources;
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto found = positions.find(texts[i]);
    if (found != positions.end()) {
      ids.push_back(values[i]);
      sources.push_back(found->second);
    }
  }
  const at::NoGradGuard no_grad;
  at::Tensor(rows).index_copy_(
      0,
      at::tensor(ids, at::kLong),
      from.vectors.index_select(0, at::tensor(sources, at::kLong))
          .to(rows.scalar_type()));
  return std::ssize(ids);
}

}  // namespace tessera::data
