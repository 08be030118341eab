// SPDX-License-Identifier: Apache-2.0
// For a LibTorch that was built without its distributed package: there is one
// rank.
#include "src/rank_group.h"

#include <tessera/mpi_backend.h>
#include <tessera/strategy.h>

#include <c10/util/Exception.h>

namespace tessera {

class RankGroup::Impl {};

Strategy Strategy::sharded(
    c10::intrusive_ptr<c10d::Backend> /*backend*/,
    ShardingOptions options) {
  return Strategy(Sharded{RankGroup::of(nullptr, options.device), options});
}

std::shared_ptr<RankGroup> RankGroup::of(
    c10::intrusive_ptr<c10d::Backend> backend,
    at::Device device) {
  return std::make_shared<RankGroup>(std::move(backend), device);
}

RankGroup::RankGroup() = default;

RankGroup::RankGroup(
    c10::intrusive_ptr<c10d::Backend> /*backend*/,
    at::Device /*device*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "[Strategy::sharded] this LibTorch has no distributed package. Build "
      "Tessera with one that has torch/csrc/distributed/c10d/Backend.hpp, such "
      "as PyPI's.");
}

RankGroup::~RankGroup() = default;

int64_t RankGroup::rank() const {
  return 0;
}

int64_t RankGroup::size() const {
  return 1;
}

std::vector<int64_t> RankGroup::meet(
    Place /*place*/,
    const std::exception_ptr& error,
    const std::vector<int64_t>& counts) {
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
  return counts;
}

std::function<at::Tensor()> RankGroup::exchange(
    at::Tensor values,
    std::vector<int64_t> /*sent*/,
    std::vector<int64_t> /*received*/) {
  return [values] { return values; };
}

std::vector<std::string> RankGroup::all_gather(const std::string& text) {
  return {text};
}

std::vector<std::string> RankGroup::to_first(const std::string& text) {
  return {text};
}

void RankGroup::meet_with_same(
    Place place,
    const std::exception_ptr& error,
    uint64_t /*value*/,
    const char* /*problem*/) {
  meet(place, error);
}

int64_t RankGroup::add_layer() {
  return 1;
}

LookupWorker& RankGroup::worker(int64_t /*threads*/) {
  C10_THROW_ERROR(NotImplementedError, "[RankGroup] one rank has no lookups");
}

void RankGroup::wait_for_worker() const {}

std::string RankGroup::from_first(
    Place /*place*/,
    c10::function_ref<std::string()> work) {
  return work();
}

std::vector<double> RankGroup::all_gather(double value) {
  return {value};
}

at::Tensor RankGroup::sum(const at::Tensor& values) {
  return values;
}

int64_t RankGroup::bytes_sent() const {
  return 0;
}

}  // namespace tessera
