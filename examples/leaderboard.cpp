// SPDX-License-Identifier: Apache-2.0
// Trains the models on public data sets, and prints their numbers beside published ones.
// docs/quality.md shows the tables, and says where the files come from.
//
// A run of one model with one seed is kept in the file of results as soon as it ends, so
// that a call that was stopped goes on where it was. The data sets and their published
// results are in leaderboard/data_sets.cpp, and the models with their settings in
// leaderboard/jobs.cpp.
#include "examples/common/command_line.h"
#include "examples/common/outputs.h"
#include "examples/common/peak_memory.h"
#include "examples/leaderboard/data_sets.h"
#include "examples/leaderboard/jobs.h"
#include "examples/leaderboard/results.h"
#include "examples/leaderboard/tables.h"

#include <tessera/tessera.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Settings {
  std::string data = {};
  std::string movielens = ".deps/data/ml-100k";
  std::string own = {};
  std::string results = "leaderboard.json";
  std::string lists = {};
  std::vector<std::string> only = {};
  std::vector<std::string> models = {};
  int64_t seed = 0;
  int64_t seeds = 3;
  std::map<std::string, std::string> set = {};
  tessera::Precision precision = tessera::Precision::kFloat32;
  bool baselines = false;
  bool validate = false;
  bool only_show = false;
  bool json = false;
  bool markdown = false;
};

// Adds `name=value`.
void add_setting(const std::string& pair, Settings& settings) {
  const size_t equals = pair.find('=');
  if (equals == std::string::npos || equals == 0) {
    throw CLI::ValidationError(
        "--set", "expected NAME=VALUE, but got '" + pair + "'");
  }
  const std::string name = pair.substr(0, equals);
  if (!settings.set.emplace(name, pair.substr(equals + 1)).second) {
    throw CLI::ValidationError("--set", "got '" + name + "' twice");
  }
}

std::optional<int> parse(int argc, char** argv, Settings& settings) {
  CLI::App app(
      "Trains models on public data sets, and prints their numbers beside published ones.");
  std::vector<std::string> names;
  for (const DataSet& data : known_data_sets()) {
    names.push_back(data.name);
  }
  CLI::Option* data =
      app.add_option(
             "--data",
             settings.data,
             "folder with the files that docs/quality.md names; a data set whose file is missing is skipped")
          ->check(CLI::ExistingDirectory);
  app.add_option("--movielens", settings.movielens, "folder of MovieLens 100K")
      ->capture_default_str();
  CLI::Option* own =
      app.add_option(
             "--own",
             settings.own,
             "a file of your own, with a line `user item item ...` for each user in the order of time, in place of the public data sets")
          ->check(CLI::ExistingFile);
  CLI::Option* only =
      app.add_option("--only", settings.only, "only these data sets")
          ->check(CLI::IsMember(names));
  app.add_option(
      "--models",
      settings.models,
      "only the rows with these names, such as SASRec or EASE");
  add_seed(app, settings.seed, "the first seed of each model");
  add_count(app, "--seeds", settings.seeds, "seeds of each model", 1000);
  app.add_option(
         "--results",
         settings.results,
         "file of the results; what it has is not trained again")
      ->check(empty_problem)
      ->capture_default_str();
  CLI::Option* lists =
      app.add_option(
             "--lists",
             settings.lists,
             "write the first 20 items of each tested user into this file, for the first seed of each model, which runs again if --results has it; examples/leaderboard/check_lists.py measures them")
          ->check(empty_problem);
  app.add_option_function<std::vector<std::string>>(
      "--set",
      [&](const std::vector<std::string>& pairs) {
        for (const std::string& pair : pairs) {
          add_setting(pair, settings);
        }
      },
      "NAME=VALUE: other settings of the model than those of docs/quality.md, such as dropout=0.3 for Beauty, or epochs=2 for a quick try");
  add_precision(
      app, settings.precision, "the precision of the models' dense layers");
  app.add_flag("--baselines", settings.baselines, "only the simple methods");
  app.add_flag(
      "--validate",
      settings.validate,
      "choose settings: for Gowalla and ML-100K, a part of the training data takes the place of the test data");
  app.add_flag("--show", settings.only_show, "train nothing")->excludes(lists);
  own->excludes(data)->excludes(only);
  CLI::Option* json =
      app.add_flag("--json", settings.json, "print the results as JSON");
  app.add_flag("--markdown", settings.markdown, "print the tables as Markdown")
      ->excludes(json);
  CLI11_PARSE(app, argc, argv);
  return std::nullopt;
}

// The data sets that were asked for, and their files.
struct Input {
  DataSet data = {};
  std::vector<std::string> paths = {};
};

