// SPDX-License-Identifier: Apache-2.0
#include "packages/distributed/src/backend_group.h"

#include "packages/distributed/src/channel.h"
#include "packages/distributed/src/fault_board.h"
#include "src/common/check.h"
#include "src/common/random_key.h"
#include "src/common/step_memory.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <type_traits>
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
      "fit()",
      "a gathering of values"};
  static_assert(kNames.size() == static_cast<size_t>(Rendezvous::kCount));
  const auto index = static_cast<size_t>(rendezvous);
  return index < kNames.size() ? kNames[index] : "something else";
}

// The beginning of the message that each rank sends to all others when it arrives.
struct Handshake {
  int64_t bytes = 0;  // of the handshake and the body, see Channel
  int64_t group = 0;
  int64_t rendezvous = 0;
  int64_t layer = 0;
  int64_t number = 0;
  int64_t has_failed = 0;
  int64_t value = 0;
  int64_t unused = 0;
};
constexpr int64_t kHandshakeBytes = sizeof(Handshake);
static_assert(kHandshakeBytes == Channel::kMinLetterBytes);

// An error as text: one letter for its type, then its message.
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

class BackendGroup final : public RankGroup {
 public:
  BackendGroup(c10::intrusive_ptr<c10d::Backend> backend, at::Device device)
      : rank_(rank_of(backend)), size_(backend->getSize()) {
    static std::atomic<int64_t> groups = 0;
    group_ = size_ == 1 ? 0 : kMagic + ++groups;
    if (const auto* owner = dynamic_cast<const HasFaultBoard*>(backend.get())) {
      board_ = owner->fault_board;
    }
    channel_ = make_channel(std::move(backend), device);
  }

  int64_t rank() const override {
    return rank_;
  }
  int64_t size() const override {
    return size_;
  }

  std::function<Arrivals()> arrive(
      RendezvousPoint point,
      const std::exception_ptr& error,
      Message message) override {
    wait_for_worker();
    if (size() == 1) {
      if (error != nullptr) {
        std::rethrow_exception(error);
      }
      return [message = std::move(message)] {
        return Arrivals{{message.value}, message.bodies};
      };
    }
    last_ = {
        .group = group_,
        .rendezvous = static_cast<int64_t>(point.rendezvous),
        .layer = point.layer,
        .number = last_.number + 1,
        .has_failed = error != nullptr ? 1 : 0,
        .value = message.value};
    if (error != nullptr) {
      message.bodies = {bytes_of(encode_error(error))};
    }
    exchanges_of_arrival_ = 0;
    common_value_ = message.problem == nullptr ? 0 : message.value;
    start_exchange();
    auto wait = try_channel(
        [&] {
          return channel_->exchange_letters(
              write_letters(message), static_cast<uint64_t>(group_));
        },
        error);
    auto finish = [this, error, wait, own = last_, message] {
      is_exchanging_ = false;
      return read_letters(try_channel(wait, error), own, message, error);
    };
    if (channel_->allows_overlap()) {
      return finish;
    }
    return [arrivals = finish()] { return arrivals; };
  }

  std::function<at::Tensor()> exchange(
      at::Tensor values,
      std::vector<int64_t> sent,
      std::vector<int64_t> received) override {
    if (size() == 1) {
      return [values] { return values; };
    }
    const int64_t others = values.size(0) - sent[rank()];
    bytes_sent_ += values.size(0) == 0
        ? 0
        : others * (static_cast<int64_t>(values.nbytes()) / values.size(0));
    start_exchange();
    auto wait = try_channel([&] {
      return channel_->exchange(
          std::move(values), sent, received, key_of_exchange());
    });
    return [this, wait, number = last_.number] {
      TESSERA_CHECK(
          number != mixed_up_,
          "{}has no messages from ranks that made other calls.",
          where());
      is_exchanging_ = false;
      return try_channel(wait);
    };
  }

