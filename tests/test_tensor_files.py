#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the files that Tessera writes with NumPy and the safetensors package.

    pip install numpy safetensors ml_dtypes
    python tests/test_tensor_files.py --program build/release/packages/formats/tests/formats_test
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "packages/formats/tests"))
from make_tensor_files import NPY_DTYPES, counting  # noqa: E402

SHAPES = {
    "vector": counting("float32", (5,)),
    "transposed": counting("float32", (5, 3)).T,
    "scalar": counting("float32", ()),
    "empty": counting("float32", (0, 4)),
}


class TensorFilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run(
            [cls.program, "--gtest_filter=TensorFilesForPython.Write"],
            env={**os.environ, "TESSERA_TENSOR_FILES_OUT": cls.folder.name},
            check=True,
            stdout=subprocess.DEVNULL,
        )

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def assert_same(self, actual, expected):
        self.assertEqual(actual.dtype, expected.dtype)
        self.assertEqual(actual.shape, expected.shape)
        np.testing.assert_array_equal(actual, expected)

    def expected(self):
        expected = {dtype: counting(dtype, (3, 5)) for dtype in NPY_DTYPES}
        return {**expected, **SHAPES}

    def test_npy(self):
        for name, expected in self.expected().items():
            with self.subTest(name):
                self.assert_same(np.load(self.path(f"{name}.npy"), allow_pickle=False), expected)

    def test_npy_is_mapped(self):
        self.assert_same(np.load(self.path("float32.npy"), mmap_mode="r"), counting("float32", (3, 5)))

    def test_safetensors(self):
        expected = self.expected()
        expected["bfloat16"] = counting("float32", (3, 5)).astype(ml_dtypes.bfloat16)
        with safetensors.safe_open(self.path("all.safetensors"), framework="numpy") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "ключ": '"\n'})
            self.assertEqual(set(file.keys()), set(expected))
            for name in file.keys():
                with self.subTest(name):
                    self.assert_same(file.get_tensor(name), expected[name])

    def test_safetensors_without_tensors(self):
        self.assertEqual(safetensors.numpy.load_file(self.path("none.safetensors")), {})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="the test binary formats_test")
    arguments, rest = parser.parse_known_args()
    TensorFilesTest.program = os.path.abspath(arguments.program)
    unittest.main(argv=[sys.argv[0], *rest])
