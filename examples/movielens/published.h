// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

/// A published error on u1.test.
struct PublishedRmse {
  const char* model;
  double rmse;
  const char* source;
};

inline constexpr std::array<PublishedRmse, 3> kPublishedRmse{
    {{"GC-MC", 0.905, "van den Berg et al. 2017"},
     {"IGMC", 0.905, "Zhang and Chen 2020"},
     // Its program keeps the epoch with the lowest error on u1.test.
     {"GLocal-K", 0.8889, "Han et al. 2021, epoch chosen on the test"}}};
