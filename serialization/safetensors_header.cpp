// SPDX-License-Identifier: Apache-2.0
#include "serialization/safetensors_header.h"

#include "serialization/tensor_bytes.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

namespace tessera {

namespace {

using nlohmann::json;

std::string dtype_names() {
  std::vector<std::string> names;
  for (const FileDtype& entry : file_dtypes()) {
    names.emplace_back(entry.safetensors);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_list_of_sizes(const json& value) {
  constexpr auto kMax =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return value.is_array() &&
      std::all_of(value.begin(), value.end(), [](const json& item) {
           return item.is_number_unsigned() && item.get<uint64_t>() <= kMax;
         });
}

// Reads the header entry by entry, so that neither duplicate names nor deep nests
// come as far as a JSON value.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& where)
      : text_(text), where_(where) {}

  SafetensorsHeader read() {
    check(text_.substr(0, 1) == "{", "the header is not a JSON object");
    // The parser would take it for the end; some writers pad with it.
    check(
        text_.find('\0') == std::string_view::npos,
        "the header has a zero byte, where only spaces may follow the JSON");
    try {
      [[maybe_unused]] const json rest = json::parse(
          text_, [this](int depth, json::parse_event_t event, json& value) {
            return accept(depth, event, value);
          });
    } catch (const json::parse_error& error) {
      check(false, "the header is not JSON at its byte ", error.byte);
    } catch (const json::exception&) {
      check(false, "the header is not JSON");
    }
    return std::move(header_);
  }

 private:
  // Depth 0 is the header, 1 a tensor or the metadata, 2 its fields, 3 a list.
  // False drops what has been parsed.
  bool accept(int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (event == Event::key) {
      accept_key(depth, value.get_ref<const std::string&>());
    } else if (event == Event::object_start) {
      check(depth <= 1, "an object is nested too deep");
      keys_.clear();
    } else if (event == Event::object_end && depth == 1) {
      accept_entry(value);
      return false;
    } else if (event == Event::array_start) {
      check(
          depth == 2 && name_ != kSafetensorsMetadata,
          "a list is out of place");
      list_size_ = 0;
    } else if (event == Event::value) {
      check(depth >= 2, "'", name_, "' must be an object");
      list_size_ += depth == 3 ? 1 : 0;
      check(
          list_size_ <= kMaxRank,
          "'",
          name_,
          "' has a list of more than ",
          kMaxRank,
          " numbers");
    }
    return true;
  }

  void accept_key(int depth, const std::string& key) {
    if (depth == 1) {
      name_ = key;
      check(names_.insert(key).second, "the name '", key, "' appears twice");
    } else {
      check(keys_.insert(key).second, "'", name_, "' has '", key, "' twice");
    }
  }

  void accept_entry(const json& fields) {
    if (name_ == kSafetensorsMetadata) {
      for (const auto& [key, value] : fields.items()) {
        check(
            value.is_string(),
            name_,
            " must hold strings, but '",
            key,
            "' is none");
        header_.metadata[key] = value.get<std::string>();
      }
      return;
    }
    check(
        keys_ == std::set<std::string>{"data_offsets", "dtype", "shape"},
        "tensor '",
        name_,
        "': expected dtype, shape and data_offsets, and nothing else");
    const json& shape = fields.at("shape");
    check(
        is_list_of_sizes(shape),
        "tensor '",
        name_,
        "': shape must be a list of lengths");
    const json& offsets = fields.at("data_offsets");
    check(
        is_list_of_sizes(offsets) && offsets.size() == 2,
        "tensor '",
        name_,
        "': data_offsets must be two offsets");
    const FileDtype& dtype = dtype_of(fields.at("dtype"));
    SafetensorsHeader::Entry entry{
        .name = name_,
        .dtype = dtype.dtype,
        .shape = shape.get<std::vector<int64_t>>(),
        .begin = offsets[0].get<size_t>(),
        .end = offsets[1].get<size_t>()};
    const std::optional<size_t> bytes = num_bytes(entry.shape, entry.dtype);
    check(
        entry.begin <= entry.end && bytes == entry.end - entry.begin,
        "tensor '",
        name_,
        "': shape ",
        at::IntArrayRef(entry.shape),
        " of ",
        dtype.safetensors,
        " needs ",
        bytes ? std::to_string(*bytes) : "more than 2^63",
        " bytes, but data_offsets are [",
        entry.begin,
        ", ",
        entry.end,
        "]");
    header_.entries.push_back(std::move(entry));
  }

  const FileDtype& dtype_of(const json& name) const {
    const auto dtypes = file_dtypes();
    const auto found = std::find_if(
        dtypes.begin(), dtypes.end(), [&](const FileDtype& candidate) {
          return name == candidate.safetensors;
        });
    TORCH_CHECK_VALUE(
        found != dtypes.end(),
        where_,
        ": tensor '",
        name_,
        "': dtype must be one of ",
        dtype_names(),
        ", but got ",
        name.dump(),
        ". Convert the tensor where the file was written.");
    return *found;
  }

  template <class... Parts>
  void check(bool is_fine, const Parts&... problem) const {
    TORCH_CHECK_VALUE(
        is_fine,
        where_,
        ": ",
        problem...,
        ". The file is damaged or not of the safetensors format.");
  }

  std::string_view text_;
  const std::string& where_;
  SafetensorsHeader header_ = {};
  std::unordered_set<std::string> names_;
  size_t list_size_ = 0;
  std::string name_;  // of the current entry
  std::set<std::string> keys_;  // that the current entry has so far
};

void check_cover(
    const std::vector<SafetensorsHeader::Entry>& entries,
    size_t data_size,
    const std::string& where) {
  std::vector<const SafetensorsHeader::Entry*> in_turn;
  in_turn.reserve(entries.size());
  for (const auto& entry : entries) {
    in_turn.push_back(&entry);
  }
  std::sort(in_turn.begin(), in_turn.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  size_t covered = 0;
  for (const auto* entry : in_turn) {
    TORCH_CHECK_VALUE(
        entry->begin == covered && entry->end <= data_size,
        where,
        ": tensor '",
        entry->name,
        "' has the bytes [",
        entry->begin,
        ", ",
        entry->end,
        ") of the data, but the next in turn is ",
        covered,
        " of ",
        data_size,
        ". The file is truncated or damaged.");
    covered = entry->end;
  }
  TORCH_CHECK_VALUE(
      covered == data_size,
      where,
      ": the tensors need ",
      covered,
      " bytes of data, but the file has ",
      data_size,
      ". It is damaged.");
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
