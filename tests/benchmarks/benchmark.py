"""What the scripts that compare benchmarks share: options, programs that take turns, medians, tables, the machine."""
import argparse
import ctypes
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DEPS = HERE.parent.parent / ".deps"  # where ./run installs
GIB = 2**30
MALLOC = {"hugetlb": 1, "mmap_threshold": 4 * GIB, "trim_threshold": 16 * GIB, "top_pad": GIB // 4}
TUNED_MALLOC = {
    "GLIBC_TUNABLES": ":".join(f"glibc.malloc.{name}={value}" for name, value in MALLOC.items()),
    "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for the tensors of torch
}


# --- the machine -------------------------------------------------------------


def count_cores():
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_name():
    match = re.search(r"^model name\s*:\s*(.+)", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


# --- FBGEMM ------------------------------------------------------------------


def import_fbgemm():
    """Imports FBGEMM so that it finds the instruction sets of the processor, and returns the name of the best one.

    Torch's libtorch.so and libc10.so each have a copy of cpuinfo, and torch fills that of libtorch.so. Unless this
    library is global, FBGEMM reads the other copy, finds no AVX, and takes reference kernels, which are much slower.
    """
    import torch

    ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch.so"), mode=ctypes.RTLD_GLOBAL)
    import fbgemm_gpu

    capability = torch.backends.cpu.get_cpu_capability().lower()  # fills cpuinfo
    library = ctypes.CDLL(str(pathlib.Path(fbgemm_gpu.__file__).parent / "fbgemm.so"))
    for name in "avx512", "avx2":
        function = f"fbgemmHas{name.capitalize()}Support"
        has = getattr(library, f"_ZN6fbgemm{len(function)}{function}Ev")
        has.restype = ctypes.c_bool
        if has():
            return name
    if capability.startswith("avx"):
        sys.exit(
            f"FBGEMM must use the processor's {capability}, but found no AVX, so its times would be those of its "
            "reference kernels. Install the versions of torch and fbgemm-gpu-cpu that ./run installs."
        )
    return "default"


# --- options -----------------------------------------------------------------


def integer(least):
    """Returns a function that parses integers of at least `least`, which is 0 or 1."""

    def parse(text):
        if not re.fullmatch("[0-9]{1,9}", text) or text != str(int(text)) or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected an integer >= {least}, but got '{text}'")
        return int(text)

    return parse


class Parser(argparse.ArgumentParser):
    """Refuses wrong arguments in a sentence, without the list of all options."""

    def __init__(self, description):
        super().__init__(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}. --help lists the options.\n")

    def add_count(self, name, default=None, help="", least=1, **more):
        """Adds an option that is an integer >= `least`."""
        if default is not None:
            help = f"{help}; default: {default}" if help else f"default: {default}"
        self.add_argument(name, type=integer(least), default=default, help=help, **more)

    def add_choices(self, name, choices, more_help=""):
        """Adds an option that may be given several times."""
        text = f"only these of {', '.join(choices)}{more_help}"
        self.add_argument(name, choices=choices, action="append", metavar="NAME", help=text)

    def add_program(self, name):
        self.add_argument("--program", help=f"the program {name}; ./run names it")

    def check_program(self, options, name):
        if not options.program or not os.access(options.program, os.X_OK):
            self.error(f"--program must name the program {name}, but got '{options.program}'")


# --- programs ----------------------------------------------------------------


def turns(sides, round_):
    """Returns the sides, in each round with another one first.

    So a slow period of the machine affects all of them.
    """
    sides = list(sides)
    first = round_ % len(sides)
    return sides[first:] + sides[:first]


def rounds(count, what=""):
    """Yields 0, 1, ..., and says on standard error when a round is done."""
    for round_ in range(count):
        yield round_
        print(f"{what}round {round_ + 1} of {count} done", file=sys.stderr)


def run(command, environment=None, **more):
    """Runs a program. Returns its result with the captured output."""
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, env={**os.environ, **(environment or {})}, **more
    )


def json_lines(command, what, environment=None):
    """Runs a program. Returns the JSON of each line that it prints, or ends this one with its error."""
    result = run(command, environment)
    if result.returncode != 0:
        sys.exit(f"{what}:\n{result.stderr[-2000:]}")
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]


# --- numbers and tables ------------------------------------------------------


def median(reports, key):
    return statistics.median(report[key] for report in reports)


def times_as_fast(ratio):
    return f"{ratio:.2f}x" if ratio else "-"


def percent(share):
    return f"{100 * share:.0f} %" if share else "-"


def counted(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def count_threads(threads):
    return counted(threads, "thread")


def add_table_option(parser):
    parser.add_argument("--table", metavar="FILE", help="where a table for docs/performance.md goes, as JSON")


def write_table(options, command, about, header, rows):
    """Writes a table to the file of --table, if it is set. page_tables.py puts it into the page."""
    if options.table:
        start = json.dumps({"command": f"./run bench {command}", "about": about, "header": header}, indent=1)
        lines = ",\n".join("  " + json.dumps([str(cell) for cell in row]) for row in rows)
        pathlib.Path(options.table).write_text(f'{start[:-2]},\n "rows": [\n{lines}\n ]\n}}\n')


def markdown_table(header, rows):
    """Returns a Markdown table. All columns but a first one of names are aligned to the right."""

    def line(cells):
        return "|" + "|".join(f" {cell} " if cell else " " for cell in map(str, cells)) + "|"

    has_names = not all(str(row[0]).isdigit() for row in rows)
    alignment = "|---" + ("" if has_names else ":") + "|---:" * (len(header) - 1) + "|"
    return "\n".join([line(header), alignment, *map(line, rows)])
