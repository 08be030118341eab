// SPDX-License-Identifier: Apache-2.0
#include "serialization/archive.h"

#include <tessera/serialization/config_json.h>

#include "optim/row_update.h"
#include "serialization/load_plan.h"
#include "src/common/check.h"
#include "src/common/checked_archive.h"
#include "src/engine/accumulated_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <nlohmann/json.hpp>

#include <bit>
#include <map>
#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr int64_t kFormatVersion = 1;

constexpr const char* kAccumulationSteps = "accumulation_steps";
constexpr const char* kAccumulatedRows = "accumulated_rows";
constexpr const char* kAccumulatedSums = "accumulated_sums";
constexpr const char* kAccumulatedKeys = "accumulated_keys";
constexpr const char* kAccumulatedCounts = "accumulated_counts";
constexpr const char* kAccumulatedDropped = "accumulated_dropped";

std::string key_of(size_t table) {
  return "table_" + std::to_string(table);
}

// The content of an archive.
struct ArchivedState {
  Manifest state = {};
  std::vector<std::map<std::string, at::Tensor>> tensors = {};  // [tables]
  std::vector<std::string> problems = {};
};

// The dtype as messages show it.
std::string name_of(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf ||
          dtype == at::kChar
      ? to_string(dtype)
      : c10::toString(dtype);
}

void read_version(
    torch::serialize::InputArchive& archive,
    const std::string& where) {
  c10::IValue version;
  TESSERA_CHECK_VALUE(
      archive.try_read("format_version", version) && version.isInt(),
      "{} expected an archive that a TPUEmbedding or EmbeddingEngine saved, but the archive has no format_version. If it is the archive of a whole model, load the whole model, or read the layer's own archive by its name.",
      where);
  TESSERA_CHECK_VALUE(
      version.toInt() == kFormatVersion,
      "{} format_version must be {}, but got {}. Update Tessera, or use the version that saved it.",
      where,
      kFormatVersion,
      version.toInt());
}

void read_table(
    torch::serialize::InputArchive& archive,
    const std::string& where,
    ArchivedState& archived) {
  ManifestTable table;
  std::map<std::string, at::Tensor> tensors;
  for (const std::string& key : archive.keys()) {
    at::Tensor tensor;
    c10::IValue value;
    if (archive.try_read(key, tensor, /*is_buffer=*/true)) {
      if (tensor.defined() && tensor.layout() == at::kStrided) {
        table.tensors.push_back(
            {.name = key,
             .dtype = name_of(tensor.scalar_type()),
             .shape = tensor.sizes().vec()});
        tensors.emplace(key, std::move(tensor));
      }
    } else if (!archive.try_read(key, value)) {
      continue;
    } else if (key == kAccumulationSteps && value.isInt()) {
      table.accumulated = {.steps = value.toInt()};
    } else if (value.isString()) {
      if (key == "name") {
        table.name = value.toStringRef();
      } else if (key == "optimizer") {
        table.optimizer = value.toStringRef();
      }
    }
  }
  if (table.name.empty()) {
    archived.problems.push_back(where + " has no name");
  }
  archived.state.tables.push_back(std::move(table));
  archived.tensors.push_back(std::move(tensors));
}

ArchivedState read_archive(
    torch::serialize::InputArchive& archive,
    const std::string& where) {
  read_version(archive, where);
  check_checksums(archive, where);
  ArchivedState archived;
  c10::IValue passes;
  if (archive.try_read("iterations", passes) && passes.isInt() &&
      passes.toInt() >= 0) {
    archived.state.passes = passes.toInt();
  } else {
    archived.problems.emplace_back("iterations is missing or negative");
  }
  c10::IValue seed;
  if (archive.try_read("seed", seed) && seed.isInt()) {
    archived.state.seed = std::bit_cast<uint64_t>(seed.toInt());
  }
  torch::serialize::InputArchive table;
  for (size_t i = 0; archive.try_read(key_of(i), table); ++i) {
    read_table(table, key_of(i), archived);
    table = torch::serialize::InputArchive();
  }
  return archived;
}

void save_accumulated(
    const EmbeddingState& state,
    size_t table,
    CheckedArchive& archive) {
  const AccumulatedGradients gradients = accumulated_gradients(state, table);
  archive.write(
      kAccumulationSteps,
      c10::IValue(accumulation_steps_of(state.tables[table])));
  archive.write(kAccumulatedRows, gradients.rows);
  archive.write(kAccumulatedSums, gradients.sums);
  if (gradients.keys.defined()) {
    archive.write(kAccumulatedKeys, gradients.keys);
    archive.write(kAccumulatedCounts, gradients.counts);
    archive.write(
        kAccumulatedDropped, at::full({1}, gradients.dropped, at::kLong));
  }
}

