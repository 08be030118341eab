// SPDX-License-Identifier: Apache-2.0
#include "src/rank_group.h"

#include "src/lookup_worker.h"
#include "src/step_memory.h"

#include <tessera/strategy.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

namespace tessera {

namespace {

constexpr int64_t kMark = 0x7465737365726100;  // "tessera", then the group

const char* name_of(int64_t meeting) {
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
  static_assert(kNames.size() == static_cast<size_t>(Meeting::kCount));
  const auto index = static_cast<size_t>(meeting);
  return index < kNames.size() ? kNames[index] : "something else";
}

// What each rank says when it comes to a meeting.
struct Greeting {
  int64_t group = 0;
  int64_t meeting = 0;
  int64_t layer = 0;
  int64_t number = 0;
  int64_t has_failed = 0;
  int64_t count = 0;  // for the rank that reads it
};
constexpr int64_t kGreetingWords = sizeof(Greeting) / sizeof(int64_t);

// A kind of error and its message, as text.
std::string to_text(const std::exception_ptr& error) {
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
    return "Ean exception that is no std::exception";
  }
}

[[noreturn]] void raise(const std::string& text, const std::string& message) {
  switch (text[0]) {
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
    TORCH_CHECK_VALUE(
        false,
        "[ShardingOptions] device must be one that this LibTorch can use, but "
        "got ",
        device,
        ". Use kCPU, or build with a LibTorch for it.");
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

}  // namespace

class RankGroup::Impl {
 public:
  Impl() : device_(at::kCPU) {}
  Impl(c10::intrusive_ptr<c10d::Backend> backend, at::Device device)
      : backend_(std::move(backend)), device_(device) {
    TORCH_CHECK_VALUE(
        backend_,
        "[Strategy::sharded] backend must not be empty. Pass one, such as "
        "make_mpi_backend().");
    static std::atomic<int64_t> groups = 0;
    group_ = kMark + groups++;
  }

  int64_t rank() const {
    return backend_ ? backend_->getRank() : 0;
  }
  int64_t size() const {
    return backend_ ? backend_->getSize() : 1;
  }

  std::vector<int64_t> meet(
      Place place,
      const std::exception_ptr& error,
      const std::vector<int64_t>& counts) {
    wait_for_worker();
    if (size() == 1) {
      if (error != nullptr) {
        std::rethrow_exception(error);
      }
      return counts;
    }
    const std::vector<Greeting> greetings = greet(
        {.group = group_,
         .meeting = static_cast<int64_t>(place.meeting),
         .layer = place.layer,
         .number = ++meetings_,
         .has_failed = error != nullptr ? 1 : 0},
        counts);
    check_same_place(greetings, error);
    check_nobody_failed(greetings, error);
    std::vector<int64_t> told;
    for (const Greeting& greeting : greetings) {
      told.push_back(greeting.count);
    }
    return told;
  }

  std::function<at::Tensor()> exchange(
      at::Tensor values,
      std::vector<int64_t> sent,
      std::vector<int64_t> received) {
    if (size() == 1) {
      return [values] { return values; };
    }
    std::vector<int64_t> shape = values.sizes().vec();
    shape[0] = sum_of(received);
    const int64_t others = values.size(0) - sent[rank()];
    bytes_sent_ += values.size(0) == 0
        ? 0
        : others * (static_cast<int64_t>(values.nbytes()) / values.size(0));
    struct Running {
      at::Tensor from;
      at::Tensor to;
      std::vector<int64_t> sent;
      std::vector<int64_t> received;
      c10::intrusive_ptr<c10d::Work> work;
    };
    auto running = std::make_shared<Running>();
    running->from = values.to(device_);
    running->to = device_.is_cpu()
        ? empty_in_step_memory(shape, values.scalar_type())
        : at::empty(shape, values.options().device(device_));
    running->sent = std::move(sent);
    running->received = std::move(received);
    told_of_errors([&] {
      running->work = backend_->alltoall_base(
          running->to, running->from, running->received, running->sent);
    });
    return [this, running] {
      told_of_errors([&] { running->work->wait(); });
      return running->to.cpu();
    };
  }

  // To the first `readers` ranks.
  std::vector<std::string> gather(const std::string& text, int64_t readers) {
    const auto length = static_cast<int64_t>(text.size());
    const std::vector<int64_t> ones(size(), 1);
    const at::Tensor lengths = at::empty({size()}, at::kLong);
    lengths.fill_(length);
    const at::Tensor told = exchange(lengths, ones, ones)();
    std::vector<int64_t> sent(size(), 0);
    std::fill_n(sent.begin(), readers, length);
    std::vector<int64_t> received(size(), 0);
    if (rank() < readers) {
      std::copy_n(told.const_data_ptr<int64_t>(), size(), received.begin());
    }
    std::string copies;
    for (int64_t i = 0; i < readers; ++i) {
      copies.append(text);
    }
    const at::Tensor all = exchange(to_tensor(copies), sent, received)();
    std::vector<std::string> texts;
    const auto* next =
        reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
    for (const int64_t of_rank : received) {
      texts.emplace_back(next, of_rank);
      next += of_rank;
    }
    return texts;
  }

  // A share of the values per rank: gathered there, added up, sent to all.
  at::Tensor sum(const at::Tensor& values) {
    if (size() == 1) {
      return values;
    }
    const int64_t count = values.numel();
    std::vector<int64_t> shares;
    for (int64_t i = 0; i < size(); ++i) {
      shares.push_back(count * (i + 1) / size() - count * i / size());
    }
    const int64_t share = shares[rank()];
    const std::vector<int64_t> of_this(size(), share);
    at::Tensor parts = exchange(values, shares, of_this)();
    at::Tensor total = parts.slice(0, 0, share);
    for (int64_t i = 1; i < size(); ++i) {
      total.add_(parts.slice(0, i * share, (i + 1) * share));
    }
    return exchange(total.repeat({size()}), of_this, shares)();
  }

  int64_t bytes_sent() const {
    return bytes_sent_;
  }

  int64_t add_layer() {
    return ++layers_;
  }

  LookupWorker& worker(int64_t threads) {
    if (worker_ == nullptr) {
      worker_ = std::make_unique<LookupWorker>(threads);
    }
    return *worker_;
  }

  void wait_for_worker() const {
    if (worker_ != nullptr && !worker_->is_current()) {
      worker_->wait_idle();
    }
  }

 private:
  std::vector<Greeting> greet(
      const Greeting& greeting,
      const std::vector<int64_t>& counts) {
    std::vector<Greeting> sent(size(), greeting);
    for (size_t i = 0; i < counts.size(); ++i) {
      sent[i].count = counts[i];
    }
    const at::Tensor values = at::empty({size() * kGreetingWords}, at::kLong);
    const auto bytes = static_cast<size_t>(values.nbytes());
    std::memcpy(values.mutable_data_ptr(), sent.data(), bytes);
    const std::vector<int64_t> words(size(), kGreetingWords);
    const at::Tensor received = exchange(values, words, words)();
    std::vector<Greeting> greetings(size());
    std::memcpy(greetings.data(), received.const_data_ptr(), bytes);
    return greetings;
  }

  // All ranks see the same greetings, but for the counts, and so agree.
  void check_same_place(
      const std::vector<Greeting>& greetings,
      const std::exception_ptr& error) const {
    const Greeting& own = greetings[rank()];
    for (int64_t other = 0; other < size(); ++other) {
      const Greeting& greeting = greetings[other];
      TORCH_CHECK(
          greeting.group == own.group && greeting.number == own.number &&
              greeting.meeting == own.meeting && greeting.layer == own.layer,
          where(),
          "is in ",
          place(own),
          ", but rank ",
          other,
          " is in ",
          place(greeting),
          ". All ranks must make the same calls in the same order.",
          error == nullptr
              ? ""
              : " Before, this rank raised: " + to_text(error).substr(1));
    }
  }

  static std::string place(const Greeting& greeting) {
    return c10::str(
        name_of(greeting.meeting),
        greeting.layer == 0 ? ""
                            : c10::str(" of sharded layer ", greeting.layer),
        " (call ",
        greeting.number,
        " over this backend)");
  }

  void check_nobody_failed(
      const std::vector<Greeting>& greetings,
      const std::exception_ptr& error) {
    const auto failed =
        std::find_if(greetings.begin(), greetings.end(), [](const auto& rank) {
          return rank.has_failed != 0;
        });
    if (failed == greetings.end()) {
      return;
    }
    const std::vector<std::string> texts =
        gather(error == nullptr ? "" : to_text(error), size());
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
    const std::string& text = texts[failed - greetings.begin()];
    raise(
        text,
        c10::str(
            where(),
            "stops in ",
            name_of(failed->meeting),
            ", since rank ",
            failed - greetings.begin(),
            " raised: ",
            text.substr(1)));
  }

  std::string where() const {
    return c10::str("[Strategy::sharded] rank ", rank(), " of ", size(), " ");
  }

  template <class Action>
  void told_of_errors(Action action) const {
    try {
      action();
    } catch (const c10::Error& error) {
      TORCH_CHECK(
          false,
          where(),
          "can't reach the others: ",
          error.what_without_backtrace());
    } catch (const std::exception& error) {
      TORCH_CHECK(false, where(), "can't reach the others: ", error.what());
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;  // empty: alone
  at::Device device_;
  int64_t group_ = 0;
  int64_t meetings_ = 0;
  int64_t layers_ = 0;
  std::atomic<int64_t> bytes_sent_ = 0;
  // Once it was asked for. The last member: its jobs use the others.
  std::unique_ptr<LookupWorker> worker_;
};

// Here, where the backend's type is known.
Strategy Strategy::sharded(
    c10::intrusive_ptr<c10d::Backend> backend,
    ShardingOptions options) {
  auto ranks = RankGroup::of(std::move(backend), options.device);
  return Strategy(Sharded{std::move(ranks), std::move(options)});
}

std::shared_ptr<RankGroup> RankGroup::of(
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
    group = std::make_shared<RankGroup>(std::move(backend), device);
    known = group;
  }
  return group;
}

RankGroup::RankGroup() : impl_(std::make_unique<Impl>()) {}

RankGroup::RankGroup(
    c10::intrusive_ptr<c10d::Backend> backend,
    at::Device device)
    : impl_(std::make_unique<Impl>(std::move(backend), device)) {}

RankGroup::~RankGroup() = default;

int64_t RankGroup::rank() const {
  return impl_->rank();
}

int64_t RankGroup::size() const {
  return impl_->size();
}

std::vector<int64_t> RankGroup::meet(
    Place place,
    const std::exception_ptr& error,
    const std::vector<int64_t>& counts) {
  return impl_->meet(place, error, counts);
}

int64_t RankGroup::add_layer() {
  return impl_->add_layer();
}

std::function<at::Tensor()> RankGroup::exchange(
    at::Tensor values,
    std::vector<int64_t> sent,
    std::vector<int64_t> received) {
  return impl_->exchange(
      std::move(values), std::move(sent), std::move(received));
}

std::vector<std::string> RankGroup::all_gather(const std::string& text) {
  return impl_->gather(text, size());
}

std::vector<std::string> RankGroup::to_first(const std::string& text) {
  return impl_->gather(text, 1);
}

void RankGroup::meet_with_same(
    Place place,
    const std::exception_ptr& error,
    uint64_t value,
    const char* problem) {
  const auto own = std::bit_cast<int64_t>(value);
  const std::vector<int64_t> told =
      impl_->meet(place, error, std::vector<int64_t>(size(), own));
  for (size_t other = 0; other < told.size(); ++other) {
    TORCH_CHECK_VALUE(
        told[other] == own,
        "[Strategy::sharded] rank ",
        other,
        ", compared with rank ",
        rank(),
        ", ",
        problem);
  }
}

LookupWorker& RankGroup::worker(int64_t threads) {
  return impl_->worker(threads);
}

void RankGroup::wait_for_worker() const {
  impl_->wait_for_worker();
}

std::string RankGroup::from_first(
    Place place,
    c10::function_ref<std::string()> work) {
  const std::string text =
      together(place, [&] { return rank() == 0 ? work() : std::string(); });
  return all_gather(text)[0];
}

std::vector<double> RankGroup::all_gather(double value) {
  const std::vector<int64_t> ones(size(), 1);
  const at::Tensor sent = at::empty({size()}, at::kDouble);
  sent.fill_(value);
  const at::Tensor all = impl_->exchange(sent, ones, ones)();
  const auto* values = all.const_data_ptr<double>();
  return {values, values + size()};
}

at::Tensor RankGroup::sum(const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  return impl_->sum(values);
}

int64_t RankGroup::bytes_sent() const {
  return impl_->bytes_sent();
}

}  // namespace tessera
