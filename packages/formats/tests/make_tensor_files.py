#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the files in packages/formats/tests/tensor_files with NumPy and safetensors.

    pip install numpy safetensors ml_dtypes
    python make_tensor_files.py

Element i of a tensor is i - 2. It is i if the dtype is unsigned, and i % 2 if it is bool.
"""
import pathlib

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

FOLDER = pathlib.Path(__file__).parent / "tensor_files"
NPY_DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"]


def counting(dtype, shape=(2, 3)):
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    if dtype == "bool":
        return values % 2 == 1
    return np.asarray(values if dtype == "uint8" else values - 2).astype(dtype)


def write_npy(name, array, version=None):
    with open(FOLDER / f"{name}.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)


def main():
    FOLDER.mkdir(exist_ok=True)
    for dtype in NPY_DTYPES:
        write_npy(dtype, counting(dtype))
    write_npy("version_2", counting("float32"), version=(2, 0))
    write_npy("version_3", counting("float32"), version=(3, 0))
    write_npy("scalar", counting("float32", ()))
    write_npy("vector", counting("float32", (5,)))
    write_npy("empty", counting("float32", (0, 4)))
    write_npy("fortran", np.asfortranarray(counting("float32", (2, 3, 4))))
    write_npy("big_endian", counting("float32").astype(">f4"))
    write_npy("structured", np.zeros(2, dtype=[("id", "<i8"), ("weight", "<f4")]))
    write_npy("object", np.array([{}, None], dtype=object))
    write_npy("text", np.array(["a", "b"]))
    write_npy("bfloat16", counting("float32").astype(ml_dtypes.bfloat16))

    tensors = {dtype: counting(dtype) for dtype in NPY_DTYPES}
    tensors["bfloat16"] = counting("float32").astype(ml_dtypes.bfloat16)
    tensors["scalar"] = counting("float32", ())
    tensors["empty"] = counting("float32", (0, 4))
    safetensors.numpy.save_file(tensors, FOLDER / "all.safetensors", metadata={"format": "np", "ключ": "значение"})
    safetensors.numpy.save_file({}, FOLDER / "none.safetensors")
    safetensors.numpy.save_file({"a": np.zeros(2, dtype="uint32")}, FOLDER / "uint32.safetensors")
    print("numpy", np.__version__, "safetensors", safetensors.__version__, "ml_dtypes", ml_dtypes.__version__)


if __name__ == "__main__":
    main()
