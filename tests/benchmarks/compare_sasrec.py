"""Trains SASRec of examples/sasrec.cpp and the same model in Python's torch alternately, and prints the quality and the
examples per second of both.

The Python model is that of sasrec_torch.py, whose docstring describes it. It runs eagerly and with torch.compile, and
the ratio is to the faster of the two. Its malloc uses huge pages and keeps its memory. compare_models.py describes how
the programs are compared.

Both have the same split of MovieLens 100K, the same hyper-parameters and the same early stopping. Each round has
another seed. An example is a position of a sequence with the movie that follows. The time counts the training steps
with making batches, but no evaluation.

The qualities are equal within noise if the means differ by less than twice the standard error of their difference.
"""

import math
import statistics
import sys
from pathlib import Path

import compare_models
from benchmark import DEPS, HERE, Parser, median
from compare_models import Variant

VARIANTS = {"eager": Variant([]), "compile": Variant(["--compile"])}


def measure(options):
    """Returns {side: a report for each round}, and the first report of Tessera."""
    shared = ["--data", options.data, "--epochs", options.epochs, "--loss", options.loss]
    whole = []

    def run_ours(seed):
        command = [options.program, "--json", "--runs", 1, "--seed", seed, *shared]
        whole.append(compare_models.run("tessera", command, options))
        return {**whole[-1]["runs"][0], "threads": whole[-1]["threads"], "isa": whole[-1]["isa"]}

    reports = compare_models.measure(run_ours, [HERE / "sasrec_torch.py", *shared], VARIANTS, options)
    return reports, whole[0]


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
    peers = compare_models.peers_of(reports)
    print(f"SASRec on MovieLens 100K, {options.loss} loss, {options.rounds} rounds with different seeds")
    compare_models.print_machines(reports)
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
    compare_models.print_ratio(reports)
    is_equal = all(are_close(ours, of_peer, key) for of_peer in peers.values() for key in ("hit_rate", "ndcg"))
    print(f"  HR@10 and NDCG@10 equal to every variant within noise: {'yes' if is_equal else 'NO'}")
    for name, key in ("popularity", "popularity"), ("item-kNN", "item_knn"):
        is_better = mean_and_spread(ours, "ndcg")[0] > first_report[key]["ndcg"]
        print(f"  NDCG@10 of tessera better than {name}: {'yes' if is_better else 'NO'}")
    return is_equal


def main():
    parser = Parser(__doc__)
    compare_models.add_options(parser, "the example sasrec", VARIANTS, "each with another seed")
    parser.add_argument("--data", type=Path, default=DEPS / "data/ml-100k", help="folder of MovieLens 100K")
    parser.add_argument("--loss", choices=["softmax", "binary"], default="softmax")
    parser.add_count("--epochs", 100, "most epochs; fewer only show that it runs")
    options = parser.parse_args()
    return 0 if print_results(*measure(options), options) else 1


if __name__ == "__main__":
    sys.exit(main())
