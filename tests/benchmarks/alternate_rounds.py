"""Runs Tessera's benchmark and its peers alternately on the same workloads, with the same ids.

Each round runs every library once per workload and number of threads. The order of the libraries rotates from round
to round, so that a slow period of the machine affects all of them. All libraries get the same ids. Peers whose name
ends in "_tuned" run with a malloc that uses huge pages and keeps its memory. Tessera always runs with the defaults
of the system.
"""
import json
import pathlib
import sys
import tempfile

import benchmark
from benchmark import DEPS, HERE, TUNED_MALLOC, count_threads
from round_results import Results, read

PEERS = {  # peer: its virtual environment
    "torch": "torch",
    "torch_concat": "torch",
    "torch_concat_tuned": "torch",
    "fbgemm": "torch",
    "fbgemm_tuned": "torch",
    "tf": "tf",
}
OPERATIONS = ["forward", "sgd", "adagrad", "rowwise_adagrad", "adam", "adam_exact", "ftrl", "initialize"]
WORKLOADS = {workload["name"]: workload for workload in json.loads((HERE / "workloads.json").read_text())}


# --- arguments ---------------------------------------------------------------


def add_options(parser, svg):
    """Adds the options that all comparisons have. A comparison may set other defaults."""
    parser.add_program("embedding_benchmark")
    parser.add_argument("--peers", default=DEPS / "peers", help="folder of the virtual environments torch and tf")
    parser.add_choices("--peer", [*PEERS, "none"], "; none: Tessera alone")
    parser.add_choices("--workload", WORKLOADS)
    parser.add_choices("--op", OPERATIONS)
    parser.add_count("--rounds", 3)
    parser.add_count("--reps", 32, "timed steps in each round")
    parser.add_count("--batches", 32, "batches that take turns")
    parser.add_count("--seed", 0, "of the ids", least=0)
    parser.add_argument("--isa", help="the instruction set of Tessera's kernels; avx2 also limits torch's own kernels, but not FBGEMM")
    parser.add_argument(
        "--limits", action="store_true", help="also time plain loops that do the same, for forward, sgd, adagrad and adam"
    )
    parser.add_argument("--svg", default=svg, metavar="FILE", help=f"where the chart goes; default: {svg}")
    parser.add_argument("--json", metavar="FILE", help="where the results go")
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="measure nothing; make tables and chart from a file of --json"
    )


def check_options(parser, options):
    """Refuses contradictions, and paths that do not exist. Sets options.peer, workload and op to lists."""
    if options.source:
        for action in parser._actions:
            kept = ("program", "peers", "source", "svg", "markdown", "table", "help")
            if action.dest not in kept and getattr(options, action.dest) != action.default:
                parser.error(f"--from measures nothing, so {action.option_strings[0]} would have no effect")
    else:
        parser.check_program(options, "embedding_benchmark")
    for option in "svg", "json":
        text = getattr(options, option)
        path = pathlib.Path(text or "").absolute()
        if text is not None and (path.is_dir() or not path.parent.is_dir()):
            parser.error(f"--{option} must name a file in an existing folder, but got '{text}'")
    for option in "peer", "workload", "op":
        setattr(options, option, list(dict.fromkeys(getattr(options, option) or [])))
    if "none" in options.peer and len(options.peer) > 1:
        parser.error("--peer none means no other library, so it can't be combined with another --peer")


def check_peers(parser, options):
    """Refuses peers that are not installed."""
    for peer in options.peer:
        if not python_of(peer, options).exists():
            parser.error(
                f"--peers must name a folder with {PEERS[peer]}/bin/python for the peer {peer}, "
                f"but got '{options.peers}'. `./run bench --peers` installs the peers"
            )


def results_of(parser, options, kind, peers, workloads, operations, threads):
    """Returns the results in --from, or measures them. The lists are the defaults of the options."""
    check_options(parser, options)
    if options.source:
        try:
            return read(options.source, kind)
        except ValueError as error:
            parser.error(str(error))
    options.peer = [peer for peer in options.peer or peers if peer != "none"]
    options.workload = [workload for workload in WORKLOADS if workload in (options.workload or workloads)]
    options.op = options.op or operations
    check_peers(parser, options)
    with tempfile.TemporaryDirectory() as folder:
        options.ids = pathlib.Path(folder)
        write_ids(options)
        results = measure(options, kind, threads)
    if options.json:
        results.write(options.json)
    return results


# --- measurements ------------------------------------------------------------


def draw_ids(workload, batches, random):
    """Draws ids [batches, tables, batch * bag]: uniform, or zipf as floor(rows ** u) - 1, mapped by a permutation."""
    import numpy

    rows = workload["rows"]
    ids = numpy.empty((batches, workload["tables"], workload["batch"] * workload["bag"]), dtype=numpy.int64)
    for table in range(workload["tables"]):
        u = random.random((batches, ids.shape[2]))
        if workload["ids"] == "uniform":
            ids[:, table] = u * rows
        else:
            rank = numpy.clip((rows**u).astype(numpy.int64) - 1, 0, rows - 1)
            ids[:, table] = random.permutation(rows)[rank]
    return ids


def write_ids(options):
    import numpy

    for workload in options.workload:
        random = numpy.random.default_rng(options.seed)
        numpy.save(options.ids / f"{workload}.npy", draw_ids(WORKLOADS[workload], options.batches, random))


def python_of(peer, options):
    return pathlib.Path(options.peers) / PEERS[peer] / "bin" / "python"


def command_of(side, workload, threads, options):
    common = ["--workload", workload, "--threads", str(threads), "--reps", str(options.reps), "--ids", str(options.ids)]
    for operation in options.op:
        common += ["--op", operation]
    if side == "tessera":
        return [options.program, *common, *([] if options.limits else ["--no-limits"])]
    return [str(python_of(side, options)), str(HERE / "peer_bench.py"), side.removesuffix("_tuned"), *common]


def run(side, workload, threads, options):
    """Runs a library once. Returns the lines that it prints, and whether it failed. Tessera must not fail."""
    environment = {"OMP_NUM_THREADS": str(threads)}
    if side == "tessera" and options.isa:
        environment["TESSERA_ISA"] = options.isa
    if side.startswith("torch") and options.isa == "avx2":
        # With this setting, torch does not fill the cpuinfo from which FBGEMM chooses its kernels.
        environment["ATEN_CPU_CAPABILITY"] = "avx2"
    if side.endswith("_tuned"):
        environment.update(TUNED_MALLOC)
    result = benchmark.run(command_of(side, workload, threads, options), environment)
    if result.returncode != 0:
        message = f"{side} failed on {workload} with {count_threads(threads)}:\n{result.stderr[-2000:]}"
        if side == "tessera":
            sys.exit(message)
        print(message, file=sys.stderr)
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return lines, result.returncode != 0


def measure(options, kind, threads):
    """Returns the results of all rounds, for each of a list of numbers of threads."""
    settings = {"peers": options.peer, "isa": {}, "failed": []}
    settings.update(cpu=benchmark.cpu_name(), cores=benchmark.count_cores())
    for option in "batches", "rounds", "reps", "seed":
        settings[option] = getattr(options, option)
    results = Results(kind, settings)
    sides = ["tessera", *options.peer]
    for round_ in benchmark.rounds(options.rounds):
        for count in threads:
            for workload in options.workload:
                for side in benchmark.turns(sides, round_):
                    lines, has_failed = run(side, workload, count, options)
                    for line in lines:
                        results.add(count, workload, side, line)
                    if has_failed:
                        results.add_failure(count, workload, side)
    return results
