"""The results of alternate rounds: medians, ratios, shares of limits, and the JSON file that holds them all.

Tables and charts are made from such a file, so a table and a chart of the same file show the same run.
"""
import dataclasses
import json
import math
import pathlib
import statistics

from benchmark import count_threads, counted

FORMAT = 2
# The loops of the operations that have one.
UPDATE_LOOPS = {name: f"{name}_update" for name in ("sgd", "adagrad", "adam")}
LOOPS = ["gather", *UPDATE_LOOPS.values()]


@dataclasses.dataclass
class Results:
    kind: str  # "peers" or "threads": the option of ./run bench that measured this
    settings: dict  # what all rounds have in common
    # {(threads, workload, operation): {side: [ms of each round]}}, where a side is "tessera" or a peer
    times: dict = dataclasses.field(default_factory=dict)
    # {(threads, workload): {a loop of LOOPS: [ms of each round]}}
    limits: dict = dataclasses.field(default_factory=dict)

    def add(self, threads, workload, side, line):
        """Adds a line that the benchmark or a peer has printed."""
        self.times.setdefault((threads, workload, line["op"]), {}).setdefault(side, []).append(line["ms"])
        if "isa" in line:
            self.settings["isa"][side] = line["isa"].lower()
        for loop in LOOPS:
            if f"{loop}_limit_ms" in line:
                self.limits.setdefault((threads, workload), {}).setdefault(loop, []).append(line[f"{loop}_limit_ms"])

    def add_failure(self, threads, workload, side):
        failure = f"{side} on {workload} with {count_threads(threads)}"
        if failure not in self.settings["failed"]:
            self.settings["failed"].append(failure)

    @property
    def threads(self):
        return list(dict.fromkeys(threads for threads, _, _ in self.times))

    @property
    def workloads(self):
        return list(dict.fromkeys(workload for _, workload, _ in self.times))

    @property
    def operations(self):
        return list(dict.fromkeys(operation for _, _, operation in self.times))

    @property
    def peers(self):
        return self.settings["peers"]

    def median(self, key, side="tessera"):
        """Returns the median of the rounds in ms, or None."""
        rounds = self.times.get(key, {}).get(side)
        return statistics.median(rounds) if rounds else None

    def fastest_peer(self, key):
        """Returns the name of the fastest peer and its ms, or None."""
        medians = [(self.median(key, side), side) for side in self.times.get(key, {}) if side != "tessera"]
        return min(medians)[::-1] if medians else None

    def ratio(self, key):
        """Returns the fastest peer's time divided by Tessera's, or None."""
        peer, ours = self.fastest_peer(key), self.median(key)
        return peer[1] / ours if peer and ours else None

    def speed_up(self, key):
        """Returns Tessera's time with 1 thread divided by its time, or None."""
        one, ours = self.median((1, *key[1:])), self.median(key)
        return one / ours if one and ours else None

    def loop_ms(self, threads, workload, loop):
        """Returns the median of a plain loop in ms, or None."""
        rounds = self.limits.get((threads, workload), {}).get(loop)
        return statistics.median(rounds) if rounds else None

    def limit_ms(self, key):
        """Returns what plain loops need for the operation in ms, or None. Only some operations have loops."""
        threads, workload, operation = key
        gather = self.loop_ms(threads, workload, "gather")
        if operation == "forward":
            return gather
        update = self.loop_ms(threads, workload, UPDATE_LOOPS.get(operation))
        return gather + update if gather and update else None

    def limit_share(self, key):
        """Returns the time of plain loops divided by Tessera's, or None."""
        limit, ours = self.limit_ms(key), self.median(key)
        return limit / ours if limit and ours else None

    def peer_limit_share(self, key):
        """Returns the time of plain loops divided by that of the fastest peer, or None."""
        limit, peer = self.limit_ms(key), self.fastest_peer(key)
        return limit / peer[1] if limit and peer else None

    def update_share(self, key):
        """Returns the time of the plain update loop divided by that of Tessera's update, or None.

        Tessera's update is what a step takes beyond a lookup. It includes the sorting of ids, which the plain loop
        gets done in advance.
        """
        threads, workload, operation = key
        loop = self.loop_ms(threads, workload, UPDATE_LOOPS.get(operation))
        step, forward = self.median(key), self.median((threads, workload, "forward"))
        if not (loop and step and forward and step > forward):
            return None
        return loop / (step - forward)

    def mean(self, value, threads, operation, show):
        """Returns the geometric mean of value(key) over the workloads as text, made by show(mean).

        If some workloads have no value, the text says how many have one.
        """
        values = [value((threads, workload, operation)) for workload in self.workloads]
        values = [value for value in values if value]
        if not values:
            return "-"
        mean = math.exp(sum(map(math.log, values)) / len(values))
        few = len(values) < len(self.workloads)
        return show(mean) + (f" ({len(values)} of {len(self.workloads)})" if few else "")

    def description(self):
        """Returns sentences about the machine, the instruction sets, the rounds, and the peers that failed."""
        settings = self.settings
        sets = ", ".join(f"{side} {isa}" for side, isa in settings["isa"].items()) or "unknown"
        batches = "Each step repeats one batch."
        if settings["batches"] > 1:
            batches = f"{settings['batches']} batches take turns."
        failed = f" Failed: {', '.join(settings['failed'])}." if settings["failed"] else ""
        return (
            f"{settings['cpu']}, {counted(settings['cores'], 'core')}. Instruction sets: {sets}. {batches} "
            f"Medians of {counted(settings['rounds'], 'round')} of at least {counted(settings['reps'], 'step')}.{failed}"
        )

    def write(self, path):
        lines = []
        for key, by_side in self.times.items():
            medians = {side: self.median(key, side) for side in by_side}
            lines.append(dict(zip(("threads", "workload", "op"), key), ms=medians, rounds_ms=by_side))
        limits = [{"threads": t, "workload": w, "rounds_ms": loops} for (t, w), loops in self.limits.items()]
        data = {"format": FORMAT, "kind": self.kind, "settings": self.settings, "times": lines, "limits": limits}
        pathlib.Path(path).write_text(json.dumps(data, indent=1) + "\n")


def read(path, kind):
    """Reads what Results.write() has written. Raises ValueError for another file."""
    expected = f"expected a file that `./run bench --{kind} --json` has written, but '{path}'"
    try:
        data = json.loads(pathlib.Path(path).read_text())
    except OSError as error:
        raise ValueError(f"{expected} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"{expected} is not JSON: {error}") from error
    if not isinstance(data, dict) or "kind" not in data:
        raise ValueError(f"{expected} has no results")
    if data["kind"] != kind:
        raise ValueError(f"{expected} is of `./run bench --{data['kind']}`")
    if data.get("format") != FORMAT:
        raise ValueError(f"{expected} has format {data.get('format')}, and this version reads format {FORMAT}")
    try:
        results = Results(kind, data["settings"])
        for line in data["times"]:
            results.times[line["threads"], line["workload"], line["op"]] = line["rounds_ms"]
        for line in data["limits"]:
            results.limits[line["threads"], line["workload"]] = line["rounds_ms"]
        results.description()  # needs all settings
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{expected} is incomplete: {error!r}") from error
    return results
