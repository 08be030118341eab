// SPDX-License-Identifier: Apache-2.0
#include "src/engine/finite_gradients.h"

#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/names.h"
#include "src/common/parallel.h"
#include "src/kernels/kernels.h"

#include <ATen/core/functional.h>
#include <c10/util/ArrayRef.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>

namespace tessera {

namespace {

thread_local RefuseNonFiniteScope* innermost = nullptr;

constexpr const char* kAdvice =
    "No table was changed. Check the loss and the data, lower the learning rate, or set "
    "non_finite_gradients = NonFiniteGradients::kApply.";

std::string name_of_value(float value) {
  return std::isnan(value) ? "NaN" : value > 0 ? "infinity" : "-infinity";
}

std::vector<size_t> features_of(const EmbeddingState& state, size_t table) {
  std::vector<size_t> features;
  for (size_t i = 0; i < state.features.size(); ++i) {
    if (state.features[i].table == table) {
      features.push_back(i);
    }
  }
  return features;
}

// The gradients of one term, or of terms whose columns are adjacent in one matrix.
struct GradientMatrix {
  const float* first = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
  int64_t columns = 0;
};

GradientMatrix matrix_of(const TableUpdate::Term& term) {
  const IdBags& bags = *term.bags;
  const int64_t rows =  // with a stride of 0, all bags share one row
      term.stride == 0 ? std::min<int64_t>(bags.bags, 1) : bags.bags;
  return {term.gradient, term.stride, rows, bags.dim};
}

// Adds the columns of `next` to `matrix` if they directly follow the columns of `matrix`
// in memory. Then the gradient of a concatenation is read in the order of memory. All
// terms of the matrix get its largest gradient as their own. If this number is too large
// for one of the terms, find_non_finite() looks at the rows of the term.
bool append_columns(GradientMatrix& matrix, const GradientMatrix& next) {
  const bool is_adjacent = matrix.rows > 0 &&
      next.first == matrix.first + matrix.columns &&
      next.stride == matrix.stride && next.rows == matrix.rows &&
      matrix.columns + next.columns <= matrix.stride;
  if (is_adjacent) {
    matrix.columns += next.columns;
  }
  return is_adjacent;
}

// Some rows of a matrix of gradients.
struct GradientPart {
  size_t matrix = 0;
  kernels::FeatureRows<const float> rows = {};
  int64_t count = 0;
  int64_t dim = 0;
};

void add_gradient_parts(
    const GradientMatrix& matrix,
    size_t index,
    std::vector<GradientPart>& parts) {
  constexpr int64_t kFloatsPerPart = 16384;
  if (matrix.stride == matrix.columns) {
    const int64_t floats = matrix.rows * matrix.columns;
    for (int64_t begin = 0; begin < floats; begin += kFloatsPerPart) {
      parts.push_back(
          {.matrix = index,
           .rows = {.first = matrix.first + begin},
           .count = 1,
           .dim = std::min(kFloatsPerPart, floats - begin)});
    }
    return;
  }
  const int64_t rows = std::max<int64_t>(1, kFloatsPerPart / matrix.columns);
  for (int64_t begin = 0; begin < matrix.rows; begin += rows) {
    parts.push_back(
        {.matrix = index,
         .rows =
             {.first = matrix.first + begin * matrix.stride,
              .stride = matrix.stride},
         .count = std::min(rows, matrix.rows - begin),
         .dim = matrix.columns});
  }
}

// For each term, a number that no |gradient| exceeds, or NaN.
std::vector<float> largest_gradients(
    const std::vector<const TableUpdate::Term*>& terms) {
  std::vector<GradientMatrix> matrices;
  std::vector<size_t> matrix_of_term;
  matrices.reserve(terms.size());
  for (const TableUpdate::Term* term : terms) {
    const GradientMatrix matrix = matrix_of(*term);
    if (matrices.empty() || !append_columns(matrices.back(), matrix)) {
      matrices.push_back(matrix);
    }
    matrix_of_term.push_back(matrices.size() - 1);
  }
  std::vector<GradientPart> parts;
  int64_t bytes = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    add_gradient_parts(matrices[i], i, parts);
    bytes += matrices[i].rows * matrices[i].columns * int64_t{sizeof(float)};
  }
  const kernels::KernelTable& kernels = active_kernels();
  std::vector<float> of_parts(parts.size());
  run_tasks(std::ssize(parts), bytes, [&](int64_t i) {
    of_parts[i] =
        kernels.largest_magnitude(parts[i].rows, parts[i].count, parts[i].dim);
  });
  std::vector<float> of_matrices(matrices.size(), 0.0F);
  for (size_t i = 0; i < parts.size(); ++i) {
    float& largest = of_matrices[parts[i].matrix];
    largest = std::isnan(of_parts[i]) || of_parts[i] > largest ? of_parts[i]
                                                               : largest;
  }
  return c10::fmap(
      matrix_of_term, [&](size_t matrix) { return of_matrices[matrix]; });
}

double largest_of(const Buffer<float>& values) {
  return values.empty() ? 1.0
                        : active_kernels().largest_magnitude(
                              {.first = values.data()}, 1, std::ssize(values));
}

// An upper bound of |sum| for the sum of gradients that one term adds to any row.
double bound_of(const TableUpdate::Term& term, float largest_gradient) {
  return static_cast<double>(largest_gradient) * std::abs(term.factor) *
      largest_of(term.bags->scales) * largest_of(term.bags->weights) *
      static_cast<double>(term.bags->nnz());
}

// Adds factor * gradient to `sum`. Returns the first term that is not finite.
std::optional<float> add_gradient(
    float factor,
    const float* gradient,
    std::vector<float>& sum) {
  for (size_t column = 0; column < sum.size(); ++column) {
    const float value = factor * gradient[column];
    if (!std::isfinite(value)) {
      return value;
    }
    sum[column] = std::fma(factor, gradient[column], sum[column]);
  }
  return std::nullopt;
}

// The message about the first gradient of an id that is not finite, or else about a sum that
// is not finite, or an empty text.
std::string find_in_table(
    const EmbeddingState& state,
    const std::vector<size_t>& features,
    const TableUpdate& update) {
  std::unordered_map<uint32_t, std::vector<float>> sums;
  for (size_t t = 0; t < update.terms.size(); ++t) {
    const TableUpdate::Term& term = update.terms[t];
    const IdBags& bags = *term.bags;
    for (int64_t bag = 0; bag < bags.bags; ++bag) {
      const float scale =
          term.factor * (bags.scales.empty() ? 1.0F : bags.scales[bag]);
      for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
        std::vector<float>& sum = sums[bags.ids[i]];
        sum.resize(bags.dim);
        const auto refused = add_gradient(
            scale * (bags.weights.empty() ? 1.0F : bags.weights[i]),
            term.gradient + bag * term.stride,
            sum);
        if (refused) {
          const size_t feature = features[t % features.size()];
          return non_finite_message(state, feature, bag, *refused);
        }
      }
    }
  }
  const bool are_finite = std::ranges::all_of(sums, [](const auto& entry) {
    return std::ranges::all_of(
        entry.second, [](float sum) { return std::isfinite(sum); });
  });
  if (are_finite) {
    return {};
  }
  return fmt::format(
      "[table '{}', features {}] the gradients of rows must be finite, but the sum of a row's gradients overflows float32. {}",
      shorten(update.table->name),
      join_names(
          features,
          [&](size_t feature) {
            return fmt::format("'{}'", shorten(state.features[feature].path));
          }),
      kAdvice);
}

}  // namespace

