// SPDX-License-Identifier: Apache-2.0
// A forked child does not have the threads of its parent, so it must not wait for
// them.
#include <tessera/engine/embedding_engine.h>

#include "src/common/lookup_worker.h"
#include "src/common/parallel.h"
#include "tests/layers/layer_test_util.h"

#include <sys/wait.h>
#include <unistd.h>

#include <future>

namespace tessera::test::fork_test {

// Returns the result of `work` in a forked child. A signal ends the child after a
// minute.
std::string in_child(const std::function<std::string()>& work) {
  int ends[2];
  TORCH_CHECK(::pipe(ends) == 0, "no pipe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    const std::string text = work();
    const bool is_written = ::write(ends[1], text.data(), text.size()) ==
        static_cast<ssize_t>(text.size());
    ::_exit(is_written ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(ends[0], buffer, 4096)) > 0;) {
    text.append(buffer, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "the child has ended by signal " << WTERMSIG(status);
  return text;
}

// Returns "done", or the message of the error.
template <class Work>
std::string result_of(Work work) {
  try {
    work();
    return "done";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

bool is_fork_error(const std::string& text) {
  return text.find("but got one in its forked child") != std::string::npos;
}

TEST(ForkTest, AChildDoesNotWaitForTheJobsOfItsParent) {
  auto worker = std::make_unique<LookupWorker>(1);
  std::promise<void> may_end;
  const JobResult<int> before = worker->submit([] { return 1; });
  worker->wait_idle();
  const JobResult<int> running =
      worker->submit([end = may_end.get_future().share()] {
        end.wait();
        return 2;
      });
  const std::string text = in_child([&] {
    if (before.get() != 1) {
      return std::string("lost a result from before");
    }
    const JobResult<int> refused = worker->submit([] { return 3; });
    for (const auto& wait : std::vector<std::function<void()>>{
             [&] { running.get(); },
             [&] { refused.get(); },
             [&] { worker->check_may_submit(); },
             [&] { worker->wait_idle(); }}) {
      const std::string result = result_of(wait);
      if (!is_fork_error(result)) {
        return result;
      }
    }
    worker.reset();
    return std::string("refused");
  });
  EXPECT_EQ(text, "refused");
  may_end.set_value();
  EXPECT_EQ(running.get(), 2);
}

TEST(ForkTest, AChildOfAnIdleParentHasNothingToWaitFor) {
  auto worker = std::make_unique<LookupWorker>(1);
  worker->submit([] { return 1; }).get();
  worker->wait_idle();
  EXPECT_EQ(
      in_child([&] {
        return result_of([&] {
          worker->wait_idle();
          worker.reset();
        });
      }),
      "done");
}

// So many ids that their lookup still runs when the process forks.
constexpr int64_t kManyIds = int64_t{1} << 20;

TPUEmbedding make_layer() {
  return layer_of(
      FeatureConfig{.table = numbered_table("t", 1000, 64)},
      optim::SGD{.learning_rate = 1.0});
}

TEST(ForkTest, AChildRefusesTheForwardThatItsParentBegan) {
  std::optional<TPUEmbedding> layer(make_layer());
  const at::Tensor ids = at::arange(kManyIds).remainder_(1000);
  const at::Tensor small = int64s({1, 2});
  PendingForward pending = (*layer)->begin_forward(ids);
  const std::string text = in_child([&] {
    const std::string finished =
        result_of([&] { (*layer)->finish_forward(std::move(pending)); });
    const std::string begun =
        result_of([&] { (*layer)->begin_forward(small); });
    const std::string updated =
        result_of([&] { (*layer)->forward(small).leaf().sum().backward(); });
    const std::string tables = result_of([&] { (*layer)->embedding_tables(); });
    layer.reset();
    for (const std::string& result : {finished, begun, updated, tables}) {
      if (!is_fork_error(result)) {
        return result;
      }
    }
    return std::string("refused");
  });
  EXPECT_EQ(text, "refused");
  const auto activations = (*layer)->finish_forward(std::move(pending));
  EXPECT_EQ(activations.leaf().size(0), kManyIds);
}

TEST(ForkTest, AChildOfAnIdleParentTrainsWithForward) {
  TPUEmbedding layer = make_layer();
  const at::Tensor ids = int64s({1, 2});
  layer->finish_forward(layer->begin_forward(ids)).leaf().sum().backward();
  const std::string text = in_child([&] {
    const std::string begun = result_of([&] { layer->begin_forward(ids); });
    if (!is_fork_error(begun)) {
      return "begin_forward(): " + begun;
    }
    return result_of([&] {
      layer->forward(ids).leaf().sum().backward();
      TORCH_CHECK(layer->iterations() == 2, "no second update");
    });
  });
  EXPECT_EQ(text, "done");
}

TEST(ForkTest, AChildRunsTasksWithoutItsParentsThreads) {
  const Threads threads(2);
  std::atomic<int> count = 0;
  const auto run = [&] {
    run_tasks(8, 100 * kParallelBytes, [&](int64_t) { ++count; });
  };
  run();
  EXPECT_EQ(count, 8);
  EXPECT_EQ(
      in_child([&] {
        run();
        return count == 16 ? "all" : "some";
      }),
      "all");
}

TEST(ForkTest, AChildRefusesTheBatchesThatItsParentEnqueued) {
  std::optional<EmbeddingEngine> engine(
      std::in_place,
      EmbeddingEngineOptions{
          .features = FeatureConfig{.table = numbered_table("t", 1000, 64)},
          .optimizer = optim::SGD{.learning_rate = 1.0},
          .pipelining = Pipelining::kOn});
  engine->enqueue(at::arange(kManyIds).remainder_(1000));
  const std::string text = in_child([&] {
    const std::string dequeued = result_of([&] { engine->dequeue(); });
    engine.reset();
    return dequeued;
  });
  EXPECT_TRUE(is_fork_error(text)) << text;
  EXPECT_EQ(engine->dequeue().leaf().size(0), kManyIds);
}

// Another thread of the parent is in a call at the fork. In the child, that call
// never ends.
TEST(ForkTest, AChildDestroysAnEngineThatAParentThreadWaitsIn) {
  std::optional<EmbeddingEngine> engine(
      std::in_place,
      EmbeddingEngineOptions{
          .features = FeatureConfig{.table = numbered_table("t", 10, 2)},
          .optimizer = optim::SGD{.learning_rate = 1.0}});
  engine->build(2);
  std::promise<void> begins;
  std::thread waiting([&] {
    begins.set_value();
    (void)result_of([&] { engine->dequeue(); });
  });
  begins.get_future().wait();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const std::string text = in_child([&] {
    engine.reset();
    return std::string("done");
  });
  EXPECT_EQ(text, "done");
  engine->enqueue(int64s({1, 2}));
  waiting.join();
}

}  // namespace tessera::test::fork_test
