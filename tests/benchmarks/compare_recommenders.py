"""Trains the same models with Tessera and with another library, and compares the times to the same quality.

On Beauty it is the SASRec of RecTools: one block of LiGR, a softmax over sampled items and Adam, trained on all items
but the last two of each user. The validation is NDCG@10 of the item before the last. On Gowalla it is the SimpleX of
RecBole, with the contrastive loss. The validation is NDCG@20 of a tenth of each user's training items. Both sides have
the settings below, and the same number of threads. After each epoch they rank all items that a user does not have.

The other libraries have their own initial values and data loaders, and draw negatives for each positive item, where
Tessera draws them for each batch. RecTools has 0.98 as beta2 of Adam, no norm behind the last block, and negatives that
may be the target. RecBole takes at most 50 items of a history, and no negatives that the user has.

On Beauty a side stops when the validation has not improved for --patience epochs. On Gowalla it trains 60 epochs, and
the learning rate falls linearly to zero: after each step with Tessera, and after each epoch with RecBole. The other
library also stops after the epoch in which --minutes of training are over. --negatives changes the number of sampled
items on both sides, for example to make an epoch of the other library shorter. The time to compare is that of the
training steps until the validation reaches 98 % of the lower one of the two best values. The time of an evaluation
includes the lists of the items to leave out.
"""

import gzip
import json
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import benchmark
from benchmark import Parser, count_cores, cpu_name, times_as_fast

SHARE = 0.98
SASREC = {
    "negatives": 256,
    "batch": 128,
    "dim": 64,
    "max_length": 50,
    "windows": False,
    "dropout": 0.2,
    "temperature": None,
    "learning_rate": 0.001,
}
SIMPLEX = {
    "loss": "contrastive",
    "negatives": 100,
    "batch": 2048,
    "dim": 64,
    "user_share": 0.5,
    "margin": 0.8,
    "negative_weight": 300,
    "learning_rate": 0.002,
    "beta_1": 0.9,
    "beta_2": 0.999,
    "epochs": 60,
}


def read_lists(folder, name):
    """Returns the numbers of each line of a text or gzip file."""
    path = folder / name
    with path.open() if path.exists() else gzip.open(f"{path}.gz", "rt") as lines:
        lists = [[int(word) for word in line.split()] for line in lines]
    return [own for own in lists if own]


def goes_on(curve, minutes, patience):
    values = [ndcg for _, ndcg in curve]
    return not values or (len(values) - 1 - values.index(max(values)) < patience and curve[-1][0] < 60 * minutes)


def report_epoch(side, curve):
    seconds, ndcg = curve[-1]
    print(f"{side}: epoch {len(curve)}, {seconds:.0f} s, NDCG {ndcg:.4f}", file=sys.stderr, flush=True)


def run_rectools(options, settings):
    """Returns {"curve": [[seconds, NDCG]], "evaluation_seconds": ...}."""
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
    histories = [own[1:] for own in read_lists(options.data, "Beauty.txt")]
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
        n_factors=settings["dim"],
        dropout_rate=settings["dropout"],
        session_max_len=settings["max_length"],
        loss="sampled_softmax",
        n_negatives=settings["negatives"],
        lr=settings["learning_rate"],
        batch_size=settings["batch"],
        epochs=1,
        item_net_block_types=(IdEmbeddingsItemNet,),
        transformer_layers_type=LiGRLayers,
        get_trainer_func=make_trainer,
        recommend_torch_device="cpu",
    )
    curve, evaluation = [], []
    while goes_on(curve, options.minutes, options.patience):
        model.fit_partial(dataset, min_epochs=1, max_epochs=1)
        begin = time.perf_counter()
        found = model.recommend(numpy.arange(len(train)), dataset, k=10, filter_viewed=True)
        evaluation.append(time.perf_counter() - begin)
        hits = found[found[Columns.Item].to_numpy() == target[found[Columns.User].to_numpy()]]
        ndcg = float((1.0 / numpy.log2(hits[Columns.Rank].to_numpy() + 1.0)).sum() / len(train))
        curve.append([seconds["step"], ndcg])
        report_epoch("RecTools", curve)
    return {"curve": curve, "evaluation_seconds": statistics.median(evaluation)}


def mixed(user, item):
    """Returns the number by which the leaderboard sorts a user's items for its validation."""
    number = (user << 32) + item
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB):
        number = (number ^ (number >> shift)) * factor % 2**64
    return number ^ (number >> 31)


def hold_out_a_tenth(lists):
    """Returns the items of each user for training and for validation."""
    train, validation = [], []
    for user, *items in lists:
        items.sort(key=lambda item: mixed(user, item))
        kept = len(items) - len(items) // 10
        train.append((user, items[:kept]))
        validation.append((user, items[kept:]))
    return train, validation


