//! Calls for a while, flat out or at a fixed rate; every answer is checked.
//!
//! Guarantees: at a fixed rate a call's time counts from the moment it was due, so that a server
//! that stalls cannot hide the calls that waited meanwhile.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hdrhistogram::Histogram;
use proto::keda::external_scaler_client::ExternalScalerClient;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::measure::server::Server;
use crate::measure::site::{Ask, is_right};

/// The longest time that is told apart.
const LONGEST: Duration = Duration::from_secs(60);

/// Whom to ask what.
#[derive(Clone, Debug)]
pub struct Target<'a> {
    /// What it is called in the report.
    pub name: &'a str,
    /// The server.
    pub server: &'a Server,
    /// Asked in turn.
    pub asks: Arc<[Ask]>,
}

/// What one round brought.
#[derive(Clone, Debug)]
pub struct Round {
    /// Times of the calls in nanoseconds.
    pub times: Histogram<u64>,
    /// How long the round was.
    pub took: Duration,
    /// CPU time of the server.
    pub cpu: Duration,
    /// Answers that were not the expected.
    pub wrong: u64,
}

impl Round {
    /// Calls a second.
    pub fn rate(&self) -> f64 {
        self.times.len() as f64 / self.took.as_secs_f64()
    }

    /// Server CPU a call, in microseconds.
    pub fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.times.len() as f64
    }

    /// The time that so many percent of the calls stayed below, in milliseconds.
    pub fn millis(&self, percent: f64) -> f64 {
        self.times.value_at_percentile(percent) as f64 / 1e6
    }
}

/// A histogram of times up to a minute, three digits exact.
///
/// # Errors
/// None with these bounds.
pub fn histogram() -> anyhow::Result<Histogram<u64>> {
    let longest = u64::try_from(LONGEST.as_nanos())?;
    Histogram::new_with_bounds(1, longest, 3).context("a histogram")
}

/// Notes a time.
pub fn note(times: &mut Histogram<u64>, took: Duration) {
    times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
}

async fn connect(target: &Target<'_>, connections: usize) -> anyhow::Result<Vec<Channel>> {
    let mut channels = Vec::new();
    for _ in 0..connections {
        let url = format!("http://{}", target.server.keda);
        channels.push(Channel::from_shared(url)?.connect().await?);
    }
    Ok(channels)
}

/// So many calls at once, over so many connections, for as long.
///
/// # Errors
/// When a call fails.
pub async fn flat_out(
    target: &Target<'_>,
    (in_flight, connections): (usize, usize),
    length: Duration,
) -> anyhow::Result<Round> {
    let channels = connect(target, connections).await?;
    let (before, start) = (target.server.cpu()?, Instant::now());
    let mut callers = JoinSet::new();
    for n in 0..in_flight {
        let mut client = ExternalScalerClient::new(channels[n % connections].clone());
        let asks = target.asks.clone();
        callers.spawn(async move {
            let (mut times, mut wrong) = (histogram()?, 0);
            let mut next = n;
            while start.elapsed() < length {
                let ask = &asks[next % asks.len()];
                // Spread over all of them, whoever calls.
                next += in_flight;
                let begun = Instant::now();
                let answer = client.get_metrics(ask.request.clone()).await?.into_inner();
                note(&mut times, begun.elapsed());
                wrong += u64::from(!is_right(&answer.metric_values, ask.expected));
            }
            anyhow::Ok((times, wrong))
        });
    }
    let (mut times, mut wrong) = (histogram()?, 0);
    while let Some(ended) = callers.join_next().await {
        let (more, found) = ended??;
        times.add(more)?;
        wrong += found;
    }
    let cpu = target.server.cpu()?.saturating_sub(before);
    Ok(Round { times, took: start.elapsed(), cpu, wrong })
}

/// So many calls a second over one connection, whether earlier ones were answered or not.
///
/// # Errors
/// When a call fails.
pub async fn open_loop(target: &Target<'_>, rate: u32, length: Duration) -> anyhow::Result<Round> {
    let channel = connect(target, 1).await?.remove(0);
    let client = ExternalScalerClient::new(channel);
    let (due, mut wanted) = mpsc::unbounded_channel();
    let (before, start) = (target.server.cpu()?, Instant::now());
    // A thread of its own: the runtime's timer is only exact to a millisecond.
    let pacer = std::thread::spawn(move || {
        for n in 0.. {
            let at = start + Duration::from_secs(1) * n / rate;
            if at > start + length || due.send(at).is_err() {
                return;
            }
            let next = start + Duration::from_secs(1) * (n + 1) / rate;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    });
    let (mut times, mut wrong) = (histogram()?, 0);
    let mut calls = JoinSet::new();
    let mut next = 0;
    let mut is_over = false;
    while !is_over || !calls.is_empty() {
        tokio::select! {
            at = wanted.recv(), if !is_over => match at {
                None => is_over = true,
                Some(at) => {
                    let (mut client, asks) = (client.clone(), target.asks.clone());
                    let place = next % asks.len();
                    next += 1;
                    calls.spawn(async move {
                        let ask = &asks[place];
                        let answer = client.get_metrics(ask.request.clone()).await?.into_inner();
                        let is_right = is_right(&answer.metric_values, ask.expected);
                        anyhow::Ok((at.elapsed(), is_right))
                    });
                }
            },
            Some(ended) = calls.join_next() => {
                let (took, is_right) = ended??;
                note(&mut times, took);
                wrong += u64::from(!is_right);
            }
        }
    }
    let cpu = target.server.cpu()?.saturating_sub(before);
    anyhow::ensure!(pacer.join().is_ok(), "the pacer panicked");
    Ok(Round { times, took: start.elapsed(), cpu, wrong })
}
