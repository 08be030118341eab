// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/targets.h"

#include <algorithm>
#include <cctype>
#include <mutex>

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {

// Each function sets its part of `table`. AddScanKernels() is in scan_kernels.cpp, and so on.
//
// The kernels should avoid templates of the standard library. GCC compiles such templates
// for the target, too, and their names are external, so that the linker may give the
// AVX-512 version to the whole program.
void AddLookupKernels(KernelTable& table);
void AddQuantizedKernels(KernelTable& table);
void AddRandomKernels(KernelTable& table);
void AddScanKernels(KernelTable& table);
void AddUpdateKernels(KernelTable& table);

void AddKernels(KernelTable& table) {
  AddLookupKernels(table);
  AddQuantizedKernels(table);
  AddRandomKernels(table);
  AddScanKernels(table);
  AddUpdateKernels(table);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddKernels);

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
    HWY_DYNAMIC_DISPATCH(AddKernels)(table);
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
#endif
