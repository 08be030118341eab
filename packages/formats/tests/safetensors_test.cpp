// SPDX-License-Identifier: Apache-2.0
#include "packages/formats/tests/tensor_file_fixture.h"

namespace tessera::safetensors_test {

std::string safetensors_bytes(
    const std::string& header,
    const std::string& data = "") {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

std::string entry_of(
    const std::string& dtype,
    const std::string& shape,
    const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape +
      R"(,"data_offsets":)" + offsets + "}";
}

NamedTensors one_of_each() {
  NamedTensors contents{.metadata = {{"format", "pt"}, {"ключ", "\"\n"}}};
  for (const auto& [name, dtype] : kDtypes) {
    contents.tensors.emplace_back(name, counting(dtype, {3, 5}));
  }
  return contents;
}

void expect_same_contents(
    const NamedTensors& actual,
    const NamedTensors& expected) {
  EXPECT_EQ(actual.metadata, expected.metadata);
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size());
  for (size_t i = 0; i < actual.tensors.size(); ++i) {
    SCOPED_TRACE(expected.tensors[i].first);
    EXPECT_EQ(actual.tensors[i].first, expected.tensors[i].first);
    expect_same(actual.tensors[i].second, expected.tensors[i].second);
  }
}

class SafetensorsTest : public TensorFileTest {
 protected:
  NamedTensors round_trip(const NamedTensors& contents) const {
    save_safetensors(contents, path("all.safetensors"));
    return load_safetensors(path("all.safetensors"));
  }
  std::string error_of(const std::string& bytes) const {
    return load_error(
        bytes, [](const std::string& path) { load_safetensors(path); });
  }
};

TEST_F(SafetensorsTest, RoundTripsEveryDtypeInOrder) {
  const NamedTensors contents = one_of_each();
  const NamedTensors loaded = round_trip(contents);
  expect_same_contents(loaded, contents);
  expect_same(loaded["int16"], counting(at::kShort, {3, 5}));
  expect_same_contents(round_trip({}), {});
  expect_same_contents(
      round_trip({.metadata = {{"a", ""}}}), {.metadata = {{"a", ""}}});
}

TEST_F(SafetensorsTest, RoundTripsEveryShape) {
  NamedTensors contents;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {}, {0}, {1}, {5}, {4, 3}, {0, 7}, {3, 0, 2}, {2, 1, 3, 2}}) {
    const std::string name = fmt::format("t{}", contents.tensors.size());
    contents.tensors.emplace_back(name, counting(at::kHalf, shape));
  }
  expect_same_contents(round_trip(contents), contents);
}

TEST_F(SafetensorsTest, ReadsFilesOfThePythonPackage) {
  const NamedTensors loaded = load_safetensors(python_file("all.safetensors"));
  EXPECT_EQ(loaded.tensors.size(), kDtypes.size() + 2);
  for (const auto& [name, dtype] : kDtypes) {
    SCOPED_TRACE(name);
    expect_same(loaded[name], counting(dtype, {2, 3}));
  }
  expect_same(loaded["scalar"], counting(at::kFloat, {}));
  expect_same(loaded["empty"], counting(at::kFloat, {0, 4}));
  EXPECT_EQ(
      loaded.metadata,
      (std::map<std::string, std::string>{
          {"format", "np"}, {"ключ", "значение"}}));
  expect_same_contents(
      load_safetensors(python_file("none.safetensors")), NamedTensors{});
}

TEST_F(SafetensorsTest, AlignsEveryTensor) {
  const NamedTensors loaded = round_trip(
      {.tensors = {
           {"a", counting(at::kBool, {3})},
           {"b", counting(at::kDouble, {3})},
           {"c", counting(at::kByte, {5})},
           {"d", counting(at::kHalf, {1})},
           {"e", counting(at::kFloat, {7})}}});
  for (const auto& [name, tensor] : loaded.tensors) {
    EXPECT_TRUE(is_aligned(tensor)) << name;
  }
  const std::string bytes = read_text(path("all.safetensors"));
  EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);
  EXPECT_EQ(bytes.substr(8, 5), "{\"a\":");
  // The tensors are in one mapping: 24 bytes of b, 28 of e, 2 of d and 3 of a.
  const auto begin = [&](const char* name) {
    return static_cast<const char*>(loaded[name].const_data_ptr());
  };
  EXPECT_EQ(begin("e") - begin("b"), 24);
  EXPECT_EQ(begin("d") - begin("e"), 28);
  EXPECT_EQ(begin("a") - begin("d"), 2);
  EXPECT_EQ(begin("c") - begin("a"), 3);
}

