// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>

/// The range of a whole number.
CLI::Range up_to(int64_t most, int64_t least = 1);

/// What is wrong with an option's text that an unset variable of a shell gives.
std::string refuse_empty(const std::string& text);

/// A whole number of at least 1, such as that of epochs.
CLI::Option* add_count(
    CLI::App& app,
    const std::string& flag,
    int64_t& count,
    const std::string& text,
    int64_t most = 1'000'000);

/// --seed: a whole number of at least 0.
CLI::Option* add_seed(CLI::App& app, int64_t& seed, const std::string& text);

/// A file or folder that the program writes.
CLI::Option* add_output(
    CLI::App& app,
    const std::string& flag,
    std::string& path,
    const std::string& text);

/// Gives the exit status of `run`. What it throws is written to standard error: messages
/// of LibTorch and the library as `explain` returns them, others after the program's name.
int run_program(
    const std::string& name,
    const std::function<int()>& run,
    const std::function<std::string(const std::string&)>& explain = {});
