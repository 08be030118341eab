"""The models of examples/dlrm_criteo.cpp in Python's torch: nn.EmbeddingBag with sparse gradients and optim.Adagrad.

Trains on the arrays that `dlrm_criteo --write-arrays FOLDER` wrote, in the same order and with the same options, and
prints a JSON report. Needs torch and numpy.
"""

import argparse
import json
import time
from pathlib import Path

import numpy
import torch


class ClickModel(torch.nn.Module):
    def __init__(self, vocabulary_sizes, num_dense, options):
        super().__init__()
        self.tables = torch.nn.ModuleList(
            torch.nn.EmbeddingBag(int(size), options.dim, mode="sum", sparse=True) for size in vocabulary_sizes
        )
        for table in self.tables:
            deviation = options.dim**-0.5
            torch.nn.init.trunc_normal_(table.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
        count = len(self.tables) + 1
        self.normalise = torch.nn.BatchNorm1d(num_dense)
        self.bottom = self.tower(num_dense, [64, options.dim])
        self.is_dlrm = options.model == "dlrm"
        width = count * options.dim
        if self.is_dlrm:
            rows, columns = torch.tril_indices(count, count, offset=-1)
            self.register_buffer("pairs", rows * count + columns)
            width = options.dim + count * (count - 1) // 2
        else:
            shapes = [(width, 32), (32, width), (width,)] * 3
            self.crosses = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)
            for kernel in self.crosses:
                if kernel.dim() == 2:
                    torch.nn.init.trunc_normal_(kernel, std=0.05, a=-0.1, b=0.1)
        self.top = self.tower(width, [64, 32])
        self.top.append(torch.nn.Linear(32, 1))

    @staticmethod
    def tower(inputs, units):
        layers = []
        for outputs in units:
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
            inputs = outputs
        return torch.nn.Sequential(*layers)

    def forward(self, ids, offsets, dense):
        bottom = self.bottom(self.normalise(dense))
        embedded = [bottom] + [table(ids[i], offsets) for i, table in enumerate(self.tables)]
        if self.is_dlrm:
            stacked = torch.stack(embedded, 1)
            dots = torch.bmm(stacked, stacked.transpose(1, 2)).flatten(1)
            interactions = torch.cat([bottom, dots.index_select(1, self.pairs)], 1)
        else:
            first = torch.cat(embedded, 1)
            interactions = first
            for i in range(0, len(self.crosses), 3):
                left, right, bias = self.crosses[i : i + 3]
                interactions = first * (interactions @ left @ right + bias) + interactions
        return self.top(interactions).squeeze(1)


def auc_of(scores, labels):
    order = numpy.argsort(scores, kind="stable")
    _, inverse, counts = numpy.unique(scores[order], return_inverse=True, return_counts=True)
    ends = numpy.cumsum(counts)
    ranks = ((ends - counts + 1) + ends)[inverse] / 2.0  # ties share the mean
    is_positive = labels[order] > 0.5
    positives = is_positive.sum()
    negatives = len(labels) - positives
    return float((ranks[is_positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arrays", type=Path, required=True, help="folder that dlrm_criteo --write-arrays wrote")
    parser.add_argument("--model", choices=["dlrm", "dcn"], default="dlrm")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--dense-learning-rate", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="train only this number of steps")
    options = parser.parse_args()

    def load(name):
        return torch.from_numpy(numpy.load(options.arrays / f"{name}.npy"))

    torch.manual_seed(options.seed)
    sizes = load("vocabulary_sizes").tolist()
    dense = load("train_dense")
    model = ClickModel(sizes, dense.shape[1], options)
    tables = {id(parameter) for parameter in model.tables.parameters()}
    optimizer = torch.optim.Adagrad(
        [
            {"params": list(model.tables.parameters()), "lr": options.learning_rate},
            {"params": [p for p in model.parameters() if id(p) not in tables], "lr": options.dense_learning_rate},
        ],
        initial_accumulator_value=1e-8,
    )

    # Makes each column of ids contiguous, as a data loader would.
    def batches(kind):
        ids, numbers, labels = load(f"{kind}_ids"), load(f"{kind}_dense"), load(f"{kind}_labels")
        for begin in range(0, len(labels), options.batch):
            end = begin + options.batch
            yield ids[begin:end].t().contiguous(), numbers[begin:end], labels[begin:end]

    train = list(batches("train"))[: options.steps]
    offsets = torch.arange(options.batch)
    loss_of = torch.nn.BCEWithLogitsLoss()
    examples = 0
    begin = time.perf_counter()
    for _ in range(options.epochs):
        for ids, numbers, labels in train:
            optimizer.zero_grad()
            loss = loss_of(model(ids, offsets[: len(labels)], numbers), labels)
            loss.backward()
            optimizer.step()
            examples += len(labels)
    seconds = time.perf_counter() - begin

    model.eval()
    with torch.no_grad():
        scores, labels = [], []
        for ids, numbers, clicks in batches("test"):
            scores.append(model(ids, offsets[: len(clicks)], numbers))
            labels.append(clicks)
    print(
        json.dumps(
            {
                "auc": auc_of(torch.cat(scores).numpy(), torch.cat(labels).numpy()),
                "examples": examples,
                "seconds": seconds,
                "examples_per_second": examples / seconds,
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
        )
    )


if __name__ == "__main__":
    main()
