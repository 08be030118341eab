// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

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
      const ServerOptions& options)
      : where_(std::move(where)),
        version_(version),
        options_(options),
        left_(options.max_ids) {}

  /// The object in the text. It must not have other keys than `known`.
  Json parse(std::string_view text, const std::vector<std::string>& known);

  /// `name` is the place in the JSON, such as "candidates.movie".
  int64_t read_id(const Json& json, const std::string& name) const;
  float read_number(const Json& json, const std::string& name) const;

  /// Reads rows of one id or of a list of ids. The first row decides.
  IdLists read_id_rows(std::span<const Json> rows, const std::string& name);
  /// The entries of a row, which must be a list.
  std::span<const Json> row_of(const Json& row, const std::string& name) const;
  /// Appends the values of a list without lists.
  void append_ids(
      std::span<const Json> list,
      const std::string& name,
      std::vector<int64_t>& ids);
  void append_numbers(
      std::span<const Json> list,
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
  const ServerOptions& options_;
  int64_t left_;
};

/// The entries of a list.
std::span<const Json> rows_of(const Json& list);

/// Whether the rows are lists. Without rows, none is.
bool are_lists(std::span<const Json> rows);

}  // namespace tessera::serving
