// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/common/json_text.h>

#include "src/common/checksum.h"

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

// The manifest of a checkpoint, manifest.json, describes its tables and files.
//
// The text ends with `,"xxh3":"<16 hexadecimal digits>"}` and a line feed. The digits are
// the XXH3 checksum of all bytes before them, so that damage is found.

inline constexpr const char* kManifestFile = "manifest.json";

/// A larger manifest is neither written nor read.
inline constexpr size_t kMaxManifestBytes = JsonLimits().bytes;

/// Each chunk of a file has a checksum. The error about a damaged file names the chunk.
inline constexpr int64_t kChunkBytes = int64_t{1} << 20;

/// One data file.
struct ManifestFile {
  std::string name = {};  // without folder
  int64_t bytes = 0;
  std::vector<std::string> xxh3 = {};  // of each chunk

  TESSERA_FIELDS(name, bytes, xxh3)
};

/// The entries begin, begin + step, ... below `end` of a tensor, in one file. Entries are
/// rows of the table or, in an increment, positions in its list of touched rows. In a key
/// table, they are positions in its list of keys.
struct ManifestPart {
  int64_t begin = 0;
  int64_t end = 0;  // one after the last entry
  int64_t step = 1;
  ManifestFile file = {};

  int64_t count() const {
    return (end - begin + step - 1) / step;
  }

  TESSERA_FIELDS(begin, end, step, file)
};

struct ManifestTensor {
  /// `parameters`, `slot_` and the slot's name, or a name of saved_keys.h.
  std::string name = {};
  std::string dtype = "float32";
  /// [vocab, dim] or [vocab]. For a key table, the first size is the number of its keys in
  /// this checkpoint.
  std::vector<int64_t> shape = {};
  /// The parts have no gaps and the same step. They are sorted by (begin % step, begin).
  std::vector<ManifestPart> parts = {};

  at::ScalarType scalar_type() const;
  /// The numbers of a row. A row of int8 has its scale as well.
  int64_t dim() const;
  int64_t row_bytes() const;

  TESSERA_FIELDS(name, dtype, shape, parts)
};

/// The numbers of the rows that an increment has, ascending, as uint32.
struct ManifestTouched {
  int64_t count = 0;
  ManifestFile file = {};

  TESSERA_FIELDS(count, file)
};

/// The keys that have occurred during a gradient accumulation, in the order of their
/// hashes, as int64, and how often each has occurred, as uint32.
struct ManifestCollected {
  int64_t count = 0;
  int64_t dropped = 0;  // see CollectedKeys
  ManifestFile keys = {};
  ManifestFile counts = {};

  TESSERA_FIELDS(count, dropped, keys, counts)
};

/// The accumulated gradients of one rank: the numbers of some rows of the table,
/// ascending, as uint32, and a sum [dim] of float32 for each of these rows.
struct ManifestGradients {
  int64_t count = 0;
  ManifestFile rows = {};
  ManifestFile sums = {};
  /// Set for a key table. Then `rows` has positions in its list of keys.
  std::optional<ManifestCollected> collected = {};

  TESSERA_FIELDS(count, rows, sums, collected)
};

/// The gradients that were accumulated since the table's last update.
struct ManifestAccumulated {
  int64_t steps = 0;  // gradient_accumulation_steps
  std::vector<ManifestGradients> parts = {};

  TESSERA_FIELDS(steps, parts)
};

