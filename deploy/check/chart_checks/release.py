"""What depends on the version, the release's name, and the cluster."""

import itertools
import re

import yaml

from . import render, schemas
from .objects import PROGRAM

RELEASE = render.ROOT / ".github/workflows/release.yml"


def images_are_the_releases(it):
    meta, image = render.meta(), it.values["image"]
    (crate,) = render.source("Cargo.toml", r'\[workspace\.package\]\s*version = "([^"]+)"')
    if not meta["version"] == meta["appVersion"] == crate:
        yield f"Chart.yaml has {meta['version']} and {meta['appVersion']}, the workspace {crate}"
    digests = {component: image["digests"][component] for component in PROGRAM}
    ends = {component: f"@{digest}" if digest else f":{image['tag'] or crate}" for component, digest in digests.items()}
    expected = {f"{image['registry']}/{image['repository']}/{name}{ends[component]}" for component, name in PROGRAM.items()}
    found = {container["image"] for _, _, _, container in it.workloads()}
    if found != expected:
        yield f"images are {found}"
    if RELEASE.exists() and it.values["image"] == default_image():
        pushed = set(pushed_images(crate))
        if not found <= pushed:
            yield f"{found - pushed} are not among what the release workflow pushes: {pushed}"


def default_image():
    return yaml.safe_load((render.CHART / "values.yaml").read_text())["image"]


def pushed_images(version):
    """The tags that the release workflow gives images of a version."""
    workflow = yaml.safe_load(RELEASE.read_text())
    for job in workflow["jobs"].values():
        matrix = {key: value for key, value in job.get("strategy", {}).get("matrix", {}).items() if isinstance(value, list)}
        tags = [step["with"]["tags"] for step in job.get("steps", []) if "tags" in step.get("with", {})]
        for tag in [line.strip() for text in tags for line in text.splitlines() if line.strip()]:
            for chosen in itertools.product(*matrix.values()):
                known = {f"env.{key}": value for key, value in workflow.get("env", {}).items()}
                known |= {f"matrix.{key}": value for key, value in zip(matrix, chosen, strict=True)}
                known["needs.version.outputs.version"] = version
                name = tag
                for key, value in known.items():
                    name = re.sub(r"\$\{\{ *" + re.escape(key) + r" *\}\}", str(value), name)
                yield name


def other_releases():
    """Names under another release, what certain clusters get, and that nothing asks for kinds that a cluster may lack."""
    path = render.VALUES / "defaults.yaml"
    for name, namespace in (("whatever", render.NAMESPACE), ("x", "elsewhere"), ("7", "123")):
        documents = render.documents(render.text([path], release=name, namespace=namespace))
        yield from schemas.problems(documents, render.VERSIONS[0], {})
        services = {(d["metadata"]["namespace"], d["metadata"]["name"]) for d in documents if d["kind"] == "Service"}
        if services != {(namespace, "gpu-gateway"), (namespace, "gpu-gateway-agents")}:
            yield f"release {name} in {namespace} has the Services {services}"
    two = [render.documents(render.text([path], namespace=namespace)) for namespace in ("one", "two")]
    ids = [{(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in each} for each in two]
    if shared := ids[0] & ids[1]:
        yield f"two releases in two namespaces share {shared}"
    kinds = {d["kind"] for d in render.documents(render.text([path], version="1.33.1-gke.1000"))}
    if "ResourceQuota" not in kinds:
        yield "GKE gets no ResourceQuota, without which it runs no critical pods here"
    for name in ("defaults", "no-crds", "minimal"):
        for document in render.documents(render.text([render.VALUES / f"{name}.yaml"])):
            if "." in document["apiVersion"] and not document["apiVersion"].split("/")[0].endswith(".k8s.io"):
                yield f"{name}: {document['kind']} is a kind that a cluster may lack"
    sleeps = ["sleep:" in render.text([path], version=version) for version in ("1.29.9", "1.30.0")]
    if sleeps != [False, True]:
        yield f"a sleep before the end, which 1.30 is the first to know: {sleeps}"
