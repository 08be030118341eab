#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares lookups in a published version of Tessera with FBGEMM's CPU lookups, Redis and RocksDB.

All sides have the same rows, which a formula gives, and look up the same random ids. Each round runs every side in a
new process, and another side comes first in each. Every process checks its first request against the formula.

  FBGEMM   the operator of IntNBitTableBatchedEmbeddingBagsCodegen with float32, int8 and int4 rows: a sum of each bag,
           or no pooling, which is faster than bags of one id. "64 bytes" has an aligned int4 row in each cache line.
           Its own threads divide only several tables. With more threads, each looks up its share of a request, as in
           Tessera, if this is faster
  Redis    pipelined MGETs through a Unix socket, without persistence
  RocksDB  MultiGet of sorted keys, from its block cache, and from a cuckoo table in mapped files

Redis and RocksDB have fewer rows, and so has Tessera beside them. Needs torch and fbgemm-gpu-cpu.
"""
import argparse
import contextlib
import importlib.util
import json
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from benchmark import TUNED_MALLOC, Parser, cpu_name, import_fbgemm, json_lines, markdown_table, rounds, times_as_fast, turns

FORMATS = ["float32", "int8", "int4"]
# side of FBGEMM: the format, and the bytes that rows are aligned to
FBGEMM = {"float32": ("float32", 1), "int8": ("int8", 1), "int4": ("int4", 1), "int4_aligned": ("int4", 64)}
# A side: its name, and the sides of row_store_benchmark
STORES = {"redis": ["redis"], "rocksdb": ["rocksdb", "rocksdb_cuckoo"]}
TITLES = {
    "fbgemm_int4_aligned": "FBGEMM, 64 bytes",
    "redis": "Redis",
    "rocksdb": "RocksDB, block cache",
    "rocksdb_cuckoo": "RocksDB, cuckoo table",
}


# --- FBGEMM ------------------------------------------------------------------


def mixed(numpy, x):
    """The same function as in row_store_benchmark.cpp."""
    x = (x ^ (x >> numpy.uint32(16))) * numpy.uint32(0x7FEB352D)
    x = (x ^ (x >> numpy.uint32(15))) * numpy.uint32(0x846CA68B)
    return x ^ (x >> numpy.uint32(16))


def values_of(numpy, rows, dim):
    """Returns the values [rows, dim] of these rows."""
    index = rows.astype(numpy.uint32)[:, None] * numpy.uint32(dim) + numpy.arange(dim, dtype=numpy.uint32)
    return ((mixed(numpy, index) >> numpy.uint32(8)).astype(numpy.int32) - 2**23).astype(numpy.float32) * 2.0**-23


def ids_of(numpy, options, chunk, count):
    first = ((options.seed + 1) * 0x5BD1E995 + chunk * count) % 2**32
    random = mixed(numpy, numpy.arange(count, dtype=numpy.uint32) + numpy.uint32(first))
    return ((random.astype(numpy.uint64) * numpy.uint64(options.rows)) >> numpy.uint64(32)).astype(numpy.int32)


def make_table(options, side):
    import numpy
    import torch
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import IntNBitTableBatchedEmbeddingBagsCodegen

    format_, alignment = FBGEMM[side]
    kind = {"float32": SparseType.FP32, "int8": SparseType.INT8, "int4": SparseType.INT4}[format_]
    table = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("rows", options.rows, options.dim, kind, EmbeddingLocation.HOST)],
        device="cpu",
        pooling_mode=PoolingMode.SUM,
        output_dtype=SparseType.FP32,
        bounds_check_mode=BoundsCheckMode.NONE,  # the kernels check the ids, too
        row_alignment=alignment,
    )
    table.initialize_weights()
    weights, scale_bias = table.split_embedding_weights()[0]
    for begin in range(0, options.rows, 2**16):
        end = min(begin + 2**16, options.rows)
        rows = torch.from_numpy(values_of(numpy, numpy.arange(begin, end), options.dim))
        if format_ == "float32":
            weights[begin:end] = rows.view(torch.uint8)
        elif format_ == "int4":
            quantized = torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 4)
            weights[begin:end], scale_bias[begin:end] = quantized[:, :-4], quantized[:, -4:]
        else:  # the operator gives a scale and a bias in float32, and the table has them in float16
            quantized = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows)
            halves = quantized[:, -8:].contiguous().view(torch.float32).half()
            weights[begin:end], scale_bias[begin:end] = quantized[:, :-8], halves.view(torch.uint8)
    return table


def make_loops(table, is_pooled):
    """Returns a function that looks up the shares of requests, each share in a thread.

    It is TorchScript, because threads of Python stop each other. The list keeps the results, since TorchScript drops
    lookups whose result is not used.
    """
    import torch
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import PoolingMode

    class Loop(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights, self.uvm = table.weights_host, table.weights_uvm
            self.placements, self.starts = table.weights_placements, table.weights_offsets
            self.types, self.dims = table.weights_tys, table.D_offsets
            self.total = int(table.total_D)
            self.int2, self.int4, self.int8 = map(int, (table.max_int2_D, table.max_int4_D, table.max_int8_D))
            self.float16, self.float32 = int(table.max_float16_D), int(table.max_float32_D)
            self.pooling = int(PoolingMode.SUM if is_pooled else PoolingMode.NONE)
            self.output, self.alignment = int(table.output_dtype), int(table.row_alignment)

        def forward(self, requests: list[torch.Tensor], offsets: torch.Tensor) -> torch.Tensor:
            last = [offsets]
            for ids in requests:
                last[0] = torch.ops.fbgemm.int_nbit_split_embedding_codegen_lookup_function(
                    self.weights,
                    self.uvm,
                    self.placements,
                    self.starts,
                    self.types,
                    self.dims,
                    self.total,
                    self.int2,
                    self.int4,
                    self.int8,
                    self.float16,
                    self.float32,
                    ids,
                    offsets,
                    self.pooling,
                    None,
                    self.output,
                    None,
                    None,
                    self.alignment,
                    0,
                    -1,
                    -1,
                )
            return last[0]

    class Shares(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.loop = Loop()

        def forward(self, shares: list[list[torch.Tensor]], offsets: list[torch.Tensor]) -> list[torch.Tensor]:
            others = [torch.jit.fork(self.loop, shares[i], offsets[i]) for i in range(1, len(shares))]
            results = [self.loop(shares[0], offsets[0])]
            for other in others:
                results.append(torch.jit.wait(other))
            return results

    return torch.jit.script(Shares())


def check_first_request(options, numpy, run, ids, bag, tolerance):
    """Compares a request with the formula. Returns the sum of its numbers."""
    import torch

    rows = values_of(numpy, ids, options.dim).astype(numpy.float64).reshape(-1, bag, options.dim)
    expected = rows.sum(1)
    got = torch.cat(run(ids)).numpy()
    largest = bag * (tolerance + 1e-6)
    difference = numpy.abs(got - expected).max()
    if got.shape != expected.shape or not difference <= largest:
        sys.exit(f"FBGEMM's numbers must differ by at most {largest} from the rows, but got {difference}.")
    return float(expected.sum())


def measure_fbgemm(options, loops, bag, tolerance, shares, own_threads):
    """Returns the ns per row, and the sum of the numbers of the first request."""
    import numpy
    import torch

    torch.set_num_threads(own_threads)
    examples = options.ids // bag
    count = options.requests * examples * bag
    bounds = [i * examples // shares * bag for i in range(shares + 1)]
    offsets = [torch.arange(0, end - begin + 1, bag, dtype=torch.int32) for begin, end in zip(bounds, bounds[1:])]

    def split(requests):
        tensors = [torch.from_numpy(ids) for ids in requests]
        return [[ids[begin:end] for ids in tensors] for begin, end in zip(bounds, bounds[1:])]

    with torch.inference_mode():
        first = ids_of(numpy, options, 0, count)[: examples * bag]
        total = check_first_request(options, numpy, lambda ids: loops(split([ids]), offsets), first, bag, tolerance)
        times = []
        warmup = 2  # these calls compile
        while len(times) < warmup + 3 or 1e3 * sum(times[warmup:]) < options.ms:
            ids = split(ids_of(numpy, options, len(times), count).reshape(options.requests, -1))
            begin = time.perf_counter()
            loops(ids, offsets)
            times.append(time.perf_counter() - begin)
    return 1e9 * statistics.median(times[warmup:]) / count, total


def time_fbgemm(options):
    """Times FBGEMM, and prints lines like those of row_store_benchmark."""
    isa = import_fbgemm()
    import torch

    torch.set_num_interop_threads(max(options.threads))
    # Half a step of numbers between -1 and 1, and the rounding of scale and bias to float16.
    tolerances = {"float32": 0.0, "int8": 1 / 255 + 2e-3, "int4": 1 / 15 + 2e-3}
    for side in FBGEMM:
        table = make_table(options, side)
        for operation, bag in ("unpooled", 1), ("pooled", options.bag):
            loops = make_loops(table, operation == "pooled")
            tolerance = tolerances[FBGEMM[side][0]]
            for threads in options.threads:
                # Its own threads for whole requests, and shares of requests on threads of ours.
                ways = dict.fromkeys([(1, threads), (threads, 1)])
                measured = [measure_fbgemm(options, loops, bag, tolerance, shares, own) for shares, own in ways]
                fastest = min(measured)
                line = {"side": f"fbgemm_{side}", "op": operation, "threads": threads, "ns_per_row": fastest[0]}
                print(json.dumps({**line, "sum": fastest[1], "isa": isa}), flush=True)
        del table


# --- rounds ------------------------------------------------------------------


def shared_options(options, rows, seed=0):
    values = {"rows": rows, "seed": seed}
    values.update((name, getattr(options, name)) for name in ("dim", "ids", "bag", "requests", "ms"))
    threads = [text for threads in options.threads for text in ("--threads", str(threads))]
    return [*(text for name, value in values.items() for text in (f"--{name}", str(value))), *threads]


def sides_as_options(sides):
    return [text for side in sides for text in ("--side", side)]


@contextlib.contextmanager
def serve_redis(folder):
    """Runs a Redis server without persistence, and yields its socket. It ends with this process, too."""
    socket = folder / "redis.socket"
    options = ["--port", "0", "--unixsocket", socket, "--dir", folder, "--save", "", "--appendonly", "no"]
    command = ["setpriv", "--pdeathsig", "TERM", "redis-server", *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if socket.exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        if not socket.exists():
            sys.exit(f"redis-server must open the socket {socket} within 10 s, but did not")
        yield socket
    finally:
        process.terminate()
        process.wait()


def missing_sides(sides):
    """Returns why sides can't be measured here."""
    missing = {}
    if not importlib.util.find_spec("fbgemm_gpu"):
        missing["fbgemm"] = "this Python has no fbgemm_gpu. ./run bench --row-stores installs it"
    if not shutil.which("redis-server"):
        missing["redis"] = "redis-server is not installed. Install the Debian package redis-server"
    return {side: reason for side, reason in missing.items() if side in sides}


