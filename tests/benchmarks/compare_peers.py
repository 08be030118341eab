#!/usr/bin/env python3
"""Runs Tessera and its peers alternately on the same workloads; prints medians and ratios.

A ratio is the fastest peer's time divided by Tessera's; above 1, Tessera is faster. alternate_rounds.py describes how
they are compared. With --batches 1, every step repeats one batch, whose rows are then in the cache.

With --limits, the share of the limit is the time of plain loops divided by Tessera's. The columns
"update alone" compare only the update: the plain loop of updates, and a step without its lookup. The column
"forward, fastest peer" has the share of the fastest peer.

--json writes the results of all rounds, and --from makes the tables and the chart from them.
"""
import sys
import textwrap

import alternate_rounds
import benchmark
import charts
from benchmark import count_threads, counted, markdown_table, percent, times_as_fast
from round_results import UPDATE_LOOPS

TITLES = {  # of the operations, for the table of geometric means and the chart
    "forward": "lookup",
    "sgd": "step with SGD",
    "adagrad": "step with Adagrad",
    "rowwise_adagrad": "step with row-wise Adagrad",
    "adam": "step with Adam on the rows of the batch",
    "adam_exact": "step with Adam on all rows",
    "ftrl": "step with FTRL",
    "initialize": "initial values",
}
PEER_TITLES = {
    "torch": "LibTorch's EmbeddingBag",
    "torch_concat": "LibTorch's EmbeddingBag",
    "fbgemm": "FBGEMM",
    "tf": "TensorFlow",
}
CHART_TITLE = "How many times as fast is Tessera as the fastest other library?"
LIMIT_COLUMNS = {  # column: the operation, and the method of Results that returns its share
    "forward": ("forward", "limit_share"),
    "forward, fastest peer": ("forward", "peer_limit_share"),
}
for name in UPDATE_LOOPS:
    LIMIT_COLUMNS[name] = (name, "limit_share")
    LIMIT_COLUMNS[f"{name}, update alone"] = (name, "update_share")


def operations_with(threads, results):
    """Returns the operations that were measured with a number of threads."""
    return [op for op in results.operations if any((threads, w, op) in results.times for w in results.workloads)]


def print_table(results):
    sides = ["tessera", *results.peers, *(["limit"] if results.limits else [])]
    for threads in results.threads:
        for operation in operations_with(threads, results):
            rows = []
            for workload in results.workloads:
                key = threads, workload, operation
                times = [results.limit_ms(key) if side == "limit" else results.median(key, side) for side in sides]
                cells = [f"{ms:.3f}" if ms else "-" for ms in times]
                rows.append([workload, *cells, times_as_fast(results.ratio(key))])
            if results.peers:
                mean = results.mean(results.ratio, threads, operation, times_as_fast)
                rows.append(["geometric mean", *[""] * len(sides), mean])
            print(f"\n{operation}, {count_threads(threads)}: ms, and the fastest peer / tessera\n")
            print(markdown_table(["", *sides, "ratio"], rows))
        print_limits(threads, results)


def print_limits(threads, results):
    if results.limits:
        print(f"\nThe time of plain loops divided by Tessera's, with {count_threads(threads)}:\n")
        print(markdown_table(["", *LIMIT_COLUMNS], limit_rows(threads, results)))


def limit_rows(threads, results):
    """Returns [workload, a share for each of LIMIT_COLUMNS], with the geometric means in the last row."""
    columns = [(operation, getattr(results, share)) for operation, share in LIMIT_COLUMNS.values()]
    rows = [
        [workload, *(percent(share((threads, workload, operation))) for operation, share in columns)]
        for workload in results.workloads
    ]
    means = [results.mean(share, threads, operation, percent) for operation, share in columns]
    return [*rows, ["geometric mean", *means]]


def columns_of(results):
    """Returns the operations that a peer has, too."""
    compared = {key[2] for key in results.times if results.ratio(key)}
    columns = [operation for operation in results.operations if operation in compared or not results.peers]
    if not columns:
        raise SystemExit("no table, because all peers have failed")
    return columns


def workload_rows(threads, results, columns):
    """Returns [workload, time and ratio of each operation], with the geometric means in the last row."""
    rows = []
    for workload in results.workloads:
        cells = []
        for operation in columns:
            key = threads, workload, operation
            ours, ratio = results.median(key), results.ratio(key)
            cells.append((f"{ours:.3f}" if ours else "-") + (f" ({times_as_fast(ratio)})" if ratio else ""))
        rows.append([workload, *cells])
    if results.peers:
        means = [results.mean(results.ratio, threads, operation, times_as_fast) for operation in columns]
        rows.append(["geometric mean", *means])
    return rows


