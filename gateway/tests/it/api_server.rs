//! A Kubernetes API server as far as the gateway uses one: list in pages, watch with bookmarks,
//! 410 Gone, discovery and `/scale`, over a real socket; and it can be slow, away or break off.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use hyper::body::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

const KEDA: &str = "keda.sh/v1alpha1";
/// A quiet watch gets a bookmark this often.
const BOOKMARK_EVERY: Duration = Duration::from_millis(200);

/// Namespace and name.
type Named = (String, String);

#[derive(Default)]
struct World {
    version: u64,
    /// Plural → what exists.
    objects: BTreeMap<String, BTreeMap<Named, Value>>,
    /// What happened: version, plural, event.
    history: VecDeque<(u64, String, Value)>,
    /// `apiVersion/plural`, namespace, name → scale.
    scales: HashMap<(String, Named), Value>,
    has_crds: bool,
    /// The versions of resource.k8s.io that are served.
    slice_versions: Vec<&'static str>,
    /// Lists and watches of this resource are forbidden.
    forbidden: Option<&'static str>,
    slow_lists: Duration,
    is_away: bool,
    /// What a review says of a token.
    tokens: HashMap<String, Value>,
    /// Every `group/version` of which something was listed or watched.
    versions: BTreeSet<String>,
    /// Method-less log: `group/resource[/scale] verb` → how often.
    calls: BTreeMap<(String, String, String), u64>,
}

/// How watches are broken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// As at their time limit.
    Clean,
    /// In the middle of a chunk.
    Abrupt,
}

struct Shared {
    world: Mutex<World>,
    changed: watch::Sender<u64>,
    breaks: watch::Sender<(u64, Break)>,
    broken: AtomicU64,
}

/// The API server.
pub(crate) struct ApiServer {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ApiServer {
    /// A cluster with KEDA and nothing else.
    pub(crate) async fn start() -> Self {
        let world = World { version: 100, has_crds: true, ..World::default() };
        let shared = Arc::new(Shared {
            world: Mutex::new(world),
            changed: watch::Sender::new(0),
            breaks: watch::Sender::new((0, Break::Clean)),
            broken: AtomicU64::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("its address");
        let router = Router::new().fallback(answer).with_state(shared.clone());
        let task = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("it serves");
        });
        Self { address, shared, task }
    }

    /// Writes a kubeconfig for it.
    pub(crate) fn kubeconfig(&self, path: &Path) {
        let address = self.address;
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
             users: [{{name: u, user: {{}}}}]\n"
        );
        std::fs::write(path, text).expect("the file can be written");
    }

    fn happen(&self, kind: &str, plural: &str, mut object: Value) {
        let mut world = self.shared.world.lock();
        world.version += 1;
        let version = world.version;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
        let key = (text("namespace"), text("name"));
        let objects = world.objects.entry(plural.into()).or_default();
        let kind = if kind == "DELETED" {
            objects.remove(&key);
            kind
        } else if objects.insert(key, object.clone()).is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        world.history.push_back((version, plural.into(), json!({"type": kind, "object": object})));
        drop(world);
        self.shared.changed.send_modify(|n| *n += 1);
    }

    /// Makes or changes an object.
    pub(crate) fn apply(&self, plural: &str, object: Value) {
        self.happen("APPLIED", plural, object);
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let key = (namespace.to_owned(), name.to_owned());
        let known = self.shared.world.lock().objects.get(plural).and_then(|o| o.get(&key).cloned());
        if let Some(object) = known {
            self.happen("DELETED", plural, object);
        }
    }

