// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/torchscript/torchscript_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "packages/export/src/trace/example_batch.h"
#include "src/common/names.h"
#include "src/features/output_shapes.h"
#include "src/tables/combiner_operators.h"

namespace tessera::exporting {

namespace {

// Repeats the checks of src/features/read_*_bags.cpp and the sums of src/engine/lookup.cpp
// in TorchScript. An id in bag -1 is dropped. For a key table, find_keys() replaces
// the keys by the numbers of stored rows, or by -1 for the padding key.
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
        raise ValueError("[feature '{}'] row_splits must have the shape [batch + 1], but got {}. Correct the batch.".format(name, splits.shape))
    batch = splits.numel() - 1
    lengths = splits[1:] - splits[:-1]
    if int(splits[0]) != 0 or int(splits[batch]) != values.numel() or bool((lengths < 0).any()):
        raise ValueError("[feature '{}'] row_splits must begin with 0, must not decrease, and must end with the number of values, {}. Correct the batch.".format(name, values.numel()))
    rows = torch.repeat_interleave(lengths)
    shape = [batch]
    length = max_length
    if length > 0:
        shape = [batch, length]
        self.check_shape(name, shape, output_shape)
    elif len(output_shape) > 0 and min(output_shape) >= 0:
        shape = output_shape
        num_bags = self.product(output_shape)
        if fixed_rows >= 0 and fixed_rows != batch:
            raise ValueError("[feature '{}'] output_shape {} fixes the number of rows of a ragged batch to {}, but this batch has {} rows. Correct the batch.".format(name, output_shape, fixed_rows, batch))
        if num_bags != batch:
            if batch == 0 or num_bags < batch or num_bags % batch != 0:
                raise ValueError("[feature '{}'] the product of output_shape must be a multiple of the number of rows, but got {} for {} rows. Correct the batch.".format(name, output_shape, batch))
            if is_weighted:
                raise ValueError("[feature '{}'] weights are given, but output_shape {} treats each row as a sequence, which is not combined. Leave the weights out.".format(name, output_shape))
            length = num_bags // batch
    elif len(output_shape) > 0:
        others = 1
        unknown = 0
        for size in output_shape:
            if size < 0:
                unknown = unknown + 1
            else:
                others = others * size
        if unknown > 1:
            raise ValueError("[feature '{}'] a ragged feature must have at most one unknown dimension in its output shape, but got {}. Set the others in output_shape before the export.".format(name, output_shape))
        complete: List[int] = []
        for size in output_shape:
            complete.append(size if size >= 0 else batch // max(others, 1))
        shape = complete
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
        raise ValueError("[feature '{}'] dense_shape must have 2 entries or more, but has the shape {}. Correct the batch.".format(name, sizes.shape))
    if indices.shape != [nnz, rank]:
        raise ValueError("[feature '{}'] indices must have the shape [nnz, rank] = [{}, {}], but got {}. Correct the batch.".format(name, nnz, rank, indices.shape))
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
        position = indices[:, axes]
        bag = (bag * max_length + position).masked_fill(position >= max_length, -1)
        shape = shape + [max_length]
    self.check_shape(name, shape, output_shape)
    return bag, shape, max_length == 0 or rank > 2

def find_keys(self, name: str, parts: List[Tensor], keys: Tensor, padding_key: Optional[Tensor]) -> List[Tensor]:
    found: List[Tensor] = []
    for i in range(len(parts)):
        part = parts[i]
        if i == max(len(parts) - 2, 0):
            ids = self.integers(name, "ids" if len(parts) == 1 else "values", part).contiguous()
            place = torch.searchsorted(keys, ids)
            part = place.masked_fill(keys[place] != ids, keys.numel() - 1)
            if padding_key is not None:
                part = part.masked_fill(ids == padding_key, -1)
        found.append(part)
    return found

def rows_of(self, table: Tensor, scales: Optional[Tensor], offsets: Optional[Tensor], buckets: List[float], ids: Tensor) -> Tensor:
    rows = table.index_select(0, ids).to(float32)
    if scales is not None and offsets is not None:
        rows = rows * scales.index_select(0, ids).unsqueeze(1) + offsets.index_select(0, ids).unsqueeze(1)
    if len(buckets) > 0:
        lower, upper, step = buckets[0], buckets[1], buckets[2]
        rows = torch.floor((rows.clamp(lower, upper) - lower) / step + 0.5) * step + lower
    return rows

def lookup_dense(self, name: str, part: Tensor, max_length: int, output_shape: List[int], vocabulary_size: int, zero_out_of_range: bool, table: Tensor, scales: Optional[Tensor], offsets: Optional[Tensor], buckets: List[float]) -> Tensor:
    ids = self.integers(name, "ids", part)
    if ids.dim() == 0:
        raise ValueError("[feature '{}'] a dense feature must have rank 1 or above, but got a scalar. Give it a batch dimension.".format(name))
    if max_length > 0:
        raise ValueError("[feature '{}'] a sequence feature must be sparse or ragged, but got a dense tensor. Pass it in one of these forms.".format(name))
    shape = ids.shape
    if len(shape) >= 2 and shape[-1] == 1:
        shape = shape[:-1]
    self.check_shape(name, shape, output_shape)
    ids = ids.flatten()
    valid = (ids >= 0) & (ids < vocabulary_size)
    if not bool(valid.all()):
        if not zero_out_of_range:
            raise IndexError("[feature '{}'] ids must be in [0, {}), but got {}. Correct the id.".format(name, vocabulary_size, int(ids[~valid][0])))
        rows = torch.zeros([ids.numel(), table.size(1)])
        positions = valid.nonzero().flatten()
        rows = rows.index_copy(0, positions, self.rows_of(table, scales, offsets, buckets, ids.index_select(0, positions)))
    else:
        rows = self.rows_of(table, scales, offsets, buckets, ids)
    return rows.view(shape + [table.size(1)])

def lookup(self, name: str, parts: List[Tensor], weights: Optional[Tensor], max_length: int, output_shape: List[int], fixed_rows: int, validate: bool, drops_negative: bool, zero_out_of_range: bool, vocabulary_size: int, combiner: str, table: Tensor, scales: Optional[Tensor], offsets: Optional[Tensor], buckets: List[float]) -> Tensor:
    if weights is not None and len(parts) == 1:
        raise ValueError("[feature '{}'] weights are given, but the feature is dense. Leave the weights out.".format(name))
    if weights is not None and max_length > 0 and (len(parts) != 3 or parts[2].numel() < 3):
        raise ValueError("[feature '{}'] weights are given, but this is a sequence feature. Leave the weights out.".format(name))
    if len(parts) == 1:
        return self.lookup_dense(name, parts[0], max_length, output_shape, vocabulary_size, zero_out_of_range, table, scales, offsets, buckets)
    if len(parts) != 2 and len(parts) != 3:
        raise ValueError("[feature '{}'] must be [ids], [values, row_splits] or [indices, values, dense_shape], but got {} tensors. Pass it in one of these forms.".format(name, len(parts)))
    values = parts[len(parts) - 2]
    ids = self.integers(name, "values", values)
    if ids.dim() != 1:
        raise ValueError("[feature '{}'] values must have rank 1, but got shape {}. Flatten the values.".format(name, ids.shape))
    if weights is not None:
        if not weights.is_floating_point() or weights.shape != ids.shape:
            raise ValueError("[feature '{}'] weights must be floats of shape [{}], one per id, but got shape {}. Correct the weights.".format(name, ids.numel(), weights.shape))
    is_sorted = len(parts) == 2
    if is_sorted:
        bag, shape, is_combined = self.place_ragged(name, ids, parts[1], max_length, output_shape, fixed_rows, weights is not None)
    else:
        bag, shape, is_combined = self.place_sparse(name, parts, max_length, output_shape)
    bags = self.product(shape)

    weight = weights
    if weight is not None:
        weight = weight.to(float32)
        if validate and self.is_divided(combiner):
            bag = bag.masked_fill(~(weight > 0), -1)
    is_negative = (ids < 0) & (bag >= 0)
    is_beyond = (ids >= vocabulary_size) & (bag >= 0)
    if not drops_negative and bool(is_negative.any()):
        raise IndexError("[feature '{}'] ids must be in [0, {}), but got {}. Correct the id.".format(name, vocabulary_size, int(ids[is_negative][0])))
    if not zero_out_of_range and bool(is_beyond.any()):
        raise IndexError("[feature '{}'] ids must be in [0, {}), but got {}. Correct the id.".format(name, vocabulary_size, int(ids[is_beyond][0])))
    bag = bag.masked_fill(is_negative, -1)
    kept = bag >= 0
    if not bool(kept.all()):
        positions = kept.nonzero().flatten()
        ids, bag = ids.index_select(0, positions), bag.index_select(0, positions)
        if weight is not None:
            weight = weight.index_select(0, positions)

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

    valid = ids < vocabulary_size
    if not bool(valid.all()):
        positions = valid.nonzero().flatten()
        ids, bag = ids.index_select(0, positions), bag.index_select(0, positions)
        if weight is not None:
            weight = weight.index_select(0, positions)

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

// The end of an embedding's script, after lookup_by_name().
constexpr const char* kEmbeddingForward = R"SCRIPT(
def forward(self, features: Dict[str, List[Tensor]], weights: Optional[Dict[str, Tensor]] = None) -> Dict[str, Tensor]:
    if weights is not None:
        for name in weights.keys():
            if name not in features:
                raise ValueError("[weights '{}'] were passed without the feature of that name. Leave the weights out, or pass the feature.".format(name))
    activations: Dict[str, Tensor] = {}
    for name, parts in features.items():
        weight: Optional[Tensor] = None
        if weights is not None and name in weights:
            weight = weights[name]
        activations[name] = self.lookup_by_name(name, parts, weight)
    return activations
)SCRIPT";

// The beginning of a whole model's script.
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

// The text as a string literal of TorchScript.
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

// A literal that TorchScript reads as exactly this float.
std::string float_literal(float value) {
  return fmt::format("{:.9e}", value);
}

const char* literal(bool value) {
  return value ? "True" : "False";
}

std::string feature_source(const ExportedLayer& layer, size_t index) {
  const FeatureState& feature = layer.features[index];
  const TableConfig& config = *feature.config.table;
  const kernels::Buckets buckets = buckets_of(config);
  const std::string table = "self." + stored_name(feature.table);
  const StoredTable& stored = layer.tables[feature.table];
  const bool is_int8 = stored.scales.defined();
  const IdRules rules = id_rules_of(feature.config, stored);
  const std::string path = quote(layer.paths[index]);
  std::string parts = "parts";
  if (stored.keys.defined()) {
    parts = fmt::format(
        "self.find_keys({}, parts, {}_keys, {})",
        path,
        table,
        stored.padding_key.defined() ? table + "_padding_key" : "None");
  }
  const std::vector<int64_t> output_shape =
      sizes_or(feature.output_shape.value_or(PartialShape()), -1);
  std::vector<std::string> rounding;
  if (buckets.step != 0.0F) {
    rounding = {
        float_literal(buckets.lower),
        float_literal(buckets.upper),
        float_literal(buckets.step)};
  }
  // The lists are typed local variables, because an empty literal has no element type.
  return fmt::format(
      R"SCRIPT(
def feature_{}(self, parts: List[Tensor], weights: Optional[Tensor]) -> Tensor:
    output_shape: List[int] = [{}]
    buckets: List[float] = [{}]
    return self.lookup({}, {}, weights, max_length={}, output_shape=output_shape, fixed_rows={}, validate={}, drops_negative={}, zero_out_of_range={}, vocabulary_size={}, combiner={}, table={}, scales={}, offsets={}, buckets=buckets)
)SCRIPT",
      index,
      fmt::join(output_shape, ", "),
      fmt::join(rounding, ", "),
      path,
      parts,
      feature.config.sequence_length(),
      fixed_rows_of(feature),
      literal(feature.config.validate_weights_and_indices),
      literal(rules.drops_negative),
      literal(rules.zeros_out_of_range),
      rules.rows,
      quote(to_string(config.combiner)),
      table,
      is_int8 ? table + "_scales" : "None",
      is_int8 ? table + "_offsets" : "None");
}

}  // namespace

