// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/signature_json.h"

#include <tessera/common/shorten.h>

#include "packages/export/src/pt2/graph_json.h"
#include "packages/formats/src/tensor_bytes.h"
#include "src/common/check.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>

namespace tessera::pt2 {

namespace {

at::ScalarType dtype_from_name(
    const std::string& name,
    const std::string& where) {
  const auto dtypes = file_dtypes();
  const auto found =
      std::find_if(dtypes.begin(), dtypes.end(), [&](const FileDtype& each) {
        return name == c10::toString(each.dtype);
      });
  TESSERA_CHECK_VALUE(
      found != dtypes.end(),
      "{} expected a dtype, but got '{}'. The file is damaged, or another program wrote it.",
      where,
      shorten(name));
  return found->dtype;
}

}  // namespace

Json signature_json(const std::vector<Pt2Value>& values) {
  Json list = Json::array();
  for (const Pt2Value& value : values) {
    Json shape = Json::array();
    for (const std::optional<int64_t>& size : value.shape) {
      shape.push_back(size ? Json(*size) : Json(nullptr));
    }
    list.push_back(
        {{"name", value.name},
         {"path", value.path},
         {"part", value.part},
         {"dtype", c10::toString(value.dtype)},
         {"shape", std::move(shape)}});
  }
  return list;
}

std::vector<Pt2Value> signature_from_json(
    const Json& list,
    const std::string& where) {
  std::vector<Pt2Value> values;
  for (const Json& json : list) {
    Pt2Value value{
        .name = json.at("name").get<std::string>(),
        .path = json.at("path").get<std::string>(),
        .part = json.at("part").get<std::string>(),
        .dtype = dtype_from_name(json.at("dtype").get<std::string>(), where)};
    for (const Json& size : json.at("shape")) {
      value.shape.push_back(
          size.is_null() ? std::nullopt
                         : std::make_optional(integer_from_json(size, where)));
    }
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace tessera::pt2
