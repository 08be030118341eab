#!/usr/bin/env python3
"""Measures the memory and the steps of one large table in float32, bfloat16 and int8; prints tables.

The memory of a table is the resident memory of a training minus that of the same program with a table of one row. The
last table has as many rows as a machine of 24 GiB can hold in int8.
"""
import json
import tempfile

from benchmark import GIB, Parser, count_cores, cpu_name, json_lines, markdown_table

STEP = {"tables": 1, "batch": 2048, "bag": 20, "ids": "uniform"}
# The dtypes of rows and slots, and the optimizer.
KINDS = [
    ("float32", "float32", "adagrad"),
    ("float32", "float32", "rowwise_adagrad"),
    ("float32", "float32", "adam"),
    ("bfloat16", "bfloat16", "adam"),
    ("bfloat16", "float32", "rowwise_adagrad"),
    ("int8", "float32", "rowwise_adagrad"),
]


def measure(options, rows, dim, dtype, operations, slot_dtype="float32", limits="--no-limits"):
    """Returns {operation: line of the benchmark} of one table, a program for each operation."""
    workload = {**STEP, "name": f"{rows:,} x {dim} {dtype}", "rows": rows, "dim": dim}
    workload |= {"dtype": dtype, "slot_dtype": slot_dtype}
    lines = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([workload], file)
        file.flush()
        for operation in operations:
            command = [options.program, "--workloads", file.name, limits, "--threads", options.threads]
            command += ["--reps", options.reps, "--op", operation]
            [lines[operation]] = json_lines(
                command, f"the benchmark failed on {workload['name']}", {"OMP_NUM_THREADS": str(options.threads)}
            )
    return lines


def measure_memory(options, dim, dtype, slot_dtype, optimizer):
    large, small = (measure(options, rows, dim, dtype, [optimizer], slot_dtype)[optimizer] for rows in (options.rows, 1))
    return large["process_bytes"] - small["process_bytes"]


def print_memory(options):
    print(f"Memory of a training, {options.rows:,} rows:\n")
    columns, first = [], {}
    for *dtypes, optimizer in KINDS:
        row = [*dtypes, optimizer]
        for dim in (64, 16):
            used = measure_memory(options, dim, *dtypes, optimizer)
            first.setdefault(dim, used)
            row += [f"{used / GIB:.2f} GiB", f"{used / options.rows:.1f}", f"{first[dim] / used:.2f}"]
        columns.append(row)
    header = ["rows", "slots", "optimizer"]
    for dim in (64, 16):
        header += [f"dim {dim}", "bytes a row", "times less"]
    print(markdown_table(header, columns), flush=True)


def print_steps(options):
    print(f"\nms of a lookup and of a step, {STEP['batch']:,} bags of {STEP['bag']} uniform ids, dim 64:\n")
    sizes = [(options.rows // 10, dtype) for dtype in ("float32", "bfloat16", "int8")]
    sizes += [(1_500_000, "int8"), (options.largest, "int8")]
    rows = []
    for count, dtype in sizes:
        limits = "--no-limits" if rows else "--limits"
        lines = measure(options, count, 64, dtype, ["forward", "rowwise_adagrad"], limits=limits)
        lookup, step = lines.values()
        if not rows:
            loops = [
                lookup["bytes"] / lookup["gather_limit_ms"] / 1e6,
                step["bytes"] / (step["gather_limit_ms"] + step["sgd_update_limit_ms"]) / 1e6,
            ]
        speeds = [cell for line in (lookup, step) for cell in (f"{line['ms']:.2f}", f"{line['gb_per_s']:.1f}")]
        rows.append([f"{count:,}", dtype, *speeds, f"{step['process_bytes'] / GIB:.1f} GiB"])
    header = ["rows", "dtype", "lookup", "GB/s", "step of row-wise Adagrad", "GB/s", "memory of the process"]
    print(markdown_table(header, rows))
    print("\nPlain loops over the first table: {:.1f} GB/s in a lookup, {:.1f} GB/s in a step of SGD".format(*loops))


def main():
    parser = Parser(__doc__)
    parser.add_program("embedding_benchmark")
    parser.add_count("--rows", 20_000_000)
    parser.add_count("--largest", 150_000_000, "rows of the last table")
    parser.add_count("--threads", help="default: all")
    parser.add_count("--reps", 32)
    options = parser.parse_args()
    parser.check_program(options, "embedding_benchmark")
    options.threads = options.threads or count_cores()
    print(f"{cpu_name()}, {options.threads} threads\n")
    print_memory(options)
    print_steps(options)


if __name__ == "__main__":
    main()
