//! The `/scale` subresource of every target, whatever its kind.
//!
//! Guarantees: each target is read again within five seconds, and at once when pods of its
//! namespace come or go; never more than `AT_ONCE` requests at a time nor `PER_SECOND` a second,
//! so that beyond some 250 targets the five seconds become longer rather than the load higher.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v1;
use kube::core::{DynamicObject, GroupVersion, GroupVersionKind};
use kube::discovery::{ApiResource, Scope, pinned_kind};
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::index::Scale;
use super::object::Target;
use super::selector::Selector;
use super::watch::chain;
use crate::directory::Absent;

/// A target is read again after this long, give or take.
const EVERY: Duration = Duration::from_secs(4);
/// Two readings of one target are at least this far apart.
const GAP: Duration = Duration::from_millis(250);
/// How often it is looked which targets are due.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const AT_ONCE: usize = 8;
const PER_SECOND: u32 = 50;
/// An answer that takes longer is none.
const WITHIN: Duration = Duration::from_secs(5);

/// What is to be read: targets, each with a number that changes when it should be read at once.
pub type Wanted = Arc<BTreeMap<Target, u64>>;
/// What was found.
pub type Found = (Target, Result<Scale, Absent>);
type Kinds = HashMap<(Arc<str>, Arc<str>), ApiResource>;

struct Reading {
    asked: u64,
    /// `None` while it is being read.
    last: Option<Instant>,
    every: Duration,
}

/// Reads whatever is `wanted`, until `shutdown`.
pub async fn keep_reading(
    client: Client,
    mut wanted: watch::Receiver<Wanted>,
    found: mpsc::Sender<Found>,
    shutdown: CancellationToken,
) {
    let mut kinds = Kinds::new();
    let mut readings: HashMap<Target, Reading> = HashMap::new();
    let mut under_way = JoinSet::new();
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut allowance = Allowance { tokens: f64::from(PER_SECOND), at: Instant::now() };
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = wanted.changed() => if changed.is_err() { return },
            _ = look.tick() => {}
            Some(Ok((target, kind, result))) = under_way.join_next() => {
                settle(&mut readings, &target);
                if let Some(kind) = kind {
                    kinds.insert(kind_of(&target), kind);
                }
                if found.send((target, result)).await.is_err() {
                    return;
                }
            }
        }
        let wanted = wanted.borrow_and_update().clone();
        readings.retain(|target, _| wanted.contains_key(target));
        for target in due(&mut readings, &wanted, AT_ONCE - under_way.len(), &mut allowance) {
            let kind = kinds.get(&kind_of(&target)).cloned();
            under_way.spawn(read(client.clone(), target, kind));
        }
    }
}

fn kind_of(target: &Target) -> (Arc<str>, Arc<str>) {
    (target.api_version.clone(), target.key.kind.clone())
}

/// Requests that may be made now.
struct Allowance {
    tokens: f64,
    at: Instant,
}

impl Allowance {
    fn take(&mut self, now: Instant) -> bool {
        let rate = f64::from(PER_SECOND);
        let earned = now.duration_since(self.at).as_secs_f64() * rate;
        (self.tokens, self.at) = ((self.tokens + earned).min(rate), now);
        let may = self.tokens >= 1.0;
        self.tokens -= if may { 1.0 } else { 0.0 };
        may
    }
}

fn due(
    readings: &mut HashMap<Target, Reading>,
    wanted: &Wanted,
    room: usize,
    allowance: &mut Allowance,
) -> Vec<Target> {
    let now = Instant::now();
    let mut due: Vec<(Option<Instant>, &Target, u64)> = Vec::new();
    for (target, &asked) in wanted.iter() {
        match readings.get(target) {
            None => due.push((None, target, asked)),
            Some(Reading { last: None, .. }) => {}
            Some(Reading { last: Some(last), asked: known, every }) => {
                let at = *last + if *known == asked { *every } else { GAP };
                if at <= now {
                    due.push((Some(at), target, asked));
                }
            }
        }
    }
    // Those that were never read come first, then those that wait longest.
    due.sort();
    due.truncate(room);
    due.retain(|_| allowance.take(now));
    due.into_iter()
        .map(|(_, target, asked)| {
            let every = EVERY.mul_f64(0.8 + 0.4 * fastrand::f64());
            readings.insert(target.clone(), Reading { asked, last: None, every });
            target.clone()
        })
        .collect()
}

