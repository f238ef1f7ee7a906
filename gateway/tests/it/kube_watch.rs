//! The watches alone: whatever breaks, the index ends equal to the truth.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gateway::directory::Directory;
use gateway::directory::kube::{KubeDirectory, access};
use gateway::trigger::profile::Profiles;
use serde_json::json;
use shared::process::Clock;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::api_server::{ApiServer, Break, pod, scaled_object};
use crate::support::eventually;

struct Watching {
    directory: Arc<Directory>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

async fn watching(api: &ApiServer) -> Watching {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kubeconfig");
    api.kubeconfig(&path);
    let directory = Arc::new(Directory::default());
    let profiles = Arc::new(Profiles::default());
    let (to, clock) = (directory.clone(), Clock::start());
    let kube = KubeDirectory::connect(Some(&path), &[], to, profiles, clock).await;
    let kube = kube.expect("it can be set up");
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(kube.watch(shutdown.clone()));
    Watching { directory, shutdown, task }
}

/// ScaledObject → replicas and pods.
type Shown = BTreeMap<String, (u32, BTreeSet<String>)>;

fn shown(directory: &Directory) -> Option<Shown> {
    let snapshot = directory.snapshot()?;
    let objects = snapshot.objects().iter().filter_map(|object| {
        let workload = object.workload.as_ref()?;
        let pods = workload.pods.iter().map(|pod| format!("{} {:?}", pod.key, pod.ready));
        Some((object.key.to_string(), (workload.replicas, pods.collect())))
    });
    Some(objects.collect())
}

/// The truth, changed and told in step.
#[derive(Default)]
struct Truth {
    /// Application → replicas.
    replicas: BTreeMap<u32, u32>,
    objects: BTreeSet<u32>,
    /// Pod → application and readiness.
    pods: BTreeMap<u32, (u32, bool)>,
}

impl Truth {
    fn change(&mut self, api: &ApiServer, random: &mut fastrand::Rng) {
        let app = random.u32(0..5);
        match random.u32(0..10) {
            0 => {
                if self.objects.remove(&app) {
                    api.delete("scaledobjects", "ml", &format!("so-{app}"));
                }
            }
            1 | 2 => {
                let target = json!({"name": format!("app-{app}")});
                let metadata = json!({"targetValue": "70"});
                let object = scaled_object("ml", &format!("so-{app}"), target, metadata);
                api.apply("scaledobjects", object);
                self.objects.insert(app);
            }
            3 => {
                let replicas = random.u32(0..9);
                self.scale(api, app, replicas);
            }
            4 | 5 => {
                let n = random.u32(0..40);
                if self.pods.remove(&n).is_some() {
                    api.delete("pods", "ml", &format!("pod-{n}"));
                }
            }
            _ => {
                let (n, ready) = (random.u32(0..40), random.bool());
                let mut new = pod("ml", &format!("pod-{n}"), json!({"app": format!("app-{app}")}));
                new["status"]["conditions"][1]["status"] =
                    json!(if ready { "True" } else { "False" });
                api.apply("pods", new);
                self.pods.insert(n, (app, ready));
            }
        }
    }

    fn scale(&mut self, api: &ApiServer, app: u32, replicas: u32) {
        let (name, selector) = (format!("app-{app}"), format!("app=app-{app}"));
        api.scale("apps/v1/deployments", "ml", &name, (replicas, &selector));
        self.replicas.insert(app, replicas);
    }

