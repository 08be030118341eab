// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/gloo_backend.h>

#include "tests/test_util.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <signal.h>

#include <future>

namespace tessera::gloo_backend_test {

using distributed::GlooBackendOptions;
using distributed::make_gloo_backend;
using std::chrono::milliseconds;

// The options of one of two ranks in this process.
GlooBackendOptions options_of(
    int64_t rank,
    const c10::intrusive_ptr<c10d::Store>& store) {
  return {
      .timeout = milliseconds(500),
      .hostname = "127.0.0.1",
      .store = store,
      .rank = rank,
      .size = 2};
}

c10::intrusive_ptr<c10d::Store> make_store() {
  return c10::make_intrusive<c10d::HashStore>();
}

// The message of the error that `action` raises, or an empty text.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

void write(
    c10d::Store& store,
    const std::string& key,
    const std::string& text) {
  store.set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

TEST(GlooBackendTest, OneRankNeedsNoEnvironment) {
  EXPECT_TRUE(distributed::has_gloo());
  const auto backend = make_gloo_backend();
  EXPECT_EQ(backend->getRank(), 0);
  EXPECT_EQ(backend->getSize(), 1);
  EXPECT_EQ(backend->getBackendName(), "gloo");
}

// By default, SIGPIPE ends a process that writes to a rank that has died.
TEST(GlooBackendTest, SigpipeIsIgnoredUnlessTheProgramHandlesIt) {
  struct sigaction before {};
  struct sigaction now {};
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &before), 0);
  ::signal(SIGPIPE, SIG_DFL);
  make_gloo_backend();
  ::sigaction(SIGPIPE, nullptr, &now);
  EXPECT_EQ(now.sa_handler, SIG_IGN);

  const auto own = [](int) {};
  ::signal(SIGPIPE, own);
  make_gloo_backend();
  ::sigaction(SIGPIPE, nullptr, &now);
  EXPECT_EQ(now.sa_handler, static_cast<void (*)(int)>(own));
  ::sigaction(SIGPIPE, &before, nullptr);
}

TEST(GlooBackendTest, BadOptionsAreNamed) {
  expect_refusals<GlooBackendOptions>(
      {{{.timeout = milliseconds(0)},
        "[GlooBackendOptions] timeout must be from 1 ms to a year, but got 0 ms"},
       {{.interface = "lo", .hostname = "localhost"},
        "two ways to say where this rank listens"},
       {{.rank = 0},
        "but not set: WORLD_SIZE. Start the program with torchrun"},
       {{.store = make_store(), .rank = 2, .size = 2},
        "RANK must be from 0 to WORLD_SIZE - 1 = 1, but got 2"},
       {{.store = make_store(), .rank = 0, .size = 0},
        "WORLD_SIZE must be from 1 to 65536, but got 0"},
       {{.timeout = milliseconds::max()},
        "timeout must be from 1 ms to a year"},
       {{.store = make_store(), .rank = 0, .size = 2},
        "rank 0 finds no address of its own from which it reaches MASTER_ADDR = ''"},
       {{.interface = "nowhere0"}, "can't listen on the interface 'nowhere0'"}},
      [](const auto& x) { make_gloo_backend(x); });
}

TEST(GlooBackendTest, ARankThatDoesNotArriveIsNamed) {
  EXPECT_CONTAINS(
      error_of([] { make_gloo_backend(options_of(0, make_store())); }),
      "rank 1 of 2 did not arrive at rank 0 within 500 ms");
}

TEST(GlooBackendTest, TwoProcessesWithOneRankAreAnErrorOnBoth) {
  const auto store = make_store();
  auto first = std::async(std::launch::async, [&] {
    return error_of([&] { make_gloo_backend(options_of(0, store)); });
  });
  while (!store->check({"rank/0"})) {
    std::this_thread::yield();
  }
  EXPECT_CONTAINS(
      error_of([&] { make_gloo_backend(options_of(0, store)); }),
      "another process has RANK = 0, too");
  EXPECT_CONTAINS(
      first.get(), "rank 0: [make_gloo_backend] another process has RANK = 0");
}

TEST(GlooBackendTest, RanksMustAgree) {
  const auto with = [](const std::string& registration) {
    const auto store = make_store();
    write(*store, "rank/1", registration);
    return error_of([&] { make_gloo_backend(options_of(0, store)); });
  };
  EXPECT_CONTAINS(
      with("3\nother\nhost\n127.0.0.1"),
      "WORLD_SIZE must be the same on all ranks, but is 2 on rank 0 and 3 on rank 1");
  const std::string versions = with("2\nTessera 0.0.1\nhost\n127.0.0.1");
  EXPECT_CONTAINS(
      versions, "all ranks must run the same versions, but rank 0 has Tessera");
  EXPECT_CONTAINS(versions, "rank 1 has Tessera 0.0.1");
}

}  // namespace tessera::gloo_backend_test
