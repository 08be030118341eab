// SPDX-License-Identifier: Apache-2.0
// Publishers are killed at random moments while threads look up all the time. Every answer
// belongs to one published version.
#include <tessera/serving/publisher.h>

#include "packages/serving/tests/published_model.h"
#include "packages/serving/tests/stamped_rows.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace tessera::serving::follow_test {

// How many publishers are killed, and how many versions are published in a row. A campaign
// sets larger numbers.
const int64_t kKills = number_from("TESSERA_KILLS", 8);
const int64_t kVersions = number_from("TESSERA_VERSIONS", 300);

pid_t start_publisher(const std::string& directory, int64_t first) {
  std::string program = ENDLESS_PUBLISHER;
  std::string path = directory;
  std::string step = std::to_string(first);
  char* arguments[] = {program.data(), path.data(), step.data(), nullptr};
  pid_t process = -1;
  EXPECT_EQ(
      ::posix_spawn(
          &process, program.c_str(), nullptr, nullptr, arguments, environ),
      0);
  return process;
}

// Counts the rows of an answer that are not those of the version.
int64_t count_wrong(
    const Version& version,
    const std::vector<int64_t>& ids,
    const std::vector<float>& out) {
  const auto first = static_cast<int64_t>(version.metrics().at("first"));
  int64_t wrong = 0;
  float expected[StampedRows::kDim];
  for (size_t i = 0; i < ids.size(); ++i) {
    StampedRows::fill(
        ids[i],
        StampedRows::written_at(ids[i], first, version.step()),
        expected);
    wrong += std::equal(
                 expected,
                 expected + StampedRows::kDim,
                 out.begin() + i * StampedRows::kDim)
        ? 0
        : 1;
  }
  return wrong;
}

TEST(FollowTest, EveryAnswerIsOfOneVersionWhenPublishersAreKilled) {
  const TemporaryFolder folder;
  const std::string directory = folder / "published";
  std::optional<Reader> reader;
  std::atomic<bool> ends = false;
  std::atomic<int64_t> wrong = 0;
  std::atomic<int64_t> rows = 0;
  std::vector<std::thread> threads;
  const auto look_up = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<int64_t> ids(200);
    std::vector<float> out(ids.size() * StampedRows::kDim);
    while (!ends) {
      for (int64_t& id : ids) {
        id = static_cast<int64_t>(random() % StampedRows::kRows);
      }
      const std::shared_ptr<const Version> version = reader->version();
      version->lookup(0, {.ids = ids}, out);
      wrong += count_wrong(*version, ids, out);
      rows += static_cast<int64_t>(ids.size());
    }
  };
  std::mt19937_64 random(7);
  int64_t taken = 0;
  int64_t first = 1;
  for (int64_t kill = 0; kill < kKills; ++kill) {
    const pid_t publisher = start_publisher(directory, first);
    // The program takes a while to start.
    const auto limit =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!reader && std::chrono::steady_clock::now() < limit) {
      try {
        reader.emplace(directory, ReaderOptions{.poll_seconds = 0.05});
        threads.emplace_back(look_up, 1);
        threads.emplace_back(look_up, 2);
      } catch (const std::runtime_error&) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    }
    ASSERT_TRUE(reader.has_value());
    while (reader->version()->step() < first &&
           std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_GE(reader->version()->step(), first);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 200));
    ::kill(publisher, SIGKILL);
    ::waitpid(publisher, nullptr, 0);
    first = 100'000 * (kill + 1) + kill % 2;
  }
  taken = reader->status().taken;
  ends = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(rows, 10'000);
  EXPECT_GE(taken, kKills);
  std::printf(
      "%lld rows of %lld versions\n",
      static_cast<long long>(rows),
      static_cast<long long>(taken));
  // What the killed publishers have left does not pile up.
  int64_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    folders += entry.is_directory() ? 1 : 0;
  }
  EXPECT_LE(folders, 45);
}

TEST(FollowTest, ManyVersionsDoNotPileUp) {
  const TemporaryFolder folder;
  const std::string directory = folder / "published";
  const auto model = std::make_shared<PublishedModel>();
  Publisher publisher(
      model,
      directory,
      {.full_every = 50, .keep_last = 3, .keep_seconds = 0.0});
  publisher.publish();
  Reader reader(directory, {.follow = false});
  std::mt19937_64 random(3);
  int64_t after_warm_up = 0;
  size_t most_files = 0;
  for (int64_t version = 2; version <= kVersions; ++version) {
    model->learn(model->random_batch(random));
    ASSERT_EQ(publisher.publish(), version);
    ASSERT_TRUE(reader.refresh());
    ASSERT_EQ(reader.version()->number(), version);
    most_files = std::max(
        most_files,
        static_cast<size_t>(
            std::distance(std::filesystem::directory_iterator(directory), {})));
    if (version == kVersions / 2) {
      after_warm_up = resident_bytes();
    }
  }
  expect_same_lookups(*reader.version(), *model, 1);
  // A chain of 50 versions, the three before it with theirs, CURRENT and the lock.
  EXPECT_LE(most_files, 110U);
  EXPECT_LE(resident_bytes() - after_warm_up, int64_t{32} << 20);
  std::printf(
      "%lld versions, %zu files at most, %lld KiB more in the second half\n",
      static_cast<long long>(kVersions),
      most_files,
      static_cast<long long>((resident_bytes() - after_warm_up) / 1024));
}

}  // namespace tessera::serving::follow_test
