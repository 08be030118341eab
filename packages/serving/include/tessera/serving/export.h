// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the shared library tessera_serving shows to programs. Everything else is hidden.
#define TESSERA_SERVING_API __attribute__((visibility("default")))
