// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/request_values.h"

#include <tessera/common/json_text.h>
#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include "packages/serving/src/server/http_message.h"
#include "src/common/check.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace tessera::serving {

Json RequestValues::parse(
    std::string_view text,
    const std::vector<std::string>& known) {
  // No request needs a deeper one.
  constexpr size_t kDepth = 8;
  Json json = parse_json(
      text,
      "[" + where_ + "]",
      {.bytes = static_cast<size_t>(options_.max_body_bytes),
       .depth = kDepth,
       .list_size = static_cast<size_t>(options_.max_ids)});
  check_known_keys(json, known, where_);
  return json;
}

int64_t RequestValues::read_id(const Json& json, const std::string& name)
    const {
  // nlohmann reads an integer beyond 64 bits as a floating point number.
  if (!json.is_number_integer() ||
      (json.is_number_unsigned() &&
       json.get<uint64_t>() >
           static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
    refuse(json, name, "an id, which is an integer from -2^63 to 2^63 - 1");
  }
  return json.get<int64_t>();
}

float RequestValues::read_number(const Json& json, const std::string& name)
    const {
  const double number = json.is_number() ? json.get<double>() : INFINITY;
  // From here on, rounding gives infinity. Below it lies the largest float, and
  // also its shortest text, 3.4028235e+38, which as a double is a little
  // larger.
  constexpr double kEnd = 0x1.ffffffp127;
  if (!(std::abs(number) < kEnd)) {
    refuse(json, name, "a number in the range of float32");
  }
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(number, -kMax, kMax));
}

IdLists RequestValues::read_id_rows(
    std::span<const Json> rows,
    const std::string& name) {
  IdLists read;
  if (!are_lists(rows)) {
    append_ids(rows, name, read.ids);
    return read;
  }
  read.row_splits.push_back(0);
  for (const Json& row : rows) {
    append_ids(row_of(row, name), name, read.ids);
    read.row_splits.push_back(std::ssize(read.ids));
  }
  return read;
}

std::span<const Json> RequestValues::row_of(
    const Json& row,
    const std::string& name) const {
  if (!row.is_array()) {
    refuse(row, name, "a list, as the first entry is");
  }
  return rows_of(row);
}

void RequestValues::append_ids(
    std::span<const Json> list,
    const std::string& name,
    std::vector<int64_t>& ids) {
  count(list.size());
  for (const Json& id : list) {
    ids.push_back(read_id(id, name));
  }
}

void RequestValues::append_numbers(
    std::span<const Json> list,
    const std::string& name,
    std::vector<float>& numbers) {
  count(list.size());
  for (const Json& number : list) {
    numbers.push_back(read_number(number, name));
  }
}

void RequestValues::count(size_t values) {
  left_ -= static_cast<int64_t>(values);
  TESSERA_CHECK_VALUE(
      left_ >= 0,
      "[{}] expected at most {} ids, numbers and rows, but got more. Send fewer in one request.",
      where_,
      options_.max_ids);
}

void RequestValues::refuse(
    const Json& json,
    const std::string& name,
    std::string_view expected) const {
  const std::string got = json.is_array() ? "a list"
      : json.is_object()                  ? "an object"
                                          : shorten(text_of(json));
  checks::fail<checks::ValueError>(
      {__func__, __FILE__, __LINE__},
      "[{}] {}: expected {}, but got {}.{}",
      where_,
      shorten(name),
      expected,
      got,
      json.is_string() ? advice_for_text() : "");
}

const char* RequestValues::advice_for_text() const {
  return version_.pipeline().empty()
      ? " The server takes no text, and this version has no pipeline. Send the ids and numbers with which the model was trained."
      : " The server takes no text. Apply the pipeline of this version in the client, and send its ids and numbers, as docs/serving.md shows under \"Raw values\".";
}

std::span<const Json> rows_of(const Json& list) {
  return list.get_ref<const Json::array_t&>();
}

bool are_lists(std::span<const Json> rows) {
  return !rows.empty() && rows.front().is_array();
}

}  // namespace tessera::serving
