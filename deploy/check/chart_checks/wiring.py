"""Flags, ports, selectors, volumes: what must fit for the programs to start and find each other."""

import json

from . import render
from .objects import COMMAND, arguments, help_of


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
    for component, _, _, container in it.workloads():
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


def mounts_exist(it):
    """Volumes, what they are made of, and the files that flags name."""
    given = json.dumps(it.values)
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
        (token,) = [source["serviceAccountToken"] for volume in specs["agent"]["volumes"] for source in volume.get("projected", {}).get("sources", [])]
        if token["audience"] != gateway["--agent-token-audience"]:
            yield f"the token is for {token['audience']}"
        if gateway["--agent-service-account"] != f"{render.NAMESPACE}/{specs['agent']['serviceAccountName']}":
            yield f"tokens of {gateway['--agent-service-account']} are wanted"
    if (mode == "mtls") is not ("GPU_AGENT_TLS_CERT" in agent):
        yield "the certificate does not fit --agent-auth"


def shutdown_fits(it):
    (drain,) = render.source("gateway/src/app.rs", r"const DRAIN: Duration = Duration::from_secs\((\d+)\)")
    for component, _, spec, container in it.workloads():
        sleep = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        if component == "gateway" and spec["terminationGracePeriodSeconds"] < sleep + int(drain) + 2:
            yield f"the gateway has {spec['terminationGracePeriodSeconds']} s, and needs {sleep} + {drain}"


def labels_are_there(it):
    for document in it.documents:
        labels = document["metadata"].get("labels", {})
        for key, value in it.values["commonLabels"].items():
            if labels.get(key) != value:
                yield f"{document['kind']} {document['metadata']['name']} lacks the label {key}"
        if "app.kubernetes.io/name" not in labels:
            yield f"{document['kind']} {document['metadata']['name']} lacks app.kubernetes.io/name"
