// SPDX-License-Identifier: Apache-2.0
#pragma once

// This header needs only the standard library, and the library behind it does not need
// LibTorch.

#include <tessera/serving/export.h>
#include <tessera/serving/pipeline.h>
#include <tessera/serving/reader.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::serving {

/// The values of one input of a score request.
struct ScoreInput {
  std::string name = {};
  /// If a feature has the name, its ids, with row_splits if the client has sent lists. The
  /// client may send lists for any feature. Otherwise the numbers of a dense input,
  /// [rows, width].
  std::variant<IdLists, std::vector<float>> values = {};
  int64_t rows = 0;
};

/// One user and some candidates.
struct ScoreRequest {
  /// Each input has one row.
  std::vector<ScoreInput> user = {};
  /// Each input has num_candidates rows.
  std::vector<ScoreInput> candidates = {};
  int64_t num_candidates = 0;
};

/// The scores of one request.
struct ScoreResult {
  /// The version that has given the scores.
  int64_t version = 0;
  /// If a number is not finite, the client gets status 500.
  std::vector<float> scores =
      {};  // [num_candidates], or [dim] for ServerOptions::query
  /// Why this request can't be scored. Empty: no error. The client gets the text with status
  /// 400, without a place such as "[Version::lookup]" at its beginning.
  std::string error = {};
};

/// Scores requests that came at about the same time, and gives one result per request. The
/// threads of the server may call it at the same time. After an exception for several
/// requests, it is called again with each of them alone. The client then gets the message
/// of a std::invalid_argument or std::out_of_range with status 400. After any other
/// exception, it gets only "internal error" with status 500.
using ScoreFunction =
    std::function<std::vector<ScoreResult>(std::span<const ScoreRequest>)>;

// snippet: packages/serving/tests/server_test.cpp ScoreInputInfo
/// An input that a score function takes.
///
///   const auto inputs = [] {
///     return std::vector<ScoreInputInfo>{
///         {.name = "age", .is_of_user = true, .width = 2}, {.name = "movie"}};
///   };
///   const Server server(reader, {.port = 0, .inputs = inputs}, score);
struct ScoreInputInfo {
  /// The name of a feature, or that of an input of numbers.
  std::string name = {};
  /// True: requests have the input in "user", with one row. False: in "candidates".
  bool is_of_user = false;
  /// How many numbers a row has. 0: the input has ids.
  int64_t width = 0;

  bool operator==(const ScoreInputInfo&) const = default;
};

// snippet: packages/serving/tests/raw_values_test.cpp ColumnFunction
/// Makes a column that the training made with a function, such as one of Dataset::map().
///
///   ServerOptions options;
///   options.functions["decade"] = {
///       .columns = {{"year", PipelineColumn::Type::kInt64}},
///       .function = [](const RawColumns& columns) {
///         auto years =
///             std::get<std::vector<int64_t>>(columns.find("year")->values);
///         for (int64_t& year : years) {
///           year -= year == kMissing ? 0 : year % 10;
///         }
///         return RawColumns::Column{.values = std::move(years)};
///       }};
struct ColumnFunction {
  /// The columns that the function reads, with the types that it reads. A request has them
  /// all in "user", or all in "candidates".
  std::vector<PipelineColumn> columns = {};
  /// Gets the columns of that side, which has these and may have more, and returns a column
  /// with as many rows, of the type that the pipeline takes. Several threads may call it at
  /// the same time. The client gets the message of a std::invalid_argument with status 400,
  /// and status 500 for a wrong column and for any other exception.
  std::function<RawColumns::Column(const RawColumns&)> function = {};
};

