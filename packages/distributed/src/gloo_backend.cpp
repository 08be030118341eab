// SPDX-License-Identifier: Apache-2.0
#define USE_C10D_GLOO  // The class is in the library, whatever its headers assume.
// Gloo's own headers are of another version than the library. That works, because this file
// only passes pointers to Gloo's classes on.
#include <tessera/common/shorten.h>
#include <tessera/distributed/gloo_backend.h>
#include <tessera/version.h>

#include "packages/distributed/src/fault_board.h"
#include "src/common/check.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

#include <netdb.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::distributed {

namespace {

using c10d::ProcessGroupGloo;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

constexpr const char* kWhere = "[make_gloo_backend]";
constexpr int64_t kMaxRanks = 65536;
constexpr milliseconds kMaxAgentWait{30'000};

template <class... Arguments>
[[noreturn]] void fail(
    fmt::format_string<Arguments...> text,
    Arguments&&... arguments) {
  C10_THROW_ERROR(
      DistBackendError,
      c10::str(
          kWhere,
          " ",
          fmt::format(text, std::forward<Arguments>(arguments)...)));
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int64_t integer_in(const char* name) {
  const std::string text = variable(name);
  int64_t value = -1;
  const auto [end, problem] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  TESSERA_CHECK_VALUE(
      problem == std::errc() && end == text.data() + text.size(),
      "{} {} must be an integer, but got '{}'. torchrun and ./run set it; by hand, set it on each rank.",
      kWhere,
      name,
      text);
  return value;
}

// Who this process is, and where the ranks find each other.
struct World {
  int64_t rank = 0;
  int64_t size = 1;
  std::string master = {};
  int64_t port = 0;
  StorePtr store = {};
};

World read_world(const GlooBackendOptions& options) {
  World world{.store = options.store};
  const std::vector<const char*> names{
      "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"};
  std::vector<std::string> missing;
  const auto require = [&](const char* name) {
    if (variable(name).empty()) {
      missing.emplace_back(name);
      return false;
    }
    return true;
  };
  const bool has_variable = std::ranges::any_of(
      names, [](const char* name) { return !variable(name).empty(); });
  if (!has_variable && !options.rank && !options.size && !options.store) {
    return world;
  }
  if (options.rank || require("RANK")) {
    world.rank = options.rank ? *options.rank : integer_in("RANK");
  }
  if (options.size || require("WORLD_SIZE")) {
    world.size = options.size ? *options.size : integer_in("WORLD_SIZE");
  }
  world.master = variable("MASTER_ADDR");
  if (!world.store && world.size != 1) {
    require("MASTER_ADDR");
    if (require("MASTER_PORT")) {
      world.port = integer_in("MASTER_PORT");
    }
  }
  TESSERA_CHECK_VALUE(
      missing.empty(),
      "{} expected RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, but not set: {}. Start the program with torchrun or ./run train --ranks N, set all four on each rank, or none for one rank.",
      kWhere,
      c10::Join(", ", missing));
  TESSERA_CHECK_VALUE(
      world.size >= 1 && world.size <= kMaxRanks,
      "{} WORLD_SIZE must be from 1 to {}, but got {}. Set it to the number of processes.",
      kWhere,
      kMaxRanks,
      world.size);
  TESSERA_CHECK_VALUE(
      world.rank >= 0 && world.rank < world.size,
      "{} RANK must be from 0 to WORLD_SIZE - 1 = {}, but got {}. Give each process a different number.",
      kWhere,
      world.size - 1,
      world.rank);
  TESSERA_CHECK_VALUE(
      world.store || world.size == 1 ||
          (world.port >= 1 && world.port <= 65535),
      "{} MASTER_PORT must be from 1 to 65535, but got {}. Set it to a free port of the machine of rank 0.",
      kWhere,
      world.port);
  return world;
}

// A part of the start. If this part fails, the error says "rank 1", then `text`, the
// reason, and `advice`.
struct Stage {
  std::string text;
  std::string advice;
};

// The stage of a start. Its caller reads the stage from another thread if the start hangs.
class Progress {
 public:
  void enter(Stage stage) {
    const std::lock_guard lock(mutex_);
    stage_ = std::move(stage);
  }
  Stage stage() const {
    const std::lock_guard lock(mutex_);
    return stage_;
  }

 private:
  mutable std::mutex mutex_;
  Stage stage_;
};

StorePtr open_store(
    const World& world,
    milliseconds timeout,
    Progress& progress) {
  if (world.store) {
    return world.store;
  }
  if (world.size == 1) {
    return c10::make_intrusive<c10d::HashStore>();
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(world.port);
  // torchrun opens the store itself before it starts the ranks, and then sets this
  // variable to "True". But a program that torchrun has not started may have inherited
  // the variable, so this rank waits only for a short time for the store of torchrun.
  const bool has_agent = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  options.isServer = world.rank == 0 && !has_agent;
  options.numWorkers = world.size;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;  // this process may have a second backend
  const std::string address = c10::str(world.master, ":", world.port);
  if (has_agent) {
    options.timeout = std::min(timeout, kMaxAgentWait);
  }
  progress.enter(
      has_agent
          ? Stage{"can't reach the store of torchrun at " + address + ", where TORCHELASTIC_USE_AGENT_STORE = True says that it is", "If torchrun did not start this program, remove TORCHELASTIC_USE_AGENT_STORE from the environment. Otherwise look at what torchrun printed last."}
          : options.isServer
          ? Stage{"can't listen on " + address, "Set MASTER_ADDR to a name or address of this machine, and MASTER_PORT to a port that no other program uses. Only one process may have RANK = 0."}
          : Stage{
                "can't reach rank 0 at " + address,
                "Check that rank 0 runs, that MASTER_ADDR and MASTER_PORT are the same on all ranks, that no other program has that port, and that no firewall is between them."});
  // The prefix is new, because torchrun keeps the store when it restarts all ranks.
  static std::atomic<int64_t> backends = 0;
  const std::string prefix = c10::str(
      "tessera/", variable("TORCHELASTIC_RESTART_COUNT"), "/", backends++);
  auto store = c10::make_intrusive<c10d::TCPStore>(world.master, options);
  store->setTimeout(timeout);
  return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
}

// The address from which this machine reaches `host`, or an empty text.
std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) {
    return "";
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(
      found, &::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const int socket = ::socket(one->ai_family, SOCK_DGRAM, 0);
    if (socket < 0) {
      continue;
    }
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    std::array<char, NI_MAXHOST> text{};
    // Nothing is sent: the system only chooses a route.
    const bool is_known =
        ::connect(socket, one->ai_addr, one->ai_addrlen) == 0 &&
        ::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) ==
            0 &&
        ::getnameinfo(
            reinterpret_cast<sockaddr*>(&own),
            length,
            text.data(),
            text.size(),
            nullptr,
            0,
            NI_NUMERICHOST) == 0;
    ::close(socket);
    if (is_known) {
      return text.data();
    }
  }
  return "";
}

// Where a rank listens.
struct Listener {
  std::string text;  // the name of the interface, or an address
  std::shared_ptr<::gloo::transport::Device> device;
};

// The address on which this rank listens, unless an interface is given.
std::string own_address(const GlooBackendOptions& options, const World& world) {
  if (!options.hostname.empty()) {
    return options.hostname;
  }
  if (world.size == 1) {
    return "127.0.0.1";
  }
  const std::string address =
      world.master.empty() ? "" : address_towards(world.master);
  TESSERA_CHECK_VALUE(
      !address.empty(),
      "{} rank {} finds no address of its own from which it reaches MASTER_ADDR = '{}'. Set GlooBackendOptions::interface or hostname, or GLOO_SOCKET_IFNAME, to one of this machine that the other ranks reach.",
      kWhere,
      world.rank,
      world.master);
  return address;
}

Listener listen(const GlooBackendOptions& options, const World& world) {
  std::string interface = options.interface;
  if (interface.empty() && options.hostname.empty()) {
    const std::string all = variable("GLOO_SOCKET_IFNAME");
    interface = all.substr(0, all.find(','));
  }
  const std::string address =
      interface.empty() ? own_address(options, world) : "";
  try {
    if (!interface.empty()) {
      return {
          interface,
          ProcessGroupGloo::createDeviceForInterface(interface, false)};
    }
    return {address, ProcessGroupGloo::createDeviceForHostname(address, false)};
  } catch (const std::exception& error) {
    C10_THROW_ERROR(
        ValueError,
        fmt::format(
            "{} rank {} can't listen on the {} '{}' ({}). Set GlooBackendOptions::interface or hostname, or GLOO_SOCKET_IFNAME, to one of this machine that the other ranks reach.",
            kWhere,
            world.rank,
            interface.empty() ? "address" : "interface",
            interface.empty() ? address : interface,
            reason_of(error)));
  }
}

// What each rank tells the others about itself.
struct Registration {
  int64_t size = 0;
  std::string versions = {};
  std::string host = {};
  std::string address = {};
};

std::string encode(const Registration& registration) {
  return c10::str(
      registration.size,
      "\n",
      registration.versions,
      "\n",
      registration.host,
      "\n",
      registration.address);
}

Registration decode(const std::string& encoded) {
  std::istringstream text(encoded);
  Registration registration;
  std::string size;
  std::getline(text, size);
  std::from_chars(size.data(), size.data() + size.size(), registration.size);
  std::getline(text, registration.versions);
  std::getline(text, registration.host);
  std::getline(text, registration.address);
  return registration;
}

bool is_loopback(const std::string& address) {
  return address == "lo" || address == "localhost" || address == "::1" ||
      address.rfind("127.", 0) == 0;
}

void compare(
    const Registration& own,
    int64_t own_rank,
    const Registration& other,
    int64_t other_rank) {
  TESSERA_CHECK_VALUE(
      other.size == own.size,
      "{} WORLD_SIZE must be the same on all ranks, but is {} on rank {} and {} on rank {}. Set it to the number of processes.",
      kWhere,
      own.size,
      own_rank,
      other.size,
      other_rank);
  TESSERA_CHECK_VALUE(
      other.versions == own.versions,
      "{} all ranks must run the same versions, but rank {} has {} and rank {} has {}. Install the same program everywhere.",
      kWhere,
      own_rank,
      own.versions,
      other_rank,
      other.versions);
  TESSERA_CHECK_VALUE(
      is_loopback(own.address) == is_loopback(other.address),
      "{} rank {} listens on {} and rank {} on {}, but other machines can't reach the addresses of a loopback. Set GlooBackendOptions::interface or GLOO_SOCKET_IFNAME on the rank with that address.",
      kWhere,
      own_rank,
      own.address,
      other_rank,
      other.address);
  const auto has_ipv6 = [](const Registration& registration) {
    return registration.address.find(':') != std::string::npos;
  };
  const auto has_ipv4 = [](const Registration& registration) {
    return registration.address.find_first_not_of("0123456789.") ==
        std::string::npos;
  };
  TESSERA_CHECK_VALUE(
      !(has_ipv6(own) && has_ipv4(other)) &&
          !(has_ipv4(own) && has_ipv6(other)),
      "{} rank {} listens on {} and rank {} on {}, but IPv4 and IPv6 can't be mixed. Set MASTER_ADDR to one address on all ranks, or GLOO_SOCKET_IFNAME.",
      kWhere,
      own_rank,
      own.address,
      other_rank,
      other.address);
}

std::string key_of_rank(int64_t rank) {
  return c10::str("rank/", rank);
}

// The keys of two counts: the processes that have arrived as this rank, and those of them
// that have left after a failure.
std::string key_of_arrivals(int64_t rank) {
  return c10::str("arrivals/", rank);
}
std::string key_of_leavers(int64_t rank) {
  return c10::str("leavers/", rank);
}

constexpr const char* kProblem = "problem";

// Tells the other ranks that this rank has failed, and why. The store ends with rank 0. So
// rank 0 waits until all others have left, too. It waits until `last_arrival`, but at most
// 10 s, and at least a second for ranks that have arrived.
void leave(
    c10d::Store& store,
    const World& world,
    const std::exception& error,
    Clock::time_point last_arrival) {
  constexpr milliseconds kMaxTime{1000};
  constexpr milliseconds kMaxArrivalTime{10'000};
  const auto begin = Clock::now();
  last_arrival = std::min(last_arrival, begin + kMaxArrivalTime);
  try {
    store.set(
        kProblem, fmt::format("rank {}: {}", world.rank, reason_of(error)));
    store.add(key_of_leavers(world.rank), 1);
    for (int64_t rank = 1; world.rank == 0 && rank < world.size; ++rank) {
      for (;;) {
        const int64_t arrivals = store.add(key_of_arrivals(rank), 0);
        const int64_t leavers = store.add(key_of_leavers(rank), 0);
        const auto end = std::max(last_arrival, begin + kMaxTime);
        if (Clock::now() >= (arrivals > 0 ? end : last_arrival) ||
            leavers >= std::max<int64_t>(arrivals, 1)) {
          break;
        }
        std::this_thread::sleep_for(milliseconds(10));
      }
    }
  } catch (const std::exception&) {
    // Without a store, the other ranks can't be notified.
  }
}

// Waits until all ranks have registered. Returns a text about each rank.
std::vector<std::string> register_rank(
    c10d::Store& store,
    const World& world,
    const std::string& address,
    milliseconds timeout,
    Clock::time_point end) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const Registration own{
      .size = world.size,
      .versions = c10::str("Tessera " TESSERA_VERSION_STRING
                           ", LibTorch " TORCH_VERSION),
      .host = host.data(),
      .address = address};
  if (store.add(key_of_arrivals(world.rank), 1) > 1) {
    fail(
        "another process has RANK = {}, too. Give each process a different number, and stop processes of earlier runs.",
        world.rank);
  }
  store.set(key_of_rank(world.rank), encode(own));
  std::vector<std::string> hosts(world.size);
  std::vector<int64_t> missing(world.size);
  std::iota(missing.begin(), missing.end(), 0);
  for (;;) {
    std::erase_if(missing, [&](int64_t rank) {
      if (Clock::now() >= end || !store.check({key_of_rank(rank)})) {
        return false;
      }
      const Registration other = decode(store.get_to_str(key_of_rank(rank)));
      compare(own, world.rank, other, rank);
      hosts[rank] = other.address.empty() || is_loopback(other.address)
          ? other.host
          : c10::str(other.host, ", ", other.address);
      return true;
    });
    if (missing.empty()) {
      return hosts;
    }
    if (store.check({kProblem})) {
      fail(
          "rank {} stops, because another rank failed. {}",
          world.rank,
          store.get_to_str(kProblem));
    }
    if (Clock::now() >= end) {
      std::vector<std::string> names;
      for (const int64_t rank : missing) {
        names.push_back(std::to_string(rank));
      }
      fail(
          "{} {} of {} did not arrive at rank {} within {} ms. Check that WORLD_SIZE is the number of processes, that each has a different RANK, and what the missing ones printed last.",
          missing.size() == 1 ? "rank" : "ranks",
          shorten_all(names),
          world.size,
          world.rank,
          timeout.count());
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

class GlooBackend final : public ProcessGroupGloo, public HasFaultBoard {
 public:
  GlooBackend(
      const StorePtr& store,
      const World& world,
      c10::intrusive_ptr<Options> options,
      std::vector<std::string> hosts)
      : ProcessGroupGloo(
            store,
            static_cast<int>(world.rank),
            static_cast<int>(world.size),
            std::move(options)) {
    if (world.size > 1) {
      fault_board = std::make_shared<FaultBoard>(
          c10::make_intrusive<c10d::PrefixStore>("faults", store),
          world.rank,
          std::move(hosts));
    }
  }
};

// The other ranks, with their hosts, for an error.
std::string list_of_others(
    const World& world,
    const std::vector<std::string>& hosts) {
  std::vector<std::string> others;
  for (int64_t rank = 0; rank < world.size; ++rank) {
    if (rank != world.rank) {
      others.push_back(fmt::format("rank {} ({})", rank, hosts[rank]));
    }
  }
  return shorten_all(others);
}

c10::intrusive_ptr<c10d::Backend> connect(
    const GlooBackendOptions& options,
    const World& world,
    Progress& progress) {
  const auto end = Clock::now() + options.timeout;
  // The store comes first, because the name of rank 0 may be unknown until rank 0 runs.
  const StorePtr store = open_store(world, options.timeout, progress);
  try {
    progress.enter(
        {"gets no answer from the store of rank 0",
         "Look at what rank 0 printed last. It may have ended, be stopped or be cut off."});
    const Listener listener = listen(options, world);
    std::vector<std::string> hosts =
        register_rank(*store, world, listener.text, options.timeout, end);
    progress.enter(
        {fmt::format(
             "listens on {}, but can't connect to all of {}",
             listener.text,
             list_of_others(world, hosts)),
         "One of them may have ended or be stopped; look at what they printed last. Each rank listens on a port that the system chooses, which firewalls must let through."});
    auto gloo = ProcessGroupGloo::Options::create(options.timeout);
    gloo->devices.push_back(listener.device);
    return c10::make_intrusive<GlooBackend>(
        store, world, std::move(gloo), std::move(hosts));
  } catch (const std::exception& error) {
    leave(*store, world, error, end);
    throw;
  }
}

// Calls connect() in its own thread, because LibTorch's calls may hang.
c10::intrusive_ptr<c10d::Backend> connect_in_time(
    const GlooBackendOptions& options,
    const World& world) {
  constexpr milliseconds kSlack{1500};
  const auto progress = std::make_shared<Progress>();
  std::packaged_task<c10::intrusive_ptr<c10d::Backend>()> task(
      [=] { return connect(options, world, *progress); });
  auto backend = task.get_future();
  std::thread(std::move(task)).detach();
  std::string reason;
  if (backend.wait_for(options.timeout + kSlack) == std::future_status::ready) {
    try {
      return backend.get();
    } catch (const c10::ValueError&) {
      throw;
    } catch (const std::exception& error) {
      reason = reason_of(error);
      if (reason.rfind(kWhere, 0) == 0) {
        throw;  // comes from fail()
      }
    }
  }
  const Stage stage = progress->stage();
  fail(
      "rank {} {}{}. {}",
      world.rank,
      stage.text,
      reason.empty()
          ? fmt::format(" within {} ms", options.timeout.count())
          : " (" + reason.substr(0, reason.find_last_not_of(". ") + 1) + ")",
      stage.advice);
}

// A write to a rank that has died must raise an error that names the rank. By default, the
// write ends this process.
void ignore_broken_pipes() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction action {};
  if (::sigaction(SIGPIPE, nullptr, &action) == 0 &&
      (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &action, nullptr);
  }
}

}  // namespace

bool has_gloo() {
  return true;
}

c10::intrusive_ptr<c10d::Backend> make_gloo_backend(
    const GlooBackendOptions& options) {
  TESSERA_CHECK_VALUE(
      options.timeout >= milliseconds(1) &&
          options.timeout <= std::chrono::years(1),
      "[GlooBackendOptions] timeout must be from 1 ms to a year, but got {} ms. Set the time that a rank may wait for the others.",
      options.timeout.count());
  TESSERA_CHECK_VALUE(
      options.interface.empty() || options.hostname.empty(),
      "[GlooBackendOptions] interface and hostname are two ways to say where this rank listens, but got '{}' and '{}'. Set one of them.",
      options.interface,
      options.hostname);
  const World world = read_world(options);
  ignore_broken_pipes();
  return connect_in_time(options, world);
}

}  // namespace tessera::distributed
