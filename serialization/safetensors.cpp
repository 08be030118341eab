// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/tensor_files.h>

#include "serialization/tensor_bytes.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace tessera {

namespace {

using nlohmann::json;

constexpr const char* kMetadata = "__metadata__";
constexpr size_t kLengthSize = sizeof(uint64_t);
// The format's, so that a header can't be made to fill the memory.
constexpr uint64_t kMaxHeader = 100'000'000;

struct Entry {
  std::string name = {};
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
  // In the data, which begins after the header.
  size_t begin = 0;
  size_t end = 0;
};

std::string dtype_names() {
  std::vector<std::string> names;
  for (const FileDtype& entry : file_dtypes()) {
    names.emplace_back(entry.safetensors);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_list_of_sizes(const json& value) {
  constexpr auto kMax =
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return value.is_array() &&
      std::all_of(value.begin(), value.end(), [](const json& item) {
           return item.is_number_unsigned() && item.get<uint64_t>() <= kMax;
         });
}

// Reads the header entry by entry, so that neither duplicate names nor deep nests
// come as far as a JSON value.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& where)
      : text_(text), where_(where) {}

  void read() {
    check(text_.substr(0, 1) == "{", "the header is not a JSON object");
    // The parser would take it for the end; some writers pad with it.
    check(
        text_.find('\0') == std::string_view::npos,
        "the header has a zero byte, where only spaces may follow the JSON");
    try {
      [[maybe_unused]] const json rest = json::parse(
          text_, [this](int depth, json::parse_event_t event, json& value) {
            return accept(depth, event, value);
          });
    } catch (const json::parse_error& error) {
      check(false, "the header is not JSON at its byte ", error.byte);
    } catch (const json::exception&) {
      check(false, "the header is not JSON");
    }
  }

  std::vector<Entry> entries = {};
  std::map<std::string, std::string> metadata = {};

 private:
  // Depth 0 is the header, 1 a tensor or the metadata, 2 its fields, 3 a list.
  // False drops what has been parsed.
  bool accept(int depth, json::parse_event_t event, json& value) {
    using Event = json::parse_event_t;
    if (event == Event::key) {
      accept_key(depth, value.get_ref<const std::string&>());
    } else if (event == Event::object_start) {
      check(depth <= 1, "an object is nested too deep");
      keys_.clear();
    } else if (event == Event::object_end && depth == 1) {
      accept_entry(value);
      return false;
    } else if (event == Event::array_start) {
      check(depth == 2 && name_ != kMetadata, "a list is out of place");
      list_size_ = 0;
    } else if (event == Event::value) {
      check(depth >= 2, "'", name_, "' must be an object");
      list_size_ += depth == 3 ? 1 : 0;
      check(
          list_size_ <= kMaxRank,
          "'",
          name_,
          "' has a list of more than ",
          kMaxRank,
          " numbers");
    }
    return true;
  }

  void accept_key(int depth, const std::string& key) {
    if (depth == 1) {
      name_ = key;
      check(names_.insert(key).second, "the name '", key, "' appears twice");
    } else {
      check(keys_.insert(key).second, "'", name_, "' has '", key, "' twice");
    }
  }

  void accept_entry(const json& fields) {
    if (name_ == kMetadata) {
      for (const auto& [key, value] : fields.items()) {
        check(
            value.is_string(),
            name_,
            " must hold strings, but '",
            key,
            "' is none");
        metadata[key] = value.get<std::string>();
      }
      return;
    }
    check(
        keys_ == std::set<std::string>{"data_offsets", "dtype", "shape"},
        "tensor '",
        name_,
        "': expected dtype, shape and data_offsets, and nothing else");
    const json& shape = fields.at("shape");
    check(
        is_list_of_sizes(shape),
        "tensor '",
        name_,
        "': shape must be a list of lengths");
    const json& offsets = fields.at("data_offsets");
    check(
        is_list_of_sizes(offsets) && offsets.size() == 2,
        "tensor '",
        name_,
        "': data_offsets must be two offsets");
    const FileDtype& dtype = dtype_of(fields.at("dtype"));
    Entry entry{
        .name = name_,
        .dtype = dtype.dtype,
        .shape = shape.get<std::vector<int64_t>>(),
        .begin = offsets[0].get<size_t>(),
        .end = offsets[1].get<size_t>()};
    const std::optional<size_t> bytes = num_bytes(entry.shape, entry.dtype);
    check(
        entry.begin <= entry.end && bytes == entry.end - entry.begin,
        "tensor '",
        name_,
        "': shape ",
        at::IntArrayRef(entry.shape),
        " of ",
        dtype.safetensors,
        " needs ",
        bytes ? std::to_string(*bytes) : "more than 2^63",
        " bytes, but data_offsets are [",
        entry.begin,
        ", ",
        entry.end,
        "]");
    entries.push_back(std::move(entry));
  }

  const FileDtype& dtype_of(const json& name) const {
    const auto dtypes = file_dtypes();
    const auto found = std::find_if(
        dtypes.begin(), dtypes.end(), [&](const FileDtype& candidate) {
          return name == candidate.safetensors;
        });
    TORCH_CHECK_VALUE(
        found != dtypes.end(),
        where_,
        ": tensor '",
        name_,
        "': dtype must be one of ",
        dtype_names(),
        ", but got ",
        name.dump(),
        ". Convert the tensor where the file was written.");
    return *found;
  }

  template <class... Parts>
  void check(bool is_fine, const Parts&... problem) const {
    TORCH_CHECK_VALUE(
        is_fine,
        where_,
        ": ",
        problem...,
        ". The file is damaged or not of the safetensors format.");
  }

  std::string_view text_;
  const std::string& where_;
  std::unordered_set<std::string> names_;
  size_t list_size_ = 0;
  std::string name_;  // of the current entry
  std::set<std::string> keys_;  // that the current entry has so far
};

// Indices of `items` by `less`, where that leaves it open in their own order.
template <class Item, class Less>
std::vector<size_t> sorted_order(const std::vector<Item>& items, Less less) {
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return less(items[a], items[b]);
  });
  return order;
}

