"""The table in the chart's README, made of values.yaml: one row a value, with its comment and default."""

import json

import yaml

from . import render

README = render.CHART / "README.md"
BEGIN, END = "<!-- values: begin -->\n", "<!-- values: end -->\n"


def described():
    """Path, comment and whether keys below have comments too, for every commented line of values.yaml."""
    path, comment, found = [], [], []
    for line in (render.CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.lstrip("# "))
            continue
        key = text.split(":", 1)[0]
        depth = (len(line) - len(text)) // 2
        if text and not text.startswith("- ") and key.replace("-", "").isalnum():
            path = [*path[:depth], key]
            found.append((tuple(path), " ".join(comment)))
        comment = []
    return found


def rows():
    """Path, default and comment of each value; raises where a value has no comment."""
    values = yaml.safe_load((render.CHART / "values.yaml").read_text())
    said = dict(described())
    commented = [path for path, comment in said.items() if comment]

    def walk(node, path):
        below = [other for other in commented if len(other) > len(path) and other[: len(path)] == path]
        if isinstance(node, dict) and node and (below or not path):
            for key, child in node.items():
                yield from walk(child, (*path, key))
        elif not said.get(path):
            raise SystemExit(f"values.yaml: {'.'.join(path)} has no comment")
        else:
            yield path, node, said[path]

    yield from walk(values, ())


def table():
    """The rows, as Markdown."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for path, node, comment in rows():
        default = json.dumps(node, ensure_ascii=False)
        default = "see values.yaml" if len(default) > 60 else f"`{default}`"
        comment = comment.replace("|", "\\|")
        lines.append(f"| `{'.'.join(path)}` | {default} | {comment} |")
    return "\n".join(lines) + "\n"


def filled():
    """The README as it should be."""
    head, rest = README.read_text().split(BEGIN)
    _, tail = rest.split(END)
    return head + BEGIN + table() + END + tail


def problems():
    """Whether the README differs."""
    if README.read_text() != filled():
        yield "deploy/helm/keda-gpu-gateway/README.md: the table is not that of values.yaml; deploy/check/chart --write makes it so"