std::vector<Input> inputs_of(const Settings& settings) {
  if (!settings.own.empty()) {
    return {
        {.data =
             {.name = "own " + settings.own,
              .metrics = {"recall@10", "NDCG@10"}},
         .paths = {settings.own}}};
  }
  std::vector<Input> inputs;
  for (const DataSet& data : known_data_sets()) {
    if (!settings.only.empty() &&
        std::find(settings.only.begin(), settings.only.end(), data.name) ==
            settings.only.end()) {
      continue;
    }
    if (data.task == Task::kRatings) {
      const std::string ratings = settings.movielens + "/" + data.files[0].name;
      if (!std::filesystem::exists(ratings)) {
        std::cerr << data.name << " is skipped: there is no "
                  << data.files[0].name << " in --movielens '"
                  << settings.movielens
                  << "'. ./run leaderboard downloads it.\n";
        continue;
      }
      Input input{.data = data, .paths = {settings.movielens}};
      if (sha256_of(ratings, data.files[0].ignores_order) !=
          data.files[0].sha256) {
        // Other ratings are not laid beside published results.
        input.data.name = "own " + settings.movielens;
        input.data.published.clear();
      }
      inputs.push_back(std::move(input));
    } else if (auto paths = find_files(data, settings.data)) {
      inputs.push_back({.data = data, .paths = std::move(*paths)});
    } else {
      std::cerr << data.name << " is skipped: "
                << (settings.data.empty() ? "there is no --data folder with"
                                          : settings.data + " has not all of");
      for (const DataFile& file : data.files) {
        std::cerr << " " << file.name;
      }
      std::cerr << ". Get it from " << data.source << ".\n";
    }
  }
  TORCH_CHECK_VALUE(
      !inputs.empty(),
      "[leaderboard] expected the files of a data set, but found none. Pass --data FOLDER with the files that docs/quality.md names.");
  if (settings.validate) {
    for (Input& input : inputs) {
      if (input.data.task != Task::kNextItem) {
        // Published results are those of the test.
        input.data.name += ", validation";
        input.data.published.clear();
      }
    }
  }
  return inputs;
}

// Returns the settings by which a result is found again. For a file of your own they have
// its checksum, because its contents may change.
tessera::Json settings_of(
    const Job& job,
    const Input& input,
    tessera::Precision precision) {
  tessera::Json settings = job.settings;
  if (job.has_seeds && precision != tessera::Precision::kFloat32) {
    settings["precision"] = "bfloat16";
  }
  if (input.data.name.starts_with("own ") &&
      std::filesystem::is_regular_file(input.paths[0])) {
    settings["sha256"] = sha256_of(input.paths[0], false);
  }
  return settings;
}

void check_finite(const Result& result) {
  for (const auto& [name, value] : result.metrics) {
    TORCH_CHECK_VALUE(
        std::isfinite(value),
        "[leaderboard] ",
        result.data,
        ", ",
        result.model,
        ", seed ",
        result.seed,
        ": expected a finite ",
        name,
        ", but got ",
        value,
        ". Check that the data has test items.");
  }
}

std::vector<Job> jobs_of(const Input& input, const Settings& settings) {
  return jobs_of(
      input.data,
      input.paths,
      {.data = input.data.name,
       .validate = settings.validate,
       .set = settings.set});
}

// The title of a table: the name of the data, and the settings of --set.
std::string title_of(const Input& input, const Settings& settings) {
  std::string title = input.data.name;
  for (const auto& [name, value] : settings.set) {
    title += ", " + name + "=" + value;
  }
  if (settings.precision == tessera::Precision::kBFloat16) {
    title += ", bfloat16";
  }
  return title;
}

// Writes a line with the names of a result, and one with the items of each user.
void write_lists(const Result& result, std::ostream& file) {
  file << "# " << result.data << "\t" << result.model << "\t" << result.seed
       << "\n";
  for (const std::vector<int64_t>& items : result.lists) {
    file << c10::Join(" ", items) << "\n";
  }
}

// Runs a job that the file does not have. Returns 0, or the signal that stopped the
// training.
int run_job(
    const Job& job,
    Result key,
    tessera::Precision precision,
    ResultFile& file,
    std::ostream* lists) {
  const tessera::PrecisionScope scope(precision);
  // A signal before the first step stops the training, too. After the last step, it takes
  // effect when the file has the result.
  std::optional<tessera::training::StopSignal> stop_signal;
  if (job.has_seeds) {
    stop_signal.emplace();
  }
  const PeakMemory memory;
  Result result;
  if (const int signal = job.run(key.seed, result)) {
    return signal;
  }
  result.data = key.data;
  result.model = key.model;
  result.seed = key.seed;
  result.settings = std::move(key.settings);
  result.machine = machine_name();
  result.peak_mebibytes = memory.mebibytes();
  check_finite(result);
  if (lists != nullptr && !result.lists.empty()) {
    write_lists(result, *lists);
  }
  result.lists.clear();
  file.add(std::move(result));
  return 0;
}

