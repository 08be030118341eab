#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/retrieval.json with losses and gradients of tfrs.tasks.Retrieval.

    pip install tensorflow-cpu tf-keras tensorflow-recommenders
    TF_USE_LEGACY_KERAS=1 python make_retrieval_fixtures.py
"""
import json
import pathlib
from importlib import metadata

import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs

FILE = pathlib.Path(__file__).parent.parent / "golden" / "retrieval.json"
SEED = 5
PACKAGES = ["tensorflow-cpu", "tf-keras", "tensorflow-recommenders", "numpy"]

# Options of the task. "candidates" is the number of candidates, "same_id" gives all of them
# one id, and "call" lists the arguments of the call.
CASES = {
    "plain": {},
    "temperature": {"temperature": 0.2},
    "hard_negatives": {"num_hard_negatives": 3},
    "one_hard_negative": {"num_hard_negatives": 1},
    "more_hard_negatives_than_there_are": {"num_hard_negatives": 100},
    "accidental_hits": {"remove_accidental_hits": True},
    "probability": {"call": ["candidate_sampling_probability"]},
    "weights": {"call": ["sample_weight"]},
    "extra_negatives": {"candidates": 9, "remove_accidental_hits": True},
    "all_hits": {"remove_accidental_hits": True, "same_id": True},
    "hits_and_hard_negatives": {"remove_accidental_hits": True, "num_hard_negatives": 4},
    "mean": {"reduction": "mean", "call": ["sample_weight"]},
    "everything": {
        "temperature": 0.5,
        "remove_accidental_hits": True,
        "num_hard_negatives": 3,
        "candidates": 8,
        "call": ["candidate_sampling_probability", "sample_weight"],
    },
}


def tensor(array):
    array = np.asarray(array)
    return {"shape": list(array.shape), "values": [float(value) for value in array.flatten()]}


def run(random, case):
    batch, candidates, dim = 6, case.get("candidates", 6), 4
    query = tf.Variable(random.normal(size=(batch, dim)).astype("float32"))
    candidate = tf.Variable(random.normal(size=(candidates, dim)).astype("float32"))
    ids = random.integers(0, 4, size=candidates)
    if case.get("same_id"):
        ids[:] = 1
    inputs = {
        "candidate_sampling_probability": random.uniform(0.001, 1.0, size=candidates).astype("float32"),
        "sample_weight": random.uniform(0.0, 2.0, size=batch).astype("float32"),
    }
    inputs = {name: inputs[name] for name in case.get("call", [])}
    names = ("temperature", "num_hard_negatives", "remove_accidental_hits")
    options = {name: case[name] for name in names if name in case}
    loss = None  # the default of the task, a sum
    if case.get("reduction") == "mean":
        loss = tf.keras.losses.CategoricalCrossentropy(
            from_logits=True, reduction=tf.keras.losses.Reduction.SUM_OVER_BATCH_SIZE
        )
    task = tfrs.tasks.Retrieval(loss=loss, **options)
    with tf.GradientTape() as tape:
        result = task(
            query, candidate, candidate_ids=tf.constant(ids), compute_metrics=False, **inputs
        )
    query_gradient, candidate_gradient = tape.gradient(result, [query, candidate])
    options["reduction"] = case.get("reduction", "sum")
    return {
        "options": options,
        "query": tensor(query.numpy()),
        "candidate": tensor(candidate.numpy()),
        "candidate_ids": [int(id) for id in ids],
        **{name: tensor(value) for name, value in inputs.items()},
        "loss": float(result),
        "query_gradient": tensor(query_gradient.numpy()),
        "candidate_gradient": tensor(candidate_gradient.numpy()),
    }


def main():
    random = np.random.default_rng(SEED)
    versions = {package: metadata.version(package) for package in PACKAGES}
    cases = {name: run(random, case) for name, case in CASES.items()}
    FILE.write_text(json.dumps({"versions": versions, "seed": SEED, "cases": cases}, indent=1) + "\n")
    print(*(f"{package} {version}" for package, version in versions.items()))


if __name__ == "__main__":
    main()
