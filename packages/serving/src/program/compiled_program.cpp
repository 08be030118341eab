// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/program/compiled_program.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <thread>
#include <unordered_map>

namespace tessera::serving {

namespace {

constexpr const char* kCompiledWhere = "[Program]";

// A temporary file with the ending `.pt2`, because LibTorch loads packages only from files.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view bytes)
      : path_((std::filesystem::temp_directory_path() / "tessera_XXXXXX.pt2")
                  .string()) {
    constexpr int kLengthOfEnding = 4;
    const int file = mkstemps(path_.data(), kLengthOfEnding);
    bool is_written = file >= 0;
    while (is_written && !bytes.empty()) {
      const ssize_t count = write(file, bytes.data(), bytes.size());
      is_written = count > 0 || (count < 0 && errno == EINTR);
      bytes.remove_prefix(count > 0 ? static_cast<size_t>(count) : 0);
    }
    const int error = errno;
    if (file >= 0) {
      close(file);
    }
    if (!is_written && file >= 0) {
      unlink(path_.c_str());
    }
    TESSERA_CHECK(
        is_written,
        "{} could not write {}: {}. Free some space, or set TMPDIR to another folder.",
        kCompiledWhere,
        path_,
        std::strerror(error));
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const {
    return path_;
  }

 private:
  std::string path_;
};

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
  const TemporaryFile file(bytes_);
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
