"""Trains the click models of examples/dlrm_criteo.cpp and the same models in Python's torch alternately, and prints
AUC and examples per second of both.

Tessera's models train from memory, like those in Python, and once more from the file; that time includes reading and
vocabularies.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def run(command):
    result = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(result.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True, help="dlrm_criteo")
    parser.add_argument("--python", type=Path, required=True, help="a Python with torch and numpy")
    parser.add_argument("--folder", type=Path, required=True, help="of the generated files")
    parser.add_argument("--generate", type=int, default=1_000_000, help="training examples")
    parser.add_argument("--models", nargs="+", default=["dlrm", "dcn"])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    peer = Path(__file__).with_name("dlrm_torch.py")

    failed = False
    with tempfile.TemporaryDirectory() as arrays:
        for model in options.models:
            shared = ["--model", model, "--batch", options.batch]
            ours_command = [
                options.program, "--json", "--generate", options.generate, "--folder", options.folder, *shared,
            ]  # fmt: skip
            streamed = run([*ours_command, "--write-arrays", arrays])
            ours, theirs = [], []
            for seed in range(options.rounds):
                ours.append(run([*ours_command, "--in-memory", "--seed", seed]))
                theirs.append(run([options.python, peer, "--arrays", arrays, *shared, "--seed", seed]))

            def median(reports, key):
                return statistics.median(report[key] for report in reports)

            speed, peer_speed = median(ours, "examples_per_second"), median(theirs, "examples_per_second")
            auc, peer_auc = median(ours, "auc"), median(theirs, "auc")
            bayes = ours[0]["bayes_auc"]
            ratios = [a["examples_per_second"] / b["examples_per_second"] for a, b in zip(ours, theirs)]
            print(f"{model}, {options.generate} examples, batches of {options.batch}, {options.rounds} rounds, medians")
            print(f"  tessera from memory   AUC {auc:.4f}  {speed:9.0f} examples/s")
            print(f"  tessera from the file AUC {streamed['auc']:.4f}  {streamed['examples_per_second']:9.0f} examples/s")
            print(f"  torch {theirs[0]['torch']:<15} AUC {peer_auc:.4f}  {peer_speed:9.0f} examples/s")
            print(f"  AUC of the true probabilities {bayes:.4f}")
            print(f"  times as fast: {speed / peer_speed:.2f} (rounds: {', '.join(f'{r:.2f}' for r in ratios)})")
            is_close = abs(auc - peer_auc) <= 0.002 and bayes - auc <= 0.01
            print(f"  AUC within 0.002 of torch and 0.01 of the true one: {'yes' if is_close else 'NO'}")
            failed |= not is_close
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
