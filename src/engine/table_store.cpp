// SPDX-License-Identifier: Apache-2.0
#include "src/engine/table_store.h"

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>
#include <tessera/optim/optimizers/custom_optimizer.h>

#include "optim/row_update.h"
#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/tensor_text.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/finite_gradients.h"
#include "src/engine/sampled_rows.h"

#include <ATen/TensorUtils.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera {

namespace {

std::string where_of(const TableState& table) {
  return "[table '" + shorten(table.name) + "']";
}

// The indices of contributions and sources have 32 bits.
void check_count(const TableUpdate& update) {
  int64_t count = 0;
  for (const TableUpdate::Term& term : update.terms) {
    count += std::max(term.bags->nnz(), term.bags->bags);
  }
  TESSERA_CHECK_VALUE(
      count < std::numeric_limits<uint32_t>::max(),
      "{} one update must have fewer than 2^32 - 1 ids and bags, but got {}. Split the batch.",
      where_of(*update.table),
      count);
}

// The tensors of `table`, in the form that a custom rule gets.
optim::TensorRows rows_of(const TableState& table) {
  const auto values_of = [](const Slot& slot) { return slot.values; };
  return {
      .weights = table.parameters, .slots = c10::fmap(table.slots, values_of)};
}

CustomUpdate run_custom_rule(
    TableState& table,
    const RowGradients& gradients,
    const KeyUpdate* keys,
    const optim::StepContext& context) {
  const auto rows = std::ssize(gradients.rows);
  CustomUpdate update{.table = &table, .ids = at::empty({rows}, at::kLong)};
  std::ranges::copy(gradients.rows, update.ids.mutable_data_ptr<int64_t>());
  const at::Tensor sums =
      at::tensor(c10::ArrayRef<float>(gradients.sums), at::kFloat)
          .view({rows, table.config->dim});
  update.rows = optim::gather_rows(rows_of(table), update.ids);
  update.rows.weights = float_rows(update.rows.weights);
  if (keys != nullptr) {
    set_initial_rows(*keys, update.ids, update.rows);
  }
  optim::update_rows(
      *table.optimizer, context, sums, update.rows, where_of(table));
  update.rows.weights = update.rows.weights.resolve_neg().contiguous();
  return update;
}

// The number of floats from one row [dim] of a tensor to the next, if the numbers of a row
// are adjacent and all rows are equally far apart. The gradient of a concatenation has
// such rows.
std::optional<int64_t> row_stride_of(const at::Tensor& tensor) {
  const int64_t dim = tensor.size(-1);
  const auto strides = at::detail::computeStride(
      tensor.sizes(),
      tensor.strides(),
      at::DimVector{tensor.numel() / dim, dim});
  return strides && (dim == 1 || strides->back() == 1)
      ? std::optional(strides->front())
      : std::nullopt;
}

void write(const CustomUpdate& update) {
  TableState& table = *update.table;
  kernels::StoredRows stored = mutable_rows(table.parameters);
  stored.rounding = update.rounding;
  const int64_t* ids = update.ids.const_data_ptr<int64_t>();
  const float* weights = update.rows.weights.const_data_ptr<float>();
  const kernels::KernelTable& kernels = active_kernels();
  constexpr int64_t kRowsPerTask = 256;
  const int64_t rows = update.ids.numel();
  const auto bytes = static_cast<int64_t>(update.rows.weights.nbytes());
  run_ranges(rows, kRowsPerTask, bytes, [&](int64_t begin, int64_t end) {
    table.mark(c10::IntArrayRef(ids + begin, end - begin));
    for (int64_t i = begin; i < end; ++i) {
      kernels.assign_row(stored, ids[i], weights + i * stored.dim);
    }
  });
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < table.slots.size(); ++i) {
    table.slots[i].values.index_copy_(0, update.ids, update.rows.slots[i]);
  }
}

}  // namespace

