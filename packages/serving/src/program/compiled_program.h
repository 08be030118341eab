// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::serving {

class CompiledPackages;

/// A package of AOTInductor with the weights of one version. When it is destroyed, the
/// program of another version may use its package.
class CompiledProgram {
 public:
  using Package = std::unique_ptr<torch::inductor::AOTIModelPackageLoader>;
  using Weights = std::vector<std::pair<std::string, at::Tensor>>;

  /// Copies the weights into the package.
  /// Errors:  c10::ValueError naming a weight of the package that is missing.
  CompiledProgram(
      std::shared_ptr<CompiledPackages> packages,
      Package package,
      const Weights& weights);
  ~CompiledProgram();
  CompiledProgram(const CompiledProgram&) = delete;
  CompiledProgram& operator=(const CompiledProgram&) = delete;

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;

 private:
  std::shared_ptr<CompiledPackages> packages_;
  Package package_;
};

/// The loaded packages of one file. Requests of an old version and of a new one may run at
/// the same time, so each version has a package of its own, and old ones are used again:
/// loading one takes much longer than replacing its weights.
class CompiledPackages : public std::enable_shared_from_this<CompiledPackages> {
 public:
  /// `bytes` are those of the file.
  explicit CompiledPackages(std::string_view bytes) : bytes_(bytes) {}

  /// Errors:  c10::Error for a file that can't be loaded; those of CompiledProgram.
  std::unique_ptr<CompiledProgram> with_weights(
      const CompiledProgram::Weights& weights);

  void give_back(CompiledProgram::Package package);

 private:
  CompiledProgram::Package take();

  std::string bytes_;
  std::mutex mutex_;
  std::vector<CompiledProgram::Package> idle_;
};

}  // namespace tessera::serving
