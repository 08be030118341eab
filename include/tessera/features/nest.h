// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tessera {

// snippet: tests/docs/reference_engine_test.cpp Nest
/// A value, a list of nests, or an ordered string-keyed map of nests.
///
/// The features, weights, activations and configs of a layer are nests with the same
/// structure.
///
///   const Nest<int> scores{{"user", 1}, {"movie", 2}};
///   const int score = scores["user"];  // operator[] gives the leaf
///   const Nest<int> user = scores.at("user");  // at() gives the sub-nest
///   for (const auto& [path, leaf] : scores) {
///     std::cout << path << " " << leaf << "\n";
///   }
///   const Nest<int> two{1, 2};  // two or more values: a list
///   const auto one = Nest<int>::list({1});  // Nest<int>{1} is a leaf
///
/// Leaves are visited in the order of insertion. Two maps are equal if they have the
/// same entries in the same order.
/// Errors:  c10::ValueError for an unknown or duplicate key or a wrong kind,
///          c10::IndexError for a list index out of range.
template <class T>
class Nest {
 public:
  using Entry = std::pair<std::string, Nest>;
  using Map = std::vector<Entry>;
  using List = std::vector<Nest>;

  /// `IsItem<U>` is true if a U can be an item of a list: a leaf or a nest.
  template <class U>
  static constexpr bool IsItem =
      std::convertible_to<U&&, T> || std::same_as<std::remove_cvref_t<U>, Nest>;

  /// The empty map.
  Nest() : value_(std::in_place_type<Keyed>) {}

  template <class U>
  requires(
      std::convertible_to<U&&, T> &&
      !std::same_as<std::remove_cvref_t<U>, Nest>)
      Nest(U&& leaf)  // NOLINT(google-explicit-constructor): a leaf is a nest
      : value_(std::in_place_type<T>, std::forward<U>(leaf)) {}

  Nest(std::initializer_list<Entry> entries) : Nest(map(Map(entries))) {}

  /// A list of two or more leaves or nests. It is a template because compilers
  /// disagree on `Nest b{a}` if there is a constructor from initializer_list<Nest>.
  template <class First, class Second, class... Rest>
  requires(IsItem<First>&& IsItem<Second> && (IsItem<Rest> && ...))
      Nest(First&& first, Second&& second, Rest&&... rest)
      : value_(List{
            Nest(std::forward<First>(first)),
            Nest(std::forward<Second>(second)),
            Nest(std::forward<Rest>(rest))...}) {}

  static Nest map(Map entries) {
    Keyed keyed(std::move(entries));
    const size_t repeated = keyed.first_repeated();
    TORCH_CHECK_VALUE(
        repeated == keyed.entries.size(),
        "[Nest] keys of one map must differ, but '",
        keyed.entries[repeated].first,
        "' is given twice. Rename one of them.");
    Nest nest;
    nest.value_ = std::move(keyed);
    return nest;
  }

  static Nest list(List items) {
    Nest nest;
    nest.value_ = std::move(items);
    return nest;
  }

  bool is_leaf() const {
    return std::holds_alternative<T>(value_);
  }
  bool is_list() const {
    return std::holds_alternative<List>(value_);
  }
  bool is_map() const {
    return std::holds_alternative<Keyed>(value_);
  }

  /// The number of direct children of a list or map; 1 for a leaf.
  size_t size() const {
    if (is_leaf()) {
      return 1;
    }
    return is_list() ? std::get<List>(value_).size()
                     : std::get<Keyed>(value_).entries.size();
  }
  bool empty() const {
    return size() == 0;
  }

  /// The children of a map with their keys, in the order of insertion.
  const Map& entries() const& {
    TORCH_CHECK_VALUE(
        is_map(),
        "[Nest] expected a map, but got ",
        kind(),
        ". Use entries() for maps only.");
    return std::get<Keyed>(value_).entries;
  }
  Map entries() && {
    return std::as_const(*this).entries();
  }
  /// The children of a list.
  const List& items() const& {
    TORCH_CHECK_VALUE(
        is_list(),
        "[Nest] expected a list, but got ",
        kind(),
        ". Use items() and indices for lists only.");
    return std::get<List>(value_);
  }
  List items() && {
    return std::as_const(*this).items();
  }

