// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/mpi_backend.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "src/distributed/mpi/mpi_world.h"
#include "tests/distributed/mpi_test_main.h"
#include "tests/test_util.h"

namespace tessera {

namespace mpi_backend_test {

using std::chrono::milliseconds;
using test::backend;

using Splits = std::vector<int64_t>;

int64_t rank() {
  return backend().getRank();
}
int64_t size() {
  return backend().getSize();
}

// How many rows rank `from` sends to rank `to`; some send none.
int64_t rows_between(int64_t from, int64_t to) {
  return (from + 2 * to) % 4;
}
// The first element of row `row`. Each next element is one more.
int64_t value_between(int64_t from, int64_t to, int64_t row) {
  return 1000000 * from + 10000 * to + 100 * row;
}

struct Exchange {
  at::Tensor input;
  at::Tensor output;
  at::Tensor expected;
  Splits input_splits;
  Splits output_splits;
};

// Rows of `columns` elements in parts of different sizes, `scale` times as many rows.
Exchange make_exchange(
    at::ScalarType type,
    int64_t columns,
    int64_t scale = 1) {
  Exchange made;
  std::vector<int64_t> sent;
  std::vector<int64_t> received;
  for (int64_t other = 0; other < size(); ++other) {
    made.input_splits.push_back(scale * rows_between(rank(), other));
    made.output_splits.push_back(scale * rows_between(other, rank()));
    for (int64_t row = 0; row < made.input_splits.back(); ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        sent.push_back(value_between(rank(), other, row) + column);
      }
    }
    for (int64_t row = 0; row < made.output_splits.back(); ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        received.push_back(value_between(other, rank(), row) + column);
      }
    }
  }
  made.input = at::tensor(sent, at::kLong).view({-1, columns}).to(type);
  made.expected = at::tensor(received, at::kLong).view({-1, columns}).to(type);
  made.output = at::full(made.expected.sizes(), 77, type);
  return made;
}

c10::intrusive_ptr<c10d::Work> start(Exchange& exchange) {
  return backend().alltoall_base(
      exchange.output,
      exchange.input,
      exchange.output_splits,
      exchange.input_splits);
}

void expect_exchanged(const Exchange& exchange) {
  EXPECT_TRUE(exchange.output.equal(exchange.expected))
      << "rank " << rank() << " got " << exchange.output << " instead of "
      << exchange.expected;
}

TEST(MpiBackendTest, IsAvailable) {
  EXPECT_TRUE(distributed::has_mpi());
  EXPECT_EQ(backend().getBackendName(), "mpi");
  EXPECT_EQ(backend().getBackendOptions()->timeout, milliseconds(60000));
}

TEST(MpiBackendTest, RanksAreInTheOrderOfMpirun) {
  // OpenMPI's or MPICH's mpirun sets one of them.
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* value = std::getenv(name)) {
      EXPECT_EQ(std::to_string(rank()), value);
    }
  }
  at::Tensor own = at::full({size()}, rank(), at::kLong);
  at::Tensor all = at::zeros({size()}, at::kLong);
  Splits none;
  backend().alltoall_base(all, own, none, none)->wait();
  EXPECT_TRUE(all.equal(at::arange(size(), at::kLong)));
}

TEST(MpiBackendTest, AlltoallBaseExchangesUnevenParts) {
  for (const auto type :
       {at::kLong, at::kFloat, at::kDouble, at::kBFloat16, at::kByte}) {
    Exchange exchange = make_exchange(type, 3);
    start(exchange)->wait();
    expect_exchanged(exchange);
  }
}

TEST(MpiBackendTest, AlltoallBaseExchangesLargeParts) {
  // Far more than MPI sends before the other side receives.
  Exchange exchange = make_exchange(at::kLong, 5, 20000);
  start(exchange)->wait();
  EXPECT_TRUE(exchange.output.equal(exchange.expected));
}

TEST(MpiBackendTest, SplitsLongMessages) {
  auto& world = distributed::MpiWorld::get();
  const int64_t usual = world.max_piece();
  world.set_max_piece_for_test(16);
  Exchange exchange = make_exchange(at::kLong, 7);
  start(exchange)->wait();
  expect_exchanged(exchange);
  world.set_max_piece_for_test(usual);
}