/// What is saved of a key table beside ManifestTable::tensors. Entry i of each of those
/// tensors belongs to key i. The keys are in the order of their hashes. So the keys of a
/// partition are together, and a rank that owns some partitions reads one range.
struct ManifestKeys {
  /// KeyCounts, over all ranks.
  int64_t admitted = 0;
  int64_t evicted = 0;
  int64_t dropped = 0;
  /// The number of partitions of the sketch.
  int64_t partitions = 0;
  /// The half-life of the frequencies, in updates. 0: the keys have no frequencies.
  double half_life = 0.0;
  /// The counters [counters] of the admission, of all partitions in order. Unset in an
  /// increment if no counter has changed since the parent. Otherwise it has all counters,
  /// because a few keys change most blocks of the sketch.
  std::optional<ManifestTensor> sketch = {};
  /// The keys [keys] that have lost their rows since the parent, in the order of their
  /// hashes. Unset if the files hold all keys.
  std::optional<ManifestTensor> removed = {};

  TESSERA_FIELDS(
      admitted,
      evicted,
      dropped,
      partitions,
      half_life,
      sketch,
      removed)
};

struct ManifestTable {
  std::string name = {};
  std::optional<std::string> optimizer = {};
  /// Unset if the files hold all rows, and for a key table.
  std::optional<ManifestTouched> touched = {};
  std::vector<ManifestTensor> tensors = {};
  /// Set in the middle of a gradient accumulation. An increment holds all of it, too.
  std::optional<ManifestAccumulated> accumulated = {};
  /// Set for a key table.
  std::optional<ManifestKeys> keys = {};

  /// Whether the rows that did not change are in the parent.
  bool is_increment() const {
    return touched || (keys && keys->removed);
  }

  TESSERA_FIELDS(name, optimizer, touched, tensors, accumulated, keys)
};

/// The checkpoint that an increment builds on.
struct ManifestParent {
  std::string name = {};
  std::string xxh3 = {};  // of its manifest

  TESSERA_FIELDS(name, xxh3)
};

struct Manifest {
  int64_t format_version = 1;
  /// EmbeddingState::passes.
  int64_t passes = 0;
  /// The seed of random rounding. Unset in manifests written before it was saved.
  std::optional<uint64_t> seed = {};
  std::optional<ManifestParent> parent = {};
  /// The number of increments since the last full checkpoint; 0 for a full checkpoint.
  int64_t increments = 0;
  /// The layer's configuration as JSON. saved_features() reads it, a load does not.
  std::string config = {};
  std::vector<ManifestTable> tables = {};
  std::optional<ManifestFile> extra = {};

  static void visit_fields(auto& self, auto&& visit) {
    visit("format_version", self.format_version);
    visit("iterations", self.passes);
    visit("seed", self.seed);
    visit("parent", self.parent);
    visit("increments", self.increments);
    visit("config", self.config);
    visit("tables", self.tables);
    visit("extra", self.extra);
  }
};

/// The tensor of this name, which must exist.
const ManifestTensor& find_tensor(
    const ManifestTable& table,
    const std::string& name);

/// The text of manifest.json.
/// Errors:  c10::ValueError if a name is not UTF-8, or the text is too large.
std::string to_text(
    const Manifest& manifest,
    const std::string& where = "[save_checkpoint]");

/// The tables of one rank as text, for rank 0, which writes the manifest.
std::string to_text(const std::vector<ManifestTable>& tables);
std::vector<ManifestTable> tables_from_text(const std::string& text);

/// The checksum at the end of a text that to_text() has returned or manifest_from_text()
/// has accepted.
std::string checksum_in(const std::string& text);

/// Reads a manifest and checks it: names have no folders, sizes fit shapes, parts have no
/// gaps. The manifest is not compared with the files.
/// Errors:  c10::ValueError beginning with `where`.
Manifest manifest_from_text(const std::string& text, const std::string& where);

/// Returns `checkpoint_` and the number with at least six digits.
std::string checkpoint_name(int64_t number);
/// The name of the checkpoint that follows `newest`.
/// Errors:  c10::ValueError beginning with `where` if `newest` has the largest number.
std::string next_checkpoint_name(
    const std::string& newest,
    const std::string& where);
/// The number of a checkpoint of this name, or nullopt for other names.
std::optional<int64_t> checkpoint_number(const std::string& name);

}  // namespace tessera
