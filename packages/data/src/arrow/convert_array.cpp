// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/convert_array.h"

#include <tessera/common/shorten.h>

#include "packages/data/src/arrow/input_file.h"
#include "src/common/check.h"
#include "src/common/text.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <arrow/array.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/type_traits.h>
#include <arrow/util/float16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

namespace tessera::data {

namespace {

// Thrown for a value that the column can't have, at this index of the array.
struct BadValue {
  int64_t index = 0;
  std::string problem = {};
  const char* advice = "";
};

[[noreturn]] void refuse_value(
    int64_t index,
    std::string problem,
    const char* advice = "Correct the file.") {
  throw BadValue{
      .index = index, .problem = std::move(problem), .advice = advice};
}

bool is_list_type(arrow::Type::type id) {
  return id == arrow::Type::LIST || id == arrow::Type::LARGE_LIST ||
      id == arrow::Type::FIXED_SIZE_LIST;
}

// Returns the type of the values, which may be inside lists and dictionaries.
const arrow::DataType& value_type(const arrow::DataType& type) {
  if (is_list_type(type.id())) {
    const arrow::DataType& element = *type.field(0)->type();
    return is_list_type(element.id()) ? element : value_type(element);
  }
  if (type.id() == arrow::Type::DICTIONARY) {
    return *static_cast<const arrow::DictionaryType&>(type).value_type();
  }
  return type;
}

enum class ValueKind { kInteger, kFloat, kText, kNull, kOther };

ValueKind kind_of_type(const arrow::DataType& type) {
  const arrow::Type::type id = value_type(type).id();
  return id == arrow::Type::BOOL || id == arrow::Type::DURATION ||
          arrow::is_integer(id) || arrow::is_temporal(id)
      ? ValueKind::kInteger
      : arrow::is_floating(id)         ? ValueKind::kFloat
      : arrow::is_base_binary_like(id) ? ValueKind::kText
      : id == arrow::Type::NA          ? ValueKind::kNull
                                       : ValueKind::kOther;
}

// Calls visit(pointer) with the values as numbers of their physical type. Booleans and
// float16 are converted first. Other values are not copied.
template <class Visit>
void visit_numbers(const arrow::Array& array, Visit&& visit) {
  const arrow::ArrayData& data = *array.data();
  switch (array.type_id()) {
    case arrow::Type::BOOL: {
      const auto& bits = static_cast<const arrow::BooleanArray&>(array);
      std::vector<uint8_t> values(static_cast<size_t>(array.length()));
      for (int64_t i = 0; i < array.length(); ++i) {
        values[i] = !array.IsNull(i) && bits.Value(i) ? 1 : 0;
      }
      return visit(static_cast<const uint8_t*>(values.data()));
    }
    case arrow::Type::HALF_FLOAT: {
      const auto* bits = data.GetValues<uint16_t>(1);
      std::vector<float> values(static_cast<size_t>(array.length()));
      for (int64_t i = 0; i < array.length(); ++i) {
        values[i] = arrow::util::Float16::FromBits(bits[i]).ToFloat();
      }
      return visit(static_cast<const float*>(values.data()));
    }
    case arrow::Type::INT8:
      return visit(data.GetValues<int8_t>(1));
    case arrow::Type::INT16:
      return visit(data.GetValues<int16_t>(1));
    case arrow::Type::INT32:
    case arrow::Type::DATE32:
    case arrow::Type::TIME32:
      return visit(data.GetValues<int32_t>(1));
    case arrow::Type::INT64:
    case arrow::Type::DATE64:
    case arrow::Type::TIME64:
    case arrow::Type::TIMESTAMP:
    case arrow::Type::DURATION:
      return visit(data.GetValues<int64_t>(1));
    case arrow::Type::UINT8:
      return visit(data.GetValues<uint8_t>(1));
    case arrow::Type::UINT16:
      return visit(data.GetValues<uint16_t>(1));
    case arrow::Type::UINT32:
      return visit(data.GetValues<uint32_t>(1));
    case arrow::Type::UINT64:
      return visit(data.GetValues<uint64_t>(1));
    case arrow::Type::FLOAT:
      return visit(data.GetValues<float>(1));
    case arrow::Type::DOUBLE:
      return visit(data.GetValues<double>(1));
    default:
      refuse_value(0, "is of an unexpected type, " + array.type()->ToString());
  }
}

template <class Value>
int64_t to_int64(Value value, int64_t index) {
  if constexpr (std::is_same_v<Value, uint64_t>) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      refuse_value(
          index,
          c10::str("is ", value, ", which does not fit into int64"),
          "Set the column's type in `types` to kUInt64Bits for keys of 64 bits, "
          "or to kText.");
    }
  }
  if constexpr (std::is_same_v<Value, int64_t>) {
    if (value == kMissing) {
      refuse_value(index, "is -2^63, which stands for a missing integer");
    }
  }
  return static_cast<int64_t>(value);
}

