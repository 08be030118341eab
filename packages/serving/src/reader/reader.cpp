// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/reader.h>

#include "packages/serving/src/reader/version.h"
#include "packages/serving/src/reader/version_data.h"
#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/files.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace tessera::serving {

namespace {

using VersionPtr = std::shared_ptr<const Version>;

// A pointer that many threads read and one thread at a time replaces. Readers never wait.
// The thread that replaces it waits until no reader copies the old one. For that, a reader
// counts itself in one of two counters. The replacing thread sends new readers to the other
// counter, and waits until the first one is 0. It does so twice, once for each counter.
class SharedVersion {
 public:
  ~SharedVersion() {
    delete current_.load();
  }

  VersionPtr get() const {
    std::atomic<int64_t>& readers = readers_[side_.load()].count;
    ++readers;
    const VersionPtr* current = current_.load();
    VersionPtr version = current == nullptr ? nullptr : *current;
    --readers;
    return version;
  }

  // Called in a child of fork() before a thread reads.
  void forget_readers() {
    readers_[0].count = 0;
    readers_[1].count = 0;
  }

  // Returns the old version.
  VersionPtr exchange(VersionPtr version) {
    const std::unique_ptr<const VersionPtr> old(
        current_.exchange(new VersionPtr(std::move(version))));
    for (int i = 0; i < 2; ++i) {
      const size_t left = side_.load();
      side_ = 1 - left;
      while (readers_[left].count.load() != 0) {
        std::this_thread::yield();
      }
    }
    return old == nullptr ? nullptr : *old;
  }

 private:
  struct alignas(64) Counter {
    std::atomic<int64_t> count = 0;
  };

  std::atomic<const VersionPtr*> current_ = nullptr;
  std::atomic<size_t> side_ = 0;
  mutable std::array<Counter, 2> readers_ = {};
};

// Waits for a change in a directory, by inotify if the system has it. The directory may
// vanish and come back.
class DirectoryWatch {
 public:
  explicit DirectoryWatch(std::filesystem::path directory)
      : directory_(std::move(directory)),
        inotify_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)),
        stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    TESSERA_CHECK(
        stop_.is_open(),
        "[Reader] can't watch a directory: {}. Close files, or raise the limit of open files.",
        std::strerror(errno));
    watch_again();
  }

  // Returns after a change, after stop(), or after `seconds`.
  void wait(double seconds) {
    std::array<pollfd, 2> files{
        {{.fd = stop_.number(), .events = POLLIN, .revents = 0},
         {.fd = inotify_.is_open() ? inotify_.number() : -1,
          .events = POLLIN,
          .revents = 0}}};
    const double milliseconds = std::clamp(1000.0 * seconds, 1.0, 3.6e6);
    ::poll(files.data(), files.size(), static_cast<int>(milliseconds));
    if ((files[1].revents & POLLIN) != 0) {
      alignas(inotify_event) std::array<char, 4096> events;
      while (::read(inotify_.number(), events.data(), events.size()) > 0) {
      }
    }
    watch_again();
  }

  // Ends wait(), now and from now on. Another thread may call it.
  void stop() {
    is_stopped_ = true;
    const uint64_t one = 1;
    (void)!::write(stop_.number(), &one, sizeof(one));
  }
  bool is_stopped() const {
    return is_stopped_;
  }

 private:
  // A watch belongs to a directory and not to its path, where a new directory may come.
  void watch_again() {
    if (!inotify_.is_open()) {
      return;
    }
    const int watch = ::inotify_add_watch(
        inotify_.number(),
        directory_.c_str(),
        IN_MOVED_TO | IN_CLOSE_WRITE | IN_DELETE_SELF | IN_MOVE_SELF |
            IN_ONLYDIR);
    if (watch_ >= 0 && watch != watch_) {
      ::inotify_rm_watch(inotify_.number(), watch_);
    }
    watch_ = watch;
  }

  std::filesystem::path directory_;
  FileDescriptor inotify_;
  FileDescriptor stop_;  // wakes wait()
  std::atomic<bool> is_stopped_ = false;
  int watch_ = -1;
};

