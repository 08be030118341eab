// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/table_module.h>
#include <tessera/export/pt2_program.h>
#include <tessera/serving/publisher.h>

#include "packages/serving/src/publisher/followed_table.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "src/common/rank_group.h"
#include "src/engine/embedding_state.h"

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::serving {

/// What the messages of a Publisher begin with.
inline constexpr const char* kPublisher = "[Publisher]";

/// The model of a Publisher: its tables, which it follows, its features and its dense
/// weights.
class PublishedModel {
 public:
  /// Errors:  c10::ValueError for a model without tables; c10::NotImplementedError if its
  ///          tables are spread over different processes.
  explicit PublishedModel(training::ModelPointer model);

  /// The ranks of the sharded tables, or this process alone.
  RankGroup& ranks() const {
    return *ranks_;
  }

  /// Follows the tables from now on. All ranks call it.
  /// Errors:  c10::ValueError for options or names that do not fit the model;
  ///          c10::NotImplementedError for a feature that Version can't look up.
  void follow(const PublishOptions& options);

  /// Calls `use` while no thread changes a table. visit_tables() may be called only during
  /// this call.
  void hold_tables(c10::function_ref<void()> use);
  void visit_tables(
      c10::function_ref<void(FollowedTable&, const TableState&)> visit);

  const std::vector<FeatureFile>& features() const {
    return features_;
  }

  /// The bytes of the parameters and buffers outside of the tables.
  /// Errors:  c10::ValueError naming a weight whose layer is not built.
  int64_t dense_bytes() const;
  /// Copies of these parameters and buffers.
  std::vector<DenseContent> dense_content() const;

  /// Calls `use` while the model is in eval() and without gradients.
  void evaluate(c10::function_ref<void()> use);

  /// Checks that a server can run the program in this file with this model, for candidates
  /// of a user or for a user alone. `option` has the path.
  /// Errors:  c10::ValueError or TypeError naming what does not fit.
  Pt2Signature check_program(
      const std::string& path,
      const std::string& option,
      bool is_of_candidates) const;

 private:
  // A module with tables, and the prefix of its names.
  struct Part {
    std::shared_ptr<torch::nn::Module> module;
    std::string prefix;

    TableModule& tables() const {
      return *TableModule::of(*module);
    }
  };

  // The parameters, and then the buffers, outside of the tables, with their names.
  std::vector<std::pair<std::string, at::Tensor>> dense() const;
  void check_names(const PublishOptions& options) const;
  void describe(const PublishOptions& options);
  void check_input(const Pt2Value& input, const std::string& option) const;

  std::shared_ptr<torch::nn::Module> model_;
  std::vector<Part> parts_;
  std::shared_ptr<RankGroup> ranks_;
  std::vector<FollowedTable> tables_;  // of all parts
  std::vector<FeatureFile> features_;
  std::vector<EmbeddingState*> states_;  // of the parts, in hold_tables()
};

}  // namespace tessera::serving
