#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares four runtimes that serve a click model: Tessera, TorchScript, Pt2Program, and AOTInductor.

The program serving_benchmark writes the model. AOTInductor compiles its .pt2 file for each number of threads. The
program then times all runtimes in turns. 32 batches take turns, too. Needs torch and a C++ compiler.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import warnings

RUNTIMES = {"tessera": "Tessera", "torchscript": "TorchScript", "pt2_program": "Pt2Program", "aotinductor": "AOTInductor"}


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, but got {text}")
    return value


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
    runtimes = [runtime for runtime in RUNTIMES if any(line["runtime"] == runtime for line in results)]
    print("| batch | " + " | ".join(RUNTIMES[runtime] for runtime in runtimes) + " |")
    print("|---:|" + "---:|" * len(runtimes))
    for batch in sorted({line["batch"] for line in results}):
        of_batch = {line["runtime"]: line for line in results if line["batch"] == batch}
        cells = [
            f"{of_batch[runtime]['p50_us']:.0f} / {of_batch[runtime]['p99_us']:.0f}, {of_batch[runtime]['examples_per_s']:,.0f}"
            for runtime in runtimes
        ]
        print(f"| {batch} | " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="the serving_benchmark program; ./run names it")
    parser.add_argument("--rows", type=positive, default=100_000, help="rows of each of the 26 tables; default: 100000")
    parser.add_argument("--only-pt2", action="store_true", help="without TorchScript, for tables of many GB")
    parser.add_argument("--threads", type=positive, action="append", help="default: 1 and 2")
    parser.add_argument("--calls", type=positive, default=1000, help="timed calls in each round; default: 1000")
    parser.add_argument("--rounds", type=positive, default=3, help="default: 3")
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
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(f"compare_serving: {error}")  # the program has printed the reason
