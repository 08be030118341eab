// SPDX-License-Identifier: Apache-2.0
#include "src/kernels/kernels.h"

#include "src/kernels/targets.h"

#include <hwy/targets.h>

#include <algorithm>
#include <cctype>
#include <mutex>

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

std::vector<KernelTable> collect() {
  std::vector<KernelTable> tables;
  for_each_target([&](const std::string& isa) {
    KernelTable& table = tables.emplace_back();
    table.isa = isa;
    add_lookup_kernels(table);
    add_quantized_kernels(table);
    add_random_kernels(table);
    add_scan_kernels(table);
    add_update_kernels(table);
  });
  return tables;
}

}  // namespace

// GCC's target_clones is no alternative: its resolver runs before the thread sanitizer is
// ready, and ends the program.
void for_each_target(
    const std::function<void(const std::string& isa)>& collect) {
  static std::mutex mutex;  // the whole process shares the chosen target
  const std::lock_guard lock(mutex);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    collect(isa_name(hwy::TargetName(target)));
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

const std::vector<KernelTable>& available_kernels() {
  static const std::vector<KernelTable> tables = collect();
  return tables;
}

const KernelTable* find_kernels(std::string_view isa) {
  return find_table(available_kernels(), isa);
}

}  // namespace tessera::kernels
