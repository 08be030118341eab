// SPDX-License-Identifier: Apache-2.0
#include "tessera/distributed/mpi_backend.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
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
using c10d::ReduceOp;
using c10d::Work;
using std::chrono::milliseconds;

MPI_Datatype reducible_type(at::ScalarType type, const std::string& where) {
  switch (type) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kInt:
      return MPI_INT32_T;
    case at::kLong:
      return MPI_INT64_T;
    case at::kByte:
      return MPI_UINT8_T;
    default:
      TESSERA_CHECK_TYPE(
          false,
          "{} expected Float, Double, Int, Long or Byte, but got {}. Convert it: tensor.to(at::kFloat).",
          where,
          type);
  }
}

MPI_Op reduction(const ReduceOp& op, const std::string& where) {
  switch (op.op_) {
    case ReduceOp::SUM:
      return MPI_SUM;
    case ReduceOp::PRODUCT:
      return MPI_PROD;
    case ReduceOp::MIN:
      return MPI_MIN;
    case ReduceOp::MAX:
      return MPI_MAX;
    default:
      TESSERA_CHECK_VALUE(
          false,
          "{} expected SUM, PRODUCT, MIN or MAX, but got ReduceOp number {}. For a mean, divide the sum by the number of ranks.",
          where,
          static_cast<int>(op.op_));
  }
}

class MpiBackend : public c10d::Backend {
 public:
  explicit MpiBackend(MpiWorld& world, milliseconds timeout)
      : Backend(world.rank(), world.size()), world_(world), timeout_(timeout) {
    setTimeout(timeout);
  }

