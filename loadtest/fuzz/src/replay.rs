//! Lines of recordings.
//!
//! Guarantees: a line that is taken holds only values in range; recorded anew it is taken again,
//! and then says what was shown: the second recording is the first to the last byte.

use std::time::Duration;

use agent::device::Observation;
use agent::device::replay::line::parse;
use agent::frame::{Taken, assemble};
use agent::local::json;
use agent::local::view::View;
use agent::owner::declared::Declaration;
use agent::owner::process::ProcessOwners;
use agent::owner::{Declared, Known, resolve};
use shared::reading::{Reading, Readings};
use shared::time::Timestamp;

/// Reads `data` as one line.
pub fn read(data: &[u8]) {
    let line = match parse(data) {
        Ok(line) => line,
        Err(why) => return assert!(!why.is_empty()),
    };
    assert!(line.at_ms.is_finite());
    for device in &line.observation.devices {
        are_in_range(&device.readings);
        for holder in &device.holders {
            assert!(holder.share.is_none_or(|share| (0.0..=1.0).contains(&share)));
            assert!(holder.own.iter().all(|(metric, value)| metric.accepts(*value)));
        }
    }
    line.observation.engines.iter().for_each(|engine| are_in_range(&engine.readings));
    let recorded = recorded(line.observation);
    let again = parse(recorded.as_bytes()).unwrap_or_else(|why| panic!("{why}: {recorded}"));
    assert!(again.unknown.is_empty(), "{:?}: {recorded}", again.unknown);
    assert_eq!(self::recorded(again.observation), recorded);
}

fn are_in_range(readings: &Readings) {
    for (metric, reading) in readings.iter() {
        if let Reading::Ok(value) = reading {
            assert!(metric.accepts(value), "{metric} {value}");
        }
    }
}

fn recorded(observation: Observation) -> String {
    let (file, declaration) = (Declared::new(), Declaration::default());
    let processes = ProcessOwners::unread();
    let known = Known { file: &file, declaration: &declaration, processes: &processes };
    let owners = resolve(&observation, known);
    let frame = assemble(observation, owners, None);
    let taken = Taken { frame, at: Timestamp::START, kubelet: None };
    json::line(&View::of(&taken, Timestamp::START, Duration::from_secs(10)), 0)
}
