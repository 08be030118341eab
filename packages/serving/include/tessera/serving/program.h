// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/pt2_program.h>
#include <tessera/serving/reader.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace tessera::serving {

/// The programs that a version may have.
enum class PublishedProgram {
  kScores,  // PublishOptions::program
  kQuery  // PublishedItems::query
};

// snippet: packages/serving/tests/program_test.cpp Program
/// The dense part of one version of a published model: the file of export_dense_pt2() with
/// the dense weights of the version.
///
///   const Program program(reader->version());
///   std::cout << to_string(program.signature());  // the names of the inputs
///   const at::Tensor scores = program.run(inputs)[0];
///
/// If the version has a package of AOTInductor, the program runs this package. Otherwise
/// LibTorch's operators run one after the other. A program keeps its version alive, so that
/// lookups in version() and the weights of the program are of the same version. Several
/// threads may call run() at the same time.
///
/// A package is machine code. Read only directories that you trust: whoever can write to
/// such a directory can run code in the process that loads the program. Checksums show
/// damage, but not who wrote a file.
class Program {
 public:
  /// Loads a program of the version. If `before` is that of a version with the same base,
  /// the two share the program that was read. If their packages of AOTInductor have the same
  /// bytes, a loaded package that no version uses any more is used again. Then only the
  /// weights are new.
  /// Errors:  c10::ValueError for a version without a program, for files that can't be
  ///          loaded, and for a weight that the version does not have, naming the weight.
  explicit Program(
      std::shared_ptr<const Version> version,
      std::shared_ptr<const Program> before = {},
      PublishedProgram which = PublishedProgram::kScores);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const Version& version() const;
  /// The arguments of run(). The path of an activation is that of its feature in the
  /// version. Inputs whose first size is 1 belong to the user. Inputs with an unknown first
  /// size have one row per candidate.
  const Pt2Signature& signature() const;
  /// Whether run() runs a package of AOTInductor.
  bool is_compiled() const;

  /// Calls the program.
  /// Errors:  those of Pt2Program::run().
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::serving