TEST_F(SafetensorsTest, WritesOnlyTheElementsOfAView) {
  const at::Tensor big = counting(at::kFloat, {1000, 8});
  const NamedTensors loaded = round_trip(
      {.tensors = {
           {"rows", big.slice(0, 10, 12)},
           {"columns", big.t()},
           {"shared", big.slice(0, 10, 12)}}});
  expect_same(loaded["rows"], big.slice(0, 10, 12));
  expect_same(loaded["columns"], big.t());
  expect_same(loaded["shared"], big.slice(0, 10, 12));
  EXPECT_LT(
      std::filesystem::file_size(path("all.safetensors")),
      (8000 + 32) * 4 + 300);
}

TEST_F(SafetensorsTest, WritingToALoadedTensorDoesNotChangeTheFile) {
  const NamedTensors loaded = round_trip(one_of_each());
  const std::string before = read_text(path("all.safetensors"));
  for (const auto& [name, tensor] : loaded.tensors) {
    tensor.fill_(1);
  }
  EXPECT_EQ(read_text(path("all.safetensors")), before);
  expect_same_contents(
      load_safetensors(path("all.safetensors")), one_of_each());
  // Replaces the file that the tensors are views of.
  save_safetensors(loaded, path("all.safetensors"));
  expect_same(
      load_safetensors(path("all.safetensors"))["int32"],
      at::ones({3, 5}, at::kInt));
}

TEST_F(SafetensorsTest, OneTensorKeepsTheFileMapped) {
  const auto is_mapped = [&]() {
    const std::string file =
        std::filesystem::canonical(path("all.safetensors"));
    return read_text("/proc/self/maps").find(file) != std::string::npos;
  };
  at::Tensor tensor = round_trip(one_of_each())["int64"];
  EXPECT_TRUE(is_mapped());
  expect_same(tensor, counting(at::kLong, {3, 5}));
  tensor = at::Tensor();
  EXPECT_FALSE(is_mapped());
}

TEST_F(SafetensorsTest, CopiesUnalignedData) {
  std::string header = "{\"a\":" + entry_of("F32", "[2]", "[0,8]") + "}";
  header.append((1 + 4 - header.size() % 4) % 4, ' ');
  ASSERT_EQ(header.size() % 4, 1);
  const at::Tensor values = floats({1, 2});
  const std::string data(static_cast<const char*>(values.const_data_ptr()), 8);
  write_bytes(path("odd"), safetensors_bytes(header, data));
  const at::Tensor loaded = load_safetensors(path("odd"))["a"];
  expect_same(loaded, values);
  EXPECT_TRUE(is_aligned(loaded));
}

