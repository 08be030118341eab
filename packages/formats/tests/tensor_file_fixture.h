// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/formats/npy.h>
#include <tessera/formats/safetensors.h>

#include "tests/temporary_folder.h"
#include "tests/test_files.h"
#include "tests/test_util.h"

namespace tessera::test {

inline const std::map<std::string, at::ScalarType> kDtypes{
    {"float32", at::kFloat},
    {"float64", at::kDouble},
    {"float16", at::kHalf},
    {"bfloat16", at::kBFloat16},
    {"int8", at::kChar},
    {"int16", at::kShort},
    {"int32", at::kInt},
    {"int64", at::kLong},
    {"uint8", at::kByte},
    {"bool", at::kBool}};

/// The values of counting() in make_tensor_files.py.
inline at::Tensor counting(at::ScalarType dtype, at::IntArrayRef shape) {
  const at::Tensor values =
      at::arange(c10::multiply_integers(shape), at::kLong).view(shape);
  if (dtype == at::kBool) {
    return values.remainder(2).to(at::kBool);
  }
  return (dtype == at::kByte ? values : values - 2).to(dtype);
}

inline void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_TRUE(at::equal(actual, expected)) << actual << "\n" << expected;
}

inline bool is_aligned(const at::Tensor& tensor) {
  const auto address = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  return address % tensor.element_size() == 0;
}

/// A file that NumPy or safetensors wrote.
inline std::string python_file(const std::string& name) {
  return test_file("../packages/formats/tests/tensor_files/" + name);
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  // On ext4 it takes longer to truncate a file than to make a new one.
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Gives each test its own folder.
class TensorFileTest : public testing::Test {
 protected:
  std::string path(const std::string& name) const {
    return folder_ / name;
  }

  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry :
         std::filesystem::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  // Writes `bytes` to a file. Returns the error message of `load`, or "no error".
  std::string load_error(
      const std::string& bytes,
      const std::function<void(const std::string&)>& load) const {
    const std::string file = path("damaged");
    write_bytes(file, bytes);
    try {
      load(file);
    } catch (const c10::ValueError& error) {
      std::string message = error.what_without_backtrace();
      EXPECT_CONTAINS(message, file);
      return message;
    }
    return "no error";
  }

  // Expects that `load` refuses each file with the text of the row.
  void expect_load_errors(
      const std::vector<Refusal<std::string>>& files,
      const std::function<void(const std::string&)>& load) const {
    for (const Refusal<std::string>& file : files) {
      EXPECT_CONTAINS(load_error(file.input, load), file.text);
    }
  }

  const TemporaryFolder folder_;
};

/// Visits copies of `bytes` in which one byte of [0, end) has a flipped bit, or is replaced
/// by one of some characters. A copy equals `bytes` if the byte is that character already.
inline void for_each_corruption(
    const std::string& bytes,
    size_t end,
    const std::function<void(const std::string&)>& visit) {
  for (size_t i = 0; i < end; ++i) {
    std::string damaged = bytes;
    for (int bit = 0; bit < 8; ++bit) {
      damaged[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      visit(damaged);
    }
    for (const char replacement :
         {'\0', '\xFF', ' ', '9', '-', '"', '{', ']'}) {
      damaged[i] = replacement;
      visit(damaged);
    }
  }
}

}  // namespace tessera::test
