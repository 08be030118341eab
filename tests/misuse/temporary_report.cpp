// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted
#include <tessera/data/criteo_reader.h>

const auto& report = tessera::data::CriteoReader({}).report();
