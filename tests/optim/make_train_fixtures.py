# SPDX-License-Identifier: Apache-2.0
"""Trains tables with Keras's Adamax and Nadam, for keras_train_test.

Writes tests/golden/train_adamax_nadam.json in the format of the other train
files. A case has a table of sum bags, the gradients of its activations in each
step, and the rows and slots that Keras computes from them. Keras 3 and the new
optimizers of tf_keras get dense gradients, with zeros for rows without one.
Legacy Keras gets IndexedSlices. A case names its fidelity if that is not exact.

It also prints what empty bags do to row 0 in legacy Keras, for the same test.

  pip install tensorflow-cpu tf_keras keras numpy
  python tests/optim/make_train_fixtures.py
"""

import json
import os
import pathlib

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import numpy as np
import tensorflow as tf
import tf_keras

SEED = 5
OUTPUT = (
    pathlib.Path(__file__).parent.parent / "golden" / "train_adamax_nadam.json"
)
BAGS = 4

random = np.random.default_rng(SEED)
legacy = tf_keras.optimizers.legacy


def rounded(array):
    return [float(f"{value:.8g}") for value in np.asarray(array).flatten()]


def rows_of(array):
    return [rounded(row) for row in np.asarray(array)]


def floats(*shape):
    return np.round(random.normal(size=shape), 3).astype(np.float32)


def bags_over(vocabulary_size, touch_all):
    """Ragged ids with duplicates, of some rows or of all of them."""
    bags = [
        random.integers(0, vocabulary_size, random.integers(0, 4)).tolist()
        for _ in range(BAGS)
    ]
    if touch_all:
        bags[0] += list(range(vocabulary_size))
    return bags


class Trainer:
    """One table and an optimizer of any of the three libraries."""

    def __init__(self, optimizer, rows):
        self.optimizer = optimizer
        self.is_keras3 = isinstance(optimizer, keras.optimizers.Optimizer)
        self.is_legacy = isinstance(optimizer, legacy.Optimizer)
        variable = keras.Variable if self.is_keras3 else tf.Variable
        self.table = variable(rows)

    def step(self, bags, gradients):
        ids = [row for bag in bags for row in bag]
        terms = [gradients[bag] for bag, ids in enumerate(bags) for _ in ids]
        dim = gradients.shape[1]
        if self.is_legacy:
            gradient = tf.IndexedSlices(
                tf.reshape(tf.constant(terms, tf.float32), [-1, dim]),
                tf.constant(ids, tf.int64),
                tf.constant(self.table.shape),
            )
        else:
            gradient = np.zeros(self.table.shape, np.float32)
            for row, term in zip(ids, terms):
                gradient[row] += term
            gradient = tf.constant(gradient)
        self.optimizer.apply_gradients([(gradient, self.table)])
        return np.asarray(self.table)

    def slots(self, second):
        if self.is_legacy:
            get = self.optimizer.get_slot
            return {"m": get(self.table, "m"), "v": get(self.table, "v")}
        name = "_m" if hasattr(self.optimizer, "_m") else "_momentums"
        first = getattr(self.optimizer, name)[0]
        name = "_u" if hasattr(self.optimizer, "_u") else "_velocities"
        return {"m": first, second: getattr(self.optimizer, name)[0]}

    def serialized(self):
        if self.is_keras3:
            return keras.optimizers.serialize(self.optimizer)
        return tf_keras.optimizers.serialize(self.optimizer)


