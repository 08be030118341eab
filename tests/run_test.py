# SPDX-License-Identifier: Apache-2.0
"""Tests ./run in a scratch folder, with programs that only write down how they were called."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
STUB = '#!/bin/sh\necho "$(basename "$0") $*" >> "$CALLS"\n'
# Makes virtual environments whose Python installs nothing, and otherwise only writes down its script and arguments.
PYTHON_STUB = f"""#!/bin/sh
[ "$1" = -m ] || exec {sys.executable} "$@"
mkdir -p "$3/bin"
echo '[ "$1" = -m ] || echo "$(basename "$1") $*" >> "$CALLS"' > "$3/bin/python"
chmod +x "$3/bin/python"
"""
EXAMPLES = {"train": "movielens", "dlrm": "dlrm_criteo", "two-tower": "two_tower", "sasrec": "sasrec"}
BENCHMARKS = {  # options of bench: the program, and the script that calls it
    "--peers": ("tests/benchmarks/embedding_benchmark", "compare_peers.py"),
    "--threads": ("tests/benchmarks/embedding_benchmark", "thread_sweep.py"),
    "--growth": ("tests/benchmarks/embedding_benchmark", "growth.py"),
    "--key-quality": ("tests/benchmarks/key_quality_benchmark", "key_quality.py"),
    "--sources": ("tests/benchmarks/source_benchmark", "compare_sources.py"),
    "--dlrm": ("examples/dlrm_criteo", "compare_dlrm.py"),
    "--sasrec": ("examples/sasrec", "compare_sasrec.py"),
    "--serving": ("tests/benchmarks/serving_benchmark", "compare_serving.py"),
    "--row-stores": ("tests/benchmarks/row_store_benchmark", "compare_row_stores.py"),
    "--products": ("tests/benchmarks/product_benchmark", None),
    "--overlap": ("tests/benchmarks/overlap_benchmark", None),
    "--checkpoint": ("tests/benchmarks/checkpoint_benchmark", None),
    "--reader": ("tests/benchmarks/reader_benchmark", None),
    "--corpus": ("tests/benchmarks/corpus_evaluation_benchmark", None),
    "--dataset": ("tests/benchmarks/dataset_benchmark", None),
    "--scaling": ("tests/benchmarks/scaling_plan", None),
    "--keys": ("tests/benchmarks/key_step_benchmark", None),
}


class RunTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        for file in ("run", "cmake/wheels.sh", "tests/benchmarks/bench.sh"):
            self.write(file, (ROOT / file).read_text())
        (self.folder / ".deps/data/ml-100k").mkdir(parents=True)
        self.write("bin/dpkg-query", '#!/bin/sh\nshift 3\nprintf "%s=installed " "$@"\n')
        self.write("bin/python3", PYTHON_STUB)
        self.write("bin/cmake", STUB)

    def write(self, path, text):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)

    def write_program(self, name, folder="examples"):
        self.write(f"build/release/{folder}/{name}", STUB + 'echo "help of $(basename "$0")"\n')

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

    def test_unknown_commands_and_options_are_refused_with_a_list_of_all(self):
        for command in ("trian", "two_tower", "something"):
            self.expect_error(f"unknown command '{command}'", command)
            self.expect_error("two-tower [args]", command)
        for option in ("--peer", "--shard", "--peers=1", "something"):
            self.expect_error(f"unknown option '{option}'", "bench", option)
            self.expect_error("--peers ", "bench", option)
        for command, option in (("docs", "--check"), ("format", "--check"), ("test-python", "--all-versions")):
            self.expect_error(f"{command} takes only {option}, but got '--chekc'", command, "--chekc")

    def test_help_has_all_commands_and_benchmarks(self):
        for arguments in ((), ("help",), ("-h",), ("--help",)):
            result, calls = self.run_it(*arguments)
            self.assertEqual((result.returncode, calls), (0, []))
            for word in (*EXAMPLES, "setup", "test ", "test-python", "test-arm", "bench", "docs", "format", "help"):
                self.assertIn(f"\n  {word}", result.stdout)
            for option in (*BENCHMARKS, "--sharded", "--key-growth"):
                self.assertRegex(result.stdout, rf"\n {{20}}{option} ")

    def test_the_preset_core_leaves_out_every_package(self):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        core = next(preset for preset in presets if preset["name"] == "core")
        packages = ["DENSE", *(folder.name.upper() for folder in (ROOT / "packages").iterdir())]
        self.assertEqual(core["cacheVariables"], {f"TESSERA_BUILD_{package}": "OFF" for package in packages})

    def test_ccache_is_used_unless_another_launcher_is_set(self):
        self.write_program("movielens")
        self.write("bin/ccache", STUB)
        self.write("bin/cmake", '#!/bin/sh\necho "$CMAKE_CXX_COMPILER_LAUNCHER,$CCACHE_BASEDIR,$CCACHE_NOHASHDIR" >> "$CALLS"\n')
        _, calls = self.run_it("train")
        self.assertEqual(calls[0], f"ccache,{self.folder.resolve()},1")
        for launcher in ("", "sccache"):
            _, calls = self.run_it("train", CMAKE_CXX_COMPILER_LAUNCHER=launcher)
            self.assertEqual(calls[0], f"{launcher},,")

    def test_the_tests_for_aarch64_run_in_an_emulator(self):
        self.run_it("setup")
        self.write(".deps/python/bin/python", STUB)
        self.write("bin/apt-get", STUB + 'case "$*" in *download*) touch package.deb ;; esac\n')
        self.write("bin/dpkg-deb", STUB)
        self.write("bin/unzip", '#!/bin/sh\nmkdir -p .deps/scratch/torch\necho "Requires-Dist: cuda-toolkit[cudart]==1.2; x"\n')
        self.write("bin/ctest", '#!/bin/sh\necho "ctest $* on $QEMU_CPU" >> "$CALLS"\n')
        self.write("bin/uname", "#!/bin/sh\necho x86_64\n")
        deps = self.folder.resolve() / ".deps"
        tests = [
            "cmake --preset aarch64-core",
            "cmake --build --preset aarch64-core",
            "ctest --preset aarch64-core -R kernels on neoverse-n1",
        ]
        result, calls = self.run_it("test-arm", "-R", "kernels")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(calls[0], r"^apt-get .*APT::Architecture=arm64 .* update$")
        self.assertRegex(calls[1], r"^apt-get .* download .*libhwy-dev")
        self.assertEqual(calls[2], f"dpkg-deb -x {deps}/scratch/package.deb {deps}/debian-arm64")
        self.assertRegex(calls[3], r"download .* torch==[0-9.]+ .*--platform manylinux_2_28_aarch64 ")
        self.assertRegex(calls[4], r"download .* cuda-toolkit\[cudart,cupti\]==1\.2 .*--platform manylinux_2_28_aarch64 ")
        self.assertEqual(calls[5:], tests)
        self.assertEqual((deps / "libtorch-aarch64").resolve().parent, deps)
        _, calls = self.run_it("test-arm", "-R", "kernels")
        self.assertEqual(calls, tests, "what is installed already is not downloaded again")
        _, calls = self.run_it("test-arm", QEMU_CPU="max")
        self.assertEqual(calls[-1], "ctest --preset aarch64-core on max")
        self.write("bin/uname", "#!/bin/sh\necho aarch64\n")
        self.expect_error("test-arm is for other processors, but this machine is an aarch64. Use ./run test", "test-arm")

    def test_idle_threads_of_programs_sleep_soon(self):
        self.write(
            "build/release/examples/movielens",
            '#!/bin/sh\necho "${OMP_WAIT_POLICY-unset} ${GOMP_SPINCOUNT-unset}" >> "$CALLS"\n',
        )
        for variables, expected in (
            ({}, "unset 3000"),
            ({"GOMP_SPINCOUNT": "7"}, "unset 7"),
            ({"OMP_WAIT_POLICY": "active"}, "active unset"),
        ):
            result, calls = self.run_it("train", **variables)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(calls[-1], expected)

    def test_options_of_the_program_are_passed_on(self):
        self.write_program("movielens")
        arguments = ["--data", "x", "--epochs=2", "--seed", "3", "--user", "4", "--json", "--save", "y", "--batch", "8"]
        result, calls = self.run_it("train", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(calls[-1], "movielens " + " ".join(arguments))
        # Only the program knows its other options, so a misspelt one is not an error of ./run.
        _, calls = self.run_it("train", "--epoch", "2")
        self.assertIn("--epoch 2", calls[-1])

    def test_the_embedding_benchmark_gets_its_own_options(self):
        self.write_program("embedding_benchmark", "tests/benchmarks")
        source = (ROOT / "tests/benchmarks/embedding_benchmark.cpp").read_text()
        options = re.findall(r'[",!](--[a-z-]+)[",]', source)
        self.assertIn("--no-limits", options)
        for option in [*options, "--help"]:
            for arguments in ([option, "2"], [f"{option}=2"]):
                result, calls = self.run_it("bench", *arguments)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual(calls[-1], "embedding_benchmark " + " ".join(arguments))
        _, calls = self.run_it("bench")
        self.assertEqual(calls[-1], "embedding_benchmark ")

    def test_each_benchmark_is_built_and_run(self):
        for option, (program, script) in BENCHMARKS.items():
            folder, name = program.rsplit("/", 1)
            self.write_program(name, folder)
            self.write_program("key_benchmark", "tests/benchmarks")
            result, calls = self.run_it("bench", option, "--rounds", "5")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"cmake --build --preset release --target {name}", calls)
            if script:
                path = self.folder.resolve()
                call = f"{script} {path}/tests/benchmarks/{script} --program {path}/build/release/{program} --rounds 5"
            else:
                call = f"{name} --rounds 5"
            self.assertEqual(calls[-1], call)
        self.write_program("key_growth_benchmark", "tests/benchmarks")
        _, calls = self.run_it("bench", "--key-growth", "--keys", "9")
        self.assertEqual(calls[-1], "key_growth_benchmark --preallocate --keys 9")
        self.assertIn("key_growth_benchmark --keys 9", calls)

    def test_peers_are_installed_only_if_they_are_measured(self):
        for option in ("--peers", "--threads"):
            for arguments in (["--from", "x"], ["--from=x"], ["--help"], ["-h"]):
                result, calls = self.run_it("bench", option, *arguments)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual([call for call in calls if call.startswith("cmake")], [], arguments)
            for arguments in (["--peer", "none"], ["--peer=none"]):
                _, calls = self.run_it("bench", option, *arguments)
                self.assertIn("cmake --build --preset release --target embedding_benchmark", calls)
            self.assertFalse((self.folder / ".deps/peers/tf").exists())
        self.run_it("bench", "--peers", "--peer", "torch")
        self.assertIn("tensorflow-cpu", (self.folder / ".deps/peers/tf/ready").read_text())
        self.assertIn("fbgemm-gpu-cpu", (self.folder / ".deps/peers/torch/ready").read_text())

    def test_ranks_start_processes(self):
        self.write_program("movielens_ranks")
        self.write("packages/distributed/src/launch.py", (ROOT / "packages/distributed/src/launch.py").read_text())
        for arguments in (["--ranks", "4"], ["--ranks=4"]):
            result, calls = self.run_it("train", *arguments, "--epochs", "2")
            self.assertEqual(result.returncode, 0, result.stderr)
            for call in calls[-4:]:
                self.assertRegex(call, r"^movielens_ranks --data .*ml-100k --sharded --epochs 2$")
        self.expect_error("--ranks must be a number > 0, but got '0'", "train", "--ranks", "0")
        self.expect_error("--ranks must be a number > 0, but got ''", "train", "--epochs", "2", "--ranks")
        self.write_program("sharded_benchmark", "tests/benchmarks")
        for arguments, ranks in (([], 2), (["--ranks", "3"], 3)):
            _, calls = self.run_it("bench", "--sharded", *arguments, "--rows", "5")
            self.assertEqual(calls[-ranks - 1 :][1:], ["sharded_benchmark --rows 5"] * ranks)
            self.assertNotEqual(calls[-ranks - 1], "sharded_benchmark --rows 5")
        self.write("build/release/examples/movielens_ranks", "#!/bin/sh\nexit 7\n")
        result, _ = self.run_it("train", "--ranks", "2")
        self.assertEqual(result.returncode, 1)
        self.assertIn("failed with --ranks 2 and status 7", result.stderr)

    def test_hosts_have_their_own_network(self):
        self.write("packages/distributed/tests/network_hosts.py", "import sys; print(*sys.argv[1:])")
        result, _ = self.run_it("bench", "--sharded", "--hosts", "2", "--link-gbit=0.5", "--rows", "5")
        program = self.folder.resolve() / "build/release/tests/benchmarks/sharded_benchmark"
        self.assertEqual(result.stdout, f"--hosts 2 --link-gbit 0.5 -- {program} --rows 5\n")

    def test_programs_run_in_the_folder_of_the_caller(self):
        self.write("build/release/examples/movielens", "#!/bin/sh\npwd\nexit 3\n")
        environment = os.environ | {"PATH": f"{self.folder}/bin:{os.environ['PATH']}", "CMAKE_PREFIX_PATH": "/nowhere"}
        environment["CALLS"] = str(self.folder / "calls")
        folder = self.folder / "elsewhere"
        folder.mkdir()
        result = subprocess.run(["../run", "train"], cwd=folder, env=environment, capture_output=True, text=True)
        self.assertEqual((result.returncode, result.stdout), (3, f"{folder.resolve()}\n"))

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