/// Where a Server listens, and its limits.
struct ServerOptions {
  /// An IP address or "localhost". Any address but a loopback address, such as 127.0.0.1,
  /// opens the server to the network.
  std::string address = "127.0.0.1";
  /// 0: any free port, see Server::port().
  uint16_t port = 8080;
  /// The threads that look up and score. One more thread reads requests and writes answers.
  int64_t threads = 1;
  /// The requests that may wait for a thread. A request beyond them gets status 503 at once.
  int64_t max_queue = 256;
  /// The requests of /score that one call of the score function gets, at most. Each call for
  /// /recommend has one request.
  int64_t max_batch = 16;
  /// A batch gets no more requests once their bodies have this many bytes, because requests
  /// of hundreds of candidates would only wait for each other.
  int64_t max_batch_bytes = 1 << 14;
  /// Connections beyond this number are closed at once. If the process may open fewer files
  /// (`ulimit -n`), the limit is their number less 64, which the reader and others need.
  int64_t max_connections = 20000;
  /// The bytes of the body of a request, at most.
  int64_t max_body_bytes = 1 << 20;
  /// The ids, numbers and rows of one request, at most. What the pipeline makes counts as
  /// one more per 64 bytes.
  int64_t max_ids = 100000;
  /// Each of these may take this long: receiving a request, its wait for a thread, and the
  /// client taking the answer.
  double request_seconds = 5.0;
  /// The time that a connection may be idle.
  double idle_seconds = 60.0;
  /// Lists the inputs of the score function for GET /version, for the pipeline, which then
  /// makes only these, and for /recommend, which sends only these. Several threads may call
  /// it at the same time. Empty: GET /version lists none, and the pipeline makes all, unless
  /// the score function is a ProgramScorer.
  std::function<std::vector<ScoreInputInfo>()> inputs = {};
  /// Gives /recommend the vectors of users, as ScoreResult::scores, for versions with
  /// PublishedItems::query. The requests have no candidates, and come one by one. Empty: no
  /// such version is served, unless the score function is a ProgramScorer.
  ScoreFunction query = {};
  /// Lists the inputs of `query`, which gets only these. Needed with `query`.
  std::function<std::vector<ScoreInputInfo>()> query_inputs = {};
  /// The version that the functions use, whose pipeline takes raw values, and whose items
  /// are recommended. Empty: the newest one of the reader, unless the score function is a
  /// ProgramScorer. The function must not return nullptr. If ScoreResult::version has another
  /// pipeline, the client gets status 503.
  std::function<std::shared_ptr<const Version>()> version = {};
  /// Makes columns of the pipeline that requests do not have, by the name of the column. A
  /// function can't read a column that another one makes.
  std::map<std::string, ColumnFunction> functions = {};
};

