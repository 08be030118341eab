// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/criteo_reader.h>

#include "tests/temporary_folder.h"

#include <zlib.h>

namespace tessera::test {

/// A well-formed line without its newline: integers of all lengths, categories
/// of all lengths and cases, and many empty fields.
inline std::string random_line(std::mt19937_64& random) {
  std::string line = random() % 4 == 0 ? "1" : "0";
  for (int i = 0; i < 13; ++i) {
    line += '\t';
    if (random() % 8 != 0) {
      line += std::to_string(
          static_cast<int64_t>(random() % 2 + random()) >> (random() % 64));
    }
  }
  for (int i = 0; i < 26; ++i) {
    line += '\t';
    if (random() % 8 != 0) {
      const size_t digits = random() % 4 == 0 ? 1 + random() % 8 : 8;
      const char* alphabet =
          random() % 2 == 0 ? "0123456789abcdef" : "0123456789ABCDEF";
      for (size_t k = 0; k < digits; ++k) {
        line += alphabet[random() % 16];
      }
    }
  }
  return line;
}

inline std::string random_text(std::mt19937_64& random, int64_t lines) {
  std::string text;
  for (int64_t i = 0; i < lines; ++i) {
    text += random_line(random) + "\n";
  }
  return text;
}

/// A second, simple parser of the format.
inline data::CriteoBatch parse_slowly(const std::string& text) {
  std::vector<std::vector<std::string>> examples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    examples.emplace_back(1);
    for (const char c : line) {
      if (c == '\t') {
        examples.back().emplace_back();
      } else {
        examples.back().back() += c;
      }
    }
  }
  const auto size = static_cast<int64_t>(examples.size());
  data::CriteoBatch batch{
      .labels = at::empty({size}),
      .integers = at::empty({size, 13}, at::kLong),
      .categories = at::empty({size, 26}, at::kLong)};
  const auto number = [](const std::string& field, int base) -> int64_t {
    return field.empty() ? data::kMissing
                         : std::strtoll(field.c_str(), nullptr, base);
  };
  for (int64_t i = 0; i < size; ++i) {
    const auto& fields = examples[i];
    TORCH_CHECK(fields.size() == 40);
    batch.labels.mutable_data_ptr<float>()[i] = std::stof(fields[0]);
    for (int64_t k = 0; k < 13; ++k) {
      batch.integers.mutable_data_ptr<int64_t>()[i * 13 + k] =
          number(fields[1 + k], 10);
    }
    for (int64_t k = 0; k < 26; ++k) {
      batch.categories.mutable_data_ptr<int64_t>()[i * 26 + k] =
          number(fields[14 + k], 16);
    }
  }
  return batch;
}

inline data::CriteoBatch join(const std::vector<data::CriteoBatch>& batches) {
  std::vector<at::Tensor> labels{at::empty({0})};
  std::vector<at::Tensor> integers{at::empty({0, 13}, at::kLong)};
  std::vector<at::Tensor> categories{at::empty({0, 26}, at::kLong)};
  for (const data::CriteoBatch& batch : batches) {
    labels.push_back(batch.labels);
    integers.push_back(batch.integers);
    categories.push_back(batch.categories);
  }
  return {at::cat(labels), at::cat(integers), at::cat(categories)};
}

inline std::vector<data::CriteoBatch> read_all(
    const data::CriteoReaderOptions& options) {
  std::vector<data::CriteoBatch> batches;
  data::CriteoReader reader(options);
  for (data::CriteoBatch& batch : reader) {
    batches.push_back(batch);
  }
  return batches;
}

inline void expect_same(
    const data::CriteoBatch& actual,
    const data::CriteoBatch& expected) {
  EXPECT_TRUE(at::equal(actual.labels, expected.labels));
  EXPECT_TRUE(at::equal(actual.integers, expected.integers));
  EXPECT_TRUE(at::equal(actual.categories, expected.categories));
}

/// Expects that all batches except the last one are full and that together they have
/// the expected examples.
inline void expect_examples(
    const data::CriteoReaderOptions& options,
    const data::CriteoBatch& expected) {
  const std::vector<data::CriteoBatch> batches = read_all(options);
  for (size_t i = 0; i + 1 < batches.size(); ++i) {
    EXPECT_EQ(batches[i].labels.numel(), options.batch_size);
  }
  expect_same(join(batches), expected);
}

/// The examples in [begin, end) of a batch.
inline data::CriteoBatch slice(
    const data::CriteoBatch& batch,
    int64_t begin,
    std::optional<int64_t> end = {}) {
  return {
      .labels = batch.labels.slice(0, begin, end),
      .integers = batch.integers.slice(0, begin, end),
      .categories = batch.categories.slice(0, begin, end)};
}

/// Tests write files with random lines into a folder of their own.
class CriteoFilesTest : public testing::Test {
 protected:
  TemporaryFolder folder;
  std::mt19937_64 random{1};
};

/// The text as one gzip member.
inline std::string make_gzip(const std::string& text) {
  z_stream stream = {};
  TORCH_CHECK(
      deflateInit2(&stream, 1, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) ==
      Z_OK);
  std::string bytes(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  TORCH_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  return bytes;
}

/// The header of a file "a.csv" in a tar file. `magic` is that of POSIX or of GNU.
inline std::string make_tar(std::string_view magic) {
  std::string header(512, '\0');
  header.replace(0, 5, "a.csv");
  header.replace(257, magic.size(), magic);
  return header;
}

/// The magics of tar files.
inline constexpr std::string_view kTarMagics[] = {
    std::string_view("ustar\0", 6),
    std::string_view("ustar  \0", 8)};

}  // namespace tessera::test
