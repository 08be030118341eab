// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/int96_column.h"

#include <tessera/common/shorten.h>

#include "packages/data/src/arrow/input_file.h"
#include "src/common/check.h"

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <parquet/column_reader.h>

#include <cstring>
#include <ctime>
#include <utility>

namespace tessera::data {

namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

struct Time {
  int64_t seconds = 0;  // since 1970
  int64_t nanoseconds = 0;  // in [0, 10^9)
};

// Arrow writes times before 1970 with negative nanoseconds.
Time time_of(const parquet::Int96& value) {
  const auto [days, bits] = parquet::DecodeInt96Timestamp(value);
  const auto nanoseconds = static_cast<int64_t>(bits);
  Time time{
      .seconds = static_cast<int64_t>(days) * parquet::kSecondsPerDay +
          nanoseconds / kNanosecondsPerSecond,
      .nanoseconds = nanoseconds % kNanosecondsPerSecond};
  if (time.nanoseconds < 0) {
    --time.seconds;
    time.nanoseconds += kNanosecondsPerSecond;
  }
  return time;
}

std::string text_of(Time time) {
  const auto seconds = static_cast<std::time_t>(time.seconds);
  std::tm utc = {};
  char text[64] = {};
  if (::gmtime_r(&seconds, &utc) != nullptr) {
    std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &utc);
  }
  return text;
}

// Returns false if the time does not fit into int64, or would be kMissing.
bool count_of(Time time, int64_t units_per_second, int64_t& count) {
  int64_t rest = time.nanoseconds / (kNanosecondsPerSecond / units_per_second);
  if (time.seconds < 0) {  // otherwise, the smallest times would overflow
    ++time.seconds;
    rest -= units_per_second;
  }
  return !__builtin_mul_overflow(time.seconds, units_per_second, &count) &&
      !__builtin_add_overflow(count, rest, &count) && count != kMissing;
}

// The values of a row among those of the leaf, [begin, end).
std::pair<int64_t, int64_t> values_of_row(
    const arrow::Array& array,
    int64_t row) {
  const auto of_list = [&](const auto& lists) {
    return std::pair<int64_t, int64_t>(
        lists.value_offset(row), lists.value_offset(row + 1));
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

Int96Column::Int96Column(
    parquet::ParquetFileReader* file,
    std::vector<int> groups,
    int leaf,
    Int96Unit unit)
    : file_(file), groups_(std::move(groups)), leaf_(leaf), unit_(unit) {}

bool Int96Column::next(parquet::Int96& value) {
  constexpr int64_t kLevels = 4096;
  while (used_ == values_.size()) {
    if (reader_ == nullptr || !reader_->HasNext()) {
      if (group_ == groups_.size()) {
        return false;
      }
      reader_ = std::static_pointer_cast<parquet::Int96Reader>(
          file_->RowGroup(groups_[group_++])->Column(leaf_));
      continue;
    }
    std::vector<int16_t> definitions(kLevels);
    std::vector<int16_t> repetitions(kLevels);
    int64_t count = 0;
    values_.resize(kLevels);
    reader_->ReadBatch(
        kLevels,
        definitions.data(),
        repetitions.data(),
        values_.data(),
        &count);
    values_.resize(static_cast<size_t>(count));
    used_ = 0;
  }
  value = values_[used_++];
  return true;
}

std::shared_ptr<arrow::Array> Int96Column::convert(
    const arrow::Array& array,
    const std::string& where,
    const std::string& name,
    int64_t first_row) {
  const bool is_nanoseconds = unit_ == Int96Unit::kNanoseconds;
  const int64_t units_per_second =
      is_nanoseconds ? kNanosecondsPerSecond : 1'000'000;
  auto data = array.data()->Copy();
  const bool has_lists = !data->child_data.empty();
  auto leaf = has_lists ? data->child_data[0]->Copy() : data;
  const auto nulls = arrow::MakeArray(leaf->Copy());
  auto buffer = arrow::AllocateBuffer(
      (leaf->offset + leaf->length) * static_cast<int64_t>(sizeof(int64_t)));
  check_status(buffer.status(), where);
  std::shared_ptr<arrow::Buffer> counts = buffer.MoveValueUnsafe();
  std::memset(counts->mutable_data(), 0, static_cast<size_t>(counts->size()));
  auto* to = counts->mutable_data_as<int64_t>() + leaf->offset;
  for (int64_t row = 0; row < array.length(); ++row) {
    const auto [begin, end] = values_of_row(array, row);
    TESSERA_CHECK_VALUE(
        begin >= 0 && end <= nulls->length(),
        "{} row {}: column '{}' is damaged: its list has no valid length. Correct the file.",
        where,
        first_row + row + 1,
        shorten(name));
    for (int64_t i = begin; i < end; ++i) {
      if (nulls->IsNull(i)) {
        continue;
      }
      parquet::Int96 value = {};
      TESSERA_CHECK_VALUE(
          next(value),
          "{} row {}: column '{}' has fewer times than rows. The file is damaged. Write or download it again.",
          where,
          first_row + row + 1,
          shorten(name));
      const Time time = time_of(value);
      TESSERA_CHECK_VALUE(
          count_of(time, units_per_second, to[i]),
          "{} row {}: column '{}' is {}, which int64 can't count in {}. {}",
          where,
          first_row + row + 1,
          shorten(name),
          text_of(time),
          is_nanoseconds ? "nanoseconds" : "microseconds",
          is_nanoseconds
              ? "Set `int96_unit` of the source to Int96Unit::kMicroseconds, or correct the file."
              : "Correct the file.");
    }
  }
  leaf->buffers[1] = std::move(counts);
  if (has_lists) {
    data->child_data[0] = std::move(leaf);
  }
  return arrow::MakeArray(std::move(data));
}

}  // namespace tessera::data
