// SPDX-License-Identifier: Apache-2.0
#include "src/engine/memory_plan.h"

#include <tessera/common/shorten.h>

#include "optim/row_update.h"
#include "src/common/check.h"
#include "src/common/text.h"
#include "src/tables/key_index.h"
#include "src/tables/key_partitions.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr const char* kAddressLimit = "RLIMIT_AS";
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// A sum or a product of numbers >= 0, or kUnlimited if it is larger.
int64_t sum_of(int64_t a, int64_t b) {
  return __builtin_add_overflow(a, b, &a) ? kUnlimited : a;
}
int64_t product_of(int64_t a, int64_t b) {
  return __builtin_mul_overflow(a, b, &a) ? kUnlimited : a;
}

// The number in a file, or kUnlimited for another text such as "max", and without the file.
int64_t number_in(const fs::path& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : kUnlimited;
}

// The smallest limit of the process's cgroup and of those around it.
int64_t cgroup_limit() {
  int64_t limit = kUnlimited;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // Such as 0::/user.slice in version 2, and 5:cpu,memory:/user.slice in version 1.
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers =
        "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_second = controllers == ",,";
    if (!is_second && controllers.find(",memory,") == std::string::npos) {
      continue;
    }
    const fs::path root =
        is_second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    const char* file = is_second ? "memory.max" : "memory.limit_in_bytes";
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();;
         group = group.parent_path()) {
      limit = std::min(limit, number_in(root / group / file));
      if (group.empty()) {
        break;
      }
    }
  }
  return limit;
}

int64_t address_space_limit() {
  rlimit limit{};
  const bool is_known = ::getrlimit(RLIMIT_AS, &limit) == 0 &&
      limit.rlim_cur < static_cast<rlim_t>(kUnlimited);
  return is_known ? static_cast<int64_t>(limit.rlim_cur) : kUnlimited;
}

int64_t memory_and_swap() {
  struct sysinfo info {};
  return ::sysinfo(&info) == 0
      ? static_cast<int64_t>((info.totalram + info.totalswap) * info.mem_unit)
      : kUnlimited;
}

int64_t slot_bytes(const TableState& table, WithSlots with_slots) {
  if (with_slots == WithSlots::kNo || !table.optimizer) {
    return 0;
  }
  int64_t bytes = 0;
  for (const optim::SlotSpec& slot : optim::slots_of(*table.optimizer)) {
    const int64_t numbers = slot.is_per_row ? 1 : table.config->dim;
    const auto size = static_cast<int64_t>(
        c10::elementSize(slot_dtype_of(*table.config, slot.is_per_row)));
    bytes = sum_of(bytes, product_of(table.rows.count, size * numbers));
  }
  return bytes;
}

MemoryPlan::Table plan_table(const TableState& table, WithSlots with_slots) {
  const TableConfig& config = *table.config;
  MemoryPlan::Table plan{
      .name = table.name,
      .rows = table.rows.count * stored_columns(config.dim, config.dtype) *
          static_cast<int64_t>(c10::elementSize(config.dtype)),
      .slots = slot_bytes(table, with_slots),
      .is_lazy = config.keys && !config.keys->preallocate};
  if (config.keys) {
    DynamicKeys keys = *config.keys;
    keys.preallocate =
        false;  // then an index without keys takes almost no memory
    plan.keys = KeyIndex(
                    keys,
                    table.name,
                    /*random_key=*/0,
                    KeyPartitions(keys.capacity)
                        .in_rows(table.rows.numbers.first, table.rows.count))
                    .bytes_at_capacity();
    if (rounds_at_random(config)) {
      // KeyTableRows::row_keys()
      plan.keys += table.rows.count * static_cast<int64_t>(sizeof(int64_t));
    }
  }
  return plan;
}

int64_t bytes_of(const std::vector<MemoryPlan::Table>& tables, bool is_lazy) {
  int64_t bytes = 0;
  for (const MemoryPlan::Table& table : tables) {
    bytes = sum_of(bytes, table.is_lazy == is_lazy ? table.bytes() : 0);
  }
  return bytes;
}

