// SPDX-License-Identifier: Apache-2.0
#pragma once

// The files of a published model. Publisher writes them and Reader reads them. This code
// needs no LibTorch.
//
//   CURRENT               the number and the checksum of the version that counts
//   version_0000000007/
//     version.json        VersionFile, with a checksum at its end
//     data                the sections that version.json names
//
// A base has all rows. Another version has only the rows that have changed since the
// version before it. A version counts from the moment at which CURRENT names it.

#include <tessera/common/fields.h>
#include <tessera/tables/combiner.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::kernels {
enum class Storage : uint8_t;
}  // namespace tessera::kernels

namespace tessera::serving {

/// How the numbers of a row are stored.
enum class StoredFormat : uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  kInt8,
  kInt4,
  kTableInt8
};

/// "float32", "bfloat16", "float16", "int8", "int4", "table_int8".
std::string to_string(StoredFormat format);
StoredFormat format_from_string(std::string_view name);

/// The bits of a number.
constexpr int bits_of(StoredFormat format) {
  constexpr std::array<int, 6> kBits{32, 16, 16, 8, 4, 8};
  return kBits.at(static_cast<size_t>(format));
}
/// Returns whether rows are those of kernels::QuantizedRow. Rows of kTableInt8 are those
/// of kernels::Storage::kInt8.
constexpr bool is_quantized(StoredFormat format) {
  return format == StoredFormat::kInt8 || format == StoredFormat::kInt4;
}
/// How kernels::StoredRows stores a format that is not quantized.
kernels::Storage storage_of(StoredFormat format);

/// The first format_version that has the format.
int64_t version_with(StoredFormat format);

/// The bytes of a row.
int64_t row_bytes(StoredFormat format, int64_t dim);

/// A range of the file `data`.
struct Section {
  int64_t offset = 0;
  int64_t bytes = 0;
  std::string xxh3 = {};

  TESSERA_FIELDS(offset, bytes, xxh3)
};

/// The values to which lookups round. See QuantizationConfig.
struct RoundedTo {
  double lower = 0.0;
  double upper = 0.0;
  int64_t num_buckets = 0;

  bool operator==(const RoundedTo&) const = default;

  TESSERA_FIELDS(lower, upper, num_buckets)
};

/// The keys of a table. See DynamicKeys.
struct KeyOptions {
  int64_t capacity = 0;
  std::optional<int64_t> default_key = {};
  std::optional<int64_t> padding_key = {};

  bool operator==(const KeyOptions&) const = default;

  TESSERA_FIELDS(capacity, default_key, padding_key)
};

/// One table of a version.
struct TableFile {
  std::string name = {};
  int64_t dim = 0;
  std::string format = {};
  /// 0 for a table with keys.
  int64_t vocabulary_size = 0;
  std::optional<KeyOptions> keys = {};
  std::optional<RoundedTo> rounded_to = {};
  /// The number of rows in this version.
  int64_t count = 0;
  /// [count, row_bytes].
  Section rows = {};
  /// Which rows these are. A base with keys has KeyBucket[], see key_buckets.h. Other
  /// versions have the numbers of the rows, [count] uint32 ascending, or the keys of the
  /// rows, [count] int64.
  std::optional<Section> numbers = {};
  /// Keys that have lost their rows, int64.
  std::optional<Section> removed = {};

  TESSERA_FIELDS(
      name,
      dim,
      format,
      vocabulary_size,
      keys,
      rounded_to,
      count,
      rows,
      numbers,
      removed)
};

/// One feature. See FeatureConfig.
struct FeatureFile {
  std::string name = {};
  std::string table = {};
  std::string combiner = {};
  int64_t sequence_length = 0;
  bool validates = true;
  bool zeros_out_of_range = false;

  bool operator==(const FeatureFile&) const = default;

  TESSERA_FIELDS(
      name,
      table,
      combiner,
      sequence_length,
      validates,
      zeros_out_of_range)
};

