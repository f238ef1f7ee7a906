//! Holders files.
//!
//! Guarantees: of what is accepted, every holder is somebody, shares are parts of one device, and
//! a holder's own values are values that its metric can have.

use agent::owner::file::parse;
use proto::convert::MAX_HOLDERS;

/// Reads `data` as a holders file.
pub fn read(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let declared = match parse(text) {
        Ok(declared) => declared,
        Err(why) => return assert!(!why.is_empty()),
    };
    for holders in declared.values() {
        assert!(holders.len() <= MAX_HOLDERS);
        for holder in holders {
            assert!(!holder.pod.namespace.is_empty() && !holder.pod.name.is_empty());
            assert!(holder.share.is_none_or(|share| (0.0..=1.0).contains(&share)));
            for (metric, value) in &holder.own {
                assert!(metric.accepts(*value), "{metric} {value}");
            }
        }
        let is_one_pod = holders.iter().all(|holder| holder.pod == holders[0].pod);
        let shares: f64 = holders.iter().filter_map(|holder| holder.share).sum();
        assert!(is_one_pod || shares <= 1.001, "{shares}");
    }
}
