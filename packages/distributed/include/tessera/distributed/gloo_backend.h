// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __has_include(<torch/csrc/distributed/c10d/Backend.hpp>)
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#else  // This LibTorch has no distributed package.
#include <c10/util/intrusive_ptr.h>
namespace c10d {
class Backend : public c10::intrusive_ptr_target {};
class Store : public c10::intrusive_ptr_target {};
}  // namespace c10d
#endif

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace tessera::distributed {

// snippet: tests/docs/sharded.cpp GlooBackendOptions
/// The options of make_gloo_backend(). Fields that are not set, except `timeout`, come from
/// the environment.
///
///   const auto backend = make_gloo_backend({.timeout = std::chrono::minutes(5)});
struct GlooBackendOptions {
  /// How long a rank waits for the others in one exchange, and at the start, >= 1 ms.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// The network interface that the other ranks reach, such as "eth0". Default: the
  /// environment variable GLOO_SOCKET_IFNAME, or the interface that reaches MASTER_ADDR.
  std::string interface = {};
  /// The name or address of this machine, instead of an interface.
  std::string hostname = {};
  /// Where the ranks find each other. Each backend needs its own store, such as a
  /// c10d::PrefixStore. Default: a TCPStore of rank 0 at MASTER_ADDR and MASTER_PORT.
  c10::intrusive_ptr<c10d::Store> store = {};
  /// Default: the environment variable RANK.
  std::optional<int64_t> rank = {};
  /// The number of ranks. Default: the environment variable WORLD_SIZE.
  std::optional<int64_t> size = {};
};

/// Returns whether this build has Gloo: its headers, and a LibTorch that contains it.
bool has_gloo();

/// Makes the Gloo backend of LibTorch, a c10d::ProcessGroupGloo, for the processes that
/// torchrun or ./run has started. Both set the environment variables RANK, WORLD_SIZE,
/// MASTER_ADDR and MASTER_PORT. Without any of these variables, there is one rank.
///
///   auto backend = tessera::distributed::make_gloo_backend();
///   auto strategy = tessera::distributed::sharded_strategy(backend);
///
/// All ranks must call this function, and make their backends in the same order. The ranks
/// connect to each other on ports that the system chooses.
///
/// If a rank stops, ends or is cut off, the calls of all other ranks raise errors that name
/// the rank, at most two seconds after the timeout. A failed backend cannot recover. A
/// write to a dead rank causes the signal SIGPIPE, which would end this process, so this
/// function ignores SIGPIPE unless the program has a handler for it.
/// Errors:  c10::ValueError for options and variables that are missing, unusable, or not
///          the same on all ranks; c10::DistBackendError if ranks do not arrive;
///          c10::NotImplementedError if this build has no Gloo.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const GlooBackendOptions& options = {});

}  // namespace tessera::distributed
