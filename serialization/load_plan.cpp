// SPDX-License-Identifier: Apache-2.0
#include "serialization/load_plan.h"

#include "src/tables/key_table_rows.h"

#include <tessera/common/shorten.h>

#include "optim/row_update.h"
#include "optim/tensor_update.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace tessera {

namespace {

std::string to_string(const ManifestTensor& tensor) {
  return fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.shape, ", "));
}

// 0 if no accumulated gradients were saved.
int64_t saved_steps(const ManifestTable& saved) {
  return saved.accumulated ? saved.accumulated->steps : 0;
}

constexpr auto quoted_name = [](const auto& table) {
  return fmt::format("'{}'", shorten(table.name));
};

template <class Named>
std::string names_of(const std::vector<Named>& tables) {
  const std::string names = join_names(tables, quoted_name);
  return names.empty() ? "none" : names;
}

// nullptr if no element has this name.
template <class T>
const T* find(
    const std::vector<T>& elements,
    std::string T::*name_of,
    const std::string& name) {
  const auto found = std::ranges::find(elements, name, name_of);
  return found == elements.end() ? nullptr : &*found;
}

// Compares a layer with what was saved.
class LoadPlanner {
 public:
  LoadPlanner(
      const EmbeddingState& state,
      const Manifest& saved,
      const LoadOptions& options,
      std::vector<std::string> problems)
      : state_(state),
        saved_(saved),
        options_(options),
        problems_(std::move(problems)) {}

  LoadPlan plan(const std::string& where) {
    if (options_.tables.empty()) {
      compare_all();
    } else {
      compare_selected();
    }
    TESSERA_CHECK_VALUE(
        problems_.empty(),
        "{} the saved tables do not fit this layer. Nothing was changed. Problems:\n  {}\nBuild the layer with the saved configuration{} or load less with LoadOptions, whose convert_rows allows other dtypes. load() and load_checkpoint() of the layer take LoadOptions, but torch::load() and load_weights() do not.",
        where,
        fmt::format("{}", fmt::join(problems_, "\n  ")),
        misses_slot_ && state_.missing_slots == MissingSlots::kError
            ? ", set the option missing_slots,"
            : ",");
    if (loads_counter()) {
      plan_.passes = saved_.passes;
      plan_.seed = saved_.seed;
    }
    plan_.where = where;
    return std::move(plan_);
  }

 private:
  // If this is false, the layer keeps its step counter and seed.
  bool loads_counter() const {
    return options_.tables.empty() && options_.slots;
  }

  template <class... Args>
  void report(
      const std::string& table,
      fmt::format_string<Args...> problem,
      Args&&... args) {
    problems_.push_back(
        fmt::format("table '{}': ", shorten(table)) +
        fmt::format(problem, std::forward<Args>(args)...));
  }

  void compare_all() {
    for (const TableState& table : state_.tables) {
      compare(table.name);
    }
    for (const ManifestTable& table : saved_.tables) {
      if (find(state_.tables, &TableState::name, table.name) == nullptr) {
        report(
            table.name,
            "it was saved, but the layer has only {}",
            names_of(state_.tables));
      }
    }
  }

  void compare_selected() {
    for (const std::string& name : options_.tables) {
      if (find(state_.tables, &TableState::name, name) == nullptr) {
        report(
            name,
            "LoadOptions::tables names it, but the layer has only {}",
            names_of(state_.tables));
      } else {
        compare(name);
      }
    }
  }

  void compare(const std::string& name) {
    const TableState& table = *find(state_.tables, &TableState::name, name);
    const ManifestTable* saved =
        find(saved_.tables, &ManifestTable::name, name);
    if (saved == nullptr) {
      report(
          name, "it was not saved. Saved tables: {}", names_of(saved_.tables));
      return;
    }
    plan_.tables.push_back(&table - state_.tables.data());
    if (table.key_rows != nullptr ||
        find_tensor(*saved, kSavedKeys) != nullptr) {
      compare_keys(table, *saved);
      return;
    }
    compare_tensor(table, *saved, "parameters", "parameters", table.parameters);
    if (!options_.slots ||
        (state_.missing_slots == MissingSlots::kKeep && has_no_slots(*saved))) {
      return;
    }
    if (state_.with_slots == WithSlots::kYes) {
      compare_slots(table, *saved);
    } else {
      compare_optional_slots(table, *saved);
    }
  }

