"""Each rule finds what it is for: faults put into a good render, and the rule that must name them."""

import copy

from . import objects, render, rules, schemas


def container(it, component):
    return next(box for name, _, _, box in it.workloads() if name == component)


def spec(it, component):
    return next(spec for name, _, spec, _ in it.workloads() if name == component)


def rename_flag(it):
    container(it, "gateway")["args"][1] = "--keda-address=0.0.0.0:6000"


def unknown_variable(it):
    container(it, "agent")["env"].append({"name": "GPU_AGENT_GATEWAYS", "value": "x"})


def monitor_devices(it):
    container(it, "agent")["env"].append({"name": "NVIDIA_MIG_MONITOR_DEVICES", "value": "all"})


def other_port(it):
    it.one("Service", "gpu-gateway")["spec"]["ports"][0]["targetPort"] = "grpc"


def other_probe(it):
    container(it, "agent")["readinessProbe"]["httpGet"]["port"] = "metrics"


def other_label(it):
    it.one("Service", "gpu-gateway-agents")["spec"]["selector"]["app.kubernetes.io/component"] = "gpu-gateway"


def other_affinity(it):
    for constraint in spec(it, "gateway")["topologySpreadConstraints"]:
        constraint["labelSelector"]["matchLabels"] = {"app": "gpu-gateway"}


def open_door(it):
    it.one("NetworkPolicy", "gpu-gateway")["spec"]["ingress"][1]["from"] = [{"namespaceSelector": {}}]


def other_secret(it):
    spec(it, "gateway")["volumes"][0]["secret"]["secretName"] = "gateway-tls"


def other_file(it):
    box = container(it, "gateway")
    box["args"] = [argument.replace("tls/tls.key", "tls/key.pem") for argument in box["args"]]


def more_rights(it):
    it.all("ClusterRole")[0]["rules"][0]["verbs"].append("delete")


def fewer_rights(it):
    it.all("ClusterRole")[0]["rules"].pop(1)


def other_image(it):
    container(it, "agent")["image"] = "ghcr.io/keda-gpu-gateway/gpu-agent:latest"


def token_everywhere(it):
    spec(it, "agent")["automountServiceAccountToken"] = True


def capability(it):
    container(it, "agent")["securityContext"]["capabilities"]["add"] = ["SYS_PTRACE"]


def node_reads_key(it):
    spec(it, "agent")["volumes"][0] = {"name": "gateway-ca", "secret": {"secretName": "gpu-gateway-tls"}}


def short_grace(it):
    spec(it, "gateway")["terminationGracePeriodSeconds"] = 10


def other_audience(it):
    container(it, "gateway")["args"].append("--agent-token-audience=api")


def plaintext(it):
    (gateway,) = [entry for entry in container(it, "agent")["env"] if entry["name"] == "GPU_AGENT_GATEWAY"]
    gateway["value"] = gateway["value"].replace("https", "http")


def other_name(it):
    it.all("Service")[0]["metadata"]["name"] = "gateway"


def no_key_for_keda(it):
    (target,) = [t for t in it.all("ClusterTriggerAuthentication")[0]["spec"]["secretTargetRef"] if t["parameter"] == "caCert"]
    target["key"] = "ca.pem"


def no_label(it):
    it.documents[0]["metadata"]["labels"] = {}


def misspelt_field(it):
    spec(it, "gateway")["terminationGraceSeconds"] = 20


def misspelt_kedas_field(it):
    it.all("ClusterTriggerAuthentication")[0]["spec"]["secretRefs"] = []


FAULTS = (
    (rename_flag, "flags_are_known"), (unknown_variable, "flags_are_known"), (monitor_devices, "flags_are_known"),
    (other_port, "ports_fit"), (other_probe, "ports_fit"), (other_label, "ports_fit"),
    (other_affinity, "selectors_match"), (open_door, "only_the_right_ones_come_in"),
    (other_secret, "mounts_exist"), (other_file, "mounts_exist"),
    (more_rights, "rights_are_those_of_the_code"), (fewer_rights, "rights_are_those_of_the_code"),
    (other_image, "images_are_the_releases"), (token_everywhere, "accounts_have_what_they_need"),
    (capability, "privileges_are_few"), (node_reads_key, "privileges_are_few"), (short_grace, "shutdown_fits"),
    (other_audience, "both_sides_agree"), (plaintext, "both_sides_agree"), (other_name, "certificate_has_every_name"),
    (no_key_for_keda, "keda_is_told"), (no_label, "labels_are_there"),
    (misspelt_field, "schemas"), (misspelt_kedas_field, "schemas"),
)  # fmt: skip


def problems():
    """Faults that are not found."""
    path, version = render.VALUES / "tls-keda-generated.yaml", render.VERSIONS[0]
    good, values = render.documents(render.text([path])), render.merged(path)
    known, by_name = schemas.crds(), {rule.__name__: rule for rule in rules.RULES}
    for fault, rule in FAULTS:
        it = objects.Render("fault", copy.deepcopy(good), values, version)
        fault(it)
        found = schemas.problems(it.documents, version, known) if rule == "schemas" else by_name[rule](it)
        if not list(found):
            yield f"{rule} does not see {fault.__name__}"
    unseen = set(by_name) - {rule for _, rule in FAULTS}
    for rule in sorted(unseen):
        yield f"{rule} is tried with no fault"
