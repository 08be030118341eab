# SPDX-License-Identifier: Apache-2.0
"""The code of docs/export.md that reads a .pt2 file: load_pt2.py FOLDER

FOLDER has ranker.pt2, which the test LayersReferenceTest.Pt2Program writes.
"""

import os
import sys

import torch

os.chdir(sys.argv[1])
users, movies = torch.tensor([3, 9]), torch.tensor([1, 2])
directors, prices = torch.tensor([15, 16]), torch.tensor([[9.5], [2.5]])

# snippet: load_pt2
program = torch.export.load("ranker.pt2")
scores = program.module()(users, movies, directors, prices)
# end snippet

assert scores.shape == (2, 1), scores.shape
assert "tower.weight" in program.state_dict, program.state_dict.keys()
print("ranker.pt2 gives scores", [round(float(score), 4) for score in scores.detach()])

# snippet: compile_pt2
program = torch.export.load("ranker.pt2")
torch._inductor.aoti_compile_and_package(program, package_path="ranker.aoti.pt2")
# end snippet

package = torch._inductor.aoti_load_package("ranker.aoti.pt2")
assert torch.allclose(package(users, movies, directors, prices), scores, atol=1e-5)