    /// Sets what `/scale` of `apiVersion/plural` says.
    pub(crate) fn scale(&self, resource: &str, namespace: &str, name: &str, scale: (u32, &str)) {
        let (replicas, selector) = scale;
        let found = json!({
            "apiVersion": "autoscaling/v1", "kind": "Scale",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"replicas": replicas},
            "status": {"replicas": replicas, "selector": selector},
        });
        let key = (resource.to_owned(), (namespace.to_owned(), name.to_owned()));
        self.shared.world.lock().scales.insert(key, found);
    }

    /// Takes `/scale` away.
    pub(crate) fn unscale(&self, resource: &str, namespace: &str, name: &str) {
        let key = (resource.to_owned(), (namespace.to_owned(), name.to_owned()));
        self.shared.world.lock().scales.remove(&key);
    }

    /// Installs or removes KEDA's kinds.
    pub(crate) fn has_crds(&self, has: bool) {
        self.shared.world.lock().has_crds = has;
    }

    /// Serves ResourceSlices in these versions.
    pub(crate) fn serves_slices(&self, versions: &[&'static str]) {
        self.shared.world.lock().slice_versions = versions.to_vec();
    }

    /// Nobody may list or watch this.
    pub(crate) fn forbid(&self, plural: &'static str) {
        self.shared.world.lock().forbidden = Some(plural);
    }

    /// Every list takes this long.
    pub(crate) fn slow_lists(&self, slow: Duration) {
        self.shared.world.lock().slow_lists = slow;
    }

    /// Nothing is answered and nothing is sent.
    pub(crate) fn is_away(&self, away: bool) {
        self.shared.world.lock().is_away = away;
    }

    /// What a review says of `token` from now on.
    pub(crate) fn knows_token(&self, token: &str, status: Value) {
        self.shared.world.lock().tokens.insert(token.to_owned(), status);
    }

    /// Breaks off every watch there is.
    pub(crate) fn break_watches(&self, how: Break) {
        self.shared.breaks.send_modify(|(n, last)| (*n, *last) = (*n + 1, how));
    }

    /// Forgets what happened: a watch from before gets 410 Gone.
    pub(crate) fn forget(&self) {
        let mut world = self.shared.world.lock();
        world.version += 1;
        world.history.clear();
    }

    /// Watches broken off so far.
    pub(crate) fn broken(&self) -> u64 {
        self.shared.broken.load(SeqCst)
    }

    /// Group, resource and verb of every call so far, discovery left out, and how often.
    pub(crate) fn calls(&self) -> BTreeMap<(String, String, String), u64> {
        self.shared.world.lock().calls.clone()
    }
}
impl ApiServer {
    /// Every `group/version` of which something was asked, discovery left out.
    pub(crate) fn versions(&self) -> BTreeSet<String> {
        self.shared.world.lock().versions.clone()
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn refuse(code: u16, reason: &str) -> Response {
    let status_code = StatusCode::from_u16(code).expect("a code");
    (status_code, Json(status(code, reason, reason))).into_response()
}

async fn answer(State(shared): State<Arc<Shared>>, uri: Uri, body: Bytes) -> Response {
    while shared.world.lock().is_away {
        sleep(Duration::from_millis(20)).await;
    }
    let query: HashMap<String, String> = uri
        .query()
        .into_iter()
        .flat_map(|query| query.split('&'))
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect();
    let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
    let slices = shared.world.lock().slice_versions.clone();
    if path == ["apis"] {
        return groups(&slices);
    }
    let (version, rest) = match path.as_slice() {
        ["api", version, rest @ ..] => ((*version).to_owned(), rest),
        ["apis", group, version, rest @ ..] => (format!("{group}/{version}"), rest),
        _ => return refuse(404, "NotFound"),
    };
    match rest {
        ["tokenreviews"] => {
            called(&shared, &version, "tokenreviews", "create");
            if shared.world.lock().forbidden == Some("tokenreviews") {
                return refuse(403, "Forbidden");
            }
            review(&shared.world.lock().tokens, &body)
        }
        [] => discovery(&version, &slices),
        ["namespaces", namespace, plural, name, "scale"] => {
            called(&shared, &version, &format!("{plural}/scale"), "get");
            let key = (format!("{version}/{plural}"), ((*namespace).into(), (*name).into()));
            match shared.world.lock().scales.get(&key) {
                Some(scale) => Json(scale.clone()).into_response(),
                None => refuse(404, "NotFound"),
            }
        }
        ["namespaces", namespace, plural] => {
            collection(&shared, &version, plural, Some(namespace), &query).await
        }
        [plural] => collection(&shared, &version, plural, None, &query).await,
        _ => refuse(404, "NotFound"),
    }
}

fn review(tokens: &HashMap<String, Value>, body: &[u8]) -> Response {
    let mut review: Value = serde_json::from_slice(body).expect("a TokenReview");
    assert_eq!(review["kind"], "TokenReview");
    let token = review["spec"]["token"].as_str().expect("a token");
    review["status"] = tokens.get(token).cloned().unwrap_or(json!({"error": "unknown"}));
    (StatusCode::CREATED, Json(review)).into_response()
}

fn called(shared: &Shared, version: &str, resource: &str, verb: &str) {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let call = (group.to_owned(), resource.to_owned(), verb.to_owned());
    let mut world = shared.world.lock();
    *world.calls.entry(call).or_default() += 1;
    world.versions.insert(version.to_owned());
}

/// The served groups, as far as they are asked for.
fn groups(slices: &[&str]) -> Response {
    let version = |v: &&str| json!({"groupVersion": format!("resource.k8s.io/{v}"), "version": v});
    let versions: Vec<Value> = slices.iter().map(version).collect();
    let group = json!({"name": "resource.k8s.io", "versions": versions});
    let groups = if slices.is_empty() { vec![] } else { vec![group] };
    Json(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})).into_response()
}

