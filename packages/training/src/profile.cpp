// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/profile.h>

#include "src/common/check.h"
#include "src/common/text.h"

#include <ATen/record_function.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace tessera::training {

namespace {

using ProfileClock = std::chrono::steady_clock;

// A scope of Tessera and its phase. The time of a whole scope contains that of the scopes
// within it.
struct KnownScope {
  std::string_view name;
  const char* phase;
  bool is_whole = false;
};

// The order is that of the rows in result().
constexpr std::array kKnownScopes{
    KnownScope{"tessera::read_lines", "reading files"},
    KnownScope{"tessera::parse_lines", "parsing lines"},
    KnownScope{"tessera::next_batch", "next batch"},
    KnownScope{"tessera::CriteoReader", "reading"},
    KnownScope{"tessera::FeaturePipeline", "pipeline"},
    KnownScope{"tessera::read_batch", "checking ids"},
    KnownScope{"tessera::lookup", "lookup"},
    KnownScope{"tessera::wait_for_lookup", "waiting for lookups"},
    KnownScope{"tessera::forward", "dense forward"},
    KnownScope{"tessera::backward", "dense backward"},
    KnownScope{"tessera::update", "table update"},
    KnownScope{"tessera::sum_gradients", "summing gradients"},
    KnownScope{"tessera::optimizer_step", "optimizer"},
    KnownScope{"tessera::step", "step"},
    KnownScope{"tessera::metrics", "metrics"},
    KnownScope{"tessera::callbacks", "callbacks", true},
    KnownScope{"tessera::checkpoint", "checkpoint", true},
    KnownScope{"tessera::validation", "validation", true}};

// Returns the index of a scope in kKnownScopes, or their number for any other scope.
size_t index_of_scope(std::string_view name) {
  return static_cast<size_t>(
      std::ranges::find(kKnownScopes, name, &KnownScope::name) -
      kKnownScopes.begin());
}

double in_seconds(ProfileClock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// A scope that has begun and not ended.
struct OpenScope {
  uint64_t number = 0;
  bool is_whole = false;
  bool is_part = false;  // within a whole scope
  ProfileClock::time_point begin = {};
  ProfileClock::duration inner = {};  // the time of the scopes within it
};

// The open scopes of this thread. Each is within the previous one.
std::vector<OpenScope>& open_scopes() {
  thread_local std::vector<OpenScope> scopes;
  return scopes;
}

}  // namespace

/// The times of the scopes during one fit().
class Profile::Recording {
 public:
  /// Begins to record the scopes of all threads.
  /// Errors:  c10::Error if another recording runs.
  static void start(const std::shared_ptr<Recording>& recording) {
    Running& running = Recording::running();
    const std::lock_guard<std::mutex> lock(running.mutex);
    TESSERA_CHECK(
        running.recording == nullptr,
        "[Profile] expected no other training with a Profile to run in this process, but one does. Pass a Profile to only one training at a time.");
    {
      const std::lock_guard<std::mutex> own_lock(recording->mutex_);
      recording->is_running_ = true;
      recording->begin_ = ProfileClock::now();
    }
    running.recording = recording;
    // LibTorch says that addGlobalCallback() belongs to the start of a program. But its list
    // of callbacks has a lock and a version, and each thread copies the list when it sees a
    // new version. A scope that has begun keeps its callbacks, so its Context keeps the
    // recording.
    recording->handle_ =
        at::addGlobalCallback(at::RecordFunctionCallback(begin_scope, end_scope)
                                  .scopes({at::RecordScope::USER_SCOPE}));
  }

  /// Ends the recording if it runs. Scopes of other threads may still be open. When they
  /// end, they are not recorded.
  void stop() {
    {
      const std::lock_guard<std::mutex> own_lock(mutex_);
      if (!is_running_) {
        return;
      }
      is_running_ = false;
      end_ = ProfileClock::now();
    }
    at::removeCallback(handle_);
    Running& running = Recording::running();
    const std::lock_guard<std::mutex> lock(running.mutex);
    running.recording = nullptr;
  }

  void count_step() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++steps_;
  }

