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
CONTEXT = re.compile(
    r"In file included from |\s+from \S+:\d+|\S+: (?:In|At) |\S+:\d+:\d+:\s+(?:recursively |required |in )"
)


def make_unit(programs):
    """All headers, then each program in a namespace."""
    includes = {line for text in programs.values() for line in text.splitlines() if line.startswith("#include")}
    parts = [f'namespace {name} {{\n#include "{ROOT}/tests/misuse/{name}.cpp"\n}}\n' for name in programs]
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


def assign_errors(errors, expected):
    """The lines of the errors of each program, and the errors that belong to none."""
    lines = {name: [] for name in expected}
    unnamed = []
    for error in errors:
        named = re.search(r"tests/misuse/(\w+)\.cpp", "\n".join(error))
        if named:
            lines[named.group(1)] += error
        else:
            unnamed.append(error)
    # GCC names no program for a constructor that a class inherits. The error belongs to one that lacks it.
    others = []
    for error in unnamed:
        text = "\n".join(error)
        lacking = (name for name, regex in expected.items() if regex and not lines[name] and re.search(regex, text))
        name = next(lacking, None)
        if name:
            lines[name] += error
        else:
            others.append(text)
    return lines, others


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("compiler")
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    programs = {file.stem: file.read_text() for file in sorted((ROOT / "tests/misuse").glob("*.cpp"))}
    if "correct" not in programs:
        sys.exit(f"expected programs in {ROOT}/tests/misuse, and correct.cpp among them")
    includes = [f"-I{folder}" for folder in (ROOT / "include", *ROOT.glob("packages/*/include"), ROOT)]
    command = [options.compiler, "-std=c++20", "-fsyntax-only", "-w", *includes, *options.flags]
    if "clang" in options.compiler:
        command.append("-ferror-limit=0")
    with tempfile.TemporaryDirectory() as folder:
        unit = pathlib.Path(folder) / "programs.cpp"
        unit.write_text(make_unit(programs))
        result = subprocess.run([*command, unit], stderr=subprocess.PIPE, text=True, env=os.environ | {"LC_ALL": "C"})

    found = {name: re.search("// expects: (.*)", text) for name, text in programs.items()}
    expectations = {name: match and match.group(1) for name, match in found.items()}
    lines, others = assign_errors(split_errors(result.stderr), expectations)
    problems = [f"expected errors in the programs only, but got:\n{text}" for text in others]
    for name, expected in expectations.items():
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
