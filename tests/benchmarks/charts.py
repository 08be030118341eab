"""What the charts of all comparisons share. Only drawing needs matplotlib."""
import sys
import textwrap


def pyplot():
    """Returns matplotlib.pyplot, set up so that the same results give the same file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "tessera"
    import matplotlib.pyplot

    return matplotlib.pyplot


def describe(figure, description, title=""):
    """Writes a title and small text above all panels."""
    if title:
        figure.suptitle(title, fontweight="bold")
        figure.supxlabel(textwrap.fill(description, 150), fontsize="x-small", color="dimgray")
    else:
        figure.suptitle(textwrap.fill(description, 140), fontsize="x-small")


def save(figure, path, what):
    """Writes an SVG file, and says where it is. Standard output stays for tables."""
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    print(f"{what}: {path}", file=sys.stderr)
