// SPDX-License-Identifier: Apache-2.0

#include "packages/training/tests/training_fixture.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::training::stop_signal_test {

// Installs a signal handler, and restores the previous one when it is destroyed.
class HandlerGuard {
 public:
  HandlerGuard(int number, void (*handler)(int)) : number_(number) {
    struct sigaction action {};
    action.sa_handler = handler;
    ::sigaction(number, &action, &before_);
  }
  ~HandlerGuard() {
    ::sigaction(number_, &before_, nullptr);
  }
  HandlerGuard(const HandlerGuard&) = delete;
  HandlerGuard& operator=(const HandlerGuard&) = delete;

 private:
  int number_;
  struct sigaction before_ {};
};

void (*handler_of(int number))(int) {
  struct sigaction action {};
  ::sigaction(number, nullptr, &action);
  return action.sa_handler;
}

void user_handler(int) {}

// Trains for 6 steps, and calls `act` after step 2.
template <class Act>
History fit_with(Act act, FitOptions options = {}) {
  options.epochs = 2;
  options.callbacks.push_back(hook_after(2, [&](Training&) { act(); }));
  return fit_losses({1, 2, 3}, std::move(options));
}

class StopSignalTest : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(
    Signals,
    StopSignalTest,
    testing::Values(SIGINT, SIGTERM),
    [](const auto& info) {
      return info.param == SIGINT ? "Interrupt" : "Terminate";
    });

TEST_P(StopSignalTest, StopsAfterTheStepAndRestoresTheHandlers) {
  const HandlerGuard own(GetParam(), user_handler);
  const History history = fit_with([] { ::raise(GetParam()); });
  EXPECT_EQ(history.stop_reason, GetParam() == SIGINT ? "SIGINT" : "SIGTERM");
  EXPECT_EQ(history.stop_signal(), GetParam());
  EXPECT_TRUE(history.epochs.empty());
  EXPECT_EQ(handler_of(GetParam()), user_handler);
  // The next training is not stopped.
  EXPECT_EQ(fit_with([] {}).epochs.size(), 2U);
}

TEST_P(StopSignalTest, RestoresTheHandlersAfterAnException) {
  const HandlerGuard own(GetParam(), user_handler);
  EXPECT_THROW(
      fit_with([] { throw std::runtime_error("mine"); }), std::runtime_error);
  EXPECT_EQ(handler_of(GetParam()), user_handler);
}

TEST_P(StopSignalTest, IgnoredSignalsAndKLeaveDoNotStopTraining) {
  {
    const HandlerGuard ignored(GetParam(), SIG_IGN);
    EXPECT_EQ(fit_with([] { ::raise(GetParam()); }).epochs.size(), 2U);
    EXPECT_EQ(handler_of(GetParam()), SIG_IGN);
  }
  const HandlerGuard own(GetParam(), user_handler);
  const History history =
      fit_with([] { ::raise(GetParam()); }, {.stop_on_signals = false});
  EXPECT_EQ(history.epochs.size(), 2U);
}

int handler_calls = 0;

// A signal in on_train_end() is too late to stop a training.
TEST_P(StopSignalTest, ALateSignalRunsThePreviousHandler) {
  const HandlerGuard own(GetParam(), [](int) { ++handler_calls; });
  const auto hooks = std::make_shared<Hooks>();
  hooks->train_end = [](Training&) {
    ::raise(GetParam());
    EXPECT_EQ(handler_calls, 0);
  };
  handler_calls = 0;
  const History history = fit_with([] {}, {.callbacks = {hooks}});
  EXPECT_EQ(history.stop_reason, "");
  EXPECT_EQ(history.stop_signal(), 0);
  EXPECT_EQ(handler_calls, 1);
  // A signal that stopped a training does not run the previous handler.
  fit_with([] { ::raise(GetParam()); });
  EXPECT_EQ(handler_calls, 1);
}

TEST(TrainingSignalTest, AHandlerSetDuringTrainingStays) {
  const HandlerGuard own(SIGINT, SIG_DFL);
  fit_with([] { ::signal(SIGINT, user_handler); });
  EXPECT_EQ(handler_of(SIGINT), user_handler);
}

TEST(TrainingSignalTest, NestedTrainingsEndTogether) {
  const HandlerGuard own(SIGINT, user_handler);
  History inner;
  const History outer = fit_with([&] {
    inner = fit_with([] { ::raise(SIGINT); });
    EXPECT_NE(handler_of(SIGINT), user_handler);
  });
  EXPECT_EQ(inner.stop_reason, "SIGINT");
  EXPECT_EQ(outer.stop_reason, "SIGINT");
  EXPECT_EQ(handler_of(SIGINT), user_handler);
}

