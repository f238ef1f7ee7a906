"""A generated certificate through upgrades: kept where nothing changed, issued anew by the same CA where it must be, and never outliving it."""

import base64
import copy
import datetime
import os
import pathlib
import subprocess
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
            short = {"tls": {"generated": {"validDays": 9, "caValidDays": 10}}}
            server.objects.clear()
            applied(before := installed(short))
            yield from succeeded(before, installed({}), 7000, "tls.generated.caValidDays")
            for why, days in (("a CA without time left", 3651), ("a CA that has ended", 7301), ("a CA of which no end is noted", None)):
                server.objects.clear()
                applied(aged(first, days))
                if days == 3651 and secrets(installed({})) != secrets(first):
                    yield f"{why}: a good certificate is not kept"
                yield from succeeded(first, installed({"tls": {"generated": {"generation": 2}}}), 7000, why)
            applied([{**each, "data": {}} for each in first if each["metadata"]["name"] == "gpu-gateway-ca"])
            yield from outlived(installed({}), "a CA that is gone")
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


def aged(documents, days):
    """The objects as they are days after the CAs were made; None takes the notes of their ends away."""
    documents = copy.deepcopy(documents)
    for document in documents:
        notes = document["metadata"].get("annotations", {})
        for key in [key for key in notes if key.endswith("-ends")]:
            if days is None:
                del notes[key]
            else:
                notes[key] = str(int(notes[key]) - days * 86400)
    return documents


def pairs(documents):
    """Each certificate with the CA it is of, as PEM: the gateway's, and KEDA's."""
    data = {key: {name: base64.b64decode(text) for name, text in each.items()} for key, each in secrets(documents).items() if key[0] == "Secret"}
    ca = data["Secret", "gpu-gateway-ca"]
    client = data["Secret", f"gpu-gateway.{render.NAMESPACE}-keda-client"]
    yield ca["ca.crt"], data["Secret", "gpu-gateway-tls"]["tls.crt"]
    yield ca["keda-client-ca.crt"], client["tls.crt"]


def end(pem):
    """When a certificate ends."""
    said = subprocess.run(["openssl", "x509", "-noout", "-enddate"], input=pem, capture_output=True, check=True).stdout.decode()
    return datetime.datetime.strptime(said.strip(), "notAfter=%b %d %H:%M:%S %Y GMT")


def outlived(documents, why):
    """Certificates that end after their CA, or are not of it."""
    for ca, leaf in pairs(documents):
        if end(leaf) > end(ca):
            yield f"{why}: a certificate ends at {end(leaf)}, its CA at {end(ca)}"
        yield from unverified(ca, leaf, why)


def succeeded(first, documents, days, why):
    """What is wrong with a CA's renewal: it must last so many days, and either CA be good for either certificate, whichever file is read first."""
    yield from outlived(documents, why)
    for (old, before), (new, after) in zip(pairs(first), pairs(documents), strict=True):
        if old == new or (end(new) - datetime.datetime.now()).days < days:
            yield f"{why}: the CA ends at {end(new)}"
        yield from unverified(old, after, f"{why}, the old CA")
        yield from unverified(new, before, f"{why}, the old certificate")


def unverified(ca, leaf, why):
    """What openssl says against a certificate by this CA."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, name) for name in ("ca.crt", "own.crt")]
        for path, pem in zip(paths, (ca, leaf), strict=True):
            path.write_bytes(pem)
        done = subprocess.run(["openssl", "verify", "-CAfile", *paths], capture_output=True, text=True)
        if done.returncode:
            yield f"{why}: {done.stderr.strip()}"
