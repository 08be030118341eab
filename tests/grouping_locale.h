// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <locale>
#include <string>

namespace tessera::test {

/// While an object lives, streams write 1000 as "1,000", as if the program had set
/// its own std::locale::global().
class GroupingLocale {
 public:
  GroupingLocale()
      // The locale deletes the facet.
      : previous_(std::locale::global(
            std::locale(std::locale::classic(), new Punctuation))) {}
  ~GroupingLocale() {
    std::locale::global(previous_);
  }
  GroupingLocale(const GroupingLocale&) = delete;
  GroupingLocale& operator=(const GroupingLocale&) = delete;

 private:
  struct Punctuation : std::numpunct<char> {
    char do_thousands_sep() const override {
      return ',';
    }
    std::string do_grouping() const override {
      return "\3";
    }
  };

  std::locale previous_;
};

}  // namespace tessera::test
