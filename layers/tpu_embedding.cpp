// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/json_value.h>
#include <tessera/common/profile_scope.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizer_json.h>
#include <tessera/serialization/config_values.h>

#include "layers/clone_source.h"
#include "serialization/archive.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"
#include "src/engine/accumulated_gradients.h"
#include "src/engine/embedding_state.h"
#include "src/engine/forward_interception.h"
#include "src/engine/memory_plan.h"
#include "src/engine/serving_lookup.h"
#include "src/engine/strategies/embedding_strategy.h"
#include "src/engine/table_summary.h"
#include "src/features/batch.h"
#include "src/features/batch_plan.h"
#include "src/features/output_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <utility>

namespace tessera {

namespace {

constexpr std::array<torch::Dtype, 4> kActivationDtypes = {
    torch::kFloat32,
    torch::kFloat64,
    torch::kBFloat16,
    torch::kFloat16};

constexpr const char* kOptions = "[TPUEmbeddingOptions]";

void check_device(
    const std::optional<torch::Device>& device,
    const char* method) {
  const std::string problem = device ? device_problem(*device) : "";
  TESSERA_CHECK_VALUE(
      problem.empty(),
      "[TPUEmbedding::{}] activations must go to a device that LibTorch can use, but got {}: {}. Choose another device, or leave the model on the cpu.",
      method,
      *device,
      problem);
}

}  // namespace

// A checked batch, and the features that were requested.
struct TPUEmbeddingImpl::Request {
  Batch batch;
  std::vector<int64_t> ragged_rows = {};  // kept because `batch` is moved from
  std::optional<Nest<size_t>> part = {};
};

MemoryPlan memory_plan(const TPUEmbeddingOptions& options, int64_t batch_size) {
  TESSERA_CHECK_VALUE(
      batch_size >= 0,
      "[memory_plan] batch_size must be >= 0, but got {}. Pass the examples of a batch, or 0 for the tables alone.",
      batch_size);
  const EmbeddingState state = describe_state(
      options.features,
      options.optimizer,
      kOptions,
      shards_under(options.strategy));
  return plan_memory(state, slots_under(options.strategy), batch_size);
}

TPUEmbeddingImpl::TPUEmbeddingImpl(TPUEmbeddingOptions options)
    : torch::nn::Module("tessera::TPUEmbedding"), options_(std::move(options)) {
  configure_ranks(options_.strategy, [&] {
    adopt(std::make_shared<EmbeddingState>(make_state(
        options_.features,
        options_.optimizer,
        options_.seed,
        slots_under(options_.strategy),
        kOptions,
        shards_under(options_.strategy),
        options_.check_memory)));
    state_->missing_slots = options_.missing_slots;
    state_->non_finite_gradients = options_.non_finite_gradients;
    return fmt::format(
        "{}, seed = {}, apply = {}, non_finite_gradients = {}",
        config_text(*state_, options_.features),
        options_.seed,
        options_.apply == Apply::kOnStep ? "kOnStep" : "kInBackward",
        options_.non_finite_gradients == NonFiniteGradients::kRefuse
            ? "kRefuse"
            : "kApply");
  });
  state_->layer = state_->ranks->add_layer();
}

TPUEmbeddingImpl::TPUEmbeddingImpl(const TPUEmbeddingImpl& source, Copy)
    : torch::nn::Module("tessera::TPUEmbedding") {
  copy_from(source);
}

TPUEmbeddingImpl::~TPUEmbeddingImpl() = default;

void TPUEmbeddingImpl::adopt(std::shared_ptr<EmbeddingState> state) {
  state_ = std::move(state);
  reader_ = std::make_unique<PlannedReader>();
  strategy_ = make_strategy(options_.strategy, options_.apply, state_);
  parameters_.clear();
  for (auto& [name, parameter] : strategy_->parameters()) {
    // The default of the third argument would set requires_grad to true.
    register_parameter(name, parameter, parameter.requires_grad());
  }
}

void TPUEmbeddingImpl::copy_from(const TPUEmbeddingImpl& source) {
  options_ = source.options_;
  input_shapes_ = source.input_shapes_;
  adopt(std::make_shared<EmbeddingState>(deep_copy(*source.state_)));
  state_->layer = state_->ranks->add_layer();
  for (auto& parameter : parameters_) {
    parameter.value().requires_grad_(
        source.parameters_[parameter.key()].requires_grad());
  }
  train(source.is_training());
  activation_device_ = source.activation_device_;
  activation_dtype_ = source.activation_dtype_;
}

Nest<at::Tensor> TPUEmbeddingImpl::forward(
    const Features& features,
    const Weights& weights) {
  return forward_part(features, weights, Absent::kRefusedInTraining);
}

Nest<at::Tensor> TPUEmbeddingImpl::forward_partial(
    const Features& features,
    const Weights& weights) {
  return forward_part(features, weights, Absent::kAllowed);
}

Nest<at::Tensor> TPUEmbeddingImpl::forward_part(
    const Features& features,
    const Weights& weights,
    Absent absent) {
  if (const auto* interception = ForwardInterception::current()) {
    TESSERA_CHECK_VALUE(
        activation_device_.is_cpu(),
        "[TPUEmbedding] exported models compute on the cpu, but activations go to {}. Call to(torch::kCPU) on the model before the export.",
        activation_device_);
    return converted(
        interception->handle(*state_, options_.features, features, weights));
  }
  Request request = read(features, weights, absent);
  auto activations = strategy_->forward(std::move(request.batch));
  set_ragged_rows(*state_, request.ragged_rows);
  return converted(pack(std::move(activations), request.part));
}

// The conversion is differentiable. Gradients arrive as float32 on the CPU.
Nest<at::Tensor> TPUEmbeddingImpl::converted(
    Nest<at::Tensor> activations) const {
  if (activation_device_.is_cpu() && activation_dtype_ == torch::kFloat) {
    return activations;
  }
  std::vector<at::Tensor> leaves = activations.flatten();
  for (at::Tensor& leaf : leaves) {
    // A conversion of the dtype alone records no device in an exported model.
    leaf = activation_device_.is_cpu()
        ? leaf.to(activation_dtype_)
        : leaf.to(activation_device_, activation_dtype_);
  }
  return activations.pack(std::move(leaves));
}

TPUEmbeddingImpl::Request TPUEmbeddingImpl::read(
    const Features& features,
    const Weights& weights,
    Absent absent) {
  const ProfileScope scope("tessera::read_batch");
  try {
    Request request;
    if (reader_->read(features, weights, request.batch)) {
      return request;
    }
    request.part = absent == Absent::kAllowed
        ? some_part_of(options_.features, features)
        : part_of(options_.features, features);
    request.batch = request.part
        ? read_part(*request.part, state_->features, features, weights)
        : read_batch(options_.features, state_->features, features, weights);
    request.ragged_rows = request.batch.ragged_rows();
    if (!request.part) {
      reader_->plan(
          options_.features,
          state_->features,
          features,
          weights,
          request.batch);
    }
    return request;
  } catch (...) {
    abort(std::current_exception());
    throw;
  }
}

Nest<at::Tensor> TPUEmbeddingImpl::pack(
    std::vector<at::Tensor> activations,
    const std::optional<Nest<size_t>>& part) const {
  if (!part) {
    return options_.features.pack(std::move(activations));
  }
  return part->pack(c10::fmap(part->flatten(), [&](size_t index) {
    return std::move(activations[index]);
  }));
}

Nest<at::Tensor> TPUEmbeddingImpl::embedding_lookup(
    const Features& features,
    const Weights& weights) const {
  if (const auto* interception = ForwardInterception::current()) {
    return converted(interception->handle_lookup(
        *state_, options_.features, features, weights));
  }
  return embedding_lookup(features, weights, options_.features);
}

Nest<at::Tensor> TPUEmbeddingImpl::embedding_lookup(
    const Features& features,
    const Weights& weights,
    const Nest<FeatureConfig>& serving_config) const {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      ForwardInterception::current() == nullptr,
      "[TPUEmbedding::embedding_lookup] an exported model must look up with the layer's own feature configs, but this one passes a serving_config. Leave it out.");
  check_holds_all_rows(
      *state_,
      "[TPUEmbedding::embedding_lookup]",
      "Call forward() under NoGradGuard on all ranks.");
  const auto reading = strategy_->lock_for_reading();
  return converted(
      lookup_for_serving(*state_, features, weights, serving_config));
}

