//! Pages of metrics: the parser itself, and its two users.
//!
//! Guarantees: every line is a series, broken or nothing; a series written anew in quotes is read
//! as the same series; what an engine's page gives are readings in range.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use agent::engine::reader::Reader;
use gateway::demand::selection::{Said, Selection, read_all};
use shared::exposition::{Matchers, Series, parse, text};
use shared::reading::Reading;
use shared::time::Timestamp;

/// Reads `data` as a page, and its first line also as a selection of series.
pub fn read(data: &[u8]) {
    let Ok(page) = text(data) else { return };
    let first = page.lines().next().unwrap_or_default();
    let matchers = selection(first.trim_start_matches('#'));
    let mut last = 0;
    let mut wanted = HashSet::new();
    for series in parse(page) {
        let line = match &series {
            Ok(series) => {
                is_read_back(series);
                if wanted.len() < 4 {
                    wanted.insert(series.name.to_string());
                }
                series.line
            }
            Err(broken) => broken.line,
        };
        assert!(line > last, "line {line} after line {last}");
        last = line;
    }
    assert!(last <= page.split('\n').count());
    demand(page, wanted, &matchers);
    engine(page, &matchers);
}

/// Matchers are read back from their text.
fn selection(text: &str) -> Matchers {
    let Ok(matchers) = text.parse::<Matchers>() else { return Matchers::default() };
    assert_eq!(matchers.to_string().parse().as_ref(), Ok(&matchers));
    matchers
}

fn is_read_back(series: &Series<'_>) {
    let mut line = format!("{{{}", quoted(&series.name));
    let mut names = HashSet::new();
    for (name, value) in series.labels.iter() {
        assert_eq!(series.labels.get(&name), Some(value.clone()));
        write!(line, ",{}={}", quoted(&name), quoted(&value)).unwrap();
        assert!(names.insert(name), "a label twice in {line}");
    }
    write!(line, "}} {}", series.value).unwrap();
    let again = parse(&line).next().unwrap().unwrap_or_else(|why| panic!("{line}: {why}"));
    assert_eq!(again.name, series.name);
    assert!(again.labels.iter().eq(series.labels.iter()), "{line}");
    assert!(again.value == series.value || again.value.is_nan() && series.value.is_nan());
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

/// The same page twice, so that counters have something to be compared with.
fn demand(page: &str, wanted: HashSet<String>, labels: &Matchers) {
    let selections: Vec<_> =
        wanted.into_iter().map(|metric| Selection { metric, labels: labels.clone() }).collect();
    let mut before = vec![None; selections.len()];
    for second in [1, 2] {
        let now = Timestamp::START + Duration::from_secs(second);
        for said in read_all(page, selections.iter().zip(&mut before), now) {
            match said {
                Said::Value(value) => assert!(value.is_finite(), "{value}"),
                Said::Absent(why) | Said::Unknown(why) => assert!(!why.is_empty()),
            }
        }
    }
}

fn engine(page: &str, labels: &Matchers) {
    let selections: [Arc<str>; 2] = ["".into(), labels.to_string().into()];
    let mut reader = Reader::new(Duration::from_secs(60));
    for second in [1, 2] {
        let now = Timestamp::START + Duration::from_secs(second);
        let Ok(readings) = reader.read(page, None, &selections, now) else { return };
        assert_eq!(readings.len(), selections.len());
        for (metric, reading) in readings.iter().flat_map(|readings| readings.iter()) {
            if let Reading::Ok(value) = reading {
                assert!(metric.accepts(value), "{metric} {value}");
            }
        }
    }
}
