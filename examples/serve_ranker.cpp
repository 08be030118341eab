// SPDX-License-Identifier: Apache-2.0
// Teaches serving without Tessera: this program loads the file that export_for_serving
// wrote, and links only LibTorch.
#include <torch/script.h>

#include <iostream>
#include <string>

int main(int argc, char** argv) {
  const std::string file = argc == 2 ? argv[1] : "";
  if (file.empty() || file[0] == '-') {
    std::cerr << "usage: serve_ranker RANKER.PT\n";
    return file == "--help" ? 0 : 2;
  }
  try {
    torch::jit::Module ranker = torch::jit::load(file);
    // Features by name: [ids] for a dense one, [values, row_splits] for a ragged one.
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
    // Errors that the exported model raises are a torch::jit::JITException.
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
