// SPDX-License-Identifier: Apache-2.0
#include "examples/common/command_line.h"

#include <c10/util/Exception.h>

#include <exception>
#include <iostream>
#include <map>

CLI::Range up_to(int64_t max, int64_t min) {
  return {min, max};
}

std::string empty_problem(const std::string& text) {
  return text.empty() ? "must not be empty" : "";
}

CLI::Option* add_count(
    CLI::App& app,
    const std::string& flag,
    int64_t& count,
    const std::string& text,
    int64_t max) {
  return app.add_option(flag, count, text)
      ->check(up_to(max))
      ->capture_default_str();
}

CLI::Option* add_seed(CLI::App& app, int64_t& seed, const std::string& text) {
  return app.add_option("--seed", seed, text)
      ->check(up_to(1'000'000'000, 0))
      ->capture_default_str();
}

CLI::Option* add_precision(
    CLI::App& app,
    tessera::Precision& precision,
    const std::string& text) {
  const std::map<std::string, tessera::Precision> names{
      {"float32", tessera::Precision::kFloat32},
      {"bfloat16", tessera::Precision::kBFloat16}};
  return app.add_option("--precision", precision, text)
      ->transform(
          CLI::CheckedTransformer(names).description("{float32,bfloat16}"))
      ->default_str("float32");
}

CLI::Option* add_output(
    CLI::App& app,
    const std::string& flag,
    std::string& path,
    const std::string& text) {
  return app.add_option(flag, path, text)->check(empty_problem);
}

int run_program(
    const std::string& name,
    const std::function<int()>& run,
    const std::function<std::string(const std::string&)>& explain) {
  try {
    return run();
  } catch (const c10::Error& error) {
    const std::string message = error.what_without_backtrace();
    std::cerr << (explain ? explain(message) : message) << "\n";
  } catch (const std::exception& error) {
    std::cerr << "[" << name << "] " << error.what() << "\n";
  }
  return 1;
}
