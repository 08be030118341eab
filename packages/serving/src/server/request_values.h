// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/serving/reader.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

struct RequestLimits {
  size_t max_bytes = 0;
  /// Ids, numbers and rows.
  int64_t max_values = 0;
};

/// Reads the lists of a request in JSON, and counts their values.
///
/// Errors:  std::invalid_argument that begins with the path of the request and says where
///          in the JSON the wrong value is.
class RequestValues {
 public:
  /// `where` is the path of the request, such as "/score".
  RequestValues(
      std::string where,
      const Version& version,
      const RequestLimits& limits)
      : where_(std::move(where)),
        version_(version),
        limits_(limits),
        left_(limits.max_values) {}

  /// The object in the text. It must not have other keys than `known`.
  Json parse(std::string_view text, const std::vector<std::string>& known);

  /// `name` is the place in the JSON, such as "candidates.movie".
  int64_t read_id(const Json& json, const std::string& name) const;
  float read_number(const Json& json, const std::string& name) const;

  /// Appends the values of a list without lists.
  void append_ids(
      const Json& list,
      const std::string& name,
      std::vector<int64_t>& ids);
  void append_numbers(
      const Json& list,
      const std::string& name,
      std::vector<float>& numbers);

  /// Counts values against the limit.
  void count(size_t values);

  /// Refuses the value of `name`, which should be what `expected` says.
  [[noreturn]] void refuse(
      const Json& json,
      const std::string& name,
      std::string_view expected) const;

 private:
  const char* advice_for_text() const;

  std::string where_;
  const Version& version_;
  RequestLimits limits_;
  int64_t left_;
};

/// Whether the entries of a list are lists. An empty list has none.
bool has_lists(const Json& list);

}  // namespace tessera::serving
