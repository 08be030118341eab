// SPDX-License-Identifier: Apache-2.0
// What the files of both formats give for a layer with a vocabulary. export_keys_test.cpp has the
// same for tables with keys.
#include "packages/export/tests/export_test_util.h"
#include "tests/small_files.h"

namespace tessera::test::export_formats_test {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();

SparseFeature sparse_of(
    const std::vector<int64_t>& indices,
    const std::vector<int64_t>& values,
    const std::vector<int64_t>& shape) {
  return {
      .indices = at::tensor(indices, at::kLong)
                     .view(
                         {static_cast<int64_t>(values.size()),
                          static_cast<int64_t>(shape.size())}),
      .values = at::tensor(values, at::kLong),
      .dense_shape = at::tensor(shape, at::kLong)};
}

using ExportFormatsTest = ExportFormatTest;

INSTANTIATE_TEST_SUITE_P(
    Formats,
    ExportFormatsTest,
    kExportFormats,
    format_name);

TEST_P(ExportFormatsTest, AgreesOnEveryKindOfFeature) {
  const Rows rows{{3, 1, 4}, {}, {1, 5, 9, 2}, {6}};
  const at::Tensor weights =
      floats({0.5F, 2.0F, 0.0F, 1.5F, -1.0F, 0.25F, 3.0F, 1.0F});
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    SCOPED_TRACE(to_string(combiner));
    expect_agrees(
        layer_of({.combiner = combiner}),
        {{{int64s({1, 2, 3})}, {int64s({})}, {int64s({9})}},
         {{int64s({1, 2, 3}).view({3, 1})}, {at::empty({0, 1}, at::kLong)}},
         {{int64s({1, 2, 3, 4, 5, 6}).view({2, 3})},
          {at::empty({0, 3}, at::kLong)}},
         {{at::arange(8, at::kInt).view({2, 2, 2})}},
         {{ragged(rows)},
          {ragged({})},
          {ragged({{}, {}})},
          {ragged({{4}})},
          {ragged({{-1, 2}, {-3}})}},
         {{ragged(rows), weights},
          {ragged({{1, 2}, {3}}), floats({1.0F, 0.0F, -1.0F})},
          {ragged({}), floats({})}},
         {{sparse(rows, 5)},
          {sparse({}, 5)},
          {sparse({{-1, 2}, {-3}}, 7)},
          {sparse({{}}, 1)}},
         {{sparse(rows, 5), weights}},
         {{sparse_of({1, 2, 0, 0, 0, 3, 1, 2, 2}, {7, 8, 9}, {2, 3, 4})},
          {sparse_of({4, 2, 0}, {1}, {5, 3, 9})},
          {sparse_of({}, {}, {0, 3, 4})}}});
  }
}

TEST_P(ExportFormatsTest, IdsDroppedByTheirWeightMayHaveAnyValue) {
  const Rows rows{{3, 99, kMax}, {}, {1}};
  const at::Tensor ones = floats({1.0F, 1.0F});
  const at::Tensor weights = floats({2.0F, 0.0F, -1.0F, 1.0F});
  expect_agrees(
      layer_of({.combiner = Combiner::kSqrtn}),
      {{{ragged({{1}, {2}}), ones}, {ragged(rows), weights}},
       {{sparse({{1}, {2}}, 3), ones}, {sparse(rows, 3), weights}}});
}

TEST_P(ExportFormatsTest, SequencesKeepTheirFirstIds) {
  SparseFeature gaps = sparse({{3, 1}, {2}}, 3);
  gaps.indices = int64s({0, 1, 0, 2, 1, 0}).view({3, 2});
  expect_agrees(
      layer_of({.config = {.max_sequence_length = 2}}),
      {{{ragged({{3, 1, 4}, {}, {-1, 5}, {6}})},
        {ragged({})},
        {ragged({{5, 6, 7, 8}})},
        {ragged({{}, {}})}},
       {{sparse({{1, 2, 3}, {}, {-1, 4}}, 4)}, {sparse({}, 4)}, {gaps}}});
}

TEST_P(ExportFormatsTest, OutputShapesOfRaggedFeatures) {
  expect_agrees(
      layer_of({.config = {.output_shape = {{2, 3}}}}),
      {{{ragged({{1, 2, 3}, {4}})}, {ragged({{}, {5, 6}})}}});
}

TEST_P(ExportFormatsTest, ZerosForIdsOutOfRange) {
  const at::Tensor weights = floats({1, 2, 3, 4});
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    SCOPED_TRACE(to_string(combiner));
    TPUEmbedding layer = layer_of(
        {.config = {.out_of_range = OutOfRange::kZero}, .combiner = combiner});
    EXPECT_EQ(layer->out_of_range_count(), 0);
    expect_agrees(
        layer,
        {{{int64s({1, 2})}, {int64s({10, -1, kMax, kMin, 9})}, {int64s({99})}},
         {{ragged({{1}, {2}})}, {ragged({{10, 3}, {kMax}, {-1, kMin, 4}})}},
         {{ragged({{1, 99, 2}, {10}}), weights}},
         {{sparse({{1, 99, -2}, {10}}, 3), weights}}});
  }
}

TEST_P(ExportFormatsTest, RowsOfOtherDtypes) {
  const std::vector<std::vector<Input>> inputs{
      {{at::arange(10, at::kLong)}},
      {{ragged({{1, 2, 3}, {}, {4}})}},
      {{ragged({{1, 2}, {}, {3}}), floats({1, 2, 3})}}};
  for (const at::ScalarType dtype :
       {at::kFloat, at::kBFloat16, at::kHalf, at::kChar}) {
    expect_agrees(layer_of({.dtype = dtype}), inputs);
    expect_agrees(layer_of({.dtype = dtype}), inputs, {.dtype = at::kFloat});
  }
  expect_agrees(layer_of(), inputs, {.dtype = at::kChar}, 1e-2);
  expect_agrees(layer_of(), inputs, {.dtype = at::kHalf}, 1e-3);
  const Kind rounded{
      .quantization =
          QuantizationConfig{.num_buckets = 5, .lower = -0.3, .upper = 0.4}};
  expect_agrees(layer_of(rounded), inputs);
  run_file(layer_of(rounded), inputs[0], {.dtype = at::kChar});
}

TEST_P(ExportFormatsTest, AConversionThatFailsLeavesNoFile) {
  TPUEmbedding layer = layer_of();
  layer->embedding_tables()["t"].detach().fill_(70000);
  const std::string path = new_file();
  EXPECT_VALUE_ERROR(
      export_layer(layer, path, {int64s({1})}, {.dtype = at::kHalf}),
      std::string(is_pt2() ? "[export_pt2]" : "[export_torchscript]") +
          " table 't' can't be stored as float16: some values are beyond the "
          "range of that dtype. Export as kFloat.");
  expect_nothing_at(path);
}

TEST_P(ExportFormatsTest, AFullDiskLeavesTheOldFile) {
  const std::string path = new_file();
  std::ofstream(path) << "old";
  {
    const SmallFiles small(200);
    EXPECT_TORCH_ERROR(
        export_layer(layer_of(), path, {int64s({1})}),
        "can't be written: File too large");
  }
  EXPECT_EQ(std::filesystem::file_size(path), 3U);
  std::filesystem::remove(path);
  expect_nothing_at(path);
}

}  // namespace tessera::test::export_formats_test
