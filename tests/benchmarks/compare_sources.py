"""Compares how fast Tessera and pyarrow read the same CSV and Parquet files, in turns.

The files have ten columns: four of integers, three of floats with some nulls, two of text and one of lists. Tessera's
time has everything up to tensors and strings. That of pyarrow ends at Arrow's own arrays.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

FORMATS = ["parquet", "csv"]
SIDES = ["tessera", "pyarrow"]
BATCH = 65_536


def make_table(rows, seed):
    import numpy
    import pyarrow

    random = numpy.random.default_rng(seed)
    columns = {"label": random.integers(0, 2, rows)}
    for name, values in (("user", 1_000_000), ("item", 100_000), ("hour", 24)):
        columns[name] = random.integers(0, values, rows)
    for name in "price", "age", "distance":
        missing = random.random(rows) < 0.05
        columns[name] = pyarrow.array(random.normal(size=rows).astype(numpy.float32), mask=missing)
    words = numpy.array([f"word{i}" for i in range(1000)])
    for name in "city", "device":
        columns[name] = words[random.integers(0, len(words), rows)]
    lengths = random.integers(0, 6, rows)
    splits = numpy.concatenate([[0], numpy.cumsum(lengths)]).astype(numpy.int32)
    columns["recent"] = pyarrow.ListArray.from_arrays(splits, random.integers(0, 100_000, splits[-1]))
    return pyarrow.table(columns)


def write(table, format, path, row_group):
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    if format == "parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=row_group, compression="zstd")
    else:
        lists = ["|".join(map(str, values)) for values in table["recent"].to_pylist()]
        position = table.schema.get_field_index("recent")
        pyarrow.csv.write_csv(table.set_column(position, "recent", pyarrow.array(lists)), path)


def read_with_pyarrow(pyarrow, format, path, threads):
    """Reads all batches. Returns the number of rows."""
    if format == "parquet":
        batches = pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=BATCH, use_threads=threads > 1)
        return sum(batch.num_rows for batch in batches)
    return sum(batch.num_rows for batch in pyarrow.csv.open_csv(path))


def time_pyarrow(format, path, threads):
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet

    pyarrow.set_cpu_count(threads)
    cores, begin = time.process_time(), time.perf_counter()
    examples = read_with_pyarrow(pyarrow, format, path, threads)
    seconds = time.perf_counter() - begin
    print(json.dumps({"examples": examples, "seconds": seconds, "core_seconds": time.process_time() - cores}))


def run_once(side, format, path, options):
    arguments = ["--format", format, "--file", str(path), "--threads", str(options.threads)]
    command = [options.program] if side == "tessera" else [sys.executable, __file__, "--pyarrow"]
    result = subprocess.run(command + arguments, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{side} failed on {format}:\n{result.stderr[-2000:]}")
    line = json.loads(result.stdout)
    if line["examples"] != options.examples:
        sys.exit(f"{side} read {line['examples']} examples of {format} instead of {options.examples}")
    return line


def compare(options):
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {format: pathlib.Path(folder) / f"examples.{format}" for format in options.format}
        table = make_table(options.examples, options.seed)
        for format, path in paths.items():
            write(table, format, path, options.row_group)
        del table
        for round_ in range(options.rounds):
            for format, path in paths.items():
                for i in range(len(SIDES)):
                    side = SIDES[(i + round_) % len(SIDES)]
                    results.setdefault((format, side), []).append(run_once(side, format, path, options))
        sizes = {format: path.stat().st_size for format, path in paths.items()}
    print(
        f"{options.examples} examples of 10 columns, {options.threads} threads,"
        f" medians of {options.rounds} alternate rounds"
    )
    for format in options.format:
        medians = {}
        for side in SIDES:
            lines = results[format, side]
            medians[side] = statistics.median(line["seconds"] for line in lines)
            cores = statistics.median(line["core_seconds"] for line in lines)
            speed = options.examples / medians[side] / 1e6
            print(
                f"{format:8} {side:8} {speed:7.2f} M examples/s  {medians[side]:7.3f} s  {cores:7.3f} s of all cores"
                f"  file {sizes[format] / 1e6:.0f} MB"
            )
        print(f"{format:8} Tessera is {medians['pyarrow'] / medians['tessera']:.2f} times as fast as pyarrow")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--program", help="the program source_benchmark; ./run names it")
    parser.add_argument("--pyarrow", action="store_true", help="only time pyarrow on --file once")
    parser.add_argument("--file", help="with --pyarrow: the file to read")
    parser.add_argument("--format", choices=FORMATS, action="append", help="only these; default: all")
    parser.add_argument("--examples", type=int, default=2_000_000, help="default: 2000000")
    parser.add_argument("--row-group", type=int, default=200_000, help="examples per row group; default: 200000")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1), help="default: 2")
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.format = options.format or FORMATS
    for name in "examples", "row_group", "threads", "rounds":
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be >= 1, but got {getattr(options, name)}")
    if options.pyarrow:
        if not options.file:
            parser.error("--pyarrow needs --file")
        time_pyarrow(options.format[0], options.file, options.threads)
        return
    if not options.program or not os.access(options.program, os.X_OK):
        parser.error(f"--program must name the program source_benchmark, but got '{options.program}'")
    compare(options)


if __name__ == "__main__":
    main()
