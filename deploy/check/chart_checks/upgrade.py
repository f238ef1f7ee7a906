"""A generated certificate through upgrades: kept where nothing changed, issued anew by the same CA where it must be."""

import copy
import os
import pathlib
import tempfile

from . import cluster, objects, render, trust

TLS = {"keda": {"tls": {"enabled": True, "clientAuth": True}}}


def secrets(documents):
    """The data of every Secret and ConfigMap, by kind and name."""
    return {(d["kind"], d["metadata"]["name"]): d["data"] for d in documents if d["kind"] in ("Secret", "ConfigMap")}


def problems():
    """What an upgrade does that it should not."""
    server = cluster.ApiServer()
    with tempfile.TemporaryDirectory() as folder:
        config = server.kubeconfig(pathlib.Path(folder, "config"))
        # Its own home, so that no plugin or repository of this machine plays a part.
        env = {**os.environ, "KUBECONFIG": str(config), "HOME": folder}

        def installed(values):
            return render.documents(render.text([TLS, values], flags=["--dry-run=server", "--disable-openapi-validation"], env=env))

        def applied(documents):
            for document in documents:
                if document["kind"] in ("Secret", "ConfigMap"):
                    server.has(document)

        try:
            first = installed({})
            if secrets(first) == secrets(installed({})):
                yield "two first installs share a key"
            applied(first)
            if secrets(installed({})) != secrets(first):
                yield "an upgrade changes a certificate though nothing changed"
            yield from renewed(first, installed({"tls": {"extraDNSNames": ["more.example.com"]}}), "further names")
            yield from renewed(first, installed({"tls": {"generated": {"generation": 2}}}), "tls.generated.generation")
            old = copy.deepcopy(first)
            for document in old:
                notes = document["metadata"].get("annotations", {})
                if "gpu-gateway/issued" in notes:
                    notes["gpu-gateway/issued"] = str(int(notes["gpu-gateway/issued"]) - 1826 * 86400)
            applied(old)
            yield from renewed(first, installed({}), "half of its time")
        except render.Refused as refused:
            yield f"helm: {refused}"
        finally:
            server.stop()


def renewed(first, documents, why):
    """What is wrong with a renewal: the CA must stay, and the new certificate be good."""
    before, after = secrets(first), secrets(documents)
    for kept in (("Secret", "gpu-gateway-ca"), ("ConfigMap", "gpu-gateway-ca"), ("ConfigMap", "gpu-gateway-keda-client-ca")):
        if before[kept] != after[kept]:
            yield f"{why}: {kept[1]} changes"
    if before["Secret", "gpu-gateway-tls"] == after["Secret", "gpu-gateway-tls"]:
        yield f"{why}: the certificate is not renewed"
    values = render.merged(render.VALUES / "defaults.yaml")
    values["keda"]["tls"] |= TLS["keda"]["tls"]
    it = objects.Render("renewed", documents, values, render.VERSIONS[0])
    for problem in trust.certificate_has_every_name(it):
        yield f"{why}: {problem}"