TableStore::TableStore(
    std::shared_ptr<EmbeddingState> state,
    int64_t lookup_threads)
    : state_(std::move(state)),
      has_key_tables_(tessera::has_key_tables(*state_)),
      lookup_threads_(lookup_threads) {
  int64_t max_dim = 0;
  std::vector<optim::LearningRate> learning_rates;
  for (const TableState& table : state_->tables) {
    max_dim = std::max(max_dim, table.config->dim);
    table_memory_.add(lookup_rows_of(table));
    for (const Slot& slot : table.slots) {
      table_memory_.add(slot.values);
    }
    accumulation_steps_.push_back(accumulation_steps_of(table));
    learning_rates.push_back(
        table.optimizer ? optim::learning_rate_of(*table.optimizer) : 0.0);
  }
  learning_rate_tags_ = optim::learning_rate_tags(learning_rates);
  zero_row_.assign(max_dim, 0.0F);
  std::vector<LookupTable> lookup_tables;
  for (const FeatureState& feature : state_->features) {
    const TableState& table = state_->tables[feature.table];
    lookup_tables.push_back({lookup_rows_of(table), buckets_of(*table.config)});
  }
  lookup_tables_ = std::make_shared<const std::vector<LookupTable>>(
      std::move(lookup_tables));
}

std::vector<at::Tensor> TableStore::lookup_local(
    std::vector<IdBags>& bags,
    UnknownKeys unknown) const {
  const ProfileScope scope("tessera::lookup");
  const auto reading = lock_for_reading();
  ScratchRows scratch;
  if (has_key_tables_) {
    scratch = find_keys(*state_, bags, unknown);
  }
  return tessera::lookup(bags, *lookup_tables_);
}

Lookup TableStore::lookup(std::vector<IdBags>& bags, UnknownKeys unknown) {
  const ProfileScope scope("tessera::lookup");
  const auto reading = lock_for_reading();
  Lookup result{.tables = lookup_tables_};
  if (has_key_tables_) {
    result.scratch = find_keys(*state_, bags, unknown);
  }
  result.activations = tessera::lookup(bags, *lookup_tables_);
  return result;
}

void TableStore::warn_of_missing_gradients(
    const std::vector<LookupGradients>& lookups) {
  for (size_t i = 0; i < state_->features.size() && !has_warned_; ++i) {
    if (!state_->tables[state_->features[i].table].optimizer) {
      continue;  // not updated at all
    }
    // A feature that forward_partial() left out has no ids.
    const bool has_ids =
        std::ranges::any_of(lookups, [&](const LookupGradients& lookup) {
          return (*lookup.bags)[i].nnz() > 0;
        });
    has_warned_ = has_ids &&
        std::ranges::none_of(lookups, [&](const LookupGradients& lookup) {
                    return lookup.gradients[i].defined();
                  });
    if (has_warned_) {
      TORCH_WARN(fmt::format(
          "[feature '{}'] no gradient reached its activation, so its rows are updated with a gradient of zeros, which moves them under momentum or weight decay. Add the activation to the loss, or put the feature in a layer of its own. This warning is given once.",
          shorten(state_->features[i].path)));
    }
  }
}

void TableStore::check(const LookupGradients& gradients) const {
  for (size_t i = 0; i < gradients.gradients.size(); ++i) {
    const at::Tensor& gradient = gradients.gradients[i];
    if (!gradient.defined()) {
      continue;
    }
    const at::DimVector expected = (*gradients.bags)[i].activation_shape();
    TESSERA_CHECK_VALUE(
        gradient.sizes() == c10::IntArrayRef(expected) &&
            gradient.scalar_type() == at::kFloat && gradient.is_cpu() &&
            gradient.layout() == at::kStrided && !gradient._is_zerotensor(),
        "[feature '{}'] the gradient must be a dense float32 cpu tensor of shape {}, but got {}. Convert it, or use operators that return such gradients.",
        shorten(state_->features[i].path),
        c10::IntArrayRef(expected),
        describe(gradient));
  }
}

