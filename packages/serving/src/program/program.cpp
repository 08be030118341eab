// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/program.h>

#include "packages/serving/src/program/compiled_program.h"
#include "packages/serving/src/publisher/dense_dtype.h"
#include "packages/serving/src/reader/version_impl.h"
#include "src/common/check.h"
#include "src/common/error_reason.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <exception>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::serving {

namespace {

constexpr const char* kProgramWhere = "[Program]";

// The dense weights of a version, without copies. They keep the version.
std::map<std::string, at::Tensor> weights_of(
    const std::shared_ptr<const Version>& version) {
  std::map<std::string, at::Tensor> weights;
  for (const DenseWeight& dense : version->dense()) {
    // from_blob() takes no const memory, and nothing writes to a weight.
    auto* bytes = const_cast<std::byte*>(dense.bytes.data());
    weights[dense.name] = at::from_blob(
        bytes,
        dense.shape,
        [version](void*) {},
        at::dtype(dense_dtype_from_string(dense.dtype)));
  }
  return weights;
}

std::shared_ptr<const Version> checked(std::shared_ptr<const Version> version) {
  TESSERA_CHECK_VALUE(
      version != nullptr,
      "{} expected a version, but got nullptr. Pass reader.version().",
      kProgramWhere);
  TESSERA_CHECK_VALUE(
      !version->program().empty(),
      "{} version {} has no program. Set PublishOptions::program to a file of export_dense_pt2().",
      kProgramWhere,
      version->number());
  return version;
}

// Calls `load`, and says in an error which file of which version it concerns.
template <class Load>
void name_file(const Version& version, const char* file, Load&& load) {
  try {
    load();
  } catch (const std::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} version {} has a {} that can't be loaded: {}",
        kProgramWhere,
        version.number(),
        file,
        reason_of(error));
  }
}

}  // namespace

struct Program::Impl {
  Impl(std::shared_ptr<const Version> from, const Impl* before)
      : version(checked(std::move(from))) {
    name_file(*version, "program", [&] {
      const std::string_view bytes = version->program();
      // Versions of the same base have the same bytes.
      file =
          before != nullptr && before->version->program().data() == bytes.data()
          ? before->file
          : std::make_shared<const Pt2Program>(
                bytes, version->impl().owners.front());
      program.emplace(file->with_weights(weights_of(version)));
    });
    const std::string_view bytes = version->compiled_program();
    if (!bytes.empty()) {
      name_file(*version, "compiled_program", [&] {
        packages =
            before != nullptr && before->version->compiled_program() == bytes
            ? before->packages
            : std::make_shared<CompiledPackages>(bytes);
        compiled = packages->with_weights(program->state_dict());
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
    std::shared_ptr<const Program> before)
    : impl_(std::make_unique<Impl>(
          std::move(version),
          before == nullptr ? nullptr : before->impl_.get())) {}

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
