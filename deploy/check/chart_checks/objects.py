"""One render to look things up in, and what the programs know."""

import functools
import os
import pathlib
import re
import subprocess

from . import render

WORKLOADS = ("Deployment", "DaemonSet")
PROGRAM = {"gateway": "gpu-gateway", "agent": "gpu-agent"}
COMMAND = {"gateway": "serve", "agent": "run"}
# What else is called in the same container, with its variables.
INSIDE = {"gateway": ("check", "explain", "ledger"), "agent": ("doctor", "top")}


def binaries():
    """Where the programs are: $CHART_BIN, or what `cargo build` makes."""
    given = os.environ.get("CHART_BIN")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", render.ROOT / "target"))
    return pathlib.Path(given) if given else target / "debug"


@functools.cache
def help_of(component):
    """The flags that a container's command knows, and the variables that it or another command in that container knows."""
    program = binaries() / PROGRAM[component]
    texts = [subprocess.run([program, command, "--help"], capture_output=True, text=True, check=True).stdout for command in (COMMAND[component], *INSIDE[component])]
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", texts[0])), set(re.findall(r"\[env: ([A-Z_]+)=", "".join(texts)))


class Render:
    """The objects of one render, to look things up in."""

    def __init__(self, name, documents, values, version):
        self.name, self.documents, self.values, self.version = name, documents, values, version

    def all(self, *kinds):
        return [document for document in self.documents if document["kind"] in kinds]

    def one(self, kind, name, namespace=render.NAMESPACE):
        for document in self.all(kind):
            if document["metadata"]["name"] == name and document["metadata"].get("namespace") == namespace:
                return document
        return None

    def workloads(self):
        """Component, object, pod spec, and its only container."""
        for workload in self.all(*WORKLOADS):
            spec = workload["spec"]["template"]["spec"]
            (container,) = spec["containers"]
            yield container["name"], workload, spec, container

    def pods(self, selector):
        """The components whose pods have these labels."""
        return [component for component, workload, _, _ in self.workloads() if selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()]


def arguments(container):
    """The flags of a container, by name."""
    pairs = [argument.split("=", 1) for argument in container["args"][1:]]
    return {pair[0]: pair[1] if len(pair) == 2 else None for pair in pairs}
