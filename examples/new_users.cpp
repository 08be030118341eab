// SPDX-License-Identifier: Apache-2.0
// Teaches vectors for users and movies that a trained model has not seen, and measures on
// MovieLens 100K how much quality they lose.
//
// Each run holds out a tenth of the users. A model is trained with them and without them.
// In the second model, a held-out user gets a vector from the earlier ratings of that user:
// by FoldIn if users have rows, or by the model's own tower if a user is a history. Both
// models rank the latest fifth of the user's ratings, or predict their stars. Then the run
// does the same with a tenth of the movies, which are folded in from 5, 20 or all of their
// users. The vector from which FoldIn starts is the mean over the movie's genres.
//
// "Of new" ranks the held-out movies among themselves, and "of all" among all movies. A
// movie with few users counts as unpopular, so it is rarely among the first of all.
//
// The data is in new_users/split.cpp, the models are in new_users/rater.cpp and
// new_users/rankers.cpp, and the comparison is in new_users/measure.cpp.
#include "examples/common/command_line.h"
#include "examples/common/outputs.h"
#include "examples/new_users/measure.h"
#include "examples/new_users/options.h"
#include "examples/new_users/report.h"

#include <tessera/tessera.h>

#include <algorithm>
#include <cstddef>
#include <iostream>

namespace {

// The models of --only, or all.
std::vector<Candidate> chosen_candidates(const NewUserOptions& options) {
  std::vector<Candidate> candidates = all_candidates();
  const auto& only = options.only;
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return !only.empty() &&
        std::find(only.begin(), only.end(), candidate.name) == only.end();
  });
  return candidates;
}

// Returns the exit status.
int run(const NewUserOptions& options) {
  const Split split = load_split(options.data, options.validation);
  const std::vector<Candidate> candidates = chosen_candidates(options);
  std::vector<CandidateReport> reports;
  for (const Candidate& candidate : candidates) {
    reports.push_back({.title = candidate.title});
  }
  for (int64_t i = 0; i < options.runs; ++i) {
    const int64_t seed = options.seed + i;
    const HoldOuts held_out{
        .users = hold_out_users(split, options.share, seed),
        .items = hold_out_items(split, options.share, kMoreUsers, seed)};
    for (size_t j = 0; j < candidates.size(); ++j) {
      std::cerr << "run " << i + 1 << "/" << options.runs << "  "
                << candidates[j].title << "\n";
      reports[j].runs.push_back(candidates[j].measure(split, held_out, seed));
    }
  }
  print_report(reports);
  finish_report("new_users");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  NewUserOptions options;
  if (const auto status = parse_arguments(argc, argv, options)) {
    return *status;
  }
  return run_program("new_users", [&] { return run(options); });
}
