// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/profile_scope.h>
#include <tessera/training/train_step.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace tessera::training {

// snippet: tests/docs/reference_training_test.cpp Pass
/// Runs a step function on the batches of a source, epoch by epoch. It hides the type of
/// the batches, so that fit() need not be a template. make_pass() creates one.
///
///   const std::shared_ptr<Pass> pass = make_pass(test_batches, loss_of);
///   const Logs logs = evaluate(*pass, {std::make_shared<AUC>()});
///   std::cout << logs["loss"] << " " << logs["auc"] << "\n";
class Pass {
 public:
  virtual ~Pass() = default;

  /// Opens the source.
  virtual void begin(int64_t epoch) = 0;
  /// The number of batches in this epoch; unset if the source does not know it.
  virtual std::optional<int64_t> size() const = 0;
  /// Skips the next `count` batches. Returns how many it skipped, which is fewer than
  /// `count` if the source ends earlier.
  virtual int64_t skip(int64_t count) = 0;
  /// Runs the step on the next batch. Returns nullopt when no batch is left.
  virtual std::optional<StepResult> step() = 0;
  /// Closes the source.
  virtual void end() = 0;

  /// Checks that a step of make_train_step() has no other strategy. fit() calls this check.
  virtual void check_step(const Strategy& /*strategy*/) const {}
};

namespace detail {

/// The source has `std::optional<Batch> next()`.
template <class T>
concept HasNext = requires(T& source) {
  source.next().has_value();
  *source.next();
};

/// Batches can be read with a range-based for loop.
template <class T>
concept IsRange = requires(T& source) {
  *std::begin(source);
  std::begin(source) != std::end(source);
};

template <class Source>
decltype(auto) open_source(Source& source, int64_t epoch) {
  if constexpr (std::invocable<Source&, int64_t>) {
    return std::invoke(source, epoch);
  } else if constexpr (std::invocable<Source&>) {
    return std::invoke(source);
  } else {
    return (source);
  }
}

/// What open_source() returns: the batches of one epoch.
template <class Source>
using EpochOf = std::remove_reference_t<
    decltype(open_source(std::declval<Source&>(), std::declval<int64_t>()))>;

template <HasNext Epoch>
decltype(auto) first_of(Epoch& epoch) {
  decltype(epoch.next())* batch = nullptr;
  return **batch;
}
template <class Epoch>
requires(!HasNext<Epoch>) decltype(auto) first_of(Epoch& epoch) {
  return *std::begin(epoch);
}

template <class Result>
concept IsStepResult = requires(Result&& result) {
  to_step_result(std::forward<Result>(result));
};

/// The size of a source whose size() returns an integer or an optional one.
template <class T>
std::optional<int64_t> size_of(const T& source) {
  if constexpr (requires { std::optional<int64_t>(std::size(source)); }) {
    return std::optional<int64_t>(std::size(source));
  } else {
    return std::nullopt;
  }
}

/// Reads the batches of a source with next().
template <class Epoch>
class NextReader {
 public:
  explicit NextReader(Epoch& epoch) : epoch_(epoch) {}

  int64_t skip(int64_t count) {
    if constexpr (requires {
                    { epoch_.skip(count) } -> std::integral;
                  }) {
      return static_cast<int64_t>(epoch_.skip(count));
    } else if constexpr (requires { epoch_.skip(count); }) {
      // This skip() returns nothing. Reading the last batch shows whether it existed.
      if (count > 1) {
        epoch_.skip(count - 1);
      }
      return count < 1 || epoch_.next().has_value() ? count : count - 1;
    } else {
      int64_t skipped = 0;
      while (skipped < count && epoch_.next().has_value()) {
        ++skipped;
      }
      return skipped;
    }
  }
  template <class Use>
  bool read(Use&& use) {
    auto batch = epoch_.next();
    if (!batch.has_value()) {
      return false;
    }
    use(*batch);
    return true;
  }

 private:
  Epoch& epoch_;
};

/// Reads the batches of a range. The iterator advances only when the next batch is
/// requested.
template <class Epoch>
class RangeReader {
 public:
  explicit RangeReader(Epoch& epoch)
      : next_(std::begin(epoch)), end_(std::end(epoch)) {}

  int64_t skip(int64_t count) {
    advance();
    if constexpr (requires {
                    end_ - next_;
                    next_ += count;
                  }) {
      const auto left = static_cast<int64_t>(end_ - next_);
      const int64_t skipped = count < left ? count : left;
      next_ += skipped;
      return skipped;
    } else {
      int64_t skipped = 0;
      for (; skipped < count && next_ != end_; ++skipped) {
        ++next_;
      }
      return skipped;
    }
  }
  template <class Use>
  bool read(Use&& use) {
    advance();
    if (!(next_ != end_)) {
      return false;
    }
    has_read_ = true;
    use(*next_);
    return true;
  }

 private:
  void advance() {
    if (has_read_) {
      ++next_;
      has_read_ = false;
    }
  }

  decltype(std::begin(std::declval<Epoch&>())) next_;
  decltype(std::end(std::declval<Epoch&>())) end_;
  bool has_read_ = false;  // whether *next_ was read already
};
template <class Epoch>
using ReaderOf =
    std::conditional_t<HasNext<Epoch>, NextReader<Epoch>, RangeReader<Epoch>>;

template <class Source, class Step>
class SourcePass : public Pass {
  using Opened =
      decltype(open_source(std::declval<Source&>(), std::declval<int64_t>()));
  using Epoch = std::remove_reference_t<Opened>;

