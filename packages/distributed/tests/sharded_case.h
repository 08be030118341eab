// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/adagrad.h>

#include "packages/distributed/tests/sharded_layers.h"
#include "tests/optim/all_specs.h"

namespace tessera::test {

/// How a feature of a ShardedCase is passed.
enum class Kind {
  kDense,
  kDenseMatrix,
  kSparse,
  kRagged,
  kSparseSequence,
  kRaggedSequence
};

/// Random tables, features and batches of all ranks. A seed makes them the same on
/// each rank, so that each rank can also do all the work alone.
class ShardedCase {
 public:
  struct Options {
    std::optional<optim::OptimizerSpec> optimizer = {};  // of all tables
    bool only_float32 = false;
  };

  ShardedCase(uint32_t seed, int64_t ranks, const Options& options)
      : random_(seed), ranks_(ranks) {
    const int64_t tables = pick(1, 3);
    for (int64_t i = 0; i < tables; ++i) {
      add_table(i, options);
    }
    const int64_t features = tables + pick(0, 2);
    for (int64_t i = 0; i < features; ++i) {
      add_feature(tables_[i < tables ? i : pick(0, tables - 1)]);
    }
  }

  int64_t pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random_);
  }

  TPUEmbeddingOptions options(Strategy strategy, Apply apply) const {
    return {
        .features = Nest<FeatureConfig>::list(configs_),
        .optimizer = optim::Adagrad{.learning_rate = 0.2},
        .strategy = std::move(strategy),
        .apply = apply,
        .seed = 7};
  }

  const ShardingOptions& sharding() const {
    return sharding_;
  }

  /// The inputs of one step for one rank, or for all ranks in order.
  struct Inputs {
    Features::List features = {};
    Weights::List weights = {};
    std::vector<at::Tensor> flat_weights = {};  // those that need a gradient
    std::vector<std::pair<int64_t, int64_t>> rows = {};  // of each feature
  };
  struct Step {
    std::vector<Inputs> ranks = {};
    Inputs all = {};
    std::vector<bool> is_in_loss = {};  // each feature
  };

  Step next_step() {
    Step step;
    step.ranks.resize(ranks_);
    const bool leaves_out = pick(0, 3) == 0;
    std::vector<int64_t> batches;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      batches.push_back(pick(0, 4));
    }
    for (const Feature& feature : features_) {
      step.is_in_loss.push_back(!leaves_out || pick(0, 1) == 0);
      Rows all;
      std::vector<float> all_weights;
      const bool wants_gradient = pick(0, 1) == 0;
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        Rows rows;
        std::vector<float> weights;
        for (int64_t row = 0; row < batches[rank]; ++row) {
          rows.push_back(bag(feature));
          for (size_t i = 0; i < rows.back().size(); ++i) {
            weights.push_back(static_cast<float>(pick(0, 8)) / 4.0F);
          }
        }
        const auto begin = static_cast<int64_t>(all.size());
        all.insert(all.end(), rows.begin(), rows.end());
        all_weights.insert(all_weights.end(), weights.begin(), weights.end());
        add_input(feature, rows, weights, wants_gradient, step.ranks[rank]);
        step.ranks[rank].rows.emplace_back(
            begin, static_cast<int64_t>(all.size()));
      }
      add_input(feature, all, all_weights, wants_gradient, step.all);
    }
    return step;
  }

 private:
  struct Feature {
    Kind kind = Kind::kDense;
    int64_t vocab = 0;
    bool has_keys = false;
    int64_t longest = 0;
    bool is_weighted = false;
    bool has_bad_ids = false;
  };

  void add_table(int64_t i, const Options& options) {
    const auto specs = spec_variants();
    const std::string name = c10::str("t", i);
    TableConfig config{
        .name = name,
        .vocabulary_size = pick(0, 3) == 0 ? pick(1, 3) : pick(4, 40),
        .dim = pick(1, 9),
        .combiner = static_cast<Combiner>(pick(0, 2)),
        .optimizer = options.optimizer
            ? *options.optimizer
            : specs[pick(0, static_cast<int64_t>(specs.size()) - 1)].spec};
    if (!options.only_float32 && pick(0, 4) == 0) {
      config.dtype = pick(0, 1) == 0 ? at::kBFloat16 : at::kChar;
    }
    config.trainable = pick(0, 7) != 0;
    if (pick(0, 5) == 0) {
      config.quantization =
          QuantizationConfig{.num_buckets = 16, .lower = -1.0, .upper = 1.0};
    }
    if (pick(0, 2) == 0) {
      config.vocabulary_size = 0;
      config.keys = random_keys();
    }
    switch (pick(0, 3)) {
      case 0:
        sharding_.placement[name] = TablePlacement::row_wise(RowSplit::kMod);
        break;
      case 1:
        if (!config.keys) {
          sharding_.placement[name] = TablePlacement::data_parallel();
        }
        break;
      case 2:
        sharding_.placement[name] =
            TablePlacement::table_wise(pick(0, ranks_ - 1));
        break;
      default:
        break;
    }
    tables_.push_back(make_table(config));
  }

  // Tables of few rows evict all the time. Those of many have partitions on several ranks.
  DynamicKeys random_keys() {
    DynamicKeys keys{.capacity = pick(0, 1) == 0 ? pick(1, 10) : 40'000};
    switch (pick(0, 2)) {
      case 0:
        keys.admission = admission::AfterOccurrences{.count = pick(1, 4)};
        break;
      case 1:
        keys.admission = admission::WithProbability{.probability = 0.5};
        break;
      default:
        break;
    }
    if (pick(0, 2) == 0) {
      keys.eviction = eviction::OlderThan{.updates = 1};
    }
    if (pick(0, 1) == 0) {
      keys.padding_key = key_of(0);
    }
    if (pick(0, 1) == 0) {
      keys.capacity = std::max<int64_t>(keys.capacity, 2);
      keys.default_key = key_of(pick(1, 40));  // those from 30 on never occur
    }
    return keys;
  }

  // Spread over all of int64.
  static int64_t key_of(int64_t number) {
    return static_cast<int64_t>(
        static_cast<uint64_t>(number) * 0xD1342543DE82EF95ULL);
  }

  void add_feature(const TablePtr& table) {
    Feature feature{
        .kind = static_cast<Kind>(pick(0, 5)),
        .vocab = table->keys ? 30 : table->vocabulary_size,
        .has_keys = table->keys.has_value(),
        .longest = pick(1, 4)};
    FeatureConfig config{.table = table};
    const bool is_sequence = feature.kind == Kind::kSparseSequence ||
        feature.kind == Kind::kRaggedSequence;
    const bool is_dense =
        feature.kind == Kind::kDense || feature.kind == Kind::kDenseMatrix;
    if (is_sequence) {
      config.max_sequence_length = pick(1, 4);
    }
    feature.is_weighted = !is_sequence && !is_dense && pick(0, 1) == 0;
    feature.has_bad_ids = !feature.has_keys && pick(0, 2) == 0;
    if (feature.has_bad_ids) {
      config.out_of_range = OutOfRange::kZero;
    }
    configs_.emplace_back(config);
    features_.push_back(feature);
  }

  std::vector<int64_t> bag(const Feature& feature) {
    const int64_t length = feature.kind == Kind::kDense ? 1
        : feature.kind == Kind::kDenseMatrix            ? feature.longest
                                             : pick(0, feature.longest);
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < length; ++i) {
      const int64_t id = pick(
          feature.has_bad_ids ? -1 : 0,
          feature.vocab - (feature.has_bad_ids ? 0 : 1));
      ids.push_back(feature.has_keys ? key_of(id) : id);
    }
    return ids;
  }

  static void add_input(
      const Feature& feature,
      const Rows& rows,
      const std::vector<float>& weights,
      bool wants_gradient,
      Inputs& inputs) {
    std::vector<int64_t> ids;
    for (const auto& row : rows) {
      ids.insert(ids.end(), row.begin(), row.end());
    }
    const at::Tensor flat = at::tensor(ids, at::kLong);
    const auto batch = static_cast<int64_t>(rows.size());
    tessera::Feature input;
    switch (feature.kind) {
      case Kind::kDense:
        input = flat;
        break;
      case Kind::kDenseMatrix:
        input = flat.view({batch, feature.longest});
        break;
      case Kind::kSparse:
      case Kind::kSparseSequence:
        input = sparse(rows, feature.longest);
        break;
      default:
        input = ragged(rows);
    }
    inputs.features.emplace_back(input);
    std::optional<tessera::Feature> weight;
    if (feature.is_weighted) {
      at::Tensor values = at::tensor(weights, at::kFloat);
      if (wants_gradient) {
        values.requires_grad_(true);
        inputs.flat_weights.push_back(values);
      }
      weight = tessera::Feature(values);
    }
    inputs.weights.emplace_back(weight);
  }

  std::mt19937 random_;
  int64_t ranks_;
  std::vector<TablePtr> tables_;
  std::vector<Feature> features_;
  Nest<FeatureConfig>::List configs_;
  ShardingOptions sharding_;
};

}  // namespace tessera::test
