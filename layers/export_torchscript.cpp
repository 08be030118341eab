// SPDX-License-Identifier: Apache-2.0
// All of TorchScript is here, as long as the file gets: it is deprecated
// upstream, and one day another format replaces this file and nothing else.
#include <tessera/layers/export_torchscript.h>

#include <tessera/common/shorten.h>

#include "layers/classic_locale.h"
#include "layers/table_module.h"
#include "serialization/durable_file.h"
#include "src/common/check.h"
#include "src/engine/engine_access.h"
#include "src/engine/forward_interception.h"
#include "src/engine/lookup.h"
#include "src/features/batch.h"
#include "src/tables/combiner_rule.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/frontend/resolver.h>
#include <torch/csrc/jit/frontend/schema_matching.h>
#include <torch/csrc/jit/frontend/sugared_value.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/csrc/jit/resource_guard.h>
#include <torch/csrc/jit/serialization/export.h>
#include <torch/csrc/jit/serialization/import.h>

#include <algorithm>
#include <cctype>
#include <exception>
#include <map>
#include <memory>
#include <set>

namespace tessera {

namespace {

namespace jit = torch::jit;
using torch::jit::tracer::getTracingState;
using torch::jit::tracer::getValueTrace;

// --- The lookup as TorchScript -----------------------------------------------

// What src/features/id_bags.cpp checks and src/engine/lookup.cpp sums. A bag of -1 drops an id.
constexpr const char* kLookupSource = R"SCRIPT(
def product(self, shape: List[int]) -> int:
    result = 1
    for size in shape:
        result = result * size
    return result

def check_shape(self, name: str, shape: List[int], known: List[int]):
    agrees = len(known) == 0 or len(known) == len(shape)
    if agrees:
        for i in range(len(known)):
            agrees = agrees and (known[i] < 0 or known[i] == shape[i])
    if not agrees:
        raise ValueError("[feature '{}'] the output shape is set to {}, but this batch gives {}. Correct the batch.".format(name, known, shape))

def integers(self, name: str, part: str, tensor: Tensor) -> Tensor:
    if tensor.dtype != int64 and tensor.dtype != int32:
        raise TypeError("[feature '{}'] {} must be int32 or int64. Convert with .to(torch.int64).".format(name, part))
    return tensor.to(int64)

def place_ragged(self, name: str, values: Tensor, row_splits: Tensor, max_length: int, output_shape: List[int], fixed_rows: int, is_weighted: bool) -> Tuple[Tensor, List[int], bool]:
    splits = self.integers(name, "row_splits", row_splits)
    if splits.dim() != 1 or splits.numel() == 0:
        raise ValueError("[feature '{}'] row_splits must have the shape [batch + 1], but got {}.".format(name, splits.shape))
    batch = splits.numel() - 1
    lengths = splits[1:] - splits[:-1]
    if int(splits[0]) != 0 or int(splits[batch]) != values.numel() or bool((lengths < 0).any()):
        raise ValueError("[feature '{}'] row_splits must begin with 0, not fall, and end with the number of values, {}.".format(name, values.numel()))
    rows = torch.repeat_interleave(lengths)
    shape = [batch]
    length = max_length
    if length > 0:
        shape = [batch, length]
        self.check_shape(name, shape, output_shape)
    elif len(output_shape) > 0 and min(output_shape) >= 0:
        shape = output_shape
        wanted = self.product(output_shape)
        if fixed_rows >= 0 and fixed_rows != batch:
            raise ValueError("[feature '{}'] output_shape {} fixes the number of rows of a ragged batch to {}, but this batch has {} rows.".format(name, output_shape, fixed_rows, batch))
        if wanted != batch:
            if batch == 0 or wanted < batch or wanted % batch != 0:
                raise ValueError("[feature '{}'] output_shape must hold a multiple of the batch, but got {} for {} rows.".format(name, output_shape, batch))
            if is_weighted:
                raise ValueError("[feature '{}'] weights are given, but output_shape {} spreads each row as a sequence, which is not combined. Leave the weights out.".format(name, output_shape))
            length = wanted // batch
    elif len(output_shape) > 0:
        others = 1
        unknown = 0
        for size in output_shape:
            if size < 0:
                unknown = unknown + 1
            else:
                others = others * size
        if unknown > 1:
            raise ValueError("[feature '{}'] a ragged feature must know all dimensions of its output shape but one, but got {}.".format(name, output_shape))
        whole: List[int] = []
        for size in output_shape:
            whole.append(size if size >= 0 else batch // max(others, 1))
        shape = whole
        if self.product(shape) != batch:
            raise ValueError("[feature '{}'] the output shape is set to {}, but this batch has {} rows. Correct the batch.".format(name, output_shape, batch))
    if length == 0:
        return rows, shape, True
    ordinal = torch.arange(values.numel()) - splits.index_select(0, rows)
    return (rows * length + ordinal).masked_fill(ordinal >= length, -1), shape, False

def place_sparse(self, name: str, parts: List[Tensor], max_length: int, output_shape: List[int]) -> Tuple[Tensor, List[int], bool]:
    indices = self.integers(name, "indices", parts[0])
    sizes = self.integers(name, "dense_shape", parts[2])
    nnz = parts[1].numel()
    rank = sizes.numel()
    if sizes.dim() != 1 or rank < 2:
        raise ValueError("[feature '{}'] dense_shape must have 2 entries or more, but has the shape {}.".format(name, sizes.shape))
    if indices.shape != [nnz, rank]:
        raise ValueError("[feature '{}'] indices must have the shape [nnz, rank] = [{}, {}], but got {}.".format(name, nnz, rank, indices.shape))
    if bool((sizes < 0).any()) or bool((indices < 0).any()) or bool((indices >= sizes).any()):
        raise ValueError("[feature '{}'] indices must lie inside dense_shape. Correct the batch.".format(name))
    dense_shape: List[int] = sizes.tolist()
    axes = rank - 1
    if max_length > 0:
        axes = max(rank - 2, 1)
    shape = dense_shape[:axes]
    bag = torch.zeros([nnz], dtype=int64)
    for axis in range(axes):
        bag = bag * dense_shape[axis] + indices[:, axis]
    if max_length > 0:
        place = indices[:, axes]
        bag = (bag * max_length + place).masked_fill(place >= max_length, -1)
        shape = shape + [max_length]
    self.check_shape(name, shape, output_shape)
    return bag, shape, max_length == 0 or rank > 2

def rows_of(self, table: Tensor, scales: Optional[Tensor], offsets: Optional[Tensor], buckets: List[float], ids: Tensor) -> Tensor:
    rows = table.index_select(0, ids).to(float32)
    if scales is not None and offsets is not None:
        rows = rows * scales.index_select(0, ids).unsqueeze(1) + offsets.index_select(0, ids).unsqueeze(1)
    if len(buckets) > 0:
        lower, upper, step = buckets[0], buckets[1], buckets[2]
        rows = torch.floor((rows.clamp(lower, upper) - lower) / step + 0.5) * step + lower
    return rows

def look_up_dense(self, name: str, part: Tensor, max_length: int, output_shape: List[int], vocabulary_size: int, zero_out_of_range: bool, table: Tensor, scales: Optional[Tensor], offsets: Optional[Tensor], buckets: List[float]) -> Tensor:
    ids = self.integers(name, "ids", part)
    if ids.dim() == 0:
        raise ValueError("[feature '{}'] a dense feature must have rank 1 or above, but got a scalar.".format(name))
    if max_length > 0:
        raise ValueError("[feature '{}'] a sequence feature must be sparse or ragged, but got a dense tensor.".format(name))
    shape = ids.shape
    if len(shape) >= 2 and shape[-1] == 1:
        shape = shape[:-1]
    self.check_shape(name, shape, output_shape)
    ids = ids.flatten()
    live = (ids >= 0) & (ids < vocabulary_size)
    if not bool(live.all()):
        if not zero_out_of_range:
            raise IndexError("[feature '{}'] ids must be in [0, {}), but got {}. Correct the id.".format(name, vocabulary_size, int(ids[~live][0])))
        rows = torch.zeros([ids.numel(), table.size(1)])
        places = live.nonzero().flatten()
        rows = rows.index_copy(0, places, self.rows_of(table, scales, offsets, buckets, ids.index_select(0, places)))
    else:
        rows = self.rows_of(table, scales, offsets, buckets, ids)
    return rows.view(shape + [table.size(1)])

def look_up(self, name: str, parts: List[Tensor], weights: Optional[Tensor], max_length: int, output_shape: List[int], fixed_rows: int, validate: bool, zero_out_of_range: bool, vocabulary_size: int, combiner: str, table: Tensor, scales: Optional[Tensor], offsets: Optional[Tensor], buckets: List[float]) -> Tensor:
    if weights is not None and len(parts) == 1:
        raise ValueError("[feature '{}'] weights are given, but the feature is dense. Leave the weights out.".format(name))
    if weights is not None and max_length > 0 and (len(parts) != 3 or parts[2].numel() < 3):
        raise ValueError("[feature '{}'] weights are given, but this is a sequence feature. Leave the weights out.".format(name))
    if len(parts) == 1:
        return self.look_up_dense(name, parts[0], max_length, output_shape, vocabulary_size, zero_out_of_range, table, scales, offsets, buckets)
    if len(parts) != 2 and len(parts) != 3:
        raise ValueError("[feature '{}'] must be [ids], [values, row_splits] or [indices, values, dense_shape], but got {} tensors.".format(name, len(parts)))
    values = parts[len(parts) - 2]
    ids = self.integers(name, "values", values)
    if ids.dim() != 1:
        raise ValueError("[feature '{}'] values must have rank 1, but got shape {}.".format(name, ids.shape))
    if weights is not None:
        if not weights.is_floating_point() or weights.shape != ids.shape:
            raise ValueError("[feature '{}'] weights must be floats, one per id, [{}], but got shape {}.".format(name, ids.numel(), weights.shape))
    is_sorted = len(parts) == 2
    if is_sorted:
        bag, shape, is_combined = self.place_ragged(name, ids, parts[1], max_length, output_shape, fixed_rows, weights is not None)
    else:
        bag, shape, is_combined = self.place_sparse(name, parts, max_length, output_shape)
    bags = self.product(shape)

    is_negative = (ids < 0) & (bag >= 0)
    is_beyond = (ids >= vocabulary_size) & (bag >= 0)
    if not validate and bool(is_negative.any()):
        raise IndexError("[feature '{}'] ids must be in [0, {}), but got {}. Correct the id.".format(name, vocabulary_size, int(ids[is_negative][0])))
    if not zero_out_of_range and bool(is_beyond.any()):
        raise IndexError("[feature '{}'] ids must be in [0, {}), but got {}. Correct the id.".format(name, vocabulary_size, int(ids[is_beyond][0])))
    bag = bag.masked_fill(is_negative, -1)
    weight = weights
    if weight is not None:
        weight = weight.to(float32)
        if validate and self.is_divided(combiner):
            bag = bag.masked_fill(~(weight > 0), -1)
    kept = bag >= 0
    if not bool(kept.all()):
        places = kept.nonzero().flatten()
        ids, bag = ids.index_select(0, places), bag.index_select(0, places)
        if weight is not None:
            weight = weight.index_select(0, places)

    # 1 / denominator: ids that look up zeros count, too.
    scale: Optional[Tensor] = None
    if is_combined and self.is_divided(combiner):
        term = torch.ones(bag.shape, dtype=float64)
        if weight is not None:
            term = self.combiner_term(combiner, weight.to(float64))
        total = torch.zeros([bags], dtype=float64).index_add(0, bag, term)
        denominator = self.combiner_denominator(combiner, total)
        inverse = (1.0 / denominator).to(float32)
        scale = inverse.masked_fill(inverse.isinf(), 0.0)

    live = ids < vocabulary_size
    if not bool(live.all()):
        places = live.nonzero().flatten()
        ids, bag = ids.index_select(0, places), bag.index_select(0, places)
        if weight is not None:
            weight = weight.index_select(0, places)

    if table.dtype == float32 and len(buckets) == 0:
        if not is_sorted:
            order = torch.argsort(bag, stable=True)
            ids, bag = ids.index_select(0, order), bag.index_select(0, order)
            if weight is not None:
                weight = weight.index_select(0, order)
        ends = torch.bincount(bag, minlength=bags).cumsum(0)
        starts = torch.cat([torch.zeros([1], dtype=int64), ends])
        sums = torch.embedding_bag(table, ids, starts, False, 0, False, weight, True)[0]
    else:
        rows = self.rows_of(table, scales, offsets, buckets, ids)
        if weight is not None:
            rows = rows * weight.unsqueeze(1)
        sums = torch.zeros([bags, table.size(1)]).index_add(0, bag, rows)
    if scale is not None:
        sums = sums * scale.unsqueeze(1)
    return sums.view(shape + [table.size(1)])
)SCRIPT";

// Ends the embedding's script, after look_up_by_name().
constexpr const char* kEmbeddingForward = R"SCRIPT(
def forward(self, features: Dict[str, List[Tensor]], weights: Optional[Dict[str, Tensor]] = None) -> Dict[str, Tensor]:
    if weights is not None:
        for name in weights.keys():
            if name not in features:
                raise ValueError("[weights '{}'] are given without their feature. Leave them out.".format(name))
    activations: Dict[str, Tensor] = {}
    for name, parts in features.items():
        weight: Optional[Tensor] = None
        if weights is not None and name in weights:
            weight = weights[name]
        activations[name] = self.look_up_by_name(name, parts, weight)
    return activations
)SCRIPT";

// Begins the script of a whole model.
constexpr const char* kModelInputs = R"SCRIPT(
def parts_of(self, features: Dict[str, List[Tensor]], name: str, count: int) -> List[Tensor]:
    if name not in features:
        raise ValueError("[feature '{}'] is missing. Pass all features that the model was exported with.".format(name))
    parts = features[name]
    if len(parts) != count:
        raise ValueError("[feature '{}'] must be {} tensors, as in the example that the model was exported with, but got {}. Dense: [ids], ragged: [values, row_splits], sparse: [indices, values, dense_shape].".format(name, count, len(parts)))
    return parts

def weights_of(self, weights: Dict[str, Tensor], name: str) -> Tensor:
    if name not in weights:
        raise ValueError("[weights '{}'] are missing. Pass all weights that the model was exported with.".format(name))
    return weights[name]
)SCRIPT";

