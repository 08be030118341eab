"""Trains the same SASRec with Tessera and with RecTools, one after the other, and compares the time to the same quality.

Both train one block of LiGR with 64 columns, sequences of at most 50 items, a softmax over sampled items and Adam, with
the same batches, dropout and number of threads, on all items but the last two of each user. After each epoch they rank
all items that a user does not have, and NDCG@10 of the item before the last is their validation. RecTools has its own
initial values, data loader and beta2 of Adam (0.98), and draws negatives for each position, not for each batch.

They stop when the validation has not improved for --patience epochs, or after the epoch in which --minutes of training
are over. The time to compare is that of the training steps until the validation reaches 98 % of the lower one of the two
best values. The time of an evaluation is that of ranking the validation items, the lists of seen items included.
"""

import gzip
import json
import sys
import time
import warnings
from pathlib import Path

import benchmark
from benchmark import Parser, count_cores, cpu_name, times_as_fast

SHARE = 0.98
DIM, LENGTH, BATCH, RATE = 64, 50, 128, 0.001


def add_options(parser):
    parser.add_argument("--data", type=Path, required=True, help="file with a line `user item item ...` for each user")
    parser.add_argument("--program", type=Path, required=True, help="the example sasrec")
    parser.add_count("--negatives", 256)
    parser.add_count("--patience", 10, "epochs without a better validation")
    parser.add_count("--epochs", 100, "the most epochs of Tessera")
    parser.add_count("--minutes", 60, "time after which RecTools stops")
    parser.add_count("--threads", count_cores())
    parser.add_count("--seed", 0, least=0)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--json", type=Path, help="file for the results of both")


def read_histories(path):
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
    with opened as lines:
        items = [[int(word) for word in line.split()[1:]] for line in lines]
    return [own for own in items if len(own) >= 3]


def run_rectools(options):
    """Returns {"curve": [[seconds, NDCG@10]], "evaluation_seconds": ...}."""
    import numpy
    import pandas
    import torch
    from pytorch_lightning import Callback, Trainer, seed_everything
    from rectools import Columns
    from rectools.dataset import Dataset
    from rectools.models import SASRecModel
    from rectools.models.nn.item_net import IdEmbeddingsItemNet
    from rectools.models.nn.transformers.ligr import LiGRLayers

    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    seed_everything(options.seed, verbose=False)
    histories = read_histories(options.data)
    train = [own[:-2] for own in histories]
    lengths = [len(own) for own in train]
    interactions = pandas.DataFrame(
        {
            Columns.User: numpy.repeat(numpy.arange(len(train)), lengths),
            Columns.Item: numpy.concatenate(train),
            Columns.Weight: 1.0,
            Columns.Datetime: numpy.concatenate([numpy.arange(length) for length in lengths]).astype("datetime64[s]"),
        }
    )
    dataset = Dataset.construct(interactions)
    target = numpy.array([own[-2] for own in histories])
    seconds = {"step": 0.0, "begin": 0.0}

    class Watch(Callback):
        def on_train_epoch_start(self, *_):
            seconds["begin"] = time.perf_counter()

        def on_train_epoch_end(self, *_):
            seconds["step"] += time.perf_counter() - seconds["begin"]

    def make_trainer():
        return Trainer(
            max_epochs=1,
            min_epochs=1,
            accelerator="cpu",
            callbacks=[Watch()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )

    model = SASRecModel(
        n_blocks=1,
        n_heads=1,
        n_factors=DIM,
        dropout_rate=options.dropout,
        session_max_len=LENGTH,
        loss="sampled_softmax",
        n_negatives=options.negatives,
        lr=RATE,
        batch_size=BATCH,
        epochs=1,
        item_net_block_types=(IdEmbeddingsItemNet,),
        transformer_layers_type=LiGRLayers,
        get_trainer_func=make_trainer,
        recommend_torch_device="cpu",
    )
    curve, best, best_epoch, evaluation = [], 0.0, 0, []
    while len(curve) - best_epoch < options.patience and seconds["step"] < 60 * options.minutes:
        model.fit_partial(dataset, min_epochs=1, max_epochs=1)
        begin = time.perf_counter()
        found = model.recommend(numpy.arange(len(train)), dataset, k=10, filter_viewed=True)
        evaluation.append(time.perf_counter() - begin)
        hits = found[found[Columns.Item].to_numpy() == target[found[Columns.User].to_numpy()]]
        ndcg = float((1.0 / numpy.log2(hits[Columns.Rank].to_numpy() + 1.0)).sum() / len(train))
        curve.append([seconds["step"], ndcg])
        if ndcg > best:
            best, best_epoch = ndcg, len(curve)
        print(f"RecTools: epoch {len(curve)}, {seconds['step']:.0f} s, NDCG@10 {ndcg:.4f}", file=sys.stderr, flush=True)
    return {"curve": curve, "evaluation_seconds": sorted(evaluation)[len(evaluation) // 2]}


def run_tessera(options):
    settings = {
        "--data": options.data,
        "--loss": "sampled",
        "--negatives": options.negatives,
        "--runs": 1,
        "--seed": options.seed,
        "--epochs": options.epochs,
        "--patience": options.patience,
        "--batch": BATCH,
        "--dim": DIM,
        "--blocks": 1,
        "--heads": 1,
        "--feed-forward": 4 * DIM,
        "--max-length": LENGTH,
        "--dropout": options.dropout,
        "--learning-rate": RATE,
    }
    command = [options.program, "--gated", "--json", *(str(part) for pair in settings.items() for part in pair)]
    result = benchmark.run(command, {"OMP_NUM_THREADS": str(options.threads)})
    if result.returncode != 0:
        sys.exit(f"Tessera failed:\n{result.stderr[-2000:]}")
    return json.loads(result.stdout)["runs"][0]


def seconds_to(curve, value):
    return next(seconds for seconds, ndcg in curve if ndcg >= value)


def main():
    parser = Parser(__doc__)
    add_options(parser)
    options = parser.parse_args()
    ours = run_tessera(options)
    theirs = run_rectools(options)
    sides = {"Tessera": ours, "RecTools": theirs}
    if options.json:
        options.json.write_text(json.dumps(sides))
    best = {side: max(ndcg for _, ndcg in run["curve"]) for side, run in sides.items()}
    goal = SHARE * min(best.values())
    print(f"SASRec on {options.data.name}, {options.negatives} negatives, {options.threads} threads, {cpu_name()}")
    print(f"            best NDCG@10  epochs  s to {goal:.4f}  s per epoch  s per evaluation")
    for side, run in sides.items():
        total, epochs = run["curve"][-1][0], len(run["curve"])
        print(
            f"  {side:<8}  {best[side]:12.4f}  {epochs:6d}  {seconds_to(run['curve'], goal):11.1f}  "
            f"{total / epochs:11.1f}  {run['evaluation_seconds']:16.1f}"
        )
    ratio = seconds_to(theirs["curve"], goal) / seconds_to(ours["curve"], goal)
    evaluation = theirs["evaluation_seconds"] / ours["evaluation_seconds"]
    print(f"  Tessera is {times_as_fast(ratio)} to that quality, and {times_as_fast(evaluation)} in evaluation")


if __name__ == "__main__":
    main()