  // NOLINTNEXTLINE(readability-const-return-type): so it is in c10d.
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
    check_tensor(output, "output", where);
    check_tensor(input, "input", where);
    check_same_dtype(output, input, where);
    const auto outputs = split_parts(
        part_to_write(output), output, output_splits, size_, "output", where);
    const auto inputs = split_parts(
        part_to_read(input), input, input_splits, size_, "input", where);
    TESSERA_CHECK_VALUE(
        output.sizes().slice(1) == input.sizes().slice(1),
        "{} expected output and input that differ in the first dimension only, but got sizes {} and {}. Reshape one of them.",
        where,
        output.sizes(),
        input.sizes());
    check_exchange(outputs, inputs, rank_, where);
    return exchange(
        {Collective::kAlltoall, OpType::ALLTOALL_BASE},
        outputs,
        inputs,
        {output},
        {input},
        options.timeout);
  }

  c10::intrusive_ptr<Work> alltoall(
      std::vector<at::Tensor>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllToAllOptions& options) override {
    const std::string where = world_.where() + " alltoall";
    return exchange_lists(
        {Collective::kAlltoall, OpType::ALLTOALL},
        outputs,
        inputs,
        where,
        options.timeout);
  }

  c10::intrusive_ptr<Work> allgather(
      std::vector<std::vector<at::Tensor>>& outputs,
      std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override {
    const std::string where = world_.where() + " allgather";
    check_count(outputs.size(), 1, "list of outputs", where);
    check_count(inputs.size(), 1, "input", where);
    return exchange_lists(
        {Collective::kAllgather, OpType::ALLGATHER},
        outputs[0],
        std::vector<at::Tensor>(size_, inputs[0]),
        where,
        options.timeout);
  }

  c10::intrusive_ptr<Work> _allgather_base(
      at::Tensor& output,
      at::Tensor& input,
      const c10d::AllgatherOptions& options) override {
    const std::string where = world_.where() + " _allgather_base";
    check_tensor(output, "output", where);
    check_tensor(input, "input", where);
    check_same_dtype(output, input, where);
    TESSERA_CHECK_VALUE(
        output.numel() == input.numel() * size_,
        "{} expected an output with {} times the {} elements of the input, but got {}. Make it at::empty({{{} * rows, ...}}).",
        where,
        size_,
        input.numel(),
        output.numel(),
        size_);
    const Part own = part_to_read(input);
    const std::vector<Part> inputs(size_, own);
    std::vector<Part> outputs;
    outputs.reserve(size_);
    char* data = part_to_write(output).data;
    for (int rank = 0; rank < size_; ++rank) {
      outputs.push_back({data + rank * own.num_bytes, own.num_bytes});
    }
    check_exchange(outputs, inputs, rank_, where);
    return exchange(
        {Collective::kAllgather, OpType::_ALLGATHER_BASE},
        outputs,
        inputs,
        {output},
        {input},
        options.timeout);
  }

  c10::intrusive_ptr<Work> allreduce(
      std::vector<at::Tensor>& tensors,
      const c10d::AllreduceOptions& options) override {
    const std::string where = world_.where() + " allreduce";
    const at::Tensor& tensor = check_single(tensors, where);
    const MPI_Datatype type = reducible_type(tensor.scalar_type(), where);
    const MPI_Op op = reduction(options.reduceOp, where);
    const auto issue = [&](MpiOperation& operation) {
      const int64_t element = tensor.element_size();
      for_each_piece(tensor, [&](char* data, int bytes) {
        const int count = static_cast<int>(bytes / element);
        world_.add(operation, {"MPI_Iallreduce"}, [&](MPI_Request* request) {
          return MPI_Iallreduce(
              MPI_IN_PLACE,
              data,
              count,
              type,
              op,
              operation.communicator,
              request);
        });
      });
    };
    return start(
        {Collective::kAllreduce, OpType::ALLREDUCE},
        {tensor},
        {},
        options.timeout,
        issue);
  }

  c10::intrusive_ptr<Work> broadcast(
      std::vector<at::Tensor>& tensors,
      const c10d::BroadcastOptions& options) override {
    const std::string where = world_.where() + " broadcast";
    const at::Tensor& tensor = check_single(tensors, where);
    TESSERA_CHECK_VALUE(
        options.rootRank >= 0 && options.rootRank < size_ &&
            options.rootTensor == 0,
        "{} expected rootRank in 0 .. {} and rootTensor 0, but got {} and {}. Name the rank that has the values.",
        where,
        size_ - 1,
        options.rootRank,
        options.rootTensor);
    const int root = static_cast<int>(options.rootRank);
    const auto issue = [&](MpiOperation& operation) {
      for_each_piece(tensor, [&](char* data, int bytes) {
        world_.add(operation, {"MPI_Ibcast"}, [&](MPI_Request* request) {
          return MPI_Ibcast(
              data, bytes, MPI_BYTE, root, operation.communicator, request);
        });
      });
    };
    return start(
        {Collective::kBroadcast, OpType::BROADCAST},
        {tensor},
        {},
        options.timeout,
        issue);
  }

  c10::intrusive_ptr<Work> barrier(
      const c10d::BarrierOptions& options) override {
    const auto issue = [&](MpiOperation& operation) {
      world_.add(operation, {"MPI_Ibarrier"}, [&](MPI_Request* request) {
        return MPI_Ibarrier(operation.communicator, request);
      });
    };
    return start(
        {Collective::kBarrier, OpType::BARRIER},
        {},
        {},
        options.timeout,
        issue);
  }

 private:
  // A collective as we name it and as c10d does.
  struct Kind {
    Collective collective;
    OpType type;
  };
  using Issue = std::function<void(MpiOperation&)>;

  static const at::Tensor& check_single(
      const std::vector<at::Tensor>& tensors,
      const std::string& where) {
    check_count(tensors.size(), 1, "tensor", where);
    check_tensor(tensors[0], "it", where);
    return tensors[0];
  }

  // At least one, empty as it may be, so that the collective takes place.
  template <class Visit>
  void for_each_piece(const at::Tensor& tensor, Visit visit) {
    Part rest = part_to_write(tensor);
    do {
      const int64_t piece = std::min(rest.num_bytes, world_.max_piece());
      visit(rest.data, static_cast<int>(piece));
      rest = {rest.data + piece, rest.num_bytes - piece};
    } while (rest.num_bytes > 0);
  }

  c10::intrusive_ptr<Work> start(
      Kind kind,
      std::vector<at::Tensor> outputs,
      std::vector<at::Tensor> inputs,
      milliseconds timeout,
      const Issue& issue) {
    auto tensors = outputs;
    tensors.insert(tensors.end(), inputs.begin(), inputs.end());
    auto operation = world_.start(
        kind.collective,
        timeout > kNoTimeout ? timeout : timeout_,
        std::move(tensors),
        issue);
    return c10::make_intrusive<MpiWork>(
        kind.type, std::move(operation), std::move(outputs));
  }

  // Rank k gets inputs[k], and outputs[k] come from it.
  c10::intrusive_ptr<Work> exchange(
      Kind kind,
      const std::vector<Part>& outputs,
      const std::vector<Part>& inputs,
      std::vector<at::Tensor> output_tensors,
      std::vector<at::Tensor> input_tensors,
      milliseconds timeout) {
    const auto issue = [&](MpiOperation& operation) {
      // Each starts with its neighbour, so that not all write to one.
      for (int step = 1; step < size_; ++step) {
        const int from = (rank_ + size_ - step) % size_;
        const auto [data, num_bytes] = outputs[from];
        world_.receive(operation, data, num_bytes, from);
      }
      for (int step = 1; step < size_; ++step) {
        const int to = (rank_ + step) % size_;
        const auto [data, num_bytes] = inputs[to];
        world_.send(operation, data, num_bytes, to);
      }
      if (outputs[rank_].num_bytes > 0) {
        std::memmove(
            outputs[rank_].data, inputs[rank_].data, inputs[rank_].num_bytes);
      }
    };
    return start(
        kind,
        std::move(output_tensors),
        std::move(input_tensors),
        timeout,
        issue);
  }

  c10::intrusive_ptr<Work> exchange_lists(
      Kind kind,
      const std::vector<at::Tensor>& outputs,
      const std::vector<at::Tensor>& inputs,
      const std::string& where,
      milliseconds timeout) {
    check_count(outputs.size(), size_, "outputs", where);
    check_count(inputs.size(), size_, "inputs", where);
    std::vector<Part> output_parts;
    std::vector<Part> input_parts;
    for (int rank = 0; rank < size_; ++rank) {
      check_tensor(outputs[rank], c10::str("output ", rank), where);
      check_tensor(inputs[rank], c10::str("input ", rank), where);
      check_same_dtype(outputs[rank], inputs[0], where);
      check_same_dtype(outputs[0], inputs[rank], where);
      output_parts.push_back(part_to_write(outputs[rank]));
      input_parts.push_back(part_to_read(inputs[rank]));
    }
    check_exchange(output_parts, input_parts, rank_, where);
    return exchange(kind, output_parts, input_parts, outputs, inputs, timeout);
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