// What Python has and LibTorch's own resolver lacks.
struct PythonNames : jit::NativeResolver {
  std::shared_ptr<jit::SugaredValue> resolveValue(
      const std::string& name,
      jit::GraphFunction& method,
      const jit::SourceRange& location) override {
    static const std::map<std::string, at::ScalarType> kDtypes{
        {"int32", at::kInt},
        {"int64", at::kLong},
        {"float32", at::kFloat},
        {"float64", at::kDouble}};
    if (const auto dtype = kDtypes.find(name); dtype != kDtypes.end()) {
      return std::make_shared<jit::SimpleValue>(method.graph()->insertConstant(
          static_cast<int64_t>(dtype->second), location));
    }
    if (name == "ValueError" || name == "TypeError" || name == "IndexError") {
      return std::make_shared<jit::ExceptionValue>(name);
    }
    return jit::NativeResolver::resolveValue(name, method, location);
  }
};

// A string literal of TorchScript.
std::string quote(const std::string& text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool is_plain =
        byte >= 0x20 && byte < 0x7f && letter != '"' && letter != '\\';
    quoted += is_plain ? std::string(1, letter) : fmt::format("\\{:03o}", byte);
  }
  return quoted + "\"";
}

// The name of an attribute: what TorchScript can't read back is replaced.
std::string attribute_name(
    const std::string& name,
    const std::set<std::string>& taken) {
  static const std::set<std::string> kReserved{
      "False",    "None",    "True",       "and",      "as",      "assert",
      "async",    "await",   "break",      "class",    "compute", "continue",
      "def",      "del",     "elif",       "else",     "except",  "finally",
      "for",      "forward", "from",       "global",   "if",      "import",
      "in",       "is",      "lambda",     "nonlocal", "not",     "or",
      "parts_of", "pass",    "print",      "raise",    "return",  "training",
      "try",      "while",   "weights_of", "with",     "yield"};
  const auto is_digit = [](unsigned char letter) {
    return std::isdigit(letter) != 0;
  };
  std::string result = name;
  for (char& letter : result) {
    const bool is_plain = letter > 0 && std::isalnum(letter) != 0;
    letter = is_plain ? letter : '_';
  }
  const bool is_number = std::all_of(result.begin(), result.end(), is_digit);
  if (result.empty() || result.starts_with("__") ||
      (is_digit(result[0]) && !is_number)) {
    result = "part_" + result;
  }
  while (kReserved.count(result) > 0 || taken.count(result) > 0) {
    result += "_";
  }
  return result;
}

