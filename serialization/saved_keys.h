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

/// The name of the tensor of keys. A saved table that has this tensor is a key table.
inline constexpr const char* kSavedKeys = "keys";
/// The numbers that decide about the eviction of each key.
inline constexpr const char* kKeyUpdates = "key_updates";
inline constexpr const char* kKeyFrequencies = "key_frequencies";

/// The keys that a file holds for a table.
struct SavedKeys {
  std::vector<KeyEntry> entries = {};  // without rows
  std::vector<uint8_t> sketch = {};  // of the whole table
  int64_t partitions = 0;  // of the sketch
  /// The half-life of the frequencies, in updates. 0: the keys have no frequencies.
  double half_life = 0.0;
  KeyCounts counts = {};
};

/// The half-life of the frequencies of a key table, or 0 if it has none.
double half_life_of(const KeyIndex& index);

/// Returns the tensors with which an archive describes a key table: the ascending keys,
/// their rows `parameters`, slots and scores, the sketch, the half-life, and the counts.
std::vector<std::pair<std::string, at::Tensor>> saved_tensors(
    const TableState& table);

/// Reads the keys from the tensors of an archive.
/// Errors:  c10::ValueError that begins with `where` and names the table.
SavedKeys read_keys(
    const SavedTensors& tensors,
    const TableState& table,
    const std::string& where);

/// The row numbers of a table with a vocabulary of `rows` rows, as keys of the key
/// table `table`. Their last update is `update`.
SavedKeys keys_of_vocabulary(
    int64_t rows,
    const TableState& table,
    int64_t update);

/// Replaces all keys of a table by `keys` [keys] with the rows `values` [keys, dim]. Their
/// slots start anew, and their last update is `update`.
/// Errors:  c10::TypeError or ValueError beginning with "[update_embedding_table]".
void assign_keys(
    TableState& table,
    const at::Tensor& keys,
    const at::Tensor& values,
    int64_t update);

/// The keys of a file that have been compared with a table of the layer. A table with a
/// vocabulary takes keys that are numbers of its rows.
class LoadedKeys {
 public:
  LoadedKeys() = default;

  /// Converts the ages and frequencies of keys that were saved after `updates` updates to
  /// those of a table after `updates + later` updates, where `later` may be negative. Keys
  /// keep their age, but none becomes older than the layer. Frequencies keep their present
  /// value under another half-life. Without frequencies, each key counts as one occurrence
  /// at its last update.
  /// Errors:  c10::ValueError that begins with `where`, for damaged keys, too many of
  ///          them, another sketch, the padding key, and keys that are not rows of the
  ///          vocabulary.
  LoadedKeys(
      SavedKeys keys,
      int64_t updates,
      int64_t later,
      const TableState& table,
      std::string where);

  /// The positions in SavedKeys::entries of the keys that belong to this rank, ascending.
  const std::vector<int64_t>& positions() const {
    return positions_;
  }

  /// Returns the local row of each of these keys. A key table gets these keys instead
  /// of its own.
  std::vector<uint32_t> place(TableState& table);

 private:
  void adapt_scores(int64_t updates, int64_t later, const KeyIndex& index);
  template <class IsOwn>
  void keep_if(IsOwn is_own);
  void keep_local_rows(const TableState& table);

  std::string where_;
  SavedKeys keys_;
  std::vector<int64_t> positions_;
};

/// Copies the parameters of keys and their slots from the tensors of an archive to the rows
/// `rows` of a table. `slots` has the name of the tensor of each slot. If it is empty, the
/// slots of a key table start anew.
void copy_key_rows(
    const SavedTensors& tensors,
    const LoadedKeys& keys,
    const std::vector<uint32_t>& rows,
    const std::vector<std::string>& slots,
    TableState& table);

/// Returns whether a slot of the table was saved as a slot of older versions. `keys` has
/// the saved key of each slot.
bool are_earlier(const std::vector<std::string>& keys, const TableState& table);

/// Call this after the slots of some rows were copied from the tensors `slots` of a file.
/// Converts slots of older versions. If `slots` is empty, sets the slots of a key table
/// to their initial values.
void finish_slots(
    const std::vector<uint32_t>& rows,
    const std::vector<std::string>& slots,
    TableState& table);

}  // namespace tessera
