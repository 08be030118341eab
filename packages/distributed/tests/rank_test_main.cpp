// SPDX-License-Identifier: Apache-2.0
// The main() of tests that all ranks run together. Rank 0 prints as
// GoogleTest does; the others print only failures.
#include "packages/distributed/tests/rank_test_main.h"

namespace tessera::test {

namespace {

c10::intrusive_ptr<c10d::Backend> shared_backend;

class PrintFailures : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    name_ = test.name();  // GoogleTest holds its lock in OnTestPartResult().
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) {
      std::ostringstream line;  // One write, so that lines of ranks do not mix.
      line << "rank " << backend().getRank() << ": " << name_ << " "
           << (result.file_name() == nullptr ? "" : result.file_name()) << ":"
           << result.line_number() << "\n"
           << result.message() << "\n";
      std::cout << line.str() << std::flush;
    }
  }

  std::string name_;
};

}  // namespace

c10d::Backend& backend() {
  return *shared_backend;
}

}  // namespace tessera::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::test::shared_backend =
      tessera::test::make_test_backend(std::chrono::seconds(60));
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (tessera::test::backend().getRank() != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new tessera::test::PrintFailures);
  }
  const int status = RUN_ALL_TESTS();
  tessera::test::shared_backend.reset();
  return status;
}
