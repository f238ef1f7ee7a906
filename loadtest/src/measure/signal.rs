//! From a signal to the replicas ordered: a real gateway and real agents, KEDA and the HPA emulated
//! at their usual periods, many ScaledObjects at once, each with its own phase.
//!
//! Guarantees: zero to one is timed from its router's page, one to many from the GPU's reading; a
//! ScaledObject that does not move is an error.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use proto::keda::ScaledObjectRef;
use shared::process::Clock;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;
use crate::hpa::{Hpa, Metric, MetricType, Scale, Settings};
use crate::keda::{Action, Activity, Keda, Rules};
use crate::measure::dial::Dial;
use crate::measure::push;
use crate::measure::round::{histogram, note};
use crate::measure::server::{Kind, Server};
use crate::measure::site::{NAMESPACE, reference};
use crate::router::{Router, SERIES};

/// What was measured, all from the signal to the order.
#[derive(Clone, Debug)]
pub struct Times {
    /// Zero to one through StreamIsActive.
    pub pushed: Histogram<u64>,
    /// Zero to one through polls.
    pub polled: Histogram<u64>,
    /// One to more through the HPA.
    pub synced: Histogram<u64>,
}

/// Periods of KEDA, the HPA and the agents.
#[derive(Clone, Copy, Debug)]
pub struct Periods {
    /// KEDA's `pollingInterval`.
    pub poll: Duration,
    /// The HPA's sync period.
    pub sync: Duration,
    /// The agents' interval.
    pub interval: Duration,
}

const MAX: u32 = 8;
/// When the signal comes, counted from the start of the loops.
const QUIET: Duration = Duration::from_secs(3);
/// Within how long: several periods of whatever looks.
const SPREAD: Duration = Duration::from_secs(5);

fn asleep(n: usize) -> String {
    format!("asleep-{n}")
}

fn asleep_reference(n: usize, router: &Router) -> ScaledObjectRef {
    let mut reference = reference(&asleep(n));
    let demand = [
        ("demandEndpoint", format!("{}/metrics", router.origin())),
        ("demandMetric", SERIES.to_owned()),
    ];
    let demand = demand.map(|(key, value)| (key.to_owned(), value));
    reference.scaler_metadata.extend(demand);
    reference
}

fn directory(nodes: usize, sleepers: usize) -> String {
    let awake = push::directory(nodes);
    let (workloads, objects) = awake.split_once("scaledObjects:\n").unwrap_or((&awake, ""));
    let (mut workloads, mut objects) = (workloads.to_owned(), objects.to_owned());
    for name in (0..sleepers).map(asleep) {
        writeln!(
            workloads,
            "  - {{namespace: {NAMESPACE}, kind: Deployment, name: {name}, replicas: 0}}"
        )
        .ok();
        writeln!(objects, "  - {{namespace: {NAMESPACE}, name: {name}, target: {{name: {name}}}}}")
            .ok();
    }
    format!("{workloads}scaledObjects:\n{objects}")
}

