// SPDX-License-Identifier: Apache-2.0
#pragma once

// This macro marks what the shared library tessera_serving shows to programs. Everything
// else in the library is hidden.
#define TESSERA_SERVING_API __attribute__((visibility("default")))
