// SPDX-License-Identifier: Apache-2.0
#include "src/common/rank_group.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <bit>
#include <cstddef>

#include "src/common/check.h"

namespace tessera {

namespace {

class SoloGroup final : public RankGroup {
 public:
  int64_t rank() const override {
    return 0;
  }
  int64_t size() const override {
    return 1;
  }

  std::vector<int64_t> barrier(
      RendezvousPoint /*point*/,
      const std::exception_ptr& error,
      const std::vector<int64_t>& counts) override {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
    return counts;
  }

  int64_t add_layer() override {
    return ++layers_;
  }

  LookupWorker& worker(int64_t /*threads*/) override {
    C10_THROW_ERROR(
        Error,
        "[RankGroup] worker() needs a group of several processes, but this "
        "group has one. Use the worker of the TableEngine.");
  }
  void wait_for_worker() const override {}

  std::function<at::Tensor()> exchange(
      at::Tensor values,
      std::vector<int64_t> /*sent*/,
      std::vector<int64_t> /*received*/) override {
    return [values = std::move(values)] { return values; };
  }

  std::vector<std::string> all_gather(const std::string& text) override {
    return {text};
  }
  std::vector<std::string> gather(const std::string& text) override {
    return {text};
  }

  at::Tensor sum(const at::Tensor& values) override {
    return values;
  }

  int64_t bytes_sent() const override {
    return 0;
  }

 private:
  int64_t layers_ = 0;
};

}  // namespace

void RankGroup::barrier_and_compare(
    RendezvousPoint point,
    const std::exception_ptr& error,
    uint64_t value,
    const char* problem) {
  const auto own = std::bit_cast<int64_t>(value);
  const std::vector<int64_t> reported =
      barrier(point, error, std::vector<int64_t>(size(), own));
  for (size_t other = 0; other < reported.size(); ++other) {
    TESSERA_CHECK_VALUE(
        reported[other] == own,
        "[sharded_strategy] rank {} differs from rank {}: it {}",
        other,
        rank(),
        problem);
  }
}

std::vector<double> RankGroup::all_gather(double value) {
  const std::vector<int64_t> ones(size(), 1);
  const at::Tensor sent = at::empty({size()}, at::kDouble);
  sent.fill_(value);
  const at::Tensor all = exchange(sent, ones, ones)();
  const auto* values = all.const_data_ptr<double>();
  return {values, values + size()};
}

std::vector<bool> RankGroup::any_of(
    RendezvousPoint point,
    const std::vector<bool>& flags) {
  TORCH_INTERNAL_ASSERT(flags.size() <= 63);
  int64_t bits = 0;
  for (size_t i = 0; i < flags.size(); ++i) {
    bits |= int64_t{flags[i]} << i;
  }
  for (const int64_t reported :
       barrier(point, nullptr, std::vector<int64_t>(size(), bits))) {
    bits |= reported;
  }
  std::vector<bool> result;
  for (size_t i = 0; i < flags.size(); ++i) {
    result.push_back((bits >> i & 1) != 0);
  }
  return result;
}

std::string RankGroup::broadcast_bytes(
    RendezvousPoint point,
    c10::function_ref<std::string()> work) {
  const std::string bytes = run_on_all_ranks(
      point, [&] { return rank() == 0 ? work() : std::string(); });
  return all_gather(bytes)[0];
}

std::shared_ptr<RankGroup> make_solo_group() {
  return std::make_shared<SoloGroup>();
}

}  // namespace tessera
