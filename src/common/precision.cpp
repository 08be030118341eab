// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/precision.h>

#include "src/common/check.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <string>

namespace tessera {

namespace {

// oneDNN computes without these instructions, too, but converts each number.
bool has_bfloat16_instructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return true;  // oneDNN's kernels for aarch64 are not known to be slower
#endif
}

}  // namespace

PrecisionScope::PrecisionScope(std::optional<Precision> precision)
    : is_active_(precision.has_value()),
      was_enabled_(at::autocast::is_autocast_enabled(at::kCPU)),
      was_caching_(at::autocast::is_autocast_cache_enabled()),
      previous_dtype_(
          static_cast<int8_t>(at::autocast::get_autocast_dtype(at::kCPU))) {
  if (!is_active_) {
    return;
  }
  const bool is_mixed = precision == Precision::kBFloat16;
  if (is_mixed && !has_bfloat16_instructions()) {
    TORCH_WARN_ONCE(
        "[PrecisionScope] the processor has no instructions for bfloat16, so "
        "steps take 3 to 40 times as long as in float32. Use "
        "Precision::kFloat32.");
  }
  // LibTorch keeps converted weights until its outermost scope ends, even if the weights have
  // changed meanwhile.
  at::autocast::set_autocast_cache_enabled(false);
  at::autocast::set_autocast_enabled(at::kCPU, is_mixed);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

PrecisionScope::~PrecisionScope() {
  if (!is_active_) {
    return;
  }
  at::autocast::set_autocast_enabled(at::kCPU, was_enabled_);
  at::autocast::set_autocast_dtype(
      at::kCPU, static_cast<at::ScalarType>(previous_dtype_));
  at::autocast::set_autocast_cache_enabled(was_caching_);
}

Precision precision_from_keras(const Json& policy) {
  const Json* name = &policy;
  if (policy.is_object() && policy.contains("config") &&
      policy["config"].is_object() && policy["config"].contains("name")) {
    name = &policy["config"]["name"];
  }
  const std::string text =
      name->is_string() ? name->get<std::string>() : policy.dump();
  TESSERA_CHECK_VALUE(
      text == "float32" || text == "mixed_bfloat16",
      "[precision_from_keras] the policy must be float32 or mixed_bfloat16, but got {}. Use one of them{}.",
      text,
      text == "mixed_float16"
          ? ": without a scaled loss, gradients in float16 become 0"
          : "");
  return text == "float32" ? Precision::kFloat32 : Precision::kBFloat16;
}

}  // namespace tessera
