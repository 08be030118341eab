# SPDX-License-Identifier: Apache-2.0
"""Trains on several hosts of network_hosts.py.

  hosts_test.py PROGRAM   PROGRAM is checkpoint_ranks

Needs root and iproute2. Without root, it is skipped.
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from network_hosts import Hosts

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
TIMEOUT = 3.0  # seconds, of the backend
SLACK = 3.0  # two seconds for naming the rank, and one for a busy machine


def start(hosts, arguments):
    return hosts.start([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@unittest.skipUnless(os.geteuid() == 0, "network namespaces need root")
class HostsTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name) / "checkpoints"  # which all hosts see

    def make_hosts(self, count):
        hosts = Hosts(count)
        self.addCleanup(hosts.close)
        return hosts

    def finish(self, processes, seconds=120):
        """Waits for all ranks. Returns what each has printed."""
        outputs = []
        limit = time.monotonic() + seconds
        try:
            for process in processes:
                outputs.append(process.communicate(timeout=max(0.1, limit - time.monotonic())))
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return outputs

    def expect_equal(self, hosts, arguments, line):
        processes = start(hosts, arguments)
        outputs = self.finish(processes)
        for process, (_, errors) in zip(processes, outputs):
            self.assertEqual(process.returncode, 0, errors)
        self.assertIn(line, outputs[0][0])

    def test_hosts_train_what_one_process_trains(self):
        self.expect_equal(self.make_hosts(2), [self.folder, 4], "2 ranks: steps 0 to 4, equal")

    def test_checkpoints_of_four_hosts_load_on_three_and_on_one(self):
        four = self.make_hosts(4)
        self.expect_equal(four, [self.folder, 4], "4 ranks: steps 0 to 4, equal")
        four.close()
        three = self.make_hosts(3)
        self.expect_equal(three, [self.folder, 8], "3 ranks: steps 4 to 8, equal")
        three.close()
        self.expect_equal(self.make_hosts(1), [self.folder, 10], "1 ranks: steps 8 to 10, equal")

    def start_training(self, hosts, timeout):
        """Starts a run that takes long, and returns when it is in the middle of it."""
        processes = start(hosts, [self.folder, 100000, int(1000 * timeout), 5])
        self.assertEqual(processes[0].stdout.readline(), "trains\n")
        time.sleep(0.5)
        return processes

    def expect_names(self, processes, ranks, gone=()):
        """All `ranks` end in time, and name a rank of `gone`, or another one."""
        begin = time.monotonic()
        outputs = self.finish(
            [processes[rank] for rank in ranks], seconds=TIMEOUT + SLACK
        )
        for rank, (_, errors) in zip(ranks, outputs):
            self.assertNotEqual(processes[rank].returncode, 0)
            self.assertIn(f"rank {rank} of 4 waits in", errors)
            named = [int(number) for number in re.findall(r"rank (\d) \(", errors)]
            self.assertTrue(named and rank not in named, errors)
            if "the machine of rank 0, does not answer" in errors:
                named.append(0)
            if gone and rank not in gone:
                self.assertTrue(set(gone) <= set(named), errors)
        return time.monotonic() - begin

    def test_a_cut_link_is_an_error_with_a_name_on_every_host(self):
        hosts = self.make_hosts(4)
        processes = self.start_training(hosts, TIMEOUT)
        hosts.cut(2)
        self.expect_names(processes, range(4), gone=[2])

    def test_the_host_of_rank_0_is_cut_off(self):
        hosts = self.make_hosts(4)
        processes = self.start_training(hosts, TIMEOUT)
        hosts.cut(0)
        self.expect_names(processes, range(4), gone=[0])

    def test_a_killed_and_a_stopped_rank_are_named(self):
        for number in (signal.SIGKILL, signal.SIGSTOP):
            with self.subTest(number=number):
                hosts = self.make_hosts(4)
                processes = self.start_training(hosts, TIMEOUT)
                processes[1].send_signal(number)
                self.expect_names(processes, [0, 2, 3], gone=[1])
                processes[1].kill()
                processes[1].communicate()
                hosts.close()

    def test_a_link_that_returns_does_no_harm(self):
        hosts = self.make_hosts(2)
        processes = start(hosts, [self.folder, 60, 20000, 20])
        self.assertEqual(processes[0].stdout.readline(), "trains\n")
        time.sleep(0.2)
        hosts.cut(1)
        time.sleep(1.0)
        hosts.cut(1, "up")
        outputs = self.finish(processes)
        for process, (_, errors) in zip(processes, outputs):
            self.assertEqual(process.returncode, 0, errors)
        self.assertIn("2 ranks: steps 0 to 60, equal", outputs[0][0])


if __name__ == "__main__":
    unittest.main()
