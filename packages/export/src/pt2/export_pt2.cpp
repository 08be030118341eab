// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/export_pt2.h>

#include <tessera/layers/layer.h>

#include "packages/export/src/pt2/archive.h"
#include "packages/export/src/pt2/branch_free_lookup.h"
#include "packages/export/src/pt2/graph.h"
#include "packages/export/src/pt2/graph_conversion.h"
#include "packages/export/src/pt2/graph_merge.h"
#include "packages/export/src/trace/dense_part.h"
#include "packages/export/src/trace/example_batch.h"
#include "packages/export/src/trace/export_scope.h"
#include "packages/export/src/trace/exported_layer.h"
#include "packages/export/src/trace/record_graph.h"
#include "packages/export/src/trace/resized_examples.h"
#include "packages/export/src/trace/traced_model.h"
#include "packages/export/src/trace/verification.h"
#include "packages/export/src/trace/visit_weights.h"
#include "src/common/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_set>
#include <utility>
#include <variant>

namespace tessera {

namespace {

using exporting::ResizedExamples;
using exporting::SizeSolver;
using exporting::try_run;

constexpr const char* kPt2Where = "[export_pt2]";
constexpr const char* kDenseWhere = "[export_dense_pt2]";

// The path and the part of each of ExportExample::inputs, as in Pt2Value.
using InputNames = std::vector<std::pair<std::string, std::string>>;

// The names, paths and parts of the tensors of flatten(example), without dtypes and
// shapes. If `input_names` is empty, the inputs are "input_0", "input_1", ...
std::vector<Pt2Value> describe_inputs(
    const ExportExample& example,
    const InputNames& input_names) {
  std::vector<Pt2Value> values;
  std::unordered_set<std::string> taken;
  const auto add = [&](const std::string& name,
                       const std::string& path,
                       const std::string& part) {
    values.push_back(
        {.name = exporting::identifier(name, taken),
         .path = path,
         .part = part});
  };
  for (const auto& [path, feature] : example.features) {
    if (std::holds_alternative<at::Tensor>(feature)) {
      add(path, path, "ids");
      continue;
    }
    const std::vector<const char*> parts =
        std::holds_alternative<RaggedFeature>(feature)
        ? std::vector<const char*>{"values", "row_splits"}
        : std::vector<const char*>{"indices", "values", "dense_shape"};
    for (const char* part : parts) {
      add(path + "_" + part, path, part);
    }
  }
  for (const auto& [path, weight] : example.weights) {
    if (weight) {
      add(path + "_weights", path, "weights");
    }
  }
  for (size_t i = 0; i < example.inputs.size(); ++i) {
    if (input_names.empty()) {
      const std::string name = fmt::format("input_{}", i);
      add(name, name, "");
    } else {
      const auto& [path, part] = input_names[i];
      add(part == "row_splits" ? path + "_" + part : path, path, part);
    }
  }
  return values;
}

// Adds the tensors of a layer's table. Their names begin with `prefix`. A table without
// rows adds nothing. Each placeholder gets a function that makes the real tensor. Each
// function is called once, in order, so only one converted table is in memory.
void add_table_weights(
    const exporting::ExportedLayer& layer,
    size_t table,
    const std::string& prefix,
    std::vector<pt2::Weight>& weights) {
  const exporting::StoredTable& stored = layer.tables[table];
  if (!stored.rows.defined()) {
    return;
  }
  const size_t first = weights.size();
  const bool is_int8 = stored.scales.defined();
  exporting::visit_tensors(
      stored,
      prefix + exporting::stored_name(table),
      [&](const std::string& name, const at::Tensor& tensor) {
        weights.push_back({.name = name, .tensor = tensor});
      });
  weights[first].is_parameter = !is_int8;
  if (!stored.is_placeholder) {
    return;
  }
  // The first function takes the rows out of this copy, which then holds only the scale
  // and the offset of each row.
  const auto converted = std::make_shared<exporting::StoredTable>();
  weights[first].make = [&source = layer.state->tables[table],
                         dtype = layer.dtype_of(table),
                         where = layer.where,
                         converted] {
    *converted = exporting::store(source, dtype, where);
    return std::exchange(converted->rows, {});
  };
  if (is_int8) {
    weights[first + 1].make = [converted] {
      return std::exchange(converted->scales, {});
    };
    weights[first + 2].make = [converted] {
      return std::exchange(converted->offsets, {});
    };
  }
}

// The parameters and buffers of a model by their names in its tree of modules. In place
// of the parameters of a layer with tables, the list has the tables as the file holds
// them. A tensor that several modules share is listed once, by its first name.
// Errors:  c10::ValueError beginning with `where`, for a tensor that is not dense or not on
//          the CPU.
std::vector<pt2::Weight> named_weights(
    const torch::nn::Module& model,
    const exporting::TracedModel::Layers& layers,
    const std::string& where) {
  std::vector<pt2::Weight> weights;
  std::set<const EmbeddingState*> found;
  std::set<const void*> tensors;
  visit_weights(
      model,
      "",
      [&](const std::string& name, const at::Tensor& tensor, WeightKind kind) {
        if (!tensor.defined() || detail::is_unsized(tensor)) {
          return;  // a layer may be unbuilt if forward() does not call it
        }
        TESSERA_CHECK_VALUE(
            tensor.is_cpu() && tensor.layout() == at::kStrided,
            "{} the parameter or buffer '{}' must be a dense tensor on the cpu, but is on {}. Call to(torch::kCPU) on the model before the export.",
            where,
            name,
            tensor.device());
        if (tensors.insert(tensor.unsafeGetTensorImpl()).second) {
          weights.push_back(
              {.name = name,
               .tensor = tensor,
               .is_parameter = kind == WeightKind::kParameter &&
                   at::isFloatingType(tensor.scalar_type())});
        }
      },
      [&](const TableModule& tables, const std::string& prefix) {
        const EmbeddingState* state = &tables.state();
        const auto layer = layers.find(state);
        if (layer != layers.end() && found.insert(state).second) {
          for (size_t i = 0; i < layer->second.tables.size(); ++i) {
            add_table_weights(layer->second, i, prefix, weights);
          }
        }
      });
  return weights;
}

// The layer or the whole model that is exported.
struct Source {
  std::vector<pt2::Weight> weights = {};
  std::vector<exporting::ExportedLayer*> layers = {};
  std::function<std::shared_ptr<torch::jit::Graph>(
      const std::vector<at::Tensor>& weights,
      const ExportExample& example,
      exporting::Checks& checks)>
      record = {};
  bool returns_list = false;
  /// The outputs that the file must give.
  exporting::Outputs outputs = {};
  Precision precision = Precision::kFloat32;
  /// The path and the part of each input after features and weights. Empty: "input_0", ...
  InputNames input_names = {};
  std::vector<std::string> output_names = {};
  std::string output_part = {};
  /// Whether the source may accept only the batch size of the example.
  bool may_fix_batch = false;
};

// The inputs whose first element is the batch size.
std::vector<exporting::ValueSource> batch_sources(
    const ExportExample& example,
    const std::vector<Pt2Value>& inputs) {
  const std::vector<at::Tensor> tensors = exporting::flatten(example);
  std::vector<exporting::ValueSource> sources;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].part == "dense_shape") {
      sources.push_back(
          {.symbol = 0,
           .input = inputs[i].name,
           .dtype = tensors[i].scalar_type()});
    }
  }
  return sources;
}

