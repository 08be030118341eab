// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

struct TrainerOptions {
  std::string movielens = {};  // the folder of MovieLens 100K
  std::string directory = {};  // gets the versions, the program and requests
  double every_seconds = 2.0;
};

/// Trains and publishes until the process gets a signal. Returns the exit status.
int train_and_publish(const TrainerOptions& options);
