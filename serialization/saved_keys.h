// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/key_index.h"
#include "src/tables/table_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// The tensors of a table in a file, by name.
using SavedTensors = std::map<std::string, at::Tensor>;

/// The name of the tensor of keys. A table in a file is dynamic if it has this tensor.
inline constexpr const char* kSavedKeys = "keys";

/// Returns the tensors with which a file describes a dynamic table: the ascending keys, their
/// rows `parameters`, slots and scores, the sketch, and the counts.
std::vector<std::pair<std::string, at::Tensor>> saved_tensors(
    const TableState& table);

/// Replaces all keys of a table by `keys` [keys] with the rows `values` [keys, dim]. Their
/// slots start anew, and their last update is `update`.
/// Errors:  c10::TypeError or ValueError beginning with "[update_embedding_table]".
void assign_keys(
    TableState& table,
    const at::Tensor& keys,
    const at::Tensor& values,
    int64_t update);

/// The keys and rows of a file that have been compared with a dynamic table.
class LoadedKeys {
 public:
  /// `tensors` have the dtypes and widths of the table. If they have no keys, they are of
  /// a table with a vocabulary, whose row numbers become the keys, with the last update
  /// `update`.
  /// Errors:  c10::ValueError that begins with `where`, for damaged or too many keys.
  LoadedKeys(
      const SavedTensors& tensors,
      const TableState& table,
      bool with_slots,
      int64_t update,
      const std::string& where);

  /// Replaces the keys, rows and slots of the table. Slots that were not requested, or not
  /// saved, get their initial values.
  void copy_to(TableState& table);

 private:
  std::string where_;
  at::Tensor parameters_;  // [keys, dim]
  std::vector<at::Tensor> slots_;  // of the table, or undefined
  std::vector<KeyEntry> entries_;
  std::vector<uint8_t> sketch_;
  KeyCounts counts_;
};

}  // namespace tessera