jit::Module make_module(const std::string& type_name) {
  jit::Module module{c10::QualifiedName(type_name)};
  // torch.jit.freeze and .eval() look for it.
  module.register_attribute("training", c10::BoolType::get(), false);
  return module;
}

// Neither gradients nor what LibTorch knows of them belong in a file.
void detach_tensors(const jit::Module& root) {
  for (jit::Module module : root.modules()) {
    for (const auto& attribute : module.named_attributes(/*recurse=*/false)) {
      if (attribute.value.isTensor()) {
        module.setattr(attribute.name, attribute.value.toTensor().detach());
      }
    }
  }
}

// --- Tables ------------------------------------------------------------------

// Converted at a time: 16 MiB of float32.
constexpr int64_t kPartFloats = int64_t{1} << 22;

// A table as the file holds it. int8: row = scale * stored + offset.
struct StoredTable {
  at::Tensor rows = {};  // [vocab, dim]
  at::Tensor scales = {};  // [vocab], undefined unless int8
  at::Tensor offsets = {};  // [vocab], undefined unless int8
};

void store_as_int8(
    const at::Tensor& rows,
    StoredTable& stored,
    int64_t begin,
    const std::string& name) {
  const at::Tensor lowest = rows.amin(1);
  const at::Tensor step = (rows.amax(1) - lowest) / 255.0;
  TESSERA_CHECK_VALUE(
      at::isfinite(step).all().item<bool>(),
      "[export_torchscript] table '{}' can't be stored as int8: expected rows with a finite range, but got infinity or NaN. Correct the rows, or export as kFloat.",
      shorten(name));
  // A row of one value has the step 0, and that value as its offset.
  const at::Tensor divisor = at::where(step == 0, at::ones_like(step), step);
  const at::Tensor bytes =
      ((rows - lowest.unsqueeze(1)) / divisor.unsqueeze(1)).round() - 128.0;
  const int64_t end = begin + rows.size(0);
  stored.rows.slice(0, begin, end).copy_(bytes.clamp(-128, 127));
  stored.scales.slice(0, begin, end).copy_(step);
  stored.offsets.slice(0, begin, end).copy_(lowest + step * 128.0);
}

StoredTable store(const TableState& table, at::ScalarType dtype) {
  if (table.parameters.scalar_type() == dtype) {
    // Live: a tower that reads the table shares it, told by identity.
    return {.rows = table.parameters};
  }
  const at::Tensor source = table.parameters.detach();
  const int64_t vocab = source.size(0);
  StoredTable stored{.rows = at::empty(source.sizes(), dtype)};
  if (dtype == at::kChar) {
    stored.scales = at::empty({vocab}, at::kFloat);
    stored.offsets = at::empty({vocab}, at::kFloat);
  }
  const int64_t part_rows = std::max<int64_t>(kPartFloats / source.size(1), 1);
  for (int64_t begin = 0; begin < vocab; begin += part_rows) {
    const int64_t end = std::min(vocab, begin + part_rows);
    const at::Tensor rows = source.slice(0, begin, end).to(at::kFloat);
    if (dtype == at::kChar) {
      store_as_int8(rows, stored, begin, table.name);
      continue;
    }
    const at::Tensor part = rows.to(dtype);
    TESSERA_CHECK_VALUE(
        (at::isfinite(part) == at::isfinite(rows)).all().item<bool>(),
        "[export_torchscript] table '{}' can't be stored as {}: it has values beyond that range. Export as kFloat.",
        shorten(table.name),
        to_string(dtype));
    stored.rows.slice(0, begin, end).copy_(part);
  }
  return stored;
}

// float32 [ids, dim]
at::Tensor read_stored(const StoredTable& table, const at::Tensor& ids) {
  at::Tensor rows = table.rows.index_select(0, ids).to(at::kFloat);
  if (!table.scales.defined()) {
    return rows;
  }
  return rows * table.scales.index_select(0, ids).unsqueeze(1) +
      table.offsets.index_select(0, ids).unsqueeze(1);
}

// --- One embedding -----------------------------------------------------------

// A layer, its tables as they are written, and its lookups as a script.
struct ExportedLayer {
  const EmbeddingState* state = nullptr;
  Nest<FeatureConfig> structure = {};
  std::vector<std::string> paths = {};
  /// As in `state`, but for batches of any size.
  std::vector<FeatureState> features = {};
  std::vector<size_t> exported = {};  // indices of features
  std::vector<StoredTable> tables = {};  // empty where no feature needs one
  jit::Module module = {};
};

// build() fixes the batch size for training; a server has its own.
FeatureState with_any_batch_size(FeatureState feature) {
  std::optional<PartialShape>& shape = feature.output_shape;
  const std::optional<PartialShape>& own = feature.config.output_shape;
  if (shape && (own || shape->size() > 1)) {
    (*shape)[0] = own ? (*own)[0] : std::nullopt;
  } else {
    shape.reset();
  }
  return feature;
}

// The number of rows of every ragged batch; -1 where any number that fits is allowed.
int64_t fixed_rows_of(const FeatureState& feature) {
  const std::optional<PartialShape>& own = feature.config.output_shape;
  if (own && known_sizes(*own)) {
    return feature.ragged_rows;
  }
  const auto built =
      feature.output_shape ? known_sizes(*feature.output_shape) : std::nullopt;
  return built ? c10::multiply_integers(*built) : -1;
}

// The sizes of `shape`, with `otherwise` in place of unknown ones.
std::vector<int64_t> sizes_or(const PartialShape& shape, int64_t otherwise) {
  std::vector<int64_t> sizes;
  for (const std::optional<int64_t>& size : shape) {
    sizes.push_back(size.value_or(otherwise));
  }
  return sizes;
}

// A number that TorchScript reads as this float.
std::string float_literal(float value) {
  return fmt::format("{:.9e}", value);
}

std::string feature_source(const ExportedLayer& layer, size_t index) {
  const FeatureState& feature = layer.features[index];
  const TableConfig& config = *feature.config.table;
  const kernels::Buckets buckets = buckets_of(config);
  const std::string table = fmt::format("self.table_{}", feature.table);
  const bool is_int8 = layer.tables[feature.table].scales.defined();
  const std::vector<int64_t> output_shape =
      sizes_or(feature.output_shape.value_or(PartialShape()), -1);
  std::vector<std::string> rounding;
  if (buckets.step != 0.0F) {
    rounding = {
        float_literal(buckets.lower),
        float_literal(buckets.upper),
        float_literal(buckets.step)};
  }
  // Locals, because an empty list has no type of its own.
  return fmt::format(
      R"SCRIPT(
def feature_{}(self, parts: List[Tensor], weights: Optional[Tensor]) -> Tensor:
    output_shape: List[int] = [{}]
    buckets: List[float] = [{}]
    return self.look_up({}, parts, weights, max_length={}, output_shape=output_shape, fixed_rows={}, validate={}, zero_out_of_range={}, vocabulary_size={}, combiner={}, table={}, scales={}, offsets={}, buckets=buckets)
)SCRIPT",
      index,
      fmt::join(output_shape, ", "),
      fmt::join(rounding, ", "),
      quote(layer.paths[index]),
      feature.config.sequence_length(),
      fixed_rows_of(feature),
      feature.config.validate_weights_and_indices ? "True" : "False",
      feature.config.out_of_range == OutOfRange::kZero ? "True" : "False",
      config.vocabulary_size,
      quote(to_string(config.combiner)),
      table,
      is_int8 ? table + "_scales" : "None",
      is_int8 ? table + "_offsets" : "None");
}

