//! Everything a run needs, set up: the real gateway and agents in this process on loopback ports,
//! and the emulated cluster with the files that show it to them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use gateway::config::ServeConfig;
use proto::keda::ScaledObjectRef;
use shared::identity::{NodeName, ScaledObjectKey};
use shared::process::Clock;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agents::Agent;
use crate::caller::Caller;
use crate::cluster::{Cluster, Plan};
use crate::engines::Engines;
use crate::feed::{Feed, ScaledObject};
use crate::pace;

/// The nodes of the cluster.
pub const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];

/// What is scaled, and how.
#[derive(Clone, Copy, Debug)]
pub struct Scaling {
    /// The trigger's target: percent of one GPU a replica should have.
    pub target: f64,
    /// `minReplicaCount`.
    pub min: u32,
    /// `maxReplicaCount`.
    pub max: u32,
}

/// What stands ready.
#[derive(Debug)]
pub struct Stage {
    /// The Deployment and its pods.
    pub cluster: Cluster,
    /// An agent per node.
    pub agents: Vec<Agent>,
    /// KEDA's client.
    pub caller: Caller,
    /// Where the gateway's pages are.
    pub http: SocketAddr,
    /// The ScaledObject.
    pub key: ScaledObjectKey,
    /// The one clock.
    pub clock: Clock,
    feed: Feed,
    gateway: JoinHandle<anyhow::Result<()>>,
    stop: CancellationToken,
    _folder: TempDir,
}

/// What a stage is set up with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What Kubernetes knows of it.
    pub scaled_object: ScaledObject,
    /// What the cluster is made of.
    pub plan: Plan,
    /// Replicas at first.
    pub replicas: u32,
    /// Load at first.
    pub load: f64,
    /// The gateway's `--demand-allow`.
    pub demand_allow: Vec<String>,
}

impl Setup {
    /// Scaled by utilisation; `load` is percent of one GPU.
    pub fn by_utilization(scaling: Scaling, load: f64) -> Self {
        Self {
            scaled_object: scaled_object(scaling),
            plan: plan(scaling.max),
            replicas: scaling.min,
            load,
            demand_allow: Vec::new(),
        }
    }
}

impl Stage {
    /// Writes the files, starts gateway and agents; the first pods are under load.
    ///
    /// # Errors
    /// When one of them cannot be started.
    pub async fn build(setup: Setup) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let folder = tempfile::tempdir().context("a temporary folder")?;
        let Setup { scaled_object, plan, replicas, load, demand_allow } = setup;
        let pages = plan.slots.map_or(0, |_| plan.nodes.len() * plan.gpus_per_node);
        let engines = Engines::start(pages).await?;
        let cluster = Cluster::new(plan, replicas, load);
        let key = scaled_object.key.clone();
        let reference = reference(&scaled_object);
        let feed = Feed::create(folder.path(), scaled_object, engines, &cluster, clock.now())?;

        let mut config = ServeConfig::local(feed.directory().to_owned());
        config.demand_allow = demand_allow;
        let gateway = gateway::app::App::build(config).await.context("the gateway")?;
        let caller = Caller::new(gateway.keda_addr(), reference)?;
        let (http, uplink) = (gateway.http_addr(), format!("http://{}", gateway.agent_addr()));
        let mut agents = Vec::new();
        for (place, node) in NODES.into_iter().enumerate() {
            let replay = feed.replay(place).to_owned();
            agents.push(Agent::new(uplink.clone(), node.into(), replay, pace::TICK));
        }
        let stop = CancellationToken::new();
        let gateway = tokio::spawn(gateway.run(stop.clone()));
        let _folder = folder;
        let mut stage =
            Self { cluster, agents, caller, http, key, clock, feed, gateway, stop, _folder };
        stage.agents.iter_mut().try_for_each(Agent::start)?;
        Ok(stage)
    }

    /// Waits until the gateway answers.
    ///
    /// # Errors
    /// With its last refusal, when it takes too long.
    pub async fn warm_up(&self) -> anyhow::Result<()> {
        let start = self.clock.now();
        while let Err(refusal) = self.caller.fetch().await {
            let waited = self.clock.now().since(start);
            anyhow::ensure!(waited < pace::WARM_UP, "the gateway does not answer: {refusal}");
            tokio::time::sleep(pace::TICK).await;
        }
        Ok(())
    }

    /// Lets the world go on under `load`, and shows it.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn tick(&mut self, load: f64) -> anyhow::Result<()> {
        let now = self.clock.now();
        self.cluster.tick(load, now);
        self.show()
    }

    /// Orders replicas.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn scale(&mut self, replicas: u32) -> anyhow::Result<()> {
        self.cluster.scale(replicas, self.clock.now());
        self.show()
    }

    /// Stops agents and gateway, and waits for them.
    ///
    /// # Errors
    /// When one of them ended badly or did not end.
    pub async fn close(mut self) -> anyhow::Result<()> {
        for agent in &mut self.agents {
            agent.stop().await?;
        }
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(10), self.gateway).await;
        ended.context("the gateway does not end")?.context("the gateway panicked")?
    }

    fn show(&mut self) -> anyhow::Result<()> {
        let now = self.clock.now();
        self.feed.write(&self.cluster, now).context("showing the cluster")
    }
}

/// A cluster with a GPU for each of `max` replicas.
pub fn plan(max: u32) -> Plan {
    Plan {
        deployment: "vllm".into(),
        nodes: NODES.map(NodeName::from).to_vec(),
        gpus_per_node: (max as usize).div_ceil(NODES.len()),
        model_load: pace::MODEL_LOAD,
        settle: pace::SETTLE,
        slots: None,
    }
}

fn scaled_object(scaling: Scaling) -> ScaledObject {
    let metadata = [
        ("scalerAddress", "gpu-gateway.keda.svc:6000".to_owned()),
        ("targetGpuUtilization", scaling.target.to_string()),
        ("staleAfter", format!("{}s", pace::STALE_AFTER.as_secs())),
        ("activationWindow", format!("{}s", pace::ACTIVATION_WINDOW.as_secs())),
    ];
    ScaledObject {
        key: ScaledObjectKey::new("ai", "vllm-so"),
        min: scaling.min,
        max: scaling.max,
        cooldown: pace::COOLDOWN,
        metadata: BTreeMap::from(metadata.map(|(key, value)| (key.to_owned(), value))),
    }
}

/// As KEDA names it in every call.
fn reference(scaled_object: &ScaledObject) -> ScaledObjectRef {
    ScaledObjectRef {
        name: scaled_object.key.name.to_string(),
        namespace: scaled_object.key.namespace.to_string(),
        scaler_metadata: scaled_object.metadata.clone().into_iter().collect(),
    }
}