// Runs what the file does not have yet, and adds the results of the input's jobs. Returns
// 0, or the signal that stopped the training.
int run_jobs(
    const Input& input,
    const Settings& settings,
    ResultFile& file,
    std::ostream* lists,
    std::vector<Result>& results) {
  const std::string& name = input.data.name;
  for (const Job& job : jobs_of(input, settings)) {
    const bool is_left_out = !settings.models.empty() &&
        std::find(settings.models.begin(), settings.models.end(), job.model) ==
            settings.models.end();
    if (is_left_out || (settings.baselines && job.has_seeds)) {
      continue;
    }
    for (int64_t i = 0; i < (job.has_seeds ? settings.seeds : 1); ++i) {
      const Result key{
          .data = name,
          .model = job.model,
          .seed = job.has_seeds ? settings.seed + i : 0,
          .settings = settings_of(job, input, settings.precision)};
      const bool needs_lists =
          lists != nullptr && i == 0 && input.data.task != Task::kRatings;
      if ((needs_lists || file.find(key) == nullptr) && !settings.only_show) {
        std::cerr << name << ", " << job.model;
        if (job.has_seeds) {
          std::cerr << ", seed " << key.seed << " (" << i + 1 << " of "
                    << settings.seeds << ")";
        }
        std::cerr << "\n";
        if (const int signal = run_job(
                job,
                key,
                settings.precision,
                file,
                needs_lists ? lists : nullptr)) {
          return signal;
        }
      }
      if (const Result* known = file.find(key)) {
        results.push_back(*known);
      }
    }
  }
  return 0;
}

// Returns the exit status.
int run(const Settings& settings) {
  const std::vector<Input> inputs = inputs_of(settings);
  std::vector<std::string> read_files;
  for (const Input& input : inputs) {
    read_files.insert(read_files.end(), input.paths.begin(), input.paths.end());
  }
  check_output_file("[leaderboard] --results", settings.results, read_files);
  check_output_file("[leaderboard] --lists", settings.lists, read_files);
  TORCH_CHECK_VALUE(
      settings.lists.empty() ||
          std::filesystem::weakly_canonical(settings.lists) !=
              std::filesystem::weakly_canonical(settings.results),
      "[leaderboard] --lists and --results are the same file, ",
      settings.results,
      ". Choose another one.");
  std::set<std::string> models;
  for (const Input& input : inputs) {
    // This checks the settings before the first training, too.
    for (const Job& job : jobs_of(input, settings)) {
      models.insert(job.model);
    }
  }
  for (const std::string& model : settings.models) {
    TORCH_CHECK_VALUE(
        models.contains(model),
        "[leaderboard] --models: there is no '",
        model,
        "'. The models are ",
        c10::Join(", ", models),
        ".");
  }
  ResultFile file(settings.results);
  std::ofstream lists(settings.lists);
  std::vector<Result> all;
  std::string tables;
  int signal = 0;
  for (auto input = inputs.begin(); input != inputs.end() && signal == 0;
       ++input) {
    std::vector<Result> results;
    signal = run_jobs(
        *input,
        settings,
        file,
        settings.lists.empty() ? nullptr : &lists,
        results);
    tables += tables.empty() ? "" : "\n";
    DataSet data = input->data;
    data.name = title_of(*input, settings);
    tables += settings.markdown ? markdown_table(data, results)
                                : text_table(data, results);
    if (settings.own.empty()) {
      tables += tries_text(results, file.results());
    }
    all.insert(all.end(), results.begin(), results.end());
  }
  std::cout << (settings.json ? json_text_of(all) : tables);
  lists.flush();
  TORCH_CHECK(
      settings.lists.empty() || lists.good(),
      "[leaderboard] --lists ",
      settings.lists,
      " can't be written. Check the space on the disk.");
  finish_report("leaderboard");
  if (signal != 0) {
    std::cerr << "stopped. The same command goes on from here.\n";
  }
  return signal == 0 ? 0 : 128 + signal;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  Settings settings;
  if (const auto status = parse(argc, argv, settings)) {
    return *status;
  }
  return run_program("leaderboard", [&] { return run(settings); });
}
