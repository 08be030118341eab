#!/usr/bin/env python3
"""Times one peer on workloads.json. Prints a JSON line per workload and operation, like embedding_benchmark.

  torch         one torch.nn.EmbeddingBag(sparse=True) per table, torch.optim on its sparse gradient
  torch_concat  one EmbeddingBag(sparse=True) for all tables, with ids that were shifted beforehand. Its
                optimizers are a few lines of `unique`, `index_add_` and `index_copy_`, where these are faster
                than torch.optim
  fbgemm        SplitTableBatchedEmbeddingBagsCodegen on the CPU: all tables in one call, fused optimizers
  tf            tf.nn.embedding_lookup_sparse, a legacy Keras optimizer on its IndexedSlices

A step is forward, backward from given activation gradients, and the update of the tables. Activations are
one tensor per table, as in Tessera's layer, except for torch_concat and FBGEMM, which have one tensor for
all tables. Each run takes the next batch.
"""
import json
import os
import pathlib
import time

from benchmark import Parser, import_fbgemm

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np


def torch_operations(workload, batches, threads):
    import torch

    torch.set_num_threads(threads)
    splits = torch.arange(0, workload["batch"] * workload["bag"], workload["bag"])
    inputs = [[torch.from_numpy(values) for values in batch] for batch in batches]
    bags = [
        torch.nn.EmbeddingBag(workload["rows"], workload["dim"], mode="sum", sparse=True) for _ in inputs[0]
    ]
    gradients = [torch.randn(workload["batch"], workload["dim"]) for _ in bags]

    def look_up(batch):
        return [bag(values, splits) for bag, values in zip(bags, inputs[batch])]

    def forward(batch):
        with torch.no_grad():
            look_up(batch)

    def step(optimizer, batch):
        optimizer.zero_grad()
        torch.autograd.backward(look_up(batch), gradients)
        optimizer.step()

    yield "forward", forward
    for name, make in ("sgd", torch.optim.SGD), ("adagrad", torch.optim.Adagrad), ("adam", torch.optim.SparseAdam):
        optimizer = make([bag.weight for bag in bags], lr=0.01)
        yield name, lambda batch: step(optimizer, batch)


def torch_concat_operations(workload, batches, threads):
    import torch

    torch.set_num_threads(threads)
    rows = workload["tables"] * workload["rows"]
    first_row = np.arange(workload["tables"])[:, None] * workload["rows"]
    inputs = [torch.from_numpy((batch + first_row).reshape(-1)) for batch in batches]
    splits = torch.arange(0, inputs[0].numel(), workload["bag"])
    bags = torch.nn.EmbeddingBag(rows, workload["dim"], mode="sum", sparse=True)
    gradient = torch.randn(splits.numel(), workload["dim"])

    def forward(batch):
        with torch.no_grad():
            bags(inputs[batch], splits)

    def take_sums(batch):
        """Runs forward and backward. Returns the distinct rows and their gradients."""
        bags.weight.grad = None
        bags(inputs[batch], splits).backward(gradient)
        sparse = bags.weight.grad
        touched, inverse = torch.unique(sparse._indices()[0], return_inverse=True)
        sums = torch.zeros(touched.numel(), workload["dim"]).index_add_(0, inverse, sparse._values())
        return touched, sums

    def sgd(batch):
        bags.weight.grad = None
        bags(inputs[batch], splits).backward(gradient)
        sparse = bags.weight.grad
        with torch.no_grad():
            bags.weight.index_add_(0, sparse._indices()[0], sparse._values(), alpha=-0.01)

    accumulator = torch.full_like(bags.weight, 0.1)

    @torch.no_grad()
    def update_adagrad(touched, sums):
        state = accumulator.index_select(0, touched).addcmul_(sums, sums)
        accumulator.index_copy_(0, touched, state)
        bags.weight.index_add_(0, touched, sums.div_(state.sqrt_().add_(1e-10)), alpha=-0.01)

    moments = [torch.zeros_like(bags.weight) for _ in range(2)]
    steps = 0

    @torch.no_grad()
    def update_adam(touched, sums):
        nonlocal steps
        steps += 1
        first = moments[0].index_select(0, touched).lerp_(sums, 0.1)
        second = moments[1].index_select(0, touched).mul_(0.999).addcmul_(sums, sums, value=0.001)
        moments[0].index_copy_(0, touched, first)
        moments[1].index_copy_(0, touched, second)
        rate = 0.01 * (1 - 0.999**steps) ** 0.5 / (1 - 0.9**steps)
        bags.weight.index_add_(0, touched, first.div_(second.sqrt_().add_(1e-8)), alpha=-rate)

    yield "forward", forward
    yield "sgd", sgd
    yield "adagrad", lambda batch: update_adagrad(*take_sums(batch))
    yield "adam", lambda batch: update_adam(*take_sums(batch))


