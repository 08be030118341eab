// SPDX-License-Identifier: Apache-2.0
#include "src/touched_rows.h"

#include "src/embedding_state.h"

#include <bit>

namespace tessera {

namespace {

constexpr int64_t kBits = 64;

// Grows with each write of an operator into one of the table's tensors; -1 for
// tensors that do not count.
int64_t version_of(const TableState& table) {
  if (table.parameters.is_inference()) {
    return -1;
  }
  auto version = static_cast<int64_t>(table.parameters._version());
  for (const Slot& slot : table.slots) {
    if (slot.values.is_inference()) {
      return -1;
    }
    version += static_cast<int64_t>(slot.values._version());
  }
  return version;
}

}  // namespace

TouchedRows::TouchedRows(const TableState& table)
    : bits_((table.parameters.size(0) + kBits - 1) / kBits, 0) {
  note_version(table);
}

void TouchedRows::notice_writes(const TableState& table) {
  const int64_t version = version_of(table);
  if (version < 0 || version != version_) {
    mark_all();
  }
}

void TouchedRows::mark(const uint32_t* rows, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    bits_[rows[i] / kBits] |= uint64_t{1} << (rows[i] % kBits);
  }
}

void TouchedRows::mark_all() {
  is_all_ = true;
}

void TouchedRows::note_version(const TableState& table) {
  version_ = version_of(table);
}

std::vector<uint32_t> TouchedRows::rows() const {
  std::vector<uint32_t> rows;
  for (size_t word = 0; word < bits_.size(); ++word) {
    for (uint64_t left = bits_[word]; left != 0; left &= left - 1) {
      rows.push_back(
          static_cast<uint32_t>(word * kBits + std::countr_zero(left)));
    }
  }
  return rows;
}

}  // namespace tessera
