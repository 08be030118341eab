// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "src/distributed/mpi/mpi_world.h"

namespace tessera::distributed {

/// A collective in flight, as c10d sees it. It may be destroyed at any time, because
/// MpiWorld keeps the operation.
class MpiWork : public c10d::Work {
 public:
  MpiWork(
      c10d::OpType type,
      std::shared_ptr<MpiOperation> operation,
      std::vector<at::Tensor> outputs)
      : Work(MpiWorld::get().rank(), type),
        operation_(std::move(operation)),
        outputs_(std::move(outputs)) {}

  bool isCompleted() override {
    return MpiWorld::get().test(*operation_);
  }
  bool isSuccess() const override {
    return MpiWorld::get().is_done(*operation_) && exception() == nullptr;
  }
  std::exception_ptr exception() const override {
    return MpiWorld::get().error_of(*operation_);
  }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    MpiWorld::get().wait(
        *operation_, timeout > kNoTimeout ? timeout : operation_->timeout);
    return true;
  }
  void synchronize() override {
    wait();
  }
  std::vector<at::Tensor> result() override {
    wait();
    return outputs_;
  }
  uint64_t getSequencenumber() const override {
    return static_cast<uint64_t>(operation_->number);
  }
  std::chrono::milliseconds getTimeout() const override {
    return operation_->timeout;
  }

 private:
  std::shared_ptr<MpiOperation> operation_;
  std::vector<at::Tensor> outputs_;
};

}  // namespace tessera::distributed
