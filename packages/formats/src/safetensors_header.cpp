// SPDX-License-Identifier: Apache-2.0
#include "packages/formats/src/safetensors_header.h"

#include <tessera/common/shorten.h>

#include "packages/formats/src/tensor_bytes.h"
#include "src/common/check.h"
#include "src/common/json_entries.h"
#include "src/common/names.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

namespace tessera {

namespace {

std::string dtype_names() {
  return join_names(file_dtypes(), &FileDtype::safetensors);
}

bool is_list_of_sizes(const Json& value) {
  constexpr auto kMax =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return value.is_array() &&
      std::all_of(value.begin(), value.end(), [](const Json& item) {
           return item.is_number_unsigned() && item.get<uint64_t>() <= kMax;
         });
}

// Reads the header entry by entry, so that a header with many entries takes little
// memory.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& where)
      : text_(text), where_(where) {}

  SafetensorsHeader read() {
    if (text_.substr(0, 1) != "{") {
      fail("the header is not a JSON object");
    }
    // The levels are the header, an entry and a list in the entry.
    const JsonLimits limits{.depth = 3, .list_size = kMaxRank};
    for_each_json_entry(
        text_,
        where_ + ": header:",
        limits,
        [this](const std::string& name, const Json& fields) {
          name_ = name;
          accept_entry(fields);
        });
    return std::move(header_);
  }

 private:
  void accept_entry(const Json& fields) {
    if (!fields.is_object()) {
      fail(
          "'{}' must be an object, but got {}",
          shorten(name_),
          shorten(fields.dump()));
    }
    if (name_ == kSafetensorsMetadata) {
      for (const auto& [key, value] : fields.items()) {
        if (!value.is_string()) {
          fail(
              "the values of {} must be strings, but '{}' has {}",
              name_,
              shorten(key),
              shorten(value.dump()));
        }
        header_.metadata[key] = value.get<std::string>();
      }
      return;
    }
    if (fields.size() != 3 || !fields.contains("dtype") ||
        !fields.contains("shape") || !fields.contains("data_offsets")) {
      fail(
          "tensor '{}': expected dtype, shape and data_offsets, and nothing else, but got {}",
          shorten(name_),
          shorten(fields.dump()));
    }
    const Json& shape = fields.at("shape");
    if (!is_list_of_sizes(shape)) {
      fail(
          "tensor '{}': shape must be a list of sizes >= 0, but got {}",
          shorten(name_),
          shorten(shape.dump()));
    }
    const Json& offsets = fields.at("data_offsets");
    if (!is_list_of_sizes(offsets) || offsets.size() != 2) {
      fail(
          "tensor '{}': data_offsets must be two numbers >= 0, but got {}",
          shorten(name_),
          shorten(offsets.dump()));
    }
    const FileDtype& dtype = dtype_of(fields.at("dtype"));
    SafetensorsHeader::Entry entry{
        .name = name_,
        .dtype = dtype.dtype,
        .shape = shape.get<std::vector<int64_t>>(),
        .begin = offsets[0].get<size_t>(),
        .end = offsets[1].get<size_t>()};
    const std::optional<size_t> bytes = num_bytes(entry.shape, entry.dtype);
    if (entry.begin > entry.end || bytes != entry.end - entry.begin) {
      fail(
          "tensor '{}': shape {} of {} needs {} bytes, but data_offsets are [{}, {}]",
          shorten(name_),
          c10::str(at::IntArrayRef(entry.shape)),
          dtype.safetensors,
          bytes ? std::to_string(*bytes) : "more than 2^63",
          entry.begin,
          entry.end);
    }
    header_.entries.push_back(std::move(entry));
  }

  const FileDtype& dtype_of(const Json& name) const {
    const auto dtypes = file_dtypes();
    const auto found = std::find_if(
        dtypes.begin(), dtypes.end(), [&](const FileDtype& candidate) {
          return name == candidate.safetensors;
        });
    TESSERA_CHECK_VALUE(
        found != dtypes.end(),
        "{}: tensor '{}': dtype must be one of {}, but got {}. Convert the tensor where the file was written.",
        where_,
        shorten(name_),
        dtype_names(),
        shorten(name.dump()));
    return *found;
  }

  template <class... Args>
  [[noreturn]] void fail(
      fmt::format_string<const Args&...> problem,
      const Args&... args) const {
    TESSERA_CHECK_VALUE(
        false,
        "{}: {}. The file is damaged or not of the safetensors format.",
        where_,
        fmt::format(problem, args...));
  }

  std::string_view text_;
  const std::string& where_;
  SafetensorsHeader header_ = {};
  std::string name_;  // of the current entry
};

void check_cover(
    const std::vector<SafetensorsHeader::Entry>& entries,
    size_t data_size,
    const std::string& where) {
  std::vector<const SafetensorsHeader::Entry*> by_offset;
  by_offset.reserve(entries.size());
  for (const auto& entry : entries) {
    by_offset.push_back(&entry);
  }
  std::sort(
      by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) {
        return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
      });
  size_t covered = 0;
  for (const auto* entry : by_offset) {
    TESSERA_CHECK_VALUE(
        entry->begin == covered && entry->end <= data_size,
        "{}: tensor '{}' has the bytes [{}, {}) of the data, but must begin at byte {} and end within the {} bytes of data. The file is truncated or damaged.",
        where,
        shorten(entry->name),
        entry->begin,
        entry->end,
        covered,
        data_size);
    covered = entry->end;
  }
  TESSERA_CHECK_VALUE(
      covered == data_size,
      "{}: the tensors need {} bytes of data, but the file has {}. It is damaged.",
      where,
      covered,
      data_size);
}

}  // namespace

SafetensorsHeader read_safetensors_header(
    std::string_view text,
    size_t data_size,
    const std::string& where) {
  SafetensorsHeader header = HeaderReader(text, where).read();
  check_cover(header.entries, data_size, where);
  return header;
}

}  // namespace tessera
