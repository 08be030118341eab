// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>

namespace tessera::data::detail {

/// The iterator of a reader with `std::optional<Item> next()`. It holds the current item.
template <class Reader, class Item>
class ReaderIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Item;
  using difference_type = std::ptrdiff_t;

  explicit ReaderIterator(Reader& reader)
      : reader_(&reader), item_(reader.next()) {}

  Item& operator*() {
    return *item_;
  }
  Item* operator->() {
    return &*item_;
  }
  ReaderIterator& operator++() {
    item_ = reader_->next();
    return *this;
  }
  bool operator==(std::default_sentinel_t) const {
    return !item_.has_value();
  }

 private:
  Reader* reader_;
  std::optional<Item> item_;
};

}  // namespace tessera::data::detail
