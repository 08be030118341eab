#!/usr/bin/env python3
"""Draws the learning curves of a file of the leaderboard: one chart for each data set, with a line for each seed.

If a model was trained with several settings, only the latest ones are drawn. A file of `./run bench --recommenders
--json` adds a chart for each of its data sets, with a line for each library.

    python3 examples/leaderboard/draw_curves.py RESULTS.json [PEERS.json] OUT.svg

Needs matplotlib.
"""
import json
import sys
from pathlib import Path


def charts_of(results):
    """Returns the title of each chart, and its lines: name, seconds, values."""
    with_curves = [r for r in results if r["curve"]]
    latest = {(r["data"], r["model"]): r["settings"] for r in with_curves}
    charts = {}
    for r in with_curves:
        if r["settings"] == latest[r["data"], r["model"]]:
            charts.setdefault(r["data"], []).append((r["model"], r["curve_seconds"], r["curve"]))
    return charts


def charts_of_peers(results):
    return {
        f"{data},\nbeside another library": [(side, *zip(*run["curve"])) for side, run in sides.items()]
        for data, sides in results.items()
    }


def draw(charts, peer_charts, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    all_charts = {**charts, **peer_charts}
    if not all_charts:
        sys.exit("draw_curves.py: no result has a curve. Train a model first.")
    rows = (len(all_charts) + 2) // 3
    figure, axes = plt.subplots(rows, 3, figsize=(10, 2.8 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(all_charts):]:
        axis.set_visible(False)
    for axis, (title, lines) in zip(axes.flat, all_charts.items()):
        names = list(dict.fromkeys(name for name, _, _ in lines))
        drawn = set()
        for name, seconds, values in lines:
            marker = "." if len(values) < 20 else None
            axis.plot(seconds, values, color=f"C{names.index(name)}", linewidth=1, marker=marker,
                      label=None if name in drawn else name)
            drawn.add(name)
        if title in peer_charts:
            axis.set_xscale("log")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("seconds of training", fontsize=8)
        axis.set_ylabel("NDCG on validation items", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def load(path, what, charts_of_json):
    """Returns the charts of a file with these results."""
    try:
        return charts_of_json(json.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        sys.exit(f"draw_curves.py: {path}: {error.strerror}. Correct the path.")
    except (AttributeError, KeyError, TypeError, ValueError):
        sys.exit(f"draw_curves.py: {path}: expected {what}, but got something else. Pass RESULTS [PEERS] OUT.svg.")


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    *files, out = sys.argv[1:]
    if Path(out).suffix != ".svg" or not Path(out).absolute().parent.is_dir():
        sys.exit(f"draw_curves.py: expected OUT.svg in a folder that exists, but got {out}. Correct the last argument.")
    charts = load(files[0], "results of the leaderboard", charts_of)
    peers = load(files[1], "results of ./run bench --recommenders --json", charts_of_peers) if files[1:] else {}
    draw(charts, peers, out)


if __name__ == "__main__":
    main()
