#!/usr/bin/env python3
"""Runs key_quality_benchmark, and draws the AUC with keys and with hashed ids over the memory of their tables.

Options that are not listed here are those of the program. With --from, nothing is trained.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import charts

GOAL = -0.002  # the difference to the AUC of the vocabulary, at a tenth of its memory
NAMES = {"keys": "keys", "hash": "hashed ids"}


def difference(point, vocabulary):
    """Returns how much higher the AUC is than the vocabulary's: the mean over the seeds, the lowest and the highest."""
    values = [auc - other for auc, other in zip(point["auc"], vocabulary["auc"])]
    return sum(values) / len(values), min(values), max(values)


def curves(results):
    """Returns {side: [(fraction of the memory, mean, lowest, highest)]}, in ascending order of the memory."""
    vocabulary = next(point for point in results["points"] if point["side"] == "vocabulary")
    found = {side: [] for side in NAMES}
    for point in results["points"]:
        if point is not vocabulary:
            found[point["side"]].append((point["fraction"], *difference(point, vocabulary)))
    return {side: sorted(points) for side, points in found.items()}


def draw(results, path):
    figure, axis = charts.pyplot().subplots(figsize=(8, 4))
    sides = curves(results)
    for side, points in sides.items():
        fractions, means, lowest, highest = zip(*points)
        axis.plot(fractions, means, marker="o", label=NAMES[side])
        axis.fill_between(fractions, lowest, highest, alpha=0.2)
    axis.axhline(0.0, color="black", linewidth=0.8)
    axis.plot([0.1], [GOAL], marker="x", color="gray", linestyle="none", label="goal")
    ticks = sorted({fraction for points in sides.values() for fraction, *_ in points})
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("memory, as a fraction of the vocabulary's rows and slots")
    axis.set_ylabel("AUC minus that of the vocabulary")
    axis.legend(loc="lower right")
    charts.save(figure, path, "curves")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="the program key_quality_benchmark")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="where the results go")
    parser.add_argument("--from", type=pathlib.Path, metavar="FILE", dest="source", help="draws these results")
    parser.add_argument("--svg", type=pathlib.Path, metavar="FILE", help="where the curves go; default: no curves")
    options, others = parser.parse_known_args()
    if options.source and (others or options.json):
        sys.exit(f"--from draws results and trains nothing, so {' '.join(others) or '--json'} would have no effect")
    with tempfile.TemporaryDirectory() as folder:
        source = options.source or options.json or pathlib.Path(folder, "results.json")
        if not options.source:
            status = subprocess.run([options.program, "--json", source, *others]).returncode
            if status != 0:
                sys.exit(status)
        if options.svg:
            draw(json.loads(source.read_text()), options.svg)


if __name__ == "__main__":
    main()
