# SPDX-License-Identifier: Apache-2.0
"""Runs the files of export_samples with torch, but without Tessera: test_torchscript.py FOLDER"""

import pathlib
import sys
import warnings

import torch


def check(actual, expected, tolerance):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    elif isinstance(expected, dict):
        assert set(actual) == set(expected), (set(actual), set(expected))
        for name, tensor in expected.items():
            check(actual[name], tensor, tolerance)
    else:
        assert len(actual) == len(expected), (len(actual), len(expected))
        for left, right in zip(actual, expected):
            check(left, right, tolerance)


def check_file(cases_path):
    model = torch.jit.load(cases_path.with_suffix(".pt"))
    cases = torch.load(cases_path, weights_only=False)
    for arguments, expected, tolerance in cases:
        check(model(*arguments), expected, tolerance)
    return model, cases


def check_embedding(model, cases):
    (features, weights), _, _ = cases[-1]
    # Some of the features, without weights, as plain Python values.
    activations = model({"user": [torch.tensor([1, 2, 3])]})
    assert list(activations) == ["user"] and activations["user"].shape == (3, 8)
    # The same feature as sparse ids.
    values, row_splits = features["history/0"]
    lengths = row_splits.diff()
    rows = torch.repeat_interleave(lengths)
    columns = torch.arange(len(values)) - row_splits[rows]
    sparse = [torch.stack([rows, columns], 1), values, torch.tensor([len(lengths), 5])]
    torch.testing.assert_close(
        model({"history/0": sparse}, {"history/0": weights["history/0"]})["history/0"],
        model({"history/0": features["history/0"]}, {"history/0": weights["history/0"]})["history/0"],
    )
    for features, text in [
        ({"user": [torch.tensor([1000])]}, "ids must be in [0, 1000), but got 1000"),
        ({"movie": [torch.tensor([1])]}, "'movie' must be one of the exported features"),
    ]:
        try:
            model(features)
        except torch.jit.Error as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"expected an error with the text: {text}")


def check_ranker(model, cases):
    assert "tower.0.weight" in model.state_dict(), model.state_dict().keys()
    assert "embedding.table_0" in model.state_dict()
    assert not any(p.requires_grad for p in model.parameters())
    frozen = torch.jit.freeze(model.eval())
    for arguments, expected, tolerance in cases:
        check(frozen(*arguments), expected, tolerance)


def main():
    warnings.filterwarnings("ignore", message=".*is deprecated")  # torch.jit is deprecated
    torch.set_grad_enabled(False)
    folder = pathlib.Path(sys.argv[1])
    paths = sorted(folder.glob("*.cases"))
    assert paths, f"expected samples in {folder}: run export_samples {folder}"
    for path in paths:
        model, cases = check_file(path)
        if path.stem.startswith("embedding"):
            check_embedding(model, cases)
        elif path.stem.startswith("ranker"):
            check_ranker(model, cases)
        print(f"{path.stem}: {len(cases)} batches equal")
    print(f"torch {torch.__version__}: {len(paths)} exported files give what Tessera gives")


if __name__ == "__main__":
    main()
