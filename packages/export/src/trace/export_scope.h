// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/precision.h>

#include "layers/mode_guard.h"
#include "src/common/atomic_file.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <clocale>
#include <locale>
#include <optional>
#include <string>

namespace tessera::exporting {

/// While this object exists, new streams write numbers as in C++ source. The program's own
/// global locale may group digits, as in 1,000. A locale belongs to the process, so other
/// threads' new streams use the classic one, too. c10::str() uses the global locale, so
/// don't make names of parameters with it.
class ClassicLocale {
 public:
  // std::locale::global() also sets C's locale when the new locale has a name, as
  // the classic one does.
  ClassicLocale()
      : c_locale_(std::setlocale(LC_ALL, nullptr)),
        cpp_locale_(std::locale::global(std::locale::classic())) {}
  ~ClassicLocale() {
    std::locale::global(cpp_locale_);
    std::setlocale(LC_ALL, c_locale_.c_str());
  }

  ClassicLocale(const ClassicLocale&) = delete;
  ClassicLocale& operator=(const ClassicLocale&) = delete;

 private:
  std::string c_locale_;
  std::locale cpp_locale_;
};

/// The file and the guards that an export needs from its first check to its end. The file
/// is dropped unless it is committed.
struct ExportScope {
  /// Puts `model`, unless it is nullptr, into eval() mode until this object is destroyed.
  /// Errors:  those of AtomicFile.
  ExportScope(
      const std::string& path,
      const std::string& where,
      torch::nn::Module* model = nullptr)
      : file(path, where) {
    if (model != nullptr) {
      modes.emplace(*model).eval();
    }
  }

  AtomicFile file;
  ClassicLocale locale;  // LibTorch prints TorchScript and numbers with streams
  at::NoGradGuard no_grad;
  PrecisionScope precision{
      Precision::kFloat32};  // of lookups and of the file's results
  std::optional<ModeGuard> modes;
};

}  // namespace tessera::exporting
