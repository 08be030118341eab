// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/shorten.h>
#include <tessera/formats/npy.h>

#include "packages/formats/src/tensor_bytes.h"
#include "src/common/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace tessera {

namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
// This file has its own reader, because Debian 12's libraries do not fit: xtensor reads
// into arrays of its own, and cnpy allocates the size in the header without a check.

// NumPy begins the array's data at a multiple of this number of bytes.
constexpr size_t kAlignment = 64;

struct Header {
  std::string descr = {};
  bool fortran_order = false;
  std::vector<int64_t> shape = {};
};

// Reads the Python dict that NumPy writes, but no other Python expressions:
//   {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& where)
      : text_(text), where_(where) {}

  Header parse() {
    Header header;
    std::vector<std::string> keys;
    expect(take('{'), "'{'");
    while (!take('}')) {
      expect(keys.size() < 3, "'}'");
      keys.push_back(quoted());
      expect(take(':'), "':'");
      if (keys.back() == "descr") {
        header.descr = descr();
      } else if (keys.back() == "fortran_order") {
        header.fortran_order = boolean();
      } else if (keys.back() == "shape") {
        header.shape = shape();
      }
      expect(take(',') || next() == '}', "',' or '}'");
    }
    next();
    expect(position_ == text_.size(), "the end of the header");
    std::ranges::sort(keys);
    TESSERA_CHECK_VALUE(
        (keys == std::vector<std::string>{"descr", "fortran_order", "shape"}),
        "{}: the header must have the keys descr, fortran_order and shape, each once, but got {}. The file is damaged or not a .npy file.",
        where_,
        shorten_all(keys));
    return header;
  }

 private:
  // Skips spaces and returns the next character, or '\0' at the end.
  char next() {
    const size_t found = text_.find_first_not_of(" \n", position_);
    position_ = found == std::string_view::npos ? text_.size() : found;
    return position_ < text_.size() ? text_[position_] : '\0';
  }

  bool take(char expected) {
    if (next() != expected) {
      return false;
    }
    ++position_;
    return true;
  }

  bool take(std::string_view word) {
    next();
    if (text_.substr(position_, word.size()) != word) {
      return false;
    }
    position_ += word.size();
    return true;
  }

  void expect(bool is_valid, const char* expected) const {
    TESSERA_CHECK_VALUE(
        is_valid,
        "{}: expected {} at byte {} of the header. The file is damaged or not a .npy file.",
        where_,
        expected,
        position_);
  }

  std::string quoted() {
    const char quote = next();
    expect(quote == '\'' || quote == '"', "a quoted string");
    const size_t end = text_.find(quote, position_ + 1);
    expect(end != std::string_view::npos, "a string that ends");
    const std::string_view string =
        text_.substr(position_ + 1, end - position_ - 1);
    expect(
        string.find('\\') == std::string_view::npos, "a string without '\\'");
    position_ = end + 1;
    return std::string(string);
  }

  std::string descr() {
    TESSERA_CHECK_VALUE(
        next() != '[',
        "{}: structured arrays can't be read. Save each field as a plain array.",
        where_);
    return quoted();
  }

  bool boolean() {
    const bool is_true = take("True");
    expect(is_true || take("False"), "True or False");
    return is_true;
  }

  std::vector<int64_t> shape() {
    std::vector<int64_t> lengths;
    expect(take('('), "'('");
    while (!take(')')) {
      lengths.push_back(length());
      // In Python, (3) is a number in parentheses, so a single length needs a comma.
      const bool has_comma = take(',');
      expect(has_comma || (next() == ')' && lengths.size() > 1), "',' or ')'");
      TESSERA_CHECK_VALUE(
          lengths.size() <= kMaxRank,
          "{}: expected at most {} dimensions, but got more. Reshape the array.",
          where_,
          kMaxRank);
    }
    return lengths;
  }

  int64_t length() {
    const char first = next();
    const char* begin = text_.data() + position_;
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(begin, text_.data() + text_.size(), value);
    expect(
        first != '-' && error == std::errc(),
        "a dimension that is not negative and fits into an int64");
    position_ += static_cast<size_t>(end - begin);
    // NumPy on Python 2 wrote some numbers as 2L.
    position_ += position_ < text_.size() && text_[position_] == 'L' ? 1 : 0;
    return value;
  }

  std::string_view text_;
  const std::string& where_;
  size_t position_ = 0;
};

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
  TESSERA_CHECK_VALUE(
      false,
      "{}: dtype must be one of float16, float32, float64, int8, int16, int32, int64, uint8, bool, but got '{}'. In Python, convert the array with array.astype(...). Save bfloat16 with safetensors instead.",
      where,
      descr);
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
  const Header header = HeaderParser(preamble.header, where).parse();
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
