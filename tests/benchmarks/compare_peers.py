#!/usr/bin/env python3
"""Runs Tessera and its peers alternately on the same workloads; prints medians and ratios.

Each round runs every library once per workload and number of threads. The order of the libraries rotates
from round to round, so that a slow period of the machine affects all of them. A ratio is the fastest
peer's time divided by Tessera's; above 1, Tessera is faster.

All libraries get the same ids. With --batches 32, the default, 32 batches take turns; with --batches 1 every
step repeats one batch, whose rows are then in the cache. Peers whose name ends in "_tuned" run with a malloc
that uses huge pages and keeps its memory. Tessera always runs with the defaults of the system.

With --limits, the share of the limit is the time of plain loops divided by Tessera's. The column
"update alone" compares only the update: the plain loop of updates, and an Adagrad step without its lookup.

--json writes the results of all rounds, and --from makes the tables and the chart from them. --markdown
prints the tables of docs/performance.md.
"""
import alternate_rounds
import charts
from round_results import count_threads, markdown_table, percent, times_as_fast

TITLES = {  # of the operations, for the table of geometric means
    "forward": "lookup",
    "sgd": "step with SGD",
    "adagrad": "step with Adagrad",
    "rowwise_adagrad": "step with row-wise Adagrad",
    "adam": "step with Adam on the rows of the batch",
    "adam_exact": "step with Adam on all rows",
}
LIMIT_COLUMNS = ["forward", "adagrad", "update alone"]


def operations_with(threads, results):
    """Returns the operations that were measured with a number of threads."""
    return [op for op in results.operations if any((threads, w, op) in results.times for w in results.workloads)]


def print_table(results):
    has_limits = bool(results.limits)
    sides = ["tessera", *results.peers, *(["limit"] if has_limits else [])]
    column = 2 + max(map(len, sides))
    width = max(map(len, [*results.workloads, "geometric mean"]))
    for threads in results.threads:
        for operation in operations_with(threads, results):
            print(f"\n{operation}, {count_threads(threads)}: ms, and the fastest peer / tessera")
            print(f"  {'':{width}}" + "".join(f"{side:>{column}}" for side in sides) + f"{'ratio':>9}")
            for workload in results.workloads:
                key = threads, workload, operation
                times = [results.limit_ms(key) if side == "limit" else results.median(key, side) for side in sides]
                cells = "".join(f"{ms:{column}.3f}" if ms else f"{'-':>{column}}" for ms in times)
                print(f"  {workload:{width}}{cells}{times_as_fast(results.ratio(key)):>9}")
            if results.peers:
                mean = results.mean(results.ratio, threads, operation, times_as_fast)
                print(f"  {'geometric mean':{width + column * len(sides)}}{mean:>9}")
        if has_limits:
            print(f"\nshare of the limit, {count_threads(threads)}: plain loops / tessera")
            print(f"  {'':{width}}" + "".join(f"{name:>14}" for name in LIMIT_COLUMNS))
            for row in limit_rows(threads, results):
                print(f"  {row[0]:{width}}" + "".join(f"{cell:>14}" for cell in row[1:]))


def limit_rows(threads, results):
    """Returns [workload, a share for each of LIMIT_COLUMNS], with the geometric means in the last row."""

    def share_of(column):
        if column == "update alone":
            return lambda key: results.update_share(*key[:2])
        return results.limit_share

    rows = [
        [workload, *(percent(share_of(column)((threads, workload, column))) for column in LIMIT_COLUMNS)]
        for workload in results.workloads
    ]
    means = [results.mean(share_of(column), threads, column, percent) for column in LIMIT_COLUMNS]
    return [*rows, ["geometric mean", *means]]


def bold(ratio):
    return f"**{times_as_fast(ratio)}**"


def print_markdown(results):
    """Prints the tables of docs/performance.md: geometric means, then all workloads for each number of threads."""
    compared = {key[2] for key in results.times if results.ratio(key)}
    columns = [operation for operation in results.operations if operation in compared or not results.peers]
    if not columns:
        raise SystemExit("no table, because all peers have failed")

    print(results.description())
    if results.peers:
        rows = []
        for operation in columns:
            means = [results.mean(results.ratio, threads, operation, times_as_fast) for threads in results.threads]
            rows.append([TITLES.get(operation, operation), *means])
        print(f"\nThe time of the fastest of {', '.join(results.peers)}, divided by Tessera's (geometric means):\n")
        print(markdown_table(["", *map(count_threads, results.threads)], rows))
    for threads in results.threads:
        rows = []
        for workload in results.workloads:
            cells = []
            for operation in columns:
                key = threads, workload, operation
                ours, ratio = results.median(key), results.ratio(key)
                cells.append((f"{ours:.3f}" if ours else "-") + (f" ({times_as_fast(ratio)})" if ratio else ""))
            rows.append([workload, *cells])
        if results.peers:
            means = [results.mean(results.ratio, threads, operation, bold) for operation in columns]
            rows.append(["**geometric mean**", *means])
        print(f"\nTessera's time in ms{' and the ratio' if results.peers else ''}, with {count_threads(threads)}:\n")
        print(markdown_table(["", *columns], rows))
        if results.limits:
            print(f"\nThe time of plain loops divided by Tessera's, with {count_threads(threads)}:\n")
            print(markdown_table(["", *LIMIT_COLUMNS], limit_rows(threads, results)))


def draw(results, path):
    if not any(results.ratio(key) for key in results.times):
        print("no chart, because there is no peer to compare with", file=sys.stderr)
        return
    figure, axes = charts.pyplot().subplots(
        len(results.threads), 1, figsize=(11, 3.6 * len(results.threads)), squeeze=False
    )
    for axis, threads in zip(axes[:, 0], results.threads):
        ratios = {}
        for count, workload, operation in results.times:
            ratio = results.ratio((count, workload, operation))
            if count == threads and ratio:
                ratios.setdefault(operation, {})[workload] = ratio
        workloads = results.workloads
        bar = 0.8 / max(1, len(ratios))
        for i, (operation, by_workload) in enumerate(ratios.items()):
            positions = [j + i * bar for j, workload in enumerate(workloads) if workload in by_workload]
            axis.bar(positions, [by_workload[w] for w in workloads if w in by_workload], bar, label=operation)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_xticks([j + 0.4 - bar / 2 for j in range(len(workloads))], workloads)
        axis.set_ylabel("fastest peer / tessera")
        axis.set_title(f"{count_threads(threads)}: above 1 Tessera is faster")
        if ratios:
            axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small")  # covers no bar
    charts.describe(figure, results.description())
    charts.save(figure, path, "chart")


def main():
    parser = alternate_rounds.Parser(__doc__)
    alternate_rounds.add_options(parser, svg="peers.svg")
    parser.add_argument(
        "--threads", action="append", type=alternate_rounds.positive, metavar="N", help="default: 1 and all"
    )
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/performance.md")
    options = parser.parse_args()
    results = alternate_rounds.results_of(
        parser,
        options,
        kind="peers",
        peers=list(alternate_rounds.PEERS),
        workloads=list(alternate_rounds.WORKLOADS),
        operations=[],  # all
        threads=sorted(set(options.threads or [1, alternate_rounds.count_cores()])),
    )
    if options.markdown:
        print_markdown(results)
    else:
        print(results.description())
        print_table(results)
    draw(results, options.svg)


if __name__ == "__main__":
    main()
