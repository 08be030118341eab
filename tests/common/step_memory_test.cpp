// SPDX-License-Identifier: Apache-2.0
#include "src/common/step_memory.h"

#include <tessera/common/step_memory.h>

#include "src/common/buffer.h"
#include "tests/test_util.h"

#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>
#include <unistd.h>

#include <new>

namespace tessera::test::step_memory_test {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeepsBlocks = false;
#else
constexpr bool kKeepsBlocks = true;
#endif

// Takes and gives back so many small blocks that all unused blocks return to the system.
void pass_time() {
  for (int i = 0; i < 3 * 4096; ++i) {
    free_step_memory(allocate_step_memory(5000));
  }
}

TEST(StepMemoryTest, IsAlignedAndWritable) {
  for (const size_t bytes : {1, 63, 64, 65, 4095, 4096, 4097, 300'000}) {
    void* memory = allocate_step_memory(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0) << bytes;
    std::memset(memory, 1, bytes);
    free_step_memory(memory);
  }
  free_step_memory(nullptr);
  EXPECT_THROW(
      allocate_step_memory(std::numeric_limits<size_t>::max()), std::bad_alloc);
}

TEST(StepMemoryTest, ReusesABlock) {
  if (!kKeepsBlocks) {
    GTEST_SKIP() << "not under the address sanitizer";
  }
  void* first = allocate_step_memory(100'000);
  free_step_memory(first);
  EXPECT_GE(cached_step_memory(), 100'000);
  // A kept block also serves a slightly larger request. The next one gets another block.
  void* second = allocate_step_memory(100'100);
  EXPECT_EQ(second, first);
  void* third = allocate_step_memory(100'000);
  EXPECT_NE(third, first);
  free_step_memory(third);
  free_step_memory(second);
}

TEST(StepMemoryTest, ReturnsUnusedBlocksToTheSystem) {
  pass_time();
  const size_t before = cached_step_memory();
  std::vector<void*> blocks;
  for (int i = 0; i < 10; ++i) {
    blocks.push_back(allocate_step_memory(1'000'000));
  }
  for (void* block : blocks) {
    free_step_memory(block);
  }
  EXPECT_EQ(cached_step_memory() - before > 10'000'000, kKeepsBlocks);
  pass_time();
  EXPECT_LE(cached_step_memory(), before);
}

TEST(StepMemoryTest, FreesKeptBlocksWhenMemoryRunsOut) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "its allocator ends the program";
#endif
  if (!kKeepsBlocks) {
    GTEST_SKIP() << "nothing is kept";
  }
  constexpr size_t kBytes = size_t{256} << 20;
  free_step_memory(allocate_step_memory(kBytes));
  EXPECT_GE(cached_step_memory(), kBytes);
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  rlimit now = before;  // the current size and half of what is kept
  now.rlim_cur = static_cast<rlim_t>(pages * ::getpagesize()) + kBytes / 2;
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &now), 0);
  void* memory = nullptr;
  EXPECT_NO_THROW(memory = allocate_step_memory(kBytes / 4 * 3));
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  free_step_memory(memory);
}

TEST(StepMemoryTest, LibTorchsTensorsUseItOnRequest) {
  c10::Allocator* const before = c10::GetCPUAllocator();
  keep_memory_between_steps();
  keep_memory_between_steps();
  const void* first = nullptr;
  {
    const at::Tensor tensor = at::full({50'000}, 2.0F);
    first = tensor.const_data_ptr();
    EXPECT_EQ(tensor.sum().item<float>(), 100'000.0F);
  }
  const at::Tensor next = at::full({50'000}, 1.0F);
  EXPECT_EQ(next.const_data_ptr() == first, kKeepsBlocks);
  at::Tensor grown = at::full({3}, 7.0F);
  grown.resize_({100'000});
  EXPECT_EQ(grown[2].item<float>(), 7.0F);
  EXPECT_EQ(grown.resize_({0}).numel(), 0);
  EXPECT_EQ(at::full({0}, 1.0F).sum().item<float>(), 0.0F);
  c10::Allocator* const allocator = c10::GetCPUAllocator();
  void* const raw = allocator->raw_allocate(5000);
  std::memset(raw, 1, 5000);
  allocator->raw_deallocate(raw);
  try {
    at::full({int64_t{1} << 60}, 1.0F);
    ADD_FAILURE() << "expected an error";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_STREQ(
        error.what_without_backtrace(),
        "[step_memory] a tensor needs 4611686018427387904 bytes of memory, but "
        "the system can't provide them. Use smaller batches, or free some "
        "memory.");
  }
  c10::SetCPUAllocator(before);
}

TEST(StepMemoryTest, TensorsMayGrowAndOutliveTheirThread) {
  at::Tensor tensor;
  std::thread([&] {
    tensor = at::detail::empty_generic(
        {3, 1000},
        step_allocator(),
        c10::DispatchKeySet(c10::DispatchKey::CPU),
        at::kFloat,
        std::nullopt);
    tensor.fill_(2);
  }).join();
  tensor.resize_({4, 1000});
  expect_close(tensor.slice(0, 0, 3), at::full({3, 1000}, 2.0F));
  tensor.resize_({0});
  EXPECT_EQ(tensor.clone().numel(), 0);
}

TEST(StepMemoryTest, ServesSeveralThreads) {
  const auto work = [](uint8_t mark) {
    for (int i = 0; i < 2000; ++i) {
      Buffer<uint8_t> buffer(4096 + 97 * (i % 50));
      std::memset(buffer.data(), mark, buffer.size());
      for (const size_t at : {size_t{0}, buffer.size() - 1}) {
        ASSERT_EQ(buffer[at], mark);
      }
    }
  };
  std::thread first(work, 1);
  std::thread second(work, 2);
  work(3);
  first.join();
  second.join();
}

}  // namespace tessera::test::step_memory_test