  // nullptr if it was not saved.
  static const ManifestTensor* find_tensor(
      const ManifestTable& saved,
      const std::string& key) {
    return find(saved.tensors, &ManifestTensor::name, key);
  }

  // The key of each slot in the file. In files of older versions, it may be the key of
  // SlotSpec::earlier_name.
  std::vector<std::string> saved_slot_keys(
      const TableState& table,
      const ManifestTable& saved) {
    std::vector<std::string> keys;
    if (table.slots.empty()) {
      return keys;
    }
    for (const optim::SlotSpec& slot : optim::slots_of(*table.optimizer)) {
      const std::string key = optim::slot_key(slot.name);
      const std::string earlier = optim::slot_key(slot.earlier_name);
      const bool is_earlier = !slot.earlier_name.empty() &&
          find_tensor(saved, key) == nullptr &&
          find_tensor(saved, earlier) != nullptr;
      if (is_earlier && table.config->slot_dtype != at::kFloat) {
        report(table.name, "slots of an older file need slot_dtype kFloat");
      }
      keys.push_back(is_earlier ? earlier : key);
    }
    return keys;
  }

  // Compares a tensor of the layer with the saved one, which must have `rows` rows, or
  // fewer if `may_have_fewer`. Returns the saved tensor if it fits. Otherwise, reports the
  // problem and returns nullptr.
  const ManifestTensor* find_fitting(
      const TableState& table,
      const ManifestTable& saved,
      const std::string& key,
      const std::string& what,
      const at::Tensor& to,
      int64_t rows,
      bool may_have_fewer = false) {
    const ManifestTensor* found = find_tensor(saved, key);
    if (found == nullptr) {
      report(table.name, "{} was not saved", what);
      misses_slot_ |= key != "parameters";
      return nullptr;
    }
    ManifestTensor expected{
        .dtype = tessera::to_string(to.scalar_type()),
        .shape = to.sizes().vec()};
    expected.shape[0] = rows;
    const bool is_of_slots =
        found->dtype == "float32" || found->dtype == "bfloat16";
    const bool is_convertible = key != "parameters"
        ? is_of_slots && to.dim() == 2
        : is_of_slots || found->dtype == "float16" || found->dtype == "int8";
    if (options_.convert_rows && is_convertible) {
      expected.dtype = found->dtype;
      expected.shape[1] =
          stored_columns(table.config->dim, found->scalar_type());
    }
    std::vector<int64_t> shape = found->shape;
    if (may_have_fewer && !shape.empty() && shape[0] < rows) {
      shape[0] = rows;
    }
    if (found->dtype != expected.dtype || shape != expected.shape) {
      report(
          table.name,
          "{} is {} in the layer, but was saved as {}",
          what,
          to_string(expected),
          to_string(*found));
      return nullptr;
    }
    return found;
  }

