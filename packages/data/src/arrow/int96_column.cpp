// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/int96_column.h"

#include <tessera/common/shorten.h>

#include "packages/data/src/arrow/input_file.h"
#include "src/common/check.h"

#include <arrow/array.h>
#include <arrow/buffer.h>

#include <cstring>
#include <ctime>
#include <utility>

namespace tessera::data {

namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

// Sets the seconds since 1970, rounded down, and the units since 1970. Returns false if
// these do not fit into int64, or would be kMissing.
bool count_units(
    const parquet::Int96& value,
    int64_t units_per_second,
    int64_t& seconds,
    int64_t& units) {
  const auto [days, bits] = parquet::DecodeInt96Timestamp(value);
  // Negative where Arrow has written a time before 1970.
  const auto nanoseconds = static_cast<int64_t>(bits);
  const int64_t part = nanoseconds % kNanosecondsPerSecond;
  seconds = static_cast<int64_t>(days) * parquet::kSecondsPerDay +
      nanoseconds / kNanosecondsPerSecond - (part < 0 ? 1 : 0);
  const int64_t rest = (part + kNanosecondsPerSecond) % kNanosecondsPerSecond /
      (kNanosecondsPerSecond / units_per_second);
  // Negative times are counted from the next second, because the one before the smallest
  // time overflows.
  const int64_t next = seconds < 0 ? 1 : 0;
  return !__builtin_mul_overflow(seconds + next, units_per_second, &units) &&
      !__builtin_add_overflow(units, rest - next * units_per_second, &units) &&
      units != kMissing;
}

std::string date_of(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc = {};
  char text[64] = {};
  if (::gmtime_r(&time, &utc) != nullptr) {
    std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &utc);
  }
  return text;
}

// The values of a row among those of all rows, [begin, end).
std::pair<int64_t, int64_t> values_of(const arrow::Array& array, int64_t row) {
  const auto of_list = [&](const auto& list) -> std::pair<int64_t, int64_t> {
    return {list.value_offset(row), list.value_offset(row + 1)};
  };
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return of_list(static_cast<const arrow::ListArray&>(array));
    case arrow::Type::LARGE_LIST:
      return of_list(static_cast<const arrow::LargeListArray&>(array));
    case arrow::Type::FIXED_SIZE_LIST:
      return of_list(static_cast<const arrow::FixedSizeListArray&>(array));
    default:
      return {row, row + 1};
  }
}

}  // namespace

bool Int96Column::next(parquet::Int96& value) {
  constexpr int64_t kLevels = 4096;
  while (next_value == values.size()) {
    if (reader != nullptr && reader->HasNext()) {
      std::vector<int16_t> levels(2 * kLevels);  // of nulls and lists
      int64_t count = 0;
      values.resize(kLevels);
      reader->ReadBatch(
          kLevels, &levels[0], &levels[kLevels], values.data(), &count);
      values.resize(static_cast<size_t>(count));
      next_value = 0;
    } else if (next_group < groups.size()) {
      reader = std::static_pointer_cast<parquet::Int96Reader>(
          file->RowGroup(groups[next_group++])->Column(leaf));
    } else {
      return false;
    }
  }
  value = values[next_value++];
  return true;
}

std::shared_ptr<arrow::Array> Int96Column::convert(
    const arrow::Array& array,
    const std::string& where,
    const std::string& name,
    int64_t first_row) {
  const bool is_nanoseconds = unit == Int96Unit::kNanoseconds;
  auto data = array.data()->Copy();
  const bool has_lists = !data->child_data.empty();
  auto times = has_lists ? data->child_data[0]->Copy() : data;
  const auto nulls = arrow::MakeArray(times->Copy());
  auto buffer = arrow::AllocateBuffer(
      (times->offset + times->length) * static_cast<int64_t>(sizeof(int64_t)));
  check_status(buffer.status(), where);
  auto* to = (*buffer)->mutable_data_as<int64_t>() + times->offset;
  std::memset((*buffer)->mutable_data(), 0, (*buffer)->size());
  for (int64_t row = 0; row < array.length(); ++row) {
    const auto [begin, end] = values_of(array, row);
    for (int64_t i = begin; i < end; ++i) {
      parquet::Int96 value = {};
      int64_t seconds = 0;
      if (nulls->IsNull(i)) {
        continue;
      }
      TESSERA_CHECK_VALUE(
          next(value), "{} lacks times in column '{}'.", where, shorten(name));
      TESSERA_CHECK_VALUE(
          count_units(
              value,
              is_nanoseconds ? kNanosecondsPerSecond : 1'000'000,
              seconds,
              to[i]),
          "{} row {}: column '{}' is {}, which int64 can't count in {}. {}",
          where,
          first_row + row + 1,
          shorten(name),
          date_of(seconds),
          is_nanoseconds ? "nanoseconds" : "microseconds",
          is_nanoseconds
              ? "Set `int96_unit` of the source to Int96Unit::kMicroseconds, or correct the file."
              : "Correct the file.");
    }
  }
  times->buffers[1] = std::move(*buffer);
  if (has_lists) {
    data->child_data[0] = std::move(times);
  }
  return arrow::MakeArray(std::move(data));
}

}  // namespace tessera::data