// snippet: packages/serving/tests/serving_docs_test.cpp Server
/// Answers HTTP requests from the newest version of a model. It needs no LibTorch.
///
///   const auto reader = std::make_shared<Reader>("published");
///   // Gives each movie the first number of its row. A model would go here.
///   const auto score = [&](std::span<const ScoreRequest> requests) {
///     const std::shared_ptr<const Version> version = reader->version();
///     const size_t movie = version->feature("movie");
///     std::vector<ScoreResult> results;
///     for (const ScoreRequest& request : requests) {
///       ScoreResult& result = results.emplace_back();
///       result.version = version->number();
///       const ScoreInput& input = request.candidates.at(0);
///       if (input.name != "movie") {
///         result.error = "Expected the candidates as 'movie'.";
///         continue;
///       }
///       const FeatureBatch movies = std::get<IdLists>(input.values).batch();
///       std::vector<float> rows(version->output_size(movie, movies));
///       version->lookup(movie, movies, rows);  // [candidates, dim]
///       const auto dim = static_cast<size_t>(version->features()[movie].dim);
///       for (size_t row = 0; row < rows.size(); row += dim) {
///         result.scores.push_back(rows[row]);
///       }
///     }
///     return results;
///   };
///   Server server(reader, {.port = 0}, score);
///   std::cout << "http://127.0.0.1:" << server.port() << "\n";
///
/// Paths:
///   GET  /         a page that shows the version and tries requests
///   GET  /healthz  {"status":"ok","version":7}
///   GET  /version  what serves: step, metrics, features, tables, inputs of
///                  /score, users and attributes of /recommend
///   GET  /metrics  counters in the text format of Prometheus
///   POST /lookup   {"feature":"movie","ids":[3,1,4]}, or lists of ids: [[3,1],[4]], with
///                  "weights" of the same shape -> {"version":7,"feature":"movie","dim":16,
///                  "vectors":[[...],...]}. A number that is not finite is null. "values"
///                  in place of "ids" has the values of the feature's column, or an object
///                  of its columns.
///   POST /score    {"user":{"user":42,"age":31.5},"candidates":{"movie":[3,1,4]}} ->
///                  {"version":7,"scores":[...]}. An input with the name of a feature has
///                  ids, and any other has numbers. In "candidates", it has one entry per
///                  candidate, which may be a list. If the version has a pipeline, the name
///                  of a column of the pipeline has raw values: text, numbers, lists, null.
///                  In each object, "columns" may have an object of only raw values, and
///                  "inputs" one of only ids and numbers.
///   POST /recommend
///                  {"user":{"user":42},"k":20,"where":"year >= 1990"} ->
///                  {"version":7,"passed":310,"from":"query","ids":[...],"items":[...],
///                  "scores":[...]}, best first. "user" is as in /score, also with lists of
///                  items. It may be left out. The keys are those of RecommendRequest, with
///                  "diversity":{"column":"genre","max_per_value":2}. "show":["title"] adds
///                  {"shown":{"title":[...]}}. "exclude" and "choose_from" have ids, or what
///                  "items" has: the raw values of items, if the pipeline makes ids from one
///                  column that is also an attribute. {"ids":[...]} always has ids.
///
/// A wrong request gets {"error":"..."} with a status of 400 and above. Requests of /score
/// that are waiting are scored in one call, and up to 32 of /recommend read the items once.
/// No request waits for others to arrive. An answer is of one version. If new versions arrive
/// during three attempts of /recommend, the client gets status 503.
///
/// The bodies of all requests and answers may have 1 GiB together. They count from the first
/// byte that is received to the last one that is sent. A client whose request or answer goes
/// beyond that gets status 503. Answers of up to 16 KiB are not counted.
///
/// The server has neither TLS nor passwords. To open it to others, put a proxy with both in
/// front of it.
/// Errors:  std::invalid_argument for an option that is out of range; std::runtime_error
///          naming address and port if it can't listen there, and for a library that was
///          built without Boost.
class TESSERA_SERVING_API Server {
 public:
  /// Listens from now on. Without a score function, there is no /score.
  Server(
      std::shared_ptr<Reader> reader,
      ServerOptions options = {},
      ScoreFunction score = {});
  /// The same with a score function that lists its inputs for GET /version, such as a
  /// ProgramScorer.
  template <class Scorer>
  requires requires(const Scorer& scorer) {
    { scorer.inputs() } -> std::same_as<std::vector<ScoreInputInfo>>;
  }
  Server(
      std::shared_ptr<Reader> reader,
      ServerOptions options,
      const Scorer& scorer)
      : Server(
            std::move(reader),
            with_inputs(std::move(options), scorer),
            ScoreFunction(scorer)) {}
  /// Calls stop().
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// The port on which it listens.
  uint16_t port() const;

  /// Accepts no more connections, receives and answers the requests that have begun to
  /// arrive, and closes all connections. The time limits still hold: a client has
  /// request_seconds to send a request, and as long to take its answer. stop() returns
  /// after the last call of the score function, which must not call stop().
  void stop();

 private:
  template <class Scorer>
  static ServerOptions with_inputs(
      ServerOptions options,
      const Scorer& scorer) {
    if (!options.inputs) {
      options.inputs = [scorer] { return scorer.inputs(); };
    }
    if constexpr (requires {
                    {
                      scorer.version()
                      } -> std::same_as<std::shared_ptr<const Version>>;
                  }) {
      if (!options.version) {
        options.version = [scorer] { return scorer.version(); };
      }
    }
    if constexpr (requires { scorer.query_inputs(); }) {
      if (!options.query) {
        options.query = [scorer](std::span<const ScoreRequest> requests) {
          return scorer.query(requests);
        };
        options.query_inputs = [scorer] { return scorer.query_inputs(); };
      }
    }
    return options;
  }

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::serving
