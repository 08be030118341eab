# SPDX-License-Identifier: Apache-2.0
"""Runs the example `serve` on made-up ratings: serve_test.py PROGRAM

The scores must come from newer and newer versions, go on when the trainer is killed, and end with a signal.
"""
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request


def write_ratings(folder, each=50):
    """40 users with ratings of `each` of 60 movies, in the format of MovieLens 100K."""
    chance = random.Random(1)
    folder.mkdir()
    (folder / "u.genre").write_text("unknown|0\nDrama|1\n")
    (folder / "u.occupation").write_text("other\n")
    (folder / "u.item").write_text("".join(f"{i}|Film {i}|01-Jan-1990|||0|1\n" for i in range(1, 61)))
    (folder / "u.user").write_text("".join(f"{i}|30|M|other|12345\n" for i in range(1, 41)))
    (folder / "u.data").write_text(
        "".join(
            f"{user}\t{movie}\t{1 + 4 * ((user + movie) % 2)}\t{880000000 + chance.randrange(1000)}\n"
            for user in range(1, 41)
            for movie in chance.sample(range(1, 61), each)
        )
    )


class DataTest(unittest.TestCase):
    def test_too_few_ratings_are_refused(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        few = pathlib.Path(folder.name) / "few"
        write_ratings(few, each=7)
        program = subprocess.run(
            [sys.argv[1], "--data", few, "--port", "0", "--seconds", "1"],
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual(program.returncode, 1)
        self.assertIn("expected at least 286 ratings, 2 users and 4 movies", program.stderr)
        self.assertIn("has 280 ratings, 40 users and 60 movies. Use the files of MovieLens 100K.", program.stderr)


class ServeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        write_ratings(self.folder / "data")
        self.directory = self.folder / "run"
        self.server = self.start()
        self.addCleanup(self.server.kill)
        for line in self.server.stdout:
            if line.startswith("serving at "):
                self.url = line.split()[-1]
                break
        else:
            self.fail("the program has not begun to serve")
        self.body = (self.directory / "requests.jsonl").read_text().splitlines()[0]

    def start(self):
        options = ["--data", self.folder / "data", "--directory", self.directory, "--port", "0", "--every", "0.2"]
        return subprocess.Popen([sys.argv[1], *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(self, path, body=None):
        request = urllib.request.Request(self.url + path, data=body and body.encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    def wait_for_version(self, version):
        end = time.monotonic() + 120
        while self.ask("/version")["version"] < version:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def trainer(self):
        children = pathlib.Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        self.assertEqual(len(children), 1)
        return int(children[0])

    def test_scores_follow_the_training_and_outlive_it(self):
        first = self.ask("/score", self.body)
        self.assertEqual(len(first["scores"]), 100)
        self.wait_for_version(first["version"] + 3)
        later = self.ask("/score", self.body)
        self.assertGreater(later["version"], first["version"])
        self.assertNotEqual(later["scores"], first["scores"])
        version = self.ask("/version")
        self.assertIn("loss", version["metrics"])
        sides = {each["name"]: each["side"] for each in version["inputs"]}
        self.assertEqual(sides["liked"], "user")
        self.assertEqual(sides["movie"], "candidates")

        with self.assertRaises(urllib.error.HTTPError) as refused:
            self.ask("/score", '{"user": {}, "candidates": {"movie": [1]}}')
        self.assertEqual(refused.exception.code, 400)
        self.assertIn("'user' in user", json.load(refused.exception)["error"])

        second = self.start()
        self.assertIn("has versions of another training", second.communicate(timeout=120)[1])
        self.assertEqual(second.returncode, 1)

        subprocess.run(["kill", "-9", str(self.trainer())], check=True)
        self.assertIn("goes on serving", self.read_errors_until("goes on serving"))
        self.assertEqual(len(self.ask("/score", self.body)["scores"]), 100)
        self.server.send_signal(signal.SIGINT)
        self.assertIn("served version", self.server.communicate(timeout=120)[0])
        self.assertEqual(self.server.returncode, 0)

    def read_errors_until(self, text):
        for line in self.server.stderr:
            if text in line:
                return line
        return "the end"


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
