// SPDX-License-Identifier: Apache-2.0
// Teaches serving a compiled model. export_for_serving writes ranker.pt2, AOTInductor
// compiles it, and this program runs the result. It links only LibTorch, and needs neither
// Python nor a compiler.
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <filesystem>
#include <iostream>
#include <string>

int main(int argc, char** argv) {
  const std::string file = argc == 2 ? argv[1] : "";
  if (file.empty() || file[0] == '-') {
    std::cerr << "usage: serve_compiled RANKER.AOTI.PT2\n";
    return file == "--help" ? 0 : 2;
  }
  if (!std::filesystem::is_regular_file(file)) {
    std::cerr
        << file
        << ": expected a package that AOTInductor compiled, but this is no file\n";
    return 1;
  }
  try {
    const at::NoGradGuard no_grad;
    torch::inductor::AOTIModelPackageLoader ranker(file);
    // The tensors in the order that export_for_serving printed.
    const at::Tensor user = at::tensor({7, 300, 42}, at::kLong);
    const at::Tensor history = at::tensor({1, 2, 3, 499}, at::kLong);
    const at::Tensor row_splits = at::tensor({0, 3, 3, 4}, at::kLong);
    const at::Tensor scores = ranker.run({user, history, row_splits})[0];
    std::cout << "scores";
    for (int64_t i = 0; i < scores.size(0); ++i) {
      std::cout << " " << scores[i].item<float>();
    }
    std::cout << "\n";
  } catch (const c10::Error& error) {
    std::cerr << file << ": " << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << file << ": " << error.what() << "\n";
    return 1;
  }
  return 0;
}
