// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/backend_group.h"

#include "src/common/check.h"
#include "src/common/lookup_worker.h"
#include "src/common/step_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

namespace tessera::distributed {

namespace {

// "tessera" in ASCII, to which the number of a group is added.
constexpr int64_t kMagic = 0x7465737365726100;

const char* name_of(int64_t rendezvous) {
  constexpr std::array kNames{
      "the layer's constructor",
      "forward()",
      "backward()",
      "the update",
      "a norm of gradients",
      "read_rows()",
      "save_checkpoint()",
      "load_checkpoint()",
      "sum_gradients()",
      "broadcast_parameters()",
      "fit()"};
  static_assert(kNames.size() == static_cast<size_t>(Rendezvous::kCount));
  const auto index = static_cast<size_t>(rendezvous);
  return index < kNames.size() ? kNames[index] : "something else";
}

// What each rank sends to all others when it arrives at a barrier.
struct Handshake {
  int64_t group = 0;
  int64_t rendezvous = 0;
  int64_t layer = 0;
  int64_t number = 0;
  int64_t has_failed = 0;
  int64_t count = 0;  // for the rank that receives it
};
constexpr int64_t kHandshakeWords = sizeof(Handshake) / sizeof(int64_t);

// The type of an error as one letter, then its message.
std::string encode_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::IndexError& raised) {
    return std::string("I") + raised.what_without_backtrace();
  } catch (const c10::ValueError& raised) {
    return std::string("V") + raised.what_without_backtrace();
  } catch (const c10::TypeError& raised) {
    return std::string("T") + raised.what_without_backtrace();
  } catch (const c10::NotImplementedError& raised) {
    return std::string("N") + raised.what_without_backtrace();
  } catch (const c10::Error& raised) {
    return std::string("E") + raised.what_without_backtrace();
  } catch (const std::exception& raised) {
    return std::string("E") + raised.what();
  } catch (...) {
    return "Ean exception that is not a std::exception";
  }
}

// Raises an error of the type that encode_error() has given.
[[noreturn]] void raise_error(char type, const std::string& message) {
  switch (type) {
    case 'I':
      C10_THROW_ERROR(IndexError, message);
    case 'V':
      C10_THROW_ERROR(ValueError, message);
    case 'T':
      C10_THROW_ERROR(TypeError, message);
    case 'N':
      C10_THROW_ERROR(NotImplementedError, message);
    default:
      C10_THROW_ERROR(Error, message);
  }
}

void check_device(at::Device device) {
  try {
    at::empty({1}, at::TensorOptions(at::kFloat).device(device));
  } catch (const c10::Error&) {
    TESSERA_CHECK_VALUE(
        false,
        "[ShardingOptions] device must be one that this LibTorch can use, but got {}. Use kCPU, or build with a LibTorch for that device.",
        device);
  }
}

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

at::Tensor to_tensor(const std::string& text) {
  const at::Tensor tensor =
      at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  std::copy(text.begin(), text.end(), tensor.mutable_data_ptr<uint8_t>());
  return tensor;
}

class BackendGroup final : public RankGroup {
 public:
  BackendGroup(c10::intrusive_ptr<c10d::Backend> backend, at::Device device)
      : backend_(std::move(backend)), device_(device) {
    TESSERA_CHECK_VALUE(
        backend_,
        "[sharded_strategy] backend must not be empty. Pass a backend such as make_mpi_backend().");
    static std::atomic<int64_t> groups = 0;
    group_ = kMagic + groups++;
  }

  int64_t rank() const override {
    return backend_->getRank();
  }
  int64_t size() const override {
    return backend_->getSize();
  }

  std::vector<int64_t> barrier(
      RendezvousPoint point,
      const std::exception_ptr& error,
      const std::vector<int64_t>& counts) override {
    wait_for_worker();
    if (size() == 1) {
      if (error != nullptr) {
        std::rethrow_exception(error);
      }
      return counts;
    }
    const std::vector<Handshake> handshakes = exchange_handshakes(
        {.group = group_,
         .rendezvous = static_cast<int64_t>(point.rendezvous),
         .layer = point.layer,
         .number = ++rendezvous_,
         .has_failed = error != nullptr ? 1 : 0},
        counts);
    check_same_point(handshakes, error);
    check_peer_errors(handshakes, error);
    std::vector<int64_t> reported;
    for (const Handshake& handshake : handshakes) {
      reported.push_back(handshake.count);
    }
    return reported;
  }

