//! Three replicas fed by the same agents: one answer, through churn and through a rolling restart.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status};

use crate::client::{Client, Excused, Watched};
use crate::faults::{directory, url};
use crate::support::{Gateway, Process, binaries, eventually, free_address, scaled_object};

const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];
const GPUS: usize = 2;
/// Changes of the cluster, unless `GPU_GATEWAY_TEST_CHANGES` says another number.
const CHANGES: usize = 8;
const SEED: u64 = 11;
/// Times that all replicas are asked while nothing changes.
const ALIGNED: usize = 5;

/// One GPU and whoever is on it.
#[derive(Clone, Default)]
struct Slot {
    load: u32,
    pod: Option<String>,
}

/// One Deployment `ml/llm` on nodes whose agents push to every replica.
struct Cluster {
    binaries: PathBuf,
    folder: TempDir,
    random: fastrand::Rng,
    slots: Vec<Slot>,
    named: u32,
    replicas: Vec<Gateway>,
    agents: Vec<Process>,
    /// Where the agents expect further replicas.
    vacant: Vec<[SocketAddr; 3]>,
}

impl Cluster {
    fn start(replicas: usize) -> Self {
        let mut cluster = Self {
            binaries: binaries(),
            folder: tempfile::tempdir().unwrap(),
            random: fastrand::Rng::with_seed(SEED),
            slots: vec![Slot::default(); NODES.len() * GPUS],
            named: 0,
            replicas: Vec::new(),
            agents: Vec::new(),
            vacant: Vec::new(),
        };
        for _ in 0..NODES.len() {
            cluster.add();
        }
        cluster.write();
        let addresses: Vec<_> =
            (0..3).map(|_| [free_address(), free_address(), free_address()]).collect();
        let urls: Vec<String> = addresses.iter().map(|[_, agents, _]| url(*agents)).collect();
        cluster.vacant = addresses;
        for _ in 0..replicas {
            let replica = cluster.next_replica();
            cluster.replicas.push(replica);
        }
        for node in NODES {
            let mut command = Command::new(cluster.binaries.join("gpu-agent"));
            let source = format!("replay:{}", cluster.replay(node).display());
            command.args(["run", "--interval", "200ms", "--node", node, "--source", &source]);
            command.args(["--gateway", &urls.join(",")]);
            cluster.agents.push(Process::start(node, command, &cluster.folder));
        }
        cluster
    }

    fn next_replica(&mut self) -> Gateway {
        let name = format!("replica-{}", self.replicas.len());
        let addresses = self.vacant.pop().unwrap();
        self.replica(&name, addresses)
    }

    fn replica(&self, name: &str, addresses: [SocketAddr; 3]) -> Gateway {
        let mut command = Command::new(self.binaries.join("gpu-gateway"));
        command.arg("serve");
        Gateway::start_at(addresses, name, command, &self.folder)
    }

    fn replay(&self, node: &str) -> PathBuf {
        self.folder.path().join(format!("{node}.jsonl"))
    }

    fn client(&self, replica: &Gateway) -> Client {
        Client::new(replica.keda, scaled_object("llm", &[]))
    }

    /// What every replica must say: the sum over the pods, each of which is Ready and read.
    fn value(&self) -> f64 {
        let held = self.slots.iter().filter(|slot| slot.pod.is_some());
        held.map(|slot| f64::from(slot.load)).sum()
    }

    fn a_node_with_a_pod(&self) -> usize {
        self.slots.iter().position(|slot| slot.pod.is_some()).unwrap() / GPUS
    }

    fn add(&mut self) {
        let free: Vec<usize> =
            (0..self.slots.len()).filter(|at| self.slots[*at].pod.is_none()).collect();
        let Some(&at) = free.get(self.random.usize(..free.len().max(1))) else { return };
        self.named += 1;
        let load = self.random.u32(30..=90);
        self.slots[at] = Slot { load, pod: Some(format!("llm-{}", self.named)) };
    }

    fn remove(&mut self) {
        let held: Vec<usize> =
            (0..self.slots.len()).filter(|at| self.slots[*at].pod.is_some()).collect();
        if held.len() > 1 {
            self.slots[held[self.random.usize(..held.len())]] = Slot::default();
        }
    }

    /// Pods come, go, move and work harder or less.
    fn change(&mut self) {
        for _ in 0..3 {
            match self.random.u32(..4) {
                0 => self.add(),
                1 => self.remove(),
                2 => {
                    self.remove();
                    self.add();
                }
                _ => {
                    let load = self.random.u32(30..=90);
                    let at = self.random.usize(..self.slots.len());
                    self.slots[at].load = load;
                }
            }
        }
        self.write();
    }

    /// Lets agents and gateways see the cluster as it is now.
    fn write(&self) {
        let mut pods = Vec::new();
        for (node, slots) in NODES.iter().zip(self.slots.chunks(GPUS)) {
            let devices = slots.iter().enumerate().map(|(gpu, slot)| {
                let holder = |pod: &String| json!({"namespace": "ml", "pod": pod, "container": "main"});
                let holders: Vec<_> = slot.pod.iter().map(holder).collect();
                let uuid = format!("GPU-{node}-{gpu}");
                json!({"uuid": uuid, "index": gpu, "gpu_utilization": slot.load, "holders": holders})
            });
            let line = json!({"at_ms": 0, "devices": devices.collect::<Vec<_>>()});
            append(&self.replay(node), &format!("{line}\n"));
            pods.extend(slots.iter().filter_map(|slot| Some((slot.pod.as_deref()?, *node))));
        }
        let next = self.folder.path().join("next.yaml");
        fs::write(&next, directory(&[("llm", &pods)])).unwrap();
        fs::rename(next, self.folder.path().join("directory.yaml")).unwrap();
    }