// The int64 with the same bits. Signed integers stay as they are.
template <class Value>
int64_t to_bits(Value value, int64_t index) {
  const auto bits = static_cast<int64_t>(value);
  if (bits == kMissing) {
    refuse_value(
        index,
        c10::str("is ", value, ", whose bits stand for a missing integer"),
        "Set the column's type in `types` to kText.");
  }
  return bits;
}

template <class Value>
float to_float32(Value value, int64_t index) {
  const auto result = static_cast<float>(value);
  if constexpr (std::is_same_v<Value, double>) {
    if (std::isinf(result) && std::isfinite(value)) {
      refuse_value(
          index, c10::str("is ", value, ", which is too large for float32"));
    }
  }
  return result;
}

template <class Position>
at::Tensor convert_numbers(
    const arrow::Array& values,
    const Position& position,
    int64_t size,
    ColumnType type) {
  const bool is_bits = type == ColumnType::kUInt64Bits;
  const bool is_integer = type == ColumnType::kInt64 || is_bits;
  at::Tensor result = at::empty({size}, is_integer ? at::kLong : at::kFloat);
  visit_numbers(values, [&]<class Value>(const Value* from) {
    if (is_integer) {
      auto* to = result.mutable_data_ptr<int64_t>();
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = position(i);
        if constexpr (std::is_integral_v<Value>) {
          to[i] = at < 0 ? kMissing
              : is_bits  ? to_bits(from[at], i)
                         : to_int64(from[at], i);
        }
      }
    } else {
      auto* to = result.mutable_data_ptr<float>();
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = position(i);
        to[i] = at < 0 ? std::numeric_limits<float>::quiet_NaN()
                       : to_float32(from[at], i);
      }
    }
  });
  return result;
}

// The loop has no branch, so that the compiler uses vector instructions.
bool is_ascii(const char* text, size_t size) {
  uint8_t all = 0;
  for (size_t i = 0; i < size; ++i) {
    all |= static_cast<uint8_t>(text[i]);
  }
  return all < 0x80;
}

template <class Offset, class Position>
void convert_texts(
    const arrow::Array& values,
    const Position& position,
    std::vector<std::string>& result) {
  const arrow::ArrayData& data = *values.data();
  if (values.length() == 0) {
    return;
  }
  const auto* offsets = data.GetValues<Offset>(1);
  const auto* text = data.GetValues<char>(2, 0);
  const int64_t bytes =
      data.buffers[2] == nullptr ? 0 : data.buffers[2]->size();
  const Offset begin = offsets[0];
  const Offset end = offsets[values.length()];
  // Files may be damaged, and Arrow checks only the last offset.
  const bool is_valid = begin >= 0 && begin <= end && end <= bytes;
  const bool is_plain = is_valid && is_ascii(text + begin, end - begin);
  for (size_t i = 0; i < result.size(); ++i) {
    const int64_t at = position(static_cast<int64_t>(i));
    if (at < 0) {
      continue;
    }
    const Offset from = offsets[at];
    const Offset to = offsets[at + 1];
    if (from < 0 || from > to || to > bytes) {
      refuse_value(
          static_cast<int64_t>(i), "is damaged: its text has no valid length");
    }
    if (from < to) {
      result[i].assign(text + from, to - from);
    }
    if (!is_plain && !is_utf8(result[i])) {
      refuse_value(static_cast<int64_t>(i), "is not UTF-8");
    }
  }
}

