"""deploy/manifests: the chart with values for people who apply plain YAML."""

import re
import subprocess

from . import objects, render, rules, schemas

FOLDER = render.ROOT / "deploy/manifests"
# A Secret cannot be in a repository: `certificates` prints one.
VALUES = {
    "tls": {
        "mode": "existing",
        "existing": {"secretName": "gpu-gateway-tls"},
        "agentsCA": {"configMap": "gpu-gateway-ca"},
    }
}
# Helm's own labels, and those that would say that Helm manages it.
HELMS = re.compile(r"^ +(helm\.sh/chart|app\.kubernetes\.io/(managed-by|instance)): .*\n", re.M)
FILES = {
    "ServiceAccount": "rbac",
    "ClusterRole": "rbac",
    "ClusterRoleBinding": "rbac",
    "NetworkPolicy": "network",
    "DaemonSet": "agent",
    "Deployment": "gateway",
    "Service": "gateway",
    "PodDisruptionBudget": "gateway",
}
HEADS = {
    "agent": "The agent on every GPU node. It needs the driver's library, the kubelet's list of who was given which GPU, and,\n"
    "to tell processes of shared GPUs apart, the host's process ids; nothing of the Kubernetes API.",
    "gateway": "The gateway: two replicas, KEDA's Service, and the agents' headless one.",
    "network": "Who reaches the ports: KEDA's namespace (keda), the agents, and for metrics the namespace monitoring.",
    "rbac": "What the gateway may read. It changes nothing. A test compares this with what the code asks for.",
}
NAMESPACE = """\
# keda-gpu-gateway as plain YAML: rendered from deploy/helm/keda-gpu-gateway by deploy/manifests/render, do not edit.
# With Helm everything here can be set; without it:
#
#   kubectl apply -f deploy/manifests/00-namespace.yaml
#   deploy/manifests/certificates | kubectl apply -f -      once: a CA, and the gateway's certificate by it
#   kubectl apply -f deploy/manifests/
#
# KEDA is taken to be in the namespace keda, Prometheus in monitoring (network.yaml). Agents prove their node by a projected token,
# which wants TLS. Where cert-manager and trust-manager are, let them make the Secret gpu-gateway-tls and the ConfigMap gpu-gateway-ca
# instead of the second line.
apiVersion: v1
kind: Namespace
metadata:
  name: gpu-scaler
  labels:
    # Agents read the node: the kubelet's folder of sockets and process ids.
    pod-security.kubernetes.io/enforce: privileged
"""


def files():
    """Name and text of every file."""
    found = {name: [] for name in sorted(set(FILES.values()))}
    rendered = render.text([VALUES])
    for text in re.split(r"^---\n", rendered, flags=re.M):
        text = re.sub(r"^# Source: .*\n", "", text, flags=re.M).strip("\n")
        kind = re.search(r"^kind: (\w+)$", text, re.M)
        if kind:
            found[FILES[kind.group(1)]].append(HELMS.sub("", text + "\n"))
    made = {"00-namespace.yaml": NAMESPACE}
    for name, documents in found.items():
        head = "".join(f"# {line}\n" for line in HEADS[name].splitlines())
        made[f"{name}.yaml"] = head + "# Rendered from the chart by deploy/manifests/render; do not edit.\n" + "---\n".join(documents)
    return made


def write():
    """Writes them."""
    for name, text in files().items():
        (FOLDER / name).write_text(text)


def problems():
    """Where the files differ from the chart."""
    made = files()
    for name, text in made.items():
        path = FOLDER / name
        if not path.exists() or path.read_text() != text:
            yield f"deploy/manifests/{name} is not what the chart gives; deploy/manifests/render makes it so"
    for path in FOLDER.glob("*.yaml"):
        if path.name not in made:
            yield f"deploy/manifests/{path.name} is of nobody"


def certificate_problems():
    """What is wrong with what `certificates` prints, for what the files name."""
    printed = subprocess.run([FOLDER / "certificates"], capture_output=True, text=True)
    if printed.returncode:
        yield printed.stderr
        return
    documents = render.documents(printed.stdout) + [d for text in files().values() for d in render.documents(text)]
    version = render.VERSIONS[0]
    yield from schemas.problems(documents, version, {})
    values = render.merged(render.VALUES / "defaults.yaml")
    yield from rules.problems(objects.Render("manifests", documents, values, version), except_for={"labels_are_there"})
