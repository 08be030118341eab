// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/temporary_folder.h"

// A reader of TensorBoard's event files that shares no code with the writer.
namespace tessera::test {

/// The CRC32C of RFC 3720, bit by bit.
inline uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1U) ^ ((crc & 1U) != 0 ? 0x82f63b78U : 0U);
    }
  }
  return ~crc;
}

inline uint32_t masked(uint32_t crc) {
  return ((crc >> 15U) | (crc << 17U)) + 0xa282ead8U;
}

template <class Number>
Number little_endian(std::string_view bytes) {
  Number number{};
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

/// The fields of a protobuf message. Numbers are kept as their bits.
struct Message {
  std::multimap<uint64_t, uint64_t> numbers;
  std::multimap<uint64_t, std::string> bytes;

  explicit Message(std::string_view text) {
    while (!text.empty()) {
      const uint64_t key = varint(text);
      const uint64_t field = key >> 3U;
      switch (key & 7U) {
        case 0:
          numbers.emplace(field, varint(text));
          break;
        case 1:
          numbers.emplace(field, little_endian<uint64_t>(take(text, 8)));
          break;
        case 2: {
          const uint64_t size = varint(text);
          bytes.emplace(field, take(text, size));
          break;
        }
        case 5:
          numbers.emplace(field, little_endian<uint32_t>(take(text, 4)));
          break;
        default:
          throw std::runtime_error("unknown wire type");
      }
    }
  }

  std::string text(uint64_t field) const {
    const auto found = bytes.find(field);
    return found == bytes.end() ? "" : found->second;
  }
  double real(uint64_t field) const {
    return std::bit_cast<double>(numbers.find(field)->second);
  }

 private:
  static std::string_view take(std::string_view& text, uint64_t size) {
    if (size > text.size()) {
      throw std::runtime_error("a field does not end");
    }
    const std::string_view taken = text.substr(0, size);
    text.remove_prefix(size);
    return taken;
  }
  static uint64_t varint(std::string_view& text) {
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      const auto byte = static_cast<uint8_t>(take(text, 1)[0]);
      value |= static_cast<uint64_t>(byte & 0x7fU) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
  }
};

struct Event {
  int64_t step = 0;
  double wall_time = 0.0;
  std::string version;
  bool is_start = false;
  std::string tag;
  float scalar = 0.0F;
  std::optional<Message> histogram;
  std::string bytes;  // of the scalar or histogram, with its tag
};

/// Reads a file of records, and checks lengths and checksums. An incomplete record at the
/// end is skipped, as TensorBoard does.
inline std::vector<Event> read_events(const std::string& path) {
  const std::string file = read_text(path);
  std::string_view rest = file;
  std::vector<Event> events;
  while (rest.size() >= 16) {
    const auto size = little_endian<uint64_t>(rest);
    EXPECT_EQ(
        little_endian<uint32_t>(rest.substr(8)),
        masked(crc32c(rest.substr(0, 8))));
    if (rest.size() < 16 + size) {
      break;
    }
    const std::string_view bytes = rest.substr(12, size);
    EXPECT_EQ(
        little_endian<uint32_t>(rest.substr(12 + size)), masked(crc32c(bytes)));
    rest.remove_prefix(16 + size);
    const Message message(bytes);
    Event event;
    event.wall_time = message.real(1);
    event.step = static_cast<int64_t>(message.numbers.find(2)->second);
    event.version = message.text(3);
    event.is_start = message.text(7) == std::string("\x08\x01");
    if (const std::string summary = message.text(5); !summary.empty()) {
      event.bytes = Message(summary).text(1);
      const Message value(event.bytes);
      event.tag = value.text(1);
      if (value.numbers.contains(2)) {
        event.scalar = std::bit_cast<float>(
            static_cast<uint32_t>(value.numbers.find(2)->second));
      } else {
        event.histogram.emplace(value.text(5));
      }
    }
    events.push_back(std::move(event));
  }
  return events;
}

inline std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    files.push_back(file.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// The values of a run, by tag and step. A file that starts at a step replaces what earlier
/// files have from there on.
template <class Value, class ValueOf>
std::map<std::string, std::map<int64_t, Value>> read_values(
    const std::string& folder,
    ValueOf value_of) {
  std::map<std::string, std::map<int64_t, Value>> values;
  for (const std::string& file : files_of(folder)) {
    for (const Event& event : read_events(file)) {
      if (event.is_start) {
        for (auto& [tag, steps] : values) {
          steps.erase(steps.lower_bound(event.step), steps.end());
        }
      } else if (!event.tag.empty()) {
        if (const std::optional<Value> value = value_of(event)) {
          EXPECT_TRUE(values[event.tag].emplace(event.step, *value).second)
              << event.tag << " has step " << event.step << " twice";
        }
      }
    }
  }
  return values;
}

using Steps = std::map<int64_t, float>;

inline std::map<std::string, Steps> read_scalars(const std::string& folder) {
  return read_values<float>(folder, [](const Event& event) {
    return event.histogram ? std::nullopt : std::optional(event.scalar);
  });
}

/// Scalars and histograms, as their bytes.
inline std::map<std::string, std::map<int64_t, std::string>> read_bytes(
    const std::string& folder) {
  return read_values<std::string>(
      folder, [](const Event& event) { return std::optional(event.bytes); });
}

}  // namespace tessera::test
