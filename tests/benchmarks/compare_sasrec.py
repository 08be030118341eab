"""Trains SASRec of examples/sasrec.cpp and the same model in Python's torch alternately, and prints the quality and the
examples per second of both.

The Python model is that of sasrec_torch.py, whose docstring describes it. It runs eagerly and with torch.compile, and
the ratio is to the faster of the two. Its malloc uses huge pages and keeps its memory. The compiled variant is left out
if it fails, for example without a C++ compiler or Python.h.

Both have the same split of MovieLens 100K, the same hyper-parameters and the same early stopping. Each round has
another seed. The order of the programs rotates from round to round, so that a slow period of the machine affects all
of them. An example is a position of a sequence with the movie that follows. The time counts the training steps with
making batches, but no evaluation.

The qualities are equal within noise if the means differ by less than twice the standard error of their difference.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

from alternate_rounds import DEPS, positive
from compare_dlrm import environment_of, median, run
from round_results import count_threads

VARIANTS = {"eager": [], "compile": ["--compile"]}  # arguments of sasrec_torch.py


def run_variant(variant, command, options):
    """Returns the report, or None if the variant could not be compiled. Then one line says why."""
    result = subprocess.run(
        [str(part) for part in [*command, *VARIANTS[variant]]],
        capture_output=True,
        text=True,
        env=environment_of(options, "tuned"),
    )
    if result.returncode == 0:
        return json.loads(result.stdout)
    if variant != "compile":
        sys.exit(f"torch {variant} failed:\n{result.stderr[-2000:]}")
    last_line = (result.stderr.strip().splitlines() or [f"exit status {result.returncode}"])[-1]
    print(f"torch {variant} is left out: {last_line}", file=sys.stderr)
    return None


def measure(options):
    """Returns {side: a report for each round}, and the first report of Tessera. A side is "tessera" or a variant."""
    peer = Path(__file__).with_name("sasrec_torch.py")
    shared = ["--data", options.data, "--epochs", options.epochs, "--loss", options.loss]
    reports = {side: [] for side in ["tessera", *options.variants]}
    first_report = None
    for seed in range(options.rounds):
        sides = list(reports)
        first = seed % len(sides)
        for side in sides[first:] + sides[:first]:
            if side == "tessera":
                ours = [options.program, "--json", "--runs", 1, "--seed", seed, *shared]
                whole = run(ours, environment_of(options))
                first_report = first_report or whole
                report = {**whole["runs"][0], "threads": whole["threads"], "isa": whole["isa"]}
            else:
                report = run_variant(side, [options.python, peer, "--seed", seed, *shared], options)
            if report is None:
                del reports[side]
            else:
                reports[side].append(report)
        print(f"round {seed + 1} of {options.rounds} done", file=sys.stderr)
    threads = {report["threads"] for of_side in reports.values() for report in of_side}
    if len(threads) > 1:
        sys.exit(f"expected the same number of threads in all programs, but got {threads}. Set it with --threads.")
    return reports, first_report


def mean_and_spread(reports, key):
    values = [report[key] for report in reports]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def are_close(ours, theirs, key):
    """Whether the means differ by less than twice the standard error of their difference."""
    mean, spread = mean_and_spread(ours, key)
    other_mean, other_spread = mean_and_spread(theirs, key)
    return abs(mean - other_mean) <= 2 * math.sqrt(spread**2 / len(ours) + other_spread**2 / len(theirs))


def print_results(reports, first_report, options):
    """Returns whether Tessera's quality is not worse than that of the others, within noise."""
    ours = reports["tessera"]
    peers = {side: of_side for side, of_side in reports.items() if side != "tessera"}
    a_peer = next(iter(peers.values()))[0]
    print(f"SASRec on MovieLens 100K, {options.loss} loss, {options.rounds} rounds with different seeds")
    for name, report in ("tessera", ours[0]), (f"torch {a_peer['torch']}", a_peer):
        print(f"  {name}: {count_threads(report['threads'])}, {report['isa']}")
    print("                   HR@10             NDCG@10           best epoch  examples/s")
    for name, key in ("popularity", "popularity"), ("item-kNN", "item_knn"):
        simple = first_report[key]
        print(f"  {name:<15}  {simple['hit_rate']:.4f}            {simple['ndcg']:.4f}")

    def print_line(name, of_side):
        parts = ["{:.4f} +- {:.4f}".format(*mean_and_spread(of_side, key)) for key in ("hit_rate", "ndcg")]
        epoch = median(of_side, "best_epoch")
        print(f"  {name:<15}  {parts[0]}  {parts[1]}  {epoch:10.0f}  {median(of_side, 'examples_per_second'):10.0f}")

    print_line("tessera", ours)
    for variant, of_variant in peers.items():
        print_line(f"torch {variant}", of_variant)
    fastest = max(peers, key=lambda variant: median(peers[variant], "examples_per_second"))
    ratios = [a["examples_per_second"] / b["examples_per_second"] for a, b in zip(ours, peers[fastest])]
    print(
        f"  times as fast as torch {fastest}, the fastest: {statistics.median(ratios):.2f}, between {min(ratios):.2f}"
        f" and {max(ratios):.2f} (rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)})"
    )
    is_equal = all(are_close(ours, of_peer, key) for of_peer in peers.values() for key in ("hit_rate", "ndcg"))
    print(f"  HR@10 and NDCG@10 equal to every variant within noise: {'yes' if is_equal else 'NO'}")
    for name, key in ("popularity", "popularity"), ("item-kNN", "item_knn"):
        is_better = mean_and_spread(ours, "ndcg")[0] > first_report[key]["ndcg"]
        print(f"  NDCG@10 of tessera better than {name}: {'yes' if is_better else 'NO'}")
    return is_equal


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="the example sasrec")
    parser.add_argument("--python", type=Path, default=sys.executable, help="a Python with torch and numpy")
    parser.add_argument("--data", type=Path, default=DEPS / "data/ml-100k", help="folder of MovieLens 100K")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="of the Python model")
    parser.add_argument("--loss", choices=["softmax", "binary"], default="softmax")
    parser.add_argument("--epochs", type=positive, default=100, help="most epochs; fewer only show that it runs")
    parser.add_argument("--rounds", type=positive, default=3, help="each with another seed")
    parser.add_argument("--threads", type=positive, help="of all programs, as OMP_NUM_THREADS; default: all cores")
    parser.add_argument(
        "--isa", help="instruction set of Tessera's kernels; avx2 also limits LibTorch, oneDNN and MKL in all programs"
    )
    options = parser.parse_args()
    reports, first_report = measure(options)
    if len(reports) == 1:
        sys.exit("no variant of the Python model ran. Add eager to --variants.")
    return 0 if print_results(reports, first_report, options) else 1


if __name__ == "__main__":
    sys.exit(main())
