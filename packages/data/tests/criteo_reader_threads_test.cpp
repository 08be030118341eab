// SPDX-License-Identifier: Apache-2.0

#include "packages/data/tests/criteo_files.h"
#include "tests/test_util.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace tessera::data::criteo_reader_threads_test {

using CriteoReaderThreadsTest = CriteoFilesTest;

// Writes a text into a named pipe again and again, far more than a reader may take. The
// writing ends, so that a reader that takes everything fails the test and does not hang.
class LongFile {
 public:
  static constexpr int64_t kBytes = 20'000'000;

  LongFile(const std::string& path, std::string text) : text_(std::move(text)) {
    TORCH_CHECK(::mkfifo(path.c_str(), 0600) == 0);
    std::signal(SIGPIPE, SIG_IGN);
    // While this end is open, opening the other end does not wait for a reader.
    reading_end_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    const int writing_end = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    TORCH_CHECK(reading_end_ >= 0 && writing_end >= 0);
    thread_ = std::thread([this, writing_end] { run(writing_end); });
  }
  ~LongFile() {
    close();
  }

  // Waits until nothing has been written for a while, and returns the bytes written.
  int64_t written_at_rest() const {
    int64_t before = -1;
    while (before != written_) {
      before = written_;
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    return before;
  }

  // Called after the reader is destroyed. Returns the number of bytes written.
  int64_t close() {
    if (thread_.joinable()) {
      ::close(reading_end_);
      thread_.join();
    }
    return written_;
  }

 private:
  void run(int writing_end) {
    for (size_t at = 0; written_ < kBytes;) {
      const ssize_t count =
          ::write(writing_end, text_.data() + at, text_.size() - at);
      if (count < 0) {
        break;
      }
      written_ += count;
      at = (at + static_cast<size_t>(count)) % text_.size();
    }
    ::close(writing_end);
  }

  std::string text_;
  int reading_end_ = -1;
  std::atomic<int64_t> written_ = 0;
  std::thread thread_;
};

constexpr int64_t kBlocks = 5;
constexpr int64_t kBlockBytes = 100'000;
constexpr int64_t kPipeAndBuffers = 400'000;
constexpr int64_t kMaxAhead = kBlocks * kBlockBytes + kPipeAndBuffers;

TEST_F(CriteoReaderThreadsTest, SlowCallersDoNotLetMemoryGrow) {
  LongFile file(folder / "pipe", random_text(random, 1000));
  CriteoReader reader(
      {.files = {folder / "pipe"},
       .batch_size = 10,
       .threads = 3,
       .queue_blocks = kBlocks,
       .block_bytes = kBlockBytes});
  ASSERT_TRUE(reader.next().has_value());
  EXPECT_LE(file.written_at_rest(), kMaxAhead);
  // The reader continues, and reads no further ahead than before.
  while (reader.report().bytes < 20 * kBlockBytes) {
    ASSERT_TRUE(reader.next().has_value());
  }
  const int64_t written = file.written_at_rest();
  EXPECT_GT(written, 20 * kBlockBytes);
  EXPECT_LE(written - reader.report().bytes, kMaxAhead);
}

// The readers are destroyed while they skip lines, or the rest of a line that is too
// long.
TEST_F(CriteoReaderThreadsTest, ReadersMayBeDestroyedBeforeTheFirstExample) {
  for (const std::string& text :
       {random_text(random, 1000), std::string(100'000, 'x')}) {
    const TemporaryFolder folder;
    LongFile file(folder / "pipe", text);
    {
      const CriteoReader reader(
          {.files = {folder / "pipe"},
           .malformed_lines = MalformedLines::kSkip,
           .start_line = int64_t{1} << 40,
           .threads = 3,
           .queue_blocks = kBlocks,
           .block_bytes = kBlockBytes});
      EXPECT_LE(file.written_at_rest(), kMaxAhead);
    }
    EXPECT_LE(file.close(), kMaxAhead);
  }
}

TEST_F(CriteoReaderThreadsTest, VeryLongLinesDoNotLetMemoryGrow) {
  // Two lines of 50 MB together, of which 4 kB are kept.
  const std::string good = random_text(random, 3);
  const std::string endless(25'000'000, 'x');
  const std::string path =
      folder.write("a", make_gzip(good + endless + "\n" + good + endless));
  CriteoReader reader(
      {.files = {path}, .malformed_lines = MalformedLines::kSkip});
  const CriteoBatch batch = reader.next().value();
  EXPECT_FALSE(reader.next().has_value());
  expect_same(batch, parse_slowly(good + good));
  EXPECT_EQ(reader.report().malformed_lines, 2);
  EXPECT_LT(reader.report().bytes, 600'000);
}

TEST_F(CriteoReaderThreadsTest, ReadersMayBeDestroyedAtAnyTime) {
  const std::string text = random_text(random, 400);
  const Texts files{
      folder.write("a", text), folder.write("b", make_gzip(text))};
  for (int64_t batches = 0; batches < 60; ++batches) {
    CriteoReader reader(
        {.files = files,
         .batch_size = 16,
         .threads = 1 + batches % 4,
         .queue_blocks = 1 + batches % 3,
         .block_bytes = 1000});
    for (int64_t i = 0; i < batches; ++i) {
      reader.next();
    }
    CriteoReader other = std::move(reader);  // the threads continue
    other.next();
  }
}

TEST_F(CriteoReaderThreadsTest, ReadersMayBeDestroyedAfterErrors) {
  random.seed(4);
  const std::string text = random_text(random, 100);
  const std::string bytes = make_gzip(text + text);
  const Texts files{
      folder.write("bad", text + "bad\n" + text + text),
      folder.write("cut", bytes.substr(0, bytes.size() - 2000))};
  for (const std::string& file : files) {
    for (int64_t round = 0; round < 20; ++round) {
      CriteoReader reader(
          {.files = {file, files[0]},
           .batch_size = 50,
           .threads = 1 + round % 4,
           .block_bytes = 1000});
      ASSERT_TRUE(reader.next().has_value());
      ASSERT_TRUE(reader.next().has_value());
      EXPECT_VALUE_ERROR(
          while (reader.next().has_value()){}, "[CriteoReader] '" + file);
      EXPECT_VALUE_ERROR(reader.next(), "[CriteoReader] '" + file);
    }
  }
}

TEST_F(CriteoReaderThreadsTest, BatchesOutliveTheirReader) {
  const std::string text = random_text(random, 50);
  const std::string path = folder.write("a", text);
  std::optional<CriteoReader> reader(
      CriteoReaderOptions{.files = {path}, .batch_size = 50});
  const CriteoBatch batch = reader->next().value();
  reader.reset();
  expect_same(batch, parse_slowly(text));
}

}  // namespace tessera::data::criteo_reader_threads_test