std::string embedding_source(const ExportedLayer& layer) {
  std::string source = combiner_script() + kLookupSource;
  std::string choice =
      "\ndef lookup_by_name(self, name: str, parts: List[Tensor], weights: "
      "Optional[Tensor]) -> Tensor:\n";
  for (const size_t index : layer.exported) {
    source += feature_source(layer, index);
    choice += fmt::format(
        "    if name == {}:\n        return self.feature_{}(parts, weights)\n",
        quote(layer.paths[index]),
        index);
  }
  const std::string known = join_names(
      layer.exported, [&](size_t index) { return layer.paths[index]; });
  choice += fmt::format(
      "    raise ValueError(\"[features] '\" + name + {})\n",
      quote("' must be one of the exported features. Known: " + known + "."));
  return source + choice + kEmbeddingForward;
}

std::string forward_source(
    const detail::ExportedModel& model,
    const ExportExample& example) {
  std::string parameters = "self, features: Dict[str, List[Tensor]]";
  std::string body;
  std::vector<std::string> arguments;
  example.features.for_each([&](const std::string& path,
                                const Feature& feature) {
    const size_t count = parts_of(feature).size();
    const std::string name = fmt::format("feature_{}", arguments.size());
    body += fmt::format(
        "    {} = self.parts_of(features, {}, {})\n", name, quote(path), count);
    for (size_t i = 0; i < count; ++i) {
      arguments.push_back(fmt::format("{}[{}]", name, i));
    }
  });
  if (model.takes_weights) {
    parameters += ", weights: Dict[str, Tensor]";
  }
  example.weights.for_each(
      [&](const std::string& path, const std::optional<Feature>& weight) {
        if (weight) {
          arguments.push_back(
              fmt::format("self.weights_of(weights, {})", quote(path)));
        }
      });
  for (size_t i = 0; i < model.inputs; ++i) {
    arguments.push_back(fmt::format("input_{}", i));
    parameters += fmt::format(", input_{}: Tensor", i);
  }
  return fmt::format(
      "{}\ndef forward({}) -> {}:\n{}    return self.compute({})\n",
      kModelInputs,
      parameters,
      model.returns_list ? "List[Tensor]" : "Tensor",
      body,
      fmt::join(arguments, ", "));
}

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

}  // namespace tessera::exporting