// Tensors cover the data without holes and overlaps.
void check_cover(
    const std::vector<Entry>& entries,
    size_t data_size,
    const std::string& where) {
  const auto order = sorted_order(entries, [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  size_t covered = 0;
  for (const size_t i : order) {
    TORCH_CHECK_VALUE(
        entries[i].begin == covered && entries[i].end <= data_size,
        where,
        ": tensor '",
        entries[i].name,
        "' has the bytes [",
        entries[i].begin,
        ", ",
        entries[i].end,
        ") of the data, but the next in turn is ",
        covered,
        " of ",
        data_size,
        ". The file is truncated or damaged.");
    covered = entries[i].end;
  }
  TORCH_CHECK_VALUE(
      covered == data_size,
      where,
      ": the tensors need ",
      covered,
      " bytes of data, but the file has ",
      data_size,
      ". It is damaged.");
}

// Where the tensors' bytes go, in the order of `contents`, and who comes first.
struct Layout {
  std::vector<size_t> offsets = {};
  std::vector<size_t> order = {};
};

// Wide dtypes first: then all are aligned without gaps.
Layout lay_out(const NamedTensors& contents) {
  Layout layout;
  layout.offsets.resize(contents.tensors.size());
  layout.order =
      sorted_order(contents.tensors, [](const auto& a, const auto& b) {
        return a.second.element_size() > b.second.element_size();
      });
  size_t end = 0;
  for (const size_t i : layout.order) {
    layout.offsets[i] = end;
    end += contents.tensors[i].second.nbytes();
  }
  return layout;
}

std::string header_of(
    const NamedTensors& contents,
    const Layout& layout,
    const std::string& where) {
  std::vector<std::string> entries;
  const auto add = [&](const json& name, const nlohmann::ordered_json& value) {
    entries.push_back(name.dump() + ":" + value.dump());
  };
  try {
    if (!contents.metadata.empty()) {
      add(kMetadata, contents.metadata);
    }
    for (size_t i = 0; i < contents.tensors.size(); ++i) {
      const auto& [name, tensor] = contents.tensors[i];
      const size_t begin = layout.offsets[i];
      add(name,
          {{"dtype", require_saveable(tensor, where).safetensors},
           {"shape", tensor.sizes().vec()},
           {"data_offsets", {begin, begin + tensor.nbytes()}}});
    }
  } catch (const json::type_error&) {
    C10_THROW_ERROR(
        ValueError, where + ": names and metadata must be UTF-8. Encode them.");
  }
  std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
  header.append((8 - header.size() % 8) % 8, ' ');
  TORCH_CHECK_VALUE(
      header.size() <= kMaxHeader,
      where,
      ": the header may have ",
      kMaxHeader,
      " bytes, but names and metadata make it ",
      header.size(),
      ". Save several files.");
  return header;
}

}  // namespace

at::Tensor NamedTensors::operator[](const std::string& name) const {
  constexpr size_t kMaxListed = 10;
  std::vector<std::string> known;
  for (const auto& [candidate, tensor] : tensors) {
    if (candidate == name) {
      return tensor;
    }
    if (known.size() < kMaxListed) {
      known.push_back(candidate);
    }
  }
  C10_THROW_ERROR(
      ValueError,
      fmt::format(
          "[NamedTensors] no tensor '{}' among {}. Known: {}{}.",
          name,
          tensors.size(),
          fmt::join(known, ", "),
          known.size() < tensors.size() ? ", ..." : ""));
}

void save_safetensors(const NamedTensors& contents, const std::string& path) {
  const std::string where = fmt::format("[save_safetensors] {}", path);
  std::unordered_set<std::string> names;
  for (const auto& [name, tensor] : contents.tensors) {
    TORCH_CHECK_VALUE(
        name != kMetadata && names.insert(name).second,
        where,
        ": names must differ and not be __metadata__, but got '",
        name,
        name == kMetadata ? "'." : "' twice.",
        " Rename the tensor.");
    require_saveable(tensor, fmt::format("{}: tensor '{}'", where, name));
  }
  const Layout layout = lay_out(contents);
  const std::string header = header_of(contents, layout, where);
  const uint64_t length = header.size();

  DurableFile file(path, "[save_safetensors]");
  file.write(&length, kLengthSize);
  file.write(header.data(), header.size());
  for (const size_t i : layout.order) {
    write_elements(file, contents.tensors[i].second);
  }
  file.commit();
}

NamedTensors load_safetensors(const std::string& path) {
  const std::string where = fmt::format("[load_safetensors] {}", path);
  const auto file = std::make_shared<MappedFile>(path, "[load_safetensors]");
  TORCH_CHECK_VALUE(
      file->size() >= kLengthSize,
      where,
      ": expected a safetensors file, but it has only ",
      file->size(),
      " bytes. It is truncated.");
  uint64_t length = 0;
  std::memcpy(&length, file->data(), kLengthSize);
  TORCH_CHECK_VALUE(
      length <= kMaxHeader && length <= file->size() - kLengthSize,
      where,
      ": the header must have at most ",
      kMaxHeader,
      " bytes and end in the file, which has ",
      file->size(),
      ", but its length is given as ",
      length,
      ". The file is truncated, damaged or not of the safetensors format.");
  HeaderReader header(file->text().substr(kLengthSize, length), where);
  header.read();
  const size_t data_offset = kLengthSize + length;
  check_cover(header.entries, file->size() - data_offset, where);

  NamedTensors contents{.metadata = std::move(header.metadata)};
  for (Entry& entry : header.entries) {
    const TensorBytes place{
        .dtype = entry.dtype,
        .shape = std::move(entry.shape),
        .offset = data_offset + entry.begin};
    at::Tensor tensor = tensor_in(
        file, place, fmt::format("{}: tensor '{}'", where, entry.name));
    contents.tensors.emplace_back(std::move(entry.name), std::move(tensor));
  }
  return contents;
}

}  // namespace tessera
