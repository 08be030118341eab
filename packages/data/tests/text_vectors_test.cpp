// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/text_vectors.h>

#include "packages/data/tests/criteo_files.h"
#include "tests/test_util.h"

namespace tessera::data::text_vectors_test {

class TextVectorsTest : public testing::Test {
 protected:
  TextVectors load(
      const std::string& text,
      const detail::TextVectorOptions& options = {}) {
    return load_text_vectors(folder_.write("vectors.txt", text), options);
  }

  TemporaryFolder folder_;
};

TEST_F(TextVectorsTest, ReadsTheFormatsOfWord2vecAndGlove) {
  const at::Tensor expected = floats({1, -0.5F, 0.25F, 3}).view({2, 2});
  for (const char* text :
       {"red 1 -0.5\nblue 0.25 3\n",  // GloVe
        "2 2\nred 1 -0.5 \nblue 0.25 3 \n",  // word2vec
        "2 2\r\nred\t1\t-5e-1\r\n\nblue\t.25\t3"}) {
    const TextVectors vectors = load(text);
    EXPECT_EQ(vectors.words, (Texts{"red", "blue"})) << text;
    test::expect_close(vectors.vectors, expected);
  }
  const TextVectors zipped = load(make_gzip("red 1 -0.5\nblue 0.25 3\n"));
  test::expect_close(zipped.vectors, expected);
}

TEST_F(TextVectorsTest, WordsMayHaveSpacesAndBeNumbers) {
  const TextVectors vectors = load("the 1 2\n. . . 3 4\n17 5 6\n");
  EXPECT_EQ(vectors.words, (Texts{"the", ". . .", "17"}));
  EXPECT_EQ(
      load("New York 1 2\nred 3 4\n", {.dim = 2}).words,
      (Texts{"New York", "red"}));
  EXPECT_EQ(
      load("3 2\na 1 2\nb 1 2\nc 1 2\n", {.max_words = 2}).words,
      (Texts{"a", "b"}));
}

TEST_F(TextVectorsTest, NamesTheLineOfAnError) {
  const auto refuses = [&](const std::string& text, const char* message) {
    EXPECT_VALUE_ERROR(load(text), message);
  };
  refuses(
      "a 1 2\nb 1\n",
      "vectors.txt' line 2 must have a word and 2 numbers as line 1 has, but number 1 is 'b'");
  refuses(
      "a 1 2\nb 1 x\n",
      "line 2 must have a word and 2 numbers as line 1 has, but number 2 is 'x'");
  refuses("a 1 2\nb 1 nan\n", "number 2 is 'nan'");
  refuses(
      "a 1 2\n 1 2\n",
      "line 2 must have a word in UTF-8 and then 2 numbers, but has no word");
  refuses(
      "a\n",
      "line 1 must have a word in UTF-8 and then 1 numbers, but has one field");
  refuses("a 1\n\xff 2\n", "line 2 must have a word in UTF-8");
  refuses(
      "3 1\na 1\nb 2\n",
      "must have 3 words, as its first line says, but has 2");
  refuses("0 4\n", "has no vectors");
  EXPECT_VALUE_ERROR(
      load("2 3\n", {.dim = 2}), "says that vectors have 3 values");
  EXPECT_VALUE_ERROR(load("a 1\n", {.dim = -1}), "dim must be in [0, 100000]");
  EXPECT_VALUE_ERROR(load("a 1\n", {.max_words = 0}), "max_words must be >= 1");
  EXPECT_VALUE_ERROR(load_text_vectors("nowhere.txt"), "[load_text_vectors]");
}

TEST_F(TextVectorsTest, ByteOrderMarkIsNoPartOfTheFirstLine) {
  for (const char* text :
       {"\xef\xbb\xbf"
        "a 1 2\nb 3 4\n",
        "\xef\xbb\xbf"
        "2 2\na 1 2\nb 3 4\n",
        "\n2 2\na 1 2\nb 3 4\n"}) {
    const TextVectors vectors = load(text);
    EXPECT_EQ(vectors.words, (Texts{"a", "b"}));
    test::expect_close(vectors.vectors, floats({1, 2, 3, 4}).view({2, 2}));
  }
}

TEST_F(TextVectorsTest, RefusesLinesOfAnotherWidth) {
  const std::string rows = "a 1 2\nb 3 4\n";
  for (const char* first :
       {"# 300", "dim 2", "1,000 2", "x 1", "3 0", "-2 2", "2.0 2"}) {
    EXPECT_VALUE_ERROR(
        load(first + ("\n" + rows)),
        "line 2 must have a word and 1 numbers as line 1 has, but has more: "
        "its word would be 'a 1', which ends in a number");
  }
  EXPECT_VALUE_ERROR(
      load("2 1\n" + rows),
      "line 2 must have a word and 1 numbers as line 1 says, but has more");
  EXPECT_VALUE_ERROR(
      load("2 3\n" + rows),
      "line 2 must have a word and 3 numbers as line 1 says, but number 1 is");
  EXPECT_VALUE_ERROR(
      load(rows, {.dim = 1}), "line 1 must have a word and 1 numbers, but has");
  for (const char* number : {"5", "+5", "-.5e3", "1e400"}) {
    EXPECT_VALUE_ERROR(
        load(rows + "c " + number + " 1 2\n"), "line 3 must have a word and 2");
  }
}

TEST_F(TextVectorsTest, WordsMayEndInInfAndNan) {
  EXPECT_EQ(
      load("to 1 2\nto inf 3 4\nla nan 5 6\n").words,
      (Texts{"to", "to inf", "la nan"}));
}

TEST_F(TextVectorsTest, AHeaderWithAHugeDimIsRefused) {
  for (const char* dim : {"100001", "100000000000", "9223372036854775807"}) {
    EXPECT_VALUE_ERROR(
        load("1 " + std::string(dim) + "\na 1 2\n"),
        "line 1 says that vectors have " + std::string(dim) +
            " values, but they may have at most 100000");
  }
}

TEST_F(TextVectorsTest, TinyNumbersAreZero) {
  const TextVectors vectors = load("a 1e-50 -1e-400\nb 0.5 1e-40\n");
  EXPECT_EQ(vectors.vectors[0].abs().sum().item<float>(), 0.0F);
  EXPECT_GT(vectors.vectors[1][1].item<float>(), 0.0F);
  EXPECT_VALUE_ERROR(load("a 1e400\n"), "number 1 is '1e400'");
}

TEST_F(TextVectorsTest, VectorsAreCopiedByName) {
  const FeaturePipeline pipeline(
      {{"id",
        {"id"},
        transforms::Vocabulary{.values = std::vector<int64_t>{7, 8, 9}}},
       {"hash", {"h"}, transforms::Hash{.num_bins = 5}}});
  const TextVectors vectors = load("9 1 2\n7 3 4\n9 5 6\n(unknown) 7 8\n");
  const at::Tensor rows = at::zeros({5, 2});
  EXPECT_EQ(copy_vectors(vectors, pipeline, "id", rows), 2);
  test::expect_close(rows, floats({0, 0, 0, 0, 3, 4, 0, 0, 1, 2}).view({5, 2}));
  EXPECT_VALUE_ERROR(
      copy_vectors(vectors, pipeline, "id", at::zeros({5, 3})),
      "[copy_vectors] feature 'id' expected rows [5, 2], but got");
  EXPECT_VALUE_ERROR(
      copy_vectors(vectors, pipeline, "hash", rows), "Hash can't be reversed");
  EXPECT_VALUE_ERROR(
      copy_vectors({.words = {"a"}}, pipeline, "id", rows),
      "expected a vector for each of 1 words");
}

}  // namespace tessera::data::text_vectors_test
