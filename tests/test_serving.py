# SPDX-License-Identifier: Apache-2.0
"""Serves and trains the model of export_for_serving in Python: test_serving.py --train PROGRAM --serve PROGRAM

AOTInductor compiles ranker.pt2, and the program serve_compiled, which links only LibTorch, must print the scores
that the training printed. An equal torch.nn model trains the weights of ranker.pt2 further, and export_for_serving
takes them back. Needs torch, safetensors, and a C++ compiler.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import warnings

import safetensors.torch
import torch

# The batch whose scores the programs print.
USERS = torch.tensor([7, 300, 42])
HISTORY = torch.tensor([1, 2, 3, 499])
ROW_SPLITS = torch.tensor([0, 3, 3, 4])


class Embedding(torch.nn.Module):
    """The tables, with their names in the file."""

    def __init__(self):
        super().__init__()
        self.table_0 = torch.nn.Parameter(torch.zeros(1000, 16))  # users
        self.table_1 = torch.nn.Parameter(torch.zeros(500, 16))  # movies

    def forward(self, users, history, row_splits):
        watched = torch.nn.functional.embedding_bag(
            history, self.table_1, row_splits, mode="mean", include_last_offset=True
        )
        return torch.cat([self.table_0[users], watched], 1)


class Ranker(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = Embedding()
        self.tower = torch.nn.Sequential(
            torch.nn.Identity(),  # Concatenate
            torch.nn.Linear(32, 32),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(32, 1),
        )

    def forward(self, users, history, row_splits):
        return self.tower(self.embedding(users, history, row_splits)).squeeze(1)


def scores_of(*command):
    output = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    line = output.splitlines()[-1]
    assert line.startswith("scores "), output
    return torch.tensor([float(score) for score in line.split()[1:]])


def assert_close(actual, expected, what):
    difference = float((actual - expected).abs().max() / expected.abs().max())
    assert difference < 1e-5, f"{what}: expected {expected}, but got {actual}"
    print(f"{what}: largest difference {difference:.1e}")


def train(model, steps):
    """Learns whether a user's number and the first movie's add up to 10 or more, as the C++ example does."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        users = torch.randint(1000, (256,))
        lengths = torch.randint(1, 6, (256,))
        splits = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
        movies = torch.randint(500, (int(splits[-1]),))
        clicks = (users % 10 + movies[splits[:-1]] % 10 > 9).float()
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(users, movies, splits), clicks)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def test_compiled(folder, serve, program, scores):
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "ranker.aoti.pt2"))
    assert_close(scores_of(serve, package), scores, "serve_compiled, which links only LibTorch")


def test_weights(folder, train_program, program, scores):
    model = Ranker()
    model.load_state_dict(program.state_dict)  # strict: all names and shapes agree
    model.eval()
    with torch.no_grad():
        assert_close(model(USERS, HISTORY, ROW_SPLITS), scores, "the equal torch.nn model")
    model.train()
    losses = train(model, 100)
    assert sum(losses[-20:]) < sum(losses[:20]), losses
    model.eval()
    with torch.no_grad():
        trained = model(USERS, HISTORY, ROW_SPLITS)
    assert not torch.allclose(trained, scores)
    safetensors.torch.save_file(model.state_dict(), folder / "trained.safetensors")
    back = scores_of(train_program, "--folder", folder / "back", "--weights", folder / "trained.safetensors")
    assert_close(back, trained, "the weights that Python trained, back in Tessera")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="the program export_for_serving")
    parser.add_argument("--serve", required=True, help="the program serve_compiled")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        scores = scores_of(options.train, "--folder", folder, "--steps", "100")
        program = torch.export.load(folder / "ranker.pt2")
        test_weights(folder, options.train, program, scores)
        test_compiled(folder, options.serve, program, scores)
    return 0


if __name__ == "__main__":
    sys.exit(main())
