// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/sample_inputs.h"

#include "src/common/check.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

namespace tessera::pt2 {

namespace {

// The name of the class by which a pickle refers to a tensor's elements.
const char* storage_class(at::ScalarType dtype) {
  struct StorageClass {
    at::ScalarType dtype;
    const char* name;
  };
  static constexpr std::array<StorageClass, 10> kClasses = {{
      {at::kByte, "ByteStorage"},
      {at::kChar, "CharStorage"},
      {at::kShort, "ShortStorage"},
      {at::kInt, "IntStorage"},
      {at::kLong, "LongStorage"},
      {at::kHalf, "HalfStorage"},
      {at::kFloat, "FloatStorage"},
      {at::kDouble, "DoubleStorage"},
      {at::kBool, "BoolStorage"},
      {at::kBFloat16, "BFloat16Storage"},
  }};
  const auto* const found = std::find_if(
      kClasses.begin(), kClasses.end(), [&](const StorageClass& candidate) {
        return candidate.dtype == dtype;
      });
  TESSERA_CHECK_VALUE(
      found != kClasses.end(),
      "[export_pt2] inputs must have float, integer or bool elements, but got {}. Convert the input.",
      c10::toString(dtype));
  return found->name;
}

// Writes the few opcodes of Python's pickle format, version 2, that a tuple of tensors
// needs.
class Pickle {
 public:
  Pickle() : bytes_("\x80\x02") {}

  void mark() {
    bytes_ += '(';
  }
  // Makes a tuple of all values since the last mark().
  void tuple() {
    bytes_ += 't';
  }
  void empty_dict() {
    bytes_ += '}';
  }
  void boolean(bool value) {
    bytes_ += value ? '\x88' : '\x89';
  }
  void integer(int64_t value) {
    bytes_ += "\x8a\x08";
    little_endian(static_cast<uint64_t>(value), 8);
  }
  void text(std::string_view value) {
    bytes_ += 'X';
    little_endian(value.size(), 4);
    bytes_ += value;
  }
  void global(std::string_view module, std::string_view name) {
    bytes_ += fmt::format("c{}\n{}\n", module, name);
  }
  // Calls the function below the tuple on top of the stack.
  void call() {
    bytes_ += 'R';
  }
  // Turns the tuple on top of the stack into a reference to a record.
  void reference() {
    bytes_ += 'Q';
  }
  std::string finish() {
    return bytes_ + ".";
  }

 private:
  void little_endian(uint64_t value, int count) {
    for (int i = 0; i < count; ++i) {
      bytes_ += static_cast<char>((value >> (8 * i)) & 0xff);
    }
  }

  std::string bytes_;
};

void add_integers(Pickle& pickle, at::IntArrayRef values) {
  pickle.mark();
  for (const int64_t value : values) {
    pickle.integer(value);
  }
  pickle.tuple();
}

// Adds a contiguous tensor whose elements are in the record `data/<record>`.
void add_tensor(Pickle& pickle, const at::Tensor& tensor, size_t record) {
  pickle.global("torch._utils", "_rebuild_tensor_v2");
  pickle.mark();
  pickle.mark();
  pickle.text("storage");
  pickle.global("torch", storage_class(tensor.scalar_type()));
  pickle.text(std::to_string(record));
  pickle.text("cpu");
  pickle.integer(tensor.numel());
  pickle.tuple();
  pickle.reference();
  pickle.integer(0);
  add_integers(pickle, tensor.sizes());
  add_integers(pickle, tensor.strides());
  pickle.boolean(false);  // requires_grad
  pickle.global("collections", "OrderedDict");
  pickle.mark();
  pickle.tuple();
  pickle.call();
  pickle.tuple();
  pickle.call();
}

}  // namespace

std::string sample_inputs_file(const std::vector<at::Tensor>& inputs) {
  Pickle pickle;
  pickle.mark();
  pickle.mark();
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& input : inputs) {
    tensors.push_back(input.detach().contiguous());
    add_tensor(pickle, tensors.back(), tensors.size() - 1);
  }
  pickle.tuple();
  pickle.empty_dict();
  pickle.tuple();

  std::string file;
  caffe2::serialize::PyTorchStreamWriter writer(
      [&](const void* data, size_t size) {
        file.append(static_cast<const char*>(data), size);
        return size;
      });
  const std::string code = pickle.finish();
  writer.writeRecord("data.pkl", code.data(), code.size());
  writer.writeRecord("byteorder", "little", 6);
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.writeRecord(
        fmt::format("data/{}", i),
        tensors[i].const_data_ptr(),
        tensors[i].nbytes());
  }
  writer.writeEndOfFile();
  return file;
}

}  // namespace tessera::pt2