std::string embedding_source(const ExportedLayer& layer) {
  std::string source = combiner_script() + kLookupSource;
  std::string choice =
      "\ndef look_up_by_name(self, name: str, parts: List[Tensor], weights: "
      "Optional[Tensor]) -> Tensor:\n";
  std::string known;
  for (const size_t index : layer.exported) {
    source += feature_source(layer, index);
    choice += fmt::format(
        "    if name == {}:\n        return self.feature_{}(parts, weights)\n",
        quote(layer.paths[index]),
        index);
    known += (known.empty() ? "" : ", ") + layer.paths[index];
  }
  choice += fmt::format(
      "    raise ValueError(\"[features] '\" + name + {})\n",
      quote("' is none of the exported features. Known: " + known + "."));
  return source + choice + kEmbeddingForward;
}

std::vector<size_t> find_features(
    const std::vector<std::string>& paths,
    const std::vector<std::string>& wanted) {
  std::vector<size_t> found;
  for (const std::string& path : wanted) {
    const auto place = std::find(paths.begin(), paths.end(), path);
    TESSERA_CHECK_VALUE(
        place != paths.end(),
        "[export_torchscript] options.features: expected paths of the layer's features, but got '{}'. Known: {}.",
        shorten(path),
        fmt::format("{}", fmt::join(paths, ", ")));
    found.push_back(static_cast<size_t>(place - paths.begin()));
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

void check_unique(const std::vector<std::string>& paths) {
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    TESSERA_CHECK_VALUE(
        seen.insert(path).second,
        "[export_torchscript] features must have different paths, but two have the path '{}'. Rename a key of the nest.",
        shorten(path));
  }
}

ExportedLayer export_layer(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& structure,
    const ExportOptions& options) {
  ExportedLayer layer;
  layer.state = &state;
  check_holds_all_rows(
      *layer.state,
      "[export_torchscript]",
      "Save a checkpoint, load it into a layer on Strategy::engine() in one "
      "process, and export that.");
  layer.structure = structure;
  layer.paths = layer.structure.paths();
  check_unique(layer.paths);
  for (const FeatureState& feature : layer.state->features) {
    layer.features.push_back(with_any_batch_size(feature));
  }
  layer.exported = find_features(
      layer.paths, options.features.empty() ? layer.paths : options.features);
  layer.module = make_module("TPUEmbedding");
  layer.tables.resize(layer.state->tables.size());
  for (const size_t index : layer.exported) {
    const size_t table = layer.features[index].table;
    StoredTable& stored = layer.tables[table];
    if (stored.rows.defined()) {
      continue;  // shared, and written once
    }
    const TableState& source = state.tables[table];
    stored = store(source, options.dtype.value_or(source.config->dtype));
    const std::string name = "table_" + std::to_string(table);
    layer.module.register_buffer(name, stored.rows);
    if (stored.scales.defined()) {
      layer.module.register_buffer(name + "_scales", stored.scales);
      layer.module.register_buffer(name + "_offsets", stored.offsets);
    }
  }
  layer.module.define(embedding_source(layer), std::make_shared<PythonNames>());
  return layer;
}

// What the layer gives for one feature, from rows as they are in the file.
at::Tensor look_up_stored(
    const ExportedLayer& layer,
    size_t index,
    IdBags bags) {
  const FeatureState& feature = layer.features[index];
  const TableState& table = layer.state->tables[feature.table];
  const StoredTable& stored = layer.tables[feature.table];
  drop_zero_rows(bags);
  at::Tensor ids = at::empty({bags.nnz()}, at::kLong);
  std::copy(bags.ids.begin(), bags.ids.end(), ids.mutable_data_ptr<int64_t>());
  const at::Tensor rows = read_stored(stored, ids);
  if (stored.scales.defined()) {
    const at::Tensor exact =
        table.parameters.detach().index_select(0, ids).to(at::kFloat);
    const at::Tensor step = stored.scales.index_select(0, ids).unsqueeze(1);
    TESSERA_CHECK(
        ((rows - exact).abs() <= step + 1e-6 * exact.abs()).all().item<bool>(),
        "[export_torchscript] table '{}': expected int8 rows within one step of the layer's, but they are further off. Please report this.",
        shorten(table.name));
  }
  for (int64_t i = 0; i < bags.nnz(); ++i) {
    bags.ids[i] = static_cast<uint32_t>(i);
  }
  std::vector<IdBags> one;
  one.push_back(std::move(bags));
  return look_up(one, {{rows, buckets_of(*table.config)}})[0];
}

// --- Batches -----------------------------------------------------------------

// As the exported forward() takes them.
std::vector<at::Tensor> parts_of(const Feature& feature) {
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    return {sparse->indices, sparse->values, sparse->dense_shape};
  }
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    return {ragged->values, ragged->row_splits};
  }
  return {std::get<at::Tensor>(feature)};
}

Feature feature_of(at::TensorList parts) {
  if (parts.size() == 3) {
    return SparseFeature{parts[0], parts[1], parts[2]};
  }
  if (parts.size() == 2) {
    return RaggedFeature{parts[0], parts[1]};
  }
  return parts[0];
}

using Parts = c10::List<at::Tensor>;
using FeatureDict = c10::Dict<std::string, Parts>;
using TensorDict = c10::Dict<std::string, at::Tensor>;

// Two results are close when they differ by rounding only.
bool is_close(const at::Tensor& actual, const at::Tensor& expected) {
  if (actual.sizes() != expected.sizes() ||
      actual.scalar_type() != expected.scalar_type()) {
    return false;
  }
  if (expected.numel() == 0 || !at::isFloatingType(expected.scalar_type())) {
    return actual.equal(expected);
  }
  constexpr double kTolerance = 1e-4;
  const at::Tensor wanted = expected.to(at::kDouble);
  const at::Tensor finite = wanted.masked_fill(~wanted.isfinite(), 0);
  return at::isclose(
             actual.to(at::kDouble),
             wanted,
             kTolerance,
             kTolerance * finite.abs().max().item<double>() + 1e-7,
             /*equal_nan=*/true)
      .all()
      .item<bool>();
}

// The last line of a message: what TorchScript puts before it is its stack.
std::string reason_of(const std::exception& error) {
  const auto* own = dynamic_cast<const c10::Error*>(&error);
  std::string text =
      own != nullptr ? own->what_without_backtrace() : error.what();
  const size_t begin = text.rfind("RuntimeError: ");
  text = begin == std::string::npos ? text : text.substr(begin + 14);
  return text.substr(0, text.find('\n'));
}

// --- The file ----------------------------------------------------------------

constexpr const char* kWhere = "[export_torchscript]";

// What programs will load once the file is committed.
jit::Module save_and_load(const jit::Module& module, DurableFile& file) {
  file.write_by([&](auto write) { jit::ExportModule(module, write); });
  return jit::load(file.written_path());
}

void check_dtype(const ExportOptions& options) {
  const at::ScalarType dtype = options.dtype.value_or(at::kFloat);
  TESSERA_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf ||
          dtype == at::kChar,
      "[export_torchscript] options.dtype must be one of kFloat, kBFloat16, kHalf, kChar, but got {}.",
      c10::toString(dtype));
}

// --- An embedding alone ------------------------------------------------------

// One feature's made-up input.
struct MadeUpInput {
  std::string description;
  Feature feature;
  at::Tensor weights = {};
};

