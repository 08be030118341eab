// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/json_text.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

namespace tessera {

namespace {

using VisitEntry = std::function<void(const std::string&, const Json&)>;

// An iterator over the bytes of a text that records how far the parser has read.
class ParsedBytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  ParsedBytes(const char* next, const char** reached)
      : next_(next), reached_(reached) {}

  reference operator*() const {
    return *next_;
  }
  ParsedBytes& operator++() {
    *reached_ = ++next_;
    return *this;
  }
  bool operator==(const ParsedBytes& other) const {
    return next_ == other.next_;
  }

 private:
  const char* next_;
  const char** reached_;
};

// Builds values from the events of nlohmann's parser. nlohmann's own builder takes
// quadratic time, because it compares each key with all keys before it. It also copies
// values recursively when an object grows.
class JsonTextReader final : public nlohmann::json_sax<Json> {
 public:
  JsonTextReader(
      std::string_view text,
      const std::string& where,
      const JsonLimits& limits,
      const VisitEntry* visit)
      : text_(text),
        where_(where),
        limits_(limits),
        visit_(visit),
        reached_(text.data()) {}

  Json read() {
    TESSERA_CHECK_VALUE(
        text_.size() <= limits_.bytes,
        "{} expected at most {} bytes of JSON, but got {}. Pass a smaller text.",
        where_,
        limits_.bytes,
        text_.size());
    if (const size_t zero = text_.find('\0'); zero != std::string_view::npos) {
      reached_ = text_.data() + zero + 1;
      refuse("a zero byte");
    }
    Json::sax_parse(
        ParsedBytes(text_.data(), &reached_),
        ParsedBytes(text_.data() + text_.size(), &reached_),
        this);
    return std::move(root_);
  }

  bool null() override {
    return add(nullptr);
  }
  bool boolean(bool value) override {
    return add(value);
  }
  bool number_integer(number_integer_t value) override {
    return add(value);
  }
  bool number_unsigned(number_unsigned_t value) override {
    return add(value);
  }
  bool number_float(number_float_t value, const string_t& /*text*/) override {
    return add(value);
  }
  bool string(string_t& value) override {
    return add(std::move(value));
  }
  bool binary(binary_t& /*value*/) override {
    refuse("bytes");  // never called: only binary formats have bytes
  }

  bool start_object(size_t /*size*/) override {
    return begin(/*is_object=*/true);
  }
  bool key(string_t& key) override {
    levels_.back().keys.push_back(
        {.name = std::move(key), .end = byte_offset()});
    return true;
  }
  bool end_object() override {
    check_keys();
    Level level = std::move(levels_.back());
    levels_.pop_back();
    Json::object_t object;
    // An object that grows copies its values.
    object.reserve(level.values.size());
    for (size_t i = 0; i < level.values.size(); ++i) {
      object.emplace_back(
          std::move(level.keys[i].name), std::move(level.values[i]));
    }
    return add(std::move(object));
  }

  bool start_array(size_t /*size*/) override {
    return begin(/*is_object=*/false);
  }
  bool end_array() override {
    Json::array_t list = std::move(levels_.back().values);
    levels_.pop_back();
    return add(std::move(list));
  }

  bool parse_error(
      size_t /*position*/,
      const std::string& /*last_token*/,
      const nlohmann::detail::exception& error) override {
    // Remove nlohmann's name of the error and its own byte count.
    std::string_view reason = error.what();
    reason.remove_prefix(std::min(reason.size(), reason.find("] ") + 2));
    if (reason.starts_with("parse error")) {
      reason.remove_prefix(std::min(reason.size(), reason.find(": ") + 2));
    }
    TESSERA_CHECK_VALUE(
        !is_blank(),
        "{} expected JSON, but the text is empty ({}). Pass a JSON value, such as {{}}.",
        where_,
        reason);
    refuse(shorten(reason));
  }

 private:
  struct Key {
    std::string name;
    size_t end = 0;  // the position in the text after the key
  };

  // An object or a list that is being read.
  struct Level {
    bool is_object = false;
    std::vector<Key> keys = {};
    std::vector<Json> values = {};
  };

  size_t byte_offset() const {
    return static_cast<size_t>(reached_ - text_.data());
  }

  bool is_blank() const {
    return text_.find_first_not_of(" \t\r\n") == std::string_view::npos;
  }

  std::string location() const {
    return fmt::format(
        "at byte {}, line {}",
        byte_offset(),
        1 + std::count(text_.data(), reached_, '\n'));
  }

  [[noreturn]] void refuse(const std::string& problem) const {
    checks::fail<checks::ValueError>(
        {__func__, __FILE__, __LINE__},
        "{} expected JSON, but got {} {}. Correct the text there.",
        where_,
        problem,
        location());
  }

  bool begin(bool is_object) {
    TESSERA_CHECK_VALUE(
        levels_.size() < limits_.depth,
        "{} the JSON must be at most {} levels deep, but is deeper {}. Correct the text there.",
        where_,
        limits_.depth,
        location());
    check_object(is_object);
    levels_.push_back({.is_object = is_object});
    return true;
  }

  void check_object(bool is_object) const {
    if (visit_ != nullptr && levels_.empty() && !is_object) {
      refuse("a value that is not an object");
    }
  }

  bool add(Json value) {
    if (levels_.empty()) {
      check_object(value.is_object());
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (visit_ != nullptr && levels_.size() == 1) {
      (*visit_)(level.keys.back().name, value);
      return true;
    }
    TESSERA_CHECK_VALUE(
        level.is_object || level.values.size() < limits_.list_size,
        "{} expected lists of at most {} values in the JSON, but got a longer one {}. Correct the text there.",
        where_,
        limits_.list_size,
        location());
    level.values.push_back(std::move(value));
    return true;
  }

  void check_keys() {
    std::vector<std::pair<std::string_view, size_t>> sorted;
    sorted.reserve(levels_.back().keys.size());
    for (const Key& key : levels_.back().keys) {
      sorted.emplace_back(key.name, key.end);
    }
    std::ranges::sort(sorted);
    const auto twice = std::ranges::adjacent_find(
        sorted,
        [](const auto& a, const auto& b) { return a.first == b.first; });
    if (twice != sorted.end()) {
      reached_ = text_.data() + std::next(twice)->second;
      refuse(fmt::format("the key '{}' twice", shorten(twice->first)));
    }
  }

  std::string_view text_;
  const std::string& where_;
  const JsonLimits& limits_;
  const VisitEntry* visit_;  // nullptr: build the whole value
  const char* reached_;
  std::vector<Level> levels_;
  Json root_;
};

Json read_json_text(
    std::string_view text,
    const std::string& where,
    const JsonLimits& limits,
    const VisitEntry* visit) {
  try {
    return JsonTextReader(text, where, limits, visit).read();
  } catch (const std::bad_alloc&) {
    TESSERA_CHECK(
        false,
        "{} the JSON of {} bytes needs more memory than the system has free. Pass a smaller text.",
        where,
        text.size());
  }
}

}  // namespace

Json parse_json(
    std::string_view text,
    const std::string& where,
    const JsonLimits& limits) {
  return read_json_text(text, where, limits, nullptr);
}

void for_each_json_entry(
    std::string_view text,
    const std::string& where,
    const JsonLimits& limits,
    const VisitEntry& visit) {
  read_json_text(text, where, limits, &visit);
}

}  // namespace tessera