TEST_F(SafetensorsTest, RefusesDamagedHeaders) {
  const std::string data(8, '\0');
  const std::string good = entry_of("F32", "[2]", "[0,8]");
  const auto with_entry = [&](const std::string& entry) {
    return safetensors_bytes("{\"a\":" + entry + "}", data);
  };
  ASSERT_EQ(error_of(with_entry(good)), "no error");
  ASSERT_EQ(
      error_of(safetensors_bytes("{\"a\":" + good + "}   \n", data)),
      "no error");
  std::vector<Refusal<std::string>> files{
      {"", "the file has only 0 bytes"},
      {std::string(8, '\xFF'), "at most 100000000 bytes"},
      {std::string("\x09\0\0\0\0\0\0\0", 8) + "{}      ",
       "its length is given as 9"},
      {safetensors_bytes(
           "{\"a\":" + entry_of("BOOL", "[2]", "[0,2]") + "}", "\1\2"),
       "tensor 'a': bools must be 0 or 1, but element 1 is 2"}};
  for (const auto& [header, text] : std::vector<Refusal<std::string>>{
           {"", "not a JSON object"},
           {" {}", "not a JSON object"},
           {"[]", "not a JSON object"},
           {"{\"a\":" + good + "}" + std::string(1, '\0'),
            "header: expected JSON, but got a zero byte"},
           {"{", "unexpected end of input"},
           {"{} {}", "expected end of input"},
           {"{\"\xFF\": {}}", "ill-formed UTF-8 byte"},
           {"{}", "the tensors need 0 bytes"},
           {"{\"a\":" + good + ",\"a\":" + good + "}", "got the key 'a' twice"},
           {"{\"a\":" + good + ",\"\\u0061\":" + good + "}",
            "got the key 'a' twice"},
           {"{\"a\":" + good + ",\"b\":" + entry_of("F32", "[1]", "[4,8]") +
                "}",
            "tensor 'b' has the bytes [4, 8) of the data, but must begin at "
            "byte 8"},
           {R"({"__metadata__":1})", "'__metadata__' must be an object"},
           {R"({"__metadata__":{"a":1}})", "must be strings, but 'a' has 1"},
           {R"({"__metadata__":{"a":[]}})", "must be strings, but 'a' has []"},
           {R"({"__metadata__":{},"__metadata__":{}})",
            "the key '__metadata__' twice"},
           {R"({"__metadata__":{"b":"1","b":"2"}})", "the key 'b' twice"}}) {
    files.push_back({safetensors_bytes(header, data), text});
  }
  std::string ones = "1";
  for (int i = 0; i < 64; ++i) {
    ones += ",1";
  }
  for (const auto& [entry, text] : std::vector<Refusal<std::string>>{
           {"1", "'a' must be an object"},
           {"null", "'a' must be an object"},
           {"[]", "'a' must be an object"},
           {"{}", "expected dtype, shape and"},
           {R"({"b":{}})", "expected dtype, shape and"},
           {R"({"b":[[]]})", "at most 3 levels deep"},
           {R"({"b":[{}]})", "at most 3 levels deep"},
           {R"({"x":1,)" + good.substr(1), "and nothing else"},
           {R"({"dtype":"F64",)" + good.substr(1), "got the key 'dtype' twice"},
           {entry_of("F4", "[2]", "[0,8]"),
            "tensor 'a': dtype must be one of F32, F64, F16, BF16, I8, I16, "
            "I32, I64, U8, BOOL, but got \"F4\""},
           {entry_of("F32", "[" + ones + "]", "[0,8]"),
            "expected lists of at most 64 values"},
           {entry_of("F32", "[2]", "[8,0]"),
            "needs 8 bytes, but data_offsets are [8, 0]"},
           {entry_of("F32", "[3]", "[0,8]"), "needs 12 bytes"},
           {entry_of("F32", "[4611686018427387904,4]", "[0,8]"),
            "needs more than 2^63 bytes"},
           {entry_of("F32", "[0,9223372036854775807,9]", "[0,0]"),
            "needs more than 2^63 bytes"},
           {entry_of("F32", "[2]", "[4,12]"),
            "tensor 'a' has the bytes [4, 12) of the data, but must begin at "
            "byte 0 and end within the 8 bytes of data"},
           {entry_of("F32", "[3]", "[0,12]"), "[0, 12) of the data"},
           {entry_of("F32", "[1]", "[0,4]"),
            "the tensors need 4 bytes of data, but the file has 8"}}) {
    files.push_back({with_entry(entry), text});
  }
  for (const std::string shape :
       {"[-1]", "[2.0]", "[1e0]", "2", "[\"2\"]", "[9223372036854775808]"}) {
    files.push_back(
        {with_entry(entry_of("F32", shape, "[0,8]")), "shape must be a"});
  }
  for (const std::string offsets :
       {"[0]", "[0,8,8]", "[-0,8]", "8", "[0.0,8]", "[0,null]"}) {
    files.push_back(
        {with_entry(entry_of("F32", "[2]", offsets)),
         "data_offsets must be two numbers >= 0, but got "});
  }
  expect_load_errors(
      files, [](const std::string& path) { load_safetensors(path); });
}

TEST_F(SafetensorsTest, RefusesFilesThatItCannotRead) {
  EXPECT_VALUE_ERROR(
      load_safetensors(python_file("uint32.safetensors")),
      "but got \"U32\". Convert the tensor where the file was written.");
  EXPECT_VALUE_ERROR(
      load_safetensors(python_file("float32.npy")), "its length is given as");
  EXPECT_TORCH_ERROR(load_safetensors(path("none")), "can't be read: No such");
  EXPECT_VALUE_ERROR(
      round_trip(
          {.tensors = {{"a", at::ones({1})}, {"b", at::ones({1})}}})["c"],
      "[NamedTensors] there is no tensor 'c' among the 2 tensors. Known: a, b.");
}

