// SPDX-License-Identifier: Apache-2.0
#include "serialization/archive.h"

#include <tessera/serialization/config_json.h>

#include "optim/row_update.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace tessera {

namespace {

constexpr int64_t kFormatVersion = 1;

std::string key_of(size_t table) {
  return "table_" + std::to_string(table);
}

std::string name_of(at::ScalarType dtype) {
  const bool is_tables =
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  return is_tables ? to_string(dtype) : c10::toString(dtype);
}

// What is read from an archive before anything is copied.
class StateReader {
 public:
  explicit StateReader(torch::serialize::InputArchive& archive)
      : archive_(archive) {}

  void read(EmbeddingState& state) {
    c10::IValue version;
    TORCH_CHECK_VALUE(
        archive_.try_read("format_version", version) && version.isInt(),
        "[TPUEmbedding::load] the archive has no format_version: expected what "
        "TPUEmbedding saved. Load the whole model that holds the layer, or "
        "name the layer's own archive.");
    TORCH_CHECK_VALUE(
        version.toInt() == kFormatVersion,
        "[TPUEmbedding::load] format_version must be ",
        kFormatVersion,
        ", but got ",
        version.toInt(),
        ". Update the library.");
    with_slots_ = state.with_slots;
    c10::IValue iterations;
    expect(
        archive_.try_read("iterations", iterations) && iterations.isInt() &&
            iterations.toInt() >= 0,
        "iterations is missing or negative");
    for (size_t i = 0; i < state.tables.size(); ++i) {
      read_table(state.tables[i], i);
    }
    torch::serialize::InputArchive extra;
    expect(
        !archive_.try_read(key_of(state.tables.size()), extra),
        fmt::format(
            "the archive has more tables than the layer's {}",
            state.tables.size()));
    TORCH_CHECK_VALUE(
        problems_.empty(),
        "[TPUEmbedding::load] the archive does not fit this layer; nothing was "
        "changed:",
        problems_,
        "\nBuild the layer with the configuration that was saved.");
    const at::NoGradGuard no_grad;
    for (auto& [to, from] : copies_) {
      to.copy_(from);
    }
    state.iterations = iterations.toInt();
    state.has_skipped_slots = has_skipped_slots_;
  }

 private:
  void expect(bool is_right, const std::string& problem) {
    if (!is_right) {
      problems_ += "\n  " + problem;
    }
  }

  void read_table(TableState& table, size_t index) {
    torch::serialize::InputArchive entry;
    const std::string where =
        fmt::format("{} '{}': ", key_of(index), table.name);
    if (!archive_.try_read(key_of(index), entry)) {
      expect(false, where + "missing in the archive");
      return;
    }
    c10::IValue name;
    const bool has_name = entry.try_read("name", name) && name.isString();
    expect(
        has_name && name.toStringRef() == table.name,
        fmt::format(
            "{}the archive's table is named '{}'",
            where,
            has_name ? name.toStringRef() : "(no name)"));
    read_optimizer(entry, where, table);
    read_tensor(entry, "parameters", where + "parameters", table.parameters);
    for (Slot& slot : table.slots) {
      read_tensor(
          entry,
          optim::slot_key(slot.name),
          where + "slot " + slot.name,
          slot.values);
    }
  }

  // Another optimizer's slots must not be dropped without a word; a layer that
  // keeps none takes the tables alone.
  void read_optimizer(
      torch::serialize::InputArchive& entry,
      const std::string& where,
      const TableState& table) {
    c10::IValue optimizer;
    if (!entry.try_read("optimizer", optimizer) || !optimizer.isString() ||
        !table.optimizer) {
      return;
    }
    if (with_slots_ == WithSlots::kNo) {
      has_skipped_slots_ = true;
      return;
    }
    const std::string expected = optim::name_of(*table.optimizer);
    expect(
        optimizer.toStringRef() == expected,
        fmt::format(
            "{}the optimizer is {}, but the archive's is {}",
            where,
            expected,
            optimizer.toStringRef()));
  }

  void read_tensor(
      torch::serialize::InputArchive& entry,
      const std::string& key,
      const std::string& what,
      at::Tensor& to) {
    at::Tensor from;
    if (!entry.try_read(key, from, /*is_buffer=*/true)) {
      expect(false, what + " is missing in the archive");
      return;
    }
    const bool fits = from.sizes() == to.sizes() &&
        from.scalar_type() == to.scalar_type() && from.layout() == at::kStrided;
    expect(
        fits,
        fmt::format(
            "{} expected {} [{}], but got {} [{}]",
            what,
            name_of(to.scalar_type()),
            fmt::join(to.sizes(), ", "),
            name_of(from.scalar_type()),
            fmt::join(from.sizes(), ", ")));
    if (fits) {
      copies_.emplace_back(to, from);
    }
  }

  torch::serialize::InputArchive& archive_;
  WithSlots with_slots_ = WithSlots::kYes;
  bool has_skipped_slots_ = false;
  std::string problems_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies_;
};

// A name need not be UTF-8, a JSON text must.
std::string config_text(const Nest<FeatureConfig>& features) {
  return to_json(features).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

void save_state(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& features,
    torch::serialize::OutputArchive& archive) {
  archive.write("format_version", c10::IValue(kFormatVersion));
  archive.write("config", c10::IValue(config_text(features)));
  archive.write("iterations", c10::IValue(state.iterations));
  for (size_t i = 0; i < state.tables.size(); ++i) {
    const TableState& table = state.tables[i];
    torch::serialize::OutputArchive entry(archive.compilation_unit());
    entry.write("name", c10::IValue(table.name));
    if (table.optimizer && state.with_slots == WithSlots::kYes) {
      entry.write("optimizer", c10::IValue(optim::name_of(*table.optimizer)));
    }
    entry.write("parameters", table.parameters.detach(), /*is_buffer=*/true);
    for (const Slot& slot : table.slots) {
      entry.write(optim::slot_key(slot.name), slot.values, /*is_buffer=*/true);
    }
    archive.write(key_of(i), entry);
  }
}

void load_state(
    EmbeddingState& state,
    torch::serialize::InputArchive& archive) {
  StateReader(archive).read(state);
}

}  // namespace tessera
