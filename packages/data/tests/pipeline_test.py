#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares examples/pipeline.py, which needs only NumPy and xxhash, with Tessera, id for id.

    python3 packages/data/tests/pipeline_test.py --program build/release/packages/data/tests/data_test
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import warnings

import numpy as np

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "examples"))
from pipeline import Pipeline, key_of  # noqa: E402


def column_of(saved):
    """A column of the file: text as hexadecimal digits, and null for NaN."""
    if saved["type"] == "text":
        values = [bytes.fromhex(value) for value in saved["values"]]
    elif saved["type"] == "int64":
        values = np.array(saved["values"], np.int64)
    else:
        values = np.array([np.nan if value is None else value for value in saved["values"]], np.float32)
    return (values, saved["row_splits"]) if "row_splits" in saved else values


class PipelineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [cls.program, "--gtest_filter=PipelinesForPython.Write"],
                env={**os.environ, "TESSERA_PIPELINES_OUT": folder},
                check=True,
                stdout=subprocess.DEVNULL,
            )
            paths = sorted(pathlib.Path(folder).glob("*.json"))
            cls.cases = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in paths}

    def test_all_ids_are_equal(self):
        self.assertGreater(len(self.cases), 20)
        num_ids = 0
        for name, case in self.cases.items():
            with self.subTest(name):
                columns = {key: column_of(saved) for key, saved in case["columns"].items()}
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    features, dense = Pipeline(case["pipeline"]).apply(columns)
                self.assertEqual(set(features), set(case["features"]))
                for feature, expected in case["features"].items():
                    found = features[feature]
                    if "row_splits" in expected:
                        found, splits = found
                        self.assertEqual(splits.tolist(), expected["row_splits"], feature)
                    self.assertEqual(found.tolist(), expected["values"], feature)
                    num_ids += len(expected["values"])
                expected = np.array(case["dense"], np.float32).reshape(dense.shape)
                np.testing.assert_allclose(dense, expected, rtol=1e-6)
        self.assertGreater(num_ids, 1000)

    def test_marks_are_no_keys(self):
        self.assertEqual(key_of(7), 7)
        self.assertEqual(key_of(2**63), -(2**63))
        for mark in (-1, -2, 2**63 - 1):
            self.assertEqual(key_of(mark % 2**64), mark ^ 2**40)

    def hashed(self, types):
        output = {"name": "a", "columns": ["x"], "transform": {"class_name": "Hash64", "config": {}}}
        return Pipeline({"format_version": 2, "types": types, "outputs": [output]})

    def test_another_type_is_refused(self):
        features, _ = self.hashed({"x": "text"}).apply({"x": ["7", None]})
        self.assertEqual(features["a"][1], 0)
        with self.assertRaisesRegex(ValueError, "column 'x' has integers, but the pipeline takes text"):
            self.hashed({"x": "text"}).apply({"x": [7, None]})
        with self.assertRaisesRegex(TypeError, "mixes integers and text"):
            self.hashed({"x": "text"}).apply({"x": ["7", 7]})

    def test_an_unknown_type_is_assumed_with_a_warning(self):
        pipeline = self.hashed({})
        with self.assertWarnsRegex(UserWarning, "assuming those of this batch: {'x': 'int64'}"):
            pipeline.apply({"x": [7]})
        with self.assertRaisesRegex(ValueError, "column 'x' has text, but the pipeline takes integers"):
            pipeline.apply({"x": ["7"]})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="the test binary data_test")
    arguments, rest = parser.parse_known_args()
    PipelineTest.program = os.path.abspath(arguments.program)
    unittest.main(argv=[sys.argv[0], *rest])