    /// Waits until every replica says what it must, and checks that all go on saying it.
    async fn agrees(&self, when: &str) {
        let expected = self.value();
        for replica in &self.replicas {
            let client = self.client(replica);
            let what = format!("{when}: {} says {expected}", replica.process.name);
            eventually(&what, async || match client.value().await {
                Ok(value) if value == expected => Ok(()),
                other => Err(other),
            })
            .await;
        }
        let clients: Vec<Client> = self.replicas.iter().map(|each| self.client(each)).collect();
        for _ in 0..ALIGNED {
            let mut values = Vec::new();
            for client in &clients {
                values.push(client.value().await.unwrap());
            }
            assert_eq!(values, vec![expected; clients.len()], "{when}");
        }
    }
}

fn append(path: &Path, line: &str) {
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(line.as_bytes()).unwrap();
}

fn changes() -> usize {
    #[expect(clippy::disallowed_methods, reason = "a longer run is asked for from outside")]
    let asked = std::env::var("GPU_GATEWAY_TEST_CHANGES");
    asked.map_or(CHANGES, |number| number.parse().unwrap())
}

async fn is_ready(replica: &Gateway) {
    let ready = async || match replica.is_ready().await {
        Ok(true) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("the replica is ready", ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_give_one_answer_while_pods_come_and_go() {
    let mut cluster = Cluster::start(3);
    cluster.agrees("at first").await;
    for number in 0..changes() {
        cluster.change();
        cluster.agrees(&format!("seed {SEED}, change {number}")).await;
    }
}

/// KEDA's view of the Service: whichever replica is ready answers, and never anything else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_all_replicas_under_load_is_never_heard() {
    let mut cluster = Cluster::start(3);
    cluster.agrees("at first").await;
    for replica in &cluster.replicas {
        is_ready(replica).await;
    }
    let expected = cluster.value();
    let mut watched: BTreeMap<usize, Watched> = BTreeMap::new();
    for (number, replica) in cluster.replicas.iter().enumerate() {
        let name = &replica.process.name;
        let watch = Watched::start(name, cluster.client(replica), &[expected], Excused::Away);
        watched.insert(number, watch);
    }
    let stop = CancellationToken::new();
    let clients: Vec<Client> =
        cluster.replicas.iter().map(|replica| cluster.client(replica)).collect();
    let service = tokio::spawn(someone_always_answers(clients, expected, stop.clone()));
    for number in 0..3 {
        let old = &mut cluster.replicas[number];
        let status = old.process.terminate().await;
        assert!(status.success(), "{status}:\n{}", old.process.log());
        let addresses = old.addresses();
        cluster.replicas[number] = cluster.replica(&format!("replica-{number}-new"), addresses);
        is_ready(&cluster.replicas[number]).await;
        watched.get_mut(&number).unwrap().is_known().await;
    }
    stop.cancel();
    assert_eq!(service.await.unwrap(), Vec::<String>::new());
    for watched in watched.into_values() {
        watched.was_never_wrong().await;
    }
    cluster.agrees("at last").await;
}

/// Every moment at which no replica gave the value, or one gave another.
async fn someone_always_answers(
    clients: Vec<Client>,
    expected: f64,
    stop: CancellationToken,
) -> Vec<String> {
    let mut wrong = Vec::new();
    while !stop.is_cancelled() {
        let mut answers: Vec<Result<f64, Status>> = Vec::new();
        for client in &clients {
            answers.push(client.value().await);
            match &answers[answers.len() - 1] {
                Ok(value) if *value == expected => break,
                _ => {}
            }
        }
        if !matches!(answers.last(), Some(Ok(value)) if *value == expected) {
            wrong.push(format!("{answers:?}"));
        }
        sleep(Duration::from_millis(100)).await;
    }
    wrong
}

/// A replica that joins has heard nothing of a node that is silent: it is not ready, says that it
/// does not know, and the others answer meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_replica_is_not_ready_until_it_has_heard_of_every_pod() {
    let mut cluster = Cluster::start(2);
    cluster.agrees("two replicas").await;
    let expected = cluster.value();
    // Not one without a pod.
    let silent = cluster.a_node_with_a_pod();
    cluster.agents[silent].signal("STOP");
    let third = cluster.next_replica();
    let client = cluster.client(&third);
    let mut watched = Watched::start("third", client, &[expected], Excused::Away);
    let heard = async || match third.metric("gpu_gateway_agent_sessions").await {
        Ok(open) if open >= 3.0 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    eventually("three of four agents have come", heard).await;
    let ready = third.is_ready().await.unwrap();
    let value = cluster.client(&third).value().await.map_err(|status| status.code());
    assert_eq!((ready, value), (false, Err(Code::Unavailable)));
    cluster.agents[silent].signal("CONT");
    is_ready(&third).await;
    watched.is_known().await;
    watched.was_never_wrong().await;
    cluster.replicas.push(third);
    cluster.agrees("three replicas").await;
}
