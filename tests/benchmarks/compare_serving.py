#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares four ways to serve a click model: Tessera, TorchScript, Pt2Program, and a package of AOTInductor.

The program serving_benchmark writes the model. AOTInductor compiles its .pt2 file for each number of threads. The
program then times all ways in turns, with a new batch in each call. Needs torch and a C++ compiler.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

WAYS = {"tessera": "Tessera", "torchscript": "TorchScript", "pt2_program": "Pt2Program", "aotinductor": "AOTInductor"}


def compile_package(folder, threads):
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    program = torch.export.load(folder / "click.pt2")
    package = folder / f"click.{threads}.aoti.pt2"
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(package), inductor_configs={"cpp.threads": threads}
    )


def measure(program, folder, threads, extra):
    output = subprocess.run(
        [program, folder, "--threads", str(threads), *extra], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return [json.loads(line) for line in output.splitlines()]


def print_table(results, threads):
    print(f"\nWith {threads} thread{'s' if threads > 1 else ''}, p50 / p99 in us, and examples per second:\n")
    ways = [way for way in WAYS if any(line["way"] == way for line in results)]
    print("| batch | " + " | ".join(WAYS[way] for way in ways) + " |")
    print("|---:|" + "---:|" * len(ways))
    for batch in sorted({line["batch"] for line in results}):
        of_batch = {line["way"]: line for line in results if line["batch"] == batch}
        cells = [
            f"{of_batch[way]['p50_us']:.0f} / {of_batch[way]['p99_us']:.0f}, {of_batch[way]['examples_per_s']:,.0f}"
            for way in ways
        ]
        print(f"| {batch} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="the serving_benchmark program; ./run names it")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of each of the 26 tables; default: 100000")
    parser.add_argument("--only-pt2", action="store_true", help="without TorchScript, for tables of many GB")
    parser.add_argument("--threads", type=int, action="append", help="default: 1 and 2")
    parser.add_argument("--calls", type=int, default=1000, help="timed calls in each round; default: 1000")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    options = parser.parse_args()
    model = ["--rows", str(options.rows), *(["--only-pt2"] if options.only_pt2 else [])]
    extra = [*model, "--calls", str(options.calls), "--rounds", str(options.rounds)]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([options.program, folder, "--write", *model], check=True)
        for threads in options.threads or [1, 2]:
            print(f"compiling for {threads} thread{'s' if threads > 1 else ''}", file=sys.stderr)
            compile_package(folder, threads)
            print_table(measure(options.program, folder, threads, extra), threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
