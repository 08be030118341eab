// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/serialization/recording_disk.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

namespace tessera::test {

/// The working folder is a temporary one, or TESSERA_DOCS_DIR, whose files stay.
class PagesTest : public testing::Test {
 protected:
  PagesTest() {
    const char* folder = std::getenv("TESSERA_DOCS_DIR");
    if (folder != nullptr) {
      std::filesystem::create_directories(folder);
      std::filesystem::current_path(folder);
    } else {
      std::filesystem::current_path(temporary_.emplace().path());
    }
  }
  ~PagesTest() override {
    std::filesystem::current_path(before_);
  }

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
  std::optional<MemoryFolder> temporary_;
};

}  // namespace tessera::test
