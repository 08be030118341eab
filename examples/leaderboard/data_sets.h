// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// A file of a data set. It may be compressed: NAME.gz.
struct DataFile {
  const char* name = "";
  const char* sha256 = "";  // of the text
  /// If true, the checksum is that of the lines with the numbers after the first one in
  /// ascending order, because copies differ in their order.
  bool ignores_order = false;
};

/// A published result.
struct Published {
  const char* model = "";
  std::vector<double> metrics = {};  // in the order of the data set
  const char* source = "";
};

/// How the data is split, and what is ranked or predicted.
enum class Task {
  kNextItem,  // the last item of each user, the one before it for validation
  kNewItems,  // the test items of each user, which have no order
  kRatings  // the stars of the test ratings
};

/// A public data set with published results.
struct DataSet {
  std::string name = {};
  Task task = Task::kNextItem;
  std::vector<DataFile> files = {};
  std::string source = {};  // where a user gets the files
  std::vector<std::string> metrics = {};
  std::vector<Published> published = {};
};

/// The known data sets, in the order of the tables.
const std::vector<DataSet>& known_data_sets();

/// Returns the paths of the data set's files in `folder`, or nothing if one is missing.
/// Errors:  c10::ValueError for a file whose checksum differs.
std::optional<std::vector<std::string>> find_files(
    const DataSet& data,
    const std::string& folder);

/// The SHA-256 of a text or gzip file's text, in hexadecimal digits. With `ignores_order`, as
/// DataFile describes it.
/// Errors:  c10::ValueError if the file can't be read.
std::string sha256_of(const std::string& path, bool ignores_order);