def run_recbole(options, settings):
    """Returns what run_rectools() returns."""
    import torch
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.general_recommender import SimpleX
    from recbole.trainer import Trainer
    from recbole.utils import init_seed

    warnings.filterwarnings("ignore")
    torch.set_num_threads(options.threads)
    train, validation = hold_out_a_tenth(read_lists(options.data, "gowalla_train.txt"))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "gowalla"
        data.mkdir()
        for part, lists in ("train", train), ("valid", validation), ("test", validation):
            lines = (f"{user}\t{item}\n" for user, items in lists for item in items)
            (data / f"gowalla.{part}.inter").write_text("user_id:token\titem_id:token\n" + "".join(lines))
        own = {
            "data_path": folder,
            "benchmark_filename": ["train", "valid", "test"],
            "load_col": {"inter": ["user_id", "item_id"]},
            "checkpoint_dir": folder,
            "use_gpu": False,
            "seed": options.seed,
            "show_progress": False,
            "state": "ERROR",
            "embedding_size": settings["dim"],
            "gamma": settings["user_share"],
            "margin": settings["margin"],
            "negative_weight": settings["negative_weight"],
            "reg_weight": 0.0,
            "dropout_prob": 0.0,
            # RecBole counts a positive item once for each of its negatives.
            "train_batch_size": settings["batch"] * settings["negatives"],
            "train_neg_sample_args": {"distribution": "uniform", "sample_num": settings["negatives"]},
            "learning_rate": settings["learning_rate"],
            "metrics": ["NDCG"],
            "topk": [20],
            "valid_metric": "NDCG@20",
        }
        arguments, sys.argv = sys.argv, sys.argv[:1]  # RecBole would take them as settings
        config = Config(model="SimpleX", dataset="gowalla", config_dict=own)
        sys.argv = arguments
        init_seed(options.seed, reproducibility=True)
        dataset = create_dataset(config)
        train_data, valid_data, _ = data_preparation(config, dataset)
        assert train_data.step == settings["batch"]
        trainer = Trainer(config, SimpleX(config, train_data.dataset))
        trainer.eval_collector.data_collect(train_data)
        curve, evaluation, seconds = [], [], 0.0
        while len(curve) < settings["epochs"] and goes_on(curve, options.minutes, settings["epochs"]):
            for group in trainer.optimizer.param_groups:
                group["lr"] = settings["learning_rate"] * (1.0 - len(curve) / settings["epochs"])
            begin = time.perf_counter()
            trainer._train_epoch(train_data, len(curve), show_progress=False)
            seconds += time.perf_counter() - begin
            begin = time.perf_counter()
            result = trainer.evaluate(valid_data, load_best_model=False, show_progress=False)
            evaluation.append(time.perf_counter() - begin)
            curve.append([seconds, float(result["ndcg@20"])])
            report_epoch("RecBole", curve)
        return {"curve": curve, "evaluation_seconds": statistics.median(evaluation)}


def run_tessera(options, name, settings):
    with tempfile.TemporaryDirectory() as folder:
        pairs = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings.items()]
        command = [options.program, "--data", options.data, "--only", name, "--seed", options.seed, "--seeds", 1]
        command += ["--validate", "--json", "--results", f"{folder}/results.json", "--set", *pairs]
        result = benchmark.run(command, {"OMP_NUM_THREADS": str(options.threads)})
    if result.returncode != 0:
        sys.exit(f"Tessera failed:\n{result.stderr[-2000:]}")
    trained = json.loads(result.stdout)[-1]  # the simple methods come first
    curve = [list(point) for point in zip(trained["curve_seconds"], trained["curve"])]
    return {"curve": curve, "evaluation_seconds": trained["evaluation_seconds"]}


# The other library, its function, and the settings of both.
TASKS = {"Beauty": ("RecTools", run_rectools, SASREC), "Gowalla": ("RecBole", run_recbole, SIMPLEX)}


def seconds_to(curve, value):
    return next(seconds for seconds, ndcg in curve if ndcg >= value)


def print_results(name, sides, threads):
    """Returns how many times as fast Tessera is: to the quality, and in an evaluation."""
    best = {side: max(ndcg for _, ndcg in run["curve"]) for side, run in sides.items()}
    goal = SHARE * min(best.values())
    times = {side: seconds_to(run["curve"], goal) for side, run in sides.items()}
    print(f"{name}, {benchmark.count_threads(threads)}, {cpu_name()}")
    print(f"            best NDCG  epochs  s to {goal:.4f}  s per epoch  s per evaluation")
    for side, run in sides.items():
        epochs = len(run["curve"])
        print(
            f"  {side:<8}  {best[side]:9.4f}  {epochs:6d}  {times[side]:11.1f}  "
            f"{run['curve'][-1][0] / epochs:11.1f}  {run['evaluation_seconds']:16.1f}"
        )
    ours, theirs = sides
    ratio = times[theirs] / times[ours]
    evaluation = sides[theirs]["evaluation_seconds"] / sides[ours]["evaluation_seconds"]
    print(f"  Tessera is {times_as_fast(ratio)} as fast to that quality, and {times_as_fast(evaluation)} in evaluation")
    return ratio, evaluation


def main():
    parser = Parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the files that docs/quality.md names")
    parser.add_program("leaderboard")
    parser.add_argument("--only", choices=TASKS, help="only this data set")
    parser.add_count("--negatives", help="sampled items, in place of 256 on Beauty and 100 on Gowalla")
    parser.add_count("--patience", 10, "epochs without a better validation")
    parser.add_count("--minutes", 60, "minutes of training after which the other library stops")
    parser.add_count("--threads", count_cores())
    parser.add_count("--seed", 0, least=0)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    parser.check_program(options, "leaderboard")
    if not options.data.is_dir():
        parser.error(f"--data: expected a folder, but found none at {options.data}")
    results = {}
    for name, (peer, run_peer, settings) in TASKS.items():
        if options.only in (None, name):
            settings = {**settings, "negatives": options.negatives or settings["negatives"]}
            own = {**settings, "patience": options.patience} if name == "Beauty" else settings
            results[name] = {"Tessera": run_tessera(options, name, own), peer: run_peer(options, settings)}
            print_results(name, results[name], options.threads)
    if options.json:
        options.json.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
