// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/mpi/failure_detector.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <thread>
#include <type_traits>

namespace tessera::distributed {

namespace {

static_assert(std::is_trivially_copyable_v<RankReport>);
constexpr int kReportBytes = sizeof(RankReport);

// "rank 2" or "ranks 2, 5".
std::string list_ranks(const std::vector<int>& ranks) {
  return c10::str(
      ranks.size() == 1 ? "rank " : "ranks ", c10::Join(", ", ranks));
}

}  // namespace

std::string name_of(Collective collective, int64_t number) {
  constexpr std::array<const char*, kNumCollectives> kNames = {
      "alltoall", "allgather", "allreduce", "broadcast", "barrier"};
  return c10::str(
      kNames.at(static_cast<size_t>(collective)), " number ", number);
}

FailureDetector::FailureDetector(int rank, int size, MPI_Comm control)
    : rank_(rank), size_(size), control_(control), reports_(size) {
  announced_.reserve(2);  // MPI keeps pointers into it.
  std::vector<char> greetings(size);
  std::vector<MPI_Request> requests;
  for (int other = 0; other < size; ++other) {
    MPI_Irecv(
        &greetings[other],
        1,
        MPI_BYTE,
        other,
        1,
        control,
        &requests.emplace_back());
  }
  const char greeting = 0;
  for (int other = 0; other < size; ++other) {
    MPI_Isend(
        &greeting, 1, MPI_BYTE, other, 1, control, &requests.emplace_back());
  }
  MPI_Waitall(
      static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

void FailureDetector::announce(const RankReport& report) {
  const RankReport& kept = announced_.emplace_back(report);
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) {
      // Some may be dead: what can't be sent stays away like they do.
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(&kept, kReportBytes, MPI_BYTE, other, 0, control_, &request);
      requests_.push_back(request);
    }
  }
}

void FailureDetector::read() {
  // A probe may take in a single message of any kind, as MPICH's does: reports of
  // all stand behind two others of each rank at most times.
  int probes_left = 3 * size_;
  while (probes_left-- > 0) {
    int has_come = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, control_, &has_come, &status) !=
        MPI_SUCCESS) {
      return;
    }
    if (has_come == 0) {
      continue;
    }
    RankReport report;
    const int source = status.MPI_SOURCE;
    if (MPI_Recv(
            &report,
            kReportBytes,
            MPI_BYTE,
            source,
            0,
            control_,
            MPI_STATUS_IGNORE) != MPI_SUCCESS) {
      return;
    }
    reports_[source] = report;
    if (report.reason != RankReport::kLeaves) {
      first_failure_ =
          std::min(first_failure_.value_or(report.number), report.number);
    }
  }
}

void FailureDetector::collect(std::chrono::milliseconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  for (;;) {
    read();
    const auto num_heard =
        std::count_if(reports_.begin(), reports_.end(), [](const auto& report) {
          return report.has_value();
        });
    if ((is_sent() && num_heard >= size_ - 1) ||
        std::chrono::steady_clock::now() >= end) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

std::optional<int> FailureDetector::rank_gone_before(int64_t number) const {
  for (int other = 0; other < size_; ++other) {
    const auto& report = reports_[other];
    if (report && report->reason == RankReport::kLeaves &&
        report->number < number) {
      return other;
    }
  }
  return std::nullopt;
}

bool FailureDetector::is_sent() {
  int is_done = 0;
  // One dead rank is an error of all: then the others' reports are sent as well
  // as they can be.
  return MPI_Testall(
             static_cast<int>(requests_.size()),
             requests_.data(),
             &is_done,
             MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
      is_done != 0;
}

bool FailureDetector::all_have_left() {
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ &&
        (!reports_[other] || reports_[other]->reason != RankReport::kLeaves)) {
      return false;
    }
  }
  return is_sent();
}

// The rank that gave up by itself, and why; several may have.
std::string FailureDetector::describe_failure() const {
  for (int other = 0; other < size_; ++other) {
    const auto& report = reports_[other];
    if (report &&
        (report->reason == RankReport::kTimeout ||
         report->reason == RankReport::kError)) {
      return c10::str(
          ", since rank ",
          other,
          report->reason == RankReport::kTimeout ? " had its time-out"
                                                 : " met an error",
          " after ",
          report->waited_milliseconds,
          " ms in ",
          name_of(report->collective, report->number));
    }
  }
  return "";
}

std::string FailureDetector::describe(const RankReport& own) const {
  const std::string failure =
      own.reason == RankReport::kAlarmed ? describe_failure() : "";
  std::vector<int> absent;
  std::vector<std::string> findings;
  bool is_elsewhere = false;
  bool is_gone = false;
  int last = rank_;
  int64_t least_waited = own.waited_milliseconds;
  for (int other = 0; other < size_; ++other) {
    const auto& report = reports_[other];
    if (other == rank_) {
      continue;
    }
    if (!report) {
      absent.push_back(other);
    } else if (report->reason == RankReport::kLeaves) {
      is_gone = true;
      findings.push_back(c10::str(
          "rank ",
          other,
          " has left the program after ",
          report->number,
          " collectives"));
    } else if (
        report->number != own.number || report->collective != own.collective) {
      is_elsewhere = true;
      findings.push_back(c10::str(
          "rank ",
          other,
          " waits in ",
          name_of(report->collective, report->number)));
    } else if (report->waited_milliseconds < least_waited) {
      last = other;
      least_waited = report->waited_milliseconds;
    }
  }

  std::string advice;
  if (is_elsewhere) {
    advice = " All ranks must issue the same collectives in the same order.";
  }
  if (is_gone) {
    advice +=
        " All ranks must issue equally many; look at what it printed last.";
  }
  if (!absent.empty()) {
    const bool is_one = absent.size() == 1;
    findings.insert(
        findings.begin(),
        c10::str(
            list_ranks(absent),
            " did not come (",
            is_one ? "it" : "they",
            " may be stopped, dead, or computing)"));
    advice += c10::str(
        " Look at what ",
        is_one ? "it" : "they",
        " printed last; if a step takes that long, raise"
        " MpiBackendOptions::timeout.");
  }
  if (findings.empty() && own.reason == RankReport::kError) {
    return ".";
  }
  if (findings.empty()) {
    findings.push_back(c10::str(
        "all ranks wait in it by now, rank ",
        last,
        " came last, ",
        least_waited,
        " ms ago"));
    advice =
        " If that is late, raise MpiBackendOptions::timeout; if not, compare the"
        " sizes that the ranks pass.";
  }
  return c10::str(failure, ": ", c10::Join("; ", findings), ".", advice);
}

}  // namespace tessera::distributed
