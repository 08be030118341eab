"""Tests the scripts that compare benchmarks, with programs that print given times instead of measuring."""

import contextlib
import io
import json
import os
import pathlib
import re
import stat
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "benchmarks"))

import alternate_rounds
import benchmark
import compare_dlrm
import compare_peers
import compare_recommenders
import compare_row_stores
import compare_sasrec
import key_quality
import page_tables
import round_results
import thread_sweep

# Prints the time in TIMES for each operation, divided by the number of threads for Tessera.
PROGRAM = """#!{python}
import json, sys
TIMES = {{
    "tessera": {{"forward": 4.0, "sgd": 8.0, "adagrad": 20.0, "adam": 18.0, "initialize": 1.0}},
    "torch_concat": {{"forward": 8.0, "sgd": 24.0, "adagrad": 80.0}},
    "fbgemm": {{"forward": 2.0, "sgd": 32.0, "adagrad": 60.0}},
}}
arguments = sys.argv[1:]
peer = arguments[1] if arguments[0].endswith(".py") else "tessera"
workload = arguments[arguments.index("--workload") + 1]
threads = int(arguments[arguments.index("--threads") + 1])
chosen = [arguments[i + 1] for i, argument in enumerate(arguments) if argument == "--op"]
if peer == "fbgemm" and workload == "tiny_batch":
    sys.exit("fbgemm refuses this batch")
for operation in chosen or TIMES[peer]:
    ms = TIMES[peer][operation]
    line = {{"op": operation, "ms": ms / threads if peer == "tessera" else ms}}
    if peer != "fbgemm":
        line["isa"] = "AVX2"
    if peer == "tessera" and "--no-limits" not in arguments:
        line.update(gather_limit_ms=2.0, sgd_update_limit_ms=1.0, adagrad_update_limit_ms=4.0, adam_update_limit_ms=7.0)
    print(json.dumps(line))
"""

# Prints the report of dlrm_criteo, or of dlrm_torch.py.
DLRM_PROGRAM = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
report = {{"auc": 0.78, "isa": "avx2", "threads": int(os.environ["OMP_NUM_THREADS"])}}
if arguments[0].endswith(".py"):
    speed = 200.0 if "tuned" in arguments else 100.0
    if "TORCH_THREADS" in os.environ:
        report["threads"] = int(os.environ["TORCH_THREADS"])
    report.update(torch="2.14.1", examples_per_second=speed)
else:
    report.update(bayes_auc=0.785, examples_per_second=300.0)
print(json.dumps(report))
"""

# Prints the report of sasrec, or of sasrec_torch.py.
SASREC_PROGRAM = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
seed = int(arguments[arguments.index("--seed") + 1])
report = {{"hit_rate": 0.2 + 0.01 * seed, "ndcg": 0.1 + 0.01 * seed, "best_epoch": 30}}
machine = {{"isa": "avx2", "threads": int(os.environ["OMP_NUM_THREADS"])}}
if not arguments[0].endswith(".py"):
    report["examples_per_second"] = 300.0
    report["ndcg"] += float(os.environ.get("DIFFERENCE", "0"))
    simple = {{"hit_rate": 0.1, "ndcg": 0.15}}
    report = {{"popularity": simple, "item_knn": simple, "runs": [report]}}
elif "--compile" in arguments and "NO_COMPILER" in os.environ:
    sys.exit("no compiler")
else:
    report.update(torch="2.14.1", examples_per_second=100.0 if "--compile" in arguments else 120.0)
print(json.dumps({{**report, **machine}}))
"""