 public:
  SourcePass(Source source, Step step)
      : source_(std::forward<Source>(source)), step_(std::move(step)) {}

  void begin(int64_t epoch) override {
    end();
    if constexpr (std::is_reference_v<Opened>) {
      opened_ = &open_source(source_, epoch);
    } else {
      // Made in place with `new`, because not every range can be moved.
      opened_.reset(new Epoch(open_source(source_, epoch)));
    }
    size_ = size_of(*opened_);
    reader_.emplace(*opened_);
  }
  std::optional<int64_t> size() const override {
    return size_;
  }
  int64_t skip(int64_t count) override {
    return reader_->skip(count);
  }
  std::optional<StepResult> step() override {
    std::optional<StepResult> result;
    const ProfileScope reading("tessera::next_batch");
    reader_->read([&](auto&& batch) {
      const ProfileScope stepping("tessera::step");
      result = to_step_result(step_(std::forward<decltype(batch)>(batch)));
    });
    return result;
  }
  void end() override {
    reader_.reset();
    opened_ = nullptr;
  }
  void check_step(const Strategy& strategy) const override {
    if constexpr (requires { step_.check(strategy); }) {
      step_.check(strategy);
    }
  }

 private:
  Source source_;
  Step step_;
  std::
      conditional_t<std::is_reference_v<Opened>, Epoch*, std::unique_ptr<Epoch>>
          opened_ = nullptr;
  std::optional<int64_t> size_;
  std::optional<ReaderOf<Epoch>> reader_;
};

/// Converts the batches of a source. Each call opens the source again.
template <class Source, class Convert>
class ConvertedSource {
 public:
  ConvertedSource(Source source, Convert convert)
      : source_(std::forward<Source>(source)), convert_(std::move(convert)) {}

  template <class Use>
  void for_each(const Use& use) {
    auto&& epoch = open_source(source_, int64_t{0});
    ReaderOf<std::remove_reference_t<decltype(epoch)>> reader(epoch);
    while (reader.read([&](auto&& batch) {
      use(convert_(std::forward<decltype(batch)>(batch)));
    })) {
    }
  }

 private:
  Source source_;
  Convert convert_;
};

}  // namespace detail

/// The sources of make_pass().
template <class T>
concept BatchSource =
    detail::HasNext<detail::EpochOf<T>> || detail::IsRange<detail::EpochOf<T>>;

/// What a step function gets as its argument: the type of `*next()` or of an element.
template <BatchSource Source>
using BatchOf =
    decltype(detail::first_of(std::declval<detail::EpochOf<Source>&>()));

/// A function of one batch. It returns a StepResult or only the loss.
template <class Step, class Batch>
concept StepFunction = std::invocable<Step&, Batch> &&
    detail::IsStepResult<std::invoke_result_t<Step&, Batch>>;

namespace detail {

/// Checks the arguments of make_pass(). Each mistake gives one error, because code that
/// needs correct arguments is then not compiled.
template <class Source, class Step>
constexpr bool check_pass() {
  constexpr bool is_source = BatchSource<Source>;
  static_assert(
      is_source,
      "[make_pass] the source does not provide batches. Pass a range of batches, a function () or (int64_t epoch) that returns one, or an object with std::optional<Batch> next().");
  if constexpr (is_source) {
    constexpr bool is_callable = std::invocable<Step&, BatchOf<Source>>;
    static_assert(
        is_callable,
        "[make_pass] the step can't be called with a batch of the source. Pass a function whose only parameter is a batch, such as [&](const Batch& batch) { ... }.");
    if constexpr (is_callable) {
      constexpr bool is_step = StepFunction<Step, BatchOf<Source>>;
      static_assert(
          is_step,
          "[make_pass] the step must return a StepResult or the loss, but returns another type. Return the loss as a tensor with one number, not as a double, or a StepResult.");
      if constexpr (is_step && requires { typename Step::LossFunction; }) {
        return check_loss_function<
            typename Step::LossFunction,
            BatchOf<Source>&&>();
      }
      return is_step;
    }
  }
  return false;
}

}  // namespace detail

/// Combines `source` and `step` into a Pass. `source` is one of these:
///
///   a range of batches, such as std::vector<Batch>, which is read in each epoch;
///   a function () or (int64_t epoch) that returns the batches of an epoch. It returns a
///   range, a reference to a range (such as a loader that begin() restarts), or an object
///   with these members:
///
///     std::optional<Batch> next();      // nullopt at the end
///     int64_t skip(int64_t count);      // optional, for a cheap skip; returns how many
///                                       // batches it skipped, or void
///     int64_t size() const;             // optional: the batches of the epoch; it may
///                                       // return std::optional<int64_t>
///
/// An lvalue `source` is kept by reference and must outlive the pass; an rvalue is
/// moved into the pass. `step` takes a batch and returns a StepResult or only the loss.
template <class Source, class Step>
std::shared_ptr<Pass> make_pass(Source&& source, Step step) {
  if constexpr (detail::check_pass<Source, Step>()) {
    return std::make_shared<detail::SourcePass<Source, Step>>(
        std::forward<Source>(source), std::move(step));
  } else {
    return nullptr;
  }
}

}  // namespace tessera::training