/// Routers get requests and GPUs get busy, `nodes` × 8 ScaledObjects of each kind.
///
/// # Errors
/// When one of them does not move within two periods.
pub async fn run(nodes: usize, periods: Periods) -> anyhow::Result<Times> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("directory.yaml");
    let count = nodes * 8;
    // One for each, because each page is looked at in its own time.
    let mut routers = Vec::new();
    for _ in 0..count {
        routers.push(Router::start().await?);
    }
    std::fs::write(&file, directory(nodes, count))?;
    let demand_allow = routers.iter().map(Router::origin).collect();
    let server = Server::start(&Kind::Gateway { directory: file, agents: None, demand_allow })?;
    let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
    let dials = push::agents(&mut tasks, &server, nodes, periods.interval, &stop)?;
    tokio::time::sleep(QUIET + 2 * periods.interval).await;
    let signals: Vec<_> = (0..count).map(|_| watch::Sender::new(None)).collect();
    let [mut pushed, mut polled, mut synced] = [JoinSet::new(), JoinSet::new(), JoinSet::new()];
    for (n, router) in routers.iter().enumerate() {
        let phase = |period: Duration| Instant::now() + period.mul_f64(fastrand::f64());
        let sleeper = Caller::new(server.keda, asleep_reference(n, router))?;
        let awake = Caller::new(server.keda, push::reference_of(n))?;
        pushed.spawn(by_push(sleeper.clone(), signals[n].subscribe()));
        polled.spawn(by_poll(sleeper, periods.poll, phase(periods.poll), signals[n].subscribe()));
        synced.spawn(by_sync(awake, periods.sync, phase(periods.sync), signals[n].subscribe()));
    }
    tokio::time::sleep(QUIET).await;
    let mut signalling = JoinSet::new();
    for ((router, dial), signal) in routers.into_iter().zip(dials).zip(signals) {
        signalling.spawn(give(router, dial, signal));
    }
    let patience = 2 * periods.poll.max(periods.sync) + Duration::from_secs(10);
    let times = timeout(patience, async {
        let (pushed, polled) = (gathered(&mut pushed).await?, gathered(&mut polled).await?);
        anyhow::Ok(Times { pushed, polled, synced: gathered(&mut synced).await? })
    });
    let times = times.await.context("replicas do not follow the signal")??;
    stop.cancel();
    while tasks.join_next().await.is_some() {}
    Ok(times)
}

/// Gives the signal at a moment of its own, whatever is looked at when.
async fn give(router: Router, dial: Dial, signal: watch::Sender<Option<Instant>>) {
    tokio::time::sleep(SPREAD.mul_f64(fastrand::f64())).await;
    signal.send_replace(Some(Instant::now()));
    router.holds(3);
    dial.set(100);
    // Gone pages would take the demand back.
    std::future::pending::<()>().await;
    drop(router);
}

async fn gathered(tasks: &mut JoinSet<anyhow::Result<Duration>>) -> anyhow::Result<Histogram<u64>> {
    let mut times = histogram()?;
    while let Some(ended) = tasks.join_next().await {
        note(&mut times, ended??);
    }
    Ok(times)
}

type Signal = watch::Receiver<Option<Instant>>;

/// How long ago the signal came.
fn since(signal: &Signal) -> anyhow::Result<Duration> {
    signal.borrow().map(|at| at.elapsed()).context("it moved before the signal came")
}

fn keda() -> Keda {
    Keda::new(Rules { min: 0, cooldown: Duration::from_secs(300) })
}

async fn by_push(caller: Caller, signal: Signal) -> anyhow::Result<Duration> {
    let (activations, mut heard) = mpsc::channel(4);
    let clock = Clock::start();
    let listening = tokio::spawn(caller.listen(activations));
    heard.recv().await.context("the stream ended")?;
    listening.abort();
    match keda().decide(clock.now(), 0, Activity::Active) {
        Action::Scale(1, _) => since(&signal),
        other => anyhow::bail!("woken, KEDA does {other:?}"),
    }
}

async fn by_poll(
    caller: Caller,
    period: Duration,
    first: Instant,
    signal: Signal,
) -> anyhow::Result<Duration> {
    let (mut keda, clock) = (keda(), Clock::start());
    let mut polls = interval_at(first, period);
    loop {
        polls.tick().await;
        let seen = match caller.fetch().await {
            Ok(seen) if seen.active => Activity::Active,
            Ok(_) => Activity::Inactive,
            Err(_) => Activity::Error,
        };
        if let Action::Scale(1, _) = keda.decide(clock.now(), 0, seen) {
            return since(&signal);
        }
    }
}

async fn by_sync(
    caller: Caller,
    period: Duration,
    first: Instant,
    signal: Signal,
) -> anyhow::Result<Duration> {
    let (mut hpa, clock) = (Hpa::new(Settings::upstream(1, MAX)), Clock::start());
    let mut syncs = interval_at(first, period);
    let scale = Scale { spec: 1, status: 1, ready: 1 };
    loop {
        syncs.tick().await;
        let metric = caller.fetch().await.ok().and_then(|seen| {
            let kind = MetricType::AverageValue;
            seen.value.map(|value| Metric { kind, value, target: seen.target })
        });
        if hpa.sync(clock.now(), scale, metric).desired > 1 {
            return since(&signal);
        }
    }
}