def case(name, optimizer, second, steps=6, touch_all=False, fidelity=None):
    vocabulary_size = int(random.integers(5, 9))
    rows = floats(vocabulary_size, 3)
    trainer = Trainer(optimizer, rows)
    result = {
        "name": name,
        "optimizer": trainer.serialized(),
        "table": {
            "name": "t0",
            "vocabulary_size": vocabulary_size,
            "dim": 3,
            "combiner": "sum",
            "rows": rows_of(rows),
        },
        "steps": [],
    }
    if fidelity is not None:
        result["fidelity"] = fidelity
    for _ in range(steps):
        bags = bags_over(vocabulary_size, touch_all)
        gradients = floats(BAGS, 3)
        splits = np.cumsum([0] + [len(bag) for bag in bags])
        feature = {
            "name": "f0",
            "value": {
                "kind": "ragged",
                "dtype": "int64",
                "row_splits": splits.tolist(),
                "values": [row for bag in bags for row in bag],
            },
            "gradient": {"shape": [BAGS, 3], "values": rounded(gradients)},
        }
        rows_after = trainer.step(bags, gradients)
        result["steps"].append(
            {"features": [feature], "rows_after": rows_of(rows_after)}
        )
    result["slots_after"] = {
        key: rows_of(value) for key, value in trainer.slots(second).items()
    }
    return result


def cases_of(name, slot, module, label):
    """The options that Keras 3 and the new optimizers of tf_keras share."""
    make = getattr(module.optimizers, name)
    schedule = module.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
    options = {
        "plain": {"learning_rate": 0.05},
        "betas": {
            "learning_rate": 0.05,
            "beta_1": 0.7,
            "beta_2": 0.9,
            "epsilon": 1e-3,
        },
        "clip_decay": {
            "learning_rate": 0.05,
            "clipvalue": 0.5,
            "weight_decay": 0.1,
        },
        "schedule": {"learning_rate": schedule},
    }
    if module is keras:
        options["accumulate"] = {
            "learning_rate": 0.05,
            "gradient_accumulation_steps": 2,
        }
    for key, values in options.items():
        yield case(f"{label}_{name.lower()}_{key}", make(**values), slot)


def all_cases():
    for name, slot in [("Adamax", "u"), ("Nadam", "v")]:
        yield from cases_of(name, slot, keras, "keras3")
        yield from cases_of(name, slot, tf_keras, "tf_keras")
    # Long enough that Keras rounds its float32 product of the momenta often.
    yield case("keras3_nadam_long", keras.optimizers.Nadam(0.01), "v", steps=60)
    yield case("legacy_adamax", legacy.Adamax(0.1), "v")
    # Legacy Nadam moves no row without a gradient but lets its slots decay, so
    # all rows have one here.
    for decay in [0.004, 0.5]:
        yield case(
            f"legacy_nadam_decay_{decay}",
            legacy.Nadam(0.05, decay=decay),
            "v",
            touch_all=True,
            fidelity="lazy",
        )


def print_empty_bags():
    """Row 0 after a gradient of 1, and after two batches with an empty bag."""
    optimizers = {
        "SGD": legacy.SGD(0.1, momentum=0.9),
        "Adamax": legacy.Adamax(0.1),
        "RMSprop": legacy.RMSprop(0.1, momentum=0.9),
        "Adagrad": legacy.Adagrad(0.1),
        "Adam": legacy.Adam(0.1),
    }
    for name, optimizer in optimizers.items():
        table = tf.Variable([[1.0], [1.0]])
        row_0 = []
        for ids, bags in [(0, 1), (1, 2), (1, 2)]:
            # One id in the first bag; a second bag is empty.
            feature = tf.SparseTensor([[0, 0]], tf.constant([ids], tf.int64), [bags, 1])
            with tf.GradientTape() as tape:
                activations = tf.nn.safe_embedding_lookup_sparse(
                    table, feature, combiner="sum"
                )
                loss = tf.reduce_sum(activations)
            gradient = tape.gradient(loss, table)
            optimizer.apply_gradients([(gradient, table)])
            row_0.append(round(float(table[0, 0]), 7))
        print(f"empty bags, {name}: row 0 is {row_0}")


def main():
    print_empty_bags()
    cases = list(all_cases())
    lines = [json.dumps(entry, separators=(",", ":")) for entry in cases]
    OUTPUT.write_text("[" + ",\n".join(lines) + "]\n")
    print(
        f"{len(cases)} cases by tensorflow {tf.__version__}, "
        f"keras {keras.__version__}, tf_keras {tf_keras.__version__}"
    )


if __name__ == "__main__":
    main()
