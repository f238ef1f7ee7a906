"""Renders of the chart, as documents."""

import json
import pathlib
import re
import subprocess
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy/helm/keda-gpu-gateway"
VALUES = ROOT / "deploy/check/values"
NAMESPACE = "gpu-scaler"
RELEASE = "gpu-scaler"
# The newest and the oldest that are tried.
VERSIONS = ("1.33.0", "1.27.0")


class Refused(Exception):
    """Helm does not render these values."""


def helm(*arguments, env=None):
    """What helm prints."""
    done = subprocess.run(["helm", *map(str, arguments)], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        raise Refused(done.stderr.strip())
    return done.stdout


def text(values=(), *, release=RELEASE, namespace=NAMESPACE, version=VERSIONS[0], flags=(), env=None):
    """The rendered chart; `values` are files, and maps that override them."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, each in enumerate(values):
            if isinstance(each, dict):
                path = pathlib.Path(folder) / f"{number}.yaml"
                path.write_text(json.dumps(each))
                each = path
            files += ["--values", each]
        where = ["--namespace", namespace, "--kube-version", version]
        return helm("template", release, CHART, *where, *files, *flags, env=env)


class Once(yaml.SafeLoader):
    """Takes no key twice in a map, where YAML has the last one win."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise Refused(f"{sorted(twice)} twice in one map{node.start_mark}")
        return super().construct_mapping(node, deep)


def documents(rendered):
    """The objects in a text of YAML."""
    return [document for document in yaml.load_all(rendered, Once) if document]


def sets():
    """The sets of values that are tried: their names and files."""
    return {path.stem: path for path in sorted(VALUES.glob("*.yaml"))}


def merged(path):
    """The chart's values with those of a file over them."""

    def over(base, other):
        if isinstance(base, dict) and isinstance(other, dict):
            keys = list(base) + [key for key in other if key not in base]
            return {key: over(base[key], other[key]) if key in base and key in other else other.get(key, base.get(key)) for key in keys}
        # Null takes a default away.
        return {dict: {}, list: [], str: ""}.get(type(base)) if other is None else other

    return over(yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load(path.read_text()) or {})


def meta():
    """Chart.yaml."""
    return yaml.safe_load((CHART / "Chart.yaml").read_text())


def source(path, pattern):
    """What a pattern finds in a file of this repository; it must find something."""
    found = re.findall(pattern, (ROOT / path).read_text(), re.S)
    if not found:
        raise SystemExit(f"{path} has no longer what matches {pattern!r}")
    return found
