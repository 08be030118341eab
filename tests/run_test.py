# SPDX-License-Identifier: Apache-2.0
"""Tests ./run in a scratch folder, with programs that only write down how they were called."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
STUB = '#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLS"\n'
EXAMPLES = {"train": "movielens", "dlrm": "dlrm_criteo", "two-tower": "two_tower"}


class RunTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        shutil.copy(ROOT / "run", self.folder)
        (self.folder / ".deps/data/ml-100k").mkdir(parents=True)
        arrow = re.search("arrow_version=(.*)", (self.folder / "run").read_text()).group(1)
        (self.folder / f".deps/arrow-{arrow}").mkdir()  # no download of Arrow
        (self.folder / "bin").mkdir()
        self.write("bin/dpkg-query", "#!/bin/sh\nprintf installed\n")
        self.write("bin/cmake", STUB)

    def write(self, path, text):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def write_program(self, name):
        self.write(f"build/release/examples/{name}", STUB + 'echo "help of $(basename "$0")"\n')

    def run_it(self, *arguments, **variables):
        calls = self.folder / "calls"
        calls.unlink(missing_ok=True)
        outside = {name: value for name, value in os.environ.items() if "CCACHE" not in name and "LAUNCHER" not in name}
        environment = outside | {
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "CALLS": str(calls),
            "CMAKE_PREFIX_PATH": "/nowhere",  # no download of LibTorch
            "TESSERA_PRESET": "release",
        }
        for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
            environment.pop(name, None)
        environment |= variables
        result = subprocess.run(
            [self.folder / "run", *arguments], env=environment, capture_output=True, text=True, timeout=60
        )
        return result, calls.read_text().splitlines() if calls.exists() else []

    def expect_error(self, message, *arguments):
        result, calls = self.run_it(*arguments)
        self.assertEqual(result.returncode, 1, arguments)
        self.assertIn(message, result.stderr)
        self.assertEqual(calls, [], "nothing may run before the arguments are checked")

    def test_misspelt_options_get_a_suggestion(self):
        self.write_program("movielens")
        for option in ("--rank", "--rank=4", "--rankss", "--rnaks", "--Ranks"):
            word = option.split("=")[0]
            self.expect_error(f"unknown option '{word}'. Did you mean --ranks?", "train", option, "4")
        self.expect_error("unknown option '--peer'. Did you mean --peers?", "bench", "--peer")
        self.expect_error("unknown option '--shard'. Did you mean --sharded?", "bench", "--shard")

    def test_ccache_is_used_unless_another_launcher_is_set(self):
        self.write_program("movielens")
        self.write("bin/ccache", STUB)
        self.write("bin/cmake", '#!/bin/sh\necho "$CMAKE_CXX_COMPILER_LAUNCHER,$CCACHE_BASEDIR,$CCACHE_NOHASHDIR" >> "$CALLS"\n')
        _, calls = self.run_it("train")
        self.assertEqual(calls[0], f"ccache,{self.folder.resolve()},1")
        for launcher in ("", "sccache"):
            _, calls = self.run_it("train", CMAKE_CXX_COMPILER_LAUNCHER=launcher)
            self.assertEqual(calls[0], f"{launcher},,")

    def test_idle_threads_of_programs_sleep_soon(self):
        self.write(
            "build/release/examples/movielens",
            '#!/bin/sh\necho "${OMP_WAIT_POLICY-unset} ${GOMP_SPINCOUNT-unset}" >> "$CALLS"\n',
        )
        for variables, expected in (
            ({}, "unset 1000"),
            ({"GOMP_SPINCOUNT": "7"}, "unset 7"),
            ({"OMP_WAIT_POLICY": "active"}, "active unset"),
        ):
            result, calls = self.run_it("train", **variables)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(calls[-1], expected)

    def test_misspelt_commands_get_a_suggestion(self):
        self.expect_error("unknown command 'trian'. Did you mean train?", "trian")
        self.expect_error("unknown command 'two_tower'. Did you mean two-tower?", "two_tower")
        result, _ = self.run_it("something")
        self.assertIn("unknown command 'something'", result.stderr)
        self.assertNotIn("Did you mean", result.stderr)

    def test_options_of_the_program_are_passed_on(self):
        self.write_program("movielens")
        arguments = ["--data", "x", "--epochs=2", "--seed", "3", "--user", "4", "--json", "--save", "y", "--batch", "8"]
        result, calls = self.run_it("train", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(calls[-1], "movielens " + " ".join(arguments))
        # Only the program knows its other options, so a misspelt one is not an error of ./run.
        _, calls = self.run_it("train", "--epoch", "2")
        self.assertIn("--epoch 2", calls[-1])

    def test_the_benchmark_gets_an_option_that_is_like_one_of_run(self):
        self.write("build/release/tests/benchmarks/embedding_benchmark", STUB)
        _, calls = self.run_it("bench", "--dim", "64")
        self.assertEqual(calls[-1], "embedding_benchmark --dim 64")

    def test_ranks_start_processes(self):
        self.write_program("movielens")
        self.write("src/distributed/launch.py", (ROOT / "src/distributed/launch.py").read_text())
        for arguments in (["--ranks", "4"], ["--ranks=4"]):
            result, calls = self.run_it("train", *arguments, "--epochs", "2")
            self.assertEqual(result.returncode, 0, result.stderr)
            for call in calls[-4:]:
                self.assertRegex(call, r"^movielens --sharded --data .*ml-100k --epochs 2$")
        self.expect_error("--ranks must be an integer >= 1, but got '0'", "train", "--ranks", "0")
        self.expect_error("--ranks needs a number of processes", "train", "--ranks")

    def test_help_of_a_program_that_is_built_needs_no_build(self):
        for command, program in EXAMPLES.items():
            self.write_program(program)
            for arguments in (["--help"], ["-h"], ["--epochs", "2", "--help"]):
                result, calls = self.run_it(command, *arguments)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(result.stdout, f"help of {program}\n")
                self.assertEqual(calls, [f"{program} --help"])

    def test_help_of_a_program_that_is_not_built_builds_it(self):
        for command, program in EXAMPLES.items():
            _, calls = self.run_it(command, "--help")
            self.assertIn(f"cmake --build --preset release --target {program}", calls)


if __name__ == "__main__":
    unittest.main()
