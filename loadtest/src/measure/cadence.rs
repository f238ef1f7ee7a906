//! KEDA's cadence: for each ScaledObject a poll, an HPA sync and a stream, all over one connection,
//! as KEDA does.
//!
//! Guarantees: a poll's time counts from the moment it was due; every value is checked.

use std::sync::Arc;
use std::time::Duration;

use proto::keda::external_scaler_client::ExternalScalerClient;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::transport::Channel;

use crate::measure::round::{Round, Target, histogram, note};
use crate::measure::site::{Ask, is_right};

/// How often each ScaledObject is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Cadence {
    /// KEDA's `pollingInterval`.
    pub poll: Duration,
    /// The HPA's sync period.
    pub sync: Duration,
}

/// Three calls: what a poll and a sync both are.
const CALLS: u64 = 3;

type Client = ExternalScalerClient<Channel>;

/// One ScaledObject's loop, polls or syncs; each sequence's time and whether it was right.
async fn follow(
    client: Client,
    ask: Ask,
    every: Duration,
    first: Instant,
    end: Instant,
) -> Result<Vec<(Duration, bool)>, Status> {
    let mut seen = Vec::new();
    let mut due = first;
    while due < end {
        sleep_until(due).await;
        let is_right = sequence(client.clone(), &ask).await?;
        seen.push((due.elapsed(), is_right));
        due += every;
    }
    Ok(seen)
}

/// GetMetricSpec, GetMetrics, IsActive, in that order.
async fn sequence(mut client: Client, ask: &Ask) -> Result<bool, Status> {
    let reference = ask.request.scaled_object_ref.clone().unwrap_or_default();
    let spec = client.get_metric_spec(reference.clone()).await?.into_inner();
    let values = client.get_metrics(ask.request.clone()).await?.into_inner().metric_values;
    let active = client.is_active(reference).await?.into_inner().result;
    // Whatever is read is above zero, so all of them are active.
    let has_name = spec.metric_specs.iter().any(|spec| spec.metric_name == ask.request.metric_name);
    Ok(has_name && is_right(&values, ask.expected) && active)
}

/// Asks about every ScaledObject of `target` for so long.
///
/// # Errors
/// When a call fails.
pub async fn run(target: &Target<'_>, cadence: Cadence, length: Duration) -> anyhow::Result<Round> {
    let url = format!("http://{}", target.server.keda);
    let client = ExternalScalerClient::new(Channel::from_shared(url)?.connect().await?);
    let mut streams = JoinSet::new();
    for ask in target.asks.iter() {
        let reference = ask.request.scaled_object_ref.clone().unwrap_or_default();
        let mut stream = client.clone().stream_is_active(reference).await?.into_inner();
        streams.spawn(async move { while let Ok(Some(_)) = stream.message().await {} });
    }
    let (before, start) = (target.server.cpu()?, Instant::now());
    let end = start + length;
    let mut loops = JoinSet::new();
    let count = u32::try_from(target.asks.len())?.max(1);
    for (n, ask) in (0..).zip(target.asks.iter()) {
        for every in [cadence.poll, cadence.sync] {
            // Spread over the period in an order that is no order.
            let first = start + every * (n * 7 % count) / count;
            loops.spawn(follow(client.clone(), ask.clone(), every, first, end));
        }
    }
    let (mut times, mut wrong) = (histogram()?, 0);
    while let Some(ended) = loops.join_next().await {
        for (took, is_right) in ended?? {
            note(&mut times, took);
            wrong += u64::from(!is_right);
        }
    }
    let cpu = target.server.cpu()?.saturating_sub(before);
    Ok(Round { times, took: start.elapsed(), cpu, wrong })
}

/// Server CPU a call; a time in the round is one of three calls.
pub fn cpu_micros(round: &Round) -> f64 {
    round.cpu_micros() / CALLS as f64
}

/// The asks of the floor: as many as `count`, all answered alike.
pub fn floor_asks(asks: &[Ask]) -> Arc<[Ask]> {
    let alike = |ask: &Ask| Ask { expected: crate::measure::floor::VALUE, ..ask.clone() };
    asks.iter().map(alike).collect()
}
