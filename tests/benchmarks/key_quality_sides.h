// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/feature_pipeline.h>
#include <tessera/data/transforms.h>
#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>

/// The tables of LongTailClicks::kIdColumns. key_quality_benchmark.cpp has the defaults.
struct SideOptions {
  int64_t dim = 0;
  // The rows' initial values are in [-initial, initial).
  double initial = 0.0;
  at::ScalarType dtype = at::kFloat;
  // Those below are of key tables only.
  int64_t occurrences = 1;  // after which a key gets a row; 1: every key
  double counters_per_row = 0.0;  // of the sketch
  std::string eviction = {};  // "lfu" or "lru"
  double half_life = 0.0;  // of "lfu"
};

/// One way to look up the ids of LongTailClicks: a feature pipeline and its tables.
struct Side {
  std::vector<tessera::data::PipelineOutput> outputs = {};
  tessera::Nest<tessera::FeatureConfig>::Map features = {};
  /// What the tables of the columns with a long tail have and take: rows, slots of
  /// Adagrad, and the index of keys with its sketch. What a vocabulary needs to find the
  /// row of an id is not counted.
  int64_t rows = 0;
  int64_t bytes = 0;
};

/// Makes the tables of "vocabulary", "keys" or "hash". Those of keys and hashed ids take at
/// most `fraction` of the vocabulary's bytes in each column with a long tail.
/// `vocabularies`: of each column.
Side make_side(
    const std::string& name,
    double fraction,
    const std::vector<tessera::data::transforms::Vocabulary>& vocabularies,
    const SideOptions& options);
