#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/ranking.json with metrics and losses of Keras-RS, TFRS, TensorFlow and scikit-learn.

    pip install keras-rs tensorflow-cpu tf-keras tensorflow-recommenders scikit-learn
    python tests/layers/make_ranking_fixtures.py

Keras-RS runs in float64, on the backend tensorflow.
"""
import json
import os
import pathlib
from importlib import metadata

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # for TFRS; Keras-RS imports Keras 3

import keras
import keras_rs
import numpy as np
import tensorflow as tf
import tensorflow_recommenders as tfrs
from sklearn import calibration, metrics

FILE = pathlib.Path(__file__).parent.parent / "golden" / "ranking.json"
PACKAGES = ["keras-rs", "keras", "tensorflow-cpu", "tensorflow-recommenders", "scikit-learn", "numpy"]
METRICS = {
    "ndcg": keras_rs.metrics.NDCG,
    "recall": keras_rs.metrics.RecallAtK,
    "precision": keras_rs.metrics.PrecisionAtK,
    "mrr": keras_rs.metrics.MeanReciprocalRank,
    "map": keras_rs.metrics.MeanAveragePrecision,
}
LOSSES = {
    "pairwise_hinge": keras_rs.losses.PairwiseHingeLoss,
    "pairwise_logistic": keras_rs.losses.PairwiseLogisticLoss,
    "pairwise_soft_zero_one": keras_rs.losses.PairwiseSoftZeroOneLoss,
    "pairwise_mean_squared": keras_rs.losses.PairwiseMeanSquaredError,
    "list_mle": keras_rs.losses.ListMLELoss,
}

keras.config.set_floatx("float64")
random = np.random.default_rng(7)


def numbers(array):
    return None if array is None else np.asarray(array, np.float64).ravel().tolist()


def scores_of(*shape):
    """Different scores of few digits, so that the sorted order is unique."""
    values = random.permutation(np.arange(int(np.prod(shape)))) / 16.0 - 2.0
    return (values + 1 / 64).reshape(shape)


def lists():
    """Cases of scores, labels, mask and weights, by name."""
    queries, size = 9, 7
    labels = lambda grades: random.integers(0, grades, (queries, size)).astype(np.float64)
    weights = lambda *shape: np.round(0.25 + random.random(shape), 3)
    rare = np.zeros((queries, size))
    rare[np.arange(0, queries, 2), random.integers(0, size, len(range(0, queries, 2)))] = 1.0
    mask = random.random((queries, size)) > 0.3
    mask[2] = False
    zero_weights = weights(queries, size)
    zero_weights[::2, ::3] = 0.0
    zero_weights[4] = 0.0
    return {
        "binary": (labels(2), None, None),
        "graded": (labels(4), None, None),
        "some_lists_without_relevant_items": (rare, None, None),
        "no_relevant_item": (np.zeros((queries, size)), None, None),
        "mask": (labels(3), mask, None),
        "list_weights": (labels(2), None, weights(queries)),
        "list_weights_without_relevant_items": (rare, None, weights(queries)),
        "item_weights": (labels(4), None, weights(queries, size)),
        "item_weights_of_0": (labels(3), None, zero_weights),
        "mask_and_item_weights": (labels(3), mask, zero_weights),
    }


def metric_cases():
    cases = []
    for name, (labels, mask, weights) in lists().items():
        scores = scores_of(*labels.shape)
        results = []
        for k in [None, 1, 3, 100]:
            for metric, kind in METRICS.items():
                y_true = labels if mask is None else {"labels": labels, "mask": mask}
                value = kind(k=k, seed=1)(y_true, scores, sample_weight=weights)
                results.append({"metric": metric, "k": k, "result": float(value)})
            if mask is None and weights is None:
                results.append({"metric": "linear_ndcg", "k": k,
                                "result": float(metrics.ndcg_score(labels, scores, k=k))})
        # Items that the mask leaves out have the label -1 in Tessera.
        left_out = labels if mask is None else np.where(mask, labels, -1.0)
        cases.append({"name": name, "shape": list(labels.shape), "scores": numbers(scores),
                      "labels": numbers(left_out), "weights": numbers(weights), "results": results})
    return cases


def tie_case():
    """The mean of scikit-learn's NDCG over all orders of equal scores."""
    labels = random.integers(0, 4, (5, 8)).astype(np.float64)
    scores = random.integers(0, 3, labels.shape).astype(np.float64)
    return {"shape": list(labels.shape), "scores": numbers(scores), "labels": numbers(labels), "k": 4,
            "linear_ndcg": [float(metrics.ndcg_score(labels[i:i + 1], scores[i:i + 1], k=4)) for i in range(5)]}


