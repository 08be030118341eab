// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/input_check.h"
#include "src/common/atomic_file.h"

#include <tessera/export/pt2_program.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/jit/api/module.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::exporting {

/// A weight of a model, and the attributes of a TorchScript module that hold it. There are
/// several if modules share the weight.
struct ScriptWeight {
  std::string name = {};
  std::vector<std::string> attributes = {};
};

/// Writes a module whose forward() takes tensors, with its signature and the names of its
/// weights as the extra file `tessera.json`. After the archive, the file has a checksum of
/// its bytes.
/// Errors:  those of AtomicFile; c10::ValueError beginning with `where` for names that are
///          not UTF-8.
void write_torchscript_program(
    AtomicFile& file,
    const torch::jit::Module& module,
    const Pt2Signature& signature,
    const std::vector<ScriptWeight>& weights,
    const std::string& where);

/// A file of export_dense_torchscript(), ready to be called. Its functions are those of
/// Pt2Program, and so are its errors. Programs made by with_weights() share the code.
///
/// The file is code, so read only files that you trust: the checksum shows damage, but not
/// who wrote a file.
class TorchScriptProgram {
 public:
  /// Errors:  c10::Error for a file that can't be read; c10::ValueError for a file that is
  ///          damaged, or that is another TorchScript model.
  explicit TorchScriptProgram(const std::string& path);

  const Pt2Signature& signature() const {
    return content_->signature;
  }
  void check(const std::vector<at::Tensor>& inputs) const {
    content_->check(inputs);
  }
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;
  std::vector<std::pair<std::string, at::Tensor>> state_dict() const;
  TorchScriptProgram with_weights(
      const std::map<std::string, at::Tensor>& weights) const;

 private:
  // All programs of a file share it.
  struct Content {
    Pt2Signature signature;
    std::vector<ScriptWeight> weights;
    InputCheck check;
  };

  std::shared_ptr<const Content> content_;
  torch::jit::Module module_;
};

/// Returns whether a file has a TorchScript module. A file that can't be read has none.
bool is_torchscript(const std::string& path);

}  // namespace tessera::exporting
