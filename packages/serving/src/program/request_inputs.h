// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/program.h>
#include <tessera/serving/server.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::serving {

/// The inputs of a program with this signature, each once.
std::vector<ScoreInputInfo> inputs_of(const Pt2Signature& signature);

/// The arguments of a program for some requests. Each feature is looked up once, for all
/// requests together.
class RequestInputs {
 public:
  /// Errors:  c10::ValueError naming an input that is missing, unknown or of another shape;
  ///          std::out_of_range for ids that are out of range.
  RequestInputs(const Program& program, std::span<const ScoreRequest> requests);

  int64_t candidates(size_t request) const {
    return requests_[request].num_candidates;
  }
  /// The arguments for one request. They share memory with this object.
  std::vector<at::Tensor> of(size_t request) const;

 private:
  /// One argument of all requests.
  struct Argument {
    bool is_of_user = false;
    /// The rows of all requests, or undefined if `each` has a tensor per request.
    at::Tensor rows = {};
    std::vector<at::Tensor> each = {};
  };

  /// The input of a request for an argument of the program, or nullptr.
  const ScoreInput* find(size_t request, const Pt2Value& value) const;
  /// The inputs of all requests, whose numbers of rows are checked.
  std::vector<const ScoreInput*> find_all(const Pt2Value& value) const;
  void check_none_is_missing(const Program& program) const;
  void check_names(const Program& program) const;
  Argument activations(const Version& version, const Pt2Value& value) const;
  Argument row_splits(const Pt2Value& value) const;
  Argument numbers(const Pt2Value& value) const;

  std::span<const ScoreRequest> requests_;
  std::vector<int64_t> first_candidates_;  // of each request in all candidates
  std::vector<Argument> arguments_;
};

}  // namespace tessera::serving
