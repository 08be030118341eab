// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/program.h>
#include <tessera/serving/reader.h>
#include <tessera/serving/server.h>

#include <memory>
#include <span>
#include <vector>

namespace tessera::serving {

// snippet: packages/serving/tests/program_test.cpp ProgramScorer
/// Scores the requests of a Server with the program of the newest version.
///
///   const ProgramScorer score(reader);
///   const Server server(reader, {.port = 0}, score);
///
/// It looks up the features of all requests of a batch together, and those of a user once
/// per request. It runs the program for each request. The program's first output is the
/// scores. Tables, dense weights and program are of one version. When a new version arrives,
/// the first call loads its weights, while other threads go on with the previous version.
///
/// An input of a request has the name of a feature, or of an input of the program as the
/// input_names of export_dense_pt2() have set it. Features and inputs with one row in the
/// example of the export belong to the user, and the others to the candidates.
/// If the program of a new version can't be loaded, the previous version stays in use,
/// with a warning.
/// Errors:  c10::ValueError if the version of the reader has neither this program nor
///          PublishedItems::query, or one that can't be loaded. ScoreResult::error names an
///          input that is missing, unknown or of another shape, and an id that is out of
///          range.
class ProgramScorer {
 public:
  explicit ProgramScorer(std::shared_ptr<const Reader> reader);

  std::vector<ScoreResult> operator()(
      std::span<const ScoreRequest> requests) const;

  /// The vectors of users, for /recommend: the first output of PublishedItems::query for the
  /// inputs of each user, as ScoreResult::scores.
  std::vector<ScoreResult> query(std::span<const ScoreRequest> requests) const;

  /// The inputs that a request must have, for GET /version. While a new version is not
  /// loaded yet, these are the inputs of the previous version. None: no program.
  std::vector<ScoreInputInfo> inputs() const;
  /// The same for query().
  std::vector<ScoreInputInfo> query_inputs() const;

  /// The newest version, which it loads if it can. While another thread loads it, and if it
  /// can't be loaded, it is the previous one.
  std::shared_ptr<const Version> version() const;

  /// The program of the newest version, or nullptr if it has only PublishedItems::query.
  std::shared_ptr<const Program> program() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tessera::serving
