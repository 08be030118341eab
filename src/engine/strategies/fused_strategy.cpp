// SPDX-License-Identifier: Apache-2.0
#include "optim/row_update.h"

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>
#include "src/common/check.h"
#include "src/common/step_memory.h"
#include "src/engine/pending_gradients.h"
#include "src/engine/strategies/embedding_strategy.h"
#include "src/engine/table_store.h"
#include "src/features/batch_plan.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace tessera {

namespace {

using torch::autograd::variable_list;

class PendingUpdates;

// A feature whose weights require a gradient, and the data for this gradient.
struct WeightedFeature {
  size_t feature = 0;
  IdBags bags;  // with kZeroRow, because the denominators include it
  at::Tensor rows;  // [nnz, dim], as they were looked up
  int64_t count = 0;  // the number of the caller's weights
};

// What backward() needs from one forward pass, with its own checked copy of the ids.
struct LookupRecord {
  ~LookupRecord() {
    if (spare != nullptr) {
      spare->give_back(std::move(bags));
    }
  }
  std::vector<IdBags> bags;
  std::shared_ptr<SpareBags> spare;  // see Batch::spare
  std::vector<WeightedFeature> weighted;
  std::shared_ptr<const LookupRoute> route;
  std::shared_ptr<PendingUpdates> updates;
  at::Tensor virtual_variable;
  // Atomic, because a pass of another thread may write it at any time.
  std::atomic<bool> is_used = false;
};
using LookupRecordPtr = std::shared_ptr<LookupRecord>;

// The gradients that one backward pass has collected so far. The final callback of the
// pass owns them. If the pass fails, LibTorch drops the callback, and the destructor
// resets the marks on the lookups.
class PassGradients {
 public:
  PassGradients() = default;
  ~PassGradients() {
    for (size_t i = 0; i < records_.size() && !is_applied_; ++i) {
      records_[i]->is_used = was_used_[i];
    }
  }
  PassGradients(const PassGradients&) = delete;
  PassGradients& operator=(const PassGradients&) = delete;

  void add(const LookupRecordPtr& record, variable_list gradients) {
    lookups_.push_back(
        {.bags = &record->bags,
         .gradients = std::move(gradients),
         .route = record->route});
    was_used_.push_back(record->is_used.exchange(true));
    records_.push_back(record);
  }

  const std::vector<LookupGradients>& lookups() const {
    return lookups_;
  }
  void set_applied() {
    is_applied_ = true;
  }

 private:
  std::vector<LookupRecordPtr> records_;
  std::vector<bool> was_used_;  // each record, before this pass
  std::vector<LookupGradients> lookups_;
  bool is_applied_ = false;
};

// The gradients of all running backward passes, with one PassGradients per graph task.
// Several threads may run passes at the same time. Their gradients are applied one after
// another.
class PendingUpdates {
 public:
  // `pending` is nullptr under Apply::kInBackward.
  PendingUpdates(
      std::shared_ptr<TableStore> store,
      std::shared_ptr<PendingGradients> pending)
      : store_(std::move(store)), pending_(std::move(pending)) {}

  // Whether backward passes update the tables.
  void set_enabled(bool are_enabled) {
    are_enabled_ = are_enabled;
  }
  bool are_enabled() const {
    return are_enabled_;
  }

  // Whether a second backward pass over the same forward is allowed. Under kOnStep, its
  // gradients are added.
  bool allows_second_pass() const {
    return pending_ != nullptr;
  }

  void add(const LookupRecordPtr& record, variable_list gradients) {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    gradients_of_this_pass()->add(record, std::move(gradients));
  }

