// SPDX-License-Identifier: Apache-2.0
// The bodies of requests of /recommend and of their answers, in JSON.
#pragma once

#include <tessera/serving/recommend.h>
#include <tessera/serving/server.h>

#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/row_scan.h"
#include "packages/serving/src/reader/published_items.h"
#include "packages/serving/src/server/request_values.h"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

/// A request that has been read.
struct RecommendBody {
  RecommendRequest request = {};
  std::vector<ScoreInput> inputs = {};  // of the user
  RawColumns columns = {};  // of the user
  std::vector<const AttributeColumn*> shown = {};
};

/// The inputs that a function lists. All if it lists none.
std::vector<ScoreInput> select_inputs(
    const std::vector<ScoreInput>& inputs,
    const std::vector<ScoreInputInfo>& listed);

/// Reads requests of /recommend and writes their answers, for a version that has items.
struct RecommendContext {
  /// `scores` is the context of /score.
  RecommendContext(const RequestContext& scores, bool has_scores);

  /// Errors:  as read_score_request().
  RecommendBody read(std::string_view body) const;

  /// The request that scores these rows of the catalogue for a user. Their inputs are the
  /// ids, and what the pipeline makes of the attributes and of other columns of the user.
  ScoreRequest score_request(
      const RecommendBody& body,
      std::span<const ScoredRow> rows) const;

  /// The body of the answer.
  std::string write(const RecommendBody& body, const RecommendResult& result)
      const;

  /// What /version says about /recommend.
  Json describe() const;

  /// Whether the attributes of items, or their raw values, give the values of a column.
  bool is_of_items(const std::string& column) const;
  /// Whether an input is made from a column of the user.
  bool is_of_user(const std::string& column) const;

  const ItemSearch& search;
  const BaseItems& items;
  RequestContext scores;
  /// Lists the inputs that a user may have.
  RequestContext user;
  std::vector<ScoreInputInfo> query_inputs = {};
  /// Whether the query function gives the vectors of users.
  bool has_query = false;
  /// The inputs that the pipeline makes for each candidate, but not the ids of items.
  std::vector<ScoreInputInfo> candidate_inputs = {};
  /// The columns that a user may have. Those that functions read are not among them.
  std::vector<std::string> user_columns = {};
  /// The number of items that the score function scores again. 0: none.
  int64_t num_candidates = 0;
  /// The columns from which the pipeline makes ids of items.
  std::vector<std::string> item_columns = {};
  /// The raw values of items, or nullptr if they have none.
  const AttributeColumn* item_values = nullptr;
};

}  // namespace tessera::serving