TEST_F(SafetensorsTest, ManyTensorsAreReadInLinearTime) {
  NamedTensors contents;
  for (int i = 0; i < 20000; ++i) {
    contents.tensors.emplace_back(fmt::format("t{}", i), at::full({1}, i));
  }
  const NamedTensors loaded = round_trip(contents);
  ASSERT_EQ(loaded.tensors.size(), contents.tensors.size());
  EXPECT_EQ(loaded.tensors.back().second.item<int64_t>(), 19999);
}

TEST_F(SafetensorsTest, EveryTruncationIsAnError) {
  const std::string bytes = read_text(python_file("all.safetensors"));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_NE(error_of(bytes.substr(0, size)), "no error") << size;
  }
}

TEST_F(SafetensorsTest, ADamagedHeaderIsAnErrorOrCoversTheData) {
  save_safetensors(
      {.tensors =
           {{"a", counting(at::kFloat, {2, 3})},
            {"b", counting(at::kBool, {3})},
            {"empty", counting(at::kHalf, {0, 2})}},
       .metadata = {{"format", "pt"}}},
      path("small"));
  const std::string bytes = read_text(path("small"));
  int errors = 0;
  int visited = 0;
  for_each_corruption(
      bytes, bytes.size() - 27, [&](const std::string& damaged) {
        const std::string message =
            load_error(damaged, [](const std::string& path) {
              size_t size = 0;
              for (const auto& entry : load_safetensors(path).tensors) {
                size += entry.second.clone().nbytes();
              }
              EXPECT_EQ(size, 27);
            });
        errors += message == "no error" ? 0 : 1;
        ++visited;
      });
  EXPECT_GT(visited, 3000);
  EXPECT_GT(errors, visited / 2);
}

TEST_F(SafetensorsTest, RefusesContentsThatAFileCannotHold) {
  const auto save = [&](const NamedTensors& contents) {
    save_safetensors(contents, path("all.safetensors"));
  };
  const at::Tensor tensor = at::ones({2});
  EXPECT_VALUE_ERROR(
      save({.tensors = {{"a", tensor}, {"a", tensor}}}), "but got 'a' twice");
  EXPECT_VALUE_ERROR(
      save({.tensors = {{"__metadata__", tensor}}}),
      "names must differ from '__metadata__'");
  EXPECT_VALUE_ERROR(
      save({.tensors = {{"\xFF", tensor}}}),
      "names and metadata must be UTF-8");
  EXPECT_VALUE_ERROR(save({.metadata = {{"a", "\xFF"}}}), "must be UTF-8");
  std::string huge;
  huge.resize(100'000'000, 'x');
  EXPECT_VALUE_ERROR(
      save({.metadata = {{"a", huge}}}),
      "the header must have at most 100000000 bytes");
  EXPECT_TYPE_ERROR(
      save({.tensors = {{"a", tensor}, {"b", {}}}}),
      "tensor 'b': expected a dense CPU tensor, but got no tensor");
  EXPECT_TYPE_ERROR(
      save({.tensors = {{"a", tensor.to(at::kComplexDouble)}}}),
      "tensor 'a': dtype must be one of");
  EXPECT_TRUE(files().empty());
}

// tests/test_tensor_files.py runs this test and reads its files.
TEST(TensorFilesForPython, Write) {
  const char* folder = std::getenv("TESSERA_TENSOR_FILES_OUT");
  if (folder == nullptr) {
    GTEST_SKIP() << "only when TESSERA_TENSOR_FILES_OUT names a folder";
  }
  const std::string prefix = std::string(folder) + "/";
  NamedTensors contents = one_of_each();
  for (const auto& [name, tensor] : contents.tensors) {
    if (name != "bfloat16") {
      save_npy(tensor, prefix + name + ".npy");
    }
  }
  const at::Tensor vector = counting(at::kFloat, {5});
  const at::Tensor transposed = counting(at::kFloat, {5, 3}).t();
  save_npy(vector, prefix + "vector.npy");
  save_npy(transposed, prefix + "transposed.npy");
  save_npy(counting(at::kFloat, {}), prefix + "scalar.npy");
  save_npy(counting(at::kFloat, {0, 4}), prefix + "empty.npy");
  contents.tensors.emplace_back("vector", vector);
  contents.tensors.emplace_back("transposed", transposed);
  contents.tensors.emplace_back("scalar", counting(at::kFloat, {}));
  contents.tensors.emplace_back("empty", counting(at::kFloat, {0, 4}));
  save_safetensors(contents, prefix + "all.safetensors");
  save_safetensors({}, prefix + "none.safetensors");
}

}  // namespace tessera::safetensors_test
