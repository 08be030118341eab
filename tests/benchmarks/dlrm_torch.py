"""Trains the models of examples/dlrm_criteo.cpp in Python's torch, and prints a JSON report.

The program reads the arrays that `dlrm_criteo --write-arrays FOLDER` wrote, and trains on them in the same order and
with the same options. It needs torch and numpy. There are two variants:

  plain  one nn.EmbeddingBag(sparse=True) per column, and optim.Adagrad for all weights. Most tutorials do this.
  tuned  one table for all columns. Ids are shifted to their rows before the training. A few tensor operations sum
         the gradients of each row and update the rows of the batch, or all rows of a small table. The fused
         optim.Adagrad updates the dense weights. The dot products have their own backward pass, which needs one
         product of matrices instead of two.

With --compile, torch.compile makes the code of the dense layers and the loss. The dot products remain as they are,
because compiled code selects their elements more slowly. The program stops if compilation fails. With --precision
bfloat16, the dense layers run under torch.autocast, and the loss in float32.

Before the clock starts, every variant trains a few batches, among them the last one, whose size may differ. The code
for both sizes is then compiled. Afterwards all weights and sums of squares get their initial values back.
"""

import inspect
import json
import statistics
import sys
import time
from pathlib import Path

import numpy
import torch
from torch.nn import functional

from benchmark import Parser

INITIAL_ACCUMULATOR = 1e-8


class Dots(torch.autograd.Function):
    """The dot products of all pairs of vectors [batch, count, dim], as [batch, pairs]."""

    @staticmethod
    def forward(context, vectors, pairs, pair_of):
        context.save_for_backward(vectors, pair_of)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        return dots.gather(1, pairs.expand(len(dots), -1))

    # The gradients of the two orders of a pair are equal, so their matrix is symmetric. Its diagonal is 0.
    @staticmethod
    def backward(context, gradient):
        vectors, pair_of = context.saved_tensors
        padded = functional.pad(gradient, (0, 1))
        symmetric = padded.gather(1, pair_of.expand(len(padded), -1))
        return torch.bmm(symmetric.view(len(vectors), vectors.shape[1], -1), vectors), None, None


@torch.compiler.disable
def fast_dots(vectors, pairs, pair_of):
    return Dots.apply(vectors, pairs, pair_of)


def plain_dots(vectors, pairs, pair_of):
    return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)


class DenseLayers(torch.nn.Module):
    """All of the model except its tables."""

    def __init__(self, num_tables, num_dense, dots_of, options):
        super().__init__()
        self.count = num_tables + (num_dense > 0)
        self.dots_of = dots_of
        self.has_bottom = num_dense > 0
        if self.has_bottom:
            self.normalise = torch.nn.BatchNorm1d(num_dense)
            self.bottom = self.tower(num_dense, [*options.bottom, options.dim])
        self.is_dlrm = options.model == "dlrm"
        width = self.count * options.dim
        if self.is_dlrm:
            rows, columns = torch.tril_indices(self.count, self.count, offset=-1)
            num_pairs = len(rows)
            pair_of = torch.full((self.count, self.count), num_pairs)  # on the diagonal: the zero of the padding
            pair_of[rows, columns] = pair_of[columns, rows] = torch.arange(num_pairs)
            self.register_buffer("pairs", rows * self.count + columns)
            self.register_buffer("pair_of", pair_of.flatten())
            width = options.dim * self.has_bottom + num_pairs
        else:
            shapes = [(width, options.rank), (options.rank, width), (width,)] * 3
            self.crosses = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)
            for kernel in self.crosses:
                if kernel.dim() == 2:
                    torch.nn.init.trunc_normal_(kernel, std=0.05, a=-0.1, b=0.1)
        self.top = self.tower(width, options.top)
        self.top.append(torch.nn.Linear(options.top[-1], 1))

    @staticmethod
    def tower(inputs, units):
        layers = []
        for outputs in units:
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
            inputs = outputs
        return torch.nn.Sequential(*layers)

    def forward(self, embedded, numbers):
        """Returns logits [batch]. `embedded` is a list of tensors [batch, dim], or of one that holds all of them."""
        bottom = [self.bottom(self.normalise(numbers))] if self.has_bottom else []
        first = torch.cat([*bottom, *embedded], 1)
        if self.is_dlrm:
            dots = self.dots_of(first.view(len(first), self.count, -1), self.pairs, self.pair_of)
            interactions = torch.cat([*bottom, dots], 1)
        else:
            interactions = first
            for i in range(0, len(self.crosses), 3):
                left, right, bias = self.crosses[i : i + 3]
                interactions = first * (interactions @ left @ right + bias) + interactions
        return self.top(interactions).squeeze(1)