TableUpdate::Term TableStore::term_of(
    const LookupGradients& lookup,
    size_t feature,
    Update& update) const {
  TableUpdate::Term term{.bags = &(*lookup.bags)[feature]};
  term.gradient = zero_row_.data();
  const at::Tensor& gradient = lookup.gradients[feature];
  if (gradient.defined()) {
    // resolve_neg() takes 100 ns even if it does nothing.
    at::Tensor values = gradient.is_neg() ? gradient.resolve_neg() : gradient;
    std::optional<int64_t> stride = row_stride_of(values);
    // The update writes to the memory of the tables while it reads gradients, which are
    // views of a table after activation.backward(table).
    if (!stride || table_memory_.overlap(values)) {
      values = values.clone(at::MemoryFormat::Contiguous);
      stride = term.bags->dim;
    }
    update.gradients.push_back(std::move(values));
    term.gradient = update.gradients.back().const_data_ptr<float>();
    term.stride = *stride;
  }
  return term;
}

bool TableStore::is_updated(
    const std::vector<LookupGradients>& lookups,
    size_t index) const {
  const TableState& table = state_->tables[index];
  if (!table.config->trainable ||
      (!table.optimizer && !has_gradient(lookups, index))) {
    return false;
  }
  TESSERA_CHECK_VALUE(
      table.optimizer.has_value(),
      "{} has no optimizer, but gradients reached it. Set TableConfig::optimizer, or the optimizer of the layer or engine. To freeze the table, set trainable = false. To freeze a whole layer, call virtual_variable().requires_grad_(false).",
      where_of(table));
  return true;
}

std::vector<TableUpdate> TableStore::read_gradients(
    const std::vector<LookupGradients>& lookups,
    FiniteCheck finite_check,
    Update& update) {
  std::vector<TableUpdate> updates(state_->tables.size());
  update.gradients.reserve(lookups.size() * state_->features.size());
  for (const LookupGradients& lookup : lookups) {
    check(lookup);
    for (size_t i = 0; i < state_->features.size(); ++i) {
      updates[state_->features[i].table].terms.push_back(
          term_of(lookup, i, update));
    }
  }
  for (size_t i = 0; i < updates.size(); ++i) {
    if (is_updated(lookups, i)) {
      updates[i].table = &state_->tables[i];
    }
  }
  check_finite(updates, finite_check, update);
  if (finite_check == FiniteCheck::kRaise) {
    check_dense_parameters();
  }
  return updates;
}

void TableStore::check_finite(
    const std::vector<TableUpdate>& updates,
    FiniteCheck finite_check,
    Update& update) const {
  if (!refuses_non_finite(*state_)) {
    return;
  }
  std::string message = find_non_finite(*state_, updates);
  TESSERA_CHECK_VALUE(
      message.empty() || finite_check == FiniteCheck::kNote, "{}", message);
  if (!message.empty()) {
    update.non_finite = std::move(message);
  }
}

bool TableStore::has_gradient(
    const std::vector<LookupGradients>& lookups,
    size_t table) const {
  for (const LookupGradients& lookup : lookups) {
    for (size_t i = 0; i < state_->features.size(); ++i) {
      if (state_->features[i].table == table && lookup.gradients[i].defined()) {
        return true;
      }
    }
  }
  return false;
}

// As in Keras, the counter of passes decides, and not how many gradients were collected. If
// a load has dropped some gradients, they count as zeros, and Adam's t and schedules still
// agree.
bool TableStore::is_due(const TableState& table) const {
  return (state_->passes + 1) % accumulation_steps_of(table) == 0;
}

