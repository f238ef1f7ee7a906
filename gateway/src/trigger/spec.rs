//! scalerMetadata → `Trigger`, the typed form that everything behind it works with.
//!
//! Guarantees: the result depends on the metadata and the profiles alone, not on the order of a
//! map. Whatever could be a mistake is refused, all of it in one error, with the key, the bad word
//! and what would be right. `metric_spec` agrees with `parse` wherever that succeeds, and
//! still answers where something else than name and target is broken.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use shared::metric::Scope;

use super::endpoint;
use super::goal::{GOAL_KEYS, Goal, Settled};
use super::metadata::{Fields, Problems, read};
use super::name;
use super::profile::{Profile, Profiles, TRAINING};
use super::word::nearest;

pub use super::endpoint::{DemandEndpoint, EngineEndpoint};
pub use super::engine::Engine;
pub use super::measure::Part;
pub use super::metadata::{
    Absent, Aggregation, Error, KEYS, Key, WindowFunction, is_for_keda, is_same, ours,
};

/// One trigger of a ScaledObject: what to measure, against which target, and when it is activity.
#[derive(Clone, Debug, PartialEq)]
pub struct Trigger {
    /// Name under which KEDA knows the metric (derived or `metricName`).
    pub name: Arc<str>,
    /// What is measured, each part with its own target per replica; one part unless composite.
    pub parts: Vec<Part>,
    /// Target per replica as sent to KEDA, rounded to three decimals: the part's own, or 100 for
    /// a composite.
    pub target: f64,
    /// Whether the value is the load of the fullest part, in percent of a replica.
    pub composite: bool,
    /// Readings strictly above it are activity.
    pub activation_threshold: f64,
    /// Active while any pod exists (profile `training` without an explicit activationThreshold).
    pub active_while_pods_exist: bool,
    /// How readings become one.
    pub aggregation: Aggregation,
    /// The n-th of the pod's own GPUs; all of them if `None`.
    pub gpu_index: Option<u32>,
    /// How far back readings are smoothed; zero: not at all.
    pub window: Duration,
    /// How the sums of the window become one.
    pub window_function: WindowFunction,
    /// Inactive only after this long without activity.
    pub activation_window: Duration,
    /// Older readings are missing.
    pub stale_after: Duration,
    /// How long after Ready a pod still counts as starting.
    pub startup_grace: Duration,
    /// How long since it last became unready a pod may hold the value.
    pub cold_start_timeout: Duration,
    /// Only engine series with these labels count: `a=1,b=2`, ordered by name; all where it is
    /// empty.
    pub engine_labels: Arc<str>,
    /// Where demand is seen while no pod is ready.
    pub demand: Option<Demand>,
    /// Engine, port and path, where the metadata names them.
    pub engine_endpoint: Option<EngineEndpoint>,
    /// The engine that endpoint, metric name or profile name, in this order.
    pub engine: Option<Engine>,
    /// The profile it is based on.
    pub profile: Option<Arc<str>>,
}

impl Trigger {
    /// How far back its answers depend on readings.
    pub fn look_back(&self) -> Duration {
        self.window.max(self.activation_window) + self.stale_after
    }

    /// Whether any of its metrics comes from the pods' inference engines.
    pub fn reads_engines(&self) -> bool {
        self.parts.iter().any(|part| part.metric.scope() == Scope::Engine)
    }
}

/// Where demand is seen while no pod is ready, and how it is read.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// The page.
    pub endpoint: DemandEndpoint,
    /// Series of that page, summed.
    pub metric: String,
    /// Only series with these labels count; ordered by name.
    pub labels: Vec<(String, String)>,
    /// Demand strictly above it is activity.
    pub threshold: f64,
    /// What an absent series means.
    pub absent: Absent,
}

/// What GetMetricSpec needs; derivable even when other keys are broken.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSpec {
    /// Name under which KEDA knows the metric.
    pub name: Arc<str>,
    /// Target per replica, rounded to three decimals.
    pub target: f64,
}

/// Reads a trigger, or says everything that is wrong with it.
///
/// Endpoints outside the cluster are refused; see [`parse_admitting`].
pub fn parse(metadata: &HashMap<String, String>, profiles: &Profiles) -> Result<Trigger, Error> {
    parse_admitting(metadata, profiles, &[])
}

/// As [`parse`], but a demand endpoint may be at any of `origins`, as [`DemandEndpoint::origin`]
/// writes them, whatever its host: an IP address, or a name outside the cluster.
pub fn parse_admitting(
    metadata: &HashMap<String, String>,
    profiles: &Profiles,
    origins: &[String],
) -> Result<Trigger, Error> {
    read_whole(metadata, profiles, |origin| origins.iter().any(|known| known == origin))
}

/// As [`parse`], wherever demand is seen: for what a trigger wants of pods, whoever admits the
/// origin of its demand endpoint.
pub fn parse_anywhere(
    metadata: &HashMap<String, String>,
    profiles: &Profiles,
) -> Result<Trigger, Error> {
    read_whole(metadata, profiles, |_| true)
}