def loss_cases():
    cases = []
    for name, (labels, mask, weights) in lists().items():
        scores = scores_of(*labels.shape)
        results = []
        for loss, kind in LOSSES.items():
            for temperature in [1.0, 0.5]:
                if loss == "pairwise_mean_squared" and temperature != 1.0:
                    continue  # Keras-RS ignores it
                for reduction in ["sum", "sum_over_batch_size"]:
                    y_true = labels if mask is None else {"labels": labels, "mask": mask}
                    sample_weight = weights
                    if weights is not None and weights.ndim == 1 and loss != "list_mle":
                        sample_weight = weights[:, None]
                    if weights is not None and weights.ndim == 2 and loss == "list_mle":
                        continue  # it has one loss per list
                    variable = tf.Variable(scores)
                    with tf.GradientTape() as tape:
                        value = kind(temperature=temperature, reduction=reduction)(
                            y_true, variable, sample_weight=sample_weight)
                    results.append({"loss": loss, "temperature": temperature,
                                    "reduction": "sum" if reduction == "sum" else "mean",
                                    "result": float(value), "gradient": numbers(tape.gradient(value, variable))})
        cases.append({"name": name, "shape": list(labels.shape), "scores": numbers(scores), "labels": numbers(labels),
                      "mask": None if mask is None else mask.ravel().astype(int).tolist(),
                      "weights": numbers(weights), "results": results})
    return cases


def class_cases():
    """Scores in [0, 1] with two classes, and scikit-learn's results."""
    cases = []
    for name, n, ties in [("different_scores", 151, False), ("ties", 151, True), ("one_positive", 60, True)]:
        labels = random.integers(0, 2, n)
        if name == "one_positive":
            labels = np.zeros(n, np.int64)
            labels[17] = 1
        scores = np.clip(0.3 * labels + 0.65 * random.random(n), 0.0, 1.0)
        scores = np.round(scores * 8) / 8 if ties else np.round(scores, 4)
        groups = random.integers(-3, 9, n)
        for weights in [None, np.round(random.random(n), 3) * (random.random(n) > 0.1)]:
            cases.append(class_case(name, scores, labels, groups, weights))
    return cases


def class_case(name, scores, labels, groups, weights):
    total = impressions = 0.0
    ones = np.ones(len(labels)) if weights is None else weights
    for group in np.unique(groups):
        which = (groups == group) & (ones > 0)
        if len(np.unique(labels[which])) == 2:
            area = metrics.roc_auc_score(labels[which], scores[which], sample_weight=ones[which])
            total += ones[which].sum() * area
            impressions += ones[which].sum()
    share = np.average(labels, weights=weights)
    entropy = -(share * np.log(share) + (1 - share) * np.log(1 - share))
    results = {
        "average_precision": metrics.average_precision_score(labels, scores, sample_weight=weights),
        "normalized_entropy": metrics.log_loss(labels, scores, sample_weight=weights) / entropy,
        "calibration": np.average(scores, weights=weights) / share,
    }
    if impressions > 0:
        results["gauc"] = total / impressions
    if weights is None:
        for bins in [1, 8, 10]:
            mean_label, mean_score = calibration.calibration_curve(labels, scores, n_bins=bins)
            # The number of examples of each bin that is not empty.
            which = np.searchsorted(np.linspace(0.0, 1.0, bins + 1)[1:-1], scores)
            count = np.bincount(which, minlength=bins)
            results[f"calibration_error_{bins}"] = float(
                np.sum(count[count > 0] * np.abs(mean_label - mean_score)) / len(labels))
    return {"name": name, "scores": numbers(scores), "labels": numbers(labels), "groups": groups.tolist(),
            "weights": numbers(weights), "results": {key: float(value) for key, value in results.items()}}


