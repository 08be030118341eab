// SPDX-License-Identifier: Apache-2.0
#include "packages/distributed/src/channel.h"

#include "src/common/check.h"
#include "src/common/random_key.h"
#include "src/common/step_memory.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

namespace tessera::distributed {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

at::Tensor empty_bytes(int64_t bytes) {
  return empty_in_step_memory({bytes}, at::kByte);
}

int64_t size_of_letter(const at::Tensor& letter) {
  int64_t bytes = 0;
  std::memcpy(&bytes, letter.const_data_ptr(), sizeof bytes);
  return bytes;
}

// Calls `action`, and turns its errors into a ChannelError of `peer`.
template <class Action>
auto name_peer(int64_t peer, Action action) {
  try {
    return action();
  } catch (const std::exception& error) {
    throw ChannelError(reason_of(error), peer, false);
  }
}

// A channel over a backend whose recv() accepts a shorter message than its buffer.
class PeerChannel final : public Channel {
 public:
  // A letter is a single message if the receiver's buffer can hold it, because messages are
  // slow. Between two ranks of one machine, Gloo takes 0.35 to 1 ms for 64 bytes and 2.5 to
  // 3.6 ms for 1 MiB each way, both with its alltoall and with send and recv. MPI takes a
  // few microseconds.
  explicit PeerChannel(c10::intrusive_ptr<c10d::Backend> backend)
      : backend_(std::move(backend)),
        rank_(backend_->getRank()),
        size_(backend_->getSize()),
        sent_capacity_(size_, kFirstCapacity),
        received_capacity_(size_, kFirstCapacity) {}

  std::function<std::vector<at::Tensor>()> exchange_letters(
      std::vector<at::Tensor> letters,
      uint64_t key) override {
    auto pending = std::make_shared<Pending>(*this);
    const int tag = next_letter_tag(key);
    const auto receive = [&](int64_t peer) {
      pending->receive(peer, empty_bytes(received_capacity_[peer]), tag);
    };
    const auto send = [&](int64_t peer) {
      const at::Tensor& letter = letters[peer];
      const int64_t bytes = letter.numel();
      const int64_t first = std::min(bytes, sent_capacity_[peer]);
      pending->send(peer, letter.slice(0, 0, first), tag);
      if (first < bytes) {
        pending->send(peer, letter.slice(0, first, bytes), tag + 1);
        sent_capacity_[peer] = capacity_for(bytes);
      }
    };
    int64_t most = 0;
    for (const int64_t peer : peers()) {
      most = std::max(most, letters[peer].numel());
    }
    start(most, send, receive);
    return [this, pending, tag] {
      std::vector<at::Tensor> received(size_);
      for (const int64_t peer : peers()) {
        pending->wait_for_receive(peer);
        received[peer] = read_letter(*pending, peer, tag);
      }
      pending->wait_for_sends();
      return received;
    };
  }

  std::function<at::Tensor()> exchange(
      at::Tensor values,
      const std::vector<int64_t>& sent,
      const std::vector<int64_t>& received,
      uint64_t key) override {
    auto pending = std::make_shared<Pending>(*this);
    const int tag =
        kFirstExchangeTag + static_cast<int>(mix_bits(key) % kExchangeTags);
    std::vector<int64_t> shape = values.sizes().vec();
    shape[0] = c10::sum_integers(received);
    const at::Tensor result = empty_in_step_memory(shape, values.scalar_type());
    std::vector<int64_t> from(size_ + 1, 0);
    std::vector<int64_t> to(size_ + 1, 0);
    std::partial_sum(sent.begin(), sent.end(), from.begin() + 1);
    std::partial_sum(received.begin(), received.end(), to.begin() + 1);
    const auto receive = [&](int64_t peer) {
      if (received[peer] > 0) {
        pending->receive(peer, result.slice(0, to[peer], to[peer + 1]), tag);
      }
    };
    const auto send = [&](int64_t peer) {
      if (sent[peer] > 0) {
        pending->send(peer, values.slice(0, from[peer], from[peer + 1]), tag);
      }
    };
    const int64_t rows = std::max<int64_t>(1, values.size(0));
    const int64_t row_bytes = static_cast<int64_t>(values.nbytes()) / rows;
    start(row_bytes * *std::ranges::max_element(sent), send, receive);
    result.slice(0, to[rank_], to[rank_ + 1])
        .copy_(values.slice(0, from[rank_], from[rank_ + 1]));
    return [this, pending, result] {
      for (const int64_t peer : peers()) {
        pending->wait_for_receive(peer);
      }
      pending->wait_for_sends();
      return result;
    };
  }

