// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/column_types_file.h>

#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <tessera/common/shorten.h>
#include <tessera/serialization/json_file.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

namespace tessera {

void save_column_types(
    const std::map<std::string, data::ColumnType>& types,
    const std::string& path) {
  Json json = Json::object();
  for (const auto& [column, type] : types) {
    json[column] = data::to_string(type);
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
    TESSERA_CHECK_VALUE(
        value.is_string(),
        "[load_column_types] {}: the type of the column '{}' must be text, but got {}. Correct the file.",
        path,
        shorten(column),
        shorten(value.dump()));
    try {
      types[column] =
          data::column_type_from_string(value.get_ref<const std::string&>());
    } catch (const c10::ValueError& error) {
      TESSERA_CHECK_VALUE(
          false,
          "[load_column_types] {}: column '{}': {}",
          path,
          shorten(column),
          error.what_without_backtrace());
    }
  }
  return types;
}

}  // namespace tessera
