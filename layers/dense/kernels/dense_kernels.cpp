// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/kernels/dense_kernels.h"

#include "src/kernels/targets.h"

namespace tessera::kernels {

namespace {

std::vector<DenseKernelTable> collect() {
  std::vector<DenseKernelTable> tables;
  for_each_target([&](const std::string& isa) {
    DenseKernelTable& table = tables.emplace_back();
    table.isa = isa;
    add_interaction_kernels(table);
    add_product_kernels(table);
    add_sequence_kernels(table);
  });
  return tables;
}

}  // namespace

const std::vector<DenseKernelTable>& available_dense_kernels() {
  static const std::vector<DenseKernelTable> tables = collect();
  return tables;
}

}  // namespace tessera::kernels
