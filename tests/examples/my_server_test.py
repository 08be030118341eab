# SPDX-License-Identifier: Apache-2.0
"""Runs the example `my_server` on made-up clicks: my_server_test.py PROGRAM

User i has clicked most items whose number has the same remainder modulo 3 as i, so these are what to recommend.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
import urllib.error
import urllib.request

GENRES = ("drama", "crime", "comedy")


class MyServerTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        chance = random.Random(1)
        pairs = [(user, item) for user in range(60) for item in range(user % 3, 60, 3) if chance.random() < 0.8]
        chance.shuffle(pairs)
        self.clicked = {f"f{item}" for user, item in pairs if user == 4}
        lines = [f"u{user},f{item}\n" for user, item in pairs]
        (folder / "clicks.csv").write_text("user,item\n" + "".join(lines))
        lines = [f"f{item},{GENRES[item % 3]},{1950 + item}\n" for item in range(60)]
        (folder / "items.csv").write_text("item,genre,year\n" + "".join(lines))
        self.server = subprocess.Popen(
            [sys.argv[1], "clicks.csv", "items.csv", "0"], cwd=folder, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.server.stdout.close)
        self.addCleanup(self.server.wait)
        self.addCleanup(self.server.terminate)
        self.url = next(line.split()[-1] for line in self.server.stdout if "serving at" in line)

    def recommend(self, **body):
        request = urllib.request.Request(self.url + "/recommend", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def test_lists_have_what_the_user_likes(self):
        found = self.recommend(user={"user": "u4"}, k=5, show=["genre", "year"])
        self.assertEqual((found["from"], found["passed"]), ("query", 60))
        self.assertEqual(found["shown"]["genre"], ["crime"] * 5)

        found = self.recommend(user={"user": "u4"}, k=3, where="year >= 1990", exclude_seen=True, show=["year"])
        self.assertEqual((found["passed"], found["history"]), (20, True))
        self.assertGreaterEqual(min(found["shown"]["year"]), 1990)
        self.assertTrue(self.clicked.isdisjoint(found["items"]))

        liked = ["f2", "f8", "f14"]
        found = self.recommend(user={"item": liked}, k=5, exclude_seen=True, show=["genre"])
        self.assertEqual(found["from"], "fold_in")
        self.assertEqual(found["shown"]["genre"], ["comedy"] * 5)
        self.assertTrue(set(liked).isdisjoint(found["items"]))
        self.assertEqual(self.recommend(k=5)["from"], "popularity")

        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.recommend(where="color = 'red'")
        self.assertIn("there is no column 'color'", json.load(refused.exception)["error"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
