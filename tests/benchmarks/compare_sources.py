"""Compares how fast Tessera and pyarrow read the same CSV and Parquet files, in turns.

The files have ten columns: four of integers, three of floats with some nulls, two of text and one of lists. Tessera's
time has everything up to tensors and strings. That of pyarrow ends at Arrow's own arrays.
"""

import json
import pathlib
import sys
import tempfile
import time

from benchmark import Parser, count_cores, json_lines, median, rounds, turns

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
    arguments = ["--format", format, "--file", path, "--threads", options.threads]
    command = [options.program] if side == "tessera" else [sys.executable, __file__, "--pyarrow"]
    line = json_lines([*command, *arguments], f"{side} failed on {format}")[0]
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
        for round_ in rounds(options.rounds):
            for format, path in paths.items():
                for side in turns(SIDES, round_):
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
            medians[side] = median(lines, "seconds")
            cores = median(lines, "core_seconds")
            speed = options.examples / medians[side] / 1e6
            print(
                f"{format:8} {side:8} {speed:7.2f} M examples/s  {medians[side]:7.3f} s  {cores:7.3f} s of all cores"
                f"  file {sizes[format] / 1e6:.0f} MB"
            )
        print(f"{format:8} Tessera is {medians['pyarrow'] / medians['tessera']:.2f} times as fast as pyarrow")


def main():
    parser = Parser(__doc__)
    parser.add_program("source_benchmark")
    parser.add_argument("--pyarrow", action="store_true", help="only time pyarrow on --file once")
    parser.add_argument("--file", help="with --pyarrow: the file to read")
    parser.add_choices("--format", FORMATS)
    parser.add_count("--examples", 2_000_000)
    parser.add_count("--row-group", 200_000, "examples per row group")
    parser.add_count("--threads", min(2, count_cores()))
    parser.add_count("--rounds", 5)
    parser.add_count("--seed", 0, least=0)
    options = parser.parse_args()
    options.format = options.format or FORMATS
    if options.pyarrow:
        if not options.file:
            parser.error("--pyarrow needs --file")
        time_pyarrow(options.format[0], options.file, options.threads)
        return
    parser.check_program(options, "source_benchmark")
    compare(options)


if __name__ == "__main__":
    main()
