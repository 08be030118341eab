// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/export/pt2_program.h>

#include <string>
#include <vector>

namespace tessera::pt2 {

/// The inputs or the outputs of a signature, as files hold them.
Json signature_json(const std::vector<Pt2Value>& values);

/// Reads what signature_json() writes.
/// Errors:  c10::ValueError beginning with `where`, for an unknown dtype and for sizes that
///          are not integers; Json::exception for missing fields.
std::vector<Pt2Value> signature_from_json(
    const Json& list,
    const std::string& where);

}  // namespace tessera::pt2
