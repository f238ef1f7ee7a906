"""What must hold between the objects of a render, and between them and the programs."""

import base64
import functools
import os
import pathlib
import re
import subprocess
import tempfile

from . import render

WORKLOADS = ("Deployment", "DaemonSet")
PROGRAM = {"gateway": "gpu-gateway", "agent": "gpu-agent"}
COMMAND = {"gateway": "serve", "agent": "run"}


def binaries():
    """Where the programs are: $CHART_BIN, or what `cargo build` makes."""
    given = os.environ.get("CHART_BIN")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", render.ROOT / "target"))
    return pathlib.Path(given) if given else target / "debug"


@functools.cache
def help_of(component):
    """The flags and variables that a program knows."""
    program = binaries() / PROGRAM[component]
    text = subprocess.run([program, COMMAND[component], "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)), set(re.findall(r"\[env: ([A-Z_]+)=", text))


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
        return [
            component
            for component, workload, _, _ in self.workloads()
            if selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        ]


def arguments(container):
    """The flags of a container, by name."""
    pairs = [argument.split("=", 1) for argument in container["args"][1:]]
    return {pair[0]: pair[1] if len(pair) == 2 else None for pair in pairs}


def flags_are_known(it):
    for component, _, _, container in it.workloads():
        flags, variables = help_of(component)
        if container["args"][0] != COMMAND[component]:
            yield f"{component} is started with {container['args'][0]!r}"
        for flag in arguments(container):
            if flag not in flags:
                yield f"{component} does not know {flag}"
        for variable in container.get("env", []):
            name = variable["name"]
            # NODE_NAME is the agent's too, but not in its help; NVIDIA_… is the container runtime's.
            if name not in variables and name != "NODE_NAME" and not name.startswith("NVIDIA_"):
                yield f"{component} does not know the variable {name}"
            # NVIDIA's runtime ends the start of any other container that has it.
            if name == "NVIDIA_MIG_MONITOR_DEVICES" and "SYS_ADMIN" not in container["securityContext"]["capabilities"].get("add", []):
                yield f"{component} has {name} without SYS_ADMIN"


def ports_fit(it):
    listens = {}
    for component, workload, _, container in it.workloads():
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        probes = [container[probe] for probe in ("startupProbe", "livenessProbe", "readinessProbe") if probe in container]
        probed = {probe["httpGet"]["port"] for probe in probes}
        served = set()
        for service in it.all("Service"):
            if component in it.pods(service["spec"].get("selector", {"": ""})):
                targets = {port["targetPort"] for port in service["spec"]["ports"]}
                served |= targets
                for target in targets - set(ports):
                    yield f"Service {service['metadata']['name']}: {component} has no port {target}"
        for unknown in probed - set(ports):
            yield f"{component}: a probe of the unknown port {unknown}"
        for lonely in set(ports) - served - probed:
            yield f"{component}: port {lonely} is in no Service and no probe"
        told = {**arguments(container), **{v["name"]: v.get("value") for v in container.get("env", [])}}
        said = {key: int(value.rsplit(":", 1)[1]) for key, value in told.items() if key.endswith(("-listen", "_LISTEN"))}
        if sorted(said.values()) != sorted(ports.values()):
            yield f"{component} listens at {said}, its ports are {ports}"
        if probes and len(probes) != 3:
            yield f"{component} has {len(probes)} probes"
        listens[component] = set(ports.values())
    for service in it.all("Service"):
        if service["spec"]["type"] != "ExternalName" and len(it.pods(service["spec"]["selector"])) != 1:
            yield f"Service {service['metadata']['name']} does not select the pods of one workload"
    for monitor in it.all("ServiceMonitor", "PodMonitor"):
        spec = monitor["spec"]
        chosen = spec["selector"]["matchLabels"].items()
        if monitor["kind"] == "ServiceMonitor":
            services = [s for s in it.all("Service") if chosen <= s["metadata"]["labels"].items()]
            names = [port["name"] for s in services for port in s["spec"]["ports"]]
        else:
            names = [p["name"] for c, w, _, x in it.workloads() if c in it.pods(dict(chosen)) for p in x.get("ports", [])]
        for endpoint in spec.get("endpoints", []) + spec.get("podMetricsEndpoints", []):
            if names.count(endpoint["port"]) != 1:
                yield f"{monitor['kind']} finds port {endpoint['port']} {names.count(endpoint['port'])} times"
    for policy in it.all("NetworkPolicy"):
        (component,) = it.pods(policy["spec"]["podSelector"]["matchLabels"])
        allowed = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        for port in allowed - listens[component]:
            yield f"NetworkPolicy {policy['metadata']['name']}: {component} has no port {port}"


def selectors_match(it):
    def pod_selectors(node):
        """Every label selector in affinities, spread constraints and policies."""
        if isinstance(node, dict):
            for key, child in node.items():
                if key in ("labelSelector", "podSelector") and child:
                    yield child["matchLabels"]
                else:
                    yield from pod_selectors(child)
        elif isinstance(node, list):
            for child in node:
                yield from pod_selectors(child)

    for component, workload, spec, _ in it.workloads():
        selector = workload["spec"]["selector"]["matchLabels"]
        if it.pods(selector) != [component]:
            yield f"{component}: its selector chooses the pods of {it.pods(selector)}"
        for part in (spec.get("affinity"), spec.get("topologySpreadConstraints")):
            for chosen in pod_selectors(part):
                if it.pods(chosen) != [component]:
                    yield f"{component}: {chosen} chooses the pods of {it.pods(chosen)}"
    for budget in it.all("PodDisruptionBudget"):
        if it.pods(budget["spec"]["selector"]["matchLabels"]) != ["gateway"]:
            yield "the PodDisruptionBudget is not the gateway's"
    given = it.values["networkPolicy"]
    for policy in it.all("NetworkPolicy"):
        peers = [peer for rule in policy["spec"]["ingress"] for peer in rule["from"]]
        own = [peer for peer in peers if peer not in given["httpFrom"] and peer not in given["kedaFrom"]]
        for chosen in pod_selectors(own):
            if it.pods(chosen) != ["agent"]:
                yield f"NetworkPolicy: {chosen} chooses the pods of {it.pods(chosen)}"


def only_the_right_ones_come_in(it):
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in it.all("NetworkPolicy")}
    if not policies:
        if it.values["networkPolicy"]["enabled"]:
            yield "no NetworkPolicy"
        return
    peers = {port["port"]: rule["from"] for rule in policies["gpu-gateway"]["ingress"] for port in rule["ports"]}
    keda = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": it.values["keda"]["namespace"]}}}
    if peers[6000] != [keda, *it.values["networkPolicy"]["kedaFrom"]]:
        yield f"KEDA's port is open for {peers[6000]}"
    if [list(peer) for peer in peers[6001]] != [["podSelector"]]:
        yield f"the agents' port is open for {peers[6001]}"
    if any(spec["policyTypes"] != ["Ingress"] for spec in policies.values()):
        yield "a NetworkPolicy limits what goes out"


def mounts_exist(it):
    """Volumes, what they are made of, and the files that flags name."""
    given = render_text(it.values)
    certificates = {c["spec"]["secretName"] for c in it.all("Certificate") if c["metadata"]["namespace"] == render.NAMESPACE}
    for component, _, spec, container in it.workloads():
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        mounts = container.get("volumeMounts", [])
        if set(volumes) != {mount["name"] for mount in mounts} or len(volumes) != len(spec.get("volumes", [])):
            yield f"{component}: volumes {sorted(volumes)} are mounted as {[mount['name'] for mount in mounts]}"
            continue
        files = set()
        for mount in mounts:
            volume = volumes[mount["name"]]
            for kind, key in (("secret", "secretName"), ("configMap", "name")):
                if kind not in volume:
                    continue
                name = volume[kind][key]
                made = it.one({"secret": "Secret", "configMap": "ConfigMap"}[kind], name)
                items = {item["key"]: item["path"] for item in volume[kind].get("items", [])}
                if made:
                    items = items or {entry: entry for entry in made["data"]}
                    for missing in set(items) - set(made["data"]):
                        yield f"{component}: {kind} {name} has no {missing}"
                elif not (kind == "secret" and name in certificates) and f'"{name}"' not in given:
                    yield f"{component}: nobody makes the {kind} {name}"
                files |= {f"{mount['mountPath']}/{path}" for path in items.values()}
            for source in volume.get("projected", {}).get("sources", []):
                files.add(f"{mount['mountPath']}/{source['serviceAccountToken']['path']}")
        told = list(arguments(container).values()) + [v.get("value") for v in container.get("env", [])]
        for path in [(value or "").removeprefix("file:") for value in told]:
            if path.startswith("/etc/") and "certificate/" not in path and path not in files:
                yield f"{component}: {path} is in no volume"
        unused = {path for path in files if path.startswith("/etc/")} - {(value or "").removeprefix("file:") for value in told}
        if unused:
            yield f"{component}: {sorted(unused)} are mounted and not read"


def render_text(values):
    import json

    return json.dumps(values)


def rights_are_those_of_the_code(it):
    path = "gateway/src/directory/kube/access.rs"
    calls = set(render.source(path, r'\n    \("([^"]*)", "([^"]+)", "([^"]+)"\),'))
    (review,) = render.source(path, r'TOKEN_REVIEW.*?= \("([^"]+)", "([^"]+)", "([^"]+)"\)')
    cluster_only = {call for call in calls if call[1] == "resourceslices"}
    scale = {call for call in calls if call[1] == "*/scale"}
    chosen = {
        (group, resource, "get") for rule in it.values["rbac"]["scaleRules"] for group in rule["apiGroups"] for resource in rule["resources"]
    }
    watched = (calls - cluster_only - scale) | chosen
    reads, only = it.values["gateway"]["directory"] == "kube", list(it.values["gateway"]["namespaces"])
    reviews = it.values["agentAuth"]["mode"] == "token"
    # Before 1.30 a token names its pod only, whose node the gateway must know.
    if only and reviews and tuple(map(int, it.version.split(".")[:2])) < (1, 30):
        only.append(render.NAMESPACE)
    expected = {"": (cluster_only if reads else set()) | ({review} if reviews else set())}
    if reads and not only:
        expected[""] |= watched
    expected |= {namespace: watched for namespace in only}
    granted = {}
    for role in it.all("ClusterRole", "Role"):
        rules = {(g, r, v) for rule in role["rules"] for g in rule["apiGroups"] for r in rule["resources"] for v in rule["verbs"]}
        granted[role["metadata"].get("namespace", "")] = rules
    if granted != {where: rules for where, rules in expected.items() if rules}:
        yield f"granted is {granted}, called is {expected}"
    for binding in it.all("ClusterRoleBinding", "RoleBinding"):
        where, role = binding["metadata"].get("namespace"), binding["roleRef"]
        if not it.one(role["kind"], role["name"], where):
            yield f"{binding['kind']} {binding['metadata']['name']} binds a role that is not there"
        subjects = [(subject["namespace"], subject["name"]) for subject in binding["subjects"]]
        if subjects != [(render.NAMESPACE, it.values["gateway"]["serviceAccount"]["name"])]:
            yield f"{binding['kind']} is for {subjects}"
    if len(it.all("ClusterRoleBinding", "RoleBinding")) != len(it.all("ClusterRole", "Role")):
        yield "a role is bound by nobody"
    (container,) = [container for component, _, _, container in it.workloads() if component == "gateway"]
    told = arguments(container).get("--namespaces")
    if (told.split(",") if told else []) != only:
        yield f"--namespaces is {told}, Roles are in {only}"


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
    release = render.ROOT / ".github/workflows/release.yml"
    if release.exists():
        for name in PROGRAM.values():
            if name not in release.read_text():
                yield f"the release workflow pushes no {name}"


def accounts_have_what_they_need(it):
    for account in it.all("ServiceAccount"):
        if account.get("automountServiceAccountToken") is not False:
            yield f"ServiceAccount {account['metadata']['name']} mounts a token everywhere"
    needs = it.values["gateway"]["directory"] == "kube" or it.values["agentAuth"]["mode"] == "token"
    for component, _, spec, _ in it.workloads():
        if spec["automountServiceAccountToken"] is not (component == "gateway" and needs):
            yield f"{component}: automountServiceAccountToken is {spec['automountServiceAccountToken']}"
        if not it.one("ServiceAccount", spec["serviceAccountName"]):
            yield f"{component}: no ServiceAccount {spec['serviceAccountName']}"


def privileges_are_few(it):
    for component, _, spec, container in it.workloads():
        context, values = container["securityContext"], it.values
        if spec.get("hostNetwork") or spec.get("hostIPC"):
            yield f"{component} is in the node's network or IPC"
        if context.get("readOnlyRootFilesystem") is not True:
            yield f"{component} writes its root"
        privileged = component == "agent" and values["nvmlHostMounts"]["enabled"]
        if context.get("privileged", False) is not privileged:
            yield f"{component}: privileged is {context.get('privileged')}"
        added = values["agent"]["addCapabilities"] if component == "agent" else []
        if not privileged and context["capabilities"] != {"drop": ["ALL"], **({"add": added} if added else {})}:
            yield f"{component} has {context['capabilities']}"
        if not privileged and not added and context["allowPrivilegeEscalation"] is not False:
            yield f"{component} may gain privileges"
        real = component == "agent" and values["agent"]["source"] == "nvml"
        if spec.get("hostPID", False) is not (real and values["agent"]["hostPID"]):
            yield f"{component}: hostPID is {spec.get('hostPID')}"
        if not real and {**spec.get("securityContext", {}), **context}.get("runAsNonRoot") is not True:
            yield f"{component} may be root"
        own = [volume for volume in spec.get("volumes", []) if volume not in values.get(component, {}).get("extraVolumes", [])]
        host = {volume["hostPath"]["path"] for volume in own if "hostPath" in volume}
        allowed = {values["agent"]["podResourcesPath"]} if real else set()
        if privileged:
            allowed |= {"/dev", values["nvmlHostMounts"]["libraryPath"]}
        if values["agentAuth"]["mode"] == "mtls" and component == "agent":
            allowed |= {"/etc/gpu-agent"}
        if host != allowed:
            yield f"{component} mounts {host} of the node"
        secrets = {volume["secret"]["secretName"] for volume in own if "secret" in volume}
        if component == "agent" and secrets & {"gpu-gateway-tls", "gpu-gateway-ca"}:
            yield "every GPU node can read the gateway's private key"


def shutdown_fits(it):
    (drain,) = render.source("gateway/src/app.rs", r"const DRAIN: Duration = Duration::from_secs\((\d+)\)")
    for component, _, spec, container in it.workloads():
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if component == "gateway" and spec["terminationGracePeriodSeconds"] < sleep + int(drain) + 2:
            yield f"the gateway has {spec['terminationGracePeriodSeconds']} s, and needs {sleep} + {drain}"


def both_sides_agree(it):
    """Address, scheme, token and names, at the agent and at the gateway."""
    containers = {component: container for component, _, _, container in it.workloads()}
    specs = {component: spec for component, _, spec, _ in it.workloads()}
    gateway = arguments(containers["gateway"])
    agent = {variable["name"]: variable.get("value") for variable in containers["agent"]["env"]}
    scheme, rest = agent["GPU_AGENT_GATEWAY"].split("://")
    host, port = rest.rsplit(":", 1)
    service = it.one("Service", host.split(".")[0])
    if not service or service["spec"].get("clusterIP") != "None" or not service["spec"].get("publishNotReadyAddresses"):
        yield f"agents push to {host}, which is no headless Service with addresses that are not ready"
    elif [entry["port"] for entry in service["spec"]["ports"]] != [int(port)]:
        yield f"agents push to port {port}"
    if (scheme == "https") is not ("--agent-tls-cert" in gateway):
        yield f"agents speak {scheme}"
    if (scheme == "https") is not ("GPU_AGENT_GATEWAY_CA" in agent):
        yield "the CA does not fit the scheme"
    mode = gateway["--agent-auth"]
    if (mode == "token") is not ("GPU_AGENT_TOKEN_FILE" in agent):
        yield "the token does not fit --agent-auth"
    if mode == "token":
        (token,) = [
            source["serviceAccountToken"]
            for volume in specs["agent"]["volumes"]
            for source in volume.get("projected", {}).get("sources", [])
        ]
        if token["audience"] != gateway["--agent-token-audience"]:
            yield f"the token is for {token['audience']}"
        if gateway["--agent-service-account"] != f"{render.NAMESPACE}/{specs['agent']['serviceAccountName']}":
            yield f"tokens of {gateway['--agent-service-account']} are wanted"
    if (mode == "mtls") is not ("GPU_AGENT_TLS_CERT" in agent):
        yield "the certificate does not fit --agent-auth"


def certificate_has_every_name(it):
    """Generated: openssl verifies it for every Service. cert-manager: the names are asked for."""
    wanted = set(it.values["tls"]["extraDNSNames"])
    domain = it.values["clusterDomain"]
    for service in it.all("Service"):
        name = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
        wanted |= {f"{name}.svc", f"{name}.svc.{domain}"}
    for certificate in it.all("Certificate"):
        if certificate["metadata"]["name"] == "gpu-gateway" and not wanted <= set(certificate["spec"]["dnsNames"]):
            yield f"the Certificate lacks {wanted - set(certificate['spec']['dnsNames'])}"
    made = it.one("Secret", "gpu-gateway-tls")
    if not made:
        return
    with tempfile.TemporaryDirectory() as folder:
        ca, own = pathlib.Path(folder, "ca.crt"), pathlib.Path(folder, "tls.crt")
        ca.write_text(it.one("ConfigMap", "gpu-gateway-ca")["data"]["ca.crt"])
        own.write_bytes(base64.b64decode(made["data"]["tls.crt"]))
        for name in sorted(wanted):
            verify = ["openssl", "verify", "-purpose", "sslserver", "-verify_hostname", name, "-CAfile", ca, own]
            done = subprocess.run(verify, capture_output=True, text=True)
            if done.returncode != 0:
                yield f"the certificate is not good for {name}: {done.stderr.strip()}"


def keda_is_told(it):
    """The ClusterTriggerAuthentication names keys of a Secret in KEDA's namespace."""
    for authentication in it.all("ClusterTriggerAuthentication"):
        targets = {target["parameter"]: target for target in authentication["spec"]["secretTargetRef"]}
        wanted = {"caCert"} | ({"tlsClientCert", "tlsClientKey"} if it.values["keda"]["tls"]["clientAuth"] else set())
        if set(targets) != wanted:
            yield f"KEDA is told {sorted(targets)}"
        keda = it.values["keda"]["namespace"]
        for target in targets.values():
            secret = it.one("Secret", target["name"], keda)
            made = any(c["spec"]["secretName"] == target["name"] and c["metadata"]["namespace"] == keda for c in it.all("Certificate"))
            given = f'"{target["name"]}"' in render_text(it.values)
            if not (secret and target["key"] in secret["data"]) and not made and not given:
                yield f"Secret {target['name']} of {keda} has no {target['key']}"


def labels_are_there(it):
    for document in it.documents:
        labels = document["metadata"].get("labels", {})
        for key, value in it.values["commonLabels"].items():
            if labels.get(key) != value:
                yield f"{document['kind']} {document['metadata']['name']} lacks the label {key}"
        if "app.kubernetes.io/name" not in labels:
            yield f"{document['kind']} {document['metadata']['name']} lacks app.kubernetes.io/name"


RULES = (
    flags_are_known, ports_fit, selectors_match, only_the_right_ones_come_in, mounts_exist, rights_are_those_of_the_code,
    images_are_the_releases, accounts_have_what_they_need, privileges_are_few, shutdown_fits, both_sides_agree,
    certificate_has_every_name, keda_is_told, labels_are_there,
)  # fmt: skip


def problems(it, except_for=()):
    """Everything that does not hold in a render; rules named in `except_for` are left out."""
    for rule in RULES:
        for problem in rule(it) if rule.__name__ not in except_for else ():
            yield f"{rule.__name__}: {problem}"


def other_releases():
    """Names under another release, what certain clusters get, and that nothing asks for kinds that a cluster may lack."""
    path = render.VALUES / "defaults.yaml"
    for name, namespace in (("whatever", render.NAMESPACE), ("x", "elsewhere")):
        documents = render.documents(render.text([path], release=name, namespace=namespace))
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
