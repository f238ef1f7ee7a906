//! What the emulated cluster looks like from outside: the directory file the gateway reads, and a
//! replay file per node that its agent reads while it grows.
//!
//! Guarantees: the directory is replaced whole, never half-written, and is there before the
//! readings that go with it; every line of a replay file is due as soon as it is read, so that an
//! agent that starts late does not replay the past at its old pace.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use shared::identity::ScaledObjectKey;
use shared::time::Timestamp;

use crate::cluster::{Cluster, MEMORY_TOTAL_MIB, Pod};
use crate::engines::Engines;

/// What Kubernetes knows about the ScaledObject.
#[derive(Clone, Debug)]
pub struct ScaledObject {
    /// Its namespace, which is the workload's too, and its name.
    pub key: ScaledObjectKey,
    /// `minReplicaCount`.
    pub min: u32,
    /// `maxReplicaCount`.
    pub max: u32,
    /// `cooldownPeriod`.
    pub cooldown: Duration,
    /// The trigger's `metadata`.
    pub metadata: BTreeMap<String, String>,
}

/// The files, and how far they are.
#[derive(Debug)]
pub struct Feed {
    scaled_object: ScaledObject,
    directory: PathBuf,
    replays: Vec<(PathBuf, File)>,
    engines: Engines,
    written: Option<u64>,
}

impl Feed {
    /// Files in `folder`, and `engines` if there are any, with the cluster's first state in them.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn create(
        folder: &Path,
        scaled_object: ScaledObject,
        engines: Engines,
        cluster: &Cluster,
        now: Timestamp,
    ) -> io::Result<Self> {
        let replays = cluster.plan().nodes.iter().map(|node| {
            let path = folder.join(format!("{node}.jsonl"));
            let file = OpenOptions::new().create(true).append(true).open(&path)?;
            Ok((path, file))
        });
        let mut feed = Self {
            scaled_object,
            directory: folder.join("directory.yaml"),
            replays: replays.collect::<io::Result<_>>()?,
            engines,
            written: None,
        };
        feed.write(cluster, now)?;
        Ok(feed)
    }

    /// The directory file.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The replay file of a node.
    pub fn replay(&self, node: usize) -> &Path {
        &self.replays[node].0
    }

    /// Writes what is new: the directory if it changed, and a line for each node.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&mut self, cluster: &Cluster, now: Timestamp) -> io::Result<()> {
        if self.written != Some(cluster.revision()) {
            let next = self.directory.with_extension("next");
            fs::write(&next, self.directory_text(cluster, now))?;
            fs::rename(&next, &self.directory)?;
            self.written = Some(cluster.revision());
        }
        self.engines.show(cluster);
        for (node, (_, file)) in self.replays.iter_mut().enumerate() {
            let line = replay_line(&self.scaled_object.key.namespace, cluster, node);
            file.write_all(format!("{line}\n").as_bytes())?;
        }
        Ok(())
    }

    fn directory_text(&self, cluster: &Cluster, now: Timestamp) -> String {
        let ScaledObject { key, min, max, cooldown, metadata } = &self.scaled_object;
        let deployment = &cluster.plan().deployment;
        let pods: String =
            cluster.pods().iter().map(|pod| self.pod_entry(cluster, pod, now)).collect();
        format!(
            "\
workloads:
  - namespace: {namespace}
    kind: Deployment
    name: {deployment}
    replicas: {replicas}
    pods: [{pods}
    ]
scaledObjects:
  - namespace: {namespace}
    name: {name}
    target: {{kind: Deployment, name: {deployment}}}
    minReplicas: {min}
    maxReplicas: {max}
    cooldownSeconds: {cooldown}
    triggers:
      - type: external-push
        metricType: AverageValue
        metadata: {metadata}
",
            namespace = key.namespace,
            name = key.name,
            replicas = cluster.replicas(),
            cooldown = cooldown.as_secs(),
            metadata = json!(metadata),
        )
    }

    fn pod_entry(&self, cluster: &Cluster, pod: &Pod, now: Timestamp) -> String {
        let (name, node) = (&pod.name, cluster.node_of(pod));
        let readiness = match pod.ready_since {
            Some(since) if since < Timestamp::START => "ready: true".to_owned(),
            Some(since) => format!("ready: true, readyForSeconds: {}", now.since(since).as_secs()),
            None => {
                let age = now.since(pod.created).as_secs();
                format!("ready: false, unreadyForSeconds: {age}, ageSeconds: {age}")
            }
        };
        let engine = self.engines.address(pod.slot).map_or_else(String::new, |address| {
            let (ip, port) = (address.ip(), address.port());
            format!(", ip: {ip}, annotations: {{prometheus.io/port: '{port}'}}")
        });
        format!("\n      {{name: {name}, uid: {name}-uid, node: {node}, {readiness}{engine}}},")
    }
}

