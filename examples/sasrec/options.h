// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// The command line of sasrec. The defaults have the best NDCG@10 on the validation items.
struct SequenceOptions {
  std::string data = ".deps/data/ml-100k";
  std::string loss = "softmax";
  int64_t negatives = 1024;
  int64_t seed = 0;
  int64_t runs = 3;
  int64_t epochs = 100;
  int64_t patience = 10;
  int64_t batch = 32;
  int64_t dim = 64;
  int64_t blocks = 2;
  int64_t heads = 2;
  int64_t feed_forward = 0;  // width of the hidden layer; 0: dim
  bool gated = false;
  int64_t max_length = 200;
  bool windows = false;  // cut long histories into several sequences
  double dropout = 0.5;
  std::optional<double> temperature = {};  // unset: scores are dot products
  double learning_rate = 0.003;
  /// If true, each beginning of a history is a sequence with one target.
  std::optional<bool> prefixes = {};
  /// As in TransformerBlockOptions and SASRecOptions. Unset: their defaults, or with `gated`
  /// silu.
  std::optional<std::string> activation = {};
  std::optional<std::string> norm = {};
  std::optional<std::string> positions = {};
  std::optional<bool> embedding_norm = {};
  std::optional<double> attention_dropout = {};
  std::optional<double> initial_stddev = {};
  /// The share of a filter of frequencies beside attention. Unset: none.
  std::optional<double> filter_share = {};
  int64_t filter_frequencies = 3;
  /// The momentum of a moving average of all weights, with which the model is ranked.
  /// Unset: the weights themselves.
  std::optional<double> averaging = {};
  /// The dtypes of the items' rows and slots. Unset: float32.
  std::optional<std::string> dtype = {};
  std::optional<std::string> slot_dtype = {};
  bool json = false;
};

/// Reads the command line into `options`. Returns the exit status if the program must end
/// now: after --help, and for wrong arguments.
std::optional<int> parse_arguments(
    int argc,
    char** argv,
    SequenceOptions& options);
