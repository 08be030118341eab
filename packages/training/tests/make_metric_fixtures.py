# SPDX-License-Identifier: Apache-2.0
"""Writes tests/golden/metrics.json with the results of scikit-learn's metrics.

    pip install scikit-learn
    python packages/training/tests/make_metric_fixtures.py tests/golden/metrics.json
"""
import json
import sys

import numpy as np
import sklearn
from sklearn import metrics


def main(path):
    versions = {"scikit-learn": sklearn.__version__, "numpy": np.__version__}
    print(versions)
    random = np.random.default_rng(1)
    cases = []

    def add(name, metric, predictions, labels, weights, result, **options):
        cases.append({
            "name": name, "metric": metric, "options": options,
            "dtype": str(predictions.dtype), "shape": list(predictions.shape),
            "predictions": predictions.astype(np.float64).ravel().tolist(),
            "labels": np.asarray(labels, np.float64).tolist(),
            "weights": None if weights is None else weights.tolist(),
            "result": float(result)})

    def both(name, n, make, metric, function, **options):
        """Adds a case without weights, and one with weights, some of which are 0."""
        predictions, labels = make(n)
        weights = random.random(n)
        weights[::7] = 0.0
        add(name, metric, predictions, labels, None, function(labels, predictions, None), **options)
        add(name + "_weighted", metric, predictions, labels, weights,
            function(labels, predictions, weights), **options)

    def binary(n):
        labels = random.integers(0, 2, n)
        return np.clip(0.3 * labels + 0.6 * random.random(n), 0.0, 1.0), labels

    def tied(n):
        scores, labels = binary(n)
        return np.round(scores * 8) / 8, labels

    def rare(n):
        labels = np.zeros(n, np.int64)
        labels[n // 3 + 1] = 1
        return np.round(random.random(n), 1), labels

    def logits(n):
        labels = random.integers(0, 2, n)
        return random.normal(size=n) * 5 + labels, labels

    def single(make):
        def made(n):
            predictions, labels = make(n)
            return predictions.astype(np.float32), labels
        return made

    def extreme(n):
        labels = random.integers(0, 2, n)
        return random.integers(0, 2, n).astype(np.float64), labels

    auc = lambda y, p, w: metrics.roc_auc_score(y, p, sample_weight=w)
    for name, make in [("auc", binary), ("auc_ties", tied), ("auc_one_positive", rare), ("auc_logits", logits),
                       ("auc_float32", single(binary)), ("auc_0_and_1", extreme)]:
        both(name, 211, make, "auc", auc)

    log_loss = lambda y, p, w: metrics.log_loss(y, p, sample_weight=w)
    sigmoid = lambda x: 1.0 / (1.0 + np.exp(-x))
    for name, make in [("log_loss", binary), ("log_loss_clipped", extreme), ("log_loss_float32", single(binary)),
                       ("log_loss_clipped_float32", single(extreme))]:
        both(name, 97, make, "log_loss", log_loss)
    both("log_loss_logits", 97, logits, "log_loss", lambda y, p, w: log_loss(y, sigmoid(p), w), logits=True)

    def many(n, classes=7):
        scores = random.normal(size=(n, classes))
        return scores, random.integers(0, classes, n)

    def softmax(x):
        exps = np.exp(x - x.max(1, keepdims=True))
        return exps / exps.sum(1, keepdims=True)

    def probabilities(n):
        scores, labels = many(n)
        return softmax(scores), labels

    classes = list(range(7))
    many_loss = lambda y, p, w: metrics.log_loss(y, p, sample_weight=w, labels=classes)
    both("log_loss_classes", 83, probabilities, "log_loss", many_loss)
    both("log_loss_class_logits", 83, many, "log_loss", lambda y, p, w: many_loss(y, softmax(p), w), logits=True)

    def stars(n):
        truth = random.integers(1, 6, n).astype(np.float64)
        return truth + random.normal(size=n), truth

    both("rmse", 101, stars, "rmse", lambda y, p, w: metrics.root_mean_squared_error(y, p, sample_weight=w))

    def tied_classes(n):
        scores, labels = many(n)
        return np.round(scores), labels

    for k in [1, 2, 3, 6]:
        top_k = lambda y, p, w: metrics.top_k_accuracy_score(y, p, k=k, sample_weight=w, labels=classes)
        both(f"top_{k}", 89, many, "top_k_accuracy", top_k, k=k)
        both(f"top_{k}_ties", 89, tied_classes, "top_k_accuracy", top_k, k=k)

    both("accuracy", 103, tied, "accuracy",
         lambda y, p, w: metrics.accuracy_score(y, p > 0.5, sample_weight=w), threshold=0.5)
    both("accuracy_classes", 103, tied_classes, "accuracy",
         lambda y, p, w: metrics.accuracy_score(y, p.argmax(1), sample_weight=w), threshold=0.5)
    both("mean", 51, stars, "mean", lambda y, p, w: np.average(p, weights=w))

    with open(path, "w") as file:
        json.dump({"versions": versions, "cases": cases}, file, separators=(",", ":"))
        file.write("\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main(sys.argv[1])