  std::function<at::Tensor()> exchange(
      at::Tensor values,
      std::vector<int64_t> sent,
      std::vector<int64_t> received) override {
    if (size() == 1) {
      return [values] { return values; };
    }
    std::vector<int64_t> shape = values.sizes().vec();
    shape[0] = sum_of(received);
    const int64_t others = values.size(0) - sent[rank()];
    bytes_sent_ += values.size(0) == 0
        ? 0
        : others * (static_cast<int64_t>(values.nbytes()) / values.size(0));
    struct PendingExchange {
      at::Tensor from;
      at::Tensor to;
      std::vector<int64_t> sent;
      std::vector<int64_t> received;
      c10::intrusive_ptr<c10d::Work> work;
    };
    auto pending = std::make_shared<PendingExchange>();
    pending->from = values.to(device_);
    pending->to = device_.is_cpu()
        ? empty_in_step_memory(shape, values.scalar_type())
        : at::empty(shape, values.options().device(device_));
    pending->sent = std::move(sent);
    pending->received = std::move(received);
    report_errors([&] {
      pending->work = backend_->alltoall_base(
          pending->to, pending->from, pending->received, pending->sent);
    });
    return [this, pending] {
      report_errors([&] { pending->work->wait(); });
      return pending->to.cpu();
    };
  }

  std::vector<std::string> all_gather(const std::string& text) override {
    return gather_at(text, size());
  }
  std::vector<std::string> gather(const std::string& text) override {
    return gather_at(text, 1);
  }

  // Each rank sums one part of the values and sends the result to all ranks.
  at::Tensor sum(const at::Tensor& values) override {
    const at::NoGradGuard no_grad;
    if (size() == 1) {
      return values;
    }
    const int64_t count = values.numel();
    std::vector<int64_t> shares;
    for (int64_t i = 0; i < size(); ++i) {
      shares.push_back(count * (i + 1) / size() - count * i / size());
    }
    const int64_t share = shares[rank()];
    const std::vector<int64_t> own_shares(size(), share);
    at::Tensor parts = exchange(values, shares, own_shares)();
    at::Tensor total = parts.slice(0, 0, share);
    for (int64_t i = 1; i < size(); ++i) {
      total.add_(parts.slice(0, i * share, (i + 1) * share));
    }
    return exchange(total.repeat({size()}), own_shares, shares)();
  }

  int64_t bytes_sent() const override {
    return bytes_sent_;
  }

  int64_t add_layer() override {
    return ++layers_;
  }

  LookupWorker& worker(int64_t threads) override {
    if (worker_ == nullptr) {
      worker_ = std::make_unique<LookupWorker>(threads);
    }
    return *worker_;
  }

  void wait_for_worker() const override {
    if (worker_ != nullptr && !worker_->is_current()) {
      worker_->wait_idle();
    }
  }

 private:
  // Returns the text of each rank on the first `readers` ranks, empty texts elsewhere.
  std::vector<std::string> gather_at(const std::string& text, int64_t readers) {
    const auto length = static_cast<int64_t>(text.size());
    const std::vector<int64_t> ones(size(), 1);
    const at::Tensor lengths = at::empty({size()}, at::kLong);
    lengths.fill_(length);
    const at::Tensor reported = exchange(lengths, ones, ones)();
    std::vector<int64_t> sent(size(), 0);
    std::fill_n(sent.begin(), readers, length);
    std::vector<int64_t> received(size(), 0);
    if (rank() < readers) {
      std::copy_n(reported.const_data_ptr<int64_t>(), size(), received.begin());
    }
    std::string copies;
    for (int64_t i = 0; i < readers; ++i) {
      copies.append(text);
    }
    const at::Tensor all = exchange(to_tensor(copies), sent, received)();
    std::vector<std::string> texts;
    const auto* next =
        reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
    for (const int64_t count : received) {
      texts.emplace_back(next, count);
      next += count;
    }
    return texts;
  }

