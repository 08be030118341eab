// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>
#include <tessera/engine/table_module.h>
#include <tessera/export/pt2_program.h>
#include <tessera/layers/layer.h>
#include <tessera/serving/publisher.h>

#include "layers/mode_guard.h"
#include "packages/export/src/trace/visit_weights.h"
#include "packages/serving/src/format/items_file.h"
#include "packages/serving/src/publisher/followed_table.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "src/common/check.h"
#include "src/common/rank_group.h"
#include "src/engine/embedding_state.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera::serving {

/// The model of a Publisher: its tables, which it follows, its features and its dense
/// weights.
class PublishedModel {
 public:
  /// Errors:  c10::ValueError for a model without tables; c10::NotImplementedError if its
  ///          tables are spread over different processes.
  explicit PublishedModel(training::ModelPointer model)
      : model_(std::move(model)) {
    TESSERA_CHECK_VALUE(
        model_ != nullptr,
        "[Publisher] expected a model, but got nullptr. Pass the model that is trained.");
    for (const auto& [tables, prefix] : tables_and_prefixes(*model_)) {
      auto& module = dynamic_cast<torch::nn::Module&>(*tables);
      parts_.push_back({module.shared_from_this(), prefix});
      if (tables->strategy().is_sharded()) {
        const std::shared_ptr<RankGroup>& own = tables->state().ranks;
        TESSERA_CHECK_NOT_IMPLEMENTED(
            ranks_ == nullptr || ranks_ == own,
            "[Publisher] two layers of the model are spread over different processes. Publish them one by one.");
        ranks_ = own;
      }
    }
    TESSERA_CHECK_VALUE(
        !parts_.empty(),
        "[Publisher] the model has no tables. Pass one with a TPUEmbedding or an EmbeddingEngineModule.");
    ranks_ = ranks_ == nullptr ? make_solo_group() : ranks_;
  }

  /// The ranks of the sharded tables, or this process alone.
  RankGroup& ranks() const {
    return *ranks_;
  }

  /// Follows the tables from now on. All ranks call it.
  /// Errors:  c10::ValueError for options or names that do not fit the model;
  ///          c10::NotImplementedError for a feature that Version can't look up.
  void follow(const PublishOptions& options) {
    hold_tables([&] {
      ranks_->run_on_all_ranks(Rendezvous::kSaveCheckpoint, [&] {
        check_names(options);
        describe(options);
      });
    });
    ranks_->broadcast(Rendezvous::kSaveCheckpoint, [&] {
      TESSERA_CHECK_VALUE(
          options.compiled_program.empty() || !options.program.empty(),
          "[Publisher] options.compiled_program needs options.program, which has the names of its inputs, but that is empty. Set it to the file of export_dense_pt2() from which the package was compiled.");
      if (!options.program.empty()) {
        check_program(options.program, "options.program", true);
      }
    });
  }

  /// Calls `use` while no thread changes a table. visit_tables() may be called only during
  /// this call.
  void hold_tables(c10::function_ref<void()> use) {
    if (states_.size() == parts_.size()) {
      use();
      return;
    }
    parts_[states_.size()].tables().change_state([&](EmbeddingState& state) {
      states_.push_back(&state);
      const auto release = c10::make_scope_exit([&] { states_.pop_back(); });
      hold_tables(use);
    });
  }
  void visit_tables(
      c10::function_ref<void(FollowedTable&, const TableState&)> visit) {
    size_t next = 0;
    for (const EmbeddingState* state : states_) {
      for (const TableState& table : state->tables) {
        visit(tables_[next++], table);
      }
    }
  }

  const std::vector<FeatureFile>& features() const {
    return features_;
  }

