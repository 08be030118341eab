// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <fmt/format.h>  // all benchmarks print with it

#include <chrono>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

/// The options of a benchmark. Each one is a member with its name, default and help:
///
///   struct Options : BenchmarkOptions {
///     int64_t& rows = integer("--rows", 1000, "rows of each table");
///   };
class BenchmarkOptions : public CLI::App {
 public:
  /// Parses the arguments and calls `work`. Prints its error, if any, to standard error.
  /// Returns the exit status.
  int run(int argc, char** argv, const std::function<void()>& work);

 protected:
  using Check = CLI::Validator;

  static CLI::Range up_to(int64_t high, int64_t low = 1) {
    return {low, high};
  }

  int64_t& integer(
      const std::string& name,
      int64_t value,
      const std::string& help = "",
      const Check& check = up_to(1'000'000'000)) {
    return option(name, value, help, check);
  }
  double& real(
      const std::string& name,
      double value,
      const std::string& help = "",
      const Check& check = CLI::NonNegativeNumber) {
    return option(name, value, help, check);
  }
  std::string& text(
      const std::string& name,
      const std::string& help,
      const std::string& value = "",
      const Check& check = {}) {
    return option(name, value, help, check);
  }
  bool& flag(
      const std::string& name,
      const std::string& help,
      bool value = false) {
    bool& stored = store(value);
    add_flag(name, stored, help);
    return stored;
  }
  /// Any other type, such as a vector.
  template <class T>
  T& option(
      const std::string& name,
      const T& value,
      const std::string& help = "",
      const Check& check = {}) {
    T& stored = store(value);
    add_option(name, stored, help)->check(check)->capture_default_str();
    return stored;
  }

 private:
  template <class T>
  T& store(const T& value) {
    const auto stored = std::make_shared<T>(value);
    values_.push_back(stored);
    return *stored;
  }

  std::vector<std::shared_ptr<void>> values_;
};

/// The main() of a benchmark.
template <class Options>
int run_benchmark(
    int argc,
    char** argv,
    const std::string& description,
    void (*work)(const Options&)) {
  Options options;
  options.description(description);
  return options.run(argc, argv, [&] { work(options); });
}

/// The main() of a benchmark that does nothing else.
#define TESSERA_BENCHMARK(description, work)             \
  int main(int argc, char** argv) {                      \
    return run_benchmark(argc, argv, description, work); \
  }

/// The time since it was made.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  double ms() const {
    return 1e3 * seconds();
  }
  /// The sum over all threads of the process.
  double core_seconds() const {
    return static_cast<double>(std::clock() - cores_begin_) / CLOCKS_PER_SEC;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::clock_t cores_begin_ = std::clock();
  Clock::time_point begin_ = Clock::now();
};

double seconds_of(const auto& work) {
  const Stopwatch watch;
  work();
  return watch.seconds();
}

/// Runs work(thread) on `threads` threads. Returns the seconds until all have ended.
double seconds_on(int64_t threads, const std::function<void(int64_t)>& work);

/// How often sorted_ms() runs something.
struct Repetitions {
  int64_t warmup = 0;  // runs that are not timed
  int64_t least = 1;
  double least_ms = 0.0;  // of all timed runs together
};

/// The times of run(0), run(1), ..., in ascending order.
std::vector<double> sorted_ms(
    const Repetitions& repetitions,
    const std::function<void(int64_t)>& run);

/// The median of `count` runs after `warmup` runs that are not timed.
double median_ms(
    int64_t count,
    const std::function<void()>& run,
    int64_t warmup = 2);

double median(std::vector<double> values);

/// A share of 0.99 of the values are at most as large as the result for 0.99.
double quantile(std::vector<double> values, double share);

/// Returns 0, ..., sides - 1, in each round with another one first. So a slow period of
/// the machine affects all sides of a comparison.
std::vector<size_t> turns(int64_t round, size_t sides);

/// The largest resident memory of this process so far, in bytes.
int64_t peak_resident_bytes();

/// What times depend on, such as "2 threads, avx512".
std::string machine();