  std::vector<Handshake> exchange_handshakes(
      const Handshake& handshake,
      const std::vector<int64_t>& counts) {
    std::vector<Handshake> sent(size(), handshake);
    for (size_t i = 0; i < counts.size(); ++i) {
      sent[i].count = counts[i];
    }
    const at::Tensor values = at::empty({size() * kHandshakeWords}, at::kLong);
    const auto bytes = static_cast<size_t>(values.nbytes());
    std::memcpy(values.mutable_data_ptr(), sent.data(), bytes);
    const std::vector<int64_t> words(size(), kHandshakeWords);
    const at::Tensor received = exchange(values, words, words)();
    std::vector<Handshake> handshakes(size());
    std::memcpy(handshakes.data(), received.const_data_ptr(), bytes);
    return handshakes;
  }

  // All ranks receive the same handshakes, except for the counts, and so agree.
  void check_same_point(
      const std::vector<Handshake>& handshakes,
      const std::exception_ptr& error) const {
    const Handshake& own = handshakes[rank()];
    for (int64_t other = 0; other < size(); ++other) {
      const Handshake& handshake = handshakes[other];
      TESSERA_CHECK(
          handshake.group == own.group && handshake.number == own.number &&
              handshake.rendezvous == own.rendezvous &&
              handshake.layer == own.layer,
          "{}is in {}, but rank {} is in {}. All ranks must make the same calls in the same order.{}",
          where(),
          describe(own),
          other,
          describe(handshake),
          error == nullptr ? ""
                           : " Before that, this rank raised: " +
                  encode_error(error).substr(1));
    }
  }

  static std::string describe(const Handshake& handshake) {
    return c10::str(
        name_of(handshake.rendezvous),
        handshake.layer == 0 ? ""
                             : c10::str(" of sharded layer ", handshake.layer),
        " (call ",
        handshake.number,
        " over this backend)");
  }

  void check_peer_errors(
      const std::vector<Handshake>& handshakes,
      const std::exception_ptr& error) {
    const auto failed = std::find_if(
        handshakes.begin(), handshakes.end(), [](const auto& rank) {
          return rank.has_failed != 0;
        });
    if (failed == handshakes.end()) {
      return;
    }
    const std::vector<std::string> texts =
        gather_at(error == nullptr ? "" : encode_error(error), size());
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
    const std::string& text = texts[failed - handshakes.begin()];
    raise_error(
        text[0],
        c10::str(
            where(),
            "stops in ",
            name_of(failed->rendezvous),
            ", since rank ",
            failed - handshakes.begin(),
            " raised: ",
            text.substr(1)));
  }

  std::string where() const {
    return c10::str("[sharded_strategy] rank ", rank(), " of ", size(), " ");
  }

  template <class Action>
  void report_errors(Action action) const {
    try {
      action();
    } catch (const c10::Error& error) {
      TESSERA_CHECK(
          false,
          "{}can't reach the other ranks: {}",
          where(),
          error.what_without_backtrace());
    } catch (const std::exception& error) {
      TESSERA_CHECK(
          false, "{}can't reach the other ranks: {}", where(), error.what());
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
  int64_t group_ = 0;
  int64_t rendezvous_ = 0;
  int64_t layers_ = 0;
  std::atomic<int64_t> bytes_sent_ = 0;
  // Created by worker(). It is the last member because its jobs use the others.
  std::unique_ptr<LookupWorker> worker_;
};

}  // namespace

std::shared_ptr<RankGroup> group_of(
    c10::intrusive_ptr<c10d::Backend> backend,
    at::Device device) {
  static std::mutex mutex;
  static std::map<
      std::pair<const c10d::Backend*, at::DeviceType>,
      std::weak_ptr<RankGroup>>
      groups;
  const std::lock_guard<std::mutex> lock(mutex);
  std::erase_if(
      groups, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<RankGroup>& known = groups[{backend.get(), device.type()}];
  std::shared_ptr<RankGroup> group = known.lock();
  if (group == nullptr) {
    check_device(device);
    group = std::make_shared<BackendGroup>(std::move(backend), device);
    known = group;
  }
  return group;
}

}  // namespace tessera::distributed
