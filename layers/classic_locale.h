// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <clocale>
#include <locale>
#include <string>

namespace tessera {

/// As long as it lives, new streams write numbers as C++ source has them, which a
/// program's own global locale may group: 1,000. It is the locale of the process, so
/// streams that other threads make meanwhile have it, too.
class ClassicLocale {
 public:
  // A C++ locale without a name leaves C's alone, but the classic one has a name.
  ClassicLocale()
      : of_c_(std::setlocale(LC_ALL, nullptr)),
        before_(std::locale::global(std::locale::classic())) {}
  ~ClassicLocale() {
    std::locale::global(before_);
    std::setlocale(LC_ALL, of_c_.c_str());
  }

  ClassicLocale(const ClassicLocale&) = delete;
  ClassicLocale& operator=(const ClassicLocale&) = delete;

 private:
  std::string of_c_;
  std::locale before_;
};

}  // namespace tessera
