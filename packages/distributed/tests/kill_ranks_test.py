# SPDX-License-Identifier: Apache-2.0
"""Kills and stops ranks at random moments. Training resumes each time, and ends as if nothing had happened.

  kill_ranks_test.py PROGRAM [TIMES]   PROGRAM is checkpoint_ranks; TIMES is 3, or the length of a campaign
"""

import contextlib
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LAUNCH = pathlib.Path(__file__).resolve().parents[1] / "src/launch.py"
PROGRAM = pathlib.Path(sys.argv[1]).resolve()
TIMES = int(sys.argv[2]) if len(sys.argv) > 2 else 3
TIMEOUT_MS = 3000
PAUSE_MS = 5
ENDLESS = 1_000_000  # steps
STEPS_PER_CHECKPOINT = 5  # of PROGRAM, which numbers its checkpoints


def ranks_of(launcher):
    """Returns the process of each rank that has not ended."""
    processes = {}
    for child in pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for variable in pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                if variable.startswith(b"RANK="):
                    processes[int(variable[5:])] = int(child)
    return processes


def newest_checkpoint(folder):
    return max((int(name) for path in folder.iterdir() for name in re.findall(r"\d+", path.name)), default=0)


class KillRanksTest(unittest.TestCase):
    def start(self, folder, ranks, steps, *options):
        """Returns the launcher after the first step."""
        # On a busy machine, a rank takes seconds to say what it knows.
        command = [sys.executable, "-B", LAUNCH, "--ranks", str(ranks), "--grace", "20", *options, "--"]
        command += [PROGRAM, folder, str(steps), str(TIMEOUT_MS), str(PAUSE_MS)]
        environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
        launcher = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.addCleanup(launcher.wait)
        self.addCleanup(launcher.terminate)
        self.assertEqual(launcher.stdout.readline(), "trains\n")
        return launcher

    def disturb(self, launcher, choice, seconds):
        """Ends or stops one rank at any moment of the next `seconds`. Returns its number."""
        time.sleep(choice.uniform(0.0, seconds))
        processes = ranks_of(launcher.pid)
        rank = choice.choice(sorted(processes))
        number = choice.choice([signal.SIGKILL, signal.SIGSTOP])
        os.kill(processes[rank], number)
        if number == signal.SIGSTOP:
            # The launcher ends it, too, but only after the long --grace.
            while set(ranks_of(launcher.pid)) - {rank}:
                time.sleep(0.1)
            with contextlib.suppress(ProcessLookupError):
                os.kill(processes[rank], signal.SIGKILL)
        return rank

    def test_training_resumes(self):
        choice = random.Random(TIMES)
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch) / "checkpoints"
            for number in range(TIMES):
                ranks = choice.randint(2, 4)
                launcher = self.start(folder, ranks, ENDLESS)
                rank = self.disturb(launcher, choice, seconds=1.5)
                _, errors = launcher.communicate(timeout=90)
                with self.subTest(number=number, ranks=ranks, rank=rank):
                    self.assertNotEqual(launcher.returncode, 0)
                    others = [text for text in errors.splitlines() if "waits in" in text]
                    self.assertEqual(len(others), ranks - 1, errors)
                    # The store with what each rank knows ends with rank 0.
                    name = "the machine of rank 0, does not answer" if rank == 0 else rf"rank {rank} \("
                    for text in others:
                        self.assertTrue(re.search(f"ranks: .*{name}", text), errors)
            newest = newest_checkpoint(folder)
            # The launcher itself starts all ranks again, with the newest checkpoint that is whole.
            end = newest * STEPS_PER_CHECKPOINT + 100
            launcher = self.start(folder, 3, end, "--restarts", "1")
            while newest_checkpoint(folder) <= newest and launcher.poll() is None:
                time.sleep(0.02)
            self.disturb(launcher, choice, seconds=0.3)
            output, errors = launcher.communicate(timeout=120)
            self.assertEqual(launcher.returncode, 0, errors)
            self.assertIn("starts all ranks again, attempt 1 of 1", errors)
            begin = re.search(rf"3 ranks: steps (\d+) to {end}, equal", output)
            self.assertTrue(begin and int(begin[1]) > 0, output)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
