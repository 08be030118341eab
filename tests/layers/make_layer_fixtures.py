# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/layers.json for layers_golden_test.

The file has options, weights, inputs, outputs and the gradients of
sum(output * slopes), computed by TensorFlow Recommenders and Keras-RS. It also
has inputs that these libraries refuse.

  pip install tensorflow-cpu tf_keras keras
  pip install --no-deps tensorflow-recommenders keras-rs
  python tests/layers/make_layer_fixtures.py
"""

import itertools
import json
import os
import pathlib

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # TensorFlow Recommenders needs it
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import keras
import keras_rs
import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
import tf_keras

SEED = 11
OUTPUT = pathlib.Path(__file__).parent.parent / "golden" / "layers.json"

interaction = tfrs.layers.feature_interaction
random = np.random.default_rng(SEED)


def floats(*shape):
    return np.round(random.normal(size=shape), 3).astype(np.float32)


def to_json(tensor):
    array = np.asarray(tf.convert_to_tensor(tensor))
    values = [
        int(value) if array.dtype.kind == "i" else float(f"{value:.8g}")
        for value in array.flatten()
    ]
    return {"shape": list(array.shape), "values": values}


def run(call, inputs, weights):
    """Returns the output, random slopes, and the gradients of sum(output * slopes)."""
    sources = {**inputs, **weights}
    with tf.GradientTape() as tape:
        for source in sources.values():
            tape.watch(source)
        output = call()
        slopes = tf.constant(floats(*output.shape))
        scalar = tf.reduce_sum(output * slopes)
    gradients = tape.gradient(
        scalar, sources, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    return {
        "output": to_json(output),
        "slopes": to_json(slopes),
        "gradients": {name: to_json(value) for name, value in gradients.items()},
    }


def case(layer, options, inputs, weights, call):
    return {
        "layer": layer,
        "options": options,
        "inputs": {name: to_json(value) for name, value in inputs.items()},
        "weights": {name: to_json(value) for name, value in weights.items()},
        **run(call, inputs, weights),
    }


def dot_interaction_cases():
    shapes = [(4, 3, 5), (1, 3, 5), (3, 2, 1), (2, 7, 4), (5, 1, 3), (2, 1, 1)]
    for self_interaction, skip_gather in itertools.product([False, True], repeat=2):
        options = {
            "self_interaction": self_interaction,
            "skip_gather": skip_gather,
        }
        for batch, features, dim in shapes:
            inputs = {
                str(i): tf.constant(floats(batch, dim)) for i in range(features)
            }
            layer = interaction.DotInteraction(**options)
            yield case(
                "DotInteraction",
                options,
                inputs,
                {},
                lambda: layer(list(inputs.values())),
            )


def randomize(variables):
    for variable in variables:
        variable.assign(floats(*variable.shape) / 2)


def cross_weights(layer):
    """Returns the variables under their names in Tessera."""
    kernels = ["kernel"] if layer._projection_dim is None else ["kernel_u", "kernel_v"]
    names = kernels + ["bias"] * layer._use_bias
    assert len(names) == len(layer.trainable_variables)
    return dict(zip(names, layer.trainable_variables))


def cross_case(options, shape, takes_x):
    layer = interaction.Cross(**options)
    inputs = {"x0": tf.constant(floats(*shape))}
    if takes_x:
        inputs["x"] = tf.constant(floats(*shape))
    layer(*inputs.values())
    randomize(layer.trainable_variables)
    return case(
        "Cross", options, inputs, cross_weights(layer), lambda: layer(*inputs.values())
    )


def cross_cases():
    for projection_dim, diag_scale, use_bias, takes_x in itertools.product(
        [None, 2], [0.0, 0.7], [True, False], [False, True]
    ):
        options = {
            "projection_dim": projection_dim,
            "diag_scale": diag_scale,
            "use_bias": use_bias,
        }
        yield cross_case(options, (3, 5), takes_x)
    for activation in [
        "linear", "elu", "exponential", "gelu", "mish", "relu", "selu", "sigmoid",
        "softmax", "softplus", "softsign", "swish", "tanh",
    ]:
        for projection_dim in [None, 3]:
            options = {
                "projection_dim": projection_dim,
                "diag_scale": 0.3,
                "preactivation": activation,
            }
            yield cross_case(options, (4, 6), True)
    for shape in [(1, 4), (0, 4), (6, 1), (2, 3, 4), (2, 1, 3, 4)]:
        for projection_dim in [None, 1, 7]:
            yield cross_case({"projection_dim": projection_dim}, shape, True)


def multi_layer_dcn_weights(layer):
    # TensorFlow lists all kernels u, then all kernels v with their biases.
    names = [f"cross_{i}.kernel_u" for i in range(layer._num_layers)]
    for i in range(layer._num_layers):
        names.append(f"cross_{i}.kernel_v")
        if layer._use_bias:
            names.append(f"cross_{i}.bias")
    assert len(names) == len(layer.trainable_variables)
    weights = dict(zip(names, layer.trainable_variables))
    for i, (u, v) in enumerate(zip(layer._dense_u_kernels, layer._dense_v_kernels)):
        assert weights[f"cross_{i}.kernel_u"] is u.kernel
        assert weights[f"cross_{i}.kernel_v"] is v.kernel
    return weights


def multi_layer_dcn_cases():
    grid = itertools.product([{}, {"num_layers": 1}, {"projection_dim": 3}], [True, False])
    all_options = [{**part, "use_bias": use_bias} for part, use_bias in grid]
    all_options.append({"num_layers": 5, "projection_dim": 2})
    all_options.append({"num_layers": 0})
    for options in all_options:
        for shape in [(3, 5), (1, 5), (0, 5), (2, 3, 4)]:
            layer = interaction.MultiLayerDCN(**options)
            inputs = {"x0": tf.constant(floats(*shape))}
            layer(inputs["x0"])
            randomize(layer.trainable_variables)
            yield case(
                "MultiLayerDCN",
                options,
                inputs,
                multi_layer_dcn_weights(layer),
                lambda: layer(inputs["x0"]),
            )


def feature_json(ids):
    """Returns a feature as JSON that golden_util.h reads."""
    if isinstance(ids, tf.RaggedTensor):
        parts = {"row_splits": ids.row_splits.numpy().tolist()}
        return {"kind": "ragged", "values": ids.values.numpy().tolist(), **parts}
    if isinstance(ids, tf.SparseTensor):
        return {
            "kind": "sparse",
            "indices": ids.indices.numpy().tolist(),
            "values": ids.values.numpy().tolist(),
            "dense_shape": ids.dense_shape.numpy().tolist(),
        }
    return {
        "kind": "dense",
        "shape": list(ids.shape),
        "values": ids.numpy().flatten().tolist(),
    }


def with_values(ids, values):
    """Returns a feature like `ids` with other values."""
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_values(values)
    if isinstance(ids, tf.SparseTensor):
        return tf.SparseTensor(ids.indices, values, ids.dense_shape)
    return tf.reshape(values, ids.shape)


def embed_reduce_case(combiner, ids, values):
    options = {"input_dim": 7, "output_dim": 3, "combiner": combiner}
    layer = keras_rs.layers.EmbedReduce(**options)
    layer.build(None)
    randomize(layer.trainable_variables)
    table = layer.embeddings.value
    inputs = {} if values is None else {"weights": tf.constant(values)}

    def call():
        weights = with_values(ids, inputs["weights"]) if inputs else None
        return tf.convert_to_tensor(layer(ids, weights))

    result = case("EmbedReduce", options, inputs, {"embeddings": table}, call)
    result["ids"] = {
        "dtype": ids.dtype.name,
        **feature_json(ids),
    }
    return result


def embed_reduce_cases():
    ragged = tf.ragged.constant([[1, 2], [], [6, 6, 0], [3]], dtype=tf.int64)
    sparse = tf.SparseTensor(
        [[0, 0], [0, 2], [2, 1], [3, 0], [3, 1], [3, 2]],
        tf.constant([5, 1, 0, 2, 2, 4], tf.int64),
        [4, 3],
    )
    dense = [
        [0, 6, 3],
        [2],
        [[1, 2, 3], [0, 0, 6]],
        [[4], [5], [4]],
        [[3, 3, 1, 2]],
        np.zeros((0,)),
        np.zeros((0, 3)),
        np.zeros((2, 0)),
    ]
    all_ids = [tf.constant(ids, tf.int64) for ids in dense]
    all_ids += [tf.constant([[1, 5], [6, 0]], tf.int32), ragged, sparse]
    for combiner, ids in itertools.product(["mean", "sum", "sqrtn"], all_ids):
        is_dense = isinstance(ids, tf.Tensor)
        count = tf.size(ids if is_dense else ids.values).numpy()
        yield embed_reduce_case(combiner, ids, None)
        yield embed_reduce_case(combiner, ids, floats(count))
        if not is_dense or (is_dense and len(ids.shape) == 2):
            zeros = np.zeros(count, np.float32)
            yield embed_reduce_case(combiner, ids, zeros)
        if is_dense and count == 6:  # a denominator that cancels to zero
            values = np.array([1, -1, 0, 0, 0, 0], np.float32)
            yield embed_reduce_case(combiner, ids, values)


def refused():
    """Yields cases of bad input with the errors of the originals, or None."""

    def attempt(layer, options, inputs, call):
        try:
            call()
            error = None
        except Exception as exception:  # the type does not matter
            error = type(exception).__name__
        return {
            "layer": layer,
            "options": options,
            "inputs": {name: to_json(value) for name, value in inputs.items()},
            "error": error,
        }

    for shapes in [[(2, 3), (2, 4)], [(2, 3), (3, 3)], [(0, 3), (0, 3)]]:
        inputs = {str(i): tf.constant(floats(*shape)) for i, shape in enumerate(shapes)}
        yield attempt(
            "DotInteraction",
            {},
            inputs,
            lambda: interaction.DotInteraction()(list(inputs.values())),
        )
    for options, shapes in [
        ({"diag_scale": -0.5}, [(2, 3)]),
        ({"projection_dim": 0}, [(2, 3)]),
        ({"projection_dim": -2}, [(2, 3)]),
        ({}, [(2, 3), (2, 4)]),
        ({}, [(3,)]),
        ({}, [(2, 3), (4, 3)]),
    ]:
        inputs = dict(zip(["x0", "x"], [tf.constant(floats(*s)) for s in shapes]))
        yield attempt(
            "Cross",
            options,
            inputs,
            lambda: interaction.Cross(**options)(*inputs.values()),
        )
    for options in [{"projection_dim": 0}, {"projection_dim": -1}, {"projection_dim": None}]:
        inputs = {"x0": tf.constant(floats(2, 3))}
        yield attempt(
            "MultiLayerDCN",
            options,
            inputs,
            lambda: interaction.MultiLayerDCN(**options)(inputs["x0"]),
        )
    for options, ids, weights in [
        ({"combiner": "max"}, [[1, 2]], None),
        ({"input_dim": 2}, [[1, 2]], None),
        ({}, [[1, -1]], None),
        ({}, [[[1, 2]]], None),
        ({}, [[1, 2]], [[1.0]]),
        ({}, [[1, 2]], [[1.0, 2.0], [3.0, 4.0]]),
        ({}, [1, 2], [1.0]),
        ({}, [[1, 2]], [1.0]),  # undocumented: one weight per bag
    ]:
        options = {"input_dim": 7, "output_dim": 3, **options}
        inputs = {"ids": tf.constant(ids, tf.int64)}
        if weights is not None:
            inputs["weights"] = tf.constant(weights)
        yield attempt(
            "EmbedReduce",
            options,
            inputs,
            lambda: keras_rs.layers.EmbedReduce(**options)(*inputs.values()),
        )


def main():
    versions = {
        "tensorflow": tf.__version__,
        "tf_keras": tf_keras.__version__,
        "keras": keras.__version__,
        "tensorflow_recommenders": tfrs.__version__,
        "keras_rs": keras_rs.__version__,
        "numpy": np.__version__,
    }
    cases = [
        *dot_interaction_cases(),
        *cross_cases(),
        *multi_layer_dcn_cases(),
        *embed_reduce_cases(),
    ]
    document = {
        "versions": versions,
        "seed": SEED,
        "cases": cases,
        "refused": list(refused()),
    }
    with OUTPUT.open("w") as file:
        json.dump(document, file, separators=(",", ":"))
        file.write("\n")
    print(versions)
    print(f"{len(cases)} cases in {OUTPUT}")
    for attempt in document["refused"]:
        shapes = [value["shape"] for value in attempt["inputs"].values()]
        print(attempt["layer"], attempt["options"], shapes, attempt["error"])


if __name__ == "__main__":
    main()
