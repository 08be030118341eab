# SPDX-License-Identifier: Apache-2.0
"""Runs the .pt2 files of export_samples with torch, but without Tessera: test_pt2.py FOLDER [--compile]

With --compile, AOTInductor also compiles each file into NAME.aoti.pt2. This needs a C++ compiler.
"""

import argparse
import json
import pathlib
import sys
import time
import warnings

import torch

# The allowed differences, as shares of the largest output. AOTInductor may add in another order.
LOAD_TOLERANCE = 1e-6
COMPILE_TOLERANCE = 1e-5


def call(function, arguments):
    """The outputs as a list, or None if the function refuses the arguments."""
    try:
        result = function(*arguments)
    except (RuntimeError, AssertionError):
        return None
    return list(result) if isinstance(result, (list, tuple)) else [result]


def difference(actual, expected):
    """The largest difference of any element, as a share of the largest output."""
    worst = 0.0
    assert len(actual) == len(expected), (len(actual), len(expected))
    for left, right in zip(actual, expected):
        assert left.shape == right.shape and left.dtype == right.dtype, (left.shape, right.shape)
        if right.numel():
            scale = right.double().abs().max().clamp_min(1e-30)
            worst = max(worst, float((left.double() - right.double()).abs().max() / scale))
    return worst


def check(name, reader, function, cases, tolerance):
    worst = 0.0
    for arguments, expected in cases:
        actual = call(function, arguments)
        sizes = [tuple(argument.shape) for argument in arguments]
        if expected is None:
            assert actual is None, f"{name}, {reader}: a batch that Tessera refuses was accepted: {sizes}"
        else:
            assert actual is not None, f"{name}, {reader}: a batch was refused: {sizes}"
            worst = max(worst, difference(actual, expected))
            assert worst <= tolerance, f"{name}, {reader}: the difference is {worst:.3g} with {sizes}"
    print(f"{name:<24} {reader:<12} {len(cases):>3} batches, largest difference {worst:.1e}")


def check_state_dict(name, program):
    names = set(program.state_dict)
    if name.startswith("ranker"):
        assert {"embedding.table_0", "tower.0.weight", "tower.1.running_mean"} <= names, names


def check_file(path, cases, compiles):
    name = path.stem
    extra = {"tessera.json": ""}
    program = torch.export.load(path, extra_files=extra)
    inputs = json.loads(extra["tessera.json"])["inputs"]
    assert len(inputs) == len(cases[0][0]), (inputs, len(cases[0][0]))
    check_state_dict(name, program)
    check(name, "load", program.module(), cases, LOAD_TOLERANCE)
    check(name, "decomposed", program.run_decompositions().module(), cases, LOAD_TOLERANCE)
    if compiles:
        start = time.time()
        package = torch._inductor.aoti_compile_and_package(program, package_path=str(path.with_suffix(".aoti.pt2")))
        seconds = time.time() - start
        check(name, "AOTInductor", torch._inductor.aoti_load_package(package), cases, COMPILE_TOLERANCE)
        print(f"{name:<24} compiled in {seconds:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--compile", action="store_true", help="also compile each file with AOTInductor")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_grad_enabled(False)
    paths = sorted(path for path in arguments.folder.glob("*.pt2") if not path.stem.endswith(".aoti"))
    assert paths, f"expected samples in {arguments.folder}: run export_samples {arguments.folder}"
    for path in paths:
        cases = torch.load(path.with_suffix(".pt2cases"), weights_only=False)
        check_file(path, cases, arguments.compile)
    print(f"torch {torch.__version__}: {len(paths)} .pt2 files give what Tessera gives")
    return 0


if __name__ == "__main__":
    sys.exit(main())