  const T& leaf() const& {
    TORCH_CHECK_VALUE(
        is_leaf(),
        "[Nest] expected a single value, but got ",
        kind(),
        ". Use at() to reach the values in it.");
    return std::get<T>(value_);
  }
  T& leaf() & {
    return const_cast<T&>(std::as_const(*this).leaf());
  }
  T leaf() && {
    return std::move(leaf());
  }

  bool contains(std::string_view key) const {
    return is_map() && find(key) != nullptr;
  }

  const Nest& at(std::string_view key) const& {
    const Nest* child = is_map() ? find(key) : nullptr;
    TORCH_CHECK_VALUE(
        child != nullptr,
        "[Nest] no entry '",
        shorten(key),
        "' in ",
        kind(),
        ". Known: ",
        known_keys(),
        ". Correct the key.");
    return *child;
  }
  const Nest& at(size_t index) const& {
    TORCH_CHECK_INDEX(
        index < items().size(),
        "[Nest] list index must be < ",
        size(),
        ", but got ",
        index,
        ". Correct the index.");
    return items()[index];
  }
  Nest at(std::string_view key) && {
    return std::as_const(*this).at(key);
  }
  Nest at(size_t index) && {
    return std::as_const(*this).at(index);
  }

  const T& operator[](std::string_view key) const& {
    return at(key).leaf();
  }
  const T& operator[](size_t index) const& {
    return at(index).leaf();
  }
  T operator[](std::string_view key) && {
    return std::as_const(*this)[key];
  }
  T operator[](size_t index) && {
    return std::as_const(*this)[index];
  }

  /// Iterates over the leaves and their paths, such as "user/history/0". The
  /// references are valid until the iterator is incremented.
  class LeafIterator {
   public:
    using iterator_concept = std::input_iterator_tag;
    using value_type = std::pair<const std::string&, const T&>;
    using difference_type = std::ptrdiff_t;

    explicit LeafIterator(const Nest& root) {
      if (root.is_leaf()) {
        leaf_ = &root.leaf();
      } else {
        levels_.push_back({&root});
        ++*this;
      }
    }

    value_type operator*() const& {
      return {path_, *leaf_};
    }
    value_type operator*() const&& = delete;  // the path is in the iterator
    LeafIterator& operator++() {
      leaf_ = nullptr;
      while (leaf_ == nullptr && !levels_.empty()) {
        Level& level = levels_.back();
        if (level.next == level.nest->size()) {
          levels_.pop_back();
          continue;
        }
        path_.resize(level.path_size);
        path_ += path_.empty() ? "" : "/";
        const Nest& child = level.nest->child(level.next++, path_);
        if (child.is_leaf()) {
          leaf_ = &std::get<T>(child.value_);
        } else {
          levels_.push_back({&child, 0, path_.size()});
        }
      }
      return *this;
    }
    void operator++(int) {
      ++*this;
    }
    bool operator==(std::default_sentinel_t) const {
      return leaf_ == nullptr;
    }

   private:
    struct Level {
      const Nest* nest = nullptr;
      size_t next = 0;  // the next child to visit
      size_t path_size = 0;
    };

    std::vector<Level> levels_;
    std::string path_;
    const T* leaf_ = nullptr;
  };

  /// Iterates over all leaves, in order.
  LeafIterator begin() const& {
    return LeafIterator(*this);
  }
  LeafIterator begin() const&& = delete;
  std::default_sentinel_t end() const {
    return {};
  }

