// SPDX-License-Identifier: Apache-2.0
#include <tessera/formats/safetensors.h>

#include <tessera/common/json.h>
#include <tessera/common/json_text.h>
#include <tessera/common/shorten.h>

#include "packages/formats/src/tensor_bytes.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_set>

namespace tessera {

namespace {

// The key of the metadata in the header. The other keys are the names of the tensors.
inline constexpr const char* kSafetensorsMetadata = "__metadata__";

// The content of the JSON header of a safetensors file.
struct SafetensorsHeader {
  struct Entry {
    std::string name = {};
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> shape = {};
    // The bytes [begin, end) of the data, which begins after the header.
    size_t begin = 0;
    size_t end = 0;
  };

  // The tensors in the order of the header.
  std::vector<Entry> entries = {};
  std::map<std::string, std::string> metadata = {};
};

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
    const auto found =
        std::ranges::find_if(dtypes, [&](const FileDtype& candidate) {
          return name == candidate.safetensors;
        });
    TESSERA_CHECK_VALUE(
        found != dtypes.end(),
        "{}: tensor '{}': dtype must be one of {}, but got {}. Convert the tensor where the file was written.",
        where_,
        shorten(name_),
        join_names(dtypes, &FileDtype::safetensors),
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

// Checks that the tensors cover `data_size` bytes without gaps or overlaps.
void check_cover(
    const std::vector<SafetensorsHeader::Entry>& entries,
    size_t data_size,
    const std::string& where) {
  std::vector<const SafetensorsHeader::Entry*> by_offset;
  by_offset.reserve(entries.size());
  for (const auto& entry : entries) {
    by_offset.push_back(&entry);
  }
  std::ranges::sort(by_offset, [](const auto* a, const auto* b) {
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

constexpr size_t kLengthSize = sizeof(uint64_t);
// The limit of the format. It keeps a malicious header from filling the memory.
constexpr uint64_t kMaxHeader = 100'000'000;

// The places of the tensors in the file.
struct Layout {
  std::vector<size_t> offsets = {};  // in the order of `contents`
  // Indices in `contents`, in the order of the file.
  std::vector<size_t> order = {};
};

// Puts wide dtypes first, so that all tensors are aligned without gaps.
Layout make_layout(const NamedTensors& contents) {
  Layout layout;
  layout.offsets.resize(contents.tensors.size());
  layout.order.resize(contents.tensors.size());
  std::iota(layout.order.begin(), layout.order.end(), size_t{0});
  const auto width = [&](size_t i) {
    return contents.tensors[i].second.element_size();
  };
  std::ranges::stable_sort(
      layout.order, [&](size_t a, size_t b) { return width(a) > width(b); });
  size_t end = 0;
  for (const size_t i : layout.order) {
    layout.offsets[i] = end;
    end += contents.tensors[i].second.nbytes();
  }
  return layout;
}

std::string header_of(
    const NamedTensors& contents,
    const Layout& layout,
    const std::string& where) {
  std::vector<std::string> entries;
  const auto add = [&](const Json& name, const Json& value) {
    entries.push_back(name.dump() + ":" + value.dump());
  };
  try {
    if (!contents.metadata.empty()) {
      add(kSafetensorsMetadata, contents.metadata);
    }
    for (size_t i = 0; i < contents.tensors.size(); ++i) {
      const auto& [name, tensor] = contents.tensors[i];
      const size_t begin = layout.offsets[i];
      add(name,
          {{"dtype", check_saveable(tensor, where).safetensors},
           {"shape", tensor.sizes().vec()},
           {"data_offsets", {begin, begin + tensor.nbytes()}}});
    }
  } catch (const Json::type_error&) {
    TESSERA_CHECK_VALUE(
        false,
        "{}: names and metadata must be UTF-8. Encode them as UTF-8.",
        where);
  }
  std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
  header.append((8 - header.size() % 8) % 8, ' ');
  TESSERA_CHECK_VALUE(
      header.size() <= kMaxHeader,
      "{}: the header must have at most {} bytes, but the names and metadata need {}. Save the tensors in several files.",
      where,
      kMaxHeader,
      header.size());
  return header;
}

}  // namespace

at::Tensor NamedTensors::operator[](const std::string& name) const {
  constexpr size_t kMaxListed = 10;
  std::vector<std::string> known;
  for (const auto& [candidate, tensor] : tensors) {
    if (candidate == name) {
      return tensor;
    }
    if (known.size() < kMaxListed) {
      known.push_back(shorten(candidate));
    }
  }
  TESSERA_CHECK_VALUE(
      false,
      "[NamedTensors] there is no tensor '{}' among the {} tensors. Known: {}{}.",
      shorten(name),
      tensors.size(),
      join_names(known),
      known.size() < tensors.size() ? ", ..." : "");
}

void save_safetensors(const NamedTensors& contents, const std::string& path) {
  const std::string where = fmt::format("[save_safetensors] {}", path);
  std::unordered_set<std::string> names;
  for (const auto& [name, tensor] : contents.tensors) {
    TESSERA_CHECK_VALUE(
        name != kSafetensorsMetadata,
        "{}: names must differ from '{}', which the format reserves. Rename the tensor.",
        where,
        kSafetensorsMetadata);
    TESSERA_CHECK_VALUE(
        names.insert(name).second,
        "{}: names must differ, but got '{}' twice. Rename the tensor.",
        where,
        shorten(name));
    check_saveable(
        tensor, fmt::format("{}: tensor '{}'", where, shorten(name)));
  }
  const Layout layout = make_layout(contents);
  const std::string header = header_of(contents, layout, where);
  const uint64_t length = header.size();

  AtomicFile file(path, "[save_safetensors]");
  file.write(&length, kLengthSize);
  file.write(header.data(), header.size());
  for (const size_t i : layout.order) {
    write_elements(file, contents.tensors[i].second);
  }
  file.commit();
}

NamedTensors load_safetensors(const std::string& path) {
  const std::string where = fmt::format("[load_safetensors] {}", path);
  const auto file = std::make_shared<MappedFile>(path, "[load_safetensors]");
  TESSERA_CHECK_VALUE(
      file->size() >= kLengthSize,
      "{}: expected a safetensors file, but the file has only {} bytes. It is truncated.",
      where,
      file->size());
  uint64_t length = 0;
  std::memcpy(&length, file->data(), kLengthSize);
  TESSERA_CHECK_VALUE(
      length <= kMaxHeader && length <= file->size() - kLengthSize,
      "{}: the header must have at most {} bytes and end within the file of {} bytes, but its length is given as {}. The file is truncated, damaged or not of the safetensors format.",
      where,
      kMaxHeader,
      file->size(),
      length);
  const size_t data_offset = kLengthSize + length;
  SafetensorsHeader header =
      HeaderReader(file->text().substr(kLengthSize, length), where).read();
  check_cover(header.entries, file->size() - data_offset, where);

  NamedTensors contents{.metadata = std::move(header.metadata)};
  for (auto& entry : header.entries) {
    const TensorBytes location{
        .dtype = entry.dtype,
        .shape = std::move(entry.shape),
        .offset = data_offset + entry.begin};
    at::Tensor tensor = tensor_in(
        file,
        location,
        fmt::format("{}: tensor '{}'", where, shorten(entry.name)));
    contents.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  return contents;
}

}  // namespace tessera