fn read_whole(
    metadata: &HashMap<String, String>,
    profiles: &Profiles,
    admits: impl Fn(&str) -> bool,
) -> Result<Trigger, Error> {
    let mut problems = Problems::default();
    let outline = Outline::read(metadata, profiles, &mut problems);
    let demand = outline.demand(admits, &mut problems);
    let engine_endpoint = outline.engine_endpoint(&mut problems);
    problems.none()?;
    let name = outline.name();
    let Outline { own, profile, fields, goal, .. } = outline;
    let named = engine_endpoint.as_ref().map(|endpoint| endpoint.engine);
    let named = named.or_else(|| fields.metric_engine.flatten());
    let inherited = profile.filter(|_| goal.unit_is_the_profiles);
    let activation = own.activation_threshold;
    let seconds = Duration::from_secs;
    Ok(Trigger {
        name,
        parts: goal.parts,
        target: goal.target,
        composite: goal.composite,
        activation_threshold: activation
            .or_else(|| inherited?.fields.activation_threshold)
            .unwrap_or(0.0),
        active_while_pods_exist: activation.is_none()
            && profile.is_some_and(|p| &*p.name == TRAINING),
        aggregation: fields.aggregation.unwrap_or_default(),
        gpu_index: fields.gpu_index.flatten(),
        window: fields.window.unwrap_or(Duration::ZERO),
        window_function: fields.window_function.unwrap_or_default(),
        activation_window: fields.activation_window.unwrap_or(seconds(60)),
        stale_after: fields.stale_after.unwrap_or(seconds(10)),
        startup_grace: fields.startup_grace.unwrap_or(Duration::ZERO),
        cold_start_timeout: fields.cold_start_timeout.unwrap_or(seconds(15 * 60)),
        engine_labels: endpoint::canonical(&fields.engine_labels.unwrap_or_default()).into(),
        demand,
        engine: named.or_else(|| Engine::of_profile(&profile?.name)),
        engine_endpoint,
        profile: profile.map(|profile| profile.name.clone()),
    })
}

/// Reads name and target alone; fails only if one of them cannot be derived.
pub fn metric_spec(
    metadata: &HashMap<String, String>,
    profiles: &Profiles,
) -> Result<MetricSpec, Error> {
    let mut problems = Problems::default();
    let outline = Outline::read(metadata, profiles, &mut problems);
    let mut keys = vec!["metricName"];
    keys.extend(GOAL_KEYS);
    if !outline.is_explicit {
        keys.push("profile");
    }
    problems.none_with(&keys)?;
    Ok(MetricSpec { name: outline.name(), target: outline.goal.target })
}

/// The keys of a trigger over those of its profile, with metric and target settled.
struct Outline<'a> {
    own: Fields,
    profile: Option<&'a Profile>,
    fields: Fields,
    goal: Settled,
    /// Whether the trigger itself says metric and target.
    is_explicit: bool,
}

impl<'a> Outline<'a> {
    fn read(
        metadata: &HashMap<String, String>,
        profiles: &'a Profiles,
        problems: &mut Problems,
    ) -> Self {
        let own =
            read(metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())), problems);
        let goal = Goal::read(&own, problems);
        let is_explicit = goal.is_complete();
        let profile = own.profile.as_deref().and_then(|name| {
            let profile = profiles.get(name);
            if profile.is_none() {
                let near = nearest(name, profiles.names());
                let name = problems.shown("profile", name);
                problems.add("profile", format!("no profile {name}, nearest is {near}"));
            }
            profile
        });
        let fields = profile.map_or_else(|| own.clone(), |profile| own.over(&profile.fields));
        let nothing = Goal::default();
        let base = profile.map_or(&nothing, |profile| &profile.goal);
        let goal = goal.settle(base, problems);
        Self { own, profile, fields, goal, is_explicit }
    }

    fn name(&self) -> Arc<str> {
        match &self.fields.metric_name {
            Some(name) => name.clone(),
            None => name::derive(&self.goal, &self.fields).into(),
        }
    }

    fn engine_endpoint(&self, problems: &mut Problems) -> Option<EngineEndpoint> {
        let own = self.own.engine_endpoint(problems);
        own.or_else(|| self.profile?.fields.engine_endpoint(problems))
    }

    fn demand(&self, admits: impl Fn(&str) -> bool, problems: &mut Problems) -> Option<Demand> {
        let fields = &self.fields;
        let (Some(endpoint), Some(metric)) = (&fields.demand_endpoint, &fields.demand_metric)
        else {
            self.check_demand_is_whole(problems);
            return None;
        };
        if endpoint.service().is_none() && !admits(&endpoint.origin()) {
            let host = problems.shown("demandEndpoint", &endpoint.host);
            problems.add(
                "demandEndpoint",
                format!(
                    "demandEndpoint host {host}: write NAME, \
                 NAME.NAMESPACE or NAME.NAMESPACE.svc of a Service, not an address"
                ),
            );
        }
        Some(Demand {
            endpoint: endpoint.clone(),
            metric: metric.clone(),
            labels: fields.demand_labels.clone().unwrap_or_default(),
            threshold: fields.demand_threshold.unwrap_or(0.0),
            absent: fields.demand_absent.unwrap_or_default(),
        })
    }

    fn check_demand_is_whole(&self, problems: &mut Problems) {
        if problems.concern(&["demandEndpoint", "demandMetric"]) {
            return;
        }
        let mut needs = |key, other| problems.add(key, format!("{key} needs {other}"));
        if self.fields.demand_endpoint.is_some() {
            needs("demandEndpoint", "demandMetric");
        }
        for (key, is_there) in [
            ("demandMetric", self.fields.demand_metric.is_some()),
            ("demandLabels", self.own.demand_labels.is_some()),
            ("demandThreshold", self.own.demand_threshold.is_some()),
            ("demandAbsent", self.own.demand_absent.is_some()),
        ] {
            if is_there && self.fields.demand_endpoint.is_none() {
                needs(key, "demandEndpoint");
            }
        }
    }
}

#[cfg(test)]
mod tests;