// Ragged rows of 0, 1, 2, 3, 0, ... ids; dense ones; and sparse cells with gaps,
// last row first. `shift` moves ids beyond both ends of the table.
std::vector<MadeUpInput> made_up_inputs(
    const FeatureState& feature,
    int64_t batch,
    int64_t shift) {
  const int64_t vocab = feature.config.table->vocabulary_size;
  const auto ids = [&](int64_t count) {
    const at::Tensor mixed = at::arange(count, at::kLong) * 7919 + batch;
    return mixed.remainder(vocab + 2 * shift) - shift;
  };
  const at::Tensor row = at::arange(batch, at::kLong);
  const at::Tensor lengths = row.remainder(4);
  const int64_t nnz = lengths.sum().item<int64_t>();
  const RaggedFeature ragged = RaggedFeature::from_lengths(ids(nnz), lengths);
  const at::Tensor rows = row.repeat_interleave(lengths);
  const at::Tensor columns =
      at::arange(nnz, at::kLong) - ragged.row_splits.index_select(0, rows);
  const SparseFeature sparse{
      .indices = at::stack({rows, columns * 2}, 1).flip(0),
      .values = ragged.values.flip(0),
      .dense_shape = at::tensor({batch, int64_t{8}}, at::kLong)};
  const at::Tensor weights =
      at::arange(nnz, at::kFloat).remainder(5) * 0.5 - 0.5;
  std::vector<MadeUpInput> inputs{
      {"dense", ids(batch)},
      {"dense [batch, 3]", ids(3 * batch).view({batch, 3})},
      {"ragged", ragged},
      {"weighted ragged", ragged, weights},
      {"sparse", sparse},
      {"weighted sparse", sparse, weights.flip(0)}};
  // [batch, 4, 3]: the first two ids of a row are at place 0, the third at place 1.
  const at::Tensor places = columns.ge(2).to(at::kLong);
  const SparseFeature cells{
      .indices = at::stack({rows, places, columns}, 1).flip(0),
      .values = sparse.values,
      .dense_shape = at::tensor({batch, int64_t{4}, int64_t{3}}, at::kLong)};
  inputs.push_back({"sparse of rank 3", cells});
  inputs.push_back({"weighted sparse of rank 3", cells, weights.flip(0)});
  if (feature.output_shape && feature.config.output_shape) {
    const std::vector<int64_t> shape = sizes_or(*feature.output_shape, 2);
    inputs.push_back(
        {"dense of output_shape",
         ids(c10::multiply_integers(shape)).view(shape)});
  }
  return inputs;
}

// Both give the same, or both refuse.
void check_input(
    const ExportedLayer& layer,
    size_t index,
    jit::Module& loaded,
    const MadeUpInput& input,
    int64_t batch) {
  std::optional<at::Tensor> expected;
  std::string refusal;
  try {
    const FeatureState& feature = layer.features[index];
    const std::optional<Feature> given = input.weights.defined()
        ? std::optional<Feature>(input.weights)
        : std::nullopt;
    const at::Tensor flat = flat_weights(feature, input.feature, given);
    expected = look_up_stored(
        layer, index, make_id_bags(feature, input.feature, flat));
  } catch (const c10::Error& error) {
    refusal = reason_of(error);
  }
  const std::string& path = layer.paths[index];
  FeatureDict features;
  features.insert(path, Parts(parts_of(input.feature)));
  TensorDict weights;
  if (input.weights.defined()) {
    weights.insert(path, input.weights);
  }
  std::optional<at::Tensor> actual;
  try {
    actual =
        loaded.forward({features, weights}).toGenericDict().at(path).toTensor();
  } catch (const std::exception& error) {
    refusal = reason_of(error);
  }
  TESSERA_CHECK(
      actual.has_value() == expected.has_value() &&
          (!expected || is_close(*actual, *expected)),
      "[export_torchscript] feature '{}', {}, batch size {}: expected what the layer gives, but the exported file {}{}. Please report this.",
      shorten(path),
      input.description,
      batch,
      expected ? (actual ? "gives other values" : "refuses: ")
               : "accepts what "
                 "the layer refuses: ",
      actual && expected ? "" : refusal);
}

void check_embedding(const ExportedLayer& layer, jit::Module loaded) {
  // Compiling for speed takes 40 ms per feature and gains these calls nothing.
  const bool was_optimized = jit::getGraphExecutorOptimize();
  jit::setGraphExecutorOptimize(false);
  const jit::ResourceGuard restore(
      [was_optimized] { jit::setGraphExecutorOptimize(was_optimized); });
  for (const size_t index : layer.exported) {
    const FeatureState& feature = layer.features[index];
    std::set<int64_t> batches{0, 1, 6};
    if (feature.config.output_shape) {
      batches.insert(
          c10::multiply_integers(sizes_or(*feature.output_shape, 2)));
    }
    for (const int64_t batch : batches) {
      for (const int64_t shift : {0, 1}) {
        for (const MadeUpInput& input : made_up_inputs(feature, batch, shift)) {
          check_input(layer, index, loaded, input, batch);
        }
      }
    }
  }
}

// --- A whole model -----------------------------------------------------------

// Its modules' own modes come back at the end.
class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& model) : modules_(model.modules()) {
    for (const auto& module : modules_) {
      was_training_.push_back(module->is_training());
    }
    model.eval();
  }
  ~EvalMode() {
    // Parents come first: train() goes to the children, too.
    for (size_t i = 0; i < modules_.size(); ++i) {
      modules_[i]->train(was_training_[i]);
    }
  }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<bool> was_training_;
};

// The example in the forms that the file takes: sparse tensors by their parts,
// weights flat.
ExportExample in_parts(const ExportExample& example) {
  std::vector<Feature> features;
  for (const Feature& feature : example.features.flatten()) {
    features.push_back(with_sparse_as_feature(feature));
    for (const at::Tensor& part : parts_of(features.back())) {
      TESSERA_CHECK_VALUE(
          part.defined(),
          "[export_torchscript] example.features: expected tensors, but got an undefined one.");
    }
  }
  std::vector<std::optional<Feature>> weights;
  for (const std::optional<Feature>& leaf : example.weights.flatten()) {
    weights.push_back(leaf);
    if (leaf) {
      const std::vector<at::Tensor> parts =
          parts_of(with_sparse_as_feature(*leaf));
      weights.back() = parts[parts.size() == 3 ? 1 : 0];
    }
  }
  for (size_t i = 0; i < example.inputs.size(); ++i) {
    TESSERA_CHECK_VALUE(
        example.inputs[i].defined(),
        "[export_torchscript] example.inputs[{}]: expected a tensor, but got an undefined one.",
        i);
  }
  return {
      .features = example.features.pack(std::move(features)),
      .weights = example.weights.pack(std::move(weights)),
      .inputs = example.inputs};
}

int64_t rows_of(const std::string& path, const Feature& feature) {
  const std::vector<at::Tensor> parts = parts_of(feature);
  if (parts.size() == 3) {
    return parts[2].numel() == 0 ? 0 : parts[2].flatten()[0].item<int64_t>();
  }
  if (parts.size() == 2) {
    return parts[1].numel() - 1;
  }
  TESSERA_CHECK_VALUE(
      parts[0].dim() >= 1,
      "[export_torchscript] example.features '{}': expected a batch, but got a scalar.",
      shorten(path));
  return parts[0].size(0);
}

// Of all features; the rows of each are a multiple of it.
int64_t batch_size_of(const Features& features) {
  int64_t batch = std::numeric_limits<int64_t>::max();
  features.for_each([&](const std::string& path, const Feature& feature) {
    batch = std::min(batch, rows_of(path, feature));
  });
  TESSERA_CHECK_VALUE(
      batch >= 1 && !features.flatten().empty(),
      "[export_torchscript] example: expected a batch of at least one row, but got an empty one. Give a batch as the model will see it.");
  features.for_each([&](const std::string& path, const Feature& feature) {
    const int64_t rows = rows_of(path, feature);
    TESSERA_CHECK_VALUE(
        rows % batch == 0,
        "[export_torchscript] example.features '{}': expected a multiple of the batch size {}, but got {} rows. Give all features the same number of examples.",
        shorten(path),
        batch,
        rows);
  });
  return batch;
}