  // Gloo closes all connections when a receive times out.
  void close() noexcept override {
    if (backend_->getBackendName() != "gloo") {
      return;
    }
    for (const int64_t peer : peers()) {
      try {
        Pending pending(*this);
        pending.receive(peer, empty_bytes(1), kUnusedTag);
        pending.receives[peer].work->wait(milliseconds(1));
      } catch (const std::exception&) {
        // The time-out is intended.
      }
    }
  }

  bool allows_overlap() const override {
    return true;
  }

 private:
  static constexpr int64_t kFirstCapacity = 4096;
  // Tags are below 2^22. MPI guarantees only 2^15, but common MPI libraries allow more.
  // Letters use the lower half.
  static constexpr int kFirstExchangeTag = 1 << 21;
  static constexpr uint64_t kExchangeTags = (1 << 21) - 1;
  static constexpr int kUnusedTag = (1 << 22) - 1;

  struct Message {
    WorkPtr work;
    at::Tensor memory;
  };

  // The messages of one exchange. After an error, messages that have not ended are kept
  // for ever, because Gloo may still use their memory. If the memory were freed, Gloo
  // would close the connection.
  struct Pending {
    explicit Pending(PeerChannel& channel)
        : channel(channel), receives(channel.size_) {}
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    ~Pending() {
      for (Message& message : receives) {
        keep(std::move(message));
      }
      for (auto& [peer, message] : sends) {
        keep(std::move(message));
      }
    }

    void receive(int64_t peer, at::Tensor buffer, int tag) {
      std::vector<at::Tensor> tensors{buffer};
      receives[peer].memory = std::move(buffer);
      receives[peer].work = name_peer(peer, [&] {
        return channel.backend_->recv(tensors, static_cast<int>(peer), tag);
      });
    }
    void send(int64_t peer, const at::Tensor& bytes, int tag) {
      std::vector<at::Tensor> tensors{bytes};
      sends.emplace_back(peer, name_peer(peer, [&] {
                           return channel.backend_->send(
                               tensors, static_cast<int>(peer), tag);
                         }));
    }
    void wait(int64_t peer, WorkPtr& work) {
      const auto timeout = channel.backend_->getBackendOptions()->timeout;
      deadline = deadline.value_or(Clock::now() + timeout);
      const auto left =
          std::chrono::ceil<milliseconds>(*deadline - Clock::now());
      try {
        work->wait(std::max(left, milliseconds(1)));
      } catch (const std::exception& error) {
        const bool is_timeout = Clock::now() >= *deadline;
        throw ChannelError(
            is_timeout ? c10::str("no message in ", timeout.count(), " ms")
                       : reason_of(error),
            peer,
            is_timeout);
      }
      work.reset();
    }
    void wait_for_receive(int64_t peer) {
      if (receives[peer].work) {
        wait(peer, receives[peer].work);
      }
    }
    void wait_for_sends() {
      for (auto& [peer, message] : sends) {
        wait(peer, message.work);
      }
      sends.clear();
    }

    PeerChannel& channel;
    std::vector<Message> receives;
    std::vector<std::pair<int64_t, Message>> sends = {};
    std::optional<Clock::time_point> deadline = {};  // set by the first wait
  };

  // Each rank starts with its neighbour, so that they do not all send to the same rank.
  std::vector<int64_t> peers() const {
    std::vector<int64_t> peers;
    for (int64_t step = 1; step < size_; ++step) {
      peers.push_back((rank_ + step) % size_);
    }
    return peers;
  }

  // Starts the sends and receives of all peers, in an order that is fast with Gloo.
  // Small messages are sent first. Otherwise send() writes in the caller's thread, and
  // Gloo's thread takes the caller's core while it spins on the lock of the connection.
  // Large messages are received first. Otherwise a peer may send only after the bytes of
  // this rank, so they do not travel in both directions at once.
  template <class Send, class Receive>
  void start(int64_t bytes_to_a_peer, Send send, Receive receive) const {
    constexpr int64_t kMaxSmall = 256 * 1024;
    const bool sends_first = bytes_to_a_peer <= kMaxSmall;
    for (const bool is_sending : {sends_first, !sends_first}) {
      for (const int64_t peer : peers()) {
        is_sending ? send(peer) : receive(peer);
      }
    }
  }

  // Returns an even tag, because the second part of a letter has the next tag.
  int next_letter_tag(uint64_t key) {
    constexpr uint64_t kLetters = kFirstExchangeTag / 2;
    return static_cast<int>((mix_bits(key) + letters_++) % kLetters) * 2;
  }

  // Sender and receiver grow the capacity after the same letter, so that they agree on it.
  // The capacity has a limit, because a second message costs little if a letter is large.
  static int64_t capacity_for(int64_t bytes) {
    constexpr int64_t kStep = 4096;
    constexpr int64_t kMaxCapacity = int64_t{1} << 20;
    return std::min(kMaxCapacity, (bytes + bytes / 4 + kStep) / kStep * kStep);
  }