class Comparison:
    """Sides that have the same rows."""

    def __init__(self, options, folder, rows, formats, others, socket=None):
        self.options, self.folder, self.rows, self.socket = options, folder, rows, socket
        self.formats, self.others = formats, others
        self.lines = []
        folder.mkdir(exist_ok=True)

    def program(self, sides, *more, environment=None):
        command = [self.options.program, self.folder, *sides_as_options(sides), *more]
        command += ["--socket", self.socket] if self.socket else []
        return json_lines(command, "row_store_benchmark failed", environment)

    def write(self):
        print(f"writing {self.rows:,} rows", file=sys.stderr)
        stores = [side for other in self.others for side in STORES.get(other, [])]
        self.program([*self.formats, *stores], "--write", *shared_options(self.options, self.rows))

    def run(self, round_):
        lines = []
        for side in turns(["tessera", *self.others], round_):
            more = shared_options(self.options, self.rows, round_)
            if side == "fbgemm":
                lines += json_lines([sys.executable, __file__, "--time-fbgemm", *more], "FBGEMM failed", TUNED_MALLOC)
            elif side == "tessera":
                lines += self.program(self.formats, *more)
            else:
                lines += self.program(STORES[side], *more, environment=TUNED_MALLOC)
        for operation in "unpooled", "pooled":
            sums = {line["side"]: line["sum"] for line in lines if line["op"] == operation}
            if len(set(sums.values())) > 1:
                sys.exit(
                    f"all sides must look up the same rows, but the sums of their first {operation} requests are {sums}"
                )
        self.lines += lines

    def ns(self, side, operation, threads):
        found = [
            line["ns_per_row"]
            for line in self.lines
            if (line["side"], line["op"], line["threads"]) == (side, operation, threads)
        ]
        return statistics.median(found) if found else None

    def table_rows(self):
        others = list(dict.fromkeys(line["side"] for line in self.lines if line["side"] not in FORMATS))
        for operation in "unpooled", "pooled":
            for other in others:
                format_ = other.split("_")[1] if other.startswith("fbgemm") else "float32"
                for threads in self.options.threads:
                    ours, theirs = self.ns(format_, operation, threads), self.ns(other, operation, threads)
                    if theirs:
                        what = f"{format_}, {operation}, {TITLES.get(other, 'FBGEMM')}"
                        ratio = times_as_fast(theirs / ours)
                        yield [what, f"{self.rows:,}", threads, f"{ours:.1f}", f"{theirs:.1f}", ratio]


