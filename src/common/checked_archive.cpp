// SPDX-License-Identifier: Apache-2.0
#include "src/common/checked_archive.h"

#include "src/common/check.h"
#include "src/common/checksum.h"

#include <ATen/core/Dict.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue_inl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/api/object.h>

#include <map>
#include <optional>
#include <sstream>
#include <utility>

namespace tessera {

namespace {

// Returns the type of a value and, for a tensor, its shape. The text has no spaces.
std::string kind_of_value(const c10::IValue& value) {
  if (!value.isTensor()) {
    return value.tagKind();
  }
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() ? fmt::format(
                                "{}[{}]",
                                c10::toString(tensor.scalar_type()),
                                fmt::join(tensor.sizes(), ","))
                          : "undefined";
}

void add_content(Checksum& checksum, const c10::IValue& value);

template <class Values>
void add_contents(Checksum& checksum, const Values& values) {
  checksum.add(fmt::format("{}:", values.size()));
  for (const c10::IValue& value : values) {
    add_content(checksum, value);
  }
}

void add_content(Checksum& checksum, const c10::IValue& value) {
  const std::string kind = kind_of_value(value);
  checksum.add(kind.data(), kind.size() + 1);
  if (value.isTensor() && value.toTensor().defined()) {
    const at::Tensor tensor =
        value.toTensor().detach().to(at::kCPU).to_dense().contiguous();
    checksum.add(tensor.const_data_ptr(), tensor.nbytes());
  } else if (value.isString()) {
    checksum.add(fmt::format("{}:", value.toStringRef().size()));
    checksum.add(value.toStringRef());
  } else if (value.isInt()) {
    const int64_t number = value.toInt();
    checksum.add(&number, sizeof(number));
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    checksum.add(&number, sizeof(number));
  } else if (value.isBool()) {
    checksum.add(value.toBool() ? "1" : "0");
  } else if (value.isTuple()) {
    add_contents(checksum, value.toTupleRef().elements());
  } else if (value.isList()) {
    add_contents(checksum, value.toList().vec());
  } else if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict()) {
      add_content(checksum, item.key());
      add_content(checksum, item.value());
    }
  }
}

std::string checksum_of_value(const c10::IValue& value) {
  Checksum checksum;
  add_content(checksum, value);
  return checksum.digits();
}

// Calls visit(path, value) for each entry, including those of nested archives.
template <class Visit>
void for_each_entry(
    torch::serialize::InputArchive& archive,
    const std::string& prefix,
    const Visit& visit) {
  for (const std::string& key : archive.keys()) {
    c10::IValue value;
    if (!archive.try_read(key, value)) {
      continue;
    }
    if (value.isModule()) {
      torch::serialize::InputArchive nested;
      archive.read(key, nested);
      for_each_entry(nested, prefix + key + "/", visit);
    } else {
      visit(prefix + key, value);
    }
  }
}

// One line of the checksums entry.
struct Line {
  std::string checksum;
  std::string kind;
  std::string path;
};

// Returns nullopt if the text itself is damaged.
std::optional<std::vector<Line>> read_lines(const std::string& text) {
  const size_t begin = kChecksumDigits + 1;
  if (text.size() < begin || text.back() != '\n' ||
      checksum_of(std::string_view(text).substr(begin)) !=
          text.substr(0, kChecksumDigits)) {
    return std::nullopt;
  }
  std::vector<Line> lines;
  std::istringstream stream(text.substr(begin));
  Line line;
  while (stream >> line.checksum >> line.kind && stream.get() == ' ' &&
         std::getline(stream, line.path)) {
    lines.push_back(line);
  }
  return lines;
}

std::string problem_of(const Line& line, const c10::IValue& value) {
  // Compare the shape first: a tensor of a damaged shape may need any amount of memory.
  const std::string kind = kind_of_value(value);
  if (kind != line.kind) {
    return fmt::format("is {}, but {} was saved", kind, line.kind);
  }
  return checksum_of_value(value) == line.checksum
      ? ""
      : "does not agree with its checksum";
}

// Two entries have the same path if one is the key "a/b", and the other is the key "b" of
// the nested archive "a". One of them must agree with the line.
std::string problem_of(
    const Line& line,
    const std::multimap<std::string, c10::IValue>& values) {
  std::string problem = "is missing";
  const auto [begin, end] = values.equal_range(line.path);
  for (auto value = begin; value != end && !problem.empty(); ++value) {
    problem = problem_of(line, value->second);
  }
  return problem;
}

