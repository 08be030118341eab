// SPDX-License-Identifier: Apache-2.0
#include "packages/formats/tests/tensor_file_fixture.h"
#include "tests/small_files.h"

#include <sys/stat.h>

namespace tessera::npy_test {

std::string npy_bytes(
    const std::string& header,
    const std::string& data,
    char version = 1) {
  std::string bytes("\x93NUMPY");
  bytes += {version, '\0', static_cast<char>(header.size() & 0xFF)};
  bytes += static_cast<char>(header.size() >> 8);
  bytes += version > 1 ? std::string(2, '\0') : "";
  return bytes + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape +
      ", }\n";
}

class NpyTest : public TensorFileTest {
 protected:
  at::Tensor round_trip(const at::Tensor& tensor) const {
    save_npy(tensor, path("tensor.npy"));
    return load_npy(path("tensor.npy"));
  }
  std::string error_of(const std::string& bytes) const {
    return load_error(bytes, [](const std::string& path) { load_npy(path); });
  }
};

TEST_F(NpyTest, RoundTripsEveryDtypeAndShape) {
  for (const auto& [name, dtype] : kDtypes) {
    if (dtype == at::kBFloat16) {
      continue;
    }
    for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
             {}, {0}, {1}, {5}, {4, 3}, {0, 7}, {3, 0, 2}, {2, 1, 3, 2}}) {
      SCOPED_TRACE(name);
      const at::Tensor tensor = counting(dtype, shape);
      expect_same(round_trip(tensor), tensor);
    }
  }
}

TEST_F(NpyTest, ReadsFilesOfNumpy) {
  for (const auto& [name, dtype] : kDtypes) {
    if (dtype != at::kBFloat16) {
      SCOPED_TRACE(name);
      expect_same(
          load_npy(python_file(name + ".npy")), counting(dtype, {2, 3}));
    }
  }
  const auto expect_file = [](const char* name, at::IntArrayRef shape) {
    SCOPED_TRACE(name);
    expect_same(load_npy(python_file(name)), counting(at::kFloat, shape));
  };
  expect_file("version_2.npy", {2, 3});
  expect_file("version_3.npy", {2, 3});
  expect_file("scalar.npy", {});
  expect_file("vector.npy", {5});
  expect_file("empty.npy", {0, 4});
  expect_file("fortran.npy", {2, 3, 4});
  EXPECT_EQ(load_npy(python_file("fortran.npy")).strides()[0], 1);
}

