// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <locale>
#include <string>

namespace tessera::test {

/// As long as it lives, streams write 1000 as "1,000", as under a program's own
/// std::locale::global().
class GroupingLocale {
 public:
  GroupingLocale()
      : before_(std::locale::global(
            std::locale(std::locale::classic(), new Punctuation))) {
  }  // which the locale deletes
  ~GroupingLocale() {
    std::locale::global(before_);
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

  std::locale before_;
};

}  // namespace tessera::test