void find_problems(
    torch::serialize::InputArchive& archive,
    const std::string& prefix,
    std::string_view only,
    std::vector<std::string>& problems) {
  c10::IValue text;
  if (archive.try_read(kChecksumsKey, text)) {
    const auto lines =
        text.isString() ? read_lines(text.toStringRef()) : std::nullopt;
    if (!lines) {
      problems.push_back(
          prefix + kChecksumsKey + " does not agree with its checksum");
      return;
    }
    std::multimap<std::string, c10::IValue> values;
    for_each_entry(
        archive, "", [&](const std::string& path, const c10::IValue& value) {
          values.emplace(path, value);
        });
    for (const Line& line : *lines) {
      if (!only.empty() && line.path != only) {
        continue;
      }
      const std::string problem = problem_of(line, values);
      if (!problem.empty()) {
        problems.push_back(fmt::format("{}{} {}", prefix, line.path, problem));
      }
    }
  }
  if (!only.empty()) {
    return;
  }
  for (const std::string& key : archive.keys()) {
    torch::serialize::InputArchive nested;
    if (archive.try_read(key, nested)) {
      find_problems(nested, prefix + key + "/", only, problems);
    }
  }
}

}  // namespace

void ArchiveChecksums::add(const std::string& path, const c10::IValue& value) {
  entries_.push_back(
      {.path = path,
       .checksum = checksum_of_value(value) + " " + kind_of_value(value)});
}

void ArchiveChecksums::add(
    const std::string& key,
    const ArchiveChecksums& nested) {
  for (const Entry& entry : nested.entries_) {
    entries_.push_back(
        {.path = key + "/" + entry.path, .checksum = entry.checksum});
  }
}

void ArchiveChecksums::write(torch::serialize::OutputArchive& archive) const {
  std::string lines;
  for (const Entry& entry : entries_) {
    lines += fmt::format("{} {}\n", entry.checksum, entry.path);
  }
  archive.write(kChecksumsKey, c10::IValue(checksum_of(lines) + "\n" + lines));
}

void CheckedArchive::write(const std::string& key, const c10::IValue& value) {
  checksums_.add(key, value);
  archive_.write(key, value);
}

void CheckedArchive::write(const std::string& key, const at::Tensor& tensor) {
  checksums_.add(key, tensor);
  archive_.write(key, tensor, /*is_buffer=*/true);
}

void CheckedArchive::write(const std::string& key, CheckedArchive& nested) {
  checksums_.add(key, nested.checksums_);
  archive_.write(key, nested.archive_);
}

void CheckedArchive::write(
    const std::string& key,
    torch::serialize::OutputArchive& nested) {
  std::ostringstream stream;
  nested.save_to(stream);
  const std::string bytes = std::move(stream).str();
  torch::serialize::InputArchive written;
  written.load_from(bytes.data(), bytes.size());
  for_each_entry(
      written,
      key + "/",
      [&](const std::string& path, const c10::IValue& value) {
        checksums_.add(path, value);
      });
  archive_.write(key, nested);
}

bool read_archive_file(
    std::string_view file,
    torch::serialize::InputArchive& archive) {
  TESSERA_CHECK_VALUE(!file.empty(), "it is empty");
  const bool has_checksum = take_checksum_ending(file);
  try {
    archive.load_from(file.data(), file.size());
  } catch (const std::exception& error) {
    const std::string reason = reason_of(error);
    TESSERA_CHECK_VALUE(
        false,
        "LibTorch can't decode it{}",
        is_internal_error(error) || reason.empty() ? "" : " (" + reason + ")");
  }
  return has_checksum;
}

bool is_internal_error(const std::exception& error) {
  return std::string_view(error.what()).find("INTERNAL ASSERT FAILED") !=
      std::string_view::npos;
}

void check_checksums(
    torch::serialize::InputArchive& archive,
    const std::string& where,
    std::string_view only) {
  const at::NoGradGuard no_grad;
  std::vector<std::string> problems;
  find_problems(archive, "", only, problems);
  TESSERA_CHECK_VALUE(
      problems.empty(),
      "{} the archive is damaged, and nothing was changed. Damaged entries:\n  {}\nLoad another copy of the archive.",
      where,
      fmt::format("{}", fmt::join(problems, "\n  ")));
}

}  // namespace tessera
