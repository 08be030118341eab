// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/mpi_backend.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "src/common/check.h"
#include "src/distributed/mpi/mpi_arguments.h"
#include "src/distributed/mpi/mpi_work.h"
#include "src/distributed/mpi/mpi_world.h"

namespace tessera::distributed {

namespace {

using c10d::OpType;
using c10d::Work;
using std::chrono::milliseconds;

class MpiBackend : public c10d::Backend {
 public:
  explicit MpiBackend(MpiWorld& world, milliseconds timeout)
      : Backend(world.rank(), world.size()), world_(world), timeout_(timeout) {
    setTimeout(timeout);
  }

  // NOLINTNEXTLINE(readability-const-return-type): c10d declares it so.
  const std::string getBackendName() const override {
    return "mpi";
  }

  c10::intrusive_ptr<Options> getBackendOptions() override {
    return c10::make_intrusive<Options>(getBackendName(), timeout_);
  }

  void setTimeout(milliseconds timeout) override {
    TESSERA_CHECK_VALUE(
        timeout >= milliseconds(1),
        "{} timeout must be >= 1 ms, but got {} ms. Set the time that a rank may wait in one collective.",
        world_.where(),
        timeout.count());
    timeout_ = timeout;
  }

  uint64_t getSequenceNumberForGroup() override {
    return static_cast<uint64_t>(world_.num_started());
  }

  c10::intrusive_ptr<Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override {
    const std::string where = world_.where() + " alltoall_base";
    check_tensors(output, input, where);
    const auto to_receive =
        split_by_rank(output, output_splits, size_, "output", where);
    const auto to_send =
        split_by_rank(input, input_splits, size_, "input", where);
    check_exchange(
        output, input, to_receive[rank_].size, to_send[rank_].size, where);
    auto operation = world_.start(
        Collective::kAlltoall,
        timeout_or_default(options.timeout),
        {output, input},
        [&](MpiOperation& started) {
          exchange(
              started,
              static_cast<char*>(output.mutable_data_ptr()),
              to_receive,
              static_cast<const char*>(input.const_data_ptr()),
              to_send);
        });
    return c10::make_intrusive<MpiWork>(
        OpType::ALLTOALL_BASE,
        std::move(operation),
        std::vector<at::Tensor>{output});
  }

  c10::intrusive_ptr<Work> barrier(
      const c10d::BarrierOptions& options) override {
    auto operation = world_.start(
        Collective::kBarrier,
        timeout_or_default(options.timeout),
        {},
        [&](MpiOperation& started) {
          world_.add(started, {"MPI_Ibarrier"}, [&](MPI_Request* request) {
            return MPI_Ibarrier(started.communicator, request);
          });
        });
    return c10::make_intrusive<MpiWork>(
        OpType::BARRIER, std::move(operation), std::vector<at::Tensor>{});
  }

 private:
  milliseconds timeout_or_default(milliseconds timeout) const {
    return timeout > kNoTimeout ? timeout : timeout_;
  }

  // Each rank starts with its neighbour, so that not all of them send to one.
  void exchange(
      MpiOperation& operation,
      char* output,
      const std::vector<ByteRange>& to_receive,
      const char* input,
      const std::vector<ByteRange>& to_send) {
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + size_ - step) % size_;
      const auto [begin, size] = to_receive[from];
      world_.receive(operation, output + begin, size, from);
    }
    for (int step = 1; step < size_; ++step) {
      const int to = (rank_ + step) % size_;
      const auto [begin, size] = to_send[to];
      world_.send(operation, input + begin, size, to);
    }
    if (to_send[rank_].size > 0) {
      std::memcpy(
          output + to_receive[rank_].begin,
          input + to_send[rank_].begin,
          to_send[rank_].size);
    }
  }

  MpiWorld& world_;
  milliseconds timeout_;
};

}  // namespace

bool has_mpi() {
  return true;
}

c10::intrusive_ptr<c10d::Backend> make_mpi_backend(
    const MpiBackendOptions& options) {
  return c10::make_intrusive<MpiBackend>(MpiWorld::get(), options.timeout);
}

}  // namespace tessera::distributed
