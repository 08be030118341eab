// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/embedding_tables.h>

#include <tessera/common/shorten.h>

#include "src/common/names.h"

#include <c10/util/Exception.h>

namespace tessera {

at::Tensor EmbeddingTables::operator[](const TablePtr& table) const {
  for (const Entry& entry : entries_) {
    if (entry.config == table) {
      return entry.parameters;
    }
  }
  C10_THROW_ERROR(
      ValueError,
      c10::str(
          "[embedding_tables] no feature of this layer uses the table '",
          table == nullptr ? "(null)" : shorten(table->name),
          "' (tables are told apart by object). Pass the TablePtr of a feature "
          "config."));
}

at::Tensor EmbeddingTables::operator[](const std::string& name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) {
      return entry.parameters;
    }
  }
  C10_THROW_ERROR(
      ValueError,
      c10::str(
          "[embedding_tables] no table '",
          shorten(name),
          "'. Known: ",
          join_names(entries_, shortened_name),
          "."));
}

}  // namespace tessera
