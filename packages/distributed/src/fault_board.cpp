// SPDX-License-Identifier: Apache-2.0
#include "packages/distributed/src/fault_board.h"

#include <tessera/common/json_text.h>

#include <c10/util/StringUtil.h>
#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace tessera::distributed {

namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// The key of the number of reports, which are numbered in the order of their arrival.
constexpr const char* kCount = "count";

std::string key_of(int64_t number) {
  return c10::str("report/", number);
}

// Set by a rank that has left without a fault.
std::string key_of_left(int64_t rank) {
  return c10::str("left/", rank);
}

std::string encode(int64_t rank, const FaultReport& report) {
  return Json{rank, report.reason, report.peer, report.place}.dump();
}

// Adds a report to `reports`.
void decode(const std::string& encoded, FaultReports& reports) {
  const Json fields = parse_json(encoded, "[FaultBoard] a report:");
  const auto rank = fields.at(0).get<size_t>();
  if (rank < reports.of.size()) {
    reports.of[rank] = {
        .reason = fields.at(1).get<FaultReport::Reason>(),
        .peer = fields.at(2).get<int64_t>(),
        .place = fields.at(3).get<std::string>()};
  }
}

// The thread of exchange() writes these fields while its caller waits.
struct Shared {
  std::mutex mutex;
  FaultReports reports;
};

// Writes `own`, then reads reports until all ranks have one or the time is up.
void ask_store(
    c10d::Store& store,
    int64_t rank,
    const FaultReport& own,
    Clock::time_point end,
    Shared& shared) {
  if (own.reason == FaultReport::kLeft) {
    // set() does not wait for an answer, so rank 0 and its store may already have left.
    store.set(key_of_left(rank), "1");
    return;
  }
  store.set(key_of(store.add(kCount, 1)), encode(rank, own));
  for (int64_t number = 1; Clock::now() < end;) {
    const int64_t count = store.add(kCount, 0);
    while (number <= count && store.check({key_of(number)})) {
      const std::string report = store.get_to_str(key_of(number++));
      const std::lock_guard lock(shared.mutex);
      decode(report, shared.reports);
    }
    {
      const std::lock_guard lock(shared.mutex);
      shared.reports.has_all = number > count;
      if (count >= static_cast<int64_t>(shared.reports.of.size())) {
        return;
      }
    }
    if (own.peer >= 0 && store.check({key_of_left(own.peer)})) {
      const std::lock_guard lock(shared.mutex);
      shared.reports.of[own.peer] = FaultReport{.reason = FaultReport::kLeft};
    }
    std::this_thread::sleep_for(milliseconds(20));
  }
}

}  // namespace

FaultBoard::FaultBoard(
    c10::intrusive_ptr<c10d::Store> store,
    int64_t rank,
    std::vector<std::string> hosts)
    : store_(std::move(store)), rank_(rank), hosts_(std::move(hosts)) {}

FaultBoard::~FaultBoard() {
  if (!has_reported_) {
    exchange({.reason = FaultReport::kLeft}, milliseconds(0));
  }
}

// The store of a stopped or unreachable rank never answers, so another thread asks it.
FaultReports FaultBoard::exchange(
    const FaultReport& report,
    milliseconds time) {
  has_reported_ = true;
  auto shared = std::make_shared<Shared>();
  shared->reports.of.resize(hosts_.size());
  const auto end = Clock::now() + time;
  std::packaged_task<void()> task([=, store = store_, rank = rank_] {
    ask_store(*store, rank, report, end, *shared);
  });
  // It is also ready after an error, such as that of a store that has ended.
  const std::future<void> is_done = task.get_future();
  std::thread(std::move(task)).detach();
  constexpr milliseconds kToWrite{100};
  is_done.wait_until(end + kToWrite);
  const std::lock_guard lock(shared->mutex);
  FaultReports reports = shared->reports;
  reports.of[rank_].reset();
  return reports;
}

std::string FaultBoard::name_of(int64_t rank) const {
  const std::string& host = hosts_[rank];
  return host.empty() ? c10::str("rank ", rank)
                      : c10::str("rank ", rank, " (", host, ")");
}

}  // namespace tessera::distributed
