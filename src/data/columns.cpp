// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/columns.h>

#include <c10/util/Exception.h>

namespace tessera {

namespace {

int64_t count(const Column& column, const std::string& name) {
  if (column.row_splits.defined()) {
    TORCH_CHECK_VALUE(
        column.row_splits.dim() == 1 && column.row_splits.numel() >= 1 &&
            column.row_splits.scalar_type() == at::kLong,
        "[Columns '",
        name,
        "'] row_splits must be int64 [batch + 1], but got ",
        column.row_splits.toString(),
        " ",
        column.row_splits.sizes(),
        ".");
    return column.row_splits.numel() - 1;
  }
  if (const auto* text =
          std::get_if<std::vector<std::string>>(&column.values)) {
    return static_cast<int64_t>(text->size());
  }
  const auto& tensor = std::get<at::Tensor>(column.values);
  TORCH_CHECK_VALUE(
      tensor.defined() && tensor.dim() == 1,
      "[Columns '",
      name,
      "'] expected a tensor [batch], but got ",
      tensor.defined() ? c10::str(tensor.sizes()) : "an undefined one",
      ".");
  return tensor.numel();
}

}  // namespace

void Columns::add(std::string name, Column column) {
  const int64_t size = count(column, name);
  TORCH_CHECK_VALUE(
      !contains(name), "[Columns '", name, "'] is there already.");
  TORCH_CHECK_VALUE(
      entries_.empty() || size == batch_size(),
      "[Columns '",
      name,
      "'] expected ",
      batch_size(),
      " examples, as in the columns before it, but got ",
      size,
      ".");
  entries_.emplace_back(std::move(name), std::move(column));
}

bool Columns::contains(std::string_view name) const {
  for (const auto& [known, column] : entries_) {
    if (known == name) {
      return true;
    }
  }
  return false;
}

const Column& Columns::at(std::string_view name) const {
  std::string known;
  for (const auto& [other, column] : entries_) {
    if (other == name) {
      return column;
    }
    known += (known.empty() ? "" : ", ") + other;
  }
  TORCH_CHECK_VALUE(
      false,
      "[Columns] no column '",
      name,
      "'. Known: ",
      known.empty() ? "(none)" : known,
      ".");
}

int64_t Columns::batch_size() const {
  return entries_.empty()
      ? 0
      : count(entries_.front().second, entries_.front().first);
}

}  // namespace tessera
