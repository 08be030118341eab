// SPDX-License-Identifier: Apache-2.0

#include "packages/data/src/criteo_line.h"
#include "packages/data/tests/criteo_files.h"
#include "tests/test_util.h"

namespace tessera::data::criteo_reader_errors_test {

using CriteoReaderErrorsTest = CriteoFilesTest;

// The line with one field replaced.
std::string with_field(
    const std::string& line,
    size_t field,
    const std::string& value) {
  size_t begin = 0;
  for (; field > 0; --field) {
    begin = line.find('\t', begin) + 1;
  }
  const size_t end = line.find('\t', begin);
  return line.substr(0, begin) + value +
      (end == std::string::npos ? "" : line.substr(end));
}
struct Malformed {
  std::string line;
  std::string problem;
};

std::vector<Malformed> malformed_lines() {
  std::mt19937_64 random(1);
  const std::string good = random_line(random);
  std::vector<Malformed> lines{
      {"", "expected 40 fields separated by tabs, but got 1: ''"},
      {"\r", "expected 40 fields separated by tabs, but got 1: '\\x0d'"},
      {good.substr(0, good.rfind('\t')), "but got 39"},
      {good + "\t", "but got 41"},
      {good + "\r\r", "field 40 (C26) must be up to 8 hexadecimal digits"},
      {with_field(good, 0, ""), "field 1 (label) must be 0 or 1, but got ''"},
      {with_field(good, 0, "2"), "field 1 (label) must be 0 or 1, but got '2'"},
      {with_field(good, 0, "00"), "field 1 (label)"},
      {with_field(good, 3, "0") + std::string(5000, '0'),
       "is longer than max_line_bytes = 4096"},
      {with_field(good, 5, std::string(5000, '0')),
       "is longer than max_line_bytes = 4096"},
      {std::string(100'000, 'x'), "is longer than max_line_bytes = 4096"},
  };
  for (const std::string& integer :
       listed("-, --1, +1, 1-, x, 1x, 12345678x,  1, 1.5, 1 , :, /, -x, "
              "123456\xb1, 9223372036854775808, -9223372036854775808, "
              "-9223372036854775809, 99999999999999999999999, \r")) {
    lines.push_back(
        {with_field(good, 7, integer),
         "field 8 (I7) must be an integer above -2^63 and below 2^63, or empty, "
         "but got '"});
  }
  for (const std::string& category :
       listed("123456789, 0x123456, 1234567g, 1234567G, 1234567/, 1234567:, "
              "1234567@, 1234567`, 123 5678, -1234567, 1234567\xb1, \xe1, z, "
              "\r")) {
    lines.push_back(
        {with_field(good, 20, category),
         "field 21 (C7) must be up to 8 hexadecimal digits, or empty, but got "
         "'"});
    lines.push_back(
        {with_field(good, 39, category) + (category == "\r" ? "\r" : ""),
         "field 40 (C26) must be up to 8 hexadecimal digits"});
  }
  for (const size_t field : {0, 7, 20, 39}) {
    lines.push_back(
        {with_field(good, field, std::string(1, '\0')), "but got '\\x00'"});
  }
  return lines;
}

TEST_F(CriteoReaderErrorsTest, MalformedLinesAreNamed) {
  const std::string first = folder.write("first", random_text(random, 3));
  const std::string before = random_text(random, 12);
  for (const auto& [line, problem] : malformed_lines()) {
    const std::string path =
        folder.write("second", before + line + "\n" + random_text(random, 9));
    for (const int64_t block_bytes : {1000, 1 << 18}) {
      CriteoReader reader(
          {.files = {first, path},
           .batch_size = 5,
           .block_bytes = block_bytes});
      // Complete batches before the malformed line come first.
      for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(reader.next().has_value());
      }
      EXPECT_VALUE_ERROR(reader.next(), "'" + path + "' line 13: ");
      EXPECT_VALUE_ERROR(reader.next(), problem);
      EXPECT_EQ(reader.report().examples, 15);
    }
  }
}

TEST_F(CriteoReaderErrorsTest, MalformedLinesAreSkippedAndCounted) {
  const std::vector<Malformed> malformed = malformed_lines();
  std::string good;
  std::string all;
  for (const auto& [line, problem] : malformed) {
    const std::string text = random_text(random, 1 + random() % 3);
    good += text;
    all += text + line + "\n";
  }
  const std::string path = folder.write("a", all);
  Texts first;
  for (const int64_t block_bytes : {1, 99, 1000, 1 << 18}) {
    CriteoReader reader(
        {.files = {path},
         .batch_size = 7,
         .malformed_lines = MalformedLines::kSkip,
         .max_malformed_lines = static_cast<int64_t>(malformed.size()),
         .block_bytes = block_bytes});
    std::vector<CriteoBatch> batches;
    for (CriteoBatch& batch : reader) {
      batches.push_back(batch);
    }
    expect_same(join(batches), parse_slowly(good));
    EXPECT_EQ(
        reader.report().malformed_lines,
        static_cast<int64_t>(malformed.size()));
    ASSERT_EQ(reader.report().first_malformed_lines.size(), 10U);
    for (size_t i = 0; i < 10; ++i) {
      const std::string& text = reader.report().first_malformed_lines[i];
      EXPECT_TRUE(text.starts_with("'" + path + "' line ")) << text;
      EXPECT_CONTAINS(text, malformed[i].problem);
    }
    if (first.empty()) {
      first = reader.report().first_malformed_lines;
    }
    EXPECT_EQ(reader.report().first_malformed_lines, first);
  }
}

TEST_F(CriteoReaderErrorsTest, TooManyMalformedLinesAreAnError) {
  const std::string path = folder.write(
      "a", random_text(random, 4) + "x\ny\n" + random_text(random, 4) + "z\n");
  CriteoReader reader(
      {.files = {path},
       .batch_size = 4,
       .malformed_lines = MalformedLines::kSkip,
       .max_malformed_lines = 2});
  EXPECT_TRUE(reader.next().has_value());
  EXPECT_TRUE(reader.next().has_value());
  EXPECT_VALUE_ERROR(
      reader.next(),
      "expected at most 2 malformed lines, but got one more: '" + path +
          "' line 11: expected 40 fields separated by tabs, but got 1: 'z'. The "
          "first one: '" +
          path + "' line 5:");
}

// Some blocks end between the last batch and the error.
TEST_F(
    CriteoReaderErrorsTest,
    AnotherReaderContinuesAfterAnErrorWithoutLosses) {
  const std::string before = random_text(random, 14);
  const std::string after = random_text(random, 9);
  const std::string bytes = make_gzip(before + after);
  const std::string malformed = folder.write("a", before + "bad\n" + after);
  const std::string damaged =
      folder.write("b", bytes.substr(0, bytes.size() - 1));
  const auto line_of_error = [&](const CriteoReaderOptions& options) {
    CriteoReader reader(options);
    EXPECT_VALUE_ERROR(while (reader.next().has_value()){}, "[CriteoReader]");
    EXPECT_VALUE_ERROR(reader.next(), "[CriteoReader]");
    EXPECT_EQ(reader.report().examples, reader.next_line());
    return reader.next_line();
  };
  CriteoReaderOptions options{
      .files = {malformed}, .batch_size = 10, .block_bytes = 300};
  EXPECT_EQ(line_of_error(options), 10);
  options.start_line = 10;
  options.malformed_lines = MalformedLines::kSkip;
  const CriteoBatch expected = parse_slowly(before + after);
  expect_same(join(read_all(options)), slice(expected, 10));

  options.start_line = 0;
  options.max_malformed_lines = 0;
  EXPECT_EQ(line_of_error(options), 10);
  // With kError or drop_last, the incomplete batch before the damage is not returned.
  CriteoReaderOptions cut{
      .files = {damaged}, .batch_size = 10, .block_bytes = 300};
  EXPECT_EQ(line_of_error(cut), 20);
  cut.malformed_lines = MalformedLines::kSkip;
  cut.drop_last = true;
  EXPECT_EQ(line_of_error(cut), 20);
}

TEST_F(CriteoReaderErrorsTest, FastAndSlowParserAgreeOnAlmostValidLines) {
  std::vector<float> labels(1);
  std::vector<int64_t> integers(13);
  std::vector<int64_t> categories(26);
  const CriteoRows rows{
      .labels = labels.data(),
      .integers = integers.data(),
      .categories = categories.data(),
      .stride = 1};
  constexpr char kBytes[] = "\t\t\t\t\r\0-019afAFgG:/@` \x80\xff";
  int64_t right = 0;
  for (int i = 0; i < 40'000; ++i) {
    std::string line = random_line(random);
    for (size_t changes = random() % 3; changes > 0; --changes) {
      const char byte = kBytes[random() % (sizeof(kBytes) - 1)];
      const size_t at = random() % line.size();
      random() % 2 == 0 ? line.replace(at, 1, 1, byte)
                        : line.insert(at, 1, byte);
    }
    const bool is_valid = criteo_line_problem(line, line.size()).empty();
    const std::string padded =
        line + "\n" + std::string(kCriteoPadding, "\t7\n"[i % 3]);
    const char* next = parse_criteo_line(padded.data(), 0, rows);
    ASSERT_EQ(next != nullptr, is_valid) << line;
    if (is_valid) {
      ++right;
      ASSERT_EQ(next, padded.data() + line.size() + 1);
    }
  }
  EXPECT_GT(right, 10'000);
  EXPECT_LT(right, 35'000);
}

TEST_F(CriteoReaderErrorsTest, FilesThatCannotBeReadAreNamed) {
  const std::string good = folder.write("good", random_text(random, 5));
  const auto open = [&](const std::string& path) {
    CriteoReader({.files = {good, path}});
  };
  EXPECT_VALUE_ERROR(
      open(folder / "missing"),
      "expected a file with examples, but got '" + (folder / "missing") +
          "': No such file or directory. Correct its path in `files`.");
  std::filesystem::create_directory(folder / "folder");
  EXPECT_VALUE_ERROR(open(folder / "folder"), "folder': it is a folder.");
  EXPECT_VALUE_ERROR(open(folder.write("empty", "")), "empty': it is empty.");
  EXPECT_VALUE_ERROR(
      read_all(
          {.files = {good, folder.write("no_lines", make_gzip(""))},
           .batch_size = 5}),
      "no_lines': it is empty. Correct its path in `files`. The reader "
      "gave 5 examples before this error.");
}

TEST_F(CriteoReaderErrorsTest, InterruptedDownloadsEndInAnError) {
  const std::string text = random_text(random, 300);
  const std::string bytes = make_gzip(text);
  const std::string members = make_gzip(text) + bytes;
  for (const std::string& whole : {bytes, members}) {
    const size_t length = whole.size() - bytes.size() + bytes.size() / 2;
    const std::string path = folder.write("a", whole.substr(0, length));
    const CriteoBatch expected = parse_slowly(text + text);
    CriteoReader reader(
        {.files = {path, folder.write("b", text)},
         .batch_size = 8,
         .malformed_lines = MalformedLines::kSkip,
         .block_bytes = 5000});
    std::vector<CriteoBatch> batches;
    const auto read = [&] {
      for (CriteoBatch& batch : reader) {
        batches.push_back(batch);
      }
    };
    EXPECT_VALUE_ERROR(
        read(), "'" + path + "' ends in the middle of its gzip data");
    const int64_t examples = reader.report().examples;
    EXPECT_VALUE_ERROR(
        read(), c10::str("gave ", examples, " examples before this error."));
    // The reader returns about half of the last member and nothing of the next file.
    const int64_t complete = whole == bytes ? 0 : 300;
    EXPECT_GT(examples, complete + 100);
    EXPECT_LT(examples, complete + 200);
    EXPECT_EQ(reader.report().malformed_lines, 0);
    expect_same(join(batches), slice(expected, 0, examples));
  }
}

TEST_F(CriteoReaderErrorsTest, EveryCutOfAGzipFileIsAnError) {
  const std::string bytes = make_gzip(random_text(random, 3));
  for (size_t length = 2; length < bytes.size(); ++length) {
    const std::string path = folder.write("a", bytes.substr(0, length));
    EXPECT_VALUE_ERROR(
        read_all({.files = {path}, .threads = 1}),
        "ends in the middle of its gzip data, as after an interrupted download. "
        "Download it again.");
  }
}

TEST_F(CriteoReaderErrorsTest, DamagedGzipFilesAreErrors) {
  const std::string text = random_text(random, 100);
  const std::string bytes = make_gzip(text);
  const auto expect_error = [&](const std::string& damaged,
                                const std::string& problem) {
    CriteoReader reader(
        {.files = {folder.write("a", damaged)},
         .batch_size = 64,
         .malformed_lines = MalformedLines::kSkip});
    int64_t examples = 0;
    EXPECT_VALUE_ERROR(
        while (const auto batch = reader.next()) {
          examples += batch->labels.numel();
        },
        problem);
    EXPECT_EQ(examples, reader.report().examples);
    return examples;
  };
  for (const auto& [from_end, check] :
       {std::pair(8, "data check"), std::pair(1, "length check")}) {
    std::string damaged = bytes;
    damaged[bytes.size() - from_end] ^= 1;
    EXPECT_EQ(
        expect_error(
            damaged, c10::str("has damaged gzip data: incorrect ", check)),
        100);
  }
  EXPECT_EQ(
      expect_error(
          bytes + "behind it",
          "has other data after its gzip data. Download it again."),
      100);
  EXPECT_EQ(expect_error("\x1f\x8b behind it", "has damaged gzip data"), 0);
  for (size_t i = 20; i < bytes.size() - 8; i += 97) {
    std::string middle = bytes;
    middle[i] ^= 0x55;
    expect_error(middle, "");  // any error
  }
}

TEST_F(CriteoReaderErrorsTest, AMovedFromReaderIsAnError) {
  const std::string file = folder.write("day", random_text(random, 3));
  CriteoReader from({.files = {file}});
  CriteoReader to = std::move(from);
  const std::string text = "got one that was moved from";
  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_TORCH_ERROR(from.next(), text);
  EXPECT_TORCH_ERROR(from.begin(), text);
  EXPECT_TORCH_ERROR(from.next_line(), text);
  EXPECT_TORCH_ERROR(from.report(), text);
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(to.next()->labels.size(0), 3);
  from = std::move(to);
  EXPECT_EQ(from.report().examples, 3);
}

}  // namespace tessera::data::criteo_reader_errors_test