TEST(MpiBackendTest, AlltoallBaseWithoutSplitsSendsEqualParts) {
  at::Tensor input = at::arange(2 * size(), at::kLong) + 100 * rank();
  at::Tensor output = at::zeros({2 * size()}, at::kLong);
  Splits none;
  backend().alltoall_base(output, input, none, none)->wait();
  for (int64_t from = 0; from < size(); ++from) {
    for (int64_t i = 0; i < 2; ++i) {
      EXPECT_EQ(
          output[2 * from + i].item<int64_t>(), 100 * from + 2 * rank() + i);
    }
  }
}

TEST(MpiBackendTest, AlltoallBaseTakesEmptyTensorsAndTrailingDims) {
  Splits none(size(), 0);
  at::Tensor input = at::empty({0, 3}, at::kFloat);
  at::Tensor output = at::empty({0, 3}, at::kFloat);
  backend().alltoall_base(output, input, none, none)->wait();

  Splits ones(size(), 1);
  input = at::empty({size(), 0}, at::kFloat);
  output = at::empty({size(), 0}, at::kFloat);
  backend().alltoall_base(output, input, ones, ones)->wait();

  input = at::full({size(), 2, 3}, rank(), at::kInt);
  output = at::zeros({size(), 2, 3}, at::kInt);
  backend().all_to_all_single(output, input, ones, ones)->wait();
  EXPECT_TRUE(output.equal(
      at::arange(size(), at::kInt).view({-1, 1, 1}).expand({-1, 2, 3})));
}

TEST(MpiBackendTest, BarrierWaitsForTheLastRank) {
  using Clock = std::chrono::steady_clock;
  const bool is_last = rank() == size() - 1;
  backend().barrier()->wait();
  const auto before = Clock::now();
  if (is_last) {
    std::this_thread::sleep_for(milliseconds(200));
  }
  backend().barrier()->wait();
  EXPECT_GE(Clock::now() - before, milliseconds(is_last ? 200 : 150));
}

TEST(MpiBackendTest, RanksMayWaitForCollectivesInAnyOrder) {
  std::vector<Exchange> exchanges;
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  for (int64_t i = 0; i < 6; ++i) {
    exchanges.push_back(make_exchange(at::kLong, 2 + i, 1 + 500 * (i % 2)));
    works.push_back(start(exchanges.back()));
    if (i == 3) {
      works.push_back(backend().barrier());
    }
  }
  // Ranks wait in different orders.
  for (size_t i = 0; i < works.size(); ++i) {
    works[(5 * i + static_cast<size_t>(rank())) % works.size()]->wait();
  }
  for (const Exchange& exchange : exchanges) {
    EXPECT_TRUE(exchange.output.equal(exchange.expected));
  }
}

TEST(MpiBackendTest, AnotherThreadMayWait) {
  Exchange first = make_exchange(at::kLong, 3, 3000);
  Exchange second = make_exchange(at::kFloat, 4, 3000);
  const auto first_work = start(first);
  const auto second_work = start(second);
  std::thread other([&] { second_work->wait(); });
  first_work->wait();
  other.join();
  EXPECT_TRUE(second_work->isSuccess());
  EXPECT_TRUE(first.output.equal(first.expected));
  EXPECT_TRUE(second.output.equal(second.expected));
}

TEST(MpiBackendTest, IsCompletedMakesProgress) {
  Exchange exchange = make_exchange(at::kLong, 3, 3000);
  const auto work = start(exchange);
  while (!work->isCompleted()) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(work->isSuccess());
  EXPECT_EQ(work->exception(), nullptr);
  EXPECT_TRUE(exchange.output.equal(exchange.expected));
  EXPECT_EQ(work->result().size(), 1);
  EXPECT_TRUE(work->result()[0].is_same(exchange.output));
  EXPECT_EQ(work->retrieveOpType(), c10d::OpType::ALLTOALL_BASE);
}

TEST(MpiBackendTest, WorkMayBeDestroyedInFlight) {
  for (int i = 0; i < 3; ++i) {
    Exchange exchange = make_exchange(at::kLong, 3, 3000);
    start(exchange);
  }
  Exchange exchange = make_exchange(at::kLong, 3);
  start(exchange)->wait();
  expect_exchanged(exchange);
}

TEST(MpiBackendTest, CountsItsCollectivesOnAllRanks) {
  const uint64_t before = backend().getSequenceNumberForGroup();
  const auto work = backend().barrier();
  work->wait();
  EXPECT_EQ(work->getSequencenumber(), before + 1);
  EXPECT_EQ(backend().getSequenceNumberForGroup(), before + 1);
}

