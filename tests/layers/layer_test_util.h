// SPDX-License-Identifier: Apache-2.0
#pragma once

// It brings the headers that most tests of layers read, so they include none of them.
#include <tessera/layers/combined.h>
#include <tessera/layers/layer_optimizer.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers.h>

#include "tests/features/feature_builders.h"

namespace tessera {

// GoogleTest prints the parameters of tests with it.
inline void PrintTo(const Strategy& strategy, std::ostream* stream) {
  *stream << strategy.name();
}

namespace test {

// The parameters of tests on every strategy, and their names.
inline auto strategies() {
  return testing::Values(
      Strategy::fused(), Strategy::host(), Strategy::padded());
}

/// The same, with both forms of gradients on the host.
inline auto gradient_forms() {
  return testing::Values(
      Strategy::fused(),
      Strategy::host(),
      Strategy::host({.sparse_gradients = true}),
      Strategy::padded());
}

inline std::string strategy_name(const testing::TestParamInfo<Strategy>& info) {
  return info.param.name() + std::to_string(info.index);
}

/// Updates the tables of a layer on any strategy after a backward pass.
/// Strategy::fused() has updated them by itself.
class TableOptimizer {
 public:
  explicit TableOptimizer(const TPUEmbedding& layer)
      : optimizer_(
            layer->options().strategy.is_fused() ? nullptr
                                                 : make_optimizer(layer)) {}

  void step() {
    if (optimizer_ != nullptr) {
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

/// A Combined of the layer alone.
inline Combined combined_of(
    const TPUEmbedding& layer,
    CombinedOptions options = {}) {
  return {torch::optim::SGD(layer->parameters(), 0.1), {layer}, options};
}

/// Makes a table whose row i has the value i in every column. The combiner is the
/// sum.
inline TablePtr numbered_table(
    const std::string& name,
    int64_t vocabulary_size,
    int64_t dim) {
  return make_table(
      {.name = name,
       .vocabulary_size = vocabulary_size,
       .dim = dim,
       .combiner = Combiner::kSum,
       .initializer = initializers::RowId{}});
}

/// Makes a table with this value in all rows.
inline TablePtr constant_table(
    const std::string& name,
    int64_t vocabulary_size,
    int64_t dim,
    double value) {
  return make_table(
      {.name = name,
       .vocabulary_size = vocabulary_size,
       .dim = dim,
       .initializer = initializers::Constant{.value = value}});
}

/// Makes a table with the default options.
inline TablePtr plain_table(
    const std::string& name,
    int64_t vocabulary_size,
    int64_t dim) {
  return make_table(
      {.name = name, .vocabulary_size = vocabulary_size, .dim = dim});
}

/// Returns the configs of features that only name their tables.
inline Nest<FeatureConfig> features_of(
    const std::vector<std::pair<std::string, TablePtr>>& tables) {
  Nest<FeatureConfig>::Map features;
  for (const auto& [name, table] : tables) {
    features.emplace_back(name, FeatureConfig{.table = table});
  }
  return Nest<FeatureConfig>::map(std::move(features));
}

/// Makes a layer with these features.
inline TPUEmbedding layer_of(
    Nest<FeatureConfig> features,
    std::optional<optim::OptimizerSpec> optimizer = {},
    TPUEmbeddingOptions options = {}) {
  options.features = std::move(features);
  options.optimizer = std::move(optimizer);
  return TPUEmbedding(std::move(options));
}

/// Makes a layer with the feature 'id' of this table.
inline TPUEmbedding layer_of(
    const TableConfig& table,
    optim::OptimizerSpec optimizer,
    TPUEmbeddingOptions options = {}) {
  return layer_of(
      features_of({{"id", make_table(table)}}),
      std::move(optimizer),
      std::move(options));
}

/// Returns copies of all tables, in the order of the layer.
inline std::vector<at::Tensor> tables_of(const TPUEmbedding& layer) {
  std::vector<at::Tensor> tables;
  for (const auto& entry : layer->embedding_tables()) {
    tables.push_back(entry.parameters.clone());
  }
  return tables;
}

/// Compares shapes, and values bit for bit.
inline void expect_same_tables(
    const TPUEmbedding& layer,
    const std::vector<at::Tensor>& expected) {
  const std::vector<at::Tensor> actual = tables_of(layer);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_TENSOR_EQ(actual[i], expected[i]) << "table " << i;
  }
}

inline at::Tensor sum_of(const Nest<at::Tensor>& activations) {
  at::Tensor sum = at::zeros({});
  for (const at::Tensor& activation : activations.flatten()) {
    sum = sum + activation.sum();
  }
  return sum;
}

/// Returns the sum of the squared differences from `center`.
inline at::Tensor loss_of(
    const Nest<at::Tensor>& activations,
    double center = 0.5) {
  at::Tensor loss = at::zeros({});
  for (const at::Tensor& activation : activations.flatten()) {
    loss = loss + (activation - center).square().sum();
  }
  return loss;
}

inline std::string saved(const TPUEmbedding& layer) {
  return bytes_of(layer);
}

/// Returns a slot from the layer's archive, such as slot_of(layer, 0, "momenta").
inline at::Tensor slot_of(
    const TPUEmbedding& layer,
    size_t table,
    const std::string& name) {
  torch::serialize::InputArchive archive = archive_of(saved(layer));
  torch::serialize::InputArchive entry;
  archive.read("table_" + std::to_string(table), entry);
  at::Tensor values;
  entry.read("slot_" + name, values, /*is_buffer=*/true);
  return values;
}

inline at::Tensor floats(at::IntArrayRef shape, std::vector<float> values) {
  return at::tensor(values, at::kFloat).view(shape);
}

inline void write_table(
    const TPUEmbedding& layer,
    const std::string& name,
    const at::Tensor& rows) {
  const at::NoGradGuard no_grad;
  layer->embedding_tables()[name].copy_(rows);
}

}  // namespace test
}  // namespace tessera
