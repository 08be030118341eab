#!/usr/bin/env python3
"""Puts the tables of docs/performance/ into docs/performance.md, or checks with --check that the page shows them.

A table is a JSON file, which `./run bench` writes with --table FILE: the command, a sentence about machine and rounds,
the header and the rows. In the page, the table stands between two lines:

  <!-- table: docs/performance/NAME.json -->
  <!-- end table -->
"""
import json
import re
import sys
import textwrap

from benchmark import HERE, Parser, markdown_table

ROOT = HERE.parent.parent
PAGE = ROOT / "docs/performance.md"
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end table -->)", re.DOTALL)


def render(path):
    table = json.loads((ROOT / path).read_text())
    about = textwrap.fill(f"`{table['command']}`: {table['about']}.", 120, break_long_words=False, break_on_hyphens=False)
    return f"{markdown_table(table['header'], table['rows'])}\n\n{about}\n"


def render_page(text):
    return BLOCK.sub(lambda block: block[1] + render(block[2]) + block[3], text)


def main():
    parser = Parser(__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page shows the tables")
    options = parser.parse_args()
    text = PAGE.read_text()
    rendered = render_page(text)
    if options.check and rendered != text:
        sys.exit("docs/performance.md differs from its tables. `./run bench --markdown` copies them into the page.")
    if not options.check:
        PAGE.write_text(rendered)


if __name__ == "__main__":
    main()
