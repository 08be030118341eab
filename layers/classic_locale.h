// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <clocale>
#include <locale>
#include <string>

namespace tessera {

/// While it exists, new streams write numbers as in C++ source. The program's own global
/// locale may group digits, as in 1,000. The locale belongs to the process, so it also
/// applies to streams that other threads create during this time.
class ClassicLocale {
 public:
  // std::locale::global() also sets C's locale when the new locale has a name, as
  // the classic one does.
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
