"""The model of examples/sasrec.cpp in Python's torch: padded batches, F.scaled_dot_product_attention, the fused Adam.

It reads the same files, splits them in the same way and has the same options. Sequences are padded at their end to
the longest one of the batch, so that the causal mask also hides the padding. The linear layers and the attention
compute the padding, too. The scores of all items, which cost the most, are computed for true positions only. Indices
of these come with the batch. Each epoch shuffles the users and makes new batches.

  --compile   torch.compile of the model and of the loss

A few steps before the clock starts warm up the threads and compile the model, and their updates are undone. The clock
counts training steps with making batches, but no evaluation, as in sasrec.cpp.
"""

import copy
import json
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from benchmark import Parser

TOP = 10  # of HR@10 and NDCG@10


# --- data --------------------------------------------------------------------


def load_sequences(folder):
    """Returns the items of each user in the order of rating, and the number of items."""
    ratings = np.loadtxt(Path(folder) / "u.data", dtype=np.int64, delimiter="\t", usecols=(0, 1, 3))
    users, items, seconds = ratings.T
    num_items = sum(1 for line in (Path(folder) / "u.item").read_bytes().splitlines() if line)
    order = np.argsort(seconds, kind="stable")
    sequences = [[] for _ in range(users.max())]
    for user, item in zip(users[order], items[order]):
        sequences[user - 1].append(item - 1)
    return [np.array(sequence) for sequence in sequences if len(sequence) >= 3], num_items


def pad(sequences):
    """Returns the sequences padded at their end, [batch, longest], and the flat indices of true positions."""
    lengths = np.array([len(sequence) for sequence in sequences])
    is_true = np.arange(lengths.max()) < lengths[:, None]
    ids = np.zeros(is_true.shape, dtype=np.int64)
    ids[is_true] = np.concatenate(sequences)
    return torch.from_numpy(ids), torch.from_numpy(np.flatnonzero(is_true))


# --- model -------------------------------------------------------------------


