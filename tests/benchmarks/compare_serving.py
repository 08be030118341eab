#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares four runtimes that serve a click model: Tessera, TorchScript, Pt2Program, and AOTInductor.

The program serving_benchmark writes the model. AOTInductor compiles its .pt2 file for each number of threads. The
program then times all runtimes in turns. 32 batches take turns, too. Needs torch and a C++ compiler.
"""
import pathlib
import subprocess
import sys
import tempfile
import warnings

from benchmark import (
    Parser,
    add_table_option,
    count_threads,
    counted,
    cpu_name,
    json_lines,
    markdown_table,
    write_table,
)

RUNTIMES = {"tessera": "Tessera", "torchscript": "TorchScript", "pt2_program": "Pt2Program", "aotinductor": "AOTInductor"}


def compile_package(folder, threads, name="click", **configs):
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    program = torch.export.load(folder / f"{name}.pt2")
    package = folder / f"{name}.{threads}.aoti.pt2"
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(package), inductor_configs={"cpp.threads": threads, **configs}
    )


def print_table(results, threads, options):
    print(f"\nWith {count_threads(threads)}, p50 / p99 in us, and examples per second:\n")
    cells = {
        (line["batch"], line["runtime"]): f"{line['p50_us']:.0f} / {line['p99_us']:.0f}, {line['examples_per_s']:,.0f}"
        for line in results
    }
    runtimes = [runtime for runtime in RUNTIMES if any(runtime == name for _, name in cells)]
    rows = [[batch, *(cells[batch, name] for name in runtimes)] for batch in sorted({batch for batch, _ in cells})]
    header = ["batch", *(RUNTIMES[name] for name in runtimes)]
    print(markdown_table(header, rows))
    about = f"{cpu_name()}, {count_threads(threads)}, {counted(options.rounds, 'round')} of {options.calls} calls"
    write_table(options, "--serving", about, header, rows)


def main():
    parser = Parser(__doc__)
    parser.add_program("serving_benchmark")
    parser.add_count("--rows", 100_000, "rows of each of the 26 tables")
    parser.add_argument("--only-pt2", action="store_true", help="without TorchScript, for tables of many GB")
    parser.add_count("--threads", help="default: 1 and 2", action="append")
    parser.add_count("--calls", 1000, "timed calls in each round")
    parser.add_count("--rounds", 3)
    add_table_option(parser)
    options = parser.parse_args()
    parser.check_program(options, "serving_benchmark")
    model = ["--rows", str(options.rows), *(["--only-pt2"] if options.only_pt2 else [])]
    extra = [*model, "--calls", str(options.calls), "--rounds", str(options.rounds)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if subprocess.run([options.program, folder, "--write", *model]).returncode != 0:
            sys.exit("serving_benchmark failed")
        for threads in options.threads or [1, 2]:
            print(f"compiling for {count_threads(threads)}", file=sys.stderr)
            compile_package(folder, threads)
            command = [options.program, folder, "--threads", threads, *extra]
            print_table(json_lines(command, "serving_benchmark failed"), threads, options)


if __name__ == "__main__":
    main()
