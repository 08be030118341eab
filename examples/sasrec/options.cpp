// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/options.h"

#include "examples/common/command_line.h"

std::optional<int> parse_arguments(
    int argc,
    char** argv,
    SequenceOptions& options) {
  CLI::App app(
      "Trains SASRec to predict the next item, and compares it with popularity and item-kNN.");
  app.add_option(
         "--data",
         options.data,
         "folder of MovieLens 100K, or a text or gzip file with a line `user item item ...` for each user, in the order of time")
      ->capture_default_str();
  app.add_option(
         "--loss",
         options.loss,
         "softmax over all items, over sampled ones, or binary cross entropy with one negative")
      ->check(CLI::IsMember({"softmax", "sampled", "binary"}))
      ->capture_default_str();
  add_count(
      app, "--negatives", options.negatives, "items that --loss sampled draws");
  add_seed(app, options.seed, "seed of the first run");
  add_count(app, "--runs", options.runs, "runs with different seeds", 1000);
  add_count(app, "--epochs", options.epochs, "the most epochs");
  add_count(
      app,
      "--patience",
      options.patience,
      "epochs without a better validation before the training stops");
  add_count(app, "--batch", options.batch, "sequences per step");
  add_count(app, "--dim", options.dim, "width of an embedding", 4096);
  add_count(app, "--blocks", options.blocks, "transformer blocks", 100);
  add_count(app, "--heads", options.heads, "attention heads, a divisor of dim");
  add_count(
      app,
      "--feed-forward",
      options.feed_forward,
      "width of the hidden layer of a block (default: dim)");
  app.add_flag(
      "--gated",
      options.gated,
      "gate attention and feed-forward network, with silu in place of relu (LiGR)");
  add_count(
      app,
      "--max-length",
      options.max_length,
      "the most items of a sequence",
      10'000);
  app.add_flag(
      "--windows",
      options.windows,
      "cut a longer history into several sequences for training (default: train on its latest items)");
  app.add_option(
         "--dropout", options.dropout, "share of activations that are dropped")
      ->check(CLI::Range(0.0, 0.99))
      ->capture_default_str();
  app.add_option(
         "--temperature",
         options.temperature,
         "score by cosines divided by this (default: by dot products)")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--learning-rate", options.learning_rate, "learning rate of Adam")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--json", options.json, "print the report as JSON");
  CLI11_PARSE(app, argc, argv);
  return std::nullopt;
}
