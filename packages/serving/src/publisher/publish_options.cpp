// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/publish_options.h"

#include "packages/serving/src/publisher/row_copier.h"
#include "src/common/check.h"

#include <algorithm>

namespace tessera::serving {

namespace {

bool is_enumerator(RowFormat format) {
  return format >= RowFormat::kTable && format <= RowFormat::kInt4;
}

}  // namespace

void check_options(const PublishOptions& options) {
  const bool are_formats = is_enumerator(options.format) &&
      std::all_of(options.formats.begin(),
                  options.formats.end(),
                  [](const auto& entry) {
                    return is_enumerator(entry.second);
                  });
  TESSERA_CHECK_VALUE(
      are_formats,
      "{} format must be an enumerator of RowFormat. Correct the options.",
      kPublisher);
  TESSERA_CHECK_VALUE(
      options.full_every >= 1 && options.keep_last >= 1,
      "{} full_every and keep_last must be >= 1, but are {} and {}. Correct the options.",
      kPublisher,
      options.full_every,
      options.keep_last);
  TESSERA_CHECK_VALUE(
      options.full_share > 0.0,
      "{} full_share must be > 0, but is {}. Correct the options.",
      kPublisher,
      options.full_share);
  TESSERA_CHECK_VALUE(
      options.keep_seconds >= 0.0,
      "{} keep_seconds must be >= 0, but is {}. Correct the options.",
      kPublisher,
      options.keep_seconds);
}

StoredFormat stored_format(
    const PublishOptions& options,
    const std::string& table,
    at::ScalarType dtype) {
  const auto chosen = options.formats.find(table);
  const RowFormat format =
      chosen == options.formats.end() ? options.format : chosen->second;
  switch (format) {
    case RowFormat::kTable:
      return format_of(dtype);
    case RowFormat::kFloat32:
      return StoredFormat::kFloat32;
    case RowFormat::kBFloat16:
      return StoredFormat::kBFloat16;
    case RowFormat::kFloat16:
      return StoredFormat::kFloat16;
    case RowFormat::kInt8:
      return StoredFormat::kInt8;
    case RowFormat::kInt4:
      break;
  }
  return StoredFormat::kInt4;
}

}  // namespace tessera::serving
