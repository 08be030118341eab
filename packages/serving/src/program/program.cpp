// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/program.h>

#include <tessera/common/shorten.h>

#include "packages/serving/src/format/version_file.h"
#include "src/common/check.h"
#include "src/common/files.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

namespace tessera::serving {

namespace {

// AOTInductor writes the values of small weights into the code, unless an option forbids it.
bool may_be_in_code(const at::Tensor& weight) {
  constexpr int64_t kMaxNumbers = 8;
  return weight.dim() == 0 ||
      (weight.dim() == 1 && weight.numel() <= kMaxNumbers);
}

using Package = std::unique_ptr<torch::inductor::AOTIModelPackageLoader>;

// LibTorch loads packages only from files with the ending `.pt2`, so this writes one.
Package load_package(std::string_view bytes) {
  constexpr int kLengthOfEnding = 4;
  std::string path =
      (std::filesystem::temp_directory_path() / "tessera_XXXXXX.pt2").string();
  const FileDescriptor file(mkstemps(path.data(), kLengthOfEnding));
  const auto remove = c10::make_scope_exit([&] {
    if (file.is_open()) {
      unlink(path.c_str());
    }
  });
  TESSERA_CHECK(
      file.is_open() && file.write(bytes.data(), bytes.size()),
      "[Program] could not write {}: {}. Free some space, or set TMPDIR to another folder.",
      path,
      std::strerror(errno));
  // Each thread that scores uses a runner. All runners share the weights.
  const size_t runners =
      std::max<size_t>(std::thread::hardware_concurrency(), 1);
  return std::make_unique<torch::inductor::AOTIModelPackageLoader>(
      path,
      /*model_name=*/"model",
      /*run_single_threaded=*/false,
      runners);
}

// The loaded packages of one file. Requests of an old version and of a new one may run at
// the same time, so each version has a package of its own. Packages of old versions are used
// again, because loading a package takes much longer than replacing its weights.
class CompiledPackages {
 public:
  // `bytes` are those of the file.
  explicit CompiledPackages(std::string_view bytes) : bytes_(bytes) {}

  // Errors:  c10::Error for a file that can't be loaded.
  Package take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!idle_.empty()) {
        Package package = std::move(idle_.back());
        idle_.pop_back();
        return package;
      }
    }
    return load_package(bytes_);
  }

  void give_back(Package package) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(package));
  }

 private:
  std::string bytes_;
  std::mutex mutex_;
  std::vector<Package> idle_;
};

// A package of AOTInductor with the weights of one version. When it is destroyed, the
// program of another version may use its package.
class CompiledProgram {
 public:
  // Copies the weights into a package.
  // Errors:  c10::ValueError naming a weight of the package that is missing; those of
  //          CompiledPackages::take().
  CompiledProgram(
      std::shared_ptr<CompiledPackages> packages,
      const std::vector<std::pair<std::string, at::Tensor>>& weights)
      : packages_(std::move(packages)), package_(packages_->take()) {
    std::unordered_map<std::string, at::Tensor> used;
    const std::unordered_map<std::string, at::Tensor> by_name(
        weights.begin(), weights.end());
    for (const std::string& name : package_->get_constant_fqns()) {
      const auto found = by_name.find(name);
      TESSERA_CHECK_VALUE(
          found != by_name.end(),
          "[Program] the compiled program has the weight '{}', which the program does not have. Compile the package from the file of export_dense_pt2() that is published.",
          shorten(name));
      used.insert(*found);
    }
    for (const auto& [name, weight] : weights) {
      TESSERA_CHECK_VALUE(
          used.contains(name) || !may_be_in_code(weight),
          "[Program] the compiled program has the values of the weight '{}' in its code, so they can't change. Compile the package with inductor_configs={{\"always_keep_tensor_constants\": True}}.",
          shorten(name));
    }
    // The package never frees weights that it does not copy.
    package_->load_constants(
        used,
        /*use_inactive=*/false,
        /*check_full_update=*/true,
        /*user_managed=*/false);
  }
  ~CompiledProgram() {
    packages_->give_back(std::move(package_));
  }
  CompiledProgram(const CompiledProgram&) = delete;
  CompiledProgram& operator=(const CompiledProgram&) = delete;

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const {
    // The package expects the strides of the export and does not check them.
    std::vector<at::Tensor> contiguous;
    for (const at::Tensor& input : inputs) {
      contiguous.push_back(input.contiguous());
    }
    return package_->run(contiguous);
  }

