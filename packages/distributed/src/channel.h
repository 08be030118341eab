// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace c10d {
class Backend;
}  // namespace c10d

namespace tessera::distributed {

/// A message that could not be sent or received.
struct ChannelError : std::runtime_error {
  ChannelError(const std::string& text, int64_t peer, bool is_timeout)
      : std::runtime_error(text), peer(peer), is_timeout(is_timeout) {}
  int64_t peer;  // the rank at the other end, or -1: unknown
  bool is_timeout;  // the connection may be sound, but nothing arrived
};

/// Moves bytes between this rank and the others. All ranks call its functions in the same
/// order. No two threads call them at the same time.
/// Errors:  ChannelError from the exchanges and from the functions that they return.
class Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  virtual ~Channel() = default;

  /// Starts to send `letters[i]` to each other rank i: messages of at least
  /// kMinLetterBytes bytes whose size the receiver does not know. Their first 8 bytes are
  /// that size. The returned function waits and returns the letters from the other ranks.
  /// If allows_overlap(), ranks that pass a different `key` do not get the letters.
  virtual std::function<std::vector<at::Tensor>()> exchange_letters(
      std::vector<at::Tensor> letters,
      uint64_t key) = 0;
  static constexpr int64_t kMinLetterBytes = 64;

  /// Starts to send the first `sent[0]` entries of `values` to rank 0, and so on. The
  /// returned function waits and returns the entries that have arrived, by rank. If
  /// allows_overlap(), two ranks exchange something only if both pass the same `key`.
  virtual std::function<at::Tensor()> exchange(
      at::Tensor values,
      const std::vector<int64_t>& sent,
      const std::vector<int64_t>& received,
      uint64_t key) = 0;

  /// Closes the connections, if the backend can do that, so that the other ranks notice at
  /// once that this rank has failed.
  virtual void close() noexcept = 0;

  /// Returns true if exchange() may be called before the letters in flight have arrived,
  /// and if different keys do no harm.
  virtual bool allows_overlap() const = 0;
};

/// Returns a channel over the send() and recv() of LibTorch's Gloo and of MpiBackend, or
/// over the alltoall_base() of any other backend, which needs twice as many messages.
/// `device` is where the backend expects its tensors.
std::unique_ptr<Channel> make_channel(
    c10::intrusive_ptr<c10d::Backend> backend,
    at::Device device);

}  // namespace tessera::distributed
