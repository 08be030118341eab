#!/usr/bin/env python3
"""Draws the learning curves of a file of the leaderboard: one chart for each data set, with a line for each seed.

If a model was trained with several settings, only the latest ones are drawn.

    python3 examples/leaderboard/draw_curves.py RESULTS.json OUT.svg

Needs matplotlib.
"""
import json
import sys

import matplotlib
matplotlib.use("svg")
import matplotlib.pyplot as plt


def draw(results, path):
    with_curves = [r for r in results if r["curve"]]
    latest = {(r["data"], r["model"]): r["settings"] for r in with_curves}
    with_curves = [r for r in with_curves if r["settings"] == latest[r["data"], r["model"]]]
    names = list(dict.fromkeys(r["data"] for r in with_curves))
    if not names:
        sys.exit("draw_curves.py: no result has a curve. Train a model first.")
    rows = (len(names) + 2) // 3
    figure, axes = plt.subplots(rows, 3, figsize=(10, 2.8 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(names):]:
        axis.set_visible(False)
    models = list(dict.fromkeys(r["model"] for r in with_curves))
    for axis, name in zip(axes.flat, names):
        own = [r for r in with_curves if r["data"] == name]
        for r in own:
            is_first = all(o is r or o["model"] != r["model"] for o in own[:own.index(r) + 1])
            axis.plot(r["curve_seconds"], r["curve"], color=f"C{models.index(r['model'])}", linewidth=1,
                      label=r["model"] if is_first else None)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("seconds of training", fontsize=8)
        axis.set_ylabel("NDCG on validation items", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        draw(json.load(file), sys.argv[2])
