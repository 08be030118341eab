#!/usr/bin/env python3
"""Times one peer on workloads.json. Prints a JSON line per workload and operation, like embedding_benchmark.

  fbgemm  SplitTableBatchedEmbeddingBagsCodegen on the CPU: all tables in one call, fused optimizers
  torch   torch.nn.EmbeddingBag(sparse=True), torch.optim on its sparse gradient
  tf      tf.nn.embedding_lookup_sparse, a legacy Keras optimizer on its IndexedSlices

A step is forward, backward from given activation gradients, and the update of the tables. Activations
are one tensor per table, as in Tessera's layer, except for FBGEMM, which has one tensor for all tables.
"""
import argparse
import json
import os
import pathlib
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np


def random_ids(workload, random):
    """Draws ids [tables, batch * bag]: uniform, or zipf as floor(rows ** u) - 1, mapped by a permutation."""
    shape = workload["tables"], workload["batch"] * workload["bag"]
    u = random.random(shape)
    if workload["ids"] == "uniform":
        return (u * workload["rows"]).astype(np.int64)
    rank = np.clip((workload["rows"] ** u).astype(np.int64) - 1, 0, workload["rows"] - 1)
    return random.permutation(workload["rows"])[rank]


def torch_operations(workload, ids, threads):
    import torch

    torch.set_num_threads(threads)
    splits = torch.arange(0, ids.shape[1], workload["bag"])
    inputs = torch.from_numpy(ids)
    bags = [
        torch.nn.EmbeddingBag(workload["rows"], workload["dim"], mode="sum", sparse=True) for _ in inputs
    ]
    gradients = [torch.randn(workload["batch"], workload["dim"]) for _ in inputs]

    def look_up():
        return [bag(values, splits) for bag, values in zip(bags, inputs)]

    def forward():
        with torch.no_grad():
            look_up()

    def step(optimizer):
        optimizer.zero_grad()
        torch.autograd.backward(look_up(), gradients)
        optimizer.step()

    yield "forward", forward
    for name, make in ("sgd", torch.optim.SGD), ("adagrad", torch.optim.Adagrad), ("adam", torch.optim.SparseAdam):
        optimizer = make([bag.weight for bag in bags], lr=0.01)
        yield name, lambda: step(optimizer)


def fbgemm_operations(workload, ids, threads):
    import torch
    import fbgemm_gpu  # registers the operators
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    torch.set_num_threads(threads)
    values = torch.from_numpy(ids.reshape(-1))
    offsets = torch.arange(0, values.numel() + 1, workload["bag"])
    gradient = torch.randn(workload["batch"], workload["tables"] * workload["dim"])
    spec = workload["rows"], workload["dim"], EmbeddingLocation.HOST, ComputeDevice.CPU
    kinds = {
        "sgd": EmbOptimType.EXACT_SGD,
        "adagrad": EmbOptimType.EXACT_ADAGRAD,
        "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    }

    def forward(tables):
        with torch.no_grad():
            tables(values, offsets)

    for name, kind in kinds.items():
        tables = SplitTableBatchedEmbeddingBagsCodegen(
            [spec] * workload["tables"], optimizer=kind, learning_rate=0.01, pooling_mode=PoolingMode.SUM
        )
        if name == "sgd":
            yield "forward", lambda: forward(tables)
        yield name, lambda: tables(values, offsets).backward(gradient)


def tf_operations(workload, ids, threads):
    import tensorflow as tf
    import tf_keras

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    batch, bag = workload["batch"], workload["bag"]
    indices = np.stack([np.repeat(np.arange(batch), bag), np.tile(np.arange(bag), batch)], 1)
    inputs = [tf.SparseTensor(indices, values, [batch, bag]) for values in ids]
    tables = [tf.Variable(tf.zeros([workload["rows"], workload["dim"]])) for _ in ids]
    gradients = [tf.random.normal([batch, workload["dim"]]) for _ in ids]

    def look_up():
        return [
            tf.nn.embedding_lookup_sparse(table, values, None, combiner="sum")
            for table, values in zip(tables, inputs)
        ]

    @tf.function
    def forward():
        return look_up()

    yield "forward", lambda: [activation.numpy() for activation in forward()]
    legacy = tf_keras.optimizers.legacy
    for name, optimizer in ("sgd", legacy.SGD(0.01)), ("adagrad", legacy.Adagrad(0.01)), ("adam", legacy.Adam(0.01)):
        optimizer._create_all_weights(tables)

        @tf.function
        def step(optimizer=optimizer):
            with tf.GradientTape() as tape:
                activations = look_up()
            slices = tape.gradient(activations, tables, output_gradients=gradients)
            optimizer.apply_gradients(zip(slices, tables))
            return tables[0][0, 0]

        # Keras's Adam updates every row, as Tessera's adam_exact does.
        yield "adam_exact" if name == "adam" else name, lambda: step().numpy()


def median_ms(run, warmup, reps):
    times = []
    for i in range(warmup + reps):
        begin = time.perf_counter()
        run()
        if i >= warmup:
            times.append((time.perf_counter() - begin) * 1e3)
    return sorted(times)[len(times) // 2]


def main():
    operations = {"torch": torch_operations, "fbgemm": fbgemm_operations, "tf": tf_operations}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=operations)
    parser.add_argument("--workload", action="append", help="only these workloads")
    parser.add_argument("--op", action="append", help="only these operations")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--reps", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for workload in json.loads((pathlib.Path(__file__).parent / "workloads.json").read_text()):
        if options.workload and workload["name"] not in options.workload:
            continue
        ids = random_ids(workload, np.random.default_rng(options.seed))
        for operation, run in operations[options.peer](workload, ids, options.threads):
            if options.op and operation not in options.op:
                continue
            line = {"peer": options.peer, "workload": workload["name"], "op": operation, "threads": options.threads}
            line["ms"] = round(median_ms(run, options.warmup, options.reps), 4)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
