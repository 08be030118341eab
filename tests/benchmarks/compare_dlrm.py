"""Trains the click models of examples/dlrm_criteo.cpp and the same models in Python's torch alternately, and prints
AUC and examples per second of all.

The Python models are those of dlrm_torch.py, whose docstring describes them:

  plain          one EmbeddingBag per column and optim.Adagrad
  tuned          one table for all columns, with its own update, and the fused optim.Adagrad. Its malloc uses huge
                 pages and keeps its memory.
  tuned+compile  the same with torch.compile. This variant is left out if it fails, for example without a C++ compiler
                 or Python.h.

All programs must have the same number of threads. Otherwise the comparison stops.

The order of the programs rotates from round to round, so that a slow period of the machine affects all of them. The
ratio is that of Tessera, from memory, to the variant whose median speed is the highest. It is the median of the
ratios of the rounds, with the lowest and the highest of them.

Tessera's models train from memory, like those in Python, and once more from the file; that time includes reading and
vocabularies. Tessera's time includes its first steps, the log loss and the progress bar. The Python programs train a
few batches before the clock starts, and compute no metrics.

Tessera's malloc has the settings of the system, but dlrm_criteo keeps the memory of earlier steps itself. No program
lets idle threads spin for long (GOMP_SPINCOUNT=1000).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from alternate_rounds import DEPS, TUNED_MALLOC, positive
from round_results import count_threads

VARIANTS = {  # arguments of dlrm_torch.py
    "plain": ["--variant", "plain"],
    "tuned": ["--variant", "tuned"],
    "tuned+compile": ["--variant", "tuned", "--compile"],
}


def environment_of(options, variant=None):
    environment = dict(os.environ)
    if "OMP_WAIT_POLICY" not in environment:  # dlrm_criteo limits the spins of its threads, too
        environment.setdefault("GOMP_SPINCOUNT", "1000")
    if options.threads:
        environment["OMP_NUM_THREADS"] = str(options.threads)
    if options.isa:
        environment["TESSERA_ISA"] = options.isa
    if options.isa == "avx2":  # both programs use LibTorch, oneDNN and MKL
        environment.update(ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2", MKL_ENABLE_INSTRUCTIONS="AVX2")
    if variant and variant.startswith("tuned"):
        environment.update(TUNED_MALLOC)
    return environment


def run(command, environment):
    result = subprocess.run(
        [str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    return json.loads(result.stdout)


def run_variant(variant, command, options):
    """Returns the report, or None if the variant could not be compiled. Then one line says why."""
    result = subprocess.run(
        [str(part) for part in [*command, *VARIANTS[variant]]],
        capture_output=True,
        text=True,
        env=environment_of(options, variant),
    )
    if result.returncode == 0:
        return json.loads(result.stdout)
    if "+compile" not in variant:
        sys.exit(f"torch {variant} failed:\n{result.stderr[-2000:]}")
    last_line = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
    print(f"torch {variant} is left out: {last_line}", file=sys.stderr)
    return None


def check_threads(variant, report, streamed):
    if report["threads"] != streamed["threads"]:
        name = variant if variant == "tessera" else f"torch {variant}"
        sys.exit(
            f"expected the same number of threads in all programs, but tessera has {streamed['threads']} and {name} "
            f"has {report['threads']}. Set it with --threads."
        )


def measure(model, arrays, options):
    """Returns the report of Tessera from the file, and {side: a report for each round}. A side is "tessera" or a
    variant."""
    peer = Path(__file__).with_name("dlrm_torch.py")
    shared = ["--model", model, "--batch", options.batch]
    ours = [options.program, "--json", "--generate", options.generate, "--folder", options.folder, *shared]
    theirs = [options.python, peer, "--arrays", arrays, *shared]
    streamed = run([*ours, "--write-arrays", arrays], environment_of(options))
    reports = {side: [] for side in ["tessera", *options.variants]}
    for seed in range(options.rounds):
        sides = list(reports)
        first = seed % len(sides)
        for side in sides[first:] + sides[:first]:
            if side == "tessera":
                report = run([*ours, "--in-memory", "--seed", seed], environment_of(options))
            else:
                report = run_variant(side, [*theirs, "--seed", seed], options)
            if report is None:
                del reports[side]
            else:
                check_threads(side, report, streamed)
                reports[side].append(report)
        print(f"{model}: round {seed + 1} of {options.rounds} done", file=sys.stderr)
    return streamed, reports


def median(reports, key):
    return statistics.median(report[key] for report in reports)


def print_results(model, streamed, reports, options):
    """Returns true if the AUC of all sides is as expected."""
    ours = reports["tessera"]
    peers = {side: of_side for side, of_side in reports.items() if side != "tessera"}
    auc, bayes = median(ours, "auc"), ours[0]["bayes_auc"]
    a_peer = next(iter(peers.values()))[0]
    print(f"{model}, {options.generate} examples, batches of {options.batch}, {options.rounds} rounds, medians")
    for name, report in ("tessera", ours[0]), (f"torch {a_peer['torch']}", a_peer):
        print(f"  {name}: {count_threads(report['threads'])}, {report['isa']}")

    def print_line(name, its_auc, speed):
        print(f"  {name:<21} AUC {its_auc:.4f}  {speed:9.0f} examples/s")

    print_line("tessera from memory", auc, median(ours, "examples_per_second"))
    print_line("tessera from the file", streamed["auc"], streamed["examples_per_second"])
    for variant, of_variant in peers.items():
        print_line(f"torch {variant}", median(of_variant, "auc"), median(of_variant, "examples_per_second"))
    print(f"  AUC of the true probabilities {bayes:.4f}")

    fastest = max(peers, key=lambda variant: median(peers[variant], "examples_per_second"))
    ratios = [a["examples_per_second"] / b["examples_per_second"] for a, b in zip(ours, peers[fastest])]
    print(
        f"  times as fast as torch {fastest}, the fastest: {statistics.median(ratios):.2f}, between {min(ratios):.2f}"
        f" and {max(ratios):.2f} (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )
    is_close = bayes - auc <= 0.01 and all(abs(auc - median(of_peer, "auc")) <= 0.002 for of_peer in peers.values())
    print(f"  AUC within 0.002 of every variant and 0.01 of the true one: {'yes' if is_close else 'NO'}")
    return is_close


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="dlrm_criteo")
    parser.add_argument("--python", type=Path, default=sys.executable, help="a Python with torch and numpy")
    parser.add_argument("--folder", type=Path, default=DEPS / "data/criteo-generated", help="of the generated files")
    parser.add_argument("--generate", type=int, default=1_000_000, help="training examples")
    parser.add_argument("--models", nargs="+", choices=["dlrm", "dcn"], default=["dlrm", "dcn"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="of the Python model")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--threads", type=positive, help="of all programs, as OMP_NUM_THREADS; default: all cores")
    parser.add_argument(
        "--isa", help="instruction set of Tessera's kernels; avx2 also limits LibTorch, oneDNN and MKL in all programs"
    )
    options = parser.parse_args()

    are_close = True
    with tempfile.TemporaryDirectory() as arrays:
        for model in options.models:
            streamed, reports = measure(model, arrays, options)
            if len(reports) == 1:
                sys.exit(f"{model}: no variant of the Python model ran. Add plain or tuned to --variants.")
            are_close &= print_results(model, streamed, reports, options)
    return 0 if are_close else 1


if __name__ == "__main__":
    sys.exit(main())