void TPUEmbeddingImpl::abort(std::exception_ptr error) {
  strategy_->abort(std::move(error));
}

// Not named forward(), because AnyModule and Sequential take the address of forward().
PendingForward TPUEmbeddingImpl::begin_forward(
    const Features& features,
    const Weights& weights) {
  TESSERA_CHECK_NOT_IMPLEMENTED(
      ForwardInterception::current() == nullptr,
      "[TPUEmbedding::begin_forward] an exported model must call forward(), but this one calls begin_forward(). Call forward() in the model.");
  Request request = read(features, weights);
  PendingForward pending;
  pending.finish_ = strategy_->begin_forward(std::move(request.batch));
  set_ragged_rows(*state_, request.ragged_rows);
  pending.strategy_ = strategy_;
  pending.part_ = std::move(request.part);
  return pending;
}

Nest<at::Tensor> TPUEmbeddingImpl::finish_forward(PendingForward&& pending) {
  const PendingForward taken = std::exchange(pending, PendingForward());
  TESSERA_CHECK(
      taken.finish_ != nullptr,
      "[TPUEmbedding::finish_forward] expected a PendingForward that is not finished yet, but this one is empty or finished already. Call begin_forward() again.");
  TESSERA_CHECK(
      taken.strategy_ == strategy_,
      "[TPUEmbedding::finish_forward] expected a PendingForward that this layer began, but another layer began it, or this layer has become a copy of another one since then. Call begin_forward() on this layer again.");
  return converted(pack(taken.finish_(), taken.part_));
}