fn discovery(version: &str, slices: &[&str]) -> Response {
    let is_served = |version: &str| {
        version.strip_prefix("resource.k8s.io/").is_some_and(|version| slices.contains(&version))
    };
    let kinds: &[(&str, &str, bool)] = match version {
        version if is_served(version) => &[("ResourceSlice", "resourceslices", false)],
        "apps/v1" => &[("Deployment", "deployments", true), ("StatefulSet", "statefulsets", true)],
        "leaderworkerset.x-k8s.io/v1" => &[("LeaderWorkerSet", "leaderworkersets", true)],
        "batch/v1" => &[("Job", "jobs", false)],
        "ray.io/v1" => &[("RayCluster", "rayclusters", true)],
        "example.com/v1" => &[("Widget", "widgets", false), ("Gadget", "gadgets", true)],
        "example.org/v1" | "example.org/v2" => &[("Gadget", "gadgets", true)],
        _ => return refuse(404, "NotFound"),
    };
    let resource = |name: String, kind: &str| json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get"]});
    let resources = kinds.iter().flat_map(|(kind, plural, has_scale)| {
        let own = resource((*plural).into(), kind);
        let scale = has_scale.then(|| resource(format!("{plural}/scale"), "Scale"));
        [own].into_iter().chain(scale)
    });
    let resources: Vec<Value> = resources.collect();
    let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources});
    Json(list).into_response()
}

async fn collection(
    shared: &Arc<Shared>,
    version: &str,
    plural: &str,
    namespace: Option<&str>,
    query: &HashMap<String, String>,
) -> Response {
    let is_watch = query.get("watch").is_some_and(|watch| watch == "true");
    called(shared, version, plural, if is_watch { "watch" } else { "list" });
    if version == KEDA && !shared.world.lock().has_crds {
        return refuse(404, "NotFound");
    }
    if shared.world.lock().forbidden == Some(plural) {
        return refuse(403, "Forbidden");
    }
    if is_watch {
        let from = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        return follow(shared.clone(), plural.to_owned(), namespace.map(Into::into), from);
    }
    let slow = shared.world.lock().slow_lists;
    sleep(slow).await;
    list(&shared.world.lock(), version, plural, namespace, query)
}

