// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/exported_model.h>
#include <tessera/layers/tpu_embedding.h>

#include <string>

namespace tessera {

namespace detail {

void export_torchscript(
    const TableModule* tables,
    const std::string& path,
    const ExportOptions& options);
void export_torchscript(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options);

}  // namespace detail

/// Writes an embedding as TorchScript of stock operators: the tables without their slots,
/// and the lookups. torch::jit::load and torch.jit.load read the file without Tessera.
///
///   export_torchscript(model->embedding, "embedding.pt", {.dtype = at::kChar});
///
/// In Python:
///
///   embedding = torch.jit.load("embedding.pt")
///   activations = embedding(
///       {"user": [ids],                               # dense
///        "history": [values, row_splits],             # ragged
///        "tags": [indices, values, dense_shape]},     # sparse
///       {"history": flat_weights})                    # optional
///
/// The keys are the features' paths in the nest, such as "user/history". A caller may pass
/// only some features and gets their activations. Each feature may be of any kind that
/// its config allows, and batches may have any size. The file does not keep the batch
/// size of build(). It keeps FeatureConfig::output_shape, with the number of ragged rows
/// that the layer has fixed so far. The file refuses the inputs that forward() refuses.
/// Its tables are named `table_0`, `table_1`, ..., as in a checkpoint. A table with
/// TableConfig::keys has its rows in the order of its keys, which are `table_0_keys`. Keys
/// without a row look up zeros, or the row of DynamicKeys::default_key.
///
/// `embedding` is a TPUEmbedding, an EmbeddingEngineModule or an EmbeddingEngine. Other
/// calls of an engine wait until the export is done.
///
/// Before this function returns, it loads the file and compares it with the layer on
/// made-up batches. The file appears at `path` only if they agree.
/// Errors:  c10::ValueError for an unknown feature, an unsupported dtype, a path that
///          can't be a file, and rows that the dtype can't hold; c10::Error if the file
///          can't be written or the results differ. No file is left.
template <detail::HasTables Tables>
void export_torchscript(
    const Tables& embedding,
    const std::string& path,
    const ExportOptions& options = {}) {
  detail::export_torchscript(detail::tables_of(embedding), path, options);
}

/// Writes a whole model as one TorchScript file, with tables and dense weights.
///
///   export_torchscript(
///       ranker, "ranker.pt", {.features = batch, .inputs = {prices}});
///
/// In Python, call `torch.jit.load("ranker.pt")(features, prices)`. `features` is a dict
/// as for an embedding alone, but it must hold all features, each of the kind that it has
/// in the example. If forward() takes Weights, the dict of weights comes second.
/// Parameters keep their names.
///
/// The model's forward() takes Features, perhaps Weights, then any number of
/// tensors, and returns a tensor or a vector of them. It calls one or more registered
/// TPUEmbedding layers. A model with a registered EmbeddingEngineModule looks up all its
/// features by embedding_lookup(), or by enqueue() and dequeue(). A forward() that calls
/// apply_gradients() is refused, because the file does not train.
///
/// LibTorch's tracer runs forward() on the example, in eval mode. Everything except the
/// operators on tensors becomes a constant of the file, for example a size that C++ reads
/// and the kind of a feature. Write flatten(1) or view({-1, 8}), not view({x.size(0), 8}).
///
/// The file is compared with the model on the example and on batches made of its rows,
/// with 0, 1 and 2 * batch + 1 examples. An entry of `inputs` is resized with the batch
/// if its first size is the batch size or the number of a feature's ids. The model itself
/// does not change.
/// Errors:  those of an embedding alone; c10::ValueError for an example that is empty or
///          does not fit the model, for a model that calls no TPUEmbedding or passes it
///          tensors that operators do not compute from the inputs, and if the results
///          differ, for example because the batch size became a constant.
template <class Holder>
requires(!detail::HasTables<Holder>) void export_torchscript(
    Holder model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options = {}) {
  TORCH_CHECK_VALUE(
      static_cast<bool>(model),
      "[export_torchscript] expected a model, but got an empty holder. Make the "
      "model before the export.");
  detail::export_torchscript(
      detail::exported_model(*model), path, example, options);
}

}  // namespace tessera
