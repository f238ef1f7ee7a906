//! What is simulated, as written after `sim:`.
//!
//! Guarantees: a spec that parses can be simulated; every refusal names the key, the bad word and
//! what would be right.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use proto::convert::MAX_DEVICES;
use shared::identity::PodKey;

use crate::device::fields::nearest;

const KEYS: [&str; 6] = ["gpus", "model", "pods", "shape", "noise", "seed"];
const SHAPES: [&str; 4] = ["constant", "ramp", "sine", "file"];

/// A node's simulated GPUs and their load.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// How many GPUs.
    pub gpus: u32,
    /// What they are.
    pub model: &'static Model,
    /// Pods that hold one GPU each, in order; the rest is free.
    pub pods: Vec<PodKey>,
    /// Utilisation over time.
    pub shape: Shape,
    /// Largest random deviation from the shape, in percent points.
    pub noise: f64,
    /// Chooses UUIDs and noise.
    pub seed: u64,
}

/// Utilisation over time, in percent.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Always the same.
    Constant(f64),
    /// Straight from one level to another, which is then held.
    Ramp {
        /// Level at the start.
        from: f64,
        /// Level at the end.
        to: f64,
        /// Time from start to end.
        over: Duration,
    },
    /// Up and down, starting upwards from the middle.
    Sine {
        /// Lowest level.
        low: f64,
        /// Highest level.
        high: f64,
        /// Time of one turn.
        period: Duration,
    },
    /// One level a line, one line a second; the last is held.
    File(PathBuf),
}

/// What a GPU of some product is like.
#[derive(Debug, PartialEq)]
pub struct Model {
    /// Word in the spec.
    pub word: &'static str,
    /// Name as the driver gives it.
    pub name: &'static str,
    /// Its memory.
    pub memory_mib: f64,
    /// Its power limit.
    pub watts: f64,
    /// SM clock under load.
    pub boost_mhz: f64,
    /// SM clock when idle.
    pub idle_mhz: f64,
}

macro_rules! models {
    ($($word:literal, $name:literal, $mib:literal, $watts:literal, $boost:literal, $idle:literal;)*) => {
        &[$(Model { word: $word, name: $name, memory_mib: $mib, watts: $watts, boost_mhz: $boost, idle_mhz: $idle },)*]
    };
}

static MODELS: &[Model] = models! {
    "H100", "NVIDIA H100 80GB HBM3", 81_559.0, 700.0, 1_980.0, 345.0;
    "H200", "NVIDIA H200", 143_771.0, 700.0, 1_980.0, 345.0;
    "B200", "NVIDIA B200", 183_359.0, 1_000.0, 1_965.0, 120.0;
    "A100", "NVIDIA A100-SXM4-80GB", 81_920.0, 400.0, 1_410.0, 210.0;
    "A10", "NVIDIA A10", 23_028.0, 150.0, 1_695.0, 210.0;
    "L40S", "NVIDIA L40S", 46_068.0, 350.0, 2_520.0, 210.0;
    "L4", "NVIDIA L4", 23_034.0, 72.0, 2_040.0, 210.0;
    "T4", "Tesla T4", 15_360.0, 70.0, 1_590.0, 300.0;
};

impl Default for Spec {
    fn default() -> Self {
        Self {
            gpus: 8,
            model: &MODELS[0],
            pods: Vec::new(),
            shape: Shape::Constant(60.0),
            noise: 0.0,
            seed: 0,
        }
    }
}

impl FromStr for Spec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut spec = Self::default();
        let mut seen = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let Some((key, word)) = part.split_once('=') else {
                return Err(format!("{part:?} is not of the form key=value"));
            };
            if seen.contains(&key) {
                return Err(format!("{key} is there twice; write it once"));
            }
            spec.set(key, word)?;
            seen.push(key);
        }
        let (pods, gpus) = (spec.pods.len(), spec.gpus);
        if pods > gpus as usize {
            return Err(format!(
                "pods: {pods} pods need a GPU each, but gpus={gpus}; write gpus={pods}"
            ));
        }
        Ok(spec)
    }
}

