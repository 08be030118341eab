// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/column_types_file.h>

#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <tessera/common/shorten.h>
#include <tessera/serialization/json_file.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <array>
#include <string_view>
#include <utility>

namespace tessera {

namespace {

constexpr std::array<std::pair<data::ColumnType, std::string_view>, 3>
    kColumnTypes{
        {{data::ColumnType::kInt64, "int64"},
         {data::ColumnType::kFloat32, "float32"},
         {data::ColumnType::kText, "text"}}};

}  // namespace

void save_column_types(
    const std::map<std::string, data::ColumnType>& types,
    const std::string& path) {
  Json json = Json::object();
  for (const auto& [column, type] : types) {
    for (const auto& [known, name] : kColumnTypes) {
      if (known == type) {
        json[column] = std::string(name);
      }
    }
  }
  std::string text;
  try {
    text = json.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    TESSERA_CHECK_VALUE(
        false,
        "[save_column_types] {}: the names of columns must be UTF-8. Rename the columns.",
        path);
  }
  AtomicFile file(path, "[save_column_types]");
  file.write(text.data(), text.size());
  file.commit();
}

std::map<std::string, data::ColumnType> load_column_types(
    const std::string& path) {
  const Json json = load_json(path, "[load_column_types]");
  TESSERA_CHECK_VALUE(
      json.is_object(),
      "[load_column_types] {}: expected an object with the types of columns. Write it with save_column_types().",
      path);
  std::map<std::string, data::ColumnType> types;
  for (const auto& [column, value] : json.items()) {
    bool is_found = false;
    for (const auto& [type, name] : kColumnTypes) {
      if (value.is_string() && value.get_ref<const std::string&>() == name) {
        types[column] = type;
        is_found = true;
      }
    }
    TESSERA_CHECK_VALUE(
        is_found,
        "[load_column_types] {}: the type of the column '{}' must be \"int64\", \"float32\" or \"text\", but got {}. Correct the file.",
        path,
        shorten(column),
        shorten(value.dump()));
  }
  return types;
}

}  // namespace tessera
