"""NOTES.txt, as an installation shows it."""

import os
import pathlib
import tempfile

from . import cluster, render

LEVEL = "pod-security.kubernetes.io/enforce"
LABEL, NO_KEDA, NO_RUNTIME = f"{LEVEL}=privileged", "there is no namespace keda", "there is no RuntimeClass nvidia"
NODES, PRESENT = "/api/v1/nodes", "nvidia.com/gpu.present"
NO_GPU_NODE = f"no node has the label {PRESENT}=true"
ADDRESS = "scalerAddress: gpu-gateway.gpu-scaler.svc.cluster.local:6000"


def said(server, *sets):
    """What an installation says in a cluster."""
    with tempfile.TemporaryDirectory() as folder:
        config = server.kubeconfig(pathlib.Path(folder, "config"))
        env = {**os.environ, "KUBECONFIG": str(config), "HOME": folder}
        files = [part for name in sets for part in ("--values", render.VALUES / f"{name}.yaml")]
        flags = ["--namespace", render.NAMESPACE, "--dry-run=server", "--disable-openapi-validation", *files]
        return render.helm("install", render.RELEASE, render.CHART, *flags, env=env).split("NOTES:")[1]


def problems():
    """What is said and should not be, and the other way round."""
    cases = {
        "a new namespace, no KEDA, no NVIDIA runtime": ([], {}, [LABEL, NO_KEDA, NO_RUNTIME, NO_GPU_NODE, "1. Let", "2. Wait", "3. Point"]),
        "everything there": (
            ["/api/v1/namespaces/keda", "/apis/node.k8s.io/v1/runtimeclasses/nvidia", f"{NODES}/gpu"],
            {LEVEL: "privileged"},
            ["1. Wait", "2. Point"],
        ),
        "a level that keeps agents out": ([f"{NODES}/gpu"], {LEVEL: "restricted"}, [LABEL, "enforces `restricted`", NO_KEDA, NO_RUNTIME]),
    }
    for name, (paths, labels, wanted) in cases.items():
        server = cluster.ApiServer()
        try:
            server.has_plain(f"{NODES}/control", **{PRESENT: "false"})
            for path in ["/api/v1/namespaces/kube-system", *paths]:
                server.has_plain(path, **({PRESENT: "true"} if path.startswith(NODES) else {}))
            if labels:
                server.has_plain(f"/api/v1/namespaces/{render.NAMESPACE}", **labels)
            text = said(server)
            for word in [ADDRESS, *wanted]:
                if word not in text:
                    yield f"{name}: {word!r} is not said"
            for word in {LABEL, NO_KEDA, NO_RUNTIME, NO_GPU_NODE} - set(wanted):
                if word in text:
                    yield f"{name}: {word!r} is said"
            for word, values in (("privileged container", "host-mounts"), ("authenticationRef", "tls-keda-generated"), ("can scale any workload", "auth-none")):
                if word in text or word not in said(server, values):
                    yield f"{name}: {word!r} is not for {values} only"
            if NO_GPU_NODE in said(server, "minimal"):
                yield f"{name}: {NO_GPU_NODE!r} is said where agents do not ask for the label"
        except render.Refused as refused:
            yield f"{name}: {refused}"
        finally:
            server.stop()