// Errors:  c10::ValueError if the archived gradients do not fit the table.
AccumulatedGradients load_accumulated(
    const std::map<std::string, at::Tensor>& tensors,
    const TableState& table,
    const std::string& where) {
  const auto find = [&](const char* key) {
    const auto found = tensors.find(key);
    return found == tensors.end() ? at::Tensor() : found->second;
  };
  AccumulatedGradients gradients{
      .rows = find(kAccumulatedRows),
      .sums = find(kAccumulatedSums),
      .keys = find(kAccumulatedKeys),
      .counts = find(kAccumulatedCounts)};
  const at::Tensor dropped = find(kAccumulatedDropped);
  if (dropped.defined() && dropped.scalar_type() == at::kLong &&
      dropped.numel() == 1) {
    gradients.dropped = dropped.item<int64_t>();
  }
  check_accumulated(gradients, table, where);
  return gradients;
}

}  // namespace

// Each table has its own name and the optimizer that trained it. Bytes of a name that are
// not UTF-8 are replaced, because a JSON text must be UTF-8.
std::string config_text(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& features) {
  Json json = to_json(features);
  for (size_t i = 0; i < state.tables.size(); ++i) {
    const TableState& table = state.tables[i];
    json["tables"][i]["name"] = table.name;
    if (table.optimizer) {
      json["tables"][i]["optimizer"] = to_json(*table.optimizer);
    }
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void save_state(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& features,
    torch::serialize::OutputArchive& output) {
  CheckedArchive archive(output);
  archive.write("format_version", c10::IValue(kFormatVersion));
  archive.write("config", c10::IValue(config_text(state, features)));
  archive.write("iterations", c10::IValue(state.passes));
  archive.write("seed", c10::IValue(std::bit_cast<int64_t>(state.seed)));
  for (size_t i = 0; i < state.tables.size(); ++i) {
    const TableState& table = state.tables[i];
    CheckedArchive entry(archive.compilation_unit());
    entry.write("name", c10::IValue(table.name));
    if (table.optimizer && state.with_slots == WithSlots::kYes) {
      entry.write("optimizer", c10::IValue(optim::name_of(*table.optimizer)));
    }
    if (table.key_rows != nullptr) {
      for (const auto& [name, tensor] : saved_tensors(table)) {
        entry.write(name, tensor);
      }
    } else {
      entry.write("parameters", table.parameters.detach());
      for (const Slot& slot : table.slots) {
        entry.write(optim::slot_key(slot.name), slot.values);
      }
    }
    if (is_accumulating(state, table)) {
      save_accumulated(state, i, entry);
    }
    archive.write(key_of(i), entry);
  }
  archive.finish();
}

void load_state(
    EmbeddingState& state,
    torch::serialize::InputArchive& archive,
    const LoadOptions& options,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      !options.extra && options.checkpoint.empty(),
      "{} LoadOptions::extra and LoadOptions::checkpoint are for checkpoint directories, but this is an archive. Leave them unset, and read other entries of the archive with your own code.",
      where);
  const at::NoGradGuard no_grad;
  const ArchivedState archived = read_archive(archive, where);
  LoadPlan plan =
      plan_load(state, archived.state, options, where, archived.problems);
  for (LoadPlan::Accumulated& entry : plan.accumulated) {
    entry.gradients = load_accumulated(
        archived.tensors[entry.table], state.tables[entry.to], where);
  }
  for (LoadPlan::KeyTable& entry : plan.key_tables) {
    const auto& tensors = archived.tensors[entry.table];
    const TableState& table = state.tables[entry.to];
    const int64_t updates =
        archived.state.passes / accumulation_steps_of(table);
    SavedKeys keys = entry.has_saved_keys
        ? read_keys(tensors, table, where)
        : keys_of_vocabulary(tensors.at("parameters").size(0), table, updates);
    entry.keys =
        LoadedKeys(std::move(keys), updates, entry.later_updates, table, where);
  }
  for (LoadPlan::KeyTable& entry : plan.key_tables) {
    TableState& table = state.tables[entry.to];
    copy_key_rows(
        archived.tensors[entry.table],
        entry.keys,
        entry.keys.place(table),
        entry.slots,
        table);
  }
  for (const LoadPlan::Copy& copy : plan.copies) {
    at::Tensor to = copy.to;
    if (to.size(0) > 0) {
      to.copy_(archived.tensors[copy.table].at(copy.key).slice(
          0, copy.rows.first, copy.rows[to.size(0) - 1] + 1, copy.rows.step));
    }
  }
  plan.finish(state);
}

}  // namespace tessera
