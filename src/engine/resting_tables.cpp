// SPDX-License-Identifier: Apache-2.0
#include "src/engine/resting_tables.h"

#include <tessera/common/shorten.h>
#include <tessera/optim/optimizers.h>

#include "optim/row_update.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <variant>
#include <vector>

namespace tessera {

namespace {

constexpr int64_t kMaxRows = 4096;
constexpr int64_t kMinUpdates = 100;
constexpr size_t kMinTouchedRows = 16;
constexpr double kMinGrowth = 0.01;

// The value at which the accumulators of the optimizer start. Unset: it has none, or the
// user's own function makes them.
std::optional<double> start_of(const optim::OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) -> std::optional<double> {
        if constexpr (requires {
                        spec.initial_accumulator_value;
                        spec.slot_creation;
                      }) {
          if (spec.initial_accumulator_value > 0.0 &&
              !spec.slot_creation.is_set()) {
            return spec.initial_accumulator_value;
          }
        }
        return std::nullopt;
      },
      optimizer.variant());
}

// The median over the rows with a changed accumulator. Unset: there are few of them.
std::optional<double> median_growth(const at::Tensor& slot, double start) {
  const at::NoGradGuard no_grad;
  const int64_t count = slot.size(0);
  const int64_t step = std::max<int64_t>(1, count / kMaxRows);
  const at::Tensor values = slot.detach()
                                .slice(0, 0, step * kMaxRows, step)
                                .reshape({std::min(count, kMaxRows), -1})
                                .to(at::kFloat)
                                .contiguous();
  const auto* value = values.const_data_ptr<float>();
  const int64_t width = values.size(1);
  std::vector<double> growths;
  for (int64_t i = 0; i < values.size(0); ++i, value += width) {
    double sum = 0.0;
    bool is_touched = false;
    for (int64_t j = 0; j < width; ++j) {
      is_touched = is_touched || value[j] != static_cast<float>(start);
      sum += double{value[j]} / start - 1.0;
    }
    if (is_touched) {
      growths.push_back(sum / static_cast<double>(width));
    }
  }
  if (growths.size() < kMinTouchedRows) {
    return std::nullopt;
  }
  const auto middle =
      growths.begin() + static_cast<int64_t>(growths.size() / 2);
  std::nth_element(growths.begin(), middle, growths.end());
  return *middle;
}

}  // namespace

std::string resting_tables(const EmbeddingState& state) {
  std::string text;
  for (const TableState& table : state.tables) {
    // The rows of a key table without a key have no slots yet.
    if (!table.optimizer || table.key_rows != nullptr) {
      continue;
    }
    const int64_t updates =
        state.passes / optim::gradient_accumulation_steps_of(*table.optimizer);
    const std::optional<double> start = start_of(*table.optimizer);
    const auto slot = std::find_if(
        table.slots.begin(), table.slots.end(), [](const Slot& candidate) {
          return candidate.name == "accumulators";
        });
    if (updates < kMinUpdates || !start || slot == table.slots.end() ||
        slot->values.numel() == 0) {
      continue;
    }
    const std::optional<double> growth = median_growth(slot->values, *start);
    if (growth && *growth < kMinGrowth) {
      text += fmt::format(
          "table '{}': after {} updates, the accumulators of its touched rows "
          "have grown by {:.2g} % from their start, {:.3g}. Its rows may "
          "hardly move: see docs/optimizers.md.\n",
          shorten(table.name),
          updates,
          100.0 * *growth,
          *start);
    }
  }
  return text;
}

}  // namespace tessera