class Block(torch.nn.Module):
    """x + Dropout(Attention(LayerNorm(x))), then the same with the feed-forward network."""

    def __init__(self, options):
        super().__init__()
        self.heads = options.heads
        self.attention_norm = torch.nn.LayerNorm(options.dim)
        self.in_projection = torch.nn.Linear(options.dim, 3 * options.dim)
        self.out_projection = torch.nn.Linear(options.dim, options.dim)
        self.feed_forward_norm = torch.nn.LayerNorm(options.dim)
        self.hidden = torch.nn.Linear(options.dim, options.dim)
        self.output = torch.nn.Linear(options.dim, options.dim)
        self.dropout = torch.nn.Dropout(options.dropout)

    def forward(self, x):
        batch, length, dim = x.shape
        projected = self.in_projection(self.attention_norm(x)).view(batch, length, 3, self.heads, dim // self.heads)
        query, key, value = projected.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = attended.transpose(1, 2).reshape(batch, length, dim)
        x = x + self.dropout(self.out_projection(attended))
        hidden = F.relu(self.hidden(self.feed_forward_norm(x)))
        return x + self.dropout(self.output(hidden))


class SASRec(torch.nn.Module):
    def __init__(self, num_items, options):
        super().__init__()
        self.items = torch.nn.Embedding(num_items, options.dim)
        self.positions = torch.nn.Parameter(torch.empty(options.max_length, options.dim))
        torch.nn.init.normal_(self.items.weight, std=1.0 / math.sqrt(options.dim))
        torch.nn.init.normal_(self.positions, std=1.0 / math.sqrt(options.dim))
        self.dropout = torch.nn.Dropout(options.dropout)
        self.blocks = torch.nn.ModuleList(Block(options) for _ in range(options.blocks))
        self.norm = torch.nn.LayerNorm(options.dim)

    def forward(self, ids, positions):
        """The state at each of the true `positions`, [positions, dim]."""
        x = self.dropout(self.items(ids) + self.positions[: ids.size(1)])
        for block in self.blocks:
            x = block(x)
        return self.norm(x.flatten(0, 1).index_select(0, positions))

    def softmax_loss(self, ids, positions, targets):
        return F.cross_entropy(F.linear(self(ids, positions), self.items.weight), targets)

    def binary_loss(self, ids, positions, targets, negatives):
        states = self(ids, positions)
        return -(
            F.logsigmoid((states * self.items(targets)).sum(1)) + F.logsigmoid(-(states * self.items(negatives)).sum(1))
        ).mean()


# --- training ----------------------------------------------------------------


class Trainer:
    def __init__(self, sequences, num_items, options):
        self.options = options
        self.sequences = sequences
        self.num_items = num_items
        self.train = [sequence[:-2][-options.max_length - 1 :] for sequence in sequences]
        self.train = [sequence for sequence in self.train if len(sequence) >= 2]
        self.random = np.random.default_rng(options.seed)
        self.model = SASRec(num_items, options)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=options.learning_rate, fused=True)
        self.loss = self.model.softmax_loss if options.loss == "softmax" else self.model.binary_loss
        if options.compile:
            self.loss = torch.compile(self.loss, dynamic=True)

    def step(self, users):
        ids, positions = pad([self.train[user][:-1] for user in users])
        targets = np.concatenate([self.train[user][1:] for user in users])
        arguments = [torch.from_numpy(targets)]
        if self.options.loss == "binary":
            arguments.append(torch.from_numpy(self.negatives(users, targets)))
        self.optimizer.zero_grad()
        loss = self.loss(ids, positions, *arguments)
        loss.backward()
        self.optimizer.step()
        return len(targets), loss

    def negatives(self, users, targets):
        """One random item per position, which is not an item of the user."""
        owners = np.repeat(users, [len(self.train[user]) - 1 for user in users])
        result = self.random.integers(self.num_items, size=len(targets))
        while (bad := self.is_seen[owners, result]).any():
            result[bad] = self.random.integers(self.num_items, size=bad.sum())
        return result

    def warm_up(self):
        if self.options.loss == "binary":
            self.is_seen = np.zeros((len(self.train), self.num_items), dtype=bool)
            for user, sequence in enumerate(self.train):
                self.is_seen[user, sequence] = True
        before = copy.deepcopy(self.model.state_dict())
        self.model.train()
        for first in range(0, 3 * self.options.batch, self.options.batch):
            self.step((np.arange(self.options.batch) + first) % len(self.train))
        self.model.load_state_dict(before)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def epoch(self):
        """Returns the number of predicted positions."""
        self.model.train()
        order = self.random.permutation(len(self.train))
        count = 0
        for first in range(0, len(order), self.options.batch):
            count += self.step(order[first : first + self.options.batch])[0]
        return count

    @torch.no_grad()
    def evaluate(self, held_out):
        """HR@10 and NDCG@10 of the items at `held_out`, -1 for the test and -2 for the validation."""
        self.model.eval()
        hits = gains = 0.0
        for first in range(0, len(self.sequences), 256):
            batch = self.sequences[first : first + 256]
            ids, positions = pad([sequence[:held_out][-self.options.max_length :] for sequence in batch])
            lengths = torch.tensor([min(len(sequence) + held_out, self.options.max_length) for sequence in batch])
            states = self.model(ids, positions)[lengths.cumsum(0) - 1]
            scores = F.linear(states, self.model.items.weight)
            for row, sequence in enumerate(batch):
                target = sequence[held_out]
                score = scores[row, target].item()
                scores[row, sequence[:held_out]] = -math.inf
                rank = int((scores[row] > score).sum())
                hits += rank < TOP
                gains += 1.0 / math.log2(rank + 2) if rank < TOP else 0.0
        return hits / len(self.sequences), gains / len(self.sequences)


def run(options):
    torch.manual_seed(options.seed)
    sequences, num_items = load_sequences(options.data)
    trainer = Trainer(sequences, num_items, options)
    trainer.warm_up()
    best, best_epoch, best_state = -1.0, 0, None
    seconds, examples = 0.0, 0
    for epoch in range(1, options.epochs + 1):
        start = time.perf_counter()
        examples += trainer.epoch()
        seconds += time.perf_counter() - start
        hit_rate, ndcg = trainer.evaluate(-2)
        if options.verbose:
            print(f"epoch {epoch}  {seconds:.1f} s  val HR@10 {hit_rate:.4f}  NDCG@10 {ndcg:.4f}", file=sys.stderr)
        if ndcg > best:
            best, best_epoch, best_state = ndcg, epoch, copy.deepcopy(trainer.model.state_dict())
        elif epoch - best_epoch >= options.patience:
            break
    trainer.model.load_state_dict(best_state)
    hit_rate, ndcg = trainer.evaluate(-1)
    return {
        "torch": torch.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "seed": options.seed,
        "epochs": epoch,
        "best_epoch": best_epoch,
        "validation_ndcg": best,
        "hit_rate": hit_rate,
        "ndcg": ndcg,
        "seconds": seconds,
        "examples_per_second": examples / seconds,
    }


def main():
    parser = Parser(__doc__)
    parser.add_argument("--data", required=True, help="folder of MovieLens 100K")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=200)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--batch", type=int, default=32, help="users per step")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--patience", type=int, default=10)
    parser.add_argument("--loss", choices=["softmax", "binary"], default="softmax")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    print(json.dumps(run(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
