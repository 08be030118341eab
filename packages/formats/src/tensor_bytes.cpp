// SPDX-License-Identifier: Apache-2.0
#include "packages/formats/src/tensor_bytes.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "src/common/check.h"

namespace tessera {

static_assert(
    std::endian::native == std::endian::little,
    "files are little endian, and tensors go there as they are");

namespace {

constexpr std::array<FileDtype, 10> kFileDtypes{{
    {at::kFloat, "<f4", "F32"},
    {at::kDouble, "<f8", "F64"},
    {at::kHalf, "<f2", "F16"},
    {at::kBFloat16, nullptr, "BF16"},
    {at::kChar, "|i1", "I8"},
    {at::kShort, "<i2", "I16"},
    {at::kInt, "<i4", "I32"},
    {at::kLong, "<i8", "I64"},
    {at::kByte, "|u1", "U8"},
    {at::kBool, "|b1", "BOOL"},
}};

// A view is copied in parts of about this size before it is written.
constexpr int64_t kPartBytes = int64_t{16} << 20;

std::vector<int64_t> strides_of(const TensorBytes& location) {
  const size_t rank = location.shape.size();
  std::vector<int64_t> strides(rank);
  int64_t stride = 1;
  for (size_t i = 0; i < rank; ++i) {
    const size_t dimension = location.is_fortran_order ? i : rank - 1 - i;
    strides[dimension] = stride;
    stride *= location.shape[dimension];
  }
  return strides;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_neg() && !tensor._is_zerotensor();
}

}  // namespace

std::span<const FileDtype> file_dtypes() {
  return kFileDtypes;
}

std::optional<size_t> num_bytes(
    const std::vector<int64_t>& shape,
    at::ScalarType dtype) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool is_empty = false;
  for (const int64_t length : shape) {
    if (length == 0) {
      // The loop goes on, because the strides must fit into an int64, too.
      is_empty = true;
    } else if (__builtin_mul_overflow(bytes, length, &bytes)) {
      return std::nullopt;
    }
  }
  return is_empty ? 0 : static_cast<size_t>(bytes);
}

at::Tensor tensor_in(
    const std::shared_ptr<MappedFile>& file,
    const TensorBytes& location,
    const std::string& where) {
  const size_t bytes = num_bytes(location.shape, location.dtype).value();
  TORCH_INTERNAL_ASSERT(
      location.offset <= file->size() &&
      bytes <= file->size() - location.offset);
  if (bytes == 0) {
    return at::empty(location.shape, location.dtype);
  }
  char* data = file->data() + location.offset;
  if (location.dtype == at::kBool) {
    // Reading a bool that is neither 0 nor 1 is undefined behaviour.
    const char* end = data + bytes;
    const char* wrong = std::find_if(
        data, data + bytes, [](char c) { return c != 0 && c != 1; });
    TESSERA_CHECK_VALUE(
        wrong == end,
        "{}: bools must be 0 or 1, but element {} is {}. The file is damaged.",
        where,
        wrong - data,
        static_cast<int>(static_cast<unsigned char>(*wrong)));
  }
  const std::vector<int64_t> strides = strides_of(location);
  // from_blob() needs aligned memory, which no format guarantees.
  if (reinterpret_cast<uintptr_t>(data) % c10::elementSize(location.dtype) !=
      0) {
    at::Tensor copy =
        at::empty_strided(location.shape, strides, location.dtype);
    std::memcpy(copy.mutable_data_ptr(), data, bytes);
    return copy;
  }
  return at::from_blob(
      data, location.shape, strides, [file](void*) {}, location.dtype);
}

const FileDtype& check_saveable(
    const at::Tensor& tensor,
    const std::string& where) {
  TESSERA_CHECK_TYPE(
      tensor.defined() && tensor.layout() == at::kStrided &&
          tensor.device().is_cpu() && tensor.has_storage(),
      "{}: expected a dense CPU tensor, but got {}. Convert it with to_dense() or cpu().",
      where,
      tensor.defined() ? tensor.toString() : "no tensor");
  TESSERA_CHECK_TYPE(
      static_cast<size_t>(tensor.dim()) <= kMaxRank,
      "{}: expected at most {} dimensions, but got {}. Reshape the tensor.",
      where,
      kMaxRank,
      tensor.dim());
  const auto* found =
      std::ranges::find(kFileDtypes, tensor.scalar_type(), &FileDtype::dtype);
  TESSERA_CHECK_TYPE(
      found != kFileDtypes.end(),
      "{}: dtype must be one of Float, Double, Half, BFloat16, Char, Short, Int, Long, Byte, Bool, but got {}. Convert the tensor with to().",
      where,
      c10::toString(tensor.scalar_type()));
  return *found;
}

void write_elements(AtomicFile& file, const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return;
  }
  const at::Tensor values = tensor.detach();
  if (is_plain(values)) {
    file.write(values.const_data_ptr(), values.nbytes());
    return;
  }
  const at::Tensor rows = values.dim() == 0 ? values.unsqueeze(0) : values;
  const int64_t num_rows = rows.size(0);
  const int64_t row_bytes = static_cast<int64_t>(rows.nbytes()) / num_rows;
  const int64_t part_rows = std::max<int64_t>(kPartBytes / row_bytes, 1);
  for (int64_t begin = 0; begin < num_rows; begin += part_rows) {
    const int64_t end = std::min(num_rows, begin + part_rows);
    const at::Tensor part =
        rows.slice(0, begin, end).clone(at::MemoryFormat::Contiguous);
    file.write(part.const_data_ptr(), part.nbytes());
  }
}

bool is_list_of_sizes(const Json& value) {
  constexpr auto kMax =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return value.is_array() && std::ranges::all_of(value, [](const Json& item) {
           return item.is_number_unsigned() && item.get<uint64_t>() <= kMax;
         });
}

}  // namespace tessera