/// A dtype of DenseFile.
struct DenseDtype {
  std::string_view name = {};
  int64_t bytes = 0;  // of a number
};

inline constexpr auto kDenseDtypes = std::to_array<DenseDtype>({
    {"float32", 4},
    {"float64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"int64", 8},
    {"int32", 4},
    {"int16", 2},
    {"int8", 1},
    {"uint8", 1},
    {"bool", 1},
});

/// A dense parameter or buffer of the model.
struct DenseFile {
  std::string name = {};
  /// "float32", "int64", ..., the names of LibTorch's tools.
  std::string dtype = {};
  std::vector<int64_t> shape = {};
  Section values = {};

  TESSERA_FIELDS(name, dtype, shape, values)
};

struct MetricFile {
  std::string name = {};
  double value = 0.0;

  TESSERA_FIELDS(name, value)
};

/// Names a version: the one before another one, or the one in CURRENT. `xxh3` is the
/// checksum of its version.json.
struct VersionLink {
  int64_t version = 0;
  std::string xxh3 = {};

  bool operator==(const VersionLink&) const = default;

  TESSERA_FIELDS(version, xxh3)
};

/// A file that is published with the model.
struct AttachedFile {
  std::string name = {};
  Section bytes = {};

  TESSERA_FIELDS(name, bytes)
};

/// version.json.
struct VersionFile {
  int64_t format_version = 1;
  int64_t version = 0;
  /// The version with all rows that this one builds on; `version` itself for a base.
  int64_t base = 0;
  /// Unset for the first version of a directory.
  std::optional<VersionLink> previous = {};
  int64_t step = 0;
  /// Seconds since 1970.
  double time = 0.0;
  std::vector<MetricFile> metrics = {};
  std::vector<TableFile> tables = {};
  std::vector<FeatureFile> features = {};
  std::vector<DenseFile> dense = {};
  /// Files that are published with the model. Only a base has them.
  std::vector<AttachedFile> files = {};
  /// Bytes of the file `data`.
  int64_t data_bytes = 0;

  bool is_base() const {
    return base == version;
  }

  TESSERA_FIELDS(
      format_version,
      version,
      base,
      previous,
      step,
      time,
      metrics,
      tables,
      features,
      dense,
      files,
      data_bytes)
};

// The names of attached files.
inline constexpr const char* kPipeline = "pipeline";
inline constexpr const char* kProgram = "program";
inline constexpr const char* kCompiledProgram = "compiled_program";

/// The text of version.json and its checksum.
std::string to_text(const VersionFile& version);
/// The checksum that to_text() has put at the end.
std::string checksum_in(const std::string& text);
/// Reads a text of to_text() and checks it: names are unique, features name tables, and
/// sections are within the data, have the bytes that shapes need, and together are not
/// longer than the data.
/// Errors:  ValueError beginning with `where`.
VersionFile version_from_text(std::string_view text, const std::string& where);

/// The text of CURRENT.
std::string to_text(const VersionLink& link);
VersionLink link_from_text(std::string_view text, const std::string& where);

/// "version_0000000007".
std::string version_name(int64_t version);
/// The number in such a name, or nullopt for another name.
std::optional<int64_t> version_number(const std::string& name);

inline constexpr const char* kCurrentFile = "CURRENT";
inline constexpr const char* kVersionFile = "version.json";
inline constexpr const char* kDataFile = "data";
/// The largest number of bytes of version.json and of CURRENT. version.json takes some 300
/// bytes for a table, a feature or a dense weight, and reading it takes 20 times as much
/// memory.
inline constexpr int64_t kMaxVersionBytes = int64_t{1} << 24;
inline constexpr int64_t kMaxLinkBytes = 256;
inline constexpr int64_t kMaxDim = int64_t{1} << 24;
/// Sections begin at multiples of this number. Lookups may read a little beyond the end of
/// quantized rows.
inline constexpr int64_t kSectionAlignment = 64;

}  // namespace tessera::serving