// A feature's rows, and where its ids stood.
struct SelectedRows {
  Feature feature;
  at::Tensor places;  // undefined for a dense feature
};

SelectedRows select_rows(const Feature& feature, const at::Tensor& rows) {
  if (const auto* dense = std::get_if<at::Tensor>(&feature)) {
    return {.feature = dense->index_select(0, rows), .places = {}};
  }
  std::vector<std::vector<int64_t>> places_of_row;
  at::Tensor values;
  at::Tensor indices;
  at::Tensor shape;
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    values = sparse->values;
    indices = sparse->indices.to(at::kLong).contiguous();
    shape = sparse->dense_shape.to(at::kLong).clone();
    places_of_row.resize(shape[0].item<int64_t>());
    const int64_t* coordinates = indices.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      places_of_row.at(coordinates[i * indices.size(1)]).push_back(i);
    }
  } else {
    const auto& ragged = std::get<RaggedFeature>(feature);
    values = ragged.values;
    const at::Tensor splits = ragged.row_splits.to(at::kLong).contiguous();
    const int64_t* offsets = splits.const_data_ptr<int64_t>();
    places_of_row.resize(splits.numel() - 1);
    for (size_t row = 0; row < places_of_row.size(); ++row) {
      for (int64_t i = offsets[row]; i < offsets[row + 1]; ++i) {
        places_of_row[row].push_back(i);
      }
    }
  }
  std::vector<int64_t> flat_places;
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < rows.numel(); ++i) {
    const auto& places = places_of_row.at(rows[i].item<int64_t>());
    flat_places.insert(flat_places.end(), places.begin(), places.end());
    lengths.push_back(static_cast<int64_t>(places.size()));
  }
  const at::Tensor places = at::tensor(flat_places, at::kLong);
  const at::Tensor row_lengths = at::tensor(lengths, at::kLong);
  values = values.index_select(0, places);
  if (!shape.defined()) {
    return {RaggedFeature::from_lengths(values, row_lengths), places};
  }
  indices = indices.index_select(0, places);
  indices.select(1, 0).copy_(
      at::arange(rows.numel(), at::kLong).repeat_interleave(row_lengths));
  shape[0] = rows.numel();
  return {SparseFeature{indices, values, shape}, places};
}

// A batch of `size` examples, the example's rows over and over.
ExportExample with_batch_size(
    const ExportExample& example,
    int64_t batch,
    int64_t size) {
  const at::Tensor rows = at::arange(size, at::kLong).remainder(batch);
  std::vector<Feature> features;
  std::map<std::string, at::Tensor> places;  // by path
  std::map<int64_t, at::Tensor> places_of_count;
  example.features.for_each([&](const std::string& path, const Feature& from) {
    const int64_t group = rows_of(path, from) / batch;
    const at::Tensor all =
        (rows.unsqueeze(1) * group + at::arange(group, at::kLong).unsqueeze(0))
            .flatten();
    SelectedRows selected = select_rows(from, all);
    features.push_back(std::move(selected.feature));
    if (selected.places.defined()) {
      const std::vector<at::Tensor> parts = parts_of(from);
      places_of_count[parts[parts.size() - 2].numel()] = selected.places;
      places[path] = selected.places;
    }
  });
  std::vector<std::optional<Feature>> weights;
  example.weights.for_each([&](const std::string& path,
                               const std::optional<Feature>& leaf) {
    const bool is_per_id = leaf && places.count(path) > 0;
    weights.push_back(
        is_per_id ? std::get<at::Tensor>(*leaf).index_select(0, places[path])
                  : leaf);
  });
  std::vector<at::Tensor> inputs;
  for (const at::Tensor& input : example.inputs) {
    const int64_t count = input.dim() == 0 ? -1 : input.size(0);
    if (count == batch) {
      inputs.push_back(input.index_select(0, rows));
    } else if (places_of_count.count(count) > 0) {
      inputs.push_back(input.index_select(0, places_of_count[count]));
    } else {
      inputs.push_back(input);
    }
  }
  return {
      .features = example.features.pack(std::move(features)),
      .weights = example.weights.pack(std::move(weights)),
      .inputs = std::move(inputs)};
}

class ModelExport {
 public:
  ModelExport(const detail::ExportedModel& model, const ExportOptions& options)
      : model_(model), options_(options) {}

  jit::Module script(const ExportExample& example) {
    model_outputs(example);  // also finds the layers
    TESSERA_CHECK_VALUE(
        !layers_.empty(),
        "[export_torchscript] expected a model whose forward() calls a TPUEmbedding, but {} calls none, and looks nothing up in an EmbeddingEngineModule either. Such a model is for LibTorch's own tools.",
        model_.module.name());
    jit::Module root = mirror(model_.module);
    for (const auto& [state, exported] : layers_) {
      TESSERA_CHECK_VALUE(
          mirrored_.count(state) > 0,
          "[export_torchscript] the model calls a TPUEmbedding or an EmbeddingEngine that is none of its submodules. Hold it by register_module(). An engine is one as an EmbeddingEngineModule.");
    }
    root.type()->addMethod(root._ivalue()->compilation_unit()->create_function(
        c10::QualifiedName(*root.type()->name(), "compute"),
        trace(root, example)));
    root.define(forward_source(example), std::make_shared<PythonNames>());
    detach_tensors(root);
    return root;
  }

  // Of the model itself, its tables as they are in the file.
  std::vector<at::Tensor> model_outputs(const ExportExample& batch) {
    const ForwardInterception interception([this](
                                               const auto& state,
                                               const auto& structure,
                                               const auto& features,
                                               const auto& weights) {
      check_has_all(structure, features);
      return look_up_all(exported(state, structure), features, weights);
    });
    return model_.forward(batch);
  }

 private:
  // Under NoGradGuard forward() takes some of a layer's features, a script does not.
  static void check_has_all(
      const Nest<FeatureConfig>& structure,
      const Features& features) {
    const at::AutoGradMode as_in_training(true);
    try {
      (void)part_of(structure, features);
    } catch (const c10::ValueError& error) {
      C10_THROW_ERROR(
          ValueError,
          c10::str(
              error.what_without_backtrace(),
              " A model that is exported looks up all features of a layer."));
    }
  }

  ExportedLayer& exported(
      const EmbeddingState& state,
      const Nest<FeatureConfig>& structure) {
    const auto found = layers_.find(&state);
    return found != layers_.end()
        ? found->second
        : layers_.emplace(&state, export_layer(state, structure, options_))
              .first->second;
  }

  static Nest<at::Tensor> look_up_all(
      const ExportedLayer& exported_layer,
      const Features& features,
      const Weights& weights) {
    Batch batch = read_batch(
        exported_layer.structure, exported_layer.features, features, weights);
    std::vector<at::Tensor> activations;
    for (size_t i = 0; i < batch.bags.size(); ++i) {
      activations.push_back(
          look_up_stored(exported_layer, i, std::move(batch.bags[i])));
    }
    return exported_layer.structure.pack(std::move(activations));
  }

  // The model's tree of modules, with its parameters and buffers; an embedding
  // in it becomes a script.
  jit::Module mirror(const torch::nn::Module& module) {
    if (const auto tables = TableModule::of(module)) {
      return mirrored_
          .emplace(
              tables->state, exported(*tables->state, *tables->features).module)
          .first->second;
    }
    if (const auto found = mirrored_.find(&module); found != mirrored_.end()) {
      return found->second;
    }
    jit::Module copy = make_module(type_name(module));
    mirrored_.emplace(&module, copy);
    std::set<std::string> taken;
    const auto name_of = [&](const std::string& name) {
      return *taken.insert(attribute_name(name, taken)).first;
    };
    // Live, for the tracer knows tensors by identity.
    for (const auto& entry : module.named_parameters(/*recurse=*/false)) {
      copy.register_parameter(
          name_of(entry.key()), entry.value(), /*is_buffer=*/false);
    }
    for (const auto& entry : module.named_buffers(/*recurse=*/false)) {
      copy.register_buffer(name_of(entry.key()), entry.value());
    }
    for (const auto& entry : module.named_children()) {
      const auto tables = TableModule::of(*entry.value());
      if (!tables || layers_.count(tables->state) > 0) {
        copy.register_module(name_of(entry.key()), mirror(*entry.value()));
      }
    }
    return copy;
  }

