//! What came of a run.

use hdrhistogram::Histogram;

use super::engine::Finished;

/// A first token later than this is over the objective: seconds. As in Agrawal et al., "Vidur",
/// MLSys 2024.
pub const SLO_FIRST_TOKEN: f64 = 2.0;
/// More than this from token to token, on average, is over the objective: seconds. Ibid.
pub const SLO_TOKEN: f64 = 0.2;

/// One moment, for the charts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Seconds after the first request.
    pub at: f64,
    /// `spec.replicas`.
    pub ordered: u32,
    /// Pods that are ready.
    pub ready: u32,
    /// Requests that nobody works on, in the router or an engine.
    pub waiting: f64,
    /// Requests that are worked on.
    pub running: f64,
}

/// The figures of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// GPU-seconds that pods held.
    pub gpu_seconds: f64,
    /// Energy of the GPUs that pods held, in joules.
    pub joules: f64,
    /// Changes of `spec.replicas`.
    pub moves: u32,
    /// The most that was ordered.
    pub peak: u32,
    /// Seconds without a pod.
    pub seconds_at_zero: f64,
    /// Requests answered.
    pub answered: u64,
    /// Requests that were not answered within an hour after the end of the run.
    pub unanswered: u64,
    /// Of both: over the objective.
    pub over: u64,
    /// Arrival to the first work on it, in milliseconds.
    wait: Histogram<u64>,
    /// Arrival to the first token, in milliseconds.
    first_token: Histogram<u64>,
    /// Every ten seconds.
    pub points: Vec<Point>,
}

impl Default for Outcome {
    fn default() -> Self {
        let times = Histogram::new(3).expect("three significant digits are valid");
        Self {
            gpu_seconds: 0.0,
            joules: 0.0,
            moves: 0,
            peak: 0,
            seconds_at_zero: 0.0,
            answered: 0,
            unanswered: 0,
            over: 0,
            wait: times.clone(),
            first_token: times,
            points: Vec::new(),
        }
    }
}

impl Outcome {
    /// Notes a request that came at `arrived` and had `output` tokens generated.
    pub fn answered(&mut self, arrived: f64, output: u32, finished: &Finished) {
        let first_token = finished.first_token - arrived;
        let tokens = f64::from(output.saturating_sub(1).max(1));
        let per_token = (finished.done - finished.first_token) / tokens;
        self.answered += 1;
        self.over += u64::from(first_token > SLO_FIRST_TOKEN || per_token > SLO_TOKEN);
        for (histogram, seconds) in
            [(&mut self.wait, finished.begun - arrived), (&mut self.first_token, first_token)]
        {
            histogram.record(millis(seconds)).expect("it grows with what is recorded");
        }
    }

    /// Notes requests that never got an answer.
    pub fn never_answered(&mut self, requests: u64) {
        self.unanswered += requests;
        self.over += requests;
    }

    /// Share of requests over the objective, in percent.
    pub fn over_percent(&self) -> f64 {
        let all = self.answered + self.unanswered;
        if all == 0 { 0.0 } else { self.over as f64 / all as f64 * 100.0 }
    }

    /// Requests that a ready replica worked on at once, in the middle of all moments at which
    /// there was any; 0 if there was none.
    pub fn running_per_replica(&self) -> f64 {
        let each = self.points.iter().filter(|point| point.ready > 0 && point.running > 0.0);
        let mut each: Vec<f64> = each.map(|point| point.running / f64::from(point.ready)).collect();
        each.sort_by(f64::total_cmp);
        each.get(each.len() / 2).copied().unwrap_or_default()
    }

    /// Hours.
    pub fn gpu_hours(&self) -> f64 {
        self.gpu_seconds / 3_600.0
    }

    /// Kilowatt-hours.
    pub fn kilowatt_hours(&self) -> f64 {
        self.joules / 3.6e6
    }

    /// Seconds from arrival to the first work on it that this share of requests, in percent, did
    /// not exceed.
    pub fn wait(&self, percent: f64) -> f64 {
        self.wait.value_at_quantile(percent / 100.0) as f64 / 1e3
    }

    /// The same up to the first token.
    pub fn first_token(&self, percent: f64) -> f64 {
        self.first_token.value_at_quantile(percent / 100.0) as f64 / 1e3
    }
}

fn millis(seconds: f64) -> u64 {
    (seconds.max(0.0) * 1e3).round() as u64
}
