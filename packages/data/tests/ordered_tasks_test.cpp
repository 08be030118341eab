// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/ordered_tasks.h"

namespace tessera::data::ordered_tasks_test {

struct Number {
  int64_t value = 0;
  int64_t size = 1;
};

using Tasks = OrderedTasks<Number>;

// Task i gives i numbers, and the task `failing` fails after half of them.
Tasks::NextTask tasks_of(int64_t count, int64_t failing = -1) {
  return [=, i = int64_t{0}]() mutable -> Tasks::Task {
    if (i == count) {
      return nullptr;
    }
    const int64_t task = i++;
    return [=, k = int64_t{0}]() mutable -> std::optional<Number> {
      if (task % 3 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      if (task == failing && k == task / 2) {
        throw std::runtime_error("task failed");
      }
      if (k == task) {
        return std::nullopt;
      }
      return Number{.value = task * 1000 + k++};
    };
  };
}

TEST(OrderedTasksTest, ItemsComeInTheOrderOfTheTasks) {
  for (const int64_t threads : {1, 2, 8}) {
    for (const int64_t max_size : {1, 10, 1000}) {
      Tasks tasks(tasks_of(30), threads, max_size);
      for (int64_t task = 0; task < 30; ++task) {
        for (int64_t k = 0; k < task; ++k) {
          const auto item = tasks.next();
          ASSERT_TRUE(item.has_value());
          EXPECT_EQ(item->value, task * 1000 + k);
        }
      }
      EXPECT_FALSE(tasks.next().has_value());
      EXPECT_FALSE(tasks.next().has_value());
    }
  }
}

TEST(OrderedTasksTest, AnErrorComesAfterTheItemsBeforeIt) {
  for (const int64_t threads : {1, 4}) {
    Tasks tasks(tasks_of(30, 8), threads, 3);
    for (int64_t i = 0; i < 7 * 8 / 2 + 4; ++i) {
      ASSERT_TRUE(tasks.next().has_value());
    }
    EXPECT_THROW(tasks.next(), std::runtime_error);
    EXPECT_THROW(tasks.next(), std::runtime_error);
  }
  Tasks failing(
      []() -> Tasks::Task { throw std::runtime_error("no task"); }, 2, 3);
  EXPECT_THROW(failing.next(), std::runtime_error);
}

TEST(OrderedTasksTest, WaitingItemsAreLimited) {
  std::atomic<int64_t> made = 0;
  Tasks tasks(
      [&made] {
        return Tasks::Task([&made]() -> std::optional<Number> {
          return Number{.value = made++};
        });
      },
      3,
      10);
  for (int i = 0; i < 5; ++i) {
    tasks.next();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  // The caller has 5, and 10 wait. Each thread has one more.
  EXPECT_GE(made, 15);
  EXPECT_LE(made, 18);
}

TEST(OrderedTasksTest, CanBeDroppedAtAnyTime) {
  for (int taken = 0; taken < 20; ++taken) {
    Tasks tasks(tasks_of(100), 4, 2);
    for (int i = 0; i < taken; ++i) {
      tasks.next();
    }
  }
}

}  // namespace tessera::data::ordered_tasks_test