  // "torch::nn::LinearImpl" is a Linear, "SumImpl<at::Tensor>" a Sum.
  static std::string type_name(const torch::nn::Module& module) {
    std::string name = module.name();
    name = name.substr(0, name.find('<'));
    name = name.substr(name.find_last_of(':') + 1);
    if (name.ends_with("Impl")) {
      name.resize(name.size() - 4);
    }
    return attribute_name(name, {"TPUEmbedding"});
  }

  std::shared_ptr<jit::Graph> trace(
      jit::Module& root,
      const ExportExample& example) {
    const ForwardInterception interception([this](
                                               const auto& state,
                                               const auto& structure,
                                               const auto& features,
                                               const auto& weights) {
      check_has_all(structure, features);
      return call_script(exported(state, structure), features, weights);
    });
    jit::Stack inputs;
    for (const at::Tensor& tensor : flatten(example)) {
      inputs.emplace_back(tensor);
    }
    const auto run = [&](const jit::Stack& tensors) -> jit::Stack {
      const std::vector<at::Tensor> outputs =
          model_.forward(unflatten(example, tensors));
      if (model_.gives_list) {
        return {Parts(outputs)};
      }
      return {outputs[0]};
    };
    std::shared_ptr<jit::Graph> graph;
    try {
      graph = jit::tracer::trace(
                  inputs,
                  run,
                  [](const torch::autograd::Variable&) { return ""; },
                  /*strict=*/false,  // without its warning about lists
                  /*force_outplace=*/false,
                  &root)
                  .first->graph;
    } catch (const c10::ValueError&) {
      throw;
    } catch (const std::exception& error) {
      TESSERA_CHECK_VALUE(
          false,
          "[export_torchscript] LibTorch can't trace the model: {}. Register its tensors as parameters or buffers.",
          reason_of(error));
    }
    jit::EliminateDeadCode(graph);
    check_filled(*graph);
    // Named after parameters, a local `torch` would hide LibTorch's operators.
    for (jit::Node* node : graph->nodes()) {
      for (jit::Value* output : node->outputs()) {
        output->setDebugName("");
      }
    }
    return graph;
  }

  // at::tensor(values) is traced as an empty tensor: values that C++ writes
  // into memory are no operator.
  static void check_filled(const jit::Graph& graph) {
    for (const jit::Node* node : graph.nodes()) {
      const std::string kind = node->kind().toUnqualString();
      if (kind.find("empty") == std::string::npos) {
        continue;
      }
      const auto& uses = node->output()->uses();
      TESSERA_CHECK_VALUE(
          std::any_of(
              uses.begin(),
              uses.end(),
              [](const jit::Use& use) {
                const std::string user = use.user->kind().toUnqualString();
                return user.ends_with("_");
              }),
          "[export_torchscript] expected tensors that operators compute, but forward() fills one from C++ values, with at::tensor() or through its memory. Make it with torch::tensor(), register it as a buffer, or pass it as an input.");
    }
  }

  // While tracing: the lookup is a call of the embedding's script.
  static Nest<at::Tensor> call_script(
      const ExportedLayer& exported_layer,
      const Features& features,
      const Weights& weights) {
    Nest<at::Tensor> activations;
    {
      const jit::ResourceGuard resume(jit::tracer::pauseTracing());
      activations = look_up_all(exported_layer, features, weights);
    }
    const auto inputs =
        leaves_like(exported_layer.structure, features, "features");
    std::vector<const std::optional<Feature>*> input_weights(inputs.size());
    if (!weights.empty()) {
      input_weights =
          some_leaves_like(exported_layer.structure, weights, "weights");
    }
    const std::vector<at::Tensor> outputs = activations.flatten();
    for (size_t i = 0; i < inputs.size(); ++i) {
      std::optional<at::Tensor> weight;
      if (input_weights[i] != nullptr && input_weights[i]->has_value()) {
        const std::vector<at::Tensor> parts = parts_of(**input_weights[i]);
        weight = parts[parts.size() == 3 ? 1 : 0];
      }
      jit::tracer::setValueTrace(
          outputs[i],
          insert_call(exported_layer, i, parts_of(*inputs[i]), weight));
    }
    return activations;
  }

  static jit::Value* insert_call(
      const ExportedLayer& layer,
      size_t index,
      const std::vector<at::Tensor>& parts,
      const std::optional<at::Tensor>& weight) {
    jit::Graph& graph = *getTracingState()->graph;
    std::vector<jit::Value*> part_values;
    part_values.reserve(parts.size());
    for (const at::Tensor& part : parts) {
      part_values.push_back(traced(layer.paths[index], part));
    }
    jit::Value* list =
        graph.insertNode(graph.createList(c10::TensorType::get(), part_values))
            ->output();
    jit::Value* weight_value = weight ? traced(layer.paths[index], *weight)
                                      : graph.insertConstant(jit::IValue());
    const std::string method = "feature_" + std::to_string(index);
    const std::vector<jit::NamedValue> arguments{
        getValueTrace(layer.module._ivalue()), list, weight_value};
    return graph.insertMethodCall(
        method,
        jit::matchSchema(
            layer.module.get_method(method).function().getSchema(),
            jit::SourceRange(),
            graph,
            arguments,
            {}));
  }

  // Another tensor would become a constant: the example's ids for ever.
  static jit::Value* traced(const std::string& path, const at::Tensor& tensor) {
    TESSERA_CHECK_VALUE(
        getTracingState()->hasValue(tensor),
        "[export_torchscript] feature '{}': expected ids and weights that come from the model's inputs by operators on tensors, but got a tensor made another way. Compute it with LibTorch's operators, or before the model.",
        shorten(path));
    return getValueTrace(tensor);
  }

  static std::vector<at::Tensor> flatten(const ExportExample& batch) {
    std::vector<at::Tensor> tensors;
    for (const Feature& feature : batch.features.flatten()) {
      for (const at::Tensor& part : parts_of(feature)) {
        tensors.push_back(part);
      }
    }
    for (const std::optional<Feature>& weight : batch.weights.flatten()) {
      if (weight) {
        tensors.push_back(std::get<at::Tensor>(*weight));
      }
    }
    tensors.insert(tensors.end(), batch.inputs.begin(), batch.inputs.end());
    return tensors;
  }

  // The other way: a batch of the example's structure.
  static ExportExample unflatten(
      const ExportExample& example,
      const jit::Stack& tensors) {
    size_t next = 0;
    std::vector<Feature> features;
    for (const Feature& feature : example.features.flatten()) {
      std::vector<at::Tensor> parts;
      for (size_t i = parts_of(feature).size(); i > 0; --i) {
        parts.push_back(tensors[next++].toTensor());
      }
      features.push_back(feature_of(parts));
    }
    std::vector<std::optional<Feature>> weights = example.weights.flatten();
    for (std::optional<Feature>& weight : weights) {
      if (weight) {
        weight = tensors[next++].toTensor();
      }
    }
    std::vector<at::Tensor> inputs;
    while (next < tensors.size()) {
      inputs.push_back(tensors[next++].toTensor());
    }
    return {
        .features = example.features.pack(std::move(features)),
        .weights = example.weights.pack(std::move(weights)),
        .inputs = std::move(inputs)};
  }

