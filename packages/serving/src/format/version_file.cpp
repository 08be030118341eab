// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/format/version_file.h"

#include <tessera/common/json_value.h>

#include "packages/serving/src/format/key_buckets.h"
#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/checksum.h"
#include "src/common/names.h"
#include "src/features/id_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

namespace tessera::serving {

namespace {

constexpr int64_t kMaxFormatVersion = 2;
constexpr std::string_view kVersionPrefix = "version_";
constexpr int64_t kMaxSequence = int64_t{1} << 20;

constexpr std::array<const char*, 6>
    kFormats{"float32", "bfloat16", "float16", "int8", "int4", "table_int8"};

bool is_combiner(const std::string& name) {
  bool is_known = false;
  for_each_combiner([&](Combiner combiner) {
    is_known = is_known || name == to_string(combiner);
  });
  return is_known;
}

// Checks a version.json part by part.
class VersionChecker {
 public:
  VersionChecker(const VersionFile& version, const std::string& where)
      : version_(version), where_(where) {}

  void check() {
    TESSERA_CHECK_VALUE(
        version_.format_version >= 1 &&
            version_.format_version <= kMaxFormatVersion,
        "{} expected format_version 1 to {}, but got {}. Read it with the version of Tessera that wrote it.",
        where_,
        kMaxFormatVersion,
        version_.format_version);
    expect(
        version_.version >= 1 && version_.base >= 1 &&
            version_.base <= version_.version &&
            (!version_.previous ||
             version_.previous->version < version_.version) &&
            (version_.is_base() || version_.previous),
        "version, base and previous");
    std::set<std::string_view> tables;
    for (const TableFile& table : version_.tables) {
      expect(tables.insert(table.name).second, "tables");
      check_table(table);
    }
    std::set<std::string_view> features;
    for (const FeatureFile& feature : version_.features) {
      expect(
          features.insert(feature.name).second &&
              tables.contains(feature.table) && feature.sequence_length >= 0 &&
              feature.sequence_length <= kMaxSequence,
          "features");
      expect(is_combiner(feature.combiner), "combiners");
    }
    for (const DenseFile& dense : version_.dense) {
      check_section(dense.values, "dense");
      check_shape(dense);
    }
    std::set<std::string_view> files;
    for (const AttachedFile& file : version_.files) {
      expect(files.insert(file.name).second, "files");
      check_section(file.bytes, "files");
    }
  }

 private:
  void expect(bool is_valid, const char* what) const {
    TESSERA_CHECK_VALUE(
        is_valid,
        "{} its {} do not fit together. The file is damaged, or not of a Publisher.",
        where_,
        what);
  }

  // Sections do not overlap, so reading all of them reads the data once.
  void check_section(const Section& section, const char* what) {
    expect(
        section.offset >= 0 && section.bytes >= 0 &&
            section.offset <= version_.data_bytes &&
            section.bytes <= version_.data_bytes - section.offset &&
            section.bytes <= version_.data_bytes - section_bytes_ &&
            section.offset % kSectionAlignment == 0,
        what);
    section_bytes_ += section.bytes;
  }

  void check_shape(const DenseFile& dense) const {
    const auto* known =
        std::ranges::find(kDenseDtypes, dense.dtype, &DenseDtype::name);
    int64_t bytes = known == kDenseDtypes.end() ? 0 : known->bytes;
    bool fits = true;
    for (const int64_t size : dense.shape) {
      fits = fits && size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes);
    }
    // Readers may know fewer dtypes than publishers.
    expect(fits && (bytes == 0 || bytes == dense.values.bytes), "dense");
  }

  void check_table(const TableFile& table) {
    constexpr int64_t kMaxRows = std::numeric_limits<uint32_t>::max();
    const bool has_format =
        std::ranges::find(kFormats, table.format) != kFormats.end();
    const int64_t bytes = has_format && table.dim >= 1 && table.dim <= kMaxDim
        ? row_bytes(format_from_string(table.format), table.dim)
        : 0;
    expect(
        bytes > 0 &&
            version_with(format_from_string(table.format)) <=
                version_.format_version &&
            table.count >= 0 && table.count < kMaxRows &&
            table.vocabulary_size >= 0 && table.vocabulary_size < kMaxRows &&
            (!table.keys ||
             (table.keys->capacity >= 1 && table.keys->capacity < kMaxRows)) &&
            table.rows.bytes == table.count * bytes,
        "tables");
    check_section(table.rows, "tables");
    // Quantized rows may be read beyond their end.
    expect(
        table.rows.bytes == 0 ||
            table.rows.bytes + kernels::kReadAfterRow <=
                version_.data_bytes - table.rows.offset,
        "tables");
    if (table.keys) {
      expect(table.numbers.has_value(), "keys");
      check_section(*table.numbers, "keys");
      if (version_.is_base()) {
        constexpr auto kBytes = static_cast<int64_t>(sizeof(KeyBucket));
        expect(
            table.numbers->bytes % kBytes == 0 && table.numbers->bytes > 0 &&
                !table.removed,
            "keys");
      } else {
        expect(table.numbers->bytes == table.count * 8, "keys");
      }
      if (table.removed) {
        check_section(*table.removed, "keys");
        expect(table.removed->bytes % 8 == 0, "keys");
      }
    } else if (version_.is_base()) {
      expect(
          table.count == table.vocabulary_size && !table.numbers &&
              !table.removed,
          "tables");
    } else {
      expect(table.numbers && !table.removed, "tables");
      check_section(*table.numbers, "tables");
      expect(table.numbers->bytes == table.count * 4, "tables");
    }
    expect(!table.rounded_to || table.rounded_to->num_buckets >= 2, "tables");
  }