TEST(TrainingSignalTest, TrainingsOnTwoThreadsEndTogether) {
  const HandlerGuard own(SIGINT, user_handler);
  History other;
  const History history = fit_with([&] {
    std::thread thread([&] { other = fit_with([] { ::raise(SIGINT); }); });
    thread.join();
  });
  EXPECT_EQ(other.stop_reason, "SIGINT");
  EXPECT_EQ(history.stop_reason, "SIGINT");
  EXPECT_EQ(handler_of(SIGINT), user_handler);
}

TEST(TrainingSignalTest, ASignalDuringValidationResumesAfterTheLastStep) {
  const TemporaryFolder folder;
  const auto batches = click_batches(3, 1);
  const auto train = [&](const std::string& name, bool is_interrupted) {
    ClickRun run;
    at::manual_seed(5);
    const auto loss_of = run.loss_of();
    const History history = run.train(
        batches,
        {.epochs = 2,
         .model = run.model.ptr(),
         .metrics = {AUC()},
         .validation = make_pass(
             batches,
             [&](const auto& batch) {
               if (is_interrupted) {
                 ::raise(SIGINT);
               }
               return loss_of(batch);
             }),
         .checkpoint = run.checkpoint(folder / name)});
    EXPECT_EQ(history.stop_reason, is_interrupted ? "SIGINT" : "");
    return to_json(history).dump() + run.bytes();
  };
  const std::string uninterrupted = train("whole", false);
  train("parts", true);
  EXPECT_EQ(train("parts", false), uninterrupted);
}

// The environment variable that gives a child process its checkpoint folder.
constexpr const char* kFolder = "TESSERA_TRAINING_CHILD";

std::string train_in(const std::string& folder, bool hangs) {
  ClickRun run;
  at::manual_seed(5);
  const auto hooks = hook_after(7, [&](Training&) {
    // Reports that it may be interrupted, again after each byte from the
    // parent. It continues when the parent closes the pipe.
    char byte = 0;
    while (hangs) {
      static_cast<void>(!::write(STDOUT_FILENO, "\nready\n", 7));
      hangs = ::read(STDIN_FILENO, &byte, 1) == 1;
    }
  });
  const History history = run.train(
      click_batches(5, 1),
      {.epochs = 3,
       .model = run.model.ptr(),
       .callbacks = {hooks},
       .checkpoint = run.checkpoint(folder)});
  return to_json(history).dump() + run.bytes();
}

TEST(TrainingSignalTest, DISABLED_Child) {
  const char* folder = std::getenv(kFolder);
  ASSERT_NE(folder, nullptr);
  train_in(folder, true);
}

// Starts a child process, interrupts it `signals` times after step 7, and
// returns its exit status.
int run_child(const std::string& folder, int signals) {
  std::array<int, 2> in{}, out{};
  EXPECT_EQ(::pipe(in.data()), 0);
  EXPECT_EQ(::pipe(out.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    for (const int descriptor : {in[0], in[1], out[0], out[1]}) {
      ::close(descriptor);
    }
    ::setenv(kFolder, folder.c_str(), 1);
    ::execl(
        "/proc/self/exe",
        "training_test",
        "--gtest_filter=TrainingSignalTest.DISABLED_Child",
        "--gtest_also_run_disabled_tests",
        static_cast<char*>(nullptr));
    ::_exit(99);
  }
  ::close(out[1]);
  char byte = 0;
  for (int i = 0; i < signals; ++i) {
    // Two pending signals would merge, so the next one is sent when the child has
    // handled the last one.
    std::string text;
    while (text.find("\nready\n") == std::string::npos &&
           ::read(out[0], &byte, 1) == 1) {
      text += byte;
    }
    ::kill(child, SIGINT);
    EXPECT_EQ(::write(in[1], "x", 1), 1);
  }
  ::close(in[1]);
  while (::read(out[0], &byte, 1) == 1) {
  }
  ::close(in[0]);
  ::close(out[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(TrainingSignalTest, AnInterruptedProcessIsResumed) {
  const TemporaryFolder folder;
  const std::string uninterrupted = train_in(folder / "whole", false);
  const int status = run_child(folder / "child", 1);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(train_in(folder / "child", false), uninterrupted);
}

TEST(TrainingSignalTest, ASecondInterruptEndsTheProcess) {
  const TemporaryFolder folder;
  const int status = run_child(folder / "child", 2);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
  // It resumes from the checkpoint of the previous epoch.
  EXPECT_EQ(
      train_in(folder / "child", false), train_in(folder / "other", false));
}

}  // namespace tessera::training::stop_signal_test