def initial_tables(sizes, dim):
    deviation = dim**-0.5
    return [
        torch.nn.init.trunc_normal_(torch.empty(size, dim), std=deviation, a=-2 * deviation, b=2 * deviation)
        for size in sizes
    ]


class Plain:
    def __init__(self, sizes, num_dense, options):
        self.tables = torch.nn.ModuleList(
            torch.nn.EmbeddingBag.from_pretrained(table, freeze=False, mode="sum", sparse=True)
            for table in initial_tables(sizes, options.dim)
        )
        self.dense = DenseLayers(len(sizes), num_dense, plain_dots, options)
        self.loss = make_loss(self.dense, options)
        self.offsets = torch.arange(options.batch)
        self.optimizer = torch.optim.Adagrad(
            [
                {"params": list(self.tables.parameters()), "lr": options.learning_rate},
                {"params": list(self.dense.parameters()), "lr": options.dense_learning_rate},
            ],
            initial_accumulator_value=INITIAL_ACCUMULATOR,
        )

    def prepare(self, ids):
        """Makes each column contiguous, as a data loader would."""
        return ids.t().contiguous()

    def look_up(self, ids):
        return [table(ids[i], self.offsets[: ids.shape[1]]) for i, table in enumerate(self.tables)]

    def step(self, ids, numbers, labels):
        self.optimizer.zero_grad()
        self.loss(self.look_up(ids), numbers, labels).backward()
        self.optimizer.step()

    def state(self):
        return [*self.tables.parameters(), *self.dense.state_dict().values(), *sums_of(self.optimizer)]


class Tuned:
    def __init__(self, sizes, num_dense, options):
        self.table = torch.cat(initial_tables(sizes, options.dim))
        self.first_rows = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        self.dense = DenseLayers(len(sizes), num_dense, fast_dots, options)
        self.loss = make_loss(self.dense, options)
        self.learning_rate = options.learning_rate
        groups = [{"params": list(self.dense.parameters()), "lr": options.dense_learning_rate}]
        # If a batch has more ids than the table has rows, a gradient of all rows costs less than a list of the rows of
        # the batch. The result is the same, because Adagrad does not change a row whose gradient is 0.
        self.updates_all_rows = len(self.table) < options.batch * len(sizes)
        if self.updates_all_rows:
            groups.append({"params": [self.table], "lr": options.learning_rate})
        else:
            self.squares = torch.full_like(self.table, INITIAL_ACCUMULATOR)
        can_fuse = "fused" in inspect.signature(torch.optim.Adagrad).parameters
        self.optimizer = torch.optim.Adagrad(
            groups, initial_accumulator_value=INITIAL_ACCUMULATOR, **({"fused": True} if can_fuse else {})
        )

    def prepare(self, ids):
        """Returns the rows of the table. Sorting is faster with int32, and index_add_ with int64."""
        return (ids + self.first_rows).to(torch.int64 if self.updates_all_rows else torch.int32)

    def look_up(self, ids):
        return [functional.embedding(ids, self.table).flatten(1)]

    def step(self, ids, numbers, labels):
        self.optimizer.zero_grad()
        embedded = self.look_up(ids)
        embedded[0].requires_grad_()
        self.loss(embedded, numbers, labels).backward()
        gradients = embedded[0].grad.view(ids.numel(), -1)
        if self.updates_all_rows:
            self.table.grad = torch.zeros_like(self.table).index_add_(0, ids.view(-1), gradients)
        else:
            self.update_rows(ids.view(-1), gradients)
        self.optimizer.step()

    @torch.no_grad()
    def update_rows(self, ids, gradients):
        ids, order = ids.sort()
        rows, counts = torch.unique_consecutive(ids, return_counts=True)
        rows = rows.long()
        # The rows of `gradients` that belong to one row of the table are a bag.
        sums = functional.embedding_bag(order, gradients, counts.cumsum(0) - counts, mode="sum")
        squares = self.squares.index_select(0, rows).addcmul_(sums, sums)
        self.squares.index_copy_(0, rows, squares)
        self.table.index_add_(0, rows, sums.div_(squares.sqrt_().add_(1e-10)), alpha=-self.learning_rate)

    def state(self):
        own = [self.table] if self.updates_all_rows else [self.table, self.squares]
        return [*own, *self.dense.state_dict().values(), *sums_of(self.optimizer)]