 private:
  std::shared_ptr<CompiledPackages> packages_;
  Package package_;
};

// The dtype with this name in version.json. Only the dtypes of kDenseDtypes are accepted,
// because a Reader does not check the sizes of other dtypes.
at::ScalarType dtype_of(const std::string& name) {
  TESSERA_CHECK_VALUE(
      std::ranges::find(kDenseDtypes, name, &DenseDtype::name) !=
          kDenseDtypes.end(),
      "[Program] a dense weight has the dtype '{}', which a program can't read. Train with weights of float32.",
      shorten(name));
  return c10::getStringToDtypeMap().at(name);
}

// The dense weights of a version, without copies. They keep the version alive.
std::map<std::string, at::Tensor> weights_of(
    const std::shared_ptr<const Version>& version) {
  std::map<std::string, at::Tensor> weights;
  for (const Version::DenseWeight& dense : version->dense()) {
    // from_blob() takes no const memory, and nothing writes to a weight.
    auto* bytes = const_cast<std::byte*>(dense.bytes.data());
    weights[dense.name] = at::from_blob(
        bytes,
        dense.shape,
        [version](void*) {},
        at::dtype(dtype_of(dense.dtype)));
  }
  return weights;
}

std::string_view bytes_of(const Version& version, PublishedProgram which) {
  return which == PublishedProgram::kQuery ? version.query_program()
                                           : version.program();
}

// Calls `load`, and says in an error which file of which version it concerns.
template <class Load>
void name_file(const Version& version, const char* file, Load&& load) {
  try {
    load();
  } catch (const std::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "[Program] version {} has a {} that can't be loaded: {}",
        version.number(),
        file,
        reason_of(error));
  }
}

}  // namespace

struct Program::Impl {
  Impl(
      std::shared_ptr<const Version> from,
      const Impl* before,
      PublishedProgram which)
      : version(std::move(from)) {
    TESSERA_CHECK_VALUE(
        version != nullptr,
        "[Program] expected a version, but got nullptr. Pass reader.version().");
    const bool is_query = which == PublishedProgram::kQuery;
    const std::string_view own = bytes_of(*version, which);
    TESSERA_CHECK_VALUE(
        !own.empty(),
        "[Program] version {} has no program. Set {} to a file of export_dense_pt2().",
        version->number(),
        is_query ? "PublishedItems::query" : "PublishOptions::program");
    name_file(*version, is_query ? "query_program" : "program", [&] {
      // Versions of the same base have the same bytes.
      file = before != nullptr &&
              bytes_of(*before->version, which).data() == own.data()
          ? before->file
          : std::make_shared<const Pt2Program>(own, version->base_memory());
      program.emplace(file->with_weights(weights_of(version)));
    });
    const std::string_view bytes = version->compiled_program();
    if (!is_query && !bytes.empty()) {
      name_file(*version, "compiled_program", [&] {
        packages =
            before != nullptr && before->version->compiled_program() == bytes
            ? before->packages
            : std::make_shared<CompiledPackages>(bytes);
        compiled =
            std::make_unique<CompiledProgram>(packages, program->state_dict());
      });
    }
  }

  std::shared_ptr<const Version> version;
  std::shared_ptr<const Pt2Program> file;  // with the weights of the export
  std::optional<const Pt2Program> program;
  std::shared_ptr<CompiledPackages> packages;
  std::unique_ptr<CompiledProgram> compiled;
};

Program::Program(
    std::shared_ptr<const Version> version,
    std::shared_ptr<const Program> before,
    PublishedProgram which)
    : impl_(std::make_unique<Impl>(
          std::move(version),
          before == nullptr ? nullptr : before->impl_.get(),
          which)) {}

Program::~Program() = default;

const Version& Program::version() const {
  return *impl_->version;
}

const Pt2Signature& Program::signature() const {
  return impl_->program->signature();
}

bool Program::is_compiled() const {
  return impl_->compiled != nullptr;
}

std::vector<at::Tensor> Program::run(
    const std::vector<at::Tensor>& inputs) const {
  const at::NoGradGuard no_grad;
  if (impl_->compiled == nullptr) {
    return impl_->program->run(inputs);
  }
  impl_->program->check(inputs);
  return impl_->compiled->run(inputs);
}

}  // namespace tessera::serving
