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

With --size bars or mlperf, a DCN-v2 of a published size trains some steps in float32, and then in bfloat16, with
torch.autocast in Python. The ids have a Zipf distribution, and the clicks depend on them:

  bars    39 tables of 10 columns, 3 crosses of rank 128, 1000-1000-1000, batches of 2,048: DCN-v2 of BARS for
          Criteo_x1, whose numbers are categories, too
  mlperf  26 tables of 128 columns and 13 numbers with 512-256-128, 3 crosses of rank 512, 1024-1024-512-256, batches
          of 1,024: MLPerf's DLRM-DCNv2, with one id for each table

A larger vocabulary is cut to a number of rows that the program prints. The first steps of Tessera are not timed.
"""
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

import compare_models
from benchmark import DEPS, HERE, Parser, add_table_option, count_threads, counted, cpu_name, median, write_table
from compare_models import Variant

PRECISIONS = ["float32", "bfloat16"]
WARMUP = 5  # steps
VARIANTS = {
    "plain": Variant(["--variant", "plain"], has_tuned_malloc=False),
    "tuned": Variant(["--variant", "tuned"]),
    "tuned+compile": Variant(["--variant", "tuned", "--compile"]),
}


@dataclasses.dataclass
class Size:
    vocabularies: list
    max_rows: int  # of a table
    num_dense: int
    batch: int
    model: list  # options of both programs


# The categories of Criteo's logs of 2014.
KAGGLE = """1396 550 1761917 507795 290 21 11948 608 3 58176 5237 1497287 3127 26 12153 1068715 10 4836 2085 4 1312273
17 15 110946 91 72655"""
# Those of MLPerf's Criteo logs of a terabyte.
TERABYTE = """40000000 39060 17295 7424 20265 3 7122 1543 63 40000000 3067956 405282 10 2209 11938 155 4 976 14 40000000
40000000 40000000 590152 12973 108 36"""
SIZES = {
    "bars": Size(
        [100] * 13 + [int(n) for n in KAGGLE.split()],
        300_000,
        0,
        2048,
        "--dim 10 --top 1000 1000 1000 --rank 128".split(),
    ),
    "mlperf": Size(
        [int(n) for n in TERABYTE.split()],
        1_000_000,
        13,
        1024,
        "--dim 128 --bottom 512 256 --top 1024 1024 512 256 --rank 512".split(),
    ),
}


def write_arrays(size, folder, train_steps, test_steps):
    """Writes the arrays that both programs read."""
    import numpy

    random = numpy.random.default_rng(1)
    rows = numpy.minimum(size.vocabularies, size.max_rows)
    for kind, steps in ("train", train_steps), ("test", test_steps):
        count = steps * size.batch
        ids = numpy.empty((count, len(rows)), numpy.int64)
        logits = numpy.full(count, -1.0)
        for column, num_rows in enumerate(rows):
            # The density of a Zipf distribution with exponent 1. Frequent ids are spread over the table.
            rank = (num_rows ** random.random(count)).astype(numpy.int64) - 1
            ids[:, column] = rank * 2654435761 % num_rows
            effects = numpy.random.default_rng(column).normal(0, 0.3, num_rows)
            logits += effects[ids[:, column]]
        labels = random.random(count) < 1 / (1 + numpy.exp(-logits))
        arrays = {"ids": ids, "dense": random.standard_normal((count, size.num_dense)), "labels": labels}
        for name, array in arrays.items():
            numpy.save(folder / f"{kind}_{name}.npy", array if name == "ids" else array.astype(numpy.float32))
    numpy.save(folder / "vocabulary_sizes.npy", rows)


def measure_size(options):
    """Returns {precision: {side: a report for each round}}."""
    size = SIZES[options.size]
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(size, Path(folder), options.steps + WARMUP, 20)
        print(
            f"{options.size}: {len(size.vocabularies)} tables of at most {size.max_rows:,} rows, "
            f"batches of {size.batch}, {options.rounds} rounds of {options.steps} steps"
        )
        shared = ["--arrays", folder, "--model", "dcn", *size.model, "--batch", size.batch]
        shared += ["--dense-learning-rate", 0.003]  # larger ones are too large for these layers
        reports = {}
        for precision in options.precisions:
            arguments = [*shared, "--precision", precision]
            ours = [options.program, *arguments, "--warmup", WARMUP]
            reports[precision] = compare_models.measure(
                lambda seed: compare_models.run("tessera", [*ours, "--seed", seed], options),
                [HERE / "dlrm_torch.py", *arguments],
                VARIANTS,
                options,
                f"{options.size} {precision}: ",
            )
    return reports


def print_size(reports):
    """Returns true if the AUC of all sides is about the same."""
    is_close = True
    for precision, of_precision in reports.items():
        print(precision)
        compare_models.print_machines(of_precision)
        aucs = [median(of_side, "auc") for of_side in of_precision.values()]
        for (side, of_side), auc in zip(of_precision.items(), aucs):
            print(f"  {compare_models.title(side):<21} AUC {auc:.4f}  {median(of_side, 'ms'):8.1f} ms per step")
        compare_models.print_ratio(of_precision)
        is_close = is_close and max(aucs) - min(aucs) <= 0.02
    if len(reports) == 2:
        both = [median(of_precision["tessera"], "ms") for of_precision in reports.values()]
        print(f"times as fast in bfloat16 as in float32: {both[0] / both[1]:.2f}")
    print(f"AUC of all within 0.02: {'yes' if is_close else 'NO'}")
    return is_close


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
    parser.add_argument("--size", choices=["small", *SIZES], default="small", help="of the model; default: small")
    parser.add_count("--steps", 40, "timed steps of --size bars and mlperf")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="of bars and mlperf")
    add_table_option(parser)
    options = parser.parse_args()
    if options.size != "small":
        for option in "--models", "--batch", "--generate", "--table":
            if any(argument.split("=")[0] == option for argument in sys.argv[1:]):
                parser.error(f"{option} is an option of --size small")
        return 0 if print_size(measure_size(options)) else 1
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