def print_tables(options, comparisons):
    lines = [line for comparison in comparisons for line in comparison.lines]
    sets = {("FBGEMM" if line["side"].startswith("fbgemm") else "Tessera"): line["isa"] for line in lines}
    print(
        f"\n{cpu_name()}. Instruction sets: {', '.join(f'{side} {isa}' for side, isa in sets.items())}. Requests of "
        f"{options.ids} ids, rows of {options.dim} numbers, bags of {options.bag} ids. Medians of {options.rounds} "
        f"round{'' if options.rounds == 1 else 's'}, in ns per row:\n"
    )
    header = ["lookup, and what it is compared with", "rows", "threads", "Tessera", "other", "other / Tessera"]
    print(markdown_table(header, [row for comparison in comparisons for row in comparison.table_rows()]))


def stop(number, frame):
    sys.exit(128 + number)


def main():
    parser = Parser(__doc__)
    parser.add_program("row_store_benchmark")
    parser.add_choices("--side", ["fbgemm", *STORES], "; Tessera is always there")
    parser.add_count("--rows", 4_000_000, "rows beside FBGEMM")
    parser.add_count("--store-rows", 1_000_000, "rows beside Redis and RocksDB")
    parser.add_count("--dim", 64, "numbers per row, a multiple of 4")
    parser.add_count("--ids", 4096, "ids of a request")
    parser.add_count("--bag", 20, "ids of a bag of pooled requests")
    parser.add_count("--threads", help="default: 1 and 2", action="append")
    parser.add_count("--rounds", 3)
    parser.add_count("--requests", 200, "requests between two times")
    parser.add_count("--ms", 300, "least time of each measurement in ms")
    parser.add_argument("--quick", action="store_true", help="few rows and little time, to see whether everything runs")
    parser.add_argument("--time-fbgemm", action="store_true", help=argparse.SUPPRESS)
    parser.add_count("--seed", 0, argparse.SUPPRESS, least=0)
    options = parser.parse_args()
    options.threads = list(dict.fromkeys(options.threads or [1, 2]))
    if options.dim % 4:
        parser.error(f"--dim must be a multiple of 4, as FBGEMM needs it, but got {options.dim}")
    if options.ids < options.bag * max(options.threads):
        least = options.bag * max(options.threads)
        parser.error(f"--ids must be >= {least}, so that each thread has a bag, but got {options.ids}")
    if options.time_fbgemm:
        time_fbgemm(options)
        return
    parser.check_program(options, "row_store_benchmark")
    if options.quick:
        options.rows, options.store_rows, options.rounds, options.requests, options.ms = 20_000, 10_000, 1, 20, 20
    sides = options.side or ["fbgemm", *STORES]
    for side, reason in missing_sides(sides).items():
        print(f"{side} is skipped: {reason}.")
        sides = [other for other in sides if other != side]
    if not sides:
        return
    signal.signal(signal.SIGTERM, stop)  # so that Redis and the folder go, too
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        comparisons = []
        if "fbgemm" in sides:
            comparisons.append(Comparison(options, folder / "rows", options.rows, FORMATS, ["fbgemm"]))
        stores = [side for side in STORES if side in sides]
        if stores:
            socket = stack.enter_context(serve_redis(folder)) if "redis" in stores else None
            comparisons.append(Comparison(options, folder / "stores", options.store_rows, ["float32"], stores, socket))
        for comparison in comparisons:
            comparison.write()
        for round_ in rounds(options.rounds):
            for comparison in comparisons:
                comparison.run(round_)
    print_tables(options, comparisons)


if __name__ == "__main__":
    main()
