// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/described_model.h"

#include <tessera/common/shorten.h>

#include "packages/serving/src/publisher/publish_options.h"
#include "src/common/check.h"

namespace tessera::serving {

FeatureFile describe_feature(
    const FeatureState& feature,
    const std::string& prefix,
    const std::string& table) {
  const FeatureConfig& config = feature.config;
  TESSERA_CHECK_NOT_IMPLEMENTED(
      !config.output_shape,
      "{} feature '{}' has an output_shape, which serving does not know. Leave it out; a dense or ragged feature needs none.",
      kPublisher,
      shorten(feature.path));
  return {
      .name = prefix + feature.path,
      .table = table,
      .combiner = to_string(config.table->combiner),
      .sequence_length = config.sequence_length(),
      .validates = config.validate_weights_and_indices,
      .zeros_out_of_range = config.out_of_range == OutOfRange::kZero};
}

TableFile describe_table(
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
        "{} table '{}' has a quantization, which rounds what is looked up, so its rows can't have the format {}. Choose another format for it in PublishOptions::formats.",
        kPublisher,
        shorten(name),
        to_string(format));
    file.rounded_to = RoundedTo{
        .lower = config.quantization->lower,
        .upper = config.quantization->upper,
        .num_buckets = config.quantization->num_buckets};
  }
  return file;
}

}  // namespace tessera::serving