  int64_t bytes_sent() const override {
    return bytes_sent_;
  }
  int64_t exchanges() const override {
    return exchanges_;
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
  static int64_t rank_of(const c10::intrusive_ptr<c10d::Backend>& backend) {
    TESSERA_CHECK_VALUE(
        backend,
        "[sharded_strategy] backend must not be empty. Pass a backend such as make_gloo_backend().");
    return backend->getRank();
  }

  // Counts one exchange for all messages that travel at the same time.
  void start_exchange() {
    exchanges_ += is_exchanging_ ? 0 : 1;
    is_exchanging_ = true;
  }

  // Returns a key that is the same on all ranks that have made the same calls.
  uint64_t key_of_exchange() {
    uint64_t key = static_cast<uint64_t>(last_.group);
    for (const int64_t part :
         {last_.rendezvous,
          last_.layer,
          last_.number,
          common_value_,
          ++exchanges_of_arrival_}) {
      key = mix_bits(key + static_cast<uint64_t>(part));
    }
    return key;
  }

  std::vector<at::Tensor> write_letters(const Message& message) {
    std::vector<at::Tensor> letters(size());
    at::Tensor shared;
    for (int64_t i = 0; i < size(); ++i) {
      if (i == rank()) {
        continue;
      }
      if (message.bodies.size() > 1) {
        letters[i] = write_letter(message.bodies[i]);
      } else {
        shared = shared.defined()
            ? shared
            : write_letter(
                  message.bodies.empty() ? at::Tensor() : message.bodies[0]);
        letters[i] = shared;
      }
      bytes_sent_ += letters[i].numel() - kHandshakeBytes;
    }
    return letters;
  }

  at::Tensor write_letter(const at::Tensor& body) const {
    const int64_t body_bytes = body.defined() ? body.numel() : 0;
    const at::Tensor letter =
        empty_in_step_memory({kHandshakeBytes + body_bytes}, at::kByte);
    Handshake handshake = last_;
    handshake.bytes = letter.numel();
    auto* to = letter.mutable_data_ptr<uint8_t>();
    std::memcpy(to, &handshake, kHandshakeBytes);
    if (body_bytes > 0) {
      std::memcpy(to + kHandshakeBytes, body.const_data_ptr(), body_bytes);
    }
    return letter;
  }

  Arrivals read_letters(
      const std::vector<at::Tensor>& letters,
      const Handshake& own,
      const Message& message,
      const std::exception_ptr& error) {
    std::vector<Handshake> handshakes(size(), own);
    Arrivals arrivals;
    for (int64_t i = 0; i < size(); ++i) {
      if (i == rank()) {
        arrivals.bodies.push_back(own_body(message));
      } else {
        std::memcpy(
            &handshakes[i], letters[i].const_data_ptr(), kHandshakeBytes);
        arrivals.bodies.push_back(
            letters[i].slice(0, kHandshakeBytes, letters[i].numel()));
      }
      arrivals.values.push_back(handshakes[i].value);
    }
    for (const Handshake& handshake : handshakes) {
      const bool is_same = is_same_point(handshake, own) &&
          (message.problem == nullptr || handshake.value == own.value);
      mixed_up_ = is_same ? mixed_up_ : own.number;
    }
    check_same_point(handshakes, error);
    check_peer_errors(handshakes, arrivals.bodies, error);
    for (int64_t i = 0; message.problem != nullptr && i < size(); ++i) {
      TESSERA_CHECK_VALUE(
          arrivals.values[i] == own.value,
          "[sharded_strategy] rank {} differs from rank {}: it {}",
          i,
          rank(),
          message.problem);
    }
    return arrivals;
  }

  at::Tensor own_body(const Message& message) const {
    if (message.bodies.empty()) {
      return at::empty({0}, at::kByte);
    }
    return message.bodies[message.bodies.size() > 1 ? rank() : 0];
  }

  static bool is_same_point(const Handshake& a, const Handshake& b) {
    return a.group == b.group && a.number == b.number &&
        a.rendezvous == b.rendezvous && a.layer == b.layer;
  }

  // All ranks receive the same handshakes, so either all of them raise an error or none.
  void check_same_point(
      const std::vector<Handshake>& handshakes,
      const std::exception_ptr& error) {
    const Handshake& own = handshakes[rank()];
    for (int64_t other = 0; other < size(); ++other) {
      const Handshake& handshake = handshakes[other];
      TESSERA_CHECK(
          is_same_point(handshake, own),
          "{}is in {}, but rank {} is in {}. All ranks must make the same calls in the same order.{}",
          where(),
          describe(own),
          other,
          describe(handshake),
          before(error));
    }
  }

  static std::string describe(const Handshake& handshake) {
    return c10::str(
        name_of(handshake.rendezvous),
        handshake.layer == 0 ? ""
                             : c10::str(" of sharded layer ", handshake.layer),
        " (call ",
        handshake.number,
        " over backend ",
        handshake.group - kMagic,
        ")");
  }

  // The message body of a rank that has failed is its error.
  void check_peer_errors(
      const std::vector<Handshake>& handshakes,
      const std::vector<at::Tensor>& bodies,
      const std::exception_ptr& error) const {
    if (error != nullptr) {
      std::rethrow_exception(error);
    }
    for (int64_t other = 0; other < size(); ++other) {
      if (handshakes[other].has_failed != 0) {
        const std::string text = text_of(bodies[other]);
        raise_error(
            text[0],
            c10::str(
                where(),
                "stops in ",
                name_of(handshakes[other].rendezvous),
                ", since rank ",
                other,
                " raised: ",
                text.substr(1)));
      }
    }
  }

  std::string where() const {
    return c10::str("[sharded_strategy] rank ", rank(), " of ", size(), " ");
  }

  // `own` is the error with which this rank has arrived, if any.
  template <class Action>
  std::invoke_result_t<Action> try_channel(
      Action action,
      const std::exception_ptr& own = nullptr) {
    TESSERA_CHECK(
        failure_.empty(),
        "{}can't reach the other ranks, because an earlier call failed: {}{}",
        where(),
        failure_,
        before(own));
    try {
      return action();
    } catch (const ChannelError& error) {
      failure_ = explain(error);
    }
    TESSERA_CHECK(false, "{}{}", failure_, before(own));
  }

  static std::string before(const std::exception_ptr& own) {
    return own == nullptr
        ? ""
        : " Before that, this rank raised: " + encode_error(own).substr(1);
  }

  // Names the ranks that are missing, not those that only failed because of them.
  std::string explain(const ChannelError& error) {
    channel_->close();
    std::vector<std::string> findings;
    if (board_ == nullptr) {
      if (error.peer >= 0) {
        findings.push_back(
            c10::str("rank ", error.peer, missing(error.is_timeout)));
      }
    } else {
      // Rank 0 waits longer, because its store must live until the others have read it.
      const bool is_long = error.is_timeout || rank() == 0;
      const FaultReport own{
          .reason =
              error.is_timeout ? FaultReport::kTimeout : FaultReport::kLost,
          .peer = error.peer,
          .place = describe(last_)};
      findings =
          find_faults(own, board_->exchange(own, is_long ? kLong : kShort));
    }
    return fmt::format(
        "{}waits in {}, but can't reach the other ranks: {}{}The backend says: {}. Look at what {} printed last.{} Then start all ranks again from the last checkpoint.",
        where(),
        describe(last_),
        c10::Join("; ", findings),
        findings.empty() ? "" : ". ",
        error.what(),
        findings.size() == 1 ? "that rank" : "these ranks",
        error.is_timeout
            ? " If a step takes that long, raise the backend's timeout."
            : "");
  }

  std::vector<std::string> find_faults(
      const FaultReport& own,
      const FaultReports& reports) const {
    // The ranks that others waited for, and whether a timeout ended the wait.
    std::map<int64_t, bool> waited_for{
        {own.peer, own.reason == FaultReport::kTimeout}};
    for (const auto& report : reports.of) {
      if (report && report->reason != FaultReport::kLeft) {
        bool& is_timeout = waited_for[report->peer];
        is_timeout = is_timeout || report->reason == FaultReport::kTimeout;
      }
    }
    std::vector<std::string> findings;
    for (int64_t other = 0; other < size(); ++other) {
      const std::string text =
          other == rank() ? "" : find_fault(other, own, reports, waited_for);
      if (!text.empty()) {
        findings.push_back(board_->name_of(other) + text);
      }
    }
    if (findings.empty() && own.peer >= 0) {
      findings.push_back(
          board_->name_of(own.peer) +
          " has given up, and closed its connection");
    }
    if (!reports.has_all) {
      findings.emplace_back(
          "the store with the reports of the ranks, which is usually on the machine of rank 0, does not answer");
    }
    return findings;
  }

  // Returns what is wrong with the rank `other`, or an empty text.
  std::string find_fault(
      int64_t other,
      const FaultReport& own,
      const FaultReports& reports,
      const std::map<int64_t, bool>& waited_for) const {
    const auto& report = reports.of[other];
    const auto waited = waited_for.find(other);
    if (!report) {
      // A rank that is still computing has not reported, either.
      const bool is_late =
          own.reason == FaultReport::kTimeout && reports.has_all;
      return waited != waited_for.end() ? missing(waited->second)
          : is_late                     ? missing(true)
                                        : "";
    }
    if (report->reason == FaultReport::kLeft) {
      return " has left the program";
    }
    if (report->reason == FaultReport::kTimeout && report->peer == rank()) {
      return " has stopped waiting for this rank after the timeout";
    }
    return report->place == own.place ? "" : " waits in " + report->place;
  }

  static std::string missing(bool is_timeout) {
    return is_timeout
        ? " did not arrive in time (it may be stopped, cut off, or computing)"
        : " is gone (it has ended or is cut off)";
  }

  static constexpr std::chrono::milliseconds kShort{500};
  static constexpr std::chrono::milliseconds kLong{1500};

  int64_t rank_;
  int64_t size_;
  std::unique_ptr<Channel> channel_;
  std::shared_ptr<FaultBoard> board_;
  int64_t group_ = 0;
  Handshake last_;
  int64_t exchanges_of_arrival_ = 0;
  int64_t common_value_ = 0;  // that all ranks must pass at the last arrival
  bool is_exchanging_ = false;
  // The number of an arrival at which ranks had different points or values.
  int64_t mixed_up_ = -1;
  std::string failure_;
  int64_t layers_ = 0;
  std::atomic<int64_t> exchanges_ = 0;
  std::atomic<int64_t> bytes_sent_ = 0;
  // Created by worker(). This is the last member, because its jobs use the other members.
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