 private:
  std::shared_ptr<PassGradients> gradients_of_this_pass() {
    std::erase_if(
        passes_, [](const auto& entry) { return entry.second.expired(); });
    const int pass = torch::autograd::get_current_graph_task_id();
    if (std::shared_ptr<PassGradients> gradients = passes_[pass].lock()) {
      return gradients;
    }
    if (pending_ != nullptr) {
      pending_->discard_if_zeroed();
    }
    auto gradients = std::make_shared<PassGradients>();
    passes_[pass] = gradients;
    // `this` stays alive, because the records of the pass own it.
    torch::autograd::Engine::get_default_engine().queue_callback(
        [this, gradients] { apply(*gradients); });
    return gradients;
  }

  void apply(PassGradients& gradients) {
    const ProfileScope scope("tessera::update");
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    if (pending_ != nullptr) {
      pending_->add(gradients.lookups());
    } else {
      store_->apply_update(store_->plan_update(gradients.lookups()));
    }
    gradients.set_applied();
  }

  std::atomic<bool> are_enabled_ = true;
  // Recursive, because a learning rate or a custom rule may call backward().
  std::recursive_mutex mutex_;
  std::shared_ptr<TableStore> store_;
  std::shared_ptr<PendingGradients> pending_;
  std::map<int, std::weak_ptr<PassGradients>> passes_;
};

// The gradient of the virtual variable. at::zeros() would take five times as long.
at::Tensor zero_gradient() {
  at::Tensor zero = empty_in_step_memory({1});
  *zero.mutable_data_ptr<float>() = 0.0F;
  return zero;
}

// The node of the autograd graph from which all activations of one lookup come. Its
// inputs are the virtual variable and the weights of record->weighted. It passes the
// gradients of the activations to the store and gives the variable a gradient of zero.
//
// It is not an autograd::Function, because Function::apply() searches sets of all
// inputs and outputs, which takes longer than the lookup of a small batch. Since
// LibTorch 2.14, an intrusive_ptr holds a Node, so this does not compile with older
// releases.
class LookupNode : public torch::autograd::Node {
 public:
  LookupNode(LookupRecordPtr record, size_t num_activations, bool is_sharded)
      : record_(std::move(record)), is_sharded_(is_sharded) {
    input_metadata_.reserve(num_activations);
  }

  std::string name() const override {
    return is_sharded_ ? "tessera::ShardedLookupNode" : "tessera::LookupNode";
  }

  // LibTorch calls this after apply(), unless the graph is retained.
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    record_ = nullptr;
  }

  variable_list apply(variable_list&& gradients) override {
    const std::lock_guard<std::mutex> lock(mutex_);  // of the base class
    TORCH_CHECK(record_ != nullptr, torch::autograd::ERR_BACKWARD_TWICE);
    const LookupRecordPtr record = record_;
    variable_list results(record->weighted.size() + 1);  // one per input
    for (size_t i = 0; i < record->weighted.size(); ++i) {
      const WeightedFeature& weighted = record->weighted[i];
      const at::Tensor& gradient = gradients[weighted.feature];
      if (!task_should_compute_output(i + 1)) {
        continue;
      }
      TESSERA_CHECK_NOT_IMPLEMENTED(
          !at::GradMode::is_enabled(),
          "[TPUEmbedding] the gradient of weights has no derivative, but backward() was called with create_graph. Call it without create_graph.");
      results[i + 1] = gradient.defined()
          ? weight_gradient(
                weighted.bags, weighted.rows, gradient, weighted.count)
          : at::zeros({weighted.count}, at::kFloat);
    }
    // requires_grad() and are_enabled() may have changed since the forward pass.
    // Without an update, the virtual variable gets no gradient: a defined gradient
    // means that gradients wait for a step.
    if (task_should_compute_output(0) &&
        record->virtual_variable.requires_grad() &&
        record->updates->are_enabled()) {
      TESSERA_CHECK(
          !record->is_used || record->updates->allows_second_pass(),
          "[TPUEmbedding] expected one backward pass for each forward(), but this is a second backward pass over the same forward(), whose gradients have already updated the tables. Call forward() again, add the losses and call backward() once, or use Apply::kOnStep, which adds up the gradients of all passes.");
      record->updates->add(record, std::move(gradients));
      results[0] = zero_gradient();
    }
    return results;
  }