def fbgemm_operations(workload, batches, threads):
    import torch

    import_fbgemm()  # registers the operators
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    torch.set_num_threads(threads)
    inputs = [torch.from_numpy(batch.reshape(-1)) for batch in batches]
    offsets = torch.arange(0, inputs[0].numel() + 1, workload["bag"])
    gradient = torch.randn(workload["batch"], workload["tables"] * workload["dim"])
    spec = workload["rows"], workload["dim"], EmbeddingLocation.HOST, ComputeDevice.CPU
    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    }

    def forward(tables, batch):
        with torch.no_grad():
            tables(inputs[batch], offsets)

    for name, kind in kinds.items():
        tables = SplitTableBatchedEmbeddingBagsCodegen(
            [spec] * workload["tables"], optimizer=kind, learning_rate=0.01, pooling_mode=PoolingMode.SUM
        )
        if name == "sgd":
            yield "forward", lambda batch: forward(tables, batch)
        yield name, lambda batch: tables(inputs[batch], offsets).backward(gradient)


def tf_operations(workload, batches, threads):
    import tensorflow as tf
    import tf_keras

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    batch, bag = workload["batch"], workload["bag"]
    indices = np.stack([np.repeat(np.arange(batch), bag), np.tile(np.arange(bag), batch)], 1)
    inputs = [[tf.SparseTensor(indices, values, [batch, bag]) for values in ids] for ids in batches]
    tables = [tf.Variable(tf.zeros([workload["rows"], workload["dim"]])) for _ in inputs[0]]
    gradients = [tf.random.normal([batch, workload["dim"]]) for _ in tables]

    def look_up(features):
        return [
            tf.nn.embedding_lookup_sparse(table, values, None, combiner="sum")
            for table, values in zip(tables, features)
        ]

    @tf.function
    def forward(features):
        return look_up(features)

    yield "forward", lambda batch: [activation.numpy() for activation in forward(inputs[batch])]
    legacy = tf_keras.optimizers.legacy
    for name, optimizer in ("sgd", legacy.SGD(0.01)), ("adagrad", legacy.Adagrad(0.01)), ("adam", legacy.Adam(0.01)):
        optimizer._create_all_weights(tables)

        @tf.function
        def step(features, optimizer=optimizer):
            with tf.GradientTape() as tape:
                activations = look_up(features)
            slices = tape.gradient(activations, tables, output_gradients=gradients)
            optimizer.apply_gradients(zip(slices, tables))
            return tables[0][0, 0]

        # Keras's Adam updates every row, as Tessera's adam_exact does.
        yield "adam_exact" if name == "adam" else name, lambda batch: step(inputs[batch]).numpy()


def median_ms(run, batches, options):
    """Like sorted_milliseconds() of embedding_benchmark."""
    times = []
    total = 0.0
    i = 0
    while len(times) < options.reps or total < options.min_ms:
        begin = time.perf_counter()
        run(i % batches)
        elapsed = (time.perf_counter() - begin) * 1e3
        if i >= options.warmup:
            times.append(elapsed)
            total += elapsed
        i += 1
    return sorted(times)[len(times) // 2]


def instruction_set(peer):
    """FBGEMM chooses another one by itself, and TensorFlow does not say which one it has."""
    if not peer.startswith("torch"):
        return {}
    import torch

    return {"isa": torch.backends.cpu.get_cpu_capability().lower()}


def main():
    operations = {
        "torch": torch_operations,
        "torch_concat": torch_concat_operations,
        "fbgemm": fbgemm_operations,
        "tf": tf_operations,
    }
    parser = Parser(__doc__)
    parser.add_argument("peer", choices=operations)
    parser.add_argument("--workload", action="append", help="only these workloads")
    parser.add_argument("--op", action="append", help="only these operations")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--reps", type=int, default=32, help="minimum number of timed runs")
    parser.add_argument("--min-ms", type=float, default=100.0, help="minimum total time of the timed runs in ms")
    parser.add_argument("--ids", required=True, help="folder with the ids [batches, tables, batch * bag] as NAME.npy")
    options = parser.parse_args()
    for workload in json.loads((pathlib.Path(__file__).parent / "workloads.json").read_text()):
        if options.workload and workload["name"] not in options.workload:
            continue
        batches = np.load(pathlib.Path(options.ids) / f"{workload['name']}.npy")
        for operation, run in operations[options.peer](workload, batches, options.threads):
            if options.op and operation not in options.op:
                continue
            line = {"peer": options.peer, "workload": workload["name"], "op": operation, "threads": options.threads}
            line.update(instruction_set(options.peer))
            line["ms"] = round(median_ms(run, len(batches), options), 4)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
