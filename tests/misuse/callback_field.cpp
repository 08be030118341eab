// SPDX-License-Identifier: Apache-2.0
// expects: no matching function|no matching constructor|does not refer to any field
#include <tessera/training/early_stopping.h>

const tessera::training::EarlyStopping stopping({.patients = 3});
