# SPDX-License-Identifier: Apache-2.0
"""Fails unless the compiler refuses each program of tests/misuse with a short, readable error.

A program has a line `// expects: <regex>`, which the errors must match. Their text may have MAX_LINES lines.
correct.cpp must compile, so that the other errors are not those of a wrong include path. All programs are one unit,
each in a namespace of its own, because the headers take most of the time.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 20
DIAGNOSTIC = re.compile(r"\S+:\d+:\d+: (?:fatal )?(error|note):")
# Lines above a diagnostic that say where it is.
CONTEXT = re.compile(r"In file included from |\s+from \S+:\d+|\S+: (?:In|At) |\S+:\d+:\d+:\s+(?:recursively |required |in )")


def make_unit(programs):
    """All headers, then each program in a namespace."""
    includes = {line for program in programs for line in program.read_text().splitlines() if line.startswith("#include")}
    parts = [f'namespace {program.stem} {{\n#include "{program}"\n}}\n' for program in programs]
    return "\n".join(sorted(includes)) + "\n" + "".join(parts)


def split_errors(text):
    """Each error with its notes, as a list of lines."""
    errors, context = [[]], []
    for line in text.splitlines():
        diagnostic = DIAGNOSTIC.match(line)
        if diagnostic and diagnostic.group(1) == "error":
            errors.append([])
        if CONTEXT.match(line):
            context.append(line)
        elif not re.match(r"\d+ errors? generated", line):
            errors[-1] += context + [line]
            context = []
    return errors[1:]


def program_of(error, programs):
    """The program that an error names. GCC names none for a constructor that a class inherits, so it is the expected one."""
    text = "\n".join(error)
    named = re.search(r"tests/misuse/(\w+)\.cpp", text)
    if named:
        return named.group(1)
    return next((name for name, expected in programs.items() if expected and re.search(expected, text)), None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    files = sorted((ROOT / "tests/misuse").glob("*.cpp"))
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / "programs.cpp"
        unit.write_text(make_unit(files))
        command = [options.compiler, "-std=c++20", "-fsyntax-only", "-w", f"-I{ROOT}/include", f"-I{ROOT}", *options.flags]
        if "clang" in options.compiler:
            command.append("-ferror-limit=0")
        result = subprocess.run([*command, unit], stderr=subprocess.PIPE, text=True, env=os.environ | {"LC_ALL": "C"})

    expectations = [re.search("// expects: (.*)", file.read_text()) for file in files]
    programs = {file.stem: expected and expected.group(1) for file, expected in zip(files, expectations)}
    lines = {name: [] for name in programs}
    problems = []
    for error in split_errors(result.stderr):
        name = program_of(error, programs)
        if name:
            lines[name] += error
        else:
            problems.append("expected errors in the programs only, but got:\n" + "\n".join(error))
    for name, expected in programs.items():
        text = "\n".join(lines[name])
        count = len(lines[name])
        print(f"{name}: {count} lines")
        if name == "correct":
            if text:
                problems.append(f"{name}: expected it to compile, but got:\n{text}")
        elif not expected:
            problems.append(f"{name}: expected a line '// expects: <regex>'")
        elif not text:
            problems.append(f"{name}: expected an error, but it compiles")
        elif not re.search(expected, text):
            problems.append(f"{name}: expected an error with '{expected}', but got:\n{text}")
        elif count > MAX_LINES:
            problems.append(f"{name}: expected at most {MAX_LINES} lines of errors, but got {count}:\n{text}")
    sys.exit("\n\n".join(problems) or 0)


if __name__ == "__main__":
    main()
