// SPDX-License-Identifier: Apache-2.0
#include "src/embedding_engine.h"
#include "src/strategies/embedding_strategy.h"
#include "src/weight_gradient.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <map>
#include <mutex>

namespace tessera {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class PendingUpdates;

// Weights of a feature that ask for a gradient, with what it takes.
struct WeightedFeature {
  size_t feature = 0;
  IdBags bags;  // with kZeroRow, which counts in the denominators
  at::Tensor rows;  // [nnz, dim], as they were looked up
  int64_t count = 0;  // of the caller's weights
};

// What backward() needs of one forward: its own checked copy of the ids.
struct LookupRecord : torch::CustomClassHolder {
  std::vector<at::Tensor> activations;  // handed over to autograd
  std::vector<IdBags> bags;
  std::vector<WeightedFeature> weighted;
  std::shared_ptr<PendingUpdates> updates;
  at::Tensor virtual_variable;
  bool is_used = false;
};
using LookupRecordPtr = c10::intrusive_ptr<LookupRecord>;

// The gradients that one backward pass has collected so far. Lives in the
// pass's final callback: when the pass fails, LibTorch drops the callback, and
// the pile and its marks on the lookups go with it.
class Pile {
 public:
  explicit Pile(std::shared_ptr<EmbeddingEngine> engine)
      : engine_(std::move(engine)) {}
  ~Pile() {
    for (const LookupRecordPtr& record : records_) {
      record->is_used = is_applied_;
    }
  }
  Pile(const Pile&) = delete;
  Pile& operator=(const Pile&) = delete;

  void add(const LookupRecordPtr& record, variable_list gradients) {
    lookups_.push_back(
        {.bags = &record->bags, .gradients = std::move(gradients)});
    record->is_used = true;
    records_.push_back(record);
  }

  void apply() {
    engine_->apply(lookups_);
    is_applied_ = true;
  }

 private:
  std::shared_ptr<EmbeddingEngine> engine_;
  std::vector<LookupRecordPtr> records_;
  std::vector<LookupGradients> lookups_;
  bool is_applied_ = false;
};

// One pile per running backward pass, told apart by its graph task.
class PendingUpdates {
 public:
  explicit PendingUpdates(std::shared_ptr<EmbeddingEngine> engine)
      : engine_(std::move(engine)) {}

  void add(const LookupRecordPtr& record, variable_list gradients) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pile_of_this_pass()->add(record, std::move(gradients));
  }

 private:
  std::shared_ptr<Pile> pile_of_this_pass() {
    std::erase_if(
        piles_, [](const auto& entry) { return entry.second.expired(); });
    const int pass = torch::autograd::get_current_graph_task_id();
    if (std::shared_ptr<Pile> pile = piles_[pass].lock()) {
      return pile;
    }
    auto pile = std::make_shared<Pile>(engine_);
    piles_[pass] = pile;
    torch::autograd::Engine::get_default_engine().queue_callback(
        [pile] { pile->apply(); });
    return pile;
  }

  std::mutex mutex_;
  std::shared_ptr<EmbeddingEngine> engine_;
  std::map<int, std::weak_ptr<Pile>> piles_;
};

// Ties activations to the virtual variable: its backward hands their gradients
// to the engine and gives the variable a defined zero.
struct TieToVirtualVariable : torch::autograd::Function<TieToVirtualVariable> {
  // `inputs`: the virtual variable, then the weights of record->weighted. The
  // type must be TensorList itself: a vector would count as no tensor at all.
  static variable_list forward(
      AutogradContext* context,
      at::TensorList /*inputs*/,
      const LookupRecordPtr& record) {
    context->set_materialize_grads(false);
    context->saved_data["record"] = c10::IValue::make_capsule(record);
    return std::move(record->activations);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    // Raises on a second run of a graph that was not retained.
    context->get_saved_variables();
    const auto record = c10::static_intrusive_pointer_cast<LookupRecord>(
        context->saved_data["record"].toCapsule());
    // One entry per input, and one for the record.
    variable_list results(record->weighted.size() + 2);
    for (size_t i = 0; i < record->weighted.size(); ++i) {
      const WeightedFeature& weighted = record->weighted[i];
      const at::Tensor& gradient = gradients[weighted.feature];
      if (!context->needs_input_grad(i + 1)) {
        continue;
      }
      TORCH_CHECK_NOT_IMPLEMENTED(
          !at::GradMode::is_enabled(),
          "[TPUEmbedding] weights have no second derivative: call backward() "
          "without create_graph.");
      results[i + 1] = gradient.defined()
          ? weight_gradient(
                weighted.bags, weighted.rows, gradient, weighted.count)
          : at::zeros({weighted.count}, at::kFloat);
    }
    // It may have been frozen since the forward pass.
    if (context->needs_input_grad(0) &&
        record->virtual_variable.requires_grad()) {
      TORCH_CHECK(
          !record->is_used,
          "[TPUEmbedding] a second backward pass over the same forward: its "
          "gradients have already updated the tables. Call forward() again, or "
          "add the losses and call backward() once.");
      record->updates->add(record, std::move(gradients));
      results[0] = at::zeros({1}, at::kFloat);
    }
    return results;
  }
};

class EngineStrategy : public EmbeddingStrategy {
 public:
  explicit EngineStrategy(std::shared_ptr<EmbeddingState> state)
      : state_(std::move(state)),
        virtual_variable_(at::zeros({1}, at::kFloat).requires_grad_(true)),
        engine_(std::make_shared<EmbeddingEngine>(state_)),
        updates_(std::make_shared<PendingUpdates>(engine_)) {}

  std::vector<std::pair<std::string, at::Tensor>> parameters() override {
    return {{"virtual_variable", virtual_variable_}};
  }

  std::vector<at::Tensor> forward(Batch batch) override {
    variable_list inputs{virtual_variable_};
    auto record = c10::make_intrusive<LookupRecord>();
    for (size_t i = 0; i < batch.bags.size(); ++i) {
      IdBags& bags = batch.bags[i];
      const at::Tensor& weights = batch.weights[i];
      state_->out_of_range_count += bags.zero_rows;
      if (at::GradMode::is_enabled() && weights.defined() &&
          weights.requires_grad()) {
        const size_t table = state_->features[i].table;
        record->weighted.push_back(
            {.feature = i,
             .bags = bags,
             .rows = gather_rows(bags, state_->tables[table].parameters),
             .count = weights.numel()});
        inputs.push_back(weights);
      }
      drop_zero_rows(bags);
    }
    std::vector<at::Tensor> activations = engine_->lookup(batch.bags);
    const bool is_trained =
        at::GradMode::is_enabled() && virtual_variable_.requires_grad();
    if (!is_trained && record->weighted.empty()) {
      return activations;
    }
    record->activations = std::move(activations);
    record->bags = std::move(batch.bags);
    record->updates = updates_;
    record->virtual_variable = virtual_variable_;
    return TieToVirtualVariable::apply(at::TensorList(inputs), record);
  }

 private:
  std::shared_ptr<EmbeddingState> state_;
  at::Tensor virtual_variable_;  // [1], always 0
  std::shared_ptr<EmbeddingEngine> engine_;
  std::shared_ptr<PendingUpdates> updates_;
};

}  // namespace

std::unique_ptr<EmbeddingStrategy> make_engine_strategy(
    std::shared_ptr<EmbeddingState> state) {
  return std::make_unique<EngineStrategy>(std::move(state));
}

}  // namespace tessera
