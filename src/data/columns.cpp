// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/columns.h>

#include <tessera/common/shorten.h>

#include <c10/util/Exception.h>

#include <algorithm>

namespace tessera::data {

namespace {

int64_t count_values(const Column& column) {
  if (const auto* text =
          std::get_if<std::vector<std::string>>(&column.values)) {
    return static_cast<int64_t>(text->size());
  }
  return std::get<at::Tensor>(column.values).numel();
}

std::string place_of(std::string_view name) {
  return c10::str("[Columns '", shorten(name), "']");
}

// Dense, on the CPU and [n].
void check_vector(
    const at::Tensor& tensor,
    std::string_view name,
    const char* what) {
  TORCH_CHECK_VALUE(
      tensor.defined() && tensor.layout() == at::kStrided &&
          tensor.device().is_cpu() && tensor.dim() == 1,
      place_of(name),
      " ",
      what,
      " must be a dense tensor [n] on the CPU, but got ",
      tensor.defined() ? c10::str(tensor.toString(), " ", tensor.sizes())
                       : std::string("an undefined one"),
      ".");
}

void check_row_splits(
    const at::Tensor& row_splits,
    int64_t num_values,
    std::string_view name) {
  check_vector(row_splits, name, "row_splits");
  TORCH_CHECK_TYPE(
      row_splits.scalar_type() == at::kLong,
      place_of(name),
      " row_splits must be int64, but got ",
      row_splits.scalar_type(),
      ".");
  const at::Tensor contiguous = row_splits.contiguous();
  const int64_t* begin = contiguous.const_data_ptr<int64_t>();
  const int64_t* end = begin + contiguous.numel();
  TORCH_CHECK_VALUE(
      begin != end && *begin == 0 && *(end - 1) == num_values &&
          std::is_sorted(begin, end),
      place_of(name),
      " row_splits must ascend from 0 to ",
      num_values,
      ", the number of values, one more of them than examples.");
}

}  // namespace

void validate(const Column& column, std::string_view name) {
  if (const auto* tensor = std::get_if<at::Tensor>(&column.values)) {
    check_vector(*tensor, name, "values");
    TORCH_CHECK_TYPE(
        tensor->scalar_type() == at::kLong ||
            tensor->scalar_type() == at::kFloat,
        place_of(name),
        " values must be int64 or float32, but got ",
        tensor->scalar_type(),
        ". Convert them.");
  }
  if (column.row_splits.defined()) {
    check_row_splits(column.row_splits, count_values(column), name);
  }
}

int64_t batch_size(const Column& column) {
  return column.row_splits.defined() ? column.row_splits.numel() - 1
                                     : count_values(column);
}

void Columns::add(std::string name, Column column) {
  validate(column, name);
  TORCH_CHECK_VALUE(
      !contains(name), "[Columns '", shorten(name), "'] is there already.");
  const int64_t size = data::batch_size(column);
  TORCH_CHECK_VALUE(
      entries_.empty() || size == batch_size(),
      "[Columns '",
      shorten(name),
      "'] expected ",
      batch_size(),
      " examples, as in the columns before it, but got ",
      size,
      ".");
  entries_.emplace_back(std::move(name), std::move(column));
}

bool Columns::contains(std::string_view name) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.first == name;
  });
}

const Column& Columns::at(std::string_view name) const {
  for (const auto& [other, column] : entries_) {
    if (other == name) {
      return column;
    }
  }
  std::string known;
  for (const auto& [other, column] : entries_) {
    known.append(known.empty() ? "" : ", ").append(shorten(other));
  }
  TORCH_CHECK_VALUE(
      false,
      "[Columns] no column '",
      shorten(name),
      "'. Known: ",
      known.empty() ? "(none)" : known,
      ".");
}

int64_t Columns::batch_size() const {
  return entries_.empty() ? 0 : data::batch_size(entries_.front().second);
}

}  // namespace tessera::data
