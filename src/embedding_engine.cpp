// SPDX-License-Identifier: Apache-2.0
#include "src/embedding_engine.h"

#include "optim/row_update.h"
#include "src/active_kernels.h"
#include "src/parallel.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera {

namespace {

// Bytes of rows per lookup task: some 50 us of work.
constexpr int64_t kLookupTaskBytes = int64_t{256} * 1024;

struct LookupTask {
  size_t feature = 0;
  int64_t begin_bag = 0;
  int64_t end_bag = 0;
};

int64_t bytes_of(const IdBags& bags) {
  const int64_t rows = bags.nnz() + bags.bags;
  return rows * bags.dim * static_cast<int64_t>(sizeof(float));
}

// Splits a feature's bags into tasks of about equal traffic.
void add_tasks(
    size_t feature,
    const IdBags& bags,
    std::vector<LookupTask>& tasks) {
  const int64_t parts =
      std::clamp<int64_t>(bytes_of(bags) / kLookupTaskBytes, 1, bags.bags + 1);
  int64_t begin = 0;
  for (int64_t part = 1; part <= parts && begin < bags.bags; ++part) {
    int64_t end = bags.bags;
    if (part < parts && bags.offsets.empty()) {
      end = bags.bags * part / parts;
    } else if (part < parts) {
      const int64_t position = bags.nnz() * part / parts;
      const auto found =
          std::upper_bound(bags.offsets.begin(), bags.offsets.end(), position);
      end = std::clamp<int64_t>(
          found - bags.offsets.begin() - 1, begin, bags.bags);
    }
    if (end > begin) {
      tasks.push_back({feature, begin, end});
      begin = end;
    }
  }
}

// Equal learning rates at equal steps are one source, read once.
class RateReader {
 public:
  double read(
      const optim::LearningRate& source,
      int64_t step,
      const std::string& where) {
    for (const Rate& rate : rates_) {
      if (rate.step == step && rate.source == source) {
        return rate.value;
      }
    }
    rates_.push_back({source, step, source.value(step, where)});
    return rates_.back().value;
  }

 private:
  struct Rate {
    optim::LearningRate source;
    int64_t step;
    double value;
  };

  std::vector<Rate> rates_;
};

}  // namespace

EmbeddingEngine::EmbeddingEngine(std::shared_ptr<EmbeddingState> state)
    : state_(std::move(state)) {
  int64_t widest = 0;
  for (const TableState& table : state_->tables) {
    widest = std::max(widest, table.config->dim);
  }
  zero_row_.assign(widest, 0.0F);
  piles_.resize(state_->tables.size());
}

std::vector<at::Tensor> EmbeddingEngine::lookup(
    const std::vector<IdBags>& bags) const {
  std::vector<at::Tensor> activations;
  std::vector<LookupTask> tasks;
  activations.reserve(bags.size());
  tasks.reserve(bags.size());
  int64_t bytes = 0;
  for (size_t i = 0; i < bags.size(); ++i) {
    activations.push_back(at::empty(bags[i].activation_shape(), at::kFloat));
    add_tasks(i, bags[i], tasks);
    bytes += bytes_of(bags[i]);
  }
  const kernels::KernelTable& kernels = active_kernels();
  run_tasks(static_cast<int64_t>(tasks.size()), bytes, [&](int64_t index) {
    const LookupTask& task = tasks[index];
    const IdBags& feature = bags[task.feature];
    const TableState& table =
        state_->tables[state_->features[task.feature].table];
    kernels.combine(
        {.table = table.parameters.const_data_ptr<float>(),
         .dim = feature.dim,
         .ids = feature.ids.data(),
         .nnz = feature.nnz(),
         .offsets = feature.offsets.empty() ? nullptr : feature.offsets.data(),
         .weights = feature.weights.empty() ? nullptr : feature.weights.data(),
         .scales = feature.scales.empty() ? nullptr : feature.scales.data(),
         .out = activations[task.feature].mutable_data_ptr<float>(),
         .begin_bag = task.begin_bag,
         .end_bag = task.end_bag});
  });
  return activations;
}

void EmbeddingEngine::warn_of_missing_gradient(size_t feature) {
  if (has_warned_) {
    return;
  }
  has_warned_ = true;
  TORCH_WARN(
      "[feature '",
      state_->features[feature].path,
      "'] no gradient reached its activation, so its rows are updated with a "
      "gradient of zeros, which moves them under momentum or weight decay. Add "
      "the activation to the loss, or put the feature in a layer of its own. "
      "Said once per layer.");
}