 private:
  LookupRecordPtr record_;  // guarded by mutex_
  bool is_sharded_;
};

// Refuses optimizers that depend on the order or the number of the gradients, because
// Apply::kOnStep only keeps their sums.
void check_on_step(const TableState& table) {
  if (!table.optimizer) {
    return;
  }
  const std::string where = "[table '" + shorten(table.name) + "'] ";
  TESSERA_CHECK_VALUE(
      optim::accumulates_duplicates(*table.optimizer),
      "{}use_gradient_accumulation must be true under Apply::kOnStep, which sums the gradients of duplicate ids, but got false, which applies them one by one. Set it to true, or use Apply::kInBackward.",
      where);
  const int64_t passes =
      optim::gradient_accumulation_steps_of(*table.optimizer);
  TESSERA_CHECK_VALUE(
      passes == 1,
      "{}gradient_accumulation_steps must be 1 under Apply::kOnStep, where each step() updates the tables, but got {}. Set it to 1, and call step() after every {} backward passes, with Accumulation::kMean.",
      where,
      passes,
      passes);
}

// A batch and what was looked up for it.
struct BatchLookup {
  Batch batch;
  Lookup lookup;
  std::vector<WeightedFeature> weighted;
  int64_t zero_rows = 0;
};

class FusedStrategy : public EmbeddingStrategy {
 public:
  FusedStrategy(
      std::shared_ptr<EmbeddingState> state,
      std::shared_ptr<TableStore> store,
      Apply apply)
      : state_(std::move(state)),
        virtual_variable_(at::zeros({1}, at::kFloat).requires_grad_(true)),
        store_(std::move(store)) {
    if (apply == Apply::kOnStep) {
      for (const TableState& table : state_->tables) {
        check_on_step(table);
      }
      pending_ = std::make_shared<PendingGradients>(store_, virtual_variable_);
    }
    updates_ = std::make_shared<PendingUpdates>(store_, pending_);
  }

  // Waits, because background lookups use this object.
  ~FusedStrategy() override {
    store_->end_lookups();
  }

  void discard_pending() override {
    if (pending_ != nullptr) {
      pending_->discard();
    }
  }

  std::shared_lock<std::shared_mutex> lock_for_reading() const override {
    return store_->lock_for_reading();
  }

  void wait_for_lookups() override {
    store_->lock_for_writing();
  }

  void abort(const std::exception_ptr& error) override {
    store_->abort(error);
  }

  std::shared_ptr<PendingGradients> pending() override {
    return pending_;
  }

  std::vector<std::pair<std::string, at::Tensor>> parameters() override {
    return {{"virtual_variable", virtual_variable_}};
  }

  std::vector<at::Tensor> forward(Batch batch) override {
    check_claimed();
    reset_virtual_variable();
    return tie(
        lookup(std::move(batch), at::GradMode::is_enabled(), is_trained()));
  }

  std::function<std::vector<at::Tensor>()> begin_forward(Batch batch) override {
    if (!is_trained()) {
      return EmbeddingStrategy::begin_forward(std::move(batch));
    }
    check_claimed();
    reset_virtual_variable();
    store_->worker().check_may_submit();
    const JobResult<std::shared_ptr<BatchLookup>> result =
        store_->worker().submit([this, batch = std::move(batch)]() mutable {
          return std::make_shared<BatchLookup>(lookup(
              std::move(batch), /*with_gradients=*/true, /*trains=*/true));
        });
    return [this, result] { return tie(std::move(*result.get())); };
  }

 private:
  void set_updates_enabled(bool are_enabled) override {
    updates_->set_enabled(are_enabled);
  }

  bool is_trained() const {
    return at::GradMode::is_enabled() && virtual_variable_.requires_grad();
  }