// Counts the forks between the process that first used a Reader and this one. fork()
// locks the mutex before it copies the process, so no other thread of the parent can hold
// the mutex in the child, where that thread does not exist.
struct Forks {
  Forks() {
    const int error = ::pthread_atfork(
        [] { get().mutex.lock(); },
        [] { get().mutex.unlock(); },
        [] {
          ++get().count;
          get().mutex.unlock();
        });
    TESSERA_CHECK(
        error == 0,
        "[Reader] can't prepare for fork(): {}. Free memory.",
        std::strerror(error));
  }
  static Forks& get() {
    // Never destroyed, because a reader may live until the program ends.
    static auto& forks = *new Forks;
    return forks;
  }

  std::mutex mutex;
  std::atomic<int64_t> count = 0;
};

}  // namespace

struct Reader::Impl {
  Impl(std::string path, ReaderOptions given)
      : directory(std::move(path)), options(std::move(given)) {}

  bool is_of_parent() const {
    return forks != Forks::get().count;
  }

  // Each function of the reader calls this function first. When the parent was forked,
  // its threads may have been changing `process`, and may have held the locks of
  // `process`. So a child leaves that object as it is, and makes a new one. The reader's
  // thread starts at the first call in the child, because many children only start
  // another program.
  void continue_in_child() {
    if (!is_of_parent()) {
      return;
    }
    const std::lock_guard<std::mutex> lock(Forks::get().mutex);
    if (!is_of_parent()) {
      return;  // another thread was faster
    }
    auto next = std::make_unique<Process>();
    current.forget_readers();
    next->status = {
        .version = current.get()->number(),
        .newest = process->status.newest,
        .is_pinned = process->status.is_pinned,
        .taken = process->status.taken};
    leave_process();
    process = std::move(next);
    if (options.follow) {
      try {
        process->watch.emplace(directory);
        process->thread = std::thread([this] {
          try_to_take();  // what came since fork()
          follow();
        });
      } catch (const std::exception& error) {
        process->watch.reset();
        // The version of the parent goes on serving.
        process->status.problem =
            std::string("after fork(), no versions follow: ") + error.what();
      }
    }
    forks = Forks::get().count.load();
  }

  // Closes the files of the watch, which the parent shares. The rest is never destroyed.
  void leave_process() {
    process.release()->watch.reset();
  }

  // The versions from their base, or from the one after `known`, to `newest`, newest first.
  std::vector<VersionText> chain_to(VersionText newest, const Version* known)
      const {
    const int64_t number = newest.file.version;
    const int64_t base = newest.file.base;
    std::vector<VersionText> chain;
    chain.push_back(std::move(newest));
    const auto check = [&](bool is_valid) {
      TESSERA_CHECK_VALUE(
          is_valid,
          "{} version {} does not lead to its base, {}. The files are damaged.",
          where_of(chain.back().file.version),
          number,
          base);
    };
    while (!chain.back().file.is_base()) {
      const std::optional<VersionLink> previous = chain.back().file.previous;
      if (known != nullptr && known->impl().link() == previous) {
        break;
      }
      check(previous && previous->version >= base);
      chain.push_back(read_version_file(
          directory, previous->version, previous->xxh3, kReader));
      check(chain.back().file.base == base);
    }
    return chain;
  }

  std::string where_of(int64_t version) const {
    return std::string(kReader) + " " +
        (directory / version_name(version)).string() + ":";
  }

  // Makes the version `newest`, from `known` if its files continue it.
  VersionPtr make(VersionText newest, const VersionPtr& known) const {
    std::vector<VersionText> chain = chain_to(std::move(newest), known.get());
    const DataPlace place =
        options.copy_to_memory ? DataPlace::kInMemory : DataPlace::kMapped;
    VersionPtr version = known;
    for (auto text = chain.rbegin(); text != chain.rend(); ++text) {
      const VersionData data = read_version(directory, std::move(*text), place);
      const std::string where = where_of(data.file.version);
      version = data.file.is_base() ? make_version(data, where)
                                    : make_next_version(*version, data, where);
    }
    return version;
  }