fn settle(readings: &mut HashMap<Target, Reading>, target: &Target) {
    if let Some(reading) = readings.get_mut(target) {
        reading.last = Some(Instant::now());
    }
}

async fn read(
    client: Client,
    target: Target,
    kind: Option<ApiResource>,
) -> (Target, Option<ApiResource>, Result<Scale, Absent>) {
    let found = timeout(WITHIN, async {
        let kind = match kind {
            Some(kind) => kind,
            None => discovered(&client, &target).await?,
        };
        let scale = scale(client, &target, &kind).await?;
        Ok((kind, scale))
    });
    match found.await {
        Ok(Ok((kind, scale))) => (target, Some(kind), Ok(scale)),
        Ok(Err(absent)) => (target, None, Err(absent)),
        Err(_) => {
            let why = format!("its /scale was not answered within {} s", WITHIN.as_secs());
            (target, None, Err(Absent::Unread(why.into())))
        }
    }
}

/// The resource behind a kind; it must be namespaced and have `/scale`.
async fn discovered(client: &Client, target: &Target) -> Result<ApiResource, Absent> {
    let (version, kind) = (&target.api_version, &target.key.kind);
    let missing = |why: String| Err(Absent::Missing(why.into()));
    let Ok(group) = version.parse::<GroupVersion>() else {
        return missing(format!("apiVersion {version:?} is not one"));
    };
    let gvk = GroupVersionKind::gvk(&group.group, &group.version, kind);
    match pinned_kind(client, &gvk).await {
        Ok((_, found)) if found.scope == Scope::Cluster => {
            missing(format!("kind {kind} of {version} is not namespaced"))
        }
        Ok((_, found)) if !found.subresources.iter().any(|(sub, _)| sub.plural == "scale") => {
            missing(format!("kind {kind} of {version} has no /scale subresource"))
        }
        Ok((resource, _)) => Ok(resource),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            missing(format!("the cluster has no {version}"))
        }
        Err(kube::Error::Discovery(_)) => missing(format!("{version} has no kind {kind}")),
        Err(error) => {
            Err(Absent::Unread(format!("its kind cannot be read: {}", chain(&error)).into()))
        }
    }
}

async fn scale(client: Client, target: &Target, kind: &ApiResource) -> Result<Scale, Absent> {
    let api = Api::<DynamicObject>::namespaced_with(client, &target.key.namespace, kind);
    match api.get_scale(&target.key.name).await {
        Ok(scale) => read_scale(scale),
        Err(kube::Error::Api(status)) if status.code == 404 => {
            Err(Absent::Missing("there is no such workload".into()))
        }
        Err(error) => {
            Err(Absent::Unread(format!("its /scale cannot be read: {}", chain(&error)).into()))
        }
    }
}

fn read_scale(scale: v1::Scale) -> Result<Scale, Absent> {
    let missing = |why: String| Absent::Missing(why.into());
    let unread = |why: &str| Absent::Unread(why.into());
    let spec = scale.spec.ok_or_else(|| unread("its /scale has no spec"))?;
    let status = scale.status.unwrap_or_default();
    let selector = status.selector.unwrap_or_default();
    let selector = Selector::parse(&selector)
        .map_err(|why| missing(format!("its /scale has a selector that is none: {why}")))?;
    if selector.is_empty() {
        return Err(missing("its /scale has no selector, so its pods are not known".into()));
    }
    // The API server leaves a zero out of the JSON (`omitempty` of autoscaling/v1 ScaleSpec).
    let ordered = spec.replicas.unwrap_or(0);
    let count = |number| u32::try_from(number).map_err(|_| unread("its /scale counts below zero"));
    Ok(Scale { selector, replicas: count(ordered)?, status_replicas: count(status.replicas)? })
}

