// SPDX-License-Identifier: Apache-2.0
// The parts that all specs share. The source of each spec is in optim/optimizers/.
#include <tessera/optim/optimizers.h>

#include "optim/common_options.h"
#include "optim/optimizer_definition.h"
#include "optim/row_update.h"

#include <c10/util/Exception.h>

namespace tessera::optim {

namespace {

// The alternative that `spec` holds.
template <class... Specs>
std::variant<Specs...> alternative_of(
    std::any& spec,
    std::in_place_type_t<std::variant<Specs...>> /*variant*/) {
  std::variant<Specs...> found;
  const auto take = [&]<class Spec>(Spec* held) {
    if (held != nullptr) {
      found = std::move(*held);
    }
    return held != nullptr;
  };
  const bool is_found = (take(std::any_cast<Specs>(&spec)) || ...);
  TORCH_INTERNAL_ASSERT(is_found);
  return found;
}

}  // namespace

OptimizerSpec::OptimizerSpec() {
  static const auto sgd = std::make_shared<const OptimizerVariant>(SGD{});
  spec_ = sgd;
}

std::shared_ptr<const OptimizerVariant> OptimizerSpec::hold(std::any spec) {
  return std::make_shared<const OptimizerVariant>(
      alternative_of(spec, std::in_place_type<OptimizerVariant>));
}

const void* OptimizerSpec::find(const std::type_info& type) const {
  return std::visit(
      [&]<class Spec>(const Spec& spec) -> const void* {
        return type == typeid(Spec) ? &spec : nullptr;
      },
      *spec_);
}

const OptimizerVariant& OptimizerSpec::variant() const {
  return *spec_;
}

bool OptimizerSpec::operator==(const OptimizerSpec& other) const {
  return *spec_ == *other.spec_;
}

std::string name_of(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) -> std::string {
        return definition_of(spec).name();
      },
      optimizer.variant());
}

void validate(const OptimizerSpec& optimizer, const std::string& where) {
  const std::string prefix = where + " " + name_of(optimizer) + ":";
  validate(common_options(optimizer), prefix);
  std::visit(
      [&](const auto& spec) {
        definition_of(spec).validate(spec, Range(prefix));
      },
      optimizer.variant());
}

bool sweeps_all_rows(const OptimizerSpec& optimizer) {
  return !common_options(optimizer).is_lazy;
}

std::vector<SlotSpec> slots_of(const OptimizerSpec& optimizer) {
  return std::visit(
      [](const auto& spec) { return definition_of(spec).slots(spec); },
      optimizer.variant());
}

const SlotCreation& slot_creation_of(const OptimizerSpec& optimizer) {
  return common_options(optimizer).slot_creation;
}

RowUpdate row_update(
    const OptimizerSpec& optimizer,
    const UpdateMoment& moment) {
  const CommonOptions options = common_options(optimizer);
  return {
      .rule = std::visit(
          [&](const auto& spec) {
            return definition_of(spec).row_rule(spec, moment);
          },
          optimizer.variant()),
      .stages = row_stages(options, moment.learning_rate),
      .accumulate = options.use_gradient_accumulation,
      .sweep = !options.is_lazy};
}

bool accumulates_duplicates(const OptimizerSpec& optimizer) {
  return common_options(optimizer).use_gradient_accumulation;
}

int64_t gradient_accumulation_steps_of(const OptimizerSpec& optimizer) {
  return common_options(optimizer).gradient_accumulation_steps;
}

const LearningRate& learning_rate_of(const OptimizerSpec& optimizer) {
  return common_options(optimizer).learning_rate;
}

}  // namespace tessera::optim
