# SPDX-License-Identifier: Apache-2.0
"""Computes results of Keras's preprocessing layers for keras_transforms_test.cpp.

    python packages/data/tests/make_transform_fixtures.py     # needs keras and tensorflow

It writes transforms.json beside this file and prints the versions it used. NaN and
infinities are written as strings. Only the C++ tests cover kMissing and NaN, because
Keras has no missing values except its mask tokens.
"""

import json
import math
import os
import pathlib
import random

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

layers = keras.layers


def plain(values):
    """Converts values to a list that JSON can represent."""
    return [
        str(v) if isinstance(v, float) and not math.isfinite(v) else v
        for v in np.asarray(values).tolist()
    ]


def discretization(boundaries, inputs):
    inputs = np.asarray(inputs, np.float32)
    outputs = layers.Discretization(bin_boundaries=boundaries)(inputs)
    return {"boundaries": boundaries, "inputs": plain(inputs), "ids": plain(outputs)}


def discretizations():
    random.seed(7)
    many = sorted({round(random.uniform(-50, 50), 3) for _ in range(200)})
    edges = [-1.5, 0.0, 0.1, 0.7, 2.5]
    inputs = [-math.inf, -2, -1.5, -1.4999, -0.0, 0, 0.1, 0.0999, 0.7, 0.69999, 2.5, 3, math.inf]
    return [
        discretization(edges, inputs),
        discretization([0.5], [0.0, 0.5, 1.0]),
        discretization(many, [random.uniform(-60, 60) for _ in range(300)] + many),
    ]


def lookup(layer, vocabulary, inputs, mask=None):
    known = set(vocabulary)
    return {
        "vocabulary": vocabulary,
        "num_oov_indices": layer.num_oov_indices,
        "mask": mask,
        "inputs": inputs,
        "is_known": [value in known for value in inputs],
        "ids": plain(layer(np.asarray(inputs))),
        "vocabulary_size": int(layer.vocabulary_size()),
    }


def lookups():
    numbers = [10, 30, 20, -5, 2**62, -(2**63) + 1]
    requested = numbers[::-1] + [99, 100, 0, 2**63 - 1]
    words = ["b", "a", "Ünïcode", "long " * 40]
    heard = words[::-1] + ["c", "B", "a "]
    cases = []
    for oov in (1, 3):
        for mask in (None, 0):
            layer = layers.IntegerLookup(vocabulary=numbers, num_oov_indices=oov, mask_token=mask)
            cases.append(lookup(layer, numbers, requested, mask))
        for mask in (None, ""):
            layer = layers.StringLookup(vocabulary=words, num_oov_indices=oov, mask_token=mask)
            cases.append(lookup(layer, words, heard + [""], mask))
    return cases


def adapted(layer, data, max_size):
    layer.adapt(np.asarray(data))
    vocabulary = layer.get_vocabulary(include_special_tokens=False)
    return {"data": data, "max_size": max_size, "vocabulary": [v.item() if hasattr(v, "item") else v for v in vocabulary]}


def builders():
    random.seed(11)
    numbers = [random.randrange(1, 40) ** 2 % 41 - 20 for _ in range(400)]
    words = [random.choice(["ä", "b", "bb", "B", "c", "10", "9", "zeta"]) for _ in range(60)]
    words += ["tie one", "tie two", "tie ä"]
    return [
        adapted(layers.IntegerLookup(), numbers, None),
        adapted(layers.IntegerLookup(max_tokens=8), numbers, 7),
        adapted(layers.StringLookup(), words, None),
        adapted(layers.StringLookup(max_tokens=5), words, 4),
    ]


def normalizations():
    inputs = [-3.0, 0.0, 0.5, 1e6, 7.25]
    data = np.asarray(inputs, np.float32)
    return [
        {
            "mean": mean,
            "variance": variance,
            "inputs": inputs,
            "outputs": plain(layers.Normalization(mean=mean, variance=variance, axis=None)(data)),
        }
        for mean, variance in ((0.0, 1.0), (3.0, 4.0), (-0.25, 1e-3), (1.0, 0.0))
    ]


def main():
    versions = {"keras": keras.__version__, "tensorflow": tf.__version__, "numpy": np.__version__}
    print(versions)
    fixtures = {
        "versions": versions,
        "discretization": discretizations(),
        "lookup": lookups(),
        "builder": builders(),
        "normalization": normalizations(),
    }
    path = pathlib.Path(__file__).resolve().parents[3] / "tests/golden/transforms.json"
    path.write_text(json.dumps(fixtures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
