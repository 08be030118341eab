// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/criteo_source.h>

#include "packages/data/tests/criteo_files.h"
#include "packages/data/tests/source_examples.h"
#include "tests/test_util.h"

namespace tessera::data::criteo_source_test {

using CriteoSourceTest = CriteoFilesTest;

// The examples of a reader, which the source must give in the same order.
Texts show_reader(CriteoReaderOptions options, int64_t first) {
  options.batch_size = 1;
  std::vector<ShownColumn> columns;
  CriteoReader reader(options);
  for (CriteoBatch& batch : reader) {
    if (first-- > 0) {
      continue;
    }
    const Columns examples = to_columns(batch);
    for (size_t i = 0; i < examples.entries().size(); ++i) {
      if (i == columns.size()) {
        columns.emplace_back(examples.entries()[i].first);
      }
      columns[i].add(examples.entries()[i].second);
    }
  }
  Texts texts;
  for (const ShownColumn& column : columns) {
    texts.push_back(column.text());
  }
  return texts;
}

TEST_F(CriteoSourceTest, OpensAtAnyExample) {
  const std::string first =
      folder.write("a.gz", make_gzip(random_text(random, 11)));
  const std::string second = folder.write("b", random_text(random, 6));
  for (const CriteoReaderOptions::Shard& shard :
       {CriteoReaderOptions::Shard{},
        CriteoReaderOptions::Shard{.index = 1, .count = 3},
        CriteoReaderOptions::Shard{.index = 2, .count = 3}}) {
    for (const int64_t start_line : {0, 1, 5}) {
      const CriteoReaderOptions options{
          .files = {first, second},
          .batch_size = 4,
          .start_line = start_line,
          .shard = shard};
      const auto source = make_criteo_source(options);
      for (int64_t start = 0; start < 18; ++start) {
        EXPECT_EQ(show_all(*source, start), show_reader(options, start));
      }
      EXPECT_EQ(source->size(), std::nullopt);
    }
  }
}

TEST_F(CriteoSourceTest, SkippedLinesAreNoExamples) {
  const CriteoReaderOptions options{
      .files = {folder.write(
          "a",
          random_text(random, 3) + "bad\n" + random_text(random, 4) + "\n" +
              random_text(random, 2))},
      .batch_size = 2,
      .malformed_lines = MalformedLines::kSkip};
  const auto source = make_criteo_source(options);
  for (int64_t start = 0; start < 11; ++start) {
    EXPECT_EQ(show_all(*source, start), show_reader(options, start));
    EXPECT_EQ(source->report().malformed_lines, 2);
  }
  EXPECT_EQ(source->report().first_malformed_lines.size(), 2U);
}

TEST_F(CriteoSourceTest, ErrorsAreThoseOfTheReader) {
  const std::string path = folder.write("a", random_text(random, 2) + "bad\n");
  EXPECT_VALUE_ERROR(
      make_criteo_source({.files = {folder / "no file"}}),
      "[CriteoReader] expected a file with examples");
  EXPECT_VALUE_ERROR(
      make_criteo_source({.files = {path}, .drop_last = true}),
      "drop_last must be false");
  EXPECT_VALUE_ERROR(
      make_criteo_source({.files = {path}, .batch_size = 0}),
      "batch_size must be in");
  const auto source = make_criteo_source({.files = {path}, .batch_size = 1});
  EXPECT_VALUE_ERROR(source->open(-1), "first must be >= 0");
  EXPECT_VALUE_ERROR(source->open(2)->next(), "line 3: expected 40 fields");
  EXPECT_EQ(source->open(3)->next(), std::nullopt);
  EXPECT_EQ(source->open(100)->next(), std::nullopt);
}

}  // namespace tessera::data::criteo_source_test
