// SPDX-License-Identifier: Apache-2.0
#include <tessera/formats/safetensors.h>

#include <tessera/common/json.h>
#include <tessera/common/shorten.h>

#include "packages/formats/src/safetensors_header.h"
#include "packages/formats/src/tensor_bytes.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <unordered_set>

namespace tessera {

namespace {

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
  std::stable_sort(
      layout.order.begin(), layout.order.end(), [&](size_t a, size_t b) {
        return width(a) > width(b);
      });
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
    C10_THROW_ERROR(
        ValueError,
        where + ": names and metadata must be UTF-8. Encode them as UTF-8.");
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
  C10_THROW_ERROR(
      ValueError,
      fmt::format(
          "[NamedTensors] there is no tensor '{}' among the {} tensors. Known: {}{}.",
          shorten(name),
          tensors.size(),
          join_names(known),
          known.size() < tensors.size() ? ", ..." : ""));
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
  SafetensorsHeader header = read_safetensors_header(
      file->text().substr(kLengthSize, length),
      file->size() - data_offset,
      where);

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
