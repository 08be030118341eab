// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/schedule.h>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace torch::detail {
struct ModuleHolderIndicator;
}  // namespace torch::detail

namespace tessera::optim {

namespace detail {

/// True if T is one of the variant's alternatives, which may be incomplete types.
template <class T, class Variant>
inline constexpr bool kIsAlternative = false;
template <class T, class... Ts>
inline constexpr bool kIsAlternative<T, std::variant<Ts...>> =
    (std::same_as<T, Ts> || ...);

/// Excludes torch::nn::ModuleHolder, because testing whether a ModuleHolder can be called
/// does not compile.
template <class F>
concept NoModule = !std::is_base_of_v<torch::detail::ModuleHolderIndicator, F>;

/// A callable that returns a number.
template <class F>
concept ReturnsNumber = NoModule<F> && std::is_invocable_r_v<double, F&>;

/// A callable that returns a tensor.
template <class F>
concept ReturnsTensor =
    NoModule<F> && !ReturnsNumber<F> && std::is_invocable_r_v<at::Tensor, F&>;

}  // namespace detail

// snippet: tests/docs/reference_optim_test.cpp LearningRate
/// A learning rate: a number, a schedule of the layer's step counter, or a
/// callable. Schedules and callables are evaluated once per update.
///
///   const SGD constant{.learning_rate = 0.1};
///   const SGD scheduled{
///       .learning_rate =
///           CosineDecay{.initial_learning_rate = 0.1, .decay_steps = 10'000}};
///   const SGD computed{.learning_rate = [&] { return current_rate; }};
///   const SGD named{
///       .learning_rate = LearningRate("mine", [&] { return current_rate; })};
///
/// A callable returns a number or a tensor of one element. The tensor has a
/// floating-point or integer type and may be on any device.
///
/// Callables compare by identity: copies of one LearningRate are equal, but two
/// LearningRates made from the same lambda are not.
/// Range:   finite in float32 and >= 0, checked at each evaluation.
class LearningRate {
 public:
  using Callable = std::function<double()>;
  using TensorCallable = std::function<at::Tensor()>;

  // NOLINTBEGIN(google-explicit-constructor)
  template <class Number>
  requires std::is_arithmetic_v<Number> LearningRate(Number value)
      : source_(static_cast<double>(value)) {}

  template <class S>
  requires detail::kIsAlternative<S, Schedule> LearningRate(S schedule)
      : source_(Schedule(std::move(schedule))) {}

  LearningRate(Schedule schedule) : source_(std::move(schedule)) {}

  template <class F>
  requires(detail::ReturnsNumber<F> || detail::ReturnsTensor<F>)
      LearningRate(F callable)
      : LearningRate("", std::move(callable)) {}
  // NOLINTEND(google-explicit-constructor)

  /// `name` represents the callable in JSON and checkpoints.
  LearningRate(std::string name, Callable callable)
      : source_(make_named(std::move(name), std::move(callable))) {}

  /// This is a template so that nullptr still selects the constructor above.
  template <detail::ReturnsTensor F>
  LearningRate(std::string name, F callable)
      : source_(
            make_named(std::move(name), TensorCallable(std::move(callable)))) {}

  /// A learning rate that has only the name of a callable, as it is read from JSON. It
  /// must be replaced by a LearningRate with the callable before use.
  static LearningRate placeholder(std::string name);

  bool is_constant() const {
    return std::holds_alternative<double>(source_);
  }
  /// The schedule, or nullptr if this is a number or a callable.
  const Schedule* schedule() const& {
    return std::get_if<Schedule>(&source_);
  }
  const Schedule* schedule() const&& = delete;
  /// The callable's name. It is empty for callables without a name, numbers and
  /// schedules.
  std::string callable_name() const;

  /// The learning rate at step 0, 1, ... of the layer.
  /// Errors:  c10::ValueError if the rate is negative or not finite, if a placeholder
  ///          has no callable, or if a tensor does not have exactly one element;
  ///          c10::TypeError for a tensor whose type is neither floating-point nor
  ///          integer. Messages begin with `where`.
  double value(int64_t step, const std::string& where) const;

  /// Refuses a number or schedule out of range, and an empty std::function. What a
  /// callable returns is checked by value().
  void validate(const std::string& where) const;

  bool operator==(const LearningRate&) const = default;

 private:
  using AnyCallable = std::variant<Callable, TensorCallable>;

  struct Named {
    std::string name;
    std::shared_ptr<const AnyCallable> callable;
    bool operator==(const Named&) const = default;
  };

  static Named make_named(std::string name, AnyCallable callable) {
    return {
        std::move(name),
        std::make_shared<const AnyCallable>(std::move(callable))};
  }

  std::variant<double, Schedule, Named> source_;
};

/// Gives each entry of `sources` a tag. Equal sources have the same tag, and tags are
/// 0, 1, ... in the order of first occurrence. The sources of one tag are evaluated
/// only once per update.
/// Source:  the dynamic learning rates of the TPU embedding configuration.
std::vector<int64_t> learning_rate_tags(
    const std::vector<LearningRate>& sources);

}  // namespace tessera::optim