void TPUEmbeddingImpl::build(int64_t batch_size) {
  build(input_shapes_of(*state_, options_.features, batch_size));
}

void TPUEmbeddingImpl::build(const Nest<PartialShape>& input_shapes) {
  build_output_shapes(*state_, options_.features, input_shapes);
  reader_->forget_plan();
  input_shapes_ =
      join_input_shapes(options_.features, input_shapes_, input_shapes);
}

Nest<PartialShape> TPUEmbeddingImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  std::vector<PartialShape> shapes =
      compute_output_shapes(*state_, options_.features, input_shapes);
  for (size_t i = 0; i < shapes.size(); ++i) {
    shapes[i].push_back(state_->features[i].config.table->dim);
  }
  return options_.features.pack(std::move(shapes));
}

Json TPUEmbeddingImpl::get_config() const {
  return write_fields(options_);
}

at::Tensor& TPUEmbeddingImpl::virtual_variable() & {
  at::Tensor* variable = parameters_.find("virtual_variable");
  TESSERA_CHECK(
      variable != nullptr,
      "[TPUEmbedding] Strategy::{}() has no virtual variable: its tables are ordinary parameters. Use parameters().",
      options_.strategy.name());
  return *variable;
}

at::Tensor TPUEmbeddingImpl::read_rows(
    const std::string& name,
    int64_t begin,
    int64_t end) const {
  return tessera::read_rows(*state_, name, begin, end);
}

int64_t TPUEmbeddingImpl::iterations() const {
  return updates_applied(*state_);
}

int64_t TPUEmbeddingImpl::schedule_step() const {
  return state_->passes;
}

int64_t TPUEmbeddingImpl::out_of_range_count() const {
  return state_->out_of_range_count;
}

std::string TPUEmbeddingImpl::summary() const {
  return summary_of(*state_, "strategy " + options_.strategy.name());
}

void TPUEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "tessera::TPUEmbedding(\n" << summary() << ")";
}

std::shared_ptr<torch::nn::Module> TPUEmbeddingImpl::clone(
    const std::optional<torch::Device>& device) const {
  check_device(device, "clone");
  std::shared_ptr<TPUEmbeddingImpl> copy(new TPUEmbeddingImpl(*this, Copy{}));
  copy->convert_to(device, std::nullopt);
  return copy;
}

// The clone() of a parent module calls this function on the new copy.
void TPUEmbeddingImpl::clone_(
    torch::nn::Module& other,
    const std::optional<torch::Device>& device) {
  check_device(device, "clone");
  copy_from(clone_source<TPUEmbeddingImpl>(other, kClassName));
  convert_to(device, std::nullopt);
}

void TPUEmbeddingImpl::convert_to(
    const std::optional<torch::Device>& device,
    const std::optional<torch::Dtype>& dtype) {
  TESSERA_CHECK_VALUE(
      !dtype ||
          std::ranges::find(kActivationDtypes, *dtype) !=
              kActivationDtypes.end(),
      "[TPUEmbedding::to] activations must be float32, float64, bfloat16 or float16, but got {}. To give other modules another dtype, convert each of them instead of the whole model.",
      c10::toString(*dtype));
  check_device(device, "to");
  activation_device_ = device.value_or(activation_device_);
  activation_dtype_ = dtype.value_or(activation_dtype_);
}

// A module converts its children one after the other. If a child throws, half of the model
// is converted. So each dtype that a tower can have is accepted.
void TPUEmbeddingImpl::to(
    torch::Device device,
    torch::Dtype dtype,
    bool /*non_blocking*/) {
  convert_to(device, dtype);
}

void TPUEmbeddingImpl::to(torch::Dtype dtype, bool /*non_blocking*/) {
  convert_to(std::nullopt, dtype);
}

void TPUEmbeddingImpl::to(torch::Device device, bool /*non_blocking*/) {
  convert_to(device, std::nullopt);
}

const EmbeddingState& TPUEmbeddingImpl::state() const {
  return *state_;
}

void TPUEmbeddingImpl::read_state(
    c10::function_ref<void(const EmbeddingState&)> read) const {
  read(*state_);
}

void TPUEmbeddingImpl::change_state(
    c10::function_ref<void(EmbeddingState&)> change) {
  strategy_->wait_for_lookups();
  change(*state_);
}

void TPUEmbeddingImpl::wait_for_lookups() const {
  strategy_->wait_for_lookups();
}

}  // namespace tessera
