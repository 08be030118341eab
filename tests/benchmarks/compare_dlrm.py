"""Trains the click models of examples/dlrm_criteo.cpp and the same models in Python's torch alternately, and prints
AUC and examples per second of all.

The Python models are those of dlrm_torch.py, whose docstring describes them:

  plain          one EmbeddingBag per column and optim.Adagrad
  tuned          one table for all columns, with its own update, and the fused optim.Adagrad. Its malloc uses huge
                 pages and keeps its memory.
  tuned+compile  the same with torch.compile

compare_models.py describes how they are compared. The ratio is that of Tessera from memory.

Tessera's models train from memory, like those in Python, and once more from the file; that time includes reading and
vocabularies. Tessera's time includes its first steps, the log loss and the progress bar. The Python programs train a
few batches before the clock starts, and compute no metrics.

Tessera's malloc has the settings of the system, but dlrm_criteo keeps the memory of earlier steps itself. No program
lets idle threads spin for long (GOMP_SPINCOUNT=3000).
"""
import statistics
import sys
import tempfile
from pathlib import Path

import compare_models
from benchmark import DEPS, HERE, Parser, add_table_option, count_threads, counted, cpu_name, median, write_table
from compare_models import Variant

VARIANTS = {
    "plain": Variant(["--variant", "plain"], has_tuned_malloc=False),
    "tuned": Variant(["--variant", "tuned"]),
    "tuned+compile": Variant(["--variant", "tuned", "--compile"]),
}


def measure(model, arrays, options):
    """Returns the report of Tessera from the file, and {side: a report for each round}."""
    shared = ["--model", model, "--batch", options.batch]
    ours = [options.program, "--json", "--generate", options.generate, "--folder", options.folder, *shared]
    streamed = compare_models.run("tessera", [*ours, "--write-arrays", arrays], options)
    return streamed, compare_models.measure(
        lambda seed: compare_models.run("tessera", [*ours, "--in-memory", "--seed", seed], options),
        [HERE / "dlrm_torch.py", "--arrays", arrays, *shared],
        VARIANTS,
        options,
        f"{model}: ",
    )


def print_results(model, streamed, reports, options):
    """Returns true if the AUC of all sides is as expected."""
    ours = reports["tessera"]
    peers = compare_models.peers_of(reports)
    auc, bayes = median(ours, "auc"), ours[0]["bayes_auc"]
    print(f"{model}, {options.generate} examples, batches of {options.batch}, {options.rounds} rounds, medians")
    compare_models.print_machines(reports)

    def print_line(name, its_auc, speed):
        print(f"  {name:<21} AUC {its_auc:.4f}  {speed:9.0f} examples/s")

    print_line("tessera from memory", auc, median(ours, "examples_per_second"))
    print_line("tessera from the file", streamed["auc"], streamed["examples_per_second"])
    for variant, of_variant in peers.items():
        print_line(f"torch {variant}", median(of_variant, "auc"), median(of_variant, "examples_per_second"))
    print(f"  AUC of the true probabilities {bayes:.4f}")

    compare_models.print_ratio(reports)
    is_close = bayes - auc <= 0.01 and all(abs(auc - median(of_peer, "auc")) <= 0.002 for of_peer in peers.values())
    print(f"  AUC within 0.002 of every variant and 0.01 of the true one: {'yes' if is_close else 'NO'}")
    return is_close


def table_row(model, reports):
    """Returns the examples per second of all sides, and the ratio to the fastest variant with its range."""
    _, ratios = compare_models.ratio_to_fastest(reports)
    speeds = [f"{median(of_side, 'examples_per_second'):,.0f}" for of_side in reports.values()]
    return [model, *speeds, f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"]


def main():
    parser = Parser(__doc__)
    compare_models.add_options(parser, "dlrm_criteo", VARIANTS, "")
    parser.add_argument("--folder", type=Path, default=DEPS / "data/criteo-generated", help="of the generated files")
    parser.add_count("--generate", 1_000_000, "training examples")
    parser.add_argument("--models", nargs="+", choices=["dlrm", "dcn"], default=["dlrm", "dcn"])
    parser.add_count("--batch", 1024)
    add_table_option(parser)
    options = parser.parse_args()
    are_close, rows = [], []
    with tempfile.TemporaryDirectory() as arrays:
        for model in options.models:
            streamed, reports = measure(model, arrays, options)
            are_close.append(print_results(model, streamed, reports, options))
            rows.append(table_row(model, reports))
    ours = reports["tessera"][0]
    about = (
        f"{cpu_name()}, {count_threads(ours['threads'])}, {ours['isa']}, medians of {counted(options.rounds, 'round')} "
        f"of {options.generate:,} examples, in examples per second"
    )
    header = ["", *map(compare_models.title, reports), "ratio to the fastest"]
    write_table(options, "--dlrm", about, header, rows)
    return 0 if all(are_close) else 1


if __name__ == "__main__":
    sys.exit(main())