// NumPy 1.16 on Python 2 wrote these headers.
TEST_F(NpyTest, ReadsTheLongIntegersOfPython2) {
  const std::string data(24, '\0');
  const auto load = [&](const std::string& shape) {
    write_bytes(path("old.npy"), npy_bytes(header_of("'<f4'", shape), data));
    return load_npy(path("old.npy")).sizes().vec();
  };
  EXPECT_EQ(load("(6L,)"), std::vector<int64_t>{6});
  EXPECT_EQ(load("(2L, 3L)"), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(load("(2, 3L, 1L)"), (std::vector<int64_t>{2, 3, 1}));
  for (const char* shape : {"(6L)", "(6LL,)", "(L,)", "(6l,)", "(6L"}) {
    EXPECT_VALUE_ERROR(load(shape), "at byte ");
  }
}

TEST_F(NpyTest, WritesTheBytesThatNumpyWrites) {
  // NumPy leaves room in the header for a larger first dimension. With so few rows,
  // the header still has the same length.
  save_npy(counting(at::kFloat, {2, 3}), path("float32.npy"));
  EXPECT_EQ(
      read_text(path("float32.npy")), read_text(python_file("float32.npy")));
}

TEST_F(NpyTest, WritesOnlyTheElementsOfAView) {
  const at::Tensor big = counting(at::kFloat, {1000, 8});
  const at::Tensor rows = big.slice(0, 500, 502);
  expect_same(round_trip(rows), rows);
  EXPECT_EQ(std::filesystem::file_size(path("tensor.npy")), 128 + 2 * 8 * 4);
  for (const at::Tensor& view :
       {big.t(),
        big.slice(0, 0, 1000, 3),
        big.select(1, 2),
        big.slice(1, 1, 4),
        big.slice(0, 0, 1).expand({4, 8}),
        at::_neg_view(big),
        at::_neg_view(big.select(0, 3).select(0, 3))}) {
    expect_same(round_trip(view), view.clone());
  }
  // This is more than what is copied at once.
  const at::Tensor wide = counting(at::kInt, {2500, 2000});
  expect_same(round_trip(wide.t()), wide.t());
  expect_same(round_trip(at::ones({2}).requires_grad_()), at::ones({2}));
}

TEST_F(NpyTest, WritingToALoadedTensorDoesNotChangeTheFile) {
  const at::Tensor tensor = counting(at::kFloat, {4, 3});
  const at::Tensor first = round_trip(tensor);
  const std::string before = read_text(path("tensor.npy"));
  const at::Tensor second = load_npy(path("tensor.npy"));
  first.fill_(9);
  EXPECT_EQ(read_text(path("tensor.npy")), before);
  expect_same(second, tensor);
  expect_same(first, at::full({4, 3}, 9.0F));
}

TEST_F(NpyTest, UnmapsTheFileWithItsLastView) {
  const auto is_mapped = [&]() {
    const std::string file = std::filesystem::canonical(path("tensor.npy"));
    return read_text("/proc/self/maps").find(file) != std::string::npos;
  };
  at::Tensor view = round_trip(counting(at::kFloat, {4, 3})).slice(0, 1, 2);
  EXPECT_TRUE(is_mapped());
  EXPECT_EQ(view.sum().item<float>(), 2 - 1 + 3 + 2);  // rows begin with -2
  view = at::Tensor();
  EXPECT_FALSE(is_mapped());
}

TEST_F(NpyTest, ReplacingTheFileDoesNotChangeLoadedTensors) {
  const at::Tensor old = round_trip(counting(at::kFloat, {4, 3}));
  save_npy(old + 1, path("tensor.npy"));
  expect_same(old, counting(at::kFloat, {4, 3}));
  expect_same(load_npy(path("tensor.npy")), old + 1);
  std::filesystem::remove(path("tensor.npy"));
  expect_same(old, counting(at::kFloat, {4, 3}));
}

TEST_F(NpyTest, CopiesUnalignedData) {
  std::string header = header_of("'<f4'", "(3,)");
  header.insert(header.size() - 1, (1 + 4 - (10 + header.size()) % 4) % 4, ' ');
  ASSERT_EQ((10 + header.size()) % 4, 1);
  const at::Tensor values = floats({1, 2, 3});
  const std::string data(static_cast<const char*>(values.const_data_ptr()), 12);
  write_bytes(path("odd.npy"), npy_bytes(header, data));
  const at::Tensor loaded = load_npy(path("odd.npy"));
  expect_same(loaded, values);
  EXPECT_TRUE(is_aligned(loaded));
}

TEST_F(NpyTest, RefusesFilesThatItCannotRead) {
  expect_refusals<std::string>(
      {{"big_endian.npy",
        "big_endian.npy: expected little endian, but the dtype is '>f4'. In "
        "Python, save array.astype('<f4')."},
       {"structured.npy", "structured arrays can't be read"},
       {"object.npy", "but got '|O'"},
       {"text.npy", "but got '<U1'"},
       {"bfloat16.npy", "Save bfloat16 with safetensors instead"},
       {"all.safetensors", "expected a .npy file, but this file does not"}},
      [](const std::string& name) { load_npy(python_file(name)); });
  EXPECT_TORCH_ERROR(
      load_npy(path("none.npy")),
      "none.npy: the file can't be read: No such file or directory. Correct "
      "the path.");
  EXPECT_VALUE_ERROR(
      load_npy(folder_.path()), ": expected a file, but this is a");
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_VALUE_ERROR(load_npy(path("pipe")), "expected a file, but this is a");
  EXPECT_CONTAINS(error_of(""), "(it is empty)");
}

TEST_F(NpyTest, RefusesHeadersThatNumpyDoesNotWrite) {
  const std::string data(12, '\0');
  const std::string good = header_of("'<f4'", "(3,)");
  ASSERT_EQ(error_of(npy_bytes(good, data)), "no error");
  ASSERT_EQ(error_of(npy_bytes(good, data, 3)), "no error");
  std::vector<Refusal<std::string>> files{
      {npy_bytes(good, data, 4), "but got 4.0"},
      {npy_bytes(good, data + "x"), "the file has 13"},
      {npy_bytes(header_of("'|b1'", "(3,)"), std::string("\0\1\2", 3)),
       "bools must be 0 or 1, but element 2 is 2"}};
  const std::string order = "'fortran_order': False, ";
  for (const auto& [header, text] : std::vector<Refusal<std::string>>{
           {"", "expected '{'"},
           {"{", "a quoted string"},
           {"{}", "keys descr, fortran_order and shape"},
           {"{'descr': '<f4', " + order + "}", "each once"},
           {"{'descr': '<f4', 'descr': '<f4', 'shape': (3,)}", "each once"},
           {"{'descr': '<f4', " + order + order + "'shape': (3,)}",
            "expected '}'"},
           {"{'descr': '<f4}", "a string that ends"},
           {"{'de\\x73cr': '<f4'}", "a string without '\\'"},
           {"{'descr' '<f4'}", "expected ':'"},
           {"{'descr': '<f4' 'shape': ()}", "',' or '}'"},
           {"{'fortran_order': 1}", "True or False"},
           {good + "x", "the end of the header"},
           {good + std::string(1, '\0'), "the end of the header"},
           {header_of("''", "(3,)"), "but got ''"},
           {header_of("'='", "(3,)"), "but got '='"},
           {header_of("'<f3'", "(3,)"), "but got '<f3'"}}) {
    files.push_back({npy_bytes(header, data), text});
  }
  std::string deep = "(";
  for (int i = 0; i < 65; ++i) {
    deep += "1,";
  }
  for (const auto& [shape, text] : std::vector<Refusal<std::string>>{
           {"3", "expected '('"},
           {"(3)", "',' or ')'"},
           {"(3,", "a dimension that is not negative"},
           {"(-3,)", "a dimension that is not negative"},
           {"(3.0,)", "',' or ')'"},
           {"(9223372036854775808,)", "fits into an int64"},
           {"(9223372036854775807, 9)", "more than 2^63"},
           {"(0, 9223372036854775807, 9)", "more than 2^63"},
           {"(4611686018427387904, 4)", "more than 2^63"},
           {"(1000000000000,)", "needs 4000000000000"},
           {deep + ")", "at most 64 dimensions"}}) {
    files.push_back({npy_bytes(header_of("'<f4'", shape), data), text});
  }
  expect_load_errors(files, [](const std::string& path) { load_npy(path); });
}

TEST_F(NpyTest, EveryTruncationIsAnError) {
  const std::string bytes = read_text(python_file("float32.npy"));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of(bytes.substr(0, size)), "no error") << size;
  }
}

