// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/torchscript_program.h"

#include <tessera/export/pt2_program.h>

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::exporting {

/// A file of export_dense_pt2() or export_dense_torchscript(). Its functions and their
/// errors are those of Pt2Program.
class DenseProgram {
 public:
  /// Finds out from the content which kind of file it is.
  explicit DenseProgram(const std::string& path)
      : program_(
            exporting::is_torchscript(path) ? Kinds(TorchScriptProgram(path))
                                            : Kinds(Pt2Program(path))) {}

  bool is_torchscript() const {
    return std::holds_alternative<TorchScriptProgram>(program_);
  }

  const Pt2Signature& signature() const {
    return std::visit(
        [](const auto& program) -> const Pt2Signature& {
          return program.signature();
        },
        program_);
  }
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const {
    return std::visit(
        [&](const auto& program) { return program.run(inputs); }, program_);
  }
  void check(const std::vector<at::Tensor>& inputs) const {
    std::visit([&](const auto& program) { program.check(inputs); }, program_);
  }
  std::vector<std::pair<std::string, at::Tensor>> state_dict() const {
    return std::visit(
        [](const auto& program) { return program.state_dict(); }, program_);
  }
  DenseProgram with_weights(
      const std::map<std::string, at::Tensor>& weights) const {
    return std::visit(
        [&](const auto& program) {
          return DenseProgram(program.with_weights(weights));
        },
        program_);
  }

 private:
  using Kinds = std::variant<Pt2Program, TorchScriptProgram>;

  explicit DenseProgram(Kinds program) : program_(std::move(program)) {}

  Kinds program_;
};

}  // namespace tessera::exporting
