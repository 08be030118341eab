// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/graph.h"
#include "packages/export/src/pt2/polynomial.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::exporting {

/// Finds out how sizes depend on the sizes of a batch. The sizes of a batch are its
/// symbols: the batch size, and the number of ids of each feature.
class SizeSolver {
 public:
  /// How batches differ from the base.
  enum class Changes {
    kSeparate,  // each symbol changes alone twice, then a few batches change all symbols
    kJoint  // only a few batches, each of which changes all symbols
  };

  /// points()[0] is `base`. Symbols that are fixed do not change.
  SizeSolver(
      std::vector<int64_t> base,
      std::vector<bool> is_fixed,
      Changes changes);

  const std::vector<std::vector<int64_t>>& points() const {
    return points_;
  }

  /// Returns the polynomial that has these values, one for each of points(), or nullopt
  /// if no polynomial with integer coefficients has them. Products of up to three symbols
  /// are tried. With Changes::kJoint, only two kinds are found: polynomials of the batch
  /// size and one other symbol, and sums of two symbols.
  std::optional<pt2::Polynomial> solve(const std::vector<int64_t>& values);

  /// Returns true once solve() has returned nullopt.
  bool has_failed() const {
    return has_failed_;
  }

 private:
  std::optional<pt2::Polynomial> find_by_separate_changes(
      const std::vector<int64_t>& values) const;
  std::optional<pt2::Polynomial> find_by_joint_changes(
      const std::vector<int64_t>& values) const;
  std::optional<pt2::Polynomial> fit(
      const std::vector<pt2::Polynomial::Product>& products,
      const std::vector<int64_t>& values) const;

  std::vector<bool> is_fixed_;
  Changes changes_;
  bool has_failed_ = false;
  std::vector<std::vector<int64_t>> points_;
  // The only symbol that a point changes. nullopt if it changes none or several.
  std::vector<std::optional<size_t>> changed_;
  std::map<std::vector<int64_t>, std::optional<pt2::Polynomial>> known_;
};

/// The record of a model at one of SizeSolver::points().
struct RecordedGraph {
  pt2::Graph graph = {};
  std::vector<pt2::Weight> weights = {};
  std::vector<at::Tensor> inputs = {};
};

/// An integer tensor whose first element is a symbol.
struct ValueSource {
  size_t symbol = 0;
  std::string input = {};
  at::ScalarType dtype = at::kLong;
};

/// What merge_graphs() reads.
struct MergeInput {
  /// One record for each of solver.points().
  const std::vector<RecordedGraph>& records;
  SizeSolver& solver;
  /// The values of the symbols in the example.
  const std::vector<int64_t>& hints;
  std::vector<ValueSource> value_sources;
  /// The meaning of each symbol, for messages.
  const std::vector<std::string>& descriptions;
  std::string where;
};

/// Makes one graph for batches of any size from records of the same model at all points.
/// Runs each record to see the sizes of its tensors. A size or an integer that differs
/// between the points becomes a polynomial of the symbols. The graph computes the symbols
/// from the sizes of its inputs. A symbol that is in none of these sizes is read from its
/// first entry in `value_sources`. If a size of an input is a sum, such as s0 + 1, the size
/// gets a symbol of its own, and the graph checks that this symbol equals the sum.
/// Errors:  c10::ValueError beginning with `where` that names the node, if the records
///          differ in anything but sizes, or if a size is not a polynomial.
pt2::Graph merge_graphs(const MergeInput& input);

}  // namespace tessera::exporting
