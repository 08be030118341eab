// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/program.h>

#include "packages/serving/src/program/compiled_program.h"
#include "packages/serving/src/program/temporary_file.h"
#include "packages/serving/src/publisher/dense_dtype.h"
#include "src/common/check.h"
#include "src/common/error_reason.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <exception>
#include <map>
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

Pt2Program load(std::string_view bytes) {
  const TemporaryFile file(bytes, kProgramWhere);
  return Pt2Program(file.path());
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

// A file that is mapped at the same place needs no comparison.
bool is_same(std::string_view a, std::string_view b) {
  return a.size() == b.size() && (a.data() == b.data() || a == b);
}

}  // namespace

class Program::Impl {
 public:
  Impl(std::shared_ptr<const Version> version, const Impl* before)
      : version_(checked(std::move(version))) {
    name_file(*version_, "program", [&] { load_program(before); });
    if (!version_->compiled_program().empty()) {
      name_file(*version_, "compiled_program", [&] { load_compiled(before); });
    }
  }

  const Version& version() const {
    return *version_;
  }
  const Pt2Program& program() const {
    return *program_;
  }
  const CompiledProgram* compiled() const {
    return compiled_.get();
  }

 private:
  void load_program(const Impl* before) {
    const std::string_view bytes = version_->program();
    file_ = before != nullptr && is_same(before->version_->program(), bytes)
        ? before->file_
        : std::make_shared<const Pt2Program>(load(bytes));
    program_ = std::make_unique<const Pt2Program>(
        file_->with_weights(weights_of(version_)));
  }

  void load_compiled(const Impl* before) {
    const std::string_view bytes = version_->compiled_program();
    packages_ = before != nullptr &&
            is_same(before->version_->compiled_program(), bytes)
        ? before->packages_
        : std::make_shared<CompiledPackages>(bytes);
    compiled_ = packages_->with_weights(program_->state_dict());
  }

  std::shared_ptr<const Version> version_;
  // The program as it was exported.
  std::shared_ptr<const Pt2Program> file_;
  std::unique_ptr<const Pt2Program> program_;
  std::shared_ptr<CompiledPackages> packages_;
  std::unique_ptr<CompiledProgram> compiled_;
};

Program::Program(
    std::shared_ptr<const Version> version,
    std::shared_ptr<const Program> before)
    : impl_(std::make_unique<Impl>(
          std::move(version),
          before == nullptr ? nullptr : before->impl_.get())) {}

Program::~Program() = default;

const Version& Program::version() const {
  return impl_->version();
}

const Pt2Signature& Program::signature() const {
  return impl_->program().signature();
}

bool Program::is_compiled() const {
  return impl_->compiled() != nullptr;
}

std::vector<at::Tensor> Program::run(
    const std::vector<at::Tensor>& inputs) const {
  const at::NoGradGuard no_grad;
  if (impl_->compiled() == nullptr) {
    return impl_->program().run(inputs);
  }
  impl_->program().check(inputs);
  return impl_->compiled()->run(inputs);
}

}  // namespace tessera::serving
