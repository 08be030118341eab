"""Runs Tessera's benchmark and its peers alternately on the same workloads, with the same ids.

Each round runs every library once per workload and number of threads. The order of the libraries rotates from round
to round, so that a slow period of the machine affects all of them. All libraries get the same ids. Peers whose name
ends in "_tuned" run with a malloc that uses huge pages and keeps its memory. Tessera always runs with the defaults
of the system.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

from round_results import Results, count_threads, read

HERE = pathlib.Path(__file__).resolve().parent
DEPS = HERE.parent.parent / ".deps"  # where ./run installs
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
GIB = 2**30
MALLOC = {"hugetlb": 1, "mmap_threshold": 4 * GIB, "trim_threshold": 16 * GIB, "top_pad": GIB // 4}
TUNED_MALLOC = {
    "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC.items()),
    "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for the tensors of torch
}


def count_cores():
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


# --- arguments ---------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """Refuses wrong arguments in a sentence, without the list of all options."""

    def __init__(self, description):
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}. --help lists the options.\n")


def positive(text):
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, but got '{text}'")
    return int(text)


def seed(text):
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"expected an integer >= 0, but got '{text}'")
    return int(text)


def add_options(parser, svg):
    """Adds the options that all comparisons have. A comparison may set other defaults."""
    parser.add_argument("--program", help="the embedding_benchmark program; ./run names it")
    parser.add_argument("--peers", default=DEPS / "peers", help="folder of the virtual environments torch and tf")
    names = {"action": "append", "metavar": "NAME"}
    parser.add_argument(
        "--peer", choices=[*PEERS, "none"], help=f"only these peers of {', '.join(PEERS)}; none: Tessera alone", **names
    )
    parser.add_argument("--workload", choices=WORKLOADS, help=f"only these of {', '.join(WORKLOADS)}", **names)
    parser.add_argument("--op", choices=OPERATIONS, help=f"only these operations of {', '.join(OPERATIONS)}", **names)
    parser.add_argument("--rounds", type=positive, default=3, help="default: 3")
    parser.add_argument("--reps", type=positive, default=32, help="timed steps in each round; default: 32")
    parser.add_argument("--batches", type=positive, default=32, help="batches that take turns; default: 32")
    parser.add_argument("--seed", type=seed, default=0, help="of the ids")
    parser.add_argument("--isa", help="the instruction set of Tessera's kernels; avx2 also limits torch's own kernels, but not FBGEMM")
    parser.add_argument(
        "--limits", action="store_true", help="also time plain loops that do the same, for forward and adagrad"
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
            kept = ("program", "peers", "source", "svg", "markdown", "help")
            if action.dest not in kept and getattr(options, action.dest) != action.default:
                parser.error(f"--from measures nothing, so {action.option_strings[0]} would have no effect")
    elif not options.program or not os.access(options.program, os.X_OK):
        parser.error(f"--program must name the program embedding_benchmark, but got '{options.program}'")
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
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    if side == "tessera" and options.isa:
        environment["TESSERA_ISA"] = options.isa
    if side != "tessera" and options.isa == "avx2":
        environment["ATEN_CPU_CAPABILITY"] = "avx2"  # FBGEMM has no such setting
    if side.endswith("_tuned"):
        environment.update(TUNED_MALLOC)
    result = subprocess.run(
        command_of(side, workload, threads, options), capture_output=True, text=True, env=environment
    )
    if result.returncode != 0:
        message = f"{side} failed on {workload} with {count_threads(threads)}:\n{result.stderr[-2000:]}"
        if side == "tessera":
            sys.exit(message)
        print(message, file=sys.stderr)
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return lines, result.returncode != 0


def cpu_name():
    match = re.search(r"^model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def measure(options, kind, threads):
    """Returns the results of all rounds, for each of a list of numbers of threads."""
    settings = {"peers": options.peer, "isa": {}, "failed": [], "cpu": cpu_name(), "cores": count_cores()}
    for option in "batches", "rounds", "reps", "seed":
        settings[option] = getattr(options, option)
    results = Results(kind, settings)
    sides = ["tessera", *options.peer]
    for round_ in range(options.rounds):
        for count in threads:
            for workload in options.workload:
                for i in range(len(sides)):
                    side = sides[(i + round_) % len(sides)]
                    lines, has_failed = run(side, workload, count, options)
                    for line in lines:
                        results.add(count, workload, side, line)
                    if has_failed:
                        results.add_failure(count, workload, side)
        print(f"round {round_ + 1} of {options.rounds} done", file=sys.stderr)
    return results
