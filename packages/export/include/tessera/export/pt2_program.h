// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// An argument or an output of a program in a `.pt2` file.
struct Pt2Value {
  /// The name in the program: a Python identifier, such as "user_history_values".
  std::string name = {};
  /// The path of the feature, "user/history", or the name of another input or output.
  std::string path = {};
  /// The part of the feature: "ids", "values", "row_splits", "indices", "dense_shape",
  /// "weights", or "activations". Empty for other inputs and outputs.
  std::string part = {};
  at::ScalarType dtype = at::kFloat;
  /// The sizes. nullopt for a size that depends on the batch.
  std::vector<std::optional<int64_t>> shape = {};

  bool operator==(const Pt2Value&) const = default;
};

// snippet: tests/docs/reference_layers_test.cpp Pt2Signature
/// The arguments and outputs of a program, in order.
///
///   const Pt2Signature signature = export_pt2(ranker, "ranker.pt2", example);
///   std::cout << to_string(signature);
struct Pt2Signature {
  std::vector<Pt2Value> inputs = {};
  std::vector<Pt2Value> outputs = {};

  bool operator==(const Pt2Signature&) const = default;
};

/// A table of the arguments and outputs, one per line.
std::string to_string(const Pt2Signature& signature);

// snippet: tests/docs/reference_layers_test.cpp Pt2Program
/// A `.pt2` file that export_pt2() wrote, ready to be called. It needs neither Python nor
/// the model's class.
///
///   const Pt2Program program("ranker.pt2");
///   const at::Tensor scores =
///       program.run({user_ids, movie_ids, director_ids, prices})[0];
///
/// Read only files that you trust: checksums show damage, but not who wrote a file. The
/// operators run one after the other through LibTorch. To compile the file, use Python's
/// torch._inductor.aoti_compile_and_package. Several threads may call run() at the same
/// time. The weights stay in the file, which is mapped into memory. Another process may
/// replace the file, but must not write to it.
class Pt2Program {
 public:
  /// Reads a file and compares all its records with their checksums.
  /// Errors:  c10::Error for a file that can't be read; c10::ValueError for a file that
  ///          is damaged, that another program wrote, or that needs operators of another
  ///          release of LibTorch.
  explicit Pt2Program(const std::string& path);
  /// Reads a program from the bytes of a `.pt2` file. The weights share these bytes, and
  /// `owner` keeps them alive. If `owner` is nullptr, the caller must do so.
  /// Errors:  c10::ValueError as above.
  Pt2Program(std::string_view bytes, std::shared_ptr<const void> owner);
  ~Pt2Program();
  Pt2Program(Pt2Program&&) noexcept;
  Pt2Program& operator=(Pt2Program&&) noexcept;

  /// The arguments and the results of run().
  const Pt2Signature& signature() const&;
  Pt2Signature signature() const&& = delete;

  /// Calls the program.
  /// Errors:  c10::TypeError for a wrong dtype; c10::ValueError for a wrong number of
  ///          tensors, sizes that contradict each other, and ids that the model refuses;
  ///          c10::Error if an operator fails.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;

  /// Checks arguments as run() does. Use it if AOTInductor has compiled this program.
  /// Errors:  as run(), but ids are not checked.
  void check(const std::vector<at::Tensor>& inputs) const;

  /// The weights and their names in Python's state_dict(), without copies.
  std::vector<std::pair<std::string, at::Tensor>> state_dict() const;

  /// The same program with `weights`, which are not copied. Names that the program does
  /// not have are ignored. The constants of the graph (`constant_0`, ...) may be missing.
  /// Errors:  c10::ValueError naming a weight of the program that is missing or has another
  ///          shape; c10::TypeError for another dtype.
  Pt2Program with_weights(
      const std::map<std::string, at::Tensor>& weights) const;

 private:
  class Impl;
  explicit Pt2Program(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
