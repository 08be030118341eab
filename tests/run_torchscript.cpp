// SPDX-License-Identifier: Apache-2.0
// Runs the files of export_samples with LibTorch, but without Tessera.
//   run_torchscript FOLDER
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

bool is_close(
    const c10::IValue& actual,
    const c10::IValue& expected,
    double tolerance) {
  if (expected.isTensor()) {
    return actual.toTensor().sizes() == expected.toTensor().sizes() &&
        at::allclose(
               actual.toTensor(), expected.toTensor(), tolerance, tolerance);
  }
  if (expected.isTensorList()) {
    const auto left = actual.toTensorVector();
    const auto right = expected.toTensorVector();
    bool close = left.size() == right.size();
    for (size_t i = 0; close && i < left.size(); ++i) {
      close = is_close(left[i], right[i], tolerance);
    }
    return close;
  }
  const auto left = actual.toGenericDict();
  const auto right = expected.toGenericDict();
  bool close = left.size() == right.size();
  for (const auto& entry : right) {
    close = close && is_close(left.at(entry.key()), entry.value(), tolerance);
  }
  return close;
}

int run_cases(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const c10::IValue cases = torch::jit::pickle_load(bytes);
  std::filesystem::path model = path;
  auto module = torch::jit::load(model.replace_extension(".pt").string());
  module.eval();
  int failures = 0;
  for (const c10::IValue& test_case : cases.toTupleRef().elements()) {
    const auto& parts = test_case.toTupleRef().elements();
    const c10::IValue actual =
        module.forward(parts[0].toTupleRef().elements().vec());
    failures += is_close(actual, parts[1], parts[2].toDouble()) ? 0 : 1;
  }
  std::cout << model.filename().string() << ": "
            << cases.toTupleRef().elements().size() << " batches, " << failures
            << " differ\n";
  return failures;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: run_torchscript FOLDER\n";
    return 2;
  }
  const at::NoGradGuard no_grad;
  int files = 0;
  int failures = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    if (entry.path().extension() == ".cases") {
      ++files;
      failures += run_cases(entry.path());
    }
  }
  return files > 0 && failures == 0 ? 0 : 1;
}
