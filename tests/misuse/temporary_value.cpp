// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted
#include <tessera/training/history.h>

const double* loss = tessera::training::Logs{{"loss", 0.5}}.find("loss");
