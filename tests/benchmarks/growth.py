#!/usr/bin/env python3
"""Times forward passes and Adagrad steps while one size grows; prints tables, draws curves.

A performance cliff would appear as a jump of the time per id. All other sizes stay as in BASE.
"""
import json
import tempfile

import charts
from benchmark import Parser, count_cores, json_lines, markdown_table

BASE = {"tables": 8, "rows": 50000, "dim": 64, "batch": 1024, "bag": 10, "ids": "uniform"}
OPERATIONS = ["forward", "adagrad"]
DIMS = [1, 2, 3, 4, 7, 8, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 256, 257, 512, 1024]

# The sizes that grow. Each point has a label and its changes to BASE. Tables have fewer rows if another size is large.
SWEEPS = {
    "rows": [(f"{rows:,}", {"tables": 4, "dim": 32, "rows": rows // 4}) for rows in (
        10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000, 30_000_000, 50_000_000)],
    "batch": [(str(batch), {"batch": batch}) for batch in (1, 4, 16, 64, 256, 1024, 4096, 16384)],
    "bag": [(str(bag), {"bag": bag}) for bag in (1, 2, 3, 5, 10, 20, 50, 100, 200)],
    "dim": [(str(dim), {"dim": dim, "rows": 20000}) for dim in DIMS],
    "tables": [(str(tables), {"tables": tables, "rows": 10000, "batch": 256}) for tables in (
        1, 2, 5, 10, 20, 50, 100, 200, 500)],
    "skew": [("uniform", {})] + [(f"zipf {skew}", {"ids": "zipf", "skew": skew}) for skew in (1, 2, 4, 16)],
    "dtype": [(dtype, {"dtype": dtype, "dim": 128}) for dtype in ("float32", "bfloat16", "float16")],
}


def measure(sweep, threads, options):
    """Returns [(label, ids per step, {operation: ms})]."""
    workloads = [{**BASE, **changes, "name": label} for label, changes in SWEEPS[sweep]]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(workloads, file)
        file.flush()
        command = [options.program, "--workloads", file.name, "--no-limits", "--threads", threads]
        command += ["--reps", options.reps]
        for operation in OPERATIONS:
            command += ["--op", operation]
        lines = json_lines(command, f"the benchmark failed on {sweep}", {"OMP_NUM_THREADS": str(threads)})
    times = {}
    for line in lines:
        times.setdefault(line["workload"], {})[line["op"]] = line["ms"]
    return [(w["name"], w["tables"] * w["batch"] * w["bag"], times[w["name"]]) for w in workloads]


def print_table(sweep, points_by_threads):
    print(f"\n{sweep}: ms a step (ns an id)\n")
    columns = [f"{operation}, {threads} thr." for threads in points_by_threads for operation in OPERATIONS]
    rows = []
    for row in zip(*points_by_threads.values()):
        label, ids, _ = row[0]
        cells = [f"{ms[operation]:.3f} ({ms[operation] * 1e6 / ids:.1f})" for _, _, ms in row for operation in OPERATIONS]
        rows.append([label, *cells])
    print(markdown_table([sweep, *columns], rows), flush=True)


def draw(results, path):
    figure, axes = charts.pyplot().subplots((len(results) + 1) // 2, 2, figsize=(12, 3.2 * ((len(results) + 1) // 2)))
    for axis, (sweep, points_by_threads) in zip(axes.flat, results.items()):
        for threads, points in points_by_threads.items():
            for operation in OPERATIONS:
                nanoseconds = [ms[operation] * 1e6 / ids for _, ids, ms in points]
                axis.plot([label for label, _, _ in points], nanoseconds, marker="o", label=f"{operation}, {threads}")
        axis.set_yscale("log")
        axis.set_title(sweep)
        axis.set_ylabel("ns an id")
        axis.tick_params(axis="x", labelsize=6, rotation=45)
    axes.flat[0].legend(title="threads", fontsize="small")
    for axis in list(axes.flat)[len(results):]:
        axis.axis("off")
    charts.save(figure, path, "curves")


def main():
    parser = Parser(__doc__)
    parser.add_program("embedding_benchmark")
    parser.add_choices("--sweep", SWEEPS)
    parser.add_count("--threads", help="default: 1 and all", action="append")
    parser.add_count("--reps", 15)
    parser.add_argument("--svg", default="growth.svg", help="where the curves go")
    options = parser.parse_args()
    parser.check_program(options, "embedding_benchmark")
    threads = options.threads or sorted({1, count_cores()})
    results = {}
    for sweep in options.sweep or SWEEPS:
        results[sweep] = {count: measure(sweep, count, options) for count in threads}
        print_table(sweep, results[sweep])
    draw(results, options.svg)


if __name__ == "__main__":
    main()
