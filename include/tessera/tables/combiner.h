// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// How the rows of one bag become one vector. With weights w (default 1):
///
///   kSum    sum(w x)
///   kMean   sum(w x) / sum(w)
///   kSqrtn  sum(w x) / sqrt(sum(w^2))
///
/// A zero denominator and an empty bag give zeros.
/// Source:  tf.nn.embedding_lookup_sparse.
enum class Combiner { kSum, kMean, kSqrtn };

/// "sum", "mean", "sqrtn".
std::string to_string(Combiner combiner);

/// Errors:  c10::ValueError listing the choices.
Combiner combiner_from_string(std::string_view name);

}  // namespace tessera
