// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

namespace tessera {

class TableModule;

/// A layer whose parameters are all in TableModules inside it. PartialTPUEmbedding
/// implements it.
class TableParts {
 public:
  virtual ~TableParts() = default;

  /// Returns the module as a TableParts, or nullptr for other modules.
  static const TableParts* of(const torch::nn::Module& module) {
    return dynamic_cast<const TableParts*>(&module);
  }

  /// Returns the part with the small tables, which an ordinary optimizer trains, or
  /// nullptr.
  virtual const TableModule* small_tables() const = 0;
};

}  // namespace tessera
