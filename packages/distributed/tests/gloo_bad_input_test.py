# SPDX-License-Identifier: Apache-2.0
"""Starts ranks with wrong environments. Each must end soon, with an error that says what is wrong.

  gloo_bad_input_test.py PROGRAM   PROGRAM is checkpoint_ranks
"""

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "src"))
from launch import free_port

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
TIMEOUT_MS = 2000
SHORT_TIMEOUT_MS = 200  # of a rank that nobody can answer


class GlooBadInputTest(unittest.TestCase):
    def run_ranks(self, *environments, timeout_ms=TIMEOUT_MS):
        """Starts one rank with each environment. Returns their errors."""
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            processes = []
            for variables in environments:
                defaults = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
                chosen = {name: str(value) for name, value in (defaults | variables).items() if value is not None}
                processes.append(
                    subprocess.Popen(
                        [PROGRAM, folder + "/checkpoints", "2", str(timeout_ms), "1"],
                        env=dict(os.environ) | chosen,
                        stderr=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
            begin = time.monotonic()
            errors = [process.communicate(timeout=60)[1] for process in processes]
            self.assertLess(time.monotonic() - begin, timeout_ms / 1000 + 4)  # two seconds for a busy machine
            for process, text in zip(processes, errors):
                self.assertEqual(process.returncode, 1, text)
            return errors

    def test_missing_variables_are_named(self):
        (error,) = self.run_ranks({"RANK": 0, "MASTER_PORT": None})
        self.assertIn("but not set: MASTER_PORT", error)
        (error,) = self.run_ranks({})
        self.assertIn("but not set: RANK", error)

    def test_variables_must_be_numbers(self):
        (error,) = self.run_ranks({"RANK": "first"})
        self.assertIn("RANK must be an integer, but got 'first'", error)
        (error,) = self.run_ranks({"RANK": 1, "MASTER_PORT": 70000})
        self.assertIn("MASTER_PORT must be from 1 to 65535, but got 70000", error)

    def test_a_world_size_that_differs(self):
        first, second = self.run_ranks({"RANK": 0}, {"RANK": 1, "WORLD_SIZE": 3})
        self.assertIn("WORLD_SIZE must be the same on all ranks", second)
        self.assertIn("WORLD_SIZE must be the same on all ranks", first)

    def test_a_world_size_that_is_too_large(self):
        for error in self.run_ranks({"RANK": 0, "WORLD_SIZE": 3}, {"RANK": 1, "WORLD_SIZE": 3}):
            self.assertIn("rank 2 of 3 did not arrive", error)

    def test_two_processes_with_one_rank(self):
        errors = self.run_ranks(*[{"RANK": rank, "WORLD_SIZE": 3} for rank in (0, 1, 1)])
        self.assertIn("another process has RANK = 1, too", errors[1] + errors[2])
        for error in errors:
            self.assertIn("RANK = 1", error)

    def test_a_port_in_use(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            (error,) = self.run_ranks({"RANK": 0, "MASTER_PORT": listener.getsockname()[1]})
            self.assertIn("rank 0 can't listen on 127.0.0.1:", error)

    def test_a_port_that_never_answers(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            environment = {"RANK": 1, "MASTER_PORT": listener.getsockname()[1]}
            (error,) = self.run_ranks(environment, timeout_ms=SHORT_TIMEOUT_MS)
            self.assertIn("rank 1 can't reach rank 0 at 127.0.0.1:", error)

    def test_a_wrong_interface_ends_all_ranks(self):
        first, second = self.run_ranks({"RANK": 0}, {"RANK": 1, "GLOO_SOCKET_IFNAME": "nowhere0"})
        self.assertIn("rank 1 can't listen on the interface 'nowhere0'", second)
        self.assertIn("another rank failed. rank 1: [make_gloo_backend] rank 1 can't listen on", first)

    def test_a_wrong_interface_of_rank_0_is_named_on_all_ranks(self):
        first, second = self.run_ranks({"RANK": 0, "GLOO_SOCKET_IFNAME": "nowhere0"}, {"RANK": 1})
        self.assertIn("rank 0 can't listen on the interface 'nowhere0'", first)
        self.assertIn("another rank failed. rank 0: [make_gloo_backend] rank 0 can't listen on", second)

    def test_a_wrong_interface_of_all_ranks(self):
        for error in self.run_ranks(*[{"RANK": rank, "GLOO_SOCKET_IFNAME": "nowhere0"} for rank in (0, 1)]):
            self.assertIn("can't listen on the interface 'nowhere0'", error)

    def test_a_store_of_torchrun_that_is_not_there(self):
        for rank in (0, 1):
            environment = {"RANK": rank, "TORCHELASTIC_USE_AGENT_STORE": "True"}
            (error,) = self.run_ranks(environment, timeout_ms=SHORT_TIMEOUT_MS)
            self.assertIn(f"rank {rank} can't reach the store of torchrun at 127.0.0.1:", error)
            self.assertIn("remove TORCHELASTIC_USE_AGENT_STORE from the environment", error)

    def test_addresses_of_two_kinds(self):
        for error in self.run_ranks({"RANK": 0}, {"RANK": 1, "MASTER_ADDR": "::1"}):
            self.assertIn("IPv4 and IPv6 can't be mixed", error)

    def test_an_unreachable_master(self):
        (error,) = self.run_ranks({"RANK": 1}, timeout_ms=SHORT_TIMEOUT_MS)
        self.assertIn("rank 1 can't reach rank 0 at 127.0.0.1:", error)


if __name__ == "__main__":
    unittest.main()
