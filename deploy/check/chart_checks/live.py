"""The programs, started with what is rendered: flags, variables, certificates and tokens as a cluster would give them.

Only what a cluster has and this machine has not is replaced: ports and host names by free ones on loopback, mounted folders by temporary ones, the
GPUs by `sim:`, the API server by one on loopback that knows the agent's token and an empty cluster.
"""

import base64
import itertools
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

from . import cluster, objects, render

# These sets are started; what of theirs nobody renders is made here.
SETS = ("defaults", "minimal", "try-out", "auth-mtls", "tls-keda-generated", "all-on")
NODE, TOKEN, PAGES = "node-a", "a.projected.token", "a-token-of-the-pages"
PATIENCE = 60


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


def authority(folder):
    """A CA, and a certificate of the node by it."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-x509", "-days", "2"]
    openssl("req", *curve, "-keyout", folder / "ca.key", "-out", folder / "ca.crt", "-subj", "/CN=nodes")
    by = ["-CA", folder / "ca.crt", "-CAkey", folder / "ca.key", "-addext", f"subjectAltName=DNS:{NODE}", "-addext", "basicConstraints=CA:FALSE"]
    openssl("req", *curve, *by, "-keyout", folder / "node.key", "-out", folder / "node.crt", "-subj", f"/CN={NODE}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Pod:
    """One container's settings, made to work here."""

    def __init__(self, it, component, folder, ports):
        self.component, self.folder = component, folder / component
        ((self.spec, self.container),) = [(spec, box) for name, _, spec, box in it.workloads() if name == component]
        self.ports = ports
        self.mounts = {}
        for mount in self.container.get("volumeMounts", []):
            (volume,) = [volume for volume in self.spec["volumes"] if volume["name"] == mount["name"]]
            self.mounts[mount["mountPath"]] = self.fill(it, volume)

    def fill(self, it, volume):
        """A folder with what the volume would have."""
        folder = self.folder / volume["name"]
        folder.mkdir(parents=True)
        for kind, key, plural in (("secret", "secretName", "Secret"), ("configMap", "name", "ConfigMap")):
            if kind not in volume:
                continue
            made = it.one(plural, volume[kind][key])
            data = made["data"] if made else self.given(volume[kind].get("items", []))
            items = volume[kind].get("items") or [{"key": entry, "path": entry} for entry in data]
            for item in items:
                text = data[item["key"]]
                (folder / item["path"]).write_bytes(base64.b64decode(text) if made and kind == "secret" else text.encode())
        if "projected" in volume:
            (folder / "token").write_text(TOKEN)
        if volume["name"] == "certificate":
            for name in ("node.crt", "node.key"):
                (folder / name).write_bytes((self.folder.parent / name).read_bytes())
        return folder

    def given(self, items):
        """What a Secret or ConfigMap of the user has."""
        texts = {"ca.crt": (self.folder.parent / "ca.crt").read_text(), "bearer": PAGES}
        return {item["key"]: texts[item["key"]] for item in items}

    def here(self, text):
        """A value, with this machine's paths and ports."""
        for path, folder in self.mounts.items():
            text = text.replace(path, str(folder))
        for port, own in self.ports.items():
            text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{own}").replace(f"[::]:{port}", f"127.0.0.1:{own}").replace(f".svc:{port}", f".svc:{own}")
        return text.replace(f"gpu-gateway-agents.{render.NAMESPACE}.svc", "localhost")

    def start(self, extra, log):
        program = objects.binaries() / objects.PROGRAM[self.component]
        variables = {entry["name"]: self.here(entry.get("value", NODE)) for entry in self.container.get("env", [])}
        self.environment = {"PATH": os.environ["PATH"], **variables, **extra}
        command = [program, *map(self.here, self.container["args"])]
        return subprocess.Popen(command, env=self.environment, stderr=log, stdout=log)