// The base values of the symbols. They differ, so that records tell the symbols apart.
std::vector<int64_t> base_sizes(size_t count) {
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < count; ++i) {
    sizes.push_back(11 + 6 * static_cast<int64_t>(i));
  }
  return sizes;
}

// Returns whether the source takes only the batch size of the example.
bool is_batch_fixed(const Source& source, const ResizedExamples& examples) {
  const std::vector<int64_t> sizes = base_sizes(examples.sizes().size());
  const exporting::Result result =
      try_run([&] { return source.outputs(examples.at(sizes)); });
  TESSERA_CHECK_VALUE(
      !result.is_refused || source.may_fix_batch,
      "{} expected a model that takes batches of any size, but it refuses a batch of {} made of the example's rows: {}. Let each input that belongs to the batch have the batch size as its first dimension.",
      kPt2Where,
      sizes[0],
      result.refusal);
  return result.is_refused;
}

pt2::Archive make_archive(
    const Source& source,
    const ResizedExamples& examples,
    const ExportExample& example,
    SizeSolver& solver,
    const std::vector<int64_t>& hints) {
  pt2::Archive archive;
  archive.signature.inputs = describe_inputs(example, source.input_names);
  const auto names = pt2::converted(archive.signature.inputs, &Pt2Value::name);
  const auto weights = pt2::converted(source.weights, &pt2::Weight::tensor);
  std::vector<exporting::RecordedGraph> records;
  for (const std::vector<int64_t>& point : solver.points()) {
    const ExportExample batch = examples.at(point);
    exporting::RecordedGraph record;
    record.weights = source.weights;
    record.inputs = exporting::flatten(batch);
    exporting::Checks checks;
    const auto recorded = source.record(weights, batch, checks);
    record.graph = exporting::convert_graph(
        *recorded, record.weights, names, checks, kPt2Where);
    record.graph.returns_list = source.returns_list;
    records.push_back(std::move(record));
  }
  archive.graph = exporting::merge_graphs(
      {.records = records,
       .solver = solver,
       .hints = hints,
       .value_sources = batch_sources(example, archive.signature.inputs),
       .descriptions = examples.descriptions(),
       .where = kPt2Where});
  archive.weights = std::move(records[0].weights);
  for (Pt2Value& input : archive.signature.inputs) {
    pt2::add_type(input, archive.graph);
  }
  for (size_t i = 0; i < archive.graph.outputs.size(); ++i) {
    archive.signature.outputs.push_back(
        {.name = archive.graph.outputs[i],
         .path = source.output_names.empty() ? fmt::format("output_{}", i)
                                             : source.output_names[i],
         .part = source.output_part});
    pt2::add_type(archive.signature.outputs.back(), archive.graph);
  }
  return archive;
}

