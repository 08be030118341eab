// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>
#include <tessera/optim/make_optimizer.h>

#include "optim/tensor_update.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::optim {

/// Refuses specs that need Strategy::fused(); `where` begins the message.
void check_without_fused(const OptimizerSpec& spec, const std::string& where);

/// The options of a param group, which hold its spec.
class SpecOptimizerOptions : public torch::optim::OptimizerOptions {
 public:
  /// `passes` is the counter of the optimizer that holds the group.
  SpecOptimizerOptions(
      OptimizerSpec spec,
      std::shared_ptr<const int64_t> passes);

  const OptimizerSpec& spec() const {
    return spec_;
  }

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override;
  double get_lr() const override;
  /// Errors:  c10::ValueError if `learning_rate` is negative or not finite.
  void set_lr(double learning_rate) override;
  /// The rate of set_lr(). It is unset while the learning rate is that of the given spec.
  std::optional<double> set_rate() const {
    return set_rate_;
  }
  /// Undoes set_lr().
  void reset_lr();

 private:
  OptimizerSpec spec_;
  LearningRate own_learning_rate_;  // of the given spec
  std::optional<double> set_rate_;
  std::shared_ptr<const int64_t> passes_;
};

/// The options and the spec of a param group of a SpecOptimizer.
inline const SpecOptimizerOptions& options_of(
    const torch::optim::OptimizerParamGroup& group) {
  return static_cast<const SpecOptimizerOptions&>(group.options());
}
inline const OptimizerSpec& spec_of(
    const torch::optim::OptimizerParamGroup& group) {
  return options_of(group).spec();
}

/// The optimizer that make_optimizer() returns.
class SpecOptimizer : public torch::optim::Optimizer {
 public:
  /// A parameter whose slots belong to another object, such as a layer.
  struct BoundParameter {
    OptimizerSpec spec = {};
    at::Tensor parameter = {};
    std::vector<at::Tensor> slots = {};
    /// The accumulated gradient of gradient_accumulation_steps: dense, sparse or
    /// undefined.
    std::shared_ptr<at::Tensor> sum = {};
    std::string where = {};  // begins the messages
    /// Returns the rows that a dense gradient of `parameter` belongs to, [n] int64,
    /// sorted. Unset: all rows.
    std::function<at::Tensor()> touched_rows = {};
  };

  /// `groups` is not empty.
  explicit SpecOptimizer(std::vector<SpecGroup> groups);

  /// Makes one group per entry. step() updates their slots and sums and the counter,
  /// but save() does not write them.
  SpecOptimizer(
      const std::vector<BoundParameter>& bound,
      std::shared_ptr<int64_t> passes);

  /// Everything that can fail does so before the first parameter changes.
  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& output) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  // What is kept for one parameter.
  struct State : torch::optim::OptimizerCloneableParamState<State> {
    std::vector<at::Tensor> slots;  // in the order of slots_of()
    std::function<at::Tensor()> touched_rows;  // as in BoundParameter
    // The accumulated gradient, or an undefined tensor.
    std::shared_ptr<at::Tensor> sum = std::make_shared<at::Tensor>();
  };
  struct Update;
  struct Loaded;

  SpecOptimizer(const OptimizerSpec& spec, std::shared_ptr<int64_t> passes);
  void add(const OptimizerSpec& spec, std::vector<at::Tensor> parameters);

  State& state_of(const at::Tensor& parameter, const OptimizerSpec& spec);
  bool has_gradients() const;
  // The accumulated gradient of `parameter`, or an undefined tensor.
  at::Tensor sum_for(const at::Tensor& parameter) const;
  Update update_of(
      const at::Tensor& parameter,
      const at::Tensor& gradient,
      const OptimizerSpec& spec,
      const std::string& where);
  std::vector<Update> plan_updates();

  // load() reads and checks everything before it changes anything.
  Loaded read(torch::serialize::InputArchive& archive) const;
  void read_group(
      size_t group,
      torch::serialize::InputArchive& archive,
      Loaded& loaded) const;
  // Returns whether the archive holds an accumulated gradient of the parameter.
  bool read_parameter(
      size_t group,
      size_t parameter,
      torch::serialize::InputArchive& archive,
      Loaded& loaded) const;

  std::string where_of(size_t group, size_t parameter) const;

  std::shared_ptr<int64_t> passes_;
  std::vector<std::string> bound_names_;  // of bound parameters, one per group
  bool owns_slots_ = true;
};

}  // namespace tessera::optim
