#!/usr/bin/env python3
"""Runs Tessera and its peers alternately on the same workloads; prints medians and ratios.

Each round runs every library once per workload and number of threads. The order of the libraries rotates
from round to round, so that a slow period of the machine affects all of them. A ratio is the fastest
peer's time divided by Tessera's; above 1, Tessera is faster.
"""
import argparse
import collections
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
PEERS = {"torch": "torch", "fbgemm": "torch", "tf": "tf"}  # peer: its virtual environment


def command_of(side, workload, threads, options):
    common = ["--workload", workload, "--threads", str(threads), "--reps", str(options.reps)]
    for operation in options.op or []:
        common += ["--op", operation]
    if side == "tessera":
        return [options.benchmark, *common, "--no-limits"]
    python = pathlib.Path(options.peers) / PEERS[side] / "bin" / "python"
    return [str(python), str(HERE / "peer_bench.py"), side, *common]


def run(side, workload, threads, options):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    result = subprocess.run(
        command_of(side, workload, threads, options), capture_output=True, text=True, env=environment
    )
    if result.returncode != 0:
        print(f"{side} failed on {workload}:\n{result.stderr[-2000:]}", file=sys.stderr)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def measure(options):
    """Returns {(threads, workload, operation): {side: median ms}}."""
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    sides = ["tessera", *options.peer]
    workloads = [workload["name"] for workload in json.loads((HERE / "workloads.json").read_text())]
    for round_ in range(options.rounds):
        for threads in options.threads:
            for workload in options.workload or workloads:
                for i in range(len(sides)):
                    side = sides[(i + round_) % len(sides)]
                    for line in run(side, workload, threads, options):
                        times[threads, workload, line["op"]][side].append(line["ms"])
        print(f"round {round_ + 1} of {options.rounds} done", file=sys.stderr)
    return {
        key: {side: statistics.median(values) for side, values in by_side.items()} for key, by_side in times.items()
    }


def ratio_of(by_side):
    """Returns the fastest peer's time divided by Tessera's, or None."""
    peers = [ms for side, ms in by_side.items() if side != "tessera"]
    return min(peers) / by_side["tessera"] if peers and "tessera" in by_side else None


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def print_table(medians, options):
    sides = ["tessera", *options.peer]
    width = max(len(workload) for _, workload, _ in medians)
    for threads in options.threads:
        keys = [key for key in medians if key[0] == threads]
        for operation in dict.fromkeys(operation for _, _, operation in keys):
            print(f"\n{operation}, {threads} thread{'s' if threads > 1 else ''}: ms, and the fastest peer / tessera")
            print(f"  {'':{width}}" + "".join(f"{side:>10}" for side in sides) + f"{'ratio':>9}")
            ratios = []
            for key in keys:
                if key[2] != operation:
                    continue
                by_side = medians[key]
                cells = "".join(f"{by_side[side]:10.3f}" if side in by_side else f"{'-':>10}" for side in sides)
                ratio = ratio_of(by_side)
                ratios += [ratio] if ratio else []
                print(f"  {key[1]:{width}}{cells}" + (f"{ratio:8.2f}x" if ratio else f"{'-':>9}"))
            if ratios:
                label = "geometric mean"
                print(f"  {label:{width + 10 * len(sides)}}{geometric_mean(ratios):8.2f}x")


def draw(medians, options):
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plot

    figure, axes = plot.subplots(len(options.threads), 1, figsize=(11, 3.6 * len(options.threads)), squeeze=False)
    for axis, threads in zip(axes[:, 0], options.threads):
        ratios = collections.defaultdict(dict)
        for (count, workload, operation), by_side in medians.items():
            ratio = ratio_of(by_side)
            if count == threads and ratio:
                ratios[operation][workload] = ratio
        workloads = list(dict.fromkeys(workload for _, workload, _ in medians))
        bar = 0.8 / max(1, len(ratios))
        for i, (operation, by_workload) in enumerate(ratios.items()):
            positions = [j + i * bar for j, workload in enumerate(workloads) if workload in by_workload]
            axis.bar(positions, [by_workload[w] for w in workloads if w in by_workload], bar, label=operation)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_xticks([j + 0.4 - bar / 2 for j in range(len(workloads))], workloads)
        axis.set_ylabel("fastest peer / tessera")
        axis.set_title(f"{threads} thread{'s' if threads > 1 else ''}: above 1 Tessera is faster")
        axis.legend(ncols=4, fontsize="small")
    figure.tight_layout()
    figure.savefig(options.svg)
    print(f"\nchart: {options.svg}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", required=True, help="the embedding_benchmark program")
    parser.add_argument("--peers", required=True, help="folder of the virtual environments torch and tf")
    parser.add_argument("--peer", action="append", choices=PEERS, help="only these peers")
    parser.add_argument("--workload", action="append", help="only these workloads")
    parser.add_argument("--op", action="append", help="only these operations")
    parser.add_argument("--threads", action="append", type=int, help="default: 1 and all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reps", type=int, default=15)
    parser.add_argument("--svg", default="peers.svg", help="where the bar chart goes")
    parser.add_argument("--json", help="where the medians go")
    options = parser.parse_args()
    options.peer = options.peer or list(PEERS)
    options.threads = options.threads or sorted({1, os.cpu_count()})
    medians = measure(options)
    print_table(medians, options)
    if options.json:
        lines = [dict(threads=t, workload=w, op=o, ms=by_side) for (t, w, o), by_side in medians.items()]
        pathlib.Path(options.json).write_text(json.dumps(lines, indent=1))
    draw(medians, options)


if __name__ == "__main__":
    main()
