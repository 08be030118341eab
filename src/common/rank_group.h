// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/lookup_worker.h"

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace tessera {

/// The kinds of calls that all ranks make together.
enum class Rendezvous : int64_t {
  kConfigure,
  kLookup,
  kUpdate,
  kUpdateIsReady,
  kNorm,
  kReadRows,
  kSaveCheckpoint,
  kLoadCheckpoint,
  kSumGradients,
  kBroadcastParameters,
  kTrain,
  kGather,
  kCount
};

/// A point of the program at which all ranks wait for each other.
struct RendezvousPoint {
  // NOLINTNEXTLINE(google-explicit-constructor): most places have no layer
  RendezvousPoint(Rendezvous rendezvous, int64_t layer = 0)
      : rendezvous(rendezvous), layer(layer) {}

  Rendezvous rendezvous;
  int64_t layer;  // EmbeddingState::layer; 0: no layer
};

/// Calls `work`. Returns what it throws, or nullptr.
std::exception_ptr error_of(c10::function_ref<void()> work);

/// The processes that share the tables of one or several layers. All ranks must call a
/// function together, except rank(), size(), add_layer(), worker(), wait_for_worker(),
/// drain(), is_sum_direct(), add_bodies(), exchanges() and bytes_sent().
/// Errors:  c10::Error naming the rank that failed, made another call, or did not
///          arrive.
class RankGroup {
 public:
  RankGroup() = default;
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;
  virtual ~RankGroup() = default;

  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;

  /// The message of one rank to the others when it arrives.
  struct Message {
    int64_t value = 0;
    /// If set, all ranks must pass the same value. The error about another value says
    /// "rank 1 differs from rank 0: it ", and then `problem`.
    const char* problem = nullptr;
    /// Bytes for each rank, or one tensor for all of them, or nothing.
    std::vector<at::Tensor> bodies = {};
  };
  /// The messages of all ranks, in the order of the ranks.
  struct Arrivals {
    std::vector<int64_t> values = {};
    /// Bytes for this rank, contiguous and aligned to 4 bytes.
    std::vector<at::Tensor> bodies = {};
  };

  /// Says that this rank has arrived. The returned function waits until all ranks have
  /// arrived at the same place. If a rank passes an error, every rank raises: that rank
  /// raises its own error, and the others raise an error of the same type that names the
  /// rank.
  ///
  /// An exchange() that starts before the wait travels at the same time as the messages.
  /// All ranks must start that exchange, also a rank that passes an error. If the wait
  /// raises, pass the exchange to drain().
  /// Errors:  c10::ValueError on all ranks if `problem` is set and values differ.
  virtual std::function<Arrivals()> arrive(
      RendezvousPoint point,
      const std::exception_ptr& error,
      Message message) = 0;

  /// Returns when all ranks have arrived.
  void barrier(
      RendezvousPoint point,
      const std::exception_ptr& error = nullptr) {
    arrive(point, error, {})();
  }

  /// Like barrier(), but all ranks must pass the same `value`.
  void barrier_and_compare(
      RendezvousPoint point,
      const std::exception_ptr& error,
      uint64_t value,
      const char* problem) {
    arrive(
        point,
        error,
        {.value = static_cast<int64_t>(value), .problem = problem})();
  }

  /// Returns the number of a new layer: 1, 2, ... All ranks must construct their
  /// layers in the same order.
  virtual int64_t add_layer() = 0;

  /// The thread that runs lookups in the background. The lookups arrive at their barriers
  /// in the order in which they were submitted. A barrier of another thread waits until
  /// the worker is idle. Only the `threads` of the first call count.
  virtual LookupWorker& worker(int64_t threads) = 0;
  virtual void wait_for_worker() const = 0;

  /// Returns what `work` returns. If it throws on one rank, every rank raises.
  template <class Work>
  std::invoke_result_t<Work> run_on_all_ranks(
      RendezvousPoint point,
      Work work) {
    if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
      barrier(point, error_of(work));
    } else {
      std::invoke_result_t<Work> result{};
      barrier(point, error_of([&] { result = work(); }));
      return result;
    }
  }

  /// Starts to send the first `sent[0]` entries of `values` to rank 0, the next
  /// `sent[1]` to rank 1, and so on. The returned function waits and returns what has
  /// arrived: `received[0]` entries from rank 0, then `received[1]` from rank 1, ...
  virtual std::function<at::Tensor()> exchange(
      at::Tensor values,
      std::vector<int64_t> sent,
      std::vector<int64_t> received) = 0;

  /// Waits for the exchanges that were started with an arrive() whose wait has raised, so
  /// that later exchanges are not mixed up with them.
  static void drain(const std::vector<std::function<at::Tensor()>>& exchanges);

  /// Returns the value that each rank passed.
  std::vector<int64_t> all_gather(int64_t value) {
    return arrive(Rendezvous::kGather, nullptr, {.value = value})().values;
  }
  /// Returns the text that each rank passed.
  std::vector<std::string> all_gather(const std::string& text);
  /// Returns the text of each rank on rank 0, and empty texts on the others.
  std::vector<std::string> gather(const std::string& text);

  /// Runs `work` on rank 0 alone and returns its result on every rank. The result
  /// is void, std::string or trivially copyable.
  template <class Work>
  std::invoke_result_t<Work> broadcast(RendezvousPoint point, Work work) {
    using T = std::invoke_result_t<Work>;
    if constexpr (std::is_void_v<T>) {
      run_on_all_ranks(point, [&] {
        if (rank() == 0) {
          work();
        }
      });
    } else if constexpr (std::is_same_v<T, std::string>) {
      return broadcast_bytes(point, work);
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      T value{};
      const std::string bytes = broadcast_bytes(point, [&] {
        value = work();
        return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
      });
      std::memcpy(&value, bytes.data(), sizeof(T));
      return value;
    }
  }

  /// Whether any rank passes true.
  bool any_of(RendezvousPoint point, bool flag) {
    return any_of(point, std::vector<bool>{flag})[0];
  }
  /// For each flag, whether any rank passes true. There are at most 63 flags.
  std::vector<bool> any_of(
      RendezvousPoint point,
      const std::vector<bool>& flags);

  /// Returns the sum of `values` over the ranks, added in the order of the ranks, so that
  /// all ranks get the same bits. (An allreduce of MPI guarantees no order.) This function
  /// sets the bodies of `message`, and arrives with it.
  /// Shapes:  [n] float32; nothing is read from `values` if there is an error.
  at::Tensor sum(
      RendezvousPoint point,
      const std::exception_ptr& error,
      Message message,
      const at::Tensor& values);
  /// Returns whether sum() sends all `count` floats to every rank, in one exchange.
  /// Otherwise it makes two exchanges of parts, which send fewer bytes.
  bool is_sum_direct(int64_t count) const;
  /// Returns the sum of `values` over the ranks. The bodies of the messages in `arrivals`
  /// are the `values` of the other ranks.
  at::Tensor add_bodies(const at::Tensor& values, const Arrivals& arrivals)
      const;
  /// Like sum(), but in two exchanges, and after all ranks have arrived.
  at::Tensor sum_parts(const at::Tensor& values);

  /// How often this rank has waited for messages of others so far.
  virtual int64_t exchanges() const = 0;
  /// The number of bytes that this rank has sent to others so far.
  virtual int64_t bytes_sent() const = 0;

 private:
  std::string broadcast_bytes(
      RendezvousPoint point,
      c10::function_ref<std::string()> work);
};

/// Returns a text as bytes [n], and bytes as a text.
at::Tensor bytes_of(const std::string& text);
std::string text_of(const at::Tensor& bytes);

/// Returns the memory of a contiguous tensor as bytes [n].
at::Tensor as_bytes(const at::Tensor& values);

/// Makes a group of this process alone.
std::shared_ptr<RankGroup> make_solo_group();

}  // namespace tessera
