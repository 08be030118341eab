// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace c10d {
class Backend;
}  // namespace c10d

namespace tessera {

class LookupWorker;

/// What the ranks do together.
enum class Meeting : int64_t {
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
  kCount
};

/// A point of the program.
struct Place {
  // NOLINTNEXTLINE(google-explicit-constructor): most need no layer
  Place(Meeting meeting, int64_t layer = 0) : meeting(meeting), layer(layer) {}

  Meeting meeting;
  int64_t layer;  // EmbeddingState::layer; 0: none
};

/// The processes that share the tables of one layer or several; this one alone
/// where they are not spread. All functions but rank() and size() are collective.
/// Errors:  c10::Error naming the rank that failed, called something else, or
///          did not come.
class RankGroup {
 public:
  /// This process alone.
  RankGroup();
  /// `device`: where the backend wants its tensors.
  /// Errors:  c10::ValueError for an empty backend.
  RankGroup(c10::intrusive_ptr<c10d::Backend> backend, at::Device device);
  ~RankGroup();

  /// The group of a backend: one for all that use it, since its collectives have
  /// one order.
  static std::shared_ptr<RankGroup> of(
      c10::intrusive_ptr<c10d::Backend> backend,
      at::Device device);

  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int64_t rank() const;
  int64_t size() const;

  /// Returns when all ranks have come to the same point of the program. Raises
  /// on all of them when one brings an error: there that error, elsewhere one of
  /// its type that names the rank. `counts`, one per rank, are told to them;
  /// gives what they told.
  std::vector<int64_t> meet(
      Place place,
      const std::exception_ptr& error,
      const std::vector<int64_t>& counts = {});

  /// The same, where all ranks must bring the same `value`.
  /// Errors:  c10::ValueError on all: a rank that differs, and `problem`.
  void meet_with_same(
      Place place,
      const std::exception_ptr& error,
      uint64_t value,
      const char* problem);

  /// The number of one more layer: 1, 2, ... Not collective, but in the same order
  /// on all ranks.
  int64_t add_layer();

  /// Runs lookups in the background, which meet in the order in which they were
  /// submitted. A meeting in another thread waits until it is idle. `threads`: of
  /// the first call.
  LookupWorker& worker(int64_t threads);
  void wait_for_worker() const;

  /// What `work` gives. When it throws on one rank, all raise.
  template <class Work>
  std::invoke_result_t<Work> together(Place place, Work work) {
    std::exception_ptr error;
    if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      meet(place, error);
    } else {
      std::invoke_result_t<Work> result{};
      try {
        result = work();
      } catch (...) {
        error = std::current_exception();
      }
      meet(place, error);
      return result;
    }
  }

  /// Starts to send the first `sent[0]` entries of `values` to rank 0, the next
  /// to rank 1, and so on. The result waits, and gives what has come, by rank:
  /// `received[0]` entries from rank 0, ...
  std::function<at::Tensor()> exchange(
      at::Tensor values,
      std::vector<int64_t> sent,
      std::vector<int64_t> received);

  /// The text of each rank.
  std::vector<std::string> all_gather(const std::string& text);
  /// The text of each rank on rank 0; none elsewhere.
  std::vector<std::string> to_first(const std::string& text);
  /// What `work` gives on rank 0, which alone runs it.
  std::string from_first(Place place, c10::function_ref<std::string()> work);
  /// The value of each rank.
  std::vector<double> all_gather(double value);

  /// The sum over ranks, in their order: the same bits on each.
  /// Shapes:  [n] float32.
  at::Tensor sum(const at::Tensor& values);

  /// Bytes sent to other ranks so far.
  int64_t bytes_sent() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