  // Lets `version` serve. The mutex must be held.
  void serve(VersionPtr version) {
    const int64_t number = version->number();
    process->retired.push_back(current.exchange(std::move(version)));
    free_retired();
    change_status([&](ReaderStatus& status) {
      status.version = number;
      status.problem.clear();
      ++status.taken;
    });
  }

  template <class Change>
  void change_status(Change change) {
    const std::lock_guard<std::mutex> lock(process->status_mutex);
    change(process->status);
  }
  ReaderStatus get_status() const {
    const std::lock_guard<std::mutex> lock(process->status_mutex);
    return process->status;
  }

  // Frees old versions here and not in requests, because it takes long. A version that a
  // request holds is kept.
  void free_retired() {
    std::erase_if(process->retired, [](const VersionPtr& version) {
      return version == nullptr || version.use_count() == 1;
    });
  }

  // Takes the newest version. The mutex must be held. Returns the event, if there is one.
  std::optional<ReaderEvent> take_newest() {
    free_retired();
    change_status([](ReaderStatus& status) { status.newest = 0; });
    const bool is_pinned = get_status().is_pinned;
    VersionLink newest;
    try {
      newest = read_current(directory);
    } catch (const std::exception&) {
      if (!is_pinned) {  // a pinned version needs no directory
        throw;
      }
    }
    change_status(
        [&](ReaderStatus& status) { status.newest = newest.version; });
    if (is_pinned) {
      return std::nullopt;
    }
    const VersionPtr known = current.get();
    if (known != nullptr && known->impl().link() == newest) {
      change_status([](ReaderStatus& status) { status.problem.clear(); });
      return std::nullopt;
    }
    if (known != nullptr && process->refused == newest) {
      // If the files have changed, somebody may be copying them. Then they are read again.
      const int64_t change = last_change(directory);
      if (process->refused_change == change) {
        change_status(
            [&](ReaderStatus& status) { status.problem = process->reason; });
        return std::nullopt;
      }
      process->refused_change = change;
    }
    VersionPtr version;
    try {
      version = make(
          read_version_file(directory, newest.version, newest.xxh3, kReader),
          known);
    } catch (const std::invalid_argument& error) {
      if (process->refused != newest) {
        process->refused_change = 0;  // The next look reads the files again.
      }
      process->refused = newest;
      process->reason = error.what();
      throw;
    } catch (const std::runtime_error&) {
      // The publisher may have removed the files of a version that CURRENT named before.
      if (read_current(directory) != newest) {
        return take_newest();
      }
      throw;
    }
    serve(std::move(version));
    process->refused = {};
    return ReaderEvent{.version = newest.version};
  }

  // take_newest() that keeps the reason of an error in the status. The mutex must be held.
  std::optional<ReaderEvent> take_and_report() {
    try {
      return take_newest();
    } catch (const std::exception& error) {
      change_status(
          [&](ReaderStatus& status) { status.problem = error.what(); });
      throw;
    }
  }

  // Calls `change` while no other thread takes a version. Then reports the event that it
  // returns, if there is one.
  template <class Change>
  std::optional<ReaderEvent> run_locked(Change change) {
    std::optional<ReaderEvent> event;
    {
      const std::lock_guard<std::mutex> lock(process->mutex);
      event = change();
    }
    if (event && options.on_event) {
      options.on_event(*event);
    }
    return event;
  }

  // Takes the newest version, and keeps the old one if there is a problem. Returns whether
  // there is the same problem as before.
  bool try_to_take() {
    bool is_known_problem = false;
    run_locked([&]() -> std::optional<ReaderEvent> {
      const std::string before = get_status().problem;
      try {
        return take_and_report();
      } catch (const std::exception& error) {
        is_known_problem = before == error.what();
        return is_known_problem
            ? std::nullopt
            : std::optional(ReaderEvent{
                  .version = get_status().newest, .problem = error.what()});
      }
    });
    return is_known_problem;
  }

