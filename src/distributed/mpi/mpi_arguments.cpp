// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/mpi/mpi_arguments.h"

#include <c10/util/StringUtil.h>

#include <functional>

#include "src/common/check.h"

namespace tessera::distributed {

void check_tensor(
    const at::Tensor& tensor,
    const std::string& name,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      tensor.defined(),
      "{} expected {} to be a tensor, but got an undefined one. Make it first, with no elements where there are none.",
      where,
      name);
  TESSERA_CHECK_TYPE(
      tensor.device().is_cpu(),
      "{} expected {} on the CPU, but got one on {}. Pass tensor.cpu().",
      where,
      name,
      tensor.device());
  TESSERA_CHECK_TYPE(
      tensor.layout() == at::kStrided,
      "{} expected {} with strided layout, but got {}. Pass tensor.to_dense().",
      where,
      name,
      tensor.layout());
  TESSERA_CHECK_VALUE(
      tensor.is_contiguous(),
      "{} expected {} to be contiguous, but got sizes {} with strides {}. Pass tensor.contiguous().",
      where,
      name,
      tensor.sizes(),
      tensor.strides());
}

void check_same_dtype(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::string& where) {
  TESSERA_CHECK_TYPE(
      output.scalar_type() == input.scalar_type(),
      "{} expected outputs and inputs of one dtype, but got {} and {}. Convert one of them.",
      where,
      output.scalar_type(),
      input.scalar_type());
}

void check_count(
    size_t count,
    int64_t expected,
    const std::string& name,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      static_cast<int64_t>(count) == expected,
      "{} expected {} {}, but got {}.",
      where,
      expected,
      name,
      count);
}

Part part_to_read(const at::Tensor& tensor) {
  // One type for both directions; nobody writes here.
  return {
      static_cast<char*>(const_cast<void*>(tensor.const_data_ptr())),
      static_cast<int64_t>(tensor.nbytes())};
}

Part part_to_write(const at::Tensor& tensor) {
  return {
      static_cast<char*>(tensor.mutable_data_ptr()),
      static_cast<int64_t>(tensor.nbytes())};
}

std::vector<Part> split_parts(
    Part whole,
    const at::Tensor& tensor,
    const std::vector<int64_t>& splits,
    int num_ranks,
    const std::string& name,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      tensor.dim() >= 1,
      "{} expected {} with at least one dimension, but got a scalar. Pass tensor.view({{1}}).",
      where,
      name);
  const int64_t num_rows = tensor.size(0);
  std::vector<int64_t> rows = splits;
  if (splits.empty()) {
    TESSERA_CHECK_VALUE(
        num_rows % num_ranks == 0,
        "{} expected {} with a multiple of {} rows, but got {}. Pass split sizes for unequal parts.",
        where,
        name,
        num_ranks,
        num_rows);
    rows.assign(num_ranks, num_rows / num_ranks);
  }
  check_count(rows.size(), num_ranks, "split sizes for " + name, where);
  int64_t sum = 0;
  for (const int64_t count : rows) {
    TESSERA_CHECK_VALUE(
        count >= 0 && count <= num_rows - sum,
        "{} expected split sizes for {} that are >= 0 and add up to its {} rows, but got {}. Pass the rows of each rank's part.",
        where,
        name,
        num_rows,
        at::IntArrayRef(splits));
    sum += count;
  }
  TESSERA_CHECK_VALUE(
      sum == num_rows,
      "{} expected split sizes for {} that add up to its {} rows, but got {}, which give {}. Pass the rows of each rank's part.",
      where,
      name,
      num_rows,
      at::IntArrayRef(splits),
      sum);

  const int64_t row_bytes = num_rows == 0 ? 0 : whole.num_bytes / num_rows;
  std::vector<Part> parts;
  char* data = whole.data;
  for (const int64_t count : rows) {
    parts.push_back({data, count * row_bytes});
    data += count * row_bytes;
  }
  return parts;
}

void check_exchange(
    const std::vector<Part>& outputs,
    const std::vector<Part>& inputs,
    int rank,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      outputs[rank].num_bytes == inputs[rank].num_bytes,
      "{} expected this rank's own part to be as long in the output as in the input, but got {} and {} bytes. Give both the same size.",
      where,
      outputs[rank].num_bytes,
      inputs[rank].num_bytes);
  const std::less<const char*> is_before;
  for (const Part& output : outputs) {
    for (const Part& input : inputs) {
      const bool is_own = &output == &outputs[rank] &&
          output.data == inputs[rank].data && input.data == output.data &&
          input.num_bytes == output.num_bytes;
      const bool is_apart =
          !is_before(output.data, input.data + input.num_bytes) ||
          !is_before(input.data, output.data + output.num_bytes);
      TESSERA_CHECK_VALUE(
          is_own || is_apart || output.num_bytes == 0 || input.num_bytes == 0,
          "{} expected output and input in different memory, but got tensors that overlap. Pass a new output.",
          where);
    }
  }
}

}  // namespace tessera::distributed