    fn shown(&self) -> Shown {
        let objects = self.objects.iter().map(|app| {
            let pods = self.pods.iter().filter(|(_, (of, _))| of == app);
            let pods = pods.map(|(n, (_, ready))| format!("ml/pod-{n} {ready:?}"));
            (format!("ml/so-{app}"), (self.replicas[app], pods.collect()))
        });
        objects.collect()
    }
}

#[tokio::test]
async fn two_hundred_disconnects_leave_the_index_equal_to_the_truth() {
    let api = ApiServer::start().await;
    let mut truth = Truth::default();
    (0..5).for_each(|app| truth.scale(&api, app, 1));
    let watching = watching(&api).await;
    let mut random = fastrand::Rng::with_seed(7);
    let mut round = 0;
    while round < 200 || api.broken() < 200 {
        (0..random.u32(1..5)).for_each(|_| truth.change(&api, &mut random));
        sleep(Duration::from_millis(random.u64(0..25))).await;
        if round % 20 == 19 {
            // Changes of which no watch will be told, and no way to ask for them.
            api.break_watches(Break::Abrupt);
            (0..3).for_each(|_| truth.change(&api, &mut random));
            api.forget();
        } else {
            api.break_watches(if round % 8 == 3 { Break::Abrupt } else { Break::Clean });
        }
        round += 1;
        assert!(round < 2_000, "{} watches were broken off", api.broken());
    }
    let expected = truth.shown();
    assert!(expected.len() > 1 && truth.pods.len() > 10, "{expected:?}");
    eventually("the index is the truth", async || match shown(&watching.directory) {
        Some(shown) if shown == expected => Ok(()),
        other => Err((other, &expected)),
    })
    .await;
    watching.shutdown.cancel();
    watching.task.await.unwrap();
}

#[tokio::test]
async fn a_resource_version_that_is_gone_leads_to_a_new_list() {
    let api = ApiServer::start().await;
    let mut truth = Truth::default();
    truth.scale(&api, 0, 2);
    api.apply("scaledobjects", scaled_object("ml", "so-0", json!({"name": "app-0"}), json!({})));
    truth.objects.insert(0);
    for n in 0..3 {
        api.apply("pods", pod("ml", &format!("pod-{n}"), json!({"app": "app-0"})));
        truth.pods.insert(n, (0, true));
    }
    let watching = watching(&api).await;
    let becomes = async |expected: Shown| {
        eventually("it is shown", async || match shown(&watching.directory) {
            Some(shown) if shown == expected => Ok(()),
            other => Err(other),
        })
        .await;
    };
    becomes(truth.shown()).await;
    // One is deleted unseen: only a list can tell.
    api.break_watches(Break::Abrupt);
    api.delete("pods", "ml", "pod-1");
    api.forget();
    truth.pods.remove(&1);
    becomes(truth.shown()).await;
    // More than a page, and scaling without any event.
    for n in 10..1_210 {
        api.apply("pods", pod("ml", &format!("pod-{n}"), json!({"app": "app-0"})));
        truth.pods.insert(n, (0, true));
    }
    api.forget();
    truth.scale(&api, 0, 5);
    becomes(truth.shown()).await;
    api.unscale("apps/v1/deployments", "ml", "app-0");
    becomes(Shown::new()).await;
}

#[tokio::test]
async fn a_quiet_cluster_costs_few_requests_and_stays_confirmed() {
    let api = ApiServer::start().await;
    let mut truth = Truth::default();
    truth.scale(&api, 0, 0);
    api.apply("scaledobjects", scaled_object("ml", "so-0", json!({"name": "app-0"}), json!({})));
    let clock = Clock::start();
    let watching = watching(&api).await;
    sleep(Duration::from_secs(8)).await;
    let age = clock.now().since(watching.directory.snapshot().unwrap().as_of());
    assert!(age < Duration::from_secs(5), "{age:?}");
    let calls = api.calls();
    let total: u64 = calls.values().sum();
    assert!((6..30).contains(&total), "{calls:?}");
}

#[tokio::test]
async fn it_asks_for_exactly_what_the_role_allows() {
    let api = ApiServer::start().await;
    api.serves_slices(&["v1"]);
    Truth::default().scale(&api, 0, 0);
    api.apply("scaledobjects", scaled_object("ml", "so-0", json!({"name": "app-0"}), json!({})));
    let watching = watching(&api).await;
    let allowed: BTreeSet<_> = access::CALLS.into_iter().collect();
    eventually("every call has been made", async || {
        let calls = api.calls();
        let made = calls.keys().map(|(group, resource, verb)| {
            if resource.ends_with("/scale") {
                ("*", "*/scale", verb.as_str())
            } else {
                (group.as_str(), resource.as_str(), verb.as_str())
            }
        });
        let made: BTreeSet<_> = made.collect();
        assert!(made.is_subset(&allowed), "{made:?}");
        if made == allowed { Ok(()) } else { Err(format!("{made:?}")) }
    })
    .await;
    drop(watching);
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests/rbac.yaml");
    let manifest = std::fs::read_to_string(manifest).unwrap();
    let documents: Vec<&str> = manifest.split("\n---\n").collect();
    let role = documents.iter().find(|text| text.contains("kind: ClusterRole\n")).unwrap();
    let role: Role = serde_saphyr::from_str(role).unwrap();
    let mut granted = BTreeSet::new();
    for rule in &role.rules {
        for (group, resource, verb) in rule.each() {
            granted.insert((group, resource, verb));
        }
    }
    let mut allowed = allowed;
    allowed.insert(access::TOKEN_REVIEW);
    assert_eq!(granted, allowed);
}

#[derive(serde::Deserialize)]
struct Role {
    rules: Vec<Rule>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
}

impl Rule {
    fn each(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.api_groups.iter().flat_map(move |group| {
            self.resources.iter().flat_map(move |resource| {
                self.verbs
                    .iter()
                    .map(move |verb| (group.as_str(), resource.as_str(), verb.as_str()))
            })
        })
    }
}