std::vector<GradientAccumulator> TableStore::sum(
    const std::vector<GradientAccumulator>& accumulators,
    std::vector<TableUpdate>& updates,
    Update& kept) {
  std::vector<TableUpdate> summed;
  std::vector<size_t> tables;
  std::vector<CollectedKeys> keys(updates.size());
  for (size_t i = 0; i < updates.size(); ++i) {
    if (updates[i].table == nullptr) {
      continue;
    }
    TableUpdate update{.table = updates[i].table};
    if (update.table->key_rows != nullptr) {
      std::vector<TableUpdate::Term*> terms;
      for (TableUpdate::Term& term : updates[i].terms) {
        terms.push_back(&term);
      }
      keys[i] = collect_keys(
          accumulators[i].keys(), terms, *update.table, kept.key_numbers);
      update.id_limit = std::ssize(keys[i].keys);
    }
    if (accumulators[i].passes() > 0) {
      update.terms.push_back(accumulators[i].term());
    }
    update.terms.insert(
        update.terms.end(), updates[i].terms.begin(), updates[i].terms.end());
    check_count(update);
    summed.push_back(std::move(update));
    tables.push_back(i);
  }
  std::vector<RowGradients> sums = updater_.sum(summed);
  std::vector<GradientAccumulator> result(updates.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    result[tables[i]] = GradientAccumulator(
        std::move(sums[i]),
        summed[i].table->config->dim,
        accumulators[tables[i]].passes() + 1);
    result[tables[i]].set_keys(std::move(keys[tables[i]]));
  }
  return result;
}

void TableStore::plan_key_updates(
    std::vector<TableUpdate>& updates,
    const std::vector<GradientAccumulator>& accumulators,
    Update& update) {
  for (size_t i = 0; i < updates.size() && has_key_tables_; ++i) {
    if (updates[i].table != nullptr && updates[i].table->key_rows != nullptr) {
      const bool has_sums =
          i < accumulators.size() && accumulators[i].passes() > 0;
      update.keys.push_back(plan_keys(
          updates[i],
          has_sums ? &accumulators[i].keys() : nullptr,
          updates_of(*state_, *updates[i].table) + 1));
    }
  }
}

void TableStore::add_row_updates(
    std::vector<TableUpdate> updates,
    Update& update) {
  optim::LearningRateReader learning_rates(learning_rate_tags_, state_->passes);
  update.learning_rates.reserve(updates.size());
  update.tables.reserve(updates.size());
  for (size_t i = 0; i < updates.size(); ++i) {
    TableUpdate& table_update = updates[i];
    if (table_update.table == nullptr) {
      continue;
    }
    TableState& table = *table_update.table;
    if (const auto first_rows = table.first_rows.lock()) {
      add_rows_with_gradient(table_update, *first_rows);
    }
    const auto keys = std::ranges::find(update.keys, &table, &KeyUpdate::table);
    const optim::OptimizerSpec& optimizer = *table.optimizer;
    const optim::StepContext context{
        .learning_rate = learning_rates.read(
            i,
            optim::learning_rate_of(optimizer),
            [&] { return where_of(table); }),
        .update = state_->passes / accumulation_steps_[i] + 1};
    update.learning_rates.push_back(context.learning_rate);
    if (optimizer.get_if<optim::CustomOptimizer>() != nullptr) {
      const RowGradients sums = std::move(updater_.sum({table_update})[0]);
      if (sums.rows.empty()) {
        continue;  // a user's rule does not have to support tensors without rows
      }
      update.custom.push_back(run_custom_rule(
          table, sums, keys == update.keys.end() ? nullptr : &*keys, context));
      update.custom.back().rounding = rounding_of(*state_, table);
    } else {
      table_update.rows = optim::row_update(optimizer, context);
      if (table_update.rows.sweep && table.key_rows != nullptr) {
        sweep_all_keys(*keys, table_update, zero_row_.data());
      } else if (table.key_rows != nullptr) {
        record_with_rows(*keys, table_update);
      }
      table_update.rounding = rounding_of(*state_, table);
      update.tables.push_back(std::move(table_update));
    }
  }
}

TableStore::Update TableStore::plan_update(
    const std::vector<LookupGradients>& lookups) {
  Update update;
  std::vector<TableUpdate> updates =
      read_gradients(lookups, FiniteCheck::kRaise, update);
  warn_of_missing_gradients(lookups);
  return finish_plan([&] {
    for (const TableUpdate& table : updates) {
      if (table.table != nullptr) {
        check_count(table);
      }
    }
    if (std::ranges::any_of(
            accumulation_steps_, [](int64_t steps) { return steps > 1; })) {
      accumulate_terms(updates, update);
    }
    plan_key_updates(updates, update.accumulators, update);
    add_row_updates(std::move(updates), update);
    return std::move(update);
  });
}