  /// Calls `visit(path, leaf)` for every leaf, in order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [path, leaf] : *this) {
      visit(path, leaf);
    }
  }

  /// Copies of all leaves, in order.
  std::vector<T> flatten() const {
    std::vector<T> leaves;
    for_each(
        [&](const std::string&, const T& leaf) { leaves.push_back(leaf); });
    return leaves;
  }

  /// The paths of all leaves, in order.
  std::vector<std::string> paths() const {
    std::vector<std::string> paths;
    for_each([&](const std::string& path, const T&) { paths.push_back(path); });
    return paths;
  }

  /// Returns a nest with the structure of this one, but with `leaves` in place of its
  /// leaves.
  /// Errors:  c10::ValueError unless `leaves` has one entry per leaf.
  template <class U>
  Nest<U> pack(std::vector<U> leaves) const {
    size_t next = 0;
    Nest<U> packed = pack_from(leaves, next);
    TORCH_CHECK_VALUE(
        next == leaves.size(),
        "[Nest] pack() expected ",
        next,
        " leaves, but got ",
        leaves.size(),
        ". Pass one for each leaf of this nest.");
    return packed;
  }

  /// "a map", "a list" or "a value", for messages.
  const char* kind() const {
    if (is_leaf()) {
      return "a value";
    }
    return is_list() ? "a list" : "a map";
  }

  /// The keys of a map, separated by commas, for messages.
  std::string known_keys() const {
    std::vector<std::string> keys;
    if (is_map()) {
      for (const auto& [key, child] : entries()) {
        keys.push_back(key);
      }
    }
    return keys.empty() ? "(none)" : shorten_all(keys);
  }

  bool operator==(const Nest&) const = default;

 private:
  template <class U>
  friend class Nest;

  // A map that finds keys by binary search, because layers look up every feature in
  // each batch.
  struct Keyed {
    Keyed() = default;

    explicit Keyed(Map map) : entries(std::move(map)), order(entries.size()) {
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(
          order.begin(), order.end(), [this](size_t left, size_t right) {
            return entries[left].first < entries[right].first;
          });
    }

    Keyed(Map map, std::vector<size_t> sorted)
        : entries(std::move(map)), order(std::move(sorted)) {}

    // The index of the first entry that repeats an earlier key, or entries.size().
    size_t first_repeated() const {
      size_t repeated = entries.size();
      for (size_t i = 1; i < order.size(); ++i) {
        if (entries[order[i]].first == entries[order[i - 1]].first) {
          repeated = std::min(repeated, order[i]);
        }
      }
      return repeated;
    }

    const Nest* find(std::string_view key) const {
      const auto found = std::lower_bound(
          order.begin(), order.end(), key, [this](size_t i, auto requested) {
            return entries[i].first < requested;
          });
      return found != order.end() && entries[*found].first == key
          ? &entries[*found].second
          : nullptr;
    }

    bool operator==(const Keyed& other) const {
      return entries == other.entries;
    }

    Map entries;
    std::vector<size_t> order;  // indices of `entries`, sorted by key
  };

  const Nest* find(std::string_view key) const {
    return std::get<Keyed>(value_).find(key);
  }

  // Returns a direct child and appends its key or index to `path`.
  const Nest& child(size_t index, std::string& path) const {
    if (is_list()) {
      path += std::to_string(index);
      return std::get<List>(value_)[index];
    }
    const auto& [key, child] = std::get<Keyed>(value_).entries[index];
    path += key;
    return child;
  }

  template <class U>
  Nest<U> pack_from(std::vector<U>& leaves, size_t& next) const {
    if (is_leaf()) {
      TORCH_CHECK_VALUE(
          next < leaves.size(),
          "[Nest] pack() got too few leaves: ",
          leaves.size(),
          ". Pass one for each leaf of this nest.");
      return Nest<U>(std::move(leaves[next++]));
    }
    if (is_list()) {
      typename Nest<U>::List children;
      children.reserve(size());
      for (const Nest& child : items()) {
        children.push_back(child.pack_from(leaves, next));
      }
      return Nest<U>::list(std::move(children));
    }
    typename Nest<U>::Map children;
    children.reserve(size());
    for (const auto& [key, child] : entries()) {
      children.emplace_back(key, child.pack_from(leaves, next));
    }
    Nest<U> packed;
    packed.value_ = typename Nest<U>::Keyed(
        std::move(children), std::get<Keyed>(value_).order);
    return packed;
  }

  std::variant<T, List, Keyed> value_;
};

