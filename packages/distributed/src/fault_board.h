// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace c10d {
class Store;
}  // namespace c10d

namespace tessera::distributed {

/// The report of a rank to the others when it stops.
struct FaultReport {
  enum Reason : int64_t {
    kTimeout,  // `peer` did not answer in time
    kLost,  // `peer` closed its connection
    kLeft  // this rank has left the program without a fault
  };
  Reason reason = kTimeout;
  int64_t peer = -1;  // the rank that this rank waited for, or -1: unknown
  std::string place = {};  // where in the program this rank waited
};

/// The reports of the ranks after a fault.
struct FaultReports {
  std::vector<std::optional<FaultReport>> of = {};  // by rank
  bool has_all =
      false;  // The store has answered, and no report in it is missing here.
};

/// A c10d::Store in which ranks leave reports when they stop, so that the others can name
/// the rank that failed first.
class FaultBoard {
 public:
  /// `hosts` has a text about each rank, such as its address.
  FaultBoard(
      c10::intrusive_ptr<c10d::Store> store,
      int64_t rank,
      std::vector<std::string> hosts);
  FaultBoard(const FaultBoard&) = delete;
  FaultBoard& operator=(const FaultBoard&) = delete;
  /// Reports that this rank has left the program, if it has reported nothing else.
  ~FaultBoard();

  /// Leaves a report, and returns the reports of the other ranks that arrive within `time`.
  /// Does not wait longer if the store never answers.
  FaultReports exchange(
      const FaultReport& report,
      std::chrono::milliseconds time);
  /// The rank and its host for a message: "rank 2 (10.0.0.3)".
  std::string name_of(int64_t rank) const;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int64_t rank_;
  std::vector<std::string> hosts_;
  bool has_reported_ = false;
};

/// A backend with a FaultBoard, or with nullptr for a single rank.
struct HasFaultBoard {
  virtual ~HasFaultBoard() = default;
  std::shared_ptr<FaultBoard> fault_board = {};
};

}  // namespace tessera::distributed
