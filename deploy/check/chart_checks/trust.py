"""Who may do what: networks, rights, privileges, certificates."""

import base64
import json
import pathlib
import subprocess
import tempfile

from . import render
from .objects import arguments


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


def rights_are_those_of_the_code(it):
    path = "gateway/src/directory/kube/access.rs"
    calls = set(render.source(path, r'\n    \("([^"]*)", "([^"]+)", "([^"]+)"\),'))
    (review,) = render.source(path, r'TOKEN_REVIEW.*?= \("([^"]+)", "([^"]+)", "([^"]+)"\)')
    cluster_only = {call for call in calls if call[1] == "resourceslices"}
    scale = {call for call in calls if call[1] == "*/scale"}
    chosen = {(group, resource, "get") for rule in it.values["rbac"]["scaleRules"] for group in rule["apiGroups"] for resource in rule["resources"]}
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
        chosen = values[component].get("podSecurityContext", True)
        if not real and chosen and {**spec.get("securityContext", {}), **context}.get("runAsNonRoot") is not True:
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
            given = f'"{target["name"]}"' in json.dumps(it.values)
            if not (secret and target["key"] in secret["data"]) and not made and not given:
                yield f"Secret {target['name']} of {keda} has no {target['key']}"
