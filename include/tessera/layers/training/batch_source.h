// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/train_step.h>

#include <c10/util/Exception.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace tessera::training {

/// A step over the batches of a source, one epoch after another: what is left of
/// the batch type in the compiled part of fit(). make_pass() makes it.
class Pass {
 public:
  virtual ~Pass() = default;

  /// Opens the source.
  virtual void begin(int64_t epoch) = 0;
  /// The number of batches of this epoch, where the source knows it.
  virtual std::optional<int64_t> size() const = 0;
  /// Leaves out the next `count` batches; `count`, or fewer where the source ends
  /// before.
  virtual int64_t skip(int64_t count) = 0;
  /// Nothing when no batch is left.
  virtual std::optional<StepResult> step() = 0;
  /// Closes the source.
  virtual void end() = 0;
};

namespace detail {

/// std::optional<Batch> next().
template <class T>
concept HasNext = requires(T& source) {
  source.next().has_value();
  *source.next();
};
template <class T>
concept HasSkip = requires(T& source, int64_t count) {
  source.skip(count);
};
/// Says how many there were.
template <class T>
concept HasCountingSkip = requires(T& source, int64_t count) {
  { source.skip(count) } -> std::integral;
};
template <class T>
concept HasSize = requires(const T& source) {
  { std::size(source) } -> std::convertible_to<int64_t>;
};
template <class T>
concept HasOptionalSize = requires(const T& source) {
  { source.size() } -> std::convertible_to<std::optional<int64_t>>;
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

template <class T>
std::optional<int64_t> size_of(const T& source) {
  if constexpr (HasSize<T>) {
    return static_cast<int64_t>(std::size(source));
  } else if constexpr (HasOptionalSize<T>) {
    return source.size();
  } else {
    return std::nullopt;
  }
}

/// The batches of a source with next().
template <class Epoch>
class NextReader {
 public:
  explicit NextReader(Epoch& epoch) : epoch_(epoch) {}

  int64_t skip(int64_t count) {
    if constexpr (HasCountingSkip<Epoch>) {
      return static_cast<int64_t>(epoch_.skip(count));
    } else if constexpr (HasSkip<Epoch>) {
      // Whether there were as many, only a batch can tell.
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

/// The batches of a range. The iterator moves on only when the next batch is
/// wanted.
template <class Epoch>
class RangeReader {
 public:
  explicit RangeReader(Epoch& epoch)
      : next_(std::begin(epoch)), end_(std::end(epoch)) {}

  int64_t skip(int64_t count) {
    move_on();
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
    move_on();
    if (!(next_ != end_)) {
      return false;
    }
    is_used_ = true;
    use(*next_);
    return true;
  }

 private:
  void move_on() {
    if (is_used_) {
      ++next_;
      is_used_ = false;
    }
  }

  decltype(std::begin(std::declval<Epoch&>())) next_;
  decltype(std::end(std::declval<Epoch&>())) end_;
  bool is_used_ = false;  // what next_ stands on
};

template <class Source, class Step>
class SourcePass : public Pass {
  using Opened =
      decltype(open_source(std::declval<Source&>(), std::declval<int64_t>()));
  using Epoch = std::remove_reference_t<Opened>;
  using Reader =
      std::conditional_t<HasNext<Epoch>, NextReader<Epoch>, RangeReader<Epoch>>;

 public:
  SourcePass(Source source, Step step)
      : source_(std::forward<Source>(source)), step_(std::move(step)) {}

  void begin(int64_t epoch) override {
    end();
    if constexpr (std::is_reference_v<Opened>) {
      opened_ = &open_source(source_, epoch);
    } else {
      // Not every range can be moved.
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
    reader_->read([&](auto&& batch) {
      result = to_step_result(step_(std::forward<decltype(batch)>(batch)));
    });
    return result;
  }
  void end() override {
    reader_.reset();
    opened_ = nullptr;
  }

 private:
  Source source_;
  Step step_;
  std::
      conditional_t<std::is_reference_v<Opened>, Epoch*, std::unique_ptr<Epoch>>
          opened_ = nullptr;
  std::optional<int64_t> size_;
  std::optional<Reader> reader_;
};

}  // namespace detail

/// A step over the batches of `source`, which is
///
///   a range of batches, read again in each epoch: std::vector<Batch>, ...
///   a function () or (int64_t epoch) that gives the batches of an epoch, as a
///   range (also by reference: a loader that begin() starts anew), or as an
///   object with
///
///     std::optional<Batch> next();      // nothing at the end
///     int64_t skip(int64_t count);      // if it can be cheap: how many there
///                                       // were to skip; or void
///     int64_t size() const;             // of the epoch, if known; or optional
///
/// An lvalue `source` is referred to and must outlive the pass; an rvalue is
/// kept. `step` takes a batch and gives a StepResult or the loss alone.
template <class Source, class Step>
std::shared_ptr<Pass> make_pass(Source&& source, Step step) {
  return std::make_shared<detail::SourcePass<Source, Step>>(
      std::forward<Source>(source), std::move(step));
}

}  // namespace tessera::training