  void follow() {
    // Other threads of the process go first, because lookups should not wait for a version.
    constexpr int kNice = 10;
    const auto thread = static_cast<id_t>(::syscall(SYS_gettid));
    (void)::setpriority(PRIO_PROCESS, thread, kNice);
    constexpr double kLongest = 5.0;
    DirectoryWatch& watch = *process->watch;
    double seconds = options.poll_seconds;
    while (!watch.is_stopped()) {
      watch.wait(seconds);
      if (!watch.is_stopped()) {
        // After the same problem twice, the reader looks less often.
        seconds = try_to_take()
            ? std::max(options.poll_seconds, std::min(2.0 * seconds, kLongest))
            : options.poll_seconds;
      }
    }
  }

  // The members that a child of fork() makes anew.
  struct Process {
    std::mutex mutex;  // held to take a version; guards the next four members
    VersionLink refused;  // the last version with a problem
    int64_t refused_change = 0;  // last_change() before its files were read
    std::string reason;  // why it was refused
    std::vector<VersionPtr> retired;
    std::mutex status_mutex;  // guards status
    ReaderStatus status;
    std::optional<DirectoryWatch> watch;  // if it follows
    std::thread thread;
  };

  std::filesystem::path directory;
  ReaderOptions options;
  SharedVersion current;
  std::unique_ptr<Process> process = std::make_unique<Process>();
  std::atomic<int64_t> forks = Forks::get().count.load();  // of `process`
};

Reader::Reader(std::string directory, ReaderOptions options) {
  TESSERA_CHECK_VALUE(
      !directory.empty(),
      "[Reader] expected the directory of a Publisher, but got ''. Pass a path.");
  check_path(directory, kReader);
  TESSERA_CHECK_VALUE(
      std::isfinite(options.poll_seconds) && options.poll_seconds > 0.0,
      "[Reader] poll_seconds must be finite and > 0, but is {}. Correct the options.",
      options.poll_seconds);
  active_kernels();  // refuses a wrong TESSERA_ISA here, and not in a lookup
  impl_ = std::make_unique<Impl>(std::move(directory), std::move(options));
  if (impl_->options.follow) {
    impl_->process->watch.emplace(impl_->directory);
  }
  impl_->run_locked([this] { return impl_->take_newest(); });
  if (impl_->options.follow) {
    impl_->process->thread = std::thread([this] { impl_->follow(); });
  }
}

Reader::~Reader() {
  if (impl_->is_of_parent()) {
    impl_->leave_process();
    return;
  }
  Impl::Process& process = *impl_->process;
  if (process.thread.joinable()) {
    process.watch->stop();
    process.thread.join();
  }
}

std::shared_ptr<const Version> Reader::version() const {
  impl_->continue_in_child();
  return impl_->current.get();
}

bool Reader::refresh() {
  impl_->continue_in_child();
  const auto event = impl_->run_locked([this] {
    impl_->process->refused = {};
    return impl_->take_and_report();
  });
  return event.has_value();
}

void Reader::rollback(int64_t version) {
  impl_->continue_in_child();
  impl_->run_locked([&] {
    std::optional<ReaderEvent> event;
    const VersionPtr known = impl_->current.get();
    if (known->number() != version) {
      const std::filesystem::path folder =
          impl_->directory / version_name(version);
      std::error_code ignored;
      TESSERA_CHECK_VALUE(
          version >= 1 && std::filesystem::exists(folder, ignored),
          "[Reader::rollback] there is no version {} in '{}'. Its publisher may have removed it. Choose one that is there.",
          version,
          impl_->directory.string());
      impl_->serve(impl_->make(
          read_version_file(
              impl_->directory, version, std::nullopt, "[Reader::rollback]"),
          version > known->number() ? known : nullptr));
      event = ReaderEvent{.version = version};
    }
    impl_->change_status([](ReaderStatus& status) {
      status.is_pinned = true;
      status.problem.clear();
    });
    return event;
  });
}

void Reader::unpin() {
  impl_->continue_in_child();
  impl_->change_status([](ReaderStatus& status) { status.is_pinned = false; });
  if (impl_->options.follow) {
    impl_->try_to_take();
  }
}

ReaderStatus Reader::status() const {
  impl_->continue_in_child();
  return impl_->get_status();
}

}  // namespace tessera::serving
