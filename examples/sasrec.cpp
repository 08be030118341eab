// SPDX-License-Identifier: Apache-2.0
// Teaches a sequence model which item comes next for a user, given the items so far in
// their order: which movie of MovieLens 100K, or which product of a file as the authors of
// S3-Rec publish them.
//
// SASRec is a transformer over the latest items of a user. Its sequences are jagged:
// they lie one after the other, and no padding is computed. Each position is trained to
// predict the next item, with a softmax over all items. --loss sampled takes the softmax
// over some random items, which many items need. --loss binary is the loss of the paper,
// with one random negative for each position, which ranks less well here.
//
// Each user's last item is the test, and the one before it the validation. The training
// stops when the validation no longer improves. All items that a user does not have are
// candidates. Popularity and item-kNN are simple methods that a model should beat.
//
// The data is in sasrec/histories.cpp, the training in sasrec/training.cpp, and the
// evaluation with the simple methods in sasrec/ranking.cpp.
#include "examples/common/command_line.h"
#include "examples/common/outputs.h"
#include "examples/sasrec/histories.h"
#include "examples/sasrec/options.h"
#include "examples/sasrec/ranking.h"
#include "examples/sasrec/report.h"
#include "examples/sasrec/training.h"

#include <tessera/tessera.h>

namespace {

// Returns the exit status.
int run(const SequenceOptions& options) {
  const Histories histories =
      load_histories(options.data, options.max_length, options.windows);
  Report report{
      .users = histories.users(),
      .items = histories.num_items(),
      .popularity = ranking_by_popularity(histories),
      .neighbors = ranking_by_neighbors(histories)};
  for (int64_t i = 0; i < options.runs; ++i) {
    const auto history = train_sasrec(
        histories, options, options.seed + i, report.runs.emplace_back());
    if (history.stop_signal() != 0) {
      return report_stop(history, "");
    }
  }
  print_report(report, options);
  finish_report("sasrec");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  SequenceOptions options;
  if (const auto status = parse_arguments(argc, argv, options)) {
    return *status;
  }
  return run_program("sasrec", [&] { return run(options); });
}