impl Spec {
    fn set(&mut self, key: &str, word: &str) -> Result<(), String> {
        match key {
            "gpus" => {
                let most = u32::try_from(MAX_DEVICES).unwrap_or(u32::MAX);
                let right = format!("a number from 1 to {most}");
                self.gpus = number(key, word, &right, |gpus| (1..=most).contains(gpus))?;
            }
            "model" => self.model = model(word)?,
            "pods" => self.pods = pods(word)?,
            "shape" => self.shape = word.parse()?,
            "noise" => {
                let within = |noise: &f64| (0.0..=100.0).contains(noise);
                self.noise = number(key, word, "percent points from 0 to 100", within)?;
            }
            "seed" => self.seed = number(key, word, "a whole number from 0", |_| true)?,
            _ => {
                return Err(format!("unknown key {key:?}; {}", instead(key, KEYS)));
            }
        }
        Ok(())
    }
}

impl FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (shape, how) = text.split_once(':').unwrap_or((text, ""));
        let example = match shape {
            "constant" => "constant:60",
            "ramp" => "ramp:0-100:60s",
            "sine" => "sine:20-90:5m",
            "file" => "file:PATH",
            _ => return Err(format!("unknown shape {shape:?}; {}", instead(shape, SHAPES))),
        };
        if how.is_empty() {
            return Err(format!("shape {shape} does not say how; write for example {example}"));
        }
        match shape {
            "constant" => Ok(Self::Constant(percent(how, example)?)),
            "ramp" => {
                let (from, to, over) = levels_and_time(how, example)?;
                Ok(Self::Ramp { from, to, over })
            }
            "sine" => {
                let (low, high, period) = levels_and_time(how, example)?;
                Ok(Self::Sine { low, high, period })
            }
            _ => Ok(Self::File(how.into())),
        }
    }
}

/// Levels of a `file:` shape, one a line.
///
/// # Errors
/// When a line is not a number from 0 to 100, or there is none.
pub(super) fn steps(text: &str) -> Result<Vec<f64>, String> {
    let mut steps = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if !line.trim().is_empty() {
            let broken = |why| format!("line {number}: {why}");
            steps.push(percent(line.trim(), "60").map_err(broken)?);
        }
    }
    if steps.is_empty() {
        return Err("no line; write one number a line".into());
    }
    Ok(steps)
}

fn instead<'a>(bad: &str, good: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(bad, good.clone()) {
        Some(word) => format!("did you mean {word:?}?"),
        None => format!("write one of {}", Vec::from_iter(good).join(", ")),
    }
}

fn number<T: FromStr>(
    key: &str,
    word: &str,
    right: impl Display,
    within: impl Fn(&T) -> bool,
) -> Result<T, String> {
    let number = word.parse().ok().filter(within);
    number.ok_or_else(|| format!("{key}={word}: write {right}"))
}

fn percent(word: &str, example: &str) -> Result<f64, String> {
    let level: Option<f64> = word.parse().ok();
    level.filter(|level| (0.0..=100.0).contains(level)).ok_or_else(|| {
        format!("level {word:?} is not a number from 0 to 100; write for example {example}")
    })
}

fn levels_and_time(how: &str, example: &str) -> Result<(f64, f64, Duration), String> {
    let form = || format!("{how:?} is not of the form {example}");
    let (levels, time) = how.split_once(':').ok_or_else(form)?;
    let (from, to) = levels.split_once('-').ok_or_else(form)?;
    let time = humantime::parse_duration(time).map_err(|_| form())?;
    if time.is_zero() {
        return Err(format!("{how:?}: the time is zero; write for example {example}"));
    }
    Ok((percent(from, example)?, percent(to, example)?, time))
}

fn model(word: &str) -> Result<&'static Model, String> {
    let known = MODELS.iter().find(|model| model.word.eq_ignore_ascii_case(word));
    known.ok_or_else(|| {
        // Few, and one is not like another because its name is.
        let words: Vec<_> = MODELS.iter().map(|model| model.word).collect();
        format!("unknown model {word:?}; write one of {}", words.join(", "))
    })
}

fn pods(text: &str) -> Result<Vec<PodKey>, String> {
    let pods = text.split('+').filter(|pod| !pod.is_empty());
    pods.map(|pod| match pod.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(PodKey::new(namespace, name))
        }
        _ => Err(format!("pods: {pod:?} is not of the form NAMESPACE/POD")),
    })
    .collect()
}
