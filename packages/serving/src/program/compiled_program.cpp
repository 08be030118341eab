// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/program/compiled_program.h"

#include <tessera/common/shorten.h>

#include "packages/serving/src/program/temporary_file.h"
#include "src/common/check.h"

#include <algorithm>
#include <thread>
#include <unordered_map>

namespace tessera::serving {

namespace {

constexpr const char* kCompiledWhere = "[Program]";

// AOTInductor writes the values of small weights into the code, unless an option forbids it.
bool may_be_in_code(const at::Tensor& weight) {
  constexpr int64_t kMaxNumbers = 8;
  return weight.dim() == 0 ||
      (weight.dim() == 1 && weight.numel() <= kMaxNumbers);
}

}  // namespace

CompiledProgram::CompiledProgram(
    std::shared_ptr<CompiledPackages> packages,
    Package package,
    const Weights& weights)
    : packages_(std::move(packages)), package_(std::move(package)) {
  std::unordered_map<std::string, at::Tensor> used;
  const std::unordered_map<std::string, at::Tensor> by_name(
      weights.begin(), weights.end());
  for (const std::string& name : package_->get_constant_fqns()) {
    const auto found = by_name.find(name);
    TESSERA_CHECK_VALUE(
        found != by_name.end(),
        "{} the compiled program has the weight '{}', which the program does not have. Compile the package from the file of export_dense_pt2() that is published.",
        kCompiledWhere,
        shorten(name));
    used.insert(*found);
  }
  for (const auto& [name, weight] : weights) {
    TESSERA_CHECK_VALUE(
        used.contains(name) || !may_be_in_code(weight),
        "{} the compiled program has the values of the weight '{}' in its code, so they can't change. Compile the package with inductor_configs={{\"always_keep_tensor_constants\": True}}.",
        kCompiledWhere,
        shorten(name));
  }
  // The package never frees weights that it does not copy.
  package_->load_constants(
      used,
      /*use_inactive=*/false,
      /*check_full_update=*/true,
      /*user_managed=*/false);
}

CompiledProgram::~CompiledProgram() {
  packages_->give_back(std::move(package_));
}

std::vector<at::Tensor> CompiledProgram::run(
    const std::vector<at::Tensor>& inputs) const {
  // The package expects the strides of the export and does not check them.
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& input : inputs) {
    contiguous.push_back(input.contiguous());
  }
  return package_->run(contiguous);
}

std::unique_ptr<CompiledProgram> CompiledPackages::with_weights(
    const CompiledProgram::Weights& weights) {
  return std::make_unique<CompiledProgram>(shared_from_this(), take(), weights);
}

CompiledProgram::Package CompiledPackages::take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      CompiledProgram::Package package = std::move(idle_.back());
      idle_.pop_back();
      return package;
    }
  }
  const TemporaryFile file(bytes_, kCompiledWhere);
  // Each thread that scores uses a runner. All of them share the weights.
  const size_t runners =
      std::max<size_t>(std::thread::hardware_concurrency(), 1);
  return std::make_unique<torch::inductor::AOTIModelPackageLoader>(
      file.path(),
      /*model_name=*/"model",
      /*run_single_threaded=*/false,
      runners);
}

void CompiledPackages::give_back(CompiledProgram::Package package) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(package));
}

}  // namespace tessera::serving