  // Compares a table that has keys in the layer or in the file. The number of saved rows
  // may differ from that of the layer, but not between tensors.
  void compare_keys(const TableState& table, const ManifestTable& saved) {
    const bool with_slots = options_.slots &&
        state_.with_slots == WithSlots::kYes &&
        !(state_.missing_slots == MissingSlots::kKeep && has_no_slots(saved));
    const ManifestTensor* parameters = find_tensor(saved, "parameters");
    const int64_t rows = parameters == nullptr || parameters->shape.empty()
        ? 0
        : parameters->shape[0];
    find_fitting(
        table, saved, "parameters", "parameters", table.parameters, rows);
    std::vector<std::string> slots;
    if (with_slots) {
      compare_optimizer(table, saved);
      slots = saved_slot_keys(table, saved);
      for (size_t i = 0; i < slots.size(); ++i) {
        find_fitting(
            table,
            saved,
            slots[i],
            "slot " + shorten(table.slots[i].name),
            table.slots[i].values,
            rows);
      }
    }
    if (with_slots && options_.tables.empty()) {
      compare_accumulation_of_keys(table, saved);
    }
    if (options_.slots && state_.with_slots == WithSlots::kNo) {
      plan_.has_skipped_slots |= saved.optimizer && table.optimizer;
    }
    const int64_t steps = accumulation_steps_of(table);
    plan_.key_tables.push_back(
        {.table = static_cast<size_t>(&saved - saved_.tables.data()),
         .to = static_cast<size_t>(&table - state_.tables.data()),
         .slots = std::move(slots),
         .has_saved_keys = find_tensor(saved, kSavedKeys) != nullptr,
         .later_updates = loads_counter()
             ? 0
             : state_.passes / steps - saved_.passes / steps});
  }

  void compare_accumulation_of_keys(
      const TableState& table,
      const ManifestTable& saved) {
    const bool has_saved_keys = find_tensor(saved, kSavedKeys) != nullptr;
    if (saved_steps(saved) == 0 ||
        has_saved_keys == (table.key_rows != nullptr)) {
      compare_accumulation(table, saved);
      return;
    }
    report(
        table.name,
        "it was saved {} in the middle of an accumulation over {} passes, and only a table of the same kind can take the gradients. Save it after an update",
        has_saved_keys ? "with keys" : "with a vocabulary",
        saved_steps(saved));
  }

  // Compares the slots of a layer on the host before make_optimizer(). The layer takes the
  // slots of a table only if all of them fit the slots that a slot_creation has made.
  void compare_optional_slots(
      const TableState& table,
      const ManifestTable& saved) {
    const size_t problems = problems_.size();
    const size_t copies = plan_.copies.size();
    const size_t earlier = plan_.earlier_slots.size();
    if (!table.slots.empty()) {
      compare_slots(table, saved);
      if (problems_.size() == problems) {
        // Without make_optimizer() there is no place for accumulated gradients.
        plan_.has_skipped_slots |= saved_steps(saved) > 0;
        return;
      }
    }
    problems_.resize(problems);
    plan_.copies.resize(copies);
    plan_.earlier_slots.resize(earlier);
    plan_.has_skipped_slots |= saved.optimizer && table.optimizer;
  }

  void compare_slots(const TableState& table, const ManifestTable& saved) {
    compare_optimizer(table, saved);
    const std::vector<std::string> keys = saved_slot_keys(table, saved);
    const size_t first = plan_.copies.size();
    for (size_t i = 0; i < keys.size(); ++i) {
      compare_tensor(
          table,
          saved,
          keys[i],
          "slot " + shorten(table.slots[i].name),
          table.slots[i].values);
    }
    // If a slot does not fit, nothing is loaded.
    if (are_earlier(keys, table) &&
        plan_.copies.size() == first + keys.size()) {
      LoadPlan::EarlierSlots& earlier = plan_.earlier_slots.emplace_back();
      earlier.to = &table - state_.tables.data();
      for (size_t i = first; i < plan_.copies.size(); ++i) {
        earlier.slots.push_back(plan_.copies[i].to);
      }
    }
    if (options_.tables.empty()) {
      compare_accumulation(table, saved);
    }
  }

  // Accumulated gradients are loaded together with the step counter that they belong to.
  void compare_accumulation(
      const TableState& table,
      const ManifestTable& saved) {
    if (!saved.optimizer || !table.optimizer ||
        state_.with_slots == WithSlots::kNo) {
      return;
    }
    const int64_t steps = accumulation_steps_of(table);
    if (saved_steps(saved) == 0) {
      if (saved_.passes % steps != 0) {
        plan_.without_gradients.push_back(quoted_name(table));
      }
      return;
    }
    if (saved_steps(saved) != steps) {
      report(
          table.name,
          "gradient_accumulation_steps is {}, but the saved gradients are a part of an accumulation over {} steps",
          steps,
          saved_steps(saved));
      return;
    }
    plan_.accumulated.push_back(
        {.table = static_cast<size_t>(&saved - saved_.tables.data()),
         .to = static_cast<size_t>(&table - state_.tables.data())});
  }