#[cfg(test)]
mod tests {
    use shared::identity::WorkloadKey;
    use tokio::time::advance;

    use super::*;

    #[test]
    fn a_zero_that_is_left_out_is_zero_and_a_spec_that_is_missing_is_not_known() {
        let status = Some(v1::ScaleStatus { replicas: 0, selector: Some("app=llm".into()) });
        let scale = |spec| v1::Scale { spec, status: status.clone(), ..v1::Scale::default() };
        let ordered = |replicas| read_scale(scale(Some(v1::ScaleSpec { replicas })));
        assert_eq!(ordered(None).unwrap().replicas, 0);
        assert_eq!(ordered(Some(3)).unwrap().replicas, 3);
        assert!(matches!(ordered(Some(-1)), Err(Absent::Unread(_))));
        assert!(matches!(read_scale(scale(None)), Err(Absent::Unread(_))));
    }

    fn wanted(targets: usize, asked: u64) -> Wanted {
        let target = |n: usize| Target {
            api_version: "apps/v1".into(),
            key: WorkloadKey {
                namespace: "ml".into(),
                kind: "Deployment".into(),
                name: n.to_string().into(),
            },
        };
        Arc::new((0..targets).map(|n| (target(n), asked)).collect())
    }

    /// Answers everything that is due for `seconds`, and says how often each target was read.
    async fn reads(
        readings: &mut HashMap<Target, Reading>,
        wanted: &Wanted,
        allowance: &mut Allowance,
        seconds: u32,
    ) -> BTreeMap<Target, u32> {
        let mut counts: BTreeMap<Target, u32> = BTreeMap::new();
        for _ in 0..seconds * 20 {
            let due = due(readings, wanted, AT_ONCE, allowance);
            assert!(due.len() <= AT_ONCE);
            for target in due {
                settle(readings, &target);
                *counts.entry(target).or_default() += 1;
            }
            advance(LOOK_EVERY).await;
        }
        counts
    }

    fn full() -> Allowance {
        Allowance { tokens: f64::from(PER_SECOND), at: Instant::now() }
    }

    #[tokio::test(start_paused = true)]
    async fn each_target_is_read_within_five_seconds() {
        let (mut readings, wanted) = (HashMap::new(), wanted(100, 0));
        let counts = reads(&mut readings, &wanted, &mut full(), 60).await;
        assert_eq!(counts.len(), 100);
        assert!(counts.values().all(|count| (12..=19).contains(count)), "{:?}", counts.values());
    }

    #[tokio::test(start_paused = true)]
    async fn many_targets_wait_longer_and_the_load_stays() {
        let (mut readings, wanted) = (HashMap::new(), wanted(2_000, 0));
        let counts = reads(&mut readings, &wanted, &mut full(), 120).await;
        let total: u32 = counts.values().sum();
        assert!(total <= 121 * PER_SECOND, "{total}");
        assert_eq!(counts.len(), 2_000, "none is forgotten");
        assert!(counts.values().all(|count| (2..=4).contains(count)), "all alike");
    }

    #[tokio::test(start_paused = true)]
    async fn what_pods_come_and_go_for_is_read_at_once_but_not_without_end() {
        let (mut readings, mut allowance) = (HashMap::new(), full());
        reads(&mut readings, &wanted(1, 0), &mut allowance, 1).await;
        let again = reads(&mut readings, &wanted(1, 1), &mut allowance, 1).await;
        assert_eq!(again.values().sum::<u32>(), 1);
        let mut total = 0;
        for asked in 2..200 {
            total += due(&mut readings, &wanted(1, asked), AT_ONCE, &mut allowance).len();
            let target = wanted(1, 0).keys().next().cloned();
            target.iter().for_each(|target| settle(&mut readings, target));
            advance(LOOK_EVERY).await;
        }
        assert!((1..=40).contains(&total), "{total}: at most four a second, in ten");
    }
}