void EmbeddingEngine::check(const LookupGradients& gradients) {
  for (size_t i = 0; i < gradients.gradients.size(); ++i) {
    const at::Tensor& gradient = gradients.gradients[i];
    if (!gradient.defined()) {
      warn_of_missing_gradient(i);
      continue;
    }
    const std::vector<int64_t> expected =
        (*gradients.bags)[i].activation_shape();
    TORCH_CHECK_VALUE(
        gradient.sizes() == c10::IntArrayRef(expected) &&
            gradient.scalar_type() == at::kFloat && gradient.is_cpu() &&
            gradient.layout() == at::kStrided,
        "[feature '",
        state_->features[i].path,
        "'] the gradient must be a dense float32 cpu tensor of shape ",
        c10::IntArrayRef(expected),
        ", but got a ",
        gradient.layout(),
        " ",
        c10::toString(gradient.scalar_type()),
        " one of shape ",
        gradient.sizes(),
        " on ",
        gradient.device(),
        ". Use operators that give dense gradients.");
  }
}

void EmbeddingEngine::add_terms(
    const std::vector<LookupGradients>& lookups,
    std::vector<TableUpdate>& updates,
    std::vector<at::Tensor>& copies) {
  for (const LookupGradients& lookup : lookups) {
    check(lookup);
    for (size_t i = 0; i < state_->features.size(); ++i) {
      TableUpdate::Term term{.bags = &(*lookup.bags)[i]};
      term.gradient = zero_row_.data();
      if (lookup.gradients[i].defined()) {
        copies.push_back(lookup.gradients[i].contiguous());
        term.gradient = copies.back().const_data_ptr<float>();
        term.stride = term.bags->dim;
      }
      updates[state_->features[i].table].terms.push_back(term);
    }
  }
  for (const TableUpdate& update : updates) {
    int64_t ids = 0;
    for (const TableUpdate::Term& term : update.terms) {
      ids += std::max(term.bags->nnz(), term.bags->bags);
    }
    TORCH_CHECK_VALUE(
        ids < std::numeric_limits<uint32_t>::max(),
        "[TPUEmbedding] one update of a table must have fewer than 2^32 - 1 "
        "ids and bags, but got ",
        ids,
        ". Split the batch.");
  }
}

bool EmbeddingEngine::is_reached(
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

void EmbeddingEngine::apply(const std::vector<LookupGradients>& lookups) {
  std::vector<TableUpdate> updates(state_->tables.size());
  RateReader rates;
  for (size_t i = 0; i < updates.size(); ++i) {
    TableState& table = state_->tables[i];
    const std::string where = "[table '" + table.name + "']";
    if (!table.optimizer && !is_reached(lookups, i)) {
      continue;  // as good as frozen
    }
    TORCH_CHECK_VALUE(
        table.optimizer.has_value(),
        where,
        " has no optimizer, but a backward pass reached it. Set "
        "TableConfig::optimizer or TPUEmbeddingOptions::optimizer, or freeze "
        "the layer with virtual_variable().requires_grad_(false).");
    const int64_t passes = gradient_accumulation_steps_of(*table.optimizer);
    updates[i].table = &table;
    if (piles_[i].passes() + 1 < passes) {
      continue;  // only collects
    }
    const int64_t step = state_->iterations / passes;
    updates[i].rows = optim::row_update(
        *table.optimizer,
        {.learning_rate =
             rates.read(learning_rate_of(*table.optimizer), step, where),
         .update = step + 1});
  }
  std::vector<at::Tensor> copies;
  add_terms(lookups, updates, copies);
  collect(updates);
  std::erase_if(
      updates, [](const TableUpdate& update) { return !update.table; });
  updater_.update(updates);
  for (size_t i = 0; i < piles_.size(); ++i) {
    const auto& optimizer = state_->tables[i].optimizer;
    if (optimizer &&
        piles_[i].passes() == gradient_accumulation_steps_of(*optimizer)) {
      piles_[i].clear();
    }
  }
  ++state_->iterations;
}

// Tables that accumulate: their terms go to the pile; what is left to update is
// the whole pile, or nothing yet (table is nullptr).
void EmbeddingEngine::collect(std::vector<TableUpdate>& updates) {
  std::vector<TableUpdate> collected;
  std::vector<size_t> tables;
  for (size_t i = 0; i < updates.size(); ++i) {
    if (updates[i].table == nullptr ||
        gradient_accumulation_steps_of(*updates[i].table->optimizer) == 1) {
      continue;
    }
    TableUpdate sum{.table = updates[i].table};
    if (piles_[i].passes() > 0) {
      sum.terms.push_back(piles_[i].term());
    }
    sum.terms.insert(
        sum.terms.end(), updates[i].terms.begin(), updates[i].terms.end());
    updates[i].terms.clear();
    collected.push_back(std::move(sum));
    tables.push_back(i);
  }
  if (collected.empty()) {
    return;
  }
  std::vector<RowGradients> sums = updater_.sum(collected);
  for (size_t i = 0; i < tables.size(); ++i) {
    TableUpdate& update = updates[tables[i]];
    GradientPile& pile = piles_[tables[i]];
    pile.replace(std::move(sums[i]), update.table->config->dim);
    const int64_t passes =
        gradient_accumulation_steps_of(*update.table->optimizer);
    if (pile.passes() == passes) {
      update.terms.push_back(pile.term(1.0F / static_cast<float>(passes)));
    } else {
      update.table = nullptr;
    }
  }
}

}  // namespace tessera