RefuseNonFiniteScope::RefuseNonFiniteScope(std::function<void()> check_dense)
    : check_dense_(std::move(check_dense)),
      outer_(std::exchange(innermost, this)) {}

RefuseNonFiniteScope::~RefuseNonFiniteScope() {
  innermost = outer_;
}

bool RefuseNonFiniteScope::is_active() {
  return innermost != nullptr;
}

void check_dense_parameters() {
  if (innermost != nullptr && innermost->check_dense_ != nullptr) {
    innermost->check_dense_();
  }
}

bool refuses_non_finite(const EmbeddingState& state) {
  return RefuseNonFiniteScope::is_active() ||
      state.non_finite_gradients == NonFiniteGradients::kRefuse;
}

std::string non_finite_message(
    const EmbeddingState& state,
    size_t feature,
    int64_t index,
    float value) {
  const FeatureState& from = state.features[feature];
  return fmt::format(
      "[table '{}', feature '{}'] the gradients of rows must be finite, but index {} of the batch gives {}. {}",
      shorten(state.tables[from.table].name),
      shorten(from.path),
      index,
      name_of_value(value),
      kAdvice);
}

std::string find_non_finite(
    const EmbeddingState& state,
    const std::vector<TableUpdate>& updates) {
  std::vector<const TableUpdate::Term*> terms;
  terms.reserve(2 * state.features.size());
  for (const TableUpdate& update : updates) {
    for (const TableUpdate::Term& term : update.terms) {
      if (update.table != nullptr) {
        terms.push_back(&term);
      }
    }
  }
  const std::vector<float> largest = largest_gradients(terms);
  // A sum whose bound is below this can't overflow by rounding.
  constexpr double kSafe = std::numeric_limits<float>::max() / 16.0;
  size_t next = 0;
  for (size_t i = 0; i < updates.size(); ++i) {
    double bound = 0.0;
    if (updates[i].table != nullptr) {
      for (const TableUpdate::Term& term : updates[i].terms) {
        bound += bound_of(term, largest[next++]);
      }
    }
    if (bound < kSafe) {
      continue;
    }
    std::string message =
        find_in_table(state, features_of(state, i), updates[i]);
    if (!message.empty()) {
      return message;
    }
  }
  return {};
}

}  // namespace tessera
