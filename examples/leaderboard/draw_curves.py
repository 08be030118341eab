#!/usr/bin/env python3
"""Draws the learning curves of a file of the leaderboard: one chart for each data set, with a line for each seed.

If a model was trained with several settings, only the latest ones are drawn. Other lines show item-kNN, and the highest
published value in a page with the tables of `./run leaderboard --markdown`. A file of `./run bench --recommenders
--json` adds a chart for each of its data sets, with a line for each library.

    python3 examples/leaderboard/draw_curves.py RESULTS.json PAGE.md [PEERS.json] OUT.svg

Needs matplotlib.
"""
import dataclasses
import json
import sys
from pathlib import Path


@dataclasses.dataclass
class Chart:
    lines: list  # names, x, values on validation items
    x_label: str = "epochs"
    x_scale: str = "linear"
    points: list = dataclasses.field(default_factory=list)  # names, x, values on the test
    levels: list = dataclasses.field(default_factory=list)  # labels, values, styles of horizontal lines


def is_ndcg(name):
    return name.startswith("NDCG")


def highest_published(page):
    """Returns the highest published NDCG in the tables of a page, by the names of the data sets."""
    highest = {}
    data = titles = None
    for line in page.splitlines():
        if line.startswith("### "):
            data, titles = line.removeprefix("### "), None
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == "model":
            titles = cells
        elif titles and len(cells) == len(titles) and not cells[0].startswith("---"):
            row = dict(zip(titles, cells))
            ndcg = [value for name, value in row.items() if is_ndcg(name)]
            if ndcg and row["evaluation"] == "":  # an own result has the time of its evaluation
                highest[data] = max(highest.get(data, 0.0), float(ndcg[0]))
    return highest


def charts_of(results, highest):
    """Returns the charts by their titles."""
    latest = {(r["data"], r["model"]): r["settings"] for r in results if r["curve"]}
    charts = {}
    for r in results:
        if not r["curve"] or r["settings"] != latest[r["data"], r["model"]]:
            continue
        chart = charts.setdefault(r["data"], Chart([]))
        epochs = range(1, len(r["curve"]) + 1)
        chart.lines.append((r["model"], epochs, r["curve"]))
        if r["best_epoch"]:
            ndcg = next(value for name, value in r["metrics"].items() if is_ndcg(name))
            chart.points.append((r["model"], r["best_epoch"], ndcg))
    for r in results:
        if r["model"] == "item-kNN" and r["data"] in charts:
            charts[r["data"]].levels.append(("item-kNN", r["validation"], "--"))
    for data, value in highest.items():
        if data in charts:
            charts[data].levels.append(("highest published, on the test", value, ":"))
    order = list(highest)  # that of the page
    return dict(sorted(charts.items(), key=lambda chart: order.index(chart[0]) if chart[0] in order else len(order)))


def charts_of_peers(results):
    return {
        f"{data},\nbeside another library": Chart(
            [(side, *zip(*run["curve"])) for side, run in sides.items()], "seconds of training", "log")
        for data, sides in results.items()
    }


def draw(charts, path):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    if not charts:
        sys.exit("draw_curves.py: no result has a curve. Train a model first.")
    names = list(dict.fromkeys(name for chart in charts.values() for name, _, _ in chart.lines))
    colors = {name: f"C{i}" for i, name in enumerate(names)}
    rows = (len(charts) + 2) // 3
    figure, axes = plt.subplots(rows, 3, figsize=(10, 2.8 * rows), squeeze=False, layout="constrained")
    for axis in axes.flat[len(charts):]:
        axis.set_visible(False)
    for axis, (title, chart) in zip(axes.flat, charts.items()):
        labels = {}
        for name, x, values in chart.lines:
            marker = "." if len(values) < 20 else None
            labels[name], = axis.plot(x, values, color=colors[name], linewidth=1, marker=marker)
        for name, x, value in chart.points:
            labels[f"{name}, on the test"], = axis.plot(x, value, color=colors[name], linestyle="", marker="x")
        for label, value, style in chart.levels:
            labels[label] = axis.axhline(value, color="0.4", linewidth=1, linestyle=style)
        axis.set_xscale(chart.x_scale)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel(chart.x_label, fontsize=8)
        axis.set_ylabel("NDCG on validation items", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.legend(labels.values(), labels, fontsize=6)
    figure.savefig(path, metadata={"Date": None})


def read(path):
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"draw_curves.py: {path} can't be read: {error}. Correct the path.")


def load(path, what, charts_of_json):
    """Returns the charts of a file with these results."""
    try:
        return charts_of_json(json.loads(read(path)))
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError):
        sys.exit(f"draw_curves.py: {path}: expected {what}, but got something else. Pass RESULTS PAGE [PEERS] OUT.svg.")


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit(__doc__)
    results, page, *peers, out = sys.argv[1:]
    if Path(out).suffix != ".svg" or not Path(out).absolute().parent.is_dir():
        sys.exit(f"draw_curves.py: expected OUT.svg in a folder that exists, but got {out}. Correct the last argument.")
    try:
        highest = highest_published(read(page))
    except (KeyError, ValueError):  # a table of something else
        highest = {}
    if not highest:
        sys.exit(f"draw_curves.py: {page}: expected tables of published values, but got none. Pass docs/quality.md.")
    charts = load(results, "results of the leaderboard", lambda values: charts_of(values, highest))
    for path in peers:
        charts |= load(path, "results of ./run bench --recommenders --json", charts_of_peers)
    draw(charts, out)


if __name__ == "__main__":
    main()
