// SPDX-License-Identifier: Apache-2.0
// A Reader in a child of fork().
#include <tessera/serving/publisher.h>

#include "packages/serving/tests/published_model.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::serving::reader_fork_test {

constexpr int kHangs = -1;

// Only a test that fails waits so long.
bool wait_until(const std::function<bool()>& is_done) {
  const auto limit =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!is_done()) {
    if (std::chrono::steady_clock::now() > limit) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// The result of run() in a child, or kHangs.
pid_t start_child(const std::function<int()>& run) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = run();
    } catch (...) {
    }
    ::_exit(status);
  }
  return child;
}
int wait_for(pid_t child) {
  int status = 0;
  if (!wait_until(
          [&] { return ::waitpid(child, &status, WNOHANG) == child; })) {
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    return kHangs;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

class ReaderForkTest : public ::testing::Test {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "The thread sanitizer refuses threads after fork().";
#endif
    publish();
  }
  int64_t publish() {
    model_->learn(model_->random_batch(random_));
    return publisher_.publish();
  }

  std::mt19937_64 random_{1};
  TemporaryFolder folder_;
  std::shared_ptr<PublishedModel> model_ = std::make_shared<PublishedModel>();
  Publisher publisher_{model_, folder_ / "published"};
};

// Threads of the parent hold each lock and count themselves as readers at the moment of
// fork().
TEST_F(ReaderForkTest, ManyChildrenRefreshAndLookUp) {
  Reader reader(folder_ / "published", {.poll_seconds = 0.001});
  std::mt19937_64 random(2);
  const auto batch = model_->random_batch(random).at("movie");
  std::atomic<bool> ends = false;
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    while (!ends) {
      publish();
    }
  });
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!ends) {
        (void)reader.version();
        (void)reader.status();
      }
    });
  }
  threads.emplace_back([&] {
    while (!ends) {
      reader.refresh();
      reader.unpin();
    }
  });
  int failed = 0;
  for (int i = 0; i < 100 && failed == 0; ++i) {
    const int64_t before = reader.version()->number();
    const int status = wait_for(start_child([&] {
      reader.refresh();
      const auto version = reader.version();
      if (version->number() < before ||
          reader.status().version < version->number()) {
        return 1;
      }
      return look_up(*version, "movie", batch).empty() ? 2 : 0;
    }));
    EXPECT_EQ(status, 0) << "child " << i;
    failed += status == 0 ? 0 : 1;
  }
  ends = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(ReaderForkTest, AChildFollowsFromItsFirstCallOn) {
  auto reader = std::make_unique<Reader>(folder_ / "published");
  std::array<int, 2> pipe = {};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = start_child([&] {
    if (reader->version()->number() != 1 || ::write(pipe[1], "1", 1) != 1) {
      return 1;
    }
    if (!wait_until([&] { return reader->version()->number() == 2; })) {
      return 2;
    }
    const ReaderStatus status = reader->status();
    if (status.version != 2 || status.taken != 2 || !status.problem.empty()) {
      return 3;
    }
    reader->rollback(1);
    if (reader->version()->number() != 1) {
      return 4;
    }
    reader = nullptr;  // ends its thread, and not that of the parent
    return 0;
  });
  char first_call = 0;
  ASSERT_EQ(::read(pipe[0], &first_call, 1), 1);
  ASSERT_EQ(publish(), 2);
  EXPECT_EQ(wait_for(child), 0);
  // The parent follows as before.
  ASSERT_EQ(publish(), 3);
  EXPECT_TRUE(wait_until([&] { return reader->version()->number() == 3; }));
  EXPECT_FALSE(reader->status().is_pinned);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_F(ReaderForkTest, AChildWithoutFilesKeepsTheVersionAndSaysSo) {
  Reader reader(folder_ / "published");
  const int64_t number = reader.version()->number();
  const pid_t child = start_child([&] {
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_NOFILE, &none);
    return reader.version()->number() != number ? 1
        : reader.status().problem.find("after fork(), no versions follow") ==
            std::string::npos
        ? 2
        : 0;
  });
  EXPECT_EQ(wait_for(child), 0);
}

TEST_F(ReaderForkTest, AChildMayLeaveTheReaderAlone) {
  auto reader = std::make_unique<Reader>(folder_ / "published");
  EXPECT_EQ(
      wait_for(start_child([&] {
        reader = nullptr;
        return 0;
      })),
      0);
  // Of a child of a child, too.
  EXPECT_EQ(
      wait_for(start_child([&] {
        return wait_for(start_child([&] {
          reader->rollback(1);
          return reader->status().is_pinned ? 0 : 1;
        }));
      })),
      0);
  ASSERT_EQ(publish(), 2);
  EXPECT_TRUE(wait_until([&] { return reader->version()->number() == 2; }));
}

}  // namespace tessera::serving::reader_fork_test
