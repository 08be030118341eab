// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/json_text.h>
#include <tessera/common/shorten.h>
#include <tessera/formats/npy.h>

#include "packages/formats/src/tensor_bytes.h"
#include "src/common/check.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
// The dict in the header is read here, because Debian 12's libraries do not fit: xtensor
// reads into arrays of its own, and cnpy allocates the size in the header without a check.

// NumPy begins the array's data at a multiple of this.
constexpr size_t kAlignment = 64;

struct Header {
  std::string descr = {};
  bool fortran_order = false;
  std::vector<int64_t> shape = {};
};

// Turns the Python dict that NumPy writes into JSON:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
std::string json_of(std::string_view dict) {
  std::string json;
  for (size_t i = 0; i < dict.size(); ++i) {
    const char c = dict[i];
    const size_t next =
        c == ',' ? dict.find_first_not_of(" \n", i + 1) : std::string::npos;
    const bool is_last_comma =
        next != std::string::npos && (dict[next] == ')' || dict[next] == '}');
    // NumPy on Python 2 wrote some numbers as 2L.
    const bool is_long =
        c == 'L' && i > 0 && dict[i - 1] >= '0' && dict[i - 1] <= '9';
    if (!is_last_comma && !is_long) {
      json += c == '\'' ? '"'
          : c == '('    ? '['
          : c == ')'    ? ']'
          : c == 'T'    ? 't'
          : c == 'F'    ? 'f'
                        : c;
    }
  }
  return json;
}

Header read_header(std::string_view text, const std::string& where) {
  // The levels are the header, and the fields of a structured array.
  const Json json = parse_json(
      json_of(text), where + ": header:", {.depth = 3, .list_size = kMaxRank});
  const bool has_keys = json.is_object() && json.size() == 3 &&
      json.contains("descr") && json.contains("fortran_order") &&
      json.contains("shape");
  TESSERA_CHECK_VALUE(
      !has_keys || !json["descr"].is_array(),
      "{}: structured arrays can't be read. Save each field as a plain array.",
      where);
  TESSERA_CHECK_VALUE(
      has_keys && json["descr"].is_string() &&
          json["fortran_order"].is_boolean() && is_list_of_sizes(json["shape"]),
      "{}: the header must have descr, fortran_order and a shape of sizes >= 0, but is {}. The file is damaged or not a .npy file.",
      where,
      shorten(json.dump()));
  return {
      .descr = json["descr"].get<std::string>(),
      .fortran_order = json["fortran_order"].get<bool>(),
      .shape = json["shape"].get<std::vector<int64_t>>()};
}

at::ScalarType dtype_of(const std::string& descr, const std::string& where) {
  const std::string kind = descr.empty() ? "" : descr.substr(1);
  for (const FileDtype& entry : file_dtypes()) {
    if (entry.npy == nullptr || kind != entry.npy + 1) {
      continue;
    }
    const bool is_byte = c10::elementSize(entry.dtype) == 1;
    TESSERA_CHECK_VALUE(
        is_byte || descr[0] != '>',
        "{}: expected little endian, but the dtype is '{}'. In Python, save array.astype('<{}').",
        where,
        descr,
        kind);
    if (descr[0] == '<' || (is_byte && descr[0] == '|')) {
      return entry.dtype;
    }
  }
  C10_THROW_ERROR(
      ValueError,
      fmt::format(
          "{}: dtype must be one of float16, float32, float64, int8, int16, int32, int64, uint8, bool, but got '{}'. In Python, convert the array with array.astype(...). Save bfloat16 with safetensors instead.",
          where,
          descr));
}

// The header's text, and where the data begins.
struct Preamble {
  std::string_view header = {};
  size_t data_offset = 0;
};

Preamble preamble_of(std::string_view file, const std::string& where) {
  TESSERA_CHECK_VALUE(
      file.substr(0, kMagic.size()) == kMagic,
      "{}: expected a .npy file, but this file does not begin like one{}. In Python, write it with numpy.save().",
      where,
      file.empty() ? " (it is empty)" : "");
  constexpr size_t kVersionEnd = 8;
  const auto byte = [&](size_t i) {
    return i < file.size() ? static_cast<unsigned char>(file[i]) : 0U;
  };
  const unsigned version = byte(6);
  TESSERA_CHECK_VALUE(
      file.size() < kVersionEnd ||
          (version >= 1 && version <= 3 && byte(7) == 0),
      "{}: version must be 1.0, 2.0 or 3.0, but got {}.{}. In Python, write the file with numpy.save().",
      where,
      version,
      byte(7));
  const size_t length_size = version == 1 ? 2 : 4;
  size_t length = 0;
  for (size_t i = 0; i < length_size; ++i) {
    length |= static_cast<size_t>(byte(kVersionEnd + i)) << (8 * i);
  }
  const size_t begin = kVersionEnd + length_size;
  TESSERA_CHECK_VALUE(
      file.size() >= begin && length <= file.size() - begin,
      "{}: the header must end within the file, which has {} bytes, but it is longer. The file is truncated or damaged.",
      where,
      file.size());
  return {file.substr(begin, length), begin + length};
}

}  // namespace

void save_npy(const at::Tensor& tensor, const std::string& path) {
  const std::string where = fmt::format("[save_npy] {}", path);
  const FileDtype& dtype = check_saveable(tensor, where);
  TESSERA_CHECK_TYPE(
      dtype.npy != nullptr,
      "{}: NumPy has no dtype {}. Use save_safetensors(), or convert the tensor with to(at::kFloat).",
      where,
      c10::toString(dtype.dtype));
  // Python prints tuples as (), (3,), (3, 4).
  std::string header = fmt::format(
      "{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}",
      dtype.npy,
      fmt::join(tensor.sizes(), ", "),
      tensor.dim() == 1 ? "," : "");
  constexpr size_t kHeaderBegin = 10;
  const size_t unpadded = kHeaderBegin + header.size() + 1;
  header.append((kAlignment - unpadded % kAlignment) % kAlignment, ' ');
  header += '\n';
  const std::array<char, 4> version_and_length{
      1,
      0,
      static_cast<char>(header.size() & 0xFF),
      static_cast<char>(header.size() >> 8)};

  AtomicFile file(path, "[save_npy]");
  file.write(kMagic.data(), kMagic.size());
  file.write(version_and_length.data(), version_and_length.size());
  file.write(header.data(), header.size());
  write_elements(file, tensor);
  file.commit();
}

at::Tensor load_npy(const std::string& path) {
  const std::string where = fmt::format("[load_npy] {}", path);
  const auto file = std::make_shared<MappedFile>(path, "[load_npy]");
  const Preamble preamble = preamble_of(file->text(), where);
  const Header header = read_header(preamble.header, where);
  const TensorBytes location{
      .dtype = dtype_of(header.descr, where),
      .shape = header.shape,
      .is_fortran_order = header.fortran_order,
      .offset = preamble.data_offset};
  const std::optional<size_t> expected =
      num_bytes(location.shape, location.dtype);
  const size_t bytes = file->size() - preamble.data_offset;
  TESSERA_CHECK_VALUE(
      expected == bytes,
      "{}: shape {} of {} needs {} bytes of data, but the file has {}. It is truncated, damaged, or holds several arrays.",
      where,
      at::IntArrayRef(location.shape),
      c10::toString(location.dtype),
      expected ? std::to_string(*expected) : "more than 2^63",
      bytes);
  return tensor_in(file, location, where);
}

}  // namespace tessera