// A record for each symbol would take minutes if there are hundreds of symbols. With many
// symbols, a few batches in which all symbols change are tried first.
pt2::Archive make_archive(
    const Source& source,
    const ResizedExamples& examples,
    const ExportExample& example,
    const std::vector<int64_t>& base,
    const std::vector<bool>& is_fixed,
    const std::vector<int64_t>& hints) {
  constexpr size_t kManySymbols = 24;
  if (base.size() > kManySymbols) {
    SizeSolver solver(base, is_fixed, SizeSolver::Changes::kJoint);
    try {
      return make_archive(source, examples, example, solver, hints);
    } catch (const c10::ValueError&) {
      if (!solver.has_failed()) {
        throw;
      }
    }
  }
  SizeSolver solver(base, is_fixed, SizeSolver::Changes::kSeparate);
  return make_archive(source, examples, example, solver, hints);
}

// Compares the file with the source at one size.
void compare(
    const Source& source,
    const Pt2Program& program,
    const ExportExample& batch,
    const std::string& description) {
  const std::string problem = exporting::difference(
      try_run([&] { return program.run(exporting::flatten(batch)); }),
      try_run([&] { return source.outputs(batch); }),
      source.precision);
  TESSERA_CHECK_VALUE(
      problem.empty(),
      "{} with {}: the exported file must give what the model gives, but it gives {}. The file has conditions and numbers that C++ code computes as constants. Compute them with operators.",
      kPt2Where,
      description,
      problem);
}

void check_program(
    const Source& source,
    const Pt2Program& program,
    const ResizedExamples& examples,
    const ExportExample& example,
    bool is_batch_fixed) {
  compare(source, program, example, "the example");
  const int64_t batch = examples.sizes()[0];
  std::vector<int64_t> batch_sizes{batch};
  if (!is_batch_fixed) {
    batch_sizes.insert(batch_sizes.end(), {0, 1, 2 * batch + 1});
  }
  for (const int64_t size : batch_sizes) {
    for (const int64_t ids_per_row : {0, 1, 3}) {
      for (const int64_t shift : {0, -1, 1 << 30}) {
        std::vector<int64_t> sizes{size};
        for (size_t i = 1; i < examples.sizes().size(); ++i) {
          sizes.push_back(
              size * ids_per_row +
              (size > 0 ? static_cast<int64_t>(i % 3) : 0));
        }
        const ExportExample resized = examples.at(sizes, shift);
        // The model may refuse a size, and then the file need not compute it.
        const exporting::Result result = try_run([&] {
          return source.outputs(shift == 0 ? resized : examples.at(sizes));
        });
        if (!result.is_refused) {
          compare(
              source,
              program,
              resized,
              fmt::format(
                  "batch size {}, {} ids per row{}",
                  size,
                  ids_per_row,
                  shift == 0 ? "" : " and ids out of range"));
        }
      }
    }
  }
}

