#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Computes the inputs of a model as Tessera's FeaturePipeline does, from the file of save_pipeline().

    pipeline = Pipeline.load("model.pt2.pipeline.json")
    features, dense = pipeline.apply({"site": ["a.org", None], "price": [9.5, 2.0]})

A column is a list, a NumPy array, or a pair of values and row_splits if examples have several values. Its
values are integers, floats or text (str or bytes). None is a missing value; so are -2^63 in integers, NaN in
floats and the empty text. A feature is an int64 array, or a pair of values and row_splits. It needs NumPy
and xxhash: pip install numpy xxhash
"""
import itertools
import json
import warnings

import numpy as np
import xxhash

MISSING = -(2**63)
HASHED = ("Hash", "Hash64", "Cross", "Cross64")
NUMBERS = ("Log1p", "Normalize")
KINDS = {"int64": "integers", "uint64_bits": "integers", "float32": "floats", "text": "text"}
READABLE = {
    **dict.fromkeys(HASHED, ("integers", "text")),
    **dict.fromkeys(NUMBERS, ("integers", "floats")),
    "Bucketize": ("integers", "floats"),
    "Identity": ("integers",),
}


# snippet: definition
def hash_value(value, seed):
    """XXH3 with 64 bits, of the 8 bytes of an integer (the lowest first) or of the bytes of a text."""
    data = value if isinstance(value, bytes) else (value % 2**64).to_bytes(8, "little")
    return xxhash.xxh3_64_intdigest(data, seed=seed % 2**64)


def hash_values(values, salt):
    """The hash of a combination of values, in the order of the columns."""
    result = salt % 2**64
    for value in values:
        result = hash_value(hash_value(value, salt), result)
    return result


def key_of(hashed):
    """The key of a hash: the int64 with the same bits. Three keys are marks and become others."""
    key = hashed - 2**64 if hashed >= 2**63 else hashed
    return key ^ 2**40 if key in (-1, -2, 2**63 - 1) else key


def make_id(name, config, index):
    """The function from a value, or from a tuple of values, to its id. The caller adds 1 for own_id, by which
    0 is the id of missing values."""
    own = 1 if config["missing"] == "own_id" else 0
    if name == "Hash":
        return lambda value: hash_value(value, config["salt"]) % (config["num_bins"] - own)
    if name == "Hash64":
        return lambda value: key_of(hash_value(value, config["salt"]))
    if name == "Cross":
        return lambda values: hash_values(values, config["salt"]) % (config["num_bins"] - own)
    if name == "Cross64":
        return lambda values: key_of(hash_values(values, config["salt"]))
    if name == "Vocabulary":
        unknown = config["num_oov_indices"]

        def position(value):
            if value in index:
                return unknown + index[value]
            if unknown == 0:
                raise IndexError(f"{value!r} is not in the vocabulary, and num_oov_indices is 0")
            return hash_value(value, 0) % unknown

        return position
    if name == "Identity":

        def identity(value):
            if 0 <= value < config["num_ids"]:
                return value
            if config["default_id"] is None:
                raise IndexError(f"ids must be in [0, {config['num_ids']}), but got {value}")
            return config["default_id"]

        return identity
    # Bucketize. Floats are compared as float32, integers as float64.
    doubles = np.array(config["boundaries"], np.float64)
    return lambda value: int(
        np.searchsorted(doubles.astype(np.float32), value, "right")
        if isinstance(value, np.float32)
        else np.searchsorted(doubles, np.float64(value), "right")
    )
# end snippet


def number_of(name, config, value):
    """The number of Log1p or Normalize, in float64."""
    if name == "Log1p":
        return np.log1p(max(value, 0.0))
    return (value - config["mean"]) / max(np.sqrt(config["variance"]), 1e-7)


def kind_of(name, value):
    for kind, types in (("text", (str, bytes)), ("floats", (float, np.floating)), ("integers", (int, np.integer))):
        if isinstance(value, types):
            return kind
    raise TypeError(f"column '{name}' must have integers, floats or text, but has {value!r}")


def to_bytes(text):
    return text.encode() if isinstance(text, str) else bytes(text)


def is_missing(value):
    return value in (b"", MISSING) or value != value


class Column:
    """Values with their kind ("integers", "floats" or "text"). Missing ones are None."""

    def __init__(self, name, given):
        self.row_splits = None
        if isinstance(given, tuple):
            given, splits = given
            self.row_splits = np.asarray(splits, np.int64)
        if isinstance(given, np.ndarray) and given.dtype == np.uint64:
            given = given.view(np.int64)  # the same bits
        values = list(given)
        kinds = {kind_of(name, value) for value in values if value is not None}
        if isinstance(given, np.ndarray) and given.dtype.kind in "iuf":
            kinds.add("floats" if given.dtype.kind == "f" else "integers")
        if kinds == {"integers", "floats"}:
            kinds = {"floats"}
        if len(kinds) > 1:
            raise TypeError(f"column '{name}' mixes {' and '.join(sorted(kinds))}")
        self.kind = kinds.pop() if kinds else None  # None if all values are missing
        convert = {"text": to_bytes, "floats": np.float32, "integers": int, None: None}[self.kind]
        values = [None if value is None else convert(value) for value in values]
        self.values = [None if value is None or is_missing(value) else value for value in values]

    def __len__(self):
        return len(self.values) if self.row_splits is None else len(self.row_splits) - 1

    def example(self, i):
        if self.row_splits is None:
            return [self.values[i]]
        return self.values[self.row_splits[i] : self.row_splits[i + 1]]

    def missing_value(self):
        """What a hash takes for a missing value under as_value."""
        return b"" if self.kind == "text" else MISSING


class Pipeline:
    def __init__(self, config):
        if config["format_version"] not in (1, 2):
            raise ValueError(f"format_version must be 1 or 2, but got {config['format_version']}")
        self.types = dict(config.get("types", {}))
        self.outputs = [self._prepare(output) for output in config["outputs"]]
        uses = {}
        for output in self.outputs:
            for column in output["columns"]:
                uses.setdefault(column, set(KINDS.values())).intersection_update(output["readable"])
        for column, kinds in uses.items():  # the types that only one kind is left for
            if kinds in ({"integers"}, {"text"}):
                self.types.setdefault(column, "text" if kinds == {"text"} else "int64")

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as file:
            return cls(json.load(file))

    @staticmethod
    def _prepare(output):
        name = output["transform"]["class_name"]
        default_missing = "as_value" if name.startswith("Cross") else "error" if name == "Identity" else "own_id"
        config = {
            "salt": 0,
            "missing": default_missing,
            "num_oov_indices": 1,
            "default_id": None,
            "missing_value": 0.0,
            "mean": 0.0,
            "variance": 1.0,
            **output["transform"]["config"],
        }
        index, readable = {}, READABLE.get(name)
        if name == "Vocabulary":
            values = config["values"]
            if isinstance(values[0], int):
                readable = ("integers",)
            else:
                readable = ("text",)
                values = [bytes.fromhex(v["hex"]) if isinstance(v, dict) else v.encode() for v in values]
            index = {value: i for i, value in enumerate(values)}
        elif readable is None:
            raise ValueError(f"output '{output['name']}' has the unknown transform '{name}'")
        return {
            "name": output["name"],
            "columns": output["columns"],
            "class_name": name,
            "config": config,
            "readable": readable,
            "max_length": output.get("max_length", 0),
            "id_of": None if name in NUMBERS else make_id(name, config, index),
        }

    def _read(self, output, columns, assumed):
        """The columns of an output, with their kinds checked."""
        found = []
        for name in output["columns"]:
            if name not in columns:
                raise ValueError(f"output '{output['name']}': column '{name}' is missing")
            column = columns[name]
            known = KINDS[self.types[name]] if name in self.types else None
            if column.kind is None:
                column.kind = known or output["readable"][0]
            if column.kind not in output["readable"] or known not in (None, column.kind):
                expected = known or " or ".join(output["readable"])
                raise ValueError(f"column '{name}' has {column.kind}, but the pipeline takes {expected}")
            if known is None and output["class_name"] in HASHED and column.values:
                assumed[name] = "text" if column.kind == "text" else "int64"
            found.append(column)
        return found

    def _ids(self, output, columns):
        """The ids of each example."""
        policy, id_of = output["config"]["missing"], output["id_of"]
        is_cross = output["class_name"].startswith("Cross")
        shift = 1 if policy == "own_id" else 0
        known, examples = {}, []
        for i in range(len(columns[0])):
            ids = []
            for values in itertools.product(*(column.example(i) for column in columns)):
                if None in values and policy != "as_value":
                    if policy == "error":
                        raise ValueError(f"output '{output['name']}': a value is missing")
                    if policy == "own_id":
                        ids.append(0)
                    continue
                if None in values:
                    values = tuple(c.missing_value() if v is None else v for c, v in zip(columns, values))
                if values not in known:
                    known[values] = shift + id_of(values if is_cross else values[0])
                ids.append(known[values])
            examples.append(ids)
        return examples

    def apply(self, columns):
        """Returns a dict with a feature for each output to ids, and the numbers [batch, num_dense]."""
        columns = {name: Column(name, values) for name, values in columns.items()}
        features, numbers, assumed = {}, [], {}
        for output in self.outputs:
            found = self._read(output, columns, assumed)
            if output["id_of"] is None:
                missing = output["config"]["missing_value"]
                for column in found:
                    values = [
                        missing if v is None else number_of(output["class_name"], output["config"], float(v))
                        for v in column.values
                    ]
                    numbers.append(np.array(values, np.float64).astype(np.float32))
                    if not np.isfinite(numbers[-1]).all():
                        raise ValueError(f"output '{output['name']}': a number is not finite in float32")
                continue
            examples = self._ids(output, found)
            if output["max_length"] > 0:
                examples = [ids[: output["max_length"]] for ids in examples]
            values = np.array([id for ids in examples for id in ids], np.int64)
            is_ragged = any(column.row_splits is not None for column in found)
            if is_ragged or output["config"]["missing"] == "drop":
                splits = np.cumsum([0] + [len(ids) for ids in examples], dtype=np.int64)
                features[output["name"]] = (values, splits)
            else:
                features[output["name"]] = values
        if assumed:
            warnings.warn(f"the file lacks types of hashed columns; assuming those of this batch: {assumed}")
            self.types.update(assumed)
        batch = len(next(iter(columns.values()))) if columns else 0
        dense = np.stack(numbers, axis=1) if numbers else np.zeros((batch, 0), np.float32)
        return features, dense