# Writes results like those of key_quality_benchmark, with the AUC that --auc gives for keys.
KEY_QUALITY_PROGRAM = """#!{python}
import json, sys
arguments = sys.argv[1:]
keys = float(arguments[arguments.index("--auc") + 1])
points = [
    {{"side": "vocabulary", "fraction": 1.0, "auc": [0.8, 0.7]}},
    {{"side": "keys", "fraction": 0.5, "auc": [keys, 0.7]}},
    {{"side": "hash", "fraction": 0.5, "auc": [0.79, 0.71]}},
    {{"side": "keys", "fraction": 0.1, "auc": [0.75, 0.65]}},
    {{"side": "hash", "fraction": 0.1, "auc": [0.7, 0.7]}},
]
for point in points:
    point.update(rows=[5000, 6000], bytes=[2500000, 2600000])
settings = {{"rows": 4000, "test_rows": 1000, "seeds": [0, 1], "dim": 16, "dtype": "float32", "threads": 2, "isa": "avx2"}}
with open(arguments[arguments.index("--json") + 1], "w") as file:
    json.dump({{"settings": settings, "best_auc": [0.9, 0.8], "points": points}}, file)
"""

# Prints the times of each side, threads and operation, like row_store_benchmark. The time falls with the threads.
ROW_STORE_PROGRAM = """#!{python}
import json, os, sys
arguments = sys.argv[1:]
def values(name):
    return [arguments[i + 1] for i, argument in enumerate(arguments) if argument == name]
if "--write" in arguments:
    sys.exit()
for side in values("--side"):
    for threads in map(int, values("--threads")):
        ns = {{"float32": 10.0, "rocksdb": 400.0, "rocksdb_cuckoo": 100.0}}[side] / threads
        total = 1.5 if side == "float32" else float(os.environ.get("SUM", "1.5"))
        line = {{"side": side, "op": "unpooled", "threads": threads, "ns_per_row": ns, "sum": total, "isa": "avx2"}}
        print(json.dumps(line))
"""


class BenchmarkScriptsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.benchmark = self.make_program(self.folder / "benchmark")
        self.make_program(self.folder / "peers" / "torch" / "bin" / "python")
        for replaced in (
            mock.patch.object(benchmark, "count_cores", return_value=4),
            mock.patch.object(alternate_rounds, "write_ids"),  # needs numpy
            mock.patch.object(compare_peers, "draw"),  # needs matplotlib
            mock.patch.object(thread_sweep, "draw"),
        ):
            replaced.start()
            self.addCleanup(replaced.stop)

    def make_program(self, path, text=PROGRAM):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    def run_script(self, script, *arguments):
        """Returns what the script prints, and the text of an error."""
        given = ["--program", self.benchmark, "--peers", str(self.folder / "peers"), "--rounds", "1"]
        if "--from" in arguments:
            given = []
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), contextlib.suppress(SystemExit):
            with mock.patch.object(sys, "argv", [script.__name__ + ".py", *given, *arguments]):
                script.main()
        return out.getvalue(), error.getvalue()

    def expect_error(self, script, arguments, message):
        _, error = self.run_script(script, *arguments)
        self.assertIn(message, error, arguments)
        self.assertEqual(error.count("\n"), 1, "more than a sentence: " + error)

    def compare(self, *arguments):
        peers = ["--peer", "torch_concat_tuned", "--peer", "fbgemm_tuned"]
        workloads = ["--workload", "pooled_zipf", "--workload", "onehot_criteo"]
        return self.run_script(compare_peers, *peers, *workloads, *arguments)

    def test_sweep_prints_a_row_for_each_number_of_threads(self):
        out, _ = self.run_script(thread_sweep, "--workload", "pooled_zipf", "--op", "adagrad")
        self.assertIn("Instruction sets: tessera avx2, torch_concat_tuned avx2.", out)
        self.assertIn("32 batches take turns", out)
        rows = [line for line in out.splitlines() if line.startswith("|")]
        self.assertEqual(
            rows,
            [
                "| threads | Tessera | fastest peer | ratio | speed-up |",
                "|---:|---:|---:|---:|---:|",
                "| 1 | 20.000 | 60.000 (fbgemm_tuned) | 3.00x | 1.00x |",
                "| 2 | 10.000 | 60.000 (fbgemm_tuned) | 6.00x | 2.00x |",
                "| 4 | 5.000 | 60.000 (fbgemm_tuned) | 12.00x | 4.00x |",
            ],
        )

    def test_sweep_of_one_core_and_of_tessera_alone(self):
        with mock.patch.object(benchmark, "count_cores", return_value=1):
            out, _ = self.run_script(thread_sweep, "--workload", "pooled_zipf", "--op", "sgd", "--peer", "none")
        self.assertIn("| 1 | 8.000 | - | - | 1.00x |", out)
        self.assertNotIn("| 2 |", out)

    def test_sweep_without_one_thread_has_no_speed_up(self):
        out, _ = self.run_script(thread_sweep, "--threads-list", "4,2", "--workload", "pooled_zipf", "--op", "sgd")
        self.assertIn("| 2 | 4.000 | 24.000 (torch_concat_tuned) | 6.00x | - |\n| 4 |", out)

    def test_numbers_of_threads_double_up_to_all_cores(self):
        self.assertEqual(thread_sweep.doubled(1), [1])
        self.assertEqual(thread_sweep.doubled(2), [1, 2])
        self.assertEqual(thread_sweep.doubled(12), [1, 2, 4, 8, 12])
        self.assertEqual(thread_sweep.doubled(16), [1, 2, 4, 8, 16])

    def test_limits_have_a_share_of_the_update_alone(self):
        out, _ = self.run_script(thread_sweep, "--limits", "--workload", "pooled_zipf", "--threads-list", "1")
        self.assertIn("| 1 | 4.000 | 2.000 (fbgemm_tuned) | 0.50x | 1.00x | 50 % |", out)
        # The loops need 2 + 1 of 8 ms for the step, and 1 of 8 - 4 ms for the update.
        self.assertIn("| 1 | 8.000 | 24.000 (torch_concat_tuned) | 3.00x | 1.00x | 38 % | 25 % |", out)
        self.assertIn("| 1 | 20.000 | 60.000 (fbgemm_tuned) | 3.00x | 1.00x | 30 % | 25 % |", out)

    def test_limits_have_a_share_of_the_fastest_peer(self):
        out, _ = self.compare("--limits", "--threads", "1")
        self.assertIn("| pooled_zipf | 50 % | 100 % | 38 % | 25 % | 30 % | 25 % | 50 % | 50 % |", out)

    def test_markdown_has_times_ratios_and_geometric_means(self):
        out, _ = self.compare("--threads", "2", "--markdown")
        self.assertIn("The time of the fastest of torch_concat_tuned, fbgemm_tuned, divided by Tessera's", out)
        self.assertIn("| | 2 threads |\n|---|---:|\n| lookup | 1.00x |\n| step with SGD | 6.00x |", out)
        self.assertIn("| | forward | sgd | adagrad |\n|---|---:|---:|---:|\n", out)  # no peer has initialize
        self.assertIn("| pooled_zipf | 2.000 (1.00x) | 4.000 (6.00x) | 10.000 (6.00x) |", out)
        self.assertIn("| geometric mean | 1.00x | 6.00x | 6.00x |", out)

    def test_the_chart_has_plain_names(self):
        for name, workload in alternate_rounds.WORKLOADS.items():
            self.assertNotEqual(workload.get("title", name), name)
            self.assertLessEqual(max(map(len, compare_peers.workload_title(name).splitlines())), 18)
        self.assertEqual(set(compare_peers.TITLES), set(alternate_rounds.OPERATIONS))
        peers = {peer.removesuffix("_tuned") for peer in alternate_rounds.PEERS}
        self.assertEqual(set(compare_peers.PEER_TITLES), peers)
        path = str(self.folder / "results.json")
        self.compare("--threads", "2", "--json", path)
        results = round_results.read(path, "peers")
        ratios = {"pooled_zipf": 6.0, "onehot_criteo": 6.0}
        self.assertIn(("step with SGD", ratios), compare_peers.bars(results, 2))
        self.assertNotIn("initial values", dict(compare_peers.bars(results, 2)))  # no peer has initialize
        self.assertIn("LibTorch's EmbeddingBag, FBGEMM. ", compare_peers.chart_description(results))
        self.assertEqual([*map(compare_peers.plain_ratio, (0.97, 9.94, 9.96, 36.84))], ["1.0", "9.9", "10", "37"])

    def test_the_picture_of_the_pages_shows_the_run_of_their_table(self):
        docs = pathlib.Path(__file__).resolve().parent.parent / "docs"
        table = json.loads((docs / "performance/peers_avx512.json").read_text())
        rows = [re.findall(r"\(([0-9.]+)x\)", " ".join(row)) for row in table["rows"]]
        by_operation = [float(ratio) for column in zip(*filter(None, rows)) for ratio in column]
        texts = re.findall("<!-- (.*?) -->", (docs / "peers.svg").read_text())
        labels = [float(text) for text in texts if re.fullmatch(r"[0-9.]+", text)]
        self.assertEqual(len(labels), 30)
        self.assertEqual(len(by_operation), 30)
        for label, ratio in zip(labels, by_operation):
            self.assertAlmostEqual(label, ratio, delta=0.051 if ratio < 9.95 else 0.51)
        for text in compare_peers.CHART_TITLE, "times as fast", "step with SGD":
            self.assertIn(text, texts)
        self.assertNotIn("onehot_criteo", texts)

    def test_the_page_shows_its_tables(self):
        self.assertEqual(page_tables.render_page(page_tables.PAGE.read_text()), page_tables.PAGE.read_text())
        tables = {str(path.relative_to(page_tables.ROOT)) for path in page_tables.PAGE.with_suffix("").glob("*.json")}
        shown = [name for _, name, _ in page_tables.BLOCK.findall(page_tables.PAGE.read_text())]
        self.assertEqual((len(shown), set(shown)), (len(tables), tables))

    def test_comparisons_write_tables_for_the_page(self):
        path = str(self.folder / "table.json")
        shown = f"<!-- table: {path} -->\n<!-- end table -->"
        self.compare("--threads", "1", "--threads", "2", "--table", path)
        page = page_tables.render_page(shown)
        self.assertIn("| pooled_zipf | 2.000 (1.00x) | 4.000 (6.00x) | 10.000 (6.00x) |\n", page)
        self.assertIn("| geometric mean with 1 thread | 0.50x | 3.00x | 3.00x |\n\n`./run bench --peers`: ", page)
        self.run_script(thread_sweep, "--table", path)
        self.assertIn("| threads | forward, ratio | forward, speed-up | ", page_tables.render_page(shown))
        self.compare_dlrm("--variants", "plain", "tuned", "--threads", "2", "--table", path)
        self.assertIn("| dlrm | 300 | 100 | 200 | 1.50 (1.50 to 1.50) |\n", page_tables.render_page(shown))

    def test_a_file_gives_the_same_tables(self):
        path = str(self.folder / "results.json")
        for script, arguments in (compare_peers, ["--markdown"]), (compare_peers, []), (thread_sweep, []):
            measured, _ = self.run_script(script, *arguments, "--limits", "--peer", "fbgemm", "--json", path)
            again, error = self.run_script(script, *arguments, "--from", path)
            self.assertEqual(again, measured, error)
            self.assertIn("pooled_uniform", again)

    def test_a_mean_says_how_many_workloads_it_has(self):
        out, error = self.run_script(
            compare_peers, "--peer", "fbgemm", "--workload", "tiny_batch", "--workload", "pooled_zipf", "--threads", "1"
        )
        self.assertIn("fbgemm refuses this batch", error)
        self.assertIn("Failed: fbgemm on tiny_batch with 1 thread.", out)
        self.assertIn("3.00x (1 of 2)", out)

    def test_geometric_mean(self):
        results = round_results.Results("peers", {})
        for workload, ms in ("a", 2.0), ("b", 8.0):
            results.add(1, workload, "tessera", {"op": "sgd", "ms": 1.0})
            results.add(1, workload, "torch", {"op": "sgd", "ms": ms})
            results.add(1, workload, "torch", {"op": "sgd", "ms": ms})
        self.assertEqual(results.mean(results.ratio, 1, "sgd", benchmark.times_as_fast), "4.00x")

    def test_a_failure_of_tessera_ends_the_comparison(self):
        pathlib.Path(self.benchmark).write_text("#!/bin/sh\necho no such kernels >&2\nexit 1\n")
        arguments = ["x", "--program", self.benchmark, "--peer", "none", "--workload", "pooled_zipf"]
        with self.assertRaisesRegex(SystemExit, "tessera failed on pooled_zipf with 1 thread:\nno such kernels"):
            with mock.patch.object(sys, "argv", arguments):
                compare_peers.main()

    def compare_dlrm(self, *arguments, **environment):
        """Returns what compare_dlrm prints, and its exit status or error."""
        program = self.make_program(self.folder / "dlrm", DLRM_PROGRAM)
        given = ["x", "--program", program, "--python", program, "--folder", str(self.folder), "--rounds", "1"]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            with mock.patch.object(sys, "argv", [*given, *arguments]), mock.patch.dict(os.environ, environment):
                try:
                    result = compare_dlrm.main()
                except SystemExit as error:
                    result = error.code
        return out.getvalue(), result

    def test_dlrm_has_speeds_and_threads_of_both_sides(self):
        out, result = self.compare_dlrm("--models", "dlrm", "--variants", "plain", "tuned", "--threads", "2")
        self.assertEqual(result, 0)
        self.assertIn("  tessera: 2 threads, avx2\n  torch 2.14.1: 2 threads, avx2\n", out)
        self.assertIn("times as fast as torch tuned, the fastest: 1.50", out)

    def test_dlrm_stops_if_the_numbers_of_threads_differ(self):
        out, error = self.compare_dlrm("--models", "dcn", "--threads", "2", TORCH_THREADS="1")
        self.assertEqual(out, "")
        self.assertEqual(
            error,
            "expected the same number of threads in all programs, but tessera has 2 and torch plain has 1. "
            "Set it with --threads.",
        )

    def compare_sasrec(self, **environment):
        """Returns what compare_sasrec prints, and its exit status."""
        program = self.make_program(self.folder / "sasrec", SASREC_PROGRAM)
        arguments = ["--program", str(program), "--python", str(program), "--data", "nowhere", "--threads", "2"]
        out = io.StringIO()
        with mock.patch.dict(os.environ, environment), mock.patch.object(sys, "argv", ["compare_sasrec", *arguments]):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                result = compare_sasrec.main()
        return out.getvalue(), result

    def test_sasrec_has_qualities_and_speeds_of_both_sides(self):
        out, result = self.compare_sasrec()
        self.assertEqual(result, 0)
        self.assertIn("  tessera: 2 threads, avx2\n  torch 2.14.1: 2 threads, avx2\n", out)
        self.assertIn("  tessera          0.2100 +- 0.0100  0.1100 +- 0.0100          30         300\n", out)
        self.assertIn("times as fast as torch eager, the fastest: 2.50, between 2.50 and 2.50", out)
        self.assertIn("equal to every variant within noise: yes", out)
        self.assertIn("NDCG@10 of tessera better than item-kNN: NO", out)

    def test_sasrec_says_if_the_quality_differs(self):
        out, result = self.compare_sasrec(DIFFERENCE="0.06", NO_COMPILER="1")
        self.assertEqual(result, 1)
        self.assertIn("equal to every variant within noise: NO", out)
        self.assertIn("NDCG@10 of tessera better than item-kNN: yes", out)
        self.assertNotIn("torch compile", out)

    def key_quality(self, *arguments):
        """Returns the curves that key_quality draws, or None, and the text of an error. Sets self.table."""
        out = io.StringIO()
        program = self.make_program(self.folder / "key_quality", KEY_QUALITY_PROGRAM)
        with mock.patch.object(sys, "argv", ["x", "--program", program, *arguments]):
            with mock.patch.object(key_quality, "draw") as draw, contextlib.redirect_stdout(out):  # needs matplotlib
                try:
                    key_quality.main()
                except SystemExit as error:
                    return None, error.code
        self.table = out.getvalue()
        return draw.call_args and key_quality.curves(draw.call_args[0][0]), None

    def test_key_quality_has_differences_to_the_vocabulary(self):
        path = str(self.folder / "results.json")
        drawn, _ = self.key_quality("--auc", "0.78", "--json", path, "--svg", "x.svg")
        rounded = {side: [tuple(round(x, 6) for x in point) for point in points] for side, points in drawn.items()}
        self.assertEqual(
            rounded,
            {
                "keys": [(0.1, -0.05, -0.05, -0.05), (0.5, -0.01, -0.02, 0.0)],
                "hash": [(0.1, -0.05, -0.1, 0.0), (0.5, 0.0, -0.01, 0.01)],
            },
        )
        self.assertIn("true probabilities: AUC 0.8500 (0.8000 to 0.9000)\n", self.table)
        self.assertIn("| 0.5 (2.5 MB) | keys | 5,000 | 0.7400 | -0.0100 (-0.0200 to +0.0000) |\n", self.table)
        self.assertEqual(self.key_quality("--from", path, "--svg", "x.svg"), (drawn, None))
        self.assertEqual(self.key_quality("--auc", "0.78"), (None, None))

    def test_key_quality_refuses_options_of_the_training_with_results(self):
        path = str(self.folder / "results.json")
        _, error = self.key_quality("--from", path, "--rows", "5")
        self.assertEqual(error, "--from draws results and trains nothing, so --rows 5 would have no effect")
        _, error = self.key_quality("--auc", "none")
        self.assertEqual(error, 1)

    def test_recommenders_are_compared_at_the_lower_quality(self):
        sides = {
            "Tessera": {"curve": [[2, 0.02], [4, 0.045], [6, 0.06]], "evaluation_seconds": 0.5},
            "RecTools": {"curve": [[30, 0.03], [60, 0.0489], [90, 0.05], [120, 0.04]], "evaluation_seconds": 4.0},
        }
        with contextlib.redirect_stdout(io.StringIO()) as out:
            ratio, evaluation = compare_recommenders.print_results("Beauty", sides, 1)
        self.assertEqual((ratio, evaluation), (90 / 6, 8.0))  # 0.98 * 0.05 = 0.049 is first reached at 6 and 90 s
        _, validation = compare_recommenders.hold_out_a_tenth([[0, *range(25)], [1, 3, 4, 5]])
        self.assertEqual(validation, [(0, [22, 18]), (1, [])])  # as in quality_data_test.cpp
        self.assertTrue(compare_recommenders.goes_on([[5, 0.1], [9, 0.1]], minutes=1, patience=2))
        self.assertFalse(compare_recommenders.goes_on([[5, 0.1], [9, 0.1]], minutes=1, patience=1))
        self.assertFalse(compare_recommenders.goes_on([[61, 0.1]], minutes=1, patience=2))
        self.assertIn("15.00x as fast to that quality, and 8.00x in evaluation", out.getvalue())

    def test_recommenders_have_the_same_number_of_sampled_items(self):
        seen = []

        def run_side(*arguments):
            seen.append(arguments[-1])
            return {"curve": [[1, 0.5]], "evaluation_seconds": 1.0}

        tasks = {"Beauty": ("RecTools", run_side, {"negatives": 256}), "Gowalla": ("RecBole", run_side, {"negatives": 100})}
        program = self.make_program(self.folder / "leaderboard")
        argv = ["", "--data", str(self.folder), "--program", program, "--negatives", "8"]
        with mock.patch.multiple(compare_recommenders, TASKS=tasks, run_tessera=run_side):
            with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()):
                compare_recommenders.main()
        self.assertEqual([settings["negatives"] for settings in seen], [8, 8, 8, 8])
        self.assertEqual(tasks["Beauty"][2]["negatives"], 256)

    def compare_row_stores(self, *arguments, **environment):
        """Returns what compare_row_stores prints without FBGEMM and Redis, and the text of an error."""
        program = self.make_program(self.folder / "row_stores", ROW_STORE_PROGRAM)
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error), contextlib.ExitStack() as replaced:
            replaced.enter_context(mock.patch.object(sys, "argv", ["x", "--program", program, "--quick", *arguments]))
            replaced.enter_context(mock.patch.object(compare_row_stores.shutil, "which", return_value=None))
            replaced.enter_context(mock.patch.object(compare_row_stores.importlib.util, "find_spec", return_value=None))
            replaced.enter_context(mock.patch.object(compare_row_stores.signal, "signal"))
            replaced.enter_context(mock.patch.dict(os.environ, environment))
            try:
                compare_row_stores.main()
            except SystemExit as stopped:
                return out.getvalue(), error.getvalue() + str(stopped.code)
        return out.getvalue(), ""

    def test_row_stores_that_are_missing_are_skipped_in_a_sentence(self):
        out, error = self.compare_row_stores()
        self.assertEqual(error, "")
        self.assertIn("redis is skipped: redis-server is not installed. Install the Debian package redis", out)
        self.assertIn("fbgemm is skipped: this Python has no fbgemm_gpu.", out)
        self.assertIn("Instruction sets: Tessera avx2. Requests of 4096 ids, rows of 64 numbers", out)
        self.assertIn("| float32, unpooled, RocksDB, block cache | 10,000 | 1 | 10.0 | 400.0 | 40.00x |\n", out)
        self.assertIn("| float32, unpooled, RocksDB, cuckoo table | 10,000 | 2 | 5.0 | 50.0 | 10.00x |\n", out)
        self.assertNotIn("Redis |", out)
        out, error = self.compare_row_stores("--side", "redis")
        self.assertEqual((out.count("\n"), error), (1, ""))

    def test_row_stores_must_look_up_the_same_rows(self):
        out, error = self.compare_row_stores(SUM="2.5")
        self.assertNotIn("| float32", out)
        self.assertIn("all sides must look up the same rows, but the sums of their first unpooled requests are", error)
        _, error = self.compare_row_stores("--dim", "6")
        self.assertIn("--dim must be a multiple of 4, as FBGEMM needs it, but got 6", error)
        _, error = self.compare_row_stores("--ids", "30")
        self.assertIn("--ids must be >= 40, so that each thread has a bag, but got 30", error)

    def test_wrong_arguments_are_refused(self):
        for text in "0", "1,x", "1,,2", "", "1, 2", "-1":
            expected = f"--threads-list: expected integers >= 1 and commas, such as 1,2,4, but got '{text}'"
            self.expect_error(thread_sweep, [f"--threads-list={text}"], expected)
        for list_, message in (
            ("1,2,1", "expected each number of threads once, but got '1,2,1'"),
            ("1,8", "expected at most 4 threads, because this process may use that many cores, but got '1,8'"),
        ):
            self.expect_error(thread_sweep, ["--threads-list", list_], message)
        for script in compare_peers, thread_sweep:
            self.expect_error(script, ["--walk"], "unrecognized arguments: --walk. --help lists the options.")
            self.expect_error(script, ["--reps", "0"], "--reps: expected an integer >= 1, but got '0'")
            self.expect_error(script, ["--peer", "none", "--peer", "tf"], "--peer none means no other library")
            self.expect_error(script, ["--peer", "tf"], "a folder with tf/bin/python for the peer tf")
            self.expect_error(script, ["--workload", "x"], "--workload: invalid choice: 'x'")
            self.expect_error(script, ["--json", "/nowhere/a"], "--json must name a file in an existing folder")
            self.expect_error(script, ["--program", "nowhere"], "must name the program embedding_benchmark")

    def test_wrong_files_are_refused(self):
        path = self.folder / "results.json"
        source = ["--from", str(path)]
        self.expect_error(compare_peers, source, "can't be read: No such file or directory")
        path.write_text("{")
        self.expect_error(compare_peers, source, "is not JSON")
        path.write_text("[]")
        self.expect_error(compare_peers, source, "has no results")
        path.write_text(json.dumps({"kind": "peers", "format": 0}))
        self.expect_error(compare_peers, source, "has format 0, and this version reads format 2")
        path.write_text(json.dumps({"kind": "peers", "format": 2}))
        self.expect_error(compare_peers, source, "is incomplete: KeyError('settings')")
        self.expect_error(thread_sweep, source, "`./run bench --threads --json` has written, but")
        self.expect_error(thread_sweep, [*source, "--limits"], "so --limits would have no effect")


if __name__ == "__main__":
    unittest.main()
