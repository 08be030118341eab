// SPDX-License-Identifier: Apache-2.0
#include "serialization/manifest.h"

#include "serialization/saved_keys.h"

#include <tessera/common/shorten.h>
#include <tessera/tables/table_config.h>

#include <tessera/common/json_value.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <iterator>
#include <set>

#include "src/common/check.h"
#include "src/tables/table_state.h"

namespace tessera {

namespace {

constexpr int64_t kManifestVersion = 1;
constexpr std::string_view kPrefix = "checkpoint_";
constexpr int64_t kMaxCheckpointNumber = 999'999'999'999;
constexpr std::string_view kBeforeDigits = ",\"xxh3\":\"";
constexpr std::string_view kAfterDigits = "\"}\n";

template <class T>
concept ManifestStruct = HasFields<T> && detail::OneOf<
    T,
    Manifest,
    ManifestAccumulated,
    ManifestCollected,
    ManifestFile,
    ManifestGradients,
    ManifestKeys,
    ManifestParent,
    ManifestPart,
    ManifestTable,
    ManifestTensor,
    ManifestTouched>;

// Fields that older manifests lack. A field that holds the default is not written.
constexpr const char* kOptionalFields[] =
    {"step", "seed", "accumulated", "keys", "collected"};

}  // namespace

template <ManifestStruct T>
struct JsonValue<T> {
  static Json write(const T& value) {
    Json json = write_fields(value);
    if constexpr (std::same_as<T, ManifestPart>) {
      if (value.step == 1) {
        // Manifests written before sharding existed have no `step` field.
        json.erase("step");
      }
    }
    for (const char* name : kOptionalFields) {
      if (json.contains(name) && json[name].is_null()) {
        json.erase(name);
      }
    }
    return json;
  }
  static T read(const Json& json, const std::string& where) {
    check_kind(json.is_object(), json, "an object", where);
    const T fields;
    T::visit_fields(fields, [&](const char* name, const auto&) {
      if (std::ranges::find(kOptionalFields, std::string_view(name)) ==
          std::end(kOptionalFields)) {
        field_of(json, name, where);
      }
    });
    return read_fields<T>(json, where);
  }
};

namespace {

bool is_checksum(std::string_view text) {
  return text.size() == kChecksumDigits &&
      text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Returns true if the tensor has a number for each key.
bool is_of_key(std::string_view name) {
  return name == kSavedKeys || name == kKeyUpdates || name == kKeyFrequencies;
}

// Checks what the types of the fields do not ensure.
class ManifestCheck {
 public:
  explicit ManifestCheck(const std::string& where) : where_(where) {}

  void check(const Manifest& manifest) {
    require(manifest.passes >= 0, "iterations is negative");
    require(
        manifest.increments >= 0 &&
            (manifest.increments > 0) == manifest.parent.has_value(),
        "increments does not fit parent");
    if (manifest.parent) {
      require(
          checkpoint_number(manifest.parent->name).has_value() &&
              is_checksum(manifest.parent->xxh3),
          "parent is not a checkpoint");
    }
    for (const ManifestTable& table : manifest.tables) {
      location_ = "table '" + shorten(table.name) + "': ";
      require(tables_.insert(table.name).second, "it is listed twice");
      require(
          !table.is_increment() || manifest.parent,
          "it has touched rows, but the manifest has no parent");
      check(table);
    }
    location_ = "extra: ";
    if (manifest.extra) {
      check(*manifest.extra);
    }
  }

 private:
  void require(bool is_valid, std::string_view problem) const {
    TESSERA_CHECK_VALUE(
        is_valid,
        "{} the manifest is wrong: {}{}. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
        where_,
        location_,
        problem);
  }

  void check(const ManifestFile& file) {
    constexpr size_t kMaxName = 255;
    require(
        !file.name.empty() && file.name.size() <= kMaxName &&
            file.name[0] != '.' &&
            file.name.find_first_not_of(
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                "0123456789_-.") == std::string::npos,
        "a file name must consist of letters, digits, '.', '_' and '-'");
    require(files_.insert(file.name).second, "a file is listed twice");
    require(file.bytes >= 0, "a file's size is negative");
    // (bytes + kChunkBytes - 1) / kChunkBytes may overflow.
    const int64_t chunks =
        file.bytes / kChunkBytes + (file.bytes % kChunkBytes != 0 ? 1 : 0);
    require(
        file.xxh3.size() == static_cast<uint64_t>(chunks) &&
            std::ranges::all_of(file.xxh3, is_checksum),
        "the number of a file's checksums does not fit its size");
  }

  // Checks a file of `count` numbers of type T.
  template <class T>
  void check_numbers(
      const ManifestFile& file,
      int64_t count,
      const char* problem) {
    check(file);
    require(file.bytes == count * static_cast<int64_t>(sizeof(T)), problem);
  }

  void check(const ManifestTable& table) {
    require(!table.tensors.empty(), "it has no tensors");
    std::set<std::string> names;
    for (const ManifestTensor& tensor : table.tensors) {
      require(names.insert(tensor.name).second, "a tensor is listed twice");
      check_shape(tensor);
      check_dtype(tensor, dtypes_of(tensor, table.keys.has_value()));
      require(
          tensor.shape[0] == table.tensors[0].shape[0],
          "its tensors have different numbers of rows");
    }
    require(
        table.tensors[0].name == "parameters",
        "the first tensor must be parameters");
    int64_t rows = table.tensors[0].shape[0];
    if (table.touched) {
      require(
          table.touched->count >= 0 && table.touched->count <= rows,
          "the number of touched rows must be in [0, number of rows]");
      rows = table.touched->count;
      check_numbers<uint32_t>(
          table.touched->file,
          rows,
          "the size of the file of touched rows does not fit the number of rows");
    }
    for (const ManifestTensor& tensor : table.tensors) {
      check_parts(tensor, rows);
    }
    if (table.keys) {
      require(!table.touched, "a key table has no touched rows");
      for (const ManifestTensor& tensor : table.tensors) {
        require(
            !is_of_key(tensor.name) || tensor.shape.size() == 1,
            "the shape of a tensor of its keys must be [keys]");
      }
      require(
          std::ranges::count_if(names, is_of_key) == 3,
          "a tensor of its keys is missing");
      check(*table.keys);
    }
    if (table.accumulated) {
      check(*table.accumulated, table.tensors[0], /*has_keys=*/!!table.keys);
    }
  }

  void check(const ManifestKeys& keys) {
    require(
        keys.admitted >= 0 && keys.evicted >= 0 && keys.dropped >= 0,
        "a count of keys is negative");
    require(
        keys.partitions >= 1 && std::isfinite(keys.half_life) &&
            keys.half_life >= 0.0,
        "the number of partitions or the half-life of keys is out of range");
    constexpr int64_t kMaxCounters = int64_t{1} << 33;
    require(
        keys.sketch || keys.removed,
        "only an increment may take the sketch of its parent");
    if (keys.sketch) {
      check_vector(*keys.sketch, "uint8", kMaxCounters);
    }
    if (keys.removed) {
      check_vector(*keys.removed, "int64", kMaxRows);
    }
  }

  void check_vector(
      const ManifestTensor& tensor,
      const char* dtype,
      int64_t max_size) {
    require(
        tensor.shape.size() == 1 && tensor.shape[0] >= 0 &&
            tensor.shape[0] <= max_size,
        "the shape of removed keys or a sketch must be [size]");
    check_dtype(tensor, {dtype});
    check_parts(tensor, tensor.shape[0]);
  }

  void check(
      const ManifestAccumulated& accumulated,
      const ManifestTensor& parameters,
      bool has_keys) {
    require(accumulated.steps > 1, "accumulated steps must be more than 1");
    for (const ManifestGradients& part : accumulated.parts) {
      require(
          part.collected.has_value() == has_keys,
          "its accumulated gradients do not fit its keys");
      if (has_keys) {
        check(*part.collected);
      }
      require(
          part.count >= 0 &&
              part.count <=
                  (has_keys ? part.collected->count : parameters.shape[0]),
          "the number of rows with accumulated gradients must be in [0, number of rows]");
      const int64_t width = parameters.dim();
      constexpr const char* kProblem =
          "the size of a file of accumulated gradients does not fit its rows";
      check_numbers<uint32_t>(part.rows, part.count, kProblem);
      check_numbers<float>(part.sums, part.count * width, kProblem);
    }
  }

  using Dtypes = std::vector<std::string_view>;

  static Dtypes dtypes_of(const ManifestTensor& tensor, bool has_keys) {
    if (has_keys && tensor.name == kSavedKeys) {
      return {"int64"};
    }
    if (has_keys && tensor.name == kKeyUpdates) {
      return {"uint32"};
    }
    return tensor.name == "parameters"
        ? Dtypes{"float32", "bfloat16", "float16", "int8"}
        : Dtypes{"float32", "bfloat16", "float16"};
  }

  void check_dtype(const ManifestTensor& tensor, const Dtypes& dtypes) const {
    require(
        std::ranges::find(dtypes, tensor.dtype) != dtypes.end(),
        fmt::format("dtype must be one of {}", fmt::join(dtypes, ", ")));
  }

  void check(const ManifestCollected& collected) {
    require(
        collected.count >= 0 && collected.count <= kMaxRows &&
            collected.dropped >= 0,
        "a number of collected keys is out of range");
    constexpr const char* kProblem =
        "the size of a file of collected keys does not fit their number";
    check_numbers<int64_t>(collected.keys, collected.count, kProblem);
    check_numbers<uint32_t>(collected.counts, collected.count, kProblem);
  }

  void check_shape(const ManifestTensor& tensor) const {
    constexpr int64_t kMaxDim = int64_t{1} << 24;
    require(
        (tensor.shape.size() == 1 || tensor.shape.size() == 2) &&
            tensor.shape[0] >= 0 && tensor.shape[0] <= kMaxRows &&
            tensor.shape.back() >= 0 &&
            (tensor.shape.size() == 1 || tensor.shape[1] <= kMaxDim),
        "a shape must be [rows] or [rows, dim]");
  }

  // Rows that are equal modulo the step form a lane. The parts must hold each lane in
  // turn, with all its rows in order, and each file must have the size of its rows.
  void check_parts(const ManifestTensor& tensor, int64_t rows) {
    const int64_t step = tensor.parts.empty() ? 1 : tensor.parts[0].step;
    require(
        step >= 1 && step <= std::max<int64_t>(1, rows),
        "the step of a part must be in [1, number of rows]");
    int64_t lane = 0;
    int64_t next = 0;
    for (const ManifestPart& part : tensor.parts) {
      if (next >= rows) {
        next = ++lane;
      }
      require(
          part.step == step && part.begin == next && part.end > part.begin &&
              part.end <= rows && (part.end - 1 - part.begin) % step == 0,
          "parts must follow each other without gaps");
      next = part.end - 1 + step;
      check(part.file);
      require(
          part.file.bytes == part.count() * tensor.row_bytes(),
          "a file's size does not fit its rows");
    }
    require(
        next >= rows && (lane == step - 1 || rows == 0), "rows are missing");
  }

  static constexpr int64_t kMaxRows = int64_t{1} << 32;  // ids have 32 bits

  const std::string& where_;
  std::string location_;
  std::set<std::string> tables_;
  std::set<std::string> files_;
};

}  // namespace

at::ScalarType ManifestTensor::scalar_type() const {
  return dtype == "int64" ? at::kLong
      : dtype == "uint32" ? at::kUInt32
      : dtype == "uint8"  ? at::kByte
                          : dtype_from_string(dtype);
}

int64_t ManifestTensor::dim() const {
  return shape.size() == 1 ? 1 : shape[1] - stored_columns(0, scalar_type());
}

int64_t ManifestTensor::row_bytes() const {
  const int64_t width = shape.size() == 1 ? 1 : shape[1];
  return width * static_cast<int64_t>(c10::elementSize(scalar_type()));
}

const ManifestTensor& find_tensor(
    const ManifestTable& table,
    const std::string& name) {
  const auto found =
      std::ranges::find(table.tensors, name, &ManifestTensor::name);
  TORCH_INTERNAL_ASSERT(found != table.tensors.end());
  return *found;
}

std::string to_text(const Manifest& manifest, const std::string& where) {
  std::string text;
  try {
    text = JsonValue<Manifest>::write(manifest).dump();
  } catch (const Json::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} the names of tables must be UTF-8: {}. Rename the tables.",
        where,
        error.what());
  }
  text.pop_back();  // the closing brace
  text += kBeforeDigits;
  const std::string checksum = checksum_of(text);
  text += checksum;
  text += kAfterDigits;
  TESSERA_CHECK_VALUE(
      text.size() <= kMaxManifestBytes,
      "{} the manifest must have at most {} bytes, but has {}. Increase CheckpointOptions::file_bytes, or use fewer tables.",
      where,
      kMaxManifestBytes,
      text.size());
  return text;
}