namespace detail {

enum class MissingEntries { kRefuse, kAreNull };

// A place in a nest. It lies on the stack of a recursive function. Its text is made only
// for messages, because layers walk through their nests in each batch.
class NestPath {
 public:
  NestPath() = default;
  NestPath(const NestPath& parent, std::string_view key)
      : parent_(&parent), key_(key) {}
  NestPath(const NestPath& parent, size_t index)
      : parent_(&parent), index_(index) {}

  // "" for the whole nest, else keys and indices such as "user/history/0".
  std::string text() const {
    if (parent_ == nullptr) {
      return "";
    }
    const std::string parent = parent_->text();
    return (parent.empty() ? "" : parent + "/") +
        (key_ ? std::string(*key_) : std::to_string(index_));
  }
  // "[what 'path'] ", the start of a message about this place.
  std::string where(const std::string& what) const {
    const std::string path = text();
    return "[" + what + (path.empty() ? "" : " '" + shorten(path) + "'") + "] ";
  }

 private:
  const NestPath* parent_ = nullptr;
  std::optional<std::string_view> key_;
  size_t index_ = 0;
};

template <class T, class U>
void check_no_other_entries(
    const Nest<T>& structure,
    const Nest<U>& value,
    const std::string& what,
    const NestPath& path) {
  for (const auto& [key, child] : value.entries()) {
    TORCH_CHECK_VALUE(
        structure.contains(key),
        path.where(what),
        "unexpected entry '",
        shorten(NestPath(path, key).text()),
        "'. Known: ",
        structure.known_keys(),
        ". Remove the entry or correct its key.");
  }
}

// Whether both maps have the same keys in the same order.
template <class T, class U>
bool have_same_keys(const Nest<T>& left, const Nest<U>& right) {
  return std::ranges::equal(
      left.entries(), right.entries(), [](const auto& a, const auto& b) {
        return a.first == b.first;
      });
}

template <class T, class U>
void collect_like(
    const Nest<T>& structure,
    const Nest<U>& value,
    const std::string& what,
    const NestPath& path,
    MissingEntries missing,
    std::vector<const U*>& leaves) {
  TORCH_CHECK_VALUE(
      structure.is_leaf() == value.is_leaf() &&
          structure.is_map() == value.is_map(),
      path.where(what),
      "expected ",
      structure.kind(),
      " here, but got ",
      value.kind(),
      ". Give ",
      what,
      " the same structure as the feature configs.");
  if (structure.is_leaf()) {
    leaves.push_back(&value.leaf());
    return;
  }
  if (structure.is_list()) {
    TORCH_CHECK_VALUE(
        structure.size() == value.size(),
        path.where(what),
        "expected a list of ",
        structure.size(),
        " entries, but got ",
        value.size(),
        ". Pass one for each entry of the feature configs.");
    for (size_t i = 0; i < structure.size(); ++i) {
      collect_like(
          structure.items()[i],
          value.items()[i],
          what,
          NestPath(path, i),
          missing,
          leaves);
    }
    return;
  }
  if (have_same_keys(structure, value)) {
    for (size_t i = 0; i < structure.size(); ++i) {
      const auto& [key, child] = structure.entries()[i];
      collect_like(
          child,
          value.entries()[i].second,
          what,
          NestPath(path, key),
          missing,
          leaves);
    }
    return;
  }
  check_no_other_entries(structure, value, what, path);
  for (const auto& [key, child] : structure.entries()) {
    if (missing == MissingEntries::kAreNull && !value.contains(key)) {
      child.for_each(
          [&](const std::string&, const T&) { leaves.push_back(nullptr); });
      continue;
    }
    TORCH_CHECK_VALUE(
        value.contains(key),
        path.where(what),
        "missing entry '",
        shorten(NestPath(path, key).text()),
        "'. Got: ",
        value.known_keys(),
        ". Add the entry.");
    collect_like(
        child, value.at(key), what, NestPath(path, key), missing, leaves);
  }
}

}  // namespace detail

