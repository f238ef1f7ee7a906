//! `loadtest repeat`: one thing of the gateway so many times, without sockets and threads, for a
//! profiler or a counter of instructions, which repeats where times do not.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use gateway::answer::{Answers, Question};
use gateway::directory::Directory;
use gateway::directory::file::FileDirectory;
use gateway::fleet::{Fleet, Session};
use gateway::trigger::profile::Profiles;
use prost::Message as _;
use proto::convert::Link;
use proto::uplink::Sample;
use shared::process::Clock;

use crate::measure::site::{NAMESPACE, Site, Workload, reference};

/// What is repeated.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum What {
    /// GetMetrics' answer about one pod: metadata, directory, fleet, decision.
    One,
    /// The same about 64 pods of 8 GPUs.
    Many,
    /// A sample of 8 GPUs: off the wire, and into the fleet.
    Ingest,
}

/// Its flags.
#[derive(Clone, Copy, Debug, Args)]
pub struct RepeatArgs {
    /// What.
    #[arg(value_enum)]
    what: What,
    /// How often.
    #[arg(long, default_value_t = 10_000)]
    times: u32,
}

/// A node whose inventory was taken.
struct Node {
    session: Session,
    link: Link,
    sample: Sample,
}

impl Node {
    fn speak(&self, clock: Clock) -> anyhow::Result<()> {
        let (sample, _) = self.link.sample(self.sample.clone())?;
        self.session.apply(self.link.inventory(), sample, clock.now());
        Ok(())
    }
}

/// Does it.
///
/// # Errors
/// When the gateway's parts refuse what they are given.
pub fn run(args: RepeatArgs) -> anyhow::Result<bool> {
    let workload = |name: &str, pods, gpus| Workload { name: name.into(), pods, gpus };
    let site = Site::new(vec![workload("one", 1, 1), workload("many", 64, 8)]);
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("directory.yaml");
    std::fs::write(&file, site.directory())?;
    let (clock, fleet, directory) = (Clock::start(), Arc::default(), Arc::<Directory>::default());
    let profiles = Arc::new(Profiles::default());
    FileDirectory::open(file, directory.clone(), profiles.clone(), clock)?;
    let answers = Answers::new(directory, Arc::<Fleet>::clone(&fleet), profiles, clock);
    let mut nodes = Vec::new();
    for (name, inventory, sample) in site.said() {
        let session = fleet.open(name.as_str().into(), Duration::from_secs(60), "repeat".into());
        let (link, _) = Link::open(inventory)?;
        nodes.push(Node {
            session: session.map_err(|_| anyhow::anyhow!("no room"))?,
            link,
            sample,
        });
    }
    nodes.iter().try_for_each(|node| node.speak(clock))?;
    match args.what {
        What::One => ask(&answers, "one", site.expected(0), args.times),
        What::Many => ask(&answers, "many", site.expected(1), args.times),
        What::Ingest => ingest(&nodes[1], clock, args.times),
    }
}

fn ask(answers: &Answers, name: &str, expected: f64, times: u32) -> anyhow::Result<bool> {
    let metadata = reference(name).scaler_metadata;
    let question = Question { namespace: NAMESPACE, name, metadata: &metadata };
    for _ in 0..times {
        let value = answers.value(black_box(question));
        anyhow::ensure!(matches!(value, Ok(value) if value == expected), "{value:?}");
    }
    Ok(true)
}

fn ingest(node: &Node, clock: Clock, times: u32) -> anyhow::Result<bool> {
    let bytes = node.sample.encode_to_vec();
    for _ in 0..times {
        let (sample, _) = node.link.sample(Sample::decode(&bytes[..])?)?;
        node.session.apply(node.link.inventory(), sample, clock.now());
    }
    Ok(true)
}
