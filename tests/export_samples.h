// SPDX-License-Identifier: Apache-2.0
// Files and calls for programs that read exported models without Tessera.
#pragma once

#include <tessera/export/export_pt2.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "tests/test_headers.h"

namespace tessera::test {

using Parts = c10::List<at::Tensor>;

inline constexpr int64_t kSampleBatches[] = {0, 1, 5, 64};

/// A folder of files and cases. A case has the arguments of forward(), its expected result and the tolerance.
class Samples {
 public:
  explicit Samples(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }

  std::string path(const std::string& name) const {
    return (folder_ / name).string();
  }

  void add_case(
      std::vector<c10::IValue> arguments,
      c10::IValue expected,
      double tolerance) {
    cases_.push_back(c10::ivalue::Tuple::create(
        {c10::ivalue::Tuple::create(std::move(arguments)),
         std::move(expected),
         tolerance}));
  }

  // A call of a .pt2 program. Without expected outputs, the program must refuse it.
  void add_call(
      const std::vector<at::Tensor>& arguments,
      const std::vector<at::Tensor>& expected) {
    cases_.push_back(c10::ivalue::Tuple::create(
        {Parts(arguments),
         expected.empty() ? c10::IValue() : c10::IValue(Parts(expected))}));
  }

  void write_cases(const std::string& name) {
    const std::vector<char> bytes =
        torch::jit::pickle_save(c10::ivalue::Tuple::create(cases_));
    std::ofstream file(path(name), std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    cases_.clear();
    std::cout << "wrote " << name << "\n";
  }

 private:
  std::filesystem::path folder_;
  std::vector<c10::IValue> cases_;
};

/// The arguments of a .pt2 program: the tensors of all features, then the weights and the other inputs.
inline std::vector<at::Tensor> arguments_of(const ExportExample& example) {
  std::vector<at::Tensor> arguments;
  for (const Feature& feature : example.features.flatten()) {
    if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
      arguments.insert(
          arguments.end(),
          {sparse->indices, sparse->values, sparse->dense_shape});
    } else if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
      arguments.insert(arguments.end(), {ragged->values, ragged->row_splits});
    } else {
      arguments.push_back(std::get<at::Tensor>(feature));
    }
  }
  for (const auto& weight : example.weights.flatten()) {
    if (weight) {
      arguments.push_back(std::get<at::Tensor>(*weight));
    }
  }
  arguments.insert(
      arguments.end(), example.inputs.begin(), example.inputs.end());
  return arguments;
}

/// Exports the model, and adds calls with random batches, and with ids that are out of range. Their expected outputs
/// are those of Pt2Program, which the export has compared with the model. `batches(size)` returns an ExportExample.
template <class Model, class Batches>
void write_pt2(
    Samples& samples,
    const std::string& name,
    const Model& model,
    const Batches& batches,
    const ExportOptions& options = {}) {
  const std::string path = samples.path(name + ".pt2");
  std::cout << to_string(export_pt2(model, path, batches(100), options));
  const Pt2Program program(path);
  for (const int64_t size : kSampleBatches) {
    std::vector<at::Tensor> arguments = arguments_of(batches(size));
    samples.add_call(arguments, program.run(arguments));
    for (at::Tensor& argument : arguments) {
      if (argument.numel() == 0 || argument.is_floating_point()) {
        continue;
      }
      // Sizes and positions may not be negative. Ids may be, depending on the feature.
      for (const int64_t id : {int64_t{-1}, int64_t{1} << 30}) {
        const at::Tensor kept = argument;
        argument = argument.clone();
        argument.view({-1})[-1] = id;
        std::vector<at::Tensor> expected;
        try {
          expected = program.run(arguments);
        } catch (const c10::Error&) {
        }
        samples.add_call(arguments, expected);
        argument = kept;
      }
    }
  }
  samples.write_cases(name + ".pt2cases");
}

/// Writes the files and calls of the example models.
void write_example_models(Samples& samples);

}  // namespace tessera::test