  at::Tensor read_letter(Pending& pending, int64_t peer, int tag) {
    const at::Tensor first = pending.receives[peer].memory;
    const int64_t bytes = size_of_letter(first);
    if (bytes < kMinLetterBytes) {
      throw ChannelError("its message is damaged", peer, false);
    }
    if (bytes <= first.numel()) {
      return first.slice(0, 0, bytes);
    }
    const int64_t begin = first.numel();
    const at::Tensor letter = empty_bytes(bytes);
    letter.slice(0, 0, begin).copy_(first);
    pending.receive(peer, letter.slice(0, begin, bytes), tag + 1);
    pending.wait_for_receive(peer);
    received_capacity_[peer] = capacity_for(bytes);
    return letter;
  }

  static void keep(Message message) {
    static std::mutex mutex;
    static auto* const kept = new std::vector<Message>;
    if (message.work) {
      const std::lock_guard lock(mutex);
      kept->push_back(std::move(message));
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  int64_t rank_;
  int64_t size_;
  // The size limit of a letter's first message. The rest is a second message. Without this
  // limit, a rank in another call might send more than the receiver's buffer holds. Gloo
  // then ends the process (op.preamble.length <= op.nbytes), and OpenMPI 4.1 writes past it.
  std::vector<int64_t> sent_capacity_;
  std::vector<int64_t> received_capacity_;
  uint64_t letters_ = 0;
};

class CollectiveChannel final : public Channel {
 public:
  CollectiveChannel(
      c10::intrusive_ptr<c10d::Backend> backend,
      at::Device device)
      : backend_(std::move(backend)), device_(device) {}

  // Exchanges the sizes first, then the letters.
  std::function<std::vector<at::Tensor>()> exchange_letters(
      std::vector<at::Tensor> letters,
      uint64_t /*key*/) override {
    const int64_t size = backend_->getSize();
    const std::vector<int64_t> ones(size, 1);
    std::vector<int64_t> sent;
    const at::Tensor sizes = at::empty({size}, at::kLong);
    letters[backend_->getRank()] = at::empty({0}, at::kByte);
    for (const at::Tensor& letter : letters) {
      sizes[static_cast<int64_t>(sent.size())] = letter.numel();
      sent.push_back(letter.numel());
    }
    const at::Tensor incoming = exchange(sizes, ones, ones, 0)();
    const auto* counts = incoming.const_data_ptr<int64_t>();
    const std::vector<int64_t> received(counts, counts + size);
    const at::Tensor all = exchange(at::cat(letters), sent, received, 0)();
    return [all, received] { return all.split_with_sizes(received); };
  }

  std::function<at::Tensor()> exchange(
      at::Tensor values,
      const std::vector<int64_t>& sent,
      const std::vector<int64_t>& received,
      uint64_t /*key*/) override {
    struct Pending {
      at::Tensor from;
      at::Tensor to;
      std::vector<int64_t> sent;
      std::vector<int64_t> received;
      WorkPtr work;
    };
    std::vector<int64_t> shape = values.sizes().vec();
    shape[0] = c10::sum_integers(received);
    auto pending = std::make_shared<Pending>();
    pending->from = values.to(device_);
    pending->to = device_.is_cpu()
        ? empty_in_step_memory(shape, values.scalar_type())
        : at::empty(shape, values.options().device(device_));
    pending->sent = sent;
    pending->received = received;
    name_peer(-1, [&] {
      pending->work = backend_->alltoall_base(
          pending->to, pending->from, pending->received, pending->sent);
    });
    return [pending] {
      try {
        pending->work->wait();
      } catch (const std::exception& error) {
        const std::string reason = reason_of(error);
        // Backends write "Timed out", "timed out" or "Timeout".
        const bool is_timeout = reason.find("imed out") != std::string::npos ||
            reason.find("imeout") != std::string::npos;
        throw ChannelError(reason, -1, is_timeout);
      }
      return pending->to.cpu();
    };
  }

  void close() noexcept override {}

  bool allows_overlap() const override {
    return false;
  }

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  at::Device device_;
};

}  // namespace

std::unique_ptr<Channel> make_channel(
    c10::intrusive_ptr<c10d::Backend> backend,
    at::Device device) {
  const std::string name = backend->getBackendName();
  if (device.is_cpu() && (name == "gloo" || name == "mpi")) {
    return std::make_unique<PeerChannel>(std::move(backend));
  }
  return std::make_unique<CollectiveChannel>(std::move(backend), device);
}

}  // namespace tessera::distributed
