// SPDX-License-Identifier: Apache-2.0
#include "tests/benchmarks/benchmark.h"

#include <tessera/tables/instruction_set.h>

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <thread>

int BenchmarkOptions::run(
    int argc,
    char** argv,
    const std::function<void()>& work) {
  CLI11_PARSE(*this, argc, argv);
  try {
    work();
    return 0;
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
  }
  return 1;
}

std::vector<double> sorted_ms(
    const Repetitions& repetitions,
    const std::function<void(int64_t)>& run) {
  std::vector<double> times;
  double total = 0.0;
  const auto least = static_cast<size_t>(repetitions.least);
  for (int64_t i = 0; times.size() < least || total < repetitions.least_ms;
       ++i) {
    const Stopwatch watch;
    run(i);
    const double ms = watch.ms();
    if (i >= repetitions.warmup) {
      times.push_back(ms);
      total += ms;
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

double median_ms(
    int64_t count,
    const std::function<void()>& run,
    int64_t warmup) {
  return median(
      sorted_ms({.warmup = warmup, .least = count}, [&](int64_t) { run(); }));
}

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(
      share * static_cast<double>(values.size() - 1))];
}

double seconds_on(int64_t threads, const std::function<void(int64_t)>& work) {
  const Stopwatch watch;
  std::vector<std::thread> others;
  for (int64_t i = 1; i < threads; ++i) {
    others.emplace_back(work, i);
  }
  work(0);
  for (std::thread& thread : others) {
    thread.join();
  }
  return watch.seconds();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::vector<size_t> turns(int64_t round, size_t sides) {
  std::vector<size_t> order;
  for (size_t i = 0; i < sides; ++i) {
    order.push_back((i + static_cast<size_t>(round)) % sides);
  }
  return order;
}

int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string machine() {
  return fmt::format(
      "{} threads, {}", at::get_num_threads(), tessera::instruction_set());
}