def get(port, path, token=None):
    """Status and body."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def eventually(look):
    """What `look` finds wrong at last; None if that ends."""
    until = time.monotonic() + PATIENCE
    while wrong := look():
        if time.monotonic() > until:
            return wrong
        time.sleep(0.1)
    return None


def is_known(port, token):
    status, body = get(port, "/api/v1/nodes", token)
    if status != 200:
        return f"/api/v1/nodes: {status} {body}"
    nodes = {node["node"]: len(node["devices"]) for node in json.loads(body)}
    return None if nodes == {NODE: 2} else f"the gateway knows {nodes}"


def asks_inside(it, gateway, port):
    """What is wrong with what is asked by `kubectl exec` in the gateway's container: with its variables, and no flag."""

    def ask(*arguments, text=None):
        env = {**gateway.environment, "GPU_GATEWAY_SERVER": f"http://127.0.0.1:{port}"}
        done = subprocess.run([objects.binaries() / "gpu-gateway", *arguments], env=env, input=text, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    status, said = ask("ledger")
    if status:
        yield f"gpu-gateway ledger, in the gateway's container: {status}\n{said}"
    values = it.values["gateway"]
    for profile, origin in itertools.product(values["profiles"], values["demandAllow"]):
        trigger = {"scalerAddress": f"gpu-gateway.{render.NAMESPACE}.svc.cluster.local:6000", "profile": profile}
        trigger |= {"demandEndpoint": f"{origin}/metrics", "demandMetric": "queue", "demandThreshold": "0"}
        spec = {"scaleTargetRef": {"name": "x"}, "maxReplicaCount": 2, "triggers": [{"type": "external-push", "metadata": trigger}]}
        meta = {"name": "x", "namespace": "ai"}
        status, said = ask("check", "-", text=json.dumps({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": meta, "spec": spec}))
        if status or "demand-place" in said:
            yield f"gpu-gateway check of {profile} and {origin}, in the gateway's container: {status}\n{said}"


def shakes_hands(it, port):
    """What is wrong with KEDA's TLS, called as KEDA does by what the ClusterTriggerAuthentication names."""
    (authentication,) = it.all("ClusterTriggerAuthentication")
    targets = {target["parameter"]: target for target in authentication["spec"]["secretTargetRef"]}
    secret = it.one("Secret", targets["caCert"]["name"], it.values["keda"]["namespace"])
    data = {parameter: base64.b64decode(secret["data"][target["key"]]) for parameter, target in targets.items()}
    context = ssl.create_default_context(cadata=data["caCert"].decode())
    context.set_alpn_protocols(["h2"])
    with tempfile.TemporaryDirectory() as folder:
        pair = pathlib.Path(folder, "tls.crt"), pathlib.Path(folder, "tls.key")
        pair[0].write_bytes(data["tlsClientCert"])
        pair[1].write_bytes(data["tlsClientKey"])
        context.load_cert_chain(*pair)
        host = f"gpu-gateway.{render.NAMESPACE}.svc.{it.values['clusterDomain']}"
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as plain, context.wrap_socket(plain, server_hostname=host) as secure:
                # With TLS 1.3 a refused certificate shows at the first answer: the server's SETTINGS.
                secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                if secure.selected_alpn_protocol() != "h2" or not secure.recv(9):
                    return "KEDA's port does not speak h2"
        except OSError as error:
            return f"KEDA's port: {error}"
    return None


def problems(name):
    """What does not work with a set."""
    path = render.VALUES / f"{name}.yaml"
    extra = {"tls": {"extraDNSNames": ["localhost"]}}
    documents = render.documents(render.text([path, extra]))
    it = objects.Render(name, documents, render.merged(path), render.VERSIONS[0])
    server = cluster.ApiServer()
    with tempfile.TemporaryDirectory() as text:
        folder = pathlib.Path(text)
        authority(folder)
        config = server.kubeconfig(folder / "kubeconfig")
        ports = {port: free_port() for port in (6000, 6001, 8080, it.values["agent"]["http"]["port"])}
        gateway, agent = (Pod(it, component, folder, ports) for component in ("gateway", "agent"))
        token = it.values["agentAuth"]["token"]["audience"]
        user = f"system:serviceaccount:{render.NAMESPACE}:{agent.spec['serviceAccountName']}"
        claims = {"authentication.kubernetes.io/node-name": [NODE], "authentication.kubernetes.io/pod-name": ["gpu-agent-x"]}
        server.tokens[TOKEN] = {"authenticated": True, "audiences": [token], "user": {"username": user, "extra": claims}}
        pages = PAGES if it.values["gateway"]["http"]["tokenSecret"] else None
        logs = {component: folder / f"{component}.log" for component in objects.PROGRAM}
        processes = []
        try:
            with open(logs["gateway"], "w") as log, open(logs["agent"], "w") as other:
                processes.append(gateway.start({"GPU_GATEWAY_KUBECONFIG": str(config)}, log))
                without = {"GPU_AGENT_KUBELET_SOCKET": "none", "GPU_AGENT_SOURCE": "sim:gpus=2,pods=ai/vllm-0"}
                processes.append(agent.start(without, other))
                wrong = [eventually(lambda: is_known(ports[8080], pages))]
                wrong.append(eventually(lambda: None if get(ports[8080], "/readyz")[0] == 200 else get(ports[8080], "/readyz")[1]))
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    if probe in agent.container:
                        status, body = get(ports[it.values["agent"]["http"]["port"]], agent.container[probe]["httpGet"]["path"])
                        wrong.append(None if status == 200 else f"the agent's {probe}: {status} {body}")
                if pages and get(ports[8080], "/api/v1/nodes")[0] != 401:
                    wrong.append("the pages are open in spite of a token")
                wrong += asks_inside(it, gateway, ports[8080])
                if it.all("ClusterTriggerAuthentication"):
                    wrong.append(shakes_hands(it, ports[6000]))
                doctor = subprocess.run([objects.binaries() / "gpu-agent", "doctor"], env=agent.environment, capture_output=True, text=True)
                if "gateway" not in doctor.stdout or doctor.returncode != 0:
                    wrong.append(f"the doctor, in the agent's container: {doctor.returncode}\n{doctor.stdout}{doctor.stderr}")
                for process in processes:
                    process.send_signal(signal.SIGTERM)
                for process, pod in zip(processes, (gateway, agent), strict=True):
                    status = process.wait(pod.spec["terminationGracePeriodSeconds"] + PATIENCE)
                    wrong.append(f"{pod.component} ended with {status}" if status else None)
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
            server.stop()
        wrong = [each for each in wrong if each]
        yield from wrong
        if wrong:
            for component, log in logs.items():
                yield f"the end of the {component}'s log:\n" + "\n".join(log.read_text().splitlines()[-15:])
