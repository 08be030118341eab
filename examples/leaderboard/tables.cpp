// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/tables.h"

#include "examples/common/mean_and_spread.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iomanip>
#include <map>
#include <sstream>

using tessera::Json;

namespace {

using Line = std::vector<std::string>;

const std::string kOwn = "Tessera ";  // begins the names of trained models

std::string rounded(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

// The mean, and the standard deviation if there are several values.
std::string mean_text(const std::vector<double>& values, int digits) {
  const auto [mean, spread] = mean_and_spread(values);
  const std::string text = rounded(mean, digits);
  return values.size() == 1 ? text : text + " ± " + rounded(spread, digits);
}

std::string seconds_text(const std::vector<double>& seconds) {
  const double mean = mean_and_spread(seconds).mean;
  return mean == 0.0 ? "" : rounded(mean, 1) + " s";
}

using NamedValues = std::vector<std::pair<std::string, double>>;

double value_of(const NamedValues& values, const std::string& name) {
  for (const auto& [other, value] : values) {
    if (other == name) {
      return value;
    }
  }
  return std::nan("");
}

// A line of the table and the value by which lines are sorted.
struct Entry {
  double value = 0.0;
  Line line = {};
};

Entry entry_of(
    const DataSet& data,
    const std::string& model,
    const std::vector<const Result*>& results) {
  constexpr int kDigits = 4;
  const auto all = [&](auto value_of) {
    std::vector<double> values;
    for (const Result* result : results) {
      values.push_back(value_of(*result));
    }
    return values;
  };
  Entry entry{.value = mean_and_spread(all([&](const Result& result) {
                         return value_of(result.metrics, data.metrics.back());
                       })).mean};
  // The simple methods are not trained.
  const bool is_trained = results[0]->train_seconds > 0.0;
  entry.line.push_back((is_trained ? kOwn : "") + model);
  for (const std::string& name : data.metrics) {
    entry.line.push_back(mean_text(
        all([&](const Result& result) {
          return value_of(result.metrics, name);
        }),
        kDigits));
  }
  if (data.task != Task::kRatings) {
    const double error =
        mean_and_spread(all([&](const Result& result) {
          return value_of(result.standard_errors, data.metrics.back());
        })).mean;
    entry.line.push_back(std::isnan(error) ? "" : rounded(error, kDigits));
  }
  entry.line.push_back(seconds_text(
      all([](const Result& result) { return result.train_seconds; })));
  entry.line.push_back(seconds_text(
      all([](const Result& result) { return result.evaluation_seconds; })));
  const double mebibytes = mean_and_spread(all([](const Result& result) {
                             return static_cast<double>(result.peak_mebibytes);
                           })).mean;
  entry.line.push_back(
      mebibytes == 0.0 ? "" : rounded(mebibytes / 1024.0, 1) + " GiB");
  std::string machines;
  for (const Result* result : results) {
    if (machines.find(result->machine) == std::string::npos) {
      machines += (machines.empty() ? "" : "; ") + result->machine;
    }
  }
  const size_t seeds = results.size();
  if (seeds > 1) {
    machines = std::to_string(seeds) + " seeds, " + machines;
  }
  entry.line.push_back(machines);
  return entry;
}

// The lines of the table, with the titles first.
std::vector<Line> lines_of(
    const DataSet& data,
    const std::vector<Result>& results) {
  Line titles{"model"};
  titles.insert(titles.end(), data.metrics.begin(), data.metrics.end());
  if (data.task != Task::kRatings) {
    titles.emplace_back("standard error");
  }
  titles.insert(
      titles.end(), {"training", "evaluation", "memory", "source, or machine"});
  std::vector<Entry> entries;
  for (const Published& published : data.published) {
    Entry entry{.value = published.metrics.back(), .line = {published.model}};
    for (const double value : published.metrics) {
      entry.line.push_back(rounded(value, 4));
    }
    entry.line.resize(titles.size() - 1);
    entry.line.push_back(published.source);
    entries.push_back(std::move(entry));
  }
  std::vector<std::string> models;
  for (const Result& result : results) {
    if (std::find(models.begin(), models.end(), result.model) == models.end()) {
      models.push_back(result.model);
    }
  }
  for (const std::string& model : models) {
    std::vector<const Result*> own;
    for (const Result& result : results) {
      if (result.model == model) {
        own.push_back(&result);
      }
    }
    entries.push_back(entry_of(data, model, own));
  }
  const bool is_error = data.task == Task::kRatings;
  std::stable_sort(
      entries.begin(), entries.end(), [&](const Entry& a, const Entry& b) {
        return is_error ? a.value > b.value : a.value < b.value;
      });
  std::vector<Line> lines{titles};
  for (Entry& entry : entries) {
    lines.push_back(std::move(entry.line));
  }
  return lines;
}

// The number of characters of a UTF-8 text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
      }));
}

}  // namespace

std::string text_table(
    const DataSet& data,
    const std::vector<Result>& results) {
  const std::vector<Line> lines = lines_of(data, results);
  std::vector<size_t> widths(lines[0].size(), 0);
  for (const Line& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(line[i]));
    }
  }
  std::string text = data.name + "\n";
  for (const Line& line : lines) {
    std::string row = "  ";
    for (size_t i = 0; i < line.size(); ++i) {
      row += line[i] + std::string(widths[i] - width_of(line[i]) + 2, ' ');
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

std::string markdown_table(
    const DataSet& data,
    const std::vector<Result>& results) {
  const std::vector<Line> lines = lines_of(data, results);
  std::string text = "### " + data.name + "\n\n";
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool is_own = lines[i][0].starts_with(kOwn);
    for (size_t column = 0; column < lines[i].size(); ++column) {
      const bool is_bold = is_own && column == 0;
      const std::string& cell = lines[i][column];
      text += "| " + (is_bold ? "**" + cell + "**" : cell) + " ";
    }
    text += "|\n";
    if (i == 0) {
      for (size_t column = 0; column < lines[i].size(); ++column) {
        text += column == 0 ? "|---" : "|---:";
      }
      text += "|\n";
    }
  }
  return text;
}

std::string tries_text(
    const std::vector<Result>& shown,
    const std::vector<Result>& all) {
  // The values of each setting of each model.
  std::map<std::string, std::map<Json, std::vector<double>>> models;
  for (const Result& result : all) {
    const bool is_shown =
        std::any_of(shown.begin(), shown.end(), [&](const Result& other) {
          return other.data == result.data && other.model == result.model;
        });
    if (!is_shown || result.validation == 0.0) {
      continue;
    }
    auto& settings = models[result.model];
    if (result.tries.empty()) {
      settings[result.settings].push_back(result.validation);
    }
    for (Json entry : result.tries) {
      const auto value = entry["validation"].get<double>();
      entry.erase("validation");
      entry.update(result.settings);
      settings[entry].push_back(value);
    }
  }
  std::string text;
  for (const auto& [model, settings] : models) {
    std::vector<double> values;
    for (const auto& [setting, of_seeds] : settings) {
      values.push_back(mean_and_spread(of_seeds).mean);
    }
    if (values.size() > 1) {
      std::sort(values.begin(), values.end());
      const size_t middle = values.size() / 2;
      const double median = values.size() % 2 == 1
          ? values[middle]
          : (values[middle - 1] + values[middle]) / 2.0;
      text += "- " + model + ": " + std::to_string(values.size()) +
          " settings, " + rounded(median, 4) + " in the median, " +
          rounded(values.back(), 4) + " at best\n";
    }
  }
  return text.empty()
      ? text
      : "\nSettings tried, by their value on validation items:\n\n" + text;
}