  void check_claimed() const {
    TESSERA_CHECK(
        !is_trained() || pending_ == nullptr || pending_->is_claimed(),
        "[TPUEmbedding] Apply::kOnStep needs a Combined optimizer, because the step() of other optimizers can't update the tables, but the layer has none. Construct Combined(std::move(optimizer), {{layer}}), or run forward() under NoGradGuard.");
  }

  // Code that writes all parameters, such as an initializer, may have written this
  // variable, too.
  // Only training, which is in one thread at a time, may change it.
  void reset_virtual_variable() {
    float* value =
        is_trained() ? virtual_variable_.mutable_data_ptr<float>() : nullptr;
    if (value != nullptr && *value != 0.0F) {
      *value = 0.0F;
    }
  }

  // Can run in any thread. `with_gradients`: whether gradients of weights are needed.
  // `trains`: see is_trained().
  BatchLookup lookup(Batch batch, bool with_gradients, bool trains) const {
    BatchLookup result;
    for (size_t i = 0; i < batch.bags.size(); ++i) {
      IdBags& bags = batch.bags[i];
      const at::Tensor& weights = batch.weights[i];
      result.zero_rows += bags.zero_rows;
      if (with_gradients && weights.defined() && weights.requires_grad()) {
        result.weighted.push_back(
            {.feature = i, .bags = bags, .rows = {}, .count = weights.numel()});
      }
      drop_zero_rows(bags);
    }
    result.lookup = store_->lookup(
        batch.bags, trains ? UnknownKeys::kAdmitted : UnknownKeys::kZeros);
    for (WeightedFeature& weighted : result.weighted) {
      const auto reading = store_->lock_for_reading();
      weighted.rows = gather_rows(
          weighted.bags,
          batch.bags[weighted.feature],
          (*result.lookup.tables)[weighted.feature]);
    }
    result.lookup.scratch.clear();
    result.batch = std::move(batch);
    return result;
  }

  // Returns activations whose gradients autograd passes to the store.
  std::vector<at::Tensor> tie(BatchLookup found) {
    state_->out_of_range_count += found.zero_rows;
    if (!at::GradMode::is_enabled() ||
        (!is_trained() && found.weighted.empty())) {
      if (found.batch.spare != nullptr) {
        found.batch.spare->give_back(std::move(found.batch.bags));
      }
      return std::move(found.lookup.activations);
    }
    variable_list inputs{virtual_variable_};
    for (const WeightedFeature& weighted : found.weighted) {
      inputs.push_back(found.batch.weights[weighted.feature]);
    }
    auto record = std::make_shared<LookupRecord>();
    record->bags = std::move(found.batch.bags);
    record->spare = std::move(found.batch.spare);
    record->weighted = std::move(found.weighted);
    record->route = std::move(found.lookup.route);
    record->updates = updates_;
    record->virtual_variable = virtual_variable_;
    const auto node = c10::make_intrusive<LookupNode>(
        std::move(record),
        found.lookup.activations.size(),
        /*is_sharded=*/state_->ranks->size() > 1);
    node->set_next_edges(torch::autograd::collect_next_edges(inputs));
    torch::autograd::set_history(found.lookup.activations, node);
    torch::autograd::fire_node_creation_hooks(node);
    return std::move(found.lookup.activations);
  }

  std::shared_ptr<EmbeddingState> state_;
  at::Tensor virtual_variable_;  // [1], 0 in training
  std::shared_ptr<PendingGradients> pending_;  // under Apply::kOnStep
  std::shared_ptr<PendingUpdates> updates_;
  std::shared_ptr<TableStore> store_;
};

}  // namespace

std::unique_ptr<EmbeddingStrategy> make_fused_strategy(
    std::shared_ptr<EmbeddingState> state,
    std::shared_ptr<TableStore> store,
    Apply apply) {
  return std::make_unique<FusedStrategy>(
      std::move(state), std::move(store), apply);
}

}  // namespace tessera
