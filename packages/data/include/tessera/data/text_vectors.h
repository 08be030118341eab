// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/feature_pipeline.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

/// Words, or other names, and their vectors.
struct TextVectors {
  std::vector<std::string> words = {};
  at::Tensor vectors = {};  // [words, dim] float32
};

namespace detail {

/// The options of load_text_vectors().
struct TextVectorOptions {
  /// The number of values of a vector. With 0, the first line determines it.
  int64_t dim = 0;
  /// The number of words to read from the beginning of the file, which has the most
  /// frequent words first. If unset, all words are read.
  std::optional<int64_t> max_words = {};

  bool operator==(const TextVectorOptions&) const = default;
};

}  // namespace detail

// snippet: tests/docs/reference_data_test.cpp load_text_vectors
/// Reads the text formats of word2vec and GloVe, plain or gzip: a line for each word,
/// with the word and its numbers. In word2vec's format, the first line has the number of
/// words and the number of values per word.
///
///   const TextVectors glove =
///       load_text_vectors("glove.txt", {.max_words = 100'000});
///   at::Tensor rows = layer->embedding_tables()["words"].clone();
///   const int64_t found = copy_vectors(glove, pipeline, "word", rows);
///   layer->update_embedding_table("words", rows);
///
/// Set `dim` if the first word has spaces. Other words may have spaces, too. A word that
/// ends in a space and a number, such as "iPhone 4", is an error, because its line seems
/// to have a number too many. Binary files of word2vec are not read.
/// Errors:  c10::ValueError naming the file, the line and the problem, such as a line
///          with too many or too few numbers.
TextVectors load_text_vectors(
    const std::string& path,
    const detail::TextVectorOptions& options = {});

/// Copies vectors into the rows [vocabulary_size, dim] of a feature with a Vocabulary:
/// each value gets the vector of the word that equals it. Integers are compared as
/// decimal numbers. The other rows stay as they are. If a word occurs twice, its first
/// vector is used. Returns the number of values that have a vector.
/// Errors:  c10::ValueError for rows of another size, and those of
///          FeaturePipeline::to_text().
int64_t copy_vectors(
    const TextVectors& from,
    const FeaturePipeline& pipeline,
    std::string_view feature,
    const at::Tensor& rows);

}  // namespace tessera::data