TEST(MpiBackendTest, SecondBackendSharesTheWorld) {
  const auto second =
      distributed::make_mpi_backend({.timeout = milliseconds(5000)});
  EXPECT_EQ(second->getRank(), backend().getRank());
  const auto work = second->barrier();
  EXPECT_EQ(work->getTimeout(), milliseconds(5000));
  work->wait();
  second->setTimeout(milliseconds(7000));
  EXPECT_EQ(second->getBackendOptions()->timeout, milliseconds(7000));
  EXPECT_VALUE_ERROR(
      second->setTimeout(milliseconds(0)),
      "timeout must be >= 1 ms, but got 0 ms");
}

// All ranks refuse the arguments before anything is sent, so the next collective works.
class MpiArgumentsTest : public testing::Test {
 protected:
  void TearDown() override {
    backend().barrier()->wait();
  }

  at::Tensor rows_ = at::zeros({2 * size(), 3}, at::kFloat);
  at::Tensor other_rows_ = at::zeros({2 * size(), 3}, at::kFloat);
  Splits none_ = {};
};

TEST_F(MpiArgumentsTest, TensorsMustBeContiguousCpuTensorsOfOneType) {
  at::Tensor undefined;
  EXPECT_VALUE_ERROR(
      backend().alltoall_base(undefined, rows_, none_, none_),
      "alltoall_base expected output to be a tensor, but got an undefined one");
  at::Tensor turned = at::zeros({3, 2 * size()}, at::kFloat).t();
  EXPECT_VALUE_ERROR(
      backend().alltoall_base(rows_, turned, none_, none_),
      "expected input to be contiguous, but got sizes [");
  at::Tensor meta = at::empty({2 * size(), 3}, at::device(at::kMeta));
  EXPECT_TYPE_ERROR(
      backend().alltoall_base(meta, rows_, none_, none_),
      "expected output on the CPU, but got one on meta");
  at::Tensor sparse = rows_.to_sparse();
  EXPECT_TYPE_ERROR(
      backend().alltoall_base(rows_, sparse, none_, none_),
      "expected input with strided layout, but got Sparse");
  at::Tensor doubles = rows_.to(at::kDouble);
  EXPECT_TYPE_ERROR(
      backend().alltoall_base(doubles, rows_, none_, none_),
      "expected output and input of one dtype, but got Double and Float");
}

TEST_F(MpiArgumentsTest, SizesMustAddUp) {
  at::Tensor scalar = at::zeros({}, at::kFloat);
  EXPECT_VALUE_ERROR(
      backend().alltoall_base(rows_, scalar, none_, none_),
      "expected input with at least one dimension");
  at::Tensor wide = at::zeros({2 * size(), 4}, at::kFloat);
  EXPECT_VALUE_ERROR(
      backend().alltoall_base(wide, rows_, none_, none_),
      "differ in the first dimension only");
  Splits too_many(size() + 1, 0);
  EXPECT_VALUE_ERROR(
      backend().alltoall_base(rows_, other_rows_, too_many, none_),
      "split sizes for output, but got ");
  Splits short_sum(size(), 1);
  EXPECT_VALUE_ERROR(
      backend().alltoall_base(rows_, other_rows_, none_, short_sum),
      "expected split sizes for input that add up to its ");
  Splits negative(size(), 2);
  negative[0] = -1;
  EXPECT_VALUE_ERROR(
      backend().alltoall_base(rows_, other_rows_, none_, negative),
      "that are >= 0 and add up to its ");
  Splits own_differs(size(), 2);
  if (size() > 1) {
    own_differs[rank()] = 1;
    own_differs[(rank() + 1) % size()] = 3;
    EXPECT_VALUE_ERROR(
        backend().alltoall_base(rows_, other_rows_, none_, own_differs),
        "own part to be as long in the output as in the input, but got 24 and 12");
    at::Tensor odd = at::zeros({2 * size() + 1, 3}, at::kFloat);
    EXPECT_VALUE_ERROR(
        backend().alltoall_base(odd, odd, none_, none_),
        "Pass split sizes for unequal parts");
    EXPECT_VALUE_ERROR(
        backend().alltoall_base(rows_, rows_, none_, none_),
        "expected output and input in different memory");
  }
}

TEST(MpiBackendTest, OtherCollectivesAreRefused) {
  std::vector<at::Tensor> tensors = {at::zeros({3})};
  EXPECT_TORCH_ERROR(backend().allreduce(tensors), "does not support");
  EXPECT_TORCH_ERROR(backend().broadcast(tensors), "does not support");
}

}  // namespace mpi_backend_test

}  // namespace tessera
