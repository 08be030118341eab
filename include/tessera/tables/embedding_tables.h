// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <tessera/tables/table_config.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tessera {

// snippet: tests/docs/reference_engine_test.cpp EmbeddingTables
/// The tables of a layer, in the order of first use. The tensors are the tables
/// themselves: writing to a tensor changes the layer. The rows of a table with
/// TableConfig::keys are a copy.
///
///   const EmbeddingTables tables = embedding->embedding_tables();
///   tables["users"].fill_(0.1);  // or tables[users]; changes the layer
///   for (const auto& table : tables) {
///     std::cout << table.name << " " << table.parameters.sizes() << "\n";
///   }
class EmbeddingTables {
 public:
  struct Entry {
    TablePtr config = {};
    /// The config's name, or `table_{i}`.
    std::string name = {};
    at::Tensor parameters = {};  // [vocab, dim]; float32 for kChar
    /// The keys of a table with TableConfig::keys, [keys] int64, ascending. `parameters`
    /// [keys, dim] is then a copy of their rows. Undefined for a table with a vocabulary.
    at::Tensor keys = {};
    /// On Strategy::host() and padded(), the layer's parameter [vocab, dim], for a
    /// torch::optim or autograd::grad(). Undefined on other strategies, which update the
    /// tables themselves.
    at::Tensor variable = {};
  };

  /// Errors:  c10::ValueError for keys that are not a contiguous int64 vector on the CPU,
  ///          or not ascending.
  explicit EmbeddingTables(std::vector<Entry> entries);

  /// Errors:  c10::ValueError if the layer does not use `table`.
  at::Tensor operator[](const TablePtr& table) const;
  /// Errors:  c10::ValueError listing the known names.
  at::Tensor operator[](const std::string& name) const;

  size_t size() const {
    return entries_.size();
  }
  auto begin() const& {
    return entries_.begin();
  }
  auto end() const& {
    return entries_.end();
  }
  auto begin() const&& = delete;
  auto end() const&& = delete;

 private:
  std::vector<Entry> entries_;
};

}  // namespace tessera
