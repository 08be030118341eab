// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <torch/serialize.h>

#include "tests/features/feature_builders.h"
#include "tests/test_util.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace tessera {

// GoogleTest prints the parameters of tests with it.
inline void PrintTo(const Strategy& strategy, std::ostream* stream) {
  *stream << strategy.name();
}

namespace test {

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
    EXPECT_TRUE(at::equal(actual[i], expected[i])) << "table " << i;
  }
}

/// Returns the bytes of the layer's archive.
inline std::string saved(const TPUEmbedding& layer) {
  std::ostringstream stream;
  torch::save(layer, stream);
  return stream.str();
}

/// Returns a slot from the layer's archive, such as slot_of(layer, 0, "momenta").
inline at::Tensor slot_of(
    const TPUEmbedding& layer,
    size_t table,
    const std::string& name) {
  std::istringstream stream(saved(layer));
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
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
