// SPDX-License-Identifier: Apache-2.0
#include "src/tables/table_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <bit>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <utility>

#include "src/common/check.h"
#include "src/tables/reserved_memory.h"

namespace tessera {

namespace {

constexpr size_t kDefaultHugePage = size_t{2} << 20;
// With pages of 64 KiB, a huge page has 512 MiB, which is too much to round up to.
constexpr size_t kMaxHugePage = size_t{32} << 20;

size_t read_huge_page_bytes() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
  size_t bytes = 0;
  file >> bytes;
  return std::has_single_bit(bytes) && bytes >= kDefaultHugePage &&
          bytes <= kMaxHugePage
      ? bytes
      : kDefaultHugePage;
}

size_t huge_page_bytes() {
  static const size_t bytes = read_huge_page_bytes();
  return bytes;
}

}  // namespace

at::Tensor allocate_rows(int64_t rows, int64_t dim, at::ScalarType dtype) {
  const size_t bytes =
      static_cast<size_t>(rows * dim) * c10::elementSize(dtype);
  const size_t huge_page = huge_page_bytes();
  if (bytes < huge_page) {
    return at::empty({rows, dim}, dtype);  // LibTorch aligns to 64 bytes.
  }
  const size_t padded = (bytes + huge_page - 1) / huge_page * huge_page;
  void* memory = std::aligned_alloc(huge_page, padded);
  TESSERA_CHECK(
      memory != nullptr,
      "[TableConfig] a table of {} rows of {} values needs {} MiB of memory, but the system can't provide them. Make the table smaller.",
      rows,
      dim,
      bytes >> 20);
#ifdef MADV_HUGEPAGE
  // This is only a hint. Without huge pages, access is slower.
  ::madvise(memory, padded, MADV_HUGEPAGE);
#endif
  return at::from_blob(
      memory, {rows, dim}, [](void* data) { std::free(data); }, dtype);
}

at::Tensor reserve_rows(
    int64_t rows,
    int64_t dim,
    at::ScalarType dtype,
    const std::string& what,
    int64_t touched_rows) {
  const size_t row_bytes = static_cast<size_t>(dim) * c10::elementSize(dtype);
  auto memory = std::make_shared<ReservedMemory>(
      static_cast<size_t>(rows) * row_bytes, what);
  void* data = memory->data();
  touch_pages(data, static_cast<size_t>(touched_rows) * row_bytes, what);
  return at::from_blob(
      data,
      {rows, dim},
      [memory = std::move(memory)](void*) mutable { memory.reset(); },
      dtype);
}

}  // namespace tessera