  int64_t steps() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return steps_;
  }

  double seconds() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return in_seconds(elapsed());
  }

  std::vector<Profile::Row> rows() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<Profile::Row> rows;
    if (steps_ == 0) {
      return rows;
    }
    std::vector<Total> totals = totals_;
    std::ranges::stable_sort(totals, {}, [](const Total& total) {
      return index_of_scope(total.scope);
    });
    const ProfileClock::duration all =
        std::max(elapsed(), ProfileClock::duration(1));
    const auto add_row = [&](std::string phase, const Total& total) {
      const double seconds = in_seconds(total.time);
      rows.push_back(
          {.phase = std::move(phase),
           .scope = total.scope,
           .seconds = seconds,
           .share = total.is_background ? 0.0 : seconds / in_seconds(all),
           .calls = total.calls,
           .microseconds_per_step = 1e6 * seconds / static_cast<double>(steps_),
           .is_background = total.is_background});
    };
    const auto add_rows = [&](bool is_background) {
      for (const Total& total : totals) {
        if (total.is_background == is_background) {
          const size_t index = index_of_scope(total.scope);
          add_row(
              index < kKnownScopes.size() ? kKnownScopes[index].phase
                                          : total.scope,
              total);
        }
      }
    };
    Total other{.time = all};
    for (const Total& total : totals) {
      if (!total.is_background) {
        other.time -= total.time;
      }
    }
    add_rows(/*is_background=*/false);
    add_row("other", other);
    add_rows(/*is_background=*/true);
    return rows;
  }

 private:
  struct Total {
    std::string scope = {};
    bool is_background = false;
    ProfileClock::duration time = {};
    int64_t calls = 0;
  };

  // The recording that runs. LibTorch's callbacks are plain functions, so they find it
  // here.
  struct Running {
    std::mutex mutex;
    std::shared_ptr<Recording> recording;
  };

  // What begin_scope() passes to end_scope().
  struct Context : at::ObserverContext {
    Context(std::shared_ptr<Recording> recording, uint64_t number)
        : recording(std::move(recording)), number(number) {}

    std::shared_ptr<Recording> recording;
    uint64_t number;  // OpenScope::number
  };

  static Running& running() {
    // Never destroyed, because threads may outlive main().
    static Running& running = *new Running;
    return running;
  }

  static std::unique_ptr<at::ObserverContext> begin_scope(
      const at::RecordFunction& function) {
    std::shared_ptr<Recording> recording;
    {
      const std::lock_guard<std::mutex> lock(running().mutex);
      recording = running().recording;
    }
    if (recording == nullptr) {
      return nullptr;  // the recording has ended just now
    }
    static std::atomic<uint64_t> count = 0;
    auto context = std::make_unique<Context>(std::move(recording), ++count);
    std::vector<OpenScope>& scopes = open_scopes();
    const size_t index = index_of_scope(function.name());
    scopes.push_back(
        {.number = context->number,
         .is_whole =
             index < kKnownScopes.size() && kKnownScopes[index].is_whole,
         .is_part = !scopes.empty() &&
             (scopes.back().is_whole || scopes.back().is_part)});
    scopes.back().begin = ProfileClock::now();
    return context;
  }

  static void end_scope(
      const at::RecordFunction& function,
      at::ObserverContext* context) {
    const ProfileClock::time_point end = ProfileClock::now();
    if (context == nullptr) {
      return;
    }
    auto& own = static_cast<Context&>(*context);
    std::vector<OpenScope>& scopes = open_scopes();
    const auto found =
        std::ranges::find(scopes, own.number, &OpenScope::number);
    // Scopes that are not nested are left out. LibTorch has functions that end a scope at
    // any time, on any thread.
    if (found == scopes.end()) {
      return;
    }
    const OpenScope scope = *found;
    scopes.erase(found, scopes.end());
    if (scope.is_part) {
      return;
    }
    const ProfileClock::duration time = end - scope.begin;
    if (!scopes.empty()) {
      scopes.back().inner += time;
    }
    own.recording->add(function.name(), time - scope.inner);
  }

  void add(std::string_view scope, ProfileClock::duration time) {
    // backward() and the update run on the thread of fit() if activations are on the CPU, and
    // otherwise perhaps on a thread of autograd.
    const bool is_background = std::this_thread::get_id() != thread_;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_running_) {
      return;
    }
    auto found = std::ranges::find_if(totals_, [&](const Total& total) {
      return total.is_background == is_background && total.scope == scope;
    });
    if (found == totals_.end()) {
      totals_.push_back(
          {.scope = std::string(scope), .is_background = is_background});
      found = totals_.end() - 1;
    }
    found->time += time;
    ++found->calls;
  }

  // The time since start(). The caller holds the lock.
  ProfileClock::duration elapsed() const {
    return (is_running_ ? ProfileClock::now() : end_) - begin_;
  }

  const std::thread::id thread_ = std::this_thread::get_id();  // of fit()
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;

  mutable std::mutex mutex_;  // guards the members below
  bool is_running_ = false;
  ProfileClock::time_point begin_ = {};
  ProfileClock::time_point end_ = {};
  int64_t steps_ = 0;
  std::vector<Total> totals_;
};

Profile::Profile() = default;
Profile::~Profile() = default;

std::vector<Profile::Row> Profile::result() const {
  return recording_ == nullptr ? std::vector<Profile::Row>()
                               : recording_->rows();
}

std::string Profile::text() const {
  const std::vector<Profile::Row> rows = result();
  if (rows.empty()) {
    return "no step has been profiled\n";
  }
  std::vector<std::vector<std::string>> lines;
  lines.push_back({"phase", "  seconds", " share", "    calls", "us per step"});
  bool has_background = false;
  for (const Profile::Row& row : rows) {
    has_background = has_background || row.is_background;
    lines.push_back(
        {row.phase + (row.is_background ? " (background)" : ""),
         fmt::format("{:9.3f}", row.seconds),
         row.is_background ? "" : fmt::format("{:5.1f}%", 100.0 * row.share),
         row.calls == 0 ? "" : fmt::format("{:9}", row.calls),
         fmt::format("{:11.1f}", row.microseconds_per_step)});
  }
  return fmt::format("steps: {}, seconds: {:.3f}\n", steps(), seconds()) +
      align(lines) +
      (has_background
           ? "(background): work of other threads, at the same time as the steps\n"
           : "");
}

int64_t Profile::steps() const {
  return recording_ == nullptr ? 0 : recording_->steps();
}

double Profile::seconds() const {
  return recording_ == nullptr ? 0.0 : recording_->seconds();
}

void Profile::on_train_begin(Training& training) {
  const auto recording = std::make_shared<Recording>();
  // Stops the recording also if an exception ends fit().
  training.keep(std::shared_ptr<void>(
      recording.get(), [recording](void*) { recording->stop(); }));
  Recording::start(recording);
  recording_ = recording;
}

void Profile::on_step_end(Training& /*training*/) {
  recording_->count_step();
}

void Profile::on_train_end(Training& /*training*/) {
  recording_->stop();
}

}  // namespace tessera::training