/// One line of the replay format: all GPUs of a node, as they are now.
fn replay_line(namespace: &str, cluster: &Cluster, node: usize) -> Value {
    let name = &cluster.plan().nodes[node];
    let devices = (0..cluster.plan().gpus_per_node).map(|gpu| {
        let pod = cluster.pod_at(node, gpu);
        let utilization = pod.map_or(0.0, |pod| pod.utilization);
        let holders = pod.map(|pod| {
            let uid = format!("{}-uid", pod.name);
            json!({"namespace": namespace, "pod": pod.name, "uid": uid, "container": "vllm"})
        });
        json!({
            "uuid": format!("GPU-{name}-{gpu}"),
            "index": gpu,
            "name": "NVIDIA H100 80GB HBM3",
            "memory_total_mib": MEMORY_TOTAL_MIB,
            "gpu_utilization": hundredths(utilization),
            "memory_used_mib": pod.map_or(0.0, |pod| pod.memory_mib.round()),
            "temperature": hundredths(32.0 + 0.4 * utilization),
            "power_draw": hundredths(70.0 + 5.5 * utilization),
            "holders": Vec::from_iter(holders),
        })
    });
    json!({"at_ms": 0, "devices": Vec::from_iter(devices)})
}

fn hundredths(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use shared::identity::NodeName;

    use super::*;
    use crate::cluster::Plan;

    #[test]
    fn the_directory_is_replaced_on_change_and_every_tick_adds_a_line_per_node() {
        let plan = Plan {
            deployment: "vllm".into(),
            nodes: ["a", "b"].map(NodeName::from).to_vec(),
            gpus_per_node: 2,
            model_load: Duration::from_secs(3),
            settle: Duration::from_secs(2),
            slots: None,
        };
        let scaled_object = ScaledObject {
            key: ScaledObjectKey::new("ai", "vllm-so"),
            min: 1,
            max: 4,
            cooldown: Duration::from_secs(5),
            metadata: [("targetValue".into(), "60".into())].into(),
        };
        let second = |second: i64| Timestamp::from_millis(second * 1_000);
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::new(plan, 1, 0.0);
        let mut feed =
            Feed::create(folder.path(), scaled_object, Engines::default(), &cluster, second(0))
                .unwrap();
        cluster.scale(2, second(1));
        cluster.tick(60.0, second(2));
        feed.write(&cluster, second(2)).unwrap();

        let directory = fs::read_to_string(feed.directory()).unwrap();
        assert!(directory.contains("{name: vllm-0, uid: vllm-0-uid, node: a, ready: true},"));
        assert!(directory.contains("node: b, ready: false, unreadyForSeconds: 1, ageSeconds: 1}"));
        assert!(directory.contains("metadata: {\"targetValue\":\"60\"}"));
        let lines = fs::read_to_string(feed.replay(0)).unwrap();
        let last: Value = serde_json::from_str(lines.lines().nth(1).unwrap()).unwrap();
        assert_eq!(last["devices"][0]["gpu_utilization"], 60.0);
        assert_eq!(last["devices"][0]["holders"][0]["pod"], "vllm-0");
        assert_eq!(last["devices"][1]["holders"], json!([]));
    }
}