fn list(
    world: &World,
    version: &str,
    plural: &str,
    namespace: Option<&str>,
    query: &HashMap<String, String>,
) -> Response {
    let number = |key: &str| query.get(key).and_then(|text| text.parse::<usize>().ok());
    let (skip, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
    let all = world.objects.get(plural).into_iter().flatten();
    let within = all.filter(|((of, _), _)| namespace.is_none_or(|only| only == of));
    let mut items: Vec<Value> = within.map(|(_, object)| object.clone()).skip(skip).collect();
    let more = items.len() > limit;
    items.truncate(limit);
    let next = if more { (skip + limit).to_string() } else { String::new() };
    Json(json!({
        "kind": "List", "apiVersion": version,
        "metadata": {"resourceVersion": world.version.to_string(), "continue": next},
        "items": items,
    }))
    .into_response()
}

fn follow(shared: Arc<Shared>, plural: String, namespace: Option<String>, from: u64) -> Response {
    let (lines, body) = mpsc::channel::<Option<Bytes>>(64);
    tokio::spawn(async move {
        let end = send_events(&shared, &plural, namespace.as_deref(), from, &lines).await;
        if end == Some(Break::Abrupt) {
            lines.send(None).await.ok();
        }
    });
    let body = ReceiverStream::new(body)
        .map(|line| line.ok_or_else(|| std::io::Error::other("broken off")));
    Body::from_stream(body).into_response()
}

/// Sends what happened after `cursor` until the watch is broken off or nobody listens.
async fn send_events(
    shared: &Shared,
    plural: &str,
    namespace: Option<&str>,
    mut cursor: u64,
    lines: &mpsc::Sender<Option<Bytes>>,
) -> Option<Break> {
    let (mut changed, mut breaks) = (shared.changed.subscribe(), shared.breaks.subscribe());
    loop {
        let events = {
            let world = shared.world.lock();
            let oldest = world.history.front().map_or(world.version, |(first, ..)| first - 1);
            if cursor < oldest {
                vec![
                    json!({"type": "ERROR", "object": status(410, "Expired", "too old resource version")}),
                ]
            } else {
                let new = world.history.iter().filter(|(version, of, event)| {
                    let of_namespace = &event["object"]["metadata"]["namespace"];
                    *version > cursor && of == plural && namespace.is_none_or(|n| of_namespace == n)
                });
                let events = new.map(|(.., event)| event.clone()).collect();
                cursor = world.version;
                events
            }
        };
        for event in events {
            let is_last = event["type"] == "ERROR";
            send(lines, &event).await?;
            if is_last {
                return Some(Break::Clean);
            }
        }
        tokio::select! {
            _ = changed.changed() => {}
            () = lines.closed() => return None,
            _ = breaks.changed() => {
                shared.broken.fetch_add(1, SeqCst);
                return Some(breaks.borrow().1);
            }
            () = sleep(BOOKMARK_EVERY) => {
                let object = json!({
                    "kind": "Bookmark", "apiVersion": "v1",
                    "metadata": {"resourceVersion": cursor.to_string()},
                });
                send(lines, &json!({"type": "BOOKMARK", "object": object})).await?;
            }
        }
        while shared.world.lock().is_away {
            sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn send(lines: &mpsc::Sender<Option<Bytes>>, event: &Value) -> Option<()> {
    let mut line = serde_json::to_vec(event).expect("JSON");
    line.push(b'\n');
    lines.send(Some(line.into())).await.ok()
}

/// A ScaledObject with one external trigger.
pub(crate) fn scaled_object(namespace: &str, name: &str, target: Value, metadata: Value) -> Value {
    let mut metadata = metadata;
    metadata["scalerAddress"] = json!("gpu-gateway.gpu:6000");
    json!({
        "apiVersion": KEDA, "kind": "ScaledObject",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("{namespace}-{name}")},
        "spec": {
            "scaleTargetRef": target, "minReplicaCount": 0, "maxReplicaCount": 20,
            "triggers": [{"type": "external", "metadata": metadata}],
        },
    })
}

/// A running pod that has been ready since the year 2020.
pub(crate) fn pod(namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": namespace, "name": name, "uid": format!("{namespace}-{name}"),
            "labels": labels, "creationTimestamp": "2020-01-01T00:00:00Z",
            "managedFields": [{"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:x": {}}}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "ports": [{"name": "http", "containerPort": 8000}]}]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.1",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},
                {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:01:00Z"},
            ],
        },
    })
}

/// The same pod with that owner, as its controller makes it.
pub(crate) fn owned(mut pod: Value, api_version: &str, kind: &str, name: &str) -> Value {
    pod["metadata"]["ownerReferences"] = json!([
        {"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": true},
    ]);
    pod
}

/// A pod that the scheduler has no place for, made just now.
pub(crate) fn unschedulable(namespace: &str, name: &str, labels: Value) -> Value {
    let mut pod = pod(namespace, name, labels);
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::UNIX_EPOCH + since_epoch());
    pod["metadata"]["creationTimestamp"] = json!(now.to_string());
    pod["spec"].as_object_mut().expect("a spec").remove("nodeName");
    pod["status"] = json!({
        "phase": "Pending",
        "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            "lastTransitionTime": now.to_string(),
        }],
    });
    pod
}

#[expect(clippy::disallowed_methods, reason = "Kubernetes dates by the wall clock")]
fn since_epoch() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970")
}

/// A ResourceSlice of `gpu.nvidia.com` for `node`, as `version` writes it, of devices with their
/// string attributes.
pub(crate) fn resource_slice(
    version: &str,
    name: &str,
    (node, generation): (&str, u32),
    devices: &[(&str, &[(&str, &str)])],
) -> Value {
    let device = |(name, attributes): &(&str, &[(&str, &str)])| {
        let attributes: serde_json::Map<_, _> =
            attributes.iter().map(|(k, v)| ((*k).to_owned(), json!({"string": v}))).collect();
        if version == "v1beta1" {
            json!({"name": name, "basic": {"attributes": attributes}})
        } else {
            json!({"name": name, "attributes": attributes})
        }
    };
    let devices: Vec<Value> = devices.iter().map(device).collect();
    json!({
        "apiVersion": format!("resource.k8s.io/{version}"), "kind": "ResourceSlice",
        "metadata": {"name": name, "uid": name},
        "spec": {
            "driver": "gpu.nvidia.com", "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": devices,
        },
    })
}