  /// The bytes of the parameters and buffers outside of the tables.
  /// Errors:  c10::ValueError naming a weight whose layer is not built.
  int64_t dense_bytes() const {
    int64_t bytes = 0;
    for (const auto& [name, tensor] : dense()) {
      TESSERA_CHECK_VALUE(
          tensor.defined() && !tessera::detail::is_unsized(tensor),
          "[Publisher] the layer of '{}' is not built. Call forward() or build() of the model before you publish it.",
          shorten(name));
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
    return bytes;
  }
  /// Copies of these parameters and buffers.
  std::vector<DenseContent> dense_content() const {
    std::vector<DenseContent> content;
    for (const auto& [name, tensor] : dense()) {
      const at::Tensor values = tensor.detach().cpu().contiguous();
      content.push_back(
          {.file =
               {.name = name,
                .dtype =
                    std::string(c10::getDtypeNames(values.scalar_type()).first),
                .shape = values.sizes().vec()},
           .values = std::string(
               static_cast<const char*>(values.const_data_ptr()),
               values.nbytes())});
    }
    return content;
  }

  /// Calls `use` while the model is in eval() and without gradients.
  void evaluate(c10::function_ref<void()> use) {
    const at::NoGradGuard no_grad;
    const ModeGuard modes(*model_);
    modes.eval();
    use();
  }

  /// Checks that a server can run the program in this file with this model, for candidates
  /// of a user or for a user alone. `option` has the path.
  /// Errors:  c10::ValueError or TypeError naming what does not fit.
  // Without this check, only the servers would notice that a program does not fit.
  Pt2Signature check_program(
      const std::string& path,
      const std::string& option,
      bool is_of_candidates) const {
    const Pt2Program program(path);
    std::map<std::string, at::Tensor> weights;
    for (const auto& [name, tensor] : dense()) {
      weights[name] = tensor;
    }
    program.with_weights(weights);
    for (const Pt2Value& input : program.signature().inputs) {
      check_input(input, option);
    }
    const bool has_candidates = std::ranges::any_of(
        program.signature().inputs, [](const Pt2Value& input) {
          return input.part != "row_splits" && !input.shape.empty() &&
              !input.shape[0];
        });
    TESSERA_CHECK_VALUE(
        has_candidates == is_of_candidates,
        "[Publisher] {} must take {}. Export it with such an example.",
        option,
        is_of_candidates ? "one user and 2 or more candidates"
                         : "one user alone");
    return program.signature();
  }

 private:
  // A module with tables, and the prefix of its names.
  struct Part {
    std::shared_ptr<torch::nn::Module> module;
    std::string prefix;

    TableModule& tables() const {
      return *TableModule::of(*module);
    }
  };

  static FeatureFile describe_feature(
      const FeatureState& feature,
      const std::string& prefix,
      const std::string& table) {
    const FeatureConfig& config = feature.config;
    TESSERA_CHECK_NOT_IMPLEMENTED(
        !config.output_shape,
        "[Publisher] feature '{}' has an output_shape, which serving does not know. Leave it out; a dense or ragged feature needs none.",
        shorten(feature.path));
    return {
        .name = prefix + feature.path,
        .table = table,
        .combiner = to_string(config.table->combiner),
        .sequence_length = config.sequence_length(),
        .validates = config.validate_weights_and_indices,
        .zeros_out_of_range = config.out_of_range == OutOfRange::kZero};
  }

  static TableFile describe_table(
      const TableState& table,
      const std::string& name,
      StoredFormat format) {
    const TableConfig& config = *table.config;
    TableFile file{
        .name = name,
        .dim = config.dim,
        .format = to_string(format),
        .vocabulary_size = config.vocabulary_size};
    if (config.keys) {
      file.keys = KeyOptions{
          .capacity = config.keys->capacity,
          .default_key = config.keys->default_key,
          .padding_key = config.keys->padding_key};
    }
    if (config.quantization) {
      TESSERA_CHECK_VALUE(
          format != StoredFormat::kInt8 && format != StoredFormat::kInt4,
          "[Publisher] table '{}' has a quantization, which rounds what is looked up, so its rows can't have the format {}. Choose another format for it in PublishOptions::formats.",
          shorten(name),
          to_string(format));
      file.rounded_to = RoundedTo{
          .lower = config.quantization->lower,
          .upper = config.quantization->upper,
          .num_buckets = config.quantization->num_buckets};
    }
    return file;
  }

  // The parameters, and then the buffers, outside of the tables, with their names.
  std::vector<std::pair<std::string, at::Tensor>> dense() const {
    std::vector<std::pair<std::string, at::Tensor>> dense;
    std::vector<std::pair<std::string, at::Tensor>> buffers;
    // Another module may register a tensor of the tables, too.
    std::set<const at::TensorImpl*> of_tables;
    for (const Part& part : parts_) {
      for (const auto& tensors :
           {part.module->parameters(), part.module->buffers()}) {
        for (const at::Tensor& tensor : tensors) {
          of_tables.insert(tensor.unsafeGetTensorImpl());
        }
      }
    }
    visit_weights(
        *model_,
        "",
        [&](const std::string& name,
            const at::Tensor& tensor,
            WeightKind kind) {
          if (of_tables.contains(tensor.unsafeGetTensorImpl())) {
            return;
          }
          (kind == WeightKind::kParameter ? dense : buffers)
              .emplace_back(name, tensor);
        },
        [](const TableModule&, const std::string&) {});
    dense.insert(dense.end(), buffers.begin(), buffers.end());
    return dense;
  }
  void check_names(const PublishOptions& options) const {
    std::set<std::string> known;
    for (size_t i = 0; i < parts_.size(); ++i) {
      for (const TableState& table : states_[i]->tables) {
        const std::string name = parts_[i].prefix + table.name;
        TESSERA_CHECK_VALUE(
            known.insert(name).second,
            "[Publisher] two tables have the name '{}'. Rename one of them.",
            shorten(name));
        TESSERA_CHECK_VALUE(
            !options.items || !name.starts_with(kItemTables),
            "[Publisher] the table '{}' has a name that begins with '{}', as those of options.items do. Rename it.",
            shorten(name),
            kItemTables);
      }
    }
    for (const auto& [name, format] : options.formats) {
      TESSERA_CHECK_VALUE(
          known.contains(name),
          "[Publisher] `formats` has the table '{}', which the model does not have. Known: {}. Correct the name.",
          shorten(name),
          shorten_all({known.begin(), known.end()}));
    }
  }
  void describe(const PublishOptions& options) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Strategy& strategy = parts_[i].tables().strategy();
      const std::string& prefix = parts_[i].prefix;
      for (TableState& table : states_[i]->tables) {
        const std::string name = prefix + table.name;
        const auto chosen = options.formats.find(name);
        const StoredFormat format = stored_format(
            chosen == options.formats.end() ? options.format : chosen->second,
            table.config->dtype);
        tables_.emplace_back(
            table, strategy, describe_table(table, name, format));
      }
      for (const FeatureState& feature : states_[i]->features) {
        features_.push_back(describe_feature(
            feature, prefix, prefix + states_[i]->tables[feature.table].name));
      }
    }
  }
  void check_input(const Pt2Value& input, const std::string& option) const {
    if (input.part.empty()) {
      TESSERA_CHECK_TYPE(
          input.dtype == at::kFloat,
          "[Publisher] {} has the input '{}' of {}, but servers pass numbers of float32. Convert it in forward().",
          option,
          shorten(input.path),
          c10::toString(input.dtype));
      return;
    }
    const auto feature =
        std::ranges::find(features_, input.path, &FeatureFile::name);
    TESSERA_CHECK_VALUE(
        feature != features_.end(),
        "[Publisher] {} has the feature '{}', which the model does not have. Export the program from this model.",
        option,
        shorten(input.path));
    if (input.part == "row_splits") {
      return;
    }
    TESSERA_CHECK_VALUE(
        input.part == "activations",
        "[Publisher] {} takes {} of the feature '{}', but a program gets activations. Export it with export_dense_pt2().",
        option,
        input.part,
        shorten(input.path));
    const auto table = std::ranges::find(
        tables_, feature->table, [](const FollowedTable& each) {
          return each.file().name;
        });
    std::vector<std::optional<int64_t>> sizes{input.shape.at(0)};
    if (feature->sequence_length > 0) {
      sizes.emplace_back(feature->sequence_length);
    }
    sizes.emplace_back(table->file().dim);
    TESSERA_CHECK_VALUE(
        input.shape == sizes,
        "[Publisher] {} takes the feature '{}' with another dim or sequence length than the model has. Export the program from this model.",
        option,
        shorten(input.path));
  }

  std::shared_ptr<torch::nn::Module> model_;
  std::vector<Part> parts_;
  std::shared_ptr<RankGroup> ranks_;
  std::vector<FollowedTable> tables_;  // of all parts
  std::vector<FeatureFile> features_;
  std::vector<EmbeddingState*> states_;  // of the parts, in hold_tables()
};

}  // namespace tessera::serving
