// SPDX-License-Identifier: Apache-2.0
// Serves what export_for_serving wrote. Links LibTorch alone: no Tessera.
#include <torch/script.h>

#include <iostream>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: serve_ranker RANKER.PT\n";
    return 2;
  }
  try {
    torch::jit::Module ranker = torch::jit::load(argv[1]);
    // By name: [ids] of a dense feature, [values, row_splits] of a ragged one.
    c10::Dict<std::string, c10::List<at::Tensor>> features;
    features.insert(
        "user", c10::List<at::Tensor>({torch::tensor({7, 300, 42})}));
    features.insert(
        "history",
        c10::List<at::Tensor>(
            {torch::tensor({1, 2, 3, 499}), torch::tensor({0, 3, 3, 4})}));
    const at::Tensor scores = ranker.forward({features}).toTensor();
    std::cout << "scores";
    for (int64_t i = 0; i < scores.size(0); ++i) {
      std::cout << " " << scores[i].item<float>();
    }
    std::cout << "\n";
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    // torch::jit::JITException, which what the file raises arrives as.
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
