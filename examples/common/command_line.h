// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/precision.h>

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>

/// The range of an integer option.
CLI::Range up_to(int64_t max, int64_t min = 1);

/// A validator that rejects an empty text, which an unset shell variable gives.
std::string empty_problem(const std::string& text);

/// Adds an option that is an integer >= 1, such as a number of epochs.
CLI::Option* add_count(
    CLI::App& app,
    const std::string& flag,
    int64_t& count,
    const std::string& text,
    int64_t max = 1'000'000);

/// Adds the option --seed, an integer >= 0.
CLI::Option* add_seed(CLI::App& app, int64_t& seed, const std::string& text);

/// Adds the option --precision, which is float32 or bfloat16.
CLI::Option* add_precision(
    CLI::App& app,
    tessera::Precision& precision,
    const std::string& text);

/// Adds an option for a file or folder that the program writes.
CLI::Option* add_output(
    CLI::App& app,
    const std::string& flag,
    std::string& path,
    const std::string& text);

/// Runs `run` and returns its exit status, or 1 if it throws. Errors are written to
/// standard error: those of LibTorch and the library after `explain` has processed them,
/// others after the program's name.
int run_program(
    const std::string& name,
    const std::function<int()>& run,
    const std::function<std::string(const std::string&)>& explain = {});
