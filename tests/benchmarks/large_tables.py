#!/usr/bin/env python3
"""Measures the memory and the steps of one large table in float32, bfloat16 and int8; prints tables.

The memory of a table is the resident memory of a training minus that of the same program with a table of one row. The
last table has as many rows as a machine of 24 GiB can hold in int8.
"""
import json
import tempfile

from benchmark import GIB, Parser, count_cores, cpu_name, json_lines, markdown_table

STEP = {"tables": 1, "batch": 2048, "bag": 20, "ids": "uniform"}
# The dtype of the rows, and the optimizer.
KINDS = [
    ("float32", "adagrad"),
    ("float32", "rowwise_adagrad"),
    ("bfloat16", "rowwise_adagrad"),
    ("int8", "rowwise_adagrad"),
]


def measure(options, rows, dim, dtype, operations):
    """Returns {operation: line of the benchmark} of one table, a program for each operation."""
    workload = {**STEP, "name": f"{rows:,} x {dim} {dtype}", "rows": rows, "dim": dim, "dtype": dtype}
    lines = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([workload], file)
        file.flush()
        for operation in operations:
            command = [options.program, "--workloads", file.name, "--no-limits", "--threads", options.threads]
            command += ["--reps", options.reps, "--op", operation]
            [lines[operation]] = json_lines(
                command, f"the benchmark failed on {workload['name']}", {"OMP_NUM_THREADS": str(options.threads)}
            )
    return lines


def measure_memory(options, dim, dtype, optimizer):
    large, small = (measure(options, rows, dim, dtype, [optimizer])[optimizer] for rows in (options.rows, 1))
    return large["process_bytes"] - small["process_bytes"]


def print_memory(options):
    print(f"Memory of a training, {options.rows:,} rows:\n")
    columns, first = [], {}
    for dtype, optimizer in KINDS:
        row = [dtype, optimizer]
        for dim in (64, 16):
            used = measure_memory(options, dim, dtype, optimizer)
            first.setdefault(dim, used)
            row += [f"{used / GIB:.2f} GiB", f"{used / options.rows:.1f}", f"{first[dim] / used:.2f}"]
        columns.append(row)
    header = ["rows", "optimizer"]
    for dim in (64, 16):
        header += [f"dim {dim}", "bytes a row", "times less"]
    print(markdown_table(header, columns), flush=True)


def print_steps(options):
    print(f"\nms of a lookup and of a step, {STEP['batch']:,} bags of {STEP['bag']} uniform ids, dim 64:\n")
    sizes = [(options.rows // 10, dtype) for dtype in ("float32", "bfloat16", "int8")]
    sizes += [(1_500_000, "int8"), (options.largest, "int8")]
    rows = []
    for count, dtype in sizes:
        lines = measure(options, count, 64, dtype, ["forward", "rowwise_adagrad"])
        times = [f"{lines[operation]['ms']:.2f}" for operation in ("forward", "rowwise_adagrad")]
        rows.append([f"{count:,}", dtype, *times, f"{lines['rowwise_adagrad']['process_bytes'] / GIB:.1f} GiB"])
    print(markdown_table(["rows", "dtype", "lookup", "step of row-wise Adagrad", "memory of the process"], rows))


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