// Gives the placeholders the rows of the written file, so that the layer's own lookup
// reads them.
void fill_placeholders(const Source& source, const Pt2Program& program) {
  const auto state = program.state_dict();
  const std::map<std::string, at::Tensor> written(state.begin(), state.end());
  for (const pt2::Weight& weight : source.weights) {
    if (weight.make) {
      weight.tensor.set_data(written.at(weight.name));
    }
  }
  for (exporting::ExportedLayer* layer : source.layers) {
    for (exporting::StoredTable& table : layer->tables) {
      table.is_placeholder = false;
    }
  }
}

Pt2Signature write(
    const Source& source,
    AtomicFile& file,
    const ExportExample& example) {
  const ResizedExamples examples(example, kPt2Where);
  std::vector<int64_t> base = base_sizes(examples.sizes().size());
  std::vector<bool> is_fixed(base.size(), false);
  if (is_batch_fixed(source, examples)) {
    base[0] = examples.sizes()[0];
    is_fixed[0] = true;
  }
  // By these hints, AOTInductor decides which loops run on several threads. A hint is the
  // size in the example, but at least that in `base`: a smaller one could be taken for a
  // constant.
  std::vector<int64_t> hints = base;
  for (size_t i = 0; i < hints.size(); ++i) {
    hints[i] = std::max(hints[i], examples.sizes()[i]);
  }
  const pt2::Archive archive =
      make_archive(source, examples, example, base, is_fixed, hints);
  pt2::write_archive(file, archive, exporting::flatten(examples.at(hints)));
  const Pt2Program program(file.written_path());
  fill_placeholders(source, program);
  check_program(source, program, examples, example, is_fixed[0]);
  file.commit();
  return archive.signature;
}

// The leaves of a nest by their paths.
template <class Leaf>
std::map<std::string, Leaf> by_path(const Nest<Leaf>& nest) {
  std::map<std::string, Leaf> leaves;
  for (const auto& [path, leaf] : nest) {
    leaves[path] = leaf;
  }
  return leaves;
}

// Returns the layer's exported features in the example and their weights, as maps by path.
ExportExample example_of_paths(
    const ExportExample& example,
    const exporting::ExportedLayer& layer) {
  const auto features = by_path(example.features);
  auto weights = by_path(example.weights);
  Features::Map features_of_paths;
  Weights::Map weights_of_paths;
  for (const size_t index : layer.exported) {
    const std::string& path = layer.paths[index];
    const auto feature = features.find(path);
    TESSERA_CHECK_VALUE(
        feature != features.end(),
        "{} example.features must have the feature '{}', but it is missing. Add it, or leave it out of options.features.",
        kPt2Where,
        path);
    features_of_paths.emplace_back(path, feature->second);
    weights_of_paths.emplace_back(path, weights[path]);
  }
  return {
      .features = Features::map(std::move(features_of_paths)),
      .weights = Weights::map(std::move(weights_of_paths))};
}

// Calls lookup(index, feature, weights) for each feature of a batch from
// example_of_paths(), and returns the activations.
template <class Lookup>
std::vector<at::Tensor> layer_outputs(
    const exporting::ExportedLayer& layer,
    const ExportExample& batch,
    const Lookup& lookup) {
  const std::vector<Feature> features = batch.features.flatten();
  const auto weights = batch.weights.flatten();
  std::vector<at::Tensor> outputs;
  for (size_t i = 0; i < features.size(); ++i) {
    outputs.push_back(lookup(layer.exported[i], features[i], weights[i]));
  }
  return outputs;
}