  const VersionFile& version_;
  const std::string& where_;
  int64_t section_bytes_ = 0;  // of all sections so far
};

}  // namespace

std::string to_string(StoredFormat format) {
  return kFormats.at(static_cast<size_t>(format));
}

StoredFormat format_from_string(std::string_view name) {
  return value_named<StoredFormat::kTableInt8>(
      name, kFormats, "[serving] the format of rows");
}

int64_t version_with(StoredFormat format) {
  return format == StoredFormat::kTableInt8 ? 2 : 1;
}

int64_t row_bytes(StoredFormat format, int64_t dim) {
  return is_quantized(format)
      ? kernels::QuantizedRow::bytes(dim, bits_of(format))
      : kernels::bytes_of_row(storage_of(format), dim);
}

kernels::Storage storage_of(StoredFormat format) {
  return format == StoredFormat::kBFloat16 ? kernels::Storage::kBFloat16
      : format == StoredFormat::kFloat16   ? kernels::Storage::kFloat16
      : format == StoredFormat::kTableInt8 ? kernels::Storage::kInt8
                                           : kernels::Storage::kFloat32;
}

std::string to_text(const VersionFile& version) {
  std::string text = write_fields(version).dump(1);
  text += checksum_ending(checksum_of(text));
  return text;
}

std::string checksum_in(const std::string& text) {
  return text.substr(text.size() - kChecksumDigits - 1, kChecksumDigits);
}

VersionFile version_from_text(std::string_view text, const std::string& where) {
  TESSERA_CHECK_VALUE(
      text.size() <= static_cast<size_t>(kMaxVersionBytes),
      "{} expected at most {} bytes, but got {}. Publish a model with fewer tables, features or dense weights.",
      where,
      kMaxVersionBytes,
      text.size());
  std::string_view json = text;
  bool has_checksum = false;
  try {
    has_checksum = take_checksum_ending(json);
  } catch (const checks::ValueError& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} {}. The file is damaged.",
        where,
        checks::message_of_error(error));
  }
  TESSERA_CHECK_VALUE(
      has_checksum,
      "{} expected a checksum at the end of the file. It is damaged, or not of a Publisher.",
      where);
  const auto version = read_fields<VersionFile>(
      parse_json(json, where), where.substr(1, where.find(']') - 1));
  VersionChecker(version, where).check();
  return version;
}

std::string to_text(const VersionLink& link) {
  return fmt::format("{} {}\n", link.version, link.xxh3);
}

VersionLink link_from_text(std::string_view text, const std::string& where) {
  VersionLink link;
  const char* end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, link.version);
  const bool has_number = error == std::errc() && after != end &&
      *after == ' ' && text.size() <= static_cast<size_t>(kMaxLinkBytes);
  if (has_number) {
    link.xxh3 = std::string(after + 1, end);
  }
  TESSERA_CHECK_VALUE(
      has_number && link.version >= 1 &&
          link.xxh3.size() == kChecksumDigits + 1 && link.xxh3.back() == '\n',
      "{} expected the number and the checksum of a version, but got {} bytes of something else. The file is damaged, or not of a Publisher.",
      where,
      text.size());
  link.xxh3.pop_back();
  return link;
}

std::string version_name(int64_t version) {
  return fmt::format("{}{:010}", kVersionPrefix, version);
}

std::optional<int64_t> version_number(const std::string& name) {
  int64_t version = 0;
  if (!name.starts_with(kVersionPrefix)) {
    return std::nullopt;
  }
  const char* end = name.data() + name.size();
  const auto [after, error] =
      std::from_chars(name.data() + kVersionPrefix.size(), end, version);
  if (error != std::errc() || after != end || name != version_name(version)) {
    return std::nullopt;
  }
  return version;
}

}  // namespace tessera::serving
