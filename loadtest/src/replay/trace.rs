//! A request trace: when each request came, how long it was, and how much was generated.
//!
//! Guarantees: requests come out in the order of their arrival; a line that cannot be read names its
//! number and what is wrong with it, and no trace is made of the rest. More load than the trace has
//! is made of seeded copies, never of other lengths.

use std::path::Path;

use anyhow::{Context as _, bail};
use jiff::civil::DateTime;
use serde::Deserialize;

/// How far a copy of a request may lie from the original, in seconds.
const SPREAD: f64 = 20.0;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// When it comes, in seconds after the first of the trace.
    pub at: f64,
    /// Tokens of its prompt.
    pub input: u32,
    /// Tokens that are generated for it; at least one.
    pub output: u32,
}

/// A line of the file: the columns of the Azure LLM inference traces.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "TIMESTAMP")]
    timestamp: DateTime,
    #[serde(rename = "ContextTokens")]
    input: u32,
    #[serde(rename = "GeneratedTokens")]
    output: u32,
}

/// Reads a trace: CSV with the columns `TIMESTAMP` (date and time of day), `ContextTokens` and
/// `GeneratedTokens`.
///
/// # Errors
/// When the file cannot be read, has a broken line or none at all.
pub fn read(path: &Path) -> anyhow::Result<Vec<Request>> {
    let file = || format!("trace {}", path.display());
    parse(std::fs::File::open(path).with_context(file)?).with_context(file)
}

/// As [`read`], from anything.
///
/// # Errors
/// As [`read`].
pub fn parse(input: impl std::io::Read) -> anyhow::Result<Vec<Request>> {
    let mut lines = Vec::new();
    for line in csv::Reader::from_reader(input).deserialize() {
        lines.push(line?);
    }
    lines.sort_by_key(|line: &Line| line.timestamp);
    let Some(first) = lines.first().map(|line| line.timestamp) else {
        bail!("it has no request");
    };
    let request = |line: &Line| Request {
        at: line.timestamp.duration_since(first).as_secs_f64(),
        input: line.input,
        output: line.output.max(1),
    };
    Ok(lines.iter().map(request).collect())
}

/// `load` times the load: every request comes that often, each copy within 20 s of the original, and
/// for a fraction by that chance. The same seed makes the same requests.
pub fn multiplied(requests: &[Request], load: f64, seed: u64) -> Vec<Request> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut all = Vec::new();
    for request in requests {
        let copies = load.trunc() as usize + usize::from(random.f64() < load.fract());
        for copy in 0..copies {
            let shift = if copy == 0 { 0.0 } else { (random.f64() * 2.0 - 1.0) * SPREAD };
            all.push(Request { at: (request.at + shift).max(0.0), ..*request });
        }
    }
    all.sort_by(|a, b| a.at.total_cmp(&b.at));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_in_order_and_a_broken_line_is_named() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
                    2023-11-16 18:15:50.5000000,396,0\n\
                    2023-11-16 18:15:46.0000000,374,44\n";
        let first = Request { at: 0.0, input: 374, output: 44 };
        let second = Request { at: 4.5, input: 396, output: 1 };
        assert_eq!(parse(text.as_bytes()).unwrap(), [first, second]);
        let broken = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:50,many,1\n";
        let error = parse(broken.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line: 2") && error.contains("invalid digit"), "{error}");
        let empty = parse("TIMESTAMP,ContextTokens,GeneratedTokens\n".as_bytes()).unwrap_err();
        assert_eq!(empty.to_string(), "it has no request");
    }

    #[test]
    fn copies_keep_the_lengths_and_the_seed_decides() {
        let request = |at: f64| Request { at, input: 10, output: 20 };
        let requests = [request(0.0), request(100.0)];
        let all = multiplied(&requests, 3.0, 7);
        assert_eq!(all.len(), 6);
        assert!(all.is_sorted_by_key(|request| request.at));
        assert_eq!(all, multiplied(&requests, 3.0, 7));
        assert_ne!(all, multiplied(&requests, 3.0, 8));
        assert_eq!(multiplied(&requests, 1.0, 7), requests);
        let half = multiplied(&[request(1.0); 1_000], 0.5, 7).len();
        assert!((400..600).contains(&half), "{half}");
    }
}
