// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>

namespace tessera {

/// Memory that is filled with zeros. Addresses are reserved at once, and the system gives
/// memory to pages when they are first written.
class ReservedMemory {
 public:
  ReservedMemory() = default;
  /// `what`: for the error, such as "the keys of table 'users'".
  /// Errors:  c10::Error if the system can't reserve the addresses.
  ReservedMemory(size_t bytes, const std::string& what);
  ~ReservedMemory();

  ReservedMemory(ReservedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  ReservedMemory& operator=(ReservedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const {
    return data_;
  }
  size_t bytes() const {
    return bytes_;
  }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Makes the system give memory to all pages of the `bytes` bytes that begin at `data`. All
/// threads take part. The function asks for transparent huge pages, and changes no content.
/// Errors:  c10::Error naming `what` if the system does not have the memory.
void touch_pages(void* data, size_t bytes, const std::string& what);

/// An array in ReservedMemory.
template <class T>
class ReservedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  ReservedArray() = default;
  ReservedArray(int64_t size, const std::string& what)
      : memory_(static_cast<size_t>(size) * sizeof(T), what), size_(size) {}

  int64_t size() const {
    return size_;
  }
  void touch_pages(const std::string& what) {
    tessera::touch_pages(memory_.data(), memory_.bytes(), what);
  }
  T* data() {
    return static_cast<T*>(memory_.data());
  }
  const T* data() const {
    return static_cast<const T*>(memory_.data());
  }
  T& operator[](int64_t i) {
    return data()[i];
  }
  const T& operator[](int64_t i) const {
    return data()[i];
  }

 private:
  ReservedMemory memory_;
  int64_t size_ = 0;
};

}  // namespace tessera
