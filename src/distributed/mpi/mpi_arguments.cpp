// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/mpi/mpi_arguments.h"

#include <functional>

#include "src/common/check.h"

namespace tessera::distributed {

namespace {

void check_tensor(
    const at::Tensor& tensor,
    const std::string& name,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      tensor.defined(),
      "{} expected {} to be a tensor, but got an undefined one. Create the tensor first, with no elements if there are none.",
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

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0 || b.numel() == 0) {
    return false;
  }
  const auto* begin_a = static_cast<const char*>(a.const_data_ptr());
  const auto* begin_b = static_cast<const char*>(b.const_data_ptr());
  const std::less<const char*> is_before;
  return is_before(begin_a, begin_b + b.nbytes()) &&
      is_before(begin_b, begin_a + a.nbytes());
}

}  // namespace

void check_tensors(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::string& where) {
  check_tensor(output, "output", where);
  check_tensor(input, "input", where);
  TESSERA_CHECK_TYPE(
      output.scalar_type() == input.scalar_type(),
      "{} expected output and input of one dtype, but got {} and {}. Convert one of them.",
      where,
      output.scalar_type(),
      input.scalar_type());
}

std::vector<ByteRange> split_by_rank(
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
  TESSERA_CHECK_VALUE(
      static_cast<int64_t>(rows.size()) == num_ranks,
      "{} expected {} split sizes for {}, but got {}. Pass one for each rank.",
      where,
      num_ranks,
      name,
      rows.size());
  int64_t sum = 0;
  for (const int64_t count : rows) {
    TESSERA_CHECK_VALUE(
        count >= 0 && count <= num_rows - sum,
        "{} expected split sizes for {} that are >= 0 and add up to its {} rows, but got {}. Pass the number of rows for each rank.",
        where,
        name,
        num_rows,
        at::IntArrayRef(splits));
    sum += count;
  }
  TESSERA_CHECK_VALUE(
      sum == num_rows,
      "{} expected split sizes for {} that add up to its {} rows, but got {}, which add up to {}. Pass the number of rows for each rank.",
      where,
      name,
      num_rows,
      at::IntArrayRef(splits),
      sum);

  const int64_t row_bytes =
      num_rows == 0 ? 0 : static_cast<int64_t>(tensor.nbytes()) / num_rows;
  std::vector<ByteRange> ranges;
  int64_t begin = 0;
  for (const int64_t count : rows) {
    ranges.push_back({begin, count * row_bytes});
    begin += count * row_bytes;
  }
  return ranges;
}

void check_exchange(
    const at::Tensor& output,
    const at::Tensor& input,
    int64_t own_output,
    int64_t own_input,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      output.sizes().slice(1) == input.sizes().slice(1),
      "{} expected output and input that differ in the first dimension only, but got sizes {} and {}. Reshape one of them.",
      where,
      output.sizes(),
      input.sizes());
  TESSERA_CHECK_VALUE(
      own_output == own_input,
      "{} expected this rank's own part to be as long in the output as in the input, but got {} and {} bytes. Give both the same size.",
      where,
      own_output,
      own_input);
  TESSERA_CHECK_VALUE(
      !overlap(output, input),
      "{} expected output and input in different memory, but got tensors that overlap. Pass a new output.",
      where);
}

}  // namespace tessera::distributed
