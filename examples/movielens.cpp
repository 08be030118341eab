// SPDX-License-Identifier: Apache-2.0
// Teaches a whole recommender on MovieLens 100K, in one process or several: ragged and
// weighted features, fit(), evaluation, saving and export. It predicts the stars that
// users give to movies:
//
//   score = <user, movie> + tower(user, movie, user * movie) + biases + pairs
//
// `user` is the sum of the user's embeddings (id, occupation, age, gender, the movies
// rated before), and `movie` is the sum of the movie's embeddings (id, genres, year, the
// users who rated it before). `pairs` has a number for each pair of the user and one of
// those.
//
// The data is in movielens/rating_data.cpp, the model in movielens/rater.cpp, and the
// training with its evaluation in movielens/training.cpp. The functions of this file
// recommend, save and serve, in this order. run() calls them. You can ignore `Process`
// unless you use several processes (--sharded).
#include "examples/common/batches.h"
#include "examples/common/command_line.h"
#include "examples/common/outputs.h"
#include "examples/movielens/options.h"
#include "examples/movielens/ranks.h"
#include "examples/movielens/rater.h"
#include "examples/movielens/rating_data.h"
#include "examples/movielens/report.h"
#include "examples/movielens/training.h"

#include <tessera/tessera.h>

#include <torch/script.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <variant>
#include <vector>

using torch::Tensor;

namespace {

// Returns the best movies that `user` has not rated, with their predicted stars.
std::vector<std::pair<std::string, double>> recommend(
    Rater& model,
    const RatingData& data,
    int64_t user) {
  constexpr int64_t kMaxShown = 5;
  const Ratings candidates = data.unrated(user);
  const Tensor stars = predict(model, data, candidates);
  const auto [best, index] = stars.topk(std::min(kMaxShown, stars.size(0)));
  std::vector<std::pair<std::string, double>> titles;
  for (int64_t i = 0; i < best.size(0); ++i) {
    const int64_t movie = candidates[index[i].item<int64_t>()].movie;
    titles.emplace_back(
        data.movielens().movies[movie].title,
        std::min(5.0, best[i].item<double>()));
  }
  return titles;
}

// Saves the model to the --save file or to memory, and loads it into a new model. Returns
// whether that one predicts exactly the same.
bool reload_gives_same(
    Rater& model,
    const RatingData& data,
    Options options,
    const Tensor& expected) {
  ++options.seed;  // other initial values, which loading must replace
  Rater loaded(data, options);
  if (options.save.empty()) {
    std::stringstream memory;
    torch::save(model, memory);
    torch::load(loaded, memory);
  } else {
    tessera::save_to_file(model, options.save);
    tessera::load_from_file(loaded, options.save);
  }
  return torch::equal(predict(loaded, data, data.test()), expected);
}

// Converts a batch to the inputs of an exported model: a list of tensors for each
// feature.
std::vector<c10::IValue> exported_inputs(const RatingBatch& batch) {
  c10::Dict<std::string, c10::List<Tensor>> features;
  for (const auto& [name, feature] : batch.features) {
    if (const auto* ragged = std::get_if<tessera::RaggedFeature>(&feature)) {
      features.insert(
          name, c10::List<Tensor>({ragged->values, ragged->row_splits}));
    } else {
      features.insert(name, c10::List<Tensor>({std::get<Tensor>(feature)}));
    }
  }
  c10::Dict<std::string, Tensor> weights;
  for (const auto& [name, weight] : batch.weights) {
    weights.insert(name, std::get<Tensor>(*weight));
  }
  return {features, weights};
}

// Exports the model, and returns whether the file, which LibTorch runs without Tessera,
// predicts the same.
bool export_gives_same(
    Rater& model,
    const RatingData& data,
    const std::string& path,
    const Tensor& expected) {
  const RatingBatch example = data.batch(in_batches(data.test(), 8).front());
  tessera::export_torchscript(
      model, path, {.features = example.features, .weights = example.weights});
  torch::jit::Module exported = torch::jit::load(path);
  std::vector<Tensor> stars;
  for (const Ratings& part : in_batches(data.test(), 1000)) {
    stars.push_back(
        exported.forward(exported_inputs(data.batch(part))).toTensor());
  }
  return torch::allclose(torch::cat(stars), expected, 1e-5, 1e-5);
}

// Copies tables and dense weights of a sharded model to a model in this process. All ranks
// call it.
void copy_weights(Rater& from, Rater& to) {
  for (const auto& table : to->embedding->embedding_tables()) {
    to->embedding->update_embedding_table(
        table.name,
        from->embedding->read_rows(table.name, 0, table.parameters.size(0)));
  }
  const torch::NoGradGuard no_grad;
  const std::vector<Tensor> weights = tessera::dense_parameters(*from);
  const std::vector<Tensor> copies = tessera::dense_parameters(*to);
  for (size_t i = 0; i < copies.size(); ++i) {
    copies[i].copy_(weights[i]);
  }
}

int run(const Options& options) {
  const RatingData data(load_movielens(options.data), options.validate);
  const int64_t users = std::ssize(data.movielens().users);
  TORCH_CHECK_VALUE(
      options.user >= 1 && options.user <= users,
      "[movielens] --user must be in [1, ",
      users,
      "], but got ",
      options.user,
      ". Choose another user.");
  prepare_outputs(options);
  std::optional<TemporaryFile> temporary;  // the export if there is no --export
  if (options.exported.empty()) {
    temporary.emplace("movielens", ".export.pt");
  }

  const Process process = options.sharded ? join_processes() : Process();
  Rater model(data, options, process.strategy);
  if (!options.json && process.rank == 0) {
    std::cout << model->embedding->summary() << std::flush;
  }
  Report report{.ranks = process.ranks};
  const auto history = train(model, data, options, process, report);
  if (!history.stop_reason.empty()) {
    return report_stop(history, options.checkpoint);
  }
  const Tensor while_sharded = predict(model, data, data.test());
  if (options.sharded) {
    Rater whole(data, options);  // has all rows of each table
    copy_weights(model, whole);
    model = whole;
  }
  if (process.rank > 0) {
    return 0;  // only rank 0 prints the report
  }

  const Tensor predicted = predict(model, data, data.test());
  report.equal_over_ranks = torch::equal(while_sharded, predicted);
  evaluate(predicted, data, report);
  report.movies = recommend(model, data, options.user - 1);
  FileErrors errors;
  report.equal_after_reload = errors.run(
      [&] { return reload_gives_same(model, data, options, predicted); });
  report.equal_from_export = errors.run([&] {
    const auto& file = temporary ? temporary->path() : options.exported;
    return export_gives_same(model, data, file, predicted);
  });
  print_report(report, options);
  finish_report("movielens");
  return !errors.print() && report.is_good() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  Options options;
  if (const auto status = parse_arguments(argc, argv, options)) {
    return *status;
  }
  return run_program("movielens", [&] { return run(options); });
}
