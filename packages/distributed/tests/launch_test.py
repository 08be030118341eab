# SPDX-License-Identifier: Apache-2.0
"""Tests packages/distributed/src/launch.py with small shell programs."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LAUNCH = pathlib.Path(__file__).resolve().parents[1] / "src/launch.py"

LOOP = "while :; do sleep 0.05; done"


def launch(*arguments, script="true"):
    command = [sys.executable, "-B", LAUNCH, *arguments, "--", "/bin/sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


class LaunchTest(unittest.TestCase):
    def test_ranks_get_their_variables(self):
        result = launch("--ranks", "3", script='echo "$RANK of $WORLD_SIZE at $MASTER_ADDR" ${MASTER_PORT:+port}')
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(sorted(result.stdout.splitlines()), [f"{rank} of 3 at 127.0.0.1 port" for rank in range(3)])

    def test_machines_share_the_ranks(self):
        options = ["--ranks", "4", "--machines", "2", "--machine", "1", "--master", "10.0.0.1", "--port", "29500"]
        result = launch(*options, script='echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"')
        self.assertEqual(sorted(result.stdout.splitlines()), ["2 0 4 10.0.0.1:29500", "3 1 4 10.0.0.1:29500"])

    def test_a_failure_ends_all_ranks(self):
        begin = time.monotonic()
        script = 'test "$RANK" = 1 && exit 7; test "$RANK" = 2 && kill -STOP $$; exec sleep 60'
        result = launch("--ranks", "3", "--grace", "0.5", script=script)
        self.assertEqual(result.returncode, 7)
        self.assertIn("rank 1 ended with status 7", result.stderr)
        self.assertLess(time.monotonic() - begin, 30)

    def test_a_signal_is_a_failure(self):
        result = launch("--ranks", "1", script="kill -KILL $$")
        self.assertEqual(result.returncode, 128 + 9)
        self.assertIn("rank 0 ended with signal 9", result.stderr)

    def test_a_stop_is_passed_on_once(self):
        # Not a shell: bash forgets a SIGINT that arrives while its child ends by itself.
        script = """if True:
            import os, signal, time
            received = []
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda number, frame: received.append(number))
            os.write(1, b"ready\\n")  # one write, so that lines of ranks do not mix
            while not received:
                time.sleep(0.02)
            time.sleep(1)
            os.write(1, ("saved after %s\\n" % received).encode())
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            command = [sys.executable, "-B", LAUNCH, "--ranks", "2", "--grace", "0", "--restarts", "3"]
            launcher = subprocess.Popen(
                [*command, "--", sys.executable, "-c", script],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.assertEqual([launcher.stdout.readline() for _ in range(2)], ["ready\n"] * 2)
            launcher.send_signal(number)
            output, errors = launcher.communicate(timeout=60)
            self.assertEqual(launcher.returncode, 128 + number, errors)
            self.assertEqual(output.splitlines(), [f"saved after [{int(number)}]"] * 2)

    def test_a_second_stop_ends_the_ranks(self):
        begin = time.monotonic()
        launcher = subprocess.Popen(
            [sys.executable, "-B", LAUNCH, "--ranks", "1", "--", "/bin/bash", "-c", f'trap "" TERM; echo ready; {LOOP}'],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.assertEqual(launcher.stdout.readline(), "ready\n")
        launcher.terminate()
        time.sleep(0.5)
        launcher.terminate()
        self.assertEqual(launcher.wait(timeout=40), 128 + signal.SIGTERM)
        self.assertLess(time.monotonic() - begin, 40)
        launcher.stdout.close()

    @unittest.skipUnless(sys.platform.startswith("linux"), "other systems have no death signal")
    def test_ranks_end_when_the_launcher_is_killed(self):
        script = 'import os, time; os.write(1, b"%d\\n" % os.getpid()); time.sleep(600)'
        launcher = subprocess.Popen(
            [sys.executable, "-B", LAUNCH, "--ranks", "3", "--", sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            text=True,
        )
        ranks = [int(launcher.stdout.readline()) for _ in range(3)]
        launcher.kill()
        try:
            # The pipe ends when the last rank has ended.
            self.assertEqual(launcher.communicate(timeout=30)[0], "")
        finally:
            for rank in ranks:
                try:
                    os.kill(rank, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    @unittest.skipUnless(sys.platform.startswith("linux"), "other systems have no death signal")
    def test_a_rank_of_a_dead_launcher_does_not_start(self):
        script = "import launch, os; launch.follow_the_launcher(launcher=os.getpid())(); print('trains')"
        result = subprocess.run(
            [sys.executable, "-B", "-c", script], cwd=LAUNCH.parent, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((result.returncode, result.stdout), (128 + signal.SIGTERM, ""), result.stderr)

    def test_restarts_until_it_succeeds(self):
        with tempfile.TemporaryDirectory() as folder:
            script = f'test "$TORCHELASTIC_RESTART_COUNT" = 2 || exit 3; touch {folder}/$RANK'
            self.assertEqual(launch("--ranks", "2", "--grace", "0", "--restarts", "1", script=script).returncode, 3)
            result = launch("--ranks", "2", "--grace", "0", "--restarts", "2", script=script)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("starts all ranks again, attempt 2 of 2", result.stderr)
            self.assertEqual(len(list(pathlib.Path(folder).iterdir())), 2)

    def test_bad_arguments_are_named(self):
        for arguments, problem in (
            (["--ranks", "0"], "--ranks 0 and --machines 1 must be at least 1"),
            (["--ranks", "2", "--machines", "2"], "pass --machine, the number of this one"),
            (["--ranks", "2", "--port", "70000"], "--port must be from 1 to 65535"),
            (["--ranks", "2", "--epochs", "3"], "unknown options --epochs; options of the program come after --"),
            (["--ranks", "3", "--machines", "2"], "--ranks 3 must be a multiple of --machines 2"),
            (["--ranks", "2", "--machines", "2", "--machine", "2"], "--machine must be from 0 to 1, but is 2"),
            (["--ranks", "2", "--machines", "2", "--machine", "1"], "pass --master and --port"),
            (["--ranks", "x"], "invalid int value: 'x'"),
            (["--ranks", "1", "--restarts", "-1"], "must not be negative"),
        ):
            result = launch(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(problem, result.stderr)
        result = subprocess.run(
            [sys.executable, "-B", LAUNCH, "--ranks", "2", "--", "/nowhere/program"], capture_output=True, text=True
        )
        self.assertEqual(result.returncode, 1)
        self.assertIn("can't start /nowhere/program: No such file or directory", result.stderr)


if __name__ == "__main__":
    unittest.main()
