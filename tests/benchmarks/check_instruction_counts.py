#!/usr/bin/env python3
"""Counts the kernels' instructions under callgrind and compares them with the committed baseline.

Unlike times, counts are reproducible. They depend on the compiler, so nothing is compared if it is not
that of the baseline, or if the machine has no valgrind or AVX2 (exit status 77). Fewer instructions than
in the baseline pass; --update writes a new baseline.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

from benchmark import Parser

BASELINE = pathlib.Path(__file__).parent / "instruction_counts.json"
SKIPPED = 77


def count(program, work):
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=measured"]
    result = subprocess.run([*command, program, work], capture_output=True, text=True)
    collected = re.search(r"Collected : (\d+)", result.stderr)
    if result.returncode != 0 or not collected or int(collected[1]) == 0:
        sys.exit(f"callgrind failed on {work}:\n{result.stderr[-2000:]}")
    return int(collected[1])


def main():
    parser = Parser(__doc__)
    parser.add_argument("--program", required=True, help="the program kernel_work")
    parser.add_argument("--compiler", required=True, help="name and major version, for example: GNU 12")
    parser.add_argument("--update", action="store_true", help="write the baseline")
    options = parser.parse_args()
    os.environ["TESSERA_ISA"] = "avx2"  # valgrind knows no AVX-512
    listing = subprocess.run([options.program], capture_output=True, text=True)
    if listing.returncode == SKIPPED or not shutil.which("valgrind"):
        print("skipped: no valgrind, or no AVX2")
        sys.exit(SKIPPED)
    if listing.returncode != 0:
        sys.exit(f"{options.program} failed:\n{listing.stderr[-2000:]}")
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if not options.update and baseline.get("compiler") != options.compiler:
        print(f"skipped: expected the compiler of the baseline, {baseline.get('compiler')}, but got {options.compiler}")
        sys.exit(SKIPPED)
    counts = {work: count(options.program, work) for work in listing.stdout.split()}
    if options.update:
        baseline = {"compiler": options.compiler, "tolerance": 0.05, "counts": counts}
        BASELINE.write_text(json.dumps(baseline, indent=1) + "\n")
        return
    if set(counts) != set(baseline["counts"]):
        sys.exit(f"other kernels than in {BASELINE.name}: {set(counts) ^ set(baseline['counts'])}. Run with --update.")
    failed = False
    for work, expected in baseline["counts"].items():
        ratio = counts[work] / expected
        is_more = ratio > 1 + baseline["tolerance"]
        failed |= is_more
        print(f"{work:24}{counts[work]:12}{expected:12}{ratio:8.3f}{'  MORE' if is_more else ''}")
    if failed:
        sys.exit("A kernel takes more instructions than the baseline allows. To accept that, run with --update.")


if __name__ == "__main__":
    main()
