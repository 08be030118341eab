// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/exported_model.h>
#include <tessera/export/pt2_program.h>
#include <tessera/layers/tpu_embedding.h>

#include <string>
#include <vector>

namespace tessera {

namespace detail {

Pt2Signature export_pt2(
    const TableModule* tables,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options);
Pt2Signature export_pt2(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options);
Pt2Signature export_dense_pt2(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const std::vector<std::string>& input_names,
    Precision precision);

}  // namespace detail

/// Writes an embedding in the format of Python's torch.export: the tables without their
/// slots, and the lookups, as a graph of stock operators. torch.export.load and Pt2Program
/// read the file without Tessera, and AOTInductor compiles it.
///
///   export_pt2(model->embedding, "embedding.pt2", {.features = batch});
///
/// In Python:
///
///   program = torch.export.load("embedding.pt2")
///   activations = program.module()(users, values, row_splits)
///
/// The arguments are tensors. For each feature, in the order of the layer's paths:
///
///   dense    ids
///   ragged   values, row_splits
///   sparse   indices, values, dense_shape
///
/// Then come the weights of the features that have some in the example, in the same order.
/// The result is a list with one activation per feature. The returned signature has the
/// names of all arguments, and the file has this signature as `extra/tessera.json`.
///
/// The example says which kind and dtypes each feature has, and which features have
/// weights. The file accepts nothing else, but batches may have any number of examples and
/// ids. If an output_shape fixes the batch size, the file takes only the batch size of the
/// example. Sizes in `dense_shape` that are also sizes of the activation are fixed, too,
/// except the batch size. If `options.features` is set, the example needs only these
/// features. Tables with TableConfig::keys are written as by export_torchscript().
///
/// `embedding` is a TPUEmbedding, an EmbeddingEngineModule or an EmbeddingEngine. Other
/// calls of an engine wait until the export is done.
///
/// Before this function returns, it reads the file and compares it with the layer on
/// made-up batches. The file appears at `path` only if they agree.
/// Errors:  c10::ValueError for an unknown feature, an unsupported dtype, a path that
///          can't be a file, rows that the dtype can't hold, and results that differ;
///          c10::Error if the file can't be written. No file is left.
template <detail::HasTables Tables>
Pt2Signature export_pt2(
    const Tables& embedding,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options = {}) {
  return detail::export_pt2(
      detail::tables_of(embedding), path, example, options);
}

/// Writes a whole model in the format of Python's torch.export, with tables and dense
/// weights.
///
///   export_pt2(ranker, "ranker.pt2", {.features = batch, .inputs = {prices}});
///
/// In Python, call `torch.export.load("ranker.pt2").module()(users, values, row_splits,
/// prices)`. The arguments are those of an embedding, then the tensors of
/// `example.inputs`. Parameters and buffers have the same names in state_dict() as in C++'s
/// named_parameters() and named_buffers(). The rows of a table are named
/// `<path of the layer>.table_0`, and so on.
///
/// export_torchscript() says which models are supported. forward() runs in eval mode on
/// batches of several sizes, made of the example. Sizes that C++ reads may be sums of
/// products of the batch size and the numbers of ids, so view({x.size(0), 8}) is fine.
/// Everything else that C++ computes must be the same for all batches. A model that reads
/// values of tensors is refused.
///
/// An entry of `inputs` is resized with the batch if its first size is the batch size or
/// the number of a feature's ids.
/// Errors:  those of an embedding alone; c10::ValueError for an example that is empty or
///          does not fit the model, and for a model that calls no TPUEmbedding or is not
///          made of operators.
template <class Holder>
requires(!detail::HasTables<Holder>) Pt2Signature export_pt2(
    Holder model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options = {}) {
  TORCH_CHECK_VALUE(
      static_cast<bool>(model),
      "[export_pt2] expected a model, but got an empty holder. Make the model "
      "before the export.");
  return detail::export_pt2(
      detail::exported_model(*model), path, example, options);
}

/// Writes the dense part of a model in the format of export_pt2(), without tables. The
/// file takes activations in place of features. A server that looks up the features itself
/// can use the file to score many candidates for one user.
///
///   export_dense_pt2(
///       ranker,
///       "ranker.pt2",
///       {.features =
///            {{"user", torch::tensor({42})},
///             {"movie", torch::tensor({1, 2, 3})}},  // three candidates
///        .inputs = {prices}},
///       {"price"});
///
/// In the example, features and inputs with one row belong to the user, and the others have
/// one row for each candidate. The file takes any number of candidates. If the example has
/// only a user, the file computes something for one user, such as a vector. Its arguments
/// are
///
///   the activation of each feature that forward() looks up, in this order
///   the row_splits of each ragged feature of the user
///   the tensors of `example.inputs`, whose names are `input_names`
///
/// forward() may look up some of the features by forward_partial(), such as those of one
/// tower. It must not read ids, nor the row_splits of candidates. Weights have the names
/// that named_parameters() and named_buffers() give them, so Pt2Program::with_weights()
/// can replace them. They have float32 in either precision, see ExportOptions::precision.
/// Errors:  those of a whole model; c10::NotImplementedError for feature weights, sparse
///          features, and an output_shape; c10::ValueError for wrong numbers of
///          rows, and for a forward() that reads ids.
template <class Holder>
Pt2Signature export_dense_pt2(
    Holder model,
    const std::string& path,
    const ExportExample& example,
    const std::vector<std::string>& input_names = {},
    Precision precision = Precision::kFloat32) {
  TORCH_CHECK_VALUE(
      static_cast<bool>(model),
      "[export_dense_pt2] expected a model, but got an empty holder. Make the "
      "model before the export.");
  return detail::export_dense_pt2(
      detail::exported_model(*model), path, example, input_names, precision);
}

}  // namespace tessera
