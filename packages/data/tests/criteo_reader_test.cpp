// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/criteo_reader.h>
#include <tessera/data/line_source.h>

#include "packages/data/tests/criteo_files.h"
#include "tests/test_util.h"

namespace tessera::data::criteo_reader_test {

using CriteoReaderTest = CriteoFilesTest;

TEST_F(CriteoReaderTest, ReturnsTheContentsOfTheFile) {
  const std::string path = folder.write(
      "a",
      "1\t5\t-3\t\t123456\t1234567\t12345678\t-1234567\t"
      "9223372036854775807\t-9223372036854775807\t0\t-0\t007\t\t"
      "00000000\tffffffff\tDEADBEEF\t\tabc\t"
      "68fd1e64\t80e26c9b\tfb936136\t7b4723c4\t25c83c98\t7e0ccccf\tde7995b8\t"
      "1f89b562\ta73ee510\ta8cd5504\tb2cb9c98\t37c9c164\t2824a5f6\t1adce6ef\t"
      "8ba8b39a\t891b62e7\te5ba7672\tf54016b9\t21ddcdc9\tb1252a9d\t07b5194c\n");
  CriteoReader reader({.files = {path}});
  const std::optional<CriteoBatch> batch = reader.next();
  ASSERT_TRUE(batch.has_value());
  EXPECT_TRUE(at::equal(batch->labels, at::ones({1})));
  EXPECT_TRUE(at::equal(
      batch->integers,
      int64s({5,
              -3,
              kMissing,
              123456,
              1234567,
              12345678,
              -1234567,
              9223372036854775807,
              -9223372036854775807,
              0,
              0,
              7,
              kMissing})
          .view({1, 13})));
  EXPECT_TRUE(at::equal(
      batch->categories.slice(1, 0, 6),
      int64s({0, 0xffffffff, 0xdeadbeef, kMissing, 0xabc, 0x68fd1e64})
          .view({1, 6})));
  EXPECT_EQ(batch->categories[0][25].item<int64_t>(), 0x07b5194c);
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_FALSE(reader.next().has_value());
}

TEST_F(CriteoReaderTest, AgreesWithASlowParserWhereverBlocksEnd) {
  const std::string text = random_text(random, 97);
  const CriteoBatch expected = parse_slowly(text);
  const std::string plain = folder.write("plain", text);
  const std::string gzip = folder.write("gzip", make_gzip(text));
  for (const std::string& file : {plain, gzip}) {
    for (const int64_t block_bytes : {1, 7, 100, 333, 1000, 5000, 1 << 20}) {
      for (const int64_t threads : {1, 3}) {
        for (const int64_t batch_size : {1, 10, 97, 98}) {
          SCOPED_TRACE(
              c10::str(file, " ", block_bytes, " ", threads, " ", batch_size));
          expect_examples(
              {.files = {file},
               .batch_size = batch_size,
               .threads = threads,
               .block_bytes = block_bytes},
              expected);
        }
      }
    }
  }
}

TEST_F(CriteoReaderTest, BatchesDoNotDependOnThreadsAndBlocks) {
  const Texts files{
      folder.write("a", random_text(random, 3000)),
      folder.write("b", make_gzip(random_text(random, 2000))),
      folder.write("c", random_text(random, 1))};
  const std::vector<CriteoBatch> expected = read_all(
      {.files = files, .batch_size = 512, .threads = 1, .queue_blocks = 1});
  ASSERT_EQ(expected.size(), 10U);
  for (const int64_t threads : {1, 2, 8}) {
    for (const int64_t queue_blocks : {0, 1, 2, 3, 20}) {
      const std::vector<CriteoBatch> batches = read_all(
          {.files = files,
           .batch_size = 512,
           .threads = threads,
           .queue_blocks = queue_blocks,
           .block_bytes = 2000});
      ASSERT_EQ(batches.size(), expected.size());
      for (size_t i = 0; i < batches.size(); ++i) {
        expect_same(batches[i], expected[i]);
      }
    }
  }
}

TEST_F(CriteoReaderTest, ReadsLineEndsOfEveryKind) {
  const std::string text = random_text(random, 20);
  const CriteoBatch expected = parse_slowly(text);
  std::string windows;
  for (const char c : text) {
    windows += c == '\n' ? "\r\n" : std::string(1, c);
  }
  const std::string unfinished = text.substr(0, text.size() - 1);
  const std::string half_finished = windows.substr(0, windows.size() - 1);
  for (const auto& variant : {windows, unfinished, half_finished}) {
    for (const int64_t block_bytes : {1, 50, 10'000}) {
      expect_examples(
          {.files = {folder.write("a", variant)}, .block_bytes = block_bytes},
          expected);
    }
  }
  // A last line without a newline is not joined with the next file.
  expect_examples(
      {.files = {folder.write("a", unfinished), folder.write("b", text)}},
      join({expected, expected}));
}

TEST_F(CriteoReaderTest, ReadsGzipOfSeveralMembers) {
  const std::string text = random_text(random, 500);
  const std::string members = make_gzip(text.substr(0, 1000)) + make_gzip("") +
      make_gzip(text.substr(1000)) + std::string(100, '\0');
  expect_examples(
      {.files = {folder.write("a", members)}, .block_bytes = 700},
      parse_slowly(text));
}

TEST_F(CriteoReaderTest, ColumnsShareTheBatchesMemory) {
  CriteoReader reader({.files = {folder.write("a", random_text(random, 9))}});
  const CriteoBatch batch = reader.next().value();
  const Columns columns = to_columns(batch);
  ASSERT_EQ(columns.entries().size(), 40U);
  EXPECT_EQ(columns.entries().front().first, "label");
  EXPECT_EQ(columns.batch_size(), 9);
  const auto values = [&](const char* name) {
    return std::get<at::Tensor>(columns.at(name).values);
  };
  EXPECT_TRUE(at::equal(values("I1"), batch.integers.select(1, 0)));
  EXPECT_TRUE(at::equal(values("I13"), batch.integers.select(1, 12)));
  EXPECT_TRUE(at::equal(values("C1"), batch.categories.select(1, 0)));
  EXPECT_TRUE(at::equal(values("C26"), batch.categories.select(1, 25)));
  EXPECT_TRUE(values("C26").is_contiguous());
  EXPECT_EQ(
      values("C2").const_data_ptr(),
      batch.categories.select(1, 1).const_data_ptr());
  EXPECT_VALUE_ERROR(to_columns({}), "labels must be float32 [batch]");
  EXPECT_VALUE_ERROR(
      to_columns(
          {.labels = at::ones({9}),
           .integers = batch.integers,
           .categories = batch.integers}),
      "categories must be Long [9, 26], but got Long of shape [9, 13]");
}

TEST_F(CriteoReaderTest, DropsTheLastBatchOnlyOnRequest) {
  const std::string path = folder.write("a", random_text(random, 25));
  EXPECT_EQ(read_all({.files = {path}, .batch_size = 10}).size(), 3U);
  for (const auto& [size, batches] : {std::pair(10, 2), {5, 5}, {26, 0}}) {
    EXPECT_EQ(
        read_all({.files = {path}, .batch_size = size, .drop_last = true})
            .size(),
        batches);
  }
}

TEST_F(CriteoReaderTest, ContinuesWhereAnotherReaderStopped) {
  // There are also malformed lines at the ends of files.
  const Texts files{
      folder.write(
          "a", random_text(random, 11) + "bad\n" + random_text(random, 9)),
      folder.write("b", make_gzip("bad\nbad\n" + random_text(random, 17)))};
  for (const int64_t count : {1, 2, 3}) {
    CriteoReaderOptions options{
        .files = files,
        .batch_size = 3,
        .malformed_lines = MalformedLines::kSkip,
        .shard = {.index = count - 1, .count = count},
        .block_bytes = 700};
    const std::vector<CriteoBatch> expected = read_all(options);
    for (size_t taken = 0; taken <= expected.size(); ++taken) {
      CriteoReader reader(options);
      for (size_t i = 0; i < taken; ++i) {
        ASSERT_TRUE(reader.next().has_value());
      }
      CriteoReaderOptions rest = options;
      rest.start_line = reader.next_line();
      rest.block_bytes = 1000;
      const std::vector<CriteoBatch> batches = read_all(rest);
      ASSERT_EQ(batches.size(), expected.size() - taken);
      for (size_t i = 0; i < batches.size(); ++i) {
        expect_same(batches[i], expected[taken + i]);
      }
    }
  }
}

TEST_F(CriteoReaderTest, ContinuesWithTheExamplesOfADroppedBatch) {
  const std::string text = random_text(random, 23);
  const CriteoBatch all = parse_slowly(text);
  CriteoReaderOptions options{
      .files = {folder.write("a", text)},
      .batch_size = 5,
      .drop_last = true,
      .block_bytes = 300};  // some blocks end after the last full batch
  CriteoReader reader(options);
  while (reader.next().has_value()) {
  }
  EXPECT_EQ(reader.next_line(), 20);
  EXPECT_FALSE(reader.next().has_value());
  EXPECT_EQ(reader.next_line(), 20);
  options.start_line = reader.next_line();
  options.drop_last = false;
  expect_examples(options, slice(all, 20));
}

TEST_F(CriteoReaderTest, MayStartAtTheEndButNotAfterIt) {
  const std::string path = folder.write("a", random_text(random, 8));
  CriteoReader reader({.files = {path}, .batch_size = 8});
  EXPECT_EQ(reader.next_line(), 0);
  ASSERT_TRUE(reader.next().has_value());
  EXPECT_EQ(reader.next_line(), 8);
  EXPECT_TRUE(read_all({.files = {path}, .start_line = 8}).empty());
  EXPECT_RAISES(
      LineSource::StartAfterEnd,
      read_all({.files = {path}, .start_line = 9}),
      "[CriteoReader] start_line must be at most the number of lines, 8, but got 9");
}

TEST_F(CriteoReaderTest, EachShardGetsEveryNthLine) {
  const std::string first = random_text(random, 31);
  const std::string second = random_text(random, 20);
  const Texts files{folder.write("a", first), folder.write("b", second)};
  const CriteoBatch all = parse_slowly(first + second);
  for (const int64_t count : {2, 3, 60}) {
    for (int64_t index = 0; index < count; index += 7) {
      const auto own = [&](const at::Tensor& tensor) {
        return index < tensor.size(0) ? tensor.slice(0, index, {}, count)
                                      : tensor.slice(0, 0, 0);
      };
      expect_examples(
          {.files = files,
           .shard = {.index = index, .count = count},
           .block_bytes = 999},
          {own(all.labels), own(all.integers), own(all.categories)});
    }
  }
}

TEST_F(CriteoReaderTest, CountsExamplesAndBytes) {
  const std::string text = random_text(random, 100);
  CriteoReader reader(
      {.files = {folder.write("a", make_gzip(text))}, .batch_size = 30});
  EXPECT_EQ(reader.report().examples, 0);
  reader.next();
  EXPECT_EQ(reader.report().examples, 30);
  int64_t batches = 0;
  for (CriteoBatch& batch : reader) {
    batches += batch.labels.numel() > 0 ? 1 : 0;
  }
  EXPECT_EQ(batches, 3);
  EXPECT_EQ(reader.report().examples, 100);
  EXPECT_EQ(reader.report().bytes, static_cast<int64_t>(text.size()));
  EXPECT_EQ(reader.report().malformed_lines, 0);
}

TEST_F(CriteoReaderTest, RefusesOptionsOutOfRange) {
  EXPECT_VALUE_ERROR(CriteoReader({}), "expected at least one file");
  expect_refusals<CriteoReaderOptions>(
      {{{.batch_size = 0}, "batch_size must be in [1, 1073741824], but got 0"},
       {{.start_line = -1}, "start_line must be"},
       {{.shard = {.index = 2, .count = 2}},
        "shard.index must be in [0, 1], but got 2"},
       {{.threads = -1}, "threads must be"},
       {{.queue_blocks = -1}, "queue_blocks must"},
       {{.block_bytes = 0}, "block_bytes must be"},
       {{.max_line_bytes = 0}, "max_line_bytes must be"},
       {{.max_malformed_lines = 5},
        "malformed_lines to MalformedLines::kSkip"}},
      [&](CriteoReaderOptions options) {
        options.files = {folder.write("a", random_text(random, 1))};
        CriteoReader reader(options);
      });
}

}  // namespace tessera::data::criteo_reader_test
