// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/new_users/split.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

/// The values of metrics, with their names.
using Values = std::vector<std::pair<std::string, double>>;

/// The quality of one way to get the vectors of the held-out users or items.
struct Method {
  std::string name = {};
  Values values = {};
  /// If true, the report shows how much quality this method loses against training, which
  /// is the first method.
  bool shows_loss = false;
};

/// The results of a model in one run.
struct Result {
  std::vector<Method> users = {};
  std::vector<Method> items = {};
};

/// The users and items that a run holds out.
struct HoldOuts {
  HeldOut users = {};
  HeldOut items = {};
};

/// A model or simple method, and how it is trained and measured.
struct Candidate {
  std::string name = {};  // for --only
  std::string title = {};
  std::function<Result(const Split&, const HoldOuts&, int64_t seed)> measure =
      {};
};

/// A new item is folded in from this many of its users, and from all.
constexpr int64_t kFewUsers = 5;
constexpr int64_t kMoreUsers = 20;

const std::vector<Candidate>& all_candidates();