  // forward(features, weights, input_0, ...) takes dicts apart for compute().
  std::string forward_source(const ExportExample& example) const {
    std::string parameters = "self, features: Dict[str, List[Tensor]]";
    std::string body;
    std::vector<std::string> arguments;
    example.features.for_each(
        [&](const std::string& path, const Feature& feature) {
          const size_t count = parts_of(feature).size();
          const std::string name = fmt::format("feature_{}", arguments.size());
          body += fmt::format(
              "    {} = self.parts_of(features, {}, {})\n",
              name,
              quote(path),
              count);
          for (size_t i = 0; i < count; ++i) {
            arguments.push_back(fmt::format("{}[{}]", name, i));
          }
        });
    if (model_.takes_weights) {
      parameters += ", weights: Dict[str, Tensor]";
    }
    example.weights.for_each(
        [&](const std::string& path, const std::optional<Feature>& weight) {
          if (weight) {
            arguments.push_back(
                fmt::format("self.weights_of(weights, {})", quote(path)));
          }
        });
    for (size_t i = 0; i < model_.inputs; ++i) {
      arguments.push_back(fmt::format("input_{}", i));
      parameters += fmt::format(", input_{}: Tensor", i);
    }
    return fmt::format(
        "{}\ndef forward({}) -> {}:\n{}    return self.compute({})\n",
        kModelInputs,
        parameters,
        model_.gives_list ? "List[Tensor]" : "Tensor",
        body,
        fmt::join(arguments, ", "));
  }

  const detail::ExportedModel& model_;
  const ExportOptions& options_;
  // The layers that the model calls.
  std::map<const EmbeddingState*, ExportedLayer> layers_;
  // By the module's address, or by that of its state where it has tables.
  std::map<const void*, jit::Module> mirrored_;
};

std::vector<at::Tensor> file_outputs(
    jit::Module& loaded,
    const detail::ExportedModel& model,
    const ExportExample& batch) {
  FeatureDict features;
  batch.features.for_each([&](const std::string& path, const Feature& feature) {
    features.insert(path, Parts(parts_of(feature)));
  });
  jit::Stack inputs;
  inputs.reserve(2 + batch.inputs.size());
  inputs.emplace_back(features);
  if (model.takes_weights) {
    TensorDict weights;
    batch.weights.for_each(
        [&](const std::string& path, const std::optional<Feature>& weight) {
          if (weight) {
            weights.insert(path, std::get<at::Tensor>(*weight));
          }
        });
    inputs.emplace_back(weights);
  }
  for (const at::Tensor& input : batch.inputs) {
    inputs.emplace_back(input);
  }
  const jit::IValue result = loaded.forward(inputs);
  return model.gives_list ? result.toTensorVector()
                          : std::vector<at::Tensor>{result.toTensor()};
}

// Empty, or what is wrong with the file's outputs.
std::string difference(
    const std::vector<at::Tensor>& actual,
    const std::vector<at::Tensor>& expected) {
  if (actual.size() != expected.size()) {
    return fmt::format(
        "{} tensors instead of {}", actual.size(), expected.size());
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (actual[i].sizes() != expected[i].sizes()) {
      return c10::str(
          "the shape ", actual[i].sizes(), " instead of ", expected[i].sizes());
    }
    if (!is_close(actual[i], expected[i])) {
      return "other values";
    }
  }
  return "";
}

// With an output_shape a model may have one batch size only.
bool has_output_shape(const torch::nn::Module& model) {
  bool found = false;
  model.apply([&](const torch::nn::Module& part) {
    if (const auto tables = TableModule::of(part)) {
      tables->features->for_each(
          [&](const std::string&, const FeatureConfig& config) {
            found = found || config.output_shape.has_value();
          });
    }
  });
  return found;
}

void check_model(
    ModelExport& exporter,
    const detail::ExportedModel& model,
    const ExportExample& example,
    jit::Module loaded) {
  const int64_t batch = batch_size_of(example.features);
  std::string refusal;
  int compared = 0;
  for (const int64_t size : {batch, int64_t{0}, int64_t{1}, 2 * batch + 1}) {
    const ExportExample inputs =
        size == batch ? example : with_batch_size(example, batch, size);
    std::vector<at::Tensor> expected;
    try {
      expected = exporter.model_outputs(inputs);
    } catch (const std::exception& error) {
      refusal = reason_of(error);
      continue;  // what the model can't compute is not asked of the file
    }
    ++compared;
    std::string problem;
    try {
      problem = difference(file_outputs(loaded, model, inputs), expected);
    } catch (const std::exception& error) {
      problem = "an error: " + reason_of(error);
    }
    TESSERA_CHECK_VALUE(
        problem.empty(),
        "[export_torchscript] at batch size {}: expected what the model gives, but the exported file gives {}. Traced from a batch of {}, it keeps what is not an operator on tensors: write flatten(1) or view({{-1, n}}) for sizes, at::where for conditions, and leave random numbers out.",
        size,
        problem,
        batch);
  }
  TESSERA_CHECK_VALUE(
      compared > (batch == 1 ? 2 : 1) || has_output_shape(model.module),
      "[export_torchscript] expected a model for batches of any size, but it takes the example's {} only: {}. An input that belongs to the batch has its size first.",
      batch,
      refusal);
}

void write_embedding(
    const EmbeddingState& state,
    const Nest<FeatureConfig>& structure,
    const std::string& path,
    const ExportOptions& options) {
  check_dtype(options);
  DurableFile file(path, kWhere);
  const ClassicLocale locale;  // LibTorch prints TorchScript by streams
  const at::NoGradGuard no_grad;
  const ExportedLayer layer = export_layer(state, structure, options);
  detach_tensors(layer.module);
  check_embedding(layer, save_and_load(layer.module, file));
  file.commit();
}

}  // namespace

void export_torchscript(
    const TPUEmbedding& embedding,
    const std::string& path,
    const ExportOptions& options) {
  TESSERA_CHECK_VALUE(
      !embedding.is_empty(),
      "[export_torchscript] expected a layer, but got an empty one.");
  TESSERA_CHECK_VALUE(
      embedding->activation_dtype() == at::kFloat,
      "[export_torchscript] the file of a layer gives float32, but activations are {}. Call to(torch::kFloat) before, or export the whole model.",
      c10::toString(embedding->activation_dtype()));
  TableModule::wait_for_lookups(*embedding);
  const auto tables = TableModule::of(*embedding);
  write_embedding(*tables->state, *tables->features, path, options);
}

void export_torchscript(
    const EmbeddingEngine& engine,
    const std::string& path,
    const ExportOptions& options) {
  EngineAccess::read(engine, [&](const EmbeddingState& state) {
    write_embedding(state, engine.options().features, path, options);
  });
}

void detail::export_torchscript(
    const ExportedModel& model,
    const std::string& path,
    const ExportExample& example,
    const ExportOptions& options) {
  check_dtype(options);
  TESSERA_CHECK_VALUE(
      options.features.empty(),
      "[export_torchscript] options.features chooses features of an embedding alone: a model needs all of its own. Leave it empty.");
  TESSERA_CHECK_VALUE(
      example.inputs.size() == model.inputs,
      "[export_torchscript] example.inputs: expected {} tensors, which forward() takes after features and weights, but got {}.",
      model.inputs,
      example.inputs.size());
  TESSERA_CHECK_VALUE(
      model.takes_weights || example.weights.empty(),
      "[export_torchscript] example.weights are given, but forward() takes no Weights. Leave them out.");
  DurableFile file(path, kWhere);
  const ClassicLocale locale;  // LibTorch prints TorchScript by streams
  const at::NoGradGuard no_grad;
  const ExportExample parts = in_parts(example);
  check_unique(parts.features.paths());
  batch_size_of(parts.features);
  const EvalMode eval_mode(model.module);
  model.module.apply([](const torch::nn::Module& part) {
    TableModule::wait_for_lookups(part);
  });
  ModelExport exporter(model, options);
  const jit::Module scripted = exporter.script(parts);
  check_model(exporter, model, parts, save_and_load(scripted, file));
  file.commit();
}

}  // namespace tessera