// Such as "'users': 1.0 GiB (rows 0.8 GiB, slots 0.2 GiB)".
std::string line_of(const MemoryPlan::Table& table) {
  return fmt::format(
      "'{}': {} (rows {}, slots {}{}{})",
      shorten(table.name),
      megabytes(table.bytes()),
      megabytes(table.rows),
      megabytes(table.slots),
      table.keys == 0 ? "" : ", keys " + megabytes(table.keys),
      table.is_lazy ? ", taken as keys come" : "");
}

}  // namespace

int64_t MemoryPlan::Table::bytes() const {
  return sum_of(sum_of(rows, slots), keys);
}

int64_t MemoryPlan::bytes() const {
  return sum_of(step, bytes_of(tables, /*is_lazy=*/false));
}

int64_t MemoryPlan::lazy_bytes() const {
  return bytes_of(tables, /*is_lazy=*/true);
}

std::string to_string(const MemoryPlan& plan) {
  std::string text;
  for (const MemoryPlan::Table& table : plan.tables) {
    text += "table " + line_of(table) + "\n";
  }
  if (plan.step > 0) {
    text += fmt::format("a batch: {}\n", megabytes(plan.step));
  }
  const int64_t lazy = plan.lazy_bytes();
  return text +
      fmt::format(
             "{}{}{}\n",
             megabytes(plan.bytes()),
             lazy == 0
                 ? ""
                 : ", and up to " + megabytes(lazy) + " more as keys come",
             plan.limit == kUnlimited
                 ? ""
                 : fmt::format(
                       ", of {} ({})", megabytes(plan.limit), plan.limit_name));
}

MemoryPlan plan_memory(
    const EmbeddingState& state,
    WithSlots with_slots,
    int64_t batch_size) {
  MemoryPlan plan{.limit = kUnlimited};
  for (const TableState& table : state.tables) {
    plan.tables.push_back(plan_table(table, with_slots));
  }
  for (const FeatureState& feature : state.features) {
    const int64_t numbers =
        std::max<int64_t>(1, feature.config.sequence_length()) *
        feature.config.table->dim;
    plan.step = sum_of(plan.step, product_of(batch_size, 2 * 4 * numbers));
  }
  for (const auto& [name, bytes] :
       {std::pair("the memory and swap of the machine", memory_and_swap()),
        std::pair("the limit of the cgroup", cgroup_limit()),
        std::pair(kAddressLimit, address_space_limit())}) {
    if (bytes < plan.limit) {
      plan.limit = bytes;
      plan.limit_name = name;
    }
  }
  return plan;
}

void check_memory(const MemoryPlan& plan, const std::string& where) {
  const bool takes_lazy = plan.limit_name == kAddressLimit;
  const int64_t all = sum_of(plan.bytes(), plan.lazy_bytes());
  const int64_t needed = takes_lazy ? all : plan.bytes();
  const auto details = [&](bool has_others, bool has_lazy) {
    std::string text;
    for (const MemoryPlan::Table& table : plan.tables) {
      if (table.is_lazy ? has_lazy : has_others) {
        text += "\n  table " + line_of(table);
      }
    }
    return text;
  };
  TESSERA_CHECK_VALUE(
      needed <= plan.limit,
      "{} the tables need {}, but {} is {}:{}\nUse fewer or narrower rows, a dtype of 16 or 8 bits, an optimizer with one number per row such as RowWiseAdagrad, or more processes. check_memory = false makes the tables in any case.",
      where,
      megabytes(needed),
      plan.limit_name,
      megabytes(plan.limit),
      details(/*has_others=*/true, takes_lazy));
  if (all > plan.limit) {
    TORCH_WARN(fmt::format(
        "{} with all their keys, the tables would need {}, but {} is {}:{}\nLower DynamicKeys::capacity if so many keys may come.",
        where,
        megabytes(all),
        plan.limit_name,
        megabytes(plan.limit),
        details(/*has_others=*/false, /*has_lazy=*/true)));
  }
}

}  // namespace tessera
