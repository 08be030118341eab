// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/line_source.h>

#include <tessera/data/file_bytes.h>

#include "packages/data/tests/criteo_files.h"
#include "tests/test_util.h"

namespace tessera::data::line_source_test {

std::string read_bytes(FileBytes& bytes, size_t step) {
  std::string text;
  while (true) {
    const size_t begin = text.size();
    text.resize(begin + step);
    const size_t count = bytes.read(text.data() + begin, step);
    text.resize(begin + count);
    if (count == 0) {
      return text;
    }
  }
}

Texts read_lines(const LineSource::Options& options) {
  Texts lines;
  LineSource source(options);
  for (LineSource::Block block; source.next(block);) {
    std::string_view text(
        block.text.data() + block.begin, block.end - block.begin);
    if (options.start_line == 0) {
      EXPECT_EQ(block.first_line, static_cast<int64_t>(lines.size()));
    }
    while (!text.empty()) {
      const size_t end = text.find('\n');
      lines.emplace_back(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
  }
  return lines;
}

TEST(FileBytesTest, ReadsTextAndGzip) {
  const TemporaryFolder folder;
  const std::string text = "one\ntwo\n" + std::string(100'000, 'x');
  for (const size_t step : {1UL, 7UL, 1UL << 20}) {
    FileBytes plain(folder.write("a", text));
    EXPECT_EQ(read_bytes(plain, step), text);
    FileBytes members(folder.write("a.gz", make_gzip(text) + make_gzip("z")));
    EXPECT_EQ(read_bytes(members, step), text + "z");
    FileBytes moved = std::move(members);
    EXPECT_EQ(read_bytes(moved, step), "");
  }
}

TEST(FileBytesTest, ErrorsNameTheReader) {
  const TemporaryFolder folder;
  EXPECT_VALUE_ERROR(
      FileBytes(folder / "a"),
      "[FileBytes] '" + (folder / "a") +
          "' can't be opened: No such file or directory. Correct the path.");
  const std::string gzip = make_gzip("some text");
  FileBytes bytes(
      folder.write("a.gz", gzip.substr(0, gzip.size() - 3)), "MyReader");
  EXPECT_VALUE_ERROR(
      read_bytes(bytes, 100),
      "[MyReader] '" + (folder / "a.gz") +
          "' ends in the middle of its gzip data");
  EXPECT_VALUE_ERROR(
      check_readable(folder.write("b", ""), "MyReader"),
      "[MyReader] expected a file with examples, but got '" + (folder / "b") +
          "': it is empty. Correct its path in `files`.");
}

TEST(LineSourceTest, ReadsTheLinesOfAllFiles) {
  const TemporaryFolder folder;
  const Texts files{
      folder.write("a", "one\ntwo\n\nfour"),
      folder.write("b.gz", make_gzip("five\nsix\n"))};
  const Texts expected{"one", "two", "", "four", "five", "six"};
  for (const size_t block_bytes : {1, 3, 1000}) {
    EXPECT_EQ(
        read_lines({.files = files, .block_bytes = block_bytes}), expected);
  }
}

TEST(LineSourceTest, RefusesFilesThatAreNoText) {
  const TemporaryFolder folder;
  const struct {
    std::string bytes;
    std::string problem;
  } cases[] = {
      {make_gzip(make_gzip("one\n")),
       "what it unpacks to is compressed with gzip. Unpack it first."},
      {"\x28\xb5\x2f\xfd----", "it is compressed with zstd."},
      {"PAR1----", "it is a Parquet file. Use make_parquet_source()."},
      {"\xff\xff\xff\xff----", "it is an Arrow stream. Write it as"},
      {"\xff\xfeo", "it is UTF-16 text. Convert it to UTF-8."},
      {make_tar(kTarMagics[0]), "it is a tar file. Unpack it"},
      {make_gzip(make_tar(kTarMagics[1])), "it is a tar file."}};
  for (const auto& [bytes, problem] : cases) {
    const std::string path = folder.write("a", bytes);
    EXPECT_VALUE_ERROR(
        read_lines({.files = {path}, .reader = "MyReader"}),
        "[MyReader] '" + path + "' must be a text file, but " + problem);
  }
}

TEST(LineSourceTest, RefusesOptionsOutOfRange) {
  const TemporaryFolder folder;
  const Texts files{folder.write("a", "one\n")};
  constexpr size_t kMax = std::numeric_limits<size_t>::max();
  EXPECT_VALUE_ERROR(
      LineSource({}), "[LineSource] expected at least one file, but files is");
  for (const size_t bytes : {size_t{0}, (size_t{1} << 30) + 1, kMax}) {
    EXPECT_VALUE_ERROR(
        LineSource({.files = files, .block_bytes = bytes}),
        "[LineSource] block_bytes must be in [1, 1073741824], but got");
    EXPECT_VALUE_ERROR(
        LineSource({.files = files, .max_line_bytes = bytes}),
        "[LineSource] max_line_bytes must be in [1, 1073741824], but got");
  }
  EXPECT_VALUE_ERROR(
      LineSource(
          {.files = files,
           .block_bytes = size_t{1} << 20,
           .padding = kMax - (size_t{1} << 20),
           .reader = "MyReader"}),
      "[MyReader] padding must be in [0, 1048576], but got");
  EXPECT_VALUE_ERROR(
      LineSource({.files = files, .start_line = -1}),
      "[LineSource] start_line must be >= 0, but got -1");
}

TEST(LineSourceTest, ErrorsNameTheReader) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a", "one\n");
  EXPECT_RAISES(
      LineSource::StartAfterEnd,
      read_lines({.files = {path}, .start_line = 2, .reader = "MyReader"}),
      "[MyReader] start_line must be at most the number of lines, 1");
  EXPECT_VALUE_ERROR(
      read_lines({.files = {folder / "b"}}),
      "[LineSource] expected a file with examples");
}

}  // namespace tessera::data::line_source_test