template <class Position>
std::vector<std::string> convert_to_text(
    const arrow::Array& values,
    const Position& position,
    int64_t size) {
  std::vector<std::string> result(static_cast<size_t>(size));
  switch (values.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      convert_texts<int32_t>(values, position, result);
      break;
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      convert_texts<int64_t>(values, position, result);
      break;
    default:
      visit_numbers(values, [&](const auto* from) {
        for (int64_t i = 0; i < size; ++i) {
          const int64_t at = position(i);
          if (at >= 0) {
            result[i] = std::to_string(from[at]);
          }
        }
      });
  }
  return result;
}

Column all_missing(int64_t size, ColumnType type) {
  if (type == ColumnType::kText) {
    return {.values = std::vector<std::string>(size)};
  }
  const at::Tensor values = type == ColumnType::kFloat32
      ? at::full({size}, std::numeric_limits<float>::quiet_NaN(), at::kFloat)
      : at::full({size}, kMissing, at::kLong);
  return {.values = values};
}

// position(i) is the position of value i in `values`, or -1 if the value is missing.
template <class Position>
Column convert_values(
    const arrow::Array& values,
    const Position& position,
    int64_t size,
    ColumnType type) {
  if (values.type_id() == arrow::Type::NA) {
    return all_missing(size, type);
  }
  if (type == ColumnType::kText) {
    return {.values = convert_to_text(values, position, size)};
  }
  return {.values = convert_numbers(values, position, size, type)};
}

Column convert_dictionary(
    const arrow::DictionaryArray& array,
    ColumnType type) {
  const arrow::Array& dictionary = *array.dictionary();
  const arrow::Array& codes = *array.indices();
  std::vector<int64_t> indices(static_cast<size_t>(array.length()), -1);
  visit_numbers(codes, [&]<class Value>(const Value* from) {
    for (int64_t i = 0; i < array.length(); ++i) {
      if (codes.IsNull(i)) {
        continue;
      }
      const auto index = static_cast<int64_t>(from[i]);
      if (index < 0 || index >= dictionary.length()) {
        refuse_value(i, "is damaged: it is not in its dictionary");
      }
      indices[i] = index;
    }
  });
  const bool has_nulls = dictionary.null_count() > 0;
  const auto position = [&](int64_t i) -> int64_t {
    const int64_t index = indices[i];
    const bool is_null = index >= 0 && has_nulls && dictionary.IsNull(index);
    return is_null ? -1 : index;
  };
  return convert_values(dictionary, position, array.length(), type);
}

Column convert_flat(const arrow::Array& array, ColumnType type) {
  if (array.type_id() == arrow::Type::DICTIONARY) {
    return convert_dictionary(
        static_cast<const arrow::DictionaryArray&>(array), type);
  }
  const bool has_nulls = array.null_count() > 0;
  const auto position = [&](int64_t i) -> int64_t {
    return has_nulls && array.IsNull(i) ? -1 : i;
  };
  return convert_values(array, position, array.length(), type);
}

// Converts the values of lists, and sets row_splits. length(i) is the number of values of
// list i, if the list is not null.
template <class Lists, class Length>
Column convert_lists(
    const Lists& lists,
    ColumnType type,
    const Length& length) {
  at::Tensor row_splits = at::empty({lists.length() + 1}, at::kLong);
  auto* splits = row_splits.template mutable_data_ptr<int64_t>();
  splits[0] = 0;
  for (int64_t i = 0; i < lists.length(); ++i) {
    splits[i + 1] = splits[i] + (lists.IsNull(i) ? 0 : length(i));
  }
  auto flattened = lists.Flatten(arrow::default_memory_pool());
  if (!flattened.ok() ||
      flattened.ValueUnsafe()->length() != splits[lists.length()]) {
    refuse_value(0, "is damaged: lists and values do not match");
  }
  try {
    Column column = convert_flat(**flattened, type);
    column.row_splits = std::move(row_splits);
    return column;
  } catch (BadValue& bad) {
    const int64_t* end = splits + lists.length() + 1;
    bad.index = std::upper_bound(splits, const_cast<int64_t*>(end), bad.index) -
        splits - 1;
    throw;
  }
}

