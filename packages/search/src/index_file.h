// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>
#include <tessera/formats/safetensors.h>

#include <c10/util/Exception.h>

#include <string>

#include "src/common/check.h"

namespace tessera {

/// The value of `key` in the file's metadata, or an empty string.
inline std::string metadata_of(const NamedTensors& file, const char* key) {
  const auto found = file.metadata.find(key);
  return found == file.metadata.end() ? std::string() : found->second;
}

[[noreturn]] inline void refuse_index_file(
    const std::string& where,
    const c10::Error& error) {
  TESSERA_CHECK_VALUE(
      false,
      "{} the file is damaged: {} Load another copy of the file.",
      where,
      error.what_without_backtrace());
}

/// Loads the index file at `path` and returns read(file).
/// Errors:  those of load_safetensors(); c10::ValueError naming `function` and `path`, for
///          another format, and if read() raises a ValueError or a TypeError.
template <class Read>
auto load_index_file(
    const char* function,
    const std::string& path,
    const char* format,
    Read read) {
  const NamedTensors file = load_safetensors(path);
  const std::string where = c10::str("[", function, " '", shorten(path), "']");
  TESSERA_CHECK_VALUE(
      metadata_of(file, "format") == format,
      "{} expected a file of the format '{}', but its format is '{}'. Load a file that the save() of such an index wrote.",
      where,
      format,
      shorten(metadata_of(file, "format")));
  try {
    return read(file);
  } catch (const c10::ValueError& error) {
    refuse_index_file(where, error);
  } catch (const c10::TypeError& error) {
    refuse_index_file(where, error);
  }
}

}  // namespace tessera
