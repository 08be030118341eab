#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares ways to score many candidates for one user.

The program candidates_benchmark writes the models. AOTInductor compiles the whole model, which gets a batch that repeats
the user, and its dense part, which gets one row for the user. The program then times all sides in turns. 32 requests
take turns, too. With --http, it searches the highest rate of requests of the click model whose p99 is below 10 ms: of
Tessera's server, and of two workers of uvicorn, alone and with batches. The program http_load makes the load on the same
cores. Needs torch and a C++ compiler, and --http uvicorn, uvloop, httptools and orjson.
"""
import contextlib
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

from benchmark import Parser, count_threads, json_lines, markdown_table
from compare_serving import compile_package

MODELS = ["click", "dlrm", "two_towers", "din"]


def compile_packages(folder, threads, model):
    compile_package(folder, threads, model)
    # Without this option, weights of up to 8 numbers become constants of the code.
    compile_package(folder, threads, model + ".dense", always_keep_tensor_constants=True)


def print_table(results, threads):
    print(f"\nWith {count_threads(threads)}, p50 / p99 in us, and how much faster than 'repeated' by p50:\n")
    sides = list(dict.fromkeys(line["side"] for line in results))
    rows = []
    for model in dict.fromkeys(line["model"] for line in results):
        of_model = {line["side"]: line for line in results if line["model"] == model}
        base = of_model["repeated"]["p50_us"]
        rows.append(
            [
                model,
                *(
                    f"{line['p50_us']:.0f} / {line['p99_us']:.0f}, {base / line['p50_us']:.2f}"
                    for line in (of_model[side] for side in sides)
                ),
            ]
        )
    print(markdown_table(["model", *sides], rows))


@contextlib.contextmanager
def serve_tessera(options, folder):
    command = [options.program, folder, "--serve", "--threads", "2", "--rows", str(options.rows)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait()


@contextlib.contextmanager
def serve_python(folder, max_batch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "serve_in_python:app", "--workers", "2", "--port", str(port)]
    environment = {**os.environ, "FOLDER": str(folder), "MAX_BATCH": str(max_batch), "OMP_NUM_THREADS": "1"}
    here = pathlib.Path(__file__).resolve().parent
    process = subprocess.Popen([*command, "--no-access-log", "--log-level", "error"], cwd=here, env=environment)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        time.sleep(5)  # the second worker
        yield port
    finally:
        process.terminate()
        process.wait()


def highest_rate(options, folder, port):
    command = [
        *(options.load, "--url", f"http://127.0.0.1:{port}/score", "--body", folder / "click.jsonl"),
        *("--find-rate", "--p99-ms", "10", "--rate", "100", "--seconds", str(options.seconds)),
    ]
    return json_lines(command, "http_load failed")[-1]


def compare_servers(options, folder):
    write_model(options, folder, "click")
    compile_packages(folder, 1, "click")
    servers = {
        "Tessera": lambda: serve_tessera(options, folder),
        "uvicorn": lambda: serve_python(folder, 1),
        "uvicorn, batches of up to 4": lambda: serve_python(folder, 4),
    }
    rows = {name: [] for name in servers}
    for _ in range(options.rounds):
        for name, serve in servers.items():
            with serve() as port:
                line = highest_rate(options, folder, port)
            print(json.dumps({"server": name, **line}), flush=True)
            rows[name].append(f"{line['rate_reached']:.0f} ({line['p50_ms']:.1f} / {line['p99_ms']:.1f} ms)")
    print(f"\nRequests of {options.candidates} candidates per second with a p99 below 10 ms (p50 / p99):\n")
    rounds = [f"round {i + 1}" for i in range(options.rounds)]
    print(markdown_table(["server", *rounds], [[name, *cells] for name, cells in rows.items()]))


def write_model(options, folder, model):
    """Writes a model, and returns the options of the program that name it."""
    common = ["--model", model, "--rows", str(options.rows), "--candidates", str(options.candidates)]
    if subprocess.run([options.program, folder, "--write", *common]).returncode != 0:
        sys.exit("candidates_benchmark failed")
    return common


def main():
    parser = Parser(__doc__)
    parser.add_program("candidates_benchmark")
    parser.add_argument("--model", choices=MODELS, action="append", help="default: all")
    parser.add_count("--rows", 100_000, "rows of each of the 26 tables")
    parser.add_count("--candidates", 500, "candidates of a request")
    parser.add_count("--threads", help="default: 1 and 2", action="append")
    parser.add_count("--calls", 200, "timed calls in each round")
    parser.add_count("--rounds", 3)
    parser.add_argument("--http", action="store_true", help="compare servers")
    parser.add_count("--seconds", 5, "with --http: the time of each rate that is tried")
    options = parser.parse_args()
    parser.check_program(options, "candidates_benchmark")
    missing = [name for name in ["uvicorn", "uvloop", "httptools", "orjson"] if not importlib.util.find_spec(name)]
    if options.http and missing:
        sys.exit(f"--http needs {' '.join(missing)}. Run {sys.executable} -m pip install {' '.join(missing)}")
    options.load = pathlib.Path(options.program).with_name("http_load")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if options.http:
            compare_servers(options, folder)
            return
        for threads in options.threads or [1, 2]:
            results = []
            for model in options.model or MODELS:
                common = write_model(options, folder, model)
                print(f"compiling {model} for {count_threads(threads)}", file=sys.stderr)
                compile_packages(folder, threads, model)
                command = [
                    *(options.program, folder, "--threads", threads, *common),
                    *("--calls", str(options.calls), "--rounds", str(options.rounds)),
                ]
                results += json_lines(command, "candidates_benchmark failed")
            print_table(results, threads)


if __name__ == "__main__":
    main()