Pt2Signature write_embedding(
    exporting::ExportedLayer& layer,
    AtomicFile& file,
    const ExportExample& example) {
  TESSERA_CHECK_VALUE(
      example.inputs.empty(),
      "{} example.inputs must be empty for an embedding, which takes only features and weights. Leave them out.",
      kPt2Where);
  const ExportExample parts =
      example_of_paths(exporting::to_parts(example, kPt2Where), layer);

  Source source;
  for (size_t i = 0; i < layer.tables.size(); ++i) {
    add_table_weights(layer, i, /*prefix=*/"", source.weights);
  }
  source.layers = {&layer};
  source.returns_list = true;
  source.record = [&](const std::vector<at::Tensor>& weights,
                      const ExportExample& batch,
                      exporting::Checks& checks) {
    return exporting::record_operators(
        weights,
        exporting::flatten(batch),
        [&](const auto& tensors) {
          return layer_outputs(
              layer,
              exporting::unflatten(batch, tensors),
              [&](size_t index, const Feature& feature, const auto& weight) {
                return exporting::branch_free_lookup(
                    layer,
                    index,
                    feature,
                    weight ? std::get<at::Tensor>(*weight) : at::Tensor(),
                    checks);
              });
        },
        checks,
        kPt2Where);
  };
  source.outputs = [&](const ExportExample& batch) {
    return layer_outputs(
        layer,
        batch,
        [&](size_t index, const Feature& feature, const auto& weight) {
          const FeatureState& state = layer.features[index];
          const at::Tensor flat = flat_weights(state, feature, weight);
          return exporting::lookup_stored(
              layer, index, make_id_bags(state, feature, flat));
        });
  };
  for (const size_t index : layer.exported) {
    source.output_names.push_back(layer.paths[index]);
    source.may_fix_batch = source.may_fix_batch ||
        layer.features[index].config.output_shape.has_value();
  }
  source.output_part = "activations";
  return write(source, file, parts);
}

// `layers` are the result of traced.find_layers().
Pt2Signature write_model(
    const detail::ExportedModel& model,
    exporting::TracedModel& traced,
    exporting::TracedModel::Layers& layers,
    AtomicFile& file,
    const ExportExample& example,
    Precision precision,
    InputNames input_names) {
  Source source;
  source.precision = precision;
  source.weights = named_weights(model.module, layers, kPt2Where);
  for (auto& [state, layer] : layers) {
    source.layers.push_back(&layer);
  }
  source.returns_list = model.returns_list;
  source.input_names = std::move(input_names);
  source.record = [&](const std::vector<at::Tensor>& weights,
                      const ExportExample& batch,
                      exporting::Checks& checks) {
    return traced.record(
        weights,
        batch,
        [&](const exporting::ExportedLayer& layer,
            size_t index,
            const Feature& feature,
            const at::Tensor& flat,
            const at::Tensor& /*activations*/) {
          return exporting::branch_free_lookup(
              layer, index, feature, flat, checks);
        },
        checks);
  };
  source.outputs = [&](const ExportExample& batch) {
    return traced.outputs(batch);
  };
  source.may_fix_batch = exporting::has_output_shape(model.module);
  return write(source, file, example);
}

}  // namespace

Pt2Signature detail::export_pt2(
    const TableModule* tables,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options) {
  Pt2Signature signature;
  exporting::write_layer(
      tables,
      path,
      options,
      exporting::Conversion::kWhenWritten,
      kPt2Where,
      [&](exporting::ExportedLayer& layer, AtomicFile& file) {
        signature = write_embedding(layer, file, example);
      });
  return signature;
}

Pt2Signature detail::export_pt2(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options) {
  exporting::ExportScope scope(path, kPt2Where, &model.module);
  const ExportExample parts =
      exporting::model_parts(model, example, options, kPt2Where);
  exporting::TracedModel traced(
      model, options, exporting::Conversion::kWhenWritten, kPt2Where);
  return write_model(
      model,
      traced,
      traced.find_layers(parts),
      scope.file,
      parts,
      options.precision,
      /*input_names=*/{});
}

Pt2Signature detail::export_dense_pt2(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const std::vector<std::string>& input_names,
    Precision precision) {
  exporting::ExportScope scope(path, kDenseWhere, &model.module);
  const exporting::DensePart dense(model, example, input_names, kDenseWhere);
  const ExportOptions options{.precision = precision};
  exporting::TracedModel traced(
      dense.model(), options, exporting::Conversion::kNow, kDenseWhere);
  exporting::TracedModel::Layers none;
  return write_model(
      dense.model(),
      traced,
      none,
      scope.file,
      dense.example(),
      precision,
      dense.inputs());
}

}  // namespace tessera
