# SPDX-License-Identifier: Apache-2.0
"""Runs the Python code of docs/export.md on the files that docs_test exported: without_tessera.py FOLDER"""

import os
import sys
import warnings

import torch

warnings.filterwarnings("ignore", category=DeprecationWarning)  # TorchScript
os.chdir(sys.argv[1])
users = torch.tensor([3, 99])
movies = torch.tensor([1, 49])
values, row_splits = torch.tensor([7, 8, 9]), torch.tensor([0, 1, 3])

# snippet: without_tessera
ranker = torch.jit.load("ranker.pt")
clicks = ranker({"user": [users], "movie": [movies], "history": [values, row_splits]})
embedding = torch.jit.load("embedding.pt")
activations = embedding({"user": [users]})  # some of the features; weights as a second dict
# end snippet

assert clicks.shape == (2,), clicks.shape
assert list(activations) == ["user"], list(activations)
assert activations["user"].shape == (2, 8), activations["user"].shape
print("the page's Python code runs")