template <class Lists>
Column convert_variable_lists(const Lists& lists, ColumnType type) {
  const int64_t available = lists.values()->length();
  for (int64_t i = 0; i < lists.length(); ++i) {
    const int64_t begin = lists.value_offset(i);
    const int64_t end = lists.value_offset(i + 1);
    if (begin < 0 || begin > end || end > available) {
      refuse_value(i, "is damaged: its list has no valid length");
    }
  }
  return convert_lists(lists, type, [&](int64_t i) -> int64_t {
    return lists.value_offset(i + 1) - lists.value_offset(i);
  });
}

Column convert_array(const arrow::Array& array, ColumnType type) {
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return convert_variable_lists(
          static_cast<const arrow::ListArray&>(array), type);
    case arrow::Type::LARGE_LIST:
      return convert_variable_lists(
          static_cast<const arrow::LargeListArray&>(array), type);
    case arrow::Type::FIXED_SIZE_LIST: {
      const auto& lists = static_cast<const arrow::FixedSizeListArray&>(array);
      const int64_t size = lists.list_type()->list_size();
      return convert_lists(lists, type, [&](int64_t) { return size; });
    }
    default:
      return convert_flat(array, type);
  }
}

}  // namespace

ColumnType default_type(
    const std::string& where,
    const std::string& name,
    const arrow::DataType& type) {
  const ValueKind kind = kind_of_type(type);
  TESSERA_CHECK_VALUE(
      kind != ValueKind::kOther,
      "{} column '{}' is of the type {}, which a column can't have. Leave it out of `columns`, or write it as numbers, text or lists of these.",
      where,
      shorten(name),
      shorten(type.ToString()));
  return kind == ValueKind::kInteger ? ColumnType::kInt64
      : kind == ValueKind::kFloat    ? ColumnType::kFloat32
                                     : ColumnType::kText;
}

std::string unit_of(const arrow::DataType& type) {
  const arrow::DataType& values = value_type(type);
  const auto name_of_unit = [](const auto& times) -> std::string {
    constexpr std::array kNames{
        "seconds", "milliseconds", "microseconds", "nanoseconds"};
    return kNames.at(times.unit());
  };
  switch (values.id()) {
    case arrow::Type::DATE32:
      return "days since 1970";
    case arrow::Type::DATE64:
      return "milliseconds since 1970";
    case arrow::Type::TIMESTAMP:
      return name_of_unit(static_cast<const arrow::TimestampType&>(values)) +
          " since 1970";
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
      return name_of_unit(static_cast<const arrow::TimeType&>(values)) +
          " since midnight";
    case arrow::Type::DURATION:
      return name_of_unit(static_cast<const arrow::DurationType&>(values));
    default:
      return "";
  }
}

void check_convertible(
    const std::string& where,
    const ColumnRequest& request,
    const arrow::DataType& type) {
  const ColumnType own = default_type(where, request.name, type);
  const ValueKind kind = kind_of_type(type);
  TESSERA_CHECK_VALUE(
      own == request.type || kind == ValueKind::kInteger ||
          kind == ValueKind::kNull,
      "{} column '{}' is of the type {}, which can't be read as {}. Set its type to {} in `types`, or convert the file.",
      where,
      shorten(request.name),
      shorten(type.ToString()),
      to_string(request.type),
      to_string(own));
  const std::string unit = unit_of(type);
  TESSERA_CHECK_VALUE(
      unit == request.unit || request.has_unknown_unit ||
          kind == ValueKind::kNull,
      "{} column '{}' has {}, but {} in the first file. Write all files with the same type, or make a source for each.",
      where,
      shorten(request.name),
      unit.empty() ? "plain numbers" : unit,
      request.unit.empty() ? "plain numbers" : request.unit);
}

Columns convert_batch(
    const std::string& where,
    const arrow::RecordBatch& batch,
    const std::vector<ColumnRequest>& requests,
    const std::vector<int>& positions,
    int64_t first_row) {
  check_status(batch.Validate(), where);
  Columns columns;
  for (size_t i = 0; i < requests.size(); ++i) {
    const ColumnRequest& request = requests[i];
    try {
      columns.add(
          request.name,
          convert_array(*batch.column(positions[i]), request.type));
    } catch (const BadValue& bad) {
      TESSERA_CHECK_VALUE(
          false,
          "{} row {}: column '{}' {}. {}",
          where,
          first_row + bad.index + 1,
          shorten(request.name),
          bad.problem,
          bad.advice);
    }
  }
  return columns;
}

}  // namespace tessera::data
