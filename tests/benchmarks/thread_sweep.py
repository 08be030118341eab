#!/usr/bin/env python3
"""Times Tessera and its fastest peers with 1, 2, 4, 8, ... threads; prints tables in Markdown, draws curves.

Tessera and the peers run alternately, with a new batch in each step. A ratio is the fastest peer's time divided
by Tessera's; above 1, Tessera is faster. The speed-up is Tessera's time with 1 thread divided by its time.

With --limits, "share of limit" is the time of plain loops divided by Tessera's. "Update alone" compares only the
update: the plain loop of updates, and a step without its lookup.

--json writes the results of all rounds, and --from makes the tables and the chart from them.
"""
import argparse
import re

import alternate_rounds
import benchmark
import charts
from benchmark import count_threads, markdown_table, percent, times_as_fast
from round_results import UPDATE_LOOPS

PEERS = ["torch_concat_tuned", "fbgemm_tuned"]
WORKLOADS = ["pooled_uniform", "onehot_criteo", "large_uniform"]
OPERATIONS = ["forward", "sgd", "adagrad"]


def doubled(cores):
    """Returns 1, 2, 4, 8, ... and the number of cores."""
    return sorted({2**i for i in range(cores.bit_length()) if 2**i <= cores} | {cores})


def thread_counts(text):
    """Parses a list such as 1,2,4."""
    if not re.fullmatch("[1-9][0-9]{0,8}(,[1-9][0-9]{0,8})*", text):
        raise argparse.ArgumentTypeError(f"expected integers >= 1 and commas, such as 1,2,4, but got '{text}'")
    counts = [int(count) for count in text.split(",")]
    if len(set(counts)) != len(counts):
        raise argparse.ArgumentTypeError(f"expected each number of threads once, but got '{text}'")
    cores = benchmark.count_cores()
    if max(counts) > cores:
        raise argparse.ArgumentTypeError(
            f"expected at most {count_threads(cores)}, because this process may use that many cores, but got '{text}'"
        )
    return sorted(counts)


def print_tables(results):
    for operation in results.operations:
        for workload in results.workloads:
            print_table(results, workload, operation)
    if len(results.workloads) > 1:
        print("\ngeometric means over the workloads\n")
        print(markdown_table(*means(results)))


def print_table(results, workload, operation):
    header = ["threads", "Tessera", "fastest peer", "ratio", "speed-up"]
    shares = {}
    if results.limits and operation in ("forward", *UPDATE_LOOPS):
        shares["share of limit"] = lambda threads: results.limit_share((threads, workload, operation))
    if results.limits and operation in UPDATE_LOOPS:
        shares["update alone"] = lambda threads: results.update_share((threads, workload, operation))
    rows = []
    for threads in results.threads:
        key = threads, workload, operation
        ours, peer = results.median(key), results.fastest_peer(key)
        cells = [f"{ours:.3f}" if ours else "-", f"{peer[1]:.3f} ({peer[0]})" if peer else "-"]
        cells += [times_as_fast(results.ratio(key)), times_as_fast(results.speed_up(key))]
        rows.append([threads, *cells, *(percent(share(threads)) for share in shares.values())])
    print(f"\n{operation}, {workload}: ms\n")
    print(markdown_table([*header, *shares], rows), flush=True)


def means(results):
    """Returns header and rows of ratios and speed-ups, as geometric means over the workloads."""
    header = [f"{operation}, {name}" for operation in results.operations for name in ("ratio", "speed-up")]
    rows = []
    for threads in results.threads:
        values = [(value, op) for op in results.operations for value in (results.ratio, results.speed_up)]
        rows.append([threads, *(results.mean(value, threads, op, times_as_fast) for value, op in values)])
    return ["threads", *header], rows


def draw(results, path):
    """Draws a panel of times for each operation. Dotted lines halve Tessera's time whenever the threads double."""
    panels = len(results.operations)
    figure, axes = charts.pyplot().subplots(1, panels, figsize=(max(6, 5 * panels), 5), squeeze=False)
    for axis, operation in zip(axes[0], results.operations):
        for i, workload in enumerate(results.workloads):
            keys = [(threads, workload, operation) for threads in results.threads]
            ours = [(key[0], results.median(key)) for key in keys if results.median(key)]
            peers = [(key[0], results.fastest_peer(key)[1]) for key in keys if results.fastest_peer(key)]
            color = f"C{i}"
            if ours:
                axis.plot(*zip(*ours), marker="o", color=color, label=workload)
                count, ms = ours[0]
                axis.plot(*zip(*((n, ms * count / n) for n, _ in ours)), linestyle=":", color=color, linewidth=0.8)
            if peers:
                axis.plot(*zip(*peers), marker="s", color=color, linestyle="--", label=f"{workload}, fastest peer")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xticks(results.threads, results.threads)
        axis.set_title(operation)
        axis.set_xlabel("threads")
        axis.set_ylabel("ms")
    axes[0, 0].legend(fontsize="small")
    charts.describe(figure, results.description())
    charts.save(figure, path, "curves")


def main():
    parser = benchmark.Parser(__doc__)
    alternate_rounds.add_options(parser, svg="threads.svg")
    parser.add_argument(
        "--threads-list", type=thread_counts, metavar="LIST", help="such as 1,2,4; default: 1, 2, 4, ... and all cores"
    )
    benchmark.add_table_option(parser)
    options = parser.parse_args()
    results = alternate_rounds.results_of(
        parser,
        options,
        kind="threads",
        peers=PEERS,
        workloads=WORKLOADS,
        operations=OPERATIONS,
        threads=options.threads_list or doubled(benchmark.count_cores()),
    )
    print(results.description())
    print_tables(results)
    about = f"{results.description().rstrip('.')}. Geometric means over {', '.join(results.workloads)}"
    benchmark.write_table(options, "--threads", about, *means(results))
    draw(results, options.svg)


if __name__ == "__main__":
    main()
