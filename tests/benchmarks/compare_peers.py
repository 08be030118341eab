#!/usr/bin/env python3
"""Runs Tessera and its peers alternately on the same workloads; prints medians and ratios.

Each round runs every library once per workload and number of threads. The order of the libraries rotates
from round to round, so that a slow period of the machine affects all of them. A ratio is the fastest
peer's time divided by Tessera's; above 1, Tessera is faster.

All libraries get the same ids. With --batches 32, the default, 32 batches take turns; with --batches 1 every
step repeats one batch, whose rows are then in the cache. Peers whose name ends in "_tuned" run with a malloc
that uses huge pages and keeps its memory. Tessera always runs with the defaults of the system.
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
import tempfile

HERE = pathlib.Path(__file__).parent
PEERS = {  # peer: its virtual environment
    "torch": "torch",
    "torch_concat": "torch",
    "torch_concat_tuned": "torch",
    "fbgemm": "torch",
    "fbgemm_tuned": "torch",
    "tf": "tf",
}
GIB = 2**30
TUNED_MALLOC = {
    "GLIBC_TUNABLES": ":".join(
        f"glibc.malloc.{name}={value}"
        for name, value in {"hugetlb": 1, "mmap_threshold": 4 * GIB, "trim_threshold": 16 * GIB, "top_pad": GIB // 4}.items()
    ),
    "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for the tensors of torch
}


def draw_ids(workload, batches, random):
    """Draws ids [batches, tables, batch * bag]: uniform, or zipf as floor(rows ** u) - 1, mapped by a permutation."""
    import numpy

    rows = workload["rows"]
    ids = numpy.empty((batches, workload["tables"], workload["batch"] * workload["bag"]), dtype=numpy.int64)
    for table in range(workload["tables"]):
        u = random.random((batches, ids.shape[2]))
        if workload["ids"] == "uniform":
            ids[:, table] = u * rows
        else:
            rank = numpy.clip((rows**u).astype(numpy.int64) - 1, 0, rows - 1)
            ids[:, table] = random.permutation(rows)[rank]
    return ids


def write_ids(workloads, options, folder):
    import numpy

    for workload in workloads:
        random = numpy.random.default_rng(options.seed)
        numpy.save(folder / f"{workload['name']}.npy", draw_ids(workload, options.batches, random))


def command_of(side, workload, threads, options):
    common = ["--workload", workload, "--threads", str(threads), "--reps", str(options.reps), "--ids", str(options.ids)]
    for operation in options.op or []:
        common += ["--op", operation]
    if side == "tessera":
        return [options.benchmark, *common, *([] if options.limits else ["--no-limits"])]
    python = pathlib.Path(options.peers) / PEERS[side] / "bin" / "python"
    return [str(python), str(HERE / "peer_bench.py"), side.removesuffix("_tuned"), *common]


def run(side, workload, threads, options):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    if side == "tessera" and options.isa:
        environment["TESSERA_ISA"] = options.isa
    if side != "tessera" and options.isa == "avx2":
        environment["ATEN_CPU_CAPABILITY"] = "avx2"  # FBGEMM has no such setting
    if side.endswith("_tuned"):
        environment.update(TUNED_MALLOC)
    result = subprocess.run(
        command_of(side, workload, threads, options), capture_output=True, text=True, env=environment
    )
    if result.returncode != 0:
        print(f"{side} failed on {workload}:\n{result.stderr[-2000:]}", file=sys.stderr)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


def measure(options):
    """Returns {(threads, workload, operation): {side: median ms}} and the instruction set of Tessera."""
    times = collections.defaultdict(lambda: collections.defaultdict(list))
    sides = ["tessera", *options.peer]
    isa = None
    for round_ in range(options.rounds):
        for threads in options.threads:
            for workload in options.workload:
                for i in range(len(sides)):
                    side = sides[(i + round_) % len(sides)]
                    for line in run(side, workload, threads, options):
                        isa = line.get("isa", isa)
                        of_operation = times[threads, workload, line["op"]]
                        of_operation[side].append(line["ms"])
                        if "gather_limit_ms" in line:
                            of_operation["limit"].append(limit_of(line))
        print(f"round {round_ + 1} of {options.rounds} done", file=sys.stderr)
    medians = {
        key: {side: statistics.median(values) for side, values in by_side.items()} for key, by_side in times.items()
    }
    return medians, isa


def limit_of(line):
    """Returns what plain loops need for the operation, in ms. The loop of updates is that of Adagrad."""
    return line["gather_limit_ms"] + (0.0 if line["op"] == "forward" else line["update_limit_ms"])


def ratio_of(by_side):
    """Returns the fastest peer's time divided by Tessera's, or None."""
    peers = [ms for side, ms in by_side.items() if side not in ("tessera", "limit")]
    return min(peers) / by_side["tessera"] if peers and "tessera" in by_side else None


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def print_table(medians, options):
    sides = ["tessera", *options.peer, *(["limit"] if options.limits else [])]
    column = 2 + max(map(len, sides))
    width = max(len(workload) for _, workload, _ in medians)
    for threads in options.threads:
        keys = [key for key in medians if key[0] == threads]
        for operation in dict.fromkeys(operation for _, _, operation in keys):
            print(f"\n{operation}, {threads} thread{'s' if threads > 1 else ''}: ms, and the fastest peer / tessera")
            print(f"  {'':{width}}" + "".join(f"{side:>{column}}" for side in sides) + f"{'ratio':>9}")
            ratios = []
            for key in keys:
                if key[2] != operation:
                    continue
                by_side = medians[key]
                cells = "".join(f"{by_side[side]:{column}.3f}" if side in by_side else f"{'-':>{column}}" for side in sides)
                ratio = ratio_of(by_side)
                ratios += [ratio] if ratio else []
                print(f"  {key[1]:{width}}{cells}" + (f"{ratio:8.2f}x" if ratio else f"{'-':>9}"))
            if ratios:
                label = "geometric mean"
                print(f"  {label:{width + column * len(sides)}}{geometric_mean(ratios):8.2f}x")


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
    parser.add_argument("--reps", type=int, default=32)
    parser.add_argument("--batches", type=int, default=32, help="batches that take turns; 1: the same in each step")
    parser.add_argument("--seed", type=int, default=0, help="of the ids")
    parser.add_argument("--isa", help="the instruction set of Tessera's kernels, such as avx2")
    parser.add_argument("--limits", action="store_true", help="also time plain loops that do the same")
    parser.add_argument("--svg", default="peers.svg", help="where the bar chart goes")
    parser.add_argument("--json", help="where the medians go")
    options = parser.parse_args()
    options.peer = options.peer or list(PEERS)
    options.threads = options.threads or sorted({1, os.cpu_count()})
    workloads = json.loads((HERE / "workloads.json").read_text())
    options.workload = options.workload or [workload["name"] for workload in workloads]
    with tempfile.TemporaryDirectory() as folder:
        options.ids = pathlib.Path(folder)
        write_ids([workload for workload in workloads if workload["name"] in options.workload], options, options.ids)
        medians, isa = measure(options)
    print(f"{options.batches} batches in turn, instruction set {isa}, medians of {options.rounds} rounds")
    print_table(medians, options)
    if options.json:
        lines = [dict(threads=t, workload=w, op=o, ms=by_side) for (t, w, o), by_side in medians.items()]
        pathlib.Path(options.json).write_text(json.dumps(lines, indent=1))
    draw(medians, options)


if __name__ == "__main__":
    main()