  static bool has_no_slots(const ManifestTable& saved) {
    const std::string slot = optim::slot_key("");
    return !saved.optimizer &&
        std::ranges::none_of(saved.tensors, [&](const auto& tensor) {
          return tensor.name.starts_with(slot);
        });
  }

  // Reports another optimizer, because its slots must not be dropped silently.
  void compare_optimizer(const TableState& table, const ManifestTable& saved) {
    if (!saved.optimizer || !table.optimizer) {
      return;
    }
    const std::string expected = optim::name_of(*table.optimizer);
    if (*saved.optimizer != expected) {
      report(
          table.name,
          "the optimizer is {}, but the saved one is {}",
          expected,
          shorten(*saved.optimizer));
    }
  }

  void compare_tensor(
      const TableState& table,
      const ManifestTable& saved,
      const std::string& key,
      const std::string& what,
      const at::Tensor& to) {
    const ManifestTensor* found = find_fitting(
        table,
        saved,
        key,
        what,
        to,
        table.config->vocabulary_size,
        options_.grown);
    if (found == nullptr) {
      return;
    }
    LoadPlan::Copy copy{
        .table = static_cast<size_t>(&saved - saved_.tables.data()),
        .key = key,
        .to = to.slice(0, 0, table.rows.count_before(found->shape[0])),
        .rows = table.rows.numbers};
    const at::ScalarType dtype = found->scalar_type();
    if (dtype != to.scalar_type()) {
      copy.converted = std::exchange(
          copy.to, at::empty({copy.to.size(0), found->shape[1]}, dtype));
    }
    plan_.copies.push_back(std::move(copy));
  }

  const EmbeddingState& state_;
  const Manifest& saved_;
  const LoadOptions& options_;
  std::vector<std::string> problems_;
  LoadPlan plan_;
  bool misses_slot_ = false;
};

}  // namespace

void LoadPlan::finish(EmbeddingState& state) const {
  for (const Copy& copy : copies) {
    if (copy.converted.defined()) {
      assign_rows(copy.converted, float_rows(copy.to));
    }
  }
  for (const EarlierSlots& earlier : earlier_slots) {
    optim::convert_earlier_slots(
        *state.tables[earlier.to].optimizer, earlier.slots);
  }
  // A load of everything sets has_skipped_slots. A load of some tables never resets it.
  state.has_skipped_slots =
      has_skipped_slots || (!passes && state.has_skipped_slots);
  state.passes = passes.value_or(state.passes);
  state.seed = seed.value_or(state.seed);
  for (TableState& table : state.tables) {
    if (table.key_rows != nullptr) {
      table.key_rows->set_seed(state.seed);
    }
  }
  for (const size_t table : tables) {
    clear_accumulated(state, table);
  }
  for (const Accumulated& entry : accumulated) {
    set_accumulated(
        state,
        entry.to,
        entry.gradients,
        state.passes % accumulation_steps_of(state.tables[entry.to]));
  }
  if (!without_gradients.empty()) {
    TORCH_WARN(fmt::format(
        "{} the loaded tables were saved after pass {}, in the middle of a gradient accumulation of this layer, but without the accumulated gradients of {}. If there were any, these passes count as zeros in the next update. To avoid this, load tables that were saved right after an update.",
        where,
        state.passes,
        join_names(without_gradients)));
  }
}

LoadPlan plan_load(
    const EmbeddingState& state,
    const Manifest& saved,
    const LoadOptions& options,
    const std::string& where,
    std::vector<std::string> problems) {
  return LoadPlanner(state, saved, options, std::move(problems)).plan(where);
}

}  // namespace tessera
