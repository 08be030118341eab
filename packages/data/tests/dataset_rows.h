// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/dataset.h>

#include "packages/data/tests/column_builders.h"

namespace tessera::test {

/// An example with a column of each kind.
struct Row {
  int64_t id = 0;
  float price = 0.0F;
  std::string name = {};
  std::vector<int64_t> tags = {};
  std::vector<std::string> words = {};

  bool operator==(const Row&) const = default;
};

inline void PrintTo(const Row& row, std::ostream* stream) {
  *stream << row.id << ":" << row.price << ":" << row.name << ":"
          << row.tags.size() << ":" << row.words.size();
}

using Rows = std::vector<Row>;

/// Some rows. The lists of a row have between none and three values.
inline Rows make_rows(int64_t count) {
  Rows rows;
  for (int64_t i = 0; i < count; ++i) {
    Row row{
        .id = i,
        .price = static_cast<float>(i) * 0.5F,
        .name = "name " + std::to_string(i * 7919)};
    for (int64_t k = 0; k < i * 5 % 4; ++k) {
      row.tags.push_back(i * 10 + k);
    }
    for (int64_t k = 0; k < i * 7 % 3; ++k) {
      row.words.push_back(std::to_string(i) + "/" + std::to_string(k));
    }
    rows.push_back(row);
  }
  return rows;
}

inline data::Columns to_columns(const Rows& rows) {
  std::vector<int64_t> ids;
  std::vector<float> prices;
  std::vector<std::string> names;
  std::vector<int64_t> tags;
  std::vector<int64_t> tag_splits{0};
  std::vector<std::string> words;
  std::vector<int64_t> word_splits{0};
  for (const Row& row : rows) {
    ids.push_back(row.id);
    prices.push_back(row.price);
    names.push_back(row.name);
    tags.insert(tags.end(), row.tags.begin(), row.tags.end());
    tag_splits.push_back(static_cast<int64_t>(tags.size()));
    words.insert(words.end(), row.words.begin(), row.words.end());
    word_splits.push_back(static_cast<int64_t>(words.size()));
  }
  return columns_of(
      {{"id", integers(ids)},
       {"price", numbers(prices)},
       {"name", text(names)},
       {"tags", ragged(integers(tags), tag_splits)},
       {"words", ragged(text(words), word_splits)}});
}

inline Rows to_rows(const data::Columns& columns) {
  const auto ids = to_vector(std::get<at::Tensor>(columns.at("id").values));
  const at::Tensor& prices = std::get<at::Tensor>(columns.at("price").values);
  const auto& names =
      std::get<std::vector<std::string>>(columns.at("name").values);
  const auto tags = to_vector(std::get<at::Tensor>(columns.at("tags").values));
  const auto tag_splits = to_vector(columns.at("tags").row_splits);
  const auto& words =
      std::get<std::vector<std::string>>(columns.at("words").values);
  const auto word_splits = to_vector(columns.at("words").row_splits);
  Rows rows;
  for (size_t i = 0; i < ids.size(); ++i) {
    rows.push_back(
        {.id = ids[i],
         .price = prices.const_data_ptr<float>()[i],
         .name = names[i],
         .tags =
             {tags.begin() + tag_splits[i], tags.begin() + tag_splits[i + 1]},
         .words = {
             words.begin() + word_splits[i],
             words.begin() + word_splits[i + 1]}});
  }
  return rows;
}

inline std::vector<int64_t> ids_in(const Rows& rows) {
  std::vector<int64_t> ids;
  for (const Row& row : rows) {
    ids.push_back(row.id);
  }
  return ids;
}

inline Rows read_rows(
    const data::Dataset& dataset,
    int64_t epoch = 0,
    int64_t first = 0) {
  Rows rows;
  const auto reader = dataset.open(epoch, first);
  while (const auto columns = reader->next()) {
    const Rows some = to_rows(*columns);
    rows.insert(rows.end(), some.begin(), some.end());
  }
  return rows;
}

inline std::vector<int64_t> read_ids(
    const data::Dataset& dataset,
    int64_t epoch = 0,
    int64_t first = 0) {
  return ids_in(read_rows(dataset, epoch, first));
}

/// A source of rows in chunks of `chunk` rows.
class RowSource : public data::ExampleSource {
 public:
  RowSource(Rows rows, int64_t chunk, bool knows_size = true)
      : rows(std::move(rows)), chunk_(chunk), knows_size_(knows_size) {}

  std::unique_ptr<data::ExampleReader> open(int64_t first) const override {
    ++num_opened;
    return std::make_unique<Reader>(*this, static_cast<size_t>(first));
  }
  std::optional<int64_t> size() const override {
    return knows_size_ ? std::optional(static_cast<int64_t>(rows.size()))
                       : std::nullopt;
  }

  Rows rows;
  mutable std::atomic<int64_t> num_opened{0};
  mutable std::atomic<int64_t> num_read{0};

 private:
  class Reader : public data::ExampleReader {
   public:
    Reader(const RowSource& source, size_t first)
        : source_(source), next_(first) {}

    std::optional<data::Columns> next() override {
      if (next_ >= source_.rows.size()) {
        return std::nullopt;
      }
      const size_t end = std::min(
          source_.rows.size(), next_ + static_cast<size_t>(source_.chunk_));
      const Rows rows(
          source_.rows.begin() + static_cast<int64_t>(next_),
          source_.rows.begin() + static_cast<int64_t>(end));
      next_ = end;
      source_.num_read += static_cast<int64_t>(rows.size());
      return to_columns(rows);
    }

   private:
    const RowSource& source_;
    size_t next_;
  };

  int64_t chunk_;
  bool knows_size_;
};

inline data::Dataset row_dataset(
    int64_t count,
    int64_t chunk = 7,
    bool knows_size = true) {
  return data::Dataset(
      std::make_shared<RowSource>(make_rows(count), chunk, knows_size));
}

}  // namespace tessera::test