/// Returns the leaves of `value` in the order of `structure`. Entries of maps are matched
/// by key. The pointers are valid as long as `value`, so it can't be a temporary.
/// Errors:  c10::ValueError naming the path where the nests differ.
template <class T, class U>
std::vector<const U*> leaves_like(
    const Nest<T>& structure,
    const Nest<U>& value,
    const std::string& what) {
  std::vector<const U*> leaves;
  leaves.reserve(structure.size());
  detail::collect_like(
      structure, value, what, {}, detail::MissingEntries::kRefuse, leaves);
  return leaves;
}
template <class T, class U>
std::vector<const U*> leaves_like(
    const Nest<T>& structure,
    const Nest<U>&& value,
    const std::string& what) = delete;

/// Like leaves_like(), but maps of `value` may lack entries. The pointers to the leaves
/// of these entries are nullptr.
template <class T, class U>
std::vector<const U*> some_leaves_like(
    const Nest<T>& structure,
    const Nest<U>& value,
    const std::string& what) {
  std::vector<const U*> leaves;
  leaves.reserve(structure.size());
  detail::collect_like(
      structure, value, what, {}, detail::MissingEntries::kAreNull, leaves);
  return leaves;
}
template <class T, class U>
std::vector<const U*> some_leaves_like(
    const Nest<T>& structure,
    const Nest<U>&& value,
    const std::string& what) = delete;

namespace detail {

template <class T, class U>
Nest<T> part_like(
    const Nest<T>& structure,
    const Nest<U>& value,
    const std::string& what,
    const NestPath& path) {
  TORCH_CHECK_VALUE(
      value.is_leaf() == structure.is_leaf() &&
          value.is_map() == structure.is_map() &&
          (!value.is_list() || value.size() == structure.size()),
      path.where(what),
      "expected ",
      structure.is_list() ? "a list of " + std::to_string(structure.size())
                          : std::string(structure.kind()),
      " here, as in the feature configs, but got ",
      value.kind(),
      value.is_leaf() ? "" : " of " + std::to_string(value.size()),
      ". Give ",
      what,
      " the same structure as the feature configs. Only maps may lack entries.");
  if (value.is_leaf()) {
    return structure;
  }
  if (value.is_list()) {
    typename Nest<T>::List items;
    for (size_t i = 0; i < value.size(); ++i) {
      items.push_back(part_like(
          structure.items()[i], value.items()[i], what, NestPath(path, i)));
    }
    return Nest<T>::list(std::move(items));
  }
  typename Nest<T>::Map entries;
  for (const auto& [key, child] : value.entries()) {
    TORCH_CHECK_VALUE(
        structure.contains(key),
        NestPath().where(what),
        "'",
        shorten(NestPath(path, key).text()),
        "' is not among the feature configs. Known: ",
        structure.known_keys(),
        ". Remove the entry or correct its key.");
    entries.emplace_back(
        key, part_like(structure.at(key), child, what, NestPath(path, key)));
  }
  return Nest<T>::map(std::move(entries));
}

}  // namespace detail

/// Returns the part of `structure` that `value` has. The result has the nest of `value`,
/// whose maps may lack entries, and the leaves of `structure`.
/// Errors:  c10::ValueError naming the path of an entry that `structure` does not
///          have, or has with another kind or length.
template <class T, class U>
Nest<T> part_like(
    const Nest<T>& structure,
    const Nest<U>& value,
    const std::string& what) {
  return detail::part_like(structure, value, what, {});
}

}  // namespace tessera