VARIANTS = {"plain": Plain, "tuned": Tuned}


def make_autocast(options):
    return torch.autocast("cpu", torch.bfloat16, enabled=options.precision == "bfloat16")


def make_loss(dense, options):
    def loss(embedded, numbers, labels):
        with make_autocast(options):
            logits = dense(embedded, numbers)
        return functional.binary_cross_entropy_with_logits(logits.float(), labels)

    # Not dynamic: code for a fixed size is faster, and there are only two sizes.
    return torch.compile(loss, dynamic=False) if options.compile else loss


def sums_of(optimizer):
    return [tensor for state in optimizer.state.values() for tensor in state.values()]


def warm_up(model, batches):
    """Trains with the batches, and gives the model its values back."""
    saved = [(tensor, tensor.detach().clone()) for tensor in model.state()]
    for batch in batches:
        model.step(*batch)
    with torch.no_grad():
        for tensor, initial in saved:
            tensor.copy_(initial)


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
    parser = Parser(__doc__)
    parser.add_argument("--arrays", type=Path, required=True, help="folder that dlrm_criteo --write-arrays wrote")
    parser.add_argument("--model", choices=["dlrm", "dcn"], default="dlrm")
    parser.add_argument("--variant", choices=VARIANTS, default="plain", help="how the model is written, see above")
    parser.add_argument("--compile", action="store_true", help="torch.compile for the dense layers and the loss")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--bottom", type=int, nargs="+", default=[64], help="hidden units before the interaction")
    parser.add_argument("--top", type=int, nargs="+", default=[64, 32], help="hidden units after the interaction")
    parser.add_argument("--rank", type=int, default=32, help="of the crosses")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32", help="of products")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--learning-rate", type=float, default=0.1, help="of the tables")
    parser.add_argument("--dense-learning-rate", type=float, default=0.03, help="of all other weights")
    parser.add_argument("--seed", type=int, default=0, help="of the initial values")
    parser.add_argument("--steps", type=int, help="train only this number of steps")
    options = parser.parse_args()

    def load(name):
        return torch.from_numpy(numpy.load(options.arrays / f"{name}.npy"))

    torch.manual_seed(options.seed)
    sizes = load("vocabulary_sizes").tolist()
    num_dense = load("train_dense").shape[1]
    model = VARIANTS[options.variant](sizes, num_dense, options)

    def batches(kind):
        ids, numbers, labels = load(f"{kind}_ids"), load(f"{kind}_dense"), load(f"{kind}_labels")
        for begin in range(0, len(labels), options.batch):
            end = begin + options.batch
            yield model.prepare(ids[begin:end]), numbers[begin:end], labels[begin:end]

    train = list(batches("train"))[: options.steps]
    try:
        warm_up(model, [*train[:3], train[-1]])
    except Exception as error:
        if not options.compile:
            raise
        first_line = str(error).strip().partition("\n")[0]
        sys.exit(
            f"the first steps with torch.compile failed: {first_line}. If the C++ compiler or Python.h is missing, "
            "install g++ and python3-dev, or leave out --compile."
        )
    if options.compile:
        torch.compiler.set_stance("fail_on_recompile")  # the time must not include a compilation
    examples = 0
    step_seconds = []
    begin = time.perf_counter()
    for _ in range(options.epochs):
        for ids, numbers, labels in train:
            step_begin = time.perf_counter()
            model.step(ids, numbers, labels)
            step_seconds.append(time.perf_counter() - step_begin)
            examples += len(labels)
    seconds = time.perf_counter() - begin

    model.dense.eval()
    with torch.no_grad():
        scores, labels = [], []
        for ids, numbers, clicks in batches("test"):
            with make_autocast(options):
                scores.append(model.dense(model.look_up(ids), numbers).float())
            labels.append(clicks)
    print(
        json.dumps(
            {
                "auc": auc_of(torch.cat(scores).numpy(), torch.cat(labels).numpy()),
                "examples": examples,
                "seconds": seconds,
                "examples_per_second": examples / seconds,
                "ms": 1e3 * statistics.median(step_seconds),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "isa": torch.backends.cpu.get_cpu_capability().lower(),
            }
        )
    )


if __name__ == "__main__":
    main()
