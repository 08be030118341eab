// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/sample_inputs.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <cstddef>
#include <utility>

namespace tessera::pt2 {

std::string sample_inputs_file(const std::vector<at::Tensor>& inputs) {
  std::vector<c10::IValue> tensors;
  for (const at::Tensor& input : inputs) {
    // A copy, because a part of a tensor would take the memory of the whole one along.
    tensors.emplace_back(input.detach().clone(at::MemoryFormat::Contiguous));
  }
  std::string code;
  torch::jit::Pickler pickler(
      [&](const char* data, size_t size) { code.append(data, size); },
      /*tensor_table=*/nullptr,
      /*type_renamer=*/nullptr,
      /*memoized_class_types=*/nullptr,
      /*get_tensor_id=*/nullptr,
      /*tag_aggregates=*/false);  // torch.load refuses the tag of a dict
  pickler.protocol();
  pickler.startTuple();
  pickler.pushIValue(c10::ivalue::Tuple::create(std::move(tensors)));
  pickler.pushDict(c10::Dict<std::string, at::Tensor>());
  pickler.endTuple();
  pickler.stop();

  std::string file;
  caffe2::serialize::PyTorchStreamWriter writer(
      [&](const void* data, size_t size) {
        file.append(static_cast<const char*>(data), size);
        return size;
      });
  writer.writeRecord("data.pkl", code.data(), code.size());
  writer.writeRecord("byteorder", "little", 6);
  size_t record = 0;
  for (const at::Tensor& tensor : pickler.tensorData()) {
    writer.writeRecord(
        fmt::format("data/{}", record++),
        tensor.const_data_ptr(),
        tensor.nbytes());
  }
  writer.writeEndOfFile();
  return file;
}

}  // namespace tessera::pt2
