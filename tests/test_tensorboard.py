#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the event files that Tessera writes with the tensorboard package.

    pip install tensorboard "setuptools<81"
    python tests/test_tensorboard.py --program build/release/packages/training/tests/training_test
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

from tensorboard.backend.event_processing import event_accumulator


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


class TensorBoardTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run(
            [cls.program, "--gtest_filter=TensorBoardForPython.Write"],
            env={**os.environ, "TESSERA_TENSORBOARD_OUT": cls.folder.name},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        path = pathlib.Path(cls.folder.name)
        cls.history = json.loads((path / "history.json").read_text())
        cls.runs = {}
        for run in ("train", "validation"):
            cls.runs[run] = event_accumulator.EventAccumulator(
                str(path / "logs" / run), size_guidance={"scalars": 0, "histograms": 0}
            )
            cls.runs[run].Reload()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def scalars(self, run, tag):
        return [(event.step, event.value) for event in self.runs[run].Scalars(tag)]

    def expected(self, name):
        return [
            (40 * (entry["epoch"] + 1), as_float32(entry[name]))
            for entry in self.history["epochs"]
        ]

    def test_epochs(self):
        for name in ("loss", "auc"):
            self.assertEqual(self.scalars("train", f"epoch/{name}"), self.expected(name))
            self.assertEqual(
                self.scalars("validation", f"epoch/{name}"), self.expected(f"val_{name}")
            )
        for name in ("learning_rate", "learning_rate_users", "learning_rate_movies"):
            self.assertEqual(self.scalars("train", f"epoch/{name}"), self.expected(name))

    def test_steps_of_a_resumed_training_appear_once(self):
        expected = [
            (entry["step"], as_float32(entry["logs"]["loss"])) for entry in self.history["steps"]
        ]
        self.assertEqual([step for step, _ in expected], list(range(5, 481, 5)))
        self.assertEqual(self.scalars("train", "step/loss"), expected)
        rates = self.scalars("train", "step/learning_rate_users")
        self.assertEqual(rates, [(step, as_float32(0.05)) for step, _ in expected])

    def test_histograms(self):
        tags = self.runs["train"].Tags()["histograms"]
        self.assertEqual(
            sorted(tags),
            [
                "gradients/tower.bias",
                "gradients/tower.weight",
                "row_norms/embedding_0/movies",
                "row_norms/embedding_0/users",
            ],
        )
        for tag, count in {
            "row_norms/embedding_0/users": 20,
            "row_norms/embedding_0/movies": 10,
            "gradients/tower.weight": 8,
        }.items():
            events = self.runs["train"].Histograms(tag)
            self.assertEqual([event.step for event in events], list(range(40, 481, 40)))
            for event in events:
                value = event.histogram_value
                self.assertEqual(value.num, count)
                self.assertEqual(sum(value.bucket), count)
                self.assertLessEqual(value.min, value.max)
                self.assertEqual(len(value.bucket), len(value.bucket_limit))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="the program training_test")
    arguments, rest = parser.parse_known_args()
    TensorBoardTest.program = arguments.program
    unittest.main(argv=[sys.argv[0], *rest])