def retrieved_case():
    """tfrs.metrics.FactorizedTopK over all candidates, with the ids that an exact search finds."""
    items = random.normal(size=(40, 4)).astype(np.float32)
    queries = random.normal(size=(12, 4)).astype(np.float32)
    ids = random.permutation(1000)[:40]
    labels = ids[random.integers(0, 40, 12)]
    weights = np.round(random.random(12), 3).astype(np.float32)
    position = {int(item): i for i, item in enumerate(ids)}
    found = ids[np.argsort(-(queries @ items.T), axis=1)]
    results = []
    for sample_weight in [None, weights]:
        index = tfrs.layers.factorized_top_k.BruteForce().index(tf.constant(items), tf.constant(ids))
        metric = tfrs.metrics.FactorizedTopK(candidates=index, ks=(1, 5, 20))
        metric.update_state(tf.constant(queries), tf.constant(items[[position[int(label)] for label in labels]]),
                            true_candidate_ids=tf.constant(labels[:, None]), sample_weight=sample_weight)
        for k, value in zip((1, 5, 20), metric.result()):
            results.append({"k": k, "weighted": sample_weight is not None, "result": float(value)})
    return {"shape": list(found.shape), "ids": found.ravel().tolist(), "labels": labels.tolist(),
            "weights": numbers(weights), "results": results}


def sampled_softmax_cases():
    """tf.nn.sampled_softmax_loss with given samples."""
    cases = []
    batch, dim, classes, sampled = 6, 3, 20, 9
    for remove in [False, True]:
        vectors = np.round(random.normal(size=(classes, dim)), 3)
        queries = np.round(random.normal(size=(batch, dim)), 3)
        labels = random.integers(0, classes, batch)
        # Different ids, because TensorFlow removes only one of equal ones.
        hits = np.unique(labels[:3])
        others = np.setdiff1d(random.permutation(classes), hits)
        negatives = random.permutation(np.concatenate([hits, others[:sampled - len(hits)]]))
        of_labels = np.round(0.05 + random.random(batch) / 2, 3)
        of_negatives = np.round(0.05 + random.random(sampled) / 2, 3)
        variable = tf.Variable(queries)
        with tf.GradientTape() as tape:
            losses = tf.nn.sampled_softmax_loss(
                weights=tf.constant(vectors), biases=tf.zeros(classes, tf.float64),
                labels=tf.constant(labels[:, None]), inputs=variable, num_sampled=sampled, num_classes=classes,
                sampled_values=(tf.constant(negatives), tf.constant(of_labels[:, None]), tf.constant(of_negatives)),
                remove_accidental_hits=remove)
            total = tf.reduce_sum(losses)
        cases.append({"remove_accidental_hits": remove, "dim": dim, "vectors": numbers(vectors),
                      "queries": numbers(queries), "labels": labels.tolist(), "negatives": negatives.tolist(),
                      "label_probability": numbers(of_labels), "negative_probability": numbers(of_negatives),
                      "loss": float(total), "gradient": numbers(tape.gradient(total, variable))})
    return cases


def main():
    versions = {package: metadata.version(package) for package in PACKAGES}
    print(versions)
    fixtures = {
        "versions": versions,
        "metrics": metric_cases(),
        "ties": tie_case(),
        "losses": loss_cases(),
        "classes": class_cases(),
        "retrieved": retrieved_case(),
        "sampled_softmax": sampled_softmax_cases(),
    }
    FILE.write_text(json.dumps(fixtures, separators=(",", ":")) + "\n")
    print(FILE.stat().st_size, "bytes;", {key: len(value) for key, value in fixtures.items()})


if __name__ == "__main__":
    main()
