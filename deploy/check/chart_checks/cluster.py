"""As much of an API server as helm's `lookup` and the gateway ask for, on loopback."""

import http.server
import json
import re
import threading
import time

from . import render

# Plural, kind, and whether objects are in namespaces.
KINDS = {
    "/api/v1": [
        ("configmaps", "ConfigMap", True),
        ("namespaces", "Namespace", False),
        ("nodes", "Node", False),
        ("pods", "Pod", True),
        ("resourcequotas", "ResourceQuota", True),
        ("secrets", "Secret", True),
        ("serviceaccounts", "ServiceAccount", True),
        ("services", "Service", True),
    ],
    "/apis/apps/v1": [("daemonsets", "DaemonSet", True), ("deployments", "Deployment", True)],
    "/apis/authentication.k8s.io/v1": [("tokenreviews", "TokenReview", False)],
    "/apis/keda.sh/v1alpha1": [
        ("clustertriggerauthentications", "ClusterTriggerAuthentication", False),
        ("scaledjobs", "ScaledJob", True),
        ("scaledobjects", "ScaledObject", True),
    ],
    "/apis/node.k8s.io/v1": [("runtimeclasses", "RuntimeClass", False)],
    "/apis/networking.k8s.io/v1": [("networkpolicies", "NetworkPolicy", True)],
    "/apis/policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget", True)],
    "/apis/rbac.authorization.k8s.io/v1": [
        ("clusterrolebindings", "ClusterRoleBinding", False),
        ("clusterroles", "ClusterRole", False),
    ],
}


class ApiServer:
    """Serves `objects`, by path, and reviews `tokens`, from token to status."""

    def __init__(self, version="1.33.0"):
        self.objects, self.tokens, self.version, self.asked = {}, {}, version, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def say(self, status, body):
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self):  # noqa: N802
                path, _, query = self.path.partition("?")
                outer.asked.append(f"GET {path}")
                if "watch=true" in query or "watch=1" in query:
                    self.watch()
                else:
                    self.say(*outer.answer(path))

            def do_POST(self):  # noqa: N802
                outer.asked.append(f"POST {self.path}")
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = outer.tokens.get(body["spec"]["token"], {"authenticated": False})
                self.say(201, {**body, "status": status})

            def watch(self):
                """Nothing happens, for a while."""
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                time.sleep(20)
                self.wfile.write(b"0\r\n\r\n")

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path):
        """Status and body."""
        if path == "/version":
            major, minor, _ = self.version.split(".")
            return 200, {"major": major, "minor": minor, "gitVersion": f"v{self.version}"}
        if path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            groups = []
            for group, version in [name.split("/")[2:] for name in KINDS if name.startswith("/apis/")]:
                served = {"groupVersion": f"{group}/{version}", "version": version}
                groups.append({"name": group, "versions": [served], "preferredVersion": served})
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if path in KINDS:
            verbs = ["get", "list", "watch", "create"]
            resources = [
                {"name": plural, "singularName": kind.lower(), "namespaced": namespaced, "kind": kind, "verbs": verbs} for plural, kind, namespaced in KINDS[path]
            ]
            version = path.removeprefix("/apis/").removeprefix("/api/")
            return 200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}
        if path in self.objects:
            return 200, self.objects[path]
        everywhere = re.sub(r"/namespaces/[^/]+/", "/", path)
        for base, kinds in KINDS.items():
            for plural, kind, namespaced in kinds:
                if everywhere == f"{base}/{plural}":
                    version = base.removeprefix("/apis/").removeprefix("/api/")
                    items = [] if namespaced else [each for name, each in self.objects.items() if name.rpartition("/")[0] == path]
                    return 200, {"kind": f"{kind}List", "apiVersion": version, "metadata": {"resourceVersion": "1"}, "items": items}
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": f"no {path}"}
        return 404, status

    def has_plain(self, path, **labels):
        """Has an object of which only labels matter, at this path."""
        base, plural, name = re.fullmatch("(.+)/([a-z]+)/([a-z-]+)", path).groups()
        (kind,) = [kind for each, kind, _ in KINDS[base] if each == plural]
        version = base.removeprefix("/apis/").removeprefix("/api/")
        self.objects[path] = {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": labels}}

    def has(self, document):
        """Keeps a Secret or ConfigMap, as Helm's."""
        plural = document["kind"].lower() + "s"
        meta = document["metadata"]
        notes = meta.setdefault("annotations", {})
        notes |= {"meta.helm.sh/release-name": render.RELEASE, "meta.helm.sh/release-namespace": render.NAMESPACE}
        self.objects[f"/api/v1/namespaces/{meta['namespace']}/{plural}/{meta['name']}"] = document

    def kubeconfig(self, path):
        """Writes a kubeconfig for it."""
        cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server.server_address[1]}"}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [cluster], "contexts": [context]}
        path.write_text(json.dumps({**config, "users": [{"name": "u", "user": {}}]}))
        return path

    def stop(self):
        """Ends it."""
        self.server.shutdown()
        self.server.server_close()
