"""Draws docs/table_optimizers.svg: how the loss falls, and how far rows move, under several optimizers of tables.

    build/release/tests/benchmarks/table_optimizers > runs.json
    table_optimizers.py runs.json docs/table_optimizers.svg
"""
import json
import sys

import charts


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        results = json.load(file)
    figure, (loss, moved) = charts.pyplot().subplots(1, 2, figsize=(12, 4))
    # Three of the losses lie on each other.
    for run, style in zip(results["runs"], ["-", "--", "-", ":", "-", "-"]):
        loss.plot(run["steps"], run["loss"], style, label=run["name"])
        moved.plot(run["steps"], [100 * share for share in run["moved"]], style, label=run["name"])
    loss.axhline(results["best_loss"], color="gray", linewidth=0.8)
    loss.text(0, results["best_loss"], "true probabilities", fontsize="small", verticalalignment="bottom")
    loss.set(xlabel="step", ylabel="loss on held-out clicks")
    moved.set(xlabel="step", ylabel="median movement of a row, % of its length", yscale="log")
    moved.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.02, 1))
    charts.save(figure, sys.argv[2], "curves")


if __name__ == "__main__":
    main()