TEST_F(NpyTest, ADamagedHeaderIsAnErrorOrGivesTheSameSize) {
  const std::string bytes = read_text(python_file("float32.npy"));
  int errors = 0;
  int visited = 0;
  for_each_corruption(bytes, 128, [&](const std::string& damaged) {
    const std::string message =
        load_error(damaged, [](const std::string& path) {
          const at::Tensor tensor = load_npy(path);
          EXPECT_EQ(tensor.nbytes(), 24);
          EXPECT_EQ(tensor.clone().numel(), tensor.numel());
        });
    errors += message == "no error" ? 0 : 1;
    ++visited;
  });
  EXPECT_EQ(visited, 128 * 16);
  EXPECT_GT(errors, visited / 2);
}

TEST_F(NpyTest, RefusesTensorsThatAFileCannotHold) {
  const std::string file = path("tensor.npy");
  EXPECT_TYPE_ERROR(
      save_npy(at::ones({2}, at::kBFloat16), file),
      "NumPy has no dtype BFloat16. Use save_safetensors(), or convert the tensor");
  EXPECT_TYPE_ERROR(save_npy({}, file), "dense CPU tensor, but got no tensor");
  EXPECT_TYPE_ERROR(
      save_npy(at::ones({2, 2}).to_sparse(), file), "expected a dense CPU");
  EXPECT_TYPE_ERROR(
      save_npy(at::empty({2}, at::TensorOptions().device(at::kMeta)), file),
      "expected a dense CPU tensor");
  EXPECT_TYPE_ERROR(
      save_npy(at::ones({2}, at::kComplexFloat), file), "dtype must be one of");
  EXPECT_TYPE_ERROR(
      save_npy(at::ones(std::vector<int64_t>(65, 1)), file), "at most 64");
  EXPECT_TRUE(files().empty());
}

TEST_F(NpyTest, SavesOnlyToFiles) {
  const at::Tensor tensor = at::ones({2});
  EXPECT_VALUE_ERROR(
      save_npy(tensor, folder_.path()),
      "this is a folder. Choose another path.");
  EXPECT_VALUE_ERROR(
      save_npy(tensor, "/dev/null"), "/dev/null: expected the path of a file");
  EXPECT_TORCH_ERROR(
      save_npy(tensor, path("none/tensor.npy")),
      "can't be created: No such file or directory. Make its folder first");
  std::filesystem::create_symlink("nothing", path("link.npy"));
  EXPECT_VALUE_ERROR(
      save_npy(tensor, path("link.npy")),
      "a link to a path that does not exist");
  std::filesystem::remove(path("link.npy"));
  EXPECT_TRUE(files().empty());
}

TEST_F(NpyTest, KeepsPermissionsAndLinks) {
  save_npy(at::ones({2}), path("tensor.npy"));
  ASSERT_EQ(::chmod(path("tensor.npy").c_str(), 0600), 0);
  std::filesystem::create_symlink("tensor.npy", path("link.npy"));
  save_npy(at::ones({3}), path("link.npy"));
  EXPECT_TRUE(std::filesystem::is_symlink(path("link.npy")));
  EXPECT_EQ(load_npy(path("tensor.npy")).numel(), 3);
  struct stat status = {};
  ASSERT_EQ(::stat(path("tensor.npy").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600);
  EXPECT_EQ(files().size(), 2);
}

TEST_F(NpyTest, AFailedWriteKeepsTheOldFileAndLeavesNoOther) {
  const at::Tensor old = counting(at::kFloat, {4});
  save_npy(old, path("tensor.npy"));
  {
    const SmallFiles small(4096);
    EXPECT_TORCH_ERROR(
        save_npy(at::ones({10000}), path("tensor.npy")),
        "tensor.npy: the file can't be written: File too large. Choose a path where "
        "files may be larger.");
  }
  expect_same(load_npy(path("tensor.npy")), old);
  EXPECT_EQ(files(), Texts{"tensor.npy"});
}

}  // namespace tessera::npy_test
