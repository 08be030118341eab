# SPDX-License-Identifier: Apache-2.0
"""Measures lists of ./run leaderboard --lists from the files of the data, with NumPy alone.

    check_lists.py LISTS DATA RESULTS

LISTS has a line "# data<TAB>model<TAB>seed" for each result, and after it a line with the items of each tested user.
DATA is the folder of the data files, or the file of --own, and RESULTS what the same call printed with --json. Fails
if a value differs from RESULTS.
"""

import gzip
import json
import pathlib
import sys

import numpy

FILES = {"Sports": "Sports_and_Outdoors", "Toys": "Toys_and_Games"}


def numbers(path):
    packed = path.with_name(path.name + ".gz")
    text = gzip.open(packed, "rt") if packed.exists() else open(path)
    return [[int(word) for word in line.split()] for line in text if line.strip()]


def truth(data, root):
    """The length of the lists that count, and the items to leave out and the test items of each user."""
    if data == "Gowalla":
        train = {line[0]: line[1:] for line in numbers(root / "gowalla_train.txt")}
        test = sorted((line[0], line[1:]) for line in numbers(root / "gowalla_test.txt"))
        return 20, [(train.get(user, []), items) for user, items in test if items]
    path = root / f"{FILES.get(data, data)}.txt" if root.is_dir() else root
    return 10, [(line[1:-1], line[-1:]) for line in numbers(path) if len(line) >= 4]


def measure(lists, top, users):
    assert len(lists) == len(users), f"expected {len(users)} lists, but got {len(lists)}"
    discounts = 1 / numpy.log2(numpy.arange(top) + 2)
    values = []
    for found, (seen, test) in zip(lists, users):
        assert len(set(found)) == len(found) and not set(found) & set(seen), "a list has an item twice or a seen one"
        hits = numpy.isin(found[:top], test)
        best = discounts[: len(test)].sum()
        values.append((hits.sum() / len(test), (discounts[: len(hits)] * hits).sum() / best))
    return numpy.mean(values, 0), numpy.std(values, 0, ddof=1) / len(values) ** 0.5


lists, root, results = map(pathlib.Path, sys.argv[1:])
known = {(r["data"], r["model"], r["seed"]): r for r in json.loads(results.read_text())}
for part in lists.read_text().split("# ")[1:]:
    title, *lines = part.splitlines()
    data, model, seed = title.split("\t")
    top, users = truth(data, root)
    found = [[int(word) for word in line.split()] for line in lines]
    result = known[data, model, int(seed)]
    for name, mean, error in zip((f"recall@{top}", f"NDCG@{top}"), *measure(found, top, users)):
        print(f"{data}, {model}, seed {seed}: {name} {mean:.6f} ± {error:.6f}")
        if abs(mean - result["metrics"][name]) > 1e-9 or abs(error - result["standard_errors"][name]) > 1e-9:
            sys.exit(f"but the results have {result['metrics'][name]} ± {result['standard_errors'][name]}")
