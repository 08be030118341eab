#!/usr/bin/env python3
"""Runs key_quality_benchmark, and prints and draws the AUC with keys and with hashed ids over the memory of their tables.

Options that are not listed here are those of the program. With --from, nothing is trained.
"""
import json
import operator
import pathlib
import subprocess
import sys
import tempfile

import charts
from benchmark import Parser, markdown_table

GOAL = -0.002  # the difference to the AUC of the vocabulary, at a tenth of its memory
NAMES = {"keys": "keys", "hash": "hashed ids"}


def spread(values):
    """Returns the mean over the seeds, the lowest and the highest value."""
    values = list(values)
    return sum(values) / len(values), min(values), max(values)


def differences(results):
    """Returns [(point, how much higher its AUC is than the vocabulary's)]. The vocabulary comes first."""
    vocabulary = results["points"][0]["auc"]
    return [(point, spread(map(operator.sub, point["auc"], vocabulary))) for point in results["points"]]


def curves(results):
    """Returns {side: [(fraction of the memory, mean, lowest, highest)]}, in ascending order of the memory."""
    points = differences(results)[1:]
    return {
        side: sorted((point["fraction"], *difference) for point, difference in points if point["side"] == side)
        for side in NAMES
    }


def print_table(results):
    settings, vocabulary = results["settings"], results["points"][0]
    megabytes = lambda point: f"{point['bytes'][0] / 1e6:.1f} MB"
    with_range = lambda values: "AUC {:.4f} ({:.4f} to {:.4f})".format(*spread(values))
    print(
        f"{settings['rows']:,} clicks, tested on the next {settings['test_rows']:,}, {len(settings['seeds'])} seeds, "
        f"dim {settings['dim']}, {settings['dtype']}, {settings['threads']} threads, {settings['isa']}\n"
        f"true probabilities: {with_range(results['best_auc'])}\n"
        f"vocabulary: {vocabulary['rows'][0]:,} rows of columns with a long tail, {megabytes(vocabulary)}, "
        f"{with_range(vocabulary['auc'])}\n"
    )
    rows = []
    for point, difference in differences(results):
        memory = f"{point['fraction']:g} ({megabytes(point)})"
        cells = [f"{point['rows'][0]:,}", f"{spread(point['auc'])[0]:.4f}"]
        rows.append([memory, point["side"], *cells, "{:+.4f} ({:+.4f} to {:+.4f})".format(*difference)])
    print(markdown_table(["memory", "side", "rows", "AUC", "minus the AUC of the vocabulary"], rows), flush=True)


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
    parser = Parser(__doc__)
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
        results = json.loads(source.read_text())
        print_table(results)
        if options.svg:
            draw(results, options.svg)


if __name__ == "__main__":
    main()
