//! The comparison: every policy over the same trace, as a table and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::outcome::Outcome;
use super::policy::{Named, Policy};
use super::run::{Setting, run};
use super::trace::Request;

/// Of requests, what the cheapest fixed number of replicas may have over the objective: percent.
const ORACLE_OVER: f64 = 1.0;

/// A policy and what came of it.
#[derive(Clone, Debug)]
pub struct Row {
    /// The policy's name.
    pub name: String,
    /// What came of it.
    pub outcome: Outcome,
}

/// Runs everything, beginning with `begin` replicas, or with as many as the cheapest fixed number; `told` hears the name of each policy before it runs.
///
/// # Errors
/// As [`run`], with the policy's name.
pub fn compare(
    requests: &[Request],
    setting: Setting,
    begin: Option<u32>,
    policies: Vec<Named>,
    mut told: impl FnMut(&str),
) -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    told("fixed replicas");
    let oracle = oracle(requests, setting)?;
    let fewest = oracle.as_ref().map(|row| row.outcome.peak);
    let begin = begin.or(fewest).unwrap_or(setting.gpus);
    let setting = Setting { begin, ..setting };
    rows.extend(oracle);
    for Named { name, policy } in policies {
        told(&name);
        let outcome = run(&policy, requests, setting)
            .map_err(|error| error.context(format!("policy {name}")))?;
        rows.push(Row { name, outcome });
    }
    Ok(rows)
}

/// The fewest fixed replicas with which nearly every request meets the objective: what only someone
/// who knows the day in advance can order.
fn oracle(requests: &[Request], setting: Setting) -> anyhow::Result<Option<Row>> {
    for replicas in 1..=setting.gpus {
        let outcome = run(&Policy::Fixed(replicas), requests, setting)?;
        if outcome.over_percent() <= ORACLE_OVER {
            let name = format!("fixed, {replicas} (fewest that serve)");
            return Ok(Some(Row { name, outcome }));
        }
    }
    Ok(None)
}

/// The table, in Markdown.
pub fn markdown(rows: &[Row]) -> String {
    let mut text = String::from(
        "| policy | GPU-hours | kWh | wait p50 / p95 / p99, s | first token p50 / p95 / p99, s | over SLO | running per replica | moves | peak | at zero, min |\n\
         |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    for Row { name, outcome, .. } in rows {
        let wait = [50.0, 95.0, 99.0].map(|percent| outcome.wait(percent));
        let first = [50.0, 95.0, 99.0].map(|percent| outcome.first_token(percent));
        writeln!(
            text,
            "| {name} | {:.2} | {:.2} | {:.2} / {:.2} / {:.2} | {:.2} / {:.2} / {:.2} | {:.2} % | {:.1} | {} | {} | {:.1} |",
            outcome.gpu_hours(),
            outcome.kilowatt_hours(),
            wait[0],
            wait[1],
            wait[2],
            first[0],
            first[1],
            first[2],
            outcome.over_percent(),
            outcome.running_per_replica(),
            outcome.moves,
            outcome.peak,
            outcome.seconds_at_zero / 60.0,
        )
        .expect("writing to a String does not fail");
    }
    text
}

/// The same as JSON, in base units.
pub fn json(rows: &[Row]) -> Value {
    let row = |Row { name, outcome, .. }: &Row| {
        let at =
            |of: &dyn Fn(f64) -> f64| json!({"p50": of(50.0), "p95": of(95.0), "p99": of(99.0)});
        json!({
            "policy": name,
            "gpuHours": outcome.gpu_hours(),
            "kilowattHours": outcome.kilowatt_hours(),
            "waitSeconds": at(&|percent| outcome.wait(percent)),
            "firstTokenSeconds": at(&|percent| outcome.first_token(percent)),
            "answered": outcome.answered,
            "unanswered": outcome.unanswered,
            "overSlo": outcome.over,
            "runningPerReplica": outcome.running_per_replica(),
            "moves": outcome.moves,
            "peakReplicas": outcome.peak,
            "secondsAtZero": outcome.seconds_at_zero,
        })
    };
    Value::Array(rows.iter().map(row).collect())
}
