// SPDX-License-Identifier: Apache-2.0
#include "src/common/rank_group.h"

#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstddef>
#include <utility>

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

  std::function<Arrivals()> arrive(
      RendezvousPoint /*point*/,
      const std::exception_ptr& error,
      Message message) override {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
    return [message = std::move(message)] {
      return Arrivals{{message.value}, message.bodies};
    };
  }

  int64_t add_layer() override {
    return ++layers_;
  }

  LookupWorker& worker(int64_t /*threads*/) override {
    C10_THROW_ERROR(
        Error,
        "[RankGroup] worker() needs a group of several processes, but this "
        "group has one. Use the worker of the TableStore.");
  }
  void wait_for_worker() const override {}

  std::function<at::Tensor()> exchange(
      at::Tensor values,
      std::vector<int64_t> /*sent*/,
      std::vector<int64_t> /*received*/) override {
    return [values = std::move(values)] { return values; };
  }

  int64_t exchanges() const override {
    return 0;
  }
  int64_t bytes_sent() const override {
    return 0;
  }

 private:
  int64_t layers_ = 0;
};

}  // namespace

std::exception_ptr error_of(c10::function_ref<void()> work) {
  try {
    work();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

void RankGroup::drain(
    const std::vector<std::function<at::Tensor()>>& exchanges) {
  for (const auto& wait : exchanges) {
    error_of([&] { wait(); });  // The caller has an error already.
  }
}

std::vector<std::string> RankGroup::all_gather(const std::string& text) {
  const Arrivals arrivals =
      arrive(Rendezvous::kGather, nullptr, {.bodies = {bytes_of(text)}})();
  return c10::fmap(arrivals.bodies, text_of);
}

std::vector<std::string> RankGroup::gather(const std::string& text) {
  std::vector<at::Tensor> bodies(size(), bytes_of(""));
  bodies[0] = bytes_of(text);
  const Arrivals arrivals =
      arrive(Rendezvous::kGather, nullptr, {.bodies = std::move(bodies)})();
  return c10::fmap(arrivals.bodies, [&](const at::Tensor& body) {
    return rank() == 0 ? text_of(body) : "";
  });
}

bool RankGroup::is_sum_direct(int64_t count) const {
  // One exchange sends more bytes than two exchanges. Sending kMaxMoreBytes may take as
  // long as the latency of the second exchange.
  constexpr int64_t kMaxMoreBytes = int64_t{1} << 20;
  const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
  return (size() - 1) * (size() - 2) * bytes / size() <= kMaxMoreBytes;
}

at::Tensor RankGroup::add_bodies(
    const at::Tensor& values,
    const Arrivals& arrivals) const {
  const at::NoGradGuard no_grad;
  if (size() == 1) {
    return values;
  }
  at::Tensor total;
  for (int64_t i = 0; i < size(); ++i) {
    const at::Tensor part = i == rank()
        ? values
        : at::from_blob(
              arrivals.bodies[i].mutable_data_ptr(),
              values.sizes(),
              at::kFloat);
    total = i == 0 ? part.clone() : total.add_(part);
  }
  return total;
}

// Each rank sums one part of the values and sends the result to all ranks.
at::Tensor RankGroup::sum_parts(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const int64_t count = values.numel();
  std::vector<int64_t> shares;
  for (int64_t i = 0; i < size(); ++i) {
    shares.push_back(count * (i + 1) / size() - count * i / size());
  }
  const int64_t share = shares[rank()];
  const std::vector<int64_t> own_shares(size(), share);
  const at::Tensor parts = exchange(values, shares, own_shares)();
  at::Tensor total = parts.slice(0, 0, share);
  for (int64_t i = 1; i < size(); ++i) {
    total.add_(parts.slice(0, i * share, (i + 1) * share));
  }
  return exchange(total.repeat({size()}), own_shares, shares)();
}

at::Tensor RankGroup::sum(
    RendezvousPoint point,
    const std::exception_ptr& error,
    Message message,
    const at::Tensor& values) {
  const bool is_direct = error == nullptr && is_sum_direct(values.numel());
  if (is_direct) {
    message.bodies = {as_bytes(values)};
  }
  const Arrivals arrivals = arrive(point, error, std::move(message))();
  return is_direct ? add_bodies(values, arrivals) : sum_parts(values);
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
       arrive(point, nullptr, {.value = bits})().values) {
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
  std::string bytes;
  const std::exception_ptr error =
      error_of([&] { bytes = rank() == 0 ? work() : ""; });
  const Arrivals arrivals =
      arrive(point, error, {.bodies = {bytes_of(bytes)}})();
  return text_of(arrivals.bodies[0]);
}

at::Tensor bytes_of(const std::string& text) {
  const at::Tensor bytes = at::empty({std::ssize(text)}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  return bytes;
}

std::string text_of(const at::Tensor& bytes) {
  const auto* text =
      reinterpret_cast<const char*>(bytes.const_data_ptr<uint8_t>());
  return {text, text + bytes.numel()};
}

at::Tensor as_bytes(const at::Tensor& values) {
  return at::from_blob(
      values.mutable_data_ptr(),
      {static_cast<int64_t>(values.nbytes())},
      [values](void* /*data*/) {},
      at::kByte);
}

std::shared_ptr<RankGroup> make_solo_group() {
  return std::make_shared<SoloGroup>();
}

}  // namespace tessera