void TableStore::accumulate_terms(
    std::vector<TableUpdate>& updates,
    Update& update) {
  std::vector<TableUpdate> accumulating(updates.size());
  for (size_t i = 0; i < updates.size(); ++i) {
    if (updates[i].table != nullptr && accumulation_steps_[i] > 1) {
      std::swap(accumulating[i], updates[i]);
    }
  }
  update.accumulators = sum(state_->accumulated, accumulating, update);
  for (size_t i = 0; i < update.accumulators.size(); ++i) {
    const GradientAccumulator& accumulator = update.accumulators[i];
    if (accumulator.passes() > 0 && is_due(*accumulating[i].table)) {
      const int64_t passes = accumulation_steps_of(*accumulating[i].table);
      updates[i].table = accumulating[i].table;
      updates[i].terms = {accumulator.term(1.0F / static_cast<float>(passes))};
    }
  }
}

TableStore::Update TableStore::plan_accumulated_update(
    const std::vector<GradientAccumulator>& accumulators,
    double factor) {
  Update update;
  std::vector<TableUpdate> updates(accumulators.size());
  for (size_t i = 0; i < accumulators.size(); ++i) {
    if (accumulators[i].passes() > 0) {
      updates[i].table = &state_->tables[i];
      updates[i].terms = {accumulators[i].term(static_cast<float>(factor))};
    }
  }
  return finish_plan([&] {
    plan_key_updates(updates, accumulators, update);
    add_row_updates(std::move(updates), update);
    return std::move(update);
  });
}

void TableStore::apply_update(Update update) {
  const auto writing = lock_for_writing();
  for (const KeyUpdate& keys : update.keys) {
    apply(keys);
  }
  updater_.update(update.tables);
  for (const CustomUpdate& custom : update.custom) {
    write(custom);
  }
  for (size_t i = 0; i < update.accumulators.size(); ++i) {
    if (update.accumulators[i].passes() == 0) {
      continue;
    }
    state_->accumulated[i] = is_due(state_->tables[i])
        ? GradientAccumulator()
        : std::move(update.accumulators[i]);
  }
  ++state_->passes;
}

LookupWorker& TableStore::worker() {
  const std::lock_guard<std::mutex> lock(worker_mutex_);
  if (worker_ == nullptr) {
    worker_ = std::make_unique<LookupWorker>(lookup_threads_);
  }
  return *worker_;
}

void TableStore::wait_for_lookups() const {
  LookupWorker* worker = nullptr;
  {
    const std::lock_guard<std::mutex> lock(worker_mutex_);
    worker = worker_.get();
  }
  if (worker != nullptr) {
    worker->wait_idle();
  }
}

std::unique_lock<std::shared_mutex> TableStore::lock_for_writing() const {
  wait_for_lookups();
  return std::unique_lock<std::shared_mutex>(tables_in_use_);
}

void TableStore::end_lookups() const noexcept {
  if (!owner_.is_this_process()) {
    return;  // The lock may be held by a thread that does not exist in the child.
  }
  try {
    lock_for_writing();
  } catch (const c10::Error&) {
    // lock_for_writing() raises this in a forked child, before it waits.
  }
}

std::vector<GradientAccumulator> TableStore::accumulate(
    const std::vector<GradientAccumulator>& accumulators,
    const std::vector<LookupGradients>& lookups,
    std::string& non_finite) {
  Update update;
  std::vector<TableUpdate> updates =
      read_gradients(lookups, FiniteCheck::kNote, update);
  std::vector<GradientAccumulator> sums = sum(accumulators, updates, update);
  non_finite = std::move(update.non_finite);
  return sums;
}

}  // namespace tessera