def print_markdown(results):
    """Prints geometric means, and all workloads for each number of threads."""
    columns = columns_of(results)
    print(results.description())
    if results.peers:
        rows = []
        for operation in columns:
            means = [results.mean(results.ratio, threads, operation, times_as_fast) for threads in results.threads]
            rows.append([TITLES.get(operation, operation), *means])
        print(f"\nThe time of the fastest of {', '.join(results.peers)}, divided by Tessera's (geometric means):\n")
        print(markdown_table(["", *map(count_threads, results.threads)], rows))
    for threads in results.threads:
        print(f"\nTessera's time in ms{' and the ratio' if results.peers else ''}, with {count_threads(threads)}:\n")
        print(markdown_table(["", *columns], workload_rows(threads, results, columns)))
        print_limits(threads, results)


def write_table(results, options):
    """Writes all workloads with the largest number of threads, and the geometric means with the others."""
    columns = columns_of(results)
    *others, threads = results.threads
    rows = workload_rows(threads, results, columns)
    for other in others:
        name, *means = workload_rows(other, results, columns)[-1]
        rows.append([f"{name} with {count_threads(other)}", *means])
    about = f"{results.description().rstrip('.')}, with {count_threads(threads)}"
    benchmark.write_table(options, "--peers", about, ["", *columns], rows)


def plain_ratio(ratio):
    """Returns a ratio as a reader says it: 1.2, 36."""
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def bars(results, threads):
    """Returns [(title of an operation, {workload: ratio})] for a panel of the chart."""
    panel = []
    for operation in operations_with(threads, results):
        ratios = {w: results.ratio((threads, w, operation)) for w in results.workloads}
        ratios = {workload: ratio for workload, ratio in ratios.items() if ratio}
        if ratios:
            panel.append((TITLES.get(operation, operation), ratios))
    return panel


def workload_title(name):
    """Returns what a workload stands for, in lines that fit below a group of bars."""
    return textwrap.fill(alternate_rounds.WORKLOADS[name].get("title", name), 18)


def chart_description(results):
    titles = [PEER_TITLES.get(peer.removesuffix("_tuned"), peer) for peer in results.peers]
    sets = sorted({isa.upper().replace("AVX512", "AVX-512") for isa in results.settings["isa"].values()})
    return (
        "A step is a lookup in embedding tables, its backward pass and the update of the rows, on the CPU. "
        f"Other libraries: {', '.join(dict.fromkeys(titles))}. {results.settings['cpu']} ({', '.join(sets)}), "
        f"medians of {counted(results.settings['rounds'], 'round')}."
    )


def draw(results, path):
    if not any(results.ratio(key) for key in results.times):
        print("no chart, because there is no peer to compare with", file=sys.stderr)
        return
    panels = len(results.threads)
    figure, axes = charts.pyplot().subplots(panels, 1, figsize=(11, 1 + 3.6 * panels), squeeze=False)
    for axis, threads in zip(axes[:, 0], results.threads):
        panel = bars(results, threads)
        bar = 0.85 / max(1, len(panel))
        for i, (title, ratios) in enumerate(panel):
            positions = [j + i * bar for j, workload in enumerate(results.workloads) if workload in ratios]
            drawn = axis.bar(positions, list(ratios.values()), bar, label=title)
            axis.bar_label(drawn, [plain_ratio(ratio) for ratio in ratios.values()], fontsize=7, padding=1)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_yscale("log")
        all_ratios = [ratio for _, ratios in panel for ratio in ratios.values()]
        low, high = min(0.9, *all_ratios) / 1.1, max(2, *all_ratios) * 1.5
        ticks = [tick for tick in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low <= tick <= high]
        axis.set_ylim(low, high)
        axis.set_yticks(ticks, [f"{tick}x" for tick in ticks])
        axis.minorticks_off()
        middles = [j + 0.425 - bar / 2 for j in range(len(results.workloads))]
        axis.set_xticks(middles, [workload_title(workload) for workload in results.workloads])
        axis.tick_params(axis="x", length=0, labelsize="small")
        axis.set_ylabel("times as fast")
        axis.set_title(f"{count_threads(threads)}; at 1x both are equally fast", fontsize="medium", loc="left")
        for side in "top", "right":
            axis.spines[side].set_visible(False)
        axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize="small", frameon=False)  # covers no bar
    charts.describe(figure, chart_description(results), CHART_TITLE)
    charts.save(figure, path, "chart")


def main():
    parser = benchmark.Parser(__doc__)
    alternate_rounds.add_options(parser, svg="peers.svg")
    parser.add_count("--threads", help="default: 1 and all", action="append", metavar="N")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    benchmark.add_table_option(parser)
    options = parser.parse_args()
    results = alternate_rounds.results_of(
        parser,
        options,
        kind="peers",
        peers=list(alternate_rounds.PEERS),
        workloads=list(alternate_rounds.WORKLOADS),
        operations=[],  # all
        threads=sorted(set(options.threads or [1, benchmark.count_cores()])),
    )
    if options.markdown:
        print_markdown(results)
    else:
        print(results.description())
        print_table(results)
    if options.table:
        write_table(results, options)
    draw(results, options.svg)


if __name__ == "__main__":
    main()