std::string to_text(const std::vector<ManifestTable>& tables) {
  return JsonValue<std::vector<ManifestTable>>::write(tables).dump();
}

std::vector<ManifestTable> tables_from_text(const std::string& text) {
  return JsonValue<std::vector<ManifestTable>>::read(
      parse_json(text, "[save_checkpoint]"), "manifest.tables");
}

std::string checksum_in(const std::string& text) {
  return text.substr(
      text.size() - kAfterDigits.size() - kChecksumDigits, kChecksumDigits);
}

Manifest manifest_from_text(const std::string& text, const std::string& where) {
  const size_t tail = kChecksumDigits + kAfterDigits.size();
  const size_t content = text.size() < tail ? 0 : text.size() - tail;
  TESSERA_CHECK_VALUE(
      text.size() >= tail &&
          checksum_of({text.data(), content}) == checksum_in(text) &&
          text.ends_with(kAfterDigits),
      "{}: the bytes [0, {}) do not match the checksum at their end. The file is damaged or not a manifest. Choose another checkpoint with LoadOptions::checkpoint, or move this one out of its directory.",
      where,
      text.size());
  Json json = parse_json(text, where);
  check_kind(json.is_object(), json, "an object", where);
  json.erase("xxh3");
  const int64_t version = JsonValue<int64_t>::read(
      field_of(json, "format_version", "manifest"), "manifest.format_version");
  TESSERA_CHECK_VALUE(
      version == kManifestVersion,
      "{} format_version must be {}, but got {}. Update Tessera, or use the version that saved it.",
      where,
      kManifestVersion,
      version);
  const Manifest manifest = JsonValue<Manifest>::read(json, "manifest");
  ManifestCheck(where).check(manifest);
  return manifest;
}

std::string checkpoint_name(int64_t number) {
  return fmt::format("{}{:06}", kPrefix, number);
}

std::string next_checkpoint_name(
    const std::string& newest,
    const std::string& where) {
  const int64_t number = checkpoint_number(newest).value();
  TESSERA_CHECK_VALUE(
      number < kMaxCheckpointNumber,
      "{} the directory has '{}', and no checkpoint can have a larger number. Choose another directory, or remove that folder if it is not a checkpoint.",
      where,
      newest);
  return checkpoint_name(number + 1);
}

std::optional<int64_t> checkpoint_number(const std::string& name) {
  int64_t number = 0;
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const char* end = name.data() + name.size();
  const auto [stop, error] =
      std::from_chars(name.data() + kPrefix.size(), end, number);
  // Each number has only one spelling: no sign and no further leading zeros.
  const bool is_name = error == std::errc() && stop == end && number >= 0 &&
      number <= kMaxCheckpointNumber && checkpoint_name(number) == name;
  return is_name ? std::optional(number) : std::nullopt;
}

}  // namespace tessera
