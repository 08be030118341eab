// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/serialization/recording_disk.h"

namespace tessera::test {

/// Runs a test in a temporary folder, or in TESSERA_DOCS_DIR, where its files stay.
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
    std::filesystem::current_path(previous_);
  }

 private:
  std::filesystem::path previous_ = std::filesystem::current_path();
  std::optional<MemoryFolder> temporary_;
};

}  // namespace tessera::test
