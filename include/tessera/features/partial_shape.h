// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// snippet: tests/docs/reference_engine_test.cpp PartialShape
/// A shape whose dimensions may be unknown, such as {2, std::nullopt}.
///
/// It is a vector of sizes. A std::vector<int64_t> converts to it.
///
///   const PartialShape shape{std::nullopt, 64};
///   cross->build(shape);  // makes parameters for inputs [batch, 64]
///   std::cout << to_string(shape);  // [?, 64]
struct PartialShape : std::vector<std::optional<int64_t>> {
  using Sizes = std::vector<std::optional<int64_t>>;
  using Sizes::Sizes;

  PartialShape() = default;
  PartialShape(Sizes sizes)  // NOLINT(google-explicit-constructor)
      : Sizes(std::move(sizes)) {}
  PartialShape(const std::vector<int64_t>& sizes)  // NOLINT: as above
      : Sizes(sizes.begin(), sizes.end()) {}
};

/// "[2, ?]"
std::string to_string(const PartialShape& shape);

/// Returns the sizes, or nullopt if one of them is unknown.
std::optional<std::vector<int64_t>> known_sizes(const PartialShape& shape);

/// Returns a shape with the known sizes of both shapes: [2, ?] and [?, 4] give [2, 4].
/// Returns nullopt if the ranks differ, or if two known sizes of one dimension differ.
std::optional<PartialShape> merge(
    const PartialShape& left,
    const PartialShape& right);

/// Returns `shape` with its unknown sizes taken from `other`.
/// Errors:  c10::ValueError if their ranks differ.
PartialShape fill_unknown(PartialShape shape, const PartialShape& other);

}  // namespace tessera
