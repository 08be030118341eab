// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/kernels.h"

#include "src/kernels/targets.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cctype>

namespace tessera::kernels {

namespace {

std::string isa_name(const char* target) {
  std::string name = target;
  if (name == "AVX3") {
    return "avx512";
  }
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return name;
}

// GCC's target_clones is no alternative: its resolver runs before the thread sanitizer is
// ready, and ends the program.
std::vector<KernelTable> collect() {
  std::vector<KernelTable> tables;
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    KernelTable table;
    table.isa = isa_name(hwy::TargetName(target));
    add_interaction_kernels(table);
    add_lookup_kernels(table);
    add_product_kernels(table);
    add_quantized_kernels(table);
    add_random_kernels(table);
    add_sequence_kernels(table);
    add_update_kernels(table);
    tables.push_back(std::move(table));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return tables;
}

}  // namespace

const std::vector<KernelTable>& available_kernels() {
  static const std::vector<KernelTable> tables = collect();
  return tables;
}

const KernelTable* find_kernels(std::string_view isa) {
  for (const KernelTable& table : available_kernels()) {
    if (table.isa == isa) {
      return &table;
    }
  }
  return nullptr;
}

}  // namespace tessera::kernels
