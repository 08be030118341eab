"""Trains a model of an example and the same model in Python's torch alternately.

compare_dlrm.py and compare_sasrec.py have the models. A side is "tessera" or a variant of the Python model. All sides
must have the same number of threads. A variant with torch.compile is left out if it fails, for example without a C++
compiler or Python.h.

The order of the sides rotates from round to round. The ratio is that of Tessera to the variant whose median speed is
the highest. It is the median of the ratios of the rounds, with the lowest and the highest of them.
"""
import dataclasses
import json
import os
import pathlib
import statistics
import sys

import benchmark
from benchmark import count_threads, median


@dataclasses.dataclass
class Variant:
    arguments: list  # of the Python program
    has_tuned_malloc: bool = True


def add_options(parser, program, variants, rounds):
    parser.add_argument("--program", type=pathlib.Path, required=True, help=program)
    parser.add_argument("--python", type=pathlib.Path, default=sys.executable, help="a Python with torch and numpy")
    parser.add_argument("--variants", nargs="+", choices=variants, default=list(variants), help="of the Python model")
    parser.add_count("--rounds", 3, rounds)
    parser.add_count("--threads", help="of all programs, as OMP_NUM_THREADS; default: all cores")
    parser.add_argument(
        "--isa", help="instruction set of Tessera's kernels; avx2 also limits LibTorch, oneDNN and MKL in all programs"
    )


def environment_of(options, has_tuned_malloc=False):
    environment = {}
    if "OMP_WAIT_POLICY" not in os.environ:  # the examples limit the spins of their threads, too
        environment["GOMP_SPINCOUNT"] = os.environ.get("GOMP_SPINCOUNT", "3000")
    if options.threads:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    if options.isa:
        environment["TESSERA_ISA"] = options.isa
    if options.isa == "avx2":  # both programs use LibTorch, oneDNN and MKL
        environment.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")
    return {**environment, **(benchmark.TUNED_MALLOC if has_tuned_malloc else {})}


def run(side, command, options, variant=Variant([], False)):
    """Returns the report, or None if the variant could not be compiled. Then one line says why."""
    result = benchmark.run([*command, *variant.arguments], environment_of(options, variant.has_tuned_malloc))
    if result.returncode == 0:
        return json.loads(result.stdout)
    if "--compile" not in variant.arguments:
        sys.exit(f"{title(side)} failed:\n{result.stderr[-2000:]}")
    last_line = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
    print(f"{title(side)} is left out: {last_line}", file=sys.stderr)
    return None


def title(side):
    return side if side == "tessera" else f"torch {side}"


def measure(run_ours, theirs, variants, options, what=""):
    """Returns {side: a report for each round}. Each round has another seed.

    `run_ours(seed)` returns a report of Tessera, and `theirs` is the command of the Python program.
    """
    reports = {side: [] for side in ["tessera", *options.variants]}
    for seed in benchmark.rounds(options.rounds, what):
        for side in benchmark.turns(reports, seed):
            if side == "tessera":
                report = run_ours(seed)
            else:
                report = run(side, [options.python, *theirs, "--seed", seed], options, variants[side])
            if report is None:
                del reports[side]
                continue
            reports[side].append(report)
            check_threads(side, report, reports["tessera"][0])
    if len(reports) == 1:
        sys.exit(f"{what}no variant of the Python model ran. Choose another one with --variants.")
    return reports


def check_threads(side, report, ours):
    if report["threads"] != ours["threads"]:
        sys.exit(
            f"expected the same number of threads in all programs, but tessera has {ours['threads']} and {title(side)} "
            f"has {report['threads']}. Set it with --threads."
        )


def peers_of(reports):
    return {side: of_side for side, of_side in reports.items() if side != "tessera"}


def print_machines(reports):
    peer = next(iter(peers_of(reports).values()))[0]
    for name, report in ("tessera", reports["tessera"][0]), (f"torch {peer['torch']}", peer):
        print(f"  {name}: {count_threads(report['threads'])}, {report['isa']}")


def ratio_to_fastest(reports):
    """Returns the fastest variant, and the ratio of Tessera to it in each round."""
    speed = "examples_per_second"
    peers = peers_of(reports)
    fastest = max(peers, key=lambda variant: median(peers[variant], speed))
    return fastest, [a[speed] / b[speed] for a, b in zip(reports["tessera"], peers[fastest])]


def print_ratio(reports):
    fastest, ratios = ratio_to_fastest(reports)
    print(
        f"  times as fast as torch {fastest}, the fastest: {statistics.median(ratios):.2f}, between {min(ratios):.2f}"
        f" and {max(ratios):.2f} (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )
