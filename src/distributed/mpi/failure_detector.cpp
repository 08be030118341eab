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
      "alltoall", "barrier"};
  return c10::str(
      kNames.at(static_cast<size_t>(collective)), " number ", number);
}

FailureDetector::FailureDetector(int rank, int size, MPI_Comm control)
    : rank_(rank), size_(size), control_(control), reports_(size) {
  announced_.reserve(2);  // MPI keeps pointers to its elements.
  std::vector<char> handshakes(size);
  std::vector<MPI_Request> requests;
  for (int other = 0; other < size; ++other) {
    MPI_Irecv(
        &handshakes[other],
        1,
        MPI_BYTE,
        other,
        1,
        control,
        &requests.emplace_back());
  }
  const char handshake = 0;
  for (int other = 0; other < size; ++other) {
    MPI_Isend(
        &handshake, 1, MPI_BYTE, other, 1, control, &requests.emplace_back());
  }
  MPI_Waitall(
      static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
}

void FailureDetector::announce(const RankReport& report) {
  const RankReport& kept = announced_.emplace_back(report);
  for (int other = 0; other < size_; ++other) {
    if (other != rank_) {
      // A rank may be dead: an error of MPI changes nothing here.
      MPI_Request request = MPI_REQUEST_NULL;
      MPI_Isend(&kept, kReportBytes, MPI_BYTE, other, 0, control_, &request);
      requests_.push_back(request);
    }
  }
}

void FailureDetector::read() {
  // A probe may process a single message of any kind, as MPICH's does, and each
  // rank's report may stand behind two other messages of it.
  int probes_left = 3 * size_;
  while (probes_left-- > 0) {
    int has_arrived = 0;
    MPI_Status status;
    if (MPI_Iprobe(MPI_ANY_SOURCE, 0, control_, &has_arrived, &status) !=
        MPI_SUCCESS) {
      return;
    }
    if (has_arrived == 0) {
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
    if (report.reason != RankReport::kExits) {
      first_failure_ =
          std::min(first_failure_.value_or(report.number), report.number);
    }
  }
}

void FailureDetector::collect(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    read();
    const auto num_reports =
        std::count_if(reports_.begin(), reports_.end(), [](const auto& report) {
          return report.has_value();
        });
    if ((all_sent() && num_reports >= size_ - 1) ||
        std::chrono::steady_clock::now() >= end) {
      return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

std::optional<int> FailureDetector::rank_exited_before(int64_t number) const {
  for (int other = 0; other < size_; ++other) {
    const auto& report = reports_[other];
    if (report && report->reason == RankReport::kExits &&
        report->number < number) {
      return other;
    }
  }
  return std::nullopt;
}

bool FailureDetector::all_sent() {
  int are_done = 0;
  // A dead rank makes MPI return an error for all requests. The reports to the other
  // ranks are then sent as far as possible.
  return MPI_Testall(
             static_cast<int>(requests_.size()),
             requests_.data(),
             &are_done,
             MPI_STATUSES_IGNORE) != MPI_SUCCESS ||
      are_done != 0;
}

bool FailureDetector::all_have_exited() {
  for (int other = 0; other < size_; ++other) {
    if (other != rank_ &&
        (!reports_[other] || reports_[other]->reason != RankReport::kExits)) {
      return false;
    }
  }
  return all_sent();
}

// Names the lowest rank that timed out or failed by itself.
std::string FailureDetector::describe_first_failure() const {
  for (int other = 0; other < size_; ++other) {
    const auto& report = reports_[other];
    if (report &&
        (report->reason == RankReport::kTimeout ||
         report->reason == RankReport::kError)) {
      return c10::str(
          ", since rank ",
          other,
          report->reason == RankReport::kTimeout ? " timed out" : " failed",
          " after ",
          report->waited_milliseconds,
          " ms in ",
          name_of(report->collective, report->number));
    }
  }
  return "";
}

// Where the other ranks are, seen from this one.
struct FailureDetector::Findings {
  std::vector<int> missing_ranks = {};
  std::vector<std::string> texts = {};
  bool some_made_other_calls = false;
  bool some_have_exited = false;
  int last_rank = 0;  // to arrive in the same collective
  int64_t last_waited_milliseconds = 0;
};

FailureDetector::Findings FailureDetector::compare(
    const RankReport& own) const {
  Findings findings{
      .last_rank = rank_, .last_waited_milliseconds = own.waited_milliseconds};
  for (int other = 0; other < size_; ++other) {
    const auto& report = reports_[other];
    if (other == rank_) {
      continue;
    }
    if (!report) {
      findings.missing_ranks.push_back(other);
    } else if (report->reason == RankReport::kExits) {
      findings.some_have_exited = true;
      findings.texts.push_back(c10::str(
          "rank ",
          other,
          " has left the program after ",
          report->number,
          " collectives"));
    } else if (
        report->number != own.number || report->collective != own.collective) {
      findings.some_made_other_calls = true;
      findings.texts.push_back(c10::str(
          "rank ",
          other,
          " waits in ",
          name_of(report->collective, report->number)));
    } else if (
        report->waited_milliseconds < findings.last_waited_milliseconds) {
      findings.last_rank = other;
      findings.last_waited_milliseconds = report->waited_milliseconds;
    }
  }
  return findings;
}

std::string FailureDetector::describe(const RankReport& own) const {
  Findings findings = compare(own);
  std::vector<std::string>& texts = findings.texts;
  std::string advice;
  if (findings.some_made_other_calls) {
    advice = " All ranks must issue the same collectives in the same order.";
  }
  if (findings.some_have_exited) {
    advice +=
        " All ranks must issue the same number of collectives. Look at what that"
        " rank printed last.";
  }
  if (!findings.missing_ranks.empty()) {
    const bool is_one = findings.missing_ranks.size() == 1;
    texts.insert(
        texts.begin(),
        c10::str(
            list_ranks(findings.missing_ranks),
            " did not arrive (",
            is_one ? "it" : "they",
            " may be stopped, dead, or computing)"));
    advice += c10::str(
        " Look at what ",
        is_one ? "it" : "they",
        " printed last. If a step takes that long, raise"
        " MpiBackendOptions::timeout.");
  }
  if (texts.empty() && own.reason == RankReport::kError) {
    return ".";
  }
  if (texts.empty()) {
    texts.push_back(c10::str(
        "all ranks now wait in this collective; rank ",
        findings.last_rank,
        " arrived last, ",
        findings.last_waited_milliseconds,
        " ms ago"));
    advice =
        " If that rank was late, raise MpiBackendOptions::timeout. If not, compare"
        " the sizes that the ranks pass.";
  }
  const std::string failure =
      own.reason == RankReport::kPeerFailed ? describe_first_failure() : "";
  return c10::str(failure, ": ", c10::Join("; ", texts), ".", advice);
}

}  // namespace tessera::distributed
