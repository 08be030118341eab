// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/learning_rate.h>

#include <tessera/common/shorten.h>

#include <algorithm>
#include <cmath>

#include "src/common/check.h"

namespace tessera::optim {

namespace {

double number_in(const at::Tensor& tensor, const std::string& where) {
  TESSERA_CHECK_TYPE(
      tensor.defined() &&
          (at::isFloatingType(tensor.scalar_type()) ||
           at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)),
      "{} the learning_rate's callable must return a number or a tensor of a floating-point or integer type, but returned {}. Convert its result.",
      where,
      tensor.defined() ? c10::toString(tensor.scalar_type()) : "no tensor");
  TESSERA_CHECK_VALUE(
      tensor.numel() == 1 && tensor.layout() == at::kStrided &&
          !tensor.is_meta(),
      "{} the learning_rate's callable must return a dense tensor of one element, but returned a {} tensor of shape {} on {}. Select one element.",
      where,
      tensor.layout(),
      tensor.sizes(),
      tensor.device());
  return tensor.item().toDouble();
}

// False for an empty std::function.
bool can_be_called(const auto& callable) {
  return std::visit(
      [](const auto& function) { return function != nullptr; }, callable);
}

}  // namespace

LearningRate LearningRate::placeholder(std::string name) {
  LearningRate learning_rate = 0.0;
  learning_rate.source_ = Named{std::move(name), nullptr};
  return learning_rate;
}

std::string LearningRate::callable_name() const {
  const Named* named = std::get_if<Named>(&source_);
  return named == nullptr ? "" : named->name;
}

double LearningRate::value(int64_t step, const std::string& where) const {
  double value = 0.0;
  if (const Named* named = std::get_if<Named>(&source_)) {
    TESSERA_CHECK_VALUE(
        named->callable != nullptr && can_be_called(*named->callable),
        "{} learning_rate is the placeholder of the callable '{}'. Replace it by LearningRate(\"{}\", callable).",
        where,
        shorten(named->name),
        shorten(named->name));
    if (const auto* number = std::get_if<Callable>(named->callable.get())) {
      value = (*number)();
    } else {
      value = number_in(std::get<TensorCallable>(*named->callable)(), where);
    }
  } else if (const Schedule* schedule = this->schedule()) {
    value = value_at(*schedule, step);
  } else {
    value = std::get<double>(source_);
  }
  TESSERA_CHECK_VALUE(
      std::isfinite(static_cast<float>(value)) && value >= 0.0,
      "{} learning_rate must be finite in float32 and >= 0, but got {}.",
      where,
      value);
  return value;
}

void LearningRate::validate(const std::string& where) const {
  if (const Schedule* schedule = this->schedule()) {
    optim::validate(*schedule, where + " learning_rate");
  } else if (const Named* named = std::get_if<Named>(&source_)) {
    // A placeholder has no callable; an empty std::function is a mistake.
    TESSERA_CHECK_VALUE(
        named->callable == nullptr || can_be_called(*named->callable),
        "{} learning_rate must be a function that can be called, but is an empty std::function. Assign a function to it.",
        where);
  } else if (is_constant()) {
    value(0, where);
  }
}

std::vector<int64_t> learning_rate_tags(
    const std::vector<LearningRate>& sources) {
  std::vector<int64_t> tags;
  std::vector<const LearningRate*> distinct;  // by tag
  for (const LearningRate& source : sources) {
    const auto first = std::ranges::find_if(
        distinct, [&](const LearningRate* known) { return *known == source; });
    tags.push_back(first - distinct.begin());
    if (first == distinct.end()) {
      distinct.push_back(&source);
    }
  }
  return tags;
}

}  // namespace tessera::optim
