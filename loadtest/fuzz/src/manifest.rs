//! Manifests, as `gpu-gateway check` reads them.
//!
//! Guarantees: the same text gives the same report; every finding names a rule that is documented
//! and says something; both forms of the report can be written.

use std::time::Duration;

use gateway::check::{Known, RULES, Source, check, render};
use gateway::trigger::profile::Profiles;

/// Reads `data` as a file of manifests, and as a file of profiles.
pub fn read(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let sources = [Source { name: "a.yaml".to_owned(), text: text.to_owned() }];
    let profiles = Profiles::default();
    let load_time = Some(Duration::from_secs(120));
    let known = Known { profiles: &profiles, load_time, demand_allow: &[] };
    let report = check(&sources, &known);
    assert_eq!(report, check(&sources, &known));
    for finding in report.subjects.iter().flat_map(|subject| &subject.findings) {
        assert!(RULES.iter().any(|(rule, _)| *rule == finding.rule), "{finding:?}");
        assert!(!finding.message.is_empty());
    }
    render::json(&report).unwrap();
    render::table(&report);
    if let Ok(loaded) = Profiles::load(text) {
        assert!(loaded.names().count() >= profiles.names().count());
    }
}
